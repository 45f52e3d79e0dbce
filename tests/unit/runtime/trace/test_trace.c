/*
 * test_trace.c - the recorder and the reader of its files: what was written is there, the latest
 * survives, threads do not mix, a killed process leaves a readable file, and damage is noticed.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/trace/trace.h"
#include "tests/unit/cases.h"

typedef struct folder {
    char path[64];
} folder_t;

static int make_folder(void **state)
{
    folder_t *folder = calloc(1, sizeof(*folder));

    snprintf(folder->path, sizeof(folder->path), "/tmp/dp-test-trace-XXXXXX");
    assert_non_null(mkdtemp(folder->path));
    *state = folder;
    return 0;
}

static int remove_folder(void **state)
{
    folder_t *folder = *state;
    char path[96];

    for (int rank = 0; rank < 4; rank++) {
        snprintf(path, sizeof(path), "%s/trace.%d.dpt", folder->path, rank);
        unlink(path);
    }
    assert_int_equal(rmdir(folder->path), 0);
    free(folder);
    return 0;
}

static void file_path(const folder_t *folder, int rank, char path[96])
{
    snprintf(path, 96, "%s/trace.%d.dpt", folder->path, rank);
}

static dp_trace_t *create(const folder_t *folder, int rank, size_t bytes)
{
    dp_trace_t *trace = NULL;
    dp_error_t error;

    assert_int_equal(dp_trace_create(folder->path, rank, 4, "node", bytes, &trace, &error), DP_OK);
    assert_string_equal(error.text, "");
    return trace;
}

static void open_file(const folder_t *folder, int rank, dp_trace_file_t *file)
{
    dp_error_t error = {.text = ""};
    char path[96];

    file_path(folder, rank, path);
    if (dp_trace_file_open(path, file, &error) != DP_OK) fail_msg("%s", error.text);
}

static void records_come_back_as_written(void **state)
{
    dp_trace_t *trace = create(*state, 2, 1 << 20);
    dp_trace_track_t *track = dp_trace_track(trace, "launch", DP_TRACE_TRACK_LAUNCH);
    uint32_t name = dp_trace_name(trace, "wte");
    dp_trace_file_t file;
    char text[64];

    dp_trace_record(track, (dp_trace_record_t){.kind = DP_TRACE_WIRE,
                                               .start_ns = 500,
                                               .duration_ns = 70,
                                               .bucket = 1ull << 40,
                                               .id = 3,
                                               .bytes = 1ull << 50,
                                               .aux = DP_TRACE_AUX_MAX,
                                               .name = name});
    dp_trace_counter(track, dp_trace_name(trace, "buffers"), 2);
    dp_trace_destroy(trace, 1);
    open_file(*state, 2, &file);
    assert_int_equal(file.rank, 2);
    assert_int_equal(file.size, 4);
    assert_string_equal(file.host, "node");
    assert_int_equal(file.pid, getpid());
    assert_true(file.end_ns > file.start_ns);
    assert_int_equal(file.event_count, 2);
    assert_int_equal(file.dropped, 0);
    assert_int_equal(file.events[0].record.kind, DP_TRACE_WIRE);
    assert_int_equal(file.events[0].record.bucket, 1ull << 40);
    assert_int_equal(file.events[0].record.bytes, 1ull << 50);
    assert_int_equal(file.events[0].record.aux, DP_TRACE_AUX_MAX);
    assert_string_equal(dp_trace_file_name(&file, file.events[0].record.name, text, sizeof(text)),
                        "wte");
    assert_string_equal(dp_trace_file_name(&file, file.tracks[0].name, text, sizeof(text)),
                        "launch");
    assert_int_equal(file.events[1].record.kind, DP_TRACE_COUNTER);
    assert_int_equal(file.events[1].record.id, 2);
    dp_trace_file_close(&file);
}

static void nothing_happens_without_a_recorder(void **state)
{
    dp_trace_track_t *track = dp_trace_track(NULL, "x", DP_TRACE_TRACK_THREAD);

    (void)state;
    assert_null(track);
    assert_null(dp_trace_thread_track(NULL));
    assert_int_equal(dp_trace_name(NULL, "x"), 0);
    assert_int_equal(dp_trace_now(track), 0);
    dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_SPAN});
    dp_trace_end(track);
    dp_trace_counter(track, 0, 1);
    dp_trace_span(track, (dp_trace_record_t){.kind = DP_TRACE_SPAN, .start_ns = 1});
    dp_trace_destroy(NULL, 1);
    assert_int_equal(dp_trace_dropped(NULL), 0);
}

static void file_goes_unless_kept(void **state)
{
    char path[96];

    file_path(*state, 0, path);
    dp_trace_destroy(create(*state, 0, 1 << 20), 0);
    assert_int_not_equal(access(path, F_OK), 0);
    dp_trace_destroy(create(*state, 0, 1 << 20), 1);
    assert_int_equal(access(path, F_OK), 0);
}

static void without_a_folder_memory_serves(void **state)
{
    dp_trace_t *trace = NULL;
    dp_error_t error;

    (void)state;
    assert_int_equal(dp_trace_create("", 0, 1, NULL, 1 << 20, &trace, &error), DP_OK);
    assert_string_equal(error.text, "");
    dp_trace_destroy(trace, 1);
    assert_int_equal(dp_trace_create("/nonexistent/folder", 0, 1, NULL, 1 << 20, &trace, &error),
                     DP_OK);
    assert_non_null(strstr(error.text, "/nonexistent/folder"));
    dp_trace_counter(dp_trace_thread_track(trace), 0, 1);
    dp_trace_destroy(trace, 1);
}

static void full_disk_falls_back_to_memory(void **state)
{
    dp_trace_t *trace = NULL;
    dp_error_t error;
    struct rlimit limit, small;
    char path[96];

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(
        dp_trace_create(((folder_t *)*state)->path, 0, 1, NULL, 1 << 20, &trace, &error), DP_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_non_null(strstr(error.text, "trace.0.dpt"));
    file_path(*state, 0, path);
    assert_int_not_equal(access(path, F_OK), 0);
    dp_trace_counter(dp_trace_thread_track(trace), 0, 1);
    dp_trace_destroy(trace, 1);
}

static void latest_records_stay_and_the_rest_is_counted(void **state)
{
    const uint64_t total = 20000;
    dp_trace_t *trace = create(*state, 0, (size_t)8 * DP_TRACE_CHUNK_BYTES);
    dp_trace_track_t *track = dp_trace_track(trace, "a", DP_TRACE_TRACK_LAUNCH);
    dp_trace_track_t *quiet = dp_trace_track(trace, "b", DP_TRACE_TRACK_COORDINATOR);
    uint64_t expected = total;
    dp_trace_file_t file;

    dp_trace_record(quiet, (dp_trace_record_t){.kind = DP_TRACE_LAUNCH, .start_ns = 1, .id = 7});
    for (uint64_t i = 1; i <= total; i++) {
        dp_trace_record(track,
                        (dp_trace_record_t){
                            .kind = DP_TRACE_SPAN, .start_ns = 10 + i, .duration_ns = 1, .id = i});
    }
    assert_true(dp_trace_dropped(trace) > total / 2);
    dp_trace_destroy(trace, 1);
    open_file(*state, 0, &file);
    assert_int_equal(file.event_count + file.dropped, total + 1);
    /* a quiet track keeps its chunk, however busy the others are */
    assert_int_equal(file.events[0].record.id, 7);
    for (size_t i = file.event_count - 1; i > 0; i--)
        assert_int_equal(file.events[i].record.id, expected--);
    dp_trace_file_close(&file);
}

