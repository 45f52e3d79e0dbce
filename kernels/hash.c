/*
 * hash.c - a 64-bit checksum of a buffer, for DP_CHECK_DATA.
 *
 * Four lanes of multiply and rotate over 32-byte stripes keep the multiplier busy; the length and
 * the lanes are folded together at the end. Bytes are read little-endian, so machines agree.
 *
 * Called where weights, buffers in flight or program orders are compared; on any thread.
 */
#include "kernels/kernels.h"

#include <string.h>

static const uint64_t prime_a =
    0x9e3779b97f4a7c15u; /* odd, bits well spread: 2^64 / golden ratio */
static const uint64_t prime_b = 0xc2b2ae3d27d4eb4fu;

static uint64_t read_word(const unsigned char *bytes)
{
    uint64_t word;

    memcpy(&word, bytes, sizeof(word));
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static uint64_t mix_lane(uint64_t lane, uint64_t word)
{
    lane ^= word * prime_b;
    lane = lane << 27 | lane >> 37;
    return lane * prime_a + prime_b;
}

static uint64_t avalanche(uint64_t hash)
{
    hash = (hash ^ (hash >> 32)) * prime_a;
    hash = (hash ^ (hash >> 29)) * prime_b;
    return hash ^ (hash >> 32);
}

uint64_t dp_kernel_hash(const void *data, size_t bytes, uint64_t seed)
{
    const unsigned char *at = data;
    size_t left = bytes;
    uint64_t lanes[4] = {seed ^ prime_a, seed + prime_b, ~seed * prime_a,
                         seed ^ (prime_a * prime_b)};
    uint64_t hash;
    unsigned char last[8] = {0};

    for (; left >= 32; left -= 32, at += 32) {
        for (size_t i = 0; i < 4; i++)
            lanes[i] = mix_lane(lanes[i], read_word(at + 8 * i));
    }
    for (int i = 0; left >= 8; left -= 8, at += 8, i++)
        lanes[i] = mix_lane(lanes[i], read_word(at));
    if (left > 0) {
        memcpy(last, at, left);
        lanes[3] = mix_lane(lanes[3], read_word(last));
    }
    hash = (uint64_t)bytes * prime_b ^ seed;
    for (int i = 0; i < 4; i++)
        hash = avalanche(mix_lane(hash, lanes[i]));
    return hash;
}

uint64_t dp_kernel_hash_places(const float *data, size_t count, uint64_t first, uint64_t seed)
{
    const uint64_t start = avalanche(seed + prime_b);
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, &data[i], sizeof(bits));
        sum += avalanche(start ^ ((first + i) * prime_a) ^ ((uint64_t)bits + 1) * prime_b);
    }
    return sum;
}
