/*
 * test_trace_memory.c - the nth allocation fails, for every n until all goes well: creating a
 * recorder, and everything dptrace does from loading to the page. Nothing leaks (under asan),
 * nothing crashes, and the status says what happened.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/dptrace/analysis.h"
#include "launcher/dptrace/formats.h"
#include "launcher/dptrace/view.h"
#include "tests/trace/synth.h"
#include "tests/unit/cases.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
char *__wrap_strdup(const char *text);

static long countdown = -1; /* allocations until one fails; negative: none does */

static int fails_now(void)
{
    return countdown > 0 && --countdown == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(memory, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails_now() ? NULL : __real_strdup(text);
}

/* Runs `attempt` with the nth allocation failing until one run needs fewer than n. */
static void try_all(dp_status_t (*attempt)(const char *path), const char *path)
{
    for (long n = 1; n < 20000; n++) {
        dp_status_t status;
        int was_reached;

        countdown = n;
        status = attempt(path);
        was_reached = countdown == 0;
        countdown = -1;
        if (!was_reached) {
            assert_int_equal(status, DP_OK);
            return;
        }
        if (status != DP_ERR_NO_MEMORY) fail_msg("allocation %ld: status %d", n, (int)status);
    }
    fail_msg("it never got through");
}

static dp_status_t create_recorder(const char *path)
{
    dp_trace_t *trace = NULL;
    dp_status_t status = dp_trace_create(path, 7, 8, "node", 1 << 17, &trace, NULL);

    if (status == DP_OK) dp_trace_destroy(trace, 0);
    return status;
}

static dp_status_t use_timeline(const char *path)
{
    dp_timeline_t timeline, again;
    dp_analysis_t analysis;
    char *data = NULL;
    size_t bytes = 0;
    FILE *file = NULL;
    long left;
    dp_error_t error = {.text = ""};
    dp_status_t status = dp_timeline_load(path, NULL, &timeline, &error);

    if (status != DP_OK) {
        assert_int_not_equal(error.text[0], '\0');
        return status;
    }
    status = dp_analyse(&timeline, &analysis);
    if (status != DP_OK) {
        dp_timeline_fini(&timeline);
        return status;
    }
    left = countdown; /* the stream's own memory is the C library's affair */
    countdown = -1;
    file = open_memstream(&data, &bytes);
    countdown = left;
    if (status == DP_OK) status = dp_view_write(&timeline, &analysis, "job", file);
    if (status == DP_OK) status = dp_chrome_write(&timeline, file);
    left = countdown;
    countdown = -1;
    fclose(file);
    free(data);
    file = open_memstream(&data, &bytes);
    countdown = left;
    if (status == DP_OK) status = dp_perfetto_write(&timeline, file);
    left = countdown;
    countdown = -1;
    fclose(file);
    countdown = left;
    dp_timeline_init(&again);
    if (status == DP_OK) {
        status = dp_perfetto_parse((uint8_t *)data, bytes, "job", &again, &error);
        if (status != DP_OK) assert_non_null(strstr(error.text, "no memory"));
    }
    dp_timeline_fini(&again);
    free(data);
    dp_analysis_fini(&analysis);
    dp_timeline_fini(&timeline);
    return status;
}

static void recorder_survives_every_failed_allocation(void **state)
{
    char path[] = "/tmp/dp-test-memory-XXXXXX";

    (void)state;
    assert_non_null(mkdtemp(path));
    try_all(create_recorder, path);
    assert_int_equal(rmdir(path), 0);
}

static void dptrace_survives_every_failed_allocation(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    dp_error_t error = {.text = ""};
    char path[] = "/tmp/dp-test-memory-XXXXXX", file[64];

    (void)state;
    synth.ranks = 2;
    synth.steps = 2;
    synth.on_device = 1;
    synth.trace_bytes = 1 << 18;
    assert_non_null(mkdtemp(path));
    if (dp_synth_write(&synth, path, &error) != DP_OK) fail_msg("%s", error.text);
    try_all(use_timeline, path);
    for (int rank = 0; rank < 2; rank++) {
        snprintf(file, sizeof(file), "%s/trace.%d.dpt", path, rank);
        unlink(file);
    }
    assert_int_equal(rmdir(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorder_survives_every_failed_allocation),
        cmocka_unit_test(dptrace_survives_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
