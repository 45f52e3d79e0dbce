/*
 * fleet_door.c - dprun's port, at which the stations of a job's nodes connect; see fleet.h.
 *
 * Open from the fleet's creation until all nodes run. It listens on the addresses that the nodes
 * need and on no other: those from which this machine's routes to them start. Called by
 * fleet_start.c, on dprun's only thread.
 *
 *     --net-interface        all addresses of that interface
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

#define NAMES_NS UINT64_C(2000000000) /* for the addresses of all nodes' names */
#define PORT_TRIES 16
#define ADDRESSES_OF_NAME 4

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

/* Adds the addresses from which packets to a machine start, which is told by its name or address.
 * only_own: those of the machine's that are this one's. How many; 0: also where the name is not
 * known in time. */
static int add_sources(places_t *places, const char *name, int only_own, uint64_t deadline_ns)
{
    char found[ADDRESSES_OF_NAME][DP_RESOLVE_ROOM];
    struct sockaddr_storage to;
    socklen_t bytes;
    int count = 0;
    int added = 0;

    if (strchr(name, '@') != NULL) name = strchr(name, '@') + 1;
    bytes = read_address(name, &to);
    if (bytes > 0) return add_source(places, &to, bytes, only_own);
    if (dp_resolve(name, found, ADDRESSES_OF_NAME, &count, deadline_ns, NULL) != DP_OK) return 0;
    for (int i = 0; i < count; i++) {
        bytes = read_address(found[i], &to);
        if (bytes > 0) added += add_source(places, &to, bytes, only_own);
    }
    return added;
}

/* Where the stations come from. 0: not known; every address will do. */
static int find_places_of_nodes(const dp_fleet_t *fleet, places_t *places)
{
    const uint64_t deadline_ns = dp_now_ns() + NAMES_NS;

    for (int i = 0; i < fleet->count; i++) {
        if (fleet->list[i].is_here) {
            add_text(places, "127.0.0.1");
        } else if (add_sources(places, fleet->list[i].name, 0, deadline_ns) == 0) {
            return 0;
        }
    }
    return places->count;
}

/* Likewise for nodes that others start: this machine's addresses of the name that they are given.
 */
static int find_places_of_meeting(const char *meet, places_t *places)
{
    add_text(places, "127.0.0.1"); /* for the station here */
    if (strcmp(meet, "localhost") == 0 || strncmp(meet, "127.", 4) == 0) return 1;
    return add_sources(places, meet, 1, dp_now_ns() + NAMES_NS);
}

static int find_places(const dp_fleet_t *fleet, places_t *places)
{
    return fleet->nodes->way == DP_NODES_JOIN ? find_places_of_meeting(fleet->nodes->meet, places)
                                              : find_places_of_nodes(fleet, places);
}

/* ---- Listening ------------------------------------------------------------------------------ */

static void report_refusal(void *context, const char *from, const char *why)
{
    const dp_fleet_t *fleet = context;
    char text[640];

    snprintf(text, sizeof(text), "a connection to dprun's port was dropped: %s, %s", from, why);
    fleet->events.say(fleet->events.context, text);
}

static int judge_visitor(void *context, dp_door_visitor_t *visitor, char *why)
{
    dp_fleet_t *fleet = context;
    dp_link_events_t events = dp_fleet_link_events;

    events.context = fleet;
    return dp_link_create_server(fleet->base, visitor, &fleet->secret,
                                 (int)(DP_REMOTE_SILENCE_NS / 1000000), &events, why);
}

static void on_door(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    dp_door_turn(((dp_fleet_t *)context)->door);
}

static int open_door(dp_fleet_t *fleet)
{
    const dp_door_owner_t owner = {.hello_bytes = DP_KV_CLIENT_HELLO_BYTES,
                                   .greet = dp_kv_server_hello_write,
                                   .greeting_bytes = DP_KV_SERVER_HELLO_BYTES,
                                   .judge = judge_visitor,
                                   .refused = report_refusal,
                                   .context = fleet};

    if (dp_door_create(&owner, fleet->count, &fleet->door, NULL) == DP_OK) {
        fleet->on_door =
            event_new(fleet->base, dp_door_fd(fleet->door), EV_READ | EV_PERSIST, on_door, fleet);
    }
    if (fleet->on_door != NULL && event_add(fleet->on_door, NULL) == 0) return 0;
    errno = ENOMEM;
    return -1;
}

static void set_port(struct sockaddr_storage *address, uint16_t port)
{
    const in_port_t value = htons(port);
    const size_t at = address->ss_family == AF_INET ? offsetof(struct sockaddr_in, sin_port)
                                                    : offsetof(struct sockaddr_in6, sin6_port);

    memcpy((char *)address + at, &value, sizeof(value));
}

/* At fleet->port, 0: at a free one, which becomes it. The listener, or -1: errno. */
static int bind_at(dp_fleet_t *fleet, const place_t *place)
{
    struct sockaddr_storage address = place->address;

    set_port(&address, fleet->port);
    return dp_door_bind((struct sockaddr *)&address, place->bytes, 1, &fleet->port);
}

/* At one port of all of them. A port that is free at one address may be taken at the next one. */
static int listen_at_all(dp_fleet_t *fleet, const places_t *places, uint16_t wanted)
{
    int listeners[DP_FLEET_LISTENERS];

    for (int attempt = 0; attempt < PORT_TRIES; attempt++) {
        int count = 0;
        int failure;

        fleet->port = wanted;
        while (count < places->count &&
               (listeners[count] = bind_at(fleet, &places->list[count])) >= 0)
            count++;
        failure = errno;
        for (int i = 0; i < count; i++) {
            if (count < places->count) {
                close(listeners[i]);
            } else if (dp_door_listen(fleet->door, listeners[i]) != 0) {
                return -1;
            }
        }
        if (count == places->count) return 0;
        errno = failure;
        if (wanted != 0 || failure != EADDRINUSE) return -1;
    }
    return -1;
}

static int listen_everywhere(dp_fleet_t *fleet, uint16_t wanted)
{
    const int listener = dp_door_bind_everywhere(wanted, &fleet->port);

    fleet->is_everywhere = 1;
    return listener < 0 ? -1 : dp_door_listen(fleet->door, listener);
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

    status = open_door(fleet);
    if (status == 0) {
        status = interface[0] != '\0' ? listen_on_interface(fleet, interface, wanted)
                                      : listen_on_routes(fleet, wanted);
    }
    if (status == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM, "the port for the nodes' stations (%u%s%s): %s",
                        wanted, interface[0] != '\0' ? " on " : "", interface, strerror(errno));
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
        int listener;
        int k = 0;

        while (k < fleet->address_count && strcmp(fleet->addresses[k], addresses[i]) != 0)
            k++;
        place.bytes = read_address(addresses[i], &place.address);
        if (k < fleet->address_count || place.bytes == 0 ||
            fleet->address_count >= DP_REMOTE_ADDRESSES)
            continue;
        listener = bind_at(fleet, &place);
        if (listener < 0 || dp_door_listen(fleet->door, listener) != 0) continue;
        memcpy(fleet->addresses[fleet->address_count++], addresses[i], DP_REMOTE_ADDRESS_MAX);
        added++;
    }
    return added;
}

void dp_fleet_close_door(dp_fleet_t *fleet)
{
    if (fleet->on_door != NULL) event_free(fleet->on_door);
    fleet->on_door = NULL;
    if (fleet->door != NULL) dp_door_close(fleet->door);
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
