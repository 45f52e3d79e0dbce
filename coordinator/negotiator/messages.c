/*
 * messages.c - items and frames as bytes, and back. messages.h lists the bytes of each kind.
 *
 * Called on the thread that drives the negotiator: order.c and outbox.c have items written;
 * receive.c reads them. Bytes may come from a faulty or a
 * hostile peer: a reader checks each field before it is used, and an item that is refused keeps no
 * memory. It must not know what an item means.
 */
#include "coordinator/negotiator/messages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY_BYTES_MIN 9 /* id, flags, absmax */

float dp_absmax_clean(float absmax)
{
    if (isnan(absmax)) return INFINITY;
    return absmax < 0 ? -1.0f : absmax;
}

float dp_absmax_merge(float a, float b)
{
    if (a < 0 || b < 0) return -1.0f;
    return a > b ? a : b;
}

/* ---- Writing -------------------------------------------------------------------------------- */

static void write_f32(dp_writer_t *writer, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    dp_write_u32(writer, bits);
}

static void write_key(dp_writer_t *writer, const dp_item_t *item)
{
    dp_write_u32(writer, item->group);
    dp_write_u32(writer, (uint32_t)item->root);
    dp_write_u32(writer, (uint32_t)item->peer);
    dp_write_text(writer, item->name);
}

static void write_ref(dp_writer_t *writer, const dp_item_t *item)
{
    dp_write_u32(writer, item->id);
    if (item->id == DP_ID_NONE) write_key(writer, item);
}

/* An item about a group to be made lists its ranks: no receiver can derive them. */
static int has_list(const dp_item_t *item)
{
    return item->id == DP_ID_NONE && item->group == DP_GROUP_UNBORN;
}

static void write_list(dp_writer_t *writer, const dp_item_t *item)
{
    dp_write_u32(writer, item->list_count);
    for (uint32_t i = 0; i < item->list_count; i++)
        dp_write_u32(writer, (uint32_t)item->list[i]);
}

static void write_absent(dp_writer_t *writer, const dp_item_t *item)
{
    dp_write_u32(writer, item->absent);
    dp_write_u32(writer, (uint32_t)item->rank);
}

static void write_missing(dp_writer_t *writer, const dp_missing_t *missing)
{
    dp_write_u32(writer, missing->count);
    dp_write_u8(writer, (uint8_t)missing->named);
    for (uint32_t i = 0; i < missing->named; i++) {
        dp_write_u32(writer, (uint32_t)missing->ranks[i].rank);
        dp_write_u32(writer, missing->ranks[i].pending);
        dp_write_text(writer, missing->ranks[i].progress);
    }
}

void dp_frame_write_header(dp_writer_t *writer, const dp_frame_header_t *header)
{
    dp_write_u8(writer, DP_FRAME_VERSION);
    dp_write_u8(writer, 0);
    dp_write_u16(writer, 0);
    dp_write_u32(writer, 0);
    dp_write_u64(writer, header->position);
}