/* The records in a window stay, however many follow; of those that follow the latest stay. */
static void a_window_outlives_what_follows(void **state)
{
    enum { BEFORE = 5000, INSIDE = 3000, AFTER = 100000 };
    dp_trace_t *trace = create(*state, 0, 1 << 20); /* some 20,000 records */
    dp_trace_track_t *track = dp_trace_track(trace, "launch", DP_TRACE_TRACK_LAUNCH);
    int inside = 0, has_last = 0;
    dp_trace_file_t file;

    for (uint64_t i = 1; i <= BEFORE + INSIDE + AFTER; i++) {
        if (i == BEFORE + 1) dp_trace_keep(trace, 1);
        dp_trace_record(track, (dp_trace_record_t){.kind = DP_TRACE_WIRE, .start_ns = i, .id = i});
        if (i == BEFORE + INSIDE) dp_trace_keep(trace, 0);
    }
    dp_trace_keep(NULL, 1);
    dp_trace_destroy(trace, 1);
    open_file(*state, 0, &file);
    for (size_t i = 0; i < file.event_count; i++) {
        uint64_t id = file.events[i].record.id;

        inside += id > BEFORE && id <= BEFORE + INSIDE;
        has_last |= id == BEFORE + INSIDE + AFTER;
    }
    assert_int_equal(inside, INSIDE);
    assert_true(has_last);
    assert_true(file.dropped > 0); /* and none of it inside the window */
    assert_int_equal(file.window_dropped, 0);
    assert_in_range(file.window_start_ns, 1, file.window_end_ns);
    dp_trace_file_close(&file);
}

