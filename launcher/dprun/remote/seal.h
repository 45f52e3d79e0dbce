/*
 * seal.h - frames that only the two ends of a connection can read, change or repeat.
 *
 * Both ends derive one key per direction from a secret and the challenges of their handshake. A
 * frame is encrypted and numbered (libsodium's secretstream: XChaCha20-Poly1305), so one that was
 * altered, left out, repeated or put in another order does not open. Pure: no descriptors.
 */
#ifndef DP_LAUNCHER_SEAL_H
#define DP_LAUNCHER_SEAL_H

#include "runtime/base/auth.h"

#define DP_SEAL_HEADER_BYTES 24 /* sent once, before the first frame of a direction */
#define DP_SEAL_EXTRA_BYTES 17  /* by which a sealed frame is longer */

typedef struct dp_seal dp_seal_t;

/* The sending end; header is for the other one. NULL: no memory. purpose names the direction. */
dp_seal_t *dp_seal_create(const dp_secret_t *secret, const char *purpose,
                          const uint8_t challenges[2 * DP_CHALLENGE_BYTES],
                          uint8_t header[DP_SEAL_HEADER_BYTES]);

/* The receiving end. NULL: no memory, or a header that cannot be. */
dp_seal_t *dp_seal_create_opener(const dp_secret_t *secret, const char *purpose,
                                 const uint8_t challenges[2 * DP_CHALLENGE_BYTES],
                                 const uint8_t header[DP_SEAL_HEADER_BYTES]);
void dp_seal_destroy(dp_seal_t *seal); /* NULL is fine */

/* sealed has bytes + DP_SEAL_EXTRA_BYTES. */
void dp_seal_close(dp_seal_t *seal, const void *plain, size_t bytes, uint8_t *sealed);

/* plain has bytes - DP_SEAL_EXTRA_BYTES. -1: not the other end's next frame. */
int dp_seal_open(dp_seal_t *seal, const uint8_t *sealed, size_t bytes, void *plain);

#endif
