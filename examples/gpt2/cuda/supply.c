/*
 * supply.c - where a replica on a GPU finds weights and gradients, group by group: in arenas, or
 * where ranks share them out with a supply (model.h), which passes ask as they go.
 *
 *     products read    norms and biases read    where
 *     fp32             the same                 fp32
 *     a 16-bit copy    fp32                     level 1: of an arena written by the optimizer, of
 *                                               what is supplied when a pass asks for it
 *     16-bit weights   fp32 copies of vectors   level 2: the masters are the optimizer's alone
 *
 * Everything is queued on the replica's one stream, so copies of supplied blocks take turns in two
 * places without a wait: the launches that read the older one are queued before. Called on the main
 * thread, by forward.c, backward.c, step.c and optimize.c.
 */
#include "examples/gpt2/cuda/replica.h"

#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/cuda/kernels.h"

#define BLOCK_PLACES 2 /* a block and the next one, whose first norm ends it */

/* ---- Arenas --------------------------------------------------------------------------------- */

/* Places of the 1-D tensors in state.vectors, and the grains they have in their group. tables
 * [grains of root, then of a block]: NULL: only places. */
static void place_vectors(gpt2_cuda_replica_t *self, uint32_t *tables)
{
    const gpt2_layout_t *layout = self->layout;
    size_t used = 0;

    for (size_t group = 0; group < layout->group_count; group++) {
        const int is_first = group == GPT2_GROUP_ROOT || group == gpt2_layout_group(0);

        self->vectors_at[group] = self->state.vectors + used;
        for (size_t i = 0; i < layout->count; i++) {
            const gpt2_tensor_t *tensor = &layout->tensors[i];
            const size_t grains = gpt2_cuda_plan_grains(tensor);

            if (tensor->group != group || grains == 0) continue;
            self->vector_places[i] = used;
            for (size_t grain = 0; is_first && grain < grains; grain++)
                *tables++ = (uint32_t)(tensor->place / GPT2_CUDA_DECAY_GRAIN + grain);
            used += grains * GPT2_CUDA_DECAY_GRAIN;
        }
    }
}

static int fill_vectors(gpt2_cuda_replica_t *self, gpt2_error_t *error)
{
    const size_t count = gpt2_cuda_plan_vectors(self->layout, GPT2_GROUP_ROOT) +
                         gpt2_cuda_plan_vectors(self->layout, gpt2_layout_group(0));
    uint32_t *tables = calloc(count, sizeof(*tables));
    int code;

    if (tables == NULL) return gpt2_fail(error, "out of memory for the places of vectors");
    place_vectors(self, tables);
    code = (int)cudaMemcpyAsync(self->state.grains, tables, count * sizeof(*tables),
                                cudaMemcpyHostToDevice, self->stream);
    if (code == 0) code = (int)cudaStreamSynchronize(self->stream);
    free(tables);
    return gpt2_cuda_check(code, "the places of vectors", error);
}

int gpt2_cuda_places_fill(gpt2_cuda_replica_t *self, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->layout;

    for (size_t i = 0; i < layout->group_count && !self->plan.options.is_supplied; i++) {
        const size_t offset = layout->groups[i].offset;

        self->low_at[i] = gpt2_cuda_at(self, self->state.low, offset);
        self->full_at[i] = self->state.weights + offset;
        self->gradients_at[i] = self->base.gradients + offset;
    }
    return self->plan.options.level < 2 ? 0 : fill_vectors(self, error);
}

int gpt2_cuda_places_create(gpt2_cuda_replica_t *self)
{
    const size_t groups = self->layout->group_count;

    self->low_at = calloc(groups, sizeof(*self->low_at));
    self->full_at = calloc(groups, sizeof(*self->full_at));
    self->gradients_at = calloc(groups, sizeof(*self->gradients_at));
    self->vectors_at = calloc(groups, sizeof(*self->vectors_at));
    self->vector_places = calloc(self->layout->count, sizeof(*self->vector_places));
    self->is_at_hand = calloc(groups, sizeof(*self->is_at_hand));
    self->parts = calloc(groups, sizeof(*self->parts));
    return self->low_at == NULL || self->full_at == NULL || self->gradients_at == NULL ||
                   self->vectors_at == NULL || self->vector_places == NULL ||
                   self->is_at_hand == NULL || self->parts == NULL
               ? -1
               : 0;
}

