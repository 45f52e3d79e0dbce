/*
 * near.c - see near.h, which has the picture, the callers and their thread.
 *
 * Behind the hello, which the door reads, each message is one byte: FILES with this side's
 * descriptors, or BYE. Where the kernel cannot take a connection or descriptors now, a timer tries
 * again.
 */
#include "runtime/transport/near.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "runtime/base/door.h"
#include "runtime/base/local_socket.h"

#define RETRY_NS 1000000
#define CLOSE_STEP_MS 5 /* longest sleep in dp_near_close(), should an event be missed */
#define EVENTS 8        /* in one look */

static const char files_message = 'F';
static const char bye_message = 'B';

typedef enum source { SOURCE_DOOR, SOURCE_TIMER, SOURCE_PEER, SOURCE_PROCESS } source_t;

typedef struct peer {
    int rank;
    dp_peer_socket_address_t address;
    int fd;           /* -1: not connected yet, or no more */
    int process;      /* pidfd, readable once the process has ended; -1: none */
    int must_connect; /* this rank is to connect to it, and has not yet */
    int must_answer;  /* it is to get this rank's files, and has not yet */
    int has_files;    /* they have come; reported: files[] are -1 */
    int files[DP_NEAR_FILES];
    /* its end */
    int said_bye; /* an orderly end: no loss follows */
    int has_died; /* the process; its socket may still hold messages */
    int is_lost;
    int is_reported;
    const char *text; /* how it was lost */
} peer_t;

struct dp_near {
    int rank;
    uint64_t tag;
    int files[DP_NEAR_FILES]; /* borrowed */
    dp_log_t log;
    dp_peer_socket_address_t own;
    dp_door_t *door; /* NULL: no neighbour is to connect */
    int expected;    /* neighbours that still have to connect to this rank */
    int events;      /* epoll over the door, sockets, pidfds and the timer */
    int timer;
    int news; /* events that are not reported yet */
    int peer_count;
    peer_t peers[];
};

static peer_t *find_peer(dp_near_t *near, int rank)
{
    for (int i = 0; i < near->peer_count; i++) {
        if (near->peers[i].rank == rank) return &near->peers[i];
    }
    return NULL;
}

static int watch(const dp_near_t *near, int fd, source_t source, const peer_t *peer)
{
    const uint64_t place = peer == NULL ? 0 : (uint64_t)(peer - near->peers);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)source << 32 | place};

    return epoll_ctl(near->events, EPOLL_CTL_ADD, fd, &event);
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Has retry() called soon. */
static void set_timer(const dp_near_t *near)
{
    const struct itimerspec soon = {.it_value = {.tv_nsec = RETRY_NS}};

    (void)timerfd_settime(near->timer, 0, &soon, NULL);
}

/* ---- The end of a neighbour ----------------------------------------------------------------- */

/* A loss, unless it said goodbye. */
static void end_peer(dp_near_t *near, peer_t *peer, const char *text)
{
    close_fd(&peer->fd);
    close_fd(&peer->process);
    peer->must_connect = peer->must_answer = 0;
    if (peer->is_lost || peer->said_bye) return;
    peer->is_lost = 1;
    peer->text = text;
    near->news++;
}

/* The text is that of ucx.c: all ranks are told the same cause, whichever of them sees the death
 * first. */
static void end_broken(dp_near_t *near, peer_t *peer)
{
    end_peer(near, peer, "its connection broke");
}

/* ---- Connections ---------------------------------------------------------------------------- */

static void attach_socket(dp_near_t *near, peer_t *peer, int fd)
{
    peer->fd = fd;
    if (watch(near, fd, SOURCE_PEER, peer) != 0)
        end_peer(near, peer, "there was no memory to watch its connection");
}

static int is_passing(int code)
{
    return code == EAGAIN || code == EWOULDBLOCK || code == EINTR || code == ETOOMANYREFS ||
           code == ENOBUFS;
}

