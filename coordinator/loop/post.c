/*
 * post.c - see post.h.
 *
 * These calls leave something in the inbox. They do not touch the negotiator, the transport or the
 * neighbours: those belong to the thread that owns progress, and these calls neither take
 * progress_lock nor wait for it.
 */
#include "coordinator/loop/post.h"

#include "coordinator/loop/state.h"

void dp_loop_urgent(dp_loop_t *loop, uint32_t group, const char *name)
{
    dp_inbox_urgent(&loop->inbox, group, name);
}

void dp_loop_launch_done(dp_loop_t *loop, uint64_t sequence)
{
    dp_inbox_launch_done(&loop->inbox, sequence);
}

void dp_loop_set_activity(dp_loop_t *loop, const char *text)
{
    dp_inbox_set_activity(&loop->inbox, text);
}

void dp_loop_abort(dp_loop_t *loop, dp_status_t status, const char *text)
{
    dp_inbox_abort(&loop->inbox, status, text);
}

int dp_loop_is_aborting(dp_loop_t *loop)
{
    return dp_inbox_is_aborted(&loop->inbox);
}

void dp_loop_report_mismatch(dp_loop_t *loop, dp_status_t status, const char *text)
{
    dp_inbox_report_mismatch(&loop->inbox, status, text);
}
