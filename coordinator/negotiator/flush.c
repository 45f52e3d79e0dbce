/*
 * flush.c - the one order in which what is due becomes frames and outputs.
 *
 * Called by dp_negotiator_output(), on the thread that drives the negotiator, before each output is
 * taken; inputs only change state. Where nothing is due a step does nothing, so the second call
 * right after the first leaves everything as it is. The order is part of the protocol's proof:
 * if it is changed, the explorer finds a case that breaks.
 */
#include "coordinator/negotiator/negotiator_internal.h"

/* LEFT first: it closes groups, and a tensor of a closed group must not be launched. BYE last. */
static void order_due(dp_negotiator_t *n)
{
    if (n->leave.is_finalizing) dp_leave_flush(n);
    if (dp_is_root(n)) dp_order_flush(n);
    if (n->leave.has_left && dp_is_root(n)) dp_leave_finish(n);
}

void dp_flush(dp_negotiator_t *n)
{
    /* 1. This rank announces its part of an occurrence before any step that may end it. */
    dp_own_flush(n);
    /* 2. Late launches that are settled come before launches that are ordered below. */
    dp_schedule_catch_up(n);
    /* 3. JOIN follows what its rank has submitted before; joined ranks complete tensors. */
    if (n->leave.has_join_to_say) dp_join_flush(n);
    /* 4. The root: a schedule takes a round whole or not at all, so it begins before anything of
     *    the next round is ordered. An earlier one comes first: it needs no rounds to be seen. */
    dp_schedule_resume(n);
    dp_schedule_detect(n);
    /* 5. LEFT, then what is complete is ordered, then BYE. */
    order_due(n);
    /* 6. An occurrence that has just ended may have the next one queued behind it; what that
     *    completes is ordered in the same flush. */
    dp_own_flush(n);
    dp_schedule_catch_up(n);
    order_due(n);
    /* 7. The last launch of a round may have been ordered in 5 and 6. */
    dp_schedule_detect(n);
    /* 8. Under a schedule: launches, then what they give to report. */
    dp_schedule_flush(n);
    /* 9. Ordered items leave before questions about tensors that these items may end. */
    dp_outbox_close_down(n);
    dp_stall_flush(n);
    dp_outbox_close_down(n);
    /* 10. Last, as each step above may have news for the parent: one frame takes them all. FIN is
     *     the last that a subtree sends. */
    dp_outbox_up(n);
    if (n->leave.has_left && !dp_is_root(n)) dp_leave_finish(n);
    dp_outbox_close_up(n);
}
