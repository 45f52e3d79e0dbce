/*
 * waits.c - where the time of a wait went: it is cut wherever something begins or ends that can
 * explain it, and each piece goes to the first explanation in the order of dp_why_t.
 *
 *     wait         [----------------------------------------------------)
 *     skew         [-- the last rank had not submitted --)
 *     wire                [--- an earlier bucket ------------)        [--- this bucket ---
 *     negotiation                                        [-----------)
 *     goes to      skew   skew                           wire |negot. |wire
 *
 * Called by analysis.c for each step of a thread.
 */
#include "launcher/dptrace/analysis_internal.h"

#include <stdlib.h>

/* The first interval of a rank's work that can reach into [start, ...). Intervals are sorted by
 * start, and one that began before `start` may reach into it. None is longer than the longest, so a
 * binary search for `start` less that much misses none. */
static size_t first_busy(const dp_analysis_work_t *work, int32_t rank, uint64_t start)
{
    const dp_interval_list_t *busy = &work->busy[rank];
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

/* From when on it is certain, whatever the clocks of the others say, that all had submitted a
 * bucket: on the CPU engine's wire, once it has not had to wait any more. A launch alone is no
 * proof, as ranks may launch without asking. Behind a stream the wire is none, as it waits inside.
 */
static uint64_t proven(const dp_bucket_view_t *view)
{
    if (view->is_on_stream) return view->is_launched ? view->launch : UINT64_MAX;
    return view->on_wire == 0 ? UINT64_MAX : dp_max(view->on_wire, view->come);
}

/* Adds the explanations that one awaited bucket gives for [start, end) of a wait. */
static int explain_bucket(dp_analysis_work_t *work, int32_t rank, uint32_t bucket, uint64_t start,
                          uint64_t end)
{
    const dp_bucket_stat_t *stat = &work->out->buckets[bucket];
    const dp_bucket_view_t *view = dp_buckets_view(work, rank, bucket);
    uint64_t launch = view->is_launched ? view->launch : end;
    uint64_t ready = stat->last_rank >= 0 && stat->last_rank != rank ? stat->last_submit_ns : 0;
    uint64_t skew_end = dp_min(dp_min(ready, proven(view)), end);
    uint64_t from = dp_max(start, view->first_submit);
    /* behind a stream the wire begins before the others are ready, and waits for them */
    uint64_t late = view->is_on_stream && view->started != 0 && stat->last_ready_rank >= 0 &&
                            stat->last_ready_rank != rank
                        ? stat->last_ready_ns
                        : 0;

    return dp_intervals_add(&work->found, from, skew_end, bucket, DP_WHY_SKEW) &&
           dp_intervals_add(&work->found, dp_max(start, view->started), dp_min(late, end), bucket,
                            DP_WHY_SKEW) &&
           dp_intervals_add(&work->found, dp_max(from, skew_end), dp_min(launch, end), bucket,
                            DP_WHY_NEGOTIATION);
}

int dp_waits_transfers(dp_analysis_work_t *work, int32_t rank, uint64_t start, uint64_t end)
{
    const dp_interval_list_t *busy = &work->busy[rank];

    for (size_t i = first_busy(work, rank, start); i < busy->count; i++) {
        const dp_interval_t *item = &busy->items[i];

        if (item->start >= end) break;
        if (!dp_intervals_add(&work->found, dp_max(item->start, start), dp_min(item->end, end),
                              item->bucket, item->why))
            return 0;
    }
    return 1;
}

/* The moments at which an explanation begins or ends: between two of them everything stays as it
 * is. They are kept as intervals, of which only the start counts. */
static int add_cuts(dp_analysis_work_t *work, uint64_t start, uint64_t end)
{
    work->cuts.count = 0;
    if (!dp_intervals_add(&work->cuts, start, end, 0, 0)) return 0;
    for (size_t i = 0; i < work->found.count; i++) {
        if (!dp_intervals_add(&work->cuts, work->found.items[i].start, UINT64_MAX, 0, 0) ||
            !dp_intervals_add(&work->cuts, work->found.items[i].end, UINT64_MAX, 0, 0))
            return 0;
    }
    dp_intervals_sort(&work->cuts);
    return 1;
}

/* Hands each piece of the wait to its explanation, and to `rest` where it has none. */
static void attribute_pieces(dp_analysis_work_t *work, uint64_t start, uint64_t end,
                             dp_step_part_t rest, dp_step_cell_t *cell, double *exposed)
{
    static const dp_step_part_t parts[DP_WHY_COUNT] = {DP_PART_COMPUTE, DP_PART_SKEW, DP_PART_WIRE,
                                                       DP_PART_PACK, DP_PART_NEGOTIATION};

    for (size_t i = 0; i < work->cuts.count; i++) {
        uint64_t from = work->cuts.items[i].start;
        uint64_t until = i + 1 < work->cuts.count ? work->cuts.items[i + 1].start : end;
        uint32_t why = DP_WHY_COUNT, bucket = UINT32_MAX;

        from = dp_max(from, start);
        until = dp_min(until, end);
        if (until <= from) continue;
        for (size_t k = 0; k < work->found.count; k++) {
            const dp_interval_t *item = &work->found.items[k];

            if (item->start > from || item->end < until || item->why >= why) continue;
            why = item->why;
            bucket = item->bucket;
        }
        if (why == DP_WHY_COUNT) {
            cell->part[rest] += (double)(until - from);
        } else {
            cell->part[parts[why]] += (double)(until - from);
        }
        if (why == DP_WHY_WIRE) {
            const uint32_t collective =
                bucket == UINT32_MAX ? 0 : work->out->buckets[bucket].collective;

            cell->exposed_ns[collective] += (double)(until - from);
            if (bucket != UINT32_MAX) exposed[bucket] += (double)(until - from);
        }
    }
}

/* Adds the explanations of a wait, which awaits its request's bucket or all that are under way.
 * Returns when the last of it completes; UINT64_MAX: never seen to. */
static uint64_t explain_wait(dp_analysis_work_t *work, const dp_timeline_event_t *wait,
                             uint64_t start, uint64_t end, int *fits)
{
    uint32_t bucket = dp_buckets_find(work->out, wait->bucket);
    uint32_t first = bucket, past = bucket + 1;
    uint64_t done = start;

    if (bucket == UINT32_MAX) {
        if (wait->id != 0) return start; /* a request that no bucket is known of */
        first = 0;
        past = (uint32_t)work->out->bucket_count;
    }
    for (uint32_t i = first; i < past; i++) {
        const dp_bucket_view_t *view = dp_buckets_view(work, wait->rank, i);
        uint64_t until = view->done == 0 ? UINT64_MAX : view->done;

        if (bucket == UINT32_MAX && (view->last_submit == 0 || view->first_submit >= end)) continue;
        if (until <= start) continue;
        done = dp_max(done, until);
        *fits = *fits && explain_bucket(work, wait->rank, i, start, dp_min(until, end));
    }
    return done;
}

dp_status_t dp_waits_split(dp_analysis_work_t *work, const dp_interval_list_t *run,
                           dp_step_cell_t *cell, double *exposed)
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
    if (!fits || !dp_waits_transfers(work, rank, start, dp_min(done, end)) ||
        !dp_device_clip(work, rank, start, end, &work->found) || !add_cuts(work, start, end))
        return DP_ERR_NO_MEMORY;
    for (size_t i = 0; i < run->count; i++) {
        attribute_pieces(work, run->items[i].start, run->items[i].end, DP_PART_OTHER, cell,
                         exposed);
    }
    return DP_OK;
}