void gpt2_cuda_places_destroy(gpt2_cuda_replica_t *self)
{
    free(self->low_at);
    free(self->full_at);
    free(self->gradients_at);
    free(self->vectors_at);
    free(self->vector_places);
    free(self->is_at_hand);
    free(self->parts);
    if (self->part_memory != NULL) (void)cudaFree(self->part_memory);
}

/* Level 2: the vectors of a group, in fp32. */
static int widen_vectors(const gpt2_cuda_replica_t *self, size_t group)
{
    const size_t of_root = gpt2_cuda_plan_vectors(self->layout, GPT2_GROUP_ROOT);
    const uint32_t *grains = self->state.grains + (group == GPT2_GROUP_ROOT ? 0 : of_root);

    if (group == GPT2_GROUP_WTE) return 0;
    return gpt2_cuda_cast_grains(self->stream, self->vectors_at[group], self->type,
                                 self->low_at[group], grains,
                                 gpt2_cuda_plan_vectors(self->layout, group));
}

int gpt2_cuda_widen_arena(const gpt2_cuda_replica_t *self)
{
    int code = 0;

    if (self->plan.options.level < 2 || self->plan.options.is_supplied) return 0;
    for (size_t i = 0; i < self->layout->group_count && code == 0; i++)
        code = widen_vectors(self, i);
    return code;
}

/* ---- Passes --------------------------------------------------------------------------------- */

/* Where the 16-bit copy of a supplied group lies. */
static void *copy_place(const gpt2_cuda_replica_t *self, size_t group)
{
    const gpt2_group_t *groups = self->layout->groups;
    const size_t block = groups[gpt2_layout_group(0)].count;
    size_t at = 0;

    if (group > GPT2_GROUP_WTE) at += groups[GPT2_GROUP_WTE].count;
    if (group > GPT2_GROUP_ROOT) at += groups[GPT2_GROUP_ROOT].count;
    if (group > GPT2_GROUP_ROOT) at += (group - gpt2_layout_group(0)) % BLOCK_PLACES * block;
    return gpt2_cuda_at(self, self->state.copies, at);
}

/* Makes supplied weights ready for the kernels that read them. */
static void show_weights(gpt2_cuda_pass_t *pass, size_t group, float *weights)
{
    gpt2_cuda_replica_t *self = pass->self;
    const int is_copied = self->plan.options.level < 2 && self->type != GPT2_CUDA_F32;

    self->low_at[group] = is_copied ? copy_place(self, group) : weights;
    self->full_at[group] = weights;
    if (pass->rows == 0 || self->is_at_hand[group]) return;
    if (self->plan.options.level == 2) {
        gpt2_cuda_note(pass, "vectors to fp32", widen_vectors(self, group));
    } else if (is_copied) {
        gpt2_cuda_note(pass, "weights to 16 bits",
                       gpt2_cuda_cast(self->stream, self->type, self->low_at[group], GPT2_CUDA_F32,
                                      weights, self->layout->groups[group].count));
    }
    self->is_at_hand[group] = 1;
}

/* Gradients that no launch writes must be zeros: all of them in a pass without sequences; gaps
 * between tensors where the token embedding takes turns with blocks, which have theirs elsewhere.
 */
static void clear_gradients(gpt2_cuda_pass_t *pass, size_t group)
{
    gpt2_cuda_replica_t *self = pass->self;
    const gpt2_group_t *groups = self->layout->groups;
    const int takes_turns = groups[GPT2_GROUP_WTE].count == groups[gpt2_layout_group(0)].count;

    if (pass->accumulate || (pass->rows > 0 && !takes_turns)) return;
    gpt2_cuda_note(pass, "zeros",
                   (int)cudaMemsetAsync(self->gradients_at[group], 0,
                                        groups[group].count * sizeof(float), self->stream));
}

