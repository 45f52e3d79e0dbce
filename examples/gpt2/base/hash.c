/*
 * hash.c - four independent multiply-and-rotate lanes, so the multiplier's latency is hidden.
 */
#include "examples/gpt2/base/hash.h"

#include <string.h>

#define MULTIPLIER 0x9fb21c651e98df25u /* odd, bits well mixed */

static inline uint64_t mix_lane(uint64_t state, uint64_t word)
{
    state = (state ^ word) * MULTIPLIER;
    return state << 31 | state >> 33;
}

uint64_t gpt2_hash(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t lanes[4] = {1, 2, 3, 4};
    uint64_t result = bytes;
    size_t left = bytes;

    for (; left >= 32; left -= 32, at += 32) {
        uint64_t words[4];

        memcpy(words, at, sizeof(words));
        for (int i = 0; i < 4; i++)
            lanes[i] = mix_lane(lanes[i], words[i]);
    }
    for (; left > 0;) {
        uint64_t word = 0;
        size_t take = left < 8 ? left : 8;

        memcpy(&word, at, take);
        lanes[0] = mix_lane(lanes[0], word);
        at += take;
        left -= take;
    }
    for (int i = 0; i < 4; i++)
        result = mix_lane(result, lanes[i]);
    result ^= result >> 32;
    result *= MULTIPLIER;
    return result ^ result >> 29;
}

uint64_t gpt2_hash_places(const float *x, size_t count, uint64_t first)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        uint64_t word;

        memcpy(&bits, &x[i], sizeof(bits));
        word = ((first + i) * MULTIPLIER ^ bits) * MULTIPLIER;
        word ^= word >> 32;
        sum += word * MULTIPLIER;
    }
    return sum;
}