/* Files are its whole message, or come with its hello. */
static void take_files(dp_near_t *near, peer_t *peer, const int *files)
{
    memcpy(peer->files, files, sizeof(peer->files));
    peer->has_files = 1;
    near->news++;
}

static void answer_peer(dp_near_t *near, peer_t *peer)
{
    peer->must_answer = 0;
    if (dp_local_send(peer->fd, &files_message, 1, near->files, DP_NEAR_FILES) == 0) return;
    if (!is_passing(errno)) return; /* its end is read behind what it has sent */
    peer->must_answer = 1;
    set_timer(near);
}

static void connect_peer(dp_near_t *near, peer_t *peer)
{
    dp_peer_socket_hello_t hello;
    int fd = dp_local_try_connect(peer->address.name);

    if (fd >= 0 && !dp_peer_socket_is_process(fd, &peer->address, &near->own)) {
        close_fd(&fd);
        errno = EPERM;
    }
    if (fd >= 0) {
        dp_peer_socket_hello_make(&hello, near->rank, near->tag, &peer->address);
        if (dp_local_send(fd, &hello, sizeof(hello), near->files, DP_NEAR_FILES) == 0) {
            peer->must_connect = 0;
            attach_socket(near, peer, fd);
            return;
        }
    }
    if (is_passing(errno)) {
        set_timer(near);
    } else {
        dp_log_debug(&near->log, "no connection to rank %d: %s", peer->rank, strerror(errno));
        end_broken(near, peer);
    }
    close_fd(&fd);
}

static void retry(dp_near_t *near)
{
    uint64_t expired;

    if (read(near->timer, &expired, sizeof(expired)) < 0) return;
    for (int i = 0; i < near->peer_count; i++) {
        if (near->peers[i].must_connect) connect_peer(near, &near->peers[i]);
        if (near->peers[i].must_answer) answer_peer(near, &near->peers[i]);
    }
}

/* The neighbour that a hello proves, or NULL and why it is none. */
static peer_t *find_proven(dp_near_t *near, const dp_door_visitor_t *visitor, const char **why)
{
    dp_peer_socket_hello_t hello;
    peer_t *peer;

    memcpy(&hello, visitor->hello, sizeof(hello));
    *why = "not of this job";
    if (!dp_peer_socket_hello_is_valid(&hello, near->tag, &near->own)) return NULL;
    peer = find_peer(near, (int)hello.from);
    *why = "no neighbour, or one that is here already";
    if (peer == NULL || peer->rank < near->rank || peer->fd >= 0 || peer->is_lost || peer->said_bye)
        return NULL;
    *why = "another process than its rank";
    return dp_peer_socket_is_process(visitor->fd, &peer->address, &near->own) ? peer : NULL;
}

static int judge_visitor(void *context, dp_door_visitor_t *visitor, char *why)
{
    dp_near_t *near = context;
    const char *reason;
    peer_t *peer = find_proven(near, visitor, &reason);

    snprintf(why, DP_DOOR_TEXT, "%s", reason);
    if (peer == NULL) return 0;
    if (visitor->file_count != DP_NEAR_FILES) {
        snprintf(why, DP_DOOR_TEXT, "%s",
                 visitor->lacks_files ? "no descriptor is free for its memory (ulimit -n)"
                                      : "it gave no memory");
        end_peer(near, peer, "its memory could not be received");
        return 0;
    }
    attach_socket(near, peer, visitor->fd);
    take_files(near, peer, visitor->files);
    if (peer->fd >= 0) answer_peer(near, peer);
    if (--near->expected == 0) dp_door_close(near->door);
    return 1;
}

static void report_refusal(void *context, const char *from, const char *why)
{
    const dp_near_t *near = context;

    dp_log_warn(&near->log, "dropped a local connection from %s: %s", from, why);
}

/* ---- Polling -------------------------------------------------------------------------------- */

