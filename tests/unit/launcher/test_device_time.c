/*
 * test_device_time.c - dptrace on programs of a GPU: a thread queues a step within milliseconds and
 * the device computes for the rest of it, so the report has to look at the device.
 *
 * Each recording is one step of 100 ms whose truth is written below it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/dptrace/analysis.h"
#include "launcher/dptrace/formats.h"
#include "runtime/trace/trace.h"
#include "tests/unit/cases.h"
#include "tests/unit/launcher/job_folder.h"

#define LAYERS 6
#define PLAYERS_MAX 2
#define STEP 7

enum { ALLREDUCE = 1, ALLGATHER = 3 }; /* as recorded: dp_collective_t + 1 */

/* The records of a rank. Times are ms of its step. */
typedef struct player {
    double late;      /* added to all that its device does */
    double wire_end;  /* of the last layer; those before end 3 ms after they began */
    int marks;        /* 1: its program marks its work on the device */
    int is_on_stream; /* 1: its operations take their input from a stream */
    int gathers;      /* 1: the device waits from 20 to 25 for an all-gather */
    int unpacks;      /* 1: for 2 ms behind each transfer */
    int runs_ahead;   /* 1: its thread ends the step at 13 ms, and marks say which step is theirs */
    int sleeps;       /* 1: its thread waits in dp for the last layer; else outside, say in CUDA */
} player_t;

static void record(dp_trace_track_t *track, dp_trace_record_t record, double from, double until)
{
    record.start_ns = 1000000000u + (uint64_t)(from * 1e6);
    record.duration_ns = (uint64_t)((until - from) * 1e6 + 0.5);
    dp_trace_record(track, record);
}

static void compute(dp_trace_t *trace, const player_t *player, dp_trace_track_t *track,
                    const char *name, int is_wait, double from, double until)
{
    record(track,
           (dp_trace_record_t){.kind = DP_TRACE_COMPUTE,
                               .name = dp_trace_name(trace, name),
                               .id = player->runs_ahead ? STEP + 1 : 0,
                               .aux = is_wait ? DP_TRACE_STREAM_WAITS : 0},
           from, until);
}

/* An operation that is submitted, launched half a millisecond later, and on the wire when its
 * stream comes there. */
static void operate(dp_trace_t *trace, const player_t *player, dp_trace_track_t *const track[3],
                    uint64_t number, uint64_t kind, double submit, double wire, double end)
{
    char name[32];
    dp_trace_record_t base = {.bucket = number, .bytes = 1000000, .aux = 1};

    snprintf(name, sizeof(name), "h.%d.weight", (int)number);
    base.name = dp_trace_name(trace, name);
    record(track[0],
           (dp_trace_record_t){.kind = DP_TRACE_SUBMIT,
                               .name = base.name,
                               .id = number,
                               .aux = player->is_on_stream ? DP_TRACE_ON_STREAM : 0},
           submit, submit + 0.01);
    record(track[1],
           (dp_trace_record_t){
               .kind = DP_TRACE_AGREE, .name = base.name, .id = number, .bucket = number},
           submit, submit + 0.5);
    base.kind = DP_TRACE_LAUNCH;
    record(track[1], base, submit + 0.5, submit + 0.51);
    base.kind = DP_TRACE_WIRE;
    base.id = kind;
    record(track[2], base, wire, end);
    base.kind = DP_TRACE_UNPACK;
    if (player->unpacks) record(track[2], base, end, end + 2);
}

/*
 *     thread   | queues all, 12 ms |             waits                               | 100
 *     device     | forward 1-30 | backward, a layer each 10 ms 30-90 |   | optimizer 94-98 |
 *     wire                                40-43  50-53 ...       90-93
 */
