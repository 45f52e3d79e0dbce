/*
 * cases_allreduce.c - what Horovod asserts of allreduce and grouped_allreduce.
 */
#include <math.h>
#include <stdlib.h>

#include "tests/parity/parity.h"

/* Room for the largest tensor of any type, twice. */
typedef struct buffers {
    double in[PARITY_COUNT_MAX];
    double out[PARITY_COUNT_MAX];
} buffers_t;

typedef struct sum_kind {
    const char *name;
    dp_reduce_t reduce;
    int in_place;
    double prescale, postscale;
} sum_kind_t;

static int is_skipped(const sum_kind_t *kind, dp_dtype_t dtype)
{
    if (kind->reduce == DP_AVERAGE && dtype == DP_BOOL) return 1;
    return (kind->prescale != 1.0 || kind->postscale != 1.0) && !parity_is_float(dtype);
}

static int reduce_one(dp_context_t *dp, const sum_kind_t *kind, dp_dtype_t dtype, size_t count,
                      buffers_t *buffers)
{
    const double factor = kind->prescale * kind->postscale *
                          (kind->reduce == DP_AVERAGE || dtype == DP_BOOL ? 1.0 : dp_size(dp));
    void *out = kind->in_place ? buffers->in : buffers->out;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL;
    char name[64];

    snprintf(name, sizeof(name), "%s.%s.%zu", kind->name, dp_dtype_name(dtype), count);
    options.reduce = kind->reduce;
    options.prescale = kind->prescale;
    options.postscale = kind->postscale;
    parity_fill(dtype, buffers->in, count, 1.0, 0.0);
    EXPECT_STATUS(dp,
                  parity_wait(dp_allreduce(dp_world(dp), name, buffers->in, out, count, dtype,
                                           &options, &handle),
                              &handle, NULL),
                  DP_OK);
    EXPECT(dp, parity_differs(dtype, out, count, factor, 0.0) == SIZE_MAX, "%s: element %zu", name,
           parity_differs(dtype, out, count, factor, 0.0));
    if (!kind->in_place) {
        EXPECT(dp, parity_differs(dtype, buffers->in, count, 1.0, 0.0) == SIZE_MAX,
               "%s: the input changed", name);
    }
    return 0;
}

static int reduce_all(dp_context_t *dp, sum_kind_t kind)
{
    buffers_t *buffers = malloc(sizeof(*buffers));
    int failed = buffers == NULL;

    for (int dtype = 0; !failed && dtype < DP_DTYPE_COUNT; dtype++) {
        for (size_t i = 0; !failed && i < PARITY_COUNTS; i++) {
            if (is_skipped(&kind, (dp_dtype_t)dtype)) continue;
            failed = reduce_one(dp, &kind, (dp_dtype_t)dtype, parity_counts[i], buffers);
        }
    }
    free(buffers);
    return failed;
}

int parity_allreduce(dp_context_t *dp)
{
    return reduce_all(dp, (sum_kind_t){"allreduce", DP_SUM, 0, 1.0, 1.0});
}

int parity_allreduce_average(dp_context_t *dp)
{
    return reduce_all(dp, (sum_kind_t){"average", DP_AVERAGE, 0, 1.0, 1.0});
}

int parity_allreduce_inplace(dp_context_t *dp)
{
    return reduce_all(dp, (sum_kind_t){"inplace", DP_SUM, 1, 1.0, 1.0});
}

/* 0.625 has few bits, so that the products are exact. */
int parity_allreduce_prescale(dp_context_t *dp)
{
    return reduce_all(dp, (sum_kind_t){"prescale", DP_SUM, 0, 0.625, 1.0});
}

int parity_allreduce_postscale(dp_context_t *dp)
{
    return reduce_all(dp, (sum_kind_t){"postscale", DP_SUM, 0, 1.0, 0.625});
}

/* Horovod scales integers in double; here a scale on them is an error, at once. */
int parity_allreduce_scale_of_integers(dp_context_t *dp)
{
    dp_options_t options = DP_OPTIONS_INIT;
    int32_t value = 8;

    options.prescale = 0.5;
    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), "i", &value, &value, 1, DP_I32, &options, NULL),
                  DP_ERR_INVALID);
    options.prescale = 1.0;
    options.postscale = 0.5;
    EXPECT_STATUS(dp, dp_allreduce(dp_world(dp), "i", &value, &value, 1, DP_I32, &options, NULL),
                  DP_ERR_INVALID);
    EXPECT(dp, value == 8, "%d", value);
    return 0;
}

