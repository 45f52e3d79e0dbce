/*
 * transfer.c - what crosses between host and device: batches in every step; weights and moments
 * when a run starts, saves and ends.
 */
#include "examples/gpt2/cuda/replica.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/gpt2/cuda/checksum.h"
#include "examples/gpt2/cuda/kernels.h"
#include "examples/gpt2/base/halves.h"

/* ---- Batches -------------------------------------------------------------------------------- */

/* Which rows of the batch belong to each token, or to each row of lookups where these lie apart.
 * Rows behind the batch have gradients of zero, so that any row will do. */
static int plan_embedding(gpt2_cuda_replica_t *self, void *plan, const int32_t *inputs,
                          size_t counted, gpt2_error_t *error)
{
    const size_t rows = self->plan.rows;
    const int vocab = self->layout->shape.vocab;

    if (self->base.rows == NULL) {
        return gpt2_cuda_embed_plan_make(plan, inputs, rows, vocab, self->token_counts, error);
    }
    for (size_t i = 0; i < rows; i++) {
        const int32_t token = inputs[i];

        self->looked_up[i] = 0;
        if (i >= counted) continue;
        if (token < 0 || token >= vocab || self->token_rows[token] == 0) {
            return gpt2_fail(error,
                             "token %zu of the batch is %d, which was not announced for this step; "
                             "the vocabulary has %d",
                             i, (int)token, vocab);
        }
        self->looked_up[i] = self->token_rows[token] - 1;
    }
    return gpt2_cuda_embed_plan_make(plan, self->looked_up, rows, (int)self->base.row_count,
                                     self->token_counts, error);
}

int gpt2_cuda_send_batch(gpt2_cuda_replica_t *self, const gpt2_batch_t *batch,
                         gpt2_cuda_pass_t *pass, gpt2_error_t *error)
{
    const size_t rows = self->plan.rows;
    const size_t counted = (size_t)batch->count * (size_t)batch->length;
    const size_t turn = self->uploads % GPT2_CUDA_IN_FLIGHT;
    int32_t *inputs = (int32_t *)(void *)self->upload[turn];
    int32_t *targets = inputs + rows;
    char *device = self->pass.batch;

    if ((size_t)batch->length != self->length || batch->count > self->base.room) {
        return gpt2_fail(error,
                         "a batch of %d sequences of %d tokens; this replica takes %d of %zu",
                         batch->count, batch->length, self->base.room, self->length);
    }
    /* The device has this buffer until the pass before the last one has begun. */
    if (gpt2_cuda_check((int)cudaEventSynchronize(self->uploaded[turn]), "upload of a batch",
                        error) != 0) {
        return -1;
    }
    memcpy(inputs, batch->inputs, counted * sizeof(*inputs));
    memcpy(targets, batch->targets, counted * sizeof(*targets));
    memset(inputs + counted, 0, (rows - counted) * sizeof(*inputs));
    memset(targets + counted, 0, (rows - counted) * sizeof(*targets));
    if (pass->training && plan_embedding(self, targets + rows, inputs, counted, error) != 0) {
        return -1;
    }
    self->uploads++;
    pass->rows = rows;
    pass->counted = counted;
    pass->width = (size_t)self->layout->shape.width;
    pass->inputs = (const int32_t *)(void *)device;
    pass->targets = pass->inputs + rows;
    pass->embed_plan = pass->targets + rows;
    /* Not one that is only noted: kernels that found other numbers there would read anywhere. */
    if (gpt2_cuda_check((int)cudaMemcpyAsync(device, self->upload[turn], self->plan.upload_bytes,
                                             cudaMemcpyHostToDevice, self->stream),
                        "upload of a batch", error) != 0) {
        return -1;
    }
    return gpt2_cuda_check((int)cudaEventRecord(self->uploaded[turn], self->stream),
                           "upload of a batch", error);
}

/* Element `at` of logits in host memory. */
static float logit_at(gpt2_cuda_type_t type, const char *logits, size_t at)
{
    uint16_t half;
    float value;

    if (type == GPT2_CUDA_F32) {
        memcpy(&value, logits + 4 * at, sizeof(value));
        return value;
    }
    memcpy(&half, logits + 2 * at, sizeof(half));
    return type == GPT2_CUDA_BF16 ? gpt2_from_bf16(half) : gpt2_from_fp16(half);
}

int gpt2_cuda_logits(gpt2_replica_t *base, const gpt2_batch_t *batch, float *logits,
                     gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const size_t rows = self->plan.head_rows;
    const size_t vocab = (size_t)self->layout->shape.vocab;
    const size_t padded = (size_t)self->layout->shape.vocab_padded;
    const size_t bytes = rows * padded * gpt2_cuda_type_bytes(self->type);
    gpt2_cuda_pass_t pass = {.self = self};
    char *part;
    int code;

    if (batch->count == 0) return 0;
    part = malloc(bytes);
    if (part == NULL) return gpt2_fail(error, "out of memory for %zu logits", rows * padded);
    code = gpt2_cuda_send_batch(self, batch, &pass, error);
    if (code == 0) gpt2_cuda_forward(&pass);
    for (size_t number = 0; code == 0 && number * rows < pass.counted; number++) {
        const size_t first = number * rows;

        gpt2_cuda_head_logits(&pass, number);
        gpt2_cuda_note(&pass, "logits",
                       (int)cudaMemcpyAsync(part, self->pass.logits, bytes, cudaMemcpyDeviceToHost,
                                            self->stream));
        gpt2_cuda_note(&pass, "logits", (int)cudaStreamSynchronize(self->stream));
        code = gpt2_cuda_check(pass.code, pass.what, error);
        for (size_t i = 0; code == 0 && i < rows && first + i < pass.counted; i++) {
            float *row = logits + (first + i) * vocab;

            for (size_t j = 0; j < vocab; j++)
                row[j] = logit_at(self->type, part, i * padded + j);
        }
    }
    gpt2_cuda_return_head(&pass);
    free(part);
    return code == 0 ? gpt2_cuda_check_supply(self, error) : code;
}

