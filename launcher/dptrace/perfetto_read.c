/*
 * perfetto_read.c - reads back what perfetto_write.c wrote, so that a merged file is enough for
 * report, view and info.
 *
 * Not a reader for Perfetto files in general: a file without our recorder events is refused by
 * name. Slices are matched per track with a stack, as the format demands. Called by load.c, on
 * dptrace's only thread.
 */
#include "launcher/dptrace/formats.h"

#include <stdlib.h>
#include <string.h>

#include "launcher/dptrace/perfetto.h"
#include "launcher/dptrace/proto.h"

#define DEPTH_MAX 64
#define IID_MAX (1u << 24)

/* The meaning of ids, per sequence. Reset when a sequence says its state is cleared. */
typedef struct sequence {
    uint64_t generation;                    /* its present names belong to */
    uint8_t kinds[DP_TRACE_KIND_COUNT + 1]; /* by category iid */
    uint8_t recorder_iid;
    uint8_t notes[DP_NOTE_COUNT]; /* by annotation-name iid */
    int32_t rank;                 /* index; -1 before the recorder event */
} sequence_t;

typedef struct track {
    uint64_t uuid;
    uint32_t name;
    uint32_t depth;
    size_t open[DEPTH_MAX]; /* indices of events */
} track_t;

/* The meaning of an interned id. A list, as a file may use any ids: a table indexed by id could be
 * made to take any amount of memory. */
typedef struct name {
    uint64_t key; /* name_key(); 0: free */
    uint32_t string;
} name_t;

typedef struct parser {
    dp_timeline_t *timeline;
    size_t packets;
    uint64_t generations;
    name_t *names; /* hash table, [name_room] a power of two */
    size_t name_count, name_room;
    sequence_t *sequences;
    size_t sequence_count, sequence_room;
    track_t *tracks;
    size_t track_count, track_room;
    uint32_t *track_table; /* hash of uuid: index + 1 */
    size_t track_table_size;
    int is_bad;
    int is_short_of_memory;
} parser_t;

/* One TrackEvent, decoded. */
typedef struct decoded {
    uint64_t type, track, category;
    uint64_t counter;
    uint32_t name;
    uint64_t notes[DP_NOTE_COUNT];
    char host[256];
} decoded_t;

static void copy_text(const dp_proto_reader_t *reader, char *text, size_t room)
{
    size_t bytes = reader->span == NULL ? 0 : dp_min(reader->span_bytes, room - 1);

    if (bytes > 0) memcpy(text, reader->span, bytes);
    text[bytes] = '\0';
}

static uint32_t intern_string(parser_t *parser, const char *text)
{
    size_t index = dp_timeline_string(parser->timeline, text);

    if (index != SIZE_MAX) return (uint32_t)index;
    parser->is_short_of_memory = 1;
    return 0;
}

/* ---- Tracks and sequences ------------------------------------------------------------------- */

/* Ids are of a sequence, and start anew when its state is cleared: so a generation is part of the
 * key, and old names need not be removed. IID_MAX keeps the two apart. */
static uint64_t name_key(const sequence_t *sequence, uint64_t iid)
{
    return sequence->generation << 24 | iid;
}

/* Where a key is, or is to go. */
static name_t *name_place(name_t *names, size_t room, uint64_t key)
{
    uint64_t at = (key * 0x9e3779b97f4a7c15ull) >> 20;

    while (names[at & (room - 1)].key != 0 && names[at & (room - 1)].key != key)
        at++;
    return &names[at & (room - 1)];
}

static int grow_names(parser_t *parser)
{
    size_t room = parser->name_room == 0 ? 256 : parser->name_room * 2;
    name_t *names = calloc(room, sizeof(*names));

    if (names == NULL) return 0;
    for (size_t i = 0; i < parser->name_room; i++) {
        const name_t *name = &parser->names[i];

        if (name->key != 0) *name_place(names, room, name->key) = *name;
    }
    free(parser->names);
    parser->names = names;
    parser->name_room = room;
    return 1;
}

/* The place of a track in the table, or the empty one where it belongs. The table is never full. */
static uint32_t *track_place(const parser_t *parser, uint64_t uuid)
{
    uint64_t at = (uuid * 0x9e3779b97f4a7c15ull) >> 20;

    for (;; at++) {
        uint32_t *place = &parser->track_table[at & (parser->track_table_size - 1)];

        if (*place == 0 || parser->tracks[*place - 1].uuid == uuid) return place;
    }
}

static int grow_track_table(parser_t *parser)
{
    size_t count = parser->track_table_size == 0 ? 256 : parser->track_table_size * 2;
    uint32_t *table = calloc(count, sizeof(*table));

    if (table == NULL) return 0;
    free(parser->track_table);
    parser->track_table = table;
    parser->track_table_size = count;
    for (size_t i = 0; i < parser->track_count; i++)
        *track_place(parser, parser->tracks[i].uuid) = (uint32_t)i + 1;
    return 1;
}