static void play(const char *path, int rank, int ranks, const player_t *player)
{
    dp_error_t error = {.text = ""};
    dp_trace_t *trace;
    dp_trace_track_t *track[4];
    const double late = player->late;

    if (dp_trace_create(path, rank, ranks, "node", 1 << 20, &trace, &error) != DP_OK)
        fail_msg("%s", error.text);
    track[0] = dp_trace_track(trace, "main", DP_TRACE_TRACK_THREAD);
    track[1] = dp_trace_track(trace, "coordinator", DP_TRACE_TRACK_COORDINATOR);
    track[2] = dp_trace_track(trace, "wire", DP_TRACE_TRACK_STREAM);
    track[3] = dp_trace_track(trace, "device", DP_TRACE_TRACK_STREAM);
    record(track[0], (dp_trace_record_t){.kind = DP_TRACE_STEP, .id = STEP}, 0,
           player->runs_ahead ? 13 : 100);
    record(track[0],
           (dp_trace_record_t){.kind = DP_TRACE_SPAN, .name = dp_trace_name(trace, "backward")}, 1,
           12);
    if (player->gathers) operate(trace, player, track, 100, ALLGATHER, 0.1, 19, 25);
    for (int layer = 0; layer < LAYERS; layer++) {
        const double end = 40 + 10.0 * layer + late;
        const int is_last = layer == LAYERS - 1;

        operate(trace, player, track, 1 + (uint64_t)layer, ALLREDUCE, 2 + layer, end,
                is_last ? player->wire_end : end + 3);
        if (player->marks) compute(trace, player, track[3], "backward h", 0, end - 10, end);
    }
    if (player->sleeps) {
        record(track[0], (dp_trace_record_t){.kind = DP_TRACE_WAIT, .id = LAYERS}, 12,
               player->wire_end);
    }
    if (player->marks) {
        compute(trace, player, track[3], "forward", 0, 1 + late, 30 + late);
        if (player->gathers) compute(trace, player, track[3], "weights", 1, 20, 25);
        compute(trace, player, track[3], "backward", 0, 30 + late, 90 + late);
        compute(trace, player, track[3], "optimizer", 0, player->wire_end + 1,
                player->wire_end + 5);
    }
    dp_trace_destroy(trace, 1);
}

static void make_job(job_t *job, const player_t *players, int ranks)
{
    const dp_step_window_t window = {.is_set = 1, .first = STEP, .last = STEP};
    dp_error_t error = {.text = ""};

    job_folder(job);
    for (int rank = 0; rank < ranks; rank++)
        play(job->path, rank, ranks, &players[rank]);
    if (dp_timeline_load(job->path, &window, &job->timeline, &error) != DP_OK)
        fail_msg("%s", error.text);
    assert_int_equal(dp_analyse(&job->timeline, &job->analysis), DP_OK);
}

static void check_part(const dp_step_cell_t *cell, dp_step_part_t part, double wanted)
{
    const double is = cell->part[part] / 1e6;

    if (fabs(is - wanted) > 0.05)
        fail_msg("%s is %.3f ms, expected %.3f", dp_part_name(part), is, wanted);
}

static void check_sum(const dp_step_cell_t *cell)
{
    double sum = 0;

    for (int p = 0; p < DP_PART_COUNT; p++)
        sum += cell->part[p];
    if (fabs(sum - (double)cell->duration_ns) > 10)
        fail_msg("the parts sum to %g ns of %g", sum, (double)cell->duration_ns);
}

/* The report as people read it; the caller frees it. */
static char *report_of(const job_t *job)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    dp_report_text(&job->timeline, &job->analysis, "job", file);
    assert_int_equal(fclose(file), 0);
    return text;
}

static void check_marked(const dp_analysis_t *analysis)
{
    const dp_step_cell_t *cell = &analysis->cells[0];

    assert_int_equal(analysis->device, DP_DEVICE_MARKED);
    check_part(cell, DP_PART_COMPUTE, 29 + 60 + 4);
    check_part(cell, DP_PART_WIRE, 3);
    check_part(cell, DP_PART_NEGOTIATION, 0);
    check_part(cell, DP_PART_GAPS, 1 + 1 + 2);
    check_part(cell, DP_PART_OTHER, 0);
    check_sum(cell);
    /* six transfers of 3 ms, one of them exposed */
    assert_true(fabs(analysis->hidden - 15.0 / 18) < 0.01);
}

