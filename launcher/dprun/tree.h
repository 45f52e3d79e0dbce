/*
 * tree.h - finds and kills every descendant of this process.
 *
 * For a child subreaper: every process that a rank has started, daemons included, stays a
 * descendant. It must not know about ranks.
 */
#ifndef DP_LAUNCHER_TREE_H
#define DP_LAUNCHER_TREE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct dp_tree_process {
    pid_t pid;
    pid_t parent;
    pid_t session;
    char state;    /* as in /proc: R, S, T, Z, ... */
    char name[32]; /* of its program, at most 15 bytes */
    int is_below;  /* a descendant */
} dp_tree_process_t;

/* The living descendants of root (zombies are none), returned: free() it. *count is 0 with NULL. */
dp_tree_process_t *dp_tree_list(pid_t root, size_t *count);

/* Stops all descendants until no new ones appear, so that none can escape by forking, then kills
 * them. Returns how many. They are still to be reaped; call again until wait() says ECHILD. */
size_t dp_tree_kill(pid_t root);

/* Waits for a child of this process, a helper, for limit_ns at most: then kills it (it may be
 * stopped) and all that is below this process. Reaps what has ended. */
void dp_tree_await(pid_t child, uint64_t limit_ns);

#endif
