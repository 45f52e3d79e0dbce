/*
 * fuzz_recorder.c - any bytes in the files of the flight recorder, which dprun and dptrace read
 * when a rank may have died in the middle of writing them.
 *
 * A file is large and mostly empty, so an input is not the file but a row of changes to a good one:
 * to its header, its tracks, names and chunks, and records that are added to it. Two ranks on two
 * machines, so that clocks are brought together as well. What is read must survive everything
 * dptrace does with it, and a merged file must be readable again.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "launcher/dptrace/analysis.h"
#include "launcher/dptrace/formats.h"
#include "launcher/dptrace/view.h"
#include "launcher/dprun/failure/recorder.h"
#include "launcher/dprun/metrics/text.h"
#include "tests/fuzz/scratch.h"

#define RANKS 2
#define TRACKS 3
#define CHUNKS 2
#define NAME_ROOM 256

typedef struct image {
    union {
        dp_trace_file_header_t header;
        uint8_t page[DP_TRACE_HEADER_BYTES];
    };
    dp_trace_file_track_t tracks[TRACKS];
    uint8_t names[NAME_ROOM];
    uint8_t chunks[CHUNKS][DP_TRACE_CHUNK_BYTES];
} image_t;

enum { IN_HEADER, IN_TRACK, IN_NAMES, IN_CHUNK, RECORD, RAW_RECORD, NAME, SWITCH, STEPS };

static void make_image(image_t *image, int rank)
{
    memset(image, 0, sizeof(*image));
    image->header = (dp_trace_file_header_t){
        .magic = DP_TRACE_MAGIC,
        .version = DP_TRACE_VERSION,
        .record_bytes = sizeof(dp_trace_record_t),
        .file_bytes = sizeof(*image),
        .track_offset = offsetof(image_t, tracks),
        .name_offset = offsetof(image_t, names),
        .name_room = NAME_ROOM,
        .chunk_offset = offsetof(image_t, chunks),
        .chunk_bytes = DP_TRACE_CHUNK_BYTES,
        .chunk_count = CHUNKS,
        .track_max = TRACKS,
        .rank = rank,
        .size = RANKS,
        .pid = 100 + rank,
        .start_ns = 1000000000,
        .start_real_ns = 2000000000,
        .boot = {(uint8_t)rank},
        .host = "here",
        .name_bytes = 1, /* no name has the id 0 */
        .track_count = TRACKS,
    };
    for (uint32_t i = 0; i < TRACKS; i++)
        image->tracks[i].kind = i + 1;
    for (uint32_t i = 0; i < CHUNKS; i++)
        ((dp_trace_file_chunk_t *)(void *)image->chunks[i])->track = i;
}

/* ---- Changes -------------------------------------------------------------------------------- */

static void patch(fuzz_input_t *input, void *part, size_t part_bytes)
{
    size_t at = (size_t)fuzz_number(input, 2) % part_bytes;
    size_t got;
    const uint8_t *data = fuzz_take(input, fuzz_number(input, 1) % 33, &got);

    if (got > 0) memcpy((uint8_t *)part + at, data, dp_min(got, part_bytes - at));
}

static void add_record(image_t *image, unsigned where, dp_trace_record_t record)
{
    dp_trace_file_chunk_t *chunk = (void *)image->chunks[where % CHUNKS];

    if (chunk->count < DP_TRACE_CHUNK_RECORDS) chunk->records[chunk->count++] = record;
}

/* A record that makes sense, or nearly: the top bit of the kind makes its numbers large. */
static dp_trace_record_t read_record(fuzz_input_t *input)
{
    unsigned kind = (unsigned)fuzz_number(input, 1);
    dp_trace_record_t record = {.kind = kind & 0x1f,
                                .start_ns = 1000000000 + fuzz_number(input, 2)};

    record.duration_ns = fuzz_number(input, 2);
    record.bucket = fuzz_number(input, 1);
    record.id = fuzz_number(input, kind & 0x80 ? 8 : 1);
    record.bytes = fuzz_number(input, kind & 0x80 ? 8 : 2);
    record.name = (uint32_t)fuzz_number(input, 1);
    record.aux = fuzz_number(input, 1) & DP_TRACE_AUX_MAX;
    if (kind & 0x40) record.duration_ns <<= 40;
    return record;
}

