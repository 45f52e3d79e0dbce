/*
 * signature.c - compares, explains and carries what ranks must agree on about one operation.
 *
 * Scales are compared by their bits: a rank that computed 1/3 in another way would get other
 * results, and NaN must equal itself or it could never be agreed on.
 *
 * The negotiator's other files call it on the thread that drives the negotiator, to compare what
 * ranks propose, to put it into messages and to word a mismatch.
 */
#include "coordinator/negotiator/signature.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes on the wire before the tag and the parts, of a tag, and of one part. */
#define SIGNATURE_HEAD_BYTES 32
#define SIGNATURE_TAG_BYTES 8
#define SIGNATURE_PART_BYTES 9
#define SIGNATURE_MEMBER_BYTES 4

#define FLAG_GROUPED 1u
#define FLAG_COUNT_JOINED 2u
#define FLAG_TAG 4u /* a tag follows the head */
#define FLAGS (FLAG_GROUPED | FLAG_COUNT_JOINED | FLAG_TAG)

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

static int equal_members(const dp_signature_t *a, const dp_signature_t *b)
{
    for (uint32_t i = 0; i < a->member_count; i++) {
        if (a->members[i] != b->members[i]) return 0;
    }
    return 1;
}

int dp_signature_equal(const dp_signature_t *a, const dp_signature_t *b)
{
    if (a == b) return 1;
    return a->collective == b->collective && a->reduce == b->reduce && a->wire == b->wire &&
           a->root == b->root && a->peer == b->peer && !a->is_grouped == !b->is_grouped &&
           !a->count_joined == !b->count_joined && equal_bits(a->prescale, b->prescale) &&
           equal_bits(a->postscale, b->postscale) && a->tag == b->tag &&
           a->part_count == b->part_count && equal_parts(a, b) &&
           a->member_count == b->member_count && equal_members(a, b);
}

/* ---- In words ------------------------------------------------------------------------------- */

static const char *yes_no(int value)
{
    return value ? "yes" : "no";
}

static const char *order_name(uint64_t order)
{
    return order == DP_ORDER_PROGRAM ? "program" : "negotiated";
}

/* "count" of a lone tensor, "count of tensor 3" in a grouped list, "count for rank 3" where the
 * parts are the ranks'. */
static void name_part(const dp_signature_t *signature, const char *what, uint32_t part, char *field,
                      size_t room)
{
    if (signature->collective == DP_COLLECTIVE_REDUCE_SCATTERV) {
        snprintf(field, room, "%s for rank %" PRIu32, what, part);
    } else if (signature->is_grouped) {
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

static void describe_member(const dp_signature_t *signature, uint32_t member, char *value,
                            size_t room)
{
    if (member < signature->member_count) {
        snprintf(value, room, "rank %" PRId32, signature->members[member]);
    } else {
        snprintf(value, room, "none");
    }
}

/* The first place where two lists of members differ. */
static void describe_members(const dp_signature_t *a, const dp_signature_t *b, char *field,
                             char *value_a, char *value_b, size_t room)
{
    const uint32_t common = dp_min(a->member_count, b->member_count);
    uint32_t i = 0;

    while (i < common && a->members[i] == b->members[i])
        i++;
    snprintf(field, room, "member %" PRIu32, i);
    describe_member(a, i, value_a, room);
    describe_member(b, i, value_b, room);
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
    } else if (a->peer != b->peer) {
        snprintf(field, room, "peer");
        snprintf(value_a, room, "%d", a->peer);
        snprintf(value_b, room, "%d", b->peer);
    } else if (a->member_count != b->member_count || !equal_members(a, b)) {
        describe_members(a, b, field, value_a, value_b, room);
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
    } else if (!a->count_joined != !b->count_joined) {
        snprintf(field, room, "count_joined");
        snprintf(value_a, room, "%s", yes_no(a->count_joined));
        snprintf(value_b, room, "%s", yes_no(b->count_joined));
    } else if (a->tag != b->tag && a->collective == DP_COLLECTIVE_GROUP_CREATE) {
        snprintf(field, room, "order");
        snprintf(value_a, room, "%s", order_name(a->tag));
        snprintf(value_b, room, "%s", order_name(b->tag));
    } else if (a->tag != b->tag) {
        snprintf(field, room, "tag");
        snprintf(value_a, room, "%016" PRIx64, a->tag);
        snprintf(value_b, room, "%016" PRIx64, b->tag);
    }
}

/* ---- On the wire ---------------------------------------------------------------------------- */

static const char *group_name(const dp_signature_t *signature)
{
    return signature->group_name != NULL ? signature->group_name : "";
}

uint64_t dp_signature_payload(const dp_signature_t *signature, int ranks)
{
    const uint64_t rows =
        signature->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (uint64_t)ranks : 1;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < signature->part_count; i++) {
        const dp_signature_part_t *part = &signature->parts[i];
        uint64_t more;

        if (__builtin_mul_overflow(part->count, dp_dtype_bytes(part->dtype) * rows, &more) ||
            __builtin_add_overflow(bytes, more, &bytes))
            return UINT64_MAX;
    }
    return bytes;
}

