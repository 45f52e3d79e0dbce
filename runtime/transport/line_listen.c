/*
 * line_listen.c - where a rank's lines end: its address, its listener, and connections that have
 * not proven yet which rank they are from.
 *
 * Called by line.c, on its thread. Any machine that reaches the address may connect; before its
 * proof it may send one hello of fixed size. Nothing here blocks.
 */
#include "runtime/transport/line_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/base/wire.h"

#define UNPROVEN_EXTRA 16 /* unproven connections at a time, beyond those expected */
#define BACKLOG_EXTRA 128
#define ACCEPT_AT_ONCE 32 /* then other events have their turn */
/* Refused connections that the log names; then the 32nd, the 64th, ... */
#define REFUSED_NAMED 16

/* ---- Addresses ------------------------------------------------------------------------------ */

/* IPv4 before IPv6, and of that a link's own addresses last: less for an address that is better. */
static int rank_of_address(const struct sockaddr *address)
{
    struct sockaddr_in6 in6;

    if (address->sa_family == AF_INET) return 0;
    memcpy(&in6, address, sizeof(in6));
    return IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr) ? 2 : 1;
}

/* The best address of an interface, by name; "": of the first that leads out of this machine. */
static int find_own_address(dp_line_t *self, const char *name)
{
    struct ifaddrs *all = NULL;
    int best = 3;

    if (getifaddrs(&all) != 0) return -1;
    for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        const struct sockaddr *address = at->ifa_addr;

        if (address == NULL || (at->ifa_flags & IFF_UP) == 0) continue;
        if (address->sa_family != AF_INET && address->sa_family != AF_INET6) continue;
        if (name[0] != '\0' ? strcmp(at->ifa_name, name) != 0 : (at->ifa_flags & IFF_LOOPBACK) != 0)
            continue;
        if (rank_of_address(address) >= best) continue;
        best = rank_of_address(address);
        self->own_bytes = address->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                        : sizeof(struct sockaddr_in6);
        memcpy(&self->own, address, self->own_bytes);
    }
    freeifaddrs(all);
    errno = EADDRNOTAVAIL;
    return best < 3 ? 0 : -1;
}

/* nonce [16], u8 family (4, 6), ip [16], u16 port, zeros. */
void dp_line_address_write(const dp_line_t *self, uint8_t address[DP_LINE_ADDRESS])
{
    uint8_t ip[16] = {0};
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    dp_writer_t writer;

    memcpy(&in, &self->own, sizeof(in));
    memcpy(&in6, &self->own, sizeof(in6));
    if (self->own.ss_family == AF_INET6) {
        memcpy(ip, &in6.sin6_addr, 16);
    } else {
        memcpy(ip, &in.sin_addr, 4);
    }
    memset(address, 0, DP_LINE_ADDRESS);
    dp_writer_init(&writer, address, DP_LINE_ADDRESS);
    dp_write_bytes(&writer, self->nonce, sizeof(self->nonce));
    dp_write_u8(&writer, self->own.ss_family == AF_INET6 ? 6 : 4);
    dp_write_bytes(&writer, ip, sizeof(ip));
    dp_write_u16(&writer, self->listener >= 0 ? dp_line_port(&self->own) : 0);
}

int dp_line_address_read(const dp_line_t *self, const uint8_t address[DP_LINE_ADDRESS],
                         dp_line_peer_t *peer, const uint8_t **nonce)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    const uint8_t *ip;
    dp_reader_t reader;
    uint8_t family;
    uint16_t port;

    dp_reader_init(&reader, address, DP_LINE_ADDRESS);
    *nonce = dp_read_bytes(&reader, DP_LINE_NONCE_BYTES);
    family = dp_read_u8(&reader);
    ip = dp_read_bytes(&reader, 16);
    port = htons(dp_read_u16(&reader));
    if (ip == NULL || (family != 4 && family != 6)) return 0;
    if (family == 4) {
        in.sin_port = port;
        memcpy(&in.sin_addr, ip, 4);
        peer->address_bytes = sizeof(in);
        memcpy(&peer->address, &in, sizeof(in));
    } else {
        struct sockaddr_in6 own;

        memcpy(&own, &self->own, sizeof(own));
        in6.sin6_port = port;
        memcpy(&in6.sin6_addr, ip, 16);
        /* A link's own addresses are the same on all links; ours says which one is meant. */
        if (self->own.ss_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr))
            in6.sin6_scope_id = own.sin6_scope_id;
        peer->address_bytes = sizeof(in6);
        memcpy(&peer->address, &in6, sizeof(in6));
    }
    return 1;
}

