/*
 * line_listen.c - where a rank's lines end: its address, and the door (door.h) at which neighbours
 * connect and prove which rank they are.
 *
 * Called by line.c, on its thread. Any machine that reaches the address may connect. Nothing here
 * blocks.
 */
#include "runtime/transport/line_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "runtime/base/wire.h"

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
    dp_write_u16(&writer, self->door != NULL ? dp_line_port(&self->own) : 0);
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

/* ---- The door ------------------------------------------------------------------------------- */

/* The neighbour that a hello proves to be from, or why there is none. */
static dp_line_refusal_t find_proven(dp_line_t *self, const dp_door_visitor_t *visitor,
                                     const dp_line_hello_t *hello, dp_line_peer_t **out)
{
    dp_line_peer_t *peer;

    if (hello->world != self->world) return DP_LINE_OTHER_WORLD;
    peer = hello->from <= INT32_MAX ? dp_line_find(self, (int)hello->from) : NULL;
    if (peer == NULL || peer->rank < self->rank) return DP_LINE_NO_NEIGHBOUR;
    if (!dp_line_hello_is_proven(&peer->edge, visitor->challenge, hello))
        return DP_LINE_WRONG_PROOF;
    if (peer->state != DP_LINE_WAITING) return DP_LINE_HERE_ALREADY;
    *out = peer;
    return DP_LINE_ACCEPTED;
}

static int judge_visitor(void *context, dp_door_visitor_t *visitor, char *why)
{
    dp_line_t *self = context;
    uint8_t welcome[DP_LINE_WELCOME_BYTES];
    dp_line_peer_t *peer = NULL;
    dp_line_hello_t hello;
    const char *reason = dp_line_hello_read(visitor->hello, &hello);
    dp_line_refusal_t refusal;

    if (reason != NULL) {
        snprintf(why, DP_DOOR_TEXT, "%s", reason);
        return 0;
    }
    refusal = find_proven(self, visitor, &hello, &peer);
    if (refusal != DP_LINE_ACCEPTED) {
        snprintf(why, DP_DOOR_TEXT, "it says that it is rank %u: %s", hello.from,
                 dp_line_refusal_text(refusal));
        dp_line_refusal_write(refusal, welcome);
        (void)dp_door_answer(visitor, welcome, sizeof(welcome));
        return 0;
    }
    memcpy(peer->listener_challenge, visitor->challenge, sizeof(visitor->challenge));
    memcpy(peer->connector_challenge, hello.challenge, DP_CHALLENGE_BYTES);
    dp_line_welcome_write(&peer->edge, peer->listener_challenge, peer->connector_challenge,
                          welcome);
    snprintf(why, DP_DOOR_TEXT, "rank %u left in the middle of its proof", hello.from);
    if (dp_door_answer(visitor, welcome, sizeof(welcome)) != 0) return 0; /* it comes again */
    dp_line_set_options(visitor->fd, self->timeout_ns);
    dp_line_open(self, peer, visitor->fd);
    if (--self->expected == 0) dp_door_close(self->door);
    return 1;
}

static void report_refusal(void *context, const char *from, const char *why)
{
    const dp_line_t *self = context;

    dp_log_warn(&self->log, "refused a connection from %s: %s", from, why);
}

/* -1 with errno: the address cannot be listened at. */
static int listen_at_own(dp_line_t *self)
{
    uint16_t port;
    const int fd = dp_door_bind((const struct sockaddr *)&self->own, self->own_bytes, 1, &port);

    if (fd < 0 || dp_door_listen(self->door, fd) != 0) return -1;
    return getsockname(fd, (struct sockaddr *)&self->own, &self->own_bytes);
}

dp_status_t dp_line_listen(dp_line_t *self, const dp_ip_t *own_ip, const char *network_interface,
                           dp_error_t *error)
{
    const dp_door_owner_t owner = {.hello_bytes = DP_LINE_HELLO_BYTES,
                                   .greet = dp_line_greeting_write,
                                   .greeting_bytes = DP_LINE_GREETING_BYTES,
                                   .judge = judge_visitor,
                                   .refused = report_refusal,
                                   .context = self};
    char where[80];
    dp_status_t status;

    if (own_ip->version != 0) {
        self->own_bytes = dp_ip_socket_address(own_ip, 0, &self->own);
    } else if (find_own_address(self, network_interface) != 0) {
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "rank %d: the network interface %s has no address (DP_NET_INTERFACE "
                            "names another one)",
                            self->rank, network_interface[0] != '\0' ? network_interface : "?");
    }
    if (self->expected == 0) return DP_OK;
    status = dp_door_create(&owner, self->expected, &self->door, error);
    if (status != DP_OK) return status;
    if (listen_at_own(self) == 0 &&
        dp_line_watch(self, dp_door_fd(self->door), EPOLLIN, DP_LINE_DOOR, 0) == 0)
        return DP_OK;
    dp_line_address_text(&self->own, where, sizeof(where));
    return dp_error_set(error, DP_ERR_SYSTEM, "rank %d: cannot listen at %s: %s", self->rank, where,
                        strerror(errno));
}
