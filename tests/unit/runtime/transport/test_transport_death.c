/*
 * test_transport_death.c - a process that is killed is an event for its neighbour, at once, and
 * what it had said before is heard: over UCX, over a UNIX socket, and with shared
 * memory before that.
 */
#include "runtime/transport/transport.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cases.h"

#define TAG 0x5151515151515151ull
#define LAST_WORDS 20

typedef struct end {
    dp_transport_t *transport;
    int socket; /* to the other process, for addresses */
} end_t;

typedef enum which { UCX, UNIX, SHM } which_t;

/* Creates a transport in this process and connects it to the one in the other. */
static dp_status_t join(end_t *end, int rank, int socket, which_t which)
{
    uint8_t mine[DP_ADDRESS_MAX];
    uint8_t theirs[DP_ADDRESS_MAX];
    size_t bytes;
    ssize_t got;
    const void *address = theirs;
    const int other = 1 - rank;
    dp_config_t config;
    dp_error_t error = {0};
    dp_status_t status;

    dp_config_defaults(&config);
    end->socket = socket;
    status =
        which == UCX
            ? dp_transport_ucx_create(rank, TAG, &config, NULL, &end->transport, &error)
            : dp_transport_shm_create(rank, TAG, &other, 1, NULL, NULL, &end->transport, &error);
    if (status == DP_OK)
        status = end->transport->ops->address(end->transport, mine, sizeof(mine), &bytes);
    if (status != DP_OK || write(socket, mine, bytes) != (ssize_t)bytes) return DP_ERR_SYSTEM;
    got = read(socket, theirs, sizeof(theirs));
    if (got <= 0) return DP_ERR_SYSTEM;
    bytes = (size_t)got;
    return end->transport->ops->connect(end->transport, &other, &address, &bytes, 1, &error);
}

/* Sleeps until an event comes; DP_ERR_TIMEOUT if none does. */
static dp_status_t next_event(dp_transport_t *transport, int ms, dp_transport_event_t *event)
{
    const uint64_t until = dp_now_ns() + (uint64_t)ms * 1000000;

    while (dp_now_ns() < until) {
        struct pollfd wait = {.fd = transport->ops->fd(transport), .events = POLLIN};
        dp_status_t status = transport->ops->poll(transport, event);

        if (status == DP_OK) return DP_OK;
        if (transport->ops->arm(transport) == DP_OK) (void)poll(&wait, 1, 1000);
    }
    return DP_ERR_TIMEOUT;
}

/* Says several things and is dead. */
static void die(dp_transport_t *transport)
{
    uint8_t data[300] = {0};

    for (uint8_t i = 0; i < LAST_WORDS; i++) {
        data[0] = i;
        (void)transport->ops->send(transport, 0, data, 5 + (size_t)i * 10);
    }
    raise(SIGKILL);
}

/* Set in the parent: the other process has a child, which keeps all it has until end.socket is at
 * its end. */
static int fork_after_joining;

static void fork_a_holder(int socket)
{
    char byte;

    if (fork() != 0) return;
    while (read(socket, &byte, 1) > 0) {
    }
    _exit(0);
}

/* The other process: answers every message until it is killed or told to close or die. */
static int echo(int socket, int says_hello, which_t which)
{
    end_t end = {0};
    dp_transport_event_t event = {0};

    if (join(&end, 1, socket, which) != DP_OK) return 1;
    if (fork_after_joining) fork_a_holder(socket);
    if (says_hello && end.transport->ops->send(end.transport, 0, "hello", 5) != DP_OK) return 3;
    while (next_event(end.transport, 20000, &event) == DP_OK) {
        if (event.kind != DP_TRANSPORT_MESSAGE) return 2;
        if (event.bytes == 3 && memcmp(event.data, "bye", 3) == 0) {
            end.transport->ops->close(end.transport, dp_now_ns() + 5000000000ull);
            dp_transport_destroy(end.transport);
            return 0;
        }
        if (event.bytes == 3 && memcmp(event.data, "die", 3) == 0) die(end.transport);
        if (end.transport->ops->send(end.transport, 0, event.data, event.bytes) != DP_OK) return 3;
    }
    return 4;
}

static pid_t start_echo(end_t *end, int says_hello, which_t which)
{
    int sockets[2];
    pid_t child;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
    child = fork(); /* before any UCX in this case: a child must not inherit it */
    assert_true(child >= 0);
    if (child == 0) {
        close(sockets[0]);
        _exit(echo(sockets[1], says_hello, which));
    }
    close(sockets[1]);
    assert_int_equal(join(end, 0, sockets[0], which), DP_OK);
    return child;
}

