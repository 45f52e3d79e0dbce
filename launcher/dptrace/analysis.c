/*
 * analysis.c - splits each step of each rank into its parts, and finds the ranks that are late.
 *
 * main.c calls dp_analyse() for `report` and `view`, on a finished timeline, which it only reads.
 * Everything follows from intervals: a wait is cut wherever something begins or ends that can
 * explain it, and each piece goes to the first explanation in the order of dp_why_t.
 */
#include "launcher/dptrace/analysis.h"

#include <stdlib.h>
#include <string.h>

#define RUN_GAP_NS 20000 /* waits closer than this follow each other without work between them */

/* Explanations of a blocked moment; the first that holds wins. */
typedef enum dp_why { WHY_SKEW, WHY_WIRE, WHY_PACK, WHY_NEGOTIATION, WHY_COUNT } dp_why_t;

typedef struct interval {
    uint64_t start, end;
    size_t event;    /* of a wait: its index */
    uint32_t bucket; /* index of the bucket, or UINT32_MAX */
    uint32_t why;
} interval_t;

typedef struct interval_list {
    interval_t *items;
    size_t count, room;
} interval_list_t;

/* One bucket as one rank saw it. */
typedef struct bucket_view {
    uint64_t first_submit, last_submit; /* 0 and 0: none seen */
    uint64_t launch;
    uint64_t done;
    uint64_t wire_ns, wire_bytes; /* a launch may travel in several parts */
    int is_launched;
} bucket_view_t;

typedef struct work {
    const dp_timeline_t *timeline;
    dp_analysis_t *out;
    bucket_view_t *views;        /* [rank][bucket] */
    interval_list_t *busy;       /* [rank] wire, pack and unpack by start */
    uint64_t *longest_busy;      /* [rank] longest interval in it */
    interval_list_t found, cuts; /* scratch */
} work_t;

const char *dp_part_name(dp_part_t part)
{
    static const char *const names[DP_PART_COUNT] = {
        "compute", "skew", "exposed wire", "pack/unpack", "negotiation", "gaps", "unattributed"};

    return (unsigned)part < DP_PART_COUNT ? names[part] : "unknown";
}

static uint64_t end_of(const dp_timeline_event_t *event)
{
    return event->start_ns + event->duration_ns;
}

static int add_interval(interval_list_t *list, uint64_t start, uint64_t end, uint32_t bucket,
                        uint32_t why)
{
    if (end <= start) return 1;
    if (!dp_grow(&list->items, list->count, &list->room, sizeof(*list->items))) return 0;
    list->items[list->count++] =
        (interval_t){.start = start, .end = end, .bucket = bucket, .why = why};
    return 1;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

static int compare_intervals(const void *a, const void *b)
{
    const interval_t *left = a, *right = b;

    return (left->start > right->start) - (left->start < right->start);
}

/* ---- Buckets -------------------------------------------------------------------------------- */

static int compare_bucket_stats(const void *a, const void *b)
{
    const dp_bucket_stat_t *left = a, *right = b;

    return (left->bucket > right->bucket) - (left->bucket < right->bucket);
}

static uint32_t find_bucket(const dp_analysis_t *analysis, uint64_t bucket)
{
    dp_bucket_stat_t key = {.bucket = bucket};
    const dp_bucket_stat_t *found;

    if (bucket == 0 || analysis->bucket_count == 0) return UINT32_MAX;
    found =
        bsearch(&key, analysis->buckets, analysis->bucket_count, sizeof(key), compare_bucket_stats);
    return found == NULL ? UINT32_MAX : (uint32_t)(found - analysis->buckets);
}

static dp_status_t list_buckets(work_t *work)
{
    dp_analysis_t *out = work->out;
    size_t count = 0, kept = 0;
    uint64_t *numbers = malloc((work->timeline->event_count + 1) * sizeof(*numbers));

    if (numbers == NULL) return DP_ERR_NO_MEMORY;
    for (size_t i = 0; i < work->timeline->event_count; i++) {
        if (work->timeline->events[i].bucket != 0)
            numbers[count++] = work->timeline->events[i].bucket;
    }
    qsort(numbers, count, sizeof(*numbers), compare_u64);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || numbers[kept - 1] != numbers[i]) numbers[kept++] = numbers[i];
    out->buckets = calloc(kept + 1, sizeof(*out->buckets));
    work->views = calloc(kept * work->timeline->rank_count + 1, sizeof(*work->views));
    if (out->buckets == NULL || work->views == NULL) {
        free(numbers);
        return DP_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < kept; i++)
        out->buckets[i] = (dp_bucket_stat_t){.bucket = numbers[i], .last_rank = -1};
    out->bucket_count = kept;
    free(numbers);
    return DP_OK;
}

