/*
 * test_job.c - environment, program search, cores, timeline and channel: the small parts of a job.
 */
#include "launcher/dprun/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <unistd.h>

#include "launcher/dprun/channel.h"
#include "launcher/dprun/run_dir.h"
#include "launcher/dprun/timeline.h"
#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

static void env_sets_replaces_and_keeps(void **state)
{
    char *base[] = {"A=1", "AB=2", "EMPTY=", NULL};
    dp_env_t env;

    (void)state;
    assert_int_equal(dp_env_init(&env, base), 0);
    assert_int_equal(dp_env_set(&env, "A", "x=y"), 0);
    assert_int_equal(dp_env_default(&env, "AB", "9"), 0);
    assert_int_equal(dp_env_default(&env, "EMPTY", "9"), 0);
    assert_int_equal(dp_env_default(&env, "NEW", "n"), 1);
    assert_string_equal(dp_env_get(&env, "A"), "x=y");
    assert_string_equal(dp_env_get(&env, "AB"), "2");
    assert_string_equal(dp_env_get(&env, "EMPTY"), "");
    assert_string_equal(dp_env_get(&env, "NEW"), "n");
    assert_null(dp_env_get(&env, "N"));
    assert_int_equal(env.count, 4);
    assert_null(env.entries[4]);
    dp_env_fini(&env);
}

static void env_survives_any_failed_allocation(void **state)
{
    char *base[] = {"A=1", "B=2", NULL};
    int is_done = 0;

    (void)state;
    for (long nth = 1; !is_done; nth++) {
        dp_env_t env;

        assert_true(nth < 200);
        fail_allocation(nth);
        if (dp_env_init(&env, base) == 0) {
            is_done = 1;
            for (int i = 0; i < 100 && is_done; i++) {
                char name[16];

                snprintf(name, sizeof(name), "N%d", i);
                if (dp_env_set(&env, name, "v") != 0) is_done = 0;
            }
            if (!is_done) assert_string_equal(dp_env_get(&env, "B"), "2");
        }
        fail_allocation(0);
        dp_env_fini(&env);
    }
}

static void program_is_found_as_a_shell_does(void **state)
{
    char found[PATH_MAX];
    dp_error_t error;

    (void)state;
    assert_int_equal(dp_program_find("sh", "/nowhere:/bin", found, sizeof(found), &error), 0);
    assert_string_equal(found, "/bin/sh");
    assert_int_equal(dp_program_find("/bin/sh", "", found, sizeof(found), &error), 0);
    assert_int_equal(dp_program_find("no-such", "/bin:/usr/bin", found, sizeof(found), &error),
                     127);
    assert_non_null(strstr(error.text, "no-such"));
    assert_int_equal(dp_program_find("/no/such", "", found, sizeof(found), &error), 127);
    assert_int_equal(dp_program_find("/", "", found, sizeof(found), &error), 126);
    assert_int_equal(dp_program_find("/etc/passwd", "", found, sizeof(found), &error), 126);
    assert_int_equal(dp_program_find("passwd", "/etc", found, sizeof(found), &error), 126);
    assert_int_equal(dp_program_find("", "/bin", found, sizeof(found), &error), 127);
}

static void cores_are_shared_evenly(void **state)
{
    cpu_set_t sets[6];
    dp_cores_t cores = {.allowed = 6, .in_machine = 6, .count = 6, .sets = sets};
    cpu_set_t set;
    cpu_set_t all;
    char text[64];

    (void)state;
    for (int i = 0; i < 6; i++) {
        CPU_ZERO(&sets[i]);
        CPU_SET(i, &sets[i]);
        CPU_SET(i + 6, &sets[i]); /* its hyperthread */
    }
    assert_int_equal(dp_cores_share(&cores, 4), 1);
    assert_int_equal(dp_cores_share(&cores, 2), 3);
    assert_int_equal(dp_cores_share(&cores, 100), 1);
    CPU_ZERO(&all);
    for (int rank = 0; rank < 4; rank++) {
        dp_cores_of_rank(&cores, rank, 4, &set);
        assert_true(CPU_COUNT(&set) == 2 || CPU_COUNT(&set) == 4);
        CPU_OR(&all, &all, &set);
    }
    assert_int_equal(CPU_COUNT(&all), 12);
    dp_cores_of_rank(&cores, 7, 9, &set);
    dp_cores_format(&set, text, sizeof(text));
    assert_string_equal(text, "1,7");
    dp_cores_of_rank(&cores, 0, 2, &set);
    dp_cores_format(&set, text, sizeof(text));
    assert_string_equal(text, "0-2,6-8");
    dp_cores_format(&set, text, 4); /* cut, not overrun */
    assert_true(strlen(text) < 4);
}

