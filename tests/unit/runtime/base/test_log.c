/*
 * test_log.c - a log line is one line, of the right level, whatever its text holds.
 */
#include "runtime/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"

/* A log into a pipe, and what came out of it. */
typedef struct capture {
    dp_log_t log;
    int read_fd;
    char text[65536];
} capture_t;

static void capture_open(capture_t *capture, dp_log_level_t level, int rank)
{
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    dp_log_init(&capture->log, level, rank);
    assert_int_equal(capture->log.fd, STDERR_FILENO);
    capture->log.fd = fds[1];
    capture->read_fd = fds[0];
}

static const char *capture_close(capture_t *capture)
{
    size_t bytes = 0;
    ssize_t got;

    close(capture->log.fd);
    while ((got = read(capture->read_fd, capture->text + bytes,
                       sizeof(capture->text) - 1 - bytes)) > 0) {
        bytes += (size_t)got;
    }
    capture->text[bytes] = '\0';
    close(capture->read_fd);
    return capture->text;
}

static void log_line_names_level_and_rank(void **state)
{
    static capture_t capture;

    (void)state;
    capture_open(&capture, DP_LOG_WARN, 3);
    dp_log_warn(&capture.log, "tensor %s: count %d", "wte", 768);
    assert_string_equal(capture_close(&capture), "dp warn rank 3: tensor wte: count 768\n");
    capture_open(&capture, DP_LOG_TRACE, -1);
    dp_log_trace(&capture.log, "x");
    dp_log_error(&capture.log, "y");
    assert_string_equal(capture_close(&capture), "dp trace: x\ndp error: y\n");
}

static void log_level_above_the_limit_is_dropped(void **state)
{
    static capture_t capture;

    (void)state;
    capture_open(&capture, DP_LOG_WARN, 0);
    dp_log_info(&capture.log, "too much");
    dp_log_debug(&capture.log, "too much");
    dp_log_write(NULL, DP_LOG_ERROR, "nobody listens");
    assert_string_equal(capture_close(&capture), "");
}

static void log_line_break_in_a_text_does_not_forge_a_line(void **state)
{
    static capture_t capture;

    (void)state;
    capture_open(&capture, DP_LOG_INFO, 0);
    dp_log_info(&capture.log, "name '%s'", "a\ndp error rank 7: forged\r");
    assert_string_equal(capture_close(&capture),
                        "dp info rank 0: name 'a dp error rank 7: forged '\n");
}

static void log_long_text_is_cut_to_one_line(void **state)
{
    static capture_t capture;
    static char text[10000];
    const char *line;

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    capture_open(&capture, DP_LOG_INFO, 0);
    dp_log_info(&capture.log, "%s", text);
    line = capture_close(&capture);
    assert_in_range(strlen(line), 1000, 4096);
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
}

static void log_keeps_errno(void **state)
{
    dp_log_t log;

    (void)state;
    dp_log_init(&log, DP_LOG_WARN, 0);
    log.fd = -1; /* write() fails */
    errno = ENOENT;
    dp_log_warn(&log, "lost");
    assert_int_equal(errno, ENOENT);
}

