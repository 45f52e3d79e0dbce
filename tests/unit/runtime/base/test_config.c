/*
 * test_config.c - every knob is read, checked, named in its error, and written back.
 */
#include "runtime/base/config.h"
#include "runtime/base/config_value.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/wire.h"
#include "tests/unit/cases.h"

static dp_error_t error;

static int fresh(void **state)
{
    dp_config_t *config = calloc(1, sizeof(*config));

    if (config == NULL) return -1;
    memset(&error, 0, sizeof(error));
    dp_config_defaults(config);
    *state = config;
    return 0;
}

static int release(void **state)
{
    free(*state);
    return 0;
}

static dp_status_t set(dp_config_t *config, const char *name, const char *value)
{
    return dp_config_set(config, name, value, DP_FROM_FLAG, &error);
}

/* That value is refused and that the text holds each of the parts. */
static void refused(dp_config_t *config, const char *name, const char *value, const char *a,
                    const char *b, const char *c)
{
    dp_config_t before = *config;

    memset(&error, 0, sizeof(error));
    assert_int_equal(set(config, name, value), DP_ERR_CONFIG);
    assert_memory_equal(config, &before, sizeof(before));
    if (strstr(error.text, a) == NULL || strstr(error.text, b) == NULL ||
        strstr(error.text, c) == NULL) {
        fail_msg("'%s' lacks '%s', '%s' or '%s'", error.text, a, b, c);
    }
}

/* ---- Values --------------------------------------------------------------------------------- */

static void config_defaults_are_the_documented_ones(void **state)
{
    const dp_config_t *config = *state;

    assert_int_equal(config->fusion_bytes, 32u << 20);
    assert_int_equal(config->fusion_buffers, 3);
    assert_int_equal(config->hold_ns, 200000);
    assert_int_equal(config->wire, DP_WIRE_NONE);
    assert_int_equal(config->tree_arity, 8);
    assert_int_equal(config->check, 0);
    assert_true(config->stall_warn_ns == 10000000000u);
    assert_true(config->stall_limit_ns == 600000000000u);
    assert_int_equal(config->heartbeat_ns, 100000000);
    assert_true(config->peer_timeout_ns == 2500000000u);
    assert_true(config->start_timeout_ns == 30000000000u);
    assert_int_equal(config->spin_ns, 50000);
    assert_true(config->arena_bytes == 64 * DP_GIB);
    assert_int_equal(config->queue_depth, 8192);
    assert_int_equal(config->log_level, DP_LOG_WARN);
    assert_int_equal(config->pretend_nodes, 0);
    assert_string_equal(config->ucx_tls, "");
    assert_string_equal(config->ucx_devices, "");
    assert_int_equal(config->trace, 1);
    assert_int_equal(config->trace_bytes, 16u << 20);
    assert_int_equal(config->rank, -1);
    assert_int_equal(config->world_size, -1);
    assert_int_equal(config->bootstrap_fd, -1);
}

static void config_sizes_take_suffixes(void **state)
{
    dp_config_t *config = *state;

    assert_int_equal(set(config, "FUSION_BYTES", "8192"), DP_OK);
    assert_int_equal(config->fusion_bytes, 8192);
    assert_int_equal(set(config, "FUSION_BYTES", "64K"), DP_OK);
    assert_int_equal(config->fusion_bytes, 65536);
    assert_int_equal(set(config, "FUSION_BYTES", "2m"), DP_OK);
    assert_int_equal(config->fusion_bytes, 2u << 20);
    assert_int_equal(set(config, "FUSION_BYTES", "4G"), DP_OK);
    assert_true(config->fusion_bytes == 4 * DP_GIB);
    refused(config, "FUSION_BYTES", "5G", "--fusion-bytes", "'5G'", "4K to 4G");
    refused(config, "FUSION_BYTES", "1", "--fusion-bytes", "'1'", "4K to 4G");
    refused(config, "FUSION_BYTES", NULL, "--fusion-bytes", "needs a value", "");
    refused(config, "FUSION_BYTES", "", "--fusion-bytes", "''", "is not a size");
    refused(config, "FUSION_BYTES", "-1", "--fusion-bytes", "'-1'", "is not a size");
    refused(config, "FUSION_BYTES", "64 K", "--fusion-bytes", "'64 K'", "is not a size");
    refused(config, "FUSION_BYTES", "64KK", "", "'64KK'", "is not a size");
    refused(config, "FUSION_BYTES", "0x1000", "", "'0x1000'", "is not a size");
    refused(config, "FUSION_BYTES", "9999999999T", "", "9999999999T", "larger than any size");
    refused(config, "FUSION_BYTES", "99999999999999999999999", "", "", "is not a size");
}