/*
 * u8 collective, u8 reduce, u8 wire, u8 flags, u32 root, u32 peer (all ones: none), f64 prescale,
 * f64 postscale, u32 parts, u64 tag if its flag is set, then per part u64 count, u8 dtype; of a
 * group_create then u32 members, per member u32 rank, text name.
 */
void dp_signature_write(const dp_signature_t *signature, dp_writer_t *writer)
{
    unsigned flags = 0;

    if (signature->is_grouped) flags |= FLAG_GROUPED;
    if (signature->count_joined) flags |= FLAG_COUNT_JOINED;
    if (signature->tag != 0) flags |= FLAG_TAG;
    dp_write_u8(writer, (uint8_t)signature->collective);
    dp_write_u8(writer, (uint8_t)signature->reduce);
    dp_write_u8(writer, (uint8_t)signature->wire);
    dp_write_u8(writer, (uint8_t)flags);
    dp_write_u32(writer, (uint32_t)signature->root);
    dp_write_u32(writer, (uint32_t)signature->peer);
    dp_write_f64(writer, signature->prescale);
    dp_write_f64(writer, signature->postscale);
    dp_write_u32(writer, signature->part_count);
    if (signature->tag != 0) dp_write_u64(writer, signature->tag);
    for (uint32_t i = 0; i < signature->part_count; i++) {
        dp_write_u64(writer, signature->parts[i].count);
        dp_write_u8(writer, (uint8_t)signature->parts[i].dtype);
    }
    if (signature->collective != DP_COLLECTIVE_GROUP_CREATE) return;
    dp_write_u32(writer, signature->member_count);
    for (uint32_t i = 0; i < signature->member_count; i++) {
        dp_write_u32(writer, (uint32_t)signature->members[i]);
    }
    dp_write_text(writer, group_name(signature));
}

size_t dp_signature_bytes(const dp_signature_t *signature)
{
    size_t bytes = SIGNATURE_HEAD_BYTES + (size_t)signature->part_count * SIGNATURE_PART_BYTES;

    if (signature->tag != 0) bytes += SIGNATURE_TAG_BYTES;
    if (signature->collective != DP_COLLECTIVE_GROUP_CREATE) return bytes;
    return bytes + 4 + (size_t)signature->member_count * SIGNATURE_MEMBER_BYTES + 2 +
           strlen(group_name(signature));
}

/* A signature with room for what its head announces, in one block: lists behind it. */
static dp_signature_t *allocate_signature(const dp_signature_t *head, dp_signature_part_t **parts,
                                          int32_t **members, char **name)
{
    size_t part_bytes = (size_t)head->part_count * sizeof(dp_signature_part_t);
    size_t member_bytes = (size_t)head->member_count * sizeof(int32_t);
    dp_signature_t *signature =
        malloc(sizeof(*signature) + part_bytes + member_bytes + DP_GROUP_NAME_MAX + 1);

    if (signature == NULL) return NULL;
    *signature = *head;
    *parts = (dp_signature_part_t *)(void *)(signature + 1);
    *members = (int32_t *)(void *)(*parts + head->part_count);
    *name = (char *)(*members + head->member_count);
    (*name)[0] = '\0';
    signature->parts = *parts;
    signature->members = *members;
    signature->group_name = *name;
    return signature;
}

dp_signature_t *dp_signature_copy(const dp_signature_t *signature)
{
    dp_signature_part_t *parts;
    int32_t *members;
    char *name;
    dp_signature_t *copy = allocate_signature(signature, &parts, &members, &name);

    if (copy == NULL) return NULL;
    for (uint32_t i = 0; i < signature->part_count; i++)
        parts[i] = signature->parts[i];
    for (uint32_t i = 0; i < signature->member_count; i++)
        members[i] = signature->members[i];
    snprintf(name, DP_GROUP_NAME_MAX + 1, "%s", group_name(signature));
    return copy;
}