/* Whether the thread waits in dp or elsewhere makes no difference. */
static void a_marked_device_says_where_a_step_goes(void **unused)
{
    (void)unused;
    for (int sleeps = 0; sleeps < 2; sleeps++) {
        const player_t player = {.wire_end = 93, .marks = 1, .is_on_stream = 1, .sleeps = sleeps};
        job_t job;
        char *text;

        make_job(&job, &player, 1);
        check_marked(&job.analysis);
        text = report_of(&job);
        assert_null(strstr(text, "negotiation:"));
        assert_non_null(strstr(text, "the host queues its work too late"));
        free(text);
        remove_job(&job);
    }
}

/* Gradients in place are scaled behind the wire, which no other memory would spare. */
static void advice_on_packing_needs_a_copy(void **unused)
{
    const player_t player = {.wire_end = 93, .marks = 1, .is_on_stream = 1, .unpacks = 1};
    job_t job;
    char *text;

    (void)unused;
    make_job(&job, &player, 1);
    check_part(&job.analysis.cells[0], DP_PART_PACK, 2 - 1); /* the optimizer begins meanwhile */
    job.analysis.part[DP_PART_PACK] = 2e6; /* else it is at the threshold, 1 % of the step */
    text = report_of(&job);
    assert_non_null(strstr(text, "unpacking:"));
    assert_null(strstr(text, "dp_alloc"));
    free(text);
    job.analysis.has_packing = 1;
    text = report_of(&job);
    assert_non_null(strstr(text, "dp_alloc"));
    free(text);
    remove_job(&job);
}

static void merged_files_keep_the_device(void **unused)
{
    const player_t marked = {.wire_end = 93, .marks = 1, .is_on_stream = 1};
    const player_t streams = {.wire_end = 93, .is_on_stream = 1, .sleeps = 1};
    const player_t *const players[] = {&marked, &streams};

    (void)unused;
    for (size_t i = 0; i < DP_ARRAY_LEN(players); i++) {
        char path[] = "/tmp/dp-test-device-file-XXXXXX";
        dp_error_t error = {.text = ""};
        dp_timeline_t timeline;
        dp_analysis_t analysis;
        job_t job;
        int fd = mkstemp(path);
        FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;

        assert_non_null(file);
        make_job(&job, players[i], 1);
        assert_int_equal(dp_perfetto_write(&job.timeline, file), DP_OK);
        assert_int_equal(fclose(file), 0);
        if (dp_timeline_load(path, NULL, &timeline, &error) != DP_OK) fail_msg("%s", error.text);
        assert_int_equal(dp_analyse(&timeline, &analysis), DP_OK);
        assert_int_equal(analysis.device, job.analysis.device);
        for (int p = 0; p < DP_PART_COUNT; p++)
            check_part(&analysis.cells[0], (dp_step_part_t)p, job.analysis.cells[0].part[p] / 1e6);
        dp_analysis_fini(&analysis);
        dp_timeline_fini(&timeline);
        unlink(path);
        remove_job(&job);
    }
}

/* No marks: from the first launch at 2.5 ms to the last layer's transfer at 90 some operation waits
 * for its stream. */
static void operations_that_wait_for_their_stream_are_no_negotiation(void **unused)
{
    const player_t player = {.wire_end = 93, .is_on_stream = 1, .sleeps = 1};
    const dp_step_cell_t *cell;
    job_t job;

    (void)unused;
    make_job(&job, &player, 1);
    cell = &job.analysis.cells[0];
    assert_int_equal(job.analysis.device, DP_DEVICE_INFERRED);
    check_part(cell, DP_PART_COMPUTE, 89); /* from 1, where the program's own span begins */
    check_part(cell, DP_PART_WIRE, 3);
    check_part(cell, DP_PART_NEGOTIATION, 0);
    check_sum(cell);
    remove_job(&job);
}

/* The same records without streams, as on CPUs: the time to the first transfer is the wait's. */
static void without_streams_nothing_is_inferred(void **unused)
{
    const player_t player = {.wire_end = 93, .sleeps = 1};
    job_t job;

    (void)unused;
    make_job(&job, &player, 1);
    assert_int_equal(job.analysis.device, DP_DEVICE_NONE);
    check_part(&job.analysis.cells[0], DP_PART_COMPUTE, 11 - 0.06);
    check_part(&job.analysis.cells[0], DP_PART_WIRE, 6 * 3);
    check_sum(&job.analysis.cells[0]);
    remove_job(&job);
}

