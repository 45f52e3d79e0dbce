/*
 * summary.h - a whole run as one JSON file, for programs: --summary FILE.
 *
 * Configuration, every step, memory and processor time of every rank, hashes of weights and of the
 * order of samples, and the plan beside what was measured. All ranks of a run have one, since some
 * figures are asked of all; rank 0 writes the file. Every function takes NULL and does nothing.
 */
#ifndef GPT2_SUMMARY_H
#define GPT2_SUMMARY_H

#include "examples/gpt2/train/plan.h"
#include "examples/gpt2/train/trainer.h"
#include "examples/gpt2/train/usage.h"

typedef struct gpt2_summary gpt2_summary_t;

/* Before the first step; before: this process' usage before the trainer was made. Collective. */
int gpt2_summary_create(gpt2_trainer_t *trainer, const gpt2_usage_t *before, gpt2_summary_t **out,
                        gpt2_error_t *error);
void gpt2_summary_destroy(gpt2_summary_t *summary);

/* After every step. loss: the mean over ranks, or NAN where it was not asked for; validation < 0:
 * none now. */
int gpt2_summary_step(gpt2_summary_t *summary, const gpt2_step_t *step, double loss,
                      double validation, gpt2_error_t *error);

/* After the last step. Collective; the file is whole or absent. */
int gpt2_summary_end(gpt2_summary_t *summary, double validation, gpt2_error_t *error);

/* Writes a file with the configuration and the plan alone, as --plan --summary FILE does. */
int gpt2_summary_write_plan(const char *path, const gpt2_options_t *options,
                            const gpt2_layout_t *layout, int ranks, const gpt2_plan_t *plan,
                            gpt2_error_t *error);

#endif
