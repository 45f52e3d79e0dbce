/*
 * fuzz_values.c - any text as a value of a setting, as DP_ variables, as a window of steps; any
 * bytes as the plan that rank 0 hands out.
 *
 * The first byte picks what the rest is. A value that is accepted must come back as it is written.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/config.h"
#include "runtime/base/config_value.h"
#include "runtime/base/wire.h"

enum { VALUES, VARIABLES, WINDOW, PLAN, KINDS };

static void check_again(const char *(*parse)(const char *, int64_t *), int64_t value,
                        const char *text)
{
    int64_t again = 0;

    if (parse(text, &again) == NULL && again == value) return;
    fprintf(stderr, "%lld was written as %s and read as %lld\n", (long long)value, text,
            (long long)again);
    abort();
}

static void fuzz_values(const char *text)
{
    char written[64];
    char folded[DP_CONFIG_NAME_ROOM];
    const char *nearest;
    int64_t value;

    if (dp_parse_bytes(text, &value) == NULL) {
        dp_format_bytes(value, written, sizeof(written));
        check_again(dp_parse_bytes, value, written);
    }
    if (dp_parse_time(text, &value) == NULL) {
        dp_format_time(value, written, sizeof(written));
        check_again(dp_parse_time, value, written);
    }
    if (dp_parse_integer(text, &value) == NULL) {
        snprintf(written, sizeof(written), "%lld", (long long)value);
        check_again(dp_parse_integer, value, written);
    }
    if (dp_parse_yes_no(text, &value) == NULL && value != 0 && value != 1) abort();
    if (dp_parse_choice(text, "none|fp16|bf16") > 2) abort();
    if (dp_config_fold_name(text, folded) && strlen(folded) != strlen(text)) abort();
    if (dp_config_find(text, &nearest) != SIZE_MAX && nearest != NULL) abort();
}

/* Lines NAME=VALUE become the environment. */
static void fuzz_variables(char *text)
{
    static const char *const marks = "\n";
    dp_config_t config;
    dp_error_t error = {DP_OK, ""};
    dp_log_t log;

    clearenv();
    for (char *rest = text, *line = strtok_r(text, marks, &rest); line != NULL;
         line = strtok_r(NULL, marks, &rest)) {
        char *equals = strchr(line, '=');

        if (equals == NULL || equals == line) continue;
        *equals = '\0';
        (void)setenv(line, equals + 1, 1);
    }
    dp_config_defaults(&config);
    dp_log_init(&log, DP_LOG_ERROR, -1);
    if (dp_config_from_environment(&config, &log, &error) != DP_OK && error.text[0] == '\0') {
        abort();
    }
    if (dp_config_check(&config, &error) != DP_OK && error.text[0] == '\0') abort();
}

static void fuzz_window(const char *text)
{
    dp_window_t window;
    dp_error_t error = {DP_OK, ""};

    if (dp_window_parse(text, &window, &error) != DP_OK) {
        if (error.text[0] == '\0') abort();
        return;
    }
    if (window.file_bytes > strlen(text)) abort();
    if (window.has_steps && window.first > window.last) abort();
}

static void fuzz_plan(const uint8_t *data, size_t bytes)
{
    uint8_t written[1024];
    dp_config_t config;
    dp_reader_t reader;
    dp_writer_t writer;

    dp_config_defaults(&config);
    dp_reader_init(&reader, data, bytes);
    dp_config_read_plan(&config, &reader);
    if (reader.failed) return;
    dp_writer_init(&writer, written, sizeof(written));
    dp_config_write_plan(&config, &writer);
    if (writer.bytes != reader.at || memcmp(written, data, writer.bytes) != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text;

    if (bytes == 0) return 0;
    text = malloc(bytes);
    if (text == NULL) return 0;
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = '\0';
    switch (data[0] % KINDS) {
    case VALUES:
        fuzz_values(text);
        break;
    case VARIABLES:
        fuzz_variables(text);
        break;
    case WINDOW:
        fuzz_window(text);
        break;
    default:
        fuzz_plan(data + 1, bytes - 1);
        break;
    }
    free(text);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    /* The first character modulo four is the kind: '@' 0, 'A' 1, 'B' 2. */
    static const char *const seeds[] = {
        "@64M",
        "@1.5ms",
        "@10min",
        "@-42",
        "@yes",
        "@fp16",
        "@Fusion-Bytes",
        "@9223372036854775807",
        "@0.0000001s",
        "@8388607T",
        "ADP_FUSION_BYTES=32M\nDP_LOG=debug\nHOME=/\nDP_FUSION_BITES=1",
        "ADP_RANK=1\nDP_SIZE=2\nDP_LOCAL_RANK=0\nDP_LOCAL_SIZE=1\nDP_BOOTSTRAP_FD=3",
        "ADP_PEER_TIMEOUT=1s\nDP_HEARTBEAT=900ms\nDP_TIMELINE=a.pftrace:steps=1-2",
        "Bout.pftrace:steps=10-20",
        "Bout.json",
        "B:steps=18446744073709551615-18446744073709551615",
    };
    dp_config_t config;
    dp_writer_t writer;

    if (which < DP_ARRAY_LEN(seeds)) {
        return fuzz_seed_text(seeds, DP_ARRAY_LEN(seeds), which, data, room);
    }
    if (which > DP_ARRAY_LEN(seeds)) return 0;
    dp_config_defaults(&config);
    data[0] = PLAN;
    dp_writer_init(&writer, data + 1, room - 1);
    dp_config_write_plan(&config, &writer);
    return 1 + writer.bytes;
}
