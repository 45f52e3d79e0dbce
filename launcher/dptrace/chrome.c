/*
 * chrome.c - the timeline as Chrome's trace-event JSON, for viewers that know nothing else.
 *
 * main.c calls it for `merge` into a .json file. A process per rank, a thread per row; complete
 * events, counters, and s/t/f arrows along each bucket. Format: the Trace Event Format document of
 * the Catapult project.
 */
#include "launcher/dptrace/formats.h"
#include "runtime/base/json.h"

#include <inttypes.h>
#include <stdlib.h>

/* One end of an arrow. */
typedef struct flow_point {
    uint64_t bucket;
    int32_t rank; /* -1: across ranks */
    size_t event;
    uint64_t start_ns;
} flow_point_t;

static int compare_points(const void *a, const void *b)
{
    const flow_point_t *left = a, *right = b;

    if (left->bucket != right->bucket) return left->bucket < right->bucket ? -1 : 1;
    if (left->rank != right->rank) return left->rank < right->rank ? -1 : 1;
    if (left->start_ns != right->start_ns) return left->start_ns < right->start_ns ? -1 : 1;
    return (left->event > right->event) - (left->event < right->event);
}

/* Starts the next element of the array. */
static void begin_element(FILE *file, int *is_first)
{
    fputs(*is_first ? "\n" : ",\n", file);
    *is_first = 0;
}

/* Microseconds with all their ns; integers stay exact. */
static void write_us(FILE *file, uint64_t ns)
{
    fprintf(file, "%" PRIu64 ".%03u", ns / 1000, (unsigned)(ns % 1000));
}

static void write_heads(const dp_timeline_t *timeline, FILE *file, int *is_first)
{
    char name[320];

    for (size_t i = 0; i < timeline->rank_count; i++) {
        const dp_timeline_rank_t *rank = &timeline->ranks[i];

        begin_element(file, is_first);
        snprintf(name, sizeof(name), "rank %d %s", rank->rank, rank->host);
        fprintf(file, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":",
                rank->rank);
        dp_json_string(file, name);
        fprintf(file,
                "}},\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_sort_index\","
                "\"args\":{\"sort_index\":%d}}",
                rank->rank, rank->rank);
    }
    for (size_t i = 0; i < timeline->row_count; i++) {
        const dp_timeline_row_t *row = &timeline->rows[i];

        if (row->row_class == DP_ROW_COUNTER) continue;
        begin_element(file, is_first);
        fprintf(file,
                "{\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,\"name\":\"thread_name\",\"args\":{\"name\":",
                timeline->ranks[row->rank].rank, i);
        dp_json_string(file, row->label);
        fprintf(file,
                "}},\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,\"name\":\"thread_sort_index\","
                "\"args\":{\"sort_index\":%zu}}",
                timeline->ranks[row->rank].rank, i, i);
    }
}

static void write_name(const dp_timeline_t *timeline, const dp_timeline_event_t *event, FILE *file)
{
    char text[64];

    if (event->kind == DP_TRACE_STEP) {
        snprintf(text, sizeof(text), "step %" PRIu64, event->id);
        dp_json_string(file, text);
    } else if (event->kind == DP_TRACE_WAIT_RANK) {
        snprintf(text, sizeof(text), "waiting for rank %u", event->aux);
        dp_json_string(file, text);
    } else if (event->name == 0) {
        dp_json_string(file, dp_trace_kind_name((dp_trace_kind_t)event->kind));
    } else {
        dp_json_string(file, timeline->strings[event->name]);
    }
}

