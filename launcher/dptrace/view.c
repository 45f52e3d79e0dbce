/*
 * view.c - puts a timeline into the viewer's page: what is small as JSON, the events as varints in
 * base64, about 15 bytes each before it.
 *
 * The page (launcher/dptrace/view/) decodes it; layout of an event, in the order of rows:
 *     start minus the previous start of the row, duration, kind | is_open << 5, depth, name, then
 *     bucket minus the row's previous bucket (zigzag), id minus the row's previous id (zigzag),
 *     bytes, aux.
 */
#include "launcher/dptrace/view.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/dptrace/formats.h"
#include "launcher/dptrace/proto.h"
#include "runtime/base/json.h"

static void write_base64(const uint8_t *data, size_t bytes, FILE *file)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < bytes; i += 3) {
        uint32_t word = (uint32_t)data[i] << 16;
        size_t have = dp_min(bytes - i, (size_t)3);
        char text[4];

        if (have > 1) word |= (uint32_t)data[i + 1] << 8;
        if (have > 2) word |= data[i + 2];
        for (int k = 0; k < 4; k++)
            text[k] = digits[word >> (18 - 6 * k) & 63];
        if (have < 3) text[3] = '=';
        if (have < 2) text[2] = '=';
        fwrite(text, 1, 4, file);
    }
}

/* Small for small differences of either sign. */
static uint64_t zigzag(uint64_t now, uint64_t before)
{
    int64_t difference = (int64_t)(now - before);

    return (uint64_t)difference << 1 ^ (uint64_t)(difference >> 63);
}

static void encode_events(const dp_timeline_t *timeline, dp_proto_t *out)
{
    uint64_t start = 0, bucket = 0, id = 0;
    uint32_t row = UINT32_MAX;

    for (size_t i = 0; i < timeline->event_count; i++) {
        const dp_timeline_event_t *event = &timeline->events[i];

        if (event->row != row) start = bucket = id = 0;
        row = event->row;
        dp_proto_varint(out, event->start_ns - start);
        dp_proto_varint(out, event->duration_ns);
        dp_proto_varint(out, (uint64_t)event->kind | (uint64_t)(event->is_open != 0) << 5);
        dp_proto_varint(out, event->depth);
        dp_proto_varint(out, event->name);
        dp_proto_varint(out, zigzag(event->bucket, bucket));
        dp_proto_varint(out, zigzag(event->id, id));
        dp_proto_varint(out, event->bytes);
        dp_proto_varint(out, event->aux);
        start = event->start_ns;
        bucket = event->bucket;
        id = event->id;
    }
}

static void write_rows(const dp_timeline_t *timeline, FILE *file)
{
    fputs(",\"rows\":[", file);
    for (size_t i = 0; i < timeline->row_count; i++) {
        const dp_timeline_row_t *row = &timeline->rows[i];

        fprintf(file, "%s[%d,%d,%u,%zu,", i == 0 ? "" : ",", row->rank, (int)row->row_class,
                row->depth, row->count);
        dp_json_string(file, row->label);
        fputc(']', file);
    }
    fputc(']', file);
}

static void write_ranks(const dp_timeline_t *timeline, FILE *file)
{
    fputs(",\"ranks\":[", file);
    for (size_t i = 0; i < timeline->rank_count; i++) {
        const dp_timeline_rank_t *rank = &timeline->ranks[i];

        fprintf(file,
                "%s{\"rank\":%d,\"pid\":%d,\"closed\":%d,\"dropped\":%" PRIu64
                ",\"outside\":%" PRIu64,
                i ? "," : "", rank->rank, rank->pid, rank->is_closed, rank->dropped, rank->outside);
        if (rank->clock_error_ns != UINT64_MAX)
            fprintf(file, ",\"clock\":%" PRIu64, rank->clock_error_ns);
        fputs(",\"host\":", file);
        dp_json_string(file, rank->host);
        fputc('}', file);
    }
    fputc(']', file);
}

