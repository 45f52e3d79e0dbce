/*
 * rendezvous_door.c - connections to the rendezvous until they have proven that they know the
 * job's secret.
 *
 * Called by libevent and rendezvous.c, in the event loop's thread. It must not know what ranks
 * exchange: it asks its owner by callback whether a rank may join, and hands the connection over.
 *
 * Anybody who reaches the port may connect. So until a connection has proven itself, nothing but
 * one hello of fixed size is read from it, for a bounded time, on a bounded number of such
 * connections. Whatever is wrong with a connection costs that connection and one line, never the
 * job.
 *
 *     accept -> server hello (challenge) -> client hello (proof) -> welcome -> owner->join()
 *                                              |                       |
 *                                 wrong: one fixed text, close   no place: an ERROR, then close
 *
 * A flood: a local socket hangs up on other users before anything else. On a port, when too many
 * connections have proven nothing, the oldest one goes of the address that has the most of them; a
 * rank that this hits comes again. A proven connection is never dropped. A turn of the event loop
 * accepts a few connections only, so all else in the loop goes on.
 */
#include "runtime/base/rendezvous_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/base/local_socket.h"

#define HELLO_SECONDS 5
#define UNPROVEN_MAX 64 /* on top of one per rank */
#define ACCEPTS 16      /* in one turn of the loop */
#define NO_FILES_US 20000
#define BACKLOG 1024

/* ---- Ending a connection -------------------------------------------------------------------- */

/* Sends one of the fixed refusals, if the socket takes it at once, and closes: a stranger must not
 * be able to keep the connection by not reading. */
