/*
 * hosts.h - the nodes of a job by name, and which ranks go where. Pure but for the file it reads.
 *
 * Names come from -H, a hostfile or Slurm. Ranks fill the nodes in order, each up to its slots.
 * Called by nodes.c and nodes_join.c.
 */
#ifndef DP_LAUNCHER_HOSTS_H
#define DP_LAUNCHER_HOSTS_H

#include "runtime/base/error.h"

#define DP_HOST_NAME_MAX 255

typedef struct dp_host {
    char name[DP_HOST_NAME_MAX + 1];
    int slots;
    int has_slots;  /* they were given */
    int first_rank; /* set by dp_hosts_place() */
    int ranks;      /* 0: it takes no part */
} dp_host_t;

typedef struct dp_hosts {
    int count;
    dp_host_t *list; /* [count] */
} dp_hosts_t;

void dp_hosts_fini(dp_hosts_t *hosts);

/* "a:2,b:2,c": a name without a number has one slot. A name twice: its slots add up. Names may be
 * user@name; an IPv6 address stands in brackets. */
dp_status_t dp_hosts_parse(dp_hosts_t *hosts, const char *text, dp_error_t *error);

/* Lines "name", "name:2" or "name slots=2 max-slots=4" (Open MPI's); # begins a comment. */
dp_status_t dp_hosts_read(dp_hosts_t *hosts, const char *path, dp_error_t *error);

/* Slurm's lists: "a,n[1-3,7],m[08-10]x" and "2(x3),1", slots by node in the same order. */
dp_status_t dp_hosts_from_slurm(dp_hosts_t *hosts, const char *names, const char *tasks,
                                dp_error_t *error);

/* Gives `size` ranks their nodes; 0: one for each slot. *size becomes their number. Nodes without a
 * rank are dropped. DP_ERR_CONFIG: more ranks than slots, where slots were given. */
dp_status_t dp_hosts_place(dp_hosts_t *hosts, int *size, dp_error_t *error);

#endif