/* ---- Weights and moments -------------------------------------------------------------------- */

static int copy_floats(gpt2_cuda_replica_t *self, float *to, const float *from,
                       enum cudaMemcpyKind kind, const char *what, gpt2_error_t *error)
{
    const size_t bytes = self->layout->arena_count * sizeof(float);

    if (gpt2_cuda_check((int)cudaMemcpyAsync(to, from, bytes, kind, self->stream), what, error) !=
        0) {
        return -1;
    }
    return gpt2_cuda_check((int)cudaStreamSynchronize(self->stream), what, error);
}

static void drop(gpt2_cuda_replica_t *self)
{
    gpt2_optimizer_destroy(self->optimizer);
    gpt2_model_destroy(self->model);
    self->optimizer = NULL;
    self->model = NULL;
}

/* Of this machine, to draw weights with: some 40 ns each. More would wait for memory. */
int gpt2_cuda_host_threads(void)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);

    return processors < 1 ? 1 : processors > 16 ? 16 : (int)processors;
}

int gpt2_cuda_borrow(gpt2_replica_t *base, int moments, gpt2_state_t *state, gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const gpt2_model_options_t options = {.shape = self->layout->shape,
                                          .batch = 1,
                                          .length = (int)self->length,
                                          .threads = gpt2_cuda_host_threads(),
                                          .weights_only = 1};
    const enum cudaMemcpyKind down = cudaMemcpyDeviceToHost;

    drop(self); /* what was borrowed by something that failed */
    if (gpt2_model_create(&options, &self->model, error) != 0) return -1;
    if (copy_floats(self, self->model->weights, base->weights, down, "weights to the host",
                    error) != 0) {
        return -1;
    }
    if (moments) {
        if (gpt2_optimizer_create(self->model, &base->settings, &self->optimizer, error) != 0 ||
            copy_floats(self, self->optimizer->m, base->m, down, "moments to the host", error) !=
                0 ||
            copy_floats(self, self->optimizer->v, base->v, down, "moments to the host", error) !=
                0) {
            return -1;
        }
        self->optimizer->updates = base->updates;
    }
    *state = (gpt2_state_t){self->model, self->optimizer};
    return 0;
}

int gpt2_cuda_give_back(gpt2_replica_t *base, int changed, gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const enum cudaMemcpyKind up = cudaMemcpyHostToDevice;
    int code = 0;

    if (changed) {
        code =
            copy_floats(self, base->weights, self->model->weights, up, "weights to the GPU", error);
        if (code == 0) code = gpt2_cuda_refresh(base, error);
        if (code == 0 && self->optimizer != NULL) {
            code = copy_floats(self, base->m, self->optimizer->m, up, "moments to the GPU", error);
            if (code == 0) {
                code =
                    copy_floats(self, base->v, self->optimizer->v, up, "moments to the GPU", error);
            }
            base->updates = self->optimizer->updates;
        }
        /* The next user of the arena, a broadcast for one, works on another stream. */
        if (code == 0) {
            code = gpt2_cuda_check((int)cudaStreamSynchronize(self->stream), "weights to the GPU",
                                   error);
        }
    }
    drop(self);
    return code;
}

int gpt2_cuda_refresh(gpt2_replica_t *base, gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    int code = 0;

    if (self->type == GPT2_CUDA_F32) return 0;
    for (size_t i = 0; i < self->layout->group_count && self->supply != NULL && code == 0; i++) {
        const gpt2_part_t *part = &self->parts[i];

        if (part->halves == NULL) continue;
        code = gpt2_cuda_cast(self->stream, self->type, part->halves, GPT2_CUDA_F32, part->weights,
                              part->count);
    }
    if (self->supply == NULL) {
        code = gpt2_cuda_cast(self->stream, self->type, self->state.low, GPT2_CUDA_F32,
                              base->weights, self->layout->arena_count);
    }
    if (code == 0) code = gpt2_cuda_widen_arena(self);
    return gpt2_cuda_check(code, "weights to 16 bits", error);
}

int gpt2_cuda_checksum(gpt2_replica_t *base, uint64_t *value, gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const size_t count = self->layout->arena_count;

    if (gpt2_cuda_check(gpt2_cuda_checksum_words(self->stream, &self->words->checksum,
                                                 (const uint32_t *)(const void *)base->weights,
                                                 count),
                        "checksum of the weights", error) != 0 ||
        gpt2_cuda_check((int)cudaStreamSynchronize(self->stream), "checksum of the weights",
                        error) != 0) {
        return -1;
    }
    return gpt2_cuda_check(
        (int)cudaMemcpy(value, &self->words->checksum, sizeof(*value), cudaMemcpyDeviceToHost),
        "checksum of the weights", error);
}
