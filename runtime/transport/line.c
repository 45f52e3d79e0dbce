/*
 * line.c - the transport that tells the death of neighbours on other nodes. Messages go through
 * lower with a number and a code; losses and signs of life come from the lines.
 *
 * Called through the ops table by the thread that owns the transport. It must not know what
 * messages mean, nor that lower is ucx.
 *
 * A message on lower: u64 number, content, u64 code over both. Numbers count from 1, so a message
 * that is repeated or left out by a stranger is as wrong as one that is forged.
 *
 * Both sides agree on closing: each says farewell, and closes its end when the other has, too. So
 * no reset can overtake a farewell, however slow the network is.
 */
#include "runtime/transport/line_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "runtime/base/wire.h"
#include "runtime/transport/frame.h"

#define NUMBER_BYTES ((size_t)8)
#define CODE_BYTES ((size_t)8)
#define CLOSE_STEP_MS 5                 /* longest sleep in close(), should an event be missed */
#define LATE_OPEN_NS (100ull * 1000000) /* in close(), for a line that is still opening */
#define EVENTS_AT_ONCE 16               /* then messages have their turn */
#define LOOK_EVERY 16                   /* polls: to look at the lines is a system call */

static dp_line_t *line_of(dp_transport_t *base)
{
    return (dp_line_t *)base;
}

/* ---- Messages ------------------------------------------------------------------------------- */

static dp_status_t reserve_message(dp_line_t *self, size_t bytes)
{
    uint8_t *larger;

    if (bytes <= self->message_room) return DP_OK;
    larger = realloc(self->message, 2 * bytes);
    if (larger == NULL) return DP_ERR_NO_MEMORY;
    self->message = larger;
    self->message_room = 2 * bytes;
    return DP_OK;
}

static dp_status_t line_send(dp_transport_t *base, int rank, const void *data, size_t bytes)
{
    dp_line_t *self = line_of(base);
    dp_line_peer_t *peer = dp_line_find(self, rank);
    const size_t whole = NUMBER_BYTES + bytes + CODE_BYTES;
    dp_writer_t writer;
    dp_status_t status;

    if (peer == NULL || bytes > DP_FRAME_TOTAL_MAX - NUMBER_BYTES - CODE_BYTES)
        return DP_ERR_INVALID;
    if (peer->is_reported) return DP_OK;
    status = reserve_message(self, whole);
    if (status != DP_OK) return status;
    dp_writer_init(&writer, self->message, whole);
    dp_write_u64(&writer, peer->messages_sent + 1);
    dp_write_bytes(&writer, data, bytes);
    dp_write_u64(&writer, dp_auth_code(&peer->message_out, self->message, NUMBER_BYTES + bytes));
    status = self->lower->ops->send(self->lower, rank, self->message, whole);
    if (status == DP_OK) peer->messages_sent++;
    return status;
}

static void drop_message(dp_line_t *self, int rank)
{
    self->forged++;
    if ((self->forged & (self->forged - 1)) != 0) return; /* no flood of lines */
    dp_log_warn(&self->log,
                "dropped %llu control messages, the last as if from rank %d: its code "
                "is wrong",
                (unsigned long long)self->forged, rank);
}

/* Checks a message, and leaves its content in the event. */
static int is_genuine(dp_line_peer_t *peer, dp_transport_event_t *event)
{
    const uint8_t *data = event->data;
    dp_reader_t number, code;

    if (event->bytes < NUMBER_BYTES + CODE_BYTES) return 0;
    dp_reader_init(&number, data, NUMBER_BYTES);
    dp_reader_init(&code, data + event->bytes - CODE_BYTES, CODE_BYTES);
    if (dp_read_u64(&number) != peer->messages_come + 1) return 0;
    if (dp_read_u64(&code) != dp_auth_code(&peer->message_in, data, event->bytes - CODE_BYTES))
        return 0;
    peer->messages_come++;
    event->data = data + NUMBER_BYTES;
    event->bytes -= NUMBER_BYTES + CODE_BYTES;
    return 1;
}

