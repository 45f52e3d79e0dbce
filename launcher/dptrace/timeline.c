/*
 * timeline.c - arranges events in rows that a person can read.
 *
 * Readers (load.c, perfetto_read.c) add events; dp_timeline_finish() cuts the window of steps,
 * sorts, and gives each event its row. A row is a kind of work (submit and wait, pack, wire, ...),
 * never one tensor: a model with 1000 tensors still fits on a screen. Work of one kind that
 * overlaps, such as two fused buffers on the wire, goes to a second row.
 */
#include "launcher/dptrace/timeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 24

void dp_timeline_init(dp_timeline_t *timeline)
{
    memset(timeline, 0, sizeof(*timeline));
}

void dp_timeline_fini(dp_timeline_t *timeline)
{
    for (size_t i = 0; i < timeline->string_count; i++)
        free(timeline->strings[i]);
    free(timeline->strings);
    for (size_t i = 0; i < timeline->missing_count; i++)
        free(timeline->missing[i]);
    free(timeline->missing);
    free(timeline->string_table);
    free(timeline->ranks);
    free(timeline->events);
    free(timeline->rows);
    memset(timeline, 0, sizeof(*timeline));
}

/* ---- Strings -------------------------------------------------------------------------------- */

static size_t hash_text(const char *text)
{
    uint64_t hash = 14695981039346656037ull; /* FNV-1a */

    while (*text != '\0')
        hash = (hash ^ (uint8_t)*text++) * 1099511628211ull;
    return (size_t)(hash ^ hash >> 32);
}

/* The hash table's place of a text, or the empty one where it belongs. */
static uint32_t *find_place(const dp_timeline_t *timeline, const char *text)
{
    size_t at = hash_text(text);

    for (;; at++) {
        uint32_t *place = &timeline->string_table[at & (timeline->table_size - 1)];

        if (*place == 0 || strcmp(timeline->strings[*place - 1], text) == 0) return place;
    }
}

/* At most half of the table is taken, so a search ends soon. */
static int grow_table(dp_timeline_t *timeline)
{
    size_t count = timeline->table_size == 0 ? 1024 : timeline->table_size * 2;
    uint32_t *table = calloc(count, sizeof(*table));

    if (table == NULL) return 0;
    free(timeline->string_table);
    timeline->string_table = table;
    timeline->table_size = count;
    for (size_t i = 0; i < timeline->string_count; i++)
        *find_place(timeline, timeline->strings[i]) = (uint32_t)i + 1;
    return 1;
}

static size_t add_string(dp_timeline_t *timeline, const char *text)
{
    uint32_t *place;
    char *copy;

    if ((timeline->string_count + 1) * 2 > timeline->table_size && !grow_table(timeline))
        return SIZE_MAX;
    place = find_place(timeline, text);
    if (*place != 0) return *place - 1;
    if (!dp_grow(&timeline->strings, timeline->string_count, &timeline->string_room,
                 sizeof(*timeline->strings)))
        return SIZE_MAX;
    copy = strdup(text);
    if (copy == NULL) return SIZE_MAX;
    timeline->strings[timeline->string_count] = copy;
    *place = (uint32_t)++timeline->string_count;
    return *place - 1;
}

size_t dp_timeline_string(dp_timeline_t *timeline, const char *text)
{
    if (timeline->string_count == 0 && add_string(timeline, "") == SIZE_MAX) return SIZE_MAX;
    return add_string(timeline, text);
}

/* ---- Ranks and events ----------------------------------------------------------------------- */

dp_timeline_rank_t *dp_timeline_add_rank(dp_timeline_t *timeline)
{
    if (!dp_grow(&timeline->ranks, timeline->rank_count, &timeline->rank_room,
                 sizeof(*timeline->ranks)))
        return NULL;
    return memset(&timeline->ranks[timeline->rank_count++], 0, sizeof(*timeline->ranks));
}

dp_timeline_event_t *dp_timeline_add_event(dp_timeline_t *timeline)
{
    if (!dp_grow(&timeline->events, timeline->event_count, &timeline->event_room,
                 sizeof(*timeline->events)))
        return NULL;
    return memset(&timeline->events[timeline->event_count++], 0, sizeof(*timeline->events));
}

