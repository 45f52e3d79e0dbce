/*
 * cases_data.c - results: every collective, type and reduction against a plain loop, in and out of
 * place, in dp_alloc() and ordinary memory, empty, odd and unaligned; fusion; compression.
 */
#include <math.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "runtime/base/common.h"
#include "tests/ranks/cases_internal.h"
#include "tests/unit/sanitizer.h"

int case_collectives_in(dp_context_t *dp, dp_group_t *group, const char *prefix, int is_short)
{
    static const size_t counts[] = {0, 1, 7, 1000, 4099, 70001};

    for (int kind = 0; kind < CASE_KINDS; kind++)
        for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++)
            for (int reduce = 0; reduce < DP_REDUCE_COUNT; reduce++) {
                case_op_t ops[24];
                size_t n = 0;

                if (dtype == DP_BOOL && reduce == DP_AVERAGE) continue;
                if (!case_kind_reduces(kind) && reduce != DP_SUM) continue;
                if (is_short && (reduce > DP_AVERAGE || (dtype != DP_F32 && dtype != DP_I16)))
                    continue;
                for (size_t c = 0; c < DP_ARRAY_LEN(counts); c++) {
                    /* the largest only where it shows something new: one type of each width */
                    if (counts[c] > 5000 && ((dtype != DP_F32 && dtype != DP_BF16) || is_short))
                        continue;
                    for (int place = 0; place < 4; place++)
                        ops[n++] = (case_op_t){.kind = kind,
                                               .group = group,
                                               .dtype = (dp_dtype_t)dtype,
                                               .reduce = (dp_reduce_t)reduce,
                                               .count = counts[c],
                                               .step = (int)c + place,
                                               .in_place = place & 1,
                                               .in_arena = place >> 1,
                                               .shift = (c % 3) * dp_dtype_bytes((dp_dtype_t)dtype),
                                               .root = (int)c % dp_group_size(group)};
                }
                for (size_t i = 0; i < n; i++) {
                    char name[128];

                    snprintf(name, sizeof(name), "%s%s.%zu", prefix, case_kind_name(kind), i);
                    if (case_op_begin(dp, &ops[i], name) != 0) return 1;
                }
                for (size_t i = n; i > 0; i--)
                    if (case_op_end(dp, &ops[i - 1]) != 0) return 1;
            }
    return 0;
}

int case_collectives(dp_context_t *dp)
{
    return case_collectives_in(dp, dp_world(dp), "", under_thread_sanitizer);
}

/* Many small tensors, each rank in its own order, step after step. */
int case_fused(dp_context_t *dp)
{
    enum { TENSORS = 60, STEPS = 12 };
    dp_stats_t stats = DP_STATS_INIT;

    for (int step = 0; step < STEPS; step++) {
        case_op_t ops[TENSORS];
        int order[TENSORS];
        unsigned seed = (unsigned)(step * 100 + dp_rank(dp) + 1);

        for (int i = 0; i < TENSORS; i++) {
            order[i] = i;
            ops[i] = (case_op_t){.kind = i % 13 == 5 ? CASE_BROADCAST : CASE_ALLREDUCE,
                                 .group = dp_world(dp),
                                 .dtype = i % 7 == 3 ? DP_F64 : DP_F32,
                                 .reduce = DP_SUM,
                                 .count = (size_t)(i * i * 3 + 1),
                                 .in_place = i % 2,
                                 .in_arena = i % 3 == 0};
        }
        for (int i = TENSORS - 1; i > 0; i--) {
            int other = (int)((unsigned)rand_r(&seed) % (unsigned)(i + 1)), kept = order[i];

            order[i] = order[other];
            order[other] = kept;
        }
        for (int i = 0; i < TENSORS; i++) {
            char name[64];

            snprintf(name, sizeof(name), "layer.%d", order[i]);
            if (case_op_begin(dp, &ops[order[i]], name) != 0) return 1;
        }
        for (int i = 0; i < TENSORS; i++)
            if (case_op_end(dp, &ops[i]) != 0) return 1;
    }
    EXPECT_STATUS(dp, dp_stats_get(dp, &stats), DP_OK);
    EXPECT(dp, stats.completed == (uint64_t)TENSORS * STEPS, "%llu completed",
           (unsigned long long)stats.completed);
    EXPECT(dp, stats.buckets < stats.completed, "%llu buckets for %llu tensors: nothing was fused",
           (unsigned long long)stats.buckets, (unsigned long long)stats.completed);
    return 0;
}