static void config_times_need_units(void **state)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } times[] = {{"0", 0},
                 {"0s", 0},
                 {"7ns", 7},
                 {"150us", 150000},
                 {"3ms", 3000000},
                 {"1s", 1000000000},
                 {"0.5s", 500000000},
                 {"0.000250s", 250000},
                 {"0.0001ms", 100},
                 {"0.9999999999999999us", 999}};
    dp_config_t *config = *state;

    for (size_t i = 0; i < DP_ARRAY_LEN(times); i++) {
        assert_int_equal(set(config, "FUSION_HOLD", times[i].text), DP_OK);
        assert_int_equal(config->hold_ns, times[i].ns);
    }
    assert_int_equal(set(config, "STALL_LIMIT", "10min"), DP_OK);
    assert_true(config->stall_limit_ns == 600000000000u);
    assert_int_equal(set(config, "STALL_LIMIT", "2H"), DP_OK);
    assert_true(config->stall_limit_ns == 7200000000000u);
    refused(config, "FUSION_HOLD", "200", "--fusion-hold", "'200'", "has no unit");
    refused(config, "FUSION_HOLD", "2s", "--fusion-hold", "'2s'", "0 to 1s");
    refused(config, "FUSION_HOLD", "1.5", "", "'1.5'", "is not a time");
    refused(config, "FUSION_HOLD", "1.s", "", "'1.s'", "is not a time");
    refused(config, "FUSION_HOLD", "soon", "", "'soon'", "is not a time");
    refused(config, "STALL_LIMIT", "99999999999999h", "", "", "longer than any time");
}

static void config_yes_no_takes_words(void **state)
{
    dp_config_t *config = *state;
    static const char *const yes[] = {"1", "yes", "on", "YES", "true"};
    static const char *const no[] = {"0", "no", "off", "Off", "false"};

    for (size_t i = 0; i < DP_ARRAY_LEN(yes); i++) {
        config->check = 0;
        assert_int_equal(set(config, "CHECK_DATA", yes[i]), DP_OK);
        assert_int_equal(config->check, 1);
        assert_int_equal(set(config, "CHECK_DATA", no[i]), DP_OK);
        assert_int_equal(config->check, 0);
    }
    refused(config, "CHECK_DATA", "2", "--check-data", "'2'", "");
    refused(config, "CHECK_DATA", "maybe", "--check-data", "'maybe'", "");
}

static void config_choices_are_named_in_the_error(void **state)
{
    dp_config_t *config = *state;

    assert_int_equal(set(config, "WIRE", "FP16"), DP_OK);
    assert_int_equal(config->wire, DP_WIRE_FP16);
    assert_int_equal(set(config, "WIRE", "bf16"), DP_OK);
    assert_int_equal(config->wire, DP_WIRE_BF16);
    assert_int_equal(set(config, "LOG", "trace"), DP_OK);
    assert_int_equal(config->log_level, DP_LOG_TRACE);
    refused(config, "WIRE", "fp8", "--wire", "'fp8'", "none|fp16|bf16");
    refused(config, "WIRE", "fp", "", "'fp'", "none|fp16|bf16");
    refused(config, "WIRE", "none|fp16", "", "", "none|fp16|bf16");
    refused(config, "WIRE", "", "", "''", "none|fp16|bf16");
}

static void config_integers_are_bounded(void **state)
{
    dp_config_t *config = *state;

    assert_int_equal(set(config, "TREE_ARITY", "2"), DP_OK);
    assert_int_equal(config->tree_arity, 2);
    refused(config, "TREE_ARITY", "0", "--tree-arity", "'0'", "1 to 64");
    refused(config, "TREE_ARITY", "4294967297", "--tree-arity", "'4294967297'", "1 to 64");
    refused(config, "TREE_ARITY", "8.0", "", "'8.0'", "is not a whole number");
    refused(config, "TREE_ARITY", "-", "", "'-'", "is not a whole number");
    refused(config, "QUEUE_DEPTH", "1", "--queue-depth", "'1'", "2 to 1048576");
}

