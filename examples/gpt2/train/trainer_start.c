/*
 * trainer_start.c - what ranks agree on before a run: rank 0 looks at what there is to start from,
 * and tells the others shape and position. Main thread only, from trainer_create.c.
 */
#include "examples/gpt2/train/trainer_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/data/llmc.h"
#include "examples/gpt2/data/safetensors.h"

static int conflict(const char *what, int64_t asked, int stored, const char *where,
                    gpt2_error_t *error)
{
    if (asked <= 0 || asked == stored) return 0;
    return gpt2_fail(error, "--%s %lld, but %s has %d", what, (long long)asked, where, stored);
}

/* A stored shape wins over the preset, not over flags that contradict it. */
static int check_conflicts(const gpt2_options_t *options, const gpt2_shape_t *shape,
                           const char *where, gpt2_error_t *error)
{
    if (conflict("layers", options->layers, shape->layers, where, error) != 0) return -1;
    if (conflict("heads", options->heads, shape->heads, where, error) != 0) return -1;
    if (conflict("width", options->width, shape->width, where, error) != 0) return -1;
    if (conflict("context", options->context, shape->context, where, error) != 0) return -1;
    if (conflict("vocab", options->vocab, shape->vocab, where, error) != 0) return -1;
    if (options->seq <= shape->context) return 0;
    return gpt2_fail(error, "--seq %lld is above the context of %d positions of %s",
                     (long long)options->seq, shape->context, where);
}

int gpt2_trainer_folder(const gpt2_options_t *options, char *path, gpt2_error_t *error)
{
    return gpt2_path_join(path, options->out, "checkpoint", error);
}

static void write_note(void *user, const char *text)
{
    (void)fprintf(user, "%s\n", text);
}

/* --resume auto: cleans up behind a killed save and takes the newest checkpoint that is whole. */
static int find_checkpoint(gpt2_trainer_t *self, const gpt2_notice_t *notice, gpt2_error_t *error)
{
    char folder[GPT2_PATH_MAX];

    if (gpt2_trainer_folder(self->options, folder, error) != 0) return -1;
    if (gpt2_folder_sweep(folder, notice, error) != 0) return -1;
    if (gpt2_checkpoint_latest(folder, notice, self->resumed_from, error) != 0) return -1;
    if (self->resumed_from[0] == '\0') {
        gpt2_notice(notice, "--resume auto: there is no checkpoint in %s; starts at step 0",
                    folder);
    }
    return 0;
}

/* Says what is not as it was when the checkpoint was saved, so that other samples follow. A
 * checkpoint of version 0.2.0 knows the seed alone. */
static void compare_order(const gpt2_trainer_t *self, const gpt2_progress_t *saved,
                          const gpt2_order_t *now, const gpt2_notice_t *notice)
{
    const gpt2_options_t *options = self->options;
    const gpt2_order_t *then = &saved->order;

    if (!options->seed_is_default && (uint64_t)options->seed != saved->seed) {
        gpt2_notice(notice,
                    "resumed with --seed %lld, begun with %llu: the data stay in the order of %llu",
                    (long long)options->seed, (unsigned long long)saved->seed,
                    (unsigned long long)saved->seed);
    }
    if (then->batch == 0) return;
    if (then->batch != now->batch) {
        gpt2_notice(notice, "resumed with --batch %llu, saved with %llu",
                    (unsigned long long)now->batch, (unsigned long long)then->batch);
    }
    if (then->seq != now->seq) {
        gpt2_notice(
            notice,
            "resumed with --seq %llu, saved with %llu: the data are cut into other sequences",
            (unsigned long long)now->seq, (unsigned long long)then->seq);
    }
    if (then->tokens != now->tokens || then->fingerprint != now->fingerprint) {
        gpt2_notice(notice,
                    "resumed with other data: %llu training tokens (%016llx), saved with %llu "
                    "(%016llx)",
                    (unsigned long long)now->tokens, (unsigned long long)now->fingerprint,
                    (unsigned long long)then->tokens, (unsigned long long)then->fingerprint);
    }
}