static void turn_away(dp_rendezvous_peer_t *peer, const char *refusal)
{
    if (evbuffer_get_length(bufferevent_get_output(peer->socket)) == 0) {
        (void)!send(bufferevent_getfd(peer->socket), refusal, DP_PROOF_BYTES,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    dp_rendezvous_peer_close(peer);
}

/* Tells a program that knows the secret why it cannot join, then closes once that is out. */
static void dismiss(dp_rendezvous_peer_t *peer, const char *text)
{
    dp_rendezvous_send_text(peer, DP_KV_ERROR, text);
    peer->is_dismissed = 1;
    bufferevent_disable(peer->socket, EV_READ);
}

/* ---- Callbacks of a connection that has proven nothing -------------------------------------- */

static void on_hello(struct bufferevent *socket, void *context)
{
    dp_rendezvous_peer_t *peer = context;
    dp_rendezvous_t *rendezvous = peer->rendezvous;
    struct evbuffer *input = bufferevent_get_input(socket);
    uint8_t hello[DP_KV_CLIENT_HELLO_BYTES];
    uint8_t welcome[DP_PROOF_BYTES];
    dp_error_t error;
    uint32_t rank;
    char text[128];

    if (evbuffer_get_length(input) < sizeof(hello)) return;
    evbuffer_remove(input, hello, sizeof(hello));
    if (dp_kv_client_hello_check(&rendezvous->secret, peer->challenge, hello, &rank, welcome,
                                 &error) != DP_OK) {
        dp_rendezvous_refuse(rendezvous, peer->address, "%s", error.text);
        turn_away(peer, DP_KV_WRONG_PROOF);
        return;
    }
    bufferevent_write(socket, welcome, sizeof(welcome));
    if (rendezvous->door.owner->may_join(rendezvous, rank, text, sizeof(text)) != 0) {
        dp_rendezvous_refuse(rendezvous, peer->address, "%s", text);
        dismiss(peer, text);
        return;
    }
    rendezvous->door.unproven--;
    rendezvous->door.unproven_of[peer->source]--;
    rendezvous->door.owner->join(peer, (int)rank);
}

static void on_drained(struct bufferevent *socket, void *context)
{
    dp_rendezvous_peer_t *peer = context;

    (void)socket;
    if (peer->is_dismissed) dp_rendezvous_peer_close(peer);
}

static void on_event(struct bufferevent *socket, short what, void *context)
{
    dp_rendezvous_peer_t *peer = context;

    (void)socket;
    if (!peer->is_dismissed && (what & BEV_EVENT_TIMEOUT)) {
        dp_rendezvous_refuse(peer->rendezvous, peer->address, "no proof within %d s",
                             HELLO_SECONDS);
    } else if (!peer->is_dismissed) {
        dp_rendezvous_refuse(peer->rendezvous, peer->address, "it closed before any proof");
    }
    dp_rendezvous_peer_close(peer);
}

/* ---- Accepting ------------------------------------------------------------------------------ */

/* Too many connections have proven nothing: the address that has the most of them loses its oldest.
 * 0: there was none to drop. */
static int drop_unproven(dp_rendezvous_t *rendezvous)
{
    dp_rendezvous_door_t *door = &rendezvous->door;
    dp_rendezvous_peer_t *oldest = NULL;
    int most = 0;

    for (int i = 1; i < DP_RENDEZVOUS_SOURCES; i++) {
        if (door->unproven_of[i] > door->unproven_of[most]) most = i;
    }
    for (dp_rendezvous_peer_t *peer = rendezvous->peers; peer != NULL; peer = peer->next) {
        if (peer->rank < 0 && peer->source == most) oldest = peer; /* new ones are put in front */
    }
    if (oldest == NULL) return 0;
    /* Its line comes out whatever else was reported before. */
    if (!door->has_told_flood) door->refused = dp_min(door->refused, DP_RENDEZVOUS_REFUSED_MAX - 1);
    door->has_told_flood = 1;
    dp_rendezvous_refuse(rendezvous, oldest->address,
                         "a flood? %d connections without a proof, %d from there", door->unproven,
                         door->unproven_of[most]);
    turn_away(oldest, DP_KV_BUSY);
    return 1;
}

static void on_retry(evutil_socket_t fd, short what, void *context)
{
    dp_rendezvous_door_t *door = &((dp_rendezvous_t *)context)->door;

    (void)fd;
    (void)what;
    for (int i = 0; i < door->listener_count; i++)
        event_add(door->listeners[i].incoming, NULL);
}

/* No descriptor is free. A listener stays readable, so without a pause the loop would spin. */
static void make_room(dp_rendezvous_t *rendezvous)
{
    dp_rendezvous_door_t *door = &rendezvous->door;
    const struct timeval later = {0, NO_FILES_US};

    if (drop_unproven(rendezvous)) return;
    dp_rendezvous_refuse(rendezvous, "a connection", "accept: %s", strerror(errno));
    for (int i = 0; i < door->listener_count; i++)
        event_del(door->listeners[i].incoming);
    event_add(door->retry, &later);
}

/* An address of version 4 as a listener of both versions sees it; others are copied. */
static void map_address(const struct sockaddr_storage *from, struct sockaddr_in6 *ip)
{
    struct sockaddr_in four;

    memset(ip, 0, sizeof(*ip));
    if (from->ss_family == AF_INET6) memcpy(ip, from, sizeof(*ip));
    if (from->ss_family != AF_INET) return;
    memcpy(&four, from, sizeof(four));
    ip->sin6_family = AF_INET6;
    ip->sin6_port = four.sin_port;
    ip->sin6_addr.s6_addr[10] = ip->sin6_addr.s6_addr[11] = 0xff;
    memcpy(&ip->sin6_addr.s6_addr[12], &four.sin_addr, sizeof(four.sin_addr));
}

/* Where a connection comes from: in words, and as a number that connections of one origin share.
 * -1: from another user. */
static int describe_origin(int fd, const struct sockaddr_storage *from, char address[64],
                           uint8_t *source)
{
    struct sockaddr_in6 ip;
    char text[INET6_ADDRSTRLEN];
    uid_t user = 0;
    pid_t pid = 0;
    uint32_t number;

    *source = 0;
    if (from->ss_family == AF_UNIX) {
        if (dp_local_peer(fd, &user, &pid) != 0) user = (uid_t)-1;
        snprintf(address, 64, "process %d of user %u", (int)pid, (unsigned)user);
        return user == geteuid() ? 0 : -1;
    }
    snprintf(address, 64, "?");
    map_address(from, &ip);
    if (ip.sin6_family != AF_INET6) return 0;
    if (IN6_IS_ADDR_V4MAPPED(&ip.sin6_addr)) {
        inet_ntop(AF_INET, &ip.sin6_addr.s6_addr[12], text, sizeof(text));
        snprintf(address, 64, "%s:%d", text, ntohs(ip.sin6_port));
        memcpy(&number, &ip.sin6_addr.s6_addr[12], sizeof(number));
    } else {
        inet_ntop(AF_INET6, &ip.sin6_addr, text, sizeof(text));
        snprintf(address, 64, "[%s]:%d", text, ntohs(ip.sin6_port));
        /* A host with one address of a network of 64 bits has all of them. */
        memcpy(&number, &ip.sin6_addr.s6_addr[4], sizeof(number));
    }
    *source = (uint8_t)(ntohl(number) * 2654435761u >> 24); /* spreads addresses that are close */
    return 0;
}

static void list_peer(dp_rendezvous_t *rendezvous, dp_rendezvous_peer_t *peer)
{
    peer->next = rendezvous->peers;
    peer->back = &rendezvous->peers;
    if (peer->next != NULL) peer->next->back = &peer->next;
    rendezvous->peers = peer;
    rendezvous->door.unproven++;
    rendezvous->door.unproven_of[peer->source]++;
}

/* Makes a connection of an accepted socket, which is taken, and sends the challenge. */
static void start_handshake(dp_rendezvous_t *rendezvous, int fd, const char *address,
                            uint8_t source)
{
    const struct timeval patience = {HELLO_SECONDS, 0};
    uint8_t hello[DP_KV_SERVER_HELLO_BYTES];
    dp_rendezvous_peer_t *peer = calloc(1, sizeof(*peer));
    int on = 1;

    if (rendezvous->door.unproven >= rendezvous->size + UNPROVEN_MAX) drop_unproven(rendezvous);
    if (peer != NULL)
        peer->socket = bufferevent_socket_new(rendezvous->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (peer == NULL || peer->socket == NULL) {
        free(peer);
        close(fd);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* of a port */
    peer->rendezvous = rendezvous;
    peer->rank = -1;
    peer->source = source;
    snprintf(peer->address, sizeof(peer->address), "%s", address);
    list_peer(rendezvous, peer);
    bufferevent_setcb(peer->socket, on_hello, on_drained, on_event, peer);
    bufferevent_set_timeouts(peer->socket, &patience, &patience);
    /* More than a hello is not even read from the socket. */
    bufferevent_setwatermark(peer->socket, EV_READ, 0, DP_KV_CLIENT_HELLO_BYTES);
    dp_random(peer->challenge, sizeof(peer->challenge));
    dp_kv_server_hello_write(peer->challenge, hello);
    bufferevent_write(peer->socket, hello, sizeof(hello));
    bufferevent_enable(peer->socket, EV_READ | EV_WRITE);
}

static void on_incoming(evutil_socket_t listener, short what, void *context)
{
    dp_rendezvous_t *rendezvous = context;

    (void)what;
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof(from);
        char address[64];
        uint8_t source;
        int fd = accept4(listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            make_room(rendezvous);
        }
        if (fd < 0) return;
        if (describe_origin(fd, &from, address, &source) != 0) {
            dp_rendezvous_refuse(rendezvous, address, "another user");
            close(fd);
        } else {
            start_handshake(rendezvous, fd, address, source);
        }
    }
}

void dp_rendezvous_adopt(dp_rendezvous_t *rendezvous, int fd, const char *origin, int source)
{
    if (rendezvous->door.is_closed) {
        close(fd);
    } else {
        start_handshake(rendezvous, fd, origin, (uint8_t)source);
    }
}

/* ---- Opening and closing -------------------------------------------------------------------- */

/* Listens there; only_6: a socket of version 6 takes no connection of version 4. -1: errno. */
static int bind_socket(const struct sockaddr *address, socklen_t bytes, int only_6, uint16_t *bound)
{
    struct sockaddr_in head = {0}; /* the port stands at the same place in both versions */
    struct sockaddr_storage own;
    socklen_t room = sizeof(own);
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    int code;

    memcpy(&head, address, sizeof(head));
    /* A port is free again at once for the next job, though old connections linger. */
    if (fd < 0 ||
        (head.sin_port != 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) ||
        (address->sa_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_6, sizeof(only_6)) != 0) ||
        bind(fd, address, bytes) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &room) != 0) {
        code = errno;
        if (fd >= 0) close(fd);
        errno = code;
        return -1;
    }
    memcpy(&head, &own, sizeof(head));
    *bound = ntohs(head.sin_port);
    return fd;
}

dp_status_t dp_rendezvous_bind_at(const struct sockaddr *address, socklen_t bytes, int *listener,
                                  uint16_t *bound, dp_error_t *error)
{
    char text[INET6_ADDRSTRLEN] = "?";
    char port[8] = "?";
    const int fd = bind_socket(address, bytes, 1, bound);
    const int code = errno;

    if (fd >= 0) {
        *listener = fd;
        return DP_OK;
    }
    (void)getnameinfo(address, bytes, text, sizeof(text), port, sizeof(port),
                      NI_NUMERICHOST | NI_NUMERICSERV);
    return dp_error_set(error, code == EADDRINUSE ? DP_ERR_BUSY : DP_ERR_SYSTEM,
                        "rendezvous on %s port %s: %s", text, port, strerror(code));
}

dp_status_t dp_rendezvous_bind(uint16_t port, int *listener, uint16_t *bound, dp_error_t *error)
{
    const struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    const struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    int fd = bind_socket((const struct sockaddr *)&six, sizeof(six), 0, bound);

    /* A kernel may know no version 6. */
    if (fd < 0 && errno != EADDRINUSE)
        fd = bind_socket((const struct sockaddr *)&four, sizeof(four), 0, bound);
    if (fd < 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "rendezvous on port %u: %s", port,
                            strerror(errno));
    }
    *listener = fd;
    return DP_OK;
}

