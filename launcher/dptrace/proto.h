/*
 * proto.h - the little of Protocol Buffers that a trace needs: fields in, fields out.
 *
 * Encoding: https://protobuf.dev/programming-guides/encoding/. A buffer that could not grow stays
 * failed; a reader that met nonsense likewise, and is asked once at its end.
 */
#ifndef DP_DPTRACE_PROTO_H
#define DP_DPTRACE_PROTO_H

#include <stddef.h>
#include <stdint.h>

typedef struct dp_proto {
    uint8_t *data;
    size_t bytes, room;
    int failed;
} dp_proto_t;

void dp_proto_fini(dp_proto_t *proto);
void dp_proto_clear(dp_proto_t *proto); /* empty again, memory kept */
void dp_proto_varint(dp_proto_t *proto, uint64_t value);
void dp_proto_uint(dp_proto_t *proto, uint32_t field, uint64_t value);
void dp_proto_fixed64(dp_proto_t *proto, uint32_t field, uint64_t value);
void dp_proto_bytes(dp_proto_t *proto, uint32_t field, const void *data, size_t bytes);
void dp_proto_text(dp_proto_t *proto, uint32_t field, const char *text); /* made valid UTF-8 */
void dp_proto_message(dp_proto_t *proto, uint32_t field, const dp_proto_t *message);

typedef struct dp_proto_reader {
    const uint8_t *data;
    size_t bytes, at;
    int failed;
    /* of the field last read */
    uint32_t field;
    uint64_t value;      /* varint, fixed64, fixed32 */
    const uint8_t *span; /* of a length-delimited field; NULL for the others */
    size_t span_bytes;
} dp_proto_reader_t;

void dp_proto_read(dp_proto_reader_t *reader, const void *data, size_t bytes);
int dp_proto_next(dp_proto_reader_t *reader); /* 0: at the end, or failed */

#endif
