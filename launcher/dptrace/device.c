/*
 * device.c - when each rank's device computed.
 *
 * dp_analyse() calls it behind buckets.c. A thread that has queued a step on a GPU is idle while
 * the device computes, so what the thread did tells nothing of where the step went. Two sources,
 * the first that a rank has:
 *
 *     marked     spans of the program's streams (COMPUTE), without the waits inside them
 *     inferred   from a launch to the start of its first transfer: the operation waits until its
 *                stream has computed the input
 *
 *     stream   | backward h.1 | backward h.0 |
 *     bucket       launch ----waits for ----- wire
 *     inferred            [------------------)
 *
 * Where marked, a step is the device's: from its first span to that of the next step. The thread
 * may have ended its own before the device has begun, and be in the next one while it computes.
 *
 * A rank whose operations have no streams has neither, and its steps are split by their threads.
 */
#include "launcher/dptrace/analysis_internal.h"

#include <stdlib.h>

/* The first interval that ends behind start. They are merged, so their ends ascend too. */
static size_t first_behind(const dp_interval_list_t *busy, uint64_t start)
{
    size_t low = 0, high = busy->count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (busy->items[middle].end <= start) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int dp_device_clip(const dp_analysis_work_t *work, int32_t rank, uint64_t start, uint64_t end,
                   dp_interval_list_t *list)
{
    const dp_interval_list_t *busy = &work->device[rank].busy;

    for (size_t i = first_behind(busy, start); i < busy->count && busy->items[i].start < end; i++) {
        if (!dp_intervals_add(list, dp_max(busy->items[i].start, start),
                              dp_min(busy->items[i].end, end), UINT32_MAX, DP_WHY_DEVICE))
            return 0;
    }
    return 1;
}

uint64_t dp_device_time(const dp_analysis_work_t *work, int32_t rank, uint64_t start, uint64_t end)
{
    const dp_interval_list_t *busy = &work->device[rank].busy;
    uint64_t sum = 0;

    for (size_t i = first_behind(busy, start); i < busy->count && busy->items[i].start < end; i++)
        sum += dp_min(busy->items[i].end, end) - dp_max(busy->items[i].start, start);
    return sum;
}

static int add_marked(dp_analysis_work_t *work, dp_interval_list_t *spans,
                      dp_interval_list_t *waits)
{
    for (size_t i = 0; i < work->timeline->event_count; i++) {
        const dp_timeline_event_t *event = &work->timeline->events[i];
        int is_wait = event->aux == DP_TRACE_STREAM_WAITS;

        if (event->kind != DP_TRACE_COMPUTE) continue;
        work->device[event->rank].is_marked = 1;
        if (!dp_intervals_add(is_wait ? &waits[event->rank] : &spans[event->rank], event->start_ns,
                              dp_event_end(event), 0, 0))
            return 0;
    }
    return 1;
}

/* ---- Steps ---------------------------------------------------------------------------------- */

static int compare_steps(const void *a, const void *b)
{
    const dp_interval_t *left = a, *right = b;

    if (left->event != right->event) return left->event < right->event ? -1 : 1;
    return (left->start > right->start) - (left->start < right->start);
}

/* From spans to steps: from the first of each to the end of its last. */
static void join_steps(dp_interval_list_t *steps)
{
    size_t kept = 0;

    if (steps->count > 0) qsort(steps->items, steps->count, sizeof(*steps->items), compare_steps);
    for (size_t i = 0; i < steps->count; i++) {
        dp_interval_t *last = kept > 0 ? &steps->items[kept - 1] : NULL;

        if (last == NULL || last->event != steps->items[i].event) {
            steps->items[kept++] = steps->items[i];
        } else {
            last->end = dp_max(last->end, steps->items[i].end);
        }
    }
    steps->count = kept;
    dp_intervals_sort(steps);
}

/* A step lasts until the next one begins, unless work that is no step's, such as a validation,
 * lies between them. */
static void close_steps(const dp_interval_list_t *others, dp_interval_list_t *steps)
{
    size_t next = 0;

    for (size_t i = 0; i + 1 < steps->count; i++) {
        dp_interval_t *step = &steps->items[i];
        const uint64_t until = steps->items[i + 1].start;

        while (next < others->count && others->items[next].end <= step->end)
            next++;
        if (next == others->count || others->items[next].start >= until) step->end = until;
        step->end = dp_min(step->end, until);
    }
}

static int add_steps(dp_analysis_work_t *work, int32_t rank)
{
    dp_interval_list_t *steps = &work->device[rank].steps, others = {NULL, 0, 0};
    int fits = 1;

    for (size_t i = 0; i < work->timeline->event_count && fits; i++) {
        const dp_timeline_event_t *event = &work->timeline->events[i];
        dp_interval_list_t *list = event->id > 0 ? steps : &others;
        const size_t count = list->count;

        if (event->kind != DP_TRACE_COMPUTE || event->rank != rank) continue;
        if (event->aux == DP_TRACE_STREAM_WAITS) continue;
        fits = dp_intervals_add(list, event->start_ns, dp_event_end(event), 0, 0);
        if (list->count > count) list->items[count].event = (size_t)event->id - 1;
    }
    join_steps(steps);
    dp_intervals_merge(&others);
    close_steps(&others, steps);
    free(others.items);
    return fits;
}

const dp_interval_t *dp_device_step(const dp_analysis_work_t *work, int32_t rank, uint64_t number)
{
    const dp_interval_list_t *steps = &work->device[rank].steps;

    for (size_t i = 0; i < steps->count; i++)
        if (steps->items[i].event == number) return &steps->items[i];
    return NULL;
}

/* ---- Computing ------------------------------------------------------------------------------ */

static int add_inferred(dp_analysis_work_t *work, int32_t rank)
{
    dp_interval_list_t *busy = &work->device[rank].busy;

    for (uint32_t i = 0; i < work->out->bucket_count; i++) {
        const dp_bucket_view_t *view = dp_buckets_view(work, rank, i);

        if (!view->is_on_stream || !view->is_launched || view->started == 0) continue;
        if (!dp_intervals_add(busy, view->launch, view->started, 0, 0)) return 0;
    }
    dp_intervals_merge(busy);
    return 1;
}

dp_status_t dp_device_collect(dp_analysis_work_t *work)
{
    size_t ranks = work->timeline->rank_count;
    dp_interval_list_t *spans = calloc(ranks + 1, sizeof(*spans));
    dp_interval_list_t *waits = calloc(ranks + 1, sizeof(*waits));
    int fits = spans != NULL && waits != NULL && add_marked(work, spans, waits);

    for (size_t r = 0; r < ranks && fits; r++) {
        dp_device_time_t *device = &work->device[r];

        if (!device->is_marked) {
            fits = add_inferred(work, (int32_t)r);
            if (device->busy.count > 0)
                work->out->device = dp_max(work->out->device, DP_DEVICE_INFERRED);
            continue;
        }
        work->out->device = DP_DEVICE_MARKED;
        dp_intervals_merge(&spans[r]);
        dp_intervals_merge(&waits[r]);
        fits = dp_intervals_subtract(&spans[r], &waits[r], &device->busy) &&
               add_steps(work, (int32_t)r);
    }
    for (size_t r = 0; r < ranks; r++) {
        if (spans != NULL) free(spans[r].items);
        if (waits != NULL) free(waits[r].items);
    }
    free(spans);
    free(waits);
    return fits ? DP_OK : DP_ERR_NO_MEMORY;
}