void dp_item_write(dp_writer_t *writer, const dp_item_t *item)
{
    dp_write_u8(writer, (uint8_t)item->kind);
    switch (item->kind) {
    case DP_ITEM_READY:
        write_ref(writer, item);
        dp_write_u16(writer, item->version);
        dp_write_u8(writer, item->flags);
        write_f32(writer, item->absmax);
        if (item->flags & DP_FLAG_ABSENT) write_absent(writer, item);
        if (item->flags & DP_FLAG_PRIORITY) dp_write_u32(writer, (uint32_t)item->priority);
        if (item->flags & DP_FLAG_SIGNATURE) dp_signature_write(item->signature, writer);
        break;
    case DP_ITEM_LACKS:
        write_ref(writer, item);
        dp_write_u32(writer, (uint32_t)item->rank);
        dp_signature_write(item->signature, writer);
        break;
    case DP_ITEM_MISMATCH:
    case DP_ITEM_CONTEST:
        write_ref(writer, item);
        dp_write_u32(writer, (uint32_t)item->rank);
        dp_write_u32(writer, (uint32_t)item->other_rank);
        dp_signature_write(item->signature, writer);
        dp_signature_write(item->other, writer);
        break;
    case DP_ITEM_URGENT:
    case DP_ITEM_EXPIRED:
        write_ref(writer, item);
        break;
    case DP_ITEM_PARTIAL:
        write_ref(writer, item);
        if (has_list(item)) write_list(writer, item);
        dp_write_u64(writer, item->age_ns);
        break;
    case DP_ITEM_LEFT:
        dp_write_u32(writer, (uint32_t)item->rank);
        break;
    case DP_ITEM_JOIN:
    case DP_ITEM_JOINED:
        dp_write_u32(writer, item->group);
        dp_write_u32(writer, (uint32_t)item->rank);
        break;
    case DP_ITEM_CLOSED:
        dp_write_u32(writer, item->group);
        dp_write_u32(writer, (uint32_t)item->rank);
        dp_write_u32(writer, item->count);
        break;
    case DP_ITEM_SEEK:
        dp_write_u64(writer, item->position);
        break;
    case DP_ITEM_KEEP:
        dp_write_u32(writer, (uint32_t)item->rank);
        dp_write_u64(writer, item->position);
        write_ref(writer, item);
        break;
    case DP_ITEM_MISSING:
        dp_write_u32(writer, item->round);
        write_missing(writer, &item->missing);
        break;
    case DP_ITEM_LAUNCH:
        dp_write_u64(writer, item->sequence);
        dp_write_u32(writer, item->count);
        break;
    case DP_ITEM_FAILURE:
        dp_write_u32(writer, item->id);
        dp_write_u8(writer, item->flags);
        if (item->flags & DP_FLAG_NAME) write_key(writer, item);
        if ((item->flags & DP_FLAG_NAME) && has_list(item)) write_list(writer, item);
        dp_write_u8(writer, (uint8_t)item->status);
        dp_write_text(writer, item->text);
        break;
    case DP_ITEM_WHO:
        dp_write_u32(writer, item->round);
        dp_write_u32(writer, item->patience_ms);
        write_ref(writer, item);
        if (has_list(item)) write_list(writer, item);
        break;
    case DP_ITEM_WARN:
        dp_write_u32(writer, item->group);
        if (item->group == DP_GROUP_UNBORN) write_list(writer, item);
        dp_write_text(writer, item->text);
        break;
    case DP_ITEM_FATAL:
        dp_write_u8(writer, (uint8_t)item->status);
        dp_write_u32(writer, (uint32_t)item->rank);
        dp_write_text(writer, item->text);
        break;
    case DP_ITEM_FIN:
    case DP_ITEM_BYE:
        break;
    }
}

void dp_item_write_entry(dp_writer_t *writer, const dp_item_t *entry)
{
    dp_write_u32(writer, entry->id);
    dp_write_u8(writer, entry->flags);
    write_f32(writer, entry->absmax);
    if (entry->flags & DP_FLAG_NAME) write_key(writer, entry);
    if (entry->flags & DP_FLAG_ABSENT) dp_write_u32(writer, entry->absent);
    if (entry->flags & DP_FLAG_SIGNATURE) dp_signature_write(entry->signature, writer);
    if (!(entry->flags & DP_FLAG_BORN)) return;
    dp_write_u32(writer, entry->born);
    dp_write_u32(writer, entry->group_index);
}

size_t dp_item_entry_bound(const char *name, const dp_signature_t *signature)
{
    return ENTRY_BYTES_MIN + 32 + strlen(name) +
           (signature != NULL ? dp_signature_bytes(signature) : 0);
}

