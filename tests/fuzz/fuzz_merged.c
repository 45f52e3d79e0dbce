/*
 * fuzz_merged.c - any bytes as a merged timeline, which dptrace reads back, and as its --steps.
 *
 * A protobuf is full of lengths that a blind change breaks. So the first byte says whether the rest
 * is the file itself, or a row of steps from which one with right lengths is made: a number, a
 * text, the beginning or the end of a message inside another. What is read must survive everything
 * dptrace does with it.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>

#include "launcher/dptrace/analysis.h"
#include "launcher/dptrace/formats.h"
#include "launcher/dptrace/proto.h"
#include "launcher/dptrace/view.h"

#define DEPTH 8

enum { AS_FILE, AS_STEPS, AS_WINDOW, KINDS };
enum { NUMBER, TEXT, BEGIN, END, STEPS };

/* ---- From steps to a file ------------------------------------------------------------------- */

static void build(fuzz_input_t *input, dp_proto_t *out)
{
    dp_proto_t levels[DEPTH] = {{NULL, 0, 0, 0}};
    uint32_t fields[DEPTH] = {0};
    int depth = 0;

    while (input->bytes > 0 || depth > 0) {
        unsigned step = input->bytes > 0 ? (unsigned)fuzz_number(input, 1) : END;
        size_t got;

        if (step % STEPS == BEGIN && depth + 1 < DEPTH) {
            fields[++depth] = 1 + (uint32_t)fuzz_number(input, 1) % 127;
        } else if (step % STEPS == END && depth > 0) {
            dp_proto_message(&levels[depth - 1], fields[depth], &levels[depth]);
            dp_proto_clear(&levels[depth--]);
        } else if (step % STEPS == NUMBER) {
            uint32_t field = 1 + (uint32_t)fuzz_number(input, 1) % 127;

            dp_proto_uint(&levels[depth], field, fuzz_number(input, dp_min(step >> 2, 8u)));
        } else if (step % STEPS == TEXT) {
            uint32_t field = 1 + (uint32_t)fuzz_number(input, 1) % 127;
            const uint8_t *text = fuzz_take(input, step >> 2, &got);

            dp_proto_bytes(&levels[depth], field, text, got);
        }
    }
    *out = levels[0];
    for (int i = 1; i < DEPTH; i++)
        dp_proto_fini(&levels[i]);
}

/* ---- From a file to steps, for the seeds ---------------------------------------------------- */

/* The steps of a file, cut where they do not fit. */
typedef struct steps {
    uint8_t *data;
    size_t bytes, room;
} steps_t;

static void put_byte(steps_t *out, uint64_t value)
{
    if (out->bytes < out->room) out->data[out->bytes++] = (uint8_t)value;
}

/* Whether a span reads as a message of fields that we know. */
static int is_message(const uint8_t *data, size_t bytes)
{
    dp_proto_reader_t reader;

    dp_proto_read(&reader, data, bytes);
    while (dp_proto_next(&reader))
        if (reader.field > 100) return 0;
    return bytes > 0 && !reader.failed;
}

static void take_apart(const void *data, size_t bytes, int depth, steps_t *out)
{
    dp_proto_reader_t reader;

    dp_proto_read(&reader, data, bytes);
    while (dp_proto_next(&reader)) {
        if (reader.span == NULL) {
            size_t width = 0;

            while (width < 8 && reader.value >> (8 * width) != 0)
                width++;
            put_byte(out, NUMBER | width << 2);
            put_byte(out, reader.field - 1);
            for (size_t i = 0; i < width; i++)
                put_byte(out, reader.value >> (8 * i));
        } else if (depth < DEPTH - 2 && is_message(reader.span, reader.span_bytes)) {
            put_byte(out, BEGIN);
            put_byte(out, reader.field - 1);
            take_apart(reader.span, reader.span_bytes, depth + 1, out);
            put_byte(out, END);
        } else {
            size_t length = dp_min(reader.span_bytes, (size_t)63);

            put_byte(out, TEXT | length << 2);
            put_byte(out, reader.field - 1);
            for (size_t i = 0; i < length; i++)
                put_byte(out, reader.span[i]);
        }
    }
}

/* ---- The whole way -------------------------------------------------------------------------- */

/* Everything the commands of dptrace write from a timeline. */
static void use(const dp_timeline_t *timeline)
{
    dp_analysis_t analysis;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    if (file == NULL) return;
    if (dp_analyse(timeline, &analysis) == DP_OK) {
        dp_report_text(timeline, &analysis, "this", file);
        dp_report_json(timeline, &analysis, file);
        (void)dp_view_write(timeline, &analysis, "this", file);
        dp_analysis_fini(&analysis);
    }
    (void)dp_chrome_write(timeline, file);
    (void)dp_perfetto_write(timeline, file);
    (void)fclose(file);
    free(text);
}

