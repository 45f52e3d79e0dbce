/*
 * test_transport_unix.c - who may connect to a rank's UNIX socket, and what becomes of the others.
 *
 * What test_transport.c says of every transport is not said again.
 */
#include "runtime/transport/transport.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/transport/peer_socket.h"

#define TAG 0x1122334455667788ull
#define PATIENCE_NS 20000000000ull

/* Rank 0 listens, rank 1 dials. */
typedef struct pair {
    dp_transport_t *rank[2];
    uint8_t address[2][DP_ADDRESS_MAX];
    size_t bytes[2];
} pair_t;

static void pair_make(pair_t *pair)
{
    dp_error_t error = {0};

    for (int i = 0; i < 2; i++) {
        const int other = 1 - i;

        if (dp_transport_unix_create(i, TAG, &other, 1, NULL, NULL, &pair->rank[i], &error) !=
            DP_OK)
            fail_msg("%s", error.text);
        assert_int_equal(pair->rank[i]->ops->address(pair->rank[i], pair->address[i],
                                                     DP_ADDRESS_MAX, &pair->bytes[i]),
                         DP_OK);
    }
}

static void pair_connect(pair_t *pair, int rank)
{
    const int other = 1 - rank;
    const void *address = pair->address[other];

    assert_int_equal(pair->rank[rank]->ops->connect(pair->rank[rank], &other, &address,
                                                    &pair->bytes[other], 1, NULL),
                     DP_OK);
}

static void pair_destroy(pair_t *pair)
{
    dp_transport_destroy(pair->rank[0]);
    dp_transport_destroy(pair->rank[1]);
}

static dp_status_t poll_once(pair_t *pair, int rank, dp_transport_event_t *event)
{
    return pair->rank[rank]->ops->poll(pair->rank[rank], event);
}

/* The next event of rank 0, while rank 1 makes progress. */
static void expect(pair_t *pair, dp_transport_event_t *event)
{
    const uint64_t until = dp_now_ns() + PATIENCE_NS;
    dp_transport_event_t other;

    while (poll_once(pair, 0, event) != DP_OK) {
        assert_true(dp_now_ns() < until);
        (void)poll_once(pair, 1, &other);
    }
}

static void expect_message(pair_t *pair, const char *text)
{
    dp_transport_event_t event = {0};

    expect(pair, &event);
    assert_int_equal(event.kind, DP_TRANSPORT_MESSAGE);
    assert_int_equal(event.rank, 1);
    assert_int_equal(event.bytes, strlen(text));
    assert_memory_equal(event.data, text, event.bytes);
}

/* Where rank 0 is found: behind the byte that says how long it is. */
static dp_peer_socket_address_t listener_of(const pair_t *pair)
{
    dp_peer_socket_address_t address;

    assert_int_equal(pair->address[0][0], DP_PEER_SOCKET_ADDRESS);
    dp_peer_socket_address_read(&address, pair->address[0] + 1);
    return address;
}

/* 1: the other end closes it, and sends nothing. */
static int is_dropped(pair_t *pair, int fd)
{
    const uint64_t until = dp_now_ns() + PATIENCE_NS;
    dp_transport_event_t event;
    uint8_t byte;

    while (dp_now_ns() < until) {
        ssize_t got;

        if (poll_once(pair, 0, &event) == DP_OK) fail_msg("a stranger made an event");
        got = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) return 1;
        if (got > 0) return 0;
    }
    return 0;
}

static void say(pair_t *pair, const void *data, size_t bytes)
{
    const dp_peer_socket_address_t address = listener_of(pair);
    const int fd = dp_peer_socket_connect(&address);

    assert_true(fd >= 0);
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
    assert_true(is_dropped(pair, fd));
    close(fd);
}