static void ping(end_t *end)
{
    dp_transport_event_t event = {0};

    assert_int_equal(end->transport->ops->send(end->transport, 1, "ping", 4), DP_OK);
    assert_int_equal(next_event(end->transport, 20000, &event), DP_OK);
    assert_int_equal(event.kind, DP_TRANSPORT_MESSAGE);
    assert_int_equal(event.bytes, 4);
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void round_trips_are_quick(void **state)
{
    enum { ROUNDS = 300, MIDDLE = ROUNDS / 2, LATE = ROUNDS * 95 / 100 };
    uint64_t took[ROUNDS];
    end_t end = {0};
    pid_t child = start_echo(&end, 0, *(which_t *)*state);
    int status;

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start;

        usleep(300);
        start = dp_now_ns();
        ping(&end);
        took[i] = dp_now_ns() - start;
    }
    qsort(took, ROUNDS, sizeof(took[0]), compare_u64);
    print_message("round trip after 300 us idle: median %.1f us, p95 %.1f us\n",
                  (double)took[MIDDLE] / 1e3, (double)took[LATE] / 1e3);
    assert_int_equal(end.transport->ops->send(end.transport, 1, "bye", 3), DP_OK);
    end.transport->ops->close(end.transport, dp_now_ns() + 5000000000ull);
    dp_transport_destroy(end.transport);
    close(end.socket);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void killed_peer_is_lost_at_once(void **state)
{
    end_t end = {0};
    pid_t child = start_echo(&end, 0, *(which_t *)*state);
    dp_transport_event_t event = {0};
    uint64_t start;
    int status;

    ping(&end);
    start = dp_now_ns();
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(next_event(end.transport, 20000, &event), DP_OK);
    print_message("SIGKILL seen after %.2f ms: %s\n", (double)(dp_now_ns() - start) / 1e6,
                  event.text);
    assert_int_equal(event.kind, DP_TRANSPORT_PEER_LOST);
    assert_int_equal(event.rank, 1);
    /* There is nobody to wait for: a wait for this deadline would outlast the test's own limit. */
    end.transport->ops->close(end.transport, dp_now_ns() + 3600000000000ull);
    dp_transport_destroy(end.transport);
    close(end.socket);
    assert_int_equal(waitpid(child, &status, 0), child);
}

/* It has said something, so UCX's own exchange is over: in UCX 1.13 a peer that dies within it may
 * take this process along (wireup_ep.c:241). */
static void peer_dead_before_the_first_message_is_lost(void **state)
{
    end_t end = {0};
    pid_t child = start_echo(&end, 1, *(which_t *)*state);
    dp_transport_event_t event = {0};
    int status;

    assert_int_equal(next_event(end.transport, 20000, &event), DP_OK);
    assert_int_equal(event.kind, DP_TRANSPORT_MESSAGE);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(end.transport->ops->send(end.transport, 1, "ping", 4), DP_OK);
    assert_int_equal(next_event(end.transport, 20000, &event), DP_OK);
    assert_int_equal(event.kind, DP_TRANSPORT_PEER_LOST);
    dp_transport_destroy(end.transport);
    close(end.socket);
}

/* Whether this process sleeps or polls: every word before the loss, in order. */
static void last_words_are_heard(void **state)
{
    const which_t which = *(which_t *)*state;
    const int is_here = which != UCX;

    for (int trial = 0; trial < 20; trial++) {
        end_t end = {0};
        pid_t child = start_echo(&end, 0, which);
        dp_transport_event_t event = {0};
        int status;

        ping(&end);
        assert_int_equal(end.transport->ops->send(end.transport, 1, "die", 3), DP_OK);
        if (trial % 3 == 1) usleep(1000 * (unsigned)trial);
        for (int i = 0; is_here && i < LAST_WORDS; i++) {
            if (trial % 3 == 2) {
                while (end.transport->ops->poll(end.transport, &event) == DP_ERR_PENDING) {
                }
            } else {
                assert_int_equal(next_event(end.transport, 20000, &event), DP_OK);
            }
            assert_int_equal(event.kind, DP_TRANSPORT_MESSAGE);
            assert_int_equal(event.bytes, 5 + (size_t)i * 10);
            assert_int_equal(((const uint8_t *)event.data)[0], i);
        }
        do { /* over UCX what the kernel had not sent yet is gone */
            assert_int_equal(next_event(end.transport, 20000, &event), DP_OK);
        } while (!is_here && event.kind == DP_TRANSPORT_MESSAGE);
        assert_int_equal(event.kind, DP_TRANSPORT_PEER_LOST);
        assert_string_equal(event.text, "its connection broke");
        dp_transport_destroy(end.transport);
        close(end.socket);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
    }
}

/* A child that it forked holds its sockets, and says nothing. */
static void killed_peer_with_a_child_is_lost_at_once(void **state)
{
    end_t end = {0};
    dp_transport_event_t event = {0};
    uint64_t start;
    pid_t child;
    int status;
    int alive[2];
    char byte;

    /* Its other end is closed by the child of the child alone. */
    assert_int_equal(pipe(alive), 0);
    fork_after_joining = 1;
    child = start_echo(&end, 0, *(which_t *)*state);
    fork_after_joining = 0;
    close(alive[1]);
    ping(&end);
    start = dp_now_ns();
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(next_event(end.transport, 20000, &event), DP_OK);
    print_message("SIGKILL seen after %.2f ms\n", (double)(dp_now_ns() - start) / 1e6);
    assert_int_equal(event.kind, DP_TRANSPORT_PEER_LOST);
    assert_string_equal(event.text, "its connection broke");
    dp_transport_destroy(end.transport);
    close(end.socket);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(read(alive[0], &byte, 1), 0); /* the child's child has left, too */
    close(alive[0]);
}

static which_t over_ucx = UCX, over_shm = SHM;

#define OVER(name, kind)                                                                           \
    {                                                                                              \
#name " over " #kind, name, NULL, NULL, &over_##kind                                       \
    }
#define ALL(name) OVER(name, ucx), OVER(name, shm)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALL(round_trips_are_quick),
        ALL(killed_peer_is_lost_at_once),
        ALL(peer_dead_before_the_first_message_is_lost),
        ALL(last_words_are_heard),
        OVER(killed_peer_with_a_child_is_lost_at_once, shm),
    };

#if defined(__SANITIZE_THREAD__)
    return 77; /* UCX is not instrumented */
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
