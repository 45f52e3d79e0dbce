/*
 * test_plan.c - every element of every entry once, within the fused buffers, the same from the same
 * input.
 */
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include "fusion/plan.h"
#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/unit/kernel_data.h"

static const dp_plan_limits_t limits_64k = {.buffer_bytes = 65536, .alignment = 64, .ranks = 2};

static dp_plan_entry_t f32_entry(size_t count)
{
    return (dp_plan_entry_t){.collective = DP_COLLECTIVE_ALLREDUCE,
                             .dtype = DP_F32,
                             .reduce = DP_SUM,
                             .wire = DP_WIRE_NONE,
                             .count = count};
}

/* The rules every plan keeps. */
static void check_plan(const dp_plan_t *plan, const dp_plan_entry_t *entries, size_t count,
                       const dp_plan_limits_t *limits)
{
    size_t *covered = calloc(count + 1, sizeof(*covered));
    size_t piece = 0;

    for (size_t b = 0; b < plan->bucket_count; b++) {
        const dp_plan_bucket_t *bucket = &plan->buckets[b];
        const size_t rows =
            bucket->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)limits->ranks : 1;
        size_t end = 0, payload = 0;

        assert_int_equal(bucket->piece_begin, piece);
        assert_true(bucket->piece_count > 0);
        for (size_t i = 0; i < bucket->piece_count; i++, piece++) {
            const dp_plan_piece_t *part = &plan->pieces[piece];
            const dp_plan_entry_t *entry = &entries[part->entry];
            const size_t bytes = rows * part->count * dp_dtype_bytes(entry->dtype);

            if (dp_plan_is_alone(entry->collective)) {
                assert_int_equal(bucket->piece_count, 1);
                assert_int_equal(bucket->buffer_bytes, 0);
                assert_int_equal(bucket->collective, entry->collective);
                assert_int_equal(part->count, entry->count);
                covered[part->entry] = entry->count + 1;
                payload += bytes;
                continue;
            }
            assert_true(part->count > 0);
            assert_int_equal(part->first % DP_TALLY_BLOCK, 0);
            assert_int_equal(part->first, covered[part->entry]); /* parts in order, no gap */
            covered[part->entry] += part->count;
            assert_int_equal(entry->collective, bucket->collective);
            assert_int_equal(entry->dtype, bucket->dtype);
            assert_int_equal(entry->reduce, bucket->reduce);
            assert_int_equal(entry->wire, bucket->wire);
            if (entry->collective != DP_COLLECTIVE_REDUCE) {
                assert_int_equal(entry->root, bucket->root);
            }
            assert_int_equal(entry->in_place, bucket->in_place);
            assert_int_equal(entry->divisor, bucket->divisor);
            payload += bytes;
            if (bucket->in_place) {
                assert_int_equal(part->count, entry->count);
                continue;
            }
            assert_int_equal(part->buffer_offset % limits->alignment, 0);
            assert_true(part->buffer_offset >= end);
            end = part->buffer_offset + part->count * dp_dtype_bytes(bucket->buffer_dtype);
        }
        assert_int_equal(bucket->payload_bytes, payload);
        assert_int_equal(bucket->row_bytes, rows == 1 ? end : dp_align_up(end, limits->alignment));
        assert_int_equal(bucket->buffer_bytes, rows * bucket->row_bytes);
        assert_true(bucket->buffer_bytes <= limits->buffer_bytes);
        if (bucket->in_place && bucket->piece_count > 1) {
            assert_true(payload <= limits->buffer_bytes);
        }
    }
    assert_int_equal(piece, plan->piece_count);
    for (size_t i = 0; i < count; i++) {
        int is_barrier = entries[i].collective == DP_COLLECTIVE_BARRIER;
        size_t is_alone = dp_plan_is_alone(entries[i].collective) != 0;

        assert_int_equal(covered[i], is_barrier ? 0 : entries[i].count + is_alone);
    }
    free(covered);
}

static void plan_neighbours_share_a_bucket(void **unused)
{
    dp_plan_entry_t entries[3] = {f32_entry(100), f32_entry(1), f32_entry(1000)};
    dp_plan_t plan = {0};

    (void)unused;
    assert_int_equal(dp_plan_make(&plan, entries, 3, &limits_64k), DP_OK);
    check_plan(&plan, entries, 3, &limits_64k);
    assert_int_equal(plan.bucket_count, 1);
    assert_int_equal(plan.pieces[1].buffer_offset, 448);
    assert_int_equal(plan.pieces[2].buffer_offset, 512);
    dp_plan_fini(&plan);
}

