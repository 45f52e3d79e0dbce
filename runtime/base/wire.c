/*
 * wire.c - integers as little-endian bytes, independent of the processor's byte order and
 * alignment.
 *
 * Every function first claims its bytes; a claim that fails leaves the rest of the message failed.
 *
 * Called wherever bytes leave or enter a process: coordinator, rendezvous, transports, dprun. No
 * state, so on any thread.
 */
#include "runtime/base/wire.h"

#include <string.h>

/* ---- Writing -------------------------------------------------------------------------------- */

static uint8_t *writer_claim(dp_writer_t *writer, size_t bytes)
{
    uint8_t *at;

    if (writer->failed || bytes > writer->room - writer->bytes) {
        writer->failed = 1;
        return NULL;
    }
    at = writer->data + writer->bytes;
    writer->bytes += bytes;
    return at;
}

static void write_integer(dp_writer_t *writer, uint64_t value, size_t bytes)
{
    uint8_t *at = writer_claim(writer, bytes);

    if (at == NULL) return;
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

void dp_writer_init(dp_writer_t *writer, void *data, size_t room)
{
    writer->data = data;
    writer->room = room;
    writer->bytes = 0;
    writer->failed = 0;
}

void dp_write_u8(dp_writer_t *writer, uint8_t value)
{
    write_integer(writer, value, 1);
}

void dp_write_u16(dp_writer_t *writer, uint16_t value)
{
    write_integer(writer, value, 2);
}

void dp_write_u32(dp_writer_t *writer, uint32_t value)
{
    write_integer(writer, value, 4);
}

void dp_write_u64(dp_writer_t *writer, uint64_t value)
{
    write_integer(writer, value, 8);
}

void dp_write_f64(dp_writer_t *writer, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    write_integer(writer, bits, 8);
}

void dp_write_bytes(dp_writer_t *writer, const void *data, size_t bytes)
{
    uint8_t *at = writer_claim(writer, bytes);

    if (at != NULL && bytes > 0) memcpy(at, data, bytes);
}

void dp_write_text(dp_writer_t *writer, const char *text)
{
    size_t bytes = strnlen(text, UINT16_MAX);

    dp_write_u16(writer, (uint16_t)bytes);
    dp_write_bytes(writer, text, bytes);
}

/* ---- Reading -------------------------------------------------------------------------------- */

static uint64_t read_integer(dp_reader_t *reader, size_t bytes)
{
    const uint8_t *at = dp_read_bytes(reader, bytes);
    uint64_t value = 0;

    if (at == NULL) return 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

void dp_reader_init(dp_reader_t *reader, const void *data, size_t bytes)
{
    reader->data = data;
    reader->bytes = bytes;
    reader->at = 0;
    reader->failed = 0;
}

uint8_t dp_read_u8(dp_reader_t *reader)
{
    return (uint8_t)read_integer(reader, 1);
}

uint16_t dp_read_u16(dp_reader_t *reader)
{
    return (uint16_t)read_integer(reader, 2);
}

uint32_t dp_read_u32(dp_reader_t *reader)
{
    return (uint32_t)read_integer(reader, 4);
}

uint64_t dp_read_u64(dp_reader_t *reader)
{
    return read_integer(reader, 8);
}

double dp_read_f64(dp_reader_t *reader)
{
    uint64_t bits = read_integer(reader, 8);
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

const void *dp_read_bytes(dp_reader_t *reader, size_t bytes)
{
    const uint8_t *at;

    if (reader->failed || bytes > reader->bytes - reader->at) {
        reader->failed = 1;
        return NULL;
    }
    /* An empty message may have no data at all; what we return for it must still not be NULL. */
    at = reader->data != NULL ? reader->data + reader->at : (const uint8_t *)"";
    reader->at += bytes;
    return at;
}

void dp_read_text(dp_reader_t *reader, char *text, size_t room)
{
    size_t bytes = dp_read_u16(reader);
    const void *at = NULL;

    if (bytes >= room) {
        reader->failed = 1;
    } else {
        at = dp_read_bytes(reader, bytes);
    }
    if (at != NULL && memchr(at, '\0', bytes) != NULL) {
        reader->failed = 1;
        at = NULL;
    }
    if (at != NULL) memcpy(text, at, bytes);
    if (room > 0) text[at != NULL ? bytes : 0] = '\0';
}

size_t dp_reader_left(const dp_reader_t *reader)
{
    return reader->failed ? 0 : reader->bytes - reader->at;
}