/* Checks the head of a signature; lists are checked as they are read. */
static int is_head_valid(const dp_signature_t *head, unsigned flags)
{
    return (unsigned)head->collective < DP_COLLECTIVE_COUNT &&
           (unsigned)head->reduce < DP_REDUCE_COUNT && (unsigned)head->wire <= DP_WIRE_BF16 &&
           flags <= FLAGS && (head->tag != 0) == ((flags & FLAG_TAG) != 0) && head->root >= -1 &&
           head->peer >= -1 &&
           (head->part_count <= DP_GROUPED_MAX ||
            head->collective == DP_COLLECTIVE_REDUCE_SCATTERV);
}

static int read_parts(dp_reader_t *reader, dp_signature_part_t *parts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        parts[i].count = dp_read_u64(reader);
        parts[i].dtype = (dp_dtype_t)dp_read_u8(reader);
        if ((unsigned)parts[i].dtype >= DP_DTYPE_COUNT) return 0;
    }
    return 1;
}

/* Ascending, so that two lists of one set are equal. */
static int read_members(dp_reader_t *reader, int32_t *members, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        members[i] = (int32_t)dp_read_u32(reader);
        if (members[i] < 0 || (i > 0 && members[i] <= members[i - 1])) return 0;
    }
    return 1;
}

static void read_signature_head(dp_reader_t *reader, dp_signature_t *head, unsigned *flags)
{
    memset(head, 0, sizeof(*head));
    head->collective = (dp_collective_t)dp_read_u8(reader);
    head->reduce = (dp_reduce_t)dp_read_u8(reader);
    head->wire = (dp_wire_t)dp_read_u8(reader);
    *flags = dp_read_u8(reader);
    head->is_grouped = (*flags & FLAG_GROUPED) != 0;
    head->count_joined = (*flags & FLAG_COUNT_JOINED) != 0;
    head->root = (int)dp_read_u32(reader);
    head->peer = (int)dp_read_u32(reader);
    head->prescale = dp_read_f64(reader);
    head->postscale = dp_read_f64(reader);
    head->part_count = dp_read_u32(reader);
    if (*flags & FLAG_TAG) head->tag = dp_read_u64(reader);
}

/* How many members follow the parts; the reader stays where it is. 0: none, or not enough bytes. */
static uint32_t peek_members(const dp_reader_t *reader, uint32_t part_count)
{
    dp_reader_t ahead = *reader;
    uint32_t count;

    dp_read_bytes(&ahead, (size_t)part_count * SIGNATURE_PART_BYTES);
    count = dp_read_u32(&ahead);
    return ahead.failed || dp_reader_left(&ahead) / SIGNATURE_MEMBER_BYTES < count ? 0 : count;
}

dp_signature_t *dp_signature_read(dp_reader_t *reader, dp_status_t *status)
{
    dp_signature_t head, *signature;
    dp_signature_part_t *parts;
    int32_t *members;
    char *name;
    unsigned flags;
    int is_create;

    *status = DP_ERR_INVALID;
    read_signature_head(reader, &head, &flags);
    if (reader->failed || !is_head_valid(&head, flags)) return NULL;
    /* Memory is allocated only for as many parts as the bytes can hold. */
    if (dp_reader_left(reader) / SIGNATURE_PART_BYTES < head.part_count) return NULL;
    is_create = head.collective == DP_COLLECTIVE_GROUP_CREATE;
    if (is_create) head.member_count = peek_members(reader, head.part_count);
    if (is_create && head.member_count == 0) return NULL;
    signature = allocate_signature(&head, &parts, &members, &name);
    if (signature == NULL) {
        *status = DP_ERR_NO_MEMORY;
        return NULL;
    }
    if (!read_parts(reader, parts, head.part_count)) goto malformed;
    if (is_create) {
        (void)dp_read_u32(reader);
        if (!read_members(reader, members, head.member_count)) goto malformed;
        dp_read_text(reader, name, DP_GROUP_NAME_MAX + 1);
    }
    if (reader->failed) goto malformed;
    *status = DP_OK;
    return signature;
malformed:
    free(signature);
    return NULL;
}
