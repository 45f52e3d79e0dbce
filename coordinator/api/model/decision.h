/*
 * decision.h - what the figures of a step mean: its norm, whether it is skipped, the factor that
 * clips it, and the next loss scale.
 *
 * dp_gradients_sync() and dp_shards_sync() call it, on the program's thread, with figures that are
 * equal on all ranks, so all ranks decide the same without a message. Arithmetic alone: it must not
 * know where the figures come from.
 */
#ifndef DP_COORDINATOR_DECISION_H
#define DP_COORDINATOR_DECISION_H

#include "kernels/kernels.h"
#include "runtime/base/error.h"

typedef struct dp_decision {
    double clip_norm; /* 0: no clipping */
    int is_scaling;   /* 0: the loss scale is 1 for ever */
    int growth_interval, hysteresis;
    /* the state, as dp_loss_scale_t has it */
    double loss_scale; /* of the step under way */
    int good_steps, hysteresis_left;
} dp_decision_t;

/* The state before the first step. DP_ERR_INVALID with a text: a value cannot be. hysteresis 0
 * means 1. */
dp_status_t dp_decision_init(dp_decision_t *decision, double clip_norm, double initial_loss_scale,
                             int growth_interval, int hysteresis, dp_error_t *error);

/* The factor of the sums of a step: divides by the passes that were added up and by the loss scale.
 */
double dp_decision_postscale(const dp_decision_t *decision, int accumulation_steps);

/* Decides a step. total: the figures of all averages together. Fills in found, and moves the loss
 * scale. */
void dp_decision_make(dp_decision_t *decision, const dp_tally_t *total,
                      dp_gradients_result_t *found);

/* Without a GPU: writes a result to where dp_device_result_t points. NULL: it is not known yet, so
 * skip is 1. Another thread may poll skip. */
void dp_decision_publish(dp_figures_t *figures, const dp_gradients_result_t *found);

/* For checkpoints. set: DP_ERR_INVALID with a text where this object cannot have that state. */
dp_loss_scale_t dp_decision_get(const dp_decision_t *decision);
dp_status_t dp_decision_set(dp_decision_t *decision, const dp_loss_scale_t *state,
                            dp_error_t *error);

#endif
