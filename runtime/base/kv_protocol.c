/*
 * kv_protocol.c - the rendezvous protocol as bytes: ticket, handshake and frames of both ends.
 *
 * Pure but for the ticket, which reads a descriptor. It must not know about sockets or time, so
 * that a fuzzer can feed it anything.
 */
#include "runtime/base/kv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Ticket --------------------------------------------------------------------------------- */

#define TICKET_MAX 256          /* the largest is 8 + 2 + 63 + 2 + 63 + 32 bytes */
#define TICKET_PATIENCE_MS 5000 /* for a launcher that has yet to fill its pipe */

size_t dp_kv_ticket_write(const dp_kv_ticket_t *ticket, void *data, size_t room)
{
    dp_writer_t writer;

    dp_writer_init(&writer, data, room);
    dp_write_u32(&writer, DP_KV_MAGIC);
    dp_write_u16(&writer, DP_KV_VERSION);
    dp_write_u16(&writer, ticket->port);
    dp_write_text(&writer, ticket->address);
    dp_write_text(&writer, ticket->job);
    dp_write_bytes(&writer, ticket->secret.bytes, sizeof(ticket->secret.bytes));
    return writer.failed ? 0 : writer.bytes;
}

/* One read at an offset; files share their position with the other ranks, pipes have none. */
static ssize_t read_some(int fd, int is_file, void *data, size_t room, size_t offset)
{
    struct pollfd wait = {fd, POLLIN, 0};
    ssize_t bytes;
    int ready;

    do {
        if (is_file) {
            bytes = pread(fd, data, room, (off_t)offset);
            continue;
        }
        ready = poll(&wait, 1, TICKET_PATIENCE_MS);
        if (ready == 0) {
            errno = ETIMEDOUT;
            return -1;
        }
        bytes = ready > 0 ? read(fd, data, room) : -1;
    } while (bytes < 0 && (errno == EINTR || errno == EAGAIN));
    return bytes;
}

dp_status_t dp_kv_ticket_read(int fd, dp_kv_ticket_t *ticket, dp_error_t *error)
{
    uint8_t data[TICKET_MAX];
    dp_kv_ticket_t read_ticket;
    dp_reader_t reader;
    struct stat about;
    size_t bytes = 0;
    ssize_t got;
    uint32_t magic;
    uint16_t version;

    if (fd < 0 || fstat(fd, &about) != 0) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "DP_BOOTSTRAP_FD=%d is not open; dprun's ticket serves one dp_init() "
                            "of the process it started",
                            fd);
    }
    if (!S_ISREG(about.st_mode) && !S_ISFIFO(about.st_mode)) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "DP_BOOTSTRAP_FD=%d is neither a pipe nor a file: not from dprun", fd);
    }
    do {
        got = read_some(fd, S_ISREG(about.st_mode), data + bytes, sizeof(data) - bytes, bytes);
        if (got > 0) bytes += (size_t)got;
    } while (got > 0 && bytes < sizeof(data));
    if (got < 0) {
        explicit_bzero(data, sizeof(data));
        return dp_error_set(error, DP_ERR_SYSTEM, "DP_BOOTSTRAP_FD=%d: reading the ticket: %s", fd,
                            strerror(errno));
    }
    dp_reader_init(&reader, data, bytes);
    magic = dp_read_u32(&reader);
    version = dp_read_u16(&reader);
    read_ticket.port = dp_read_u16(&reader);
    dp_read_text(&reader, read_ticket.address, sizeof(read_ticket.address));
    dp_read_text(&reader, read_ticket.job, sizeof(read_ticket.job));
    {
        const void *secret = dp_read_bytes(&reader, sizeof(read_ticket.secret.bytes));

        if (secret != NULL) memcpy(read_ticket.secret.bytes, secret, DP_SECRET_BYTES);
    }
    explicit_bzero(data, sizeof(data));
    if (bytes < 6 || magic != DP_KV_MAGIC) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "DP_BOOTSTRAP_FD=%d holds no ticket of dprun (%zu bytes, begins "
                            "0x%08x, expected 0x%08x)",
                            fd, bytes, magic, DP_KV_MAGIC);
    }
    if (version != DP_KV_VERSION) {
        return dp_error_set(error, DP_ERR_MISMATCH,
                            "DP_BOOTSTRAP_FD=%d: dprun speaks rendezvous version %u, this library "
                            "%d; use the dprun of the same build",
                            fd, version, DP_KV_VERSION);
    }
    if (reader.failed || dp_reader_left(&reader) != 0) {
        explicit_bzero(&read_ticket, sizeof(read_ticket));
        return dp_error_set(error, DP_ERR_CONFIG,
                            "DP_BOOTSTRAP_FD=%d: the ticket of %zu bytes is malformed", fd, bytes);
    }
    close(fd);
    *ticket = read_ticket;
    explicit_bzero(&read_ticket, sizeof(read_ticket));
    return DP_OK;
}

