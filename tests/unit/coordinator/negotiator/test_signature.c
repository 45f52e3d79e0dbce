/*
 * test_signature.c - signatures compare, travel and explain themselves; items survive the wire.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/negotiator/messages.h"
#include "tests/unit/cases.h"

static dp_signature_part_t base_parts[3] = {{768, DP_F32}, {16, DP_F32}, {5, DP_I64}};

static dp_signature_t base(void)
{
    dp_signature_t signature = {.collective = DP_COLLECTIVE_ALLREDUCE,
                                .reduce = DP_SUM,
                                .wire = DP_WIRE_FP16,
                                .root = -1,
                                .peer = -1,
                                .is_grouped = 1,
                                .prescale = 1.0,
                                .postscale = 0.5,
                                .part_count = 3,
                                .parts = base_parts};

    return signature;
}

static void expect_difference(const dp_signature_t *b, const char *field, const char *value_a,
                              const char *value_b)
{
    dp_signature_t a = base();
    char texts[3][64];

    assert_false(dp_signature_equal(&a, b));
    dp_signature_difference(&a, b, texts[0], texts[1], texts[2], 64);
    assert_string_equal(texts[0], field);
    assert_string_equal(texts[1], value_a);
    assert_string_equal(texts[2], value_b);
}

static void signature_first_difference_is_told(void **state)
{
    dp_signature_part_t parts[3];
    dp_signature_t b = base();

    (void)state;
    b.collective = DP_COLLECTIVE_BROADCAST;
    expect_difference(&b, "collective", "allreduce", "broadcast");
    b = base();
    b.reduce = DP_MAX;
    expect_difference(&b, "reduce", "sum", "max");
    b = base();
    b.root = 3;
    expect_difference(&b, "root", "-1", "3");
    b = base();
    b.wire = DP_WIRE_NONE;
    expect_difference(&b, "wire", "fp16", "none");
    b = base();
    b.prescale = 0.5;
    expect_difference(&b, "prescale", "1", "0.5");
    b = base();
    b.tag = 0xabc;
    expect_difference(&b, "tag", "0000000000000000", "0000000000000abc");
    b = base();
    b.part_count = 2;
    expect_difference(&b, "number of tensors", "3", "2");
    b = base();
    memcpy(parts, base_parts, sizeof(parts));
    b.parts = parts;
    parts[2].count = UINT64_MAX;
    expect_difference(&b, "count of tensor 2", "5", "18446744073709551615");
    parts[1].dtype = DP_F64;
    expect_difference(&b, "dtype of tensor 1", "f32", "f64");
}

static void signature_scales_compare_by_bits(void **state)
{
    dp_signature_t a = base(), b = base();

    (void)state;
    a.prescale = b.prescale = NAN;
    assert_true(dp_signature_equal(&a, &b));
    b.prescale = 1.0 + 2.3e-16;
    a.prescale = 1.0;
    assert_false(dp_signature_equal(&a, &b));
}

static void signature_tag_travels(void **state)
{
    dp_signature_t a = base(), *b;
    uint8_t data[256];
    dp_writer_t writer;
    dp_reader_t reader;
    dp_status_t status;

    (void)state;
    a.tag = UINT64_C(0xfedcba9876543210);
    dp_writer_init(&writer, data, sizeof(data));
    dp_signature_write(&a, &writer);
    assert_int_equal(writer.bytes, dp_signature_bytes(&a));
    dp_reader_init(&reader, data, writer.bytes);
    b = dp_signature_read(&reader, &status);
    assert_non_null(b);
    assert_true(dp_signature_equal(&a, b));
    assert_int_equal(dp_reader_left(&reader), 0);
    free(b);
    for (size_t cut = 0; cut < writer.bytes; cut++) {
        dp_reader_init(&reader, data, cut);
        assert_null(dp_signature_read(&reader, &status));
    }
    memset(data + 32, 0, 8); /* a flag for a tag that is none: two forms of one signature */
    dp_reader_init(&reader, data, writer.bytes);
    assert_null(dp_signature_read(&reader, &status));
}

