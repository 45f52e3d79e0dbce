/*
 * input.c - copies the terminal's lines to a rank; see input.h.
 *
 * Callbacks of dprun's event loop.
 */
#include "launcher/dprun/output/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dp_input {
    struct event *readable; /* the terminal */
    struct event *writable; /* the rank's pipe */
    int pump_fd;            /* -1: closed */
    char data[4096];
    size_t bytes;
    size_t at; /* of data, written so far */
};

/* In the background a read would stop dprun (SIGTTIN), and the lines are meant for the shell. */
static int is_foreground(void)
{
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

static void close_pump(dp_input_t *input)
{
    if (input->pump_fd < 0) return;
    event_del(input->readable);
    event_del(input->writable);
    close(input->pump_fd);
    input->pump_fd = -1;
}

/* Reading and writing take turns: the terminal is not read while the rank's pipe is full. */
static void on_readable(evutil_socket_t fd, short what, void *context)
{
    dp_input_t *input = context;
    ssize_t bytes;

    (void)what;
    if (!is_foreground()) return; /* dp_input_resume() looks again */
    bytes = read((int)fd, input->data, sizeof(input->data));
    if (bytes < 0 && (errno == EINTR || errno == EAGAIN || errno == EIO)) return;
    if (bytes <= 0) {
        close_pump(input); /* Ctrl-D */
        return;
    }
    input->bytes = (size_t)bytes;
    input->at = 0;
    event_add(input->writable, NULL);
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    dp_input_t *input = context;
    ssize_t bytes = write((int)fd, input->data + input->at, input->bytes - input->at);

    (void)what;
    if (bytes < 0 && errno != EINTR && errno != EAGAIN) {
        close_pump(input); /* the rank reads no more */
        return;
    }
    if (bytes > 0) input->at += (size_t)bytes;
    if (input->at < input->bytes) {
        event_add(input->writable, NULL);
    } else {
        event_add(input->readable, NULL);
    }
}

dp_status_t dp_input_open(int *rank_fd, int *pump_fd, dp_error_t *error)
{
    int fds[2];

    *pump_fd = -1;
    if (!isatty(STDIN_FILENO)) {
        *rank_fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        return DP_OK;
    }
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "pipe for standard input: %s", strerror(errno));
    }
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    *rank_fd = fds[0];
    *pump_fd = fds[1];
    return DP_OK;
}

dp_status_t dp_input_create(struct event_base *base, int pump_fd, dp_input_t **out,
                            dp_error_t *error)
{
    dp_input_t *input = calloc(1, sizeof(*input));

    if (input != NULL) {
        input->pump_fd = pump_fd;
        input->readable = event_new(base, STDIN_FILENO, EV_READ, on_readable, input);
        input->writable = event_new(base, pump_fd, EV_WRITE, on_writable, input);
    }
    if (input == NULL || input->readable == NULL || input->writable == NULL) {
        if (input == NULL) close(pump_fd);
        dp_input_destroy(input);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    }
    dp_input_resume(input);
    *out = input;
    return DP_OK;
}

void dp_input_destroy(dp_input_t *input)
{
    if (input == NULL) return;
    if (input->readable != NULL) event_free(input->readable);
    if (input->writable != NULL) event_free(input->writable);
    if (input->pump_fd >= 0) close(input->pump_fd);
    free(input);
}

void dp_input_resume(dp_input_t *input)
{
    if (input == NULL || input->pump_fd < 0 || !is_foreground()) return;
    if (event_pending(input->writable, EV_WRITE, NULL)) return;
    event_add(input->readable, NULL);
}