int case_grouped(dp_context_t *dp)
{
    float a[300], b[5000];
    double c[7];
    int ranks = dp_size(dp), rank = dp_rank(dp);

    for (int step = 0; step < 3; step++) {
        dp_tensor_t tensors[3] = {{a, a, 300, DP_F32}, {b, b, 5000, DP_F32}, {c, c, 7, DP_F64}};
        dp_result_t result = DP_RESULT_INIT;
        dp_handle_t *handle;
        double wanted = 0.0;

        for (int i = 0; i < 300; i++)
            a[i] = (float)(rank + 1);
        for (int i = 0; i < 5000; i++)
            b[i] = (float)(i % 10);
        for (int i = 0; i < 7; i++)
            c[i] = i + rank;
        EXPECT_STATUS(dp, dp_grouped_allreduce(dp_world(dp), "group", tensors, 3, NULL, &handle),
                      DP_OK);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
        EXPECT(dp, a[299] == (float)(ranks * (ranks + 1) / 2), "%g", (double)a[299]);
        EXPECT(dp, b[4999] == (float)(9 * ranks), "%g", (double)b[4999]);
        EXPECT(dp, c[6] == 6.0 * ranks + ranks * (ranks - 1) / 2.0, "%g", c[6]);
        for (int i = 0; i < 300; i++)
            wanted += (double)a[i] * (double)a[i];
        for (int i = 0; i < 5000; i++)
            wanted += (double)b[i] * (double)b[i];
        for (int i = 0; i < 7; i++)
            wanted += c[i] * c[i];
        EXPECT(dp, fabs(result.sum_squares - wanted) <= 1e-12 * wanted, "%.17g, wanted %.17g",
               result.sum_squares, wanted);
        EXPECT(dp, result.nonfinite == 0, "%llu", (unsigned long long)result.nonfinite);
    }
    return 0;
}

int case_scales(dp_context_t *dp)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle;
    float values[5000];
    int ranks = dp_size(dp);

    for (int i = 0; i < 5000; i++)
        values[i] = (float)(i % 100);
    values[17] = dp_rank(dp) == 0 ? INFINITY : 0.0f;
    options.reduce = DP_AVERAGE;
    options.prescale = 4.0;
    options.postscale = 0.25;
    EXPECT_STATUS(
        dp, dp_allreduce(dp_world(dp), "scaled", values, values, 5000, DP_F32, &options, &handle),
        DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
    for (int i = 0; i < 5000; i++) {
        float wanted = 4.0f * (float)(i % 100) * (float)ranks * (float)(0.25 / ranks);

        if (i == 17) continue;
        EXPECT(dp, fabsf(values[i] - wanted) <= 2e-7f * wanted, "element %d is %.9g, wanted %.9g",
               i, (double)values[i], (double)wanted);
    }
    EXPECT(dp, isinf(values[17]), "%g", (double)values[17]);
    EXPECT(dp, result.nonfinite == 1, "%llu", (unsigned long long)result.nonfinite);
    EXPECT(dp, fabs(result.absmax - 99.0) < 1e-4, "%g", result.absmax);
    return 0;
}

/* Compressed sums: near the exact ones, equal on all ranks. */
int case_wire(dp_context_t *dp)
{
    enum { COUNT = 100003 };
    static const dp_wire_t wires[] = {DP_WIRE_FP16, DP_WIRE_BF16};
    float *values = malloc(COUNT * sizeof(float)), *first = malloc(COUNT * sizeof(float));
    int ranks = dp_size(dp);

    EXPECT(dp, values != NULL && first != NULL, "no memory");
    for (size_t w = 0; w < 2; w++)
        for (int step = 0; step < 3; step++) {
            dp_options_t options = DP_OPTIONS_INIT;
            dp_handle_t *handle;
            double error = 0.0, norm = 0.0;
            char name[32];

            snprintf(name, sizeof(name), "wire.%zu", w);
            options.wire = wires[w];
            options.reduce = DP_AVERAGE;
            for (size_t i = 0; i < COUNT; i++)
                values[i] = 1e-5f * (float)((i * 7919) % 1000) * (float)(dp_rank(dp) + 1);
            EXPECT_STATUS(
                dp,
                dp_allreduce(dp_world(dp), name, values, values, COUNT, DP_F32, &options, &handle),
                DP_OK);
            EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
            for (size_t i = 0; i < COUNT; i++) {
                double wanted = 1e-5 * (double)((i * 7919) % 1000) * (ranks + 1) / 2.0;
                double off = (double)values[i] - wanted;

                error += off * off;
                norm += wanted * wanted;
            }
            /* half a unit of fp16's 11 bits, or of bf16's 8, per rounding: two of them */
            EXPECT(dp, sqrt(error / norm) < (wires[w] == DP_WIRE_FP16 ? 1e-3 : 8e-3),
                   "relative error %g", sqrt(error / norm));
            memcpy(first, values, COUNT * sizeof(float));
            EXPECT_STATUS(dp,
                          dp_broadcast(dp_world(dp), "wire.first", first, first, COUNT, DP_F32, 0,
                                       NULL, &handle),
                          DP_OK);
            EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
            EXPECT(dp, memcmp(first, values, COUNT * sizeof(float)) == 0,
                   "differs from rank 0 in wire %zu, step %d", w, step);
        }
    free(values);
    free(first);
    return 0;
}

