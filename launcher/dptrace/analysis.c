/*
 * analysis.c - splits each step of each rank into its parts.
 *
 * main.c calls dp_analyse() for `report` and `view`, on a finished timeline, which it only reads.
 * Everything follows from intervals: waits.c splits the time that the thread of a step spent inside
 * of dp; its time outside is compute where a span of the program covers it, else a gap. Where a
 * device's computing is known (device.c), that comes before anything the thread did.
 */
#include "launcher/dptrace/analysis_internal.h"

#include <stdlib.h>
#include <string.h>

#define RUN_GAP_NS 20000 /* waits closer than this follow each other without work between them */

const char *dp_part_name(dp_step_part_t part)
{
    static const char *const names[DP_PART_COUNT] = {
        "compute", "skew", "exposed wire", "pack/unpack", "negotiation", "gaps", "unattributed"};

    return (unsigned)part < DP_PART_COUNT ? names[part] : "unknown";
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

/* ---- Steps ---------------------------------------------------------------------------------- */

static size_t find_step(const dp_analysis_t *analysis, uint64_t number)
{
    const uint64_t *found = bsearch(&number, analysis->steps, analysis->step_count,
                                    sizeof(*analysis->steps), compare_u64);

    return found == NULL ? SIZE_MAX : (size_t)(found - analysis->steps);
}

/* Numbers of steps that ended on some rank. A rank that has not all of them has cells that are not
 * set. */
static dp_status_t list_steps(dp_analysis_work_t *work)
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

/* track: of the recorder; -1: any. rows is emptied first. */
static dp_status_t collect_rows(const dp_timeline_t *timeline, int32_t rank,
                                dp_row_class_t row_class, int64_t track, thread_rows_t *rows)
{
    rows->count = 0;
    for (size_t i = 0; i < timeline->row_count; i++) {
        const dp_timeline_row_t *row = &timeline->rows[i];

        if (row->rank != rank || row->row_class != row_class ||
            (track >= 0 && row->track != (uint32_t)track))
            continue;
        if (!dp_grow(&rows->items, rows->count, &rows->room, sizeof(*rows->items)))
            return DP_ERR_NO_MEMORY;
        rows->items[rows->count++] = (row_cursor_t){.row = row};
    }
    return DP_OK;
}

/* Splits the time one row says the thread was in dp, and adds it to `inside`. */
static dp_status_t split_dp(dp_analysis_work_t *work, row_cursor_t *cursor, dp_step_cell_t *cell,
                            dp_interval_list_t *inside, double *exposed)
{
    const dp_timeline_row_t *row = cursor->row;
    uint64_t start = cell->start_ns, end = start + cell->duration_ns;
    dp_interval_list_t run = {NULL, 0, 0};
    dp_status_t status = DP_OK;

    for (size_t i = cursor->at; i < row->count && status == DP_OK; i++) {
        const dp_timeline_event_t *event = &work->timeline->events[row->first + i];
        uint64_t from = dp_max(event->start_ns, start), until = dp_min(dp_event_end(event), end);

        if (event->start_ns >= end) break;
        if (dp_event_end(event) <= start && i == cursor->at) cursor->at++;
        /* waits inside waits count once: only the row's first level does */
        if (event->depth > 0 || until <= from) continue;
        if (!dp_intervals_add(inside, from, until, 0, 0)) status = DP_ERR_NO_MEMORY;
        if (event->kind != DP_TRACE_WAIT) {
            double computed = (double)dp_device_time(work, row->rank, from, until);

            cell->part[DP_PART_COMPUTE] += computed;
            cell->part[DP_PART_NEGOTIATION] += (double)(until - from) - computed;
            continue;
        }
        if (run.count > 0 && from > run.items[run.count - 1].end + RUN_GAP_NS) {
            status = dp_waits_split(work, &run, cell, exposed);
            run.count = 0;
        }
        if (!dp_intervals_add(&run, from, until, 0, 0)) status = DP_ERR_NO_MEMORY;
        if (status == DP_OK) run.items[run.count - 1].event = row->first + i;
    }
    if (status == DP_OK && run.count > 0) status = dp_waits_split(work, &run, cell, exposed);
    free(run.items);
    return status;
}

/* Adds the program's spans of a row that reach into the step. */
static dp_status_t add_spans(const dp_analysis_work_t *work, row_cursor_t *cursor,
                             const dp_step_cell_t *cell, dp_interval_list_t *list)
{
    const dp_timeline_row_t *row = cursor->row;
    uint64_t start = cell->start_ns, end = start + cell->duration_ns;

    for (size_t i = cursor->at; i < row->count; i++) {
        const dp_timeline_event_t *event = &work->timeline->events[row->first + i];

        if (event->start_ns >= end) break;
        if (dp_event_end(event) <= start && i == cursor->at) cursor->at++;
        if (event->kind == DP_TRACE_SPAN &&
            !dp_intervals_add(list, dp_max(event->start_ns, start),
                              dp_min(dp_event_end(event), end), 0, 0))
            return DP_ERR_NO_MEMORY;
    }
    return DP_OK;
}

/* Splits one step. dp: its thread's submit and wait rows; spans: its program's. */
static dp_status_t split_step(dp_analysis_work_t *work, int32_t rank, uint64_t start, uint64_t end,
                              thread_rows_t *dp, thread_rows_t *spans, dp_step_cell_t *cell,
                              double *exposed)
{
    dp_interval_list_t inside = {NULL, 0, 0}, outside = {NULL, 0, 0};
    dp_status_t status = DP_OK;
    double in_dp, outside_dp, computed;
    int has_spans;

    cell->start_ns = start;
    cell->duration_ns = end - start;
    cell->is_set = 1;
    if (work->device[rank].is_marked && dp_device_time(work, rank, start, end) > 0)
        return dp_waits_split_device(work, rank, cell, exposed);
    for (size_t r = 0; r < dp->count && status == DP_OK; r++)
        status = split_dp(work, &dp->items[r], cell, &inside, exposed);
    for (size_t r = 0; r < spans->count && status == DP_OK; r++)
        status = add_spans(work, &spans->items[r], cell, &outside);
    has_spans = outside.count > 0;
    if (status == DP_OK && !dp_device_clip(work, rank, start, end, &outside))
        status = DP_ERR_NO_MEMORY;
    in_dp = dp_intervals_covered(&inside);
    outside_dp = (double)(end - start) - in_dp;
    for (size_t i = 0; i < inside.count && status == DP_OK; i++) {
        if (!dp_intervals_add(&outside, inside.items[i].start, inside.items[i].end, 0, 0))
            status = DP_ERR_NO_MEMORY;
    }
    computed = has_spans ? dp_max(dp_intervals_covered(&outside) - in_dp, 0.0) : outside_dp;
    cell->part[DP_PART_COMPUTE] += computed;
    cell->part[DP_PART_GAPS] = dp_max(outside_dp - computed, 0.0);
    free(inside.items);
    free(outside.items);
    return status;
}

/* How long the rank's data plane worked inside a step, without its waits for ranks to come. */
static dp_status_t sum_transfers(dp_analysis_work_t *work, int32_t rank, dp_step_cell_t *cell)
{
    uint64_t end = cell->start_ns + cell->duration_ns;
    size_t kept = 0;

    work->found.count = 0;
    if (!dp_waits_transfers(work, rank, cell->start_ns, end)) return DP_ERR_NO_MEMORY;
    work->cuts.count = 0;
    for (size_t i = 0; i < work->found.count; i++) {
        const dp_interval_t item = work->found.items[i];

        if (item.why != DP_WHY_SKEW) {
            work->found.items[kept++] = item;
        } else if (!dp_intervals_add(&work->cuts, item.start, item.end, 0, 0)) {
            return DP_ERR_NO_MEMORY;
        }
    }
    work->found.count = kept;
    /* a wait lies inside of its operation's time on the wire */
    cell->transfer_ns = dp_intervals_covered(&work->found) - dp_intervals_covered(&work->cuts);
    cell->transfer_ns = dp_max(cell->transfer_ns, 0.0);
    return DP_OK;
}

/* The steps of one thread. */
static dp_status_t split_row(dp_analysis_work_t *work, const dp_timeline_row_t *row,
                             double *exposed)
{
    const dp_timeline_t *timeline = work->timeline;
    thread_rows_t dp = {NULL, 0, 0}, spans = {NULL, 0, 0};
    dp_status_t status = collect_rows(timeline, row->rank, DP_ROW_THREAD, row->track, &dp);

    if (status == DP_OK)
        status = collect_rows(timeline, row->rank, DP_ROW_STEPS, row->track, &spans);
    for (size_t i = row->first; i < row->first + row->count && status == DP_OK; i++) {
        const dp_timeline_event_t *event = &timeline->events[i];
        const dp_interval_t *on_device = dp_device_step(work, row->rank, event->id);
        dp_step_cell_t *cell;
        size_t step;

        if (event->kind != DP_TRACE_STEP || event->is_open) continue;
        step = find_step(work->out, event->id);
        if (step == SIZE_MAX) continue;
        cell = &work->out->cells[step * work->out->rank_count + (size_t)row->rank];
        if (cell->is_set) continue; /* the same number twice: the first stands */
        status = split_step(work, row->rank, on_device != NULL ? on_device->start : event->start_ns,
                            on_device != NULL ? on_device->end : dp_event_end(event), &dp, &spans,
                            cell, exposed);
        if (status == DP_OK) status = sum_transfers(work, row->rank, cell);
    }
    free(dp.items);
    free(spans.items);
    return status;
}

/* A program that marks no steps: the whole recording counts as one, seen from its first thread. */
static dp_status_t split_recording(dp_analysis_work_t *work, int32_t rank, double *exposed)
{
    const dp_timeline_t *timeline = work->timeline;
    dp_step_cell_t *cell = &work->out->cells[rank];
    thread_rows_t dp = {NULL, 0, 0}, spans = {NULL, 0, 0};
    dp_status_t status = collect_rows(timeline, rank, DP_ROW_THREAD, -1, &dp);

    if (status == DP_OK) status = collect_rows(timeline, rank, DP_ROW_STEPS, -1, &spans);
    dp.count = dp_min(dp.count, (size_t)1);
    if (status == DP_OK)
        status = split_step(work, rank, 0, timeline->end_ns, &dp, &spans, cell, exposed);
    if (status == DP_OK) status = sum_transfers(work, rank, cell);
    free(dp.items);
    free(spans.items);
    return status;
}

/* Every thread of the rank that marks steps; as a rule one does. */
static dp_status_t split_rank(dp_analysis_work_t *work, int32_t rank, double *exposed)
{
    const dp_timeline_t *timeline = work->timeline;
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < timeline->row_count && status == DP_OK; i++) {
        if (timeline->rows[i].rank == rank && timeline->rows[i].row_class == DP_ROW_STEPS)
            status = split_row(work, &timeline->rows[i], exposed);
    }
    if (status == DP_OK && !work->out->has_steps && work->out->step_count == 1)
        status = split_recording(work, rank, exposed);
    return status;
}