static bucket_view_t *view_of(const work_t *work, int32_t rank, uint32_t bucket)
{
    return &work->views[(size_t)rank * work->out->bucket_count + bucket];
}

static void note_event(work_t *work, const dp_timeline_event_t *event)
{
    uint32_t index = find_bucket(work->out, event->bucket);
    dp_bucket_stat_t *stat;
    bucket_view_t *view;
    uint64_t end = end_of(event);

    if (index == UINT32_MAX) return;
    stat = &work->out->buckets[index];
    view = view_of(work, event->rank, index);
    switch ((dp_trace_kind_t)event->kind) {
    case DP_TRACE_SUBMIT:
        if (view->last_submit == 0) view->first_submit = event->start_ns;
        view->first_submit = dp_min(view->first_submit, event->start_ns);
        view->last_submit = dp_max(view->last_submit, dp_max(event->start_ns, 1u));
        break;
    case DP_TRACE_AGREE:
    case DP_TRACE_LAUNCH:
        if (stat->name == 0) stat->name = event->name;
        stat->tensors = dp_max(stat->tensors, event->aux);
        stat->bytes = dp_max(stat->bytes, event->bytes);
        /* the launch is over when AGREE ends, and has come when LAUNCH begins */
        view->launch = event->kind == DP_TRACE_AGREE ? end : event->start_ns;
        view->is_launched = !event->is_open;
        break;
    case DP_TRACE_WIRE:
        if (stat->name == 0) stat->name = event->name;
        stat->tensors = dp_max(stat->tensors, event->aux);
        view->wire_ns += event->duration_ns;
        view->wire_bytes += event->bytes;
        stat->bytes = dp_max(stat->bytes, view->wire_bytes);
        view->done = dp_max(view->done, end);
        break;
    case DP_TRACE_PACK:
    case DP_TRACE_UNPACK:
        view->done = dp_max(view->done, end);
        break;
    default:
        break;
    }
}

/* Per bucket: the last rank to submit, how late it is behind the median, and the wire's time
 * without waiting. */
static dp_status_t finish_buckets(work_t *work)
{
    size_t ranks = work->timeline->rank_count;
    uint64_t *times = malloc((ranks + 1) * sizeof(*times));

    if (times == NULL) return DP_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < work->out->bucket_count; i++) {
        dp_bucket_stat_t *stat = &work->out->buckets[i];
        size_t seen = 0;

        for (size_t r = 0; r < ranks; r++) {
            const bucket_view_t *view = view_of(work, (int32_t)r, i);

            if (view->wire_ns > 0 && (stat->wire_ns == 0 || view->wire_ns < stat->wire_ns))
                stat->wire_ns = view->wire_ns;
            if (view->last_submit == 0) continue;
            times[seen++] = view->last_submit;
            if (stat->last_rank >= 0 && view->last_submit <= stat->last_submit_ns) continue;
            stat->last_submit_ns = view->last_submit;
            stat->last_rank = (int32_t)r;
        }
        stat->seen = (int32_t)seen;
        if (seen < 2) {
            stat->last_rank = -1;
            continue;
        }
        qsort(times, seen, sizeof(*times), compare_u64);
        /* the lower median: with two ranks that is the other one */
        stat->median_submit_ns = times[(seen - 1) / 2];
    }
    free(times);
    return DP_OK;
}

