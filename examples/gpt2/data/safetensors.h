/*
 * safetensors.h - model files as HF's GPT-2 has them, to start from and to hand on.
 *
 * A length, a JSON header with each tensor's type, shape and place, and the data. HF stores the
 * four matrices of a block [in][out], transposed to ours, and the embedding without padding. The
 * number of heads is not in the file: it comes from config.json beside it, or from what we wrote
 * into its metadata, or is width / 64 as in all of OpenAI's. A model whose config.json or metadata
 * describe other arithmetic, or whose lm_head.weight is not its wte.weight, is refused. Reads F32,
 * F16 and BF16, with or without the prefixes "transformer.", "module." and "_orig_mod."; masks are
 * passed over.
 */
#ifndef GPT2_SAFETENSORS_H
#define GPT2_SAFETENSORS_H

#include "examples/gpt2/model/model.h"

/* 1: the name ends as such files do. */
int gpt2_safetensors_is(const char *path);

/* The shape a file holds. */
int gpt2_safetensors_inspect(const char *path, gpt2_shape_t *shape, gpt2_error_t *error);

/* Reads the weights; the model must have the file's shape. */
int gpt2_safetensors_load(const char *path, gpt2_model_t *model, gpt2_error_t *error);

/* Writes the weights, as BF16 or as F32, and a config.json beside them where there is none. */
int gpt2_safetensors_save(const char *path, const gpt2_model_t *model, int as_bf16,
                          gpt2_error_t *error);

#endif
