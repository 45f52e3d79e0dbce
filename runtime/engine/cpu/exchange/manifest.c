/*
 * manifest.c - which elements go from rank to rank in an exchange, read out of the manifests of its
 * ranks.
 *
 * Arithmetic alone: exchange.c checks with it that everything fits, then both exchange.c and copy.c
 * find their blocks with it, so they cannot disagree. Called on the thread that runs operations. It
 * must not know where manifests or blocks lie.
 */
#include "runtime/engine/cpu/exchange/exchange.h"

size_t dp_exchange_count(const dp_exchange_run_t *run, int from, int to)
{
    const dp_exchange_manifest_t *manifest = run->pool->manifests[from];

    switch (run->op->collective) {
    case DP_COLLECTIVE_GATHER:
    case DP_COLLECTIVE_GATHERV:
        return to == run->root ? manifest->counts[0] : 0;
    case DP_COLLECTIVE_SEND:
        return from == run->root && to == run->peer ? manifest->counts[0] : 0;
    case DP_COLLECTIVE_SCATTER:
    case DP_COLLECTIVE_SCATTERV:
        if (from != run->root) return 0;
        break;
    default:
        break;
    }
    return manifest->counts[run->is_alike ? 0 : to];
}

size_t dp_exchange_start(const dp_exchange_run_t *run, int from, int to)
{
    const dp_exchange_manifest_t *manifest = run->pool->manifests[from];
    size_t start = 0;

    switch (run->op->collective) {
    case DP_COLLECTIVE_SCATTER:
    case DP_COLLECTIVE_ALLTOALL:
        return (size_t)to * manifest->counts[0];
    case DP_COLLECTIVE_SCATTERV:
    case DP_COLLECTIVE_ALLTOALLV:
        for (int i = 0; i < to; i++)
            start += manifest->counts[i];
        return start;
    default:
        return 0;
    }
}
