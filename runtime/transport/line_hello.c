/*
 * line_hello.c - proofs, beats and their codes, by the functions of auth.h. Pure; called by line.c,
 * line_peer.c and line_listen.c.
 */
#include "runtime/transport/line_hello.h"

#include <string.h>

#include "runtime/base/wire.h"

#define LINE_MAGIC 0x4e4c5044u /* "DPLN" */
#define LINE_VERSION 1

static const char *const refusal_words[] = {
    [DP_LINE_OTHER_WORLD] = "DPLN refused: another job",
    [DP_LINE_NO_NEIGHBOUR] = "DPLN refused: no neighbour",
    [DP_LINE_HERE_ALREADY] = "DPLN refused: here already",
    [DP_LINE_WRONG_PROOF] = "DPLN refused: wrong proof",
};

/* ---- Keys ----------------------------------------------------------------------------------- */

void dp_line_edge_secret(const dp_secret_t *world, uint32_t lower, uint32_t higher,
                         const uint8_t lower_nonce[DP_LINE_NONCE_BYTES],
                         const uint8_t higher_nonce[DP_LINE_NONCE_BYTES], dp_secret_t *edge)
{
    uint8_t data[8 + 2 * DP_LINE_NONCE_BYTES];
    dp_writer_t writer;

    dp_writer_init(&writer, data, sizeof(data));
    dp_write_u32(&writer, lower);
    dp_write_u32(&writer, higher);
    dp_write_bytes(&writer, lower_nonce, DP_LINE_NONCE_BYTES);
    dp_write_bytes(&writer, higher_nonce, DP_LINE_NONCE_BYTES);
    dp_auth_derive(world, "edge", data, writer.bytes, edge);
}

void dp_line_code_key(const dp_secret_t *edge, const char *use, uint32_t from, const void *data,
                      size_t bytes, dp_code_key_t *key)
{
    uint8_t whole[4 + 2 * DP_CHALLENGE_BYTES];
    dp_writer_t writer;
    dp_secret_t secret;

    dp_writer_init(&writer, whole, sizeof(whole));
    dp_write_u32(&writer, from);
    if (bytes > 0) dp_write_bytes(&writer, data, bytes);
    DP_ASSERT(!writer.failed);
    dp_auth_derive(edge, use, whole, writer.bytes, &secret);
    memcpy(key->bytes, secret.bytes, sizeof(key->bytes));
    explicit_bzero(&secret, sizeof(secret));
}

/* ---- The three messages of the handshake ---------------------------------------------------- */

static void write_head(dp_writer_t *writer, void *data, size_t room)
{
    dp_writer_init(writer, data, room);
    dp_write_u32(writer, LINE_MAGIC);
    dp_write_u16(writer, LINE_VERSION);
    dp_write_u16(writer, 0);
}

static const char *read_head(dp_reader_t *reader, const void *data, size_t bytes)
{
    uint16_t version;

    dp_reader_init(reader, data, bytes);
    if (dp_read_u32(reader) != LINE_MAGIC) return "it is no rank";
    version = dp_read_u16(reader);
    if (version != LINE_VERSION || dp_read_u16(reader) != 0) return "it is of another version";
    return NULL;
}

void dp_line_greeting_write(const uint8_t challenge[DP_CHALLENGE_BYTES],
                            uint8_t greeting[DP_LINE_GREETING_BYTES])
{
    dp_writer_t writer;

    write_head(&writer, greeting, DP_LINE_GREETING_BYTES);
    dp_write_bytes(&writer, challenge, DP_CHALLENGE_BYTES);
    DP_ASSERT(writer.bytes == DP_LINE_GREETING_BYTES);
}

const char *dp_line_greeting_read(const uint8_t greeting[DP_LINE_GREETING_BYTES],
                                  const uint8_t **challenge)
{
    dp_reader_t reader;
    const char *reason = read_head(&reader, greeting, DP_LINE_GREETING_BYTES);

    if (reason == NULL) *challenge = dp_read_bytes(&reader, DP_CHALLENGE_BYTES);
    return reason;
}

void dp_line_hello_write(const dp_secret_t *edge, uint64_t world, uint32_t from,
                         const uint8_t *listener_challenge, const uint8_t *own_challenge,
                         uint8_t hello[DP_LINE_HELLO_BYTES])
{
    uint8_t proof[DP_PROOF_BYTES];
    dp_writer_t writer;

    dp_auth_prove(edge, "line connector", listener_challenge, own_challenge, proof);
    write_head(&writer, hello, DP_LINE_HELLO_BYTES);
    dp_write_u64(&writer, world);
    dp_write_u32(&writer, from);
    dp_write_bytes(&writer, own_challenge, DP_CHALLENGE_BYTES);
    dp_write_bytes(&writer, proof, sizeof(proof));
    DP_ASSERT(writer.bytes == DP_LINE_HELLO_BYTES);
}

