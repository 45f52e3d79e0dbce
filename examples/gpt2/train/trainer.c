/*
 * trainer.c - the training step, validation, and what ranks must agree on before. Main
 * thread only. It must not know which strategy or device it has.
 */
#include "examples/gpt2/train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "examples/gpt2/data/llmc.h"
#include "examples/gpt2/data/safetensors.h"

#define VALIDATION_PART 0.1

double gpt2_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- What happens inside a pass ------------------------------------------------------------- */

static int on_ready(void *user, size_t first, size_t count)
{
    gpt2_trainer_t *self = user;

    return self->strategy->ops->ready(self->strategy, first, count, self->error);
}

/* Outermost spans are timed: their names begin with the phase. */
static void on_span_begin(void *user, const char *name)
{
    gpt2_trainer_t *self = user;

    self->strategy->ops->span_begin(self->strategy, name);
    if (self->depth++ > 0) return;
    self->span_sum =
        strncmp(name, "forward", 7) == 0 ? &self->phases.forward : &self->phases.backward;
    self->span_start = gpt2_now();
}

static void on_span_end(void *user)
{
    gpt2_trainer_t *self = user;

    if (--self->depth == 0 && !self->replica->ops->is_async) {
        *self->span_sum += gpt2_now() - self->span_start;
    }
    self->strategy->ops->span_end(self->strategy);
}

static gpt2_hooks_t hooks_of(gpt2_trainer_t *self)
{
    return (gpt2_hooks_t){self, on_ready, on_span_begin, on_span_end};
}

/* ---- Agreement at the start ----------------------------------------------------------------- */

/* What rank 0 decides for all; sent as bytes between equal programs. */
typedef struct plan {
    int32_t valid; /* 0: rank 0 failed and says why itself */
    int32_t resumed;
    gpt2_shape_t shape;
    gpt2_progress_t progress;
} plan_t;

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

static int checkpoint_folder(const gpt2_options_t *options, char *path, gpt2_error_t *error)
{
    return gpt2_path_join(path, options->out, "checkpoint", error);
}

static void write_note(void *user, const char *text)
{
    (void)fprintf(user, "%s\n", text);
}

/* --resume auto: cleans up behind a killed save and takes the newest checkpoint that is whole. */
static int find_checkpoint(gpt2_trainer_t *self, gpt2_error_t *error)
{
    char folder[GPT2_PATH_MAX];
    size_t bytes = 0;
    FILE *notes = open_memstream(&self->notes, &bytes);
    const gpt2_notice_t notice = {write_note, notes};
    int code;

    if (notes == NULL) return gpt2_fail(error, "out of memory for a trainer");
    code = checkpoint_folder(self->options, folder, error);
    if (code == 0) code = gpt2_folder_sweep(folder, &notice, error);
    if (code == 0) code = gpt2_checkpoint_latest(folder, &notice, self->resumed_from, error);
    if (code == 0 && self->resumed_from[0] == '\0') {
        gpt2_notice(&notice, "--resume auto: there is no checkpoint in %s; starts at step 0",
                    folder);
    }
    (void)fclose(notes);
    return code;
}

/* Rank 0 looks at what there is to start from. */
static int plan_start(gpt2_trainer_t *self, plan_t *plan, gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;

    if (options->resume != NULL && strcmp(options->resume, "auto") == 0) {
        if (find_checkpoint(self, error) != 0) return -1;
    } else if (options->resume != NULL) {
        size_t length = strlen(options->resume);

        if (length >= sizeof(self->resumed_from))
            return gpt2_fail(error, "--resume: path too long");
        memcpy(self->resumed_from, options->resume, length + 1);
    }
    if (self->resumed_from[0] != '\0') {
        plan->resumed = 1;
        if (gpt2_checkpoint_inspect(self->resumed_from, &plan->shape, &plan->progress, error) !=
            0) {
            return -1;
        }
        return check_conflicts(options, &plan->shape, self->resumed_from, error);
    }
    if (options->init == NULL) return 0;
    if ((gpt2_safetensors_is(options->init)
             ? gpt2_safetensors_inspect(options->init, &plan->shape, error)
             : gpt2_llmc_inspect(options->init, &plan->shape, error)) != 0) {
        return -1;
    }
    return check_conflicts(options, &plan->shape, options->init, error);
}