static void config_text_has_a_limit(void **state)
{
    dp_config_t *config = *state;
    char text[65];

    memset(text, 'x', 64);
    text[64] = '\0';
    refused(config, "UCX_TLS", text, "--ucx-tls", "64 bytes", "at most 63");
    text[63] = '\0';
    assert_int_equal(set(config, "UCX_TLS", text), DP_OK);
    assert_string_equal(config->ucx_tls, text);
}

/* Every setting, written as text and read again, is what it was. */
static void config_format_can_be_read_back(void **state)
{
    dp_config_t *config = *state;
    dp_config_t other;
    char text[DP_CONFIG_TEXT_MAX];

    assert_int_equal(set(config, "FUSION_BYTES", "4097"), DP_OK);
    assert_int_equal(set(config, "STALL_WARN", "90s"), DP_OK);
    assert_int_equal(set(config, "HEARTBEAT", "1500ms"), DP_OK);
    assert_int_equal(set(config, "TIMELINE", "run.pftrace:steps=2-4"), DP_OK);
    assert_int_equal(set(config, "WIRE", "bf16"), DP_OK);
    dp_config_defaults(&other);
    for (size_t i = 0; i < dp_config_count(); i++) {
        dp_config_format(config, i, text, sizeof(text));
        assert_int_equal(
            dp_config_set(&other, dp_config_setting(i)->name, text, DP_FROM_FLAG, &error), DP_OK);
    }
    memcpy(other.source, config->source, sizeof(other.source));
    assert_memory_equal(&other, config, sizeof(other));
    dp_config_format(config, dp_config_find("stall-warn", NULL), text, sizeof(text));
    assert_string_equal(text, "90s");
    dp_config_format(config, dp_config_count(), text, sizeof(text));
    assert_string_equal(text, "");
    assert_null(dp_config_setting(dp_config_count()));
}

static void config_rows_are_complete(void **state)
{
    (void)state;
    for (size_t i = 0; i < dp_config_count(); i++) {
        const dp_setting_t *setting = dp_config_setting(i);

        assert_true(strlen(setting->help) > 10);
        assert_int_equal(setting->help[strlen(setting->help) - 1], '.');
        assert_true(strlen(setting->kind) > 0);
        assert_int_equal(dp_config_find(setting->name, NULL), i);
    }
}

/* ---- Names and sources ---------------------------------------------------------------------- */

static void config_names_fold_case_and_dashes(void **state)
{
    dp_config_t *config = *state;

    assert_int_equal(set(config, "fusion-buffers", "5"), DP_OK);
    assert_int_equal(config->fusion_buffers, 5);
    assert_int_equal(set(config, "Fusion_Buffers", "6"), DP_OK);
    assert_int_equal(config->fusion_buffers, 6);
}

static void config_unknown_names_get_the_nearest(void **state)
{
    dp_config_t *config = *state;
    char endless[300];

    refused(config, "fusion-byte", "1M", "'fusion-byte'", "the nearest is --fusion-bytes", "");
    refused(config, "fuison-bytes", "1M", "", "the nearest is --fusion-bytes", "");
    refused(config, "wier", "fp16", "", "the nearest is --wire", "");
    memset(&error, 0, sizeof(error));
    assert_int_equal(set(config, "colour-of-the-sky", "blue"), DP_ERR_CONFIG);
    assert_null(strstr(error.text, "nearest"));
    memset(endless, 'a', sizeof(endless) - 1);
    endless[sizeof(endless) - 1] = '\0';
    assert_int_equal(set(config, endless, "1"), DP_ERR_CONFIG);
    assert_int_equal(set(config, "", "1"), DP_ERR_CONFIG);
}

static void nearest_name_is_close_or_none(void **state)
{
    static const char *const names[] = {"output-dir", "timeline", "check", NULL, "np"};

    (void)state;
    assert_string_equal(dp_nearest_name("timelin", names, 5), "timeline");
    assert_string_equal(dp_nearest_name("outputdir", names, 5), "output-dir");
    assert_string_equal(dp_nearest_name("chekc", names, 5), "check");
    assert_null(dp_nearest_name("timbuktu", names, 5));
    assert_null(dp_nearest_name("x", names, 3));
    assert_null(dp_nearest_name("timeline", names, 0));
}

