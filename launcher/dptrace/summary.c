/*
 * summary.c - from the steps and buckets of an analysis to the few figures a person reads: a
 * typical step, groups of buckets, stragglers.
 *
 * The second half of dp_analyse(), called by analysis.c. Of the events it looks at spans alone, to
 * find where a straggler loses its time.
 */
#include "launcher/dptrace/analysis.h"

#include <stdlib.h>
#include <string.h>

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* ---- Summaries ------------------------------------------------------------------------------ */

typedef struct ranked_cell {
    double skew;
    const dp_step_cell_t *cell;
} ranked_cell_t;

static int compare_ranked(const void *a, const void *b)
{
    return compare_doubles(&((const ranked_cell_t *)a)->skew, &((const ranked_cell_t *)b)->skew);
}

/* In each step the rank with the median skew speaks for all: its parts sum to its step, and
 * whether one rank of many is late or one of two, the time it costs the others shows as skew. */
static dp_status_t summarise_steps(dp_analysis_t *out)
{
    ranked_cell_t *order = malloc((out->rank_count + 1) * sizeof(*order));
    double *durations = malloc((out->step_count + 1) * sizeof(*durations));
    double transfer = 0;
    size_t count = 0, cells = 0;

    if (order == NULL || durations == NULL) {
        free(order);
        free(durations);
        return DP_ERR_NO_MEMORY;
    }
    for (size_t s = 0; s < out->step_count; s++) {
        size_t set = 0;

        for (size_t r = 0; r < out->rank_count; r++) {
            const dp_step_cell_t *cell = &out->cells[s * out->rank_count + r];

            if (!cell->is_set) continue;
            order[set++] = (ranked_cell_t){.skew = cell->part[DP_PART_SKEW], .cell = cell};
            transfer += cell->transfer_ns;
            cells++;
        }
        if (set == 0) continue;
        qsort(order, set, sizeof(*order), compare_ranked);
        const dp_step_cell_t *cell = order[set / 2].cell;

        for (int p = 0; p < DP_PART_COUNT; p++)
            out->part[p] += cell->part[p];
        for (int c = 0; c < DP_TRACE_COLLECTIVES; c++)
            out->collective_ns[c] += cell->exposed_ns[c];
        durations[count++] = (double)cell->duration_ns;
    }
    qsort(durations, count, sizeof(*durations), compare_doubles);
    if (count > 0) {
        for (int p = 0; p < DP_PART_COUNT; p++) {
            out->part[p] /= (double)count;
            out->step_ns += out->part[p];
        }
        for (int c = 0; c < DP_TRACE_COLLECTIVES; c++)
            out->collective_ns[c] /= (double)count;
        out->p50_ns = durations[(count - 1) / 2]; /* the lower median, as for lateness */
        out->p99_ns = durations[(size_t)((double)(count - 1) * 0.99 + 0.5)];
        out->transfer_ns = transfer / (double)cells;
    }
    /* Transfer that explains a wait was not hidden behind compute; all other transfer was. The
     * parts are one rank's and the transfer is the mean of all, so the ratio is kept within its
     * bounds. */
    out->exposed_ns = out->part[DP_PART_WIRE] + out->part[DP_PART_PACK];
    if (out->transfer_ns > 0) {
        out->hidden = 1 - out->exposed_ns / out->transfer_ns;
        out->hidden = dp_min(dp_max(out->hidden, 0.0), 1.0);
    }
    free(order);
    free(durations);
    return DP_OK;
}

/* A bucket gets another number in each step; first name, collective, tensors and bytes tell
 * which one it is. */
static int compare_group_keys(const void *a, const void *b)
{
    const dp_bucket_stat_t *left = *(void *const *)a;
    const dp_bucket_stat_t *right = *(void *const *)b;

    if (left->bytes != right->bytes) return left->bytes > right->bytes ? -1 : 1;
    if (left->name != right->name) return left->name < right->name ? -1 : 1;
    if (left->collective != right->collective) return left->collective < right->collective ? -1 : 1;
    return (left->tensors > right->tensors) - (left->tensors < right->tensors);
}

