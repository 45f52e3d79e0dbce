/*
 * generate.h - continues a text, one token at a time, with cached keys and values.
 */
#ifndef GPT2_GENERATE_H
#define GPT2_GENERATE_H

#include <stdint.h>

#include "examples/gpt2/model/model.h"

typedef struct gpt2_generator gpt2_generator_t;

typedef struct gpt2_sampling {
    double temperature; /* 0: always the most likely token */
    int top_k;          /* choose among that many; 0: all */
    uint64_t seed;
} gpt2_sampling_t;

/* Borrows the model's weights until destroyed. */
int gpt2_generator_create(const gpt2_model_t *model, gpt2_generator_t **out, gpt2_error_t *error);
void gpt2_generator_destroy(gpt2_generator_t *generator);

/* Appends a token and returns the logits [vocab] for the next one, valid until the next call.
 * When the context is full, its older half is dropped and the rest computed again. */
const float *gpt2_generator_feed(gpt2_generator_t *generator, int32_t token);

/* Picks a token; index counts the picks of a text, so that equal seeds give equal texts. */
int32_t gpt2_generator_pick(const gpt2_generator_t *generator, const float *logits,
                            const gpt2_sampling_t *sampling, uint64_t index);

#endif