/* Reads what it has sent, as far as it has come. */
static void read_peer(dp_near_t *near, peer_t *peer)
{
    while (peer->fd >= 0) {
        int files[DP_NEAR_FILES];
        char message;
        int count;
        const ssize_t got = dp_local_receive(peer->fd, &message, 1, files, DP_NEAR_FILES, &count);

        /* Of a dead process an empty socket is the end, even if a child keeps it open. */
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && !peer->has_died) return;
        if (got <= 0) {
            end_broken(near, peer);
        } else if (message == bye_message && count == 0) {
            peer->said_bye = 1;
        } else if (message == files_message && count == DP_NEAR_FILES && !peer->has_files) {
            take_files(near, peer, files);
        } else {
            for (int i = 0; i < count; i++)
                close(files[i]);
            end_peer(near, peer,
                     count < 0 ? "its memory could not be received"
                               : "what it sends makes no sense");
        }
    }
}

/* The process has ended. It may have connected and sent all before this rank accepted. */
static void note_death(dp_near_t *near, peer_t *peer)
{
    close_fd(&peer->process);
    peer->has_died = 1;
    if (peer->fd < 0 && near->door != NULL) dp_door_turn(near->door);
    if (peer->fd < 0) {
        end_broken(near, peer);
    } else {
        read_peer(near, peer);
    }
}

/* Looks at all that has an event. */
static void look(dp_near_t *near)
{
    struct epoll_event events[EVENTS];
    const int count = epoll_wait(near->events, events, EVENTS, 0);

    for (int i = 0; i < count; i++) {
        peer_t *peer = &near->peers[(uint32_t)events[i].data.u64];

        switch ((source_t)(events[i].data.u64 >> 32)) {
        case SOURCE_DOOR:
            dp_door_turn(near->door);
            break;
        case SOURCE_TIMER:
            retry(near);
            break;
        case SOURCE_PEER:
            read_peer(near, peer);
            break;
        case SOURCE_PROCESS:
            if (peer->process >= 0) note_death(near, peer);
            break;
        }
    }
}

int dp_near_poll(dp_near_t *near, dp_near_event_t *out)
{
    if (near->news == 0) look(near);
    for (int i = 0; near->news > 0 && i < near->peer_count; i++) {
        peer_t *peer = &near->peers[i];

        if (peer->has_files && peer->files[0] >= 0) {
            *out = (dp_near_event_t){.rank = peer->rank};
            memcpy(out->files, peer->files, sizeof(out->files));
            memset(peer->files, -1, sizeof(peer->files));
        } else if (peer->is_lost && !peer->is_reported) {
            peer->is_reported = 1;
            *out = (dp_near_event_t){.rank = peer->rank, .lost = peer->text};
        } else {
            continue;
        }
        near->news--;
        return 1;
    }
    return 0;
}

int dp_near_fd(const dp_near_t *near)
{
    return near->events;
}

int dp_near_has_news(const dp_near_t *near)
{
    return near->news > 0;
}

/* ---- Opening and closing -------------------------------------------------------------------- */

/* Ranks that no neighbour connects to have no door. */
static dp_status_t open_door(dp_near_t *near, dp_error_t *error)
{
    const dp_door_owner_t owner = {.hello_bytes = sizeof(dp_peer_socket_hello_t),
                                   .files = DP_NEAR_FILES,
                                   .judge = judge_visitor,
                                   .refused = report_refusal,
                                   .context = near};
    int listener;
    dp_status_t status = dp_local_listen(near->own.name, &listener, error);

    if (status != DP_OK) return status;
    status = dp_door_create(&owner, near->expected, &near->door, error);
    if (status != DP_OK) {
        close(listener);
        return status;
    }
    if (dp_door_listen(near->door, listener) == 0 &&
        watch(near, dp_door_fd(near->door), SOURCE_DOOR, NULL) == 0)
        return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM, "rank %d: no local socket: %s", near->rank,
                        strerror(errno));
}