static void add_name(fuzz_input_t *input, image_t *image)
{
    size_t got;
    const uint8_t *text = fuzz_take(input, fuzz_number(input, 1) % 64, &got);
    size_t at = image->header.name_bytes;

    if (at > NAME_ROOM || got + 2 > NAME_ROOM - at) return;
    image->names[at] = (uint8_t)got;
    if (got > 0) memcpy(image->names + at + 2, text, got);
    image->header.name_bytes = (uint32_t)(at + 2 + got);
}

static void change(fuzz_input_t *input, image_t *images)
{
    image_t *image = &images[0];

    while (input->bytes > 0) {
        unsigned step = (unsigned)fuzz_number(input, 1);

        switch (step % STEPS) {
        case IN_HEADER:
            patch(input, &image->header, sizeof(image->header));
            break;
        case IN_TRACK:
            patch(input, &image->tracks[step / STEPS % TRACKS], sizeof(image->tracks[0]));
            break;
        case IN_NAMES:
            patch(input, image->names, sizeof(image->names));
            break;
        case IN_CHUNK:
            patch(input, image->chunks[step / STEPS % CHUNKS], 128);
            break;
        case RECORD:
            add_record(image, step / STEPS, read_record(input));
            break;
        case RAW_RECORD: {
            dp_trace_record_t record = {0};
            size_t got;
            const uint8_t *data = fuzz_take(input, sizeof(record), &got);

            if (got > 0) memcpy(&record, data, got);
            add_record(image, step / STEPS, record);
            break;
        }
        case NAME:
            add_name(input, image);
            break;
        default:
            image = &images[step / STEPS % RANKS];
            break;
        }
    }
}

/* ---- The whole way -------------------------------------------------------------------------- */

/* dptrace view must read what dptrace merge wrote. */
static void read_merged(const dp_timeline_t *timeline)
{
    dp_error_t error = {DP_OK, ""};
    dp_timeline_t again;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    if (file == NULL) return;
    if (dp_perfetto_write(timeline, file) != DP_OK || fclose(file) != 0) abort();
    dp_timeline_init(&again);
    if (dp_perfetto_parse((const uint8_t *)text, bytes, "merged", &again, &error) != DP_OK ||
        dp_timeline_finish(&again, NULL, &error) != DP_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    if (again.rank_count != timeline->rank_count || again.event_count != timeline->event_count) {
        fprintf(stderr, "%zu ranks, %zu events were written; %zu, %zu read\n", timeline->rank_count,
                timeline->event_count, again.rank_count, again.event_count);
        abort();
    }
    dp_timeline_fini(&again);
    free(text);
}

/* Whatever the names are, a text for a terminal has no control characters but its newlines. */
static void check_text(const dp_timeline_t *timeline, const dp_analysis_t *analysis)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    if (file == NULL) return;
    dp_report_text(timeline, analysis, "this", file);
    if (fclose(file) != 0) abort();
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char c = (unsigned char)text[i];

        if ((c < 0x20 && c != '\n') || c == 0x7f) abort();
    }
    free(text);
}

