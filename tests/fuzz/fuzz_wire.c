/*
 * fuzz_wire.c - any bytes read by any sequence of reads.
 *
 * The first half of the input says which reads to make, the second half is what they read.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const size_t half = bytes / 2;
    volatile uint8_t sink = 0; /* reads every byte that was promised */
    const uint8_t *span;
    char text[32];
    dp_reader_t reader;

    dp_reader_init(&reader, data + half, bytes - half);
    for (size_t i = 0; i < half; i++) {
        const size_t left = dp_reader_left(&reader);

        switch (data[i] % 7) {
        case 0:
            sink = dp_read_u8(&reader);
            break;
        case 1:
            sink = (uint8_t)dp_read_u16(&reader);
            break;
        case 2:
            sink = (uint8_t)dp_read_u32(&reader);
            break;
        case 3:
            sink = (uint8_t)dp_read_u64(&reader);
            break;
        case 4:
            (void)dp_read_f64(&reader);
            break;
        case 5:
            span = dp_read_bytes(&reader, data[i]);
            for (size_t k = 0; span != NULL && k < data[i]; k++)
                sink ^= span[k];
            break;
        default:
            dp_read_text(&reader, text, sizeof(text));
            if (strlen(text) >= sizeof(text)) abort();
            if (reader.failed && text[0] != '\0') abort();
            break;
        }
        if (dp_reader_left(&reader) > left) abort();
        if (reader.failed && dp_reader_left(&reader) != 0) abort();
    }
    (void)sink;
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const uint8_t reads[] = {0, 1, 2, 3, 4, 6, 5, 12};
    dp_writer_t writer;

    if (which > 0) return 0;
    dp_writer_init(&writer, data, room);
    dp_write_bytes(&writer, reads, sizeof(reads));
    for (int i = 0; i < 19; i++)
        dp_write_u8(&writer, 6); /* reads and data are of one length */
    dp_write_u8(&writer, 1);
    dp_write_u16(&writer, 2);
    dp_write_u32(&writer, 3);
    dp_write_u64(&writer, 4);
    dp_write_f64(&writer, 5.0);
    dp_write_text(&writer, "wte"); /* 1 + 2 + 4 + 8 + 8 + 5 = 28 */
    return writer.bytes;
}