static track_t *get_track(parser_t *parser, uint64_t uuid)
{
    uint32_t *place;

    if ((parser->track_count + 1) * 2 > parser->track_table_size && !grow_track_table(parser))
        goto fail;
    place = track_place(parser, uuid);
    if (*place == 0) {
        if (!dp_grow(&parser->tracks, parser->track_count, &parser->track_room,
                     sizeof(*parser->tracks)))
            goto fail;
        parser->tracks[parser->track_count] = (track_t){.uuid = uuid};
        *place = (uint32_t)++parser->track_count;
    }
    return &parser->tracks[*place - 1];
fail:
    parser->is_short_of_memory = 1;
    return NULL;
}

static sequence_t *get_sequence(parser_t *parser, uint64_t id)
{
    if (id > parser->packets) { /* ours come in order, from 1 */
        parser->is_bad = 1;
        return NULL;
    }
    while (parser->sequence_count <= id) {
        if (!dp_grow(&parser->sequences, parser->sequence_count, &parser->sequence_room,
                     sizeof(*parser->sequences))) {
            parser->is_short_of_memory = 1;
            return NULL;
        }
        parser->sequences[parser->sequence_count++] =
            (sequence_t){.generation = ++parser->generations, .rank = -1};
    }
    return &parser->sequences[id];
}

static void set_name(parser_t *parser, const sequence_t *sequence, uint64_t iid, const char *text)
{
    name_t *place;

    if (iid == 0 || iid >= IID_MAX) return;
    if (parser->name_count * 2 >= parser->name_room && !grow_names(parser)) {
        parser->is_short_of_memory = 1;
        return;
    }
    place = name_place(parser->names, parser->name_room, name_key(sequence, iid));
    parser->name_count += place->key == 0;
    *place = (name_t){name_key(sequence, iid), intern_string(parser, text)};
}

/* The string an id stands for, or that of "". */
static uint32_t get_name(const parser_t *parser, const sequence_t *sequence, uint64_t iid)
{
    if (iid >= IID_MAX || parser->name_room == 0) return 0;
    return name_place(parser->names, parser->name_room, name_key(sequence, iid))->string;
}

/* Ids are taken from the file and not assumed to be the writer's: categories and annotations are
 * told by their names, so a file of another version of dptrace is still read. */
static void read_interned(parser_t *parser, sequence_t *sequence, const uint8_t *data, size_t bytes)
{
    dp_proto_reader_t list, entry;
    char text[1024];

    dp_proto_read(&list, data, bytes);
    while (dp_proto_next(&list)) {
        uint64_t iid = 0;

        if (list.span == NULL) continue;
        text[0] = '\0';
        dp_proto_read(&entry, list.span, list.span_bytes);
        while (dp_proto_next(&entry)) {
            if (entry.field == INTERNED_IID) iid = entry.value;
            if (entry.field == INTERNED_TEXT) copy_text(&entry, text, sizeof(text));
        }
        parser->is_bad |= entry.failed;
        if (list.field == INTERNED_NAMES) set_name(parser, sequence, iid, text);
        if (list.field == INTERNED_CATEGORIES && iid <= DP_TRACE_KIND_COUNT) {
            if (strcmp(text, DP_RECORDER_CATEGORY) == 0) sequence->recorder_iid = (uint8_t)iid;
            for (int i = 1; i < DP_TRACE_KIND_COUNT; i++) {
                if (strcmp(text, dp_trace_kind_name((dp_trace_kind_t)i)) == 0)
                    sequence->kinds[iid] = (uint8_t)i;
            }
        }
        if (list.field == INTERNED_ANNOTATIONS && iid < DP_NOTE_COUNT) {
            for (int i = 1; i < DP_NOTE_COUNT; i++)
                if (strcmp(text, dp_annotation_names[i]) == 0) sequence->notes[iid] = (uint8_t)i;
        }
    }
    parser->is_bad |= list.failed;
}

static void read_track(parser_t *parser, const uint8_t *data, size_t bytes)
{
    dp_proto_reader_t reader;
    char text[256] = "";
    uint64_t uuid = 0;
    track_t *track;

    dp_proto_read(&reader, data, bytes);
    while (dp_proto_next(&reader)) {
        if (reader.field == TRACK_UUID) uuid = reader.value;
        if (reader.field == TRACK_NAME) copy_text(&reader, text, sizeof(text));
    }
    parser->is_bad |= reader.failed;
    track = get_track(parser, uuid);
    if (track != NULL) track->name = intern_string(parser, text);
}

/* ---- Events --------------------------------------------------------------------------------- */