/* An event of lower. 1: it is the caller's. */
static int accept_lower_event(dp_line_t *self, dp_transport_event_t *event)
{
    dp_line_peer_t *peer = dp_line_find(self, event->rank);

    if (peer == NULL) return 1;
    if (peer->is_reported) return 0;
    if (event->kind == DP_TRANSPORT_PEER_LOST) {
        peer->is_reported = 1;
        dp_line_end(peer, 0);
        return 1;
    }
    if (event->kind != DP_TRANSPORT_MESSAGE || is_genuine(peer, event)) return 1;
    drop_message(self, peer->rank);
    return 0;
}

/* ---- Lines ---------------------------------------------------------------------------------- */

/* Beats, and all that has a time. */
static void handle_timer(dp_line_t *self)
{
    const uint64_t now_ns = dp_now_ns();
    const int must_beat = now_ns >= self->next_beat_ns;
    uint64_t due_ns;
    uint64_t expired;

    (void)!read(self->timer, &expired, sizeof(expired));
    if (must_beat) self->next_beat_ns = now_ns + self->beat_ns;
    due_ns = self->next_beat_ns;
    for (int i = 0; i < self->peer_count; i++) {
        dp_line_peer_t *peer = &self->peers[i];

        if (must_beat) dp_line_send_beat(self, peer, DP_LINE_BEAT);
        dp_line_look(self, peer, now_ns);
        if (peer->state == DP_LINE_WAITING) due_ns = dp_min(due_ns, peer->retry_ns);
        if (!peer->is_lost || peer->is_reported) continue;
        self->news = 1;
        due_ns = dp_min(due_ns, peer->report_ns);
    }
    dp_line_arm_timer(self, dp_max(due_ns, now_ns + 1));
}

static void handle_events(dp_line_t *self)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    const int count = epoll_wait(self->events, events, EVENTS_AT_ONCE, 0);

    self->polls = 0;
    for (int i = 0; i < count; i++) {
        const uint32_t place = (uint32_t)events[i].data.u64;

        switch ((dp_line_source_t)(events[i].data.u64 >> 32)) {
        case DP_LINE_DOOR:
            dp_door_turn(self->door);
            break;
        case DP_LINE_TIMER:
            handle_timer(self);
            break;
        case DP_LINE_PEER:
            dp_line_handle(self, &self->peers[place], events[i].events);
            break;
        }
    }
}

static void give_up_below(dp_line_t *self, const dp_line_peer_t *peer)
{
    if (self->lower->ops->give_up != NULL) self->lower->ops->give_up(self->lower, peer->rank);
}

/* 1: *out is a sign of life, or a loss whose last messages had their time. */
static int report_news(dp_line_t *self, dp_transport_event_t *out)
{
    const uint64_t now_ns = dp_now_ns();

    for (int i = 0; i < self->peer_count; i++) {
        dp_line_peer_t *peer = &self->peers[i];

        if (peer->is_lost && !peer->is_reported && now_ns >= peer->report_ns) {
            peer->is_reported = 1;
            give_up_below(self, peer);
            *out = (dp_transport_event_t){
                .kind = DP_TRANSPORT_PEER_LOST, .rank = peer->rank, .text = peer->text};
            return 1;
        }
        if (peer->sign_ns > peer->told_ns && peer->state == DP_LINE_OPEN) {
            peer->told_ns = peer->sign_ns;
            *out = (dp_transport_event_t){
                .kind = DP_TRANSPORT_ALIVE, .rank = peer->rank, .seen_ns = peer->sign_ns};
            return 1;
        }
    }
    self->news = 0; /* a loss that is not due has the timer */
    return 0;
}

static int poll_lines(dp_line_t *self, dp_transport_event_t *out)
{
    if (!self->is_connected || self->is_closed) return 0;
    if (++self->polls >= LOOK_EVERY) handle_events(self);
    return self->news && report_news(self, out);
}