static void strangers_are_dropped_and_delay_nobody(void **state)
{
    uint8_t garbage[4096];
    dp_peer_socket_hello_t hello;
    dp_peer_socket_address_t address;
    pair_t pair;
    int silent[40];

    (void)state;
    pair_make(&pair);
    pair_connect(&pair, 0);
    address = listener_of(&pair);
    memset(garbage, 0xa5, sizeof(garbage));
    say(&pair, garbage, sizeof(garbage));
    dp_peer_socket_hello_make(&hello, 1, TAG, &address);
    hello.key[3] ^= 1;
    say(&pair, &hello, sizeof(hello));
    dp_peer_socket_hello_make(&hello, 1, TAG + 1, &address);
    say(&pair, &hello, sizeof(hello));
    dp_peer_socket_hello_make(&hello, 2, TAG, &address); /* no neighbour */
    say(&pair, &hello, sizeof(hello));
    dp_peer_socket_hello_make(&hello, 0, TAG, &address); /* itself */
    say(&pair, &hello, sizeof(hello));
    for (size_t i = 0; i < DP_ARRAY_LEN(silent); i++) { /* more than may be pending */
        dp_transport_event_t event;

        silent[i] = dp_peer_socket_connect(&address);
        assert_true(silent[i] >= 0);
        (void)poll_once(&pair, 0, &event);
    }
    pair_connect(&pair, 1);
    assert_int_equal(pair.rank[1]->ops->send(pair.rank[1], 0, "here", 4), DP_OK);
    expect_message(&pair, "here");
    /* Nobody is to come any more. */
    errno = 0;
    assert_int_equal(dp_peer_socket_connect(&address), -1);
    assert_int_equal(errno, ECONNREFUSED);
    for (size_t i = 0; i < DP_ARRAY_LEN(silent); i++)
        close(silent[i]);
    pair_destroy(&pair);
}

static int dial_without_a_check(const dp_peer_socket_address_t *to)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const size_t prefix = offsetof(struct sockaddr_un, sun_path) + 9;

    memcpy(name.sun_path + 1, "dp-peer-", 8);
    for (size_t i = 0; i < DP_PEER_SOCKET_NAME; i++)
        snprintf(name.sun_path + 9 + 2 * i, 3, "%02x", to->name[i]);
    if (fd < 0 ||
        connect(fd, (struct sockaddr *)&name, (socklen_t)(prefix + 2 * DP_PEER_SOCKET_NAME)) != 0)
        return -1;
    return fd;
}

/* Root is needed for another user. */
static void other_user_is_dropped_whatever_it_says(void **state)
{
    dp_transport_event_t event;
    dp_peer_socket_address_t address;
    pair_t pair;
    pid_t child;
    int status;

    (void)state;
    if (geteuid() != 0) skip();
    pair_make(&pair);
    pair_connect(&pair, 0);
    address = listener_of(&pair);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dp_peer_socket_hello_t hello;
        int fd;

        if (setuid(65534) != 0) _exit(2);
        dp_peer_socket_hello_make(&hello, 1, TAG, &address);
        fd = dial_without_a_check(&address);
        if (fd < 0 || send(fd, &hello, sizeof(hello), 0) != (ssize_t)sizeof(hello)) _exit(3);
        if (dp_peer_socket_connect(&address) >= 0 || errno != EPERM)
            _exit(4); /* nor does it trust rank 0 */
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(poll_once(&pair, 0, &event), DP_ERR_PENDING);
    pair_connect(&pair, 1);
    assert_int_equal(pair.rank[1]->ops->send(pair.rank[1], 0, "here", 4), DP_OK);
    expect_message(&pair, "here");
    pair_destroy(&pair);
}

