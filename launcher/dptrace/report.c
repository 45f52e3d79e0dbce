/*
 * report.c - the analysis in words and columns: what a step costs, who is late, what to try first.
 *
 * main.c calls it for `report`, as text or JSON. It prints what analysis.c and summary.c have
 * found and computes nothing but the advice.
 */
#include "launcher/dptrace/analysis.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/dptrace/formats.h"
#include "runtime/base/json.h"

#define GROUPS_SHOWN 12
#define STRAGGLERS_SHOWN 4

static double to_ms(double ns)
{
    return ns / 1e6;
}

/* By host name, which is all that a recording says of a node. */
static size_t count_nodes(const dp_timeline_t *timeline)
{
    size_t count = 0;

    for (size_t i = 0; i < timeline->rank_count; i++) {
        size_t k;

        for (k = 0; k < i; k++)
            if (strcmp(timeline->ranks[i].host, timeline->ranks[k].host) == 0) break;
        count += k == i;
    }
    return count;
}

static uint64_t clock_error(const dp_timeline_t *timeline)
{
    uint64_t worst = 0;

    for (size_t i = 0; i < timeline->rank_count; i++)
        worst = dp_max(worst, timeline->ranks[i].clock_error_ns);
    return worst;
}

/* Over all ranks; see dp_timeline_rank_t. */
static uint64_t sum_dropped(const dp_timeline_t *timeline)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < timeline->rank_count; i++)
        sum += timeline->ranks[i].dropped;
    return sum;
}

static uint64_t sum_outside(const dp_timeline_t *timeline)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < timeline->rank_count; i++)
        sum += timeline->ranks[i].outside;
    return sum;
}

/* A bucket as people say it: its first tensor and how many more travel with it. */
static void name_bucket(const dp_timeline_t *timeline, const dp_bucket_group_t *group, char *text,
                        size_t room)
{
    const char *name = group->name != 0 ? timeline->strings[group->name] : "(unnamed)";

    if (group->tensors > 1) {
        snprintf(text, room, "%.60s +%u", name, group->tensors - 1);
    } else {
        snprintf(text, room, "%.60s", name);
    }
    dp_text_mask(text);
}

static void name_span(const dp_timeline_t *timeline, uint32_t span, char text[64])
{
    snprintf(text, 64, "%.60s", timeline->strings[span]);
    dp_text_mask(text);
}

static void write_head(const dp_timeline_t *timeline, const dp_analysis_t *analysis,
                       const char *what, FILE *file)
{
    uint64_t error = clock_error(timeline);
    size_t nodes = count_nodes(timeline);
    char shown[512];

    snprintf(shown, sizeof(shown), "%s", what);
    dp_text_mask(shown);
    fprintf(file, "%s: %zu rank%s", shown, timeline->rank_count,
            timeline->rank_count == 1 ? "" : "s");
    if (timeline->rank_count > 0 && (size_t)timeline->ranks[0].size > timeline->rank_count)
        fprintf(file, " of %d", timeline->ranks[0].size);
    fprintf(file, ", %zu node%s", nodes, nodes == 1 ? "" : "s");
    if (analysis->has_steps) {
        fprintf(file, ", steps %" PRIu64 "-%" PRIu64, analysis->steps[0],
                analysis->steps[analysis->step_count - 1]);
    } else {
        fputs(", no steps marked: the whole recording counts as one", file);
    }
    if (error == UINT64_MAX) {
        fputs(", clocks of the nodes not measured", file);
    } else {
        fprintf(file, ", clock error <= %.0f us", (double)error / 1e3);
    }
    fprintf(file, ", dropped %" PRIu64, sum_dropped(timeline));
    if (sum_outside(timeline) > 0)
        fprintf(file, " (outside the window %" PRIu64 ")", sum_outside(timeline));
    fputc('\n', file);
}

