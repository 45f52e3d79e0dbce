/*
 * status.c - the names of statuses, element types, reductions and wire formats, and their sizes.
 *
 * Switches have no default, so that the compiler names a value that is missing here.
 *
 * Pure; called from everywhere, as a rule for the words of an error.
 */
#include "runtime/base/common.h"

#include <stdio.h>
#include <stdlib.h>

const char *dp_status_string(dp_status_t status)
{
    switch (status) {
    case DP_OK:
        return "DP_OK";
    case DP_ERR_INVALID:
        return "DP_ERR_INVALID";
    case DP_ERR_CONFIG:
        return "DP_ERR_CONFIG";
    case DP_ERR_NO_MEMORY:
        return "DP_ERR_NO_MEMORY";
    case DP_ERR_SYSTEM:
        return "DP_ERR_SYSTEM";
    case DP_ERR_UNSUPPORTED:
        return "DP_ERR_UNSUPPORTED";
    case DP_ERR_FULL:
        return "DP_ERR_FULL";
    case DP_ERR_PENDING:
        return "DP_ERR_PENDING";
    case DP_ERR_BUSY:
        return "DP_ERR_BUSY";
    case DP_ERR_TIMEOUT:
        return "DP_ERR_TIMEOUT";
    case DP_ERR_MISMATCH:
        return "DP_ERR_MISMATCH";
    case DP_ERR_LEFT:
        return "DP_ERR_LEFT";
    case DP_ERR_TRUNCATED:
        return "DP_ERR_TRUNCATED";
    case DP_ERR_PEER_LOST:
        return "DP_ERR_PEER_LOST";
    case DP_ERR_ABORTED:
        return "DP_ERR_ABORTED";
    case DP_ERR_STALLED:
        return "DP_ERR_STALLED";
    case DP_ERR_ORDER:
        return "DP_ERR_ORDER";
    case DP_ERR_CHECK:
        return "DP_ERR_CHECK";
    }
    return "unknown status";
}

const uint8_t dp_dtype_byte_table[DP_DTYPE_COUNT + 1] = {
    [DP_U8] = 1,  [DP_I8] = 1,   [DP_BOOL] = 1, [DP_U16] = 2, [DP_I16] = 2,
    [DP_F16] = 2, [DP_BF16] = 2, [DP_I32] = 4,  [DP_U32] = 4, [DP_F32] = 4,
    [DP_I64] = 8, [DP_U64] = 8,  [DP_F64] = 8};

int dp_dtype_is_float(dp_dtype_t dtype)
{
    return dtype == DP_F16 || dtype == DP_BF16 || dtype == DP_F32 || dtype == DP_F64;
}

const char *dp_dtype_name(dp_dtype_t dtype)
{
    switch (dtype) {
    case DP_U8:
        return "u8";
    case DP_I8:
        return "i8";
    case DP_U16:
        return "u16";
    case DP_I16:
        return "i16";
    case DP_I32:
        return "i32";
    case DP_U32:
        return "u32";
    case DP_I64:
        return "i64";
    case DP_U64:
        return "u64";
    case DP_F16:
        return "f16";
    case DP_BF16:
        return "bf16";
    case DP_F32:
        return "f32";
    case DP_F64:
        return "f64";
    case DP_BOOL:
        return "bool";
    case DP_DTYPE_COUNT:
        break;
    }
    return "unknown";
}

const char *dp_reduce_name(dp_reduce_t reduce)
{
    switch (reduce) {
    case DP_SUM:
        return "sum";
    case DP_AVERAGE:
        return "average";
    case DP_MIN:
        return "min";
    case DP_MAX:
        return "max";
    case DP_PRODUCT:
        return "product";
    case DP_REDUCE_COUNT:
        break;
    }
    return "unknown";
}

const char *dp_wire_name(dp_wire_t wire)
{
    switch (wire) {
    case DP_WIRE_DEFAULT:
        return "default";
    case DP_WIRE_NONE:
        return "none";
    case DP_WIRE_FP16:
        return "fp16";
    case DP_WIRE_BF16:
        return "bf16";
    }
    return "unknown";
}

#if defined(DP_ASSERTS) && DP_ASSERTS
/* A bug of ours: the state is not to be trusted, so nothing is tried but telling where. */
_Noreturn void dp_assert_failed(const char *expression, const char *file, int line)
{
    fprintf(stderr, "dp error: assertion failed: %s (%s:%d)\n", expression, file, line);
    abort();
}
#endif