/* ---- The listener --------------------------------------------------------------------------- */

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static int make_listener(dp_line_t *self)
{
    const int room = self->expected + UNPROVEN_EXTRA;

    self->unproven = calloc((size_t)room, sizeof(*self->unproven));
    if (self->unproven == NULL) return -1;
    self->unproven_room = room;
    for (int i = 0; i < room; i++)
        self->unproven[i].fd = -1;
    self->listener =
        socket(self->own.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (self->listener < 0) return -1;
    if (bind(self->listener, (const struct sockaddr *)&self->own, self->own_bytes) != 0 ||
        listen(self->listener, self->expected + BACKLOG_EXTRA) != 0 ||
        getsockname(self->listener, (struct sockaddr *)&self->own, &self->own_bytes) != 0)
        return -1;
    return dp_line_watch(self, self->listener, EPOLLIN, DP_LINE_LISTENER, 0);
}

dp_status_t dp_line_listen(dp_line_t *self, const dp_ip_t *own_ip, const char *network_interface,
                           dp_error_t *error)
{
    char where[80];

    if (own_ip->version != 0) {
        self->own_bytes = dp_ip_socket_address(own_ip, 0, &self->own);
    } else if (find_own_address(self, network_interface) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "rank %d: the network interface %s has no address (DP_NET_INTERFACE "
                            "names another one)",
                            self->rank, network_interface[0] != '\0' ? network_interface : "?");
    }
    if (self->expected == 0 || make_listener(self) == 0) return DP_OK;
    dp_line_address_text(&self->own, where, sizeof(where));
    return dp_error_set(error, DP_ERR_SYSTEM, "rank %d: cannot listen at %s: %s", self->rank, where,
                        strerror(errno));
}

void dp_line_stop_listening(dp_line_t *self)
{
    close_fd(&self->listener);
    for (int i = 0; i < self->unproven_room; i++)
        close_fd(&self->unproven[i].fd);
}

/* ---- Connections that have not proven anything ---------------------------------------------- */

static void refuse_connection(dp_line_t *self, const dp_line_unproven_t *entry, const char *reason)
{
    self->refused++;
    if (self->refused > REFUSED_NAMED && (self->refused & (self->refused - 1)) != 0)
        return; /* no flood of lines */
    dp_log_warn(&self->log, "refused a connection from %s (the %llu. one): %s", entry->from,
                (unsigned long long)self->refused, reason);
}

/* The neighbour that a hello proves to be from, or why there is none. */
static dp_line_refusal_t find_proven(dp_line_t *self, const dp_line_unproven_t *entry,
                                     const dp_line_hello_t *hello, dp_line_peer_t **out)
{
    dp_line_peer_t *peer;

    if (hello->world != self->world) return DP_LINE_OTHER_WORLD;
    peer = hello->from <= INT32_MAX ? dp_line_find(self, (int)hello->from) : NULL;
    if (peer == NULL || peer->rank < self->rank) return DP_LINE_NO_NEIGHBOUR;
    if (!dp_line_hello_is_proven(&peer->edge, entry->challenge, hello)) return DP_LINE_WRONG_PROOF;
    if (peer->state != DP_LINE_WAITING) return DP_LINE_HERE_ALREADY;
    *out = peer;
    return DP_LINE_ACCEPTED;
}

