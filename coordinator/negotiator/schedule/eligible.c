/*
 * eligible.c - which tensors a schedule can hold, and when one can begin.
 *
 * Questions alone: nothing is changed. The root asks them before it orders a schedule (detect.c,
 * resume.c), every other rank when it is sent one (schedule_item.c). Called on the thread that
 * drives the negotiator.
 */
#include "coordinator/negotiator/schedule/schedule_internal.h"

/* Does the result on each rank need data of every rank? Then no rank can complete it before all
 * ranks have launched it, which catching up relies on. A broadcast's root could, for example. */
static int needs_every_rank(dp_collective_t collective)
{
    return collective == DP_COLLECTIVE_ALLREDUCE || collective == DP_COLLECTIVE_ALLGATHER ||
           collective == DP_COLLECTIVE_REDUCE_SCATTER ||
           collective == DP_COLLECTIVE_REDUCE_SCATTERV;
}

/* An average of integers cannot be corrected afterwards where a rank has joined instead. */
int dp_schedule_can_hold(const dp_entry_t *entry, const dp_signature_t *signature)
{
    uint64_t elements = 0;

    if (entry->view == NULL || entry->own_expect != NULL || signature == NULL) return 0;
    if (entry->view->is_closed || entry->id == DP_ID_NONE) return 0;
    if (!needs_every_rank(signature->collective)) return 0;
    for (uint32_t i = 0; i < signature->part_count; i++) {
        dp_dtype_t type = signature->parts[i].dtype;

        if (signature->reduce == DP_AVERAGE && !signature->count_joined && !dp_dtype_is_float(type))
            return 0;
        elements |= signature->parts[i].count;
    }
    return elements > 0;
}

/* Is all well enough for a schedule? */
int dp_schedule_is_calm(const dp_negotiator_t *n)
{
    const dp_schedule_t *schedule = n->schedule;

    if (schedule->catch_up.unsettled > 0 || schedule->catch_up.late_count > 0 ||
        n->own.queue.count > 0)
        return 0;
    if (n->leave.left_count > 0 || n->leave.is_finalizing || n->stall.stalled_count > 0) return 0;
    for (size_t i = 0; i <= n->groups.count; i++) {
        const dp_group_view_t *view = i < n->groups.count ? n->groups.views[i] : n->world;

        if (view->joined_count > 0 || view->has_join || view->is_closed) return 0;
    }
    return 1;
}
