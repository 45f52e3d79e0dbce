/*
 * cases_data.c - results: every collective, type and reduction against a plain loop, in and out of
 * place, in dp_alloc() and ordinary memory, empty, odd and unaligned; fusion; compression.
 */
#include <math.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "runtime/base/common.h"
#include "tests/ranks/cases_internal.h"

/* ---- A plain reference ---------------------------------------------------------------------- */

/* Element i of rank r: small whole numbers, so that every order of adding gives the same. */
static int pattern(dp_dtype_t dtype, dp_reduce_t reduce, size_t i, int rank)
{
    if (dtype == DP_BOOL) return (int)((i + (size_t)rank) % 3 == 0);
    if (reduce == DP_PRODUCT) return 1 + (int)((i + (size_t)rank) % 2);
    return (int)((i * 5 + (size_t)rank * 3) % 11);
}

static void store(dp_dtype_t dtype, void *data, size_t i, double value)
{
    switch (dtype) {
    case DP_U8:
        ((uint8_t *)data)[i] = (uint8_t)(int64_t)value;
        break;
    case DP_BOOL:
        ((uint8_t *)data)[i] = value != 0.0;
        break;
    case DP_I8:
        ((int8_t *)data)[i] = (int8_t)(int64_t)value;
        break;
    case DP_U16:
        ((uint16_t *)data)[i] = (uint16_t)(int64_t)value;
        break;
    case DP_I16:
        ((int16_t *)data)[i] = (int16_t)(int64_t)value;
        break;
    case DP_I32:
        ((int32_t *)data)[i] = (int32_t)value;
        break;
    case DP_U32:
        ((uint32_t *)data)[i] = (uint32_t)value;
        break;
    case DP_I64:
        ((int64_t *)data)[i] = (int64_t)value;
        break;
    case DP_U64:
        ((uint64_t *)data)[i] = (uint64_t)value;
        break;
    case DP_F16:
        ((uint16_t *)data)[i] = dp_f32_to_f16((float)value);
        break;
    case DP_BF16:
        ((uint16_t *)data)[i] = dp_f32_to_bf16((float)value);
        break;
    case DP_F32:
        ((float *)data)[i] = (float)value;
        break;
    case DP_F64:
        ((double *)data)[i] = value;
        break;
    case DP_DTYPE_COUNT:
        break;
    }
}

/* Element i of the reduction over all ranks, as the type holds it, in out[0]. */
static void reference(dp_dtype_t dtype, dp_reduce_t reduce, size_t i, int ranks, void *out)
{
    double value = pattern(dtype, reduce, i, 0);
    int is_float = dtype == DP_F16 || dtype == DP_BF16 || dtype == DP_F32 || dtype == DP_F64;

    for (int r = 1; r < ranks; r++) {
        double next = pattern(dtype, reduce, i, r);

        switch (reduce) {
        case DP_SUM:
        case DP_AVERAGE:
            value += next;
            break;
        case DP_MIN:
            value = next < value ? next : value;
            break;
        case DP_MAX:
            value = next > value ? next : value;
            break;
        case DP_PRODUCT:
            value *= next;
            break;
        case DP_REDUCE_COUNT:
            break;
        }
    }
    if (dtype == DP_BOOL && reduce == DP_SUM) value = value != 0.0;
    if (reduce == DP_AVERAGE) {
        if (!is_float)
            value = trunc(value / ranks);
        else if (dtype == DP_F64)
            value *= 1.0 / ranks;
        else
            value = (double)((float)value * (float)(1.0 / ranks));
    }
    store(dtype, out, 0, value);
}

/* ---- One operation of any kind -------------------------------------------------------------- */

enum { ALLREDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, KINDS };
static const char *const kind_names[KINDS] = {"allreduce", "broadcast", "allgather",
                                              "reduce_scatter"};

typedef struct operation {
    int kind;
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    size_t count; /* of one row */
    int in_place;
    int in_arena;
    size_t shift; /* bytes between the allocation and the tensor: unaligned */
    int root;
    char *in_base, *out_base; /* allocations */
    char *in, *out;
    dp_handle_t *handle;
} operation_t;

static size_t rows_in(const operation_t *op, int ranks)
{
    return op->kind == REDUCE_SCATTER ? (size_t)ranks : 1;
}

static size_t rows_out(const operation_t *op, int ranks)
{
    return op->kind == ALLGATHER ? (size_t)ranks : 1;
}

static char *allocate(dp_context_t *dp, size_t bytes, int in_arena)
{
    void *memory = NULL;

    if (!in_arena) return calloc(1, bytes + 1);
    return dp_alloc(dp, bytes + 1, &memory) == DP_OK ? memory : NULL;
}

static void give_back(dp_context_t *dp, char *memory, int in_arena)
{
    if (in_arena) {
        dp_free(dp, memory);
    } else {
        free(memory);
    }
}

