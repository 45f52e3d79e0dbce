/*
 * test_timeline.c - dptrace on jobs whose truth is known: the report finds what was put in, merged
 * files say the same as recorders, and damaged ones are refused.
 */
#include <math.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "launcher/dptrace/analysis.h"
#include "launcher/dptrace/formats.h"
#include "runtime/base/json.h"
#include "launcher/dptrace/perfetto.h"
#include "launcher/dptrace/proto.h"
#include "launcher/dptrace/view.h"
#include "tests/unit/cases.h"
#include "tests/unit/launcher/synth_job.h"

static void halved_link_shows_as_exposed_wire(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    job_t job;
    double before, speed;

    (void)state;
    synth.wire_ns = 4000000;
    synth.pack_ns = 1000;
    analyse_job(&job, &synth);
    check_sums(&job);
    before = part_ms(&job, DP_PART_WIRE);
    speed = job.analysis.groups[0].gb_per_s;
    ASSERT_NEAR(speed, 2.0 * 3 / 4 * 16e6 / 4e6, 0.01);
    remove_job(&job);
    synth.wire_ns *= 2;
    analyse_job(&job, &synth);
    check_sums(&job);
    ASSERT_NEAR(job.analysis.groups[0].gb_per_s, speed / 2, 0.01);
    /* six buckets of 4 ms over five layers of 3 ms leave 9 ms; of 8 ms they leave 33 */
    ASSERT_NEAR(before, 9.0, 0.1);
    ASSERT_NEAR(part_ms(&job, DP_PART_WIRE), 33.0, 0.1);
    ASSERT_NEAR(part_ms(&job, DP_PART_COMPUTE), 28.0, 0.01);
    assert_true(part_ms(&job, DP_PART_SKEW) < 0.1);
    remove_job(&job);
}

static void even_ranks_have_no_skew_and_hidden_buckets_cost_nothing(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    job_t job;

    (void)state;
    analyse_job(&job, &synth);
    check_sums(&job);
    assert_true(part_ms(&job, DP_PART_SKEW) < 0.001);
    /* only the last of six buckets is seen: 2 ms of wire, 0.6 of pack and unpack */
    ASSERT_NEAR(part_ms(&job, DP_PART_WIRE), 2.0, 0.01);
    ASSERT_NEAR(part_ms(&job, DP_PART_PACK), 0.6, 0.01);
    ASSERT_NEAR(job.analysis.hidden, 5.0 / 6, 0.01);
    assert_int_equal(job.analysis.group_count, 6);
    assert_int_equal(job.analysis.groups[0].launches, 20);
    ASSERT_NEAR(job.analysis.groups[0].exposed_ns, 2e6, 0.01);
    remove_job(&job);
}

static void slow_agreement_shows_as_negotiation(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    job_t job;

    (void)state;
    synth.launch_ns = 10000000;
    synth.buckets = 1;
    analyse_job(&job, &synth);
    check_sums(&job);
    ASSERT_NEAR(part_ms(&job, DP_PART_NEGOTIATION), 10.0, 0.1);
    remove_job(&job);
}

/* ---- Files ---------------------------------------------------------------------------------- */

/* Everything the timeline says, as one text. */
static char *describe(const dp_timeline_t *timeline, const dp_analysis_t *analysis)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    dp_report_json(timeline, analysis, file);
    for (size_t i = 0; i < timeline->event_count; i++) {
        const dp_timeline_event_t *event = &timeline->events[i];

        fprintf(file, "%d %u %llu %llu %llu %llu %llu %u %u %u %s\n", event->rank, event->kind,
                (unsigned long long)event->start_ns, (unsigned long long)event->duration_ns,
                (unsigned long long)event->bucket, (unsigned long long)event->id,
                (unsigned long long)event->bytes, event->aux, event->row, event->depth,
                timeline->strings[event->name]);
    }
    fclose(file);
    return text;
}

static char *merge(const dp_timeline_t *timeline, size_t *bytes)
{
    char *data = NULL;
    FILE *file = open_memstream(&data, bytes);

    assert_int_equal(dp_perfetto_write(timeline, file), DP_OK);
    fclose(file);
    return data;
}

