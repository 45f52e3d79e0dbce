/*
 * wire.h - bounds-checked little-endian encoding for everything that leaves a process.
 *
 * A writer or reader that once ran past its end stays failed, so a message is checked once, after
 * its last field. No allocation, no alignment requirements.
 */
#ifndef DP_BASE_WIRE_H
#define DP_BASE_WIRE_H

#include "runtime/base/common.h"

typedef struct dp_writer {
    uint8_t *data;
    size_t room;
    size_t bytes; /* written */
    int failed;   /* something did not fit */
} dp_writer_t;

typedef struct dp_reader {
    const uint8_t *data;
    size_t bytes;
    size_t at;
    int failed; /* something was missing */
} dp_reader_t;

void dp_writer_init(dp_writer_t *writer, void *data, size_t room);
void dp_write_u8(dp_writer_t *writer, uint8_t value);
void dp_write_u16(dp_writer_t *writer, uint16_t value);
void dp_write_u32(dp_writer_t *writer, uint32_t value);
void dp_write_u64(dp_writer_t *writer, uint64_t value);
void dp_write_f64(dp_writer_t *writer, double value);
void dp_write_bytes(dp_writer_t *writer, const void *data, size_t bytes);
void dp_write_text(dp_writer_t *writer, const char *text); /* u16 length, bytes; cut at 65535 */

void dp_reader_init(dp_reader_t *reader, const void *data, size_t bytes);
uint8_t dp_read_u8(dp_reader_t *reader); /* 0 once failed, likewise below */
uint16_t dp_read_u16(dp_reader_t *reader);
uint32_t dp_read_u32(dp_reader_t *reader);
uint64_t dp_read_u64(dp_reader_t *reader);
double dp_read_f64(dp_reader_t *reader);
/* Points into the reader's data; NULL once failed. */
const void *dp_read_bytes(dp_reader_t *reader, size_t bytes);
/* Copies a text and terminates it; one longer than room - 1, or with a NUL inside, fails. */
void dp_read_text(dp_reader_t *reader, char *text, size_t room);
size_t dp_reader_left(const dp_reader_t *reader);

#endif
