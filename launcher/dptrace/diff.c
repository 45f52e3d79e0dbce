/*
 * diff.c - what became slower from one recording to another, by part of the step, span and bucket.
 *
 * main.c calls it for `diff` with the analyses of both. Things are matched by their names; it
 * prints differences per step, the largest first, and computes nothing that the reports of both do
 * not say.
 */
#include "launcher/dptrace/analysis.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/dptrace/formats.h"

#define ROWS_SHOWN 10
#define BAR_MAX 24
#define LEAST_SHARE 0.005 /* of the step: what changes by less is not listed */

/* A thing that both recordings may have; times in ms per step. */
typedef struct diff_row {
    char text[96];
    double time[2];
    int is_there[2];
} diff_row_t;

typedef struct diff_rows {
    diff_row_t *list;
    size_t count, room;
} diff_rows_t;

static int compare_doubles(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

static int compare_rows(const void *a, const void *b)
{
    const diff_row_t *left = a, *right = b;
    const double left_change = fabs(left->time[1] - left->time[0]);
    const double right_change = fabs(right->time[1] - right->time[0]);

    if (left_change != right_change) return left_change > right_change ? -1 : 1;
    return strcmp(left->text, right->text);
}

/* The row of this text, new or known; NULL: no memory. */
static diff_row_t *row_of(diff_rows_t *rows, const char *text)
{
    for (size_t i = 0; i < rows->count; i++) {
        if (strcmp(rows->list[i].text, text) == 0) return &rows->list[i];
    }
    if (!dp_grow(&rows->list, rows->count, &rows->room, sizeof(*rows->list))) return NULL;
    rows->list[rows->count] = (diff_row_t){.text = ""};
    snprintf(rows->list[rows->count].text, sizeof(rows->list->text), "%s", text);
    return &rows->list[rows->count++];
}

static int add_time(diff_rows_t *rows, const char *text, int side, double ms)
{
    diff_row_t *row = row_of(rows, text);

    if (row == NULL) return 0;
    row->time[side] += ms;
    row->is_there[side] = 1;
    return 1;
}

/* ---- What is compared ----------------------------------------------------------------------- */

/* A span takes what it takes on the median rank. */
static int add_spans(diff_rows_t *rows, const dp_diff_side_t *side, int number)
{
    const dp_timeline_t *timeline = side->timeline;
    const size_t ranks = timeline->rank_count;
    const double steps = (double)dp_max(side->analysis->step_count, (size_t)1);
    double *sums = dp_span_sums(timeline);
    double *column = malloc((ranks + 1) * sizeof(*column));
    int is_good = sums != NULL && column != NULL;

    for (size_t name = 1; is_good && name < timeline->string_count; name++) {
        char text[64];

        for (size_t r = 0; r < ranks; r++)
            column[r] = sums[r * timeline->string_count + name];
        qsort(column, ranks, sizeof(*column), compare_doubles);
        if (ranks == 0 || column[ranks - 1] <= 0) continue;
        snprintf(text, sizeof(text), "%.60s", timeline->strings[name]);
        dp_text_mask(text);
        is_good = add_time(rows, text, number, column[(ranks - 1) / 2] / 1e6 / steps);
    }
    free(column);
    free(sums);
    return is_good;
}

/* Negotiated buckets are cut anew in each step, so their wire time is added up by the first tensor.
 */
static int add_buckets(diff_rows_t *rows, const dp_diff_side_t *side, int number)
{
    const dp_analysis_t *analysis = side->analysis;
    const double steps = (double)dp_max(analysis->step_count, (size_t)1);
    int is_good = 1;

    for (size_t i = 0; is_good && i < analysis->group_count; i++) {
        const dp_bucket_group_t *group = &analysis->groups[i];
        const char *name = group->name != 0 ? side->timeline->strings[group->name] : "(unnamed)";
        char text[96];

        snprintf(text, sizeof(text), "%s %.60s", dp_trace_collective_name(group->collective), name);
        dp_text_mask(text);
        is_good =
            add_time(rows, text, number, group->wire_ns * (double)group->launches / 1e6 / steps);
    }
    return is_good;
}

/* ---- Printing ------------------------------------------------------------------------------- */

static void write_change(FILE *file, double before, double after, double scale)
{
    const double change = after - before;
    int bar = scale > 0 ? (int)(fabs(change) / scale * BAR_MAX + 0.5) : 0;

    fprintf(file, "%10.2f %10.2f %+9.2f  ", before, after, change);
    for (bar = dp_min(bar, BAR_MAX); bar > 0; bar--)
        fputc(change > 0 ? '+' : '-', file);
    fputc('\n', file);
}

static void write_rows(const char *title, diff_rows_t *rows, double least_ms, double scale,
                       FILE *file)
{
    size_t shown = 0, only[2] = {0, 0};
    size_t left = 0;

    if (rows->count == 0) return;
    qsort(rows->list, rows->count, sizeof(*rows->list), compare_rows);
    fprintf(file, "%-44s       A ms       B ms    change\n", title);
    for (size_t i = 0; i < rows->count; i++) {
        const diff_row_t *row = &rows->list[i];

        only[0] += !row->is_there[1];
        only[1] += !row->is_there[0];
        if (fabs(row->time[1] - row->time[0]) < least_ms) continue;
        if (shown == ROWS_SHOWN) {
            left++;
            continue;
        }
        fprintf(file, "  %-42.42s", row->text);
        write_change(file, row->time[0], row->time[1], scale);
        shown++;
    }
    if (shown == 0) fputs("  nothing changes by half a percent of the step\n", file);
    if (left > 0) fprintf(file, "  ... and %zu more\n", left);
    if (only[0] > 0) fprintf(file, "  only in A: %zu\n", only[0]);
    if (only[1] > 0) fprintf(file, "  only in B: %zu\n", only[1]);
}

/* The quartiles of a step's time, in ms: of its slowest rank, for which the others wait. */
static int find_quartiles(const dp_analysis_t *analysis, double quartile[3])
{
    double *times = malloc((analysis->step_count + 1) * sizeof(*times));
    size_t count = 0;

    if (times == NULL) return 0;
    for (size_t s = 0; s < analysis->step_count; s++) {
        uint64_t longest = 0;

        for (size_t r = 0; r < analysis->rank_count; r++) {
            const dp_step_cell_t *cell = &analysis->cells[s * analysis->rank_count + r];

            if (cell->is_set) longest = dp_max(longest, cell->duration_ns);
        }
        if (longest > 0) times[count++] = (double)longest / 1e6;
    }
    qsort(times, count, sizeof(*times), compare_doubles);
    for (size_t q = 0; q < 3; q++)
        quartile[q] = count > 0 ? times[(count - 1) * (q + 1) / 4] : 0;
    free(times);
    return 1;
}

static void write_side(char letter, const dp_diff_side_t *side, const double quartile[3],
                       FILE *file)
{
    char shown[512];

    snprintf(shown, sizeof(shown), "%s", side->what);
    dp_text_mask(shown);
    fprintf(file, "%c  %s: %zu rank%s, %zu step%s, median %.2f ms, half of them %.2f to %.2f\n",
            letter, shown, side->timeline->rank_count, side->timeline->rank_count == 1 ? "" : "s",
            side->analysis->step_count, side->analysis->step_count == 1 ? "" : "s", quartile[1],
            quartile[0], quartile[2]);
}

static void write_verdict(const double a[3], const double b[3], FILE *file)
{
    const double change = b[1] - a[1];
    const int is_clear = b[0] > a[2] || a[0] > b[2];

    if (fabs(change) < LEAST_SHARE * a[1]) {
        fputs("B takes as long as A\n", file);
        return;
    }
    fprintf(file, "B is %s by %.2f ms a step (%+.1f %%)%s\n", change > 0 ? "slower" : "faster",
            fabs(change), a[1] > 0 ? 100 * change / a[1] : 0,
            is_clear ? "" : "; the middle halves overlap: it may be chance");
}

dp_status_t dp_diff_write(const dp_diff_side_t sides[2], FILE *file)
{
    diff_rows_t parts = {NULL, 0, 0}, spans = {NULL, 0, 0}, buckets = {NULL, 0, 0};
    double quartile[2][3];
    double scale = 0;
    int is_good = 1;

    for (int side = 0; is_good && side < 2; side++) {
        for (int p = 0; is_good && p < DP_PART_COUNT; p++) {
            is_good = add_time(&parts, dp_part_name((dp_step_part_t)p), side,
                               sides[side].analysis->part[p] / 1e6);
        }
        is_good = is_good && find_quartiles(sides[side].analysis, quartile[side]) &&
                  add_spans(&spans, &sides[side], side) &&
                  add_buckets(&buckets, &sides[side], side);
    }
    if (is_good) {
        const double least = LEAST_SHARE * dp_max(quartile[0][1], quartile[1][1]);

        for (size_t i = 0; i < parts.count; i++)
            scale = dp_max(scale, fabs(parts.list[i].time[1] - parts.list[i].time[0]));
        write_side('A', &sides[0], quartile[0], file);
        write_side('B', &sides[1], quartile[1], file);
        write_verdict(quartile[0], quartile[1], file);
        write_rows("step (mean; the rank with the median skew)", &parts, least, scale, file);
        write_rows("spans (the median rank)", &spans, least, scale, file);
        write_rows("wire, by the first tensor of a bucket", &buckets, least, scale, file);
    }
    free(parts.list);
    free(spans.list);
    free(buckets.list);
    return is_good ? DP_OK : DP_ERR_NO_MEMORY;
}
