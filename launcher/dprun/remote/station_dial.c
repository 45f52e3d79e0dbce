/*
 * station_dial.c - finds dprun: tries all the addresses that it may have at a time, again and again
 * until one proves itself or the time is over. Called by station.c.
 *
 * An address may lead to another machine that has it too (a bridge of containers), or to nothing;
 * only the proof of the job's secret tells. A dprun that calls this side's proof wrong will do so
 * again: if no other address of the round proves itself, that is the end. A name is looked up in a
 * thread: a name service may take longer than the whole start, while signals and the other
 * addresses have to be served.
 */
#include "launcher/dprun/remote/station_internal.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REDIAL_US 200000

static void close_dial(dp_station_dial_t *dial)
{
    if (dial->connected != NULL) event_free(dial->connected);
    dial->connected = NULL;
    if (dial->fd >= 0) close(dial->fd);
    dial->fd = -1;
}

static void note_failure(dp_station_t *station, const char *why)
{
    const dp_remote_ticket_t *ticket = &station->options->ticket;
    char list[160] = "";
    size_t used = 0;

    if (station->is_turned_away) return; /* a better reason */
    for (int i = 0; i < ticket->address_count && used + 66 < sizeof(list); i++) {
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "",
                                 ticket->addresses[i]);
    }
    snprintf(station->dial_error, sizeof(station->dial_error),
             "cannot reach dprun at %.120s, port %u: %.60s", list, ticket->port, why);
}

static int has_open_dial(const dp_station_t *station)
{
    for (int i = 0; i < station->dial_count; i++) {
        if (station->dials[i].fd >= 0 || station->dials[i].link != NULL) return 1;
    }
    return 0;
}

static void end_lookup(dp_station_t *station)
{
    if (station->on_lookup != NULL) event_free(station->on_lookup);
    station->on_lookup = NULL;
    dp_resolution_free(station->lookup);
    station->lookup = NULL;
}

/* Another round when all of this one have failed. One without an open dial while a name is looked
 * up comes to nothing, and looks at the time. */
static void check_round(dp_station_t *station)
{
    const struct timeval pause = {0, REDIAL_US};

    if (station->link != NULL || has_open_dial(station)) return;
    if ((station->is_turned_away && station->lookup == NULL) ||
        dp_now_ns() >= station->dial_deadline_ns) {
        if (station->lookup != NULL) note_failure(station, "the name service does not answer");
        dp_station_end(station, 1);
    } else if (station->redial != NULL) {
        event_add(station->redial, &pause);
    }
}

static void on_connected(evutil_socket_t fd, short what, void *context)
{
    dp_station_dial_t *dial = context;
    dp_station_t *station = dial->station;
    int failure = 0;
    socklen_t bytes = sizeof(failure);

    (void)fd;
    event_free(dial->connected);
    dial->connected = NULL;
    if (getsockopt(dial->fd, SOL_SOCKET, SO_ERROR, &failure, &bytes) != 0) failure = errno;
    if (what & EV_TIMEOUT) failure = ETIMEDOUT;
    if (failure != 0) {
        note_failure(station, failure == ETIMEDOUT ? "no answer: a firewall?" : strerror(failure));
        close_dial(dial);
        check_round(station);
        return;
    }
    dial->link =
        dp_link_create_station(station->base, dial->fd, &station->options->ticket.secret,
                               station->node, DP_STATION_SILENCE_MS, &station->dial_events);
    dial->fd = -1; /* the link's */
    if (dial->link == NULL) check_round(station);
}

