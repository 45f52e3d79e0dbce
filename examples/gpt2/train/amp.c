/*
 * amp.c - mixed precision as the trainer sees it. The strategy decides whether a step is skipped
 * and what the next loss scale is; this file asks it, on the main thread.
 */
#include "examples/gpt2/train/amp.h"

#include <string.h>

int gpt2_amp_choose(gpt2_trainer_t *self, const char *device, gpt2_replica_options_t *options,
                    gpt2_error_t *error)
{
    const gpt2_options_t *flags = self->options;
    gpt2_precision_plan_t *plan = &self->precision;

    if (gpt2_options_precision(flags, device, plan, error) != 0) return -1;
    options->precision = gpt2_precision_name(plan->precision);
    options->level = plan->level;
    if (strcmp(device, "cpu") != 0) return 0;
    options->model.pieces = gpt2_options_pieces(flags);
    options->model.gemm = gpt2_gemm_choose_precise(
        plan->precision, options->model.pieces > 0 ? "own" : flags->gemm, options->model.kernels);
    if (options->model.gemm != NULL) return 0;
    return gpt2_fail(error, "--gemm %s: not in this build, or not for this processor", flags->gemm);
}

double gpt2_amp_scale(const gpt2_trainer_t *self)
{
    return self->precision.scale.initial > 0.0 ? self->strategy->scale.scale : 1.0;
}

int gpt2_amp_settle(gpt2_trainer_t *self, int skipped, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;

    /* A skip that the loss scale answers is as it should be. */
    if (!skipped) {
        self->skips = 0;
    } else if (gpt2_amp_scale(self) <= 1.0) {
        self->skips++;
    }
    self->loss_scale = gpt2_amp_scale(self);
    if (self->precision.scale.initial <= 0.0) return 0;
    return strategy->ops->move_scale(strategy, skipped, error);
}

/* Optional: a run may go on in fp16 from a checkpoint of one that had no scale. */
size_t gpt2_amp_extra(const gpt2_trainer_t *self, gpt2_extra_t *list, size_t room)
{
    if (self->precision.scale.initial <= 0.0 || room < 1) return 0;
    list[0] = (gpt2_extra_t){.name = "loss_scale",
                             .data = &self->strategy->scale,
                             .bytes = sizeof(self->strategy->scale),
                             .is_optional = 1};
    return 1;
}

int gpt2_amp_restore(gpt2_trainer_t *self, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;

    if (self->precision.scale.initial <= 0.0 || strategy->ops->set_scale == NULL) return 0;
    return strategy->ops->set_scale(strategy, error);
}