static void plan_rows_of_a_reduce_scatter_lie_together(void **unused)
{
    dp_plan_limits_t limits = {.buffer_bytes = 65536, .alignment = 64, .ranks = 4, .casts = 1};
    dp_plan_entry_t entries[3] = {f32_entry(100), f32_entry(1), f32_entry(1000)};
    dp_plan_t plan = {0};

    (void)unused;
    for (int i = 0; i < 3; i++) {
        entries[i].collective = DP_COLLECTIVE_REDUCE_SCATTER;
        entries[i].wire = DP_WIRE_BF16;
    }
    assert_int_equal(dp_plan_make(&plan, entries, 3, &limits), DP_OK);
    check_plan(&plan, entries, 3, &limits);
    assert_int_equal(plan.bucket_count, 1);
    assert_int_equal(plan.buckets[0].buffer_dtype, DP_BF16);
    assert_int_equal(plan.pieces[1].buffer_offset, 256);
    assert_int_equal(plan.pieces[2].buffer_offset, 320);
    assert_int_equal(plan.buckets[0].row_bytes, 2368); /* 320 + 2000 end there */
    assert_int_equal(plan.buckets[0].buffer_bytes, 4 * 2368);
    dp_plan_fini(&plan);
}

static void plan_oversized_tensor_is_cut_and_its_rest_shared(void **unused)
{
    dp_plan_entry_t entries[2] = {f32_entry(2 * 16384 + 100), f32_entry(50)};
    dp_plan_t plan = {0};

    (void)unused;
    assert_int_equal(dp_plan_make(&plan, entries, 2, &limits_64k), DP_OK);
    check_plan(&plan, entries, 2, &limits_64k);
    assert_int_equal(plan.bucket_count, 3);
    assert_int_equal(plan.buckets[2].piece_count, 2);
    dp_plan_fini(&plan);
}

static void plan_in_place_travels_whole(void **unused)
{
    dp_plan_entry_t entries[3] = {f32_entry(1000000), f32_entry(100), f32_entry(200)};
    dp_plan_t plan = {0};

    (void)unused;
    for (int i = 0; i < 3; i++)
        entries[i].in_place = 1;
    assert_int_equal(dp_plan_make(&plan, entries, 3, &limits_64k), DP_OK);
    check_plan(&plan, entries, 3, &limits_64k);
    assert_int_equal(plan.bucket_count, 2);
    assert_int_equal(plan.buckets[0].piece_count, 1);
    assert_int_equal(plan.buckets[0].buffer_bytes, 0);
    dp_plan_fini(&plan);
}

static void plan_looks_past_other_kinds(void **unused)
{
    dp_plan_entry_t entries[6];
    dp_plan_t plan = {0};

    (void)unused;
    for (int i = 0; i < 6; i++) {
        entries[i] = f32_entry(10);
        if (i % 2) entries[i].dtype = DP_I32;
    }
    assert_int_equal(dp_plan_make(&plan, entries, 6, &limits_64k), DP_OK);
    check_plan(&plan, entries, 6, &limits_64k);
    assert_int_equal(plan.bucket_count, 2);
    assert_int_equal(plan.buckets[0].piece_count, 3);
    dp_plan_fini(&plan);
}

static void plan_reduces_share_a_bucket_whatever_their_roots(void **unused)
{
    dp_plan_entry_t entries[4];
    dp_plan_t plan = {0};

    (void)unused;
    for (int i = 0; i < 4; i++) {
        entries[i] = f32_entry(100);
        entries[i].collective = i < 3 ? DP_COLLECTIVE_REDUCE : DP_COLLECTIVE_BROADCAST;
        entries[i].root = i % 2;
    }
    assert_int_equal(dp_plan_make(&plan, entries, 4, &limits_64k), DP_OK);
    check_plan(&plan, entries, 4, &limits_64k);
    assert_int_equal(plan.bucket_count, 2);
    assert_int_equal(plan.buckets[0].piece_count, 3);
    dp_plan_fini(&plan);
}

static void plan_integer_averages_share_a_divisor(void **unused)
{
    dp_plan_entry_t entries[3];
    dp_plan_t plan = {0};

    (void)unused;
    for (int i = 0; i < 3; i++) {
        entries[i] = f32_entry(100);
        entries[i].dtype = DP_I32;
        entries[i].reduce = DP_AVERAGE;
        entries[i].divisor = 2 + i % 2;
    }
    assert_int_equal(dp_plan_make(&plan, entries, 3, &limits_64k), DP_OK);
    check_plan(&plan, entries, 3, &limits_64k);
    assert_int_equal(plan.bucket_count, 2);
    assert_int_equal(plan.buckets[0].divisor, 2);
    assert_int_equal(plan.buckets[1].divisor, 3);
    dp_plan_fini(&plan);
}