static void merged_file_says_the_same_as_the_recorders(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    dp_timeline_t timeline;
    dp_analysis_t analysis;
    dp_error_t error = {.text = ""};
    char *data, *first, *second;
    size_t bytes;
    job_t job;

    (void)state;
    synth.late_rank = 2;
    synth.late_ns = 1000000;
    synth.spans = 3;
    analyse_job(&job, &synth);
    data = merge(&job.timeline, &bytes);
    dp_timeline_init(&timeline);
    if (dp_perfetto_parse((uint8_t *)data, bytes, "merged", &timeline, &error) != DP_OK)
        fail_msg("%s", error.text);
    assert_int_equal(dp_timeline_finish(&timeline, NULL, &error), DP_OK);
    assert_int_equal(dp_analyse(&timeline, &analysis), DP_OK);
    assert_int_equal(timeline.event_count, job.timeline.event_count);
    assert_int_equal(timeline.row_count, job.timeline.row_count);
    first = describe(&job.timeline, &job.analysis);
    second = describe(&timeline, &analysis);
    assert_string_equal(first, second);
    free(first);
    free(second);
    free(data);
    dp_analysis_fini(&analysis);
    dp_timeline_fini(&timeline);
    remove_job(&job);
}

static void damaged_merged_files_are_refused(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    dp_timeline_t timeline;
    dp_error_t error = {.text = ""};
    uint64_t random = 88172645463325252ull;
    char *data, *copy;
    size_t bytes;
    job_t job;

    (void)state;
    synth.ranks = 2;
    synth.steps = 2;
    analyse_job(&job, &synth);
    data = merge(&job.timeline, &bytes);
    copy = malloc(bytes);
    dp_timeline_init(&timeline);
    assert_int_equal(dp_perfetto_parse((uint8_t *)data, bytes - 1, "f", &timeline, &error),
                     DP_ERR_INVALID);
    assert_non_null(strstr(error.text, "cut short"));
    dp_timeline_fini(&timeline);
    assert_int_equal(dp_perfetto_parse((const uint8_t *)"hello world", 11, "f", &timeline, &error),
                     DP_ERR_INVALID);
    dp_timeline_fini(&timeline);
    for (int round = 0; round < 2000; round++) {
        dp_analysis_t analysis;
        int finished;

        memcpy(copy, data, bytes);
        for (int k = 0; k < 1 + round % 3; k++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            copy[(random >> 8) % bytes] = (char)random;
        }
        dp_timeline_init(&timeline);
        finished = dp_perfetto_parse((uint8_t *)copy, bytes, "f", &timeline, &error) == DP_OK &&
                   dp_timeline_finish(&timeline, NULL, &error) == DP_OK;
        if (finished && dp_analyse(&timeline, &analysis) == DP_OK) dp_analysis_fini(&analysis);
        dp_timeline_fini(&timeline);
    }
    free(copy);
    free(data);
    remove_job(&job);
}

static void window_keeps_its_steps_only(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    dp_step_window_t window = {.is_set = 0};
    dp_error_t error = {.text = ""};
    dp_timeline_t timeline;
    dp_analysis_t analysis;
    job_t job;

    (void)state;
    write_job(&job, &synth);
    assert_int_equal(dp_step_window_parse("105-107", &window, &error), DP_OK);
    assert_int_equal(dp_timeline_load(job.path, &window, &timeline, &error), DP_OK);
    assert_int_equal(dp_analyse(&timeline, &analysis), DP_OK);
    assert_int_equal(analysis.step_count, 3);
    assert_int_equal(analysis.steps[0], 105);
    check_sums(&(job_t){.analysis = analysis});
    dp_analysis_fini(&analysis);
    dp_timeline_fini(&timeline);
    assert_int_equal(dp_step_window_parse("500-501", &window, &error), DP_OK);
    assert_int_equal(dp_timeline_load(job.path, &window, &timeline, &error), DP_ERR_INVALID);
    assert_non_null(strstr(error.text, "100-119"));
    remove_job(&job);
}

