/*
 * decision.c - norm, skip, clip factor and loss scale out of a step's figures. decision.h says who
 * calls it, on which thread.
 *
 * The loss scale is a power of two, so that multiplying by it and dividing again lose nothing. It
 * moves so (DeepSpeed and Megatron do the same; Micikevicius et al. 2018, arXiv:1710.03740):
 *
 *     overflow    the hysteresis-th in a row, and each one after it, halves it
 *     good step   the growth_interval-th in a row doubles it; any good one ends a row of overflows
 */
#include "coordinator/api/model/decision.h"

#include <math.h>

#include "runtime/base/common.h"

#define LOSS_SCALE_MAX 16777216.0 /* 2^24: fp32 gradients times more lose nothing but range */

dp_status_t dp_decision_init(dp_decision_t *decision, double clip_norm, double initial_loss_scale,
                             int growth_interval, int hysteresis, dp_error_t *error)
{
    const int is_scaling = initial_loss_scale > 0.0;

    if (!(clip_norm >= 0.0) || !(initial_loss_scale >= 0.0) || isinf(initial_loss_scale)) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "clip_norm %g and initial_loss_scale %g must not be negative",
                            clip_norm, initial_loss_scale);
    }
    if (is_scaling && growth_interval < 1) {
        return dp_error_set(error, DP_ERR_INVALID, "growth_interval %d is below 1",
                            growth_interval);
    }
    if (hysteresis < 0) {
        return dp_error_set(error, DP_ERR_INVALID, "hysteresis %d is below 1", hysteresis);
    }
    *decision = (dp_decision_t){.clip_norm = clip_norm,
                                .is_scaling = is_scaling,
                                .growth_interval = growth_interval,
                                .hysteresis = dp_max(hysteresis, 1),
                                .loss_scale = is_scaling ? initial_loss_scale : 1.0,
                                .hysteresis_left = dp_max(hysteresis, 1)};
    return DP_OK;
}

double dp_decision_postscale(const dp_decision_t *decision, int accumulation_steps)
{
    return 1.0 / (accumulation_steps * decision->loss_scale);
}

static void move_loss_scale(dp_decision_t *decision, int is_overflow)
{
    if (!decision->is_scaling) return;
    if (is_overflow) {
        decision->good_steps = 0;
        if (decision->hysteresis_left > 1) {
            decision->hysteresis_left--;
        } else {
            decision->loss_scale = dp_max(1.0, decision->loss_scale / 2.0);
        }
        return;
    }
    decision->hysteresis_left = decision->hysteresis;
    if (++decision->good_steps >= decision->growth_interval) {
        decision->loss_scale = dp_min(LOSS_SCALE_MAX, decision->loss_scale * 2.0);
        decision->good_steps = 0;
    }
}

void dp_decision_make(dp_decision_t *decision, const dp_tally_t *total,
                      dp_gradients_result_t *found)
{
    found->nonfinite = total->nonfinite;
    found->skip = total->nonfinite > 0;
    found->norm = found->skip ? (double)INFINITY : sqrt(dp_tally_sum_squares(total));
    found->clip_coef = 1.0;
    if (decision->clip_norm > 0.0 && found->norm > decision->clip_norm)
        found->clip_coef = decision->clip_norm / found->norm; /* 0 after an overflow */
    move_loss_scale(decision, found->skip);
    found->loss_scale = decision->loss_scale;
}

void dp_decision_publish(dp_figures_t *figures, const dp_gradients_result_t *found)
{
    uint32_t skip = 1; /* while clip and norm change */

    __atomic_store_n(&figures->skip, skip, __ATOMIC_SEQ_CST);
    if (found == NULL) return;
    figures->clip = (float)found->clip_coef;
    figures->norm = (float)found->norm;
    skip = found->skip != 0;
    __atomic_store_n(&figures->skip, skip, __ATOMIC_SEQ_CST);
}

dp_loss_scale_t dp_decision_get(const dp_decision_t *decision)
{
    dp_loss_scale_t state = DP_LOSS_SCALE_INIT;

    state.scale = decision->loss_scale;
    state.good_steps = decision->good_steps;
    state.hysteresis_left = decision->hysteresis_left;
    return state;
}

dp_status_t dp_decision_set(dp_decision_t *decision, const dp_loss_scale_t *state,
                            dp_error_t *error)
{
    if (!(state->scale > 0.0) || isinf(state->scale)) {
        return dp_error_set(error, DP_ERR_INVALID, "a loss scale of %g cannot be", state->scale);
    }
    if (!decision->is_scaling && state->scale != 1.0) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "a loss scale of %g, and initial_loss_scale is 0: none is used",
                            state->scale);
    }
    if (state->good_steps < 0 || state->hysteresis_left < 0) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "good_steps %d and hysteresis_left %d must not be negative",
                            state->good_steps, state->hysteresis_left);
    }
    decision->loss_scale = state->scale;
    decision->good_steps = state->good_steps;
    /* 0: a state from before, or of an object without hysteresis. */
    decision->hysteresis_left = state->hysteresis_left == 0
                                    ? decision->hysteresis
                                    : dp_min(state->hysteresis_left, decision->hysteresis);
    return DP_OK;
}
