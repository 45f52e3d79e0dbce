/*
 * perfetto_write.c - the timeline as Perfetto's protobuf: a process per rank, a track per row.
 *
 * Each rank is a packet sequence of its own with interned names, so files concatenate. A track's
 * slices are written as begin and end in order of time, with ends before begins. Flows link a
 * bucket's submit, pack, wire, unpack and wait inside a rank, and its wire slices across ranks.
 * Called by main.c, on dptrace's only thread.
 */
#include "launcher/dptrace/formats.h"

#include <stdlib.h>
#include <string.h>

#include "launcher/dptrace/perfetto.h"
#include "launcher/dptrace/proto.h"

#define DEPTH_MAX 64

const char *const dp_annotation_names[DP_NOTE_COUNT] = {
    NULL,     "bucket",     "id",       "bytes",          "tensors",       "rank",
    "lane",   "unfinished", "GB_per_s", "ranks",          "host",          "pid",
    "closed", "dropped",    "bad",      "clock_error_ns", "outside_window"};

typedef struct writer {
    const dp_timeline_t *timeline;
    FILE *file;
    dp_proto_t packet, event, inner, wrapped, interned;
    uint8_t *name_is_known; /* by string, in the present sequence */
    uint32_t sequence;
    int32_t rank; /* index */
} writer_t;

static uint64_t process_uuid(int32_t rank)
{
    return (uint64_t)(uint32_t)rank + 1;
}

static uint64_t row_uuid(uint32_t row)
{
    return ((uint64_t)1 << 32) + row;
}

/* Flow ids only have to differ: the bucket of one rank, or (rank + 1 = 0) of all. */
static uint64_t flow_id(uint64_t bucket, uint32_t rank_plus_one)
{
    uint64_t id = bucket * 0x9e3779b97f4a7c15ull + ((uint64_t)rank_plus_one << 40) + 1;

    id = (id ^ id >> 31) * 0xd6e8feb86659fd93ull;
    return id ^ id >> 32;
}

/* ---- Packets -------------------------------------------------------------------------------- */

/* Writes writer->packet as one packet of the sequence. */
static void emit_packet(writer_t *writer, uint32_t flags)
{
    dp_proto_uint(&writer->packet, PACKET_SEQUENCE, writer->sequence);
    if (flags != 0) dp_proto_uint(&writer->packet, PACKET_FLAGS, flags);
    dp_proto_clear(&writer->wrapped);
    dp_proto_message(&writer->wrapped, TRACE_PACKET, &writer->packet);
    if (!writer->wrapped.failed)
        fwrite(writer->wrapped.data, 1, writer->wrapped.bytes, writer->file);
    dp_proto_clear(&writer->packet);
}

/* Names that the event uses for the first time travel in its own packet. */
static void emit_event(writer_t *writer, uint64_t time_ns)
{
    dp_proto_uint(&writer->packet, PACKET_TIMESTAMP, writer->timeline->origin_ns + time_ns);
    dp_proto_message(&writer->packet, PACKET_TRACK_EVENT, &writer->event);
    if (writer->interned.bytes > 0)
        dp_proto_message(&writer->packet, PACKET_INTERNED, &writer->interned);
    dp_proto_clear(&writer->interned);
    emit_packet(writer, FLAG_NEEDS_STATE);
}

static void begin_event(writer_t *writer, uint64_t type, uint64_t track)
{
    dp_proto_clear(&writer->event);
    dp_proto_uint(&writer->event, EVENT_TYPE, type);
    dp_proto_uint(&writer->event, EVENT_TRACK, track);
}

static void write_interned(writer_t *writer, uint32_t list, uint64_t iid, const char *text)
{
    dp_proto_clear(&writer->inner);
    dp_proto_uint(&writer->inner, INTERNED_IID, iid);
    dp_proto_text(&writer->inner, INTERNED_TEXT, text);
    dp_proto_message(&writer->interned, list, &writer->inner);
}

