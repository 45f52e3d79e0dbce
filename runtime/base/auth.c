/*
 * auth.c - challenges, proofs and tags from one shared secret, by libsodium's HMAC-SHA256.
 *
 * Called by both ends of every connection that proves something: the rendezvous, the lines between
 * ranks, dprun's links, sockets of a node. Pure but for dp_random(), so on any thread.
 */
#include "runtime/base/auth.h"

#include <sodium.h>
#include <string.h>

_Static_assert(DP_SECRET_BYTES == crypto_auth_hmacsha256_KEYBYTES, "the secret is the HMAC's key");
_Static_assert(DP_SECRET_BYTES == crypto_auth_hmacsha256_BYTES, "a secret can be derived");
_Static_assert(DP_CODE_KEY_BYTES == crypto_shorthash_siphash24_KEYBYTES, "the key of SipHash");
_Static_assert(DP_PROOF_BYTES == crypto_auth_hmacsha256_BYTES, "a proof is a whole HMAC");

#define STACK_BYTES ((size_t)64 << 10) /* deeper than the calls that copy a secret */

void dp_random(void *data, size_t bytes)
{
    /* randombytes_buf() needs no sodium_init(): it reads the kernel's generator, and what that
     * call would pick (faster code) does not matter for a few challenges. */
    randombytes_buf(data, bytes);
}

void dp_auth_wipe_stack(void)
{
    sodium_stackzero(STACK_BYTES);
}

/* The length goes in front of the purpose, so that no purpose continues into the data. */
static void hmac_begin(crypto_auth_hmacsha256_state *state, const dp_secret_t *secret,
                       const char *purpose)
{
    const uint8_t length = (uint8_t)strnlen(purpose, 255);

    crypto_auth_hmacsha256_init(state, secret->bytes, sizeof(secret->bytes));
    crypto_auth_hmacsha256_update(state, &length, 1);
    crypto_auth_hmacsha256_update(state, (const uint8_t *)purpose, length);
}

void dp_auth_prove(const dp_secret_t *secret, const char *purpose, const uint8_t *challenge,
                   const uint8_t *other_challenge, uint8_t proof[DP_PROOF_BYTES])
{
    crypto_auth_hmacsha256_state state;

    hmac_begin(&state, secret, purpose);
    crypto_auth_hmacsha256_update(&state, challenge, DP_CHALLENGE_BYTES);
    crypto_auth_hmacsha256_update(&state, other_challenge, DP_CHALLENGE_BYTES);
    crypto_auth_hmacsha256_final(&state, proof);
    sodium_memzero(&state, sizeof(state));
}

int dp_auth_equal(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    return sodium_memcmp(a, b, bytes) == 0;
}

uint64_t dp_auth_tag(const dp_secret_t *secret, const char *purpose)
{
    crypto_auth_hmacsha256_state state;
    uint8_t digest[crypto_auth_hmacsha256_BYTES];
    uint64_t tag = 0;

    hmac_begin(&state, secret, purpose);
    crypto_auth_hmacsha256_final(&state, digest);
    sodium_memzero(&state, sizeof(state));
    for (int i = 0; i < 8; i++)
        tag |= (uint64_t)digest[i] << (8 * i);
    return tag;
}

void dp_auth_derive(const dp_secret_t *key, const char *purpose, const void *data, size_t bytes,
                    dp_secret_t *out)
{
    static const dp_secret_t none = {{0}};
    crypto_auth_hmacsha256_state state;

    hmac_begin(&state, key != NULL ? key : &none, purpose);
    crypto_auth_hmacsha256_update(&state, data, bytes);
    crypto_auth_hmacsha256_final(&state, out->bytes);
    sodium_memzero(&state, sizeof(state));
}

uint64_t dp_auth_code(const dp_code_key_t *key, const void *data, size_t bytes)
{
    uint8_t digest[crypto_shorthash_siphash24_BYTES];
    uint64_t code = 0;

    crypto_shorthash_siphash24(digest, data, bytes, key->bytes);
    for (int i = 0; i < 8; i++)
        code |= (uint64_t)digest[i] << (8 * i);
    return code;
}
