/*
 * halves.h - single numbers of 16 bits, as files and device memory have them.
 */
#ifndef GPT2_HALVES_H
#define GPT2_HALVES_H

#include <stdint.h>

/* bf16: the upper half of a float; rounded to nearest even, NaN stays NaN. */
uint16_t gpt2_to_bf16(float value);
float gpt2_from_bf16(uint16_t bits);
/* IEEE half precision. */
float gpt2_from_fp16(uint16_t bits);

#endif