/* Element i of rank r is value(i) + r, so that the last rank has the largest. */
int parity_allreduce_min_max_product(dp_context_t *dp)
{
    const int ranks = dp_size(dp), rank = dp_rank(dp);
    double in[17], out[17];

    for (int dtype = 0; dtype < DP_BOOL; dtype++) {
        for (int reduce = DP_MIN; reduce <= DP_PRODUCT; reduce++) {
            dp_options_t options = DP_OPTIONS_INIT;
            dp_handle_t *handle = NULL;
            char name[64];
            double product = 1.0;

            snprintf(name, sizeof(name), "%s.%s", dp_reduce_name((dp_reduce_t)reduce),
                     dp_dtype_name((dp_dtype_t)dtype));
            options.reduce = (dp_reduce_t)reduce;
            if (reduce == DP_PRODUCT) { /* of 1 + r % 2 */
                for (int r = 0; r < ranks; r++)
                    product *= 1.0 + r % 2;
                parity_fill((dp_dtype_t)dtype, in, 17, 0.0, 1.0 + rank % 2);
            } else {
                parity_fill((dp_dtype_t)dtype, in, 17, 1.0, rank);
            }
            EXPECT_STATUS(dp,
                          parity_wait(dp_allreduce(dp_world(dp), name, in, out, 17,
                                                   (dp_dtype_t)dtype, &options, &handle),
                                      &handle, NULL),
                          DP_OK);
            EXPECT(dp,
                   parity_differs((dp_dtype_t)dtype, out, 17, reduce == DP_PRODUCT ? 0.0 : 1.0,
                                  reduce == DP_PRODUCT ? product
                                  : reduce == DP_MAX   ? ranks - 1
                                                       : 0.0) == SIZE_MAX,
                   "%s", name);
        }
    }
    return 0;
}

/* Many at once; that they run while the program goes on is seen on rank 0, which looks before any
 * other rank has submitted. */
int parity_allreduce_async_fused(dp_context_t *dp)
{
    enum { COUNT = 3 * DP_BOOL };
    double(*data)[17 * 17] = calloc(COUNT, sizeof(*data));
    dp_handle_t *handles[COUNT];
    const int is_first = dp_rank(dp) == 0;
    int failed = data == NULL;

    if (!failed && !is_first) failed = parity_after_rank0(dp, "fused.gate");
    for (int k = 0; !failed && k < COUNT; k++) {
        const dp_dtype_t dtype = (dp_dtype_t)(k / 3);
        const size_t count = k % 3 == 0 ? 1 : parity_counts[k % 3 - 1];
        char name[32];

        snprintf(name, sizeof(name), "fused.%d", k);
        parity_fill(dtype, data[k], count, 1.0, 0.0);
        failed = dp_allreduce(dp_world(dp), name, data[k], data[k], count, dtype, NULL,
                              &handles[k]) != DP_OK;
        if (!failed && is_first && dp_size(dp) > 1) failed = dp_test(handles[k]) != DP_ERR_PENDING;
    }
    if (!failed && is_first) failed = parity_after_rank0(dp, "fused.gate");
    for (int k = 0; !failed && k < COUNT; k++) {
        const dp_dtype_t dtype = (dp_dtype_t)(k / 3);
        const size_t count = k % 3 == 0 ? 1 : parity_counts[k % 3 - 1];

        failed = dp_wait(handles[k], 120.0, NULL) != DP_OK ||
                 parity_differs(dtype, data[k], count, dp_size(dp), 0.0) != SIZE_MAX;
    }
    free(data);
    EXPECT(dp, !failed, "%s", dp_error_text(dp));
    return 0;
}

/* ---- Ranks that disagree -------------------------------------------------------------------- */

static int disagree(dp_context_t *dp, const char *name, size_t count, dp_dtype_t dtype,
                    const dp_options_t *options, const char *words)
{
    double *data = calloc(count, sizeof(*data));
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;
    dp_status_t status =
        dp_allreduce(dp_world(dp), name, data, data, count, dtype, options, &handle);

    status = parity_wait(status, &handle, &result);
    free(data);
    EXPECT_STATUS(dp, status, DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, name);
    EXPECT_TEXT(dp, result.text, "rank ");
    EXPECT_TEXT(dp, result.text, words);
    return 0;
}

int parity_allreduce_error(dp_context_t *dp)
{
    const size_t side = dp_rank(dp) == 0 ? 17 : 18;
    float values[4] = {1, 2, 3, 4};
    dp_handle_t *handle = NULL;

    if (disagree(dp, "error.count", side * side * side, DP_F32, NULL, "4913")) return 1;
    /* Another shape of as many elements is no error here: tensors have counts, not shapes. */
    EXPECT_STATUS(dp,
                  parity_wait(dp_allreduce(dp_world(dp), "error.shape", values, values, 4, DP_F32,
                                           NULL, &handle),
                              &handle, NULL),
                  DP_OK);
    return 0;
}