static dp_status_t list_busy(work_t *work)
{
    for (size_t i = 0; i < work->timeline->event_count; i++) {
        const dp_timeline_event_t *event = &work->timeline->events[i];
        interval_list_t *busy = &work->busy[event->rank];
        int is_wire = event->kind == DP_TRACE_WIRE;

        note_event(work, event);
        if (!is_wire && event->kind != DP_TRACE_PACK && event->kind != DP_TRACE_UNPACK) continue;
        if (!add_interval(busy, event->start_ns, end_of(event),
                          find_bucket(work->out, event->bucket), is_wire ? WHY_WIRE : WHY_PACK))
            return DP_ERR_NO_MEMORY;
        work->longest_busy[event->rank] =
            dp_max(work->longest_busy[event->rank], event->duration_ns);
    }
    for (size_t r = 0; r < work->timeline->rank_count; r++) {
        if (work->busy[r].count > 0)
            qsort(work->busy[r].items, work->busy[r].count, sizeof(interval_t), compare_intervals);
    }
    return DP_OK;
}

/* The first interval of a rank's work that can reach into [start, ...). */
static size_t first_busy(const work_t *work, int32_t rank, uint64_t start)
{
    const interval_list_t *busy = &work->busy[rank];
    uint64_t from = start > work->longest_busy[rank] ? start - work->longest_busy[rank] : 0;
    size_t low = 0, high = busy->count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (busy->items[middle].start < from) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ---- Waits ---------------------------------------------------------------------------------- */

/* Adds the explanations that one awaited bucket gives for [start, end) of a wait. */
static int explain_bucket(work_t *work, int32_t rank, uint32_t bucket, uint64_t start, uint64_t end)
{
    const dp_bucket_stat_t *stat = &work->out->buckets[bucket];
    const bucket_view_t *view = view_of(work, rank, bucket);
    uint64_t launch = view->is_launched ? view->launch : end;
    uint64_t ready = stat->last_rank >= 0 && stat->last_rank != rank ? stat->last_submit_ns : 0;
    /* where clocks disagree a launch proves that everyone had submitted */
    uint64_t skew_end = dp_min(view->is_launched ? dp_min(ready, launch) : ready, end);
    uint64_t from = dp_max(start, view->first_submit);

    return add_interval(&work->found, from, skew_end, bucket, WHY_SKEW) &&
           add_interval(&work->found, dp_max(from, skew_end), dp_min(launch, end), bucket,
                        WHY_NEGOTIATION);
}

/* Adds the transfers of this rank inside [start, end). */
static int explain_transfers(work_t *work, int32_t rank, uint64_t start, uint64_t end)
{
    const interval_list_t *busy = &work->busy[rank];

    for (size_t i = first_busy(work, rank, start); i < busy->count; i++) {
        const interval_t *item = &busy->items[i];

        if (item->start >= end) break;
        if (!add_interval(&work->found, dp_max(item->start, start), dp_min(item->end, end),
                          item->bucket, item->why))
            return 0;
    }
    return 1;
}

static int add_cuts(work_t *work, uint64_t start, uint64_t end)
{
    work->cuts.count = 0;
    if (!add_interval(&work->cuts, start, end, 0, 0)) return 0;
    for (size_t i = 0; i < work->found.count; i++) {
        if (!add_interval(&work->cuts, work->found.items[i].start, UINT64_MAX, 0, 0) ||
            !add_interval(&work->cuts, work->found.items[i].end, UINT64_MAX, 0, 0))
            return 0;
    }
    qsort(work->cuts.items, work->cuts.count, sizeof(interval_t), compare_intervals);
    return 1;
}

/* Hands each piece of the wait to its explanation. */
static void attribute_pieces(work_t *work, uint64_t start, uint64_t end, dp_step_cell_t *cell,
                             double *exposed)
{
    static const dp_part_t parts[WHY_COUNT] = {DP_PART_SKEW, DP_PART_WIRE, DP_PART_PACK,
                                               DP_PART_NEGOTIATION};

    for (size_t i = 0; i < work->cuts.count; i++) {
        uint64_t from = work->cuts.items[i].start;
        uint64_t until = i + 1 < work->cuts.count ? work->cuts.items[i + 1].start : end;
        uint32_t why = WHY_COUNT, bucket = UINT32_MAX;

        from = dp_max(from, start);
        until = dp_min(until, end);
        if (until <= from) continue;
        for (size_t k = 0; k < work->found.count; k++) {
            const interval_t *item = &work->found.items[k];

            if (item->start > from || item->end < until || item->why >= why) continue;
            why = item->why;
            bucket = item->bucket;
        }
        if (why == WHY_COUNT) {
            cell->part[DP_PART_OTHER] += (double)(until - from);
        } else {
            cell->part[parts[why]] += (double)(until - from);
        }
        if (why == WHY_WIRE && bucket != UINT32_MAX) exposed[bucket] += (double)(until - from);
    }
}

/* Adds the explanations of a wait, which awaits its request's bucket or all that are under way.
 * Returns when the last of it completes; UINT64_MAX: never seen to. */
static uint64_t explain_wait(work_t *work, const dp_timeline_event_t *wait, uint64_t start,
                             uint64_t end, int *fits)
{
    uint32_t bucket = find_bucket(work->out, wait->bucket);
    uint32_t first = bucket, past = bucket + 1;
    uint64_t done = start;

    if (bucket == UINT32_MAX) {
        if (wait->id != 0) return start; /* a request that no bucket is known of */
        first = 0;
        past = (uint32_t)work->out->bucket_count;
    }
    for (uint32_t i = first; i < past; i++) {
        const bucket_view_t *view = view_of(work, wait->rank, i);
        uint64_t until = view->done == 0 ? UINT64_MAX : view->done;

        if (bucket == UINT32_MAX && (view->last_submit == 0 || view->first_submit >= end)) continue;
        if (until <= start) continue;
        done = dp_max(done, until);
        *fits = *fits && explain_bucket(work, wait->rank, i, start, dp_min(until, end));
    }
    return done;
}

/*
 * Splits waits that follow each other without work between them. They are one wait for all that
 * they await, in whatever order the program asks: while a member has not submitted the last of it,
 * the rest on the wire costs nothing.
 */
static dp_status_t split_waits(work_t *work, const interval_list_t *run, dp_step_cell_t *cell,
                               double *exposed)
{
    uint64_t start = run->items[0].start, end = run->items[run->count - 1].end, done = start;
    int32_t rank = 0;
    int fits = 1;

    work->found.count = 0;
    for (size_t i = 0; i < run->count; i++) {
        const dp_timeline_event_t *wait = &work->timeline->events[run->items[i].event];
        uint64_t last = explain_wait(work, wait, start, run->items[i].end, &fits);

        done = dp_max(done, last);
        rank = wait->rank;
    }
    /* once all is complete nothing of the others explains why we still sleep */
    if (!fits || !explain_transfers(work, rank, start, dp_min(done, end)) ||
        !add_cuts(work, start, end))
        return DP_ERR_NO_MEMORY;
    for (size_t i = 0; i < run->count; i++)
        attribute_pieces(work, run->items[i].start, run->items[i].end, cell, exposed);
    return DP_OK;
}

/* ---- Steps ---------------------------------------------------------------------------------- */

static size_t find_step(const dp_analysis_t *analysis, uint64_t number)
{
    const uint64_t *found = bsearch(&number, analysis->steps, analysis->step_count,
                                    sizeof(*analysis->steps), compare_u64);

    return found == NULL ? SIZE_MAX : (size_t)(found - analysis->steps);
}

static dp_status_t list_steps(work_t *work)
{
    const dp_timeline_t *timeline = work->timeline;
    dp_analysis_t *out = work->out;
    size_t count = 0, kept = 0;

    out->steps = malloc((timeline->event_count + 1) * sizeof(*out->steps));
    if (out->steps == NULL) return DP_ERR_NO_MEMORY;
    for (size_t i = 0; i < timeline->event_count; i++) {
        if (timeline->events[i].kind == DP_TRACE_STEP && !timeline->events[i].is_open)
            out->steps[count++] = timeline->events[i].id;
    }
    qsort(out->steps, count, sizeof(*out->steps), compare_u64);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || out->steps[kept - 1] != out->steps[i]) out->steps[kept++] = out->steps[i];
    out->has_steps = kept > 0;
    if (kept == 0 && timeline->event_count > 0) out->steps[kept++] = 0;
    out->step_count = kept;
    out->cells = calloc(kept * out->rank_count + 1, sizeof(*out->cells));
    return out->cells == NULL ? DP_ERR_NO_MEMORY : DP_OK;
}

