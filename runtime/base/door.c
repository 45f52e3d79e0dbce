/*
 * door.c - see door.h for the rules and the picture. Called by the owners of doors: the rendezvous,
 * dprun's port for stations and its tunnels, a rank's lines and local sockets, the trial of
 * networks, and the exchange of a node's memory. It must not know what a hello says.
 *
 * The descriptor is an epoll over listeners, visitors, and a timer for the visitor that has waited
 * longest and for the end of a pause.
 */
#include "runtime/base/door.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "runtime/base/local_socket.h"

#define ACCEPTS 32 /* in one turn, at each listener */
#define EVENTS 32  /* likewise */
#define PAUSE_NS UINT64_C(20000000)
#define PATIENCE_NS (DP_DOOR_PATIENCE_S * UINT64_C(1000000000))

typedef enum source { SOURCE_LISTENER, SOURCE_VISITOR, SOURCE_TIMER } source_t;

struct dp_door {
    dp_door_owner_t owner;
    int events; /* epoll; -1: closed */
    int timer;
    uint64_t timer_ns; /* when it is due; UINT64_MAX: never */
    int listeners[DP_DOOR_LISTENERS];
    int listener_count;
    int is_paused;
    uint64_t numbers; /* of visitors so far */
    int visitors_of[DP_DOOR_SOURCES];
    int refused;
    int had_flood;
    int visitor_count;
    int room;
    dp_door_visitor_t visitors[]; /* [room]; fd -1: free */
};

static int watch(const dp_door_t *door, int fd, source_t source, int place)
{
    struct epoll_event event = {.events = EPOLLIN,
                                .data.u64 = (uint64_t)source << 32 | (uint32_t)place};

    return epoll_ctl(door->events, EPOLL_CTL_ADD, fd, &event);
}

static void set_timer(dp_door_t *door, uint64_t at_ns)
{
    const struct itimerspec due = {
        .it_value = {(time_t)(at_ns / 1000000000u), (long)(at_ns % 1000000000u)}};

    if (at_ns >= door->timer_ns) return;
    door->timer_ns = at_ns;
    (void)timerfd_settime(door->timer, TFD_TIMER_ABSTIME, &due, NULL);
}

/* ---- Refusals ------------------------------------------------------------------------------- */

void dp_door_refuse(dp_door_t *door, const char *from, const char *why)
{
    const int most = DP_DOOR_LINES - !door->had_flood; /* one line is kept for a flood */
    char text[DP_DOOR_TEXT + 32];

    door->refused++;
    if (door->refused > most || door->owner.refused == NULL) return;
    snprintf(text, sizeof(text), "%s%s", why, door->refused == most ? " (no more such lines)" : "");
    door->owner.refused(door->owner.context, from, text);
}

int dp_door_refused(const dp_door_t *door)
{
    return door->refused;
}

int dp_door_had_flood(const dp_door_t *door)
{
    return door->had_flood;
}

/* ---- Visitors ------------------------------------------------------------------------------- */

/* Its place is free, and its descriptors are the copy's. */
static void take_visitor(dp_door_t *door, dp_door_visitor_t *visitor, dp_door_visitor_t *copy)
{
    *copy = *visitor;
    visitor->fd = -1;
    door->visitor_count--;
    door->visitors_of[visitor->source]--;
    (void)epoll_ctl(door->events, EPOLL_CTL_DEL, copy->fd, NULL);
}

static void close_descriptors(dp_door_visitor_t *visitor)
{
    close(visitor->fd);
    for (int i = 0; i < visitor->file_count; i++)
        close(visitor->files[i]);
}

static void drop_visitor(dp_door_t *door, dp_door_visitor_t *visitor, const char *why)
{
    dp_door_visitor_t gone;

    take_visitor(door, visitor, &gone);
    dp_door_refuse(door, gone.from, why);
    close_descriptors(&gone);
}