static dp_status_t line_poll(dp_transport_t *base, dp_transport_event_t *out)
{
    dp_line_t *self = line_of(base);

    /* Now and then the lines come first: lower may always have a message. */
    if (self->polls >= LOOK_EVERY - 1 && poll_lines(self, out)) return DP_OK;
    while (self->lower->ops->poll(self->lower, out) == DP_OK) {
        if (accept_lower_event(self, out)) {
            self->polls++;
            return DP_OK;
        }
    }
    return poll_lines(self, out) ? DP_OK : DP_ERR_PENDING;
}

static void give_up_peer(dp_line_t *self, dp_line_peer_t *peer)
{
    peer->is_reported = 1;
    dp_line_end(peer, 1);
    give_up_below(self, peer);
}

/* 1: it would be given up a moment later, too. */
static int is_about_as_silent(const dp_line_t *self, const dp_line_peer_t *peer, uint64_t now_ns)
{
    return peer->state == DP_LINE_OPEN && self->timeout_ns > 0 &&
           now_ns > peer->sign_ns + self->timeout_ns / 5 * 4;
}

/* Where nothing reaches this rank any more, all neighbours fall silent at once, and the first one
 * that is given up ends the world here. The others may still hear this rank: without a reset they
 * would take what TCP repeats for signs of life. */
static void line_give_up(dp_transport_t *base, int rank)
{
    dp_line_t *self = line_of(base);
    dp_line_peer_t *peer = dp_line_find(self, rank);
    const uint64_t now_ns = dp_now_ns();

    if (peer == NULL) return;
    give_up_peer(self, peer);
    for (int i = 0; i < self->peer_count; i++) {
        if (is_about_as_silent(self, &self->peers[i], now_ns)) give_up_peer(self, &self->peers[i]);
    }
}

/* ---- Sleeping ------------------------------------------------------------------------------- */

static int line_fd(const dp_transport_t *base)
{
    const dp_line_t *self = (const dp_line_t *)base;

    return self->lower->ops->fd(self->lower);
}

static int line_other_fd(const dp_transport_t *base)
{
    return ((const dp_line_t *)base)->events;
}

/* The epoll of the lines is level-triggered, so whatever was not read wakes the sleeper. */
static dp_status_t line_arm(dp_transport_t *base)
{
    dp_line_t *self = line_of(base);

    if (self->news) return DP_ERR_PENDING;
    self->polls = LOOK_EVERY; /* the next poll looks at the lines: they may end the sleep */
    return self->lower->ops->arm(self->lower);
}

static dp_status_t line_rearm(dp_transport_t *base)
{
    dp_line_t *self = line_of(base);

    if (self->news) return DP_ERR_PENDING;
    self->polls = LOOK_EVERY;
    return self->lower->ops->rearm(self->lower);
}

static void line_wake(dp_transport_t *base)
{
    dp_line_t *self = line_of(base);

    self->lower->ops->wake(self->lower);
}

/* ---- Opening -------------------------------------------------------------------------------- */

/* This rank's own address, lower's address. */
static dp_status_t line_address(dp_transport_t *base, void *data, size_t room, size_t *bytes)
{
    dp_line_t *self = line_of(base);
    uint8_t *at = data;
    size_t more = 0;
    dp_status_t status;

    if (room < DP_LINE_ADDRESS) return DP_ERR_INVALID;
    dp_line_address_write(self, at);
    status =
        self->lower->ops->address(self->lower, at + DP_LINE_ADDRESS, room - DP_LINE_ADDRESS, &more);
    if (status == DP_OK) *bytes = DP_LINE_ADDRESS + more;
    return status;
}

