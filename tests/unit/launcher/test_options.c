/*
 * test_options.c - what a dprun command line means, and what is said of a wrong one.
 */
#include "launcher/dprun/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

/* Parses argv, a list that ends with NULL. */
static dp_status_t parse(char **argv, dp_command_t *command, dp_error_t *error)
{
    int argc = 0;

    while (argv[argc] != NULL) {
        argc++;
    }
    error->text[0] = '\0';
    return dp_command_parse(argc, argv, NULL, command, error);
}

#define PARSE(command, error, ...) parse((char *[]){"dprun", __VA_ARGS__, NULL}, command, error)

static void options_flags_end_at_the_program(void **state)
{
    dp_command_t command;
    dp_error_t error;

    (void)state;
    assert_int_equal(PARSE(&command, &error, "-np", "2", "program", "--np", "9"), DP_OK);
    assert_int_equal(command.size, 2);
    assert_string_equal(command.argv[0], "program");
    assert_string_equal(command.argv[2], "9");
    assert_int_equal(PARSE(&command, &error, "-n", "3", "--", "--odd-name"), DP_OK);
    assert_int_equal(command.size, 3);
    assert_string_equal(command.argv[0], "--odd-name");
    assert_int_equal(PARSE(&command, &error, "-np", "1", "--", "p", ":", "-np", "1"), DP_OK);
    assert_int_equal(PARSE(&command, &error, "-np", "1", "p", ":", "-x", ":"), DP_OK);
    assert_int_equal(PARSE(&command, &error, "--np=4", "p"), DP_OK);
    assert_int_equal(command.size, 4);
    assert_int_equal(PARSE(&command, &error, "-np=5", "p"), DP_OK);
    assert_int_equal(command.size, 5);
}

/* Keeps each logged line, for options_given_twice_are_told(). */
static void keep_line(char *lines, char *const *argv)
{
    char path[] = "/tmp/dp-options-XXXXXX";
    const int fd = mkstemp(path);
    const int standard = dup(2);
    dp_command_t command;
    dp_error_t error;
    dp_log_t log;
    int argc = 0;
    ssize_t bytes;

    assert_true(fd >= 0 && standard >= 0);
    assert_int_equal(unlink(path), 0);
    while (argv[argc] != NULL)
        argc++;
    dp_log_init(&log, DP_LOG_WARN, -1);
    assert_true(dup2(fd, 2) == 2);
    assert_int_equal(dp_command_parse(argc, (char **)(uintptr_t)argv, &log, &command, &error),
                     DP_OK);
    assert_true(dup2(standard, 2) == 2);
    close(standard);
    bytes = pread(fd, lines, 1023, 0);
    assert_true(bytes >= 0);
    lines[bytes] = '\0';
    close(fd);
    dp_command_fini(&command);
}

static void options_given_twice_are_told(void **state)
{
    char lines[1024];

    (void)state;
    keep_line(lines, (char *[]){"dprun", "-n", "2", "--spin", "0us", "--np=3", "--spin=5us", "p",
                                "-n", "7", NULL});
    assert_non_null(strstr(lines, "--np is given twice, 2 and 3: the last one counts"));
    assert_non_null(strstr(lines, "--spin is given twice, 0us and 5us: the last one counts"));
    /* The same again, a list, and what is the program's. */
    keep_line(lines, (char *[]){"dprun", "-n", "2", "-n", "2", "-x", "A=1", "-x", "B=2",
                                "--trace=yes", "p", "-n", "7", "-n", "8", NULL});
    assert_null(strstr(lines, "twice"));
}

