/*
 * topk_choice.h - threshold dropping, of one tensor on one rank: how large its message is, where
 * the parts of that lie, and which elements are sent.
 *
 * A message, the same size on all ranks:
 *
 *     uint32  how many elements          uint32  1: the rank's gradient has an Inf or a NaN
 *     uint32  [blocks of 65,536] how many elements in each
 *     float   [room] values              uint16  [room] places in their blocks
 *
 * Pure but for the memory it is given. It must not know of ranks, steps or options. On a GPU
 * cuda/topk.cu makes the same choice.
 */
#ifndef GPT2_TOPK_CHOICE_H
#define GPT2_TOPK_CHOICE_H

#include "examples/gpt2/cpu/compress_kernels.h"

#define GPT2_TOPK_SAMPLE 100000 /* elements of a tensor that a threshold comes from, at most */

/* For how many of `count` elements a message has room. */
size_t gpt2_topk_room(size_t count, double share);

/* A message's bytes, and its list. message: aligned to 8 bytes. */
size_t gpt2_topk_message_bytes(size_t count, size_t room);
gpt2_topk_list_t gpt2_topk_list(char *message, size_t count, size_t room);

/* How many of `count` elements are to be sent. */
gpt2_topk_quota_t gpt2_topk_quota(size_t count, double share);

/* The quantile of a sample of magnitudes above which the share is expected; of everything: -1.
 * sample [GPT2_TOPK_SAMPLE] is scratch. */
float gpt2_topk_threshold(const gpt2_topk_values_t *values, const gpt2_topk_quota_t *quota,
                          float *sample);

/* Fills in the list: what is above the threshold; where that is more than there is room for, or far
 * less than wanted, the largest elements, and of equal ones those with the lowest index. Returns
 * how many. bins [GPT2_TOPK_BINS] is scratch. *nonfinite = 1: there is an Inf or a NaN, and the
 * list is of no use. */
size_t gpt2_topk_choose(const gpt2_compress_kernels_t *kernels, const gpt2_topk_values_t *values,
                        double share, const gpt2_topk_list_t *list, float *sample, uint32_t *bins,
                        int *nonfinite);

#endif
