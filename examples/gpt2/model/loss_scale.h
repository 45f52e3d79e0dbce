/*
 * loss_scale.h - the dynamic loss scale: halved by overflows, doubled after enough good steps.
 *
 * fp16 ends at 6e-8 and at 65504. The loss is multiplied by the scale, so that small gradients do
 * not vanish; what overflows then is found in the gradients, the step is skipped, and the next one
 * has a smaller scale (Micikevicius et al. 2018, arXiv:1710.03740). Powers of two: dividing by the
 * scale is exact. For strategies that decide by themselves; the rule is that of dp_gradients_t.
 * Pure.
 */
#ifndef GPT2_LOSS_SCALE_H
#define GPT2_LOSS_SCALE_H

#include <stdint.h>

#define GPT2_LOSS_SCALE_MAX 16777216.0 /* 2^24, as in libdp */

typedef struct gpt2_loss_scale_settings {
    double initial;      /* a power of two; 0: there is no loss scale, it stays 1 */
    int growth_interval; /* good steps in a row before it doubles */
    int hysteresis; /* the how-manieth overflow in a row halves it; each one after it does too */
} gpt2_loss_scale_settings_t;

/* The state; saved in checkpoints as it lies in memory. */
typedef struct gpt2_loss_scale {
    double scale;
    int32_t good_steps;      /* in a row, since the scale last moved */
    int32_t hysteresis_left; /* overflows in a row until it halves */
} gpt2_loss_scale_t;

/* Where a run begins. */
gpt2_loss_scale_t gpt2_loss_scale_start(const gpt2_loss_scale_settings_t *settings);

/* After a step: the scale of the next one. Never below 1 or above GPT2_LOSS_SCALE_MAX. */
void gpt2_loss_scale_move(gpt2_loss_scale_t *state, const gpt2_loss_scale_settings_t *settings,
                          int overflow);

#endif