static void options_every_setting_is_a_flag(void **state)
{
    (void)state;
    for (size_t i = 0; i < dp_config_count(); i++) {
        const dp_setting_t *setting = dp_config_setting(i);
        char flag[128];
        char value[256];
        dp_command_t command;
        dp_error_t error;

        dp_flag_of_setting(setting, flag, sizeof(flag));
        snprintf(value, sizeof(value), "%s=%s", flag, setting->value);
        if (setting->is_internal) {
            assert_int_equal(PARSE(&command, &error, "-np", "1", value, "p"), DP_ERR_CONFIG);
            assert_non_null(strstr(error.text, flag));
            continue;
        }
        assert_int_equal(PARSE(&command, &error, "-np", "1", value, "p"), DP_OK);
        assert_int_equal(command.config.source[i], DP_FROM_FLAG);
    }
}

static void options_values_follow_or_are_joined(void **state)
{
    dp_command_t command;
    dp_error_t error;

    (void)state;
    assert_int_equal(PARSE(&command, &error, "-np", "1", "--fusion-bytes", "64M", "p"), DP_OK);
    assert_int_equal(command.config.fusion_bytes, 64 * DP_MIB);
    assert_int_equal(PARSE(&command, &error, "-np", "1", "--fusion-bytes=1M", "p"), DP_OK);
    assert_int_equal(command.config.fusion_bytes, DP_MIB);
    assert_int_equal(PARSE(&command, &error, "-np", "1", "--no-trace", "p"), DP_OK);
    assert_int_equal(command.config.trace, 0);
    assert_int_equal(PARSE(&command, &error, "-np", "1", "--trace", "p"), DP_OK);
    assert_int_equal(command.config.trace, 1);
    assert_string_equal(command.argv[0], "p");
}

/* --check looks at the machine; the knob of that name is meant where a value is given. */
static void options_check_flag_and_check_knob_are_told_apart(void **state)
{
    dp_command_t command;
    dp_error_t error;

    (void)state;
    assert_int_equal(PARSE(&command, &error, "--check"), DP_OK);
    assert_int_equal(command.action, DP_ACTION_CHECK);
    assert_int_equal(PARSE(&command, &error, "-np", "1", "--check=yes", "p"), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "takes no value"));
}

static void options_times_have_units(void **state)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } good[] = {{"5", 5000000000u},  {"0.5", 500000000u},      {"200ms", 200000000u},
                {"2s", 2000000000u}, {"15min", 900000000000u}, {"1h", 3600000000000u}};
    static const char *const bad[] = {"",  "-1", "5x",  "nan", "inf",          "1e99",
                                      ".", "s",  "15m", "1 s", "999999999999", "0x10"};
    dp_command_t command;
    dp_error_t error;

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(good); i++) {
        char text[64];

        snprintf(text, sizeof(text), "--timeout=%s", good[i].text);
        assert_int_equal(PARSE(&command, &error, "-np", "1", text, "p"), DP_OK);
        assert_int_equal(command.timeout_ns, good[i].ns);
    }
    for (size_t i = 0; i < DP_ARRAY_LEN(bad); i++) {
        char text[64];

        snprintf(text, sizeof(text), "--timeout=%s", bad[i]);
        assert_int_equal(PARSE(&command, &error, "-np", "1", text, "p"), DP_ERR_CONFIG);
        assert_non_null(strstr(error.text, "--timeout"));
    }
}