static void config_lower_source_never_overrides(void **state)
{
    dp_config_t *config = *state;

    assert_int_equal(dp_config_set(config, "WIRE", "fp16", DP_FROM_ENVIRONMENT, &error), DP_OK);
    assert_int_equal(dp_config_set(config, "WIRE", "none", DP_FROM_FILE, &error), DP_OK);
    assert_int_equal(config->wire, DP_WIRE_FP16);
    assert_int_equal(dp_config_set(config, "WIRE", "bf16", DP_FROM_FLAG, &error), DP_OK);
    assert_int_equal(config->wire, DP_WIRE_BF16);
    assert_int_equal(dp_config_set(config, "WIRE", "none", DP_FROM_ENVIRONMENT, &error), DP_OK);
    assert_int_equal(config->wire, DP_WIRE_BF16);
    /* An overridden value is still checked: a wrong line is wrong whatever overrides it. */
    assert_int_equal(dp_config_set(config, "WIRE", "fp8", DP_FROM_FILE, &error), DP_ERR_CONFIG);
}

/* A program's settings are over the defaults and below files and the environment. */
static void config_program_sets_a_list(void **state)
{
    dp_config_t *config = *state;
    assert_int_equal(dp_config_set(config, "WIRE", "fp16", DP_FROM_ENVIRONMENT, &error), DP_OK);
    assert_int_equal(
        dp_config_from_program(config, "WIRE=none;fusion-bytes=1M;;STALL_WARN=3s;", &error), DP_OK);
    assert_int_equal(config->wire, DP_WIRE_FP16);
    assert_int_equal(config->fusion_bytes, 1 << 20);
    assert_int_equal(config->stall_warn_ns, UINT64_C(3000000000));
    assert_int_equal(dp_config_from_program(config, "", &error), DP_OK);
    assert_int_equal(dp_config_from_program(config, "FUSION_BITES=1M", &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "FUSION_BITES"));
    assert_non_null(strstr(error.text, "FUSION_BYTES"));
    assert_int_equal(dp_config_from_program(config, "WIRE", &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "WIRE needs a value"));
    assert_int_equal(dp_config_from_program(config, "RANK=1", &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "launcher"));
}

static void config_values_that_do_not_fit_together_fail(void **state)
{
    dp_config_t *config = *state;

    assert_int_equal(dp_config_check(config, &error), DP_OK);
    assert_int_equal(set(config, "HEARTBEAT", "2s"), DP_OK);
    assert_int_equal(dp_config_check(config, &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "DP_PEER_TIMEOUT=2500ms"));
    assert_non_null(strstr(error.text, "DP_HEARTBEAT=2s"));
    assert_int_equal(set(config, "PEER_TIMEOUT", "0"), DP_OK);
    assert_int_equal(dp_config_check(config, &error), DP_OK);
}

/* ---- Environment ---------------------------------------------------------------------------- */

static const char *from_environment(dp_config_t *config, dp_status_t expected)
{
    static char text[4096];
    int fds[2];
    dp_log_t log;
    ssize_t bytes;

    assert_int_equal(pipe(fds), 0);
    dp_log_init(&log, DP_LOG_WARN, -1);
    log.fd = fds[1];
    memset(&error, 0, sizeof(error));
    assert_int_equal(dp_config_from_environment(config, &log, &error), expected);
    close(fds[1]);
    bytes = read(fds[0], text, sizeof(text) - 1);
    text[bytes > 0 ? bytes : 0] = '\0';
    close(fds[0]);
    return text;
}

static void config_environment_is_read_and_checked(void **state)
{
    dp_config_t *config = *state;

    setenv("DP_FUSION_BYTES", "1M", 1);
    setenv("DP_RANK", "2", 1);
    assert_string_equal(from_environment(config, DP_OK), "");
    assert_int_equal(config->fusion_bytes, DP_MIB);
    assert_int_equal(config->rank, 2);
    setenv("DP_FUSION_BYTES", "1Q", 1);
    from_environment(config, DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "DP_FUSION_BYTES: '1Q'"));
    unsetenv("DP_FUSION_BYTES");
    unsetenv("DP_RANK");
}