/* How much of [start, end) the intervals cover together. Sorts them. */
static double covered_ns(interval_list_t *list)
{
    uint64_t at = 0;
    double sum = 0;

    if (list->count > 0) qsort(list->items, list->count, sizeof(interval_t), compare_intervals);
    for (size_t i = 0; i < list->count; i++) {
        uint64_t from = dp_max(list->items[i].start, at);

        if (list->items[i].end <= from) continue;
        sum += (double)(list->items[i].end - from);
        at = list->items[i].end;
    }
    return sum;
}

/* A row whose events, sorted by start, are visited once while steps follow each other. */
typedef struct row_cursor {
    const dp_timeline_row_t *row;
    size_t at; /* events before this one have ended before the current step */
} row_cursor_t;

/* The rows of one thread (or of a whole rank). However many: overlapping spans of a class go to
 * further rows, and each holds a part of the time. */
typedef struct thread_rows {
    row_cursor_t *items; /* owned */
    size_t count, room;
} thread_rows_t;

/* lane: of the recorder; -1: any. rows is emptied first. */
static dp_status_t collect_rows(const dp_timeline_t *timeline, int32_t rank,
                                dp_row_class_t row_class, int64_t lane, thread_rows_t *rows)
{
    rows->count = 0;
    for (size_t i = 0; i < timeline->row_count; i++) {
        const dp_timeline_row_t *row = &timeline->rows[i];

        if (row->rank != rank || row->row_class != row_class ||
            (lane >= 0 && row->lane != (uint32_t)lane))
            continue;
        if (!dp_grow(&rows->items, rows->count, &rows->room, sizeof(*rows->items)))
            return DP_ERR_NO_MEMORY;
        rows->items[rows->count++] = (row_cursor_t){.row = row};
    }
    return DP_OK;
}

