/*
 * checkpoint.h - saves and restores a training run.
 *
 * One folder per step: weights.bin, adam_m.bin, adam_v.bin (each tensor behind the other in the
 * arena's order, little-endian floats) and manifest.txt, written last: shape, position in the
 * data, and a checksum of every tensor. The folder gets its name when all of it is on disk; a
 * checkpoint that had the name, or is no longer kept, goes after that. So a kill at any moment, or
 * the end of the machine, leaves the new checkpoint or the one before. Replicas are equal, so
 * nothing in it depends on the number of ranks.
 */
#ifndef GPT2_CHECKPOINT_H
#define GPT2_CHECKPOINT_H

#include <stdint.h>

#include "examples/gpt2/data/checkpoint_folder.h"
#include "examples/gpt2/model/optimizer.h"

#define GPT2_CHECKPOINTS_KEPT 2

/* Where a run stands, besides weights and moments. */
typedef struct gpt2_progress {
    uint64_t step;      /* steps done */
    uint64_t sequences; /* consumed, over all ranks */
    uint64_t updates;   /* of the optimizer */
    uint64_t skipped;   /* steps without an update */
    uint64_t seed;      /* of the data's order */
} gpt2_progress_t;

/* Saves to folder/<step> and removes all but the newest GPT2_CHECKPOINTS_KEPT. On failure, a full
 * disk for one, the older checkpoints are as before, one of the same step among them. */
int gpt2_checkpoint_save(const char *folder, const gpt2_model_t *model,
                         const gpt2_optimizer_t *optimizer, const gpt2_progress_t *progress,
                         gpt2_error_t *error);

/* path [GPT2_PATH_MAX] = the checkpoint with the highest step that gpt2_checkpoint_verify()
 * accepts, or "" where the folder has none (which is no failure). Says which it passed over, and
 * why; to have some and pass over all is a failure. */
int gpt2_checkpoint_latest(const char *folder, const gpt2_notice_t *notice, char *path,
                           gpt2_error_t *error);

/* Reads all of it and compares every checksum. path: one checkpoint's folder. */
int gpt2_checkpoint_verify(const char *path, gpt2_error_t *error);

/* Reads only the manifest. path: one checkpoint's folder. */
int gpt2_checkpoint_inspect(const char *path, gpt2_shape_t *shape, gpt2_progress_t *progress,
                            gpt2_error_t *error);

/* Loads all of it; the model must have the checkpoint's shape. optimizer NULL: weights only. On
 * failure the model's content is undefined. */
int gpt2_checkpoint_load(const char *path, gpt2_model_t *model, gpt2_optimizer_t *optimizer,
                         gpt2_progress_t *progress, gpt2_error_t *error);

#endif
