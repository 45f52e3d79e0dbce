/*
 * precision.h - what a run computes in: the type of matrix products, the level of mixed precision,
 * and the loss scale that goes with them.
 *
 * The levels are those of Apex and torch.amp. O0: fp32. O1: products in 16 bits; weights,
 * gradients, norms, softmax and losses in fp32. O2: weights and gradients are 16-bit numbers as
 * well, and the optimizer keeps fp32 masters. Pure: words go in, a plan or a refusal comes out.
 */
#ifndef GPT2_PRECISION_H
#define GPT2_PRECISION_H

#include "examples/gpt2/base/error.h"
#include "examples/gpt2/cpu/kernels.h"
#include "examples/gpt2/model/loss_scale.h"

typedef struct gpt2_precision_plan {
    gpt2_precision_t precision;
    int level; /* 0, 1, 2 */
    gpt2_loss_scale_settings_t scale;
} gpt2_precision_plan_t;

/* The command line's words. */
typedef struct gpt2_precision_words {
    const char *precision;  /* "auto", "fp32", "bf16", "fp16" */
    const char *level;      /* "auto", "O0", "O1", "O2" */
    const char *loss_scale; /* "auto", "none", or a power of two */
    int growth;
    int hysteresis;
} gpt2_precision_words_t;

/* Translates the words for a device ("cpu", "cuda"), or refuses with a text that names the two that
 * contradict each other. auto: fp32 on a CPU, bf16 on a GPU; --amp O1 or O2 alone mean bf16. */
int gpt2_precision_choose(const gpt2_precision_words_t *words, const char *device,
                          gpt2_precision_plan_t *out, gpt2_error_t *error);

/* "fp32", "bf16", "fp16". Static. */
const char *gpt2_precision_name(gpt2_precision_t precision);

#endif
