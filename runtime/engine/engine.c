/*
 * engine.c - what all engines have in common: names, lanes and the end. Called by the pipeline, the
 * negotiator and all that words an error, on any thread.
 */
#include "runtime/engine/engine.h"

const char *dp_collective_name(dp_collective_t collective)
{
    static const char *const names[DP_COLLECTIVE_COUNT] = {
        [DP_COLLECTIVE_ALLREDUCE] = "allreduce",
        [DP_COLLECTIVE_BROADCAST] = "broadcast",
        [DP_COLLECTIVE_ALLGATHER] = "allgather",
        [DP_COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter",
        [DP_COLLECTIVE_BARRIER] = "barrier",
        [DP_COLLECTIVE_REDUCE] = "reduce",
        [DP_COLLECTIVE_GATHER] = "gather",
        [DP_COLLECTIVE_SCATTER] = "scatter",
        [DP_COLLECTIVE_ALLTOALL] = "alltoall",
        [DP_COLLECTIVE_ALLGATHERV] = "allgatherv",
        [DP_COLLECTIVE_GATHERV] = "gatherv",
        [DP_COLLECTIVE_SCATTERV] = "scatterv",
        [DP_COLLECTIVE_ALLTOALLV] = "alltoallv",
        [DP_COLLECTIVE_REDUCE_SCATTERV] = "reduce_scatterv",
        [DP_COLLECTIVE_SEND] = "send",
        [DP_COLLECTIVE_JOIN] = "join",
        [DP_COLLECTIVE_GROUP_CREATE] = "group_create",
        [DP_COLLECTIVE_GROUP_DESTROY] = "group_destroy",
    };

    return (unsigned)collective < DP_COLLECTIVE_COUNT ? names[collective] : "unknown";
}

int dp_collective_reduces(dp_collective_t collective)
{
    return collective == DP_COLLECTIVE_ALLREDUCE || collective == DP_COLLECTIVE_REDUCE ||
           collective == DP_COLLECTIVE_REDUCE_SCATTER ||
           collective == DP_COLLECTIVE_REDUCE_SCATTERV;
}

dp_lane_t dp_lane_of(dp_collective_t collective)
{
    return collective == DP_COLLECTIVE_ALLGATHER || collective == DP_COLLECTIVE_BROADCAST
               ? DP_LANE_GATHER
               : DP_LANE_MAIN;
}

const char *dp_lane_name(dp_lane_t lane)
{
    static const char *const names[DP_LANE_COUNT] = {"main",      "gather",    "ordered",
                                                     "ordered 2", "ordered 3", "ordered 4"};

    return names[lane];
}

void dp_engine_destroy(dp_engine_t *engine)
{
    if (engine != NULL) engine->ops->destroy(engine);
}
