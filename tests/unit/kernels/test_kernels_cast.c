/*
 * test_kernels_cast.c - conversions against an oracle, casts and the compressed halves against the
 * naive loops.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/convert.h"
#include "tests/unit/cases.h"
#include "tests/unit/naive.h"
#include "kernels/variant.h"
#include "tests/unit/kernel_data.h"

/* The value of an fp16 pattern, from the definition of the format. */
static double f16_worth(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double worth = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);

    return bits & 0x8000 ? -worth : worth;
}

/* The fp16 pattern nearest to a magnitude, ties to the even one, by bisection over all of them. */
static uint16_t f16_nearest(double magnitude)
{
    uint16_t low = 0, high = 0x7c00; /* 0x7c00 is worth 65536 here, Inf in the format */

    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);

        if (f16_worth(middle) <= magnitude) {
            low = middle;
        } else {
            high = middle;
        }
    }
    if (magnitude >= 65536.0) return 0x7c00;
    if (magnitude - f16_worth(low) < f16_worth(high) - magnitude) return low;
    if (magnitude - f16_worth(low) > f16_worth(high) - magnitude) return high;
    return low % 2 == 0 ? low : high;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void f16_round_trips_every_pattern(void **unused)
{
    (void)unused;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = dp_convert_f16_to_f32((uint16_t)bits);

        if ((bits & 0x7fff) > 0x7c00) {
            assert_true(isnan(value));
            assert_int_equal(dp_convert_f32_to_f16(value), bits | 0x200);
        } else {
            if ((bits & 0x7fff) < 0x7c00) assert_true((double)value == f16_worth((uint16_t)bits));
            assert_int_equal(dp_convert_f32_to_f16(value), bits);
        }
    }
}

static void f16_rounds_like_the_oracle(void **unused)
{
    (void)unused;
    for (uint64_t bits = 0; bits <= 0x7f800000u; bits += 4099) {
        float value = of_bits((uint32_t)bits);

        if (dp_convert_f32_to_f16(value) != f16_nearest((double)value)) {
            fail_msg("%a gives %x, nearest is %x", (double)value, dp_convert_f32_to_f16(value),
                     f16_nearest((double)value));
        }
        assert_int_equal(dp_convert_f32_to_f16(-value), f16_nearest((double)value) | 0x8000);
    }
    for (uint32_t half = 0; half < 0x7bff; half++) { /* every halfway case and its neighbours */
        double middle = (f16_worth((uint16_t)half) + f16_worth((uint16_t)(half + 1))) / 2;
        float tie = (float)middle;

        assert_int_equal(dp_convert_f32_to_f16(tie), half % 2 == 0 ? half : half + 1);
        assert_int_equal(dp_convert_f32_to_f16(nextafterf(tie, 0.0f)), half);
        assert_int_equal(dp_convert_f32_to_f16(nextafterf(tie, INFINITY)), half + 1);
    }
}

static void bf16_rounds_to_nearest_even(void **unused)
{
    (void)unused;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = dp_convert_bf16_to_f32((uint16_t)bits);
        float tie = of_bits(bits << 16 | 0x8000u);

        if (isnan(value)) {
            assert_true(
                isnan(dp_convert_bf16_to_f32(dp_convert_f32_to_bf16(of_bits(bits << 16 | 1u)))));
            continue;
        }
        assert_int_equal(dp_convert_f32_to_bf16(value), bits);
        if (isinf(value)) continue;
        assert_int_equal(dp_convert_f32_to_bf16(tie), bits % 2 == 0 ? bits : bits + 1);
        assert_int_equal(dp_convert_f32_to_bf16(of_bits(bits_of(tie) - 1)), bits);
        assert_int_equal(dp_convert_f32_to_bf16(of_bits(bits_of(tie) + 1)), bits + 1);
    }
    assert_true(isnan(dp_convert_bf16_to_f32(dp_convert_f32_to_bf16(of_bits(0x7f800001u)))));
}

/* Converts a stream of patterns in blocks by every variant and compares with the scalar function.
 */