/* Splits the time one row says the thread was in dp, and adds it to `inside`. */
static dp_status_t split_dp(work_t *work, row_cursor_t *cursor, dp_step_cell_t *cell,
                            interval_list_t *inside, double *exposed)
{
    const dp_timeline_row_t *row = cursor->row;
    uint64_t start = cell->start_ns, end = start + cell->duration_ns;
    interval_list_t run = {NULL, 0, 0};
    dp_status_t status = DP_OK;

    for (size_t i = cursor->at; i < row->count && status == DP_OK; i++) {
        const dp_timeline_event_t *event = &work->timeline->events[row->first + i];
        uint64_t from = dp_max(event->start_ns, start), until = dp_min(end_of(event), end);

        if (event->start_ns >= end) break;
        if (end_of(event) <= start && i == cursor->at) cursor->at++;
        /* waits inside waits count once: only the row's first level does */
        if (event->depth > 0 || until <= from) continue;
        if (!add_interval(inside, from, until, 0, 0)) status = DP_ERR_NO_MEMORY;
        if (event->kind != DP_TRACE_WAIT) {
            cell->part[DP_PART_NEGOTIATION] += (double)(until - from);
            continue;
        }
        if (run.count > 0 && from > run.items[run.count - 1].end + RUN_GAP_NS) {
            status = split_waits(work, &run, cell, exposed);
            run.count = 0;
        }
        if (!add_interval(&run, from, until, 0, 0)) status = DP_ERR_NO_MEMORY;
        if (status == DP_OK) run.items[run.count - 1].event = row->first + i;
    }
    if (status == DP_OK && run.count > 0) status = split_waits(work, &run, cell, exposed);
    free(run.items);
    return status;
}

/* Adds the program's spans of a row that reach into the step. */
static dp_status_t add_spans(const work_t *work, row_cursor_t *cursor, const dp_step_cell_t *cell,
                             interval_list_t *list)
{
    const dp_timeline_row_t *row = cursor->row;
    uint64_t start = cell->start_ns, end = start + cell->duration_ns;

    for (size_t i = cursor->at; i < row->count; i++) {
        const dp_timeline_event_t *event = &work->timeline->events[row->first + i];

        if (event->start_ns >= end) break;
        if (end_of(event) <= start && i == cursor->at) cursor->at++;
        if (event->kind == DP_TRACE_SPAN &&
            !add_interval(list, dp_max(event->start_ns, start), dp_min(end_of(event), end), 0, 0))
            return DP_ERR_NO_MEMORY;
    }
    return DP_OK;
}