/* ---- Timelines made by hand ----------------------------------------------------------------- */

static void add_event(dp_timeline_t *timeline, uint8_t kind, uint64_t id, uint64_t start_ns,
                      uint64_t duration_ns)
{
    dp_timeline_event_t *event = dp_timeline_add_event(timeline);

    assert_non_null(event);
    event->kind = kind;
    event->id = id;
    event->start_ns = start_ns;
    event->duration_ns = duration_ns;
}

/* Spans that overlap without nesting each go to a row of their own: all rows count. */
static void spans_in_many_rows_are_all_counted_as_compute(void **state)
{
    enum { SPANS = 40, APART = 100, LONG = 5000, STEP = 20000 };
    dp_timeline_t timeline;
    dp_analysis_t analysis;
    dp_error_t error = {.text = ""};

    (void)state;
    dp_timeline_init(&timeline);
    assert_non_null(dp_timeline_add_rank(&timeline));
    add_event(&timeline, DP_TRACE_STEP, 1, 0, STEP);
    for (uint64_t i = 0; i < SPANS; i++)
        add_event(&timeline, DP_TRACE_SPAN, 0, i * APART, LONG);
    assert_int_equal(dp_timeline_finish(&timeline, NULL, &error), DP_OK);
    assert_true(timeline.row_count >= SPANS);
    assert_int_equal(dp_analyse(&timeline, &analysis), DP_OK);
    ASSERT_NEAR(analysis.part[DP_PART_COMPUTE], (SPANS - 1.0) * APART + LONG, 0.001);
    dp_analysis_fini(&analysis);
    dp_timeline_fini(&timeline);
}

/* The recorder kept steps 10 to 19, from 1000 to 2000 ns, and overwrote 5000 records. */
static void expect_loss(const char *steps, uint64_t window_dropped, uint64_t dropped,
                        uint64_t outside)
{
    dp_step_window_t window = {.is_set = 0};
    dp_timeline_t timeline, merged;
    dp_timeline_rank_t *rank;
    dp_error_t error = {.text = ""};
    size_t bytes;
    char *data;

    dp_timeline_init(&timeline);
    rank = dp_timeline_add_rank(&timeline);
    assert_non_null(rank);
    rank->size = 1;
    rank->dropped = 5000;
    rank->window_dropped = window_dropped;
    rank->window_start_ns = 1000;
    rank->window_end_ns = 2000;
    for (uint64_t step = 5; step < 25; step++)
        add_event(&timeline, DP_TRACE_STEP, step, step * 100, 100);
    assert_int_equal(dp_step_window_parse(steps, &window, &error), DP_OK);
    assert_int_equal(dp_timeline_finish(&timeline, &window, &error), DP_OK);
    assert_int_equal(timeline.ranks[0].dropped, dropped);
    assert_int_equal(timeline.ranks[0].outside, outside);
    data = merge(&timeline, &bytes);
    dp_timeline_init(&merged);
    assert_int_equal(dp_perfetto_parse((uint8_t *)data, bytes, "merged", &merged, &error), DP_OK);
    assert_int_equal(merged.ranks[0].dropped, dropped);
    assert_int_equal(merged.ranks[0].outside, outside);
    free(data);
    dp_timeline_fini(&merged);
    dp_timeline_fini(&timeline);
}

static void records_outside_of_a_kept_window_are_not_called_dropped(void **state)
{
    (void)state;
    expect_loss("10-19", 0, 0, 5000);
    expect_loss("12-13", 7, 7, 4993); /* some of the window found no room */
    expect_loss("9-19", 0, 5000, 0);  /* step 9 was not kept: it may have holes */
    expect_loss("19-20", 0, 5000, 0);
}

static void windows_are_read_strictly(void **state)
{
    static const char *const bad[] = {"", "-", "5-", "-5", "a-b", "7-3", "1-2-3", "1 - 2", "0x1-2"};
    dp_step_window_t window = {.is_set = 0};

    (void)state;
    for (size_t i = 0; i < DP_ARRAY_LEN(bad); i++)
        assert_int_equal(dp_step_window_parse(bad[i], &window, NULL), DP_ERR_INVALID);
    assert_int_equal(dp_step_window_parse("12", &window, NULL), DP_OK);
    assert_int_equal(window.first, 12);
    assert_int_equal(window.last, 12);
}