/* ---- Handshake ------------------------------------------------------------------------------ */

/* The purposes keep the two proofs apart; the rank in them keeps one rank's from serving another.
 */
static void prove(const dp_secret_t *secret, const char *side, uint32_t rank,
                  const uint8_t *server_challenge, const uint8_t *client_challenge,
                  uint8_t proof[DP_PROOF_BYTES])
{
    char purpose[48];

    snprintf(purpose, sizeof(purpose), "dpkv %d %s %u", DP_KV_VERSION, side, rank);
    dp_auth_prove(secret, purpose, server_challenge, client_challenge, proof);
}

static void write_greeting(dp_writer_t *writer)
{
    dp_write_u32(writer, DP_KV_MAGIC);
    dp_write_u16(writer, DP_KV_VERSION);
    dp_write_u16(writer, 0);
}

void dp_kv_server_hello_write(const uint8_t challenge[DP_CHALLENGE_BYTES],
                              uint8_t hello[DP_KV_SERVER_HELLO_BYTES])
{
    dp_writer_t writer;

    dp_writer_init(&writer, hello, DP_KV_SERVER_HELLO_BYTES);
    write_greeting(&writer);
    dp_write_bytes(&writer, challenge, DP_CHALLENGE_BYTES);
    DP_ASSERT(!writer.failed && writer.bytes == DP_KV_SERVER_HELLO_BYTES);
}

dp_status_t dp_kv_server_hello_read(const uint8_t hello[DP_KV_SERVER_HELLO_BYTES],
                                    const uint8_t **challenge, dp_error_t *error)
{
    dp_reader_t reader;
    uint32_t magic;
    uint16_t version;

    dp_reader_init(&reader, hello, DP_KV_SERVER_HELLO_BYTES);
    magic = dp_read_u32(&reader);
    version = dp_read_u16(&reader);
    (void)dp_read_u16(&reader);
    if (magic != DP_KV_MAGIC) {
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "not a rendezvous: it began with 0x%08x, expected 0x%08x", magic,
                            DP_KV_MAGIC);
    }
    if (version != DP_KV_VERSION) {
        return dp_error_set(error, DP_ERR_MISMATCH,
                            "it speaks rendezvous version %u, this library %d", version,
                            DP_KV_VERSION);
    }
    *challenge = dp_read_bytes(&reader, DP_CHALLENGE_BYTES);
    return DP_OK;
}

void dp_kv_client_hello_write(const dp_secret_t *secret, const uint8_t *server_challenge,
                              const uint8_t *client_challenge, int rank,
                              uint8_t hello[DP_KV_CLIENT_HELLO_BYTES])
{
    dp_writer_t writer;
    uint8_t proof[DP_PROOF_BYTES];

    prove(secret, "client", (uint32_t)rank, server_challenge, client_challenge, proof);
    dp_writer_init(&writer, hello, DP_KV_CLIENT_HELLO_BYTES);
    write_greeting(&writer);
    dp_write_bytes(&writer, client_challenge, DP_CHALLENGE_BYTES);
    dp_write_bytes(&writer, proof, sizeof(proof));
    dp_write_u32(&writer, (uint32_t)rank);
    DP_ASSERT(!writer.failed && writer.bytes == DP_KV_CLIENT_HELLO_BYTES);
}

dp_status_t dp_kv_client_hello_check(const dp_secret_t *secret, const uint8_t *server_challenge,
                                     const uint8_t hello[DP_KV_CLIENT_HELLO_BYTES], uint32_t *rank,
                                     uint8_t welcome[DP_PROOF_BYTES], dp_error_t *error)
{
    dp_reader_t reader;
    const uint8_t *client_challenge;
    const uint8_t *given;
    uint8_t expected[DP_PROOF_BYTES];
    uint32_t magic;
    uint32_t claimed;
    uint16_t version;

    dp_reader_init(&reader, hello, DP_KV_CLIENT_HELLO_BYTES);
    magic = dp_read_u32(&reader);
    version = dp_read_u16(&reader);
    (void)dp_read_u16(&reader);
    client_challenge = dp_read_bytes(&reader, DP_CHALLENGE_BYTES);
    given = dp_read_bytes(&reader, DP_PROOF_BYTES);
    claimed = dp_read_u32(&reader);
    prove(secret, "client", claimed, server_challenge, client_challenge, expected);
    if (magic != DP_KV_MAGIC || version != DP_KV_VERSION ||
        !dp_auth_equal(given, expected, sizeof(expected))) {
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "a stranger: its hello does not prove the job's secret");
    }
    prove(secret, "server", claimed, server_challenge, client_challenge, welcome);
    *rank = claimed;
    return DP_OK;
}