/* Splits one step. dp: its thread's submit and wait rows; spans: its program's. */
static dp_status_t split_step(work_t *work, uint64_t start, uint64_t end, thread_rows_t *dp,
                              thread_rows_t *spans, dp_step_cell_t *cell, double *exposed)
{
    interval_list_t inside = {NULL, 0, 0}, outside = {NULL, 0, 0};
    dp_status_t status = DP_OK;
    double in_dp, outside_dp;
    int has_spans;

    cell->start_ns = start;
    cell->duration_ns = end - start;
    cell->is_set = 1;
    for (size_t r = 0; r < dp->count && status == DP_OK; r++)
        status = split_dp(work, &dp->items[r], cell, &inside, exposed);
    for (size_t r = 0; r < spans->count && status == DP_OK; r++)
        status = add_spans(work, &spans->items[r], cell, &outside);
    has_spans = outside.count > 0;
    in_dp = covered_ns(&inside);
    outside_dp = (double)(end - start) - in_dp;
    for (size_t i = 0; i < inside.count && status == DP_OK; i++) {
        if (!add_interval(&outside, inside.items[i].start, inside.items[i].end, 0, 0))
            status = DP_ERR_NO_MEMORY;
    }
    cell->part[DP_PART_COMPUTE] = outside_dp;
    if (has_spans) cell->part[DP_PART_COMPUTE] = dp_max(covered_ns(&outside) - in_dp, 0.0);
    cell->part[DP_PART_GAPS] = dp_max(outside_dp - cell->part[DP_PART_COMPUTE], 0.0);
    free(inside.items);
    free(outside.items);
    return status;
}

/* How long the rank's data plane worked, and waited for peers, inside a step. */
static dp_status_t sum_transfers(work_t *work, int32_t rank, dp_step_cell_t *cell)
{
    uint64_t end = cell->start_ns + cell->duration_ns;

    work->found.count = 0;
    if (!explain_transfers(work, rank, cell->start_ns, end)) return DP_ERR_NO_MEMORY;
    cell->transfer_ns = covered_ns(&work->found);
    return DP_OK;
}

/* The steps of one thread. */
static dp_status_t split_row(work_t *work, const dp_timeline_row_t *row, double *exposed)
{
    const dp_timeline_t *timeline = work->timeline;
    thread_rows_t dp = {NULL, 0, 0}, spans = {NULL, 0, 0};
    dp_status_t status = collect_rows(timeline, row->rank, DP_ROW_THREAD, row->lane, &dp);

    if (status == DP_OK)
        status = collect_rows(timeline, row->rank, DP_ROW_STEPS, row->lane, &spans);
    for (size_t i = row->first; i < row->first + row->count && status == DP_OK; i++) {
        const dp_timeline_event_t *event = &timeline->events[i];
        dp_step_cell_t *cell;
        size_t step;

        if (event->kind != DP_TRACE_STEP || event->is_open) continue;
        step = find_step(work->out, event->id);
        if (step == SIZE_MAX) continue;
        cell = &work->out->cells[step * work->out->rank_count + (size_t)row->rank];
        if (cell->is_set) continue; /* the same number twice: the first stands */
        status = split_step(work, event->start_ns, end_of(event), &dp, &spans, cell, exposed);
        if (status == DP_OK) status = sum_transfers(work, row->rank, cell);
    }
    free(dp.items);
    free(spans.items);
    return status;
}

/* A program that marks no steps: the whole recording counts as one, seen from its first thread. */
static dp_status_t split_recording(work_t *work, int32_t rank, double *exposed)
{
    const dp_timeline_t *timeline = work->timeline;
    dp_step_cell_t *cell = &work->out->cells[rank];
    thread_rows_t dp = {NULL, 0, 0}, spans = {NULL, 0, 0};
    dp_status_t status = collect_rows(timeline, rank, DP_ROW_THREAD, -1, &dp);

    if (status == DP_OK) status = collect_rows(timeline, rank, DP_ROW_STEPS, -1, &spans);
    dp.count = dp_min(dp.count, (size_t)1);
    if (status == DP_OK) status = split_step(work, 0, timeline->end_ns, &dp, &spans, cell, exposed);
    if (status == DP_OK) status = sum_transfers(work, rank, cell);
    free(dp.items);
    free(spans.items);
    return status;
}

