/*
 * test_forked.c - which descriptors a forked child gives up, and how contexts tell the processes
 * apart.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/base/forked.h"
#include "tests/unit/cases.h"

#define NULL_MINOR 3 /* /dev/null is 1:3 */

static int is_null(int fd)
{
    struct stat about;

    return fstat(fd, &about) == 0 && S_ISCHR(about.st_mode) && major(about.st_rdev) == 1 &&
           minor(about.st_rdev) == NULL_MINOR;
}

/* Calls it in a child; what it returns. */
static int in_child(int (*look)(const int *fds), const int *fds)
{
    int status;
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) _exit(look(fds));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* One bit for each of four descriptors that the child has given up. */
static int given_up(const int *fds)
{
    int bits = 0;

    for (int i = 0; i < 4; i++)
        bits |= is_null(fds[i]) << i;
    return bits;
}

static int add(int epoll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = UINT64_C(0xfeedfacefeedface)};

    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static void a_watched_descriptor_is_given_up_until_it_is_forgotten(void **state)
{
    dp_fork_watch_t watch = {0}, second = {0}, third = {0};
    int pair[2];
    int fds[4];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    fds[0] = pair[0];
    fds[1] = pair[1];
    fds[2] = fds[3] = STDIN_FILENO;
    assert_int_equal(in_child(given_up, fds) & 3, 0);
    dp_fork_watch(&watch, pair[0]);
    assert_int_equal(in_child(given_up, fds) & 3, 1);
    dp_fork_watch(&second, pair[0]);
    dp_fork_watch(&third, pair[1]);
    dp_fork_forget(&watch);
    dp_fork_forget(&watch);
    assert_int_equal(in_child(given_up, fds) & 3, 3);
    dp_fork_forget(&second);
    assert_int_equal(in_child(given_up, fds) & 3, 2);
    dp_fork_forget(&third);
    assert_int_equal(in_child(given_up, fds) & 3, 0);
    assert_int_equal(write(pair[0], "x", 1), 1); /* here nothing has changed */
    close(pair[0]);
    close(pair[1]);
}

static void what_an_epoll_watches_at_any_depth_goes_with_it(void **state)
{
    dp_fork_watch_t watch = {0};
    const int inner = epoll_create1(0), outer = epoll_create1(EPOLL_CLOEXEC);
    int ends[2][2];
    int fds[4];

    (void)state;
    assert_int_equal(pipe2(ends[0], O_CLOEXEC), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[1]), 0);
    assert_int_equal(add(inner, ends[0][0]) | add(outer, inner) | add(outer, ends[1][0]), 0);
    dp_fork_watch(&watch, outer);
    fds[0] = inner;
    fds[1] = outer;
    fds[2] = ends[0][0];
    fds[3] = ends[1][0];
    assert_int_equal(in_child(given_up, fds), 15);
    fds[0] = ends[0][1];
    fds[1] = ends[1][1];
    assert_int_equal(in_child(given_up, fds), 12); /* the other ends are not watched */
    dp_fork_forget(&watch);
    for (int i = 0; i < 4; i++)
        close(ends[i / 2][i % 2]);
    close(inner);
    close(outer);
}

/* Many descriptors make the file longer than what is read of it at once. */
static void every_one_of_many_is_found(void **state)
{
    enum { COUNT = 100 };
    dp_fork_watch_t watch = {0};
    const int epoll = epoll_create1(0);
    int ends[COUNT][2];

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(pipe(ends[i]), 0);
        assert_int_equal(add(epoll, ends[i][0]), 0);
    }
    dp_fork_watch(&watch, epoll);
    for (int i = 0; i + 3 < COUNT; i += 24) {
        const int fds[4] = {ends[i][0], ends[i + 1][0], ends[i + 2][0], ends[i + 3][0]};

        assert_int_equal(in_child(given_up, fds), 15);
    }
    dp_fork_forget(&watch);
    for (int i = 0; i < 2 * COUNT; i++)
        close(ends[i / 2][i % 2]);
    close(epoll);
}

/* An epoll keeps the number under which a file was added, while a copy of the file is open. */
static void another_file_with_the_same_number_stays(void **state)
{
    dp_fork_watch_t watch = {0};
    const int epoll = epoll_create1(0);
    int ends[2];
    int copy, other;
    int fds[4] = {STDIN_FILENO, STDIN_FILENO, STDIN_FILENO, STDIN_FILENO};

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(add(epoll, ends[0]), 0);
    copy = dup(ends[0]);
    other = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_true(copy >= 0 && other >= 0);
    assert_int_equal(dup2(other, ends[0]), ends[0]);
    dp_fork_watch(&watch, epoll);
    fds[0] = ends[0];
    fds[1] = epoll;
    assert_int_equal(in_child(given_up, fds) & 3, 2);
    dp_fork_forget(&watch);
    close(ends[0]);
    close(ends[1]);
    close(copy);
    close(other);
    close(epoll);
}

/* The purpose of it all: the other end is closed when this process closes its own. */
static void a_living_child_keeps_no_connection_open(void **state)
{
    dp_fork_watch_t watch = {0};
    int pair[2], hold[2];
    struct pollfd polled;
    pid_t child;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(pipe(hold), 0);
    dp_fork_watch(&watch, pair[0]);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) { /* lives until its parent lets it go */
        char byte;

        close(hold[1]);
        _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    polled = (struct pollfd){pair[1], POLLIN, 0};
    assert_int_equal(poll(&polled, 1, 0), 0);
    dp_fork_forget(&watch);
    close(pair[0]);
    assert_int_equal(poll(&polled, 1, 10000), 1);
    assert_true(polled.revents & POLLHUP);
    close(hold[0]);
    close(hold[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(pair[1]);
}

static int is_other_generation(const int *fds)
{
    return dp_fork_generation() != (unsigned)fds[0] && dp_fork_is_child();
}

static int is_other_for_a_grandchild(const int *fds)
{
    dp_fork_enter(); /* a context that the child has made itself */
    return is_other_generation(fds) &&
           in_child(is_other_generation, (const int[]){(int)dp_fork_generation()});
}

static void a_child_of_a_context_knows_that_it_is_one(void **state)
{
    const int own[1] = {(int)dp_fork_generation()};

    (void)state;
    assert_false(in_child(is_other_generation, own));
    dp_fork_enter();
    assert_true(in_child(is_other_generation, own));
    assert_true(in_child(is_other_for_a_grandchild, own));
    assert_int_equal(dp_fork_generation(), own[0]);
    assert_false(dp_fork_is_child());
    dp_fork_leave();
    assert_false(in_child(is_other_generation, own));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_watched_descriptor_is_given_up_until_it_is_forgotten),
        cmocka_unit_test(what_an_epoll_watches_at_any_depth_goes_with_it),
        cmocka_unit_test(every_one_of_many_is_found),
        cmocka_unit_test(another_file_with_the_same_number_stays),
        cmocka_unit_test(a_living_child_keeps_no_connection_open),
        cmocka_unit_test(a_child_of_a_context_knows_that_it_is_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