typedef struct on_wire {
    uint64_t start_ns, duration_ns, track;
} on_wire_t;

static void place_on_rows(dp_timeline_t *timeline, const on_wire_t *events, size_t count)
{
    dp_error_t error;

    dp_timeline_init(timeline);
    assert_non_null(dp_timeline_add_rank(timeline));
    for (size_t i = 0; i < count; i++) {
        dp_timeline_event_t *event = dp_timeline_add_event(timeline);

        event->kind = DP_TRACE_WIRE;
        event->start_ns = 1000 + events[i].start_ns;
        event->duration_ns = events[i].duration_ns;
        event->track = (uint32_t)events[i].track;
    }
    assert_int_equal(dp_timeline_finish(timeline, NULL, &error), DP_OK);
}

static void overlapping_work_gets_a_row_of_its_own(void **state)
{
    static const on_wire_t events[] = {{0, 100, 0}, {50, 100, 0}, {160, 10, 0}, {100, 20, 0}};
    dp_timeline_t timeline;

    (void)state;
    place_on_rows(&timeline, events, DP_ARRAY_LEN(events));
    assert_int_equal(timeline.row_count, 2);
    assert_string_equal(timeline.rows[0].label, "wire");
    assert_string_equal(timeline.rows[1].label, "wire 2");
    assert_int_equal(timeline.rows[0].count, 3);
    assert_int_equal(timeline.origin_ns, 1000);
    dp_timeline_fini(&timeline);
}

/* The recorder makes the track "wire" at the start, "gather" with the gather lane. */
static void each_track_gets_rows_of_its_own(void **state)
{
    static const on_wire_t events[] = {{0, 5, 5}, {10, 5, 2}, {20, 5, 2}, {30, 5, 5}, {40, 5, 2}};
    dp_timeline_t timeline;

    (void)state;
    place_on_rows(&timeline, events, DP_ARRAY_LEN(events));
    assert_int_equal(timeline.row_count, 2);
    assert_string_equal(timeline.rows[1].label, "gather lane: wire");
    assert_int_equal(timeline.rows[1].count, 2);
    dp_timeline_fini(&timeline);
}

/* Makes a recorder's file look as if its machine had booted at another time. */
static void move_to_other_machine(const char *path)
{
    FILE *file = fopen(path, "r+b");

    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offsetof(dp_trace_file_header_t, boot), SEEK_SET), 0);
    assert_int_equal(fwrite("another machine", 1, 16, file), 16);
    assert_int_equal(fclose(file), 0);
}

static void clocks_of_other_machines_are_corrected_with_their_drift(void **state)
{
    const uint64_t second = 1000000000, offset = 5 * second, drift = 100000; /* ns per second */
    dp_synth_t synth = DP_SYNTH_INIT;
    dp_error_t error = {.text = ""};
    dp_trace_t *trace;
    job_t job;
    char path[96];
    FILE *clocks;

    (void)state;
    synth.steps = 0;
    synth.ranks = 1;
    write_job(&job, &synth);
    snprintf(path, sizeof(path), "%s/clocks", job.path);
    clocks = fopen(path, "w");
    assert_non_null(clocks);
    for (int rank = 0; rank < 2; rank++) {
        dp_trace_track_t *track;

        assert_int_equal(dp_trace_create(job.path, rank, 2, "n", 1 << 18, &trace, &error), DP_OK);
        track = dp_trace_track(trace, "t", DP_TRACE_TRACK_THREAD);
        for (uint64_t t = 10; t <= 14; t += 2) {
            uint64_t here = t * second - (rank == 0 ? 0 : offset + drift * (t - 10));

            fprintf(clocks, "%d %" PRIu64 " %" PRIu64 " %d\n", rank, here, t * second - here,
                    rank * 31000);
            here += rank == 0 ? second : second - drift; /* half way to the next measurement */
            dp_trace_record(
                track, (dp_trace_record_t){
                           .kind = DP_TRACE_SPAN, .start_ns = here, .duration_ns = 1000, .id = t});
        }
        dp_trace_destroy(trace, 1);
    }
    assert_int_equal(fclose(clocks), 0);
    snprintf(path, sizeof(path), "%s/trace.1.dpt", job.path);
    move_to_other_machine(path);
    if (dp_timeline_load(job.path, NULL, &job.timeline, &error) != DP_OK)
        fail_msg("%s", error.text);
    assert_int_equal(job.timeline.ranks[0].clock_error_ns, 0);
    assert_int_equal(job.timeline.ranks[1].clock_error_ns, 31000);
    assert_int_equal(job.timeline.event_count, 6);
    for (size_t i = 0; i < 2; i++) { /* the last one lies beyond all measurements */
        uint64_t left = job.timeline.events[i].start_ns,
                 right = job.timeline.events[i + 3].start_ns;

        assert_true((left > right ? left - right : right - left) <= 10);
    }
    snprintf(path, sizeof(path), "%s/clocks", job.path);
    assert_int_equal(unlink(path), 0);
    remove_job(&job);
}