/* The sort of row an event of this kind belongs to; DP_ROW_CLASSES: none. */
static dp_row_class_t class_of_kind(uint8_t kind)
{
    switch ((dp_trace_kind_t)kind) {
    case DP_TRACE_STEP:
    case DP_TRACE_SPAN:
    case DP_TRACE_FAULT:
        return DP_ROW_STEPS;
    case DP_TRACE_SUBMIT:
    case DP_TRACE_WAIT:
        return DP_ROW_THREAD;
    case DP_TRACE_COMPUTE:
        return DP_ROW_COMPUTE;
    case DP_TRACE_AGREE:
        return DP_ROW_AGREE;
    case DP_TRACE_LAUNCH:
    case DP_TRACE_CONTROL:
        return DP_ROW_COORDINATOR;
    case DP_TRACE_PACK:
        return DP_ROW_PACK;
    case DP_TRACE_WIRE:
        return DP_ROW_WIRE;
    case DP_TRACE_UNPACK:
        return DP_ROW_UNPACK;
    case DP_TRACE_WAIT_RANK:
        return DP_ROW_WAIT_RANK;
    case DP_TRACE_COUNTER:
        return DP_ROW_COUNTER;
    case DP_TRACE_NONE:
    case DP_TRACE_KIND_COUNT:
        break;
    }
    return DP_ROW_CLASSES;
}

static const char *row_class_name(dp_row_class_t row_class)
{
    static const char *const names[DP_ROW_CLASSES] = {
        "steps", "thread", "negotiation", "coordinator",      "device",
        "pack",  "wire",   "unpack",      "waiting for rank", "counter"};

    return (unsigned)row_class < DP_ROW_CLASSES ? names[row_class] : "unknown";
}

dp_status_t dp_step_window_parse(const char *text, dp_step_window_t *window, dp_error_t *error)
{
    const char *at = text;
    char *end;

    errno = 0;
    window->first = strtoull(at, &end, 10);
    if (*at < '0' || *at > '9' || errno != 0) goto bad;
    window->last = window->first;
    if (*end == '-') {
        at = end + 1;
        window->last = strtoull(at, &end, 10);
        if (*at < '0' || *at > '9' || errno != 0) goto bad;
    }
    if (*end != '\0' || window->last < window->first) goto bad;
    window->is_set = 1;
    return DP_OK;
bad:
    return dp_error_set(error, DP_ERR_INVALID,
                        "--steps %s: expected A-B with A <= B, for example 100-120", text);
}

/* ---- Order ---------------------------------------------------------------------------------- */

static int compare_ranks(const void *a, const void *b)
{
    const dp_timeline_rank_t *left = *(void *const *)a;
    const dp_timeline_rank_t *right = *(void *const *)b;

    return (left->rank > right->rank) - (left->rank < right->rank);
}

/* At the same start the longer event comes first, so it encloses the shorter. The last two keys
 * make the order, and with it the output, the same on every run. */
static int compare_times(const dp_timeline_event_t *left, const dp_timeline_event_t *right)
{
    if (left->start_ns != right->start_ns) return left->start_ns < right->start_ns ? -1 : 1;
    if (left->duration_ns != right->duration_ns)
        return left->duration_ns > right->duration_ns ? -1 : 1;
    if (left->kind != right->kind) return left->kind < right->kind ? -1 : 1;
    return (left->id > right->id) - (left->id < right->id);
}

static int compare_by_rank(const void *a, const void *b)
{
    const dp_timeline_event_t *left = a, *right = b;

    if (left->rank != right->rank) return left->rank < right->rank ? -1 : 1;
    return compare_times(left, right);
}

static int compare_by_row(const void *a, const void *b)
{
    const dp_timeline_event_t *left = a, *right = b;

    if (left->row != right->row) return left->row < right->row ? -1 : 1;
    return compare_times(left, right);
}

static int compare_rows(const void *a, const void *b)
{
    const dp_timeline_row_t *left = *(void *const *)a;
    const dp_timeline_row_t *right = *(void *const *)b;

    if (left->rank != right->rank) return left->rank < right->rank ? -1 : 1;
    /* a thread's spans and its waits stay together */
    if (left->row_class != right->row_class &&
        (left->row_class > DP_ROW_THREAD || right->row_class > DP_ROW_THREAD))
        return left->row_class < right->row_class ? -1 : 1;
    if (left->track != right->track) return left->track < right->track ? -1 : 1;
    if (left->row_class != right->row_class) return left->row_class < right->row_class ? -1 : 1;
    return (left->sub > right->sub) - (left->sub < right->sub);
}

