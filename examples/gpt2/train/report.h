/*
 * report.h - what people see: the head of a run, progress lines, the log file, the last block.
 *
 * Only rank 0 has a report; every function takes NULL and does nothing.
 */
#ifndef GPT2_REPORT_H
#define GPT2_REPORT_H

#include "examples/gpt2/train/trainer.h"

typedef struct gpt2_report gpt2_report_t;

/* Reads the prompt of --sample, opens the log file (appending after a resume) and prints the head
 * of the run. */
int gpt2_report_create(const gpt2_trainer_t *trainer, gpt2_report_t **out, gpt2_error_t *error);
void gpt2_report_destroy(gpt2_report_t *report);

/* After a step whose loss is known on all ranks; validation < 0: none now. */
void gpt2_report_step(gpt2_report_t *report, const gpt2_step_t *step, double loss,
                      double validation);

/* Counts a comparison of the replicas. */
void gpt2_report_compared(gpt2_report_t *report);

/* A line of its own, "warning ...": on stderr. */
void gpt2_report_warn(gpt2_report_t *report, const char *text);

/* Notes a saved checkpoint. */
void gpt2_report_saved(gpt2_report_t *report);

/* Continues the prompt of --sample with the model's weights and prints it. */
int gpt2_report_sample(gpt2_report_t *report, const gpt2_model_t *model, gpt2_error_t *error);

/* The last block: what was learned, where time went, where files lie. waits: of
 * gpt2_trainer_waits(). Fails where rows of the log were lost. */
int gpt2_report_end(gpt2_report_t *report, double validation, const gpt2_waits_t *waits,
                    gpt2_error_t *error);

#endif