/* Their counts differ between ranks, so even none or too many must give the same buckets. */
static void plan_exchanges_travel_alone(void **unused)
{
    static const size_t counts[] = {0, 5, 1000000, SIZE_MAX};
    dp_plan_entry_t entries[4];
    dp_plan_t plan = {0};

    (void)unused;
    for (int c = 0; c < 4; c++) {
        for (int i = 0; i < 4; i++) {
            entries[i] = f32_entry(100);
            if (i == 3) continue;
            entries[i].collective = DP_COLLECTIVE_ALLTOALLV;
            entries[i].count = counts[c];
        }
        assert_int_equal(dp_plan_make(&plan, entries, 4, &limits_64k), DP_OK);
        assert_int_equal(plan.bucket_count, 4);
        for (size_t b = 0; b < 4; b++) {
            assert_int_equal(plan.buckets[b].piece_count, 1);
            assert_int_equal(plan.pieces[b].entry, b);
            assert_int_equal(plan.pieces[b].first, 0);
        }
        assert_int_equal(plan.buckets[0].buffer_bytes, 0);
        assert_int_equal(plan.buckets[3].buffer_bytes, 400);
    }
    dp_plan_fini(&plan);
}

static void plan_nothing_of_nothing(void **unused)
{
    dp_plan_entry_t entries[2] = {f32_entry(0), f32_entry(7)};
    dp_plan_t plan = {0};

    (void)unused;
    entries[1].collective = DP_COLLECTIVE_BARRIER;
    assert_int_equal(dp_plan_make(&plan, entries, 2, &limits_64k), DP_OK);
    assert_int_equal(plan.bucket_count, 0);
    assert_int_equal(dp_plan_make(&plan, NULL, 0, &limits_64k), DP_OK);
    assert_int_equal(plan.bucket_count, 0);
    dp_plan_fini(&plan);
}

static void plan_refuses_what_cannot_be(void **unused)
{
    dp_plan_limits_t tiny = {.buffer_bytes = 4096, .alignment = 64, .ranks = 2};
    dp_plan_entry_t entry = f32_entry(SIZE_MAX / 2);
    dp_plan_t plan = {0};

    (void)unused;
    assert_int_equal(dp_plan_make(&plan, &entry, 1, &limits_64k), DP_ERR_INVALID);
    entry = f32_entry(5000);
    assert_int_equal(dp_plan_make(&plan, &entry, 1, &tiny), DP_ERR_INVALID);
    assert_int_equal(plan.bucket_count, 0);
    dp_plan_fini(&plan);
}

static void plan_keeps_its_rules_for_any_entries(void **unused)
{
    enum { most = 400 };
    static dp_plan_entry_t entries[most];
    uint64_t state = 9;
    dp_plan_t plan = {0}, again = {0};

    (void)unused;
    for (int round = 0; round < 2000; round++) {
        size_t count = kernel_random(&state) % (round % 20 == 0 ? most : 30);
        dp_plan_limits_t limits = {.alignment = 64,
                                   .ranks = 1 + (int)(kernel_random(&state) % 5),
                                   .casts = kernel_random(&state) % 2 == 0};
        int variety = 1 + (int)(kernel_random(&state) % 4);

        limits.buffer_bytes =
            dp_plan_least_buffer_bytes(limits.ranks) + kernel_random(&state) % 300000;
        for (size_t i = 0; i < count; i++) {
            uint64_t size = kernel_random(&state) % 4;

            entries[i] = (dp_plan_entry_t){
                .collective = (dp_collective_t)(kernel_random(&state) % (uint64_t)(variety * 4)),
                .dtype = (dp_dtype_t)(kernel_random(&state) % (uint64_t)(variety * 3)),
                .reduce = (dp_reduce_t)(kernel_random(&state) % (uint64_t)variety),
                .wire = (dp_wire_t)(1 + kernel_random(&state) % 2),
                .root = (int)(kernel_random(&state) % (uint64_t)limits.ranks),
                .count = kernel_random(&state) %
                         (size == 0 ? 200000 : (size == 1 ? 5000 : (size == 2 ? 64 : 2))),
                .in_place = kernel_random(&state) % 3 == 0,
                .divisor = kernel_random(&state) % 8 == 0};
            if (entries[i].dtype != DP_F32) entries[i].wire = DP_WIRE_NONE;
        }
        assert_int_equal(dp_plan_make(&plan, entries, count, &limits), DP_OK);
        check_plan(&plan, entries, count, &limits);
        assert_int_equal(dp_plan_make(&again, entries, count, &limits), DP_OK);
        assert_int_equal(plan.bucket_count, again.bucket_count);
        assert_int_equal(plan.piece_count, again.piece_count);
        for (size_t p = 0; p < plan.piece_count; p++) {
            assert_int_equal(plan.pieces[p].entry, again.pieces[p].entry);
            assert_int_equal(plan.pieces[p].first, again.pieces[p].first);
            assert_int_equal(plan.pieces[p].buffer_offset, again.pieces[p].buffer_offset);
        }
        if (round % 100 == 0)
            dp_plan_fini(&again); /* so that memory of earlier plans can't matter */
    }
    dp_plan_fini(&plan);
    dp_plan_fini(&again);
}

