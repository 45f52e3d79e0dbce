/*
 * cgroup.h - what the kernel says about this process's CPU quota and memory limit.
 *
 * Reads cgroup v2 files, v1 where they are mounted, and /proc/vmstat. All of it is evidence, not
 * truth: a container may hide its cgroup. Nothing here fails; unknown is -1 (or 0 for no limit).
 * Called by dprun and by its program on each node, on their only thread.
 */
#ifndef DP_LAUNCHER_CGROUP_H
#define DP_LAUNCHER_CGROUP_H

#include <stdint.h>

typedef struct dp_memory_sight {
    int64_t cgroup_kills; /* oom_kill of our cgroup or the nearest readable one above; -1 unknown */
    int64_t system_kills; /* oom_kill of the whole machine since boot; -1 unknown */
    int64_t limit_bytes;  /* memory limit of the cgroup; 0: none or unknown */
    int64_t total_bytes;  /* memory of the machine; 0 unknown */
} dp_memory_sight_t;

void dp_cgroup_memory(dp_memory_sight_t *sight);

/* Cores' worth of CPU time, 0: no limit. */
double dp_cgroup_cpu_quota(void);

#endif
