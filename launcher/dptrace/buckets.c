/*
 * buckets.c - when each rank submitted, launched and finished each bucket, and which rank was the
 * last to submit.
 *
 * dp_analyse() calls it first; waits.c then explains waits by what stands here.
 *
 *     rank 0   submit --------.        .--- wire ---- done
 *     rank 1          submit --+ launch --- wire --------- done
 *                     ^ last_submit: of rank 1, the last rank; its lateness is the time since the
 *                       median rank's
 */
#include "launcher/dptrace/analysis_internal.h"

#include <stdlib.h>

static int compare_u64(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

static int compare_bucket_stats(const void *a, const void *b)
{
    const dp_bucket_stat_t *left = a, *right = b;

    return (left->bucket > right->bucket) - (left->bucket < right->bucket);
}

uint32_t dp_buckets_find(const dp_analysis_t *analysis, uint64_t bucket)
{
    dp_bucket_stat_t key = {.bucket = bucket};
    const dp_bucket_stat_t *found;

    if (bucket == 0 || analysis->bucket_count == 0) return UINT32_MAX;
    found =
        bsearch(&key, analysis->buckets, analysis->bucket_count, sizeof(key), compare_bucket_stats);
    return found == NULL ? UINT32_MAX : (uint32_t)(found - analysis->buckets);
}

/* Every number that occurs, ascending and once, so that dp_buckets_find() can search for it. */
static dp_status_t list_buckets(dp_analysis_work_t *work)
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
    for (size_t i = 0; i < kept; i++) {
        out->buckets[i] = (dp_bucket_stat_t){
            .bucket = numbers[i], .last_rank = -1, .last_ready_rank = -1, .late_rank = -1};
    }
    out->bucket_count = kept;
    free(numbers);
    return DP_OK;
}

static void note_first(uint64_t *first_ns, uint64_t at_ns)
{
    at_ns = dp_max(at_ns, 1u);
    *first_ns = *first_ns == 0 ? at_ns : dp_min(*first_ns, at_ns);
}

/* A bucket may have several records of one kind on a rank: submissions of its tensors, parts on the
 * wire. The view keeps the outermost times. A time of 0 means none was seen, so times are 1 at
 * least. */
static void note_event(dp_analysis_work_t *work, const dp_timeline_event_t *event)
{
    uint32_t index = dp_buckets_find(work->out, event->bucket);
    dp_bucket_stat_t *stat;
    dp_bucket_view_t *view;
    uint64_t end = dp_event_end(event);

    if (index == UINT32_MAX) return;
    stat = &work->out->buckets[index];
    view = dp_buckets_view(work, event->rank, index);
    switch ((dp_trace_kind_t)event->kind) {
    case DP_TRACE_SUBMIT:
        if (view->last_submit == 0) view->first_submit = event->start_ns;
        view->first_submit = dp_min(view->first_submit, event->start_ns);
        view->last_submit = dp_max(view->last_submit, dp_max(event->start_ns, 1u));
        view->is_on_stream |= event->aux == DP_TRACE_ON_STREAM;
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
        if (event->id < DP_TRACE_COLLECTIVES) stat->collective = (uint32_t)event->id;
        view->wire_ns += event->duration_ns;
        view->wire_bytes += event->bytes;
        stat->bytes = dp_max(stat->bytes, view->wire_bytes);
        note_first(&view->started, event->start_ns);
        note_first(&view->on_wire, event->start_ns);
        view->done = dp_max(view->done, end);
        break;
    case DP_TRACE_PACK:
        note_first(&view->started, event->start_ns);
        view->done = dp_max(view->done, end);
        break;
    case DP_TRACE_UNPACK:
        view->done = dp_max(view->done, end);
        break;
    case DP_TRACE_WAIT_RANK:
        note_first(&view->come, end);
        if (event->duration_ns <= view->waited_ns) break;
        view->waited_ns = event->duration_ns;
        view->waited_for = event->aux;
        break;
    default:
        break;
    }
}

/* Whether the streams of all ranks that submitted a bucket were seen to come to it. */
static int is_seen_on_streams(const dp_analysis_work_t *work, uint32_t bucket)
{
    size_t count = 0;

    for (size_t r = 0; r < work->timeline->rank_count; r++) {
        const dp_bucket_view_t *view = dp_buckets_view(work, (int32_t)r, bucket);

        if (view->last_submit == 0) continue;
        if (!view->is_on_stream || view->started == 0) return 0;
        count++;
    }
    return count > 0;
}

/* When the last rank was ready for a bucket, and which that was; -1: fewer than two are known.
 * times is scratch: the moments of the ranks that are known, [the result]. */
static size_t find_last(const dp_analysis_work_t *work, uint32_t bucket, int by_start,
                        uint64_t *times, uint64_t *last_ns, int32_t *last_rank)
{
    size_t seen = 0;

    *last_ns = 0;
    *last_rank = -1;
    for (size_t r = 0; r < work->timeline->rank_count; r++) {
        const dp_bucket_view_t *view = dp_buckets_view(work, (int32_t)r, bucket);
        uint64_t ready_ns = by_start ? view->started : view->last_submit;

        if (view->last_submit == 0) continue;
        times[seen++] = ready_ns;
        if (*last_rank >= 0 && ready_ns <= *last_ns) continue;
        *last_ns = ready_ns;
        *last_rank = (int32_t)r;
    }
    if (seen < 2) *last_rank = -1;
    return seen;
}