/* Answers a whole hello. 1: the connection is a neighbour's line now. */
static int answer_hello(dp_line_t *self, dp_line_unproven_t *entry)
{
    uint8_t welcome[DP_LINE_WELCOME_BYTES];
    dp_line_peer_t *peer = NULL;
    dp_line_hello_t hello;
    const char *reason = dp_line_hello_read(entry->hello, &hello);
    dp_line_refusal_t refusal;
    char text[160];

    if (reason != NULL) {
        refuse_connection(self, entry, reason);
        return 0;
    }
    refusal = find_proven(self, entry, &hello, &peer);
    if (refusal != DP_LINE_ACCEPTED) {
        snprintf(text, sizeof(text), "it says that it is rank %u: %s", hello.from,
                 dp_line_refusal_text(refusal));
        refuse_connection(self, entry, text);
        dp_line_refusal_write(refusal, welcome);
        (void)send(entry->fd, welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT);
        return 0;
    }
    memcpy(peer->listener_challenge, entry->challenge, sizeof(entry->challenge));
    memcpy(peer->connector_challenge, hello.challenge, DP_CHALLENGE_BYTES);
    dp_line_welcome_write(&peer->edge, peer->listener_challenge, peer->connector_challenge,
                          welcome);
    /* A new socket's buffer has room for it. */
    if (send(entry->fd, welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        (ssize_t)sizeof(welcome))
        return 0; /* it comes again, or its process is gone */
    dp_line_open(self, peer, entry->fd);
    return 1;
}

void dp_line_read_hello(dp_line_t *self, dp_line_unproven_t *entry)
{
    const size_t left = sizeof(entry->hello) - entry->have;
    ssize_t got;

    if (entry->fd < 0) return;
    got = recv(entry->fd, entry->hello + entry->have, left, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got > 0) entry->have += (size_t)got;
    if (got > 0 && (size_t)got < left) return;
    (void)epoll_ctl(self->events, EPOLL_CTL_DEL, entry->fd, NULL);
    if (got <= 0) {
        refuse_connection(self, entry, "it left without a hello");
    } else if (answer_hello(self, entry)) {
        entry->fd = -1;
        if (--self->expected == 0) dp_line_stop_listening(self);
        return;
    }
    close_fd(&entry->fd);
}

/* Places are used in turn, so where all are taken the oldest connection is dropped; a rank that
 * this hits comes again. */
static void add_unproven(dp_line_t *self, int fd, const struct sockaddr_storage *from)
{
    const int place = self->next_unproven;
    dp_line_unproven_t *entry = &self->unproven[place];
    uint8_t greeting[DP_LINE_GREETING_BYTES];

    self->next_unproven = (place + 1) % self->unproven_room;
    if (entry->fd >= 0) refuse_connection(self, entry, "it said nothing");
    close_fd(&entry->fd);
    *entry = (dp_line_unproven_t){.fd = fd};
    dp_line_address_text(from, entry->from, sizeof(entry->from));
    dp_random(entry->challenge, sizeof(entry->challenge));
    dp_line_greeting_write(entry->challenge, greeting);
    dp_line_set_options(fd, self->timeout_ns);
    if (send(fd, greeting, sizeof(greeting), MSG_NOSIGNAL | MSG_DONTWAIT) !=
            (ssize_t)sizeof(greeting) ||
        dp_line_watch(self, fd, EPOLLIN, DP_LINE_UNPROVEN, place) != 0) {
        close_fd(&entry->fd);
        return;
    }
    dp_line_read_hello(self, entry); /* one that is here already can be no answer */
}

void dp_line_accept_some(dp_line_t *self)
{
    for (int i = 0; i < ACCEPT_AT_ONCE && self->listener >= 0; i++) {
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof(from);
        const int fd =
            accept4(self->listener, (struct sockaddr *)&from, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            add_unproven(self, fd, &from);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            dp_log_debug(&self->log, "accept failed: %s", strerror(errno));
            return;
        }
    }
}
