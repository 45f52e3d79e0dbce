/*
 * fuzz_frame.c - any bytes as control frames of one peer, one after the other.
 *
 * An input is a row of (u16 size, frame). The tag may be the right one, so that what lies behind it
 * is reached: a size with its highest bit set gets it put in.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "runtime/transport/frame.h"

#define TAG UINT64_C(0x1122334455667788)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    dp_assembly_t assembly = {0};
    uint32_t have = 0;

    while (input.bytes > 0) {
        uint16_t size = (uint16_t)fuzz_number(&input, 2);
        size_t got;
        const uint8_t *at = fuzz_take(&input, size & 0x1fff, &got);
        uint8_t *frame_bytes = malloc(got + 1);
        size_t payload = 0;
        dp_control_frame_t frame;

        if (frame_bytes == NULL) return 0;
        memcpy(frame_bytes, at, got);
        for (size_t i = 0; (size & 0x8000) != 0 && i < 8 && i < got; i++)
            frame_bytes[i] = (uint8_t)(TAG >> (8 * i));
        if (dp_frame_read(frame_bytes, got, TAG, &frame, &payload) == NULL) {
            if (payload + DP_FRAME_HEADER != got) abort();
            if (frame.kind == DP_FRAME_DATA &&
                dp_assembly_add(&assembly, &frame, payload) == NULL) {
                /* what a receiver copies stays within the message, without holes */
                if (frame.offset + payload > frame.total || frame.total > DP_FRAME_TOTAL_MAX)
                    abort();
                if (frame.offset != 0 && frame.offset != have) abort();
                have = frame.offset + (uint32_t)payload;
                if (assembly.is_open != (have < frame.total)) abort();
            } else if (frame.kind == DP_FRAME_DATA) {
                have = 0;
            }
        }
        free(frame_bytes);
    }
    return 0;
}

static size_t put(uint8_t *data, uint32_t kind, uint32_t total, uint32_t offset, size_t payload)
{
    dp_control_frame_t frame = {TAG, 1, kind, total, offset};
    size_t size = DP_FRAME_HEADER + payload;

    data[0] = (uint8_t)size;
    data[1] = (uint8_t)(size >> 8 | 0x80);
    dp_frame_write(&frame, data + 2);
    memset(data + 2 + DP_FRAME_HEADER, 'x', payload);
    return 2 + size;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    size_t bytes = 0;

    (void)room;
    switch (which) {
    case 0:
        return put(data, DP_FRAME_DATA, 5, 0, 5);
    case 1: /* three frames of one message, then a goodbye */
        bytes += put(data, DP_FRAME_DATA, DP_FRAME_PAYLOAD + 7, 0, DP_FRAME_PAYLOAD);
        bytes += put(data + bytes, DP_FRAME_DATA, DP_FRAME_PAYLOAD + 7, DP_FRAME_PAYLOAD, 7);
        bytes += put(data + bytes, DP_FRAME_DATA, 0, 0, 0);
        return bytes + put(data + bytes, DP_FRAME_BYE, 0, 0, 0);
    case 2:
        return put(data, DP_FRAME_ACK, 0, 0, 0);
    default:
        return 0;
    }
}
