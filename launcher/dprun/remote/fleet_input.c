/*
 * fleet_input.c - dprun's standard input, on its way to the rank of another machine that reads it.
 *
 * One piece is under way at a time, so dprun reads no further than the rank does, by one piece. A
 * pipe or a terminal is awaited in the event loop; a file is always readable, and epoll refuses it.
 * Called by fleet_start.c and fleet.c, on dprun's only thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "launcher/dprun/remote/fleet_internal.h"

#define MAJOR_OF_MEMORY 1 /* /dev/null, /dev/zero */

void dp_fleet_input_close(dp_fleet_t *fleet)
{
    if (fleet->on_input != NULL) event_free(fleet->on_input);
    if (fleet->input_fd >= 0) close(fleet->input_fd);
    fleet->on_input = NULL;
    fleet->input_fd = -1;
}

static void read_piece(dp_fleet_t *fleet)
{
    dp_fleet_node_t *node = dp_fleet_node_of_rank(fleet, fleet->command->stdin_rank);
    uint8_t *data = malloc(DP_REMOTE_PIECE);
    ssize_t bytes;

    if (node == NULL || data == NULL) {
        free(data);
        dp_fleet_input_close(fleet);
        return;
    }
    do {
        bytes = read(fleet->input_fd, data, DP_REMOTE_PIECE);
    } while (bytes < 0 && errno == EINTR);
    if (bytes < 0 && errno == EAGAIN && fleet->on_input != NULL) {
        event_add(fleet->on_input, NULL);
    } else {
        dp_fleet_node_send(node, DP_REMOTE_INPUT, data, bytes > 0 ? (size_t)bytes : 0);
        if (bytes <= 0) dp_fleet_input_close(fleet);
    }
    explicit_bzero(data, DP_REMOTE_PIECE);
    free(data);
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    read_piece(context);
}

/* Reads the next piece, or waits for it. */
static void go_on(dp_fleet_t *fleet)
{
    if (fleet->input_fd < 0) return;
    if (fleet->on_input != NULL) {
        event_add(fleet->on_input, NULL);
    } else {
        read_piece(fleet);
    }
}

void dp_fleet_input_start(dp_fleet_t *fleet)
{
    struct stat about;

    if (fleet->input_fd < 0) return;
    if (fstat(fleet->input_fd, &about) == 0 && !S_ISREG(about.st_mode) &&
        !(S_ISCHR(about.st_mode) && major(about.st_rdev) == MAJOR_OF_MEMORY)) {
        fleet->on_input = event_new(fleet->base, fleet->input_fd, EV_READ, on_readable, fleet);
        if (fleet->on_input == NULL) {
            dp_fleet_input_close(fleet);
            return;
        }
    }
    go_on(fleet);
}

void dp_fleet_input_taken(dp_fleet_t *fleet, int is_closed)
{
    if (is_closed) {
        dp_fleet_input_close(fleet);
    } else {
        go_on(fleet);
    }
}
