/*
 * trainer.c - the training step, and where its time goes. Main thread only. It must not know which
 * strategy or device it has.
 */
#include "examples/gpt2/train/trainer.h"

#include <math.h>
#include <string.h>

#include "examples/gpt2/train/amp.h"

/* ---- What happens inside a pass ------------------------------------------------------------- */

static int on_ready(void *user, size_t first, size_t count)
{
    gpt2_trainer_t *self = user;

    return self->strategy->ops->ready(self->strategy, first, count, self->error);
}

/* Divides the time since `start` between waiting and *work; weights were waited for, or gradients.
 * Where the device runs on its own, account_outcome() counts instead. */
static void account_time(gpt2_trainer_t *self, double start, const gpt2_traffic_t *before,
                         double *work, int is_weights)
{
    const double elapsed = gpt2_now() - start;
    gpt2_traffic_t after;

    if (self->replica->ops->is_async) return;
    self->strategy->ops->traffic(self->strategy, &after);
    gpt2_phases_divide(&self->phases, elapsed, before, &after, work, is_weights);
}

/* Outermost spans are timed: their names begin with the phase. */
static void on_span_begin(void *user, const char *name)
{
    gpt2_trainer_t *self = user;

    self->strategy->ops->span_begin(self->strategy, name, self->replica->stream);
    if (self->depth++ > 0) return;
    self->span_sum =
        strncmp(name, "forward", 7) == 0 ? &self->phases.forward : &self->phases.backward;
    self->strategy->ops->traffic(self->strategy, &self->span_traffic);
    self->span_start = gpt2_now();
}

static void on_span_end(void *user)
{
    gpt2_trainer_t *self = user;

    if (--self->depth == 0 && !self->replica->ops->is_async) {
        account_time(self, self->span_start, &self->span_traffic, self->span_sum, 1);
    }
    self->strategy->ops->span_end(self->strategy, self->replica->stream);
}

static gpt2_hooks_t hooks_of(gpt2_trainer_t *self)
{
    return (gpt2_hooks_t){self, on_ready, on_span_begin, on_span_end};
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
        if (gpt2_view_training(&self->corpus.training, self->progress.seed, seq,
                               self->progress.sequences + i, 1, self->inputs, self->targets,
                               error) != 0) {
            return -1;
        }
        for (int at = 0; at < seq; at++)
            self->occurs[self->inputs[at]] = 1;
    }
    for (int token = 0; token < vocab; token++) {
        if (self->occurs[token]) self->tokens[count++] = token;
    }
    return self->replica->ops->announce(self->replica, self->tokens, count, error);
}

/* Reads a micro-batch of this rank's part of the global batch, first .. last - 1. */
static int read_micro(gpt2_trainer_t *self, int micro, uint64_t first, uint64_t last,
                      gpt2_batch_t *batch, gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;
    const int seq = (int)options->seq;
    uint64_t from;
    uint64_t to;

    gpt2_share(last - first, (uint64_t)micro, (uint64_t)options->accumulate, &from, &to);
    first += self->progress.sequences + from;
    batch->count = (int)(to - from);
    if (gpt2_view_training(&self->corpus.training, self->progress.seed, seq, first, batch->count,
                           (int32_t *)(uintptr_t)batch->inputs,
                           (int32_t *)(uintptr_t)batch->targets, error) != 0) {
        return -1;
    }
    /* All ranks of a copy have the same sequences. */
    if (self->strategy->mesh.at[GPT2_AXIS_PIPELINE] == 0 &&
        self->strategy->mesh.at[GPT2_AXIS_TENSOR] == 0)
        self->samples += gpt2_sequences_hash(batch->inputs, seq, first, batch->count);
    return 0;
}

/* All passes of a step of a copy that is divided. The loss and its tokens are known where the head
 * is. */
