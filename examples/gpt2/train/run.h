/*
 * run.h - a whole training run of one rank.
 */
#ifndef GPT2_RUN_H
#define GPT2_RUN_H

#include "examples/gpt2/train/options.h"
#include "examples/gpt2/strategy/strategy.h"

/* Trains, validates, saves and reports as the options say. */
int gpt2_run(const gpt2_options_t *options, gpt2_strategy_t *strategy, gpt2_error_t *error);

#endif
