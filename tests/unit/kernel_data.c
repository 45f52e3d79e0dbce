/*
 * kernel_data.c - buffers of awkward numbers for the kernel tests.
 */
#include "kernels/convert.h"
#include "tests/unit/kernel_data.h"
#include "kernels/variant.h"

#include <math.h>
#include <string.h>

uint64_t kernel_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

static double plain(uint64_t *state)
{
    return (double)(int64_t)kernel_random(state) * 0x1p-62;
}

static const float awkward[] = {
    0.0f,         -0.0f,     0x1p-149f,       -0x1p-149f,   0x1.fffffcp-127f, 0x1p-126f,
    65504.0f,     65519.0f,  65520.0f,        -65536.0f,    0x1.002p0f,       0x1.006p0f,
    0x1.01p0f,    0x1.03p0f, 0x1p-24f,        0x1p-25f,     0x1.8p-25f,       -0x1.8p-24f,
    0x1.ffcp-15f, 0x1p127f,  0x1.fffffep127f, -0x1.fep127f, INFINITY,         -INFINITY,
    NAN,          -NAN,      3.0e38f,         1.0e-30f,
};

static float awkward_f32(uint64_t *state)
{
    uint64_t pick = kernel_random(state) >> 8;
    uint32_t bits = (uint32_t)(pick >> 16);
    float value;

    if (pick % 4 == 0) return awkward[(pick >> 8) % (sizeof(awkward) / sizeof(awkward[0]))];
    memcpy(&value, &bits, sizeof(value)); /* any pattern, signalling NaN included */
    return value;
}

void kernel_fill(dp_dtype_t dtype, void *to, size_t count, uint64_t *state, int calm)
{
    unsigned char *at = to;
    size_t bytes = dp_kernel_dtype_bytes(dtype);

    for (size_t i = 0; i < count; i++, at += bytes) {
        uint64_t bits = kernel_random(state) >> 3;
        int is_plain = calm || kernel_random(state) % 8 != 0;
        double number = plain(state);
        float small = is_plain ? (float)number : awkward_f32(state);
        uint16_t half;

        switch (dtype) {
        case DP_F16:
            half = dp_convert_f32_to_f16(small);
            memcpy(at, &half, 2);
            break;
        case DP_BF16:
            half = dp_convert_f32_to_bf16(small);
            memcpy(at, &half, 2);
            break;
        case DP_F32:
            memcpy(at, &small, 4);
            break;
        case DP_F64:
            if (!is_plain) number = (double)awkward_f32(state);
            memcpy(at, &number, 8);
            break;
        case DP_BOOL:
            *at = (unsigned char)(bits & 1 ? 1 : (bits & 2 ? 0 : (calm ? 0 : 2)));
            break;
        default:
            memcpy(at, &bits, bytes);
        }
    }
}
