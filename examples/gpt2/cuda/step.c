/*
 * step.c - a training step on a GPU, from the batch to the update, without the host waiting in it.
 *
 * The optimizer's inputs clip and skip stay in device memory where the strategy leaves it
 * there. Loss, norm and skip come up through pinned words; settle() reads them when the step's last
 * event has passed, which is while the next step runs.
 */
#include "examples/gpt2/cuda/replica.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "examples/gpt2/cuda/kernels.h"

static void record_mark(gpt2_cuda_pass_t *pass, gpt2_cuda_mark_t which)
{
    gpt2_cuda_replica_t *self = pass->self;

    gpt2_cuda_note(
        pass, "event",
        (int)cudaEventRecord(self->marks[self->steps % GPT2_CUDA_IN_FLIGHT][which], self->stream));
}

/* A rank without sequences contributes zeros, in the same order as the others. */
static void train_nothing(gpt2_cuda_pass_t *pass)
{
    gpt2_cuda_replica_t *self = pass->self;

    if (!pass->accumulate) {
        if (self->supply == NULL) {
            gpt2_cuda_note(
                pass, "zeros",
                (int)cudaMemsetAsync(self->base.gradients, 0, self->plan.gradients, self->stream));
        }
        gpt2_cuda_note(pass, "zeros",
                       (int)cudaMemsetAsync(&self->words->loss, 0, sizeof(double), self->stream));
    }
    record_mark(pass, GPT2_MARK_HEAD);
    if (self->supply != NULL) {
        gpt2_cuda_walk(pass);
        return;
    }
    if (self->base.rows == NULL) {
        gpt2_cuda_hand_over(pass, 0, self->layout->count);
        return;
    }
    gpt2_cuda_hand_over(pass, gpt2_layout_wte(self->layout), 1);
    gpt2_cuda_hand_over(pass, 0, gpt2_layout_wte(self->layout));
    gpt2_cuda_hand_over(pass, self->layout->count, 1);
}

int gpt2_cuda_train(gpt2_replica_t *base, const gpt2_batch_t *batch, float weight, int accumulate,
                    const gpt2_hooks_t *hooks, gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    gpt2_cuda_pass_t pass = {
        .self = self, .hooks = hooks, .training = 1, .accumulate = accumulate, .weight = weight};

    if (!accumulate) record_mark(&pass, GPT2_MARK_BEGIN);
    record_mark(&pass, GPT2_MARK_PASS);
    if (batch->count == 0) {
        train_nothing(&pass);
    } else {
        if (gpt2_cuda_send_batch(self, batch, &pass, error) != 0) return -1;
        gpt2_cuda_forward(&pass);
        record_mark(&pass, GPT2_MARK_HEAD);
        gpt2_cuda_head(&pass, &self->words->loss);
        gpt2_cuda_backward(&pass);
    }
    record_mark(&pass, GPT2_MARK_BACKWARD);
    if (gpt2_cuda_check(pass.code, pass.what, error) != 0) return -1;
    if (gpt2_cuda_check_supply(self, error) != 0) return -1;
    return pass.stopped ? -1 : 0; /* a hook has said why */
}

int gpt2_cuda_evaluate(gpt2_replica_t *base, const gpt2_batch_t *batch, double *loss_sum,
                       gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    gpt2_cuda_pass_t pass = {.self = self};

    *loss_sum = 0.0;
    if (batch->count == 0) {
        if (self->supply != NULL) gpt2_cuda_walk(&pass);
        return gpt2_cuda_check_supply(self, error);
    }
    if (gpt2_cuda_send_batch(self, batch, &pass, error) != 0) return -1;
    gpt2_cuda_forward(&pass);
    gpt2_cuda_head(&pass, &self->words->evaluation);
    if (gpt2_cuda_check(pass.code, pass.what, error) != 0) return -1;
    if (gpt2_cuda_check_supply(self, error) != 0) return -1;
    /* The stream first: a plain copy does not wait for one that does not block. */
    if (gpt2_cuda_check((int)cudaStreamSynchronize(self->stream), "evaluation", error) != 0) {
        return -1;
    }
    return gpt2_cuda_check((int)cudaMemcpy(loss_sum, &self->words->evaluation, sizeof(*loss_sum),
                                           cudaMemcpyDeviceToHost),
                           "evaluation", error);
}

/* Leaves norm, clip and skip of the arena behind, after the rows of lookups were added where they
 * lie apart. 124M: the norm reads 475 MiB, some 0.12 ms of an H200's memory; libdp's own norm,
 * which comes with the averages for nothing, is that of the parts. also: skipped too where this is
 * not 0; NULL: nothing else knows. */
static int find_norm(gpt2_cuda_replica_t *self, double clip, double by, const uint32_t *also,
                     gpt2_sync_t *sync, gpt2_error_t *error)
{
    gpt2_cuda_words_t *words = self->words;
    float *gradients = self->base.gradients;
    const size_t wte = gpt2_layout_wte(self->layout);
    int code = 0;

    if (self->base.rows != NULL) {
        code = gpt2_cuda_add_rows(self->stream, gpt2_cuda_gradient(self, wte), self->base.rows,
                                  self->state.tokens, self->base.row_count,
                                  (size_t)self->layout->shape.width);
    }
    if (code == 0) {
        code = gpt2_cuda_sum_squares(self->stream, &words->squares, 0, gradients,
                                     self->layout->arena_count, self->sum_scratch);
    }
    *sync = (gpt2_sync_t){.clip = by,
                          .device_norm = &words->norm,
                          .device_clip = &words->clip,
                          .device_skip = &words->skip};
    if (code == 0) {
        code = gpt2_cuda_clip(self->stream, &words->skip, &words->clip, &words->norm,
                              &words->squares, also, (float)by, (float)clip);
    }
    return gpt2_cuda_check(code, "norm of the gradients", error);
}