static void variants_convert_alike(void **unused)
{
    enum { block = 4096 };
    static float in[block], back[block];
    static uint16_t out[block];
    const dp_kernel_table_t *table;

    (void)unused;
    for (uint64_t base = 0; base < 1ull << 32; base += (uint64_t)block * 4093) {
        for (uint32_t i = 0; i < block; i++)
            in[i] = of_bits((uint32_t)(base + i * 4093ull));
        for (int v = 0; (table = dp_kernels_table(v)) != NULL; v++) {
            dp_cast_piece_t piece = {.from = in, .to = out, .count = block, .scale = 1.0f};
            dp_cast_args_t args = {
                .from = DP_F32, .to = DP_F16, .pieces = &piece, .piece_count = 1};

            table->cast(&args);
            for (uint32_t i = 0; i < block; i++) {
                if (out[i] != dp_convert_f32_to_f16(in[i])) {
                    fail_msg("%s: f16 of %08x is %04x, scalar %04x", table->name, bits_of(in[i]),
                             out[i], dp_convert_f32_to_f16(in[i]));
                }
            }
            args.to = DP_BF16;
            table->cast(&args);
            for (uint32_t i = 0; i < block; i++) {
                if (out[i] != dp_convert_f32_to_bf16(in[i])) {
                    fail_msg("%s: bf16 of %08x is %04x", table->name, bits_of(in[i]), out[i]);
                }
            }
        }
    }
    for (uint32_t base = 0; base < 65536; base += block) {
        for (uint32_t i = 0; i < block; i++)
            out[i] = (uint16_t)(base + i);
        for (int v = 0; (table = dp_kernels_table(v)) != NULL; v++) {
            for (int wire = DP_F16; wire <= DP_BF16; wire++) {
                dp_cast_piece_t piece = {.from = out, .to = back, .count = block, .scale = 1.0f};
                dp_cast_args_t args = {
                    .from = (dp_dtype_t)wire, .to = DP_F32, .pieces = &piece, .piece_count = 1};

                table->cast(&args);
                for (uint32_t i = 0; i < block; i++) {
                    float expected = wire == DP_F16 ? dp_convert_f16_to_f32(out[i])
                                                    : dp_convert_bf16_to_f32(out[i]);

                    if (bits_of(back[i]) != bits_of(expected)) {
                        fail_msg("%s: wire %d of %04x is %08x, scalar %08x", table->name, wire,
                                 out[i], bits_of(back[i]), bits_of(expected));
                    }
                }
            }
        }
    }
}

static int is_float(dp_dtype_t dtype)
{
    return dtype == DP_F16 || dtype == DP_BF16 || dtype == DP_F32 || dtype == DP_F64;
}

static void cast_matches_naive(void **unused)
{
    static const size_t counts[3] = {1, 4097, 777};
    static const float scales[3] = {1.0f, 0.125f, 3.7f};
    enum { room = 6000 * 8 };
    unsigned char *in = malloc(room), *out = malloc(room), *expected = malloc(room);
    uint64_t state = 5;
    const dp_kernel_table_t *table;

    (void)unused;
    for (int from = 0; from < DP_DTYPE_COUNT; from++) {
        for (int to = 0; to < DP_DTYPE_COUNT; to++) {
            int is_cast = is_float((dp_dtype_t)from) && is_float((dp_dtype_t)to) &&
                          from != DP_F64 && to != DP_F64;
            if (from != to && !is_cast) continue;
            for (int mode = 0; mode < 24; mode++) {
                dp_cast_piece_t pieces[3], naive[3];
                dp_tally_t tallies[3], expected_tallies[3];
                size_t from_at = 1, to_at = (size_t)(mode & 1);
                int streaming = mode >> 1 & 1, with_tally = mode >> 2 & 1;
                float scale = scales[mode / 8];

                if (scale != 1.0f && !is_float((dp_dtype_t)from)) continue;
                if (with_tally && !is_float((dp_dtype_t)from)) continue;
                kernel_fill((dp_dtype_t)from, in + 1, 5000, &state, mode & 1);
                for (int p = 0; p < 3; p++) {
                    pieces[p] = (dp_cast_piece_t){.from = in + from_at,
                                                  .to = out + to_at,
                                                  .count = counts[p],
                                                  .scale = scale,
                                                  .tally = with_tally ? &tallies[p] : NULL};
                    naive[p] = pieces[p];
                    naive[p].to = expected + to_at;
                    naive[p].tally = with_tally ? &expected_tallies[p] : NULL;
                    dp_tally_init(&expected_tallies[p]);
                    from_at += counts[p] * dp_kernel_dtype_bytes((dp_dtype_t)from);
                    to_at += counts[p] * dp_kernel_dtype_bytes((dp_dtype_t)to) + 3;
                }
                memset(expected, 0x33, room);
                dp_naive_cast(&(dp_cast_args_t){(dp_dtype_t)from, (dp_dtype_t)to, naive, 3, 0});
                for (int v = 0; (table = dp_kernels_table(v)) != NULL; v++) {
                    memset(out, 0x33, room);
                    for (int p = 0; p < 3; p++)
                        dp_tally_init(&tallies[p]);
                    table->cast(
                        &(dp_cast_args_t){(dp_dtype_t)from, (dp_dtype_t)to, pieces, 3, streaming});
                    if (memcmp(out, expected, room) != 0) {
                        fail_msg("%s: cast %d to %d, mode %d", table->name, from, to, mode);
                    }
                    if (with_tally) assert_memory_equal(tallies, expected_tallies, sizeof(tallies));
                }
            }
        }
    }
    free(in);
    free(out);
    free(expected);
}