/* A window longer than the room leaves a quarter of it to the flight recorder. */
static void a_window_too_long_leaves_room(void **state)
{
    enum { ALL = 200000 };
    dp_trace_t *trace = create(*state, 0, 1 << 20);
    dp_trace_track_t *track = dp_trace_track(trace, "launch", DP_TRACE_TRACK_LAUNCH);
    int has_first = 0, has_last = 0;
    dp_trace_file_t file;

    dp_trace_keep(trace, 1);
    for (uint64_t i = 1; i <= ALL; i++)
        dp_trace_record(track, (dp_trace_record_t){.kind = DP_TRACE_WIRE, .start_ns = i, .id = i});
    dp_trace_destroy(trace, 1);
    open_file(*state, 0, &file);
    for (size_t i = 0; i < file.event_count; i++) {
        has_first |= file.events[i].record.id == 1;
        has_last |= file.events[i].record.id == ALL;
    }
    assert_true(has_first);
    assert_true(has_last);
    assert_true(file.dropped > 0);
    assert_int_equal(file.window_dropped, file.dropped);
    assert_int_equal(file.window_end_ns, 0);
    dp_trace_file_close(&file);
}

static void spans_nest_and_open_ones_are_seen(void **state)
{
    dp_trace_t *trace = create(*state, 0, 1 << 20);
    dp_trace_track_t *track = dp_trace_thread_track(trace);
    dp_trace_file_t file;

    dp_trace_end(track); /* none open: nothing */
    dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_STEP, .id = 4});
    dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_SPAN, .id = 1});
    dp_trace_end(track);
    dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_WAIT, .id = 9});
    for (int i = 0; i < 40; i++)
        dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_SPAN});
    for (int i = 0; i < 40; i++)
        dp_trace_end(track);
    open_file(*state, 0, &file); /* while it is being written */
    assert_int_equal(file.end_ns, 0);
    assert_int_equal(file.events[0].record.kind, DP_TRACE_STEP);
    assert_int_equal(file.events[0].is_open, 1);
    assert_int_equal(file.events[0].record.start_ns + file.events[0].record.duration_ns,
                     file.last_ns);
    assert_int_equal(file.events[1].record.id, 1);
    assert_int_equal(file.events[1].is_open, 0);
    assert_int_equal(file.events[2].record.kind, DP_TRACE_WAIT);
    assert_int_equal(file.events[2].is_open, 1);
    dp_trace_file_close(&file);
    dp_trace_destroy(trace, 1);
}

static void killed_process_leaves_all_it_recorded(void **state)
{
    const folder_t *folder = *state;
    dp_trace_file_t file;
    int ready[2];
    char byte;
    pid_t child;
    uint64_t last = 0;

    assert_int_equal(pipe(ready), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dp_trace_t *trace = NULL;
        dp_trace_track_t *track;

        if (dp_trace_create(folder->path, 1, 4, "node", 1 << 20, &trace, NULL) != DP_OK) _exit(1);
        track = dp_trace_thread_track(trace);
        dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_WAIT, .id = 77});
        for (uint64_t i = 1;; i++) {
            dp_trace_instant(track,
                             (dp_trace_record_t){.kind = DP_TRACE_COUNTER, .id = i, .bytes = ~i});
            if (i == 100000 && write(ready[1], "x", 1) != 1) _exit(1);
        }
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ready[0]);
    open_file(folder, 1, &file);
    assert_int_equal(file.end_ns, 0);
    assert_int_equal(file.bad, 0);
    assert_int_equal(file.events[0].record.id, 77);
    for (size_t i = 1; i < file.event_count; i++) {
        const dp_trace_record_t *record = &file.events[i].record;

        assert_int_equal(record->bytes, ~record->id); /* whole */
        if (last != 0) assert_int_equal(record->id, last + 1);
        last = record->id;
    }
    assert_true(last >= 100000);
    dp_trace_file_close(&file);
}

