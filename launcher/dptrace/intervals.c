/*
 * intervals.c - lists of intervals of time: they grow, are sorted, and say how much they cover.
 *
 * Called by buckets.c, waits.c, device.c and analysis.c. It must not know what an interval stands
 * for.
 */
#include "launcher/dptrace/intervals.h"

#include <stdlib.h>

#include "launcher/dptrace/timeline.h"

int dp_intervals_add(dp_interval_list_t *list, uint64_t start, uint64_t end, uint32_t bucket,
                     uint32_t why)
{
    if (end <= start) return 1;
    if (!dp_grow(&list->items, list->count, &list->room, sizeof(*list->items))) return 0;
    list->items[list->count++] =
        (dp_interval_t){.start = start, .end = end, .bucket = bucket, .why = why};
    return 1;
}

static int compare_starts(const void *a, const void *b)
{
    const dp_interval_t *left = a, *right = b;

    return (left->start > right->start) - (left->start < right->start);
}

void dp_intervals_sort(dp_interval_list_t *list)
{
    if (list->count > 0) qsort(list->items, list->count, sizeof(*list->items), compare_starts);
}

double dp_intervals_covered(dp_interval_list_t *list)
{
    uint64_t at = 0;
    double sum = 0;

    dp_intervals_sort(list);
    for (size_t i = 0; i < list->count; i++) {
        uint64_t from = dp_max(list->items[i].start, at);

        if (list->items[i].end <= from) continue;
        sum += (double)(list->items[i].end - from);
        at = list->items[i].end;
    }
    return sum;
}

void dp_intervals_merge(dp_interval_list_t *list)
{
    size_t kept = 0;

    dp_intervals_sort(list);
    for (size_t i = 0; i < list->count; i++) {
        dp_interval_t *last = kept > 0 ? &list->items[kept - 1] : NULL;

        if (last == NULL || list->items[i].start > last->end) {
            list->items[kept++] = list->items[i];
        } else {
            last->end = dp_max(last->end, list->items[i].end);
        }
    }
    list->count = kept;
}

int dp_intervals_subtract(const dp_interval_list_t *from, const dp_interval_list_t *without,
                          dp_interval_list_t *out)
{
    size_t next = 0;

    for (size_t i = 0; i < from->count; i++) {
        uint64_t at = from->items[i].start, end = from->items[i].end;

        while (next < without->count && without->items[next].end <= at)
            next++;
        for (size_t k = next; k < without->count && without->items[k].start < end; k++) {
            if (!dp_intervals_add(out, at, without->items[k].start, 0, 0)) return 0;
            at = dp_max(at, without->items[k].end);
        }
        if (!dp_intervals_add(out, at, end, 0, 0)) return 0;
    }
    return 1;
}