/* Ranks in ascending order; events follow their rank. */
static dp_status_t sort_ranks(dp_timeline_t *timeline)
{
    size_t count = timeline->rank_count;
    void **order = malloc((count + 1) * sizeof(*order)); /* pointers to ranks */
    dp_timeline_rank_t *sorted = malloc((count + 1) * sizeof(*sorted));
    int32_t *place = malloc((count + 1) * sizeof(*place));
    dp_status_t status = DP_ERR_NO_MEMORY;

    if (order == NULL || sorted == NULL || place == NULL) goto done;
    for (size_t i = 0; i < count; i++)
        order[i] = &timeline->ranks[i];
    qsort(order, count, sizeof(*order), compare_ranks);
    for (size_t i = 0; i < count; i++) {
        const dp_timeline_rank_t *rank = order[i];

        sorted[i] = *rank;
        place[rank - timeline->ranks] = (int32_t)i;
    }
    for (size_t i = 0; i < count; i++)
        timeline->ranks[i] = sorted[i];
    for (size_t i = 0; i < timeline->event_count; i++)
        timeline->events[i].rank = place[timeline->events[i].rank];
    status = DP_OK;
done:
    free(order);
    free(sorted);
    free(place);
    return status;
}

/*
 * A recorder keeps the window it was asked for and overwrites records outside of it. If the steps
 * that are shown lie inside of that window, only those records are missing here that the recorder
 * dropped within it.
 */
static void tell_dropped_from_outside(dp_timeline_t *timeline, const dp_step_window_t *window)
{
    for (size_t r = 0; r < timeline->rank_count; r++) {
        dp_timeline_rank_t *rank = &timeline->ranks[r];
        int is_inside = rank->window_start_ns != 0;

        for (size_t i = 0; i < timeline->event_count && is_inside; i++) {
            const dp_timeline_event_t *event = &timeline->events[i];

            if (event->kind != DP_TRACE_STEP || event->rank != (int32_t)r) continue;
            if (event->id < window->first || event->id > window->last) continue;
            is_inside = event->start_ns >= rank->window_start_ns &&
                        event->start_ns + event->duration_ns <= rank->window_end_ns;
        }
        if (!is_inside) continue;
        rank->outside = rank->dropped - dp_min(rank->dropped, rank->window_dropped);
        rank->dropped -= rank->outside;
    }
}

static dp_status_t cut_window(dp_timeline_t *timeline, const dp_step_window_t *window,
                              dp_error_t *error)
{
    uint64_t from = UINT64_MAX, until = 0, seen_first = UINT64_MAX, seen_last = 0;
    size_t kept = 0;

    for (size_t i = 0; i < timeline->event_count; i++) {
        const dp_timeline_event_t *event = &timeline->events[i];

        /* the device may still compute a step that its thread has ended */
        if (event->kind == DP_TRACE_COMPUTE && event->id > window->first &&
            event->id - 1 <= window->last)
            until = dp_max(until, event->start_ns + event->duration_ns);
        if (event->kind != DP_TRACE_STEP) continue;
        seen_first = dp_min(seen_first, event->id);
        seen_last = dp_max(seen_last, event->id);
        if (event->id < window->first || event->id > window->last) continue;
        from = dp_min(from, event->start_ns);
        until = dp_max(until, event->start_ns + event->duration_ns);
    }
    if (from == UINT64_MAX && seen_first == UINT64_MAX) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "steps %llu-%llu: the recording has no steps; the program never "
                            "called dp_step_begin()",
                            (unsigned long long)window->first, (unsigned long long)window->last);
    }
    if (from == UINT64_MAX) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "steps %llu-%llu: none recorded; the recording has %llu-%llu",
                            (unsigned long long)window->first, (unsigned long long)window->last,
                            (unsigned long long)seen_first, (unsigned long long)seen_last);
    }
    tell_dropped_from_outside(timeline, window);
    for (size_t i = 0; i < timeline->event_count; i++) {
        const dp_timeline_event_t *event = &timeline->events[i];
        int is_other_step =
            event->kind == DP_TRACE_STEP && (event->id < window->first || event->id > window->last);

        if (is_other_step || event->start_ns >= until ||
            event->start_ns + event->duration_ns < from)
            continue;
        timeline->events[kept++] = *event;
    }
    timeline->event_count = kept;
    return DP_OK;
}

/* The first event of the job becomes time 0. origin_ns keeps what was taken off: a merged file that
 * is read again has an origin already. */