static void json_strings_are_escaped(void **state)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);

    (void)state;
    dp_json_string(file, "a\"b\\c\n\x01</script>\xc3\xa4\xff\xc0\x80");
    fclose(file);
    assert_string_equal(text, "\"a\\\"b\\\\c\\u000a\\u0001\\u003c/script>\xc3\xa4"
                              "\\ufffd\\ufffd\\ufffd\"");
    free(text);
}

static void names_cannot_leave_the_page(void **state)
{
    dp_timeline_t timeline;
    dp_analysis_t analysis;
    dp_error_t error;
    dp_timeline_event_t *event;
    char *text = NULL;
    size_t bytes;
    FILE *file;

    (void)state;
    dp_timeline_init(&timeline);
    snprintf(dp_timeline_add_rank(&timeline)->host, 32, "</script><b>");
    event = dp_timeline_add_event(&timeline);
    event->kind = DP_TRACE_SPAN;
    event->start_ns = 1;
    event->name = (uint32_t)dp_timeline_string(&timeline, "</script><i>@DATA@");
    assert_int_equal(dp_timeline_finish(&timeline, NULL, &error), DP_OK);
    assert_int_equal(dp_analyse(&timeline, &analysis), DP_OK);
    file = open_memstream(&text, &bytes);
    assert_int_equal(dp_view_write(&timeline, &analysis, "<u>&\"", file), DP_OK);
    fclose(file);
    assert_null(strstr(text, "<b>"));
    assert_null(strstr(text, "<i>"));
    assert_null(strstr(text, "<u>"));
    assert_null(strstr(text, "://"));
    free(text);
    dp_analysis_fini(&analysis);
    dp_timeline_fini(&timeline);
}

/* Names come from programs and from files of strangers. */
static void report_prints_no_control_characters(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    char *text = NULL;
    size_t bytes, lines[2] = {0, 0};
    job_t job;

    (void)state;
    synth.late_rank = 1;
    synth.late_ns = 5000000;
    analyse_job(&job, &synth);
    for (int round = 0; round < 2; round++) {
        FILE *file = open_memstream(&text, &bytes);

        assert_non_null(file);
        dp_report_text(&job.timeline, &job.analysis, round == 0 ? "job" : "j\x1b[2Jb\n", file);
        fclose(file);
        for (size_t i = 0; i < bytes; i++) {
            lines[round] += text[i] == '\n';
            if (text[i] == 0x1b || text[i] == '\r' || (text[i] & 0xff) == 0x9b)
                fail_msg("byte %zu of %s", i, text);
        }
        free(text);
        for (size_t i = 1; round == 0 && i < job.timeline.string_count; i++)
            memcpy(job.timeline.strings[i], (const char *[]){"\x1b", "\n", "\r", "\x9b"}[i % 4], 1);
    }
    assert_int_equal(lines[1], lines[0]);
    remove_job(&job);
}

