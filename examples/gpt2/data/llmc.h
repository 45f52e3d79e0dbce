/*
 * llmc.h - model files of llm.c (magic 20240326; version 3: fp32, 5: bf16), to start from and to
 * hand on.
 */
#ifndef GPT2_LLMC_H
#define GPT2_LLMC_H

#include "examples/gpt2/model/model.h"

/* The shape a model file holds. */
int gpt2_llmc_inspect(const char *path, gpt2_shape_t *shape, gpt2_error_t *error);

/* Reads the weights; the model must have the file's shape. */
int gpt2_llmc_load(const char *path, gpt2_model_t *model, gpt2_error_t *error);

/* Writes the weights, as bf16 or as fp32. */
int gpt2_llmc_save(const char *path, const gpt2_model_t *model, int as_bf16, gpt2_error_t *error);

#endif