/* Its address and the keys of the edge. 0: the address makes no sense. */
static int introduce_peer(dp_line_t *self, dp_line_peer_t *peer, const uint8_t *address)
{
    const uint32_t rank = (uint32_t)self->rank, other = (uint32_t)peer->rank;
    const uint8_t *nonce;

    if (!dp_line_address_read(self, address, peer, &nonce)) return 0;
    if (rank < other) {
        dp_line_edge_secret(&self->secret, rank, other, self->nonce, nonce, &peer->edge);
    } else {
        dp_line_edge_secret(&self->secret, other, rank, nonce, self->nonce, &peer->edge);
    }
    dp_line_code_key(&peer->edge, "message", rank, NULL, 0, &peer->message_out);
    dp_line_code_key(&peer->edge, "message", other, NULL, 0, &peer->message_in);
    return 1;
}

static void open_lines(dp_line_t *self)
{
    const uint64_t now_ns = dp_now_ns();

    self->start_ns = now_ns;
    self->start_limit_ns += now_ns;
    self->next_beat_ns = now_ns + self->beat_ns;
    self->is_connected = 1;
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].rank > self->rank) continue; /* it connects to this rank */
        dp_line_connect(self, &self->peers[i]);
    }
    dp_line_arm_timer(self, self->next_beat_ns);
}

/* Reads the addresses of all neighbours; the part of each that is for lower goes to more[count]. */
static dp_status_t introduce_peers(dp_line_t *self, const int *ranks, const void *const *addresses,
                                   const size_t *bytes, int count, const void **more,
                                   size_t *more_bytes, dp_error_t *error)
{
    for (int i = 0; i < count; i++) {
        dp_line_peer_t *peer = dp_line_find(self, ranks[i]);

        if (peer == NULL || bytes[i] < DP_LINE_ADDRESS ||
            !introduce_peer(self, peer, addresses[i])) {
            return dp_error_set(error, DP_ERR_INVALID,
                                "rank %d: the address of rank %d makes no sense", self->rank,
                                ranks[i]);
        }
        more[i] = (const uint8_t *)addresses[i] + DP_LINE_ADDRESS;
        more_bytes[i] = bytes[i] - DP_LINE_ADDRESS;
    }
    return DP_OK;
}

static dp_status_t line_connect(dp_transport_t *base, const int *ranks,
                                const void *const *addresses, const size_t *bytes, int count,
                                dp_error_t *error)
{
    dp_line_t *self = line_of(base);
    const void **more = calloc((size_t)count + 1, sizeof(*more));
    size_t *more_bytes = calloc((size_t)count + 1, sizeof(*more_bytes));
    dp_status_t status;

    if (self->is_connected || self->is_closed) {
        status = dp_error_set(error, DP_ERR_INVALID, "rank %d: connected twice", self->rank);
    } else if (more == NULL || more_bytes == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory for %d neighbours",
                              self->rank, count);
    } else {
        status = introduce_peers(self, ranks, addresses, bytes, count, more, more_bytes, error);
    }
    if (status == DP_OK)
        status = self->lower->ops->connect(self->lower, ranks, more, more_bytes, count, error);
    explicit_bzero(&self->secret, sizeof(self->secret));
    if (status == DP_OK) open_lines(self);
    free(more_bytes);
    free(more);
    return status;
}

/* ---- Closing -------------------------------------------------------------------------------- */

/* 1: each line has ended, or both sides have said farewell, or it has not opened in time: the other
 * rank may have left before it could. */
static int lines_are_done(const dp_line_t *self, uint64_t open_limit_ns)
{
    for (int i = 0; i < self->peer_count; i++) {
        const dp_line_peer_t *peer = &self->peers[i];

        if (peer->state == DP_LINE_ENDED) continue;
        if (peer->state != DP_LINE_OPEN) {
            if (dp_now_ns() < open_limit_ns) return 0;
            continue;
        }
        if (!peer->said_farewell || !peer->has_farewelled || peer->out_bytes > 0) return 0;
    }
    return 1;
}

/* A socket that has no room takes the farewell later. */
static void say_farewells(dp_line_t *self)
{
    for (int i = 0; i < self->peer_count; i++)
        dp_line_send_beat(self, &self->peers[i], DP_LINE_FAREWELL);
}