/* The owner may close the door within judge(), so the visitor is judged as a copy. */
static void judge_visitor(dp_door_t *door, dp_door_visitor_t *visitor)
{
    dp_door_visitor_t judged;
    char why[DP_DOOR_TEXT] = "";

    take_visitor(door, visitor, &judged);
    if (door->owner.judge(door->owner.context, &judged, why)) return;
    dp_door_refuse(door, judged.from, why);
    close_descriptors(&judged);
}

static void hear_visitor(dp_door_t *door, dp_door_visitor_t *visitor)
{
    const size_t left = door->owner.hello_bytes - visitor->bytes;
    const int room = door->owner.files - visitor->file_count;
    int count = 0;
    const ssize_t got = dp_local_receive(visitor->fd, visitor->hello + visitor->bytes, left,
                                         visitor->files + visitor->file_count, room, &count);

    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    visitor->lacks_files |= count < 0;
    visitor->file_count += dp_max(count, 0);
    if (got > 0) visitor->bytes += (size_t)got;
    if (got > 0 && visitor->bytes < door->owner.hello_bytes) return;
    if (got > 0) {
        judge_visitor(door, visitor);
    } else {
        drop_visitor(door, visitor, "it closed before any proof");
    }
}

int dp_door_answer(const dp_door_visitor_t *visitor, const void *data, size_t bytes)
{
    return send(visitor->fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)bytes ? 0 : -1;
}

/* There are too many: the origin that has the most of them loses its oldest. 0: there is none. */
static int drop_oldest(dp_door_t *door)
{
    dp_door_visitor_t *oldest = NULL;
    char why[96];
    int most = 0;

    for (int i = 1; i < DP_DOOR_SOURCES; i++) {
        if (door->visitors_of[i] > door->visitors_of[most]) most = i;
    }
    for (int i = 0; i < door->room; i++) {
        dp_door_visitor_t *visitor = &door->visitors[i];

        if (visitor->fd < 0 || visitor->source != most) continue;
        if (oldest == NULL || visitor->number < oldest->number) oldest = visitor;
    }
    if (oldest == NULL) return 0;
    /* Its line comes out whatever else was reported before. */
    if (!door->had_flood) door->refused = dp_min(door->refused, DP_DOOR_LINES - 1);
    door->had_flood = 1;
    snprintf(why, sizeof(why), "a flood? %d connections without a proof, %d from there",
             door->visitor_count, door->visitors_of[most]);
    if (door->owner.busy != NULL) (void)dp_door_answer(oldest, door->owner.busy, DP_PROOF_BYTES);
    drop_visitor(door, oldest, why);
    return 1;
}

static dp_door_visitor_t *find_place(dp_door_t *door)
{
    if (door->visitor_count == door->room) (void)drop_oldest(door);
    for (int i = 0; i < door->room; i++) {
        if (door->visitors[i].fd < 0) return &door->visitors[i];
    }
    return NULL;
}

static int greet_visitor(const dp_door_t *door, dp_door_visitor_t *visitor)
{
    uint8_t greeting[DP_DOOR_GREETING_MAX];

    if (door->owner.greet == NULL) return 0;
    dp_random(visitor->challenge, sizeof(visitor->challenge));
    door->owner.greet(visitor->challenge, greeting);
    return dp_door_answer(visitor, greeting, door->owner.greeting_bytes);
}

void dp_door_adopt(dp_door_t *door, int fd, const char *from, int source)
{
    dp_door_visitor_t *visitor = door->events < 0 ? NULL : find_place(door);

    if (visitor == NULL) {
        close(fd);
        return;
    }
    memset(visitor, 0, sizeof(*visitor));
    visitor->fd = fd;
    visitor->source = (uint8_t)source;
    visitor->number = door->numbers++;
    visitor->until_ns = dp_now_ns() + PATIENCE_NS;
    snprintf(visitor->from, sizeof(visitor->from), "%s", from);
    door->visitor_count++;
    door->visitors_of[visitor->source]++;
    if (watch(door, fd, SOURCE_VISITOR, (int)(visitor - door->visitors)) != 0 ||
        greet_visitor(door, visitor) != 0) {
        drop_visitor(door, visitor, "it cannot be greeted");
        return;
    }
    set_timer(door, visitor->until_ns);
    if (door->owner.hello_bytes == 0) {
        judge_visitor(door, visitor);
    } else if (door->owner.greet == NULL) {
        hear_visitor(door, visitor); /* its hello may have come with it */
    }
}