/* Adds the waits of one row for single peers to the steps they lie in. */
static void add_peer_waits(work_t *work, int32_t rank, const dp_timeline_row_t *row)
{
    const dp_analysis_t *out = work->out;
    size_t step = 0;

    for (size_t i = 0; i < row->count; i++) {
        const dp_timeline_event_t *event = &work->timeline->events[row->first + i];

        for (; step < out->step_count; step++) {
            dp_step_cell_t *cell = &out->cells[step * out->rank_count + (size_t)rank];

            if (!cell->is_set || cell->start_ns + cell->duration_ns <= event->start_ns) continue;
            if (cell->start_ns <= event->start_ns) cell->peer_ns += (double)event->duration_ns;
            break;
        }
    }
}

static dp_status_t split_rank(work_t *work, int32_t rank, double *exposed)
{
    const dp_timeline_t *timeline = work->timeline;
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < timeline->row_count && status == DP_OK; i++) {
        if (timeline->rows[i].rank == rank && timeline->rows[i].row_class == DP_ROW_STEPS)
            status = split_row(work, &timeline->rows[i], exposed);
    }
    if (status == DP_OK && !work->out->has_steps && work->out->step_count == 1)
        status = split_recording(work, rank, exposed);
    for (size_t i = 0; i < timeline->row_count && status == DP_OK; i++) {
        if (timeline->rows[i].rank == rank && timeline->rows[i].row_class == DP_ROW_WAIT_RANK)
            add_peer_waits(work, rank, &timeline->rows[i]);
    }
    return status;
}

/* ---- All of it ------------------------------------------------------------------------------ */

dp_status_t dp_analyse(const dp_timeline_t *timeline, dp_analysis_t *analysis)
{
    work_t work = {.timeline = timeline, .out = analysis};
    size_t ranks = timeline->rank_count;
    double *exposed = NULL;
    dp_status_t status = DP_ERR_NO_MEMORY;

    memset(analysis, 0, sizeof(*analysis));
    analysis->rank_count = ranks;
    work.busy = calloc(ranks + 1, sizeof(*work.busy));
    work.longest_busy = calloc(ranks + 1, sizeof(*work.longest_busy));
    if (work.busy == NULL || work.longest_busy == NULL) goto done;
    status = list_buckets(&work);
    if (status == DP_OK) status = list_busy(&work);
    if (status == DP_OK) status = finish_buckets(&work);
    if (status == DP_OK) status = list_steps(&work);
    if (status != DP_OK) goto done;
    exposed = calloc(analysis->bucket_count + 1, sizeof(*exposed));
    if (exposed == NULL) {
        status = DP_ERR_NO_MEMORY;
        goto done;
    }
    for (size_t r = 0; r < ranks && status == DP_OK; r++) {
        memset(exposed, 0, analysis->bucket_count * sizeof(*exposed));
        status = split_rank(&work, (int32_t)r, exposed);
        for (size_t i = 0; i < analysis->bucket_count; i++)
            analysis->buckets[i].exposed_ns += exposed[i] / (double)ranks;
    }
    if (status == DP_OK) status = dp_analysis_summarise(timeline, analysis);
done:
    for (size_t r = 0; r < ranks && work.busy != NULL; r++)
        free(work.busy[r].items);
    free(work.busy);
    free(work.longest_busy);
    free(work.views);
    free(work.found.items);
    free(work.cuts.items);
    free(exposed);
    if (status != DP_OK) dp_analysis_fini(analysis);
    return status;
}

void dp_analysis_fini(dp_analysis_t *analysis)
{
    free(analysis->steps);
    free(analysis->cells);
    free(analysis->buckets);
    free(analysis->groups);
    free(analysis->stragglers);
    memset(analysis, 0, sizeof(*analysis));
}