static void set_origin(dp_timeline_t *timeline)
{
    uint64_t first = UINT64_MAX;

    for (size_t i = 0; i < timeline->event_count; i++)
        first = dp_min(first, timeline->events[i].start_ns);
    if (first == UINT64_MAX) first = 0;
    timeline->origin_ns += first;
    timeline->end_ns = 0;
    for (size_t i = 0; i < timeline->event_count; i++) {
        dp_timeline_event_t *event = &timeline->events[i];

        event->start_ns -= first;
        timeline->end_ns = dp_max(timeline->end_ns, event->start_ns + event->duration_ns);
    }
}

/* ---- Rows ----------------------------------------------------------------------------------- */

/* The events of a row that have not ended, while events are handed out in order of their start. */
typedef struct open_row {
    uint64_t ends[DEPTH_MAX];
    uint32_t depth;
} open_row_t;

/* Rows of the program's threads and streams, whose tracks the recorder has apart. */
static int is_of_program(dp_row_class_t row_class)
{
    return row_class <= DP_ROW_THREAD || row_class == DP_ROW_COMPUTE;
}

/* Spans, waits and the coordinator's work nest, as calls do. Of pack, wire and unpack an overlap is
 * two buffers at the same time, which belong side by side. */
static int may_nest(dp_row_class_t row_class)
{
    return is_of_program(row_class) || row_class == DP_ROW_COORDINATOR;
}

/* Rows of the main lane and of the gather lane, whose tracks the recorder has apart. */
static int is_data_plane(dp_row_class_t row_class)
{
    return row_class == DP_ROW_PACK || row_class == DP_ROW_WIRE || row_class == DP_ROW_UNPACK ||
           row_class == DP_ROW_WAIT_RANK;
}

/* Takes the event in, unless it would overlap an open event of the row without lying inside it. */
static int row_accepts(open_row_t *open, const dp_timeline_event_t *event, dp_row_class_t row_class)
{
    uint64_t end = event->start_ns + event->duration_ns;

    while (open->depth > 0 && open->ends[open->depth - 1] <= event->start_ns)
        open->depth--;
    if (row_class == DP_ROW_COUNTER || event->duration_ns == 0) return 1;
    if (open->depth == 0) return 1;
    return may_nest(row_class) && open->depth < DEPTH_MAX && end <= open->ends[open->depth - 1];
}

/* Events come by rank and start. Each goes to the first row of its kind and track that accepts it;
 * if none does, a row is added. Rows of a rank lie together, from rank_first on. */
static dp_status_t place_events(dp_timeline_t *timeline)
{
    size_t rank_first = 0, open_room = 0;
    open_row_t *open = NULL; /* [row_count] */
    dp_status_t status = DP_ERR_NO_MEMORY;

    timeline->row_count = 0;
    for (size_t i = 0; i < timeline->event_count; i++) {
        dp_timeline_event_t *event = &timeline->events[i];
        dp_row_class_t row_class = class_of_kind(event->kind);
        uint32_t track = 0, sub = 0;
        size_t row;

        if (i > 0 && event->rank != event[-1].rank) rank_first = timeline->row_count;
        if (is_of_program(row_class) || is_data_plane(row_class)) track = event->track;
        if (row_class == DP_ROW_COUNTER) track = event->name;
        for (row = rank_first; row < timeline->row_count; row++) {
            const dp_timeline_row_t *at = &timeline->rows[row];

            if (at->row_class != row_class || at->track != track) continue;
            sub = at->sub + 1;
            if (row_accepts(&open[row], event, row_class)) break;
        }
        if (row == timeline->row_count) {
            if (!dp_grow(&timeline->rows, row, &timeline->row_room, sizeof(*timeline->rows)) ||
                !dp_grow(&open, row, &open_room, sizeof(*open)))
                goto done;
            memset(&open[row], 0, sizeof(*open));
            timeline->rows[row] = (dp_timeline_row_t){.rank = event->rank,
                                                      .row_class = row_class,
                                                      .track = track,
                                                      .sub = sub,
                                                      .depth = 1};
            timeline->row_count++;
        }
        event->row = (uint32_t)row;
        event->depth = (uint8_t)dp_min(open[row].depth, DEPTH_MAX - 1u);
        timeline->rows[row].depth = dp_max(timeline->rows[row].depth, event->depth + 1u);
        if (event->duration_ns > 0 && open[row].depth < DEPTH_MAX)
            open[row].ends[open[row].depth++] = event->start_ns + event->duration_ns;
    }
    status = DP_OK;
done:
    free(open);
    return status;
}

/* "submit, wait (thread 2) 3": the kind, the thread where there are several, the row of that kind.
 * thread: which of the recorder's tracks with that kind, from 1. The data plane's first one is the
 * main lane's, as the gather lane's are made later. */
