/*
 * cores.h - how many cores this job may use here, and which of them are a rank's.
 *
 * job.c asks once, before anything is started; spawn.c binds each rank to its share.
 */
#ifndef DP_LAUNCHER_CORES_H
#define DP_LAUNCHER_CORES_H

#include <sched.h>
#include <stddef.h>

typedef struct dp_cores {
    int allowed;     /* cores that affinity and cpuset allow, cut to the cgroup's CPU quota; >= 1 */
    int in_machine;  /* cores there are */
    double quota;    /* cores' worth of time the cgroup may use; 0: no limit */
    int count;       /* entries of sets: cores that affinity and cpuset allow */
    cpu_set_t *sets; /* [count] the processing units of each core */
} dp_cores_t;

/* Looks at the machine. Where nothing can be learned it says one core. */
void dp_cores_init(dp_cores_t *cores);
void dp_cores_fini(dp_cores_t *cores);

/* Cores each of `ranks` ranks may count on: at least 1. */
int dp_cores_share(const dp_cores_t *cores, int ranks);

/* The processing units of one rank's share: neighbouring cores, shared round-robin when there are
 * more ranks than cores. Empty when nothing is known. */
void dp_cores_of_rank(const dp_cores_t *cores, int rank, int ranks, cpu_set_t *set);

/* "0-3,8" of a set. */
void dp_cores_format(const cpu_set_t *set, char *text, size_t room);

#endif
