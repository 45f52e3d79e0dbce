/*
 * signature.c - compares, explains and carries what ranks must agree on about one operation.
 *
 * Scales are compared by their bits: a rank that computed 1/3 in another way would get other
 * results, and NaN must equal itself or it could never be agreed on.
 */
#include "coordinator/signature.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes on the wire before the parts, and of one part. */
#define SIGNATURE_HEAD_BYTES 28
#define SIGNATURE_PART_BYTES 9

static int equal_bits(double a, double b)
{
    uint64_t bits_a, bits_b;

    memcpy(&bits_a, &a, sizeof(a));
    memcpy(&bits_b, &b, sizeof(b));
    return bits_a == bits_b;
}

static int equal_parts(const dp_signature_t *a, const dp_signature_t *b)
{
    for (uint32_t i = 0; i < a->part_count; i++) {
        if (a->parts[i].count != b->parts[i].count) return 0;
        if (a->parts[i].dtype != b->parts[i].dtype) return 0;
    }
    return 1;
}

int dp_signature_equal(const dp_signature_t *a, const dp_signature_t *b)
{
    if (a == b) return 1;
    return a->collective == b->collective && a->reduce == b->reduce && a->wire == b->wire &&
           a->root == b->root && !a->is_grouped == !b->is_grouped &&
           equal_bits(a->prescale, b->prescale) && equal_bits(a->postscale, b->postscale) &&
           a->part_count == b->part_count && equal_parts(a, b);
}

/* ---- In words --------------------------------------------------------------------------- */

static const char *yes_no(int value)
{
    return value ? "yes" : "no";
}

/* "count" of a lone tensor, "count of tensor 3" in a grouped list. */
static void name_part(const dp_signature_t *signature, const char *what, uint32_t part, char *field,
                      size_t room)
{
    if (signature->is_grouped) {
        snprintf(field, room, "%s of tensor %" PRIu32, what, part);
    } else {
        snprintf(field, room, "%s", what);
    }
}

static void describe_parts(const dp_signature_t *a, const dp_signature_t *b, char *field,
                           char *value_a, char *value_b, size_t room)
{
    for (uint32_t i = 0; i < a->part_count && i < b->part_count; i++) {
        if (a->parts[i].dtype != b->parts[i].dtype) {
            name_part(a, "dtype", i, field, room);
            snprintf(value_a, room, "%s", dp_dtype_name(a->parts[i].dtype));
            snprintf(value_b, room, "%s", dp_dtype_name(b->parts[i].dtype));
            return;
        }
        if (a->parts[i].count != b->parts[i].count) {
            name_part(a, "count", i, field, room);
            snprintf(value_a, room, "%" PRIu64, a->parts[i].count);
            snprintf(value_b, room, "%" PRIu64, b->parts[i].count);
            return;
        }
    }
}

void dp_signature_difference(const dp_signature_t *a, const dp_signature_t *b, char *field,
                             char *value_a, char *value_b, size_t room)
{
    if (room == 0) return;
    field[0] = value_a[0] = value_b[0] = '\0';
    if (a->collective != b->collective) {
        snprintf(field, room, "collective");
        snprintf(value_a, room, "%s", dp_collective_name(a->collective));
        snprintf(value_b, room, "%s", dp_collective_name(b->collective));
    } else if (!a->is_grouped != !b->is_grouped) {
        snprintf(field, room, "grouped");
        snprintf(value_a, room, "%s", yes_no(a->is_grouped));
        snprintf(value_b, room, "%s", yes_no(b->is_grouped));
    } else if (a->reduce != b->reduce) {
        snprintf(field, room, "reduce");
        snprintf(value_a, room, "%s", dp_reduce_name(a->reduce));
        snprintf(value_b, room, "%s", dp_reduce_name(b->reduce));
    } else if (a->root != b->root) {
        snprintf(field, room, "root");
        snprintf(value_a, room, "%d", a->root);
        snprintf(value_b, room, "%d", b->root);
    } else if (a->part_count != b->part_count) {
        snprintf(field, room, "number of tensors");
        snprintf(value_a, room, "%" PRIu32, a->part_count);
        snprintf(value_b, room, "%" PRIu32, b->part_count);
    } else if (!equal_parts(a, b)) {
        describe_parts(a, b, field, value_a, value_b, room);
    } else if (a->wire != b->wire) {
        snprintf(field, room, "wire");
        snprintf(value_a, room, "%s", dp_wire_name(a->wire));
        snprintf(value_b, room, "%s", dp_wire_name(b->wire));
    } else if (!equal_bits(a->prescale, b->prescale)) {
        snprintf(field, room, "prescale");
        snprintf(value_a, room, "%.17g", a->prescale);
        snprintf(value_b, room, "%.17g", b->prescale);
    } else if (!equal_bits(a->postscale, b->postscale)) {
        snprintf(field, room, "postscale");
        snprintf(value_a, room, "%.17g", a->postscale);
        snprintf(value_b, room, "%.17g", b->postscale);
    }
}

