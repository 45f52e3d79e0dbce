/*
 * amp.h - mixed precision in the training loop: what a replica computes in, and the loss scale from
 * step to step.
 */
#ifndef GPT2_AMP_H
#define GPT2_AMP_H

#include "examples/gpt2/train/trainer.h"

/* Reads the options into self->precision and the replica's options, its product among them. device:
 * where the replica will be. */
int gpt2_amp_choose(gpt2_trainer_t *self, const char *device, gpt2_replica_options_t *options,
                    gpt2_error_t *error);

/* The factor of this step's loss. */
double gpt2_amp_scale(const gpt2_trainer_t *self);

/* When a step is over: counts it, and moves the loss scale on. Ranks do the same. */
int gpt2_amp_settle(gpt2_trainer_t *self, int skipped, gpt2_error_t *error);

/* The loss scale's state as an entry of a checkpoint's list; returns how many entries that made. */
size_t gpt2_amp_extra(const gpt2_trainer_t *self, gpt2_extra_t *list, size_t room);

/* After a checkpoint's state was read: tells the strategy. */
int gpt2_amp_restore(gpt2_trainer_t *self, gpt2_error_t *error);

#endif