static void read_note(parser_t *parser, const sequence_t *sequence, const uint8_t *data,
                      size_t bytes, decoded_t *decoded)
{
    dp_proto_reader_t reader;
    uint64_t value = 0, note = 0;
    char text[256] = "";

    dp_proto_read(&reader, data, bytes);
    while (dp_proto_next(&reader)) {
        if (reader.field == ANNOTATION_NAME_IID && reader.value < DP_NOTE_COUNT)
            note = sequence->notes[reader.value];
        if (reader.field == ANNOTATION_UINT) value = reader.value;
        if (reader.field == ANNOTATION_TEXT) copy_text(&reader, text, sizeof(text));
    }
    parser->is_bad |= reader.failed;
    decoded->notes[note] = value;
    if (note == DP_NOTE_HOST) memcpy(decoded->host, text, sizeof(text));
}

/* Fields may come in any order, so nothing is done before all of the event has been read. */
static void decode_event(parser_t *parser, const sequence_t *sequence, const uint8_t *data,
                         size_t bytes, decoded_t *decoded)
{
    dp_proto_reader_t reader;
    char text[1024];

    memset(decoded, 0, sizeof(*decoded));
    dp_proto_read(&reader, data, bytes);
    while (dp_proto_next(&reader)) {
        switch (reader.field) {
        case EVENT_TYPE:
            decoded->type = reader.value;
            break;
        case EVENT_TRACK:
            decoded->track = reader.value;
            break;
        case EVENT_CATEGORY:
            decoded->category = reader.value;
            break;
        case EVENT_COUNTER_VALUE:
            decoded->counter = reader.value;
            break;
        case EVENT_NAME_IID:
            decoded->name = get_name(parser, sequence, reader.value);
            break;
        case EVENT_NAME:
            copy_text(&reader, text, sizeof(text));
            decoded->name = intern_string(parser, text);
            break;
        case EVENT_ANNOTATION:
            if (reader.span != NULL)
                read_note(parser, sequence, reader.span, reader.span_bytes, decoded);
            break;
        default:
            break;
        }
    }
    parser->is_bad |= reader.failed;
}

static void add_recorder(parser_t *parser, sequence_t *sequence, const decoded_t *decoded)
{
    dp_timeline_rank_t *rank;

    if (decoded->notes[DP_NOTE_RANK] >= INT32_MAX || decoded->notes[DP_NOTE_SIZE] > INT32_MAX) {
        parser->is_bad = 1;
        return;
    }
    rank = dp_timeline_add_rank(parser->timeline);
    if (rank == NULL) {
        parser->is_short_of_memory = 1;
        return;
    }
    rank->rank = (int)decoded->notes[DP_NOTE_RANK];
    rank->size = (int)decoded->notes[DP_NOTE_SIZE];
    rank->pid = (int)(uint32_t)decoded->notes[DP_NOTE_PID];
    rank->is_closed = decoded->notes[DP_NOTE_CLOSED] != 0;
    rank->dropped = decoded->notes[DP_NOTE_DROPPED];
    rank->outside = decoded->notes[DP_NOTE_OUTSIDE];
    rank->bad = decoded->notes[DP_NOTE_BAD];
    rank->clock_error_ns = decoded->notes[DP_NOTE_CLOCK_ERROR];
    memcpy(rank->host, decoded->host, sizeof(rank->host));
    sequence->rank = (int32_t)parser->timeline->rank_count - 1;
}

static void add_event(parser_t *parser, const sequence_t *sequence, const decoded_t *decoded,
                      track_t *track, uint64_t time_ns)
{
    uint8_t kind = sequence->kinds[decoded->category];
    dp_timeline_event_t *event = dp_timeline_add_event(parser->timeline);

    if (event == NULL) {
        parser->is_short_of_memory = 1;
        return;
    }
    event->rank = sequence->rank;
    event->kind = kind;
    event->start_ns = time_ns;
    event->bucket = decoded->notes[DP_NOTE_BUCKET];
    event->id = kind == DP_TRACE_COUNTER ? decoded->counter : decoded->notes[DP_NOTE_ID];
    event->bytes = decoded->notes[DP_NOTE_BYTES];
    event->aux =
        (uint32_t)
            decoded->notes[kind == DP_TRACE_WAIT_RANK || kind == DP_TRACE_FAULT ? DP_NOTE_RANK
                                                                                : DP_NOTE_TENSORS];
    event->track = (uint32_t)decoded->notes[DP_NOTE_LANE];
    event->is_open = decoded->notes[DP_NOTE_OPEN] != 0;
    event->name = kind == DP_TRACE_COUNTER ? track->name : decoded->name;
    if (kind == DP_TRACE_STEP || kind == DP_TRACE_WAIT_RANK ||
        strcmp(parser->timeline->strings[event->name], dp_trace_kind_name((dp_trace_kind_t)kind)) ==
            0)
        event->name = 0;
    if (decoded->type == TYPE_BEGIN && track->depth < DEPTH_MAX)
        track->open[track->depth++] = parser->timeline->event_count - 1;
}

