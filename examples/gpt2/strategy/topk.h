/*
 * topk.h - how the share of elements that threshold dropping sends follows from the step. topk.c
 * uses it, and tests.
 */
#ifndef GPT2_TOPK_H
#define GPT2_TOPK_H

#include "examples/gpt2/model/topk_choice.h"
#include "examples/gpt2/strategy/compress.h"

/* The part of all elements that a step is to send. In warm-up a fourth, a sixteenth, ... of them,
 * but never less than at the end. */
double gpt2_topk_share(const gpt2_compress_settings_t *settings, uint64_t step);

#endif