static void note_uint(writer_t *writer, dp_annotation_t note, uint64_t value)
{
    dp_proto_clear(&writer->inner);
    dp_proto_uint(&writer->inner, ANNOTATION_NAME_IID, note);
    dp_proto_uint(&writer->inner, ANNOTATION_UINT, value);
    dp_proto_message(&writer->event, EVENT_ANNOTATION, &writer->inner);
}

static void note_double(writer_t *writer, dp_annotation_t note, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    dp_proto_clear(&writer->inner);
    dp_proto_uint(&writer->inner, ANNOTATION_NAME_IID, note);
    dp_proto_fixed64(&writer->inner, ANNOTATION_DOUBLE, bits);
    dp_proto_message(&writer->event, EVENT_ANNOTATION, &writer->inner);
}

static void note_text(writer_t *writer, dp_annotation_t note, const char *text)
{
    dp_proto_clear(&writer->inner);
    dp_proto_uint(&writer->inner, ANNOTATION_NAME_IID, note);
    dp_proto_text(&writer->inner, ANNOTATION_TEXT, text);
    dp_proto_message(&writer->event, EVENT_ANNOTATION, &writer->inner);
}

/* ---- A rank's head -------------------------------------------------------------------------- */

static void write_process(writer_t *writer)
{
    const dp_timeline_rank_t *rank = &writer->timeline->ranks[writer->rank];
    char name[320];

    snprintf(name, sizeof(name), "rank %d %s", rank->rank, rank->host);
    dp_proto_clear(&writer->event);
    dp_proto_uint(&writer->event, TRACK_UUID, process_uuid(writer->rank));
    dp_proto_clear(&writer->inner);
    /* not the real pid: two machines may use the same one */
    dp_proto_uint(&writer->inner, PROCESS_PID, (uint64_t)rank->rank + 1);
    dp_proto_text(&writer->inner, PROCESS_NAME, name);
    dp_proto_message(&writer->event, TRACK_PROCESS, &writer->inner);
    dp_proto_uint(&writer->event, TRACK_CHILD_ORDER, CHILD_ORDER_EXPLICIT);
    dp_proto_message(&writer->packet, PACKET_TRACK, &writer->event);
    emit_packet(writer, FLAG_STATE_CLEARED);
}

static void write_row(writer_t *writer, uint32_t index)
{
    const dp_timeline_row_t *row = &writer->timeline->rows[index];

    dp_proto_clear(&writer->event);
    dp_proto_uint(&writer->event, TRACK_UUID, row_uuid(index));
    dp_proto_uint(&writer->event, TRACK_PARENT, process_uuid(writer->rank));
    dp_proto_text(&writer->event, TRACK_NAME, row->label);
    dp_proto_uint(&writer->event, TRACK_PLACE, index);
    dp_proto_uint(&writer->event, TRACK_MERGE, MERGE_NONE);
    if (row->row_class == DP_ROW_COUNTER) {
        dp_proto_clear(&writer->inner);
        dp_proto_uint(&writer->inner, COUNTER_UNIT,
                      strstr(row->label, "bytes") != NULL ? UNIT_BYTES : UNIT_COUNT);
        dp_proto_message(&writer->event, TRACK_COUNTER, &writer->inner);
    }
    dp_proto_message(&writer->packet, PACKET_TRACK, &writer->event);
    emit_packet(writer, 0);
}