static void signature_travels_unchanged(void **state)
{
    dp_signature_t a = base(), *b;
    uint8_t data[256];
    dp_writer_t writer;
    dp_reader_t reader;
    dp_status_t status;

    (void)state;
    dp_writer_init(&writer, data, sizeof(data));
    dp_signature_write(&a, &writer);
    assert_int_equal(writer.bytes, dp_signature_bytes(&a));
    dp_reader_init(&reader, data, writer.bytes);
    b = dp_signature_read(&reader, &status);
    assert_non_null(b);
    assert_int_equal(status, DP_OK);
    assert_true(dp_signature_equal(&a, b));
    free(b);
    for (size_t cut = 0; cut < writer.bytes; cut++) { /* truncated anywhere */
        dp_reader_init(&reader, data, cut);
        assert_null(dp_signature_read(&reader, &status));
        assert_int_equal(status, DP_ERR_INVALID);
    }
    for (size_t at = 0; at < 4; at++) { /* a collective, reduce, wire, grouped that is none */
        uint8_t kept = data[at];

        data[at] = 99;
        dp_reader_init(&reader, data, writer.bytes);
        assert_null(dp_signature_read(&reader, &status));
        data[at] = kept;
    }
    memset(data + 28, 0xff, 4); /* four thousand million parts */
    dp_reader_init(&reader, data, writer.bytes);
    assert_null(dp_signature_read(&reader, &status));
}

/* A written item is read again, and every cut of it is refused. */
static void expect_round_trip(const dp_item_t *in, dp_item_t *out)
{
    uint8_t data[4096];
    dp_writer_t writer;
    dp_reader_t reader;

    dp_writer_init(&writer, data, sizeof(data));
    dp_item_write(&writer, in);
    assert_false(writer.failed);
    assert_true(writer.bytes <= dp_item_bound(in));
    for (size_t cut = 0; cut < writer.bytes; cut++) {
        if (in->kind == DP_ITEM_LAUNCH) break; /* its entries are missing here */
        dp_reader_init(&reader, data, cut);
        assert_int_equal(dp_item_read(&reader, out), DP_ERR_INVALID);
    }
    dp_reader_init(&reader, data, writer.bytes);
    assert_int_equal(dp_item_read(&reader, out), DP_OK);
    assert_int_equal(dp_reader_left(&reader), 0);
    assert_int_equal(out->kind, in->kind);
}