/* The index of a rank of the world; -1: its recording is not here. */
static int32_t index_of_rank(const dp_timeline_t *timeline, uint32_t rank)
{
    for (size_t i = 0; i < timeline->rank_count; i++)
        if ((uint32_t)timeline->ranks[i].rank == rank) return (int32_t)i;
    return -1;
}

/* Takes what the engines measured for a bucket where it is more than what the submissions tell.
 *
 * A rank may wait for one that itself waits: rank 2 is late, rank 0 waits for it, and rank 1 waits
 * for what rank 0 makes of both. So the search goes on while the rank waited for has waited as
 * long itself, less what a message takes. */
static void take_measured(const dp_analysis_work_t *work, uint32_t bucket)
{
    dp_bucket_stat_t *stat = &work->out->buckets[bucket];
    const size_t ranks = work->timeline->rank_count;
    const dp_bucket_view_t *longest = NULL;
    int32_t late = -1;

    for (size_t r = 0; r < ranks; r++) {
        const dp_bucket_view_t *view = dp_buckets_view(work, (int32_t)r, bucket);

        if (longest == NULL || view->waited_ns > longest->waited_ns) longest = view;
    }
    if (longest == NULL || longest->waited_ns <= stat->late_ns) return;
    for (size_t hops = 0; hops < ranks; hops++) {
        late = index_of_rank(work->timeline, longest->waited_for);
        if (late < 0) return;
        if (hops == 0) stat->late_ns = longest->waited_ns;
        longest = dp_buckets_view(work, late, bucket);
        if (longest->waited_ns * 2 < stat->late_ns) break;
    }
    stat->late_rank = late;
}

/* Per bucket: the last rank to submit, the late one, and the wire's time without waiting. */
static dp_status_t finish_buckets(dp_analysis_work_t *work)
{
    size_t ranks = work->timeline->rank_count;
    uint64_t *times = malloc((ranks + 1) * sizeof(*times));

    if (times == NULL) return DP_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < work->out->bucket_count; i++) {
        dp_bucket_stat_t *stat = &work->out->buckets[i];
        size_t seen;

        for (size_t r = 0; r < ranks; r++) {
            const dp_bucket_view_t *view = dp_buckets_view(work, (int32_t)r, i);

            if (view->wire_ns > 0 && (stat->wire_ns == 0 || view->wire_ns < stat->wire_ns))
                stat->wire_ns = view->wire_ns;
        }
        seen = find_last(work, i, 0, times, &stat->last_submit_ns, &stat->last_rank);
        stat->seen = (int32_t)seen;
        seen = find_last(work, i, is_seen_on_streams(work, i), times, &stat->last_ready_ns,
                         &stat->last_ready_rank);
        if (seen >= 2) {
            qsort(times, seen, sizeof(*times), compare_u64);
            /* the lower median: with two ranks that is the other one */
            stat->late_ns = stat->last_ready_ns - times[(seen - 1) / 2];
            stat->late_rank = stat->last_ready_rank;
        }
        take_measured(work, i);
    }
    free(times);
    return DP_OK;
}

/* The kind of waiting that an event of the data plane explains; DP_WHY_COUNT: none. */
static int explanation_of(const dp_timeline_event_t *event)
{
    switch ((dp_trace_kind_t)event->kind) {
    case DP_TRACE_WAIT_RANK: /* inside the operation's WIRE */
        return DP_WHY_SKEW;
    case DP_TRACE_WIRE:
        return DP_WHY_WIRE;
    case DP_TRACE_PACK:
    case DP_TRACE_UNPACK:
        return DP_WHY_PACK;
    default:
        return DP_WHY_COUNT;
    }
}

/* One pass over all events: what each says of its bucket, and the intervals in which a rank's data
 * plane worked. */
static dp_status_t list_busy(dp_analysis_work_t *work)
{
    for (size_t i = 0; i < work->timeline->event_count; i++) {
        const dp_timeline_event_t *event = &work->timeline->events[i];
        dp_interval_list_t *busy = &work->busy[event->rank];
        int why;

        note_event(work, event);
        work->out->has_packing |= event->kind == DP_TRACE_PACK;
        why = explanation_of(event);
        if (why == DP_WHY_COUNT) continue;
        if (!dp_intervals_add(busy, event->start_ns, dp_event_end(event),
                              dp_buckets_find(work->out, event->bucket), (uint32_t)why))
            return DP_ERR_NO_MEMORY;
        work->longest_busy[event->rank] =
            dp_max(work->longest_busy[event->rank], event->duration_ns);
    }
    for (size_t r = 0; r < work->timeline->rank_count; r++) {
        dp_intervals_sort(&work->busy[r]);
    }
    return DP_OK;
}

dp_status_t dp_buckets_collect(dp_analysis_work_t *work)
{
    dp_status_t status = list_buckets(work);

    if (status == DP_OK) status = list_busy(work);
    return status == DP_OK ? finish_buckets(work) : status;
}
