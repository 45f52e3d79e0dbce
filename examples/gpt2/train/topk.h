/*
 * topk.h - the parts of threshold dropping that need no ranks: sizes, messages, and the choice of
 * what is sent. topk.c uses them, and tests.
 */
#ifndef GPT2_TOPK_H
#define GPT2_TOPK_H

#include "examples/gpt2/train/compress.h"

#define GPT2_TOPK_SAMPLE 100000 /* elements of a tensor that a threshold comes from, at most */

/* The part of all elements that a step is to send. In warm-up a fourth, a sixteenth, ... of them,
 * but never less than at the end. */
double gpt2_topk_share(const gpt2_compress_settings_t *settings, uint64_t step);

/* For how many of `count` elements a message has room. */
size_t gpt2_topk_room(size_t count, double share);

/* A message's bytes, and its list. message: aligned to 8 bytes. */
size_t gpt2_topk_message_bytes(size_t count, size_t room);
gpt2_topk_list_t gpt2_topk_list(char *message, size_t count, size_t room);

/* The quantile of a sample of magnitudes above which `share` of all are expected; share 1: -1.
 * sample [GPT2_TOPK_SAMPLE] is scratch. */
float gpt2_topk_threshold(const gpt2_topk_values_t *values, double share, float *sample);

/* Fills in the list: what is above the threshold; where that is more than there is room for, or far
 * less than wanted, the largest elements, and of equal ones those with the lowest index. Returns
 * how many. bins
 * [GPT2_TOPK_BINS] is scratch. *nonfinite = 1: there is an Inf or a NaN, and the list is of no
 * use. */
size_t gpt2_topk_choose(const gpt2_compress_kernels_t *kernels, const gpt2_topk_values_t *values,
                        double share, const gpt2_topk_list_t *list, float *sample, uint32_t *bins,
                        int *nonfinite);

#endif
