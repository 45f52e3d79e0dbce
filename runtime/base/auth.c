/*
 * auth.c - challenges, proofs and tags from one shared secret, by libsodium's HMAC-SHA256.
 *
 * Called by both ends of every connection that proves something: the rendezvous, the lines between
 * ranks, dprun's links, sockets of a node. Pure but for dp_random(), so on any thread.
 * The file of a secret is read by dp_init() in the program's thread, and by dprun before it has an
 * event loop.
 */
#include "runtime/base/auth.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* ---- The file of a secret ------------------------------------------------------------------- */

/* Symbolic links are followed: Kubernetes mounts secrets as links. The owner of
 * the file at their end counts, and the descriptor that was checked is the one that is read. */

/* A secret that Kubernetes mounts for a user other than root is root's, and readable by a group of
 * that user (fsGroup). */
static int is_private(const struct stat *about)
{
    if (about->st_uid == geteuid()) return (about->st_mode & 077) == 0;
    return about->st_uid == 0 && (about->st_mode & 037) == 0;
}

/* Up to `room` bytes. -1: errno. */
static ssize_t read_whole(int fd, uint8_t *data, size_t room)
{
    size_t used = 0;

    while (used < room) {
        const ssize_t bytes = read(fd, data + used, room - used);

        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) return -1;
        if (bytes == 0) break;
        used += (size_t)bytes;
    }
    return (ssize_t)used;
}

dp_status_t dp_secret_file_read(const char *path, const char *purpose, dp_secret_t *secret,
                                dp_error_t *error)
{
    uint8_t data[DP_SECRET_FILE_MAX + 1];
    struct stat about;
    ssize_t bytes = -1;
    int code;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0 || fstat(fd, &about) != 0) {
        dp_error_set(error, DP_ERR_CONFIG, "DP_SECRET_FILE=%.200s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return DP_ERR_CONFIG;
    }
    if (!S_ISREG(about.st_mode)) {
        close(fd);
        return dp_error_set(error, DP_ERR_CONFIG, "DP_SECRET_FILE=%.200s: not a regular file",
                            path);
    }
    if (!is_private(&about)) {
        close(fd);
        return dp_error_set(error, DP_ERR_CONFIG,
                            "DP_SECRET_FILE=%.200s: mode %o of user %u, expected a file of user %u "
                            "that nobody else can read (chmod 600), or root's with mode 400 or 440",
                            path, (unsigned)about.st_mode & 0777, (unsigned)about.st_uid,
                            (unsigned)geteuid());
    }
    bytes = read_whole(fd, data, sizeof(data));
    code = errno;
    close(fd);
    if (bytes < 0) {
        dp_error_set(error, DP_ERR_CONFIG, "DP_SECRET_FILE=%.200s: %s", path, strerror(code));
    } else if (bytes < DP_SECRET_FILE_MIN || bytes > DP_SECRET_FILE_MAX) {
        dp_error_set(error, DP_ERR_CONFIG, "DP_SECRET_FILE=%.200s: %s%zd bytes, expected %d to %d",
                     path, bytes > DP_SECRET_FILE_MAX ? "at least " : "", bytes, DP_SECRET_FILE_MIN,
                     DP_SECRET_FILE_MAX);
        bytes = -1;
    } else {
        dp_auth_derive(NULL, purpose, data, (size_t)bytes, secret);
    }
    explicit_bzero(data, sizeof(data));
    return bytes < 0 ? DP_ERR_CONFIG : DP_OK;
}