/* ---- A step, seen from the device ----------------------------------------------------------- */

/* Explains [start, end), in which the device computed nothing, by all of the step's buckets. */
static int split_idle(dp_analysis_work_t *work, int32_t rank, size_t near_count, uint64_t start,
                      uint64_t end, dp_step_cell_t *cell, double *exposed)
{
    work->found.count = 0;
    for (size_t i = 0; i < near_count; i++) {
        const dp_bucket_view_t *view = dp_buckets_view(work, rank, work->near[i]);
        uint64_t until = view->done == 0 ? UINT64_MAX : view->done;

        if (view->first_submit >= end || until <= start) continue;
        if (!explain_bucket(work, rank, work->near[i], start, dp_min(until, end))) return 0;
    }
    if (!dp_waits_transfers(work, rank, start, end) || !add_cuts(work, start, end)) return 0;
    attribute_pieces(work, start, end, DP_PART_GAPS, cell, exposed);
    return 1;
}

dp_status_t dp_waits_split_device(dp_analysis_work_t *work, int32_t rank, dp_step_cell_t *cell,
                                  double *exposed)
{
    uint64_t at = cell->start_ns, end = at + cell->duration_ns;
    dp_interval_list_t busy = {NULL, 0, 0};
    size_t near_count = 0;
    int fits = dp_device_clip(work, rank, at, end, &busy);

    for (uint32_t i = 0; i < work->out->bucket_count; i++) {
        const dp_bucket_view_t *view = dp_buckets_view(work, rank, i);

        if (view->last_submit == 0 || view->first_submit >= end) continue;
        if (view->done == 0 || view->done > at) work->near[near_count++] = i;
    }
    cell->part[DP_PART_COMPUTE] = (double)dp_device_time(work, rank, at, end);
    for (size_t i = 0; i <= busy.count && fits; i++) {
        uint64_t until = i < busy.count ? busy.items[i].start : end;

        if (until > at) fits = split_idle(work, rank, near_count, at, until, cell, exposed);
        if (i < busy.count) at = busy.items[i].end;
    }
    free(busy.items);
    return fits ? DP_OK : DP_ERR_NO_MEMORY;
}
