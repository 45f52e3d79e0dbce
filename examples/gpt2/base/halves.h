/*
 * halves.h - numbers of 16 bits, as files, device memory and other ranks have them.
 */
#ifndef GPT2_HALVES_H
#define GPT2_HALVES_H

#include <stddef.h>
#include <stdint.h>

/* bf16: the upper half of a float; rounded to nearest even, NaN stays NaN. */
uint16_t gpt2_to_bf16(float value);
float gpt2_from_bf16(uint16_t bits);
/* IEEE half precision. */
float gpt2_from_fp16(uint16_t bits);

/* out [count] = in, whose numbers the type can hold exactly (kernels.h rounds to such); and back.
 */
void gpt2_halves_pack(uint16_t *out, const float *in, size_t count, int is_fp16);
void gpt2_halves_unpack(float *out, const uint16_t *in, size_t count, int is_fp16);

#endif