/* ---- Accepting ------------------------------------------------------------------------------ */

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
                           int *source)
{
    struct sockaddr_in6 ip;
    char text[INET6_ADDRSTRLEN];
    uid_t user = 0;
    pid_t pid = 0;
    uint32_t number;

    *source = 0;
    if (from->ss_family == AF_UNIX) {
        (void)dp_local_peer(fd, &user, &pid);
        snprintf(address, 64, "process %d of user %u", (int)pid, (unsigned)user);
        return dp_local_peer_is_own(fd) ? 0 : -1;
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
    *source = (int)(ntohl(number) * 2654435761u >> 24); /* spreads addresses that are close */
    return 0;
}

static void welcome_connection(dp_door_t *door, int fd, const struct sockaddr_storage *from)
{
    const int on = 1;
    char address[64];
    int source;

    if (describe_origin(fd, from, address, &source) != 0) {
        dp_door_refuse(door, address, "another user");
        close(fd);
        return;
    }
    if (from->ss_family != AF_UNIX) (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    dp_door_adopt(door, fd, address, source);
}

/* No descriptor is free. A listener stays readable, so without a pause the owner would spin. */
static void make_room(dp_door_t *door, int code)
{
    char why[128];

    if (drop_oldest(door)) return;
    snprintf(why, sizeof(why), "accept: %s", strerror(code));
    dp_door_refuse(door, "a connection", why);
    for (int i = 0; i < door->listener_count; i++)
        (void)epoll_ctl(door->events, EPOLL_CTL_DEL, door->listeners[i], NULL);
    door->is_paused = 1;
    set_timer(door, dp_now_ns() + PAUSE_NS);
}

static void accept_some(dp_door_t *door, int listener)
{
    for (int i = 0; i < ACCEPTS && door->events >= 0; i++) {
        struct sockaddr_storage from = {0};
        socklen_t bytes = sizeof(from);
        const int fd =
            accept4(listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            welcome_connection(door, fd, &from);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            make_room(door, errno);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

/* A visitor's hello may lie there unread, where this process stood still. */
static void end_waits(dp_door_t *door)
{
    const uint64_t now_ns = dp_now_ns();
    uint64_t expired;
    char why[64];

    if (read(door->timer, &expired, sizeof(expired)) < 0) return;
    door->timer_ns = UINT64_MAX;
    for (int i = 0; door->is_paused && i < door->listener_count; i++)
        (void)watch(door, door->listeners[i], SOURCE_LISTENER, i);
    door->is_paused = 0;
    snprintf(why, sizeof(why), "no proof within %d s", DP_DOOR_PATIENCE_S);
    for (int i = 0; i < door->room && door->events >= 0; i++) {
        dp_door_visitor_t *visitor = &door->visitors[i];

        if (visitor->fd >= 0 && visitor->until_ns <= now_ns) hear_visitor(door, visitor);
        if (door->events < 0 || visitor->fd < 0) continue;
        if (visitor->until_ns <= now_ns) {
            drop_visitor(door, visitor, why);
        } else {
            set_timer(door, visitor->until_ns);
        }
    }
}

void dp_door_turn(dp_door_t *door)
{
    struct epoll_event events[EVENTS];
    const int count = door->events < 0 ? 0 : epoll_wait(door->events, events, EVENTS, 0);

    for (int i = 0; i < count && door->events >= 0; i++) {
        const source_t source = (source_t)(events[i].data.u64 >> 32);
        const uint32_t place = (uint32_t)events[i].data.u64;

        if (source == SOURCE_LISTENER) accept_some(door, door->listeners[place]);
        if (source == SOURCE_TIMER) end_waits(door);
        /* Another one may have its place by now, which has said nothing yet. */
        if (source == SOURCE_VISITOR && door->visitors[place].fd >= 0)
            hear_visitor(door, &door->visitors[place]);
    }
}

/* ---- Opening and closing -------------------------------------------------------------------- */

int dp_door_bind(const struct sockaddr *address, socklen_t bytes, int only_6, uint16_t *port)
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
        bind(fd, address, bytes) != 0 || listen(fd, DP_DOOR_BACKLOG) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &room) != 0) {
        code = errno;
        if (fd >= 0) close(fd);
        errno = code;
        return -1;
    }
    memcpy(&head, &own, sizeof(head));
    *port = ntohs(head.sin_port);
    return fd;
}

int dp_door_bind_everywhere(uint16_t port, uint16_t *bound)
{
    const struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(port)};
    const struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    const int fd = dp_door_bind((const struct sockaddr *)&six, sizeof(six), 0, bound);

    if (fd >= 0 || errno == EADDRINUSE) return fd;
    /* A kernel may know no version 6. */
    return dp_door_bind((const struct sockaddr *)&four, sizeof(four), 0, bound);
}

dp_status_t dp_door_create(const dp_door_owner_t *owner, int expected, dp_door_t **out,
                           dp_error_t *error)
{
    const int room = expected + DP_DOOR_EXTRA;
    dp_door_t *door = calloc(1, sizeof(*door) + (size_t)room * sizeof(door->visitors[0]));

    DP_ASSERT(owner->hello_bytes <= DP_DOOR_HELLO_MAX && owner->files <= DP_DOOR_FILES_MAX &&
              owner->greeting_bytes <= DP_DOOR_GREETING_MAX);
    if (door == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "out of memory");
    door->owner = *owner;
    door->room = room;
    door->timer_ns = UINT64_MAX;
    for (int i = 0; i < room; i++)
        door->visitors[i].fd = -1;
    door->events = epoll_create1(EPOLL_CLOEXEC);
    door->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (door->events < 0 || door->timer < 0 || watch(door, door->timer, SOURCE_TIMER, 0) != 0) {
        dp_error_set(error, DP_ERR_SYSTEM, "no descriptor to accept connections: %s",
                     strerror(errno));
        dp_door_destroy(door);
        return DP_ERR_SYSTEM;
    }
    *out = door;
    return DP_OK;
}

int dp_door_listen(dp_door_t *door, int listener)
{
    const int place = door->listener_count;

    if (door->events < 0 || place == DP_DOOR_LISTENERS ||
        watch(door, listener, SOURCE_LISTENER, place) != 0) {
        const int code = place == DP_DOOR_LISTENERS ? ENOMEM : errno;

        close(listener);
        errno = code;
        return -1;
    }
    door->listeners[place] = listener;
    door->listener_count++;
    return 0;
}

int dp_door_fd(const dp_door_t *door)
{
    return door->events;
}

void dp_door_close(dp_door_t *door)
{
    for (int i = 0; i < door->listener_count; i++)
        close(door->listeners[i]);
    door->listener_count = 0;
    for (int i = 0; i < door->room; i++) {
        if (door->visitors[i].fd < 0) continue;
        close_descriptors(&door->visitors[i]);
        door->visitors[i].fd = -1;
    }
    door->visitor_count = 0;
    memset(door->visitors_of, 0, sizeof(door->visitors_of));
    if (door->timer >= 0) close(door->timer);
    if (door->events >= 0) close(door->events);
    door->timer = door->events = -1;
}

void dp_door_destroy(dp_door_t *door)
{
    if (door == NULL) return;
    dp_door_close(door);
    free(door);
}