static void plan_survives_every_failed_allocation(void **unused)
{
    dp_plan_entry_t entries[40];

    (void)unused;
    for (int i = 0; i < 40; i++) {
        entries[i] = f32_entry(3000);
        entries[i].root = i % 3;
    }
    for (long n = 1;; n++) {
        dp_plan_t plan = {0};
        dp_status_t status;
        int reached;

        fail_allocation(n);
        status = dp_plan_make(&plan, entries, 40, &limits_64k);
        reached = fail_allocation_reached();
        assert_int_equal(status, reached ? DP_ERR_NO_MEMORY : DP_OK);
        if (reached) assert_int_equal(plan.bucket_count, 0);
        if (!reached) check_plan(&plan, entries, 40, &limits_64k);
        dp_plan_fini(&plan);
        if (!reached) break;
        assert_true(n < 100);
    }
}

/* ---- The wire -------------------------------------------------------------------------------- */

static void plan_unknown_magnitudes_travel_uncompressed_once(void **unused)
{
    static const float unknown[] = {-1.0f, 0.0f, NAN, INFINITY, -INFINITY};
    int exponent = 99;

    (void)unused;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(dp_plan_wire(DP_WIRE_FP16, unknown[i], &exponent), DP_WIRE_NONE);
        assert_int_equal(exponent, 0);
        exponent = 99;
        assert_int_equal(dp_plan_wire(DP_WIRE_BF16, unknown[i], &exponent), DP_WIRE_BF16);
        assert_int_equal(exponent, 0);
    }
    assert_int_equal(dp_plan_wire(DP_WIRE_NONE, 1.0f, &exponent), DP_WIRE_NONE);
    assert_int_equal(dp_plan_wire(DP_WIRE_DEFAULT, 1.0f, &exponent), DP_WIRE_NONE);
}

static void plan_wire_brings_the_largest_below_the_top(void **unused)
{
    (void)unused;
    for (int power = -149; power < 128; power++) {
        for (float mantissa = 1.0f; mantissa < 2.0f; mantissa += 0.24f) {
            float absmax = ldexpf(mantissa, power), scaled;
            int exponent;

            if (!(absmax > 0.0f)) continue;
            assert_int_equal(dp_plan_wire(DP_WIRE_FP16, absmax, &exponent), DP_WIRE_FP16);
            scaled = ldexpf(absmax, exponent);
            assert_true(scaled < 256.0f);
            assert_true(scaled >= 128.0f || exponent == 96);
            assert_true(isnormal(ldexpf(1.0f, exponent)) && isnormal(ldexpf(1.0f, -exponent)));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_neighbours_share_a_bucket),
        cmocka_unit_test(plan_rows_of_a_reduce_scatter_lie_together),
        cmocka_unit_test(plan_oversized_tensor_is_cut_and_its_rest_shared),
        cmocka_unit_test(plan_in_place_travels_whole),
        cmocka_unit_test(plan_looks_past_other_kinds),
        cmocka_unit_test(plan_reduces_share_a_bucket_whatever_their_roots),
        cmocka_unit_test(plan_integer_averages_share_a_divisor),
        cmocka_unit_test(plan_exchanges_travel_alone),
        cmocka_unit_test(plan_nothing_of_nothing),
        cmocka_unit_test(plan_refuses_what_cannot_be),
        cmocka_unit_test(plan_keeps_its_rules_for_any_entries),
        cmocka_unit_test(plan_survives_every_failed_allocation),
        cmocka_unit_test(plan_unknown_magnitudes_travel_uncompressed_once),
        cmocka_unit_test(plan_wire_brings_the_largest_below_the_top),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