dp_status_t dp_near_create(int rank, uint64_t tag, const int *ranks, int count,
                           const int files[DP_NEAR_FILES], const dp_log_t *log, dp_near_t **out,
                           dp_error_t *error)
{
    dp_near_t *near = calloc(1, sizeof(*near) + (size_t)count * sizeof(near->peers[0]));
    dp_status_t status = DP_OK;

    if (near == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory", rank);
    near->rank = rank;
    near->tag = tag;
    near->log = *log;
    memcpy(near->files, files, sizeof(near->files));
    for (; near->peer_count < count; near->peer_count++) {
        peer_t *peer = &near->peers[near->peer_count];

        peer->rank = ranks[near->peer_count];
        peer->fd = peer->process = -1;
        memset(peer->files, -1, sizeof(peer->files));
        near->expected += peer->rank > rank;
    }
    dp_peer_socket_address_make(&near->own);
    near->events = epoll_create1(EPOLL_CLOEXEC);
    near->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (near->events < 0 || near->timer < 0 || watch(near, near->timer, SOURCE_TIMER, NULL) != 0) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "rank %d: no epoll or timer: %s", rank,
                              strerror(errno));
    }
    if (status == DP_OK && near->expected > 0) status = open_door(near, error);
    if (status != DP_OK) {
        dp_near_destroy(near);
        return status;
    }
    *out = near;
    return DP_OK;
}

void dp_near_address(const dp_near_t *near, uint8_t address[DP_PEER_SOCKET_ADDRESS])
{
    dp_peer_socket_address_write(&near->own, address);
}

void dp_near_connect(dp_near_t *near, int rank, const uint8_t address[DP_PEER_SOCKET_ADDRESS])
{
    peer_t *peer = find_peer(near, rank);

    dp_peer_socket_address_read(&peer->address, address);
    peer->process = dp_peer_socket_watch_process(&peer->address, &near->own);
    if (peer->process < 0 && errno == ESRCH) {
        note_death(near, peer);
        return;
    }
    if (peer->process >= 0 && watch(near, peer->process, SOURCE_PROCESS, peer) != 0)
        close_fd(&peer->process);
    if (peer->rank > near->rank) return; /* it connects to this rank */
    peer->must_connect = 1;
    connect_peer(near, peer);
}

void dp_near_drop(dp_near_t *near, int rank)
{
    peer_t *peer = find_peer(near, rank);

    if (!peer->is_lost && !peer->said_bye) peer->is_lost = peer->is_reported = 1;
    end_peer(near, peer, "");
}

static int are_all_met(const dp_near_t *near)
{
    for (int i = 0; i < near->peer_count; i++) {
        const peer_t *peer = &near->peers[i];

        if (peer->fd < 0 && !peer->is_lost && !peer->said_bye) return 0;
        if (peer->must_answer) return 0;
    }
    return 1;
}

static void drop_events(dp_near_t *near)
{
    dp_near_event_t event;

    while (dp_near_poll(near, &event)) {
        for (int i = 0; event.lost == NULL && i < DP_NEAR_FILES; i++)
            close(event.files[i]);
    }
}

void dp_near_close(dp_near_t *near, uint64_t deadline_ns)
{
    struct pollfd wait = {.fd = near->events, .events = POLLIN};

    drop_events(near);
    while (!are_all_met(near) && dp_now_ns() < deadline_ns) {
        (void)poll(&wait, 1, CLOSE_STEP_MS);
        drop_events(near);
    }
    if (near->door != NULL) dp_door_close(near->door);
    for (int i = 0; i < near->peer_count; i++) {
        peer_t *peer = &near->peers[i];

        if (peer->fd >= 0) (void)dp_local_send(peer->fd, &bye_message, 1, NULL, 0);
        peer->said_bye = 1; /* its end is no loss any more */
        end_peer(near, peer, "");
    }
}

void dp_near_destroy(dp_near_t *near)
{
    if (near == NULL) return;
    dp_door_destroy(near->door);
    for (int i = 0; i < near->peer_count; i++) {
        close_fd(&near->peers[i].fd);
        close_fd(&near->peers[i].process);
        for (int k = 0; k < DP_NEAR_FILES; k++)
            close_fd(&near->peers[i].files[k]);
    }
    close_fd(&near->timer);
    close_fd(&near->events);
    free(near);
}