static int begin(dp_context_t *dp, operation_t *op, const char *name)
{
    int ranks = dp_size(dp), rank = dp_rank(dp);
    size_t element = dp_dtype_bytes(op->dtype);
    size_t row = op->count * element, rows = DP_MAX(rows_in(op, ranks), rows_out(op, ranks));
    dp_options_t options = DP_OPTIONS_INIT;
    dp_group_t *world = dp_world(dp);
    dp_status_t status = DP_OK;

    op->in_base = allocate(dp, row * rows + op->shift, op->in_arena);
    op->out_base = allocate(dp, row * rows + op->shift, op->in_arena);
    EXPECT(dp, op->in_base != NULL && op->out_base != NULL, "no memory for %zu rows of %zu", rows,
           row);
    op->in = op->in_base + op->shift;
    op->out = op->in_place ? op->in : op->out_base + op->shift;
    if (op->in_place && op->kind == ALLGATHER) op->in += (size_t)rank * row;
    if (op->in_place && op->kind == REDUCE_SCATTER) op->out += (size_t)rank * row;
    for (size_t i = 0; i < op->count * rows_in(op, ranks); i++)
        store(op->dtype, op->in, i, pattern(op->dtype, op->reduce, i, rank));
    options.reduce = op->reduce;
    switch (op->kind) {
    case ALLREDUCE:
        status =
            dp_allreduce(world, name, op->in, op->out, op->count, op->dtype, &options, &op->handle);
        break;
    case BROADCAST:
        status = dp_broadcast(world, name, rank == op->root ? op->in : NULL, op->out, op->count,
                              op->dtype, op->root, NULL, &op->handle);
        break;
    case ALLGATHER:
        status =
            dp_allgather(world, name, op->in, op->out, op->count, op->dtype, NULL, &op->handle);
        break;
    case REDUCE_SCATTER:
        status = dp_reduce_scatter(world, name, op->in, op->out, op->count, op->dtype, &options,
                                   &op->handle);
        break;
    default:
        break;
    }
    EXPECT_STATUS(dp, status, DP_OK);
    return 0;
}

static int end(dp_context_t *dp, operation_t *op)
{
    int ranks = dp_size(dp), rank = dp_rank(dp);
    size_t element = dp_dtype_bytes(op->dtype), total = op->count * rows_out(op, ranks);
    dp_result_t result = DP_RESULT_INIT;

    EXPECT_STATUS(dp, dp_wait(op->handle, 60.0, &result), DP_OK);
    for (size_t i = 0; i < total; i++) {
        char wanted[8];

        switch (op->kind) {
        case ALLREDUCE:
            reference(op->dtype, op->reduce, i, ranks, wanted);
            break;
        case REDUCE_SCATTER:
            reference(op->dtype, op->reduce, (size_t)rank * op->count + i, ranks, wanted);
            break;
        case ALLGATHER:
            store(op->dtype, wanted, 0,
                  pattern(op->dtype, op->reduce, i % op->count, (int)(i / op->count)));
            break;
        default:
            store(op->dtype, wanted, 0, pattern(op->dtype, op->reduce, i, op->root));
            break;
        }
        EXPECT(dp, memcmp(op->out + i * element, wanted, element) == 0,
               "%s of %s, reduction %d, count %zu, %s place, %s memory: element %zu starts with "
               "byte %02x, wanted %02x",
               kind_names[op->kind], dp_dtype_name(op->dtype), (int)op->reduce, op->count,
               op->in_place ? "in" : "out of", op->in_arena ? "dp_alloc" : "ordinary", i,
               (unsigned char)op->out[i * element], (unsigned char)wanted[0]);
    }
    give_back(dp, op->in_base, op->in_arena);
    give_back(dp, op->out_base, op->in_arena);
    return 0;
}

int case_collectives(dp_context_t *dp)
{
    static const size_t counts[] = {0, 1, 7, 1000, 4099, 70001};

    for (int kind = 0; kind < KINDS; kind++)
        for (int dtype = 0; dtype < DP_DTYPE_COUNT; dtype++)
            for (int reduce = 0; reduce < DP_REDUCE_COUNT; reduce++) {
                operation_t ops[24];
                size_t n = 0;

                if (dtype == DP_BOOL && reduce == DP_AVERAGE) continue;
                if ((kind == BROADCAST || kind == ALLGATHER) && reduce != DP_SUM) continue;
                for (size_t c = 0; c < DP_ARRAY_LEN(counts); c++) {
                    /* the largest only where it shows something new: one type of each width */
                    if (counts[c] > 5000 && dtype != DP_F32 && dtype != DP_BF16) continue;
                    for (int place = 0; place < 4; place++)
                        ops[n++] =
                            (operation_t){.kind = kind,
                                          .dtype = (dp_dtype_t)dtype,
                                          .reduce = (dp_reduce_t)reduce,
                                          .count = counts[c],
                                          .in_place = place & 1,
                                          .in_arena = place >> 1,
                                          .shift = (c % 3) * dp_dtype_bytes((dp_dtype_t)dtype),
                                          .root = (int)c % dp_size(dp)};
                }
                for (size_t i = 0; i < n; i++) {
                    char name[64];

                    snprintf(name, sizeof(name), "%s.%zu", kind_names[kind], i);
                    if (begin(dp, &ops[i], name) != 0) return 1;
                }
                for (size_t i = n; i > 0; i--)
                    if (end(dp, &ops[i - 1]) != 0) return 1;
            }
    return 0;
}

/* Many small tensors, each rank in its own order, step after step. */
int case_fused(dp_context_t *dp)
{
    enum { TENSORS = 60, STEPS = 12 };
    dp_stats_t stats = DP_STATS_INIT;

    for (int step = 0; step < STEPS; step++) {
        operation_t ops[TENSORS];
        int order[TENSORS];
        unsigned seed = (unsigned)(step * 100 + dp_rank(dp) + 1);

        for (int i = 0; i < TENSORS; i++) {
            order[i] = i;
            ops[i] = (operation_t){.kind = i % 13 == 5 ? BROADCAST : ALLREDUCE,
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
            if (begin(dp, &ops[order[i]], name) != 0) return 1;
        }
        for (int i = 0; i < TENSORS; i++)
            if (end(dp, &ops[i]) != 0) return 1;
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
        results[way] = (float *)(void *)allocate(dp, COUNT * sizeof(float), way == 1);
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
        give_back(dp, (char *)results[way], way == 1);
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