static void *write_lines(void *argument)
{
    const dp_log_t *log = argument;

    for (int i = 0; i < 50; i++)
        dp_log_info(log, "%s", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    return NULL;
}

static void log_lines_of_threads_do_not_mix(void **state)
{
    static capture_t capture;
    pthread_t threads[4];
    char *text;
    int lines = 0;

    (void)state;
    capture_open(&capture, DP_LOG_INFO, 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, &capture.log), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    capture_close(&capture);
    text = capture.text;
    for (char *line = strsep(&text, "\n"); text != NULL; line = strsep(&text, "\n")) {
        assert_string_equal(line, "dp info rank 1: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
        lines++;
    }
    assert_int_equal(lines, 200);
}

/* ---- Nobody reads --------------------------------------------------------------------------- */

static void fill(int fd)
{
    static const char bytes[4096];
    const int flags = fcntl(fd, F_GETFL);

    assert_int_equal(fcntl(fd, F_SETFL, flags | O_NONBLOCK), 0);
    while (write(fd, bytes, sizeof(bytes)) > 0) {
    }
    while (write(fd, bytes, 1) > 0) {
    }
    assert_int_equal(fcntl(fd, F_SETFL, flags), 0);
}

/* Skips what fill() wrote, then reads until `last` has come. */
static void read_until(capture_t *capture, const char *last)
{
    size_t bytes = 0;
    char byte;

    alarm(30); /* on a hang the test ends by SIGALRM */
    while (strstr(capture->text, last) == NULL && read(capture->read_fd, &byte, 1) == 1) {
        if (byte != '\0' && byte != '\r') capture->text[bytes++] = byte;
        capture->text[bytes] = '\0';
        assert_in_range(bytes, 0, sizeof(capture->text) - 2);
    }
    alarm(0);
}

/* Logs far more than fits, reads all of it, and checks the order and what is told of the rest. */
static void flood(capture_t *capture)
{
    static char expected[64];
    const char *at = capture->text;
    const int flags = fcntl(capture->log.fd, F_GETFL);
    unsigned long told = 0;
    int lines = 0;

    alarm(30);
    for (int i = 0; i < 2000; i++)
        dp_log_info(&capture->log, "line %d of many", i);
    for (int i = 0; i < 10; i++)
        dp_log_error(&capture->log, "reason %d", i);
    alarm(0);
    assert_int_equal(fcntl(capture->log.fd, F_GETFL), flags);
    read_until(capture, "dropped: standard error was not read\n");
    for (; lines < 2000; lines++) {
        snprintf(expected, sizeof(expected), "dp info rank 0: line %d of many\n", lines);
        if (strncmp(at, expected, strlen(expected)) != 0) break;
        at += strlen(expected);
    }
    assert_in_range(lines, 100, 1999);
    for (int i = 0; i < 10; i++) { /* room is kept for what says why a job ends */
        snprintf(expected, sizeof(expected), "dp error rank 0: reason %d\n", i);
        assert_int_equal(strncmp(at, expected, strlen(expected)), 0);
        at += strlen(expected);
    }
    assert_int_equal(sscanf(at, "dp warn: %lu log lines were dropped", &told), 1);
    assert_int_equal(told, 2000 - lines);
}

static void log_to_a_full_pipe_never_blocks(void **state)
{
    static capture_t capture;
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    dp_log_init(&capture.log, DP_LOG_INFO, 0);
    capture.log.fd = fds[1];
    capture.read_fd = fds[0];
    capture.log.queue = dp_log_queue_create();
    fill(fds[1]);
    flood(&capture);
    capture.text[0] = '\0';
    dp_log_info(&capture.log, "as before");
    read_until(&capture, "as before\n");
    assert_string_equal(capture.text, "dp info rank 0: as before\n");
    dp_log_queue_destroy(capture.log.queue);
    close(fds[0]);
    close(fds[1]);
}

static void log_to_an_unread_terminal_never_blocks(void **state)
{
    static capture_t capture;
    const int master = posix_openpt(O_RDWR | O_NOCTTY);
    int terminal;

    (void)state;
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) skip();
    terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    if (terminal < 0) skip();
    dp_log_init(&capture.log, DP_LOG_INFO, 0);
    capture.log.fd = terminal;
    capture.read_fd = master;
    capture.log.queue = dp_log_queue_create();
    fill(terminal);
    flood(&capture);
    dp_log_queue_destroy(capture.log.queue);
    close(terminal);
    close(master);
}

/* A descriptor that cannot be opened once more: only the queue's thread blocks on it, and the end
 * does not wait for that for long. */
static void log_to_a_full_pipe_of_another_never_blocks(void **state)
{
    static capture_t capture;
    struct rlimit before;
    struct rlimit none;
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    getrlimit(RLIMIT_NOFILE, &before);
    none = (struct rlimit){0, before.rlim_max};
    dp_log_init(&capture.log, DP_LOG_INFO, 0);
    capture.log.fd = fds[1];
    capture.read_fd = fds[0];
    capture.log.queue = dp_log_queue_create();
    fill(fds[1]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    flood(&capture);
    fill(fds[1]);
    alarm(30);
    dp_log_error(&capture.log, "last words");
    dp_log_queue_destroy(capture.log.queue); /* which the thread frees once it can */
    alarm(0);
    capture.text[0] = '\0';
    read_until(&capture, "last words\n");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    close(fds[1]);
    assert_int_equal(read(fds[0], capture.text, 1), 0);
    close(fds[0]);
}

static void log_without_a_queue_waits_a_moment_at_most(void **state)
{
    static capture_t capture;
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    dp_log_init(&capture.log, DP_LOG_INFO, 0);
    capture.log.fd = fds[1];
    fill(fds[1]);
    alarm(30);
    dp_log_info(&capture.log, "lost");
    alarm(0);
    close(fds[0]);
    close(fds[1]);
}

static void log_flushes_what_a_reader_takes_late(void **state)
{
    static capture_t capture;
    char bytes[4096];
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    dp_log_init(&capture.log, DP_LOG_INFO, 0);
    capture.log.fd = fds[1];
    capture.read_fd = fds[0];
    capture.log.queue = dp_log_queue_create();
    fill(fds[1]);
    dp_log_error(&capture.log, "last words");
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    while (read(fds[0], bytes, sizeof(bytes)) == (ssize_t)sizeof(bytes)) {
    }
    assert_int_equal(fcntl(fds[0], F_SETFL, 0), 0);
    dp_log_queue_destroy(capture.log.queue);
    close(fds[1]);
    read_until(&capture, "last words\n");
    assert_string_equal(capture.text, "dp error rank 0: last words\n");
    close(fds[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_line_names_level_and_rank),
        cmocka_unit_test(log_level_above_the_limit_is_dropped),
        cmocka_unit_test(log_line_break_in_a_text_does_not_forge_a_line),
        cmocka_unit_test(log_long_text_is_cut_to_one_line),
        cmocka_unit_test(log_keeps_errno),
        cmocka_unit_test(log_lines_of_threads_do_not_mix),
        cmocka_unit_test(log_to_a_full_pipe_never_blocks),
        cmocka_unit_test(log_to_an_unread_terminal_never_blocks),
        cmocka_unit_test(log_to_a_full_pipe_of_another_never_blocks),
        cmocka_unit_test(log_without_a_queue_waits_a_moment_at_most),
        cmocka_unit_test(log_flushes_what_a_reader_takes_late),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