static int staged_passes(gpt2_trainer_t *self, gpt2_step_t *step, float weight, uint64_t first,
                         uint64_t last, gpt2_error_t *error)
{
    const gpt2_hooks_t hooks = hooks_of(self);
    const gpt2_mesh_t *mesh = &self->strategy->mesh;

    for (int micro = 0; micro < mesh->micros; micro++) {
        if (read_micro(self, micro, first, last, &self->batches[micro], error) != 0) return -1;
        if (gpt2_mesh_has_loss(mesh))
            step->tokens += (double)self->batches[micro].count * self->batches[micro].length;
    }
    return self->strategy->ops->passes(self->strategy, self->batches, weight, &hooks, error);
}

/* Forward and backward over this rank's part of the global batch. */
static int passes(gpt2_trainer_t *self, gpt2_step_t *step, gpt2_error_t *error)
{
    const gpt2_options_t *options = self->options;
    gpt2_replica_t *replica = self->replica;
    gpt2_strategy_t *strategy = self->strategy;
    const gpt2_mesh_t *mesh = &strategy->mesh;
    gpt2_hooks_t hooks = hooks_of(self);
    int seq = (int)options->seq;
    uint64_t first;
    uint64_t last;
    /* sync divides sums by the divisor; the mean is over the global batch, however it is split. */
    float weight =
        (float)(gpt2_amp_scale(self) * strategy->divisor / ((double)options->batch * seq));

    gpt2_share((uint64_t)options->batch, (uint64_t)mesh->at[GPT2_AXIS_DATA],
               (uint64_t)mesh->size[GPT2_AXIS_DATA], &first, &last);
    if (mesh->is_staged) return staged_passes(self, step, weight, first, last, error);
    if (announce_tokens(self, error) != 0) return -1;
    for (int micro = 0; micro < (int)options->accumulate; micro++) {
        gpt2_batch_t batch = {self->inputs, self->targets, 0, seq};

        if (read_micro(self, micro, first, last, &batch, error) != 0) return -1;
        if (replica->ops->train(replica, &batch, weight, micro > 0, &hooks, error) != 0) return -1;
        step->tokens += (double)batch.count * seq;
    }
    return 0;
}

static int wait_for_gradients(gpt2_trainer_t *self, gpt2_sync_t *sync, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->strategy;
    gpt2_traffic_t before;
    double start = gpt2_now();

    strategy->ops->span_begin(strategy, "sync", NULL); /* the stream only waits */
    strategy->ops->traffic(strategy, &before);
    if (strategy->ops->sync(strategy, sync, error) != 0) return -1;
    strategy->ops->span_end(strategy, NULL);
    account_time(self, start, &before, &self->phases.optimizer, 0);
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

    strategy->ops->span_begin(strategy, "optimizer", replica->stream);
    strategy->ops->traffic(strategy, &before);
    code = replica->ops->update(replica, learning_rate, sync, error);
    if (code == 0 && strategy->ops->publish != NULL && !sync->skip) {
        code = strategy->ops->publish(strategy, error);
        if (code == 0) code = replica->ops->refresh(replica, error);
    }
    strategy->ops->span_end(strategy, replica->stream);
    account_time(self, start, &before, &self->phases.optimizer, 1);
    return code;
}

/* Adds up where the time of a step went that the device ran on its own. account_time() counts
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
    account_outcome(self, found);
    if (gpt2_amp_settle(self, found->skipped, error) != 0) return -1;
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
    step->clip = self->options->clip > 0.0 && found->norm > self->options->clip
                     ? self->options->clip / found->norm
                     : 1.0;
    step->scale = self->loss_scale;
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
    /* The last step's outcome decides the loss scale of this one. */
    if (self->precision.scale.initial > 0.0 && await_update(self, error) != 0) return -1;
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
    /* Gathers that the step before has started may end between the two. */
    phases->wire +=
        (double)(after.wire_bytes - (self->has_stepped ? self->wire_bytes : before.wire_bytes));
    self->wire_bytes = after.wire_bytes;
    self->has_stepped = 1;
    phases->steps++;
    phases->total += gpt2_now() - start;
    known = phases->forward + phases->backward + phases->exposed + phases->skew + phases->optimizer;
    phases->other = fmax(phases->total - known, 0.0);
    return self->is_pending ? 0 : gpt2_trainer_settle(self, step, error);
}
