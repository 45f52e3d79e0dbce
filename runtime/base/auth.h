/*
 * auth.h - proves that both ends of a rendezvous connection know the job's secret.
 *
 * HMAC-SHA256 over fresh challenges (libsodium). The secret itself never travels; it comes through
 * an inherited descriptor or a file for one user's eyes, never through argv or the environment.
 */
#ifndef DP_BASE_AUTH_H
#define DP_BASE_AUTH_H

#include "runtime/base/error.h"

#define DP_SECRET_BYTES 32
#define DP_CHALLENGE_BYTES 32
#define DP_PROOF_BYTES 32

typedef struct dp_secret {
    uint8_t bytes[DP_SECRET_BYTES];
} dp_secret_t;

/* The key of dp_auth_code(). */
#define DP_CODE_KEY_BYTES 16
typedef struct dp_code_key {
    uint8_t bytes[DP_CODE_KEY_BYTES];
} dp_code_key_t;

/* Random bytes fit for keys. */
void dp_random(void *data, size_t bytes);

/* Clears the stack below the caller: copies of a secret in registers get there, as the dynamic
 * linker saves them at the first call of a function. */
void dp_auth_wipe_stack(void);

/* proof = HMAC(secret, purpose || challenge || challenge of the other side). The purpose keeps a
 * proof of one side from serving as that of the other. */
void dp_auth_prove(const dp_secret_t *secret, const char *purpose, const uint8_t *challenge,
                   const uint8_t *other_challenge, uint8_t proof[DP_PROOF_BYTES]);

/* 1 when equal, in constant time. */
int dp_auth_equal(const uint8_t *a, const uint8_t *b, size_t bytes);

/* A 64-bit tag for our control frames, derived from the secret. */
uint64_t dp_auth_tag(const dp_secret_t *secret, const char *purpose);

/* out = HMAC(key, purpose || data): one secret from another, or (key NULL) from what is in a file.
 */
void dp_auth_derive(const dp_secret_t *key, const char *purpose, const void *data, size_t bytes,
                    dp_secret_t *out);

/* A code of data that only the holders of the key can make (SipHash-2-4). A twentieth of an HMAC's
 * time, for messages that are many and short. */
uint64_t dp_auth_code(const dp_code_key_t *key, const void *data, size_t bytes);

/* The file of a job's secret (DP_SECRET_FILE), for ranks that dprun did not start and for dprun
 * --node. */
#define DP_SECRET_FILE_MIN 32
#define DP_SECRET_FILE_MAX 4096

/* Derives a secret for `purpose` from the whole file. It must be a regular file of this user that
 * nobody else can read or write, or root's, which its group may read; of DP_SECRET_FILE_MIN to
 * DP_SECRET_FILE_MAX bytes. Never waits. DP_ERR_CONFIG: error says which of these does not hold. */
dp_status_t dp_secret_file_read(const char *path, const char *purpose, dp_secret_t *secret,
                                dp_error_t *error);

#endif
