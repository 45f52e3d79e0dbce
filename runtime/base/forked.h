/*
 * forked.h - what a child made by fork() must not have of its parent: connections, and the use of
 * its parent's contexts.
 *
 * A child that does not exec() inherits every descriptor. While it holds a rank's end of a
 * connection, the kernel does not close it when the rank dies, so no other rank notices the death.
 * So the child gives these descriptors up before fork() returns in it. It has none of the rank's
 * threads either, so a context is of no use there; dp_fork_generation() says in which process a
 * context was made, without a system call.
 *
 * The registry is the process's, as fork() is; nothing else in it is shared between contexts.
 */
#ifndef DP_RUNTIME_BASE_FORKED_H
#define DP_RUNTIME_BASE_FORKED_H

#include <stdatomic.h>

/* Written by the child's first instructions only. */
extern _Atomic unsigned dp_fork_count;

/* Another number in every child that a process with registered contexts or descriptors forks. */
static inline unsigned dp_fork_generation(void)
{
    return atomic_load_explicit(&dp_fork_count, memory_order_relaxed);
}

/* A context has been made, or is gone. Any thread. */
void dp_fork_enter(void);
void dp_fork_leave(void);

/* 1: this process was forked from one that had a context. */
int dp_fork_is_child(void);

/* A descriptor that a child gives up. It lies in its owner's memory; zeros: none. */
typedef struct dp_fork_watch {
    struct dp_fork_watch *previous, *next; /* guarded by the registry's lock */
    int fd;
    int is_listed;
} dp_fork_watch_t;

/*
 * In a child, fd becomes /dev/null; if it is an epoll, so does all it watches, at any depth, which
 * is how descriptors inside of UCX are found. The numbers stay taken, so what the child does
 * with them at its exit harms no other file. Several may watch one descriptor. A watch that is in
 * use goes over to the new descriptor.
 *
 * Forget it before it is closed, and before its memory goes; again is fine. Any thread.
 */
void dp_fork_watch(dp_fork_watch_t *watch, int fd);
void dp_fork_forget(dp_fork_watch_t *watch);

#endif