/* One instant on the process's own track carries the facts about the recorder. */
static void write_recorder(writer_t *writer)
{
    const dp_timeline_rank_t *rank = &writer->timeline->ranks[writer->rank];

    for (int i = 1; i < DP_TRACE_KIND_COUNT; i++) {
        write_interned(writer, INTERNED_CATEGORIES, (uint64_t)i,
                       dp_trace_kind_name((dp_trace_kind_t)i));
    }
    write_interned(writer, INTERNED_CATEGORIES, DP_TRACE_KIND_COUNT, DP_RECORDER_CATEGORY);
    for (int i = 1; i < DP_NOTE_COUNT; i++)
        write_interned(writer, INTERNED_ANNOTATIONS, (uint64_t)i, dp_annotation_names[i]);
    begin_event(writer, TYPE_INSTANT, process_uuid(writer->rank));
    dp_proto_uint(&writer->event, EVENT_CATEGORY, DP_TRACE_KIND_COUNT);
    dp_proto_text(&writer->event, EVENT_NAME, "recorder");
    note_uint(writer, DP_NOTE_RANK, (uint64_t)rank->rank);
    note_uint(writer, DP_NOTE_SIZE, (uint64_t)rank->size);
    note_text(writer, DP_NOTE_HOST, rank->host);
    note_uint(writer, DP_NOTE_PID, (uint64_t)rank->pid);
    note_uint(writer, DP_NOTE_CLOSED, (uint64_t)rank->is_closed);
    note_uint(writer, DP_NOTE_DROPPED, rank->dropped);
    note_uint(writer, DP_NOTE_OUTSIDE, rank->outside);
    note_uint(writer, DP_NOTE_BAD, rank->bad);
    note_uint(writer, DP_NOTE_CLOCK_ERROR, rank->clock_error_ns);
    emit_event(writer, 0);
}

/* ---- Events --------------------------------------------------------------------------------- */

static int is_span(const dp_timeline_event_t *event)
{
    return event->kind != DP_TRACE_COUNTER && event->kind != DP_TRACE_FAULT;
}

static void write_name(writer_t *writer, const dp_timeline_event_t *event)
{
    char text[64];

    if (event->kind == DP_TRACE_STEP || event->kind == DP_TRACE_WAIT_RANK) {
        if (event->kind == DP_TRACE_STEP) {
            snprintf(text, sizeof(text), "step %llu", (unsigned long long)event->id);
        } else {
            snprintf(text, sizeof(text), "waiting for rank %u", event->aux);
        }
        dp_proto_text(&writer->event, EVENT_NAME, text);
        return;
    }
    if (event->name == 0) {
        dp_proto_text(&writer->event, EVENT_NAME, dp_trace_kind_name((dp_trace_kind_t)event->kind));
        return;
    }
    if (!writer->name_is_known[event->name]) {
        writer->name_is_known[event->name] = 1;
        write_interned(writer, INTERNED_NAMES, event->name, writer->timeline->strings[event->name]);
    }
    dp_proto_uint(&writer->event, EVENT_NAME_IID, event->name);
}

/* Fields that are 0 are left out, and the reader takes what is missing for 0. */
static void write_notes(writer_t *writer, const dp_timeline_event_t *event)
{
    if (event->bucket != 0) note_uint(writer, DP_NOTE_BUCKET, event->bucket);
    if (event->id != 0 || event->kind == DP_TRACE_STEP) note_uint(writer, DP_NOTE_ID, event->id);
    if (event->bytes != 0) note_uint(writer, DP_NOTE_BYTES, event->bytes);
    if (event->kind == DP_TRACE_WAIT_RANK || event->kind == DP_TRACE_FAULT) {
        note_uint(writer, DP_NOTE_RANK, event->aux);
    } else if (event->aux != 0) {
        note_uint(writer, DP_NOTE_TENSORS, event->aux);
    }
    if (event->track != 0) note_uint(writer, DP_NOTE_LANE, event->track);
    if (event->is_open) note_uint(writer, DP_NOTE_OPEN, 1);
    if (event->kind == DP_TRACE_WIRE && event->duration_ns > 0)
        note_double(writer, DP_NOTE_SPEED, (double)event->bytes / (double)event->duration_ns);
}

static void write_flows(writer_t *writer, const dp_timeline_event_t *event)
{
    uint32_t rank_plus_one = (uint32_t)event->rank + 1;

    if (event->bucket == 0) return;
    switch ((dp_trace_kind_t)event->kind) {
    case DP_TRACE_WIRE:
        dp_proto_fixed64(&writer->event, EVENT_FLOW, flow_id(event->bucket, 0));
        dp_proto_fixed64(&writer->event, EVENT_FLOW, flow_id(event->bucket, rank_plus_one));
        break;
    case DP_TRACE_SUBMIT:
    case DP_TRACE_PACK:
    case DP_TRACE_UNPACK:
    case DP_TRACE_WAIT:
        dp_proto_fixed64(&writer->event, EVENT_FLOW, flow_id(event->bucket, rank_plus_one));
        break;
    default:
        break;
    }
}

