/*
 * trace_format.h - what a rank's recorder leaves in its run directory, and the reader of it.
 *
 * trace.R.dpt is the recorder's memory itself: one mmapped file, in the byte order of the machine,
 * so whatever was written before a SIGKILL is there. It holds
 *
 *     header | track table | names | chunk 0 | chunk 1 | ...
 *
 * A track is one producer thread. It fills chunks one after the other; a chunk's count is stored
 * after the record it covers, so a reader never sees half a record. When all chunks are used the
 * oldest is emptied and filled anew: the latest records stay. Names are a heap of (u16 length,
 * bytes) entries; a name's id is its offset there, 0 is no name. Everything read from a file is
 * checked: it may be foreign, cut short or still being written.
 */
#ifndef DP_BASE_TRACE_FORMAT_H
#define DP_BASE_TRACE_FORMAT_H

#include <stdatomic.h>

#include "dp.h"
#include "runtime/base/error.h"

#define DP_TRACE_MAGIC 0x3152545041525444ull /* "DTRAPTR1" */
#define DP_TRACE_VERSION 1
#define DP_TRACE_TRACKS 64 /* producer threads of one rank */
#define DP_TRACE_OPEN 15   /* spans a track can have open and seen by readers */
#define DP_TRACE_CHUNK_BYTES 16384
#define DP_TRACE_HEADER_BYTES 4096
#define DP_TRACE_NAME_MAX 255 /* longer ones are cut */
#define DP_TRACE_NAME_ROOM ((size_t)256 * 1024)
#define DP_TRACE_AUX_MAX 0xffffffu
#define DP_TRACE_ON_STREAM 1    /* the input is what a device's stream still computes */
#define DP_TRACE_STREAM_WAITS 1 /* inside work of a stream: it waits for an operation, name */
#define DP_TRACE_COLLECTIVES                                                                       \
    16 /* values of a transfer's id: 0 is unknown, then dp_collective_t + 1 */
/* No clock of ours gets there (2116); keeps sums of times from wrapping. */
#define DP_TRACE_LATEST_NS (UINT64_MAX / 4)

/*
 * The kind of a record. `bucket` is the place of a launch in the global order counted from 1, the
 * same number on every rank; `id` a request of this rank counted from 1; 0 where there is none.
 */
typedef enum dp_trace_kind {
    DP_TRACE_NONE = 0,
    DP_TRACE_STEP = 1,   /* the program's step; id: its number */
    DP_TRACE_SPAN = 2,   /* the program's span; name */
    DP_TRACE_SUBMIT = 3, /* inside a submission; name: tensor, id, bytes; aux: DP_TRACE_ON_STREAM
                            or 0 */
    DP_TRACE_WAIT = 4,   /* a thread of the program blocked in dp; name: what for, id or 0: all */
    DP_TRACE_AGREE = 5,  /* one tensor from its submission here to its launch here; name,
                            bucket, id, bytes. Start is the submission. */
    DP_TRACE_LAUNCH = 6, /* a launch handed to the data plane; bucket, aux: tensors, bytes */
    DP_TRACE_PACK = 7,   /* bucket, bytes, aux: tensors; name: the bucket's first tensor; id: its
                            collective, see dp_trace_collective_name() */
    DP_TRACE_WIRE = 8,   /* engine collective; the fields of PACK */
    DP_TRACE_UNPACK = 9, /* the fields of PACK */
    DP_TRACE_WAIT_RANK = 10, /* inside WIRE: blocked until rank aux arrives; bucket */
    DP_TRACE_COMPUTE = 11,   /* work of the program on a device's stream; name; id: 1 + number of
                                the step it was queued in, 0: none; aux: DP_TRACE_STREAM_WAITS or
                                0 */
    DP_TRACE_COUNTER = 12,   /* name: which; id: value */
    DP_TRACE_FAULT = 14,     /* something went wrong; name: text, aux: rank + 1 or 0 */
    DP_TRACE_CONTROL = 15,   /* the coordinator at work (a message, a round); name, bytes */
    DP_TRACE_KIND_COUNT = 16
} dp_trace_kind_t;

