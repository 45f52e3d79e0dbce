/*
 * bootstrap_place.c - see bootstrap_place.h.
 */
#include "runtime/group/bootstrap_place.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/rendezvous.h"
#include "runtime/network/resolve.h"

#define NAME_NS UINT64_C(2000000000) /* for the name's addresses */
#define PORT_TRIES 16

/* ---- Choosing ------------------------------------------------------------------------------- */

static void add_ip(dp_bootstrap_place_t *place, const dp_ip_t *ip)
{
    for (int i = 0; i < place->count; i++)
        if (dp_ip_is_equal(&place->ips[i], ip)) return;
    if (place->count < DP_BOOTSTRAP_PLACE_MAX) place->ips[place->count++] = *ip;
}

static int is_on_interface(const dp_bootstrap_place_facts_t *facts, const dp_ip_t *ip)
{
    for (int i = 0; i < facts->interface_count; i++)
        if (dp_ip_is_equal(&facts->interface[i].ip, ip)) return 1;
    return 0;
}

/* Adds the named addresses of this machine. only_interface: those of the interface. */
static void add_named(const dp_bootstrap_place_facts_t *facts, int only_interface,
                      dp_bootstrap_place_t *place)
{
    for (int i = 0; i < facts->named_count; i++) {
        const dp_ip_t *ip = &facts->named[i];

        if (dp_ip_is_loopback(ip) || !facts->is_own(ip)) continue;
        if (!only_interface || is_on_interface(facts, ip)) add_ip(place, ip);
    }
}

static void add_named_loopback(const dp_bootstrap_place_facts_t *facts, dp_bootstrap_place_t *place)
{
    for (int i = 0; i < facts->named_count; i++)
        if (dp_ip_is_loopback(&facts->named[i])) add_ip(place, &facts->named[i]);
}

void dp_bootstrap_place_choose(const dp_bootstrap_place_facts_t *facts, dp_bootstrap_place_t *place)
{
    int named;

    *place = (dp_bootstrap_place_t){.count = 0, .name = "", .why = ""};
    if (facts->is_local_name) {
        add_named_loopback(facts, place);
        return;
    }
    add_named(facts, facts->interface_count > 0, place);
    if (place->count > 0) return;
    for (int i = 0; i < facts->interface_count; i++)
        add_ip(place, &facts->interface[i].ip);
    if (facts->interface_count == 0) {
        place->why = facts->named_count == 0 ? "is not known here"
                                             : "leads to no address of this machine but loopback";
        return;
    }
    named = place->count;
    add_named(facts, 0, place);
    /* By which the ranks on this machine come, if the name has nothing better here. */
    if (place->count == named) add_named_loopback(facts, place);
}

static int is_local_name(const char *host)
{
    dp_ip_t ip;

    return strcmp(host, "localhost") == 0 || (dp_ip_parse(host, &ip) && dp_ip_is_loopback(&ip));
}

void dp_bootstrap_place_find(const char *host, const char *interface, dp_bootstrap_place_t *place)
{
    char found[DP_BOOTSTRAP_PLACE_MAX][DP_RESOLVE_ROOM] = {"127.0.0.1"};
    dp_interface_address_t on_interface[DP_INTERFACE_ADDRESSES];
    dp_ip_t named[DP_BOOTSTRAP_PLACE_MAX];
    dp_bootstrap_place_facts_t facts = {.is_local_name = is_local_name(host),
                                        .named = named,
                                        .interface = on_interface,
                                        .is_own = dp_ip_is_own};
    int count = 1;

    if (host[0] != '\0' && dp_resolve(host, found, DP_BOOTSTRAP_PLACE_MAX, &count,
                                      dp_now_ns() + NAME_NS, NULL) != DP_OK)
        count = 0;
    for (int i = 0; i < count; i++)
        facts.named_count += dp_ip_parse(found[i], &named[facts.named_count]);
    if (interface[0] != '\0') {
        facts.interface_count = dp_interface_list(on_interface, DP_INTERFACE_ADDRESSES, interface);
    }
    dp_bootstrap_place_choose(&facts, place);
    place->name = host;
    if (host[0] == '\0') {
        place->name = "no name of this machine is known";
        place->why = "(DP_NET_INTERFACE names an interface)";
    }
}