static void write_parts(const dp_analysis_t *analysis, FILE *file)
{
    static const char *const computes[] = {
        [DP_DEVICE_NONE] = "",
        [DP_DEVICE_INFERRED] = "; compute: also while operations waited for their streams",
        [DP_DEVICE_MARKED] = "; compute: by the device's clock"};
    double step = analysis->step_ns > 0 ? analysis->step_ns : 1;

    fprintf(file, "step  p50 %.2f ms  p99 %.2f ms  mean %.2f ms, of which (median rank%s)\n",
            to_ms(analysis->p50_ns), to_ms(analysis->p99_ns), to_ms(analysis->step_ns),
            computes[analysis->device]);
    for (int p = 0; p < DP_PART_COUNT; p++) {
        double share = analysis->part[p] / step;
        int width = (int)(share * 40 + 0.5);

        fprintf(file, "  %-13s %9.2f ms %6.1f%%  %.*s\n", dp_part_name((dp_step_part_t)p),
                to_ms(analysis->part[p]), share * 100, width,
                "########################################");
    }
    fprintf(file, "  %-13s %9.2f ms %6.1f%%\n", "sum", to_ms(analysis->step_ns),
            analysis->step_ns > 0 ? 100.0 : 0.0);
    if (analysis->transfer_ns > 0) {
        fprintf(file, "communication %.2f ms per step, %.1f%% hidden", to_ms(analysis->transfer_ns),
                analysis->hidden * 100);
    } else {
        fputs("communication none recorded", file);
    }
    fputc('\n', file);
}

/* Which collectives the exposed wire was; nothing where none was exposed. */
static void write_collectives(const dp_analysis_t *analysis, FILE *file)
{
    size_t count = 0;

    for (uint64_t c = 0; c < DP_TRACE_COLLECTIVES; c++)
        count += analysis->collective_ns[c] > 0;
    if (count == 0) return;
    fputs("exposed wire", file);
    for (uint64_t c = 0; c < DP_TRACE_COLLECTIVES; c++) {
        if (analysis->collective_ns[c] <= 0) continue;
        fprintf(file, "  %s %.2f ms", dp_trace_collective_name(c),
                to_ms(analysis->collective_ns[c]));
    }
    fputc('\n', file);
}

static void write_groups(const dp_timeline_t *timeline, const dp_analysis_t *analysis, FILE *file)
{
    char name[96], last[64];

    if (analysis->group_count == 0) return;
    fprintf(file, "%-28s %8s %9s %9s %8s %11s  %s\n", "bucket", "launches", "MB", "wire ms", "GB/s",
            "exposed ms", "last rank");
    for (size_t i = 0; i < analysis->group_count && i < GROUPS_SHOWN; i++) {
        const dp_bucket_group_t *group = &analysis->groups[i];

        name_bucket(timeline, group, name, sizeof(name));
        last[0] = '\0';
        if (group->last_rank >= 0) {
            snprintf(last, sizeof(last), "r%d %zu/%zu", timeline->ranks[group->last_rank].rank,
                     group->last_count, group->launches);
        }
        fprintf(file, "%-28.28s %8zu %9.3f %9.3f %8.2f %11.3f  %s\n", name, group->launches,
                (double)group->bytes / 1e6, to_ms(group->wire_ns), group->gb_per_s,
                to_ms(group->exposed_ns), last);
    }
    if (analysis->group_count > GROUPS_SHOWN)
        fprintf(file, "  ... and %zu more\n", analysis->group_count - GROUPS_SHOWN);
}

/* Whether a rank loses enough in one of its spans to be mentioned: 2 % of a step. */
static int span_stands_out(const dp_analysis_t *analysis, const dp_straggler_t *straggler)
{
    return straggler->slow_span != 0 && straggler->slow_ns > 0.02 * analysis->step_ns;
}

static void write_stragglers(const dp_timeline_t *timeline, const dp_analysis_t *analysis,
                             FILE *file)
{
    for (size_t i = 0; i < analysis->rank_count && i < STRAGGLERS_SHOWN; i++) {
        const dp_straggler_t *straggler = &analysis->stragglers[i];
        const dp_timeline_rank_t *rank = &timeline->ranks[straggler->rank];
        char span[64];

        if (straggler->last_count == 0) continue;
        fprintf(file, "%-10s r%d %s: last %zu/%zu, +%.2f ms", i == 0 ? "straggler" : "", rank->rank,
                rank->host, straggler->last_count, straggler->bucket_count,
                to_ms(straggler->late_ns));
        if (span_stands_out(analysis, straggler)) {
            name_span(timeline, straggler->slow_span, span);
            fprintf(file, "; \"%s\" +%.2f ms a step", span, to_ms(straggler->slow_ns));
        }
        fputc('\n', file);
    }
}

