/*
 * hash.h - a fast 64-bit checksum against accidents; not against an adversary.
 */
#ifndef GPT2_HASH_H
#define GPT2_HASH_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of bytes. Little- and big-endian machines differ. */
uint64_t gpt2_hash(const void *data, size_t bytes);

#endif
