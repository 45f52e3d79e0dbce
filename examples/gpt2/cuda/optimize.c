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
#include <string.h>

#include "examples/gpt2/cuda/kernels.h"
#include "examples/gpt2/model/lamb.h"

/* The copy of the weights that products read; NULL: they read the weights. */
static void *low_copy(const gpt2_cuda_replica_t *self)
{
    return self->type == GPT2_CUDA_F32 ? NULL : self->state.low;
}

/* ---- AdamW ---------------------------------------------------------------------------------- */

static gpt2_adamw_t adamw_of(const gpt2_cuda_replica_t *self, double learning_rate, double clip)
{
    const gpt2_optimizer_settings_t *settings = &self->base.settings;
    const double step = (double)(self->base.updates + 1);

    return (gpt2_adamw_t){.learning_rate = (float)learning_rate,
                          .beta1 = (float)settings->beta1,
                          .beta2 = (float)settings->beta2,
                          .epsilon = (float)settings->epsilon,
                          .decay = (float)settings->decay,
                          .gradient_by = (float)clip,
                          .correction1 = (float)(1.0 - pow(settings->beta1, step)),
                          .correction2 = (float)(1.0 - pow(settings->beta2, step))};
}

/* Group by group, in forward's order; each leaves for the other ranks behind its launch. */
static int queue_adamw_parts(gpt2_cuda_replica_t *self, const gpt2_adamw_t *adamw,
                             const gpt2_sync_t *sync)
{
    const gpt2_supply_t *supply = self->supply;
    int code = 0;

    for (size_t i = 0; i < self->layout->group_count && code == 0; i++) {
        const gpt2_part_t *part = &self->parts[i];
        const size_t first = self->layout->groups[i].offset + part->first;

        code = gpt2_cuda_adamw(self->stream, part->weights, part->gradients, part->m, part->v,
                               self->type, part->halves,
                               self->state.decays + first / GPT2_CUDA_DECAY_GRAIN, part->count,
                               adamw, sync->device_clip, sync->device_skip);
        if (code != 0 || supply->after_update(supply->user, i) == 0) continue;
        self->is_stopped = 1;
        break;
    }
    return code;
}

static int queue_adamw(gpt2_cuda_replica_t *self, double learning_rate, double clip,
                       const gpt2_sync_t *sync)
{
    const gpt2_adamw_t adamw = adamw_of(self, learning_rate, clip);

    if (self->supply != NULL) return queue_adamw_parts(self, &adamw, sync);
    return gpt2_cuda_adamw(self->stream, self->state.weights, self->base.gradients, self->state.m,
                           self->state.v, self->type, low_copy(self), self->state.decays,
                           self->layout->arena_count, &adamw, sync->device_clip, sync->device_skip);
}

/* ---- LAMB ----------------------------------------------------------------------------------- */

/* The tables in the optimizer's memory, one behind the other: the larger elements first. *parts:
 * tables for the parts of a supplied replica, which lie group behind group. */
static gpt2_cuda_lamb_t lamb_places(const gpt2_layout_t *layout, char *memory,
                                    gpt2_cuda_lamb_t *parts)
{
    gpt2_cuda_lamb_t places = {.blocks = gpt2_lamb_block(layout, layout->count),
                               .tensor_count = layout->count};

    places.squares = (double *)(void *)memory;
    places.tensors = (gpt2_cuda_lamb_tensor_t *)(void *)(places.squares + 2 * places.blocks);
    parts->squares = places.squares;
    parts->tensors = places.tensors + places.tensor_count;
    places.rates = (float *)(void *)(parts->tensors + places.tensor_count);
    parts->rates = places.rates;
    places.owners = (uint32_t *)(void *)(places.rates + places.tensor_count);
    parts->owners = places.owners + places.blocks;
    return places;
}

static size_t lamb_bytes(const gpt2_layout_t *layout)
{
    const size_t blocks = gpt2_lamb_block(layout, layout->count);

    return blocks * (2 * sizeof(double) + 2 * sizeof(uint32_t)) +
           layout->count * (2 * sizeof(gpt2_cuda_lamb_tensor_t) + sizeof(float));
}