static void options_wrong_ones_are_named(void **state)
{
    static const struct {
        const char *arguments[5];
        const char *text;
    } cases[] = {
        {{"-np", "1", "--fusion-byte", "3", "p"}, "did you mean --fusion-bytes"},
        {{"-np", "1", "--outputdir=x", "p"}, "did you mean --output-dir"},
        {{"-np", "1", "--zzzzzzzzzzzz", "p"}, "unknown flag --zzzzzzzzzzzz"},
        {{"-np", "0", "p"}, "-np 0: must be a number from 1 to 1024"},
        {{"-np", "1025", "p"}, "-np 1025"},
        {{"-np", "2x", "p"}, "-np 2x"},
        {{"-np"}, "-np needs a value"},
        {{"p"}, "-np N is missing"},
        {{"-np", "2"}, "the program is missing"},
        {{"-np", "2", "--stdin", "2", "p"}, "--stdin 2: the job has ranks 0 to 1"},
        {{"-np", "2", "--stdin", "-1", "p"}, "--stdin -1"},
        {{"-np", "2", "--bind=socket", "p"}, "--bind socket: must be none|core"},
        {{"-np", "2", "--quiet=1", "p"}, "--quiet takes no value"},
        {{"-np", "2", "--color=red", "p"}, "--color red"},
        {{"-np", "2", "--env", "=x", "p"}, "--env =x"},
        {{"-np", "2", "--env", "DP_TEST_UNSET", "p"}, "DP_TEST_UNSET: not set here"},
        {{"-np", "2", "--wire", "fp8", "p"}, "fp8"},
        {{"-np", "2", "--start-timeout", "30", "p"},
         "--start-timeout: '30' has no unit: ns, us, ms, s, min or h; write 30s"},
        {{"-np", "auto", "p"}, "-np auto: must be a number from 1 to 1024; -np $(nproc)"},
        {{"--nproc-per-node=2", "p"}, "unknown flag --nproc-per-node; torchrun's: write -np N"},
        {{"--nproc_per_node", "2", "p"}, "write -np N"},
        {{"--nnodes=2", "p"}, "write -H a:4,b:4, or --node R/N"},
        {{"-np", "2", "--oversubscribe", "p"}, "leave it out"},
        {{"-np", "2", "--mca", "btl", "self"}, "dprun uses no MPI"},
        {{"-np", "2", "--bind-to", "core", "p"}, "write --bind core"},
        {{"-np", "2", "--tag-output", "p"}, "leave it out"},
        {{"-np", "2", "--max-restarts=3", "p"}, "starts no rank again"},
        {{"-np", "2", "-ppn", "2", "p"}, "N ranks on each"},
        {{"-np", "2", "a", ":", "-np"}, "\": -np\": mpirun starts a second program so"},
        {{"-np", "2", "--meet=a:1", "p"}, "--meet a:1: it goes with --node"},
        {{"-np", "2", "--port=99", "p"}, "--port 99: on one machine"},
        {{"--node=0/2", "--port=99", "p"}, "--port 99: with --node"},
        {{"-np", "2", "--wdir=", "p"}, "--wdir : must be DIR"},
        {{"-np", "2", "--config=/nonexistent/file", "p"}, "/nonexistent/file"},
    };

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(cases); i++) {
        char *argv[7] = {"dprun"};
        dp_command_t command;
        dp_error_t error;

        for (int k = 0; k < 5; k++) {
            argv[k + 1] = (char *)(uintptr_t)cases[i].arguments[k];
        }
        assert_int_equal(parse(argv, &command, &error), DP_ERR_CONFIG);
        if (strstr(error.text, cases[i].text) == NULL) {
            fail_msg("\"%s\" does not contain \"%s\"", error.text, cases[i].text);
        }
    }
}

static void options_survive_any_failed_allocation(void **state)
{
    dp_status_t status = DP_ERR_NO_MEMORY;

    (void)state;
    for (long nth = 1; status != DP_OK; nth++) {
        dp_command_t command;
        dp_error_t error;

        assert_true(nth < 100);
        fail_allocation(nth);
        status = PARSE(&command, &error, "-np", "2", "-x", "A=1", "-x", "B=2", "p");
        fail_allocation(0);
        if (status == DP_OK) {
            assert_int_equal(command.variable_count, 2);
            dp_command_fini(&command);
        } else {
            assert_int_equal(status, DP_ERR_NO_MEMORY);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_flags_end_at_the_program),
        cmocka_unit_test(options_given_twice_are_told),
        cmocka_unit_test(options_every_setting_is_a_flag),
        cmocka_unit_test(options_values_follow_or_are_joined),
        cmocka_unit_test(options_check_flag_and_check_knob_are_told_apart),
        cmocka_unit_test(options_times_have_units),
        cmocka_unit_test(options_wrong_ones_are_named),
        cmocka_unit_test(options_survive_any_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
