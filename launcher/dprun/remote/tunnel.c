/*
 * tunnel.c - see tunnel.h. Called by the files of station.c and fleet.c, on the thread of their
 * event loop.
 */
#include "launcher/dprun/remote/tunnel.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/dprun/remote/protocol.h"
#include "runtime/base/door.h"

typedef struct connection {
    dp_tunnel_t *tunnel;
    struct bufferevent *socket;
    uint32_t number;
    int is_ending; /* the other end has closed: what is queued goes out first */
    struct connection *next;
} connection_t;

struct dp_tunnel {
    struct event_base *base; /* borrowed */
    dp_tunnel_send_fn send;
    void *context;
    dp_door_t *door; /* NULL: none */
    struct event *on_door;
    uint32_t opened;
    connection_t *connections;
};

static void send_number(dp_tunnel_t *tunnel, uint8_t type, uint32_t number)
{
    uint8_t data[4];
    dp_writer_t writer;

    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u32(&writer, number);
    tunnel->send(tunnel->context, type, data, sizeof(data));
}

static connection_t *find_connection(const dp_tunnel_t *tunnel, uint32_t number)
{
    for (connection_t *at = tunnel->connections; at != NULL; at = at->next) {
        if (at->number == number) return at;
    }
    return NULL;
}

static void free_connection(connection_t *connection)
{
    connection_t **at = &connection->tunnel->connections;

    while (*at != connection) {
        at = &(*at)->next;
    }
    *at = connection->next;
    bufferevent_free(connection->socket);
    free(connection);
}

static void on_bytes(struct bufferevent *socket, void *context)
{
    connection_t *connection = context;
    struct evbuffer *input = bufferevent_get_input(socket);
    uint8_t data[4 + 16384];
    dp_writer_t writer;
    int bytes;

    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u32(&writer, connection->number);
    while ((bytes = evbuffer_remove(input, data + 4, sizeof(data) - 4)) > 0) {
        connection->tunnel->send(connection->tunnel->context, DP_REMOTE_TUNNEL_DATA, data,
                                 4 + (size_t)bytes);
    }
}

static void on_drained(struct bufferevent *socket, void *context)
{
    connection_t *connection = context;

    (void)socket;
    if (connection->is_ending) free_connection(connection);
}

static void on_event(struct bufferevent *socket, short what, void *context)
{
    connection_t *connection = context;

    if (what & BEV_EVENT_CONNECTED) return;
    on_bytes(socket, context);
    if (!connection->is_ending) {
        send_number(connection->tunnel, DP_REMOTE_TUNNEL_CLOSE, connection->number);
    }
    free_connection(connection);
}

static int add_connection(dp_tunnel_t *tunnel, uint32_t number, int fd)
{
    connection_t *connection = calloc(1, sizeof(*connection));

    if (connection != NULL) {
        connection->socket = bufferevent_socket_new(tunnel->base, fd, BEV_OPT_CLOSE_ON_FREE);
    }
    if (connection == NULL || connection->socket == NULL) {
        free(connection);
        close(fd);
        return -1;
    }
    connection->tunnel = tunnel;
    connection->number = number;
    connection->next = tunnel->connections;
    tunnel->connections = connection;
    bufferevent_setcb(connection->socket, on_bytes, on_drained, on_event, connection);
    bufferevent_enable(connection->socket, EV_READ | EV_WRITE);
    return 0;
}

/* The rendezvous asks for proofs. */
static int take_visitor(void *context, dp_door_visitor_t *visitor, char *why)
{
    dp_tunnel_t *tunnel = context;

    (void)why;
    if (add_connection(tunnel, ++tunnel->opened, visitor->fd) == 0)
        send_number(tunnel, DP_REMOTE_TUNNEL_OPEN, tunnel->opened);
    return 1;
}

static void on_door(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    dp_door_turn(((dp_tunnel_t *)context)->door);
}

dp_tunnel_t *dp_tunnel_create(struct event_base *base, dp_tunnel_send_fn send, void *context)
{
    dp_tunnel_t *tunnel = calloc(1, sizeof(*tunnel));

    if (tunnel == NULL) return NULL;
    tunnel->base = base;
    tunnel->send = send;
    tunnel->context = context;
    return tunnel;
}

int dp_tunnel_listen(dp_tunnel_t *tunnel, int listener)
{
    const dp_door_owner_t owner = {.judge = take_visitor, .context = tunnel};

    if (dp_door_create(&owner, 0, &tunnel->door, NULL) != DP_OK) {
        close(listener);
        return -1;
    }
    if (dp_door_listen(tunnel->door, listener) != 0) return -1;
    tunnel->on_door =
        event_new(tunnel->base, dp_door_fd(tunnel->door), EV_READ | EV_PERSIST, on_door, tunnel);
    return tunnel->on_door == NULL ? -1 : event_add(tunnel->on_door, NULL);
}

void dp_tunnel_close_door(dp_tunnel_t *tunnel)
{
    if (tunnel->on_door != NULL) event_free(tunnel->on_door);
    tunnel->on_door = NULL;
    dp_door_destroy(tunnel->door);
    tunnel->door = NULL;
}

void dp_tunnel_destroy(dp_tunnel_t *tunnel)
{
    if (tunnel == NULL) return;
    dp_tunnel_close_door(tunnel);
    while (tunnel->connections != NULL) {
        free_connection(tunnel->connections);
    }
    free(tunnel);
}

void dp_tunnel_adopt(dp_tunnel_t *tunnel, uint32_t number, int fd)
{
    if (fd >= 0 && find_connection(tunnel, number) != NULL) {
        close(fd);
        return;
    }
    if (fd < 0 || add_connection(tunnel, number, fd) != 0) {
        send_number(tunnel, DP_REMOTE_TUNNEL_CLOSE, number);
    }
}

void dp_tunnel_receive(dp_tunnel_t *tunnel, uint32_t number, const void *data, size_t bytes)
{
    connection_t *connection = find_connection(tunnel, number);

    if (connection != NULL && !connection->is_ending) {
        bufferevent_write(connection->socket, data, bytes);
    }
}

void dp_tunnel_closed(dp_tunnel_t *tunnel, uint32_t number)
{
    connection_t *connection = find_connection(tunnel, number);

    if (connection == NULL) return;
    connection->is_ending = 1;
    bufferevent_disable(connection->socket, EV_READ);
    if (evbuffer_get_length(bufferevent_get_output(connection->socket)) == 0) {
        free_connection(connection);
    }
}