static void config_unknown_variable_warns_with_the_nearest(void **state)
{
    dp_config_t *config = *state;
    const char *text;

    setenv("DP_FUSOIN_BYTES", "1M", 1);
    setenv("DP_XYLOPHONE_PLAYER", "1", 1);
    setenv("DP_wire", "fp16", 1);
    setenv("DP_TEST_ANYTHING", "1", 1);
    text = from_environment(config, DP_OK);
    assert_non_null(
        strstr(text, "DP_FUSOIN_BYTES is no setting, the nearest is DP_FUSION_BYTES\n"));
    assert_non_null(strstr(text, "DP_XYLOPHONE_PLAYER is no setting\n"));
    assert_non_null(strstr(text, "DP_wire is no setting, the nearest is DP_WIRE\n"));
    assert_null(strstr(text, "DP_TEST_ANYTHING"));
    assert_int_equal(config->wire, DP_WIRE_NONE);
    config->rank = 1; /* rank 0 says it for all */
    assert_string_equal(from_environment(config, DP_OK), "");
    unsetenv("DP_FUSOIN_BYTES");
    unsetenv("DP_XYLOPHONE_PLAYER");
    unsetenv("DP_wire");
    unsetenv("DP_TEST_ANYTHING");
}

static void environment_of_others_is_read(void **state)
{
    (void)state;
    setenv("DP_TEST_SOMETHING", "value", 1);
    assert_string_equal(dp_environment("DP_TEST_SOMETHING"), "value");
    setenv("DP_TEST_SOMETHING", "", 1);
    assert_null(dp_environment("DP_TEST_SOMETHING"));
    unsetenv("DP_TEST_SOMETHING");
    assert_null(dp_environment("DP_TEST_SOMETHING"));
}

/* ---- File ----------------------------------------------------------------------------------- */

static char path[64];