static int compare_groups(const void *a, const void *b)
{
    const dp_bucket_group_t *left = a, *right = b;

    if (left->exposed_ns != right->exposed_ns) return left->exposed_ns > right->exposed_ns ? -1 : 1;
    return (left->bytes < right->bytes) - (left->bytes > right->bytes);
}

/* Fills one group from its launches, pointers to dp_bucket_stat_t. wire and last are scratch. */
static void fill_group(const dp_analysis_t *out, void *const *stats, size_t count, double *wire,
                       size_t *last, dp_bucket_group_t *group)
{
    const dp_bucket_stat_t *first = stats[0];
    double ranks = (double)out->rank_count;
    size_t timed = 0;

    *group = (dp_bucket_group_t){.name = first->name,
                                 .tensors = first->tensors,
                                 .collective = first->collective,
                                 .bytes = first->bytes,
                                 .launches = count,
                                 .last_rank = -1};
    memset(last, 0, out->rank_count * sizeof(*last));
    for (size_t i = 0; i < count; i++) {
        const dp_bucket_stat_t *stat = stats[i];

        if (stat->wire_ns > 0) wire[timed++] = (double)stat->wire_ns;
        group->exposed_ns += stat->exposed_ns;
        if (stat->late_rank < 0) continue;
        last[stat->late_rank]++;
        if (last[stat->late_rank] <= group->last_count) continue;
        group->last_count = last[stat->late_rank];
        group->last_rank = stat->late_rank;
    }
    group->exposed_ns /= (double)dp_max(out->step_count, (size_t)1);
    qsort(wire, timed, sizeof(*wire), compare_doubles);
    if (timed == 0) return;
    group->wire_ns = wire[timed / 2];
    group->gb_per_s =
        (ranks > 1 ? 2 * (ranks - 1) / ranks : 1) * (double)group->bytes / group->wire_ns;
}

/* Sorted by key, equal buckets lie side by side: each run of them becomes a group. */
static dp_status_t group_buckets(dp_analysis_t *out)
{
    size_t room = 0, count = out->bucket_count;
    void **order = malloc((count + 1) * sizeof(*order)); /* pointers to buckets */
    double *wire = malloc((count + 1) * sizeof(*wire));
    size_t *last = malloc((out->rank_count + 1) * sizeof(*last));
    dp_status_t status = DP_ERR_NO_MEMORY;

    if (order == NULL || wire == NULL || last == NULL) goto done;
    for (size_t i = 0; i < count; i++)
        order[i] = &out->buckets[i];
    qsort(order, count, sizeof(*order), compare_group_keys);
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && compare_group_keys(&order[i], &order[end]) == 0;)
            end++;
        if (!dp_grow(&out->groups, out->group_count, &room, sizeof(*out->groups))) goto done;
        fill_group(out, order + i, end - i, wire, last, &out->groups[out->group_count++]);
    }
    if (out->group_count > 0)
        qsort(out->groups, out->group_count, sizeof(*out->groups), compare_groups);
    status = DP_OK;
done:
    free(order);
    free(wire);
    free(last);
    return status;
}

/* ---- Stragglers ----------------------------------------------------------------------------- */

/* By what a rank costs the others in all: how often it is last, times how late it is then. */
static int compare_stragglers(const void *a, const void *b)
{
    const dp_straggler_t *left = a, *right = b;
    double left_cost = left->late_ns * (double)left->last_count;
    double right_cost = right->late_ns * (double)right->last_count;

    if (left_cost != right_cost) return left_cost > right_cost ? -1 : 1;
    return (left->rank > right->rank) - (left->rank < right->rank);
}