static int agree(gpt2_trainer_t *self, gpt2_shape_t shape, plan_t *plan, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    int code = 0;

    memset(plan, 0, sizeof(*plan));
    plan->shape = shape;
    plan->progress.seed = (uint64_t)self->options->seed;
    if (strategy->rank == 0) {
        code = plan_start(self, plan, error);
        plan->valid = code == 0;
    }
    if (code != 0) {
        /* The others learn it from plan->valid; a failed broadcast would only hide the cause. */
        (void)strategy->ops->broadcast(strategy, plan, sizeof(*plan), NULL);
        return -1;
    }
    if (strategy->ops->broadcast(strategy, plan, sizeof(*plan), error) != 0) return -1;
    if (plan->valid) return 0;
    return gpt2_fail(error, "rank %d: rank 0 could not start", strategy->rank);
}

/* ---- Creation ------------------------------------------------------------------------------- */

static int open_data(gpt2_trainer_t *self, gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;
    gpt2_view_t all;

    if (options->data == NULL) return gpt2_fail(error, "--data is missing: a text or a .bin file");
    if (gpt2_data_open(options->data, &self->data, error) != 0) return -1;
    all = gpt2_data_all(self->data);
    if (options->val == NULL) {
        gpt2_view_split(&all, VALIDATION_PART, &self->training, &self->validation);
        return 0;
    }
    if (gpt2_data_open(options->val, &self->val_data, error) != 0) return -1;
    if (gpt2_data_is_text(self->val_data) != gpt2_data_is_text(self->data)) {
        return gpt2_fail(error, "%s is %s, but %s is %s", options->data,
                         gpt2_data_is_text(self->data) ? "text" : "tokens", options->val,
                         gpt2_data_is_text(self->val_data) ? "text" : "tokens");
    }
    self->training = all;
    self->validation = gpt2_data_all(self->val_data);
    return 0;
}

static int check_data(const gpt2_trainer_t *self, int vocab, gpt2_error_t *error)
{
    int seq = (int)self->options->seq;

    if (gpt2_data_check(self->data, vocab, error) != 0) return -1;
    if (self->val_data != NULL && gpt2_data_check(self->val_data, vocab, error) != 0) return -1;
    if (gpt2_view_check(&self->training, "the training part", seq, error) != 0) return -1;
    return gpt2_view_check(&self->validation, "the validation part", seq, error);
}

/* The most sequences this rank handles in one pass. */
static int micro_batch(const gpt2_trainer_t *self)
{
    int64_t size = self->strategy->size;
    int64_t local = (self->options->batch + size - 1) / size;

    return (int)((local + self->options->accumulate - 1) / self->options->accumulate);
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
        strategy->ops->broadcast(strategy, &done, sizeof(done), error) != 0) {
        return -1;
    }
    if (device->create(options, &self->replica, error) != 0) return -1;
    if (!in_turn || strategy->rank != 0) return 0;
    return strategy->ops->broadcast(strategy, &done, sizeof(done), error);
}

/* Whether the head's gradient is reduced early and looked-up rows apart from it; *lookups is the
 * largest number of rows. It costs memory; "auto" means with several ranks. */
static int choose_lookups(const gpt2_trainer_t *self, const char *device, size_t vocab,
                          size_t *lookups, gpt2_error_t *error)
{
    const gpt2_strategy_t *strategy = self->strategy;
    const char *word = self->options->head_early;
    const int can = strcmp(device, "cuda") == 0 && strategy->ops->takes_rows;
    const size_t tokens = (size_t)self->options->batch * (size_t)self->options->seq;

    if (can && (strcmp(word, "yes") == 0 || (strcmp(word, "auto") == 0 && strategy->size > 1))) {
        *lookups = tokens < vocab ? tokens : vocab;
        return 0;
    }
    if (strcmp(word, "yes") != 0) return 0;
    if (strcmp(device, "cuda") != 0) {
        return gpt2_fail(error, "--head-early yes needs --device cuda, this is %s", device);
    }
    return gpt2_fail(error, "--head-early yes: --strategy %s sends every gradient as a whole",
                     strategy->ops->name);
}

