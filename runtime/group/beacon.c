/*
 * beacon.c - a beacon as bytes, and as hexadecimal text for spaces that hold only text.
 *
 * Little-endian: u32 magic, u16 version, u16 port, u32 pid, u64 start, u64 pid space, text boot,
 * text identity, u8 count, count x text address, secret [32], and nothing behind. It must not know
 * where the bytes come from. Called by beacon_file.c and bootstrap_elsewhere.c.
 */
#include "runtime/group/beacon.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/wire.h"
#include "runtime/network/interface.h"

#define MAGIC 0x4e435044u /* "DPCN" */
#define VERSION 2

size_t dp_beacon_write(const dp_beacon_t *beacon, void *data, size_t room)
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    dp_write_u32(&writer, MAGIC);
    dp_write_u16(&writer, VERSION);
    dp_write_u16(&writer, beacon->port);
    dp_write_u32(&writer, beacon->server.pid);
    dp_write_u64(&writer, beacon->server.start);
    dp_write_u64(&writer, beacon->server.pid_space);
    dp_write_text(&writer, beacon->server.boot);
    dp_write_text(&writer, beacon->identity);
    dp_write_u8(&writer, (uint8_t)beacon->address_count);
    for (int i = 0; i < beacon->address_count; i++)
        dp_write_text(&writer, beacon->addresses[i]);
    dp_write_bytes(&writer, beacon->secret.bytes, sizeof(beacon->secret.bytes));
    return writer.failed ? 0 : writer.bytes;
}

/* 1 when every field is there and fits. */
static int read_fields(dp_reader_t *reader, dp_beacon_t *beacon)
{
    const void *secret;
    dp_ip_t parsed;
    int needs_port = 0;

    beacon->port = dp_read_u16(reader);
    beacon->server.pid = dp_read_u32(reader);
    beacon->server.start = dp_read_u64(reader);
    beacon->server.pid_space = dp_read_u64(reader);
    dp_read_text(reader, beacon->server.boot, sizeof(beacon->server.boot));
    dp_read_text(reader, beacon->identity, sizeof(beacon->identity));
    beacon->address_count = dp_read_u8(reader);
    if (beacon->address_count < 1 || beacon->address_count > DP_BEACON_ADDRESSES) return 0;
    for (int i = 0; i < beacon->address_count; i++) {
        dp_read_text(reader, beacon->addresses[i], sizeof(beacon->addresses[i]));
        if (reader->failed) return 0;
        if (dp_local_is_address(beacon->addresses[i])) continue;
        if (!dp_ip_parse(beacon->addresses[i], &parsed)) return 0;
        needs_port = 1;
    }
    secret = dp_read_bytes(reader, DP_SECRET_BYTES);
    if (secret == NULL || dp_reader_left(reader) != 0 || needs_port != (beacon->port != 0)) {
        return 0;
    }
    memcpy(beacon->secret.bytes, secret, DP_SECRET_BYTES);
    return 1;
}

dp_status_t dp_beacon_read(const void *data, size_t bytes, dp_beacon_t *beacon, dp_error_t *error)
{
    dp_beacon_t read = {0};
    dp_reader_t reader;
    uint32_t magic;
    uint16_t version;

    dp_reader_init(&reader, data, bytes);
    magic = dp_read_u32(&reader);
    version = dp_read_u16(&reader);
    if (reader.failed || magic != MAGIC) {
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "not a rendezvous' beacon: %zu bytes, begins 0x%08x, expected 0x%08x",
                            bytes, magic, MAGIC);
    }
    if (version != VERSION) {
        return dp_error_set(error, DP_ERR_SYSTEM, "a beacon of version %u, this library reads %d",
                            version, VERSION);
    }
    if (!read_fields(&reader, &read)) {
        return dp_error_set(error, DP_ERR_SYSTEM, "a beacon of %zu bytes is malformed", bytes);
    }
    *beacon = read;
    explicit_bzero(&read.secret, sizeof(read.secret));
    return DP_OK;
}

/* ---- Text ----------------------------------------------------------------------------------- */

size_t dp_beacon_to_text(const dp_beacon_t *beacon, char *text, size_t room)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t data[DP_BEACON_MAX];
    const size_t bytes = dp_beacon_write(beacon, data, sizeof(data));

    if (bytes == 0 || 2 * bytes >= room) return 0;
    for (size_t i = 0; i < bytes; i++) {
        text[2 * i] = digits[data[i] >> 4];
        text[2 * i + 1] = digits[data[i] & 15];
    }
    text[2 * bytes] = '\0';
    explicit_bzero(data, sizeof(data));
    return 2 * bytes;
}

static int digit_value(char digit)
{
    if (digit >= '0' && digit <= '9') return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

dp_status_t dp_beacon_from_text(const char *text, dp_beacon_t *beacon, dp_error_t *error)
{
    uint8_t data[DP_BEACON_MAX];
    const size_t length = strlen(text);
    dp_status_t status;

    if (length % 2 != 0 || length / 2 > sizeof(data)) {
        return dp_error_set(error, DP_ERR_SYSTEM, "a beacon of %zu hexadecimal digits", length);
    }
    for (size_t i = 0; i < length / 2; i++) {
        const int high = digit_value(text[2 * i]);
        const int low = digit_value(text[2 * i + 1]);

        if (high < 0 || low < 0) {
            return dp_error_set(error, DP_ERR_SYSTEM,
                                "a beacon whose characters %zu and %zu are no hexadecimal digits",
                                2 * i, 2 * i + 1);
        }
        data[i] = (uint8_t)(high << 4 | low);
    }
    status = dp_beacon_read(data, length / 2, beacon, error);
    explicit_bzero(data, sizeof(data));
    return status;
}
