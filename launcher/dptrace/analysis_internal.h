/*
 * analysis_internal.h - what the files of dp_analyse() share.
 *
 *   buckets.c     when each rank submitted, launched and finished each bucket
 *   device.c      when each rank's device computed
 *   waits.c       a wait, cut where something begins or ends that can explain it
 *   analysis.c    steps, as their threads saw them; drives the others
 *   summary.c     the few figures a person reads
 *
 * One thread, on a finished timeline that is only read.
 */
#ifndef DP_DPTRACE_ANALYSIS_INTERNAL_H
#define DP_DPTRACE_ANALYSIS_INTERNAL_H

#include "launcher/dptrace/analysis.h"
#include "launcher/dptrace/intervals.h"

/* Explanations of a blocked moment; the first that holds wins. */
typedef enum dp_why {
    DP_WHY_DEVICE, /* it computes: what the thread waits for makes no difference */
    DP_WHY_SKEW,
    DP_WHY_WIRE,
    DP_WHY_PACK,
    DP_WHY_NEGOTIATION,
    DP_WHY_COUNT
} dp_why_t;

/* One bucket as one rank saw it. */
typedef struct dp_bucket_view {
    uint64_t first_submit, last_submit; /* 0 and 0: none seen */
    uint64_t launch;
    uint64_t started; /* packing, or on the wire; 0: none seen */
    uint64_t on_wire; /* 0: not seen */
    uint64_t come;    /* the engine has waited for the others, who have all come; 0: it did not */
    uint64_t done;
    uint64_t wire_ns, wire_bytes; /* a launch may travel in several parts */
    uint64_t waited_ns;           /* the longest wait of the engine for a rank to come */
    uint32_t waited_for;          /* which rank: its number in the world */
    int is_launched;
    int is_on_stream; /* a device's stream computes its input */
} dp_bucket_view_t;

/* A rank's device. */
typedef struct dp_device_time {
    dp_interval_list_t busy;  /* computing; merged */
    dp_interval_list_t steps; /* where marked: steps as the device makes them, in order of time;
                                 `event` is the number */
    int is_marked;            /* the program's spans say so; else it is inferred */
} dp_device_time_t;

typedef struct dp_analysis_work {
    const dp_timeline_t *timeline;
    dp_analysis_t *out;
    dp_bucket_view_t *views;        /* [rank][bucket] */
    dp_interval_list_t *busy;       /* [rank] wire, pack and unpack by start */
    uint64_t *longest_busy;         /* [rank] longest interval in it */
    dp_device_time_t *device;       /* [rank] */
    uint32_t *near;                 /* [bucket_count] scratch: buckets of a step */
    dp_interval_list_t found, cuts; /* scratch */
} dp_analysis_work_t;

static inline uint64_t dp_event_end(const dp_timeline_event_t *event)
{
    return event->start_ns + event->duration_ns;
}

/* ---- buckets.c ------------------------------------------------------------------------------ */

/* Fills work->views, work->busy and out->buckets. DP_ERR_NO_MEMORY. */
dp_status_t dp_buckets_collect(dp_analysis_work_t *work);
/* The index of a bucket's number; UINT32_MAX: 0, or not seen. */
uint32_t dp_buckets_find(const dp_analysis_t *analysis, uint64_t bucket);

static inline dp_bucket_view_t *dp_buckets_view(const dp_analysis_work_t *work, int32_t rank,
                                                uint32_t bucket)
{
    return &work->views[(size_t)rank * work->out->bucket_count + bucket];
}

/* ---- device.c ------------------------------------------------------------------------------- */

/* Fills work->device. DP_ERR_NO_MEMORY. */
dp_status_t dp_device_collect(dp_analysis_work_t *work);
/* Adds to list when the rank's device computed inside [start, end). 0: no memory. */
int dp_device_clip(const dp_analysis_work_t *work, int32_t rank, uint64_t start, uint64_t end,
                   dp_interval_list_t *list);
/* The step as the rank's device made it, behind the thread that queued it; NULL: not known. */
const dp_interval_t *dp_device_step(const dp_analysis_work_t *work, int32_t rank, uint64_t number);
/* How much of [start, end) that was. */
uint64_t dp_device_time(const dp_analysis_work_t *work, int32_t rank, uint64_t start, uint64_t end);

/* ---- waits.c -------------------------------------------------------------------------------- */

/*
 * Splits waits that follow each other without work between them. They are one wait for all that
 * they await, in whatever order the program asks: while a member has not submitted the last of it,
 * the rest on the wire costs nothing. exposed[bucket] grows by what a bucket's wire explains.
 */
dp_status_t dp_waits_split(dp_analysis_work_t *work, const dp_interval_list_t *run,
                           dp_step_cell_t *cell, double *exposed);
/*
 * Splits a step by what the rank's device did: it computes; else what is under way of any bucket
 * explains the moment, and where nothing is, it is a gap.
 */
dp_status_t dp_waits_split_device(dp_analysis_work_t *work, int32_t rank, dp_step_cell_t *cell,
                                  double *exposed);
/* Adds the transfers of a rank inside [start, end) to work->found. 0: no memory. */
int dp_waits_transfers(dp_analysis_work_t *work, int32_t rank, uint64_t start, uint64_t end);

#endif
