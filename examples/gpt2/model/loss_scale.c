/*
 * loss_scale.c - moves the loss scale. Called by strategies on the main thread, once per step.
 */
#include "examples/gpt2/model/loss_scale.h"

gpt2_loss_scale_t gpt2_loss_scale_start(const gpt2_loss_scale_settings_t *settings)
{
    return (gpt2_loss_scale_t){.scale = settings->initial > 0.0 ? settings->initial : 1.0,
                               .hysteresis_left = settings->hysteresis};
}

void gpt2_loss_scale_move(gpt2_loss_scale_t *state, const gpt2_loss_scale_settings_t *settings,
                          int overflow)
{
    if (settings->initial <= 0.0) return;
    if (overflow) {
        state->good_steps = 0;
        if (state->hysteresis_left > 1) {
            state->hysteresis_left--;
        } else if (state->scale > 1.0) {
            state->scale /= 2.0;
        }
        return;
    }
    state->hysteresis_left = settings->hysteresis;
    if (++state->good_steps < settings->growth_interval) return;
    state->good_steps = 0;
    if (state->scale < GPT2_LOSS_SCALE_MAX) state->scale *= 2.0;
}