void dp_bootstrap_place_find_own(const char *name, const char *interface,
                                 dp_bootstrap_place_t *place)
{
    dp_ip_t loopback;

    if (name[0] == '\0' || interface[0] != '\0' || is_local_name(name)) {
        dp_bootstrap_place_find("", interface, place);
        return;
    }
    dp_bootstrap_place_find(name, "", place);
    if (place->count > 0 && dp_ip_parse("127.0.0.1", &loopback)) add_ip(place, &loopback);
}

/* ---- Listening ------------------------------------------------------------------------------ */

static void close_all(const int *listeners, int *count)
{
    for (int i = 0; i < *count; i++)
        close(listeners[i]);
    *count = 0;
}

static dp_status_t listen_at(const dp_ip_t *ip, uint16_t port, int *listener, uint16_t *bound,
                             dp_error_t *error)
{
    struct sockaddr_storage address;
    const socklen_t bytes = dp_ip_socket_address(ip, port, &address);
    char text[DP_IP_TEXT];
    int code;

    *listener = dp_door_bind((const struct sockaddr *)&address, bytes, 1, bound);
    code = errno;
    if (*listener >= 0) return DP_OK;
    return dp_error_set(error, code == EADDRINUSE ? DP_ERR_BUSY : DP_ERR_SYSTEM,
                        "rendezvous on %s port %u: %s", dp_ip_format(ip, text), port,
                        strerror(code));
}

/* One try. An address that cannot be used, as one of version 6 that is not confirmed yet, is left
 * out; if it is the last one, that is the error. */
static dp_status_t listen_at_all(const dp_bootstrap_place_t *place, uint16_t port,
                                 int listeners[DP_BOOTSTRAP_PLACE_MAX], int *count, uint16_t *bound,
                                 dp_error_t *error)
{
    dp_status_t status = DP_OK;

    *count = 0;
    *bound = port;
    for (int i = 0; i < place->count; i++) {
        status = listen_at(&place->ips[i], *bound, &listeners[*count], bound, error);
        if (status == DP_ERR_BUSY) break;
        *count += status == DP_OK;
    }
    if (status == DP_ERR_BUSY) close_all(listeners, count);
    return *count > 0 ? DP_OK : status;
}

dp_status_t dp_bootstrap_place_listen(const dp_bootstrap_place_t *place, uint16_t port,
                                      int listeners[DP_BOOTSTRAP_PLACE_MAX], int *count,
                                      uint16_t *bound, dp_error_t *error)
{
    dp_status_t status = DP_ERR_BUSY;

    if (place->count == 0) {
        *count = 1;
        return dp_rendezvous_bind(port, &listeners[0], bound, error);
    }
    /* A port that is free at one address may be taken at the next one. */
    for (int i = 0; i < (port == 0 ? PORT_TRIES : 1) && status == DP_ERR_BUSY; i++)
        status = listen_at_all(place, port, listeners, count, bound, error);
    return status;
}

void dp_bootstrap_place_format(const dp_bootstrap_place_t *place, uint16_t port, char *text,
                               size_t room)
{
    char ip[DP_IP_TEXT];
    size_t used = 0;

    if (place->count == 0) {
        snprintf(text, room, "on every address, port %u", port);
        return;
    }
    for (int i = 0; i < place->count && used < room; i++) {
        used += (size_t)snprintf(text + used, room - used, "%s %s", i == 0 ? "on" : ",",
                                 dp_ip_format(&place->ips[i], ip));
    }
    if (used < room) snprintf(text + used, room - used, ", port %u", port);
}
