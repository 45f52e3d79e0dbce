/*
 * test_transport_near.c - what neighbours on a node give each other over a UNIX socket: who may
 * connect to a rank, what becomes of the others, and when a neighbour is lost.
 */
#include "runtime/transport/near.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cases.h"

#define TAG 0x1122334455667788ull
#define PATIENCE_NS 20000000000ull

/* Rank 0 listens, rank 1 connects. Each gives both ends of a pipe of its own. */
typedef struct pair {
    dp_near_t *rank[2];
    uint8_t address[2][DP_PEER_SOCKET_ADDRESS];
    int files[2][DP_NEAR_FILES];
} pair_t;

static dp_near_t *make(int rank, const int files[DP_NEAR_FILES])
{
    const int other = 1 - rank;
    dp_near_t *near = NULL;
    dp_error_t error = {0};
    dp_log_t log;

    dp_log_init(&log, DP_LOG_ERROR, rank);
    if (dp_near_create(rank, TAG, &other, 1, files, &log, &near, &error) != DP_OK)
        fail_msg("%s", error.text);
    return near;
}

static void pair_make(pair_t *pair)
{
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pipe2(pair->files[i], O_CLOEXEC), 0);
        pair->rank[i] = make(i, pair->files[i]);
        dp_near_address(pair->rank[i], pair->address[i]);
    }
}

static void pair_connect(pair_t *pair, int rank)
{
    dp_near_connect(pair->rank[rank], 1 - rank, pair->address[1 - rank]);
}

static void pair_destroy(pair_t *pair)
{
    for (int i = 0; i < 2; i++) {
        dp_near_destroy(pair->rank[i]);
        close(pair->files[i][0]);
        close(pair->files[i][1]);
    }
}

/* The next event of a rank, while the other one goes on and has none. */
static void expect(pair_t *pair, int rank, dp_near_event_t *event)
{
    const uint64_t until = dp_now_ns() + PATIENCE_NS;

    while (!dp_near_poll(pair->rank[rank], event))
        assert_true(dp_now_ns() < until);
}

static void expect_loss(pair_t *pair, int rank, const char *text)
{
    dp_near_event_t event = {0};

    expect(pair, rank, &event);
    assert_int_equal(event.rank, 1 - rank);
    assert_string_equal(event.lost, text);
    assert_false(dp_near_poll(pair->rank[rank], &event)); /* once */
}

/* Those of the other rank, which this process has as well. */
static void expect_files(pair_t *pair, int rank)
{
    dp_near_event_t event = {0};
    char byte = 'x';

    expect(pair, rank, &event);
    if (event.lost != NULL) fail_msg("lost: %s", event.lost);
    assert_int_equal(event.rank, 1 - rank);
    assert_int_equal(write(event.files[1], &byte, 1), 1);
    byte = 0;
    assert_int_equal(read(pair->files[1 - rank][0], &byte, 1), 1);
    assert_int_equal(byte, 'x');
    for (int i = 0; i < DP_NEAR_FILES; i++) {
        assert_int_equal(fcntl(event.files[i], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        close(event.files[i]);
    }
}

static void expect_nothing(pair_t *pair, int rank)
{
    dp_near_event_t event;

    for (int i = 0; i < 20; i++) {
        assert_false(dp_near_poll(pair->rank[rank], &event));
        poll(NULL, 0, 1);
    }
}

/* Where rank 0 is found. */
static dp_peer_socket_address_t door_of(const pair_t *pair)
{
    dp_peer_socket_address_t address;

    dp_peer_socket_address_read(&address, pair->address[0]);
    return address;
}

static void both_get_files_and_part_without_a_loss(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        pair_t pair;

        pair_make(&pair);
        pair_connect(&pair, first);
        expect_nothing(&pair, first);
        pair_connect(&pair, 1 - first);
        expect_files(&pair, 0);
        expect_files(&pair, 1);
        dp_near_close(pair.rank[first], 0);
        expect_nothing(&pair, 1 - first);
        dp_near_close(pair.rank[1 - first], 0);
        pair_destroy(&pair);
    }
}

/* One that leaves early waits until its neighbours have met it, and no longer. */
static void goodbye_reaches_a_neighbour_that_is_late(void **state)
{
    pair_t pair;

    (void)state;
    pair_make(&pair);
    pair_connect(&pair, 1);
    pair_connect(&pair, 0);
    dp_near_close(pair.rank[0], dp_now_ns() + 3600000000000ull);
    expect_files(&pair, 1);
    expect_nothing(&pair, 1);
    pair_destroy(&pair);
}

/* 1: the other end closes it, and sends nothing. */
static int is_dropped(pair_t *pair, int fd)
{
    const uint64_t until = dp_now_ns() + PATIENCE_NS;
    dp_near_event_t event;
    uint8_t byte;

    while (dp_now_ns() < until) {
        ssize_t got;

        if (dp_near_poll(pair->rank[0], &event)) fail_msg("a stranger made an event");
        got = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) return 1;
        if (got > 0) return 0;
    }
    return 0;
}

