/*
 * core_share.c - reads which cores this rank may run on, and matches ranks with cores.
 *
 * Called by dp_init() on the program's thread. It must not know how the shares of other ranks
 * arrive.
 */
#include "runtime/group/core_share.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/input_file.h"

#define CORE_BYTES (DP_CORES_MAX / 8)
#define MILLI 1000.0

/* ---- Affinity ------------------------------------------------------------------------------- */

static void read_affinity(dp_core_share_t *share)
{
    cpu_set_t *set = CPU_ALLOC(DP_CORES_MAX);

    if (set == NULL) return;
    CPU_ZERO_S(CORE_BYTES, set);
    if (sched_getaffinity(0, CORE_BYTES, set) == 0) {
        for (size_t i = 0; i < DP_CORES_MAX; i++) {
            if (CPU_ISSET_S(i, CORE_BYTES, set)) share->cores[i / 8] |= (uint8_t)(1u << i % 8);
        }
    }
    CPU_FREE(set);
}

/* ---- Quotas --------------------------------------------------------------------------------- */

static uint64_t identity_of(const char *path)
{
    struct stat about;

    return stat(path, &about) == 0 ? (uint64_t)about.st_dev << 48 ^ (uint64_t)about.st_ino : 0;
}

/* The process's group of a controller, "" where it is the mount's root. 0: it is in none. */
static int find_group(const char *cgroup_file, const char *controller, char *group, size_t room)
{
    if (!dp_input_file_read_cgroup(cgroup_file, controller, group, room)) return 0;
    if (strcmp(group, "/") == 0) group[0] = '\0';
    return 1;
}

/* The quota of the group in this folder, in cores; 0: it has none. */
static double read_quota(const char *folder, int version, uint64_t *identity)
{
    char path[PATH_MAX + 32]; /* for a file in the folder */
    char text[64];
    double quota;
    double period;

    if (version == 2) {
        snprintf(path, sizeof(path), "%s/cpu.max", folder);
        if (!dp_input_file_read(path, text, sizeof(text))) return 0;
        *identity = identity_of(path);
        return sscanf(text, "%lf %lf", &quota, &period) == 2 && period > 0 ? quota / period : 0;
    }
    snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", folder);
    if (!dp_input_file_read(path, text, sizeof(text))) return 0;
    *identity = identity_of(path);
    quota = strtod(text, NULL); /* -1: none */
    snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", folder);
    if (quota <= 0 || !dp_input_file_read(path, text, sizeof(text))) return 0;
    period = strtod(text, NULL);
    return period > 0 ? quota / period : 0;
}

/* Inside a container the mount often starts at the container's own group, while the path is that
 * of the host: so every level from the path up to the mount is looked at. */
static void add_quotas(dp_core_share_t *share, const char *mount, char *group, int version)
{
    for (;;) {
        char folder[PATH_MAX];
        uint64_t identity = 0;
        char *slash = strrchr(group, '/');
        double quota;

        snprintf(folder, sizeof(folder), "%s%s", mount, group);
        quota = read_quota(folder, version, &identity);
        if (quota > 0 && share->quota_count < DP_CORE_QUOTAS_MAX) {
            share->quotas[share->quota_count++] = (dp_core_quota_t){
                identity, (uint32_t)dp_min(quota * MILLI + 0.5, (double)UINT32_MAX)};
        }
        if (slash == NULL) return;
        *slash = '\0';
    }
}

void dp_core_quotas_read(dp_core_share_t *share, const char *cgroup_file, const char *mount)
{
    char group[2048];
    char controller[PATH_MAX];

    if (find_group(cgroup_file, "", group, sizeof(group))) add_quotas(share, mount, group, 2);
    snprintf(controller, sizeof(controller), "%s/cpu", mount);
    if (find_group(cgroup_file, "cpu", group, sizeof(group)))
        add_quotas(share, controller, group, 1);
}

void dp_core_share_read(dp_core_share_t *share)
{
    memset(share, 0, sizeof(*share));
    read_affinity(share);
    dp_core_quotas_read(share, "/proc/self/cgroup", "/sys/fs/cgroup");
}

/* ---- On the wire ---------------------------------------------------------------------------- */

