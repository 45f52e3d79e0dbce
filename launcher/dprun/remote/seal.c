/*
 * seal.c - see seal.h. Called by link.c, on the thread of its event loop.
 */
#include "launcher/dprun/remote/seal.h"

#include <sodium.h>
#include <stdlib.h>

_Static_assert(DP_SEAL_HEADER_BYTES == crypto_secretstream_xchacha20poly1305_HEADERBYTES, "header");
_Static_assert(DP_SEAL_EXTRA_BYTES == crypto_secretstream_xchacha20poly1305_ABYTES, "extra");
_Static_assert(DP_SECRET_BYTES == crypto_secretstream_xchacha20poly1305_KEYBYTES, "key");

struct dp_seal {
    crypto_secretstream_xchacha20poly1305_state state;
};

static dp_seal_t *create_seal(const dp_secret_t *secret, const char *purpose,
                              const uint8_t *challenges, dp_secret_t *key)
{
    if (sodium_init() < 0) return NULL; /* again is fine; it picks the fastest code */
    dp_auth_derive(secret, purpose, challenges, (size_t)2 * DP_CHALLENGE_BYTES, key);
    return calloc(1, sizeof(dp_seal_t));
}

dp_seal_t *dp_seal_create(const dp_secret_t *secret, const char *purpose,
                          const uint8_t challenges[2 * DP_CHALLENGE_BYTES],
                          uint8_t header[DP_SEAL_HEADER_BYTES])
{
    dp_secret_t key;
    dp_seal_t *seal = create_seal(secret, purpose, challenges, &key);

    if (seal != NULL) {
        crypto_secretstream_xchacha20poly1305_init_push(&seal->state, header, key.bytes);
    }
    sodium_memzero(&key, sizeof(key));
    return seal;
}

dp_seal_t *dp_seal_create_opener(const dp_secret_t *secret, const char *purpose,
                                 const uint8_t challenges[2 * DP_CHALLENGE_BYTES],
                                 const uint8_t header[DP_SEAL_HEADER_BYTES])
{
    dp_secret_t key;
    dp_seal_t *seal = create_seal(secret, purpose, challenges, &key);

    if (seal != NULL &&
        crypto_secretstream_xchacha20poly1305_init_pull(&seal->state, header, key.bytes) != 0) {
        free(seal);
        seal = NULL;
    }
    sodium_memzero(&key, sizeof(key));
    return seal;
}

void dp_seal_destroy(dp_seal_t *seal)
{
    if (seal == NULL) return;
    sodium_memzero(seal, sizeof(*seal));
    free(seal);
}

void dp_seal_close(dp_seal_t *seal, const void *plain, size_t bytes, uint8_t *sealed)
{
    crypto_secretstream_xchacha20poly1305_push(&seal->state, sealed, NULL, plain, bytes, NULL, 0,
                                               crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
}

int dp_seal_open(dp_seal_t *seal, const uint8_t *sealed, size_t bytes, void *plain)
{
    unsigned char tag;

    if (bytes < DP_SEAL_EXTRA_BYTES) return -1;
    return crypto_secretstream_xchacha20poly1305_pull(&seal->state, plain, NULL, &tag, sealed,
                                                      bytes, NULL, 0);
}
