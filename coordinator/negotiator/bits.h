/*
 * bits.h - bitmaps of 64-bit words: one bit per branch of a rank, per member or per rank.
 */
#ifndef DP_COORDINATOR_BITS_H
#define DP_COORDINATOR_BITS_H

#include <stddef.h>
#include <stdint.h>

static inline int dp_bit_get(const uint64_t *bits, int bit)
{
    return (int)(bits[bit / 64] >> (bit % 64) & 1u);
}

static inline void dp_bit_set(uint64_t *bits, int bit)
{
    bits[bit / 64] |= (uint64_t)1 << (bit % 64);
}

static inline size_t dp_bit_words(size_t bits)
{
    return (bits + 63) / 64;
}

#endif
