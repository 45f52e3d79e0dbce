/*
 * perfetto.h - field numbers of Perfetto's trace format that both our writer and reader use.
 *
 * From the published definitions, https://perfetto.dev/docs/reference/trace-packet-proto.
 * tests/trace/perfetto_check.py decodes a file of ours with those definitions themselves.
 */
#ifndef DP_DPTRACE_PERFETTO_H
#define DP_DPTRACE_PERFETTO_H

enum {
    TRACE_PACKET = 1,

    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE = 10,
    PACKET_TRACK_EVENT = 11,
    PACKET_INTERNED = 12,
    PACKET_FLAGS = 13,
    PACKET_TRACK = 60,

    FLAG_STATE_CLEARED = 1,
    FLAG_NEEDS_STATE = 2,

    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PROCESS = 3,
    TRACK_PARENT = 5,
    TRACK_COUNTER = 8,
    TRACK_CHILD_ORDER = 11,
    TRACK_PLACE = 12,
    TRACK_MERGE = 15,
    CHILD_ORDER_EXPLICIT = 3,
    MERGE_NONE = 2,

    PROCESS_PID = 1,
    PROCESS_NAME = 6,

    COUNTER_UNIT = 3,
    UNIT_COUNT = 2,
    UNIT_BYTES = 3,

    EVENT_CATEGORY = 3,
    EVENT_ANNOTATION = 4,
    EVENT_TYPE = 9,
    EVENT_NAME_IID = 10,
    EVENT_TRACK = 11,
    EVENT_NAME = 23,
    EVENT_COUNTER_VALUE = 30,
    EVENT_FLOW = 47,
    EVENT_LAST_FLOW = 48,
    TYPE_BEGIN = 1,
    TYPE_END = 2,
    TYPE_INSTANT = 3,
    TYPE_COUNTER = 4,

    ANNOTATION_NAME_IID = 1,
    ANNOTATION_UINT = 3,
    ANNOTATION_DOUBLE = 5,
    ANNOTATION_TEXT = 6,

    INTERNED_CATEGORIES = 1,
    INTERNED_NAMES = 2,
    INTERNED_ANNOTATIONS = 3,
    INTERNED_IID = 1,
    INTERNED_TEXT = 2
};

/* Fields of our events beyond time and name. Values are interning ids, so they start at 1. */
typedef enum dp_annotation {
    DP_NOTE_BUCKET = 1,
    DP_NOTE_ID,
    DP_NOTE_BYTES,
    DP_NOTE_TENSORS,
    DP_NOTE_RANK,
    DP_NOTE_LANE,
    DP_NOTE_OPEN,
    DP_NOTE_SPEED, /* GB/s, for people */
    DP_NOTE_SIZE,
    DP_NOTE_HOST,
    DP_NOTE_PID,
    DP_NOTE_CLOSED,
    DP_NOTE_DROPPED,
    DP_NOTE_BAD,
    DP_NOTE_CLOCK_ERROR,
    DP_NOTE_OUTSIDE,
    DP_NOTE_COUNT
} dp_annotation_t;

extern const char *const dp_annotation_names[DP_NOTE_COUNT]; /* [0] is NULL */

/* The category of the one event per rank that describes its recorder. */
#define DP_RECORDER_CATEGORY "recorder"

#endif