int parity_allreduce_type_error(dp_context_t *dp)
{
    const dp_dtype_t dtype = dp_rank(dp) % 2 == 0 ? DP_I32 : DP_F32;

    return disagree(dp, "error.type", 17, dtype, NULL, "f32");
}

/* Operation and scales are compared, too. */
int parity_allreduce_options_error(dp_context_t *dp)
{
    dp_options_t options = DP_OPTIONS_INIT;

    options.reduce = dp_rank(dp) % 2 == 0 ? DP_SUM : DP_MAX;
    if (disagree(dp, "error.reduce", 17, DP_F32, &options, "max")) return 1;
    options.reduce = DP_SUM;
    options.prescale = dp_rank(dp) % 2 == 0 ? 1.0 : 0.5;
    if (disagree(dp, "error.prescale", 17, DP_F32, &options, "0.5")) return 1;
    options.prescale = 1.0;
    options.postscale = dp_rank(dp) % 2 == 0 ? 1.0 : 0.25;
    return disagree(dp, "error.postscale", 17, DP_F32, &options, "0.25");
}

/* Two operations that differ under one name. */
int parity_operation_error(dp_context_t *dp)
{
    float in[PARITY_RANKS_MAX] = {0}, out[PARITY_RANKS_MAX] = {0};
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;
    dp_status_t status;

    if (dp_rank(dp) % 2 == 0) {
        status = dp_allreduce(dp_world(dp), "error.kind", in, out, 1, DP_F32, NULL, &handle);
    } else {
        status = dp_allgather(dp_world(dp), "error.kind", in, out, 1, DP_F32, NULL, &handle);
    }
    EXPECT_STATUS(dp, parity_wait(status, &handle, &result), DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "allgather");
    return 0;
}

/* Rank 0 submits twice before the others come. */
int parity_allreduce_duplicate_name_error(dp_context_t *dp)
{
    float values[17] = {1}, others[17] = {1};
    dp_handle_t *handle = NULL;

    if (dp_rank(dp) != 0 && parity_after_rank0(dp, "twice.gate")) return 1;
    EXPECT_STATUS(
        dp, dp_allreduce(dp_world(dp), "twice", values, values, 17, DP_F32, NULL, &handle), DP_OK);
    if (dp_rank(dp) == 0) {
        EXPECT_STATUS(dp,
                      dp_allreduce(dp_world(dp), "twice", others, others, 17, DP_F32, NULL, NULL),
                      DP_ERR_BUSY);
        EXPECT_TEXT(dp, dp_error_text(dp), "twice");
        if (parity_after_rank0(dp, "twice.gate")) return 1;
    }
    EXPECT_STATUS(dp, dp_wait(handle, 120.0, NULL), DP_OK); /* the first one is not disturbed */
    EXPECT(dp, values[0] == (float)dp_size(dp), "%g", (double)values[0]);
    EXPECT(dp, others[0] == 1.0f, "%g", (double)others[0]);
    return 0;
}

/* ---- In groups ------------------------------------------------------------------------------ */

int parity_allreduce_process_sets(dp_context_t *dp)
{
    dp_group_t *half;
    double in[17], out[17];

    if (parity_half(dp, &half)) return 1;
    for (int dtype = 0; dtype < DP_BOOL; dtype++) {
        dp_handle_t *handle = NULL;
        char name[32];

        /* odd and even ranks use one name for different things */
        snprintf(name, sizeof(name), "set.%d", dtype);
        parity_fill((dp_dtype_t)dtype, in, 17, 1.0 + dp_rank(dp) % 2, 0.0);
        EXPECT_STATUS(
            dp,
            parity_wait(dp_allreduce(half, name, in, out, 17, (dp_dtype_t)dtype, NULL, &handle),
                        &handle, NULL),
            DP_OK);
        EXPECT(dp,
               parity_differs((dp_dtype_t)dtype, out, 17,
                              (1.0 + dp_rank(dp) % 2) * dp_group_size(half), 0.0) == SIZE_MAX,
               "%s", name);
    }
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}

/* ---- Grouped -------------------------------------------------------------------------------- */