/* ---- What to try first ---------------------------------------------------------------------- */

typedef struct advice {
    double gain_ns;
    char text[256];
} advice_t;

static int compare_advice(const void *a, const void *b)
{
    const advice_t *left = a, *right = b;

    return (left->gain_ns < right->gain_ns) - (left->gain_ns > right->gain_ns);
}

/* Advice for every part that costs more than 1 % of a step, the most costly first. The gain is an
 * upper bound: what the part costs now. */
static size_t collect_advice(const dp_timeline_t *timeline, const dp_analysis_t *analysis,
                             advice_t list[5])
{
    double threshold = 0.01 * analysis->step_ns;
    const double *part = analysis->part;
    size_t count = 0;
    char name[96];

    if (part[DP_PART_SKEW] > threshold && analysis->rank_count > 0) {
        const dp_straggler_t *worst = &analysis->stragglers[0];
        const dp_timeline_rank_t *rank = &timeline->ranks[worst->rank];
        /* by the time it cost, or, where others had a few long delays, by how often it was late */
        int is_one = worst->share > 2.0 / 3 || worst->last_count * 3 > worst->bucket_count * 2;
        int is_span = span_stands_out(analysis, worst);
        char span[64];

        name_span(timeline, worst->slow_span, span);
        list[count].gain_ns = part[DP_PART_SKEW];
        if (is_one) {
            snprintf(list[count].text, sizeof(list[count].text),
                     "find out why rank %d on %.60s is late%s%.60s%s", rank->rank, rank->host,
                     is_span ? " (in \"" : "", is_span ? span : "", is_span ? "\")" : "");
        } else {
            snprintf(list[count].text, sizeof(list[count].text),
                     "ranks take turns being late: uneven batches, or noise on the nodes");
        }
        count++;
    }
    if (part[DP_PART_WIRE] > threshold && analysis->group_count > 0) {
        name_bucket(timeline, &analysis->groups[0], name, sizeof(name));
        list[count].gain_ns = part[DP_PART_WIRE];
        snprintf(list[count].text, sizeof(list[count].text),
                 "wire: \"%s\" is exposed most (%.2f ms): submit it earlier, or a smaller "
                 "--fusion-bytes so that it starts sooner%s",
                 name, to_ms(analysis->groups[0].exposed_ns),
                 count_nodes(timeline) > 1 ? ", or --wire fp16 between nodes" : "");
        count++;
    }
    if (part[DP_PART_PACK] > threshold) {
        list[count].gain_ns = part[DP_PART_PACK];
        snprintf(list[count++].text, sizeof(list[0].text), "%s",
                 analysis->has_packing
                     ? "packing: keep gradients in dp_alloc() memory, so that they travel where "
                       "they lie"
                     : "unpacking: results are scaled, or cast, behind the wire: a smaller "
                       "--fusion-bytes leaves less of it behind the last gradient");
    }
    if (part[DP_PART_NEGOTIATION] > threshold) {
        list[count].gain_ns = part[DP_PART_NEGOTIATION];
        snprintf(list[count++].text, sizeof(list[0].text),
                 "negotiation: fewer, larger submissions; a shorter --fusion-hold; cores for the "
                 "coordinator");
    }
    if (part[DP_PART_GAPS] > threshold) {
        list[count].gain_ns = part[DP_PART_GAPS];
        snprintf(list[count++].text, sizeof(list[0].text), "%s",
                 analysis->device == DP_DEVICE_MARKED
                     ? "gaps: the device has nothing to do, and nothing of dp is under way: the "
                       "host queues its work too late (data loading, small kernels?)"
                     : "gaps: the step has time outside every span and outside dp (data loading?)");
    }
    if (count > 0) qsort(list, count, sizeof(*list), compare_advice);
    return count;
}

