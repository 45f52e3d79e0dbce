/*
 * output.h - what the ranks write, on its way to dprun's own output and to files.
 *
 * Whole lines, each with its rank; standard output and standard error stay apart; nothing is lost.
 * A slow reader of dprun's output slows the ranks down, as a pipe would. Called by the files of
 * supervise.c, on dprun's only thread. It must not know why a job ends.
 */
#ifndef DP_LAUNCHER_OUTPUT_H
#define DP_LAUNCHER_OUTPUT_H

#include <event2/event.h>

#include "launcher/dprun/options.h"
#include "launcher/dprun/output/lines.h"

typedef struct dp_job_output dp_job_output_t;

typedef struct dp_job_output_events {
    void (*ended)(void *context);             /* a stream of a rank has ended */
    void (*broken)(void *context, int error); /* dprun's own output is closed; once */
    void (*drained)(void *context); /* dp_job_output_is_held() no longer holds; NULL: no matter */
    void *context;
} dp_job_output_events_t;

/* Makes the directory of --output-dir where needed, before anything is started. */
dp_status_t dp_job_output_make_dir(const dp_command_t *command, dp_error_t *error);

/* command is borrowed. */
dp_status_t dp_job_output_create(struct event_base *base, const dp_command_t *command, int size,
                                 uint64_t start_ns, const dp_job_output_events_t *events,
                                 dp_job_output_t **out, dp_error_t *error);
void dp_job_output_destroy(dp_job_output_t *output);

/* Takes the read end of a rank's stream: 1 or 2. */
dp_status_t dp_job_output_attach(dp_job_output_t *output, int rank, int stream, int fd,
                                 dp_error_t *error);

/* The same for a rank on another machine, whose bytes come by dp_job_output_feed(); node is its
 * machine's name for the prefix, borrowed. */
dp_status_t dp_job_output_open(dp_job_output_t *output, int rank, int stream, const char *node,
                               dp_error_t *error);
/* Bytes of such a stream; none: it has ended. */
void dp_job_output_feed(dp_job_output_t *output, int rank, int stream, const char *data,
                        size_t bytes);

/* A line of dprun's own on standard error, after what is queued there: "dprun: text". */
void dp_job_output_say(dp_job_output_t *output, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Text as it is, whole lines, on standard error. */
void dp_job_output_print(dp_job_output_t *output, const char *text);

/* Streams still open. */
int dp_job_output_open_streams(const dp_job_output_t *output);
/* Whether reading waits for a reader of ours. */
int dp_job_output_is_held(const dp_job_output_t *output);
/* Whether everything is written. */
int dp_job_output_is_flushed(const dp_job_output_t *output);
/* Bytes that are not. */
size_t dp_job_output_queued(const dp_job_output_t *output);
/* Whether some of what ranks wrote could not be written or saved (a full disk). */
int dp_job_output_has_lost(const dp_job_output_t *output);

/* Closes the streams that are still open; what they held so far is written first. */
void dp_job_output_close_streams(dp_job_output_t *output);

const dp_tail_t *dp_job_output_tail(const dp_job_output_t *output, int rank);

/* "+03:17.482" or "+1:03:17.482". */
void dp_format_elapsed(uint64_t ns, char *text, size_t room);

#endif