/* One record. Spans have a duration; counters, clock marks and instants have none. */
typedef struct dp_trace_record {
    uint64_t start_ns; /* dp_now_ns() */
    uint64_t duration_ns;
    uint64_t bucket;
    uint64_t id;
    uint64_t bytes;
    uint32_t name; /* from dp_trace_name(); 0: none */
    uint32_t aux : 24;
    uint32_t kind : 8; /* dp_trace_kind_t */
} dp_trace_record_t;
_Static_assert(sizeof(dp_trace_record_t) == 48, "part of the file format");

/* ---- The file's parts; writers and the reader only ------------------------------------------ */

#define DP_TRACE_STATS (sizeof(dp_stats_t) / sizeof(uint64_t))

typedef struct dp_trace_file_header {
    uint64_t magic;
    uint32_t version;
    uint32_t record_bytes;
    uint64_t file_bytes;
    uint64_t track_offset;
    uint64_t name_offset;
    uint64_t name_room;
    uint64_t chunk_offset;
    uint32_t chunk_bytes;
    uint32_t chunk_count;
    uint32_t track_max;
    int32_t rank;
    int32_t size;
    int32_t pid;
    uint64_t start_ns;      /* CLOCK_MONOTONIC at creation */
    uint64_t start_real_ns; /* CLOCK_REALTIME then */
    uint8_t boot[16];       /* of /proc/sys/kernel/random/boot_id: equal means one clock */
    char host[256];
    _Atomic uint64_t end_ns;     /* when the recorder was closed in order; 0: it was not */
    _Atomic uint64_t dropped;    /* records overwritten or refused */
    _Atomic uint32_t name_bytes; /* used in the name heap */
    _Atomic uint32_t track_count;
    _Atomic uint64_t refused_tracks; /* threads that found the track table full */
    /* The window that was asked for (dp_trace_keep()); all 0 without one, as in older files. */
    _Atomic uint64_t window_start_ns, window_end_ns; /* end 0: it has not ended */
    _Atomic uint64_t window_dropped;                 /* of `dropped`: may belong to the window */
    /* For readers that take no records (dprun --metrics); all 0 in older files, and where the
     * program marks no steps. Written one by one, so two of them may be of different moments. */
    _Atomic uint64_t steps, step_ns;        /* that have ended, and how long they took together */
    _Atomic uint64_t step;                  /* the program's number of the latest one */
    _Atomic uint64_t step_end_ns;           /* when it ended */
    _Atomic uint64_t stats[DP_TRACE_STATS]; /* a dp_stats_t, at most 50 ms older */
} dp_trace_file_header_t;
_Static_assert(sizeof(dp_trace_file_header_t) <= DP_TRACE_HEADER_BYTES, "header page");

typedef struct dp_trace_file_track {
    _Atomic uint32_t kind; /* dp_trace_track_kind_t + 1; 0: unused */
    uint32_t name;
    _Atomic uint32_t depth; /* open spans; may exceed DP_TRACE_OPEN, then the rest is unseen */
    uint32_t tid;
    dp_trace_record_t open[DP_TRACE_OPEN]; /* begun and not ended; duration 0 */
} dp_trace_file_track_t;

typedef struct dp_trace_file_chunk {
    _Atomic uint32_t count; /* records that are whole; pairs with the writer's release store */
    uint32_t track;
    uint64_t ordinal; /* grows with every chunk taken into use, over all tracks */
    dp_trace_record_t records[];
} dp_trace_file_chunk_t;

#define DP_TRACE_CHUNK_RECORDS                                                                     \
    ((DP_TRACE_CHUNK_BYTES - sizeof(dp_trace_file_chunk_t)) / sizeof(dp_trace_record_t))

