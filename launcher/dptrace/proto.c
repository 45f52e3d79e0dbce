/*
 * proto.c - varints, tags and lengths of Protocol Buffers; see proto.h.
 *
 * Used by perfetto_write.c, perfetto_read.c and view.c. It must not know Perfetto's fields.
 */
#include "launcher/dptrace/proto.h"
#include "runtime/base/json.h"

#include <stdlib.h>
#include <string.h>

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_SPAN = 2, WIRE_FIXED32 = 5 };

void dp_proto_fini(dp_proto_t *proto)
{
    free(proto->data);
    memset(proto, 0, sizeof(*proto));
}

void dp_proto_clear(dp_proto_t *proto)
{
    proto->bytes = 0;
}

/* Room at the end. NULL: no memory, and the buffer stays failed, so a caller asks once at its end.
 */
static uint8_t *claim_bytes(dp_proto_t *proto, size_t bytes)
{
    uint8_t *grown;
    size_t room = proto->room;

    if (proto->failed) return NULL;
    while (room - proto->bytes < bytes)
        room = room * 2 + 256;
    if (room != proto->room) {
        grown = realloc(proto->data, room);
        proto->failed = grown == NULL;
        if (grown == NULL) return NULL;
        proto->data = grown;
        proto->room = room;
    }
    proto->bytes += bytes;
    return proto->data + proto->bytes - bytes;
}

/* Seven bits a byte, the lowest first; the top bit says that more follow. Ten bytes hold 64 bits,
 * and what is not used is given back. */
void dp_proto_varint(dp_proto_t *proto, uint64_t value)
{
    uint8_t *at = claim_bytes(proto, 10);
    size_t used = 0;

    if (at == NULL) return;
    for (; value >= 0x80; value >>= 7)
        at[used++] = (uint8_t)(value | 0x80);
    at[used++] = (uint8_t)value;
    proto->bytes -= 10 - used;
}

void dp_proto_uint(dp_proto_t *proto, uint32_t field, uint64_t value)
{
    dp_proto_varint(proto, (uint64_t)field << 3 | WIRE_VARINT);
    dp_proto_varint(proto, value);
}

void dp_proto_fixed64(dp_proto_t *proto, uint32_t field, uint64_t value)
{
    uint8_t *at;

    dp_proto_varint(proto, (uint64_t)field << 3 | WIRE_FIXED64);
    at = claim_bytes(proto, 8);
    if (at == NULL) return;
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

void dp_proto_bytes(dp_proto_t *proto, uint32_t field, const void *data, size_t bytes)
{
    uint8_t *at;

    dp_proto_varint(proto, (uint64_t)field << 3 | WIRE_SPAN);
    dp_proto_varint(proto, bytes);
    at = claim_bytes(proto, bytes);
    if (at != NULL && bytes > 0) memcpy(at, data, bytes);
}

void dp_proto_message(dp_proto_t *proto, uint32_t field, const dp_proto_t *message)
{
    proto->failed |= message->failed;
    dp_proto_bytes(proto, field, message->data, message->bytes);
}

void dp_proto_text(dp_proto_t *proto, uint32_t field, const char *text)
{
    char valid[1024];
    size_t used = 0;

    while (*text != '\0' && used + 4 <= sizeof(valid)) {
        size_t length = dp_utf8_length(text);

        memcpy(valid + used, length > 0 ? text : "?", length > 0 ? length : 1);
        used += length > 0 ? length : 1;
        text += length > 0 ? length : 1;
    }
    dp_proto_bytes(proto, field, valid, used);
}

/* ---- Reading -------------------------------------------------------------------------------- */

void dp_proto_read(dp_proto_reader_t *reader, const void *data, size_t bytes)
{
    memset(reader, 0, sizeof(*reader));
    reader->data = data;
    reader->bytes = bytes;
}

static uint64_t read_varint(dp_proto_reader_t *reader)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        uint8_t byte;

        if (reader->at >= reader->bytes) break;
        byte = reader->data[reader->at++];
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
    reader->failed = 1;
    return 0;
}

static uint64_t read_fixed(dp_proto_reader_t *reader, size_t bytes)
{
    uint64_t value = 0;

    if (reader->bytes - reader->at < bytes) {
        reader->failed = 1;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)reader->data[reader->at + i] << 8 * i;
    reader->at += bytes;
    return value;
}

/* Skips nothing: an unknown field is returned like any other, and the caller passes it by. Lengths
 * are checked against what is left, not added to a position that could wrap. */
int dp_proto_next(dp_proto_reader_t *reader)
{
    uint64_t tag;

    if (reader->failed || reader->at >= reader->bytes) return 0;
    tag = read_varint(reader);
    reader->field = (uint32_t)(tag >> 3);
    reader->value = 0;
    reader->span = NULL;
    reader->span_bytes = 0;
    if (tag >> 3 == 0 || tag >> 3 > 0x1fffffff) reader->failed = 1;
    if (reader->failed) return 0;
    switch (tag & 7) {
    case WIRE_VARINT:
        reader->value = read_varint(reader);
        break;
    case WIRE_FIXED64:
        reader->value = read_fixed(reader, 8);
        break;
    case WIRE_FIXED32:
        reader->value = read_fixed(reader, 4);
        break;
    case WIRE_SPAN:
        reader->value = read_varint(reader);
        if (reader->value > reader->bytes - reader->at) reader->failed = 1;
        if (reader->failed) break;
        reader->span = reader->data + reader->at;
        reader->span_bytes = (size_t)reader->value;
        reader->at += reader->span_bytes;
        break;
    default:
        reader->failed = 1;
    }
    return !reader->failed;
}