/* Rank 0 looks at what there is to start from. */
static int look_for_start(gpt2_trainer_t *self, gpt2_start_t *start, const gpt2_notice_t *notice,
                          gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;
    const gpt2_order_t order = start->progress.order;

    if (options->resume != NULL && strcmp(options->resume, "auto") == 0) {
        if (find_checkpoint(self, notice, error) != 0) return -1;
    } else if (options->resume != NULL) {
        size_t length = strlen(options->resume);

        if (length >= sizeof(self->resumed_from))
            return gpt2_fail(error, "--resume: path too long");
        memcpy(self->resumed_from, options->resume, length + 1);
    }
    if (self->resumed_from[0] != '\0') {
        start->resumed = 1;
        if (gpt2_checkpoint_inspect(self->resumed_from, &start->shape, &start->progress, error) !=
            0) {
            return -1;
        }
        compare_order(self, &start->progress, &order, notice);
        start->progress.order = order;
        return check_conflicts(options, &start->shape, self->resumed_from, error);
    }
    if (options->init == NULL) return 0;
    if ((gpt2_safetensors_is(options->init)
             ? gpt2_safetensors_inspect(options->init, &start->shape, error)
             : gpt2_llmc_inspect(options->init, &start->shape, error)) != 0) {
        return -1;
    }
    return check_conflicts(options, &start->shape, options->init, error);
}

static int find_start(gpt2_trainer_t *self, gpt2_start_t *start, gpt2_error_t *error)
{
    size_t bytes = 0;
    FILE *notes = open_memstream(&self->notes, &bytes);
    const gpt2_notice_t notice = {write_note, notes};
    int code;

    if (notes == NULL) return gpt2_fail(error, "out of memory for a trainer");
    code = look_for_start(self, start, &notice, error);
    (void)fclose(notes);
    return code;
}

static int find_order(const gpt2_trainer_t *self, gpt2_order_t *order, uint64_t *validation,
                      gpt2_error_t *error)
{
    order->batch = (uint64_t)self->options->batch;
    order->seq = (uint64_t)self->options->seq;
    order->tokens = self->corpus.training.count;
    if (gpt2_view_fingerprint(&self->corpus.training, &order->fingerprint, error) != 0) return -1;
    return gpt2_view_fingerprint(&self->corpus.validation, validation, error);
}

/* Ranks of different machines may find other files by one pattern. */
static int check_data_of_rank(const gpt2_trainer_t *self, const gpt2_start_t *own,
                              const gpt2_start_t *start, gpt2_error_t *error)
{
    const int is_training =
        memcmp(&own->progress.order, &start->progress.order, sizeof(own->progress.order)) != 0;

    if (!is_training && own->validation == start->validation) return 0;
    return gpt2_fail(
        error,
        "rank %d: its %s data are not rank 0's: %zu file%s from %s on with %llu "
        "training tokens, rank 0 has %llu",
        self->strategy->rank, is_training ? "training" : "validation",
        gpt2_data_files(self->corpus.data), gpt2_data_files(self->corpus.data) == 1 ? "" : "s",
        gpt2_data_name(self->corpus.data), (unsigned long long)own->progress.order.tokens,
        (unsigned long long)start->progress.order.tokens);
}

int gpt2_trainer_agree(gpt2_trainer_t *self, gpt2_shape_t shape, gpt2_start_t *start,
                       gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_start_t own;
    int code;

    memset(start, 0, sizeof(*start));
    start->shape = shape;
    start->progress.seed = (uint64_t)self->options->seed;
    code = find_order(self, &start->progress.order, &start->validation, error);
    own = *start;
    if (code == 0 && strategy->rank == 0) {
        code = find_start(self, start, error);
        start->valid = code == 0;
    }
    if (code != 0) {
        /* The others learn it from start->valid; a failed broadcast would only hide the cause. */
        (void)strategy->ops->broadcast(strategy, 0, start, sizeof(*start), NULL);
        return -1;
    }
    if (strategy->ops->broadcast(strategy, 0, start, sizeof(*start), error) != 0) return -1;
    if (start->valid) return check_data_of_rank(self, &own, start, error);
    return gpt2_fail(error, "rank %d: rank 0 could not start", strategy->rank);
}
