/*
 * identity.c - what a rank that has joined gives to a reduction: the element that changes nothing.
 *
 * Called by bucket_stages.c on the thread of the pack stream.
 */
#include "fusion/identity.h"

#include <string.h>

#include "runtime/base/common.h"

/* The bits of the numbers wanted of a type, in the low bytes. */
typedef struct bits {
    uint64_t lowest, highest, one;
    uint64_t sum_zero; /* of floats -0: adding +0 would turn a sum of -0 into +0 */
} bits_t;

static bits_t bits_of(dp_dtype_t dtype)
{
    switch (dtype) {
    case DP_U8:
        return (bits_t){0, UINT8_MAX, 1, 0};
    case DP_I8:
        return (bits_t){1u << 7, INT8_MAX, 1, 0};
    case DP_U16:
        return (bits_t){0, UINT16_MAX, 1, 0};
    case DP_I16:
        return (bits_t){1u << 15, INT16_MAX, 1, 0};
    case DP_I32:
        return (bits_t){UINT64_C(1) << 31, INT32_MAX, 1, 0};
    case DP_U32:
        return (bits_t){0, UINT32_MAX, 1, 0};
    case DP_I64:
        return (bits_t){UINT64_C(1) << 63, INT64_MAX, 1, 0};
    case DP_U64:
        return (bits_t){0, UINT64_MAX, 1, 0};
    case DP_F16:
        return (bits_t){0xfc00, 0x7c00, 0x3c00, 0x8000};
    case DP_BF16:
        return (bits_t){0xff80, 0x7f80, 0x3f80, 0x8000};
    case DP_F32:
        return (bits_t){0xff800000, 0x7f800000, 0x3f800000, 0x80000000};
    case DP_F64:
        return (bits_t){UINT64_C(0xfff) << 52, UINT64_C(0x7ff) << 52, UINT64_C(0x3ff) << 52,
                        UINT64_C(1) << 63};
    case DP_BOOL:
        return (bits_t){0, 1, 1, 0};
    case DP_DTYPE_COUNT:
        break;
    }
    return (bits_t){0, 0, 0, 0};
}

static uint64_t identity_of(dp_dtype_t dtype, dp_reduce_t reduce, double prescale)
{
    const bits_t bits = bits_of(dtype);

    switch (reduce) {
    case DP_SUM:
    case DP_AVERAGE:
        return prescale < 0.0 ? 0 : bits.sum_zero;
    case DP_PRODUCT:
        return bits.one;
    case DP_MIN:
        if (prescale == 0.0) return 0;
        return prescale < 0.0 ? bits.lowest : bits.highest;
    case DP_MAX:
        if (prescale == 0.0) return 0;
        return prescale < 0.0 ? bits.highest : bits.lowest;
    case DP_REDUCE_COUNT:
        break;
    }
    return 0;
}

void dp_identity_fill(void *to, size_t count, dp_dtype_t dtype, dp_reduce_t reduce, double prescale)
{
    const uint64_t bits = identity_of(dtype, reduce, prescale);
    const size_t bytes = dp_dtype_bytes(dtype);
    const size_t all = count * bytes;
    unsigned char *at = to;
    size_t filled = bytes;

    if (all == 0) return;
    switch (bytes) {
    case 1:
        memcpy(at, &(uint8_t){(uint8_t)bits}, 1);
        break;
    case 2:
        memcpy(at, &(uint16_t){(uint16_t)bits}, 2);
        break;
    case 4:
        memcpy(at, &(uint32_t){(uint32_t)bits}, 4);
        break;
    default:
        memcpy(at, &bits, 8);
        break;
    }
    while (filled < all) { /* doubles what is there */
        const size_t more = dp_min(filled, all - filled);

        memcpy(at + filled, at, more);
        filled += more;
    }
}