/* ---- All of it ------------------------------------------------------------------------------ */

/* Buckets first, over all ranks: how late a rank is shows only beside the others. Then each rank by
 * itself; its exposure is averaged over the ranks. */
dp_status_t dp_analyse(const dp_timeline_t *timeline, dp_analysis_t *analysis)
{
    dp_analysis_work_t work = {.timeline = timeline, .out = analysis};
    size_t ranks = timeline->rank_count;
    double *exposed = NULL;
    dp_status_t status = DP_ERR_NO_MEMORY;

    memset(analysis, 0, sizeof(*analysis));
    analysis->rank_count = ranks;
    work.busy = calloc(ranks + 1, sizeof(*work.busy));
    work.longest_busy = calloc(ranks + 1, sizeof(*work.longest_busy));
    work.device = calloc(ranks + 1, sizeof(*work.device));
    if (work.busy == NULL || work.longest_busy == NULL || work.device == NULL) goto done;
    status = dp_buckets_collect(&work);
    if (status == DP_OK) status = dp_device_collect(&work);
    if (status == DP_OK) status = list_steps(&work);
    if (status != DP_OK) goto done;
    exposed = calloc(analysis->bucket_count + 1, sizeof(*exposed));
    work.near = malloc((analysis->bucket_count + 1) * sizeof(*work.near));
    if (exposed == NULL || work.near == NULL) {
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
    for (size_t r = 0; r < ranks && work.device != NULL; r++) {
        free(work.device[r].busy.items);
        free(work.device[r].steps.items);
    }
    free(work.device);
    free(work.near);
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