static dp_status_t from_file(dp_config_t *config, const char *text, size_t bytes)
{
    int fd;
    dp_status_t status;

    snprintf(path, sizeof(path), "/tmp/dp-test-config-XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, bytes), (ssize_t)bytes);
    close(fd);
    memset(&error, 0, sizeof(error));
    status = dp_config_from_file(config, path, &error);
    unlink(path);
    return status;
}

static dp_status_t from_text(dp_config_t *config, const char *text)
{
    return from_file(config, text, strlen(text));
}

static void file_lines_set_values(void **state)
{
    dp_config_t *config = *state;

    assert_int_equal(from_text(config, "# a job of ours\r\n"
                                       "\n"
                                       "fusion-bytes = 1M   # small\n"
                                       "  FUSION_BUFFERS=2\t\n"
                                       "fusion_hold =\t1ms\r\n"
                                       "timeline = out#1.pftrace\n"
                                       "ucx-devices =\n"
                                       "wire = fp16"),
                     DP_OK);
    assert_int_equal(config->fusion_bytes, DP_MIB);
    assert_int_equal(config->fusion_buffers, 2);
    assert_int_equal(config->hold_ns, 1000000);
    assert_string_equal(config->timeline, "out#1.pftrace");
    assert_string_equal(config->ucx_devices, "");
    assert_int_equal(config->wire, DP_WIRE_FP16);
    assert_int_equal(from_text(config, ""), DP_OK);
}

static void file_error(dp_config_t *config, const char *text, size_t bytes, const char *line,
                       const char *cause)
{
    char place[96];

    assert_int_equal(from_file(config, text, bytes), DP_ERR_CONFIG);
    snprintf(place, sizeof(place), "%s:%s: ", path, line);
    if (strstr(error.text, place) != error.text || strstr(error.text, cause) == NULL) {
        fail_msg("'%s' lacks '%s' or '%s'", error.text, place, cause);
    }
}

static void file_errors_name_the_line(void **state)
{
    dp_config_t *config = *state;
    char endless[3000];
    static const char wrong[] = "\n\nwire = fp8\n";
    static const char unknown[] = "wire = fp16\nfusion = 1\nfusion-byte = 2M\n";
    static const char equals[] = "wire fp16\n";
    static const char nul[] = "wire = fp16\nlog = \0warn\n";
    static const char internal[] = "rank = 3\n";

    file_error(config, wrong, sizeof(wrong) - 1, "3", "none|fp16|bf16");
    file_error(config, unknown, sizeof(unknown) - 1, "2", "'fusion'");
    file_error(config, equals, sizeof(equals) - 1, "1", "no '='");
    file_error(config, nul, sizeof(nul) - 1, "2", "NUL");
    file_error(config, internal, sizeof(internal) - 1, "1", "set by the launcher");
    memset(endless, 'x', sizeof(endless));
    file_error(config, endless, sizeof(endless), "1", "longer than");
}

static void file_missing_or_a_folder_is_an_error(void **state)
{
    dp_config_t *config = *state;

    assert_int_equal(dp_config_from_file(config, "/nonexistent/dp.conf", &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "/nonexistent/dp.conf: cannot be read: No such file"));
    assert_int_equal(dp_config_from_file(config, "/tmp", &error), DP_ERR_CONFIG);
    assert_non_null(strstr(error.text, "/tmp"));
}

/* ---- Handshake ------------------------------------------------------------------------------ */

static void plan_travels_and_the_rest_stays(void **state)
{
    dp_config_t *config = *state;
    dp_config_t other;
    uint8_t data[512];
    dp_writer_t writer;
    dp_reader_t reader;

    assert_int_equal(set(config, "FUSION_BYTES", "1M"), DP_OK);
    assert_int_equal(set(config, "WIRE", "bf16"), DP_OK);
    assert_int_equal(set(config, "STALL_LIMIT", "1h"), DP_OK);
    assert_int_equal(set(config, "SPIN", "1us"), DP_OK);
    dp_writer_init(&writer, data, sizeof(data));
    dp_config_write_plan(config, &writer);
    assert_false(writer.failed);
    dp_config_defaults(&other);
    dp_reader_init(&reader, data, writer.bytes);
    dp_config_read_plan(&other, &reader);
    assert_false(reader.failed);
    assert_int_equal(dp_reader_left(&reader), 0);
    assert_int_equal(other.fusion_bytes, DP_MIB);
    assert_int_equal(other.wire, DP_WIRE_BF16);
    assert_true(other.stall_limit_ns == 3600000000000u);
    assert_int_equal(other.spin_ns, 50000);
}

static void plan_cut_or_out_of_range_changes_nothing(void **state)
{
    dp_config_t *config = *state;
    const dp_config_t before = *config;
    uint8_t data[512];
    dp_writer_t writer;
    dp_reader_t reader;

    dp_writer_init(&writer, data, sizeof(data));
    dp_config_write_plan(config, &writer);
    for (size_t cut = 0; cut < writer.bytes; cut++) {
        dp_reader_init(&reader, data, cut);
        dp_config_read_plan(config, &reader);
        assert_true(reader.failed);
    }
    for (size_t at = 0; at < writer.bytes; at += 8) {
        uint8_t wrong[512];

        memcpy(wrong, data, sizeof(wrong));
        memset(wrong + at, 0x7f, 8);
        dp_reader_init(&reader, wrong, writer.bytes);
        dp_config_read_plan(config, &reader);
        assert_true(reader.failed);
    }
    assert_memory_equal(config, &before, sizeof(before));
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, fresh, release)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(config_defaults_are_the_documented_ones),
        CASE(config_sizes_take_suffixes),
        CASE(config_times_need_units),
        CASE(config_yes_no_takes_words),
        CASE(config_choices_are_named_in_the_error),
        CASE(config_integers_are_bounded),
        CASE(config_text_has_a_limit),
        CASE(config_format_can_be_read_back),
        CASE(config_rows_are_complete),
        CASE(config_names_fold_case_and_dashes),
        CASE(config_unknown_names_get_the_nearest),
        CASE(nearest_name_is_close_or_none),
        CASE(config_lower_source_never_overrides),
        CASE(config_program_sets_a_list),
        CASE(config_values_that_do_not_fit_together_fail),
        CASE(config_environment_is_read_and_checked),
        CASE(config_unknown_variable_warns_with_the_nearest),
        CASE(environment_of_others_is_read),
        CASE(file_lines_set_values),
        CASE(file_errors_name_the_line),
        CASE(file_missing_or_a_folder_is_an_error),
        CASE(plan_travels_and_the_rest_stays),
        CASE(plan_cut_or_out_of_range_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