static void label_row(const dp_timeline_t *timeline, dp_timeline_row_t *row, int thread)
{
    const char *name = row_class_name(row->row_class);

    if (is_data_plane(row->row_class) && thread > 1) {
        snprintf(row->label, sizeof(row->label), "gather lane: %s", name);
    } else if (row->row_class == DP_ROW_COUNTER) {
        snprintf(row->label, sizeof(row->label), "%s", timeline->strings[row->track]);
    } else if (row->row_class == DP_ROW_THREAD) {
        snprintf(row->label, sizeof(row->label), "submit, wait");
    } else {
        snprintf(row->label, sizeof(row->label), "%s", name);
    }
    if (is_of_program(row->row_class) && thread > 1) {
        size_t used = strlen(row->label);

        snprintf(row->label + used, sizeof(row->label) - used, " (thread %d)", thread);
    }
    if (row->sub > 0) {
        size_t used = strlen(row->label);

        snprintf(row->label + used, sizeof(row->label) - used, " %u", row->sub + 1);
    }
}

/* Rows from top to bottom, and the events behind them. */
static dp_status_t sort_rows(dp_timeline_t *timeline)
{
    size_t count = timeline->row_count;
    void **order = malloc((count + 1) * sizeof(*order)); /* pointers to rows */
    dp_timeline_row_t *sorted = malloc((count + 1) * sizeof(*sorted));
    uint32_t *place = malloc((count + 1) * sizeof(*place));
    dp_status_t status = DP_ERR_NO_MEMORY;
    int thread = 0;

    if (order == NULL || sorted == NULL || place == NULL) goto done;
    for (size_t i = 0; i < count; i++)
        order[i] = &timeline->rows[i];
    qsort(order, count, sizeof(*order), compare_rows);
    for (size_t i = 0; i < count; i++) {
        const dp_timeline_row_t *row = order[i];

        sorted[i] = *row;
        place[row - timeline->rows] = (uint32_t)i;
    }
    for (size_t i = 0; i < count; i++) {
        dp_timeline_row_t *row = &sorted[i];

        if (i == 0 || row->rank != row[-1].rank ||
            (row->row_class > DP_ROW_THREAD && row->row_class != row[-1].row_class)) {
            thread = 1;
        } else if ((is_of_program(row->row_class) || is_data_plane(row->row_class)) &&
                   row->track != row[-1].track) {
            thread++;
        }
        row->first = row->count = 0;
        label_row(timeline, row, thread);
        timeline->rows[i] = *row;
    }
    for (size_t i = 0; i < timeline->event_count; i++)
        timeline->events[i].row = place[timeline->events[i].row];
    qsort(timeline->events, timeline->event_count, sizeof(*timeline->events), compare_by_row);
    for (size_t i = 0; i < timeline->event_count; i++) {
        dp_timeline_row_t *row = &timeline->rows[timeline->events[i].row];

        if (row->count++ == 0) row->first = i;
    }
    status = DP_OK;
done:
    free(order);
    free(sorted);
    free(place);
    return status;
}

/* In this order: the window first, as all that follows costs time for each event; places before
 * rows are sorted, as a row's place on the screen depends on which rows there are. */
dp_status_t dp_timeline_finish(dp_timeline_t *timeline, const dp_step_window_t *window,
                               dp_error_t *error)
{
    dp_status_t status = DP_ERR_NO_MEMORY;
    size_t kept = 0;

    if (dp_timeline_string(timeline, "") == SIZE_MAX) goto done;
    if (window != NULL && window->is_set) {
        status = cut_window(timeline, window, error);
        if (status != DP_OK) return status;
    }
    for (size_t i = 0; i < timeline->event_count; i++) {
        if (class_of_kind(timeline->events[i].kind) != DP_ROW_CLASSES)
            timeline->events[kept++] = timeline->events[i];
    }
    timeline->event_count = kept;
    for (size_t i = 0; i < timeline->rank_count; i++)
        dp_text_mask(timeline->ranks[i].host);
    set_origin(timeline);
    status = sort_ranks(timeline);
    if (status != DP_OK) goto done;
    if (timeline->event_count > 0)
        qsort(timeline->events, timeline->event_count, sizeof(*timeline->events), compare_by_rank);
    status = place_events(timeline);
    if (status == DP_OK && timeline->event_count > 0) status = sort_rows(timeline);
done:
    if (status == DP_ERR_NO_MEMORY)
        dp_error_set(error, status, "no memory for %zu events", timeline->event_count);
    return status;
}