/* ---- Threads -------------------------------------------------------------------------------- */

typedef struct writer {
    dp_trace_t *trace;
    uint64_t number;
} writer_t;

static void *write_records(void *argument)
{
    writer_t *writer = argument;
    char name[32];

    for (uint64_t i = 0; i < 3000; i++) {
        snprintf(name, sizeof(name), "name %d", (int)(i % 200));
        dp_trace_record(dp_trace_thread_track(writer->trace),
                        (dp_trace_record_t){.kind = DP_TRACE_SPAN,
                                            .start_ns = 1 + i,
                                            .id = writer->number,
                                            .bytes = i % 200,
                                            .name = dp_trace_name(writer->trace, name)});
    }
    return NULL;
}

static void threads_have_tracks_of_their_own(void **state)
{
    dp_trace_t *trace = create(*state, 0, 8 << 20);
    writer_t writers[8];
    pthread_t threads[8];
    dp_trace_file_t file;
    size_t counts[8] = {0};
    int64_t tracks[8];

    for (int i = 0; i < 8; i++) {
        writers[i] = (writer_t){.trace = trace, .number = (uint64_t)i};
        tracks[i] = -1;
        assert_int_equal(pthread_create(&threads[i], NULL, write_records, &writers[i]), 0);
    }
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    dp_trace_destroy(trace, 1);
    open_file(*state, 0, &file);
    assert_int_equal(file.event_count, 8 * 3000);
    for (size_t i = 0; i < file.event_count; i++) {
        const dp_trace_event_t *event = &file.events[i];
        char text[64], expected[64];

        counts[event->record.id]++;
        if (tracks[event->record.id] < 0) tracks[event->record.id] = event->track;
        assert_int_equal(tracks[event->record.id], event->track);
        snprintf(expected, sizeof(expected), "name %d", (int)event->record.bytes);
        assert_string_equal(dp_trace_file_name(&file, event->record.name, text, sizeof(text)),
                            expected);
    }
    for (int i = 0; i < 8; i++)
        assert_int_equal(counts[i], 3000);
    dp_trace_file_close(&file);
}

static void tracks_of_ended_threads_are_used_again(void **state)
{
    dp_trace_t *trace = create(*state, 0, 1 << 20);
    writer_t writer = {.trace = trace};
    dp_trace_file_t file;

    for (int i = 0; i < 3 * DP_TRACE_TRACKS; i++) {
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, NULL, write_records, &writer), 0);
        pthread_join(thread, NULL);
    }
    dp_trace_destroy(trace, 1);
    open_file(*state, 0, &file);
    assert_int_equal(file.track_count, 1);
    assert_int_equal(file.refused_tracks, 0);
    dp_trace_file_close(&file);
}

static void full_track_table_answers_null(void **state)
{
    dp_trace_t *trace = create(*state, 0, 1 << 20);
    dp_trace_file_t file;

    for (int i = 0; i < DP_TRACE_TRACKS; i++)
        assert_non_null(dp_trace_track(trace, "track", DP_TRACE_TRACK_STREAM));
    assert_null(dp_trace_track(trace, "one more", DP_TRACE_TRACK_STREAM));
    dp_trace_destroy(trace, 1);
    open_file(*state, 0, &file);
    assert_int_equal(file.refused_tracks, 1);
    dp_trace_file_close(&file);
}

