/*
 * frame.c - the fixed header before every control frame, and how a long message becomes several
 * frames. Called by ucx.c inside UCX's callbacks, so it neither blocks nor allocates.
 */
#include "runtime/transport/frame.h"

#include "runtime/base/wire.h"

void dp_frame_write(const dp_control_frame_t *frame, uint8_t *bytes)
{
    dp_writer_t writer;

    dp_writer_init(&writer, bytes, DP_FRAME_HEADER);
    dp_write_u64(&writer, frame->tag);
    dp_write_u32(&writer, frame->from);
    dp_write_u32(&writer, frame->kind);
    dp_write_u32(&writer, frame->total);
    dp_write_u32(&writer, frame->offset);
    DP_ASSERT(!writer.failed && writer.bytes == DP_FRAME_HEADER);
}

const char *dp_frame_read(const void *data, size_t bytes, uint64_t tag, dp_control_frame_t *frame,
                          size_t *payload)
{
    dp_reader_t reader;
    dp_control_frame_t got;
    size_t rest;

    dp_reader_init(&reader, data, bytes);
    got.tag = dp_read_u64(&reader);
    got.from = dp_read_u32(&reader);
    got.kind = dp_read_u32(&reader);
    got.total = dp_read_u32(&reader);
    got.offset = dp_read_u32(&reader);
    if (reader.failed) return "shorter than a header";
    if (got.tag != tag) return "the tag of another job";
    rest = bytes - DP_FRAME_HEADER;
    if (got.kind == DP_FRAME_BYE || got.kind == DP_FRAME_ACK) {
        if (got.total != 0 || got.offset != 0 || rest != 0) return "a goodbye with a payload";
    } else if (got.kind == DP_FRAME_DATA) {
        if (got.total > DP_FRAME_TOTAL_MAX) return "a message over the limit";
        if (got.offset > got.total) return "an offset behind the end of its message";
        if (rest != dp_min((size_t)(got.total - got.offset), (size_t)DP_FRAME_PAYLOAD)) {
            return "a payload of another length than its header says";
        }
    } else {
        return "an unknown kind";
    }
    *frame = got;
    *payload = rest;
    return NULL;
}

const char *dp_assembly_add(dp_assembly_t *assembly, const dp_control_frame_t *frame,
                            size_t payload)
{
    const char *reason = NULL;

    if (assembly->is_open && frame->offset == 0) {
        reason = "a new message within another one";
    } else if (assembly->is_open && frame->total != assembly->total) {
        reason = "a fragment of a message of another length";
    } else if (assembly->is_open && frame->offset != assembly->have) {
        reason = "a fragment that does not follow the one before";
    } else if (!assembly->is_open && frame->offset != 0) {
        reason = "a fragment of a message that never began";
    }
    if (reason != NULL) {
        *assembly = (dp_assembly_t){0};
        return reason;
    }
    assembly->total = frame->total;
    assembly->have = frame->offset + (uint32_t)payload;
    assembly->is_open = assembly->have < assembly->total;
    return NULL;
}
