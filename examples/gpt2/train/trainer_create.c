/*
 * trainer_create.c - puts data, replica and strategy together. Main thread only.
 */
#include "examples/gpt2/train/trainer.h"

#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/train/amp.h"
#include "examples/gpt2/train/plan.h"
#include "examples/gpt2/train/sample.h"
#include "examples/gpt2/train/trainer_parts.h"

static int check_data(const gpt2_trainer_t *self, int vocab, gpt2_error_t *error)
{
    const gpt2_corpus_t *corpus = &self->corpus;
    int seq = (int)self->options->seq;

    if (gpt2_data_check(corpus->data, vocab, error) != 0) return -1;
    if (corpus->val_data != NULL && gpt2_data_check(corpus->val_data, vocab, error) != 0) return -1;
    if (gpt2_view_check(&corpus->training, "the training part", seq, error) != 0) return -1;
    return gpt2_view_check(&corpus->validation, "the validation part", seq, error);
}

static void *strategy_alloc(void *user, size_t bytes)
{
    gpt2_strategy_t *strategy = user;

    return strategy->ops->alloc(strategy, bytes);
}

static void strategy_free(void *user, void *memory)
{
    gpt2_strategy_t *strategy = user;

    strategy->ops->free(strategy, memory);
}

/* libdp and the replica must work on the same kind of memory. */
static int check_device(const gpt2_trainer_t *self, const char *chosen, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    const char *setting = strategy->ops->setting(strategy, "DEVICE");
    const char *refused = strcmp(chosen, "cuda") == 0 ? "host" : "cuda";

    if (setting == NULL || strcmp(setting, refused) != 0) return 0;
    return gpt2_fail(error, "rank %d: DP_DEVICE is %s, but --device is %s%s", strategy->rank,
                     setting, chosen, strcmp(chosen, self->options->device) == 0 ? "" : " (auto)");
}

/* On a GPU rank 0 times the variants of each matrix product and the others take its choices. A
 * variant decides how sums are split, so only equal choices give equal bits. */
static int create_replica(gpt2_trainer_t *self, const gpt2_device_t *device,
                          const gpt2_replica_options_t *options, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    const int in_turn = options->cache != NULL && strcmp(device->name, "cuda") == 0;
    int32_t done = 1;

    if (in_turn && strategy->rank != 0 &&
        strategy->ops->broadcast(strategy, 0, &done, sizeof(done), error) != 0) {
        return -1;
    }
    if (device->create(options, &self->replica, error) != 0) return -1;
    if (!in_turn || strategy->rank != 0) return 0;
    return strategy->ops->broadcast(strategy, 0, &done, sizeof(done), error);
}

/* Whether the head's gradient is reduced early and looked-up rows apart from it; *lookups is the
 * largest number of rows. It costs memory; "auto" means with several ranks. */
static int choose_lookups(const gpt2_trainer_t *self, const char *device, size_t vocab,
                          size_t *lookups, gpt2_error_t *error)
{
    const gpt2_strategy_t *strategy = self->strategy;
    const char *word = self->options->head_early;
    /* Rows are no part of the decision that moves a loss scale. */
    const int is_scaled = self->precision.scale.initial > 0.0;
    const int is_plain = self->shard == GPT2_SHARD_NONE && self->precision.level < 2 &&
                         strcmp(self->options->compress, "none") == 0;
    const int can =
        strcmp(device, "cuda") == 0 && strategy->ops->takes_rows && !is_scaled && is_plain;
    const size_t tokens = (size_t)self->options->batch * (size_t)self->options->seq;

    if (can && (strcmp(word, "yes") == 0 || (strcmp(word, "auto") == 0 && strategy->size > 1))) {
        *lookups = tokens < vocab ? tokens : vocab;
        return 0;
    }
    if (strcmp(word, "yes") != 0) return 0;
    if (strcmp(device, "cuda") != 0) {
        return gpt2_fail(error, "--head-early yes needs --device cuda, this is %s", device);
    }
    if (is_scaled) {
        return gpt2_fail(error, "--head-early yes: a loss scale needs every gradient as a whole; "
                                "--loss-scale none or --head-early no");
    }
    if (!is_plain) {
        return gpt2_fail(error, "--head-early yes: --shard, --amp O2 and --compress need every "
                                "gradient as a whole; --head-early no");
    }
    return gpt2_fail(error, "--head-early yes: --strategy %s sends every gradient as a whole",
                     strategy->ops->name);
}

/* Every micro-batch of a divided copy's step has memory of its own, `tokens` each. */
static int make_batches(gpt2_trainer_t *self, size_t tokens, gpt2_error_t *error)
{
    const size_t micros = (size_t)self->strategy->mesh.micros;

    self->inputs = calloc(micros * tokens, sizeof(*self->inputs));
    self->targets = calloc(micros * tokens, sizeof(*self->targets));
    self->batches = calloc(micros, sizeof(*self->batches));
    if (self->inputs == NULL || self->targets == NULL || self->batches == NULL)
        return gpt2_fail(error, "out of memory for %zu tokens", micros * tokens);
    for (size_t i = 0; i < micros; i++) {
        self->batches[i] = (gpt2_batch_t){self->inputs + i * tokens, self->targets + i * tokens, 0,
                                          (int)self->options->seq};
    }
    return 0;
}