/* The same sum alone, fused, cut, in either memory, gives the same bits and the same norm. */
int case_bit_equal(dp_context_t *dp)
{
    enum { COUNT = 300001, WAYS = 4 };
    float *source = malloc(COUNT * sizeof(float)), *results[WAYS];
    dp_result_t found[WAYS];
    unsigned seed = (unsigned)dp_rank(dp) + 7;

    EXPECT(dp, source != NULL, "no memory");
    for (size_t i = 0; i < COUNT; i++)
        source[i] = ldexpf((float)rand_r(&seed) / (float)RAND_MAX - 0.5f, (int)(i % 20) - 10);
    for (int way = 0; way < WAYS; way++) {
        dp_handle_t *handle, *other = NULL;
        float filler[33] = {0};
        char name[32];

        snprintf(name, sizeof(name), "equal.%d", way);
        results[way] = (float *)(void *)case_allocate(dp, COUNT * sizeof(float), way == 1);
        EXPECT(dp, results[way] != NULL, "no memory");
        memcpy(results[way], source, COUNT * sizeof(float));
        found[way] = (dp_result_t)DP_RESULT_INIT;
        if (way == 2)
            EXPECT_STATUS(dp,
                          dp_allreduce(dp_world(dp), "equal.filler", filler, filler, 33, DP_F32,
                                       NULL, &other),
                          DP_OK);
        EXPECT_STATUS(dp,
                      dp_allreduce(dp_world(dp), name, results[way], results[way], COUNT, DP_F32,
                                   NULL, &handle),
                      DP_OK);
        if (other != NULL) EXPECT_STATUS(dp, dp_wait(other, 60.0, NULL), DP_OK);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, &found[way]), DP_OK);
        EXPECT(dp, memcmp(results[way], results[0], COUNT * sizeof(float)) == 0, "way %d", way);
        EXPECT(dp, memcmp(&found[way].sum_squares, &found[0].sum_squares, sizeof(double)) == 0,
               "way %d: sum of squares %.17g, %.17g at first", way, found[way].sum_squares,
               found[0].sum_squares);
    }
    for (int way = WAYS - 1; way >= 0; way--)
        case_give_back(dp, (char *)results[way], way == 1);
    free(source);
    return 0;
}

/* Counts beyond 2^31: bytes, so that memory suffices. */
int case_large(dp_context_t *dp)
{
    size_t count = ((size_t)1 << 31) + 4097;
    dp_handle_t *handle;
    void *memory;
    uint8_t *values;

    EXPECT_STATUS(dp, dp_alloc(dp, count, &memory), DP_OK);
    values = memory;
    values[0] = 1;
    values[count - 1] = (uint8_t)(dp_rank(dp) + 1);
    EXPECT_STATUS(dp,
                  dp_allreduce(dp_world(dp), "large", values, values, count, DP_U8, NULL, &handle),
                  DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 120.0, NULL), DP_OK);
    EXPECT(dp, values[0] == dp_size(dp), "%d", values[0]);
    EXPECT(dp, values[count - 1] == dp_size(dp) * (dp_size(dp) + 1) / 2, "%d", values[count - 1]);
    EXPECT(dp, values[count / 2] == 0, "%d", values[count / 2]);
    EXPECT_STATUS(dp, dp_free(dp, memory), DP_OK);
    return 0;
}

/* Types and what travels of them between nodes. The sums of the cases below are small whole
 * numbers, which every type here holds exactly. */
static const struct figures_kind {
    dp_dtype_t dtype;
    dp_wire_t wire;
} figures_kinds[] = {{DP_F32, DP_WIRE_NONE},
                     {DP_F32, DP_WIRE_FP16},
                     {DP_F32, DP_WIRE_BF16},
                     {DP_F16, DP_WIRE_NONE},
                     {DP_BF16, DP_WIRE_NONE}};

/* Element i of each rank's input is i % 7 + rank, and one of the third block's is spoilt on rank 0
 * in the last step, as a wire knows its scale from the second step on. */
enum { FIGURES_COUNT = 10000, FIGURES_STEPS = 3, FIGURES_SPOILT = 9001 };

static dp_options_t figures_options(size_t kind)
{
    dp_options_t options = DP_OPTIONS_INIT;

    options.wire = figures_kinds[kind].wire;
    options.prescale = 0.5;
    options.postscale = 4.0;
    return options;
}

