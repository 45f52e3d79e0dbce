/*
 * kv.h - the rendezvous: a job's ranks exchange small values through a server before they can talk.
 *
 * The protocol (framing, the HMAC handshake, the three requests) and both of its ends' pure parts
 * live here; rendezvous.c serves it, this client calls it. All that a connection can send
 * before its proof is checked is one hello of fixed size.
 *
 * Conversation, little-endian:
 *   server -> client  hello:  "DPKV" u32 magic, u16 version, u16 0, server challenge [32]
 *   client -> server  hello:  magic, version, u16 0, client challenge [32], proof [32], u32 rank
 *   server -> client  welcome: proof [32]; or why there is none, and a close
 *   then frames: u32 bytes (of what follows, 1 .. DP_KV_FRAME_MAX), u8 type, fields
 *
 *   from a rank:    EXCHANGE  text name, u32 size, u32 bytes, blob
 *                   FAILURE   a failure.h: why this rank's world ended, for dprun
 *                   GIVE_UP   text name: this rank has waited long enough in that exchange
 *                   RUNNING   from here on it notices by itself when a neighbour falls silent
 *   from a server:  VALUES    u32 count, count x (u32 bytes, blob): all have given a value
 *                   ERROR     text: why an exchange ended, or why the rank cannot take part
 *                   LATE      text: which ranks did not come in time, and which did
 *
 * EXCHANGE is a collective: the answer comes when all `size` ranks of the job gave a value. GIVE_UP
 * is answered by LATE to all who wait in that exchange, and by nothing if it has ended already.
 */
#ifndef DP_BASE_KV_H
#define DP_BASE_KV_H

#include "runtime/base/auth.h"
#include "runtime/base/failure.h"
#include "runtime/base/wire.h"

#define DP_KV_MAGIC 0x564b5044u /* "DPKV" */
#define DP_KV_VERSION 5
#define DP_KV_FRAME_MAX (4u << 20)
#define DP_KV_NAME_MAX 63
#define DP_KV_SERVER_HELLO_BYTES 40
#define DP_KV_CLIENT_HELLO_BYTES 76
/* In the place of a welcome, 32 bytes: the client's proof is wrong; the server drops connections
 * that have proven nothing, because there are too many, and a rank may come again. */
#define DP_KV_WRONG_PROOF "DPKV refused: the proof is wrong"
#define DP_KV_BUSY "DPKV refused: too many strangers"
#define DP_KV_FRAME_HEADER_BYTES 5 /* u32 bytes, u8 type */
#define DP_KV_TEXT_MAX 1023        /* of an ERROR, a LATE, ... */

_Static_assert(sizeof(DP_KV_WRONG_PROOF) - 1 == DP_PROOF_BYTES, "as long as a proof");
_Static_assert(sizeof(DP_KV_BUSY) - 1 == DP_PROOF_BYTES, "as long as a proof");

enum dp_kv_type {
    DP_KV_EXCHANGE = 1,
    DP_KV_VALUES = 2,
    DP_KV_FAILURE = 3,
    DP_KV_ERROR = 4,
    DP_KV_GIVE_UP = 5,
    DP_KV_LATE = 6,
    DP_KV_RUNNING = 7
};

/* The ticket that dprun hands a rank through DP_BOOTSTRAP_FD (a pipe or memfd, read to its end):
 * u32 magic, u16 version, u16 port, text address (an IP, or of a local_socket.h), text job id,
 * secret [32]. */
typedef struct dp_kv_ticket {
    char address[64];
    uint16_t port;
    char job[64];
    dp_secret_t secret;
} dp_kv_ticket_t;

size_t dp_kv_ticket_write(const dp_kv_ticket_t *ticket, void *data, size_t room); /* 0: no room */
/* Reads and, when it held a ticket, closes the descriptor; a foreign one is left alone. */
dp_status_t dp_kv_ticket_read(int fd, dp_kv_ticket_t *ticket, dp_error_t *error);

/* ---- The protocol's pure parts, for both ends (kv_protocol.c) ------------------------------- */

void dp_kv_server_hello_write(const uint8_t challenge[DP_CHALLENGE_BYTES],
                              uint8_t hello[DP_KV_SERVER_HELLO_BYTES]);
/* Points challenge into hello. DP_ERR_SYSTEM: not a rendezvous; DP_ERR_MISMATCH: its version. */
dp_status_t dp_kv_server_hello_read(const uint8_t hello[DP_KV_SERVER_HELLO_BYTES],
                                    const uint8_t **challenge, dp_error_t *error);

