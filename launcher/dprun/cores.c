/*
 * cores.c - counts the cores a job may use (hwloc: affinity and cpuset aware) and shares them out.
 *
 * A container's CPU quota is no affinity: hwloc cannot see it, so the cgroup is read as well.
 * Otherwise every rank of a 2-core container on a 64-core machine would start 64 BLAS threads.
 */
#include "launcher/dprun/cores.h"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/dprun/cgroup.h"
#include "runtime/base/common.h"

void dp_cores_init(dp_cores_t *cores)
{
    hwloc_topology_t topology;
    hwloc_bitmap_t bound;
    int found;

    memset(cores, 0, sizeof(*cores));
    cores->allowed = 1;
    cores->in_machine = 1;
    cores->quota = dp_cgroup_cpu_quota();
    if (hwloc_topology_init(&topology) != 0) return;
    if (hwloc_topology_load(topology) != 0) {
        hwloc_topology_destroy(topology);
        return;
    }
    bound = hwloc_bitmap_alloc();
    if (bound == NULL || hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) != 0) {
        hwloc_bitmap_free(bound);
        bound = NULL;
    }
    found = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    if (found > 0) {
        cores->in_machine = found;
        cores->sets = calloc((size_t)found, sizeof(*cores->sets));
    }
    for (int i = 0; cores->sets != NULL && i < found; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(topology, HWLOC_OBJ_CORE, (unsigned)i);
        hwloc_bitmap_t mine = hwloc_bitmap_dup(core->cpuset);

        if (mine != NULL && bound != NULL) hwloc_bitmap_and(mine, mine, bound);
        if (mine != NULL && !hwloc_bitmap_iszero(mine)) {
            hwloc_cpuset_to_glibc_sched_affinity(topology, mine, &cores->sets[cores->count],
                                                 sizeof(cores->sets[0]));
            cores->count++;
        }
        hwloc_bitmap_free(mine);
    }
    cores->allowed = dp_max(cores->count, 1);
    if (cores->quota > 0 && cores->quota < cores->allowed) {
        cores->allowed = dp_max((int)(cores->quota + 0.5), 1);
    }
    hwloc_bitmap_free(bound);
    hwloc_topology_destroy(topology);
}

void dp_cores_fini(dp_cores_t *cores)
{
    free(cores->sets);
    memset(cores, 0, sizeof(*cores));
}

int dp_cores_share(const dp_cores_t *cores, int ranks)
{
    return dp_max(cores->allowed / dp_max(ranks, 1), 1);
}

void dp_cores_of_rank(const dp_cores_t *cores, int rank, int ranks, cpu_set_t *set)
{
    CPU_ZERO(set);
    if (cores->count == 0) return;
    if (ranks > cores->count) {
        *set = cores->sets[rank % cores->count];
        return;
    }
    /* Rank r takes [r n / p, (r + 1) n / p): every core has an owner, shares differ by one. */
    for (int i = rank * cores->count / ranks; i < (rank + 1) * cores->count / ranks; i++) {
        CPU_OR(set, set, &cores->sets[i]);
    }
}

void dp_cores_format(const cpu_set_t *set, char *text, size_t room)
{
    size_t used = 0;

    text[0] = '\0';
    for (int first = 0; first < CPU_SETSIZE; first++) {
        int last = first;

        if (!CPU_ISSET(first, set)) continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, set)) {
            last++;
        }
        used += (size_t)snprintf(text + used, room - used, last == first ? "%s%d" : "%s%d-%d",
                                 used == 0 ? "" : ",", first, last);
        if (used >= room) return;
        first = last;
    }
}
