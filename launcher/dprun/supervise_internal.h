/*
 * supervise_internal.h - what the files of the supervisor share. Each calls only those below it:
 *
 *     supervise.c         the event loop, one agent
 *     supervise_nodes.c   a fleet of them
 *     supervise_stages.c  how a job ends
 */
#ifndef DP_LAUNCHER_SUPERVISE_INTERNAL_H
#define DP_LAUNCHER_SUPERVISE_INTERNAL_H

#include "launcher/dprun/channel.h"
#include "launcher/dprun/supervise.h"

#define DP_SUPERVISE_DRAIN_NS UINT64_C(500000000) /* for pipes that somebody else holds open */

/* ---- supervise_stages.c --------------------------------------------------------------------- */

dp_status_t dp_supervisor_make_timers(dp_supervisor_t *supervisor); /* DP_ERR_NO_MEMORY */
void dp_supervisor_arm_timer(struct event *timer, uint64_t ns);
/* To the agent, or to all stations: SIGNAL with its number, KILL, BYE. */
void dp_supervisor_order(dp_supervisor_t *supervisor, dp_message_type_t type, int number);
void dp_supervisor_fail(dp_supervisor_t *supervisor); /* a rank has failed: the stages begin */
/* Sends the ranks a signal; those that still run after grace_ns are killed. */
void dp_supervisor_tell(dp_supervisor_t *supervisor, int number, uint64_t grace_ns);
void dp_supervisor_kill(dp_supervisor_t *supervisor);
/* A request to end: a signal. is_again: the second request of the same sender. */
void dp_supervisor_interrupt(dp_supervisor_t *supervisor, int number, int is_again);
/* The agent is gone, or does not do what it is told: ends all that is below this process. */
void dp_supervisor_lose_agent(dp_supervisor_t *supervisor);
void dp_supervisor_hear_agent(dp_supervisor_t *supervisor, dp_message_t *message);
void dp_supervisor_note_gone(dp_supervisor_t *supervisor, int left); /* no process is left */
void dp_supervisor_check_over(dp_supervisor_t *supervisor);

/* After Ctrl-C or --timeout a user waits for dprun: it waits for its own output's reader only as
 * long as that reader takes something. */
int dp_supervisor_has_waited_enough(dp_supervisor_t *supervisor);

/* ---- supervise_nodes.c ---------------------------------------------------------------------- */

/* start->input_fd is taken, also on an error. */
dp_status_t dp_supervisor_start_fleet(dp_supervisor_t *supervisor,
                                      const dp_supervisor_start_t *start, dp_error_t *error);
/* The reader of dprun's output takes something again: so may the ranks write. */
void dp_supervisor_output_drained(void *context);

#endif