static void dial_address(dp_station_t *station, const struct addrinfo *address)
{
    const struct timeval patience = {3, 0};
    dp_station_dial_t *dial = &station->dials[station->dial_count];

    if (station->dial_count >= DP_STATION_DIALS) return;
    memset(dial, 0, sizeof(*dial));
    dial->station = station;
    dial->fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (dial->fd < 0) return;
    station->dial_count++;
    if (connect(dial->fd, address->ai_addr, address->ai_addrlen) != 0 && errno != EINPROGRESS) {
        note_failure(station, strerror(errno));
        close_dial(dial);
        return;
    }
    dial->connected = event_new(station->base, dial->fd, EV_WRITE, on_connected, dial);
    if (dial->connected == NULL || event_add(dial->connected, &patience) != 0) close_dial(dial);
}

/* 0: the text is a name. Takes a scope, too: fe80::1%eth0. */
static int dial_numeric(dp_station_t *station, const char *text)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char port[8];

    snprintf(port, sizeof(port), "%u", station->options->ticket.port);
    if (getaddrinfo(text, port, &hints, &found) != 0) return 0;
    dial_address(station, found);
    freeaddrinfo(found);
    return 1;
}

static void on_lookup(evutil_socket_t fd, short what, void *context)
{
    dp_station_t *station = context;
    char addresses[DP_STATION_DIALS][DP_RESOLVE_ROOM];
    dp_error_t error = {DP_OK, ""};
    int count = 0;

    (void)fd;
    (void)what;
    if (dp_resolution_read(station->lookup, addresses, DP_STATION_DIALS, &count, &error) != DP_OK)
        note_failure(station, error.text);
    end_lookup(station);
    for (int i = 0; i < count; i++)
        (void)dial_numeric(station, addresses[i]);
    check_round(station);
}

/* A ticket has one name at most. */
static void start_lookup(dp_station_t *station, const char *name)
{
    dp_error_t error = {DP_OK, ""};

    if (station->lookup != NULL) return; /* of an earlier round */
    if (dp_resolution_start(name, &station->lookup, &error) != DP_OK) {
        note_failure(station, error.text);
        return;
    }
    station->on_lookup =
        event_new(station->base, dp_resolution_fd(station->lookup), EV_READ, on_lookup, station);
    if (station->on_lookup == NULL || event_add(station->on_lookup, NULL) != 0) end_lookup(station);
}

static void dial_all(dp_station_t *station)
{
    const dp_remote_ticket_t *ticket = &station->options->ticket;

    station->dial_count = 0;
    for (int i = 0; i < ticket->address_count; i++) {
        if (!dial_numeric(station, ticket->addresses[i]))
            start_lookup(station, ticket->addresses[i]);
    }
    check_round(station);
}

static void on_redial(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    if (!has_open_dial(context)) dial_all(context); /* else a name was found since */
}

dp_status_t dp_station_dial(dp_station_t *station, const dp_link_events_t *events)
{
    station->dial_events = *events;
    station->dial_deadline_ns = dp_now_ns() + station->options->start_timeout_ns;
    station->redial = event_new(station->base, -1, 0, on_redial, station);
    if (station->redial == NULL) return DP_ERR_NO_MEMORY;
    dial_all(station);
    return DP_OK;
}

void dp_station_dial_done(dp_station_t *station, const dp_link_t *link)
{
    if (station->redial != NULL) event_free(station->redial);
    station->redial = NULL;
    end_lookup(station);
    for (int i = 0; i < station->dial_count; i++) {
        dp_station_dial_t *dial = &station->dials[i];

        close_dial(dial);
        if (dial->link != NULL && dial->link != link) dp_link_close(dial->link);
        dial->link = NULL;
    }
    station->dial_count = 0;
}

void dp_station_dial_failed(dp_station_t *station, const dp_link_t *link, const char *why)
{
    for (int i = 0; i < station->dial_count; i++) {
        if (station->dials[i].link == link) station->dials[i].link = NULL;
    }
    note_failure(station, why);
    if (dp_link_is_turned_away(link) && !station->is_turned_away) {
        station->is_turned_away = 1;
        snprintf(station->dial_error, sizeof(station->dial_error), "dprun at %s, port %u: %s",
                 dp_link_peer(link), station->options->ticket.port, why);
    }
    check_round(station);
}