static void names_are_shared_bounded_and_never_wrong(void **state)
{
    dp_trace_t *trace = create(*state, 0, 1 << 20);
    uint32_t first = dp_trace_name(trace, "same"), full = 0;
    char long_name[600], text[400];
    dp_trace_file_t file;
    uint32_t cut;

    assert_int_not_equal(first, 0);
    assert_int_equal(dp_trace_name(trace, "same"), first);
    assert_int_equal(dp_trace_name(trace, ""), 0);
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    cut = dp_trace_name(trace, long_name);
    for (int i = 0; i < 40000; i++) {
        snprintf(text, sizeof(text), "tensor %d", i);
        full = dp_trace_name(trace, text);
    }
    assert_int_equal(dp_trace_name(trace, "one that is too many"), full);
    assert_int_equal(dp_trace_name(trace, "same"), first);
    dp_trace_destroy(trace, 1);
    open_file(*state, 0, &file);
    assert_string_equal(dp_trace_file_name(&file, full, text, sizeof(text)), "(name table full)");
    assert_int_equal(strlen(dp_trace_file_name(&file, cut, text, sizeof(text))), DP_TRACE_NAME_MAX);
    dp_trace_file_close(&file);
}

/* ---- Damage --------------------------------------------------------------------------------- */

static uint8_t *read_bytes(const folder_t *folder, size_t *bytes)
{
    dp_trace_t *trace = create(folder, 0, (size_t)8 * DP_TRACE_CHUNK_BYTES);
    dp_trace_track_t *track = dp_trace_track(trace, "a", DP_TRACE_TRACK_LAUNCH);
    char path[96];
    struct stat info;
    uint8_t *data;
    FILE *file;

    for (uint64_t i = 1; i < 500; i++) {
        dp_trace_record(track, (dp_trace_record_t){.kind = DP_TRACE_WIRE,
                                                   .start_ns = i,
                                                   .name = dp_trace_name(trace, "t")});
    }
    dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_WAIT});
    dp_trace_destroy(trace, 1);
    file_path(folder, 0, path);
    file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &info), 0);
    *bytes = (size_t)info.st_size;
    data = malloc(*bytes);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

/* dprun --metrics reads it of a rank that runs. */
static void the_header_tells_steps_statistics_and_waits(void **state)
{
    const folder_t *folder = *state;
    const dp_stats_t stats = {.submitted = 7, .skew_ns = 5, .trace_dropped = 3};
    char path[96];
    dp_trace_t *trace;
    dp_trace_track_t *track;
    dp_trace_head_t head;
    dp_error_t error;

    assert_int_equal(dp_trace_create(folder->path, 2, 5, "node7", 1 << 20, &trace, &error), DP_OK);
    file_path(folder, 2, path);
    track = dp_trace_track(trace, "main", DP_TRACE_TRACK_THREAD);
    dp_trace_step(trace, 40, 1000, 50000, &stats);
    dp_trace_step(trace, 41, 500, 60000, NULL); /* the statistics stay */
    dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_STEP, .start_ns = 70000});
    assert_int_equal(dp_trace_head_read(path, &head, &error), DP_OK);
    assert_int_equal(head.rank, 2);
    assert_int_equal(head.size, 5);
    assert_int_equal(head.pid, getpid());
    assert_string_equal(head.host, "node7");
    assert_int_equal(head.steps, 2);
    assert_int_equal(head.step, 41);
    assert_int_equal(head.step_ns, 1500);
    assert_int_equal(head.step_end_ns, 60000);
    assert_int_equal(head.stats.submitted, 7);
    assert_int_equal(head.stats.skew_ns, 5);
    assert_int_equal(head.stats.trace_dropped, 3);
    assert_int_equal(head.waiting_ns, 0); /* a step is no wait */
    assert_int_equal(head.end_ns, 0);
    dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_WAIT, .start_ns = 80000});
    assert_int_equal(dp_trace_head_read(path, &head, &error), DP_OK);
    assert_int_equal(head.waiting_ns, 80000);
    dp_trace_end(track);
    dp_trace_destroy(trace, 1);
    assert_int_equal(dp_trace_head_read(path, &head, &error), DP_OK);
    assert_int_equal(head.waiting_ns, 0);
    assert_true(head.end_ns > 0);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(dp_trace_head_read(path, &head, &error), DP_ERR_INVALID);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(dp_trace_head_read(path, &head, &error), DP_ERR_SYSTEM);
}

