/*
 * supervise_internal.h - what supervise.c (the event loop, one agent) and supervise_nodes.c (a
 * fleet of them) share.
 */
#ifndef DP_LAUNCHER_SUPERVISE_INTERNAL_H
#define DP_LAUNCHER_SUPERVISE_INTERNAL_H

#include "launcher/dprun/channel.h"
#include "launcher/dprun/supervise.h"

/* ---- supervise.c ---------------------------------------------------------------------------- */

void dp_supervisor_kill(dp_supervisor_t *supervisor);
void dp_supervisor_fail(dp_supervisor_t *supervisor); /* a rank has failed: the stages begin */
void dp_supervisor_interrupt(dp_supervisor_t *supervisor, int number);
void dp_supervisor_hear_agent(dp_supervisor_t *supervisor, dp_message_t *message);
void dp_supervisor_note_gone(dp_supervisor_t *supervisor, int left); /* no process is left */

/* ---- supervise_nodes.c ---------------------------------------------------------------------- */

/* start->input_fd is taken, also on an error. */
dp_status_t dp_supervisor_start_fleet(dp_supervisor_t *supervisor,
                                      const dp_supervisor_start_t *start, dp_error_t *error);
/* The reader of dprun's output takes something again: so may the ranks write. */
void dp_supervisor_output_drained(void *context);

#endif
