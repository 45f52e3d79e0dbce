/*
 * random.h - random numbers as functions of a key: no state, so any thread or rank can ask for
 * any of them in any order and gets the same answer.
 */
#ifndef GPT2_RANDOM_H
#define GPT2_RANDOM_H

#include <stdint.h>

/* 64 well-mixed bits of (key, stream, index). */
uint64_t gpt2_random_bits(uint64_t key, uint64_t stream, uint64_t index);

/* Uniform in [0, 1). */
double gpt2_random_uniform(uint64_t key, uint64_t stream, uint64_t index);

/* Standard normal. */
double gpt2_random_normal(uint64_t key, uint64_t stream, uint64_t index);

/* Where index lands in a permutation of 0 .. count-1 that depends on (key, stream). */
uint64_t gpt2_random_permute(uint64_t key, uint64_t stream, uint64_t index, uint64_t count);

#endif