/* ---- On the wire ------------------------------------------------------------------------ */

/*
 * u8 collective, u8 reduce, u8 wire, u8 grouped, u32 root (all ones: none), f64 prescale,
 * f64 postscale, u32 parts, then per part u64 count, u8 dtype.
 */
void dp_signature_write(const dp_signature_t *signature, dp_writer_t *writer)
{
    dp_write_u8(writer, (uint8_t)signature->collective);
    dp_write_u8(writer, (uint8_t)signature->reduce);
    dp_write_u8(writer, (uint8_t)signature->wire);
    dp_write_u8(writer, signature->is_grouped ? 1 : 0);
    dp_write_u32(writer, (uint32_t)signature->root);
    dp_write_f64(writer, signature->prescale);
    dp_write_f64(writer, signature->postscale);
    dp_write_u32(writer, signature->part_count);
    for (uint32_t i = 0; i < signature->part_count; i++) {
        dp_write_u64(writer, signature->parts[i].count);
        dp_write_u8(writer, (uint8_t)signature->parts[i].dtype);
    }
}

size_t dp_signature_bytes(const dp_signature_t *signature)
{
    return SIGNATURE_HEAD_BYTES + (size_t)signature->part_count * SIGNATURE_PART_BYTES;
}

/* One block: the signature, its parts behind it. */
static dp_signature_t *allocate(uint32_t part_count, dp_signature_part_t **parts)
{
    dp_signature_t *signature =
        malloc(sizeof(*signature) + (size_t)part_count * sizeof(dp_signature_part_t));

    if (signature != NULL) *parts = (dp_signature_part_t *)(void *)(signature + 1);
    return signature;
}

dp_signature_t *dp_signature_copy(const dp_signature_t *signature)
{
    dp_signature_part_t *parts;
    dp_signature_t *copy = allocate(signature->part_count, &parts);

    if (copy == NULL) return NULL;
    *copy = *signature;
    copy->parts = parts;
    for (uint32_t i = 0; i < signature->part_count; i++)
        parts[i] = signature->parts[i];
    return copy;
}

/* What the head of a signature may hold; parts are checked as they are read. */
static int is_head_valid(const dp_signature_t *head)
{
    return (unsigned)head->collective < DP_COLLECTIVE_COUNT &&
           (unsigned)head->reduce < DP_REDUCE_COUNT && (unsigned)head->wire <= DP_WIRE_BF16 &&
           (unsigned)head->is_grouped <= 1 && head->root >= -1 &&
           head->part_count <= DP_GROUPED_MAX;
}

dp_signature_t *dp_signature_read(dp_reader_t *reader, dp_status_t *status)
{
    dp_signature_t head, *signature;
    dp_signature_part_t *parts;

    *status = DP_ERR_INVALID;
    head.collective = (dp_collective_t)dp_read_u8(reader);
    head.reduce = (dp_reduce_t)dp_read_u8(reader);
    head.wire = (dp_wire_t)dp_read_u8(reader);
    head.is_grouped = dp_read_u8(reader);
    head.root = (int)dp_read_u32(reader);
    head.prescale = dp_read_f64(reader);
    head.postscale = dp_read_f64(reader);
    head.part_count = dp_read_u32(reader);
    if (reader->failed || !is_head_valid(&head)) return NULL;
    /* What the bytes cannot hold must not be allocated for. */
    if (dp_reader_left(reader) / SIGNATURE_PART_BYTES < head.part_count) return NULL;
    signature = allocate(head.part_count, &parts);
    if (signature == NULL) {
        *status = DP_ERR_NO_MEMORY;
        return NULL;
    }
    *signature = head;
    signature->parts = parts;
    for (uint32_t i = 0; i < head.part_count; i++) {
        parts[i].count = dp_read_u64(reader);
        parts[i].dtype = (dp_dtype_t)dp_read_u8(reader);
        if ((unsigned)parts[i].dtype < DP_DTYPE_COUNT) continue;
        free(signature);
        return NULL;
    }
    *status = DP_OK;
    return signature;
}