static void figures_input(dp_context_t *dp, size_t kind, int step, size_t count, void *in)
{
    for (size_t i = 0; i < count; i++)
        case_store(figures_kinds[kind].dtype, in, i,
                   i == FIGURES_SPOILT && step + 1 == FIGURES_STEPS && dp_rank(dp) == 0
                       ? (double)INFINITY
                       : (double)(i % 7) + dp_rank(dp));
}

/* The figures of the sum over the first `ranks` ranks. */
static int figures_expect(dp_context_t *dp, size_t kind, int step, size_t count, int ranks,
                          const dp_result_t *result)
{
    const int is_spoilt = step + 1 == FIGURES_STEPS;
    double squares = 0.0, most = 0.0;

    for (size_t i = 0; i < count; i++) {
        const double sum = 2.0 * (double)(ranks * (int)(i % 7) + ranks * (ranks - 1) / 2);

        if (is_spoilt && i == FIGURES_SPOILT) continue;
        squares += sum * sum;
        most = sum > most ? sum : most;
    }
    EXPECT(dp, fabs(result->sum_squares - squares) <= 1e-12 * squares,
           "kind %zu step %d: sum of squares %.17g, wanted %.17g", kind, step, result->sum_squares,
           squares);
    EXPECT(dp, result->absmax == most, "kind %zu step %d: largest %g, wanted %g", kind, step,
           result->absmax, most);
    EXPECT(dp, result->nonfinite == (uint64_t)is_spoilt, "kind %zu step %d: %llu not finite", kind,
           step, (unsigned long long)result->nonfinite);
    return 0;
}

/* A reduce: ranks other than the root keep no result, and all know its figures. */
int case_reduce_figures(dp_context_t *dp)
{
    uint32_t in[FIGURES_COUNT], out[FIGURES_COUNT];

    for (size_t k = 0; k < DP_ARRAY_LEN(figures_kinds); k++)
        for (int step = 0; step < FIGURES_STEPS; step++) {
            const dp_options_t options = figures_options(k);
            const int root = step % dp_size(dp);
            dp_result_t result = DP_RESULT_INIT;
            dp_handle_t *handle;
            char name[32];

            snprintf(name, sizeof(name), "figures.%zu", k);
            figures_input(dp, k, step, FIGURES_COUNT, in);
            EXPECT_STATUS(dp,
                          dp_reduce(dp_world(dp), name, in, dp_rank(dp) == root ? out : NULL,
                                    FIGURES_COUNT, figures_kinds[k].dtype, root, &options, &handle),
                          DP_OK);
            EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
            if (figures_expect(dp, k, step, FIGURES_COUNT, dp_size(dp), &result) != 0) return 1;
        }
    return 0;
}

/* A reduce_scatter in which the last rank has joined: nobody keeps its row, whose figures count. */
int case_joined_figures(dp_context_t *dp)
{
    enum { ROW = FIGURES_COUNT / 2, RANKS = 8 };
    const int ranks = dp_size(dp);
    uint32_t in[RANKS * ROW], out[ROW];
    dp_handle_t *joined;

    for (size_t k = 0; k < DP_ARRAY_LEN(figures_kinds) && dp_rank(dp) < ranks - 1; k++)
        for (int step = 0; step < FIGURES_STEPS; step++) {
            const dp_options_t options = figures_options(k);
            const size_t count = (size_t)ranks * ROW;
            dp_result_t result = DP_RESULT_INIT;
            dp_handle_t *handle;
            char name[32];

            snprintf(name, sizeof(name), "joined.%zu", k);
            figures_input(dp, k, step, count, in);
            EXPECT_STATUS(dp,
                          dp_reduce_scatter(dp_world(dp), name, in, out, ROW,
                                            figures_kinds[k].dtype, &options, &handle),
                          DP_OK);
            EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
            if (figures_expect(dp, k, step, count, ranks - 1, &result) != 0) return 1;
        }
    EXPECT_STATUS(dp, dp_join(dp_world(dp), NULL, &joined), DP_OK);
    EXPECT_STATUS(dp, dp_wait(joined, 60.0, NULL), DP_OK);
    return 0;
}

/* Names that come once are forgotten: more than are kept (DP_QUEUE_DEPTH is small here), and old
 * ones that come again. */
int case_names(dp_context_t *dp)
{
    for (int i = 0; i < 6000; i++) {
        char name[32];
        float value = (float)(dp_rank(dp) + i % 5);
        dp_handle_t *handle;

        snprintf(name, sizeof(name), "loss/%d", i % 100 == 99 ? i / 2 : i);
        EXPECT_STATUS(
            dp, dp_allreduce(dp_world(dp), name, &value, &value, 1, DP_F32, NULL, &handle), DP_OK);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
        EXPECT(dp, value == (float)(dp_size(dp) * (i % 5) + dp_size(dp) * (dp_size(dp) - 1) / 2),
               "%s: %g", name, (double)value);
    }
    return 0;
}