int gpt2_cuda_fetch(gpt2_cuda_pass_t *pass, size_t group, gpt2_phase_t phase)
{
    gpt2_cuda_replica_t *self = pass->self;
    const gpt2_supply_t *supply = self->supply;
    float *weights = NULL;

    if (supply == NULL) return 0;
    if (pass->stopped || self->is_stopped) return -1;
    if (supply->before_use(supply->user, group, phase, &weights, &self->gradients_at[group]) != 0) {
        pass->stopped = self->is_stopped = 1;
        return -1;
    }
    show_weights(pass, group, weights);
    if (phase == GPT2_BACKWARD) clear_gradients(pass, group);
    return 0;
}

void gpt2_cuda_return(gpt2_cuda_pass_t *pass, size_t group, gpt2_phase_t phase)
{
    gpt2_cuda_replica_t *self = pass->self;
    const gpt2_supply_t *supply = self->supply;

    if (supply == NULL || pass->stopped || self->is_stopped) return;
    self->is_at_hand[group] = 0;
    if (supply->after_use(supply->user, group, phase) != 0) pass->stopped = self->is_stopped = 1;
}

void gpt2_cuda_return_head(gpt2_cuda_pass_t *pass)
{
    gpt2_cuda_return(pass, GPT2_GROUP_WTE, GPT2_FORWARD);
    gpt2_cuda_return(pass, GPT2_GROUP_ROOT, GPT2_FORWARD);
}

int gpt2_cuda_check_supply(const gpt2_cuda_replica_t *self, gpt2_error_t *error)
{
    return self->is_stopped ? gpt2_fail(error, "%s", self->supply->error->text) : 0;
}

/* ---- Passes without sequences --------------------------------------------------------------- */

static int walk_forward(gpt2_cuda_pass_t *pass)
{
    const int layers = pass->self->layout->shape.layers;

    if (gpt2_cuda_fetch(pass, GPT2_GROUP_WTE, GPT2_FORWARD) != 0 ||
        gpt2_cuda_fetch(pass, GPT2_GROUP_ROOT, GPT2_FORWARD) != 0 ||
        gpt2_cuda_fetch(pass, gpt2_layout_group(0), GPT2_FORWARD) != 0) {
        return -1;
    }
    for (int layer = 0; layer < layers; layer++) {
        if (layer + 1 < layers &&
            gpt2_cuda_fetch(pass, gpt2_layout_group(layer + 1), GPT2_FORWARD) != 0) {
            return -1;
        }
        gpt2_cuda_return(pass, gpt2_layout_group(layer), GPT2_FORWARD);
    }
    return 0;
}

static void walk_backward(gpt2_cuda_pass_t *pass)
{
    const gpt2_layout_t *layout = pass->self->layout;

    if (gpt2_cuda_fetch(pass, GPT2_GROUP_WTE, GPT2_BACKWARD) != 0 ||
        gpt2_cuda_fetch(pass, GPT2_GROUP_ROOT, GPT2_BACKWARD) != 0) {
        return;
    }
    gpt2_cuda_hand_over(pass, 0, 2);
    for (int layer = layout->shape.layers - 1; layer >= 0; layer--) {
        if (gpt2_cuda_fetch(pass, gpt2_layout_group(layer), GPT2_BACKWARD) != 0) return;
        gpt2_cuda_hand_over(pass, gpt2_layout_block(layout, layer), GPT2_BLOCK_TENSORS);
        gpt2_cuda_return(pass, gpt2_layout_group(layer), GPT2_BACKWARD);
    }
    gpt2_cuda_hand_over(pass, gpt2_layout_wpe(layout), 2);
    gpt2_cuda_return(pass, GPT2_GROUP_WTE, GPT2_BACKWARD);
    gpt2_cuda_return(pass, GPT2_GROUP_ROOT, GPT2_BACKWARD);
}

void gpt2_cuda_walk(gpt2_cuda_pass_t *pass)
{
    if (walk_forward(pass) != 0) return;
    if (pass->training) {
        walk_backward(pass);
    } else {
        gpt2_cuda_return_head(pass);
    }
}