/* A client's answer; its proof covers both challenges and the rank. */
void dp_kv_client_hello_write(const dp_secret_t *secret, const uint8_t *server_challenge,
                              const uint8_t *client_challenge, int rank,
                              uint8_t hello[DP_KV_CLIENT_HELLO_BYTES]);
/* Checks it and makes the welcome. The rank is proven to be meant, not to be in range. Nothing of
 * the hello is looked at, and nothing written, unless its proof is right: DP_ERR_SYSTEM. */
dp_status_t dp_kv_client_hello_check(const dp_secret_t *secret, const uint8_t *server_challenge,
                                     const uint8_t hello[DP_KV_CLIENT_HELLO_BYTES], uint32_t *rank,
                                     uint8_t welcome[DP_PROOF_BYTES], dp_error_t *error);
int dp_kv_welcome_check(const dp_secret_t *secret, const uint8_t *server_challenge,
                        const uint8_t *client_challenge, int rank,
                        const uint8_t welcome[DP_PROOF_BYTES]); /* 1 when right */

/* A whole frame within bytes received so far: points fields past the type, frame_bytes is what to
 * drop from the front. DP_ERR_PENDING: frame_bytes must be there for the next look; DP_ERR_SYSTEM:
 * garbage or too large. */
dp_status_t dp_kv_frame_parse(const void *data, size_t bytes, uint8_t *type, dp_reader_t *fields,
                              size_t *frame_bytes, dp_error_t *error);

/* Frames are written whole; dp_writer_t.failed tells that one did not fit. */
void dp_kv_frame_begin(dp_writer_t *writer, enum dp_kv_type type);
void dp_kv_frame_end(dp_writer_t *writer, size_t begin); /* begin: writer->bytes at frame_begin */
void dp_kv_text_write(dp_writer_t *writer, enum dp_kv_type type,
                      const char *text); /* ERROR, GIVE_UP, LATE */

void dp_kv_failure_write(dp_writer_t *writer, const dp_failure_t *failure);

/* The fields of an EXCHANGE; value points into the frame. 0 on success, -1 when malformed. */
int dp_kv_exchange_read(dp_reader_t *fields, char name[DP_KV_NAME_MAX + 1], uint32_t *size,
                        const void **value, size_t *value_bytes);

/* A text of any of these, cut to room; control characters become '?'. 0 on success, -1 malformed.
 */
int dp_kv_text_read(dp_reader_t *fields, char *text, size_t room);

/* ---- The client (kv.c) ---------------------------------------------------------------------- */

typedef struct dp_kv dp_kv_t;

/* Connects and proves the secret to each other, within the deadline (dp_now_ns()). The ticket is
 * not kept. Errors: DP_ERR_TIMEOUT, DP_ERR_MISMATCH (another protocol), DP_ERR_CONFIG (the secrets
 * differ), DP_ERR_PEER_LOST (nobody listens at a local address any more), DP_ERR_SYSTEM (it may be
 * worth another try), DP_ERR_NO_MEMORY; the text names the server's address. */
dp_status_t dp_kv_connect(const dp_kv_ticket_t *ticket, int rank, uint64_t deadline_ns,
                          dp_kv_t **kv, dp_error_t *error);

/* Gives this rank's value and receives all, [size] in rank order. values and bytes are the
 * caller's arrays [size]; each values[i] is returned (free() it), with a NUL behind its last byte.
 * After an error other than DP_ERR_INVALID the connection is of no more use and repeats it.
 * DP_ERR_INVALID: too large a name or value; DP_ERR_PEER_LOST: the server ended the rendezvous, its
 * text says why; DP_ERR_TIMEOUT: a rank did not come, the text says who; DP_ERR_SYSTEM,
 * DP_ERR_NO_MEMORY. Threads: one at a time. */
dp_status_t dp_kv_exchange(dp_kv_t *kv, const char *name, int size, const void *value,
                           size_t value_bytes, void **values, size_t *bytes, uint64_t deadline_ns,
                           dp_error_t *error);

/* Tells dprun why this rank's world ended; best effort, never blocks. Threads: any, also during an
 * exchange. */
void dp_kv_report(dp_kv_t *kv, const dp_failure_t *failure);

/* Tells dprun that all neighbours of this rank have given a sign of life, so it notices from here
 * on when one of them falls silent. As dp_kv_report(). */
void dp_kv_running(dp_kv_t *kv);

void dp_kv_close(dp_kv_t *kv); /* NULL is fine */

#endif