/* Tables that never change, as host memory first. */
static void fill_lamb(const gpt2_cuda_replica_t *self, char *memory)
{
    const gpt2_layout_t *layout = self->layout;
    gpt2_cuda_lamb_t parts;
    const gpt2_cuda_lamb_t places = lamb_places(layout, memory, &parts);
    uint32_t block = 0;

    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];
        const uint32_t end = (uint32_t)gpt2_lamb_block(layout, i + 1);

        places.tensors[i] = (gpt2_cuda_lamb_tensor_t){
            .offset = tensor->offset,
            .count = tensor->count,
            .block = block,
            .adapts = (uint32_t)gpt2_lamb_adapts(&self->base.settings, tensor),
            .squares = block,
            .rate = (uint32_t)i};
        while (block < end)
            places.owners[block++] = (uint32_t)i;
    }
}

/* Blocks of this replica's part of a group; where there are tables, host memory, fills them in. A
 * part has whole blocks, as rows and tensors begin at multiples of them. *tensors: how many have a
 * piece in it. */
static size_t list_lamb_part(const gpt2_cuda_replica_t *self, size_t group,
                             const gpt2_cuda_lamb_t *tables, size_t *tensors)
{
    const gpt2_layout_t *layout = self->layout;
    const gpt2_part_t *part = &self->parts[group];
    gpt2_piece_t pieces[GPT2_PIECES_MAX];
    const size_t found = gpt2_group_pieces(layout, group, part->first, part->count, pieces);
    size_t block = 0;

    _Static_assert(GPT2_LAMB_BLOCK == GPT2_TENSOR_ALIGN, "rows have whole blocks");
    for (size_t i = 0; i < found; i++) {
        const gpt2_piece_t *piece = &pieces[i];
        const size_t end = block + (piece->count + GPT2_LAMB_BLOCK - 1) / GPT2_LAMB_BLOCK;

        if (tables != NULL) {
            tables->tensors[i] = (gpt2_cuda_lamb_tensor_t){
                .offset = piece->at,
                .count = piece->count,
                .block = (uint32_t)block,
                .adapts = (uint32_t)gpt2_lamb_adapts(&self->base.settings,
                                                     &layout->tensors[piece->tensor]),
                .squares = (uint32_t)(gpt2_lamb_block(layout, piece->tensor) +
                                      piece->first / GPT2_LAMB_BLOCK),
                .rate = (uint32_t)piece->tensor};
            for (size_t at = block; at < end; at++)
                tables->owners[at] = (uint32_t)i;
        }
        block = end;
    }
    *tensors = found;
    return block;
}

/* *tables goes on behind this group's. */
static gpt2_cuda_lamb_t next_lamb_part(const gpt2_cuda_replica_t *self, size_t group,
                                       gpt2_cuda_lamb_t *tables)
{
    gpt2_cuda_lamb_t part = *tables;

    part.blocks = list_lamb_part(self, group, NULL, &part.tensor_count);
    tables->tensors += part.tensor_count;
    tables->owners += part.blocks;
    return part;
}

static void fill_lamb_parts(const gpt2_cuda_replica_t *self, char *memory)
{
    gpt2_cuda_lamb_t tables;

    (void)lamb_places(self->layout, memory, &tables);
    for (size_t i = 0; i < self->layout->group_count; i++) {
        size_t ignored;

        (void)list_lamb_part(self, i, &tables, &ignored);
        (void)next_lamb_part(self, i, &tables);
    }
}

/* Adds the sums of squares up over the ranks that divide groups among them. Tensors of the root, at
 * both ends of the list before the token embedding, are whole on every rank. */
static int add_lamb_sums(gpt2_cuda_replica_t *self, double *squares)
{
    const gpt2_layout_t *layout = self->layout;
    const gpt2_supply_t *supply = self->supply;
    const size_t blocks =
        gpt2_lamb_block(layout, gpt2_layout_block(layout, layout->shape.layers - 1));
    const size_t wpe = gpt2_lamb_block(layout, gpt2_layout_wpe(layout));
    const size_t wte = gpt2_lamb_block(layout, gpt2_layout_wte(layout));
    const size_t end = gpt2_lamb_block(layout, layout->count);

    if (supply->sum(supply->user, squares + 2 * blocks, 2 * (wpe - blocks)) == 0 &&
        supply->sum(supply->user, squares + 2 * wte, 2 * (end - wte)) == 0) {
        return 0;
    }
    self->is_stopped = 1;
    return -1;
}