static void say(pair_t *pair, const void *data, size_t bytes)
{
    const dp_peer_socket_address_t address = door_of(pair);
    const int fd = dp_local_try_connect(address.name);

    assert_true(fd >= 0);
    assert_int_equal(dp_local_send(fd, data, bytes, pair->files[1], DP_NEAR_FILES), 0);
    assert_true(is_dropped(pair, fd));
    close(fd);
}

static void strangers_are_dropped_and_delay_nobody(void **state)
{
    uint8_t garbage[4096];
    dp_peer_socket_hello_t hello;
    dp_peer_socket_address_t address;
    pair_t pair;
    int silent[100];

    (void)state;
    pair_make(&pair);
    pair_connect(&pair, 0);
    address = door_of(&pair);
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
        dp_near_event_t event;

        silent[i] = dp_local_try_connect(address.name);
        assert_true(silent[i] >= 0);
        assert_false(dp_near_poll(pair.rank[0], &event));
    }
    pair_connect(&pair, 1);
    expect_files(&pair, 0);
    expect_files(&pair, 1);
    /* No peer is expected any more. */
    errno = 0;
    assert_int_equal(dp_local_try_connect(address.name), -1);
    assert_int_equal(errno, ECONNREFUSED);
    for (size_t i = 0; i < DP_ARRAY_LEN(silent); i++)
        close(silent[i]);
    pair_destroy(&pair);
}

static int connect_without_a_check(const char *to)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(name.sun_path + 1, to + 1, strlen(to) - 1); /* a NUL stands for the "@" */
    if (fd < 0 || connect(fd, (struct sockaddr *)&name,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(to))) != 0)
        return -1;
    return fd;
}

/* Root is needed for another user. */
static void other_user_is_dropped_whatever_it_says(void **state)
{
    dp_peer_socket_address_t address;
    pair_t pair;
    pid_t child;
    int status;

    (void)state;
    if (geteuid() != 0) skip();
    pair_make(&pair);
    pair_connect(&pair, 0);
    address = door_of(&pair);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dp_peer_socket_hello_t hello;
        int fd;

        if (setuid(65534) != 0) _exit(2);
        dp_peer_socket_hello_make(&hello, 1, TAG, &address);
        fd = connect_without_a_check(address.name);
        if (fd < 0 || dp_local_send(fd, &hello, sizeof(hello), pair.files[1], 2) != 0) _exit(3);
        if (dp_local_try_connect(address.name) >= 0 || errno != EPERM)
            _exit(4); /* nor does it trust rank 0 */
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    expect_nothing(&pair, 0);
    pair_connect(&pair, 1);
    expect_files(&pair, 0);
    pair_destroy(&pair);
}

