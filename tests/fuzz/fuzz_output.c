/*
 * fuzz_output.c - any bytes as what ranks print and what they say they do.
 *
 * The output of ranks must leave the cutter complete and in order, whatever it is cut into;
 * what they say ends in the report, in which no control character may be left.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>

#include "launcher/dprun/failure/fate.h"
#include "launcher/dprun/output/lines.h"
#include "launcher/dprun/failure/report.h"
#include "runtime/base/common.h"

#define RANKS 3

typedef struct seen {
    uint8_t *data; /* [room] the stream put together again */
    size_t bytes, room;
    dp_tail_t tail;
} seen_t;

static void put(seen_t *seen, const void *data, size_t bytes)
{
    if (bytes > seen->room - seen->bytes) abort();
    memcpy(seen->data + seen->bytes, data, bytes);
    seen->bytes += bytes;
}

static void take_line(void *context, const char *text, size_t bytes, dp_line_end_t end)
{
    seen_t *seen = context;

    put(seen, text, bytes);
    if (end == DP_LINE_NEWLINE) put(seen, "\n", 1);
    if (end == DP_LINE_RETURN_NEWLINE) put(seen, "\r\n", 2);
    if (end == DP_LINE_RETURN) put(seen, "\r", 1);
    dp_tail_add(&seen->tail, text, bytes);
}

static const dp_tail_t *tail_of(const void *context, int rank)
{
    (void)rank;
    return context;
}

static void check_report(const dp_fate_t *fate, const dp_tail_t *tail)
{
    dp_report_t report = {.fate = fate, .node = "here", .tail = tail_of, .context = tail};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    if (out == NULL) return;
    dp_report_failure(&report, out);
    dp_report_timeout(&report, 1000000000, out);
    (void)fclose(out);
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] < 0x20 && text[i] != '\n') abort();
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    size_t piece = 1 + fuzz_number(&input, 1);
    size_t reports = fuzz_number(&input, 1) % 8;
    dp_lines_t lines;
    dp_fate_t fate;
    seen_t seen = {.room = bytes + 1};

    seen.data = malloc(seen.room);
    if (seen.data == NULL || dp_fate_init(&fate, RANKS, 0) != 0) abort();
    for (int i = 0; i < RANKS; i++) {
        fate.ranks[i].pid = 100 + i;
        fate.ranks[i].has_ended = i != 2;
        fate.ranks[i].status = (int)fuzz_number(&input, 2);
        fate.ranks[i].end_ns = (uint64_t)1000000 * fuzz_number(&input, 1);
    }
    for (; reports > 0; reports--) {
        size_t got;
        const uint8_t *text = fuzz_take(&input, fuzz_number(&input, 1), &got);
        dp_failure_t failure;

        /* as dp_failure_read() hands them on */
        dp_failure_init(&failure, DP_FAILURE_OTHER, -1, "");
        for (size_t i = 0; i < got; i++)
            failure.text[i] = (char)(text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i]);
        if (got > 1) {
            failure.kind = (dp_failure_kind_t)(text[0] % DP_FAILURE_KINDS);
            failure.culprit = text[1] % (RANKS + 2) - 1; /* one too many */
        }
        dp_fate_report(&fate, (int)(reports % RANKS), &failure, reports);
    }
    dp_lines_init(&lines);
    for (size_t at = 0; at < input.bytes; at += piece) {
        dp_lines_feed(&lines, (const char *)input.data + at, dp_min(piece, input.bytes - at),
                      take_line, &seen);
    }
    dp_lines_end(&lines, take_line, &seen);
    dp_lines_fini(&lines);
    if (seen.bytes != input.bytes || memcmp(seen.data, input.data, seen.bytes) != 0) abort();
    check_report(&fate, &seen.tail);
    dp_tail_fini(&seen.tail);
    dp_fate_fini(&fate);
    free(seen.data);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const struct {
        uint8_t head[2 + 3 * RANKS];
        const char *reports;
        const char *text;
    } seeds[] = {
        {{9, 0, 0, 1, 5, 9, 0, 6}, "", "step 1\rstep 2\r\nloss 3.5\n\nend"},
        {{3, 1, 0, 1, 5, 0, 1, 6},
         "\x12"
         "rank 1: step 12 wte",
         "h\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80 \n"},
        {{255, 2, 11, 0, 5, 0, 1, 5},
         "\x06"
         "rank 2"
         "\x0d"
         "submits wte 3",
         "\x1b[31mred\n"},
    };
    size_t bytes = sizeof(seeds[0].head);

    if (which >= DP_ARRAY_LEN(seeds)) return 0;
    (void)room;
    memcpy(data, seeds[which].head, bytes);
    for (const char *at = seeds[which].reports; *at != '\0'; at++)
        data[bytes++] = (uint8_t)*at;
    for (const char *at = seeds[which].text; *at != '\0'; at++)
        data[bytes++] = (uint8_t)*at;
    return bytes;
}