static int reduce_grouped(dp_context_t *dp, dp_group_t *group, const char *name, dp_reduce_t reduce,
                          int in_place)
{
    double in[5][17], out[5][17];
    const double factor = reduce == DP_AVERAGE ? 1.0 : dp_group_size(group);

    for (int dtype = 0; dtype < DP_BOOL; dtype++) {
        dp_options_t options = DP_OPTIONS_INIT;
        dp_tensor_t tensors[5];
        dp_handle_t *handle = NULL;
        char text[64];

        snprintf(text, sizeof(text), "%s.%s", name, dp_dtype_name((dp_dtype_t)dtype));
        options.reduce = reduce;
        for (int k = 0; k < 5; k++) {
            parity_fill((dp_dtype_t)dtype, in[k], 17, 1.0, k);
            tensors[k] = (dp_tensor_t){in[k], in_place ? in[k] : out[k], 17, (dp_dtype_t)dtype};
        }
        EXPECT_STATUS(dp,
                      parity_wait(dp_grouped_allreduce(group, text, tensors, 5, &options, &handle),
                                  &handle, NULL),
                      DP_OK);
        for (int k = 0; k < 5; k++) {
            EXPECT(dp,
                   parity_differs((dp_dtype_t)dtype, tensors[k].out, 17, factor, factor * k) ==
                       SIZE_MAX,
                   "%s: tensor %d", text, k);
        }
    }
    return 0;
}

int parity_grouped_allreduce(dp_context_t *dp)
{
    return reduce_grouped(dp, dp_world(dp), "grouped", DP_SUM, 0);
}

int parity_grouped_allreduce_average(dp_context_t *dp)
{
    return reduce_grouped(dp, dp_world(dp), "grouped.average", DP_AVERAGE, 0);
}

int parity_grouped_allreduce_inplace(dp_context_t *dp)
{
    return reduce_grouped(dp, dp_world(dp), "grouped.inplace", DP_SUM, 1);
}

int parity_grouped_allreduce_process_sets(dp_context_t *dp)
{
    dp_group_t *half;

    if (parity_half(dp, &half)) return 1;
    if (reduce_grouped(dp, half, "grouped.sets", DP_SUM, 0)) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(half), DP_OK);
    return 0;
}

/* One tensor of five differs: all fail, none is touched. Types may be mixed, as in Horovod. */
int parity_grouped_allreduce_error(dp_context_t *dp)
{
    float values[5][17];
    int32_t whole[2] = {1, 2};
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle = NULL;
    dp_tensor_t tensors[6];

    for (int k = 0; k < 5; k++) {
        parity_fill(DP_F32, values[k], 17, 1.0, 0.0);
        tensors[k] = (dp_tensor_t){values[k], values[k], 17, DP_F32};
    }
    tensors[3].count = dp_rank(dp) == 0 ? 17 : 16;
    EXPECT_STATUS(
        dp,
        parity_wait(dp_grouped_allreduce(dp_world(dp), "grouped.error", tensors, 5, NULL, &handle),
                    &handle, &result),
        DP_ERR_MISMATCH);
    EXPECT_TEXT(dp, result.text, "16");
    for (int k = 0; k < 5; k++) {
        EXPECT(dp, parity_differs(DP_F32, values[k], 17, 1.0, 0.0) == SIZE_MAX, "tensor %d", k);
    }
    tensors[3].count = 17;
    tensors[5] = (dp_tensor_t){whole, whole, 2, DP_I32};
    EXPECT_STATUS(
        dp,
        parity_wait(dp_grouped_allreduce(dp_world(dp), "grouped.mixed", tensors, 6, NULL, &handle),
                    &handle, NULL),
        DP_OK);
    EXPECT(dp, parity_differs(DP_F32, values[4], 17, dp_size(dp), 0.0) == SIZE_MAX, "mixed");
    EXPECT(dp, whole[1] == 2 * dp_size(dp), "%d", whole[1]);
    return 0;
}

/* fp16 between machines: near, and equal on all ranks; where all ranks share one machine, exact. */
int parity_compression_fp16(dp_context_t *dp)
{
    float in[1000], out[1000];
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL;

    options.wire = DP_WIRE_FP16;
    for (int i = 0; i < 1000; i++)
        in[i] = (float)(i - 500) / 7.0f;
    EXPECT_STATUS(
        dp,
        parity_wait(dp_allreduce(dp_world(dp), "fp16", in, out, 1000, DP_F32, &options, &handle),
                    &handle, NULL),
        DP_OK);
    for (int i = 0; i < 1000; i++) {
        const double wanted = (double)in[i] * dp_size(dp);
        /* half a unit of 11 bits for each of the summands and for the sum */
        EXPECT(dp, fabs((double)out[i] - wanted) <= 1e-3 * fabs(wanted) + 1e-6, "%g, not %g",
               (double)out[i], wanted);
    }
    return 0;
}