void dp_report_text(const dp_timeline_t *timeline, const dp_analysis_t *analysis, const char *what,
                    FILE *file)
{
    advice_t list[5];
    size_t count;

    write_head(timeline, analysis, what, file);
    if (analysis->step_count == 0) {
        fputs("nothing was recorded\n", file);
        return;
    }
    write_parts(analysis, file);
    write_collectives(analysis, file);
    write_groups(timeline, analysis, file);
    write_stragglers(timeline, analysis, file);
    for (size_t i = 0; i < timeline->rank_count; i++) {
        if (!timeline->ranks[i].is_closed) {
            fprintf(file,
                    "unclosed   r%d %s: its recorder ends in the middle (killed, or running)\n",
                    timeline->ranks[i].rank, timeline->ranks[i].host);
        }
    }
    count = collect_advice(timeline, analysis, list);
    for (size_t i = 0; i < count && i < 3; i++) {
        fprintf(file, "%-10s %s (<= %.2f ms)\n", i == 0 ? "first" : "then", list[i].text,
                to_ms(list[i].gain_ns));
    }
    if (count == 0)
        fputs("first      nothing of ours costs 1% of a step: make compute faster\n", file);
}

/* ---- For programs --------------------------------------------------------------------------- */

static void json_parts(const double *part, FILE *file)
{
    static const char *const keys[DP_PART_COUNT] = {
        "compute", "skew", "exposed_wire", "pack_unpack", "negotiation", "gaps", "unattributed"};

    for (int p = 0; p < DP_PART_COUNT; p++)
        fprintf(file, "%s\"%s\":%.6f", p == 0 ? "{" : ",", keys[p], to_ms(part[p]));
    fputc('}', file);
}

/* Exposed wire by collective; those without any are left out. */
static void json_collectives(const double *exposed_ns, FILE *file)
{
    int is_first = 1;

    fputc('{', file);
    for (uint64_t c = 0; c < DP_TRACE_COLLECTIVES; c++) {
        if (exposed_ns[c] <= 0) continue;
        fprintf(file, "%s\"%s\":%.6f", is_first ? "" : ",", dp_trace_collective_name(c),
                to_ms(exposed_ns[c]));
        is_first = 0;
    }
    fputc('}', file);
}

static void json_ranks(const dp_timeline_t *timeline, FILE *file)
{
    fputs("\"ranks\":[", file);
    for (size_t i = 0; i < timeline->rank_count; i++) {
        const dp_timeline_rank_t *rank = &timeline->ranks[i];

        fprintf(file, "%s{\"rank\":%d,\"host\":", i == 0 ? "" : ",", rank->rank);
        dp_json_string(file, rank->host);
        fprintf(file, ",\"closed\":%s,\"dropped\":%" PRIu64 ",\"outside_window\":%" PRIu64 "}",
                rank->is_closed ? "true" : "false", rank->dropped, rank->outside);
    }
    fputs("],\n", file);
}

static void json_steps(const dp_analysis_t *analysis, FILE *file)
{
    int is_first = 1;

    fputs("\"steps\":[", file);
    for (size_t s = 0; s < analysis->step_count; s++) {
        for (size_t r = 0; r < analysis->rank_count; r++) {
            const dp_step_cell_t *cell = &analysis->cells[s * analysis->rank_count + r];

            if (!cell->is_set) continue;
            fprintf(file,
                    "%s\n {\"step\":%" PRIu64 ",\"rank_index\":%zu,\"ms\":%.6f,"
                    "\"transfer_ms\":%.6f,\"parts_ms\":",
                    is_first ? "" : ",", analysis->steps[s], r, to_ms((double)cell->duration_ns),
                    to_ms(cell->transfer_ns));
            json_parts(cell->part, file);
            fputs(",\"exposed_by_collective_ms\":", file);
            json_collectives(cell->exposed_ns, file);
            fputc('}', file);
            is_first = 0;
        }
    }
    fputs("],\n", file);
}