static void write_event(const dp_timeline_t *timeline, const dp_timeline_event_t *event, FILE *file)
{
    int pid = timeline->ranks[event->rank].rank;

    fputs("{\"name\":", file);
    write_name(timeline, event, file);
    fprintf(file, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%u,\"ts\":",
            dp_trace_kind_name((dp_trace_kind_t)event->kind), pid, event->row);
    write_us(file, event->start_ns);
    if (event->kind == DP_TRACE_COUNTER) {
        fprintf(file, ",\"ph\":\"C\",\"args\":{\"value\":%" PRIu64 "}}", event->id);
        return;
    }
    if (event->kind == DP_TRACE_FAULT) {
        fprintf(file, ",\"ph\":\"i\",\"s\":\"p\",\"args\":{\"rank\":%u}}", event->aux);
        return;
    }
    fputs(",\"ph\":\"X\",\"dur\":", file);
    write_us(file, event->duration_ns);
    fprintf(file, ",\"args\":{\"bucket\":%" PRIu64 ",\"id\":%" PRIu64 ",\"bytes\":%" PRIu64,
            event->bucket, event->id, event->bytes);
    if (event->aux != 0) {
        fprintf(file, ",\"%s\":%u", event->kind == DP_TRACE_WAIT_RANK ? "rank" : "tensors",
                event->aux);
    }
    if (event->kind == DP_TRACE_WIRE && event->duration_ns > 0)
        fprintf(file, ",\"GB_per_s\":%.3f", (double)event->bytes / (double)event->duration_ns);
    fputs("}}", file);
}

/* As in perfetto_write.c: an arrow through a bucket's events on each rank, and one through its wire
 * events on all ranks. */
static dp_status_t list_points(const dp_timeline_t *timeline, flow_point_t **points, size_t *count)
{
    size_t room = 0;

    for (size_t i = 0; i < timeline->event_count; i++) {
        const dp_timeline_event_t *event = &timeline->events[i];
        int is_wire = event->kind == DP_TRACE_WIRE;

        if (event->bucket == 0 ||
            !(is_wire || event->kind == DP_TRACE_SUBMIT || event->kind == DP_TRACE_PACK ||
              event->kind == DP_TRACE_UNPACK || event->kind == DP_TRACE_WAIT))
            continue;
        for (int across = 0; across <= is_wire; across++) {
            if (!dp_grow(points, *count, &room, sizeof(**points))) return DP_ERR_NO_MEMORY;
            (*points)[(*count)++] = (flow_point_t){.bucket = event->bucket,
                                                   .rank = across ? -1 : event->rank,
                                                   .event = i,
                                                   .start_ns = event->start_ns};
        }
    }
    if (*count > 0) qsort(*points, *count, sizeof(**points), compare_points);
    return DP_OK;
}

static int same_flow(const flow_point_t *a, const flow_point_t *b)
{
    return a->bucket == b->bucket && a->rank == b->rank;
}

/* Points lie by flow and start: the first of a flow starts the arrow (s), the last ends it (f),
 * those between pass it on (t). A flow of one point is no arrow. */
static void write_flows(const dp_timeline_t *timeline, const flow_point_t *points, size_t count,
                        FILE *file, int *is_first)
{
    for (size_t i = 0; i < count; i++) {
        const dp_timeline_event_t *event = &timeline->events[points[i].event];
        int begins = i == 0 || !same_flow(&points[i - 1], &points[i]);
        int ends = i + 1 == count || !same_flow(&points[i], &points[i + 1]);

        if (begins && ends) continue;
        begin_element(file, is_first);
        fprintf(file,
                "{\"ph\":\"%s\",\"cat\":\"flow\",\"name\":\"bucket\",\"id\":\"%" PRIu64 ".%d\","
                "\"pid\":%d,\"tid\":%u%s,\"ts\":",
                begins ? "s"
                : ends ? "f"
                       : "t",
                points[i].bucket, points[i].rank, timeline->ranks[event->rank].rank, event->row,
                ends ? ",\"bp\":\"e\"" : "");
        write_us(file, event->start_ns);
        fputs("}", file);
    }
}

dp_status_t dp_chrome_write(const dp_timeline_t *timeline, FILE *file)
{
    flow_point_t *points = NULL;
    size_t count = 0;
    int is_first = 1;
    dp_status_t status = list_points(timeline, &points, &count);

    if (status == DP_OK) {
        fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", file);
        write_heads(timeline, file, &is_first);
        for (size_t i = 0; i < timeline->event_count; i++) {
            begin_element(file, &is_first);
            write_event(timeline, &timeline->events[i], file);
        }
        write_flows(timeline, points, count, file, &is_first);
        fputs("\n]}\n", file);
    }
    free(points);
    return status;
}
