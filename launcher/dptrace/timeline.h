/*
 * timeline.h - the events of all ranks on one clock, arranged in rows: what every subcommand of
 * dptrace works on, whichever file it came from.
 *
 * A reader adds ranks and events in any order, then calls dp_timeline_finish(), which sorts them
 * and gives each its row (Perfetto says track). Times are ns since the first event of the job.
 * dptrace has one thread.
 */
#ifndef DP_DPTRACE_TIMELINE_H
#define DP_DPTRACE_TIMELINE_H

#include "runtime/base/trace_format.h"

/* Rows of a rank, top to bottom. */
typedef enum dp_row_class {
    DP_ROW_STEPS = 0,       /* steps, the program's spans, faults */
    DP_ROW_THREAD = 1,      /* submit and wait, per thread of the program */
    DP_ROW_AGREE = 2,       /* from submission to launch, per bucket */
    DP_ROW_COORDINATOR = 3, /* work of its thread */
    DP_ROW_COMPUTE = 4,     /* the program's work on a device, above the transfers that it hides */
    DP_ROW_PACK = 5,
    DP_ROW_WIRE = 6,
    DP_ROW_UNPACK = 7,
    DP_ROW_WAIT_RANK = 8,
    DP_ROW_COUNTER = 9, /* per name */
    DP_ROW_CLASSES = 10
} dp_row_class_t;

/* As dp_trace_record_t, with these differences: SUBMIT knows its bucket, AGREE is one per bucket
 * (from the first submission of its tensors here to the launch), names index strings[]. */
typedef struct dp_timeline_event {
    uint64_t start_ns;
    uint64_t duration_ns;
    uint64_t bucket;
    uint64_t id;
    uint64_t bytes;
    uint32_t name;
    uint32_t aux;
    uint32_t row; /* set by dp_timeline_finish() */
    int32_t rank; /* index into ranks[], not the number */
    uint32_t track;
    uint8_t kind;    /* dp_trace_kind_t */
    uint8_t depth;   /* inside its row; set by dp_timeline_finish() */
    uint8_t is_open; /* began and was not seen to end */
} dp_timeline_event_t;

typedef struct dp_timeline_rank {
    int rank;
    int size;
    int pid;
    char host[256];
    int is_closed; /* the recorder was closed in order */
    /* Records that the recorder no longer has: dropped are missing here, outside are not, as they
     * lie outside of the window of steps that is shown. */
    uint64_t dropped, outside;
    /* The window that the recorder kept, on the first rank's clock; both 0: none. */
    uint64_t window_start_ns, window_end_ns, window_dropped;
    uint64_t bad;
    uint64_t clock_error_ns; /* against the first rank; UINT64_MAX: only wall clocks to go by */
} dp_timeline_rank_t;

typedef struct dp_timeline_row {
    int32_t rank; /* index */
    dp_row_class_t row_class;
    uint32_t track; /* COUNTER: the name; AGREE, COORDINATOR: 0; else the recorder's track */
    uint32_t sub;   /* overlapping events of one class go to further rows */
    uint32_t depth; /* deepest nesting + 1 */
    char label[80];
    size_t first, count; /* events of the row, contiguous */
} dp_timeline_row_t;

typedef struct dp_timeline {
    dp_timeline_rank_t *ranks;
    size_t rank_count, rank_room;
    dp_timeline_event_t *events; /* by rank, row, start, longest first */
    size_t event_count, event_room;
    dp_timeline_row_t *rows;
    size_t row_count, row_room;
    char **strings; /* [0] is "" */
    size_t string_count, string_room;
    uint32_t *string_table; /* hash table of indices + 1 */
    size_t table_size;      /* a power of two */
    uint64_t origin_ns;     /* the time 0, on the first rank's clock */
    uint64_t end_ns;        /* the last moment */
    char **missing;         /* a line for each file that was not read whole: what is missing */
    size_t missing_count, missing_room;
} dp_timeline_t;

void dp_timeline_init(dp_timeline_t *timeline);
void dp_timeline_fini(dp_timeline_t *timeline);

/* The index of a text; 0 for "". SIZE_MAX: no memory. */
size_t dp_timeline_string(dp_timeline_t *timeline, const char *text);

/* Room for one more; NULL: no memory. Zeroed. */
dp_timeline_rank_t *dp_timeline_add_rank(dp_timeline_t *timeline);
dp_timeline_event_t *dp_timeline_add_event(dp_timeline_t *timeline);

/* A window of step numbers, both ends included. */
typedef struct dp_step_window {
    int is_set;
    uint64_t first, last;
} dp_step_window_t;

/* Reads "A-B" or "A". */
dp_status_t dp_step_window_parse(const char *text, dp_step_window_t *window, dp_error_t *error);

/**
 * Sorts ranks and events, removes events outside of the window of steps, sets the origin, and gives
 * every event its row.
 *
 * @return DP_OK, DP_ERR_INVALID (no rank has a step of the window), DP_ERR_NO_MEMORY
 */
dp_status_t dp_timeline_finish(dp_timeline_t *timeline, const dp_step_window_t *window,
                               dp_error_t *error);

/* Reads a run directory (trace.*.dpt), one .dpt file or a merged Perfetto file, and finishes it. A
 * damaged recorder costs what cannot be read of it, and nothing of the others; see `missing`. */
dp_status_t dp_timeline_load(const char *path, const dp_step_window_t *window,
                             dp_timeline_t *timeline, dp_error_t *error);

/* Makes room for one more element in a growing array; 0: no memory. */
int dp_grow(void *array, size_t count, size_t *room, size_t element_bytes);

#endif