/* The file may come from anywhere: times and ids beyond what a recorder can write are refused
 * before they are used as indices or added up. */
static void read_event(parser_t *parser, sequence_t *sequence, const uint8_t *data, size_t bytes,
                       uint64_t time_ns)
{
    decoded_t decoded;
    track_t *track;

    decode_event(parser, sequence, data, bytes, &decoded);
    if (parser->is_bad || parser->is_short_of_memory) return;
    if (time_ns > DP_TRACE_LATEST_NS || decoded.category > DP_TRACE_KIND_COUNT) {
        parser->is_bad = 1;
        return;
    }
    if (decoded.category != 0 && decoded.category == sequence->recorder_iid) {
        add_recorder(parser, sequence, &decoded);
        return;
    }
    if (sequence->rank < 0) return; /* not one of ours */
    track = get_track(parser, decoded.track);
    if (track == NULL) return;
    if (decoded.type == TYPE_END) {
        if (track->depth == 0) return;
        dp_timeline_event_t *event = &parser->timeline->events[track->open[--track->depth]];

        event->duration_ns = time_ns > event->start_ns ? time_ns - event->start_ns : 0;
    } else if (sequence->kinds[decoded.category] != 0) {
        add_event(parser, sequence, &decoded, track, time_ns);
    }
}

/* A track or a name must be known before the event that uses it, though it may stand behind it in
 * the packet. */
static void read_packet(parser_t *parser, const uint8_t *data, size_t bytes)
{
    dp_proto_reader_t reader;
    const uint8_t *event = NULL, *interned = NULL, *track = NULL;
    size_t event_bytes = 0, interned_bytes = 0, track_bytes = 0;
    uint64_t time_ns = 0, sequence_id = 0, flags = 0;
    sequence_t *sequence;

    dp_proto_read(&reader, data, bytes);
    while (dp_proto_next(&reader)) {
        switch (reader.field) {
        case PACKET_TIMESTAMP:
            time_ns = reader.value;
            break;
        case PACKET_SEQUENCE:
            sequence_id = reader.value;
            break;
        case PACKET_FLAGS:
            flags = reader.value;
            break;
        case PACKET_TRACK_EVENT:
            event = reader.span;
            event_bytes = reader.span_bytes;
            break;
        case PACKET_INTERNED:
            interned = reader.span;
            interned_bytes = reader.span_bytes;
            break;
        case PACKET_TRACK:
            track = reader.span;
            track_bytes = reader.span_bytes;
            break;
        default:
            break;
        }
    }
    parser->is_bad |= reader.failed;
    sequence = parser->is_bad ? NULL : get_sequence(parser, sequence_id);
    if (sequence == NULL) return;
    if (flags & FLAG_STATE_CLEARED) {
        *sequence = (sequence_t){.generation = ++parser->generations, .rank = -1};
    }
    if (track != NULL) read_track(parser, track, track_bytes);
    if (interned != NULL) read_interned(parser, sequence, interned, interned_bytes);
    if (event != NULL) read_event(parser, sequence, event, event_bytes, time_ns);
}

dp_status_t dp_perfetto_parse(const uint8_t *data, size_t bytes, const char *what,
                              dp_timeline_t *timeline, dp_error_t *error)
{
    parser_t parser = {.timeline = timeline};
    dp_proto_reader_t reader;
    dp_status_t status = DP_OK;

    if (dp_timeline_string(timeline, "") == SIZE_MAX)
        return dp_error_set(error, DP_ERR_NO_MEMORY, "%s: no memory", what);
    dp_proto_read(&reader, data, bytes);
    while (!parser.is_bad && !parser.is_short_of_memory && dp_proto_next(&reader)) {
        if (reader.field != TRACE_PACKET || reader.span == NULL) {
            parser.is_bad = 1;
            break;
        }
        parser.packets++;
        read_packet(&parser, reader.span, reader.span_bytes);
    }
    if (parser.is_short_of_memory) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "%s: no memory", what);
    } else if (parser.packets == 0) {
        status = dp_error_set(error, DP_ERR_INVALID,
                              "%s: neither a recorder (.dpt) nor a merged Perfetto trace", what);
    } else if ((parser.is_bad || reader.failed) && timeline->rank_count > 0) {
        status = dp_error_set(error, DP_ERR_INVALID, "%s: damaged or cut short at byte %zu of %zu",
                              what, reader.at, bytes);
    } else if (parser.is_bad || reader.failed || timeline->rank_count == 0) {
        status =
            dp_error_set(error, DP_ERR_INVALID, "%s: not a trace that dptrace merge wrote", what);
    }
    free(parser.names);
    free(parser.sequences);
    free(parser.tracks);
    free(parser.track_table);
    return status;
}
