/*
 * optimize.c - the optimizers of a replica on a GPU: what each needs in the device's memory, and
 * how its update is queued.
 *
 * Called by replica.c when a replica is made and by step.c at the end of a step. A kind of
 * optimizer is a line of the table here, beside its line in model/optimizer.c.
 */
#include "examples/gpt2/cuda/replica.h"

#include <math.h>
#include <stdlib.h>

#include "examples/gpt2/cuda/kernels.h"
#include "examples/gpt2/model/lamb.h"

/* The copy of the weights that products read; NULL: they read the weights. */
static void *low_copy(const gpt2_cuda_replica_t *self)
{
    return self->type == GPT2_CUDA_F32 ? NULL : self->state.low;
}

/* ---- AdamW ---------------------------------------------------------------------------------- */

static int queue_adamw(gpt2_cuda_replica_t *self, double learning_rate, double clip,
                       const gpt2_sync_t *sync)
{
    const gpt2_optimizer_settings_t *settings = &self->base.settings;
    const double step = (double)(self->base.updates + 1);
    const gpt2_adamw_t adamw = {.learning_rate = (float)learning_rate,
                                .beta1 = (float)settings->beta1,
                                .beta2 = (float)settings->beta2,
                                .epsilon = (float)settings->epsilon,
                                .decay = (float)settings->decay,
                                .gradient_by = (float)clip,
                                .correction1 = (float)(1.0 - pow(settings->beta1, step)),
                                .correction2 = (float)(1.0 - pow(settings->beta2, step))};

    return gpt2_cuda_adamw(self->stream, self->state.weights, self->base.gradients, self->state.m,
                           self->state.v, self->type, low_copy(self), self->state.decays,
                           self->layout->arena_count, &adamw, sync->device_clip, sync->device_skip);
}

/* ---- LAMB ----------------------------------------------------------------------------------- */

/* The tables in the optimizer's memory, one behind the other: the larger elements first. */
static gpt2_cuda_lamb_t lamb_places(const gpt2_layout_t *layout, char *memory)
{
    gpt2_cuda_lamb_t places = {.blocks = gpt2_lamb_block(layout, layout->count),
                               .tensor_count = layout->count};

    places.squares = (double *)(void *)memory;
    places.tensors = (gpt2_cuda_lamb_tensor_t *)(void *)(places.squares + 2 * places.blocks);
    places.rates = (float *)(void *)(places.tensors + places.tensor_count);
    places.owners = (uint32_t *)(void *)(places.rates + places.tensor_count);
    return places;
}

static size_t lamb_bytes(const gpt2_layout_t *layout)
{
    const size_t blocks = gpt2_lamb_block(layout, layout->count);

    return blocks * (2 * sizeof(double) + sizeof(uint32_t)) +
           layout->count * (sizeof(gpt2_cuda_lamb_tensor_t) + sizeof(float));
}

/* Tables that never change, as host memory first. */
static void fill_lamb(const gpt2_cuda_replica_t *self, char *memory)
{
    const gpt2_layout_t *layout = self->layout;
    const gpt2_cuda_lamb_t places = lamb_places(layout, memory);
    uint32_t block = 0;

    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];
        const uint32_t end = (uint32_t)gpt2_lamb_block(layout, i + 1);

        places.tensors[i] = (gpt2_cuda_lamb_tensor_t){
            .offset = tensor->offset,
            .count = tensor->count,
            .block = block,
            .adapts = (uint32_t)gpt2_lamb_adapts(&self->base.settings, tensor)};
        while (block < end)
            places.owners[block++] = (uint32_t)i;
    }
}

static int queue_lamb(gpt2_cuda_replica_t *self, double learning_rate, double clip,
                      const gpt2_sync_t *sync)
{
    const gpt2_optimizer_settings_t *settings = &self->base.settings;
    const gpt2_lamb_t lamb = gpt2_lamb_of(settings, self->base.updates + 1, clip);
    const gpt2_cuda_lamb_t places = lamb_places(self->layout, self->state.tables);

    return gpt2_cuda_lamb(self->stream, self->state.weights, self->base.gradients, self->state.m,
                          self->state.v, self->type, low_copy(self), &places, &lamb, learning_rate,
                          settings->phi_max, sync->device_clip, sync->device_skip);
}

/* ---- The table ------------------------------------------------------------------------------ */

typedef struct queued_kind {
    const gpt2_optimizer_kind_t *kind;
    size_t (*bytes)(const gpt2_layout_t *layout); /* of tables beside the moments; NULL: none */
    void (*fill)(const gpt2_cuda_replica_t *self, char *memory);
    int (*queue)(gpt2_cuda_replica_t *self, double learning_rate, double clip,
                 const gpt2_sync_t *sync);
} queued_kind_t;

static const queued_kind_t KINDS[] = {
    {&gpt2_optimizer_adamw, NULL, NULL, queue_adamw},
    {&gpt2_optimizer_lamb, lamb_bytes, fill_lamb, queue_lamb},
};

/* Settings without a kind mean AdamW. */
static const queued_kind_t *find_kind(const gpt2_optimizer_settings_t *settings)
{
    for (size_t i = 0; i < sizeof(KINDS) / sizeof(KINDS[0]); i++) {
        if (KINDS[i].kind == settings->kind) return &KINDS[i];
    }
    return &KINDS[0];
}

size_t gpt2_cuda_optimizer_bytes(const gpt2_optimizer_settings_t *settings,
                                 const gpt2_layout_t *layout)
{
    const queued_kind_t *kind = find_kind(settings);

    return kind->bytes == NULL ? 0 : kind->bytes(layout);
}

int gpt2_cuda_optimizer_fill(gpt2_cuda_replica_t *self, gpt2_error_t *error)
{
    const queued_kind_t *kind = find_kind(&self->base.settings);
    const size_t bytes = gpt2_cuda_optimizer_bytes(&self->base.settings, self->layout);
    char *tables;
    int code;

    if (bytes == 0) return 0;
    tables = calloc(1, bytes);
    if (tables == NULL) return gpt2_fail(error, "out of memory for the optimizer's tables");
    kind->fill(self, tables);
    code = (int)cudaMemcpyAsync(self->state.tables, tables, bytes, cudaMemcpyHostToDevice,
                                self->stream);
    if (code == 0) code = (int)cudaStreamSynchronize(self->stream);
    free(tables);
    return gpt2_cuda_check(code, "the optimizer's tables", error);
}

int gpt2_cuda_optimize(gpt2_cuda_replica_t *self, double learning_rate, double clip,
                       const gpt2_sync_t *sync)
{
    return find_kind(&self->base.settings)->queue(self, learning_rate, clip, sync);
}