/* Of a file that was cut the first part is read, whichever byte it ends with. */
static void cut_files_give_what_is_there(void **state)
{
    dp_trace_file_t file;
    dp_error_t error;
    size_t bytes, events;
    uint8_t *data = read_bytes(*state, &bytes);

    assert_int_equal(dp_trace_file_parse(data, bytes, "f", &file, &error), DP_OK);
    assert_true(file.bytes == bytes && file.whole_bytes == bytes);
    events = file.event_count;
    assert_true(events > 0);
    dp_trace_file_close(&file);
    for (size_t left = bytes - 1; left >= DP_TRACE_HEADER_BYTES; left -= dp_max(left / 50, 1ul)) {
        uint8_t *part = malloc(left); /* so that a sanitizer sees a read behind it */

        assert_non_null(part);
        memcpy(part, data, left);
        if (dp_trace_file_parse(part, left, "f", &file, &error) != DP_OK)
            fail_msg("%zu bytes: %s", left, error.text);
        assert_true(file.bytes == left && file.whole_bytes == bytes);
        assert_true(file.end_ns == 0);
        assert_in_range(file.event_count, 0, events);
        events = file.event_count;
        dp_trace_file_close(&file);
        free(part);
    }
    free(data);
}

static void cut_and_foreign_files_are_refused_by_name(void **state)
{
    dp_trace_file_t file;
    dp_error_t error;
    size_t bytes;
    uint8_t *data = read_bytes(*state, &bytes);

    assert_int_equal(dp_trace_file_parse(data, bytes, "f", &file, &error), DP_OK);
    dp_trace_file_close(&file);
    assert_int_equal(dp_trace_file_parse(data, 10, "f", &file, &error), DP_ERR_INVALID);
    data[0] ^= 1;
    assert_int_equal(dp_trace_file_parse(data, bytes, "f", &file, &error), DP_ERR_INVALID);
    assert_non_null(strstr(error.text, "not a trace"));
    data[0] ^= 1;
    data[8] = 99;
    assert_int_equal(dp_trace_file_parse(data, bytes, "f", &file, &error), DP_ERR_INVALID);
    assert_non_null(strstr(error.text, "version 99"));
    assert_int_equal(dp_trace_file_open("/nonexistent", &file, &error), DP_ERR_SYSTEM);
    assert_int_equal(dp_trace_file_open("/tmp", &file, &error), DP_ERR_INVALID);
    free(data);
}

static void damaged_bytes_never_lead_outside(void **state)
{
    size_t bytes;
    uint8_t *data = read_bytes(*state, &bytes);
    uint8_t *copy = malloc(bytes);
    uint64_t random = 88172645463325252ull;

    for (int round = 0; round < 3000; round++) {
        dp_trace_head_t head;
        dp_trace_file_t file;
        char text[300];

        memcpy(copy, data, bytes);
        for (int k = 0; k < 1 + round % 4; k++) {
            size_t at;

            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            /* mostly where it matters: header, tracks, first chunk */
            at = (size_t)(random >> 8) % (round % 3 == 0 ? 400 : bytes);
            copy[at] = (uint8_t)random;
        }
        (void)dp_trace_head_parse(copy, bytes, bytes, "f", &head, NULL);
        if (dp_trace_file_parse(copy, bytes, "f", &file, NULL) != DP_OK) continue;
        for (size_t i = 0; i < file.event_count; i++) {
            assert_in_range(file.events[i].track, 0, DP_TRACE_TRACKS - 1);
            dp_trace_file_name(&file, file.events[i].record.name, text, sizeof(text));
        }
        dp_trace_file_close(&file);
    }
    free(copy);
    free(data);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        CASE(records_come_back_as_written),
        CASE(nothing_happens_without_a_recorder),
        CASE(file_goes_unless_kept),
        CASE(without_a_folder_memory_serves),
        CASE(full_disk_falls_back_to_memory),
        CASE(latest_records_stay_and_the_rest_is_counted),
        CASE(a_window_outlives_what_follows),
        CASE(a_window_too_long_leaves_room),
        CASE(spans_nest_and_open_ones_are_seen),
        CASE(killed_process_leaves_all_it_recorded),
        CASE(threads_have_tracks_of_their_own),
        CASE(tracks_of_ended_threads_are_used_again),
        CASE(full_track_table_answers_null),
        CASE(names_are_shared_bounded_and_never_wrong),
        CASE(the_header_tells_steps_statistics_and_waits),
        CASE(cut_files_give_what_is_there),
        CASE(cut_and_foreign_files_are_refused_by_name),
        CASE(damaged_bytes_never_lead_outside),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