/* Reads lines until all are done, within the deadline. Losses are not reported any more. */
static void await_farewells(dp_line_t *self, uint64_t deadline_ns)
{
    const uint64_t open_limit_ns = dp_now_ns() + LATE_OPEN_NS;

    while (!lines_are_done(self, open_limit_ns) && dp_now_ns() < deadline_ns) {
        struct pollfd wait = {.fd = self->events, .events = POLLIN};

        (void)poll(&wait, 1, CLOSE_STEP_MS);
        handle_events(self);
        say_farewells(self);
    }
}

static void line_close(dp_transport_t *base, uint64_t deadline_ns)
{
    dp_line_t *self = line_of(base);

    if (self->is_closed) return;
    say_farewells(self);
    self->lower->ops->close(self->lower, deadline_ns);
    if (self->is_connected) await_farewells(self, deadline_ns);
    self->is_closed = 1;
    if (self->door != NULL) dp_door_close(self->door);
    for (int i = 0; i < self->peer_count; i++)
        dp_line_end(&self->peers[i], 0);
}

static void free_line(dp_line_t *self)
{
    dp_transport_destroy(self->lower);
    dp_door_destroy(self->door);
    for (int i = 0; i < self->peer_count; i++)
        dp_line_end(&self->peers[i], 0);
    if (self->timer >= 0) close(self->timer);
    if (self->events >= 0) close(self->events);
    free(self->message);
    explicit_bzero(self, sizeof(*self));
    free(self);
}

static void line_destroy(dp_transport_t *base)
{
    free_line(line_of(base));
}

/* ---- Making --------------------------------------------------------------------------------- */

static int open_fds(dp_line_t *self)
{
    self->events = epoll_create1(EPOLL_CLOEXEC);
    self->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (self->events < 0 || self->timer < 0) return -1;
    return dp_line_watch(self, self->timer, EPOLLIN, DP_LINE_TIMER, 0);
}

static void init_peers(dp_line_t *self, const int *ranks, int count)
{
    for (; self->peer_count < count; self->peer_count++) {
        dp_line_peer_t *peer = &self->peers[self->peer_count];

        peer->rank = ranks[self->peer_count];
        peer->fd = -1;
        peer->retry_ns = UINT64_MAX;
        self->expected += peer->rank > self->rank;
    }
}

dp_status_t dp_transport_line_create(const dp_line_options_t *options, dp_transport_t *lower,
                                     dp_transport_t **out, dp_error_t *error)
{
    static const dp_transport_ops_t ops = {
        .name = "line",
        .address = line_address,
        .connect = line_connect,
        .send = line_send,
        .poll = line_poll,
        .give_up = line_give_up,
        .fd = line_fd,
        .other_fd = line_other_fd,
        .arm = line_arm,
        .rearm = line_rearm,
        .wake = line_wake,
        .close = line_close,
        .destroy = line_destroy,
    };
    const int count = options->count;
    dp_line_t *self = calloc(1, sizeof(*self) + (size_t)count * sizeof(self->peers[0]));
    dp_status_t status;

    if (self == NULL) {
        dp_transport_destroy(lower);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory", options->rank);
    }
    self->base.ops = &ops;
    self->lower = lower;
    self->rank = options->rank;
    self->secret = *options->secret;
    self->world = dp_auth_tag(options->secret, "line world");
    self->beat_ns = options->beat_ns;
    self->timeout_ns = options->timeout_ns;
    self->start_limit_ns = options->start_ns;
    self->events = self->timer = -1;
    self->log = *options->log;
    dp_random(self->nonce, sizeof(self->nonce));
    init_peers(self, options->ranks, count);
    if (open_fds(self) != 0) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "rank %d: no epoll or timer: %s", self->rank,
                              strerror(errno));
    } else {
        status = dp_line_listen(self, &options->own_ip, options->network_interface, error);
    }
    if (status != DP_OK) {
        free_line(self);
        return status;
    }
    *out = &self->base;
    return DP_OK;
}
