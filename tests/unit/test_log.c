/*
 * test_log.c - a log line is one line, of the right level, whatever its text holds.
 */
#include "runtime/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_line_names_level_and_rank),
        cmocka_unit_test(log_level_above_the_limit_is_dropped),
        cmocka_unit_test(log_line_break_in_a_text_does_not_forge_a_line),
        cmocka_unit_test(log_long_text_is_cut_to_one_line),
        cmocka_unit_test(log_keeps_errno),
        cmocka_unit_test(log_lines_of_threads_do_not_mix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