static void item_every_kind_travels_unchanged(void **state)
{
    dp_signature_t signature = base(), other = base();
    dp_item_t in, out;

    (void)state;
    other.root = 2;
    memset(&in, 0, sizeof(in));
    in.root = in.peer = -1;
    in.id = DP_ID_NONE;
    in.name = "wte";
    in.version = 513;
    in.flags = DP_FLAG_IN_PLACE | DP_FLAG_SIGNATURE;
    in.absmax = 3.5f;
    in.signature = &signature;
    in.other = &other;
    in.rank = 70000;
    in.other_rank = 4;
    in.age_ns = in.position = UINT64_C(1) << 40;
    in.count = 9;
    in.status = DP_ERR_MISMATCH;
    in.text = "because";
    in.round = 6;
    in.patience_ms = 750;
    in.missing.count = 12;
    in.missing.named = 1;
    in.missing.ranks[0] = (dp_missing_rank_t){3, 8, "step 4"};
    in.kind = DP_ITEM_READY;
    expect_round_trip(&in, &out);
    assert_string_equal(out.name, "wte");
    assert_int_equal(out.version, 513);
    assert_float_equal(out.absmax, 3.5f, 0);
    assert_true(dp_signature_equal(out.signature, &signature));
    assert_int_equal(out.priority, 0);
    dp_item_fini(&out);
    in.flags |= DP_FLAG_PRIORITY;
    in.priority = -7;
    expect_round_trip(&in, &out);
    assert_int_equal(out.priority, -7);
    dp_item_fini(&out);
    in.kind = DP_ITEM_MISMATCH;
    expect_round_trip(&in, &out);
    assert_int_equal(out.rank, 70000);
    assert_true(dp_signature_equal(out.other, &other));
    dp_item_fini(&out);
    in.kind = DP_ITEM_KEEP;
    expect_round_trip(&in, &out);
    assert_int_equal(out.position, UINT64_C(1) << 40);
    in.id = 5;
    in.kind = DP_ITEM_PARTIAL;
    expect_round_trip(&in, &out);
    assert_int_equal(out.id, 5);
    assert_int_equal(out.age_ns, UINT64_C(1) << 40);
    in.kind = DP_ITEM_MISSING;
    expect_round_trip(&in, &out);
    assert_int_equal(out.missing.count, 12);
    assert_string_equal(out.missing.ranks[0].progress, "step 4");
    in.flags = DP_FLAG_NAME;
    in.kind = DP_ITEM_FAILURE;
    expect_round_trip(&in, &out);
    assert_int_equal(out.status, DP_ERR_MISMATCH);
    assert_string_equal(out.text, "because");
    in.rank = -1;
    in.kind = DP_ITEM_FATAL;
    expect_round_trip(&in, &out);
    assert_int_equal(out.rank, -1);
    in.kind = DP_ITEM_WHO;
    expect_round_trip(&in, &out);
    assert_int_equal(out.patience_ms, 750);
    for (size_t i = 0; i < 6; i++) {
        static const dp_item_kind_t kinds[] = {DP_ITEM_URGENT, DP_ITEM_LEFT, DP_ITEM_FIN,
                                               DP_ITEM_CLOSED, DP_ITEM_BYE,  DP_ITEM_WARN};

        in.kind = kinds[i];
        expect_round_trip(&in, &out);
    }
}

static void absmax_unknown_and_nan_have_one_form(void **state)
{
    (void)state;
    assert_true(isinf(dp_absmax_clean(NAN)));
    assert_float_equal(dp_absmax_clean(-7.0f), -1.0f, 0);
    assert_float_equal(dp_absmax_merge(2.0f, 3.0f), 3.0f, 0);
    assert_float_equal(dp_absmax_merge(-1.0f, 3.0f), -1.0f, 0);
    assert_true(isinf(dp_absmax_merge(INFINITY, 3.0f)));
}

static void payload_has_all_rows(void **state)
{
    dp_signature_part_t parts[2] = {{10, DP_F32}, {3, DP_F64}};
    dp_signature_t signature = {
        .collective = DP_COLLECTIVE_ALLREDUCE, .part_count = 2, .parts = parts};

    (void)state;
    assert_int_equal(dp_signature_payload(&signature, 4), 64);
    signature.collective = DP_COLLECTIVE_REDUCE_SCATTER;
    assert_int_equal(dp_signature_payload(&signature, 4), 256);
    parts[0].count = UINT64_MAX / 4;
    assert_true(dp_signature_payload(&signature, 4) == UINT64_MAX);
    parts[0].count = UINT64_MAX / 16;
    parts[1].count = UINT64_MAX / 16;
    assert_true(dp_signature_payload(&signature, 4) == UINT64_MAX);
    signature.part_count = 0;
    assert_int_equal(dp_signature_payload(&signature, 4), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signature_first_difference_is_told),
        cmocka_unit_test(signature_scales_compare_by_bits),
        cmocka_unit_test(signature_travels_unchanged),
        cmocka_unit_test(signature_tag_travels),
        cmocka_unit_test(item_every_kind_travels_unchanged),
        cmocka_unit_test(absmax_unknown_and_nan_have_one_form),
        cmocka_unit_test(payload_has_all_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