/* Per step and rank: start and duration in us, then its parts in us. */
static void write_cells(const dp_analysis_t *analysis, FILE *file)
{
    fprintf(file, ",\"marked\":%d,\"steps\":[", analysis->has_steps);
    for (size_t s = 0; s < analysis->step_count; s++)
        fprintf(file, "%s%" PRIu64, s == 0 ? "" : ",", analysis->steps[s]);
    fputs("],\"parts\":[", file);
    for (int p = 0; p < DP_PART_COUNT; p++) {
        if (p > 0) fputc(',', file);
        dp_json_string(file, dp_part_name((dp_step_part_t)p));
    }
    fputs("],\"cells\":[", file);
    for (size_t i = 0; i < analysis->step_count * analysis->rank_count; i++) {
        const dp_step_cell_t *cell = &analysis->cells[i];

        if (i > 0) fputc(',', file);
        if (!cell->is_set) {
            fputs("0", file);
            continue;
        }
        fprintf(file, "[%.1f,%.1f", (double)cell->start_ns / 1e3, (double)cell->duration_ns / 1e3);
        for (int p = 0; p < DP_PART_COUNT; p++)
            fprintf(file, ",%.1f", cell->part[p] / 1e3);
        fputc(']', file);
    }
    fprintf(file,
            "],\"summary\":{\"step\":%.1f,\"p50\":%.1f,\"p99\":%.1f,\"transfer\":%.1f,"
            "\"hidden\":%.4f,\"part\":[",
            analysis->step_ns / 1e3, analysis->p50_ns / 1e3, analysis->p99_ns / 1e3,
            analysis->transfer_ns / 1e3, analysis->hidden);
    for (int p = 0; p < DP_PART_COUNT; p++)
        fprintf(file, "%s%.1f", p == 0 ? "" : ",", analysis->part[p] / 1e3);
    fputs("]}", file);
}

static void write_meta(const dp_timeline_t *timeline, const dp_analysis_t *analysis,
                       const char *what, FILE *file)
{
    fputs("{\"title\":", file);
    dp_json_string(file, what);
    fprintf(file, ",\"events\":%zu,\"end\":%" PRIu64, timeline->event_count, timeline->end_ns);
    fputs(",\"kinds\":[", file);
    for (int i = 0; i < DP_TRACE_KIND_COUNT; i++) {
        if (i > 0) fputc(',', file);
        dp_json_string(file, dp_trace_kind_name((dp_trace_kind_t)i));
    }
    fputs("],\"strings\":[", file);
    for (size_t i = 0; i < timeline->string_count; i++) {
        if (i > 0) fputc(',', file);
        dp_json_string(file, timeline->strings[i]);
    }
    fputc(']', file);
    write_ranks(timeline, file);
    write_rows(timeline, file);
    write_cells(analysis, file);
    fputc('}', file);
}

/* Text into HTML. */
static void write_escaped(const char *text, FILE *file)
{
    for (; *text != '\0'; text++) {
        if (*text == '<' || *text == '>' || *text == '&' || *text == '"') {
            fprintf(file, "&#%d;", *text);
        } else {
            fputc(*text, file);
        }
    }
}

/* The page has marks, @TITLE@ @STYLE@ @META@ @DATA@ @SCRIPT@, that are replaced while it is
 * written, so no copy of the whole is made. */
dp_status_t dp_view_write(const dp_timeline_t *timeline, const dp_analysis_t *analysis,
                          const char *what, FILE *file)
{
    dp_proto_t events = {NULL, 0, 0, 0};
    const char *at = dp_view_page;
    const char *mark;

    encode_events(timeline, &events);
    if (events.failed) {
        dp_proto_fini(&events);
        return DP_ERR_NO_MEMORY;
    }
    while ((mark = strchr(at, '@')) != NULL) {
        const char *end = strchr(mark + 1, '@');
        size_t length = end != NULL ? (size_t)(end - mark - 1) : 0;

        fwrite(at, 1, (size_t)(mark - at), file);
        if (length == 5 && strncmp(mark + 1, "TITLE", length) == 0) {
            write_escaped(what, file);
        } else if (length == 5 && strncmp(mark + 1, "STYLE", length) == 0) {
            fputs(dp_view_style, file);
        } else if (length == 4 && strncmp(mark + 1, "META", length) == 0) {
            write_meta(timeline, analysis, what, file);
        } else if (length == 4 && strncmp(mark + 1, "DATA", length) == 0) {
            write_base64(events.data, events.bytes, file);
        } else if (length == 6 && strncmp(mark + 1, "SCRIPT", length) == 0) {
            fputs(dp_view_script, file);
        } else {
            end = NULL; /* an at sign of the page itself */
        }
        if (end == NULL) fputc('@', file);
        at = end != NULL ? end + 1 : mark + 1;
    }
    fputs(at, file);
    dp_proto_fini(&events);
    return DP_OK;
}