static void use(const dp_timeline_t *timeline)
{
    dp_analysis_t analysis;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    if (file == NULL) return;
    if (dp_analyse(timeline, &analysis) == DP_OK) {
        check_text(timeline, &analysis);
        dp_report_json(timeline, &analysis, file);
        (void)dp_view_write(timeline, &analysis, "this", file);
        dp_analysis_fini(&analysis);
    }
    (void)dp_chrome_write(timeline, file);
    (void)fclose(file);
    free(text);
    read_merged(timeline);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static image_t images[RANKS];
    fuzz_input_t input = {data, bytes};
    unsigned choice = (unsigned)fuzz_number(&input, 1);
    size_t cut = fuzz_number(&input, 2);
    dp_step_window_t window = {.is_set = (choice & 2) != 0, .first = 1, .last = 2};
    dp_error_t error = {DP_OK, ""};
    dp_timeline_t timeline;
    dp_last_moments_t last;
    const dp_metrics_source_t source = {
        .run_dir = scratch_folder(), .node = "here", .count = RANKS};
    FILE *nowhere = fopen("/dev/null", "we");

    for (int rank = 0; rank < RANKS; rank++)
        make_image(&images[rank], rank);
    change(&input, images);
    (void)scratch_write("trace.0.dpt", &images[0],
                        choice & 4 ? dp_min(cut, sizeof(images[0])) : sizeof(images[0]));
    if (choice & 1) {
        (void)scratch_write("trace.1.dpt", &images[1], sizeof(images[1]));
    } else {
        (void)unlink(scratch_path("trace.1.dpt"));
    }
    dp_recorder_last(scratch_folder(), 0, choice & 8 ? 2000000000 : 0, &last);
    if (memchr(last.text, '\0', sizeof(last.text)) == NULL) abort();
    dp_metrics_write(&source, 3000000000, nowhere);
    fclose(nowhere);
    if (dp_timeline_load(scratch_folder(), &window, &timeline, &error) == DP_OK) {
        use(&timeline);
        dp_timeline_fini(&timeline);
    } else if (error.text[0] == '\0') {
        abort();
    }
    return 0;
}

/* ---- Seeds ---------------------------------------------------------------------------------- */

typedef struct pen {
    uint8_t *data;
    size_t bytes;
} pen_t;

static void put(pen_t *pen, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        pen->data[pen->bytes++] = (uint8_t)(value >> (8 * i));
}

static void put_name(pen_t *pen, const char *text)
{
    put(pen, NAME, 1);
    put(pen, strlen(text), 1);
    for (; *text != '\0'; text++)
        put(pen, (uint8_t)*text, 1);
}

static void put_record(pen_t *pen, unsigned kind, unsigned start, unsigned duration, unsigned id)
{
    put(pen, RECORD + STEPS * (kind > DP_TRACE_WAIT ? 1 : 0), 1);
    put(pen, kind, 1);
    put(pen, start, 2);
    put(pen, duration, 2);
    put(pen, 1, 1); /* bucket */
    put(pen, id, kind & 0x80 ? 8 : 1);
    put(pen, 400, kind & 0x80 ? 8 : 2);
    put(pen, 1, 1); /* name */
    put(pen, 1, 1); /* aux */
}

/* A step on both ranks, with each kind of record in it. */
size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const uint8_t choices[] = {0, 1, 3, 9, 5};
    pen_t pen = {data, 0};

    (void)room;
    if (which >= sizeof(choices)) return 0;
    put(&pen, choices[which], 1);
    put(&pen, which == 4 ? 5000 : 0, 2);
    for (unsigned rank = 0; rank < RANKS; rank++) {
        put(&pen, SWITCH + STEPS * rank, 1);
        put_name(&pen, "wte");
        put_name(&pen, "forward");
        for (unsigned i = 1; i <= 2; i++)
            put_record(&pen, DP_TRACE_STEP, 2000 * i, 1900, i);
        for (unsigned kind = DP_TRACE_SPAN; kind < DP_TRACE_KIND_COUNT; kind++)
            put_record(&pen, kind, 2000 + 100 * kind + 10 * rank, 90, 1);
        if (which < 2) continue;
        put(&pen, IN_TRACK, 1); /* an open span */
        put(&pen, offsetof(dp_trace_file_track_t, depth), 2);
        put(&pen, 1, 1);
        put(&pen, 1, 1);
    }
    return pen.bytes;
}