void dp_rendezvous_make_ticket(dp_kv_ticket_t *ticket)
{
    uint8_t job[8];

    memset(ticket, 0, sizeof(*ticket));
    dp_random(job, sizeof(job));
    for (size_t i = 0; i < sizeof(job); i++) {
        snprintf(ticket->job + 2 * i, 3, "%02x", job[i]);
    }
    dp_random(ticket->secret.bytes, sizeof(ticket->secret.bytes));
}

dp_status_t dp_rendezvous_listen(dp_kv_ticket_t *ticket, int *listener, dp_error_t *error)
{
    char name[DP_LOCAL_ADDRESS_ROOM];
    dp_status_t status = dp_local_listen(name, listener, error);

    if (status != DP_OK) return status;
    dp_rendezvous_make_ticket(ticket);
    snprintf(ticket->address, sizeof(ticket->address), "%s", name);
    return DP_OK;
}

int dp_rendezvous_door_open(dp_rendezvous_t *rendezvous, int listener,
                            const dp_rendezvous_door_owner_t *owner)
{
    dp_rendezvous_door_t *door = &rendezvous->door;
    dp_rendezvous_listener_t *at = &door->listeners[door->listener_count];

    door->owner = owner;
    if (listener < 0) return 0;
    if (door->listener_count == DP_RENDEZVOUS_LISTENERS) {
        close(listener);
        return -1;
    }
    door->listener_count++;
    at->fd = listener;
    at->incoming =
        event_new(rendezvous->base, listener, EV_READ | EV_PERSIST, on_incoming, rendezvous);
    if (door->retry == NULL) door->retry = event_new(rendezvous->base, -1, 0, on_retry, rendezvous);
    if (at->incoming == NULL || door->retry == NULL) return -1;
    return event_add(at->incoming, NULL);
}

void dp_rendezvous_door_close(dp_rendezvous_door_t *door)
{
    for (int i = 0; i < door->listener_count; i++) {
        if (door->listeners[i].incoming != NULL) event_free(door->listeners[i].incoming);
        close(door->listeners[i].fd);
    }
    if (door->retry != NULL) event_free(door->retry);
    door->listener_count = 0; /* the counters stay: dp_rendezvous_peer_close() and texts use them */
    door->retry = NULL;
    door->is_closed = 1;
}
