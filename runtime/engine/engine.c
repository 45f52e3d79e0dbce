/*
 * engine.c - what all engines have in common: names and the end.
 */
#include "runtime/engine/engine.h"

const char *dp_collective_name(dp_collective_t collective)
{
    switch (collective) {
    case DP_COLLECTIVE_ALLREDUCE:
        return "allreduce";
    case DP_COLLECTIVE_BROADCAST:
        return "broadcast";
    case DP_COLLECTIVE_ALLGATHER:
        return "allgather";
    case DP_COLLECTIVE_REDUCE_SCATTER:
        return "reduce_scatter";
    case DP_COLLECTIVE_BARRIER:
        return "barrier";
    case DP_COLLECTIVE_COUNT:
        break;
    }
    return "unknown";
}

void dp_engine_destroy(dp_engine_t *engine)
{
    if (engine != NULL) engine->ops->destroy(engine);
}