static int make_replica(gpt2_trainer_t *self, const gpt2_shape_t *shape, gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;
    gpt2_strategy_t *strategy = self->strategy;
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
    gpt2_replica_options_t replica_options = {
        .model = {.shape = *shape,
                  .stage = gpt2_mesh_stage(&strategy->mesh),
                  .batch = gpt2_plan_micro_batch(options, strategy->mesh.size[GPT2_AXIS_DATA]),
                  .length = (int)options->seq,
                  .threads = (int)options->threads,
                  .training = 1,
                  .kernels = kernels},
        .optimizer = gpt2_options_optimizer(options),
        .recompute = options->recompute,
        .cache = options->tuned != NULL ? options->tuned : options->out,
    };
    size_t tokens = (size_t)replica_options.model.batch * (size_t)options->seq;
    const gpt2_device_t *device;

    replica_options.model.is_supplied = self->shard != GPT2_SHARD_NONE;
    if (strategy->ops->alloc != NULL) {
        replica_options.model.gradients =
            (gpt2_allocator_t){strategy_alloc, strategy_free, strategy};
    }
    if (gpt2_device_find(options->device, &device, error) != 0) return -1;
    if (gpt2_amp_choose(self, device->name, &replica_options, error) != 0) return -1;
    if (check_device(self, device->name, error) != 0) return -1;
    if (gpt2_strategy_check_compress(strategy, options->compress, error) != 0) {
        return -1;
    }
    if (choose_lookups(self, device->name, (size_t)shape->vocab, &replica_options.lookups, error) !=
        0) {
        return -1;
    }
    if (strategy->mesh.is_staged && strcmp(device->name, "cpu") != 0)
        return gpt2_fail(error, "--tp and --pp need --device cpu, this is %s", device->name);
    if (create_replica(self, device, &replica_options, error) != 0) return -1;
    self->replica->is_follower = strategy->is_follower;
    if (strategy->mesh.is_staged) return make_batches(self, tokens, error);
    self->inputs = calloc(tokens, sizeof(*self->inputs));
    self->targets = calloc(tokens, sizeof(*self->targets));
    if (self->inputs == NULL || self->targets == NULL) {
        return gpt2_fail(error, "out of memory for %zu tokens", tokens);
    }
    if (replica_options.lookups == 0) return 0;
    self->occurs = calloc((size_t)shape->vocab, sizeof(*self->occurs));
    self->tokens = calloc((size_t)shape->vocab, sizeof(*self->tokens));
    if (self->occurs == NULL || self->tokens == NULL) {
        return gpt2_fail(error, "out of memory for %d tokens", shape->vocab);
    }
    return 0;
}

int gpt2_trainer_create(const gpt2_options_t *options, gpt2_strategy_t *strategy,
                        gpt2_trainer_t **out, gpt2_error_t *error)
{
    gpt2_options_t *completed;
    gpt2_shape_t shape;
    gpt2_start_t start;
    gpt2_trainer_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a trainer");
    self->options = options;
    self->strategy = strategy;
    completed = malloc(sizeof(*completed));
    if (completed == NULL) {
        gpt2_fail(error, "out of memory for a trainer");
        goto fail;
    }
    *completed = *options;
    self->options = completed; /* owned from here */
    if (options->data.count == 0) {
        (void)gpt2_fail(error, "--data is missing: texts, .bin files, or a folder of them");
        goto fail;
    }
    if (gpt2_corpus_open(&options->data, &options->val, options->raw_tokens, &self->corpus,
                         error) != 0) {
        goto fail;
    }
    if (gpt2_tokenizer_open(completed, gpt2_data_is_text(self->corpus.data), &self->vocabulary,
                            error) != 0) {
        goto fail;
    }
    if (gpt2_options_complete(completed, gpt2_data_is_text(self->corpus.data), &shape, error) !=
        0) {
        goto fail;
    }
    self->shard = gpt2_options_shard(completed);
    if (gpt2_trainer_agree(self, shape, &start, error) != 0) goto fail;
    if (check_data(self, start.shape.vocab, error) != 0) goto fail;
    if (gpt2_options_mesh(completed, &start.shape, strategy->size, strategy->rank, &strategy->mesh,
                          error) != 0) {
        goto fail;
    }
    self->is_divided = self->shard != GPT2_SHARD_NONE || strategy->mesh.is_staged;
    if (make_replica(self, &start.shape, error) != 0) goto fail;
    if (gpt2_trainer_fill(self, &start, error) != 0) goto fail;
    *out = self;
    return 0;
fail:
    if (completed == NULL) self->options = NULL;
    gpt2_trainer_destroy(self);
    return -1;
}

void gpt2_trainer_destroy(gpt2_trainer_t *self)
{
    if (self == NULL) return;
    gpt2_model_destroy(self->whole);
    if (self->replica != NULL) self->replica->ops->destroy(self->replica);
    gpt2_corpus_close(&self->corpus);
    gpt2_vocabulary_close(self->vocabulary);
    free(self->notes);
    free(self->inputs);
    free(self->targets);
    free(self->batches);
    free(self->occurs);
    free(self->tokens);
    free((void *)(uintptr_t)self->options); /* its own completed copy */
    free(self);
}