static void fuzz_window(const uint8_t *data, size_t bytes)
{
    dp_error_t error = {DP_OK, ""};
    dp_step_window_t window;
    char *text = calloc(1, bytes + 1);

    if (text == NULL) return;
    if (bytes > 0) memcpy(text, data, bytes);
    if (dp_step_window_parse(text, &window, &error) != DP_OK) {
        if (error.text[0] == '\0') abort();
    } else if (!window.is_set || window.first > window.last) {
        abort();
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    int kind = (int)(fuzz_number(&input, 1) % KINDS);
    dp_step_window_t window = {.is_set = (int)(fuzz_number(&input, 1) & 1), .first = 1, .last = 2};
    dp_error_t error = {DP_OK, ""};
    dp_proto_t file = {NULL, 0, 0, 0};
    dp_timeline_t timeline;
    dp_status_t status;

    if (kind == AS_WINDOW) {
        fuzz_window(input.data, input.bytes);
        return 0;
    }
    if (kind == AS_STEPS) {
        build(&input, &file);
    } else {
        dp_proto_bytes(&file, 1, input.data, input.bytes); /* only to have it on the heap */
        dp_proto_clear(&file);
        if (input.bytes > 0) memcpy(file.data, input.data, input.bytes);
        file.bytes = input.bytes;
    }
    dp_timeline_init(&timeline);
    status = dp_perfetto_parse(file.data, file.bytes, "input", &timeline, &error);
    if (status == DP_OK) status = dp_timeline_finish(&timeline, &window, &error);
    if (status == DP_OK) {
        use(&timeline);
    } else if (error.text[0] == '\0') {
        abort();
    }
    dp_timeline_fini(&timeline);
    dp_proto_fini(&file);
    return 0;
}

/* A job of two ranks and two steps, as dptrace merge would write it. */
static size_t write_job(char **text)
{
    static const uint8_t kinds[] = {DP_TRACE_SPAN,    DP_TRACE_SUBMIT, DP_TRACE_AGREE,
                                    DP_TRACE_LAUNCH,  DP_TRACE_PACK,   DP_TRACE_WIRE,
                                    DP_TRACE_UNPACK,  DP_TRACE_WAIT,   DP_TRACE_WAIT_RANK,
                                    DP_TRACE_COUNTER, DP_TRACE_FAULT,  DP_TRACE_COMPUTE};
    dp_timeline_t timeline;
    size_t bytes = 0;
    FILE *file = open_memstream(text, &bytes);

    if (file == NULL) abort();
    dp_timeline_init(&timeline);
    for (int rank = 0; rank < 2; rank++) {
        dp_timeline_rank_t *made = dp_timeline_add_rank(&timeline);

        made->rank = rank;
        made->size = 2;
        made->pid = 100 + rank;
        memcpy(made->host, "here", 5);
        for (uint64_t i = 0; i < 2; i++) {
            dp_timeline_event_t *event = dp_timeline_add_event(&timeline);

            *event = (dp_timeline_event_t){.start_ns = 1000 * i,
                                           .duration_ns = 900,
                                           .id = i + 1,
                                           .rank = rank,
                                           .kind = DP_TRACE_STEP};
        }
        for (size_t i = 0; i < DP_ARRAY_LEN(kinds); i++) {
            size_t name = dp_timeline_string(&timeline, i % 2 == 0 ? "wte" : "wpe");
            dp_timeline_event_t *event = dp_timeline_add_event(&timeline);

            *event = (dp_timeline_event_t){.start_ns = 50 * i + 10,
                                           .duration_ns = 45,
                                           .bucket = 1,
                                           .id = 1,
                                           .bytes = 100,
                                           .name = (uint32_t)name,
                                           .rank = rank,
                                           .kind = kinds[i]};
        }
    }
    if (dp_timeline_finish(&timeline, NULL, NULL) != DP_OK) abort();
    if (dp_perfetto_write(&timeline, file) != DP_OK || fclose(file) != 0) abort();
    dp_timeline_fini(&timeline);
    return bytes;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const uint8_t window[] = {AS_WINDOW, 0, '1', '0', '-', '2', '0'};
    steps_t steps = {data + 2, 0, room - 2};
    char *text = NULL;
    size_t bytes;

    if (which == 4) {
        memcpy(data, window, sizeof(window));
        return sizeof(window);
    }
    if (which > 4) return 0;
    bytes = write_job(&text);
    data[0] = which < 2 ? AS_FILE : AS_STEPS;
    data[1] = (uint8_t)(which & 1);
    if (which < 2) {
        bytes = dp_min(bytes, room - 2);
        memcpy(data + 2, text, bytes);
    } else {
        take_apart(text, bytes, 0, &steps);
        bytes = steps.bytes;
    }
    free(text);
    return 2 + bytes;
}
