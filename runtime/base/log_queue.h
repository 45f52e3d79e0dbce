/*
 * log_queue.h - gets log lines out without ever making the thread that logs wait for a reader.
 *
 * A line is written at once where the descriptor takes it. The rest of it waits in a bounded
 * queue that a thread empties; lines that find no room are dropped, counted and told about later.
 * log.c is the only caller.
 */
#ifndef DP_BASE_LOG_QUEUE_H
#define DP_BASE_LOG_QUEUE_H

#include <stddef.h>

typedef struct dp_log_queue dp_log_queue_t;

/* NULL: no memory; a log works without a queue, too. */
dp_log_queue_t *dp_log_queue_create(void);

/* Waits for what is queued, half a second at most. NULL is fine. */
void dp_log_queue_destroy(dp_log_queue_t *queue);

/* Writes or queues one whole line. is_error: it may use room that is kept for such lines.
 * Threads: any. */
void dp_log_queue_write(dp_log_queue_t *queue, int fd, const char *line, size_t bytes,
                        int is_error);

/* Writes a line without a queue: the rest after a tenth of a second is dropped. */
void dp_log_line_write(int fd, const char *line, size_t bytes);

#endif