static void write_begin(writer_t *writer, const dp_timeline_event_t *event)
{
    begin_event(writer, is_span(event) ? TYPE_BEGIN : TYPE_INSTANT, row_uuid(event->row));
    dp_proto_uint(&writer->event, EVENT_CATEGORY, event->kind);
    write_name(writer, event);
    write_notes(writer, event);
    write_flows(writer, event);
    emit_event(writer, event->start_ns);
}

static void write_counter(writer_t *writer, const dp_timeline_event_t *event)
{
    begin_event(writer, TYPE_COUNTER, row_uuid(event->row));
    dp_proto_uint(&writer->event, EVENT_CATEGORY, event->kind);
    dp_proto_uint(&writer->event, EVENT_COUNTER_VALUE, event->id);
    emit_event(writer, event->start_ns);
}

static void write_end(writer_t *writer, uint32_t row, uint64_t time_ns)
{
    begin_event(writer, TYPE_END, row_uuid(row));
    emit_event(writer, time_ns);
}

/* Events lie by start, longest first. Before an event begins, those that have ended are closed, the
 * innermost first; the stack holds the ends of the open ones. */
static void write_row_events(writer_t *writer, uint32_t index)
{
    const dp_timeline_row_t *row = &writer->timeline->rows[index];
    uint64_t ends[DEPTH_MAX];
    uint32_t depth = 0;

    for (size_t i = row->first; i < row->first + row->count; i++) {
        const dp_timeline_event_t *event = &writer->timeline->events[i];

        while (depth > 0 && ends[depth - 1] <= event->start_ns)
            write_end(writer, index, ends[--depth]);
        if (event->kind == DP_TRACE_COUNTER) {
            write_counter(writer, event);
            continue;
        }
        write_begin(writer, event);
        if (!is_span(event)) continue;
        if (event->duration_ns > 0 && depth < DEPTH_MAX) {
            ends[depth++] = event->start_ns + event->duration_ns;
        } else {
            write_end(writer, index, event->start_ns);
        }
    }
    while (depth > 0)
        write_end(writer, index, ends[--depth]);
}

/* All of a rank before the next one: a sequence of packets has its own interned names. Tracks come
 * before their events, the recorder's facts before both. */
dp_status_t dp_perfetto_write(const dp_timeline_t *timeline, FILE *file)
{
    writer_t writer = {.timeline = timeline, .file = file};
    int failed;

    writer.name_is_known = malloc(timeline->string_count + 1);
    if (writer.name_is_known == NULL) return DP_ERR_NO_MEMORY;
    for (size_t r = 0; r < timeline->rank_count; r++) {
        writer.rank = (int32_t)r;
        writer.sequence = (uint32_t)r + 1;
        memset(writer.name_is_known, 0, timeline->string_count + 1);
        write_process(&writer);
        write_recorder(&writer);
        for (size_t i = 0; i < timeline->row_count; i++)
            if (timeline->rows[i].rank == writer.rank) write_row(&writer, (uint32_t)i);
        for (size_t i = 0; i < timeline->row_count; i++)
            if (timeline->rows[i].rank == writer.rank) write_row_events(&writer, (uint32_t)i);
    }
    failed = writer.packet.failed || writer.event.failed || writer.inner.failed ||
             writer.wrapped.failed || writer.interned.failed;
    dp_proto_fini(&writer.packet);
    dp_proto_fini(&writer.event);
    dp_proto_fini(&writer.inner);
    dp_proto_fini(&writer.wrapped);
    dp_proto_fini(&writer.interned);
    free(writer.name_is_known);
    return failed ? DP_ERR_NO_MEMORY : DP_OK;
}