static void json_buckets(const dp_timeline_t *timeline, const dp_analysis_t *analysis, FILE *file)
{
    fputs("\"buckets\":[", file);
    for (size_t i = 0; i < analysis->group_count; i++) {
        const dp_bucket_group_t *group = &analysis->groups[i];

        fprintf(file, "%s\n {\"name\":", i == 0 ? "" : ",");
        dp_json_string(file, timeline->strings[group->name]);
        fprintf(file,
                ",\"collective\":\"%s\",\"tensors\":%u,\"bytes\":%" PRIu64
                ",\"launches\":%zu,\"wire_ms\":%.6f,"
                "\"bus_gb_per_s\":%.4f,\"exposed_ms\":%.6f,\"last_rank\":%d,\"last_count\":%zu}",
                dp_trace_collective_name(group->collective), group->tensors, group->bytes,
                group->launches, to_ms(group->wire_ns), group->gb_per_s, to_ms(group->exposed_ns),
                group->last_rank >= 0 ? timeline->ranks[group->last_rank].rank : -1,
                group->last_count);
    }
    fputs("],\n", file);
}

void dp_report_json(const dp_timeline_t *timeline, const dp_analysis_t *analysis, FILE *file)
{
    static const char *const sources[] = {[DP_DEVICE_NONE] = "thread",
                                          [DP_DEVICE_INFERRED] = "thread and streams",
                                          [DP_DEVICE_MARKED] = "device"};
    uint64_t error = clock_error(timeline);
    advice_t list[5];
    size_t count = collect_advice(timeline, analysis, list);

    fputs("{", file);
    json_ranks(timeline, file);
    if (error == UINT64_MAX) {
        fputs("\"clock_error_us\":null,", file);
    } else {
        fprintf(file, "\"clock_error_us\":%.3f,", (double)error / 1e3);
    }
    fprintf(file,
            "\"dropped\":%" PRIu64 ",\"outside_window\":%" PRIu64
            ",\"has_steps\":%s,\"step_count\":%zu,\"compute_from\":\"%s\",\n"
            "\"step_ms\":{\"mean\":%.6f,\"p50\":%.6f,\"p99\":%.6f},\n\"parts_ms\":",
            sum_dropped(timeline), sum_outside(timeline), analysis->has_steps ? "true" : "false",
            analysis->step_count, sources[analysis->device], to_ms(analysis->step_ns),
            to_ms(analysis->p50_ns), to_ms(analysis->p99_ns));
    json_parts(analysis->part, file);
    fputs(",\n\"exposed_by_collective_ms\":", file);
    json_collectives(analysis->collective_ns, file);
    fprintf(file, ",\n\"communication_ms\":%.6f,\"exposed_ms\":%.6f,\"hidden\":%.6f,\n",
            to_ms(analysis->transfer_ns), to_ms(analysis->exposed_ns), analysis->hidden);
    json_steps(analysis, file);
    json_buckets(timeline, analysis, file);
    fputs("\"stragglers\":[", file);
    for (size_t i = 0; i < analysis->rank_count; i++) {
        const dp_straggler_t *straggler = &analysis->stragglers[i];

        fprintf(file,
                "%s\n {\"rank\":%d,\"last\":%zu,\"of\":%zu,\"late_ms\":%.6f,\"slow_ms\":%.6f,"
                "\"slow_span\":",
                i == 0 ? "" : ",", timeline->ranks[straggler->rank].rank, straggler->last_count,
                straggler->bucket_count, to_ms(straggler->late_ns), to_ms(straggler->slow_ns));
        dp_json_string(file, timeline->strings[straggler->slow_span]);
        fputc('}', file);
    }
    fputs("],\n\"advice\":[", file);
    for (size_t i = 0; i < count; i++) {
        fprintf(file, "%s\n {\"gain_ms\":%.6f,\"text\":", i == 0 ? "" : ",",
                to_ms(list[i].gain_ns));
        dp_json_string(file, list[i].text);
        fputc('}', file);
    }
    fputs("]}\n", file);
}
