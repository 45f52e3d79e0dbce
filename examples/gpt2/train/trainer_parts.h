/*
 * trainer_parts.h - what the files of the trainer share: trainer_create.c puts one together,
 * trainer_start.c agrees on its beginning, trainer_state.c moves its state.
 */
#ifndef GPT2_TRAINER_PARTS_H
#define GPT2_TRAINER_PARTS_H

#include "examples/gpt2/train/trainer.h"

/* The decisions of rank 0 for all; sent as bytes between equal programs. */
typedef struct gpt2_start {
    int32_t valid; /* 0: rank 0 failed and says why itself */
    int32_t resumed;
    gpt2_shape_t shape;
    gpt2_progress_t progress; /* with this run's order of data */
    uint64_t validation;      /* a fingerprint of the validation data */
} gpt2_start_t;

/* path [GPT2_PATH_MAX] = the folder of checkpoints. */
int gpt2_trainer_folder(const gpt2_options_t *options, char *path, gpt2_error_t *error);

/* Rank 0 looks for a checkpoint, or a model of others, and every rank learns what it found. shape:
 * of the options. Collective. */
int gpt2_trainer_agree(gpt2_trainer_t *trainer, gpt2_shape_t shape, gpt2_start_t *start,
                       gpt2_error_t *error);

/* Hands the replica to the strategy and gives it its first weights, and where the run is resumed
 * the rest of its state. Collective. */
int gpt2_trainer_fill(gpt2_trainer_t *trainer, const gpt2_start_t *start, gpt2_error_t *error);

#endif
