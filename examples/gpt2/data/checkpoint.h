/*
 * checkpoint.h - saves and restores a training run.
 *
 * One folder per step: weights.bin, adam_m.bin, adam_v.bin (each tensor behind the other in the
 * list's order, little-endian floats), a file for each extra state that the run has, and
 * manifest.txt, written last: shape, position in the data, and a checksum of every tensor. The
 * folder gets its name when all of it is on disk; a checkpoint that had the name, or is no longer
 * kept, goes after that. So a kill at any moment, or the end of the machine, leaves the new
 * checkpoint or the one before. The three files depend neither on the number of ranks nor on how
 * the ranks share the model.
 */
#ifndef GPT2_CHECKPOINT_H
#define GPT2_CHECKPOINT_H

#include "examples/gpt2/data/checkpoint_extra.h"
#include "examples/gpt2/data/checkpoint_folder.h"
#include "examples/gpt2/data/checkpoint_manifest.h"
#include "examples/gpt2/model/optimizer.h"

#define GPT2_CHECKPOINTS_KEPT 2

/*
 * Where a save takes its content from. It asks for every tensor, in the list's order, of one arena
 * after the other within a tensor, and then for every piece of every extra file. A piece stays
 * valid until the save asks for the next one. NULL: there is none; the cause is in error.
 *
 * Where a content comes from several ranks these must make the same calls: see
 * gpt2_content_walk().
 */
typedef struct gpt2_content {
    void *user;
    const float *(*tensor)(void *user, gpt2_arena_t arena, size_t index, gpt2_error_t *error);
    /* bytes at `at` of the extra number `extra`, of this rank, or -1: everybody's */
    const void *(*piece)(void *user, size_t extra, int rank, size_t at, size_t bytes,
                         gpt2_error_t *error);
    const gpt2_extra_t *extras; /* [extra_count] */
    size_t extra_count;
    int ranks;
} gpt2_content_t;

/* Saves to folder/<step> and removes all but the newest GPT2_CHECKPOINTS_KEPT. *is_saved = 0 where
 * that failed, by a full disk for one: the cause is in error, the older checkpoints are as before,
 * one of the same step among them, and the content was still asked for everything. Returns -1 where
 * the content could not be had, so that this rank has left the others' calls. */
int gpt2_checkpoint_write(const char *folder, const gpt2_layout_t *layout,
                          const gpt2_content_t *content, const gpt2_progress_t *progress,
                          int *is_saved, gpt2_error_t *error);

/* Asks the content for everything, as gpt2_checkpoint_write() does, and writes nothing: the part of
 * the ranks that do not save. */
int gpt2_content_walk(const gpt2_layout_t *layout, const gpt2_content_t *content,
                      gpt2_error_t *error);

/* The same of a model and its optimizer in this process, without extras. */
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

/* Reads only the manifest's head. path: one checkpoint's folder. */
int gpt2_checkpoint_inspect(const char *path, gpt2_shape_t *shape, gpt2_progress_t *progress,
                            gpt2_error_t *error);

/*
 * Reads every tensor, in the order of gpt2_content_t: into what place() returns (NULL: it failed),
 * and then calls placed(). Checksums are compared in between. layout: of this run; a checkpoint of
 * another shape is refused.
 */
typedef struct gpt2_sink {
    void *user;
    int weights_only; /* 1: moments are not read */
    float *(*place)(void *user, gpt2_arena_t arena, size_t index, gpt2_error_t *error);
    int (*placed)(void *user, gpt2_arena_t arena, size_t index, gpt2_error_t *error);
} gpt2_sink_t;

int gpt2_checkpoint_read(const char *path, const gpt2_layout_t *layout, const gpt2_sink_t *sink,
                         gpt2_error_t *error);

/* Calls the sink as gpt2_checkpoint_read() does, and reads nothing: the part of the ranks that do
 * not read. */
int gpt2_sink_walk(const gpt2_layout_t *layout, const gpt2_sink_t *sink, gpt2_error_t *error);

/* Loads all of it; the model must have the checkpoint's shape. optimizer NULL: weights only. On
 * failure the model's content is undefined. */
int gpt2_checkpoint_load(const char *path, gpt2_model_t *model, gpt2_optimizer_t *optimizer,
                         gpt2_progress_t *progress, gpt2_error_t *error);

#endif
