/*
 * input.h - standard input of the one rank that reads it.
 *
 * A file or a pipe is handed over as it is. A terminal is not: the rank lives in another session,
 * so it could read what is meant for the shell while dprun is in the background. Its lines are
 * copied, and only while dprun is in the foreground. Called by dprun.c and supervise.c, on dprun's
 * only thread.
 */
#ifndef DP_LAUNCHER_INPUT_H
#define DP_LAUNCHER_INPUT_H

#include <event2/event.h>

#include "runtime/base/error.h"

typedef struct dp_input dp_input_t;

/* Chooses the descriptor to give the rank, and with a terminal the end to write to (*pump_fd, else
 * -1). Both are returned, close-on-exec. *rank_fd is -1 when dprun itself has no input. */
dp_status_t dp_input_open(int *rank_fd, int *pump_fd, dp_error_t *error);

/* Copies the terminal to pump_fd (taken) as long as both live. */
dp_status_t dp_input_create(struct event_base *base, int pump_fd, dp_input_t **out,
                            dp_error_t *error);
void dp_input_destroy(dp_input_t *input); /* NULL is fine */

/* dprun may be in the foreground again. NULL is fine. */
void dp_input_resume(dp_input_t *input);

#endif
