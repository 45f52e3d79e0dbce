/*
 * line_peer.c - one line: it is connected and proven, carries beats, and ends; and what all files
 * of the transport need: finding a neighbour, having poll() look at a socket, the timer.
 *
 * Called by line.c and line_listen.c, on the thread that owns the transport. Nothing here blocks. A
 * connection that ends in the middle of its handshake, perhaps because the other rank's door is
 * flooded, is tried again until the start's limit.
 */
#include "runtime/transport/line_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define RETRY_NS (20ull * 1000000) /* until a refused connection is tried again */
/* How long a refused connection is tried. The listener's rank died (the transport below may report
 * that), or left in order before this line was open (nothing reports it; this rank leaves soon). */
#define REFUSED_NS (2000ull * 1000000)
/* How long a loss is held back: the transport below may not have read yet what the process sent
 * before its end. */
#define LAST_MESSAGES_NS (10ull * 1000000)
/* Beats that the other kernel has not acknowledged. No more: behind a packet that was lost they
 * would only wait, and with few in flight the kernel repeats it in even, short intervals. */
#define BEATS_IN_FLIGHT 3
#define PRIORITY_INTERACTIVE 6 /* TC_PRIO_INTERACTIVE: before bulk data in this node's queue */

/* ---- For all files of the line transport ----------------------------------------------------- */

dp_line_peer_t *dp_line_find(dp_line_t *self, int rank)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].rank == rank) return &self->peers[i];
    }
    return NULL;
}

int dp_line_watch(const dp_line_t *self, int fd, uint32_t events, dp_line_source_t source,
                  int place)
{
    struct epoll_event event = {.events = events,
                                .data.u64 = (uint64_t)source << 32 | (uint32_t)place};

    return epoll_ctl(self->events, EPOLL_CTL_ADD, fd, &event);
}

void dp_line_arm_timer(dp_line_t *self, uint64_t due_ns)
{
    const struct itimerspec due = {.it_value = {.tv_sec = (time_t)(due_ns / 1000000000),
                                                .tv_nsec = (long)(due_ns % 1000000000)}};

    (void)timerfd_settime(self->timer, TFD_TIMER_ABSTIME, &due, NULL);
}

void dp_line_set_timer(dp_line_t *self, uint64_t due_ns)
{
    if (self->is_connected && due_ns < self->next_beat_ns) dp_line_arm_timer(self, due_ns);
}

uint16_t dp_line_port(const struct sockaddr_storage *address)
{
    struct sockaddr_in in;
    struct sockaddr_in6 in6;

    memcpy(&in, address, sizeof(in));
    memcpy(&in6, address, sizeof(in6));
    return ntohs(address->ss_family == AF_INET6 ? in6.sin6_port : in.sin_port);
}

void dp_line_address_text(const struct sockaddr_storage *address, char *text, size_t room)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    struct sockaddr_in in;
    struct sockaddr_in6 in6;

    memcpy(&in, address, sizeof(in));
    memcpy(&in6, address, sizeof(in6));
    if (address->ss_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &in6.sin6_addr, ip, sizeof(ip));
    } else {
        (void)inet_ntop(AF_INET, &in.sin_addr, ip, sizeof(ip));
    }
    snprintf(text, room, "%s port %u", ip, (unsigned)dp_line_port(address));
}

/* ---- One line ------------------------------------------------------------------------------- */

void dp_line_set_options(int fd, uint64_t timeout_ns)
{
    const uint64_t limit_ms = DP_SILENCE_PATIENCE * timeout_ns / 1000000;
    const int on = 1, priority = PRIORITY_INTERACTIVE, idle_s = 1, interval_s = 1, probes = 2;
    const unsigned user_timeout_ms = (unsigned)dp_min(limit_ms, (uint64_t)INT32_MAX);

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    dp_silence_repeat_often(fd);
    (void)setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
    if (timeout_ns == 0) return;
    /* The kernel's own limits stand behind those of silence.h, for a rank that does not look
     * as it is still starting; under loss they must not come first. With both set, a connection
     * without traffic ends by TCP_USER_TIMEOUT, too. */
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof(user_timeout_ms));
}

/* ---- The end -------------------------------------------------------------------------------- */

/* A reset reaches the other side even where its own packets do not reach this one. */
void dp_line_end(dp_line_peer_t *peer, int must_reset)
{
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};

    peer->state = DP_LINE_ENDED;
    peer->sign_ns = peer->told_ns;
    if (peer->fd < 0) return;
    if (must_reset) (void)setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(peer->fd);
    peer->fd = -1;
}

