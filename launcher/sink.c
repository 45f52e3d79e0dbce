/*
 * sink.c - a queue in front of standard output or standard error.
 *
 * The descriptor is never made non-blocking: that flag belongs to the open file, which the shell
 * and others share. Instead at most PIPE_BUF bytes are written each time poll says there is room,
 * which a pipe then always takes at once.
 */
#include "launcher/sink.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define FULL_BYTES ((size_t)1 << 20)
#define LOW_BYTES ((size_t)1 << 18)

struct dp_sink {
    int fd;
    int is_file;   /* always ready, and epoll refuses it */
    int is_socket; /* send() can be told not to block */
    int is_broken;
    int was_full;
    struct evbuffer *queue;
    struct event *writable; /* NULL for a file */
    dp_sink_events_t events;
};

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    dp_sink_flush(context);
}

dp_status_t dp_sink_create(struct event_base *base, int fd, const dp_sink_events_t *events,
                           dp_sink_t **out, dp_error_t *error)
{
    dp_sink_t *sink = calloc(1, sizeof(*sink));
    struct stat info;

    if (sink == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    sink->fd = fd;
    sink->events = *events;
    if (fstat(fd, &info) != 0) {
        sink->is_broken = 1;
    } else {
        sink->is_socket = S_ISSOCK(info.st_mode);
        sink->is_file = !sink->is_socket && !S_ISFIFO(info.st_mode) && !isatty(fd);
    }
    sink->queue = evbuffer_new();
    if (sink->queue != NULL && !sink->is_file && !sink->is_broken) {
        sink->writable = event_new(base, fd, EV_WRITE, on_writable, sink);
    }
    if (sink->queue == NULL || (sink->writable == NULL && !sink->is_file && !sink->is_broken)) {
        dp_sink_destroy(sink);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    *out = sink;
    return DP_OK;
}

void dp_sink_destroy(dp_sink_t *sink)
{
    if (sink == NULL) return;
    if (sink->writable != NULL) event_free(sink->writable);
    if (sink->queue != NULL) evbuffer_free(sink->queue);
    free(sink);
}

void dp_sink_write(dp_sink_t *sink, const void *data, size_t bytes)
{
    if (sink->is_broken) return;
    evbuffer_add(sink->queue, data, bytes);
    if (dp_sink_is_full(sink)) sink->was_full = 1;
}

static int has_room(const dp_sink_t *sink)
{
    struct pollfd room = {sink->fd, POLLOUT, 0};

    return sink->is_file || sink->is_socket || poll(&room, 1, 0) > 0;
}

static ssize_t write_some(const dp_sink_t *sink, const void *data, size_t bytes)
{
    if (sink->is_socket) return send(sink->fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    return write(sink->fd, data, sink->is_file ? bytes : DP_MIN(bytes, (size_t)PIPE_BUF));
}

static void give_up(dp_sink_t *sink, int error)
{
    sink->is_broken = 1;
    evbuffer_drain(sink->queue, evbuffer_get_length(sink->queue));
    sink->events.broken(sink->events.context, sink->fd, error);
}

void dp_sink_flush(dp_sink_t *sink)
{
    struct evbuffer_iovec part;

    while (!sink->is_broken && evbuffer_peek(sink->queue, -1, NULL, &part, 1) > 0) {
        ssize_t bytes;

        if (!has_room(sink)) {
            event_add(sink->writable, NULL);
            break;
        }
        bytes = write_some(sink, part.iov_base, part.iov_len);
        if (bytes >= 0) {
            evbuffer_drain(sink->queue, (size_t)bytes);
        } else if (errno == EAGAIN) {
            if (sink->writable != NULL) event_add(sink->writable, NULL);
            break;
        } else if (errno != EINTR) {
            give_up(sink, errno);
        }
    }
    if (sink->was_full && dp_sink_queued(sink) < LOW_BYTES) {
        sink->was_full = 0;
        sink->events.drained(sink->events.context);
    }
}

int dp_sink_is_full(const dp_sink_t *sink)
{
    return dp_sink_queued(sink) >= FULL_BYTES;
}

size_t dp_sink_queued(const dp_sink_t *sink)
{
    return evbuffer_get_length(sink->queue);
}