size_t dp_item_bound(const dp_item_t *item)
{
    size_t bytes = 64; /* kind, numbers and lengths of any item */

    if (item->kind == DP_ITEM_MISSING) return bytes + sizeof(item->missing);
    bytes += DP_ENTRY_NAME_MAX + (size_t)item->list_count * sizeof(*item->list);
    if (item->kind == DP_ITEM_FAILURE || item->kind == DP_ITEM_WARN || item->kind == DP_ITEM_FATAL)
        bytes += DP_ERROR_TEXT_MAX;
    if ((item->kind == DP_ITEM_READY && (item->flags & DP_FLAG_SIGNATURE)) ||
        item->kind == DP_ITEM_LACKS)
        bytes += dp_signature_bytes(item->signature);
    if (item->kind == DP_ITEM_MISMATCH || item->kind == DP_ITEM_CONTEST)
        bytes += dp_signature_bytes(item->signature) + dp_signature_bytes(item->other);
    return bytes;
}

/* ---- Reading -------------------------------------------------------------------------------- */

static float read_f32(dp_reader_t *reader)
{
    uint32_t bits = dp_read_u32(reader);
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* A name is never empty. */
static void read_name(dp_reader_t *reader, dp_item_t *item)
{
    dp_read_text(reader, item->name_room, sizeof(item->name_room));
    if (item->name_room[0] == '\0') reader->failed = 1;
    item->name = item->name_room;
}

/* Sends are of two ranks, all else is of none. */
static void read_key(dp_reader_t *reader, dp_item_t *item)
{
    item->group = dp_read_u32(reader);
    item->root = (int)dp_read_u32(reader);
    item->peer = (int)dp_read_u32(reader);
    if (item->root < -1 || item->peer < -1 || (item->root < 0) != (item->peer < 0) ||
        (item->root >= 0 && item->root == item->peer))
        reader->failed = 1;
    read_name(reader, item);
}

static void read_ref(dp_reader_t *reader, dp_item_t *item)
{
    item->id = dp_read_u32(reader);
    item->name = NULL;
    if (item->id == DP_ID_NONE) read_key(reader, item);
}

/* Ranks, ascending; at least one. */
static dp_status_t read_list(dp_reader_t *reader, dp_item_t *item)
{
    uint32_t count = dp_read_u32(reader);

    if (reader->failed || count == 0 || dp_reader_left(reader) / sizeof(*item->list) < count)
        return DP_ERR_INVALID;
    item->list_room = malloc(count * sizeof(*item->list_room));
    if (item->list_room == NULL) return DP_ERR_NO_MEMORY;
    item->list = item->list_room;
    item->list_count = count;
    for (uint32_t i = 0; i < count; i++) {
        item->list_room[i] = (int32_t)dp_read_u32(reader);
        if (item->list[i] < 0 || (i > 0 && item->list[i] <= item->list[i - 1])) {
            return DP_ERR_INVALID;
        }
    }
    return DP_OK;
}

static void read_absent(dp_reader_t *reader, dp_item_t *item)
{
    item->absent = dp_read_u32(reader);
    item->rank = (int)dp_read_u32(reader);
    if (item->absent == 0) reader->failed = 1;
}

static void read_priority(dp_reader_t *reader, dp_item_t *item)
{
    item->priority = (int32_t)dp_read_u32(reader);
    if (item->priority == 0) reader->failed = 1;
}

static void read_item_text(dp_reader_t *reader, dp_item_t *item)
{
    dp_read_text(reader, item->text_room, sizeof(item->text_room));
    item->text = item->text_room;
}

/* A status that another rank may report: a failure we know. */
static dp_status_t read_status(dp_reader_t *reader)
{
    uint8_t status = dp_read_u8(reader);

    if (status == DP_OK || status > DP_ERR_CHECK) reader->failed = 1;
    return (dp_status_t)status;
}

static uint8_t read_flags(dp_reader_t *reader, uint8_t known)
{
    uint8_t flags = dp_read_u8(reader);

    if (flags & (uint8_t)~known) reader->failed = 1;
    return flags;
}

static dp_status_t read_signature(dp_reader_t *reader, dp_signature_t **out)
{
    dp_status_t status = DP_ERR_INVALID;

    if (!reader->failed) *out = dp_signature_read(reader, &status);
    return status;
}

static void read_missing(dp_reader_t *reader, dp_missing_t *missing)
{
    missing->count = dp_read_u32(reader);
    missing->named = dp_read_u8(reader);
    if (missing->named > DP_MISSING_NAMED_MAX || missing->named > missing->count) {
        reader->failed = 1;
        missing->named = 0;
    }
    for (uint32_t i = 0; i < missing->named; i++) {
        missing->ranks[i].rank = (int)dp_read_u32(reader);
        missing->ranks[i].pending = dp_read_u32(reader);
        dp_read_text(reader, missing->ranks[i].progress, DP_PROGRESS_MAX);
    }
}

dp_status_t dp_frame_read_header(dp_reader_t *reader, dp_frame_header_t *header, int *version)
{
    unsigned zero;

    *version = dp_read_u8(reader);
    if (reader->failed) return DP_ERR_INVALID;
    if (*version != DP_FRAME_VERSION) return DP_ERR_UNSUPPORTED;
    zero = dp_read_u8(reader);
    zero |= dp_read_u16(reader);
    zero |= dp_read_u32(reader);
    header->position = dp_read_u64(reader);
    return reader->failed || zero != 0 ? DP_ERR_INVALID : DP_OK;
}

/* The fields of an item whose kind is known. Signatures set *status, the rest fails the reader. */
static void read_fields(dp_reader_t *reader, dp_item_t *item, dp_status_t *status)
{
    switch (item->kind) {
    case DP_ITEM_READY:
        read_ref(reader, item);
        item->version = dp_read_u16(reader);
        item->flags = read_flags(reader, DP_FLAG_IN_PLACE | DP_FLAG_URGENT | DP_FLAG_SIGNATURE |
                                             DP_FLAG_ABSENT | DP_FLAG_PRIORITY);
        item->absmax = dp_absmax_clean(read_f32(reader));
        if (item->flags & DP_FLAG_ABSENT) read_absent(reader, item);
        if (item->flags & DP_FLAG_PRIORITY) read_priority(reader, item);
        if (item->flags & DP_FLAG_SIGNATURE) *status = read_signature(reader, &item->signature);
        break;
    case DP_ITEM_LACKS:
        read_ref(reader, item);
        item->rank = (int)dp_read_u32(reader);
        *status = read_signature(reader, &item->signature);
        break;
    case DP_ITEM_MISMATCH:
    case DP_ITEM_CONTEST:
        read_ref(reader, item);
        item->rank = (int)dp_read_u32(reader);
        item->other_rank = (int)dp_read_u32(reader);
        *status = read_signature(reader, &item->signature);
        if (*status == DP_OK) *status = read_signature(reader, &item->other);
        break;
    case DP_ITEM_URGENT:
    case DP_ITEM_EXPIRED:
        read_ref(reader, item);
        break;
    case DP_ITEM_PARTIAL:
        read_ref(reader, item);
        if (has_list(item)) *status = read_list(reader, item);
        item->age_ns = dp_read_u64(reader);
        break;
    case DP_ITEM_LEFT:
        item->rank = (int)dp_read_u32(reader);
        break;
    case DP_ITEM_JOIN:
    case DP_ITEM_JOINED:
        item->group = dp_read_u32(reader);
        item->rank = (int)dp_read_u32(reader);
        break;
    case DP_ITEM_SEEK:
        item->position = dp_read_u64(reader);
        break;
    case DP_ITEM_CLOSED:
        item->group = dp_read_u32(reader);
        item->rank = (int)dp_read_u32(reader);
        item->count = dp_read_u32(reader);
        break;
    case DP_ITEM_KEEP:
        item->rank = (int)dp_read_u32(reader);
        item->position = dp_read_u64(reader);
        read_ref(reader, item);
        break;
    case DP_ITEM_MISSING:
        item->round = dp_read_u32(reader);
        read_missing(reader, &item->missing);
        break;
    case DP_ITEM_LAUNCH:
        item->sequence = dp_read_u64(reader);
        item->count = dp_read_u32(reader);
        if (item->count == 0 || dp_reader_left(reader) / ENTRY_BYTES_MIN < item->count)
            reader->failed = 1;
        break;
    case DP_ITEM_FAILURE:
        item->id = dp_read_u32(reader);
        item->flags = read_flags(reader, DP_FLAG_NAME);
        if (item->flags & DP_FLAG_NAME) read_key(reader, item);
        if ((item->flags & DP_FLAG_NAME) && has_list(item)) *status = read_list(reader, item);
        item->status = read_status(reader);
        read_item_text(reader, item);
        break;
    case DP_ITEM_WHO:
        item->round = dp_read_u32(reader);
        item->patience_ms = dp_read_u32(reader);
        read_ref(reader, item);
        if (has_list(item)) *status = read_list(reader, item);
        break;
    case DP_ITEM_WARN:
        item->id = DP_ID_NONE;
        item->group = dp_read_u32(reader);
        if (has_list(item)) *status = read_list(reader, item);
        read_item_text(reader, item);
        break;
    case DP_ITEM_FATAL:
        item->status = read_status(reader);
        item->rank = (int)dp_read_u32(reader);
        read_item_text(reader, item);
        break;
    case DP_ITEM_FIN:
    case DP_ITEM_BYE:
        break;
    default:
        reader->failed = 1;
        break;
    }
}

static void forget(dp_item_t *item)
{
    item->signature = item->other = NULL;
    item->list = item->list_room = NULL;
    item->list_count = 0;
    item->group = DP_GROUP_WORLD;
    item->root = item->peer = -1;
    item->absent = 0;
    item->priority = 0;
}

dp_status_t dp_item_read(dp_reader_t *reader, dp_item_t *item)
{
    dp_status_t status = DP_OK;

    forget(item);
    item->kind = (dp_item_kind_t)dp_read_u8(reader);
    read_fields(reader, item, &status);
    if (status == DP_OK && reader->failed) status = DP_ERR_INVALID;
    if (status != DP_OK) dp_item_fini(item);
    return status;
}

dp_status_t dp_item_read_entry(dp_reader_t *reader, dp_item_t *item)
{
    dp_status_t status = DP_OK;

    forget(item);
    item->id = dp_read_u32(reader);
    item->flags = read_flags(reader, DP_FLAG_IN_PLACE | DP_FLAG_NAME | DP_FLAG_ABSENT |
                                         DP_FLAG_SIGNATURE | DP_FLAG_BORN);
    item->absmax = dp_absmax_clean(read_f32(reader));
    if (item->flags & DP_FLAG_NAME) read_key(reader, item);
    if (item->flags & DP_FLAG_ABSENT) {
        item->absent = dp_read_u32(reader);
        if (item->absent == 0) reader->failed = 1;
    }
    if (item->flags & DP_FLAG_SIGNATURE) status = read_signature(reader, &item->signature);
    if (item->flags & DP_FLAG_BORN) {
        item->born = dp_read_u32(reader);
        item->group_index = dp_read_u32(reader);
    }
    if (status == DP_OK && reader->failed) status = DP_ERR_INVALID;
    if (status != DP_OK) dp_item_fini(item);
    return status;
}

void dp_item_fini(dp_item_t *item)
{
    free(item->signature);
    free(item->other);
    free(item->list_room);
    item->signature = item->other = NULL;
    item->list = item->list_room = NULL;
    item->list_count = 0;
}