/* Ends the line: a loss, unless the peer said farewell. Messages that its process sent before are
 * delivered first: lower reports the loss behind them, or the timer does if lower does not notice
 * it. */
static void lose_line(dp_line_t *self, dp_line_peer_t *peer, const char *text)
{
    if (peer->state == DP_LINE_ENDED) return;
    dp_line_end(peer, 0);
    if (peer->said_farewell || peer->is_lost || peer->is_reported) return;
    peer->is_lost = 1;
    peer->report_ns = dp_now_ns() + LAST_MESSAGES_NS;
    snprintf(peer->text, sizeof(peer->text), "%s", text);
    self->news = 1;
    dp_line_set_timer(self, peer->report_ns);
}

/* One text for all ways to see it, that of unix.c and ucx.c: all ranks report the same cause. */
static void lose_broken(dp_line_t *self, dp_line_peer_t *peer)
{
    lose_line(self, peer, "its connection broke");
}

/* ---- Connecting ----------------------------------------------------------------------------- */

static void try_again(dp_line_t *self, dp_line_peer_t *peer)
{
    if (peer->fd >= 0) close(peer->fd);
    peer->fd = -1;
    peer->have = 0;
    peer->state = DP_LINE_WAITING;
    peer->retry_ns = dp_now_ns() + RETRY_NS;
    dp_line_set_timer(self, peer->retry_ns);
}

static void lose_unreached(dp_line_t *self, dp_line_peer_t *peer, int cause)
{
    char where[80];
    char text[160];

    dp_line_address_text(&peer->address, where, sizeof(where));
    snprintf(text, sizeof(text), "it could not be reached at %s: %s", where, strerror(cause));
    lose_line(self, peer, text);
}

static void failed_to_connect(dp_line_t *self, dp_line_peer_t *peer, int cause)
{
    const uint64_t now_ns = dp_now_ns();

    if (cause == ECONNREFUSED && peer->refused_ns == 0) peer->refused_ns = now_ns;
    if (cause == ECONNREFUSED && now_ns - peer->refused_ns >= REFUSED_NS) {
        lose_broken(self, peer);
    } else if (cause == ECONNREFUSED || cause == ECONNRESET || cause == ETIMEDOUT ||
               cause == EHOSTUNREACH || cause == EAGAIN || cause == EINTR || cause == ENOBUFS) {
        /* Any packet of a connection may be lost, those of address resolution (ARP) too, and the
         * kernel's limits for either may pass: it is no news of the rank. */
        try_again(self, peer);
    } else {
        lose_unreached(self, peer, cause);
    }
}