const char *dp_line_hello_read(const uint8_t hello[DP_LINE_HELLO_BYTES], dp_line_hello_t *out)
{
    dp_reader_t reader;
    const char *reason = read_head(&reader, hello, DP_LINE_HELLO_BYTES);

    if (reason != NULL) return reason;
    out->world = dp_read_u64(&reader);
    out->from = dp_read_u32(&reader);
    out->challenge = dp_read_bytes(&reader, DP_CHALLENGE_BYTES);
    out->proof = dp_read_bytes(&reader, DP_PROOF_BYTES);
    return NULL;
}

int dp_line_hello_is_proven(const dp_secret_t *edge, const uint8_t *listener_challenge,
                            const dp_line_hello_t *hello)
{
    uint8_t proof[DP_PROOF_BYTES];

    dp_auth_prove(edge, "line connector", listener_challenge, hello->challenge, proof);
    return dp_auth_equal(proof, hello->proof, sizeof(proof));
}

void dp_line_welcome_write(const dp_secret_t *edge, const uint8_t *listener_challenge,
                           const uint8_t *connector_challenge,
                           uint8_t welcome[DP_LINE_WELCOME_BYTES])
{
    dp_auth_prove(edge, "line listener", listener_challenge, connector_challenge, welcome);
}

void dp_line_refusal_write(dp_line_refusal_t why, uint8_t welcome[DP_LINE_WELCOME_BYTES])
{
    memset(welcome, 0, DP_LINE_WELCOME_BYTES);
    memcpy(welcome, refusal_words[why], strlen(refusal_words[why]));
}

dp_line_refusal_t dp_line_welcome_read(const dp_secret_t *edge, const uint8_t *listener_challenge,
                                       const uint8_t *connector_challenge,
                                       const uint8_t welcome[DP_LINE_WELCOME_BYTES])
{
    uint8_t expected[DP_LINE_WELCOME_BYTES];

    dp_line_welcome_write(edge, listener_challenge, connector_challenge, expected);
    if (dp_auth_equal(welcome, expected, sizeof(expected))) return DP_LINE_ACCEPTED;
    for (int why = DP_LINE_OTHER_WORLD; why <= DP_LINE_WRONG_PROOF; why++) {
        dp_line_refusal_write((dp_line_refusal_t)why, expected);
        if (memcmp(welcome, expected, sizeof(expected)) == 0) return (dp_line_refusal_t)why;
    }
    return DP_LINE_WRONG_PROOF;
}

const char *dp_line_refusal_text(dp_line_refusal_t why)
{
    switch (why) {
    case DP_LINE_ACCEPTED:
        return "accepted";
    case DP_LINE_OTHER_WORLD:
        return "of another job, or of a run with another secret";
    case DP_LINE_NO_NEIGHBOUR:
        return "no neighbour";
    case DP_LINE_HERE_ALREADY:
        return "here already";
    case DP_LINE_WRONG_PROOF:
        return "its proof is wrong, as one that was recorded elsewhere would be";
    }
    return "unknown";
}

/* ---- Beats ---------------------------------------------------------------------------------- */

void dp_line_beat_write(const dp_code_key_t *key, dp_line_beat_kind_t kind, uint32_t number,
                        uint8_t beat[DP_LINE_BEAT_BYTES])
{
    dp_writer_t writer;

    dp_writer_init(&writer, beat, DP_LINE_BEAT_BYTES);
    dp_write_u32(&writer, (uint32_t)kind);
    dp_write_u32(&writer, number);
    dp_write_u64(&writer, dp_auth_code(key, beat, 8));
}

int dp_line_beat_read(const dp_code_key_t *key, uint32_t number,
                      const uint8_t beat[DP_LINE_BEAT_BYTES], dp_line_beat_kind_t *kind)
{
    dp_reader_t reader;
    uint32_t said;

    dp_reader_init(&reader, beat, DP_LINE_BEAT_BYTES);
    said = dp_read_u32(&reader);
    if (dp_read_u32(&reader) != number || dp_read_u64(&reader) != dp_auth_code(key, beat, 8))
        return 0;
    if (said != DP_LINE_BEAT && said != DP_LINE_FAREWELL) return 0;
    *kind = (dp_line_beat_kind_t)said;
    return 1;
}
