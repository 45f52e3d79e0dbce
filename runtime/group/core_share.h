/*
 * core_share.h - which cores a rank may run on, and whether every rank of a machine can have one of
 * its own.
 *
 * This is the one place that answers "has each rank a core". Polling pays only then: where ranks
 * take turns on a core, one that polls keeps the rank it waits for from running. The answer needs
 * all ranks of the machine, because a launcher may have bound each of them to a core of its own,
 * and because the quota of a cgroup holds for all its members together.
 */
#ifndef DP_GROUP_CORE_SHARE_H
#define DP_GROUP_CORE_SHARE_H

#include "runtime/base/common.h"
#include "runtime/base/wire.h"

#define DP_CORES_MAX ((size_t)4096)
#define DP_CORE_QUOTAS_MAX 4

/* A cgroup that may use less time than its cores have. */
typedef struct dp_core_quota {
    uint64_t group;      /* equal on one machine: the same cgroup */
    uint32_t millicores; /* what its members may use together; 1500: one core and a half */
} dp_core_quota_t;

typedef struct dp_core_share {
    uint8_t cores[DP_CORES_MAX / 8]; /* bit set: the rank may run there */
    dp_core_quota_t quotas[DP_CORE_QUOTAS_MAX];
    int quota_count; /* the rank's cgroup and those above it, as far as they have a quota */
} dp_core_share_t;

/* Reads affinity and quotas of the calling thread. A value that cannot be read is empty. */
void dp_core_share_read(dp_core_share_t *share);

/* Adds the quotas of the calling process by these files, /proc/self/cgroup and /sys/fs/cgroup
 * where they are real. Both versions of cgroups, and both at once. */
void dp_core_quotas_read(dp_core_share_t *share, const char *cgroup_file, const char *mount);

void dp_core_share_write(const dp_core_share_t *share, dp_writer_t *writer);
void dp_core_share_from(dp_core_share_t *share, dp_reader_t *reader);

/**
 * How many cores each rank of a machine can have for itself, all at the same time.
 *
 * Pure. @param shares [count] of the ranks of one machine
 * @return 0: some rank has none; else the number, at most `most`
 */
int dp_core_share_each(const dp_core_share_t *const *shares, int count, int most);

#endif
