/*
 * trace.h - a rank's recorder: always on, bounded, and still readable after SIGKILL.
 *
 * Each producer thread owns a track and writes fixed-size records (runtime/base/trace_format.h)
 * into chunks of one mmapped file, trace.R.dpt in the run directory; the latest ones stay.
 * Recording takes no lock and allocates nothing; on a NULL track it is a no-op, so callers never
 * ask whether there is a recorder. It must not know what the numbers mean.
 *
 *     track = dp_trace_track(trace, "launch", DP_TRACE_TRACK_LAUNCH); // NULL trace: NULL track
 *     start = dp_now_ns();
 *     ...
 *     dp_trace_span(track, (dp_trace_record_t){.kind = DP_TRACE_WIRE, .start_ns = start,
 *                                              .bucket = sequence, .bytes = bytes, .name = name});
 */
#ifndef DP_TRACE_TRACE_H
#define DP_TRACE_TRACE_H

#include "runtime/base/trace_format.h"

typedef struct dp_trace dp_trace_t; /* a rank's recorder; one per context */

/* One producer thread's end. Only the functions below touch its fields. */
typedef struct dp_trace_track {
    dp_trace_file_chunk_t *chunk; /* being filled; NULL before the first record */
    uint32_t count;               /* records in it */
    uint32_t room;
    dp_trace_file_track_t *file; /* its entry of the track table */
    dp_trace_t *trace;           /* borrowed: owns this track */
    uint32_t index;
    _Atomic int is_idle; /* its thread is gone: the next new thread may take it over */
} dp_trace_track_t;

/**
 * Opens a recorder.
 *
 * @param run_dir an existing directory; NULL or "": anonymous memory, nothing is kept
 * @param host    for people; copied; NULL: ""
 * @param bytes   room for records; at least 128 KiB is taken
 * @param out     give it back with dp_trace_destroy()
 * @param error   filled in on failure, and also (with DP_OK as the answer) with a warning when the
 *                file could not be made and memory serves instead; else status is DP_OK and text ""
 * @return DP_OK, DP_ERR_NO_MEMORY
 */
dp_status_t dp_trace_create(const char *run_dir, int rank, int size, const char *host, size_t bytes,
                            dp_trace_t **out, dp_error_t *error);

/* Closes it. keep: 0 removes the file. No thread may be recording any more. NULL is fine. */
void dp_trace_destroy(dp_trace_t *trace, int keep);

/* A track for a thread of ours; it lives as long as the recorder. NULL trace, or a full table:
 * NULL. Threads: any; the track then belongs to one. */
dp_trace_track_t *dp_trace_track(dp_trace_t *trace, const char *name, dp_trace_track_kind_t kind);

/* The track of the calling thread of the program, made at its first call. Cheap afterwards. */
dp_trace_track_t *dp_trace_thread_track(dp_trace_t *trace);

/* The id of a text, the same for the same text; 0 for NULL, "" or a NULL trace. Lock-free once
 * known, so it may be called per record; better keep the id. Threads: any. */
uint32_t dp_trace_name(dp_trace_t *trace, const char *text);

/* From now on (begins 1) until begins 0 records are kept: later ones never overwrite them, as long
 * as they leave a quarter of the room for what comes after. Threads: any. NULL is fine. */
void dp_trace_keep(dp_trace_t *trace, int begins);

/* Records that were overwritten or found no room. Threads: any. */
uint64_t dp_trace_dropped(const dp_trace_t *trace);

/* A step took step_ns and ended at end_ns: tells those who read the header alone. stats: of this
 * moment, NULL: as before. Threads: any. NULL is fine. */
void dp_trace_step(dp_trace_t *trace, uint64_t step, uint64_t step_ns, uint64_t end_ns,
                   const dp_stats_t *stats);

/* Gives a track its next chunk; 0: there is none. For dp_trace_record() only. */
int dp_trace_next_chunk(dp_trace_track_t *track);

/* Writes a record as it is. */
static inline void dp_trace_record(dp_trace_track_t *track, dp_trace_record_t record)
{
    if (track == NULL || record.start_ns == 0) return;
    if (track->count == track->room && !dp_trace_next_chunk(track)) return;
    track->chunk->records[track->count] = record;
    track->count++;
    /* pairs with the reader's acquire load: a counted record is whole */
    atomic_store_explicit(&track->chunk->count, track->count, memory_order_release);
}

/* Now, or 0 on a NULL track: for the start of a span, without a clock call where none is kept. */
static inline uint64_t dp_trace_now(const dp_trace_track_t *track)
{
    return track == NULL ? 0 : dp_now_ns();
}

/* A span from record.start_ns (dp_trace_now()) until now. */
static inline void dp_trace_span(dp_trace_track_t *track, dp_trace_record_t record)
{
    if (track == NULL || record.start_ns == 0) return;
    record.duration_ns = dp_now_ns() - record.start_ns;
    dp_trace_record(track, record);
}

/* Something that happens now. */
static inline void dp_trace_instant(dp_trace_track_t *track, dp_trace_record_t record)
{
    if (track == NULL) return;
    record.start_ns = dp_now_ns();
    record.duration_ns = 0;
    dp_trace_record(track, record);
}

/* A counter's new value, since now_ns (dp_trace_now()). */
static inline void dp_trace_counter_at(dp_trace_track_t *track, uint32_t name, uint64_t value,
                                       uint64_t now_ns)
{
    dp_trace_record(track,
                    (dp_trace_record_t){
                        .kind = DP_TRACE_COUNTER, .start_ns = now_ns, .name = name, .id = value});
}

static inline void dp_trace_counter(dp_trace_track_t *track, uint32_t name, uint64_t value)
{
    dp_trace_counter_at(track, name, value, dp_trace_now(track));
}

/* Begins a span that readers see even if it never ends (steps, spans, waits). Spans of a track
 * nest. record.start_ns 0: now. */
static inline void dp_trace_begin(dp_trace_track_t *track, dp_trace_record_t record)
{
    uint32_t depth;

    if (track == NULL) return;
    if (record.start_ns == 0) record.start_ns = dp_now_ns();
    record.duration_ns = 0;
    depth = atomic_load_explicit(&track->file->depth, memory_order_relaxed);
    if (depth < DP_TRACE_OPEN) track->file->open[depth] = record;
    atomic_store_explicit(&track->file->depth, depth + 1, memory_order_release);
}

/* Ends the innermost open span of the track at end_ns; without one: nothing. */
static inline void dp_trace_end_at(dp_trace_track_t *track, uint64_t end_ns)
{
    uint32_t depth;

    if (track == NULL) return;
    depth = atomic_load_explicit(&track->file->depth, memory_order_relaxed);
    if (depth == 0) return;
    if (depth <= DP_TRACE_OPEN) {
        dp_trace_record_t record = track->file->open[depth - 1];

        record.duration_ns = end_ns - record.start_ns;
        dp_trace_record(track, record);
    }
    atomic_store_explicit(&track->file->depth, depth - 1, memory_order_release);
}

static inline void dp_trace_end(dp_trace_track_t *track)
{
    dp_trace_end_at(track, dp_trace_now(track));
}

#endif
