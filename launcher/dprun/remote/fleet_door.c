/*
 * fleet_door.c - dprun's port, at which the stations of a job's nodes connect; see fleet.h.
 *
 * Open from the fleet's creation until all nodes run. It listens on the addresses that the nodes
 * need and on no other: those from which this machine's routes to them start. Called by
 * fleet_start.c, on dprun's only thread.
 *
 *     --interface            all addresses of that interface
 *     -H, srun               where the routes to all nodes start, by their names; and loopback for
 *                            a station on this machine
 *     --node                 the addresses of --meet that are this machine's; and loopback
 *     a name that is not     every address: ssh's configuration may know another name, or a proxy
 *     known here
 *     a node whose station   every address from then on, and one more login
 *     reaches none of them
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/dprun/remote/fleet_internal.h"
#include "launcher/dprun/remote/look.h"
#include "runtime/network/interface.h"
#include "runtime/network/resolve.h"

#define BACKLOG 1024
#define NAMES_NS UINT64_C(2000000000) /* for the addresses of all nodes' names */
#define PORT_TRIES 16

/* Addresses to listen on. */
typedef struct place {
    struct sockaddr_storage address;
    socklen_t bytes;
} place_t;

typedef struct places {
    place_t list[DP_FLEET_LISTENERS];
    int count;
} places_t;

/* ---- Where to listen ------------------------------------------------------------------------ */

static int is_loopback(const struct sockaddr_storage *address)
{
    struct sockaddr_in four;
    struct sockaddr_in6 six;

    memcpy(&four, address, sizeof(four));
    memcpy(&six, address, sizeof(six));
    if (address->ss_family == AF_INET) return ntohl(four.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
}

static void format_place(const struct sockaddr_storage *address, socklen_t bytes, char *text,
                         size_t room)
{
    if (getnameinfo((const struct sockaddr *)address, bytes, text, (socklen_t)room, NULL, 0,
                    NI_NUMERICHOST) != 0)
        text[0] = '\0';
}

static void add_place(places_t *places, const struct sockaddr_storage *address, socklen_t bytes)
{
    char text[DP_REMOTE_ADDRESS_MAX];
    char other[DP_REMOTE_ADDRESS_MAX];

    format_place(address, bytes, text, sizeof(text));
    for (int i = 0; i < places->count; i++) {
        format_place(&places->list[i].address, places->list[i].bytes, other, sizeof(other));
        if (strcmp(text, other) == 0) return;
    }
    if (places->count >= DP_FLEET_LISTENERS) return;
    places->list[places->count].address = *address;
    places->list[places->count++].bytes = bytes;
}

/* 0: it is no numeric address. Takes a scope, too: fe80::1%eth0. */
static socklen_t read_address(const char *text, struct sockaddr_storage *address)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *found = NULL;
    socklen_t bytes;

    memset(address, 0, sizeof(*address));
    if (getaddrinfo(text, NULL, &hints, &found) != 0) return 0;
    bytes = found->ai_addrlen;
    memcpy(address, found->ai_addr, bytes);
    freeaddrinfo(found);
    return bytes;
}

static void add_text(places_t *places, const char *text)
{
    struct sockaddr_storage address;
    const socklen_t bytes = read_address(text, &address);

    if (bytes > 0) add_place(places, &address, bytes);
}

/* The address from which packets to this one start. only_own: if that is this one itself. 1: added.
 */
static int add_source(places_t *places, const struct sockaddr_storage *to, socklen_t to_bytes,
                      int only_own)
{
    struct sockaddr_storage from;
    const socklen_t bytes = dp_interface_source(to, to_bytes, &from);
    char own[DP_REMOTE_ADDRESS_MAX];
    char other[DP_REMOTE_ADDRESS_MAX];

    if (bytes == 0 || is_loopback(&from)) return 0;
    format_place(&from, bytes, own, sizeof(own));
    format_place(to, to_bytes, other, sizeof(other));
    if (only_own && strcmp(own, other) != 0) return 0;
    add_place(places, &from, bytes);
    return 1;
}