static void waits_of_the_stream_are_no_computing(void **unused)
{
    const player_t player = {.wire_end = 93, .marks = 1, .is_on_stream = 1, .gathers = 1};
    const dp_step_cell_t *cell;
    job_t job;

    (void)unused;
    make_job(&job, &player, 1);
    cell = &job.analysis.cells[0];
    check_part(cell, DP_PART_COMPUTE, 29 + 60 + 4 - 5);
    check_part(cell, DP_PART_WIRE, 3 + 5);
    assert_true(fabs(cell->exposed_ns[ALLGATHER] / 1e6 - 5) < 0.05);
    check_sum(cell);
    remove_job(&job);
}

/* Both queue at the same time, but the second rank's device comes 4 ms later to each layer. The
 * first rank's transfers begin before, and wait inside for the second. */
static void a_late_device_is_skew_for_the_others(void **unused)
{
    const player_t players[PLAYERS_MAX] = {
        {.wire_end = 97, .marks = 1, .is_on_stream = 1},
        {.wire_end = 97, .marks = 1, .is_on_stream = 1, .late = 4}};
    const dp_step_cell_t *cells;
    job_t job;

    (void)unused;
    make_job(&job, players, PLAYERS_MAX);
    cells = job.analysis.cells;
    check_part(&cells[0], DP_PART_SKEW, 4);
    check_part(&cells[0], DP_PART_WIRE, 3);
    check_part(&cells[1], DP_PART_SKEW, 0);
    check_part(&cells[1], DP_PART_WIRE, 3);
    check_sum(&cells[0]);
    check_sum(&cells[1]);
    assert_int_equal(job.analysis.stragglers[0].rank, 1);
    assert_int_equal(job.analysis.stragglers[0].last_count, LAYERS);
    assert_true(fabs(job.analysis.stragglers[0].late_ns / 1e6 - 4) < 0.05);
    remove_job(&job);
}

/* As it queues the next step meanwhile: the step lasts as long as the device has it, also where a
 * window of steps is cut out. */
static void a_step_is_the_devices_where_the_thread_runs_ahead(void **unused)
{
    const player_t player = {.wire_end = 93, .marks = 1, .is_on_stream = 1, .runs_ahead = 1};
    const dp_step_cell_t *cell;
    job_t job;

    (void)unused;
    make_job(&job, &player, 1);
    cell = &job.analysis.cells[0];
    assert_true(fabs((double)cell->duration_ns / 1e6 - 97) < 0.05); /* from 1 to 98 */
    check_part(cell, DP_PART_COMPUTE, 29 + 60 + 4);
    check_part(cell, DP_PART_WIRE, 3);
    check_part(cell, DP_PART_GAPS, 1);
    check_sum(cell);
    remove_job(&job);
}

/* Its row lies above those of the transfers, so that both are seen together. */
static void the_device_has_a_row_of_its_own(void **unused)
{
    const player_t player = {.wire_end = 93, .marks = 1, .is_on_stream = 1};
    size_t device = SIZE_MAX, wire = SIZE_MAX;
    job_t job;

    (void)unused;
    make_job(&job, &player, 1);
    for (size_t i = 0; i < job.timeline.row_count; i++) {
        if (strcmp(job.timeline.rows[i].label, "device") == 0) device = i;
        if (strcmp(job.timeline.rows[i].label, "wire") == 0) wire = i;
    }
    assert_true(device != SIZE_MAX && wire == device + 1);
    assert_int_equal(job.timeline.rows[device].depth, 2); /* layers lie inside of backward */
    remove_job(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_marked_device_says_where_a_step_goes),
        cmocka_unit_test(advice_on_packing_needs_a_copy),
        cmocka_unit_test(merged_files_keep_the_device),
        cmocka_unit_test(operations_that_wait_for_their_stream_are_no_negotiation),
        cmocka_unit_test(without_streams_nothing_is_inferred),
        cmocka_unit_test(waits_of_the_stream_are_no_computing),
        cmocka_unit_test(a_late_device_is_skew_for_the_others),
        cmocka_unit_test(a_step_is_the_devices_where_the_thread_runs_ahead),
        cmocka_unit_test(the_device_has_a_row_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
