/*
 * test_knock.c - whether a machine answers while an ssh waits for it. Over 127.0.0.1, on a clock
 * that the test sets; a listener whose queue is full answers nothing, like a machine that is gone.
 */
#include "launcher/dprun/remote/knock.h"

#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MS UINT64_C(1000000)
#define START (100000 * MS)
#define FILLERS 8

static dp_knock_target_t target_of(int fd)
{
    dp_knock_target_t target = {.bytes = sizeof(struct sockaddr_in)};

    assert_int_equal(getsockname(fd, (struct sockaddr *)&target.address, &target.bytes), 0);
    return target;
}

static int listen_here(int backlog)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&here, sizeof(here)), 0);
    if (backlog >= 0) assert_int_equal(listen(fd, backlog), 0);
    return fd;
}

/* Knocks each 100 ms of its clock. Returns when the machine was found silent, 0: not at all. */
static uint64_t knock_until(dp_knock_t *knock, const dp_knock_target_t *targets, int count,
                            uint64_t from_ms, uint64_t to_ms)
{
    for (uint64_t ms = from_ms; ms <= to_ms; ms += 100) {
        if (dp_knock_is_silent(knock, targets, count, START + ms * MS)) return ms;
        (void)poll(NULL, 0, 1); /* for the kernel */
    }
    return 0;
}

static void knock_at_a_listener_is_answered(void **state)
{
    const int fd = listen_here(64);
    const dp_knock_target_t target = target_of(fd);
    dp_knock_t knock;

    (void)state;
    dp_knock_init(&knock, START);
    assert_int_equal(knock_until(&knock, &target, 1, 0, 20000), 0);
    assert_true(knock.sign_ns > START + 18000 * MS);
    dp_knock_fini(&knock);
    close(fd);
}

static void knock_that_is_refused_is_answered(void **state)
{
    const int fd = listen_here(-1);
    const dp_knock_target_t target = target_of(fd);
    dp_knock_t knock;

    (void)state;
    dp_knock_init(&knock, START);
    assert_int_equal(knock_until(&knock, &target, 1, 0, 10000), 0);
    dp_knock_fini(&knock);
    close(fd);
}

/* Fills the queue, so that the kernel drops what comes. */
static void fill(const dp_knock_target_t *target, int fds[FILLERS])
{
    for (int i = 0; i < FILLERS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_true(fds[i] >= 0);
        (void)connect(fds[i], (const struct sockaddr *)&target->address, target->bytes);
    }
}

static void knock_that_nobody_answers_shows_silence_after_its_time(void **state)
{
    const int fd = listen_here(0);
    const int alive = listen_here(64);
    const dp_knock_target_t targets[2] = {target_of(fd), target_of(alive)};
    int fillers[FILLERS];
    dp_knock_t knock;

    (void)state;
    fill(&targets[0], fillers);
    dp_knock_init(&knock, START);
    assert_int_equal(knock_until(&knock, targets, 1, 0, 4000), 2500);
    dp_knock_fini(&knock);
    dp_knock_init(&knock, START); /* one of two addresses answers */
    assert_int_equal(knock_until(&knock, targets, 2, 0, 10000), 0);
    dp_knock_fini(&knock);
    dp_knock_init(&knock, START); /* it answers at first, and then no more */
    assert_int_equal(knock_until(&knock, targets + 1, 1, 0, 1000), 0);
    assert_in_range(knock_until(&knock, targets, 1, 1100, 8000), 3000, 4600);
    dp_knock_fini(&knock);
    dp_knock_init(&knock, START); /* this process stood still: the time before does not count */
    assert_int_equal(knock_until(&knock, targets, 1, 0, 2400), 0);
    dp_knock_restart(&knock, START + 2400 * MS);
    assert_in_range(knock_until(&knock, targets, 1, 2500, 8000), 4900, 5000);
    dp_knock_fini(&knock);
    for (int i = 0; i < FILLERS; i++)
        close(fillers[i]);
    close(alive);
    close(fd);
}

static void knock_finds_the_peer_of_a_process(void **state)
{
    pid_t process = 0;
    const int fd = listen_here(64);
    const dp_knock_target_t target = target_of(fd);
    const int to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    dp_knock_target_t targets[2] = {{.bytes = 0}};
    dp_knock_target_t peer;

    (void)state;
    assert_int_equal(dp_knock_find_peer(getpid(), &peer, &process), 0); /* it only listens */
    assert_int_equal(connect(to, (const struct sockaddr *)&target.address, target.bytes), 0);
    assert_int_equal(dp_knock_find_peer(getpid(), &peer, &process), 1);
    assert_int_equal(peer.bytes, target.bytes);
    assert_memory_equal(&peer.address, &target.address, target.bytes);
    targets[0].address.ss_family = AF_INET6;
    targets[1] = target;
    assert_int_equal(dp_knock_set_port(targets, 1, &peer), 0);
    assert_int_equal(dp_knock_set_port(targets, 2, &peer), 1);
    assert_int_equal(((struct sockaddr_in6 *)&targets[0].address)->sin6_port,
                     ((const struct sockaddr_in *)&target.address)->sin_port);
    close(to);
    close(fd);
}

static void knock_sees_that_a_process_reads(void **state)
{
    char data[100] = "";
    int ends[2];
    uint64_t before;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], data, sizeof(data)), sizeof(data));
    before = dp_knock_bytes_read(getpid());
    if (before == 0) return; /* a kernel without this account */
    assert_int_equal(read(ends[0], data, sizeof(data)), sizeof(data));
    assert_true(dp_knock_bytes_read(getpid()) >= before + sizeof(data));
    assert_int_equal(dp_knock_bytes_read(0x7ffffff0), 0);
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knock_at_a_listener_is_answered),
        cmocka_unit_test(knock_that_is_refused_is_answered),
        cmocka_unit_test(knock_that_nobody_answers_shows_silence_after_its_time),
        cmocka_unit_test(knock_finds_the_peer_of_a_process),
        cmocka_unit_test(knock_sees_that_a_process_reads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