/* The addresses of a name or of an address. Returns how many, 0 where it is not known in time. */
static int resolve(const char *name, dp_knock_target_t *targets, int max, uint64_t deadline_ns)
{
    char found[DP_KNOCK_TARGETS][DP_RESOLVE_ROOM];
    int count = 0;
    int read = 0;

    if (strchr(name, '@') != NULL) name = strchr(name, '@') + 1;
    targets[0].bytes = read_address(name, &targets[0].address);
    if (targets[0].bytes > 0) return 1;
    if (dp_resolve(name, found, max, &count, deadline_ns, NULL) != DP_OK) return 0;
    for (int i = 0; i < count; i++) {
        targets[read].bytes = read_address(found[i], &targets[read].address);
        read += targets[read].bytes > 0;
    }
    return read;
}

static void resolve_nodes(dp_fleet_t *fleet)
{
    const uint64_t deadline_ns = dp_now_ns() + NAMES_NS;

    for (int i = 0; i < fleet->count; i++) {
        dp_fleet_node_t *node = &fleet->list[i];

        if (node->is_here || fleet->nodes->way == DP_NODES_JOIN) continue;
        node->target_count = resolve(node->name, node->targets, DP_KNOCK_TARGETS, deadline_ns);
    }
}

/* Where the stations come from. 0: not known; every address will do. */
static int find_places_of_nodes(const dp_fleet_t *fleet, places_t *places)
{
    for (int i = 0; i < fleet->count; i++) {
        const dp_fleet_node_t *node = &fleet->list[i];
        int added = 0;

        if (node->is_here) {
            add_text(places, "127.0.0.1");
            continue;
        }
        for (int k = 0; k < node->target_count; k++)
            added += add_source(places, &node->targets[k].address, node->targets[k].bytes, 0);
        if (added == 0) return 0;
    }
    return places->count;
}

/* Likewise for nodes that others start: this machine's addresses of the name that they are given.
 */
static int find_places_of_meeting(const char *meet, places_t *places)
{
    dp_knock_target_t targets[DP_KNOCK_TARGETS];
    int added = 0;
    int count;

    add_text(places, "127.0.0.1"); /* for the station here */
    if (strcmp(meet, "localhost") == 0 || strncmp(meet, "127.", 4) == 0) return 1;
    count = resolve(meet, targets, DP_KNOCK_TARGETS, dp_now_ns() + NAMES_NS);
    for (int i = 0; i < count; i++)
        added += add_source(places, &targets[i].address, targets[i].bytes, 1);
    return added;
}

static int find_places(const dp_fleet_t *fleet, places_t *places)
{
    return fleet->nodes->way == DP_NODES_JOIN ? find_places_of_meeting(fleet->nodes->meet, places)
                                              : find_places_of_nodes(fleet, places);
}

/* ---- Listening ------------------------------------------------------------------------------ */

void dp_fleet_forget_unproven(dp_fleet_t *fleet, const dp_link_t *link)
{
    int kept = 0;

    for (int i = 0; i < fleet->unproven_count; i++) {
        if (fleet->unproven[i] != link) fleet->unproven[kept++] = fleet->unproven[i];
    }
    fleet->unproven_count = kept;
}

/* Strangers who say nothing keep no station out: where all places are taken, the oldest connection
 * goes. A station proves itself within a round trip, and one that this hits comes again. */
static void drop_oldest(dp_fleet_t *fleet)
{
    dp_link_t *oldest = fleet->unproven[0];

    dp_fleet_forget_unproven(fleet, oldest);
    dp_link_close(oldest);
}