static void empty_recording_is_reported_as_such(void **state)
{
    dp_synth_t synth = DP_SYNTH_INIT;
    job_t job;
    char *text = NULL;
    size_t bytes;
    FILE *file;

    (void)state;
    synth.steps = 0;
    synth.ranks = 1;
    analyse_job(&job, &synth);
    file = open_memstream(&text, &bytes);
    dp_report_text(&job.timeline, &job.analysis, "job", file);
    dp_report_json(&job.timeline, &job.analysis, file);
    assert_int_equal(dp_view_write(&job.timeline, &job.analysis, "job", file), DP_OK);
    assert_int_equal(dp_chrome_write(&job.timeline, file), DP_OK);
    fclose(file);
    assert_non_null(strstr(text, "nothing was recorded"));
    free(text);
    remove_job(&job);
}

/* Ids are the writer's to choose: a small file with large ones may not cost more than a small file.
 */
static void large_ids_in_a_merged_file_cost_no_memory(void **state)
{
    dp_proto_t file = {NULL, 0, 0, 0}, packet = {NULL, 0, 0, 0};
    dp_proto_t list = {NULL, 0, 0, 0}, entry = {NULL, 0, 0, 0};
    dp_error_t error = {.text = ""};
    dp_timeline_t timeline;
    struct rusage before, after;

    (void)state;
    dp_proto_uint(&entry, INTERNED_IID, 0xfffffe);
    dp_proto_text(&entry, INTERNED_TEXT, "wte");
    dp_proto_message(&list, INTERNED_NAMES, &entry);
    for (uint64_t sequence = 1; sequence <= 40; sequence++) {
        dp_proto_clear(&packet);
        dp_proto_uint(&packet, PACKET_SEQUENCE, sequence);
        dp_proto_message(&packet, PACKET_INTERNED, &list);
        dp_proto_message(&file, TRACE_PACKET, &packet);
    }
    getrusage(RUSAGE_SELF, &before);
    dp_timeline_init(&timeline);
    assert_int_equal(dp_perfetto_parse(file.data, file.bytes, "f", &timeline, &error),
                     DP_ERR_INVALID);
    assert_non_null(strstr(error.text, "not a trace that dptrace merge wrote"));
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64L << 10); /* KiB */
    dp_timeline_fini(&timeline);

    /* and a sequence out of the blue is none of ours */
    dp_proto_clear(&packet);
    dp_proto_uint(&packet, PACKET_SEQUENCE, 1 << 19);
    dp_proto_message(&file, TRACE_PACKET, &packet);
    dp_timeline_init(&timeline);
    assert_int_equal(dp_perfetto_parse(file.data, file.bytes, "f", &timeline, &error),
                     DP_ERR_INVALID);
    dp_timeline_fini(&timeline);
    dp_proto_fini(&file);
    dp_proto_fini(&packet);
    dp_proto_fini(&list);
    dp_proto_fini(&entry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halved_link_shows_as_exposed_wire),
        cmocka_unit_test(even_ranks_have_no_skew_and_hidden_buckets_cost_nothing),
        cmocka_unit_test(slow_agreement_shows_as_negotiation),
        cmocka_unit_test(merged_file_says_the_same_as_the_recorders),
        cmocka_unit_test(damaged_merged_files_are_refused),
        cmocka_unit_test(window_keeps_its_steps_only),
        cmocka_unit_test(spans_in_many_rows_are_all_counted_as_compute),
        cmocka_unit_test(records_outside_of_a_kept_window_are_not_called_dropped),
        cmocka_unit_test(windows_are_read_strictly),
        cmocka_unit_test(overlapping_work_gets_a_row_of_its_own),
        cmocka_unit_test(each_track_gets_rows_of_its_own),
        cmocka_unit_test(clocks_of_other_machines_are_corrected_with_their_drift),
        cmocka_unit_test(json_strings_are_escaped),
        cmocka_unit_test(names_cannot_leave_the_page),
        cmocka_unit_test(report_prints_no_control_characters),
        cmocka_unit_test(empty_recording_is_reported_as_such),
        cmocka_unit_test(large_ids_in_a_merged_file_cost_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
