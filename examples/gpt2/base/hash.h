/*
 * hash.h - a fast 64-bit checksum against accidents; not against an adversary.
 */
#ifndef GPT2_HASH_H
#define GPT2_HASH_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of bytes. Little- and big-endian machines differ. */
uint64_t gpt2_hash(const void *data, size_t bytes);

/* The sum of a hash of each number and its place, first + i, modulo 2^64. Parts of an array can be
 * hashed apart, by anybody, and added up in any order. */
uint64_t gpt2_hash_places(const float *x, size_t count, uint64_t first);

#endif
