/*
 * test_auth.c - a proof belongs to one secret, one purpose and one pair of challenges.
 */
#include "runtime/base/auth.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/cases.h"

static void fill(dp_secret_t *secret, uint8_t *a, uint8_t *b)
{
    for (int i = 0; i < DP_SECRET_BYTES; i++)
        secret->bytes[i] = (uint8_t)i;
    memset(a, 1, DP_CHALLENGE_BYTES);
    memset(b, 2, DP_CHALLENGE_BYTES);
}

static void auth_proof_depends_on_every_part(void **state)
{
    dp_secret_t secret;
    uint8_t a[DP_CHALLENGE_BYTES];
    uint8_t b[DP_CHALLENGE_BYTES];
    uint8_t proof[DP_PROOF_BYTES];
    uint8_t again[DP_PROOF_BYTES];

    (void)state;
    fill(&secret, a, b);
    dp_auth_prove(&secret, "client", a, b, proof);
    dp_auth_prove(&secret, "client", a, b, again);
    assert_true(dp_auth_equal(proof, again, sizeof(proof)));
    dp_auth_prove(&secret, "server", a, b, again);
    assert_false(dp_auth_equal(proof, again, sizeof(proof)));
    dp_auth_prove(&secret, "client", b, a, again);
    assert_false(dp_auth_equal(proof, again, sizeof(proof)));
    for (int i = 0; i < DP_CHALLENGE_BYTES; i++) {
        a[i] ^= 0x80;
        dp_auth_prove(&secret, "client", a, b, again);
        assert_false(dp_auth_equal(proof, again, sizeof(proof)));
        a[i] ^= 0x80;
        secret.bytes[i] ^= 1;
        dp_auth_prove(&secret, "client", a, b, again);
        assert_false(dp_auth_equal(proof, again, sizeof(proof)));
        secret.bytes[i] ^= 1;
    }
}

/* RFC 4231 gives vectors for the HMAC itself; this pins what we feed it:
 * hmac-sha256(key 00..1f, 06 "client" 01*32 02*32), by Python's hmac module. */
static void auth_proof_matches_an_independent_hmac(void **state)
{
    static const uint8_t expected[DP_PROOF_BYTES] = {
        0xe5, 0x20, 0xc4, 0x8b, 0x5b, 0x29, 0x11, 0xcc, 0x94, 0x3a, 0x41,
        0xf6, 0x7e, 0x4d, 0xad, 0xa8, 0x51, 0xd6, 0xd8, 0xcf, 0xc6, 0xda,
        0x30, 0x6f, 0x9e, 0x7b, 0xb4, 0x38, 0x59, 0xc9, 0x81, 0xef};
    dp_secret_t secret;
    uint8_t a[DP_CHALLENGE_BYTES];
    uint8_t b[DP_CHALLENGE_BYTES];
    uint8_t proof[DP_PROOF_BYTES];

    (void)state;
    fill(&secret, a, b);
    dp_auth_prove(&secret, "client", a, b, proof);
    assert_memory_equal(proof, expected, sizeof(proof));
}

static void auth_tag_depends_on_secret_and_purpose(void **state)
{
    dp_secret_t secret;
    uint8_t a[DP_CHALLENGE_BYTES];
    uint8_t b[DP_CHALLENGE_BYTES];
    uint64_t tag;

    (void)state;
    fill(&secret, a, b);
    tag = dp_auth_tag(&secret, "control");
    assert_true(tag == dp_auth_tag(&secret, "control"));
    assert_true(tag != dp_auth_tag(&secret, "data"));
    secret.bytes[31] ^= 1;
    assert_true(tag != dp_auth_tag(&secret, "control"));
}

static void auth_random_bytes_differ(void **state)
{
    uint8_t a[32] = {0};
    uint8_t b[32] = {0};

    (void)state;
    dp_random(a, sizeof(a));
    dp_random(b, sizeof(b));
    assert_memory_not_equal(a, b, sizeof(a));
    dp_random(a, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auth_proof_depends_on_every_part),
        cmocka_unit_test(auth_proof_matches_an_independent_hmac),
        cmocka_unit_test(auth_tag_depends_on_secret_and_purpose),
        cmocka_unit_test(auth_random_bytes_differ),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