static int make_replica(gpt2_trainer_t *self, const gpt2_shape_t *shape, gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;
    gpt2_strategy_t *strategy = self->strategy;
    const gpt2_kernels_t *kernels = gpt2_kernels_list()[0];
    gpt2_replica_options_t replica_options = {
        .model = {.shape = *shape,
                  .batch = micro_batch(self),
                  .length = (int)options->seq,
                  .threads = (int)options->threads,
                  .training = 1,
                  .kernels = kernels,
                  .gemm = gpt2_gemm_choose(options->gemm, kernels)},
        .optimizer = {.learning_rate = options->lr,
                      .final_rate = options->final_lr,
                      .warmup = (uint64_t)options->warmup,
                      .steps = (uint64_t)options->steps,
                      .beta1 = options->beta1,
                      .beta2 = options->beta2,
                      .epsilon = 1e-8,
                      .decay = options->decay},
        .precision = options->precision,
        .recompute = options->recompute,
        .cache = options->tuned != NULL ? options->tuned : options->out,
    };
    size_t tokens = (size_t)replica_options.model.batch * (size_t)options->seq;
    const gpt2_device_t *device;

    if (strategy->ops->alloc != NULL) {
        replica_options.model.gradients =
            (gpt2_allocator_t){strategy_alloc, strategy_free, strategy};
    }
    if (replica_options.model.gemm == NULL) {
        return gpt2_fail(error, "--gemm %s: not in this build, or not for this processor",
                         options->gemm);
    }
    if (gpt2_device_find(options->device, &device, error) != 0) return -1;
    if (check_device(self, device->name, error) != 0) return -1;
    if (choose_lookups(self, device->name, (size_t)shape->vocab, &replica_options.lookups, error) !=
        0) {
        return -1;
    }
    if (create_replica(self, device, &replica_options, error) != 0) return -1;
    self->replica->is_follower = strategy->is_follower;
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

/* Rank 0 loads or draws the weights; attach() and the broadcasts copy them to the others. These
 * wait meanwhile, so rank 0 has all processors of its node. */
static int fill_host(gpt2_trainer_t *self, const plan_t *plan, gpt2_state_t *state,
                     gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;

    if (self->strategy->rank != 0) return 0;
    if (plan->resumed) {
        gpt2_progress_t ignored;

        return gpt2_checkpoint_load(self->resumed_from, state->model, state->optimizer, &ignored,
                                    error);
    }
    if (options->init != NULL) {
        return gpt2_safetensors_is(options->init)
                   ? gpt2_safetensors_load(options->init, state->model, error)
                   : gpt2_llmc_load(options->init, state->model, error);
    }
    gpt2_model_init_weights(state->model, (uint64_t)options->seed);
    return 0;
}

static int fill_replica(gpt2_trainer_t *self, const plan_t *plan, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_replica_t *replica = self->replica;
    const gpt2_options_t *options = self->options;
    size_t bytes = replica->layout->arena_count * sizeof(float);
    gpt2_strategy_settings_t settings = {options->wire, (int)options->accumulate, options->clip};
    gpt2_state_t state;

    self->progress = plan->progress;
    if (replica->ops->borrow(replica, plan->resumed, &state, error) != 0) return -1;
    if (fill_host(self, plan, &state, error) != 0) return -1;
    if (replica->ops->give_back(replica, 1, error) != 0) return -1;
    if (strategy->ops->attach(strategy, replica, &settings, error) != 0) return -1;
    if (replica->ops->refresh(replica, error) != 0) return -1;
    self->first_step = self->progress.step;
    if (!plan->resumed) return 0;
    replica->updates = self->progress.updates;
    if (strategy->ops->broadcast(strategy, replica->m, bytes, error) != 0) return -1;
    return strategy->ops->broadcast(strategy, replica->v, bytes, error);
}

int gpt2_trainer_create(const gpt2_options_t *options, gpt2_strategy_t *strategy,
                        gpt2_trainer_t **out, gpt2_error_t *error)
{
    gpt2_options_t *completed;
    gpt2_shape_t shape;
    plan_t plan;
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
    if (open_data(self, error) != 0) goto fail;
    if (gpt2_options_complete(completed, gpt2_data_is_text(self->data), &shape, error) != 0) {
        goto fail;
    }
    if (agree(self, shape, &plan, error) != 0) goto fail;
    if (check_data(self, plan.shape.vocab, error) != 0) goto fail;
    if (make_replica(self, &plan.shape, error) != 0) goto fail;
    if (fill_replica(self, &plan, error) != 0) goto fail;
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
    if (self->replica != NULL) self->replica->ops->destroy(self->replica);
    gpt2_data_close(self->data);
    gpt2_data_close(self->val_data);
    free(self->notes);
    free(self->inputs);
    free(self->targets);
    free(self->occurs);
    free(self->tokens);
    free((void *)(uintptr_t)self->options); /* its own completed copy */
    free(self);
}

/* ---- Steps ---------------------------------------------------------------------------------- */

/* Which tokens occur in the global batch. Every rank has all data and computes the same list
 * without a message, while the device works on the step before. If data differ between ranks,
 * libdp refuses unequal numbers of rows, and --check finds unequal weights. */
static int announce_tokens(gpt2_trainer_t *self, gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;
    const int vocab = self->replica->layout->shape.vocab;
    const int seq = (int)options->seq;
    size_t count = 0;

    if (self->replica->rows == NULL) return 0;
    memset(self->occurs, 0, (size_t)vocab * sizeof(*self->occurs));
    for (uint64_t i = 0; i < (uint64_t)options->batch; i++) {
        gpt2_view_training(&self->training, self->progress.seed, seq, self->progress.sequences + i,
                           1, self->inputs, self->targets);
        for (int at = 0; at < seq; at++)
            self->occurs[self->inputs[at]] = 1;
    }
    for (int token = 0; token < vocab; token++) {
        if (self->occurs[token]) self->tokens[count++] = token;
    }
    return self->replica->ops->announce(self->replica, self->tokens, count, error);
}

/* Forward and backward over this rank's part of the global batch. */
static int passes(gpt2_trainer_t *self, gpt2_step_t *step, gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;
    gpt2_replica_t *replica = self->replica;
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_hooks_t hooks = hooks_of(self);
    int seq = (int)options->seq;
    uint64_t first;
    uint64_t last;
    /* sync divides sums by the divisor; the mean is over the global batch, however it is split. */
    float weight = (float)(strategy->divisor / ((double)options->batch * seq));

    gpt2_share((uint64_t)options->batch, (uint64_t)strategy->rank, (uint64_t)strategy->size, &first,
               &last);
    if (announce_tokens(self, error) != 0) return -1;
    for (int micro = 0; micro < (int)options->accumulate; micro++) {
        uint64_t from;
        uint64_t to;
        gpt2_batch_t batch = {self->inputs, self->targets, 0, seq};

        gpt2_share(last - first, (uint64_t)micro, (uint64_t)options->accumulate, &from, &to);
        batch.count = (int)(to - from);
        gpt2_view_training(&self->training, self->progress.seed, seq,
                           self->progress.sequences + first + from, batch.count, self->inputs,
                           self->targets);
        if (replica->ops->train(replica, &batch, weight, micro > 0, &hooks, error) != 0) return -1;
        step->tokens += (double)batch.count * seq;
    }
    return 0;
}

/* Splits the time since `start`: blocked in libdp waiting for late ranks (skew), blocked there
 * otherwise (exposed), and the rest (norm, clip, update), which counts as the optimizer's. */
static void account_wait(gpt2_trainer_t *self, double start, const gpt2_traffic_t *before)
{
    gpt2_traffic_t after;
    double elapsed = gpt2_now() - start;
    double waited;
    double skew;

    self->strategy->ops->traffic(self->strategy, &after);
    waited = fmin(1e-9 * (double)(after.wait_ns - before->wait_ns), elapsed);
    skew = fmin(1e-9 * (double)(after.skew_ns - before->skew_ns), waited);
    if (self->replica->ops->is_async) return; /* see account_outcome() */
    self->phases.skew += skew;
    self->phases.exposed += waited - skew;
    self->phases.optimizer += elapsed - waited;
}

static int wait_for_gradients(gpt2_trainer_t *self, gpt2_sync_t *sync, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_traffic_t before;
    double start = gpt2_now();

    strategy->ops->span_begin(strategy, "sync");
    strategy->ops->traffic(strategy, &before);
    if (strategy->ops->sync(strategy, sync, error) != 0) return -1;
    strategy->ops->span_end(strategy);
    account_wait(self, start, &before);
    return 0;
}

/* Updates the weights, on this rank or by receiving those of the rank that updated. */
static int update_weights(gpt2_trainer_t *self, double learning_rate, const gpt2_sync_t *sync,
                          gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_replica_t *replica = self->replica;
    gpt2_traffic_t before;
    double start = gpt2_now();
    int code;

    strategy->ops->span_begin(strategy, "optimizer");
    strategy->ops->traffic(strategy, &before);
    code = replica->ops->update(replica, learning_rate, sync, error);
    if (code == 0 && strategy->ops->publish != NULL && !sync->skip) {
        code = strategy->ops->publish(strategy, error);
        if (code == 0) code = replica->ops->refresh(replica, error);
    }
    strategy->ops->span_end(strategy);
    account_wait(self, start, &before);
    return code;
}

/* Adds up where the time of a step went that the device ran on its own. account_wait() counts
 * nothing for such steps, so no time is counted twice. */
static void account_outcome(gpt2_trainer_t *self, const gpt2_outcome_t *found)
{
    gpt2_phases_t *phases = &self->phases;

    if (!self->replica->ops->is_async) return;
    phases->forward += found->forward;
    phases->backward += found->backward;
    phases->exposed += found->exposed;
    phases->optimizer += found->optimizer;
}

/* Waits for the last step. */
static int await_update(gpt2_trainer_t *self, gpt2_error_t *error)
{
    gpt2_outcome_t *found = &self->found;

    if (!self->is_pending) return 0;
    self->is_pending = 0;
    if (self->replica->ops->settle(self->replica, found, error) != 0) return -1;
    self->progress.updates = self->replica->updates;
    self->progress.skipped += found->skipped ? 1 : 0;
    self->skips = found->skipped ? self->skips + 1 : 0;
    account_outcome(self, found);
    if (isfinite(found->loss_sum)) return 0;
    return gpt2_fail(error, "rank %d: step %llu: the loss is %g; a lower --lr may help",
                     self->strategy->rank, (unsigned long long)self->progress.step - 1,
                     found->loss_sum);
}

int gpt2_trainer_settle(gpt2_trainer_t *self, gpt2_step_t *step, gpt2_error_t *error)
{
    const gpt2_outcome_t *found = &self->found;
    const double start = gpt2_now();

    if (self->is_pending) {
        if (await_update(self, error) != 0) return -1;
        self->phases.total += gpt2_now() - start; /* a part of that step */
    }
    if (step == NULL) return 0;
    step->is_settled = 1;
    step->loss_sum = found->loss_sum;
    step->norm = found->norm;
    step->skipped = found->skipped;
    return 0;
}

int gpt2_trainer_step(gpt2_trainer_t *self, gpt2_step_t *step, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_phases_t *phases = &self->phases;
    gpt2_traffic_t before;
    gpt2_traffic_t after;
    gpt2_sync_t sync = {.clip = 1.0};
    double start = gpt2_now();
    double known;

    memset(step, 0, sizeof(*step));
    self->error = error;
    strategy->ops->step_begin(strategy, self->progress.step);
    strategy->ops->traffic(strategy, &before);
    if (passes(self, step, error) != 0) return -1;
    if (wait_for_gradients(self, &sync, error) != 0) return -1;
    /* The device works on this step while this thread reads the results of the one before. */
    if (await_update(self, error) != 0) return -1;
    step->learning_rate = gpt2_learning_rate(&self->replica->settings, self->progress.step);
    if (update_weights(self, step->learning_rate, &sync, error) != 0) return -1;
    self->is_pending = 1;
    self->progress.step++;
    self->progress.sequences += (uint64_t)self->options->batch;
    if (!self->replica->ops->is_async && await_update(self, error) != 0) return -1;
    strategy->ops->traffic(strategy, &after);
    strategy->ops->step_end(strategy);

    phases->transfer += 1e-9 * (double)(after.transfer_ns - before.transfer_ns);
    phases->steps++;
    phases->total += gpt2_now() - start;
    known = phases->forward + phases->backward + phases->exposed + phases->skew + phases->optimizer;
    phases->other = fmax(phases->total - known, 0.0);
    return self->is_pending ? 0 : gpt2_trainer_settle(self, step, error);
}

int gpt2_trainer_mean(gpt2_trainer_t *self, gpt2_step_t *step, double *loss, gpt2_error_t *error)
{
    double sums[2];

    if (gpt2_trainer_settle(self, step, error) != 0) return -1;
    sums[0] = step->loss_sum;
    sums[1] = step->tokens;
    if (self->strategy->ops->sum(self->strategy, sums, 2, error) != 0) return -1;
    *loss = sums[0] / sums[1];
    return 0;
}

int gpt2_trainer_validate(gpt2_trainer_t *self, double *loss, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    int seq = (int)self->options->seq;
    int room = self->replica->room;
    uint64_t total = (uint64_t)(self->options->eval_batches * self->options->batch);
    uint64_t there = self->validation.count - (uint64_t)seq; /* places to start at */
    uint64_t first;
    uint64_t last;
    double sums[2] = {0.0, 0.0};

    if (gpt2_trainer_settle(self, NULL, error) != 0) return -1; /* its time is the step's */
    if (total > there) total = there;
    gpt2_share(total, (uint64_t)strategy->rank, (uint64_t)strategy->size, &first, &last);
    strategy->ops->span_begin(strategy, "validation");
    while (first < last) {
        gpt2_batch_t batch = {self->inputs, self->targets, room, seq};
        double sum;

        if (last - first < (uint64_t)room) batch.count = (int)(last - first);
        gpt2_view_validation(&self->validation, seq, total, first, batch.count, self->inputs,
                             self->targets);
        if (self->replica->ops->evaluate(self->replica, &batch, &sum, error) != 0) return -1;
        sums[0] += sum;
        sums[1] += (double)batch.count * seq;
        first += (uint64_t)batch.count;
    }
    strategy->ops->span_end(strategy);
    if (strategy->ops->sum(strategy, sums, 2, error) != 0) return -1;
    *loss = sums[0] / sums[1];
    return 0;
}

int gpt2_trainer_compare(gpt2_trainer_t *self, int *same, gpt2_error_t *error)
{
    uint64_t hash;

    if (self->replica->ops->checksum(self->replica, &hash, error) != 0) return -1;
    return self->strategy->ops->equal(self->strategy, hash, same, error);
}

int gpt2_trainer_save(gpt2_trainer_t *self, gpt2_error_t *error)
{
    gpt2_replica_t *replica = self->replica;
    char folder[GPT2_PATH_MAX];
    gpt2_state_t state;
    int code;

    if (checkpoint_folder(self->options, folder, error) != 0) return -1;
    if (gpt2_trainer_settle(self, NULL, error) != 0) return -1;
    if (replica->ops->borrow(replica, 1, &state, error) != 0) return -1;
    code = gpt2_checkpoint_save(folder, state.model, state.optimizer, &self->progress, error);
    if (replica->ops->give_back(replica, 0, code == 0 ? error : NULL) != 0) return -1;
    return code;
}