/* Machines have far fewer cores than there is room for: bytes of zeros at the end stay away. */
void dp_core_share_write(const dp_core_share_t *share, dp_writer_t *writer)
{
    size_t bytes = CORE_BYTES;

    while (bytes > 0 && share->cores[bytes - 1] == 0)
        bytes--;
    dp_write_u16(writer, (uint16_t)bytes);
    dp_write_bytes(writer, share->cores, bytes);
    dp_write_u8(writer, (uint8_t)share->quota_count);
    for (int i = 0; i < share->quota_count; i++) {
        dp_write_u64(writer, share->quotas[i].group);
        dp_write_u32(writer, share->quotas[i].millicores);
    }
}

void dp_core_share_from(dp_core_share_t *share, dp_reader_t *reader)
{
    const size_t bytes = dp_read_u16(reader);
    const void *cores = NULL;
    int count;

    memset(share, 0, sizeof(*share));
    if (bytes > CORE_BYTES) reader->failed = 1;
    if (!reader->failed) cores = dp_read_bytes(reader, bytes);
    if (cores != NULL && bytes > 0) memcpy(share->cores, cores, bytes);
    count = dp_read_u8(reader);
    if (count > DP_CORE_QUOTAS_MAX) reader->failed = 1;
    for (int i = 0; i < count && !reader->failed; i++) {
        share->quotas[i].group = dp_read_u64(reader);
        share->quotas[i].millicores = dp_read_u32(reader);
        share->quota_count = i + 1;
    }
}

/* ---- Matching ranks with cores -------------------------------------------------------------- */

/* Ranks matched with cores, by augmenting paths (Kuhn): a rank takes a free core of its own, or one
 * whose owner can move to another. */
typedef struct matching {
    const dp_core_share_t *const *shares;
    int owner[DP_CORES_MAX];      /* rank of each core; -1: free */
    uint8_t is_tried[CORE_BYTES]; /* bit set: this search has been at the core */
} matching_t;

static int has_bit(const uint8_t *bits, size_t core)
{
    return bits[core / 8] >> core % 8 & 1;
}

static int find_core(matching_t *matching, int rank)
{
    const uint8_t *cores = matching->shares[rank]->cores;

    for (size_t i = 0; i < DP_CORES_MAX; i++) { /* a free one first: mostly there is one */
        if (cores[i / 8] == 0) i |= 7;
        if (!has_bit(cores, i) || matching->owner[i] >= 0) continue;
        matching->owner[i] = rank;
        return 1;
    }
    for (size_t i = 0; i < DP_CORES_MAX; i++) {
        if (cores[i / 8] == 0) i |= 7;
        if (!has_bit(cores, i) || has_bit(matching->is_tried, i)) continue;
        matching->is_tried[i / 8] |= (uint8_t)(1u << i % 8);
        if (!find_core(matching, matching->owner[i])) continue;
        matching->owner[i] = rank;
        return 1;
    }
    return 0;
}

static int fits_cores(const dp_core_share_t *const *shares, int count, int per_rank)
{
    matching_t matching = {.shares = shares};

    for (size_t i = 0; i < DP_CORES_MAX; i++)
        matching.owner[i] = -1;
    for (int i = 0; i < count * per_rank; i++) {
        memset(matching.is_tried, 0, sizeof(matching.is_tried));
        if (!find_core(&matching, i / per_rank)) return 0;
    }
    return 1;
}

/* Ranks in the group of a quota, or in one below it. */
static int count_members(const dp_core_share_t *const *shares, int count, uint64_t group)
{
    int members = 0;

    for (int rank = 0; rank < count; rank++) {
        for (int i = 0; i < shares[rank]->quota_count; i++)
            members += shares[rank]->quotas[i].group == group;
    }
    return members;
}

static int fits_quotas(const dp_core_share_t *const *shares, int count, int per_rank)
{
    for (int rank = 0; rank < count; rank++) {
        for (int i = 0; i < shares[rank]->quota_count; i++) {
            const dp_core_quota_t *quota = &shares[rank]->quotas[i];
            const int members = count_members(shares, count, quota->group);

            if ((double)members * per_rank * MILLI > quota->millicores) return 0;
        }
    }
    return 1;
}

int dp_core_share_each(const dp_core_share_t *const *shares, int count, int most)
{
    int each = 0;

    while (each < most && fits_quotas(shares, count, each + 1) &&
           fits_cores(shares, count, each + 1))
        each++;
    return each;
}
