/*
 * lamb.h - what LAMB on a CPU and on a GPU share: the numbers of an update, where a tensor's
 * partial sums lie, and the rate that follows from them. Pure arithmetic.
 */
#ifndef GPT2_LAMB_H
#define GPT2_LAMB_H

#include "examples/gpt2/model/optimizer.h"

/* How many blocks of GPT2_LAMB_BLOCK elements the tensors before this one have; each tensor begins
 * with a block of its own. tensor == layout->count: all of them. */
size_t gpt2_lamb_block(const gpt2_layout_t *layout, size_t tensor);

/* The numbers of update number `update`, counted from 1. */
gpt2_lamb_t gpt2_lamb_of(const gpt2_optimizer_settings_t *settings, uint64_t update, double clip);

/* 1: the tensor is decayed and has a rate of its own. */
int gpt2_lamb_adapts(const gpt2_optimizer_settings_t *settings, const gpt2_tensor_t *tensor);

/* learning_rate * phi(|weights|) / |directions|, from the sums of squares [2] of both. phi_max: the
 * largest norm of weights that counts; 0: any. */
double gpt2_lamb_rate(double learning_rate, double phi_max, const double *squares);

#endif