/* Group by group, as queue_adamw_parts(). */
static int queue_lamb_parts(gpt2_cuda_replica_t *self, const gpt2_cuda_lamb_t *places,
                            gpt2_cuda_lamb_t tables, const gpt2_cuda_lamb_step_t *step)
{
    const gpt2_supply_t *supply = self->supply;
    gpt2_cuda_lamb_t next = tables;
    int code =
        (int)cudaMemsetAsync(places->squares, 0, 2 * places->blocks * sizeof(double), self->stream);

    for (size_t i = 0; i < self->layout->group_count && code == 0; i++) {
        const gpt2_part_t *part = &self->parts[i];
        const gpt2_cuda_lamb_t own = next_lamb_part(self, i, &next);

        code = gpt2_cuda_lamb_direct(self->stream, part->weights, part->gradients, part->m, part->v,
                                     &own, step);
    }
    if (code != 0) return code;
    if (add_lamb_sums(self, places->squares) != 0) return 0;
    code = gpt2_cuda_lamb_rates(self->stream, places, step);
    for (size_t i = 0; i < self->layout->group_count && code == 0; i++) {
        const gpt2_part_t *part = &self->parts[i];
        const gpt2_cuda_lamb_t own = next_lamb_part(self, i, &tables);

        code = gpt2_cuda_lamb_apply(self->stream, part->weights, part->gradients, self->type,
                                    part->halves, &own, step);
        if (code != 0 || supply->after_update(supply->user, i) == 0) continue;
        self->is_stopped = 1;
        break;
    }
    return code;
}

static int queue_lamb(gpt2_cuda_replica_t *self, double learning_rate, double clip,
                      const gpt2_sync_t *sync)
{
    const gpt2_optimizer_settings_t *settings = &self->base.settings;
    const gpt2_lamb_t lamb = gpt2_lamb_of(settings, self->base.updates + 1, clip);
    const gpt2_cuda_lamb_step_t step = {&lamb, learning_rate, settings->phi_max, sync->device_clip,
                                        sync->device_skip};
    gpt2_cuda_lamb_t parts;
    const gpt2_cuda_lamb_t places = lamb_places(self->layout, self->state.tables, &parts);

    if (self->supply != NULL) return queue_lamb_parts(self, &places, parts, &step);
    return gpt2_cuda_lamb(self->stream, self->state.weights, self->base.gradients, self->state.m,
                          self->state.v, self->type, low_copy(self), &places, &step);
}

/* ---- The table ------------------------------------------------------------------------------ */

typedef struct queued_kind {
    const gpt2_optimizer_kind_t *kind;
    size_t (*bytes)(const gpt2_layout_t *layout); /* of tables beside the moments; NULL: none */
    void (*fill)(const gpt2_cuda_replica_t *self, char *memory);
    void (*fill_parts)(const gpt2_cuda_replica_t *self, char *memory); /* likewise */
    int (*queue)(gpt2_cuda_replica_t *self, double learning_rate, double clip,
                 const gpt2_sync_t *sync);
} queued_kind_t;

static const queued_kind_t KINDS[] = {
    {&gpt2_optimizer_adamw, NULL, NULL, NULL, queue_adamw},
    {&gpt2_optimizer_lamb, lamb_bytes, fill_lamb, fill_lamb_parts, queue_lamb},
};

/* By name: the program and this plug-in each have a copy of the kinds. Settings without one mean
 * AdamW. */
static const queued_kind_t *find_kind(const gpt2_optimizer_settings_t *settings)
{
    for (size_t i = 0; settings->kind != NULL && i < sizeof(KINDS) / sizeof(KINDS[0]); i++) {
        if (strcmp(KINDS[i].kind->name, settings->kind->name) == 0) return &KINDS[i];
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
    if (self->supply != NULL) kind->fill_parts(self, tables);
    code = (int)cudaMemcpyAsync(self->state.tables, tables, bytes, cudaMemcpyHostToDevice,
                                self->stream);
    if (code == 0) code = (int)cudaStreamSynchronize(self->stream);
    free(tables);
    return gpt2_cuda_check(code, "the optimizer's tables", error);
}

int gpt2_cuda_optimize(gpt2_cuda_replica_t *self, double learning_rate, double clip,
                       const gpt2_sync_t *sync)
{
    const int code = find_kind(&self->base.settings)->queue(self, learning_rate, clip, sync);

    return code == 0 ? gpt2_cuda_widen_arena(self) : code;
}
