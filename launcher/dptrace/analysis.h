/*
 * analysis.h - where the time of each step went, on every rank.
 *
 * The parts of a step, from the thread that runs it. A wait in dp is looked at moment by moment:
 *   skew          a member had not submitted the tensor (or its bucket) yet, or the engine waited
 *                 for one to come to an operation (WAIT_RANK)
 *   exposed wire  everyone had, and a bucket was on the wire
 *   pack/unpack   likewise, and one was being packed or unpacked
 *   negotiation   likewise, and it was not launched yet; also the time inside submissions
 *   unattributed  likewise, and nothing recorded explains it (hand-over, waking up)
 * Outside dp: compute is what the program's spans cover, or everything where it has none; gaps
 * is the rest. The parts sum to the step.
 *
 * Where the program marks its work on a device's streams, a step is looked at from the device:
 * compute is when it computed, whatever the thread did meanwhile, and the step lasts from its first
 * span there to that of the next step. All other moments are explained
 * as above by any bucket under way; where none is, they are gaps. Where it marks none, but its
 * operations take their input from streams, a moment at which a launched operation waits for its
 * stream counts as compute. For such buckets skew is the time on the wire before the last rank's
 * stream had come there.
 */
#ifndef DP_DPTRACE_ANALYSIS_H
#define DP_DPTRACE_ANALYSIS_H

#include <stdio.h>

#include "launcher/dptrace/timeline.h"

typedef enum dp_part {
    DP_PART_COMPUTE,
    DP_PART_SKEW,
    DP_PART_WIRE,
    DP_PART_PACK,
    DP_PART_NEGOTIATION,
    DP_PART_GAPS,
    DP_PART_OTHER,
    DP_PART_COUNT
} dp_step_part_t;

const char *dp_part_name(dp_step_part_t part);

/* Whose time "compute" is. */
typedef enum dp_device_source {
    DP_DEVICE_NONE,     /* the thread's */
    DP_DEVICE_INFERRED, /* also a device's, as far as operations waited for its streams */
    DP_DEVICE_MARKED    /* a device's */
} dp_device_source_t;

/* One step on one rank; times in ns. */
typedef struct dp_step_cell {
    uint64_t start_ns, duration_ns;
    double part[DP_PART_COUNT];
    double transfer_ns;                      /* packing, wire or unpacking, any time in the step */
    double exposed_ns[DP_TRACE_COLLECTIVES]; /* part[DP_PART_WIRE] by collective */
    int is_set;                              /* this rank has the step, and it ended */
} dp_step_cell_t;

/* All ranks' view of one bucket's launch. */
typedef struct dp_bucket_stat {
    uint64_t bucket;
    uint32_t name;
    uint32_t tensors;
    uint32_t collective; /* as dp_trace_collective_name() takes it */
    uint64_t bytes;
    uint64_t last_submit_ns; /* of all ranks */
    int32_t last_rank;       /* index of the rank that was; -1: unknown */
    int32_t seen;            /* ranks that submitted */
    /* Likewise, when the ranks were ready: with the submission, or on streams when the first
     * transfer began. */
    uint64_t last_ready_ns;
    int32_t last_ready_rank;
    /* Which rank the others lost most time by, and how much: the last one to be ready, behind the
     * (lower) median rank; or the one that an engine waited for, where that took longer. */
    int32_t late_rank; /* -1: unknown */
    uint64_t late_ns;
    uint64_t wire_ns;  /* the shortest over the ranks: others waited inside for peers */
    double exposed_ns; /* that a rank waited for its wire, mean over the ranks */
} dp_bucket_stat_t;

/* Buckets that are the same thing step after step. */
typedef struct dp_bucket_group {
    uint32_t name;
    uint32_t tensors;
    uint32_t collective;
    uint64_t bytes;
    size_t launches;
    double wire_ns;    /* median */
    double gb_per_s;   /* bus bandwidth: 2(n-1)/n of the bytes over that */
    double exposed_ns; /* per step */
    int32_t last_rank; /* index of the rank late most often */
    size_t last_count; /* how often */
} dp_bucket_group_t;

typedef struct dp_straggler {
    int32_t rank;        /* index */
    size_t last_count;   /* buckets whose late rank it was */
    size_t bucket_count; /* of so many with a known one */
    double late_ns;      /* mean lateness, where it was late */
    double share;        /* of all ranks' lateness together, 0..1 */
    uint32_t slow_span;  /* the span in which it loses most; 0: none stands out */
    double slow_ns;      /* by so much per step, against the median rank */
} dp_straggler_t;

typedef struct dp_analysis {
    size_t rank_count;
    size_t step_count;
    uint64_t *steps;           /* [step_count] numbers, ascending */
    dp_step_cell_t *cells;     /* [step_count][rank_count] */
    int has_steps;             /* 0: the program marked none; the recording counts as one */
    dp_device_source_t device; /* of any rank */
    int has_packing;           /* something was copied into a fused buffer */
    dp_bucket_stat_t *buckets; /* [bucket_count] by number */
    size_t bucket_count;
    dp_bucket_group_t *groups; /* largest exposure first, then size */
    size_t group_count;
    dp_straggler_t *stragglers; /* [rank_count] worst first */
    /* over the steps, seen from the rank with the median skew in each */
    double part[DP_PART_COUNT];                 /* mean per step */
    double step_ns;                             /* their sum */
    double collective_ns[DP_TRACE_COLLECTIVES]; /* part[DP_PART_WIRE] by collective */
    double p50_ns, p99_ns;
    double transfer_ns; /* mean per step and rank */
    double exposed_ns;  /* wire, pack and unpack of the median view */
    double hidden;      /* 0..1 of the transfer */
} dp_analysis_t;

dp_status_t dp_analyse(const dp_timeline_t *timeline, dp_analysis_t *analysis);
/* The part of dp_analyse() that follows from cells and buckets. */
dp_status_t dp_analysis_summarise(const dp_timeline_t *timeline, dp_analysis_t *analysis);

void dp_analysis_fini(dp_analysis_t *analysis);

/* Text for people, or JSON for programs. `what` names the input. */
void dp_report_text(const dp_timeline_t *timeline, const dp_analysis_t *analysis, const char *what,
                    FILE *file);
void dp_report_json(const dp_timeline_t *timeline, const dp_analysis_t *analysis, FILE *file);

/* [rank][string] ns inside the program's spans; of a rank that marks its work on a device, of these
 * marks. NULL: no memory; free() it. */
double *dp_span_sums(const dp_timeline_t *timeline);

/* One of two recordings. */
typedef struct dp_diff_side {
    const dp_timeline_t *timeline;
    const dp_analysis_t *analysis;
    const char *what;
} dp_diff_side_t;

/* Writes the changes from the first to the second. DP_ERR_NO_MEMORY. */
dp_status_t dp_diff_write(const dp_diff_side_t sides[2], FILE *file);

#endif