/* The span in which a rank loses most against the median rank, per step: span times, not wait. */
static void find_slow_span(const dp_timeline_t *timeline, const dp_analysis_t *out,
                           const double *span_ns, dp_straggler_t *straggler, double *column)
{
    size_t ranks = out->rank_count, strings = timeline->string_count;
    double steps = (double)dp_max(out->step_count, (size_t)1);

    for (size_t name = 1; name < strings; name++) {
        double own = span_ns[(size_t)straggler->rank * strings + name];

        if (own <= 0) continue;
        for (size_t r = 0; r < ranks; r++)
            column[r] = span_ns[r * strings + name];
        qsort(column, ranks, sizeof(*column), compare_doubles);
        own = (own - column[(ranks - 1) / 2]) / steps;
        if (own <= straggler->slow_ns) continue;
        straggler->slow_ns = own;
        straggler->slow_span = (uint32_t)name;
    }
}

/* Is this a span that tells how long a rank's work took? On a rank that marks its work on a device
 * these are the device's, as its thread only queues the work; else the thread's. */
static int is_work(const dp_timeline_event_t *event, const uint8_t *is_marked)
{
    if (event->is_open) return 0;
    if (!is_marked[event->rank]) return event->kind == DP_TRACE_SPAN;
    return event->kind == DP_TRACE_COMPUTE && event->aux != DP_TRACE_STREAM_WAITS;
}

double *dp_span_sums(const dp_timeline_t *timeline)
{
    uint8_t *is_marked = calloc(timeline->rank_count + 1, 1);
    double *sums = calloc(timeline->rank_count * timeline->string_count + 1, sizeof(*sums));

    if (sums == NULL || is_marked == NULL) {
        free(sums);
        free(is_marked);
        return NULL;
    }
    for (size_t i = 0; i < timeline->event_count; i++) {
        if (timeline->events[i].kind == DP_TRACE_COMPUTE) is_marked[timeline->events[i].rank] = 1;
    }
    for (size_t i = 0; i < timeline->event_count; i++) {
        const dp_timeline_event_t *event = &timeline->events[i];

        if (is_work(event, is_marked)) {
            sums[(size_t)event->rank * timeline->string_count + event->name] +=
                (double)event->duration_ns;
        }
    }
    free(is_marked);
    return sums;
}

/* A bucket that only one rank was seen to submit, and that no engine waited for, tells nothing
 * about lateness (late_rank is -1). */
static dp_status_t rank_stragglers(const dp_timeline_t *timeline, dp_analysis_t *out)
{
    double *spans = dp_span_sums(timeline);
    double *column = malloc((out->rank_count + 1) * sizeof(*column));
    size_t known = 0;
    double all = 0;

    out->stragglers = calloc(out->rank_count + 1, sizeof(*out->stragglers));
    if (spans == NULL || column == NULL || out->stragglers == NULL) {
        free(spans);
        free(column);
        return DP_ERR_NO_MEMORY;
    }
    for (size_t r = 0; r < out->rank_count; r++)
        out->stragglers[r].rank = (int32_t)r;
    for (size_t i = 0; i < out->bucket_count; i++) {
        const dp_bucket_stat_t *stat = &out->buckets[i];

        if (stat->late_rank < 0) continue;
        known++;
        all += (double)stat->late_ns;
        out->stragglers[stat->late_rank].last_count++;
        out->stragglers[stat->late_rank].late_ns += (double)stat->late_ns;
    }
    for (size_t r = 0; r < out->rank_count; r++) {
        dp_straggler_t *straggler = &out->stragglers[r];

        straggler->bucket_count = known;
        straggler->share = all > 0 ? straggler->late_ns / all : 0;
        if (straggler->last_count > 0) straggler->late_ns /= (double)straggler->last_count;
        find_slow_span(timeline, out, spans, straggler, column);
    }
    qsort(out->stragglers, out->rank_count, sizeof(*out->stragglers), compare_stragglers);
    free(spans);
    free(column);
    return DP_OK;
}

dp_status_t dp_analysis_summarise(const dp_timeline_t *timeline, dp_analysis_t *analysis)
{
    dp_status_t status = summarise_steps(analysis);

    if (status == DP_OK) status = group_buckets(analysis);
    if (status == DP_OK) status = rank_stragglers(timeline, analysis);
    return status;
}