static void on_incoming(evutil_socket_t listener, short what, void *context)
{
    dp_fleet_t *fleet = context;
    dp_link_events_t events = dp_fleet_link_events;
    const int fd = accept4((int)listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    dp_link_t *link;

    (void)what;
    /* Without a descriptor for it the loop would come here again and again. */
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && fleet->unproven_count > 0)
        drop_oldest(fleet);
    if (fd < 0) return;
    if (fleet->unproven_count == DP_FLEET_UNPROVEN_MAX) drop_oldest(fleet);
    events.context = fleet;
    link = dp_link_create_server(fleet->base, fd, &fleet->secret,
                                 (int)(DP_REMOTE_SILENCE_NS / 1000000), &events);
    if (link != NULL) fleet->unproven[fleet->unproven_count++] = link;
}

static void set_port(struct sockaddr_storage *address, uint16_t port)
{
    const in_port_t value = htons(port);
    const size_t at = address->ss_family == AF_INET ? offsetof(struct sockaddr_in, sin_port)
                                                    : offsetof(struct sockaddr_in6, sin6_port);

    memcpy((char *)address + at, &value, sizeof(value));
}

/* Listens at fleet->port, 0: at a free one, which becomes it. only_6: an IPv6 socket takes no IPv4.
 * -1: errno. */
static int listen_at(dp_fleet_t *fleet, const place_t *place, int only_6)
{
    struct sockaddr_storage address = place->address;
    struct sockaddr_in6 bound = {0}; /* of an IPv4 socket, too: the port is at the same place */
    socklen_t bound_bytes = sizeof(bound);
    dp_fleet_listener_t *listener = &fleet->listeners[fleet->listener_count];
    const int on = 1;
    const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int failure;

    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (address.ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_6, sizeof(only_6));
    set_port(&address, fleet->port);
    if (bind(fd, (struct sockaddr *)&address, place->bytes) != 0 || listen(fd, BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &bound_bytes) != 0) {
        failure = errno;
        close(fd);
        errno = failure;
        return -1;
    }
    listener->event = event_new(fleet->base, fd, EV_READ | EV_PERSIST, on_incoming, fleet);
    if (listener->event == NULL || event_add(listener->event, NULL) != 0) {
        if (listener->event != NULL) event_free(listener->event);
        close(fd);
        errno = ENOMEM;
        return -1;
    }
    listener->fd = fd;
    fleet->listener_count++;
    fleet->port = ntohs(bound.sin6_port);
    return 0;
}

static void close_listeners(dp_fleet_t *fleet)
{
    for (int i = 0; i < fleet->listener_count; i++) {
        event_free(fleet->listeners[i].event);
        close(fleet->listeners[i].fd);
    }
    fleet->listener_count = 0;
}

/* At one port of all of them. A port that is free at one address may be taken at the next one. */
static int listen_at_all(dp_fleet_t *fleet, const places_t *places, uint16_t wanted)
{
    for (int attempt = 0; attempt < PORT_TRIES; attempt++) {
        int next = 0;

        fleet->port = wanted;
        while (next < places->count && listen_at(fleet, &places->list[next], 1) == 0)
            next++;
        if (next == places->count) return 0;
        close_listeners(fleet);
        if (wanted != 0 || errno != EADDRINUSE) return -1;
    }
    return -1;
}

static int listen_everywhere(dp_fleet_t *fleet, uint16_t wanted)
{
    place_t place = {.bytes = sizeof(struct sockaddr_in6)};

    fleet->is_everywhere = 1;
    fleet->port = wanted;
    place.address.ss_family = AF_INET6; /* the rest is zero: any address */
    if (listen_at(fleet, &place, 0) == 0) return 0;
    place.address.ss_family = AF_INET;
    place.bytes = sizeof(struct sockaddr_in);
    return listen_at(fleet, &place, 0);
}

/* ---- The door ------------------------------------------------------------------------------- */

/* Notes the addresses that stations of other machines are told. Those of a link alone name it by
 * this machine's name for it; there ssh tells the station (station.c). */
