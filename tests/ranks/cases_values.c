/*
 * cases_values.c - what the cases put into tensors and expect of them, in every type.
 */
#include <math.h>
#include <stdlib.h>

#include "kernels/convert.h"
#include "kernels/kernels.h"
#include "runtime/base/common.h"
#include "tests/ranks/cases_internal.h"

/* After so many elements patterns come again: a multiple of 2, 3 and 11. */
enum { PERIOD = 66 };

static int pattern(dp_dtype_t dtype, dp_reduce_t reduce, size_t i, int rank)
{
    if (dtype == DP_BOOL) return (int)((i + (size_t)rank) % 3 == 0);
    if (reduce == DP_PRODUCT) return 1 + (int)((i + (size_t)rank) % 2);
    return (int)((i * 5 + (size_t)rank * 3) % 11);
}

void case_store(dp_dtype_t dtype, void *data, size_t i, double value)
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
        ((uint16_t *)data)[i] = dp_convert_f32_to_f16((float)value);
        break;
    case DP_BF16:
        ((uint16_t *)data)[i] = dp_convert_f32_to_bf16((float)value);
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

/* Repeats the period that data begins with. */
static void repeat(dp_dtype_t dtype, char *data, size_t count)
{
    size_t bytes = count * dp_dtype_bytes(dtype);

    for (size_t done = PERIOD * dp_dtype_bytes(dtype); done < bytes;
         done += dp_min(done, bytes - done))
        memcpy(data + done, data, dp_min(done, bytes - done));
}

void case_fill(dp_dtype_t dtype, dp_reduce_t reduce, int rank, size_t first, size_t count,
               void *data)
{
    for (size_t i = 0; i < dp_min(count, (size_t)PERIOD); i++)
        case_store(dtype, data, i, pattern(dtype, reduce, first + i, rank));
    repeat(dtype, data, count);
}

static double reduced(dp_dtype_t dtype, dp_reduce_t reduce, int ranks, size_t i)
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
    if (dtype == DP_BOOL && reduce == DP_SUM) return value != 0.0;
    if (reduce != DP_AVERAGE) return value;
    if (!is_float) return trunc(value / ranks);
    return dtype == DP_F64 ? value * (1.0 / ranks) : (double)((float)value * (float)(1.0 / ranks));
}

void case_reference(dp_dtype_t dtype, dp_reduce_t reduce, int ranks, size_t first, size_t count,
                    void *data)
{
    for (size_t i = 0; i < dp_min(count, (size_t)PERIOD); i++)
        case_store(dtype, data, i, reduced(dtype, reduce, ranks, first + i));
    repeat(dtype, data, count);
}

char *case_allocate(dp_context_t *dp, size_t bytes, int in_arena)
{
    void *memory = NULL;

    if (!in_arena) return calloc(1, bytes + 1);
    return dp_alloc(dp, bytes + 1, &memory) == DP_OK ? memory : NULL;
}

void case_give_back(dp_context_t *dp, char *memory, int in_arena)
{
    if (in_arena) {
        dp_free(dp, memory);
    } else {
        free(memory);
    }
}
