/*
 * line_hello.h - how two ranks prove to each other over a line that they belong to one world, and
 * the codes that every beat and control message between nodes carries.
 *
 * Pure: bytes in, bytes or a verdict out. Anybody may connect, so nothing is believed before it was
 * checked here. Conversation, little-endian; the lower rank of the two listens:
 *
 *     listener -> connector  greeting: "DPLN" u32 magic, u16 version, u16 0, challenge [32]
 *     connector -> listener  hello:    magic, version, u16 0, u64 world, u32 rank, challenge [32],
 *                                      proof [32]
 *     listener -> connector  welcome:  proof [32], or a refusal [32] and a close
 *     then beats, each way
 *
 * Proofs and codes are made with the edge's secret, which the two ranks derive from the world's
 * secret, their numbers and a random number of each. So nothing that was recorded in another run,
 * on another edge or on an earlier connection is accepted.
 */
#ifndef DP_TRANSPORT_LINE_HELLO_H
#define DP_TRANSPORT_LINE_HELLO_H

#include "runtime/base/auth.h"

#define DP_LINE_NONCE_BYTES 16
#define DP_LINE_GREETING_BYTES 40
#define DP_LINE_HELLO_BYTES 84
#define DP_LINE_WELCOME_BYTES DP_PROOF_BYTES
#define DP_LINE_BEAT_BYTES 16

/* The fields of a hello; point into its bytes. */
typedef struct dp_line_hello {
    uint64_t world;
    uint32_t from;
    const uint8_t *challenge;
    const uint8_t *proof;
} dp_line_hello_t;

/* Why a listener refuses a hello. */
typedef enum dp_line_refusal {
    DP_LINE_ACCEPTED,
    DP_LINE_OTHER_WORLD, /* of another job, or of a run with another secret */
    DP_LINE_NO_NEIGHBOUR,
    DP_LINE_HERE_ALREADY,
    DP_LINE_WRONG_PROOF /* recorded on another connection */
} dp_line_refusal_t;

typedef enum dp_line_beat_kind {
    DP_LINE_BEAT = 1,
    DP_LINE_FAREWELL = 2 /* nothing follows; the end of the line behind it is no loss */
} dp_line_beat_kind_t;

/* The secret of the edge between two ranks, equal on both. */
void dp_line_edge_secret(const dp_secret_t *world, uint32_t lower, uint32_t higher,
                         const uint8_t lower_nonce[DP_LINE_NONCE_BYTES],
                         const uint8_t higher_nonce[DP_LINE_NONCE_BYTES], dp_secret_t *edge);

/* A key for codes of what `from` sends on this edge. use: "message", or "beat", which is fresh for
 * each connection by its two challenges (data); they may be NULL with 0 bytes. */
void dp_line_code_key(const dp_secret_t *edge, const char *use, uint32_t from, const void *data,
                      size_t bytes, dp_code_key_t *key);

void dp_line_greeting_write(const uint8_t challenge[DP_CHALLENGE_BYTES],
                            uint8_t greeting[DP_LINE_GREETING_BYTES]);
/* NULL, or in words what is wrong with it. */
const char *dp_line_greeting_read(const uint8_t greeting[DP_LINE_GREETING_BYTES],
                                  const uint8_t **challenge);

void dp_line_hello_write(const dp_secret_t *edge, uint64_t world, uint32_t from,
                         const uint8_t *listener_challenge, const uint8_t *own_challenge,
                         uint8_t hello[DP_LINE_HELLO_BYTES]);
/* Reads the fields and checks none but magic and version. NULL, or in words what is wrong. */
const char *dp_line_hello_read(const uint8_t hello[DP_LINE_HELLO_BYTES], dp_line_hello_t *out);
int dp_line_hello_is_proven(const dp_secret_t *edge, const uint8_t *listener_challenge,
                            const dp_line_hello_t *hello);

void dp_line_welcome_write(const dp_secret_t *edge, const uint8_t *listener_challenge,
                           const uint8_t *connector_challenge,
                           uint8_t welcome[DP_LINE_WELCOME_BYTES]);
void dp_line_refusal_write(dp_line_refusal_t why, uint8_t welcome[DP_LINE_WELCOME_BYTES]);
/* DP_LINE_ACCEPTED: the proof is right. A refusal needs no proof: nothing but an end follows. */
dp_line_refusal_t dp_line_welcome_read(const dp_secret_t *edge, const uint8_t *listener_challenge,
                                       const uint8_t *connector_challenge,
                                       const uint8_t welcome[DP_LINE_WELCOME_BYTES]);
/* In words, after "refused: ". */
const char *dp_line_refusal_text(dp_line_refusal_t why);

void dp_line_beat_write(const dp_code_key_t *key, dp_line_beat_kind_t kind, uint32_t number,
                        uint8_t beat[DP_LINE_BEAT_BYTES]);
/* 1: *kind was sent by the other rank as the beat of this number. */
int dp_line_beat_read(const dp_code_key_t *key, uint32_t number,
                      const uint8_t beat[DP_LINE_BEAT_BYTES], dp_line_beat_kind_t *kind);

#endif