static void compressed_halves_match_naive(void **unused)
{
    enum { count = 4096 + 135, ways = 18 };
    float *in[ways], *out[8], *expected = malloc(count * sizeof(float));
    float *expected_out[1] = {expected};
    uint16_t *wire = malloc(count * 2), *expected_wire = malloc(count * 2);
    uint64_t state = 6;
    const dp_kernel_table_t *table;

    (void)unused;
    for (int k = 0; k < ways; k++) {
        in[k] = malloc(count * sizeof(float));
        kernel_fill(DP_F32, in[k], count, &state, k % 3 != 0);
    }
    for (int k = 0; k < 8; k++)
        out[k] = malloc(count * sizeof(float));
    for (int type = DP_F16; type <= DP_BF16; type++) {
        for (int n = 1; n <= ways; n++) {
            dp_tally_t tally, expected_tally;
            float scale = n % 2 ? 1.0f : 0x1p9f;

            dp_tally_init(&expected_tally);
            dp_naive_reduce_cast((const float *const *)in, n, (dp_dtype_t)type, expected_wire,
                                 count, scale);
            dp_naive_expand((dp_dtype_t)type, expected_wire, expected_out, 1, count, 1 / scale,
                            &expected_tally);
            for (int v = 0; (table = dp_kernels_table(v)) != NULL; v++) {
                dp_tally_init(&tally);
                table->reduce_cast((const float *const *)in, n, (dp_dtype_t)type, wire, count,
                                   scale);
                assert_memory_equal(wire, expected_wire, count * 2);
                table->expand((dp_dtype_t)type, wire, out, 1 + n % 8, count, 1 / scale,
                              n % 3 ? &tally : NULL);
                for (int k = 0; k < 1 + n % 8; k++) {
                    assert_memory_equal(out[k], expected, count * sizeof(float));
                }
                if (n % 3) assert_memory_equal(&tally, &expected_tally, sizeof(tally));
            }
        }
    }
    for (int k = 0; k < ways; k++)
        free(in[k]);
    for (int k = 0; k < 8; k++)
        free(out[k]);
    free(expected);
    free(wire);
    free(expected_wire);
}

static void hash_sees_every_byte_and_its_place(void **unused)
{
    unsigned char data[200] = {0};
    uint64_t seen[200];

    (void)unused;
    for (size_t bytes = 0; bytes < 200; bytes++) {
        seen[bytes] = dp_kernel_hash(data, bytes, 0);
        for (size_t other = 0; other < bytes; other++)
            assert_true(seen[other] != seen[bytes]);
    }
    for (size_t at = 0; at < 199; at++) {
        data[at] ^= 4;
        assert_true(dp_kernel_hash(data, 199, 0) != seen[199]);
        data[at] ^= 4;
    }
    assert_true(dp_kernel_hash(data, 199, 1) != seen[199]);
    assert_true(dp_kernel_hash(data, 199, 0) == seen[199]);
    /* Pinned: replicas on different machines compare it. */
    assert_true(dp_kernel_hash("gradients", 9, 7) == 0xc59176199d6385bau);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_round_trips_every_pattern),
        cmocka_unit_test(f16_rounds_like_the_oracle),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(variants_convert_alike),
        cmocka_unit_test(cast_matches_naive),
        cmocka_unit_test(compressed_halves_match_naive),
        cmocka_unit_test(hash_sees_every_byte_and_its_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