/* ---- Parts ---------------------------------------------------------------------------------- */

static int check_parts_memory(const gpt2_cuda_replica_t *self, const gpt2_part_t *parts,
                              gpt2_error_t *error)
{
    const void *memory = parts[0].halves != NULL ? (const void *)parts[0].halves : parts[0].weights;
    struct cudaPointerAttributes attributes;

    if (gpt2_cuda_check((int)cudaPointerGetAttributes(&attributes, memory),
                        "the memory of the weights", error) != 0) {
        return -1;
    }
    if (attributes.type == cudaMemoryTypeDevice) return 0;
    return gpt2_fail(error,
                     "libdp works on the host, the replica on GPU %s: DP_DEVICE=cuda says "
                     "why libdp does not use it, --device cpu leaves it alone",
                     self->gpu);
}

int gpt2_cuda_supply(gpt2_replica_t *base, const gpt2_supply_t *supply, const gpt2_part_t *parts,
                     gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const int arenas = parts[0].halves != NULL ? 3 : 2; /* moments, and masters */
    size_t floats = 0;
    size_t bytes;
    size_t all;
    float *memory;
    int code;

    if (check_parts_memory(self, parts, error) != 0) return -1;
    for (size_t i = 0; i < base->layout->group_count; i++)
        floats += parts[i].count;
    bytes = (size_t)arenas * floats * sizeof(float);
    code = (int)cudaMalloc((void **)&self->part_memory, bytes == 0 ? 1 : bytes);
    if (code == 0) code = (int)cudaMemsetAsync(self->part_memory, 0, bytes, self->stream);
    if (code == 0) code = (int)cudaStreamSynchronize(self->stream);
    if (code == 0) code = (int)cudaMemGetInfo(&self->free_bytes, &all);
    if (gpt2_cuda_check(code, "memory of the moments", error) != 0) return -1;
    memory = (float *)(void *)self->part_memory;
    for (size_t i = 0; i < base->layout->group_count; i++) {
        self->parts[i] = parts[i];
        self->parts[i].m = memory;
        self->parts[i].v = memory + floats;
        if (arenas == 3) self->parts[i].weights = memory + 2 * floats;
        memory += parts[i].count;
    }
    self->supply = supply;
    base->parts = self->parts;
    self->plan.moments = 2 * floats * sizeof(float);
    self->plan.weights = bytes - self->plan.moments;
    self->plan.total += bytes;
    return gpt2_cuda_optimizer_fill(self, error);
}

int gpt2_cuda_copy(gpt2_replica_t *base, void *to, const void *from, size_t bytes,
                   gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    int code = (int)cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, self->stream);

    if (code == 0) code = (int)cudaStreamSynchronize(self->stream);
    return gpt2_cuda_check(code, "a copy between host and GPU", error);
}

/* Host threads draw part by part, as on a CPU. */
int gpt2_cuda_draw(gpt2_replica_t *base, uint64_t seed, gpt2_error_t *error)
{
    const gpt2_model_options_t options = {.shape = base->layout->shape,
                                          .batch = 1,
                                          .length = 1,
                                          .threads = gpt2_cuda_host_threads(),
                                          .weights_only = 1,
                                          .is_supplied = 1};
    gpt2_model_t *model;
    float *host = NULL;
    int code = 0;

    if (gpt2_model_create(&options, &model, error) != 0) return -1;
    host = malloc(gpt2_layout_largest_group(base->layout) * sizeof(*host));
    if (host == NULL) {
        gpt2_model_destroy(model);
        return gpt2_fail(error, "out of memory for a group's first weights");
    }
    for (size_t i = 0; i < base->layout->group_count && code == 0; i++) {
        const gpt2_part_t *part = &base->parts[i];
        const size_t bytes = part->count * sizeof(*host);

        if (part->count == 0) continue;
        memset(host, 0, bytes);
        gpt2_model_init_part(model, seed, i, part->first, part->count, host);
        code = gpt2_cuda_copy(base, part->weights, host, bytes, error);
    }
    free(host);
    gpt2_model_destroy(model);
    return code;
}