static void cores_of_this_machine_are_some(void **state)
{
    dp_cores_t cores;

    (void)state;
    dp_cores_init(&cores);
    assert_true(cores.allowed >= 1);
    assert_true(cores.allowed <= cores.in_machine);
    dp_cores_fini(&cores);
}

static void timeline_is_file_and_steps(void **state)
{
    static const char *const bad[] = {"",
                                      ":steps=1-2",
                                      "f:steps=",
                                      "f:steps=1",
                                      "f:steps=2-1",
                                      "f:steps=1-2x",
                                      "f:steps=-1-2",
                                      "f:steps=a-b"};
    dp_timeline_request_t timeline;
    dp_error_t error;

    (void)state;
    assert_int_equal(dp_timeline_request_parse("a/b:c.json", &timeline, &error), DP_OK);
    assert_string_equal(timeline.file, "a/b:c.json");
    assert_string_equal(timeline.steps, "");
    assert_int_equal(dp_timeline_request_parse("f:steps=10-20", &timeline, &error), DP_OK);
    assert_string_equal(timeline.file, "f");
    assert_string_equal(timeline.steps, "10-20");
    for (size_t i = 0; i < DP_ARRAY_LEN(bad); i++) {
        assert_int_equal(dp_timeline_request_parse(bad[i], &timeline, &error), DP_ERR_CONFIG);
    }
    assert_int_equal(dp_timeline_request_parse("/nonexistent/f", &timeline, &error), DP_OK);
    assert_int_equal(dp_timeline_request_check(&timeline, &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "/nonexistent/f"));
}

static void channel_carries_messages_and_files(void **state)
{
    dp_message_t message;
    dp_message_t got;
    int fds[2];

    (void)state;
    assert_int_equal(dp_channel_open(fds, NULL), DP_OK);
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    assert_int_equal(dp_channel_receive(fds[1], &got), 0);
    dp_message_init(&message, DP_MESSAGE_STARTED, 7);
    message.pid = 1234;
    message.status = -5;
    message.time_ns = UINT64_MAX - 1;
    snprintf(message.text, sizeof(message.text), "text");
    message.fds[0] = 0;
    message.fds[1] = 1;
    assert_int_equal(dp_channel_send(fds[0], &message), 0);
    assert_int_equal(dp_channel_receive(fds[1], &got), 1);
    assert_int_equal(got.type, DP_MESSAGE_STARTED);
    assert_int_equal(got.rank, 7);
    assert_int_equal(got.pid, 1234);
    assert_int_equal(got.status, -5);
    assert_true(got.time_ns == UINT64_MAX - 1);
    assert_string_equal(got.text, "text");
    assert_true(got.fds[0] > 2 && got.fds[1] > 2);
    close(got.fds[0]);
    close(got.fds[1]);
    assert_int_equal(write(fds[0], "garbage", 7), 7);
    assert_int_equal(dp_channel_receive(fds[1], &got), -1);
    close(fds[0]);
    assert_int_equal(dp_channel_receive(fds[1], &got), -1);
    assert_int_equal(dp_channel_send(fds[1], &message), -1);
    close(fds[1]);
}

static void run_dir_is_made_counted_and_removed(void **state)
{
    char path[PATH_MAX];
    char file[PATH_MAX + 16];
    dp_error_t error;

    (void)state;
    assert_int_equal(dp_run_dir_create(path, sizeof(path), &error), DP_OK);
    assert_int_equal(dp_run_dir_files(path, NULL), 0);
    snprintf(file, sizeof(file), "%s/link", path);
    assert_int_equal(symlink("/etc", file), 0);
    assert_int_equal(dp_run_dir_files(path, NULL), 1);
    assert_int_equal(dp_run_dir_remove(path), 0);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(access("/etc/passwd", F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(env_sets_replaces_and_keeps),
        cmocka_unit_test(env_survives_any_failed_allocation),
        cmocka_unit_test(program_is_found_as_a_shell_does),
        cmocka_unit_test(cores_are_shared_evenly),
        cmocka_unit_test(cores_of_this_machine_are_some),
        cmocka_unit_test(timeline_is_file_and_steps),
        cmocka_unit_test(channel_carries_messages_and_files),
        cmocka_unit_test(run_dir_is_made_counted_and_removed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