int dp_kv_welcome_check(const dp_secret_t *secret, const uint8_t *server_challenge,
                        const uint8_t *client_challenge, int rank,
                        const uint8_t welcome[DP_PROOF_BYTES])
{
    uint8_t expected[DP_PROOF_BYTES];

    prove(secret, "server", (uint32_t)rank, server_challenge, client_challenge, expected);
    return dp_auth_equal(welcome, expected, sizeof(expected));
}

/* ---- Frames --------------------------------------------------------------------------------- */

dp_status_t dp_kv_frame_parse(const void *data, size_t bytes, uint8_t *type, dp_reader_t *fields,
                              size_t *frame_bytes, dp_error_t *error)
{
    dp_reader_t reader;
    uint32_t follow;

    *frame_bytes = 4;
    if (bytes < 4) return DP_ERR_PENDING;
    dp_reader_init(&reader, data, bytes);
    follow = dp_read_u32(&reader);
    if (follow < 1 || follow > DP_KV_FRAME_MAX) { /* before anything waits for that many */
        return dp_error_set(error, DP_ERR_SYSTEM, "a frame of %u bytes, expected 1 to %u", follow,
                            DP_KV_FRAME_MAX);
    }
    *frame_bytes = 4 + (size_t)follow;
    if (dp_reader_left(&reader) < follow) return DP_ERR_PENDING;
    dp_reader_init(fields, (const uint8_t *)data + 4, follow);
    *type = dp_read_u8(fields);
    if (*type < DP_KV_EXCHANGE || *type > DP_KV_RUNNING) {
        return dp_error_set(error, DP_ERR_SYSTEM, "a frame of type %u, expected %d to %d", *type,
                            DP_KV_EXCHANGE, DP_KV_RUNNING);
    }
    return DP_OK;
}

void dp_kv_frame_begin(dp_writer_t *writer, enum dp_kv_type type)
{
    dp_write_u32(writer, 0); /* dp_kv_frame_end() knows */
    dp_write_u8(writer, (uint8_t)type);
}

void dp_kv_frame_end(dp_writer_t *writer, size_t begin)
{
    dp_writer_t length;
    size_t follow;

    if (writer->failed) return;
    follow = writer->bytes - begin - 4;
    if (follow > DP_KV_FRAME_MAX) {
        writer->failed = 1;
        return;
    }
    dp_writer_init(&length, writer->data + begin, 4);
    dp_write_u32(&length, (uint32_t)follow);
}

void dp_kv_text_write(dp_writer_t *writer, enum dp_kv_type type, const char *text)
{
    const size_t begin = writer->bytes;
    const size_t bytes = strnlen(text, DP_KV_TEXT_MAX);

    dp_kv_frame_begin(writer, type);
    dp_write_u16(writer, (uint16_t)bytes);
    dp_write_bytes(writer, text, bytes);
    dp_kv_frame_end(writer, begin);
}

void dp_kv_failure_write(dp_writer_t *writer, const dp_failure_t *failure)
{
    const size_t begin = writer->bytes;

    dp_kv_frame_begin(writer, DP_KV_FAILURE);
    dp_failure_write(writer, failure);
    dp_kv_frame_end(writer, begin);
}

int dp_kv_exchange_read(dp_reader_t *fields, char name[DP_KV_NAME_MAX + 1], uint32_t *size,
                        const void **value, size_t *value_bytes)
{
    dp_read_text(fields, name, DP_KV_NAME_MAX + 1);
    *size = dp_read_u32(fields);
    *value_bytes = dp_read_u32(fields);
    *value = dp_read_bytes(fields, *value_bytes);
    return fields->failed || dp_reader_left(fields) != 0 ? -1 : 0;
}

int dp_kv_text_read(dp_reader_t *fields, char *text, size_t room)
{
    const size_t bytes = dp_read_u16(fields);
    const uint8_t *from = dp_read_bytes(fields, bytes);
    const size_t kept = dp_min(bytes, room - 1);

    text[0] = '\0';
    if (from == NULL || dp_reader_left(fields) != 0) return -1;
    for (size_t i = 0; i < kept; i++)
        text[i] = (char)(from[i] == '\0' ? '?' : from[i]);
    text[kept] = '\0';
    dp_text_mask(text);
    return 0;
}