/* Which threads a track belongs to. */
typedef enum dp_trace_track_kind {
    DP_TRACE_TRACK_THREAD = 0,      /* a thread of the program */
    DP_TRACE_TRACK_COORDINATOR = 1, /* negotiation */
    DP_TRACE_TRACK_LAUNCH = 2,      /* the data plane's launch thread */
    DP_TRACE_TRACK_STREAM = 3       /* a device stream or an engine's helper */
} dp_trace_track_kind_t;

/* ---- Reader --------------------------------------------------------------------------------- */

/* A record with the track it came from. */
typedef struct dp_trace_event {
    dp_trace_record_t record;
    uint32_t track;
    uint32_t is_open; /* begun and never ended: the duration reaches to the file's last moment */
} dp_trace_event_t;

/* A file in memory: a checked copy, sorted by start, longer spans first. */
typedef struct dp_trace_file {
    int rank, size, pid;
    char host[256];
    uint8_t boot[16];
    uint64_t start_ns, start_real_ns;
    uint64_t end_ns; /* 0: the rank did not close it (killed, or still running) */
    uint64_t dropped;
    uint64_t window_start_ns, window_end_ns, window_dropped; /* as in the header */
    uint64_t refused_tracks;
    uint64_t first_ns, last_ns;  /* over all events; 0 where there is none */
    uint64_t bad;                /* records that made no sense and were left out */
    uint64_t bytes, whole_bytes; /* of the file, and of what it was: less are here if it was cut */
    size_t event_count;
    dp_trace_event_t *events;
    uint32_t track_count;
    struct {
        dp_trace_track_kind_t kind;
        uint32_t name;
        uint32_t tid;
    } tracks[DP_TRACE_TRACKS];
    char *names; /* copy of the heap */
    size_t name_bytes;
} dp_trace_file_t;

/**
 * Reads a recorder's file, also one that is still being written, whose rank was killed, or that was
 * cut behind its header (a full disk, a copy that broke off): then what is there is read.
 *
 * @return DP_OK           close it with dp_trace_file_close()
 *         DP_ERR_INVALID  not one of ours, of another version, or cut in its header; the text says
 *                         which
 *         DP_ERR_SYSTEM   it cannot be opened or read; DP_ERR_NO_MEMORY
 */
dp_status_t dp_trace_file_open(const char *path, dp_trace_file_t *file, dp_error_t *error);

/* The same from memory, which is only read. `what` names it in errors. */
dp_status_t dp_trace_file_parse(const void *data, size_t bytes, const char *what,
                                dp_trace_file_t *file, dp_error_t *error);

void dp_trace_file_close(dp_trace_file_t *file); /* zeroed or closed before: fine */

/* Copies the text of a name, terminated; "" for 0 or an id that leads nowhere. Returns text. */
const char *dp_trace_file_name(const dp_trace_file_t *file, uint32_t name, char *text, size_t room);

/* Where a rank of a running job stands, from the first pages of its recorder. */
typedef struct dp_trace_head {
    int rank, size, pid;
    char host[256];
    uint64_t start_ns, end_ns; /* end 0: it runs, or was killed */
    uint64_t steps, step_ns, step, step_end_ns;
    dp_stats_t stats;
    uint64_t waiting_ns; /* since when a thread of the program waits in dp; 0: none does */
} dp_trace_head_t;

/* Reads it, and no records: some 50 kB. The statuses are those of dp_trace_file_open(). */
dp_status_t dp_trace_head_read(const char *path, dp_trace_head_t *head, dp_error_t *error);

/* The same from memory that begins with these pages; file_bytes: of the whole file. */
dp_status_t dp_trace_head_parse(const void *data, size_t bytes, uint64_t file_bytes,
                                const char *what, dp_trace_head_t *head, dp_error_t *error);

const char *dp_trace_kind_name(dp_trace_kind_t kind); /* "wire"; "unknown" */
/* The collective that the id of a PACK, WIRE or UNPACK stands for: "allreduce"; "unknown". */
const char *dp_trace_collective_name(uint64_t id);

#endif
