/*
 * operation.c - one operation of a group whose ranks are on several nodes: it arrives, then
 * reduce.c or move.c carries it out.
 *
 * Called by cpu.c, on the thread that runs operations. It must not know how bytes travel.
 */
#include "runtime/engine/cpu/inter_node/inter_node.h"

dp_status_t dp_cpu_run_inter_node(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const dp_status_t status = dp_cpu_arrive(group, op, 0);

    if (status != DP_OK) return status;
    switch (op->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
    case DP_COLLECTIVE_REDUCE:
    case DP_COLLECTIVE_REDUCE_SCATTER:
        return dp_inter_node_reduce(group, op);
    case DP_COLLECTIVE_BROADCAST:
    case DP_COLLECTIVE_ALLGATHER:
    case DP_COLLECTIVE_BARRIER:
        return dp_inter_node_move(group, op);
    default:
        break;
    }
    return dp_cpu_fail(group, DP_ERR_INVALID, "engine: collective %d is unknown",
                       (int)op->collective);
}