void dp_line_connect(dp_line_t *self, dp_line_peer_t *peer)
{
    const int place = (int)(peer - self->peers);
    struct sockaddr_storage from = self->own;
    const uint16_t any_port = 0;
    int result;

    /* From the address of the chosen interface, at a port of the kernel's choice. The port stands
     * behind the family in both kinds of address. */
    memcpy((uint8_t *)&from + sizeof(from.ss_family), &any_port, sizeof(any_port));
    peer->fd = socket(from.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (peer->fd < 0) {
        lose_unreached(self, peer, errno);
        return;
    }
    dp_line_set_options(peer->fd, self->timeout_ns);
    result = bind(peer->fd, (const struct sockaddr *)&from, self->own_bytes);
    if (result == 0) {
        result = connect(peer->fd, (const struct sockaddr *)&peer->address, peer->address_bytes);
        if (result != 0 && errno == EINPROGRESS) result = 0;
    }
    if (result == 0) {
        peer->state = DP_LINE_CONNECTING;
        result = dp_line_watch(self, peer->fd, EPOLLOUT, DP_LINE_PEER, place);
    }
    if (result != 0) failed_to_connect(self, peer, errno);
}

static void handle_connected(dp_line_t *self, dp_line_peer_t *peer)
{
    const int place = (int)(peer - self->peers);
    struct epoll_event event = {.events = EPOLLIN,
                                .data.u64 = (uint64_t)DP_LINE_PEER << 32 | (uint32_t)place};
    socklen_t bytes = sizeof(int);
    int cause = 0;

    (void)getsockopt(peer->fd, SOL_SOCKET, SO_ERROR, &cause, &bytes);
    if (cause != 0) {
        failed_to_connect(self, peer, cause);
        return;
    }
    peer->state = DP_LINE_GREETED;
    peer->have = 0;
    if (epoll_ctl(self->events, EPOLL_CTL_MOD, peer->fd, &event) != 0)
        lose_unreached(self, peer, errno);
}

/* ---- The handshake, on the side that connects ----------------------------------------------- */

static void handle_greeting(dp_line_t *self, dp_line_peer_t *peer)
{
    uint8_t hello[DP_LINE_HELLO_BYTES];
    const uint8_t *challenge = NULL;
    const char *reason = dp_line_greeting_read(peer->in, &challenge);
    char where[80];
    char text[160];

    if (reason != NULL) {
        dp_line_address_text(&peer->address, where, sizeof(where));
        snprintf(text, sizeof(text), "another one answers at %s: %s", where, reason);
        lose_line(self, peer, text);
        return;
    }
    memcpy(peer->listener_challenge, challenge, sizeof(peer->listener_challenge));
    dp_random(peer->connector_challenge, sizeof(peer->connector_challenge));
    dp_line_hello_write(&peer->edge, self->world, (uint32_t)self->rank, peer->listener_challenge,
                        peer->connector_challenge, hello);
    if (send(peer->fd, hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        (ssize_t)sizeof(hello)) {
        try_again(self, peer);
        return;
    }
    peer->state = DP_LINE_PROVING;
    peer->have = 0;
}

static void handle_welcome(dp_line_t *self, dp_line_peer_t *peer)
{
    const dp_line_refusal_t refusal = dp_line_welcome_read(&peer->edge, peer->listener_challenge,
                                                           peer->connector_challenge, peer->in);
    const int fd = peer->fd;
    char where[80];
    char text[160];

    if (refusal == DP_LINE_ACCEPTED) {
        (void)epoll_ctl(self->events, EPOLL_CTL_DEL, fd, NULL);
        dp_line_open(self, peer, fd);
        return;
    }
    dp_line_address_text(&peer->address, where, sizeof(where));
    snprintf(text, sizeof(text), "at %s this rank was refused: %s", where,
             dp_line_refusal_text(refusal));
    lose_line(self, peer, text);
}

/* ---- Beats ---------------------------------------------------------------------------------- */

/* The listener's challenge comes first on both sides. */
static void make_beat_keys(const dp_line_t *self, dp_line_peer_t *peer)
{
    uint8_t both[2 * DP_CHALLENGE_BYTES];

    memcpy(both, peer->listener_challenge, DP_CHALLENGE_BYTES);
    memcpy(both + DP_CHALLENGE_BYTES, peer->connector_challenge, DP_CHALLENGE_BYTES);
    dp_line_code_key(&peer->edge, "beat", (uint32_t)self->rank, both, sizeof(both),
                     &peer->beat_out);
    dp_line_code_key(&peer->edge, "beat", (uint32_t)peer->rank, both, sizeof(both), &peer->beat_in);
}

void dp_line_open(dp_line_t *self, dp_line_peer_t *peer, int fd)
{
    peer->fd = fd;
    peer->state = DP_LINE_OPEN;
    peer->have = 0;
    make_beat_keys(self, peer);
    dp_silence_init(&peer->silence, self->timeout_ns);
    dp_log_debug(&self->log, "the line to rank %d is open", peer->rank);
    if (dp_line_watch(self, fd, EPOLLIN, DP_LINE_PEER, (int)(peer - self->peers)) != 0) {
        lose_line(self, peer, "there was no memory to watch its connection");
    } else {
        dp_line_send_beat(self, peer, DP_LINE_BEAT);
    }
}

/* Writes the rest of a beat. An error is no loss yet: read_line() finds the end behind what the
 * other one has sent. */
static void flush_beat(dp_line_peer_t *peer)
{
    const uint8_t *from = peer->out + sizeof(peer->out) - peer->out_bytes;
    ssize_t sent;

    if (peer->out_bytes == 0) return;
    sent = send(peer->fd, from, peer->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) peer->out_bytes -= (size_t)sent;
}

void dp_line_send_beat(dp_line_t *self, dp_line_peer_t *peer, dp_line_beat_kind_t kind)
{
    int unacknowledged = 0;

    (void)self;
    if (peer->state != DP_LINE_OPEN) return;
    flush_beat(peer);
    if (peer->out_bytes > 0 || peer->has_farewelled) return;
    if (kind == DP_LINE_BEAT && ioctl(peer->fd, SIOCOUTQ, &unacknowledged) == 0 &&
        unacknowledged >= BEATS_IN_FLIGHT * DP_LINE_BEAT_BYTES)
        return;
    dp_line_beat_write(&peer->beat_out, kind, ++peer->beats_sent, peer->out);
    peer->out_bytes = sizeof(peer->out);
    peer->has_farewelled = kind == DP_LINE_FAREWELL;
    flush_beat(peer);
}

/* One whole beat. */
static void handle_beat(dp_line_t *self, dp_line_peer_t *peer)
{
    dp_line_beat_kind_t kind;

    if (peer->said_farewell ||
        !dp_line_beat_read(&peer->beat_in, peer->beats_come + 1, peer->in, &kind)) {
        dp_log_error(&self->log, "what rank %d sends makes no sense", peer->rank);
        lose_line(self, peer, "what it sends makes no sense");
        return;
    }
    peer->beats_come++;
    peer->have = 0;
    if (kind == DP_LINE_FAREWELL) peer->said_farewell = 1;
    peer->sign_ns = dp_now_ns();
    dp_silence_beat(&peer->silence, peer->sign_ns);
    self->news = 1;
}

/* ---- Reading -------------------------------------------------------------------------------- */

static void read_line(dp_line_t *self, dp_line_peer_t *peer)
{
    while (peer->fd >= 0) {
        const size_t due = peer->state == DP_LINE_OPEN      ? DP_LINE_BEAT_BYTES
                           : peer->state == DP_LINE_PROVING ? DP_LINE_WELCOME_BYTES
                                                            : DP_LINE_GREETING_BYTES;
        const ssize_t got = recv(peer->fd, peer->in + peer->have, due - peer->have, MSG_DONTWAIT);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got <= 0 && peer->state == DP_LINE_OPEN) {
            lose_broken(self, peer);
            return;
        }
        if (got <= 0) {
            try_again(self, peer); /* a dead one refuses the next connection */
            return;
        }
        peer->have += (size_t)got;
        if (peer->have < due) continue;
        if (peer->state == DP_LINE_OPEN) {
            handle_beat(self, peer);
        } else if (peer->state == DP_LINE_PROVING) {
            handle_welcome(self, peer);
        } else {
            handle_greeting(self, peer);
        }
    }
}

void dp_line_handle(dp_line_t *self, dp_line_peer_t *peer, uint32_t events)
{
    (void)events;
    if (peer->fd < 0) return;
    if (peer->state == DP_LINE_CONNECTING) {
        handle_connected(self, peer);
    } else {
        read_line(self, peer);
    }
}

/* ---- Looking -------------------------------------------------------------------------------- */

static void look_at_open_line(dp_line_t *self, dp_line_peer_t *peer, uint64_t now_ns)
{
    dp_silence_counters_t counters;
    uint64_t sign_ns;

    if (!dp_silence_read_counters(peer->fd, &counters)) return;
    sign_ns = dp_silence_look(&peer->silence, &counters, now_ns);
    if (sign_ns <= peer->sign_ns) return;
    peer->sign_ns = sign_ns;
    self->news = 1;
}

/* 1: no byte has come from it, and the network is not known to be the cause. That is silence,
 * which the owner's heartbeats judge by their own clock and in one text for all neighbours. A line
 * that does not open is a cause of its own where the rank's messages come, or where its machine
 * does not take the connection. */
static int is_just_silent(const dp_line_t *self, const dp_line_peer_t *peer)
{
    const int is_refused = peer->rank < self->rank &&
                           (peer->state == DP_LINE_CONNECTING || peer->state == DP_LINE_WAITING);

    return self->timeout_ns > 0 && peer->messages_come == 0 && !is_refused;
}

void dp_line_look(dp_line_t *self, dp_line_peer_t *peer, uint64_t now_ns)
{
    char text[160];

    if (peer->state == DP_LINE_ENDED) return;
    if (peer->state == DP_LINE_OPEN) {
        look_at_open_line(self, peer, now_ns);
        return;
    }
    if (now_ns >= self->start_limit_ns && !is_just_silent(self, peer)) {
        const double seconds = (double)(self->start_limit_ns - self->start_ns) / 1e9;
        char where[80];

        dp_line_address_text(peer->rank > self->rank ? &self->own : &peer->address, where,
                             sizeof(where));
        snprintf(text, sizeof(text),
                 peer->rank > self->rank ? "it did not connect to %s within %.0f s (a firewall?)"
                                         : "it did not answer at %s within %.0f s (a firewall?)",
                 where, seconds);
        lose_line(self, peer, text);
    } else if (peer->state == DP_LINE_WAITING && now_ns >= peer->retry_ns) {
        dp_line_connect(self, peer);
    }
}
