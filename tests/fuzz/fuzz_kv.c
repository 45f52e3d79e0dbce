/*
 * fuzz_kv.c - any bytes as hello, ticket and frames of the rendezvous.
 *
 * The first byte picks what the rest is.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/kv.h"

enum { TICKET, SERVER_HELLO, CLIENT_HELLO, FRAMES, KINDS };

static void fuzz_ticket(const uint8_t *data, size_t bytes)
{
    const int fd = memfd_create("ticket", MFD_CLOEXEC);
    dp_kv_ticket_t ticket;
    dp_error_t error;

    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes ||
        dp_kv_ticket_read(fd, &ticket, &error) != DP_OK) {
        close(fd);
        return;
    }
    if (strlen(ticket.address) >= sizeof(ticket.address)) abort();
}

static void check_text(const char *text, size_t longest)
{
    if (strlen(text) > longest) abort();
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) abort(); /* reaches a terminal */
}

/* A fact that is read keeps to its bounds, and survives being written and read again. */
static void fuzz_failure(dp_reader_t *facts)
{
    uint8_t data[DP_FAILURE_BYTES_MAX];
    dp_failure_t failure;
    dp_failure_t again;
    dp_reader_t reader;
    dp_writer_t writer;

    if (dp_failure_read(facts, &failure) != DP_OK) return;
    if (failure.culprit < -1 || (unsigned)failure.kind >= DP_FAILURE_KINDS) abort();
    check_text(failure.node, DP_FAILURE_NODE_MAX);
    check_text(failure.operation, DP_FAILURE_OPERATION_MAX);
    check_text(failure.text, DP_FAILURE_TEXT_MAX);
    dp_writer_init(&writer, data, sizeof(data));
    dp_failure_write(&writer, &failure);
    if (writer.failed) abort();
    dp_reader_init(&reader, data, writer.bytes);
    if (dp_failure_read(&reader, &again) != DP_OK || again.kind != failure.kind ||
        again.culprit != failure.culprit || again.step != failure.step ||
        strcmp(again.text, failure.text) != 0 || strcmp(again.operation, failure.operation) != 0) {
        abort();
    }
}

static void fuzz_frames(const uint8_t *data, size_t bytes)
{
    char name[DP_KV_NAME_MAX + 1];
    char text[DP_KV_TEXT_MAX + 1];
    const void *value;
    dp_reader_t fields;
    dp_reader_t again;
    dp_reader_t facts;
    dp_error_t error;
    size_t value_bytes;
    size_t frame;
    uint32_t size;
    uint8_t type;

    while (dp_kv_frame_parse(data, bytes, &type, &fields, &frame, &error) == DP_OK) {
        if (frame > bytes) abort();
        again = facts = fields;
        fuzz_failure(&facts);
        if (dp_kv_exchange_read(&fields, name, &size, &value, &value_bytes) == 0) {
            const uint8_t *end = (const uint8_t *)value + value_bytes;

            if (end != data + frame || strlen(name) > DP_KV_NAME_MAX) abort();
        }
        if (dp_kv_text_read(&again, text, sizeof(text)) == 0) {
            for (const char *at = text; *at != '\0'; at++) {
                if ((unsigned char)*at < 0x20) abort(); /* reaches a terminal */
            }
        }
        data += frame;
        bytes -= frame;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const dp_secret_t secret = {{7}};
    uint8_t hello[DP_KV_CLIENT_HELLO_BYTES] = {0};
    uint8_t welcome[DP_PROOF_BYTES];
    const uint8_t *challenge;
    dp_error_t error;
    uint32_t rank;

    if (bytes == 0) return 0;
    if (bytes > 1) memcpy(hello, data + 1, dp_min(bytes - 1, sizeof(hello)));
    switch (data[0] % KINDS) {
    case TICKET:
        fuzz_ticket(data + 1, bytes - 1);
        break;
    case SERVER_HELLO:
        if (dp_kv_server_hello_read(hello, &challenge, &error) == DP_OK && challenge != hello + 8) {
            abort();
        }
        break;
    case CLIENT_HELLO:
        /* Only the very hello of the seed proves the secret. */
        (void)dp_kv_client_hello_check(&secret, secret.bytes, hello, &rank, welcome, &error);
        break;
    default:
        fuzz_frames(data + 1, bytes - 1);
        break;
    }
    return 0;
}

static size_t frames_seed(uint8_t *data, size_t room)
{
    dp_failure_t failure;
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    dp_failure_init(&failure, DP_FAILURE_SILENT, 1, "rank 1 (a): no sign of life for 3.0 s");
    failure.age_ns = 3000000000;
    failure.has_step = 1;
    failure.step = 7;
    snprintf(failure.node, sizeof(failure.node), "a");
    snprintf(failure.operation, sizeof(failure.operation), "wte");
    dp_kv_failure_write(&writer, &failure);
    {
        const size_t begin = writer.bytes;

        dp_kv_frame_begin(&writer, DP_KV_EXCHANGE);
        dp_write_text(&writer, "addresses");
        dp_write_u32(&writer, 2);
        dp_write_u32(&writer, 5);
        dp_write_bytes(&writer, "value", 5);
        dp_kv_frame_end(&writer, begin);
    }
    dp_kv_text_write(&writer, DP_KV_ERROR, "rank 0 left");
    return writer.bytes;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const dp_secret_t secret = {{7}};
    dp_kv_ticket_t ticket = {.address = "127.0.0.1", .port = 4711, .job = "job-9", .secret = {{3}}};

    data[0] = (uint8_t)which;
    switch (which) {
    case TICKET:
        return 1 + dp_kv_ticket_write(&ticket, data + 1, room - 1);
    case SERVER_HELLO:
        dp_kv_server_hello_write(secret.bytes, data + 1);
        return 1 + DP_KV_SERVER_HELLO_BYTES;
    case CLIENT_HELLO:
        dp_kv_client_hello_write(&secret, secret.bytes, secret.bytes, 1, data + 1);
        return 1 + DP_KV_CLIENT_HELLO_BYTES;
    case FRAMES:
        return 1 + frames_seed(data + 1, room - 1);
    default:
        return 0;
    }
}