static void note_addresses(dp_fleet_t *fleet, const places_t *places)
{
    for (int i = 0; i < places->count && fleet->address_count < DP_REMOTE_ADDRESSES; i++) {
        char *text = fleet->addresses[fleet->address_count];

        if (is_loopback(&places->list[i].address)) {
            fleet->has_loopback = 1;
            continue;
        }
        format_place(&places->list[i].address, places->list[i].bytes, text,
                     sizeof(fleet->addresses[0]));
        fleet->address_count += strchr(text, '%') == NULL;
    }
}

static int listen_on_interface(dp_fleet_t *fleet, const char *interface, uint16_t wanted)
{
    char addresses[DP_REMOTE_ADDRESSES][DP_REMOTE_ADDRESS_MAX];
    const int count = dp_look_for_addresses(interface, addresses);
    places_t places = {.count = 0};

    for (int i = 0; i < count; i++)
        add_text(&places, addresses[i]);
    note_addresses(fleet, &places);
    errno = ENODEV;
    return places.count == 0 ? -1 : listen_at_all(fleet, &places, wanted);
}

static int listen_on_routes(dp_fleet_t *fleet, uint16_t wanted)
{
    places_t places = {.count = 0};

    if (find_places(fleet, &places) > 0) {
        note_addresses(fleet, &places);
        return listen_at_all(fleet, &places, wanted);
    }
    fleet->has_loopback = 1;
    fleet->address_count = dp_look_for_addresses("", fleet->addresses);
    return listen_everywhere(fleet, wanted);
}

dp_status_t dp_fleet_open_door(dp_fleet_t *fleet, dp_error_t *error)
{
    const char *interface = fleet->command->config.net_interface;
    const uint16_t wanted =
        fleet->nodes->way == DP_NODES_JOIN ? fleet->nodes->port : (uint16_t)fleet->command->port;
    int status;

    resolve_nodes(fleet);
    status = interface[0] != '\0' ? listen_on_interface(fleet, interface, wanted)
                                  : listen_on_routes(fleet, wanted);
    if (status == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM, "the port for the nodes' stations (%u%s%s): %s", wanted,
                        interface[0] != '\0' ? " on " : "", interface, strerror(errno));
}

int dp_fleet_widen_door(dp_fleet_t *fleet)
{
    char addresses[DP_REMOTE_ADDRESSES][DP_REMOTE_ADDRESS_MAX];
    int count;
    int added = 0;

    if (fleet->is_everywhere || fleet->command->config.net_interface[0] != '\0') return 0;
    fleet->is_everywhere = 1;
    count = dp_look_for_addresses("", addresses);
    for (int i = 0; i < count; i++) {
        place_t place;
        int k = 0;

        while (k < fleet->address_count && strcmp(fleet->addresses[k], addresses[i]) != 0)
            k++;
        place.bytes = read_address(addresses[i], &place.address);
        if (k < fleet->address_count || place.bytes == 0 ||
            fleet->address_count >= DP_REMOTE_ADDRESSES ||
            fleet->listener_count >= DP_FLEET_LISTENERS || listen_at(fleet, &place, 1) != 0)
            continue;
        memcpy(fleet->addresses[fleet->address_count++], addresses[i], DP_REMOTE_ADDRESS_MAX);
        added++;
    }
    return added;
}

void dp_fleet_close_door(dp_fleet_t *fleet)
{
    close_listeners(fleet);
    for (int i = 0; i < fleet->unproven_count; i++)
        dp_link_close(fleet->unproven[i]);
    fleet->unproven_count = 0;
}

void dp_fleet_write_ticket(const dp_fleet_t *fleet, uint32_t node, int is_here,
                           dp_remote_ticket_t *ticket)
{
    memset(ticket, 0, sizeof(*ticket));
    ticket->node = node;
    ticket->port = fleet->port;
    ticket->secret = fleet->secret;
    if (is_here && fleet->has_loopback) {
        ticket->address_count = 1;
        snprintf(ticket->addresses[0], sizeof(ticket->addresses[0]), "127.0.0.1");
        return;
    }
    ticket->address_count = fleet->address_count;
    memcpy(ticket->addresses, fleet->addresses, sizeof(ticket->addresses));
}
