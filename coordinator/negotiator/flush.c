/*
 * flush.c - the one order in which what is due becomes frames and outputs.
 *
 * Called by dp_negotiator_output(), on the thread that drives the negotiator, before each output is
 * taken; inputs only change state. Where nothing is due a step does nothing, so the second call
 * right after the first leaves everything as it is. The order is part of the protocol's proof:
 * if it is changed, the explorer finds a case that breaks.
 */
#include "coordinator/negotiator/flush.h"

#include "coordinator/negotiator/state.h"

/* LEFT first: it closes groups, and a tensor of a closed group must not be launched. BYE last. */
static void order_due(dp_negotiator_t *n)
{
    if (n->leave.is_finalizing) dp_leave_flush(n);
    if (dp_is_root(n)) dp_order_flush(n);
    if (n->leave.has_left && dp_is_root(n)) dp_leave_finish(n);
}

void dp_flush(dp_negotiator_t *n)
{
    /* 1. A submission that outlived an occurrence is announced before any step that ends the next.
     */
    dp_own_flush(n);
    /* 2. JOIN follows what its rank has submitted before; joined ranks complete tensors. */
    if (n->join.is_due) dp_join_flush(n);
    /* 3. LEFT, then what is complete is ordered, then BYE. */
    order_due(n);
    /* 4. An occurrence that has just ended may have left a submission; what that completes is
     *    ordered in the same flush. */
    dp_own_flush(n);
    order_due(n);
    /* 5. Ordered items leave before questions about tensors that these items may end. */
    dp_outbox_close_down(n);
    dp_stall_flush(n);
    dp_outbox_close_down(n);
    /* 6. Last, as each step above may have news for the parent: one frame takes them all. FIN is
     *    the last that a subtree sends. */
    dp_outbox_up(n);
    if (n->leave.has_left && !dp_is_root(n)) dp_leave_finish(n);
    dp_outbox_close_up(n);
}
