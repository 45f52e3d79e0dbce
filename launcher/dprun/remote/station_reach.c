/*
 * station_reach.c - tries the network between this node and the others, for dprun --check.
 *
 * Called by station.c, on its only thread, whose signs of life must not wait for a network that
 * answers nothing. So the other nodes are tried on a thread of their own; it owns cards, survey and
 * error from its start until it writes to done_fd.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "launcher/dprun/remote/station_internal.h"
#include "runtime/network/reach.h"
#include "runtime/base/thread.h"

#define NODES_MAX 65536
#define ARITY 8 /* beyond DP_REACH_ALL_CHECK nodes: which ones are partners */

typedef struct dp_station_reach {
    dp_reach_card_t list; /* this node's addresses */
    dp_reach_t *reach;    /* NULL: it listens on nothing */
    pthread_t thread;
    int has_thread;
    int done_fd; /* readable: the thread has written survey and status */
    struct event *on_done;
    /* the thread's while there is one */
    dp_reach_card_t *cards; /* [node_count] */
    int node_count;
    int is_thorough;
    uint64_t deadline_ns;
    dp_reach_survey_t survey;
    dp_status_t status;
    dp_error_t error;
} dp_station_reach_t;

static void join_thread(dp_station_reach_t *reach)
{
    if (reach->has_thread) pthread_join(reach->thread, NULL);
    reach->has_thread = 0;
    free(reach->cards);
    reach->cards = NULL;
}

static void send_survey(dp_station_t *station, const dp_reach_survey_t *survey)
{
    const size_t bytes = dp_reach_survey_bytes(survey);
    uint8_t *data = malloc(bytes);

    if (data != NULL && dp_reach_survey_write(survey, data, bytes) == bytes)
        dp_station_send(station, DP_REMOTE_SURVEY, data, bytes);
    free(data);
}

static void on_done(evutil_socket_t fd, short what, void *context)
{
    dp_station_t *station = context;
    dp_station_reach_t *reach = station->reach;
    uint64_t count;

    (void)what;
    if (read((int)fd, &count, sizeof(count)) != (ssize_t)sizeof(count)) return;
    join_thread(reach);
    if (reach->status != DP_OK) {
        dp_station_refuse(station, 1, reach->error.text);
        return;
    }
    send_survey(station, &reach->survey);
    dp_reach_survey_free(&reach->survey);
}

static void *try_others(void *context)
{
    dp_station_reach_t *reach = context;
    const uint64_t one = 1;

    reach->status =
        dp_reach_try(reach->reach, reach->cards, reach->node_count, DP_REACH_ALL_CHECK, ARITY,
                     reach->is_thorough, reach->deadline_ns, &reach->survey, &reach->error);
    while (write(reach->done_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        continue;
    return NULL;
}

static void start_thread(dp_station_t *station)
{
    dp_station_reach_t *reach = station->reach;
    const int failed = dp_thread_start(&reach->thread, try_others, reach);

    reach->has_thread = failed == 0;
    if (failed == 0) return;
    free(reach->cards);
    reach->cards = NULL;
    dp_station_refuse(station, 1, "no thread to try the network");
}

/* -1: malformed, or no memory. */
static int read_cards(dp_station_reach_t *reach, dp_reader_t *fields)
{
    const uint32_t count = dp_read_u32(fields);

    if (fields->failed || count < 1 || count > NODES_MAX || count > dp_reader_left(fields) / 3)
        return -1;
    reach->cards = calloc(count, sizeof(*reach->cards));
    if (reach->cards == NULL) return -1;
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t bytes = dp_read_u16(fields);
        const void *data = dp_read_bytes(fields, bytes);

        if (data == NULL || !dp_reach_card_read(data, bytes, &reach->cards[i])) {
            free(reach->cards);
            reach->cards = NULL;
            return -1;
        }
    }
    reach->node_count = (int)count;
    return 0;
}

/* 0: refused. */
static int read_all_cards(dp_station_t *station, dp_reader_t *fields)
{
    dp_station_reach_t *reach = station->reach;

    if (read_cards(reach, fields) == 0 && station->start.node >= 0 &&
        station->start.node < reach->node_count)
        return 1;
    free(reach->cards);
    reach->cards = NULL;
    dp_station_refuse(station, 1, "it cannot read the other nodes' addresses");
    return 0;
}

void dp_station_reach_try(dp_station_t *station, dp_reader_t *fields)
{
    dp_station_reach_t *reach = station->reach;
    uint32_t limit_ms;

    if (reach == NULL || reach->reach == NULL || reach->has_thread) return;
    reach->is_thorough = dp_read_u8(fields);
    limit_ms = dp_read_u32(fields);
    if (!read_all_cards(station, fields)) return;
    reach->deadline_ns = dp_now_ns() + (uint64_t)limit_ms * 1000000;
    start_thread(station);
}

static void send_card(dp_station_t *station, const dp_reach_card_t *card)
{
    uint8_t data[DP_REACH_CARD_ROOM];
    const size_t bytes = dp_reach_card_write(card, data);

    dp_station_send(station, DP_REMOTE_CARD, data, bytes);
}

void dp_station_reach_listen(dp_station_t *station, dp_reader_t *fields)
{
    dp_station_reach_t *reach = station->reach;
    dp_reach_card_t needed;
    dp_error_t error;
    dp_status_t status;
    int is_all;

    if (reach == NULL || reach->has_thread) return;
    is_all = dp_read_u8(fields);
    if (!read_all_cards(station, fields)) return;
    dp_reach_list_needed(reach->cards, reach->node_count, station->start.node, dp_ip_source,
                         &needed);
    free(reach->cards);
    reach->cards = NULL;
    dp_reach_close(reach->reach);
    reach->reach = NULL;
    status = dp_reach_open(&station->start.secret, station->start.node,
                           is_all ? &reach->list : &needed, &reach->reach, &error);
    if (status == DP_OK) {
        send_card(station, dp_reach_own_card(reach->reach));
    } else {
        dp_station_refuse(station, 1, error.text);
    }
}

dp_status_t dp_station_reach_open(dp_station_t *station, dp_error_t *error)
{
    dp_station_reach_t *reach = calloc(1, sizeof(*reach));

    if (reach == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    station->reach = reach;
    reach->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (reach->done_fd < 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "a descriptor to try the network: %s",
                            strerror(errno));
    }
    reach->on_done =
        event_new(station->base, reach->done_fd, EV_READ | EV_PERSIST, on_done, station);
    if (reach->on_done == NULL || event_add(reach->on_done, NULL) != 0)
        return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    dp_reach_list(station->start.net_interface, &reach->list);
    send_card(station, &reach->list);
    return DP_OK;
}

void dp_station_reach_close(dp_station_t *station)
{
    dp_station_reach_t *reach = station->reach;

    if (reach == NULL) return;
    if (reach->reach != NULL) dp_reach_stop(reach->reach);
    join_thread(reach);
    dp_reach_survey_free(&reach->survey);
    dp_reach_close(reach->reach);
    if (reach->on_done != NULL) event_free(reach->on_done);
    if (reach->done_fd >= 0) close(reach->done_fd);
    free(reach);
    station->reach = NULL;
}