/* The neighbours' queue of connections is full of strangers: the rank comes later. */
static void full_queue_is_waited_out(void **state)
{
    dp_peer_socket_address_t address;
    pair_t pair;
    int *filling = calloc(8192, sizeof(*filling));
    int count = 0;

    (void)state;
    assert_non_null(filling);
    pair_make(&pair);
    address = listener_of(&pair);
    while (count < 700 && (filling[count] = dp_peer_socket_connect(&address)) >= 0)
        count++;
    if (count == 700 || errno != EAGAIN) {
        print_message("the queue cannot be filled here: %d\n", count);
        skip();
    }
    pair_connect(&pair, 1);
    assert_int_equal(pair.rank[1]->ops->send(pair.rank[1], 0, "late", 4), DP_OK);
    pair_connect(&pair, 0);
    for (int i = 0; i < count; i++)
        close(filling[i]);
    expect_message(&pair, "late");
    free(filling);
    pair_destroy(&pair);
}

/* What a process of the job sends is checked, too. */
static void nonsense_from_a_rank_is_its_loss(void **state)
{
    static const uint32_t heads[][2] = {{0xffffffff, 1}, {4, 7}, {1, 2}};

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(heads); i++) {
        dp_transport_event_t event = {0};
        dp_peer_socket_address_t address;
        dp_peer_socket_hello_t hello;
        pair_t pair;
        int fd;

        pair_make(&pair);
        pair_connect(&pair, 0);
        address = listener_of(&pair);
        fd = dp_peer_socket_connect(&address);
        assert_true(fd >= 0);
        dp_peer_socket_hello_make(&hello, 1, TAG, &address);
        assert_int_equal(send(fd, &hello, sizeof(hello), 0), sizeof(hello));
        assert_int_equal(send(fd, heads[i], sizeof(heads[i]), 0), sizeof(heads[i]));
        expect(&pair, &event);
        assert_int_equal(event.kind, DP_TRANSPORT_PEER_LOST);
        assert_string_equal(event.text, "what it sends makes no sense");
        close(fd);
        pair_destroy(&pair);
    }
}

/* It dials and dies before this rank has looked: its last words count, and its end is known. */
static void peer_that_died_before_it_was_accepted_is_lost(void **state)
{
    (void)state;
    for (int speaks = 0; speaks < 2; speaks++) {
        dp_transport_event_t event = {0};
        pair_t pair;
        int news[2];
        pid_t child;
        int status;

        pair_make(&pair);
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, news), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) { /* rank 1 is a process of its own here */
            const int other = 0;
            const void *address = pair.address[0];
            dp_transport_t *own = NULL;
            ssize_t sent;

            if (dp_transport_unix_create(1, TAG, &other, 1, NULL, NULL, &own, NULL) != DP_OK ||
                own->ops->address(own, pair.address[1], DP_ADDRESS_MAX, &pair.bytes[1]) != DP_OK)
                _exit(1);
            sent = send(news[1], pair.address[1], pair.bytes[1], 0);
            if (sent != (ssize_t)pair.bytes[1]) _exit(1);
            if (speaks &&
                (own->ops->connect(own, &other, &address, &pair.bytes[0], 1, NULL) != DP_OK ||
                 own->ops->send(own, 0, "last", 4) != DP_OK))
                _exit(1);
            _exit(0);
        }
        pair.bytes[1] = (size_t)recv(news[0], pair.address[1], DP_ADDRESS_MAX, 0);
        if (speaks) {
            assert_int_equal(waitpid(child, &status, 0), child);
            pair_connect(&pair, 0);
            expect_message(&pair, "last");
        } else {
            pair_connect(&pair, 0);
            assert_int_equal(waitpid(child, &status, 0), child);
        }
        assert_int_equal(WEXITSTATUS(status), 0);
        while (poll_once(&pair, 0, &event) != DP_OK)
            poll(NULL, 0, 1);
        assert_int_equal(event.kind, DP_TRANSPORT_PEER_LOST);
        assert_string_equal(event.text, "its connection broke");
        close(news[0]);
        close(news[1]);
        pair_destroy(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_are_dropped_and_delay_nobody),
        cmocka_unit_test(other_user_is_dropped_whatever_it_says),
        cmocka_unit_test(full_queue_is_waited_out),
        cmocka_unit_test(nonsense_from_a_rank_is_its_loss),
        cmocka_unit_test(peer_that_died_before_it_was_accepted_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
