/*
 * log.c - formats a log line; log_queue.c writes it.
 *
 * Called from any thread, but not from a signal handler. It never waits for the reader of standard
 * error, because the coordinator logs, too.
 */
#include "runtime/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/error.h"

/* Below PIPE_BUF, up to which the kernel never mixes two writers of one pipe. */
#define LINE_MAX_BYTES 2048

static const char *level_name(dp_log_level_t level)
{
    switch (level) {
    case DP_LOG_ERROR:
        return "error";
    case DP_LOG_WARN:
        return "warn";
    case DP_LOG_INFO:
        return "info";
    case DP_LOG_DEBUG:
        return "debug";
    case DP_LOG_TRACE:
        return "trace";
    }
    return "?";
}

void dp_log_init(dp_log_t *log, dp_log_level_t level, int rank)
{
    log->level = level;
    log->rank = rank;
    log->fd = STDERR_FILENO;
    log->queue = NULL;
}

void dp_log_write(const dp_log_t *log, dp_log_level_t level, const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    const size_t room = sizeof(line) - 1; /* the newline's */
    va_list arguments;
    size_t bytes;
    int printed;
    int saved = errno; /* a caller may log before it looks at errno */

    if (log == NULL || level > log->level) return;
    if (log->rank >= 0) {
        printed = snprintf(line, room, "dp %s rank %d: ", level_name(level), log->rank);
    } else {
        printed = snprintf(line, room, "dp %s: ", level_name(level));
    }
    bytes = printed > 0 ? (size_t)printed : 0;
    va_start(arguments, format);
    printed = vsnprintf(line + bytes, room - bytes, format, arguments);
    va_end(arguments);
    if (printed > 0) bytes += dp_min((size_t)printed, room - bytes - 1);
    for (size_t i = 0; i < bytes; i++) { /* a name from outside cannot forge a second line */
        if (line[i] == '\n' || line[i] == '\r') line[i] = ' ';
    }
    line[bytes] = '\0';
    dp_text_mask(line);
    while (bytes > 0 && line[bytes - 1] == ' ')
        bytes--;
    line[bytes++] = '\n';
    if (log->queue != NULL) {
        dp_log_queue_write(log->queue, log->fd, line, bytes, level == DP_LOG_ERROR);
    } else {
        dp_log_line_write(log->fd, line, bytes);
    }
    errno = saved;
}
