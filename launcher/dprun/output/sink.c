/*
 * sink.c - a queue in front of standard output or standard error.
 *
 * Used by output.c on dprun's event loop. The descriptor is never made non-blocking: that flag
 * belongs to the open file, which the shell and others share. Nor does poll() help: a terminal
 * that calls itself writable may block after a few bytes. So a pipe or a terminal is opened once
 * more, through /proc/self/fd, and that open file is ours alone. Where this is not permitted (a
 * terminal of another user) a thread stands between, which copies from a pipe of ours and may
 * block.
 */
#include "launcher/dprun/output/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/limits.h"
#include "runtime/base/thread.h"

#define FULL_BYTES ((size_t)1 << 20)
#define LOW_BYTES ((size_t)1 << 18)
#define TICK_US 10000 /* how often to try where no event says that there is room */

/* The thread for a descriptor that may block. The sink lets go of it by closing the pipe; it may
 * then outlive the sink, blocked for as long as dprun lives. */
typedef struct pump {
    int from;
    int to;
    _Atomic size_t written; /* bytes, ever */
    atomic_int users;       /* the sink, the thread */
} pump_t;

struct dp_sink {
    int fd;        /* as the user knows it */
    int out;       /* the descriptor written to: fd, or an open file of our own */
    int is_file;   /* a write ends by itself, and epoll refuses it */
    int is_socket; /* send() can be told not to block */
    int is_broken;
    int was_full;
    struct evbuffer *queue;
    struct event *writable; /* NULL for a file */
    struct event *tick;
    pump_t *pump;  /* NULL: none is needed */
    size_t pumped; /* bytes given to it, ever */
    dp_sink_events_t events;
};

/* ---- A descriptor that may block ------------------------------------------------------------ */

static void pump_leave(pump_t *pump)
{
    if (atomic_fetch_sub(&pump->users, 1) == 1) free(pump);
}

static int write_all(pump_t *pump, const char *data, ssize_t bytes)
{
    while (bytes > 0) {
        ssize_t wrote = write(pump->to, data, (size_t)bytes);

        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return -1;
        data += wrote;
        bytes -= wrote;
        atomic_fetch_add(&pump->written, (size_t)wrote);
    }
    return 0;
}

static void *run_pump(void *context)
{
    pump_t *pump = context;
    char data[4096];
    ssize_t bytes;

    do {
        bytes = read(pump->from, data, sizeof(data));
    } while ((bytes < 0 && errno == EINTR) || (bytes > 0 && write_all(pump, data, bytes) == 0));
    close(pump->from); /* the sink sees a reader that left */
    pump_leave(pump);
    return NULL;
}

static dp_status_t start_pump(dp_sink_t *sink, dp_error_t *error)
{
    pthread_t thread;
    int fds[2];
    int failed;

    sink->pump = calloc(1, sizeof(*sink->pump));
    if (sink->pump == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    atomic_store(&sink->pump->users, 1);
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "a pipe for the output: %s", strerror(errno));
    }
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    sink->out = fds[1];
    sink->pump->from = fds[0];
    sink->pump->to = sink->fd;
    atomic_store(&sink->pump->users, 2);
    failed = dp_thread_start(&thread, run_pump, sink->pump);
    if (failed == 0) {
        pthread_detach(thread);
        return DP_OK;
    }
    atomic_store(&sink->pump->users, 1);
    close(fds[0]);
    return dp_error_set(error, DP_ERR_SYSTEM, "a thread for the output: %s",
                        dp_limits_describe_start(failed));
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    dp_sink_flush(context);
}

/* Finds a way to write that never blocks. */
static dp_status_t open_out(dp_sink_t *sink, dp_error_t *error)
{
    char path[32];
    struct stat info;

    if (fstat(sink->fd, &info) != 0) {
        sink->is_broken = 1;
        return DP_OK;
    }
    sink->is_socket = S_ISSOCK(info.st_mode);
    sink->is_file = !sink->is_socket && !S_ISFIFO(info.st_mode) && !isatty(sink->fd);
    if (sink->is_file || sink->is_socket) return DP_OK;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", sink->fd);
    sink->out = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (sink->out >= 0) return DP_OK;
    sink->out = sink->fd;
    return start_pump(sink, error);
}

dp_status_t dp_sink_create(struct event_base *base, int fd, const dp_sink_events_t *events,
                           dp_sink_t **out, dp_error_t *error)
{
    dp_sink_t *sink = calloc(1, sizeof(*sink));
    dp_status_t status;

    if (sink == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    sink->fd = fd;
    sink->out = fd;
    sink->events = *events;
    status = open_out(sink, error);
    sink->queue = evbuffer_new();
    sink->tick = event_new(base, -1, 0, on_writable, sink);
    if (status == DP_OK && !sink->is_file && !sink->is_broken) {
        sink->writable = event_new(base, sink->out, EV_WRITE, on_writable, sink);
    }
    if (status == DP_OK && (sink->queue == NULL || sink->tick == NULL ||
                            (sink->writable == NULL && !sink->is_file && !sink->is_broken))) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    if (status != DP_OK) {
        dp_sink_destroy(sink);
        return status;
    }
    *out = sink;
    return DP_OK;
}

void dp_sink_destroy(dp_sink_t *sink)
{
    if (sink == NULL) return;
    if (sink->writable != NULL) event_free(sink->writable);
    if (sink->tick != NULL) event_free(sink->tick);
    if (sink->queue != NULL) evbuffer_free(sink->queue);
    if (sink->out != sink->fd) close(sink->out);
    if (sink->pump != NULL) pump_leave(sink->pump);
    free(sink);
}

void dp_sink_write(dp_sink_t *sink, const void *data, size_t bytes)
{
    if (sink->is_broken) return;
    evbuffer_add(sink->queue, data, bytes);
    if (dp_sink_is_full(sink)) sink->was_full = 1;
}

static ssize_t write_some(const dp_sink_t *sink, const void *data, size_t bytes)
{
    if (sink->is_socket) return send(sink->out, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    return write(sink->out, data, bytes);
}

static void call_again(dp_sink_t *sink)
{
    const struct timeval tick = {0, TICK_US};
    struct pollfd room = {sink->out, POLLOUT, 0};

    /* A terminal may say that there is room, and have none for a newline. */
    if (dp_sink_queued(sink) > 0 && sink->writable != NULL && poll(&room, 1, 0) == 0) {
        event_add(sink->writable, NULL);
    } else {
        event_add(sink->tick, &tick);
    }
}

static void break_sink(dp_sink_t *sink, int error)
{
    sink->is_broken = 1;
    evbuffer_drain(sink->queue, evbuffer_get_length(sink->queue));
    sink->events.broken(sink->events.context, sink->fd, error);
}

void dp_sink_flush(dp_sink_t *sink)
{
    struct evbuffer_iovec part;

    while (!sink->is_broken && evbuffer_peek(sink->queue, -1, NULL, &part, 1) > 0) {
        ssize_t bytes = write_some(sink, part.iov_base, part.iov_len);

        if (bytes > 0) {
            if (sink->pump != NULL) sink->pumped += (size_t)bytes;
            evbuffer_drain(sink->queue, (size_t)bytes);
        } else if (bytes == 0 || errno == EAGAIN) {
            break;
        } else if (errno != EINTR) {
            break_sink(sink, errno);
        }
    }
    if (!sink->is_broken && dp_sink_queued(sink) > 0) call_again(sink);
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
    size_t pending = sink->pump == NULL ? 0 : sink->pumped - atomic_load(&sink->pump->written);

    return evbuffer_get_length(sink->queue) + (sink->is_broken ? 0 : pending);
}
