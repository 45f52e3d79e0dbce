/*
 * random.c - counter-based random numbers and permutations.
 *
 * The mixer is splitmix64's (Steele, Lea and Flood 2014); the permutation is a Feistel network
 * with cycle walking (Black and Rogaway 2002): a bijection without a table.
 */
#include "examples/gpt2/base/random.h"

#include <math.h>

#define FEISTEL_ROUNDS 6

static uint64_t splitmix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t gpt2_random_bits(uint64_t key, uint64_t stream, uint64_t index)
{
    return splitmix(splitmix(splitmix(key) ^ stream) ^ index);
}

double gpt2_random_uniform(uint64_t key, uint64_t stream, uint64_t index)
{
    return (double)(gpt2_random_bits(key, stream, index) >> 11) * 0x1p-53;
}

double gpt2_random_normal(uint64_t key, uint64_t stream, uint64_t index)
{
    /* Box and Muller; 1 - u keeps the logarithm away from zero. */
    double radius = sqrt(-2.0 * log(1.0 - gpt2_random_uniform(key, stream, 2 * index)));

    return radius * cos(6.283185307179586 * gpt2_random_uniform(key, stream, 2 * index + 1));
}

uint64_t gpt2_random_permute(uint64_t key, uint64_t stream, uint64_t index, uint64_t count)
{
    int half = 1;
    uint64_t mask;

    while (half < 32 && ((uint64_t)1 << (2 * half)) < count)
        half++;
    mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = index >> half;
        uint64_t right = index & mask;

        for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint64_t next =
                left ^ (gpt2_random_bits(key, stream * FEISTEL_ROUNDS + round, right) & mask);

            left = right;
            right = next;
        }
        index = (left << half) | right;
    } while (index >= count);
    return index;
}