/* The queue of connections is full of strangers: the rank comes later. */
static void full_queue_is_waited_out(void **state)
{
    dp_peer_socket_address_t address;
    pair_t pair;
    int *filling = calloc(8192, sizeof(*filling));
    int count = 0;

    (void)state;
    assert_non_null(filling);
    pair_make(&pair);
    address = door_of(&pair);
    while (count < 1100 && (filling[count] = dp_local_try_connect(address.name)) >= 0)
        count++;
    if (count == 1100 || errno != EAGAIN) {
        print_message("the queue cannot be filled here: %d\n", count);
        skip();
    }
    pair_connect(&pair, 1);
    expect_nothing(&pair, 1);
    pair_connect(&pair, 0);
    for (int i = 0; i < count; i++)
        close(filling[i]);
    for (int i = 0; i < 5000; i++) {
        struct pollfd wait = {.fd = dp_near_fd(pair.rank[1]), .events = POLLIN};
        dp_near_event_t event;

        if (dp_near_poll(pair.rank[0], &event)) {
            close(event.files[0]);
            close(event.files[1]);
            break;
        }
        (void)poll(&wait, 1, 1);
        assert_false(dp_near_poll(pair.rank[1], &event));
    }
    expect_files(&pair, 1);
    free(filling);
    pair_destroy(&pair);
}

/* The bytes of a process of the job are checked, too. */
static void nonsense_from_a_rank_is_its_loss(void **state)
{
    static const struct {
        int hello_files;
        const char *message;
        int files;
        const char *loss;
    } cases[] = {{0, "", 0, "its memory could not be received"},
                 {1, "", 0, "its memory could not be received"},
                 {3, "", 0, "its memory could not be received"},
                 {2, "x", 0, "what it sends makes no sense"},
                 {2, "F", 2, "what it sends makes no sense"}, /* again */
                 {2, "B", 1, "what it sends makes no sense"},
                 {2, "F", 3, "its memory could not be received"}};

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(cases); i++) {
        dp_peer_socket_address_t address;
        dp_peer_socket_hello_t hello;
        int files[3] = {0, 1, 2};
        pair_t pair;
        int fd;

        pair_make(&pair);
        pair_connect(&pair, 0);
        address = door_of(&pair);
        fd = dp_local_try_connect(address.name);
        assert_true(fd >= 0);
        if (cases[i].hello_files == 2) memcpy(files, pair.files[1], sizeof(pair.files[1]));
        dp_peer_socket_hello_make(&hello, 1, TAG, &address);
        assert_int_equal(dp_local_send(fd, &hello, sizeof(hello), files, cases[i].hello_files), 0);
        if (cases[i].hello_files == 2) {
            assert_int_equal(dp_local_send(fd, cases[i].message, 1, files, cases[i].files), 0);
            expect_files(&pair, 0);
        }
        expect_loss(&pair, 0, cases[i].loss);
        close(fd);
        pair_destroy(&pair);
    }
}

/* It connects, or not, and dies before this rank has looked. */
static void peer_that_died_before_it_was_let_in_is_lost(void **state)
{
    (void)state;
    for (int speaks = 0; speaks < 2; speaks++) {
        pair_t pair;
        int news[2];
        pid_t child;
        int status;

        pair_make(&pair);
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, news), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) { /* rank 1 is a process of its own here */
            dp_near_t *own = make(1, pair.files[1]);

            dp_near_address(own, pair.address[1]);
            if (send(news[1], pair.address[1], sizeof(pair.address[1]), 0) < 0) _exit(1);
            if (speaks) dp_near_connect(own, 0, pair.address[0]);
            _exit(0);
        }
        assert_int_equal(recv(news[0], pair.address[1], sizeof(pair.address[1]), 0),
                         sizeof(pair.address[1]));
        if (speaks) assert_int_equal(waitpid(child, &status, 0), child);
        pair_connect(&pair, 0);
        if (!speaks) assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(WEXITSTATUS(status), 0);
        if (speaks) expect_files(&pair, 0);
        expect_loss(&pair, 0, "its connection broke");
        close(news[0]);
        close(news[1]);
        pair_destroy(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_get_files_and_part_without_a_loss),
        cmocka_unit_test(goodbye_reaches_a_neighbour_that_is_late),
        cmocka_unit_test(strangers_are_dropped_and_delay_nobody),
        cmocka_unit_test(other_user_is_dropped_whatever_it_says),
        cmocka_unit_test(full_queue_is_waited_out),
        cmocka_unit_test(nonsense_from_a_rank_is_its_loss),
        cmocka_unit_test(peer_that_died_before_it_was_let_in_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
