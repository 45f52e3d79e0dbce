/*
 * log.h - log lines on standard error, "dp warn rank 3: text", one write() each so that lines of
 * several threads and ranks never mix.
 *
 * A logger is a small value owned by its context; there is no global one. It never blocks on a slow
 * reader: with a queue what cannot be written waits there, without one it is dropped after a tenth
 * of a second.
 */
#ifndef DP_BASE_LOG_H
#define DP_BASE_LOG_H

#include "runtime/base/common.h"

typedef struct dp_log_queue dp_log_queue_t;

/* NULL: no memory; a log works without a queue, too. */
dp_log_queue_t *dp_log_queue_create(void);

/* Waits for what is queued, half a second at most. NULL is fine. */
void dp_log_queue_destroy(dp_log_queue_t *queue);

typedef enum dp_log_level {
    DP_LOG_ERROR = 0, /* the job cannot go on */
    DP_LOG_WARN = 1,  /* it can */
    DP_LOG_INFO = 2,  /* once per job */
    DP_LOG_DEBUG = 3, /* once per object */
    DP_LOG_TRACE = 4  /* per message */
} dp_log_level_t;

typedef struct dp_log {
    dp_log_level_t level;
    int rank;              /* -1: not known yet, or a program without ranks */
    int fd;                /* where lines go; 2 by default */
    dp_log_queue_t *queue; /* borrowed; NULL: none */
} dp_log_t;

void dp_log_init(dp_log_t *log, dp_log_level_t level, int rank);

/* Threads: any. NULL log: dropped. Level is checked before the text is formatted. */
void dp_log_write(const dp_log_t *log, dp_log_level_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define dp_log_error(log, ...) dp_log_write(log, DP_LOG_ERROR, __VA_ARGS__)
#define dp_log_warn(log, ...) dp_log_write(log, DP_LOG_WARN, __VA_ARGS__)
#define dp_log_info(log, ...) dp_log_write(log, DP_LOG_INFO, __VA_ARGS__)
#define dp_log_debug(log, ...) dp_log_write(log, DP_LOG_DEBUG, __VA_ARGS__)
#define dp_log_trace(log, ...) dp_log_write(log, DP_LOG_TRACE, __VA_ARGS__)

#endif