int gpt2_cuda_norm(gpt2_replica_t *base, double clip, double by, gpt2_sync_t *sync,
                   gpt2_error_t *error)
{
    return find_norm((gpt2_cuda_replica_t *)base, clip, by, NULL, sync, error);
}

int gpt2_cuda_announce(gpt2_replica_t *base, const int32_t *tokens, size_t count,
                       gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const size_t room = self->plan.options.lookups;
    const size_t vocab = (size_t)self->layout->shape.vocab;
    /* The step before the last one had this part; it is settled. */
    int32_t *announced = self->announced + self->steps % GPT2_CUDA_IN_FLIGHT * room;

    if (count == 0 || count > room) {
        return gpt2_fail(error, "%zu tokens announced for a step, it has 1 to %zu", count, room);
    }
    memset(self->token_rows, 0, vocab * sizeof(*self->token_rows));
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= vocab || self->token_rows[tokens[i]] != 0) {
            return gpt2_fail(error,
                             "token %d is announced twice, or the vocabulary of %zu lacks it",
                             (int)tokens[i], vocab);
        }
        self->token_rows[tokens[i]] = (int32_t)i + 1;
    }
    memcpy(announced, tokens, count * sizeof(*announced));
    base->row_count = count;
    return gpt2_cuda_check((int)cudaMemcpyAsync(self->state.tokens, announced,
                                                count * sizeof(*announced), cudaMemcpyHostToDevice,
                                                self->stream),
                           "upload of the tokens", error);
}

int gpt2_cuda_join(gpt2_replica_t *base, double clip, gpt2_sync_t *sync, gpt2_error_t *error)
{
    return find_norm((gpt2_cuda_replica_t *)base, clip, 1.0, sync->device_skip, sync, error);
}

/* Sends the step's figures to the host. */
static void send_ending(gpt2_cuda_pass_t *pass, const gpt2_sync_t *sync, size_t turn)
{
    gpt2_cuda_replica_t *self = pass->self;
    gpt2_cuda_ending_t *ending = &self->endings[turn];

    gpt2_cuda_note(pass, "loss",
                   (int)cudaMemcpyAsync(&ending->loss, &self->words->loss, sizeof(ending->loss),
                                        cudaMemcpyDeviceToHost, self->stream));
    if (sync->device_skip == NULL) return;
    gpt2_cuda_note(pass, "norm",
                   (int)cudaMemcpyAsync(&ending->norm, sync->device_norm, sizeof(ending->norm),
                                        cudaMemcpyDeviceToHost, self->stream));
    gpt2_cuda_note(pass, "skip",
                   (int)cudaMemcpyAsync(&ending->skip, sync->device_skip, sizeof(ending->skip),
                                        cudaMemcpyDeviceToHost, self->stream));
}

int gpt2_cuda_update(gpt2_replica_t *base, double learning_rate, const gpt2_sync_t *sync,
                     gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const int on_device = sync->device_skip != NULL;
    const size_t turn = self->steps % GPT2_CUDA_IN_FLIGHT;
    gpt2_cuda_pass_t pass = {.self = self};

    record_mark(&pass, GPT2_MARK_UPDATE);
    if (!base->is_follower && (on_device || !sync->skip)) {
        gpt2_cuda_note(&pass, "the optimizer",
                       gpt2_cuda_optimize(self, learning_rate, sync->clip, sync));
    }
    send_ending(&pass, sync, turn);
    record_mark(&pass, GPT2_MARK_END);
    self->syncs[turn] = *sync;
    self->steps++;
    if (gpt2_cuda_check(pass.code, pass.what, error) != 0) return -1;
    return gpt2_cuda_check_supply(self, error);
}

/* Seconds between two marks of a step; 0 where one was not passed. */
static double between(const cudaEvent_t *marks, gpt2_cuda_mark_t from, gpt2_cuda_mark_t to)
{
    float ms = 0.0f;

    return cudaEventElapsedTime(&ms, marks[from], marks[to]) == cudaSuccess ? 1e-3 * (double)ms
                                                                            : 0.0;
}

int gpt2_cuda_settle(gpt2_replica_t *base, gpt2_outcome_t *outcome, gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const size_t turn = (self->steps - 1) % GPT2_CUDA_IN_FLIGHT;
    const cudaEvent_t *marks = self->marks[turn];
    const gpt2_cuda_ending_t *ending = &self->endings[turn];
    const gpt2_sync_t *sync = &self->syncs[turn];
    double passes;
    double last;

    if (gpt2_cuda_check((int)cudaEventSynchronize(marks[GPT2_MARK_END]), "the last step", error) !=
        0) {
        return -1;
    }
    *outcome =
        (gpt2_outcome_t){.loss_sum = ending->loss, .norm = sync->norm, .skipped = sync->skip};
    if (sync->device_skip != NULL) {
        outcome->norm = (double)ending->norm;
        outcome->skipped = ending->skip != 0;
    }
    if (!outcome->skipped) base->updates++;
    /* The last pass tells how much of all passes was forward. */
    passes = between(marks, GPT2_MARK_BEGIN, GPT2_MARK_BACKWARD);
    last = between(marks, GPT2_MARK_PASS, GPT2_MARK_BACKWARD);
    if (last > 0.0)
        outcome->forward = passes * between(marks, GPT2_MARK_PASS, GPT2_MARK_HEAD) / last;
    outcome->backward = passes - outcome->forward;
    outcome->exposed = between(marks, GPT2_MARK_BACKWARD, GPT2_MARK_UPDATE);
    outcome->optimizer = between(marks, GPT2_MARK_UPDATE, GPT2_MARK_END);
    return 0;
}
