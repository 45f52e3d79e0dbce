/*
 * stage_state.c - the state of all stages on its way from and to rank 0; see stage_state.h.
 *
 * A group travels in two steps: slices come together on the first place of the tensor axis, and
 * whole groups go from there to the first stage.
 */
#include "examples/gpt2/strategy/stage_state.h"

#include <stdlib.h>
#include <string.h>

struct gpt2_stage_state {
    gpt2_dp_t *dp;
    gpt2_replica_t *replica;
    const gpt2_mesh_t *mesh;
    dp_group_t *pipe;          /* borrowed */
    dp_group_t *parts;         /* borrowed; NULL: one place has whole tensors */
    gpt2_layout_t **slices;    /* [places] their layouts */
    float *slice;              /* [largest group] of another place, on its way */
    float *whole[GPT2_ARENAS]; /* [largest group] on its way; NULL between */
};

static int places_of(const gpt2_stage_state_t *self)
{
    return self->mesh->size[GPT2_AXIS_TENSOR];
}

/* What is needed to bring slices together. */
static int create_slices(gpt2_stage_state_t *self, gpt2_error_t *error)
{
    const gpt2_layout_t *whole = self->replica->layout->whole;
    const size_t bytes = gpt2_layout_largest_group(whole) * sizeof(float);

    if (self->parts == NULL) return 0;
    self->slice = malloc(bytes);
    self->slices = calloc((size_t)places_of(self), sizeof(gpt2_layout_t *));
    if (self->slice == NULL || self->slices == NULL)
        return gpt2_fail(error, "out of memory: %zu MiB for a group of slices", bytes >> 20);
    for (int i = 0; i < places_of(self); i++) {
        if (gpt2_layout_create(&whole->shape, &self->slices[i], error) != 0 ||
            gpt2_layout_slice(self->slices[i], places_of(self), i, error) != 0) {
            return -1;
        }
    }
    return 0;
}

int gpt2_stage_state_create(gpt2_dp_t *dp, gpt2_replica_t *replica, dp_group_t *pipe,
                            dp_group_t *parts, gpt2_stage_state_t **out, gpt2_error_t *error)
{
    gpt2_stage_state_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a pipeline");
    self->dp = dp;
    self->replica = replica;
    self->mesh = &dp->base.mesh;
    self->pipe = pipe;
    self->parts = parts;
    if (create_slices(self, error) != 0) {
        gpt2_stage_state_destroy(self);
        return -1;
    }
    *out = self;
    return 0;
}

void gpt2_stage_state_destroy(gpt2_stage_state_t *self)
{
    if (self == NULL) return;
    gpt2_stage_state_end_collect(self);
    for (int i = 0; self->slices != NULL && i < places_of(self); i++)
        gpt2_layout_destroy(self->slices[i]);
    free(self->slices);
    free(self->slice);
    free(self);
}

static float *group_data(const gpt2_stage_state_t *self, gpt2_arena_t arena, size_t group)
{
    const gpt2_replica_t *replica = self->replica;
    float *const arenas[GPT2_ARENAS] = {[GPT2_WEIGHTS] = replica->weights,
                                        [GPT2_MOMENT_M] = replica->m,
                                        [GPT2_MOMENT_V] = replica->v};

    return arenas[arena] + replica->layout->groups[group].offset;
}

void gpt2_stage_state_end_collect(gpt2_stage_state_t *self)
{
    for (int i = 0; i < GPT2_ARENAS; i++) {
        free(self->whole[i]);
        self->whole[i] = NULL;
    }
}

/* Memory for one group, from the first use to gpt2_stage_state_end_collect(). */
static float *whole_group(gpt2_stage_state_t *self, gpt2_arena_t arena, gpt2_error_t *error)
{
    const size_t bytes = gpt2_layout_largest_group(self->replica->layout->whole) * sizeof(float);

    if (self->whole[arena] == NULL) self->whole[arena] = malloc(bytes);
    if (self->whole[arena] == NULL)
        (void)gpt2_fail(error, "out of memory: %zu MiB for a group of another stage", bytes >> 20);
    return self->whole[arena];
}

/* Brings the slices of a group together: on the first place of the tensor axis *data becomes the
 * whole group. Places may be on different nodes, where an ordered group has no sends, so each place
 * broadcasts its slice. */
static int gather_slices(gpt2_stage_state_t *self, gpt2_arena_t arena, size_t group,
                         const float **data, gpt2_error_t *error)
{
    const int place = self->mesh->at[GPT2_AXIS_TENSOR];
    float *own = group_data(self, arena, group);
    float *whole;

    *data = own;
    if (self->parts == NULL) return 0;
    whole = place == 0 ? whole_group(self, arena, error) : NULL;
    if (place == 0 && whole == NULL) return -1;
    *data = whole;
    for (int from = 0; from < places_of(self); from++) {
        float *slice = from == place ? own : self->slice;
        dp_handle_t *handle = NULL;
        const dp_status_t status =
            dp_broadcast(self->parts, "slice", slice, slice,
                         self->slices[from]->groups[group].count, DP_F32, from, NULL, &handle);

        if (gpt2_dp_finish(self->dp, "a slice", status, handle, error) != 0) return -1;
        if (place == 0) gpt2_group_paste(self->slices[from], group, slice, whole);
    }
    return 0;
}

int gpt2_stage_state_collect(gpt2_stage_state_t *self, gpt2_arena_t arena, size_t group,
                             const float **data, gpt2_error_t *error)
{
    const int stage = self->mesh->at[GPT2_AXIS_PIPELINE];
    const int owner = gpt2_mesh_owner(self->mesh, group);
    const size_t count = self->replica->layout->whole->groups[group].count;
    const float *gathered = NULL;
    dp_handle_t *handle = NULL;
    dp_status_t status;

    if (self->mesh->at[GPT2_AXIS_DATA] != 0) return 0;
    if (stage == owner && gather_slices(self, arena, group, &gathered, error) != 0) return -1;
    if (self->mesh->at[GPT2_AXIS_TENSOR] != 0) return 0;
    if (owner == 0) {
        if (stage == 0) *data = gathered;
        return 0;
    }
    if (stage == 0) {
        float *into = whole_group(self, arena, error);

        if (into == NULL) return -1;
        *data = into;
        status = dp_recv(self->pipe, "collect", into, count, DP_F32, owner, NULL, &handle);
    } else if (stage == owner) {
        status = dp_send(self->pipe, "collect", gathered, count, DP_F32, 0, NULL, &handle);
    } else {
        return 0;
    }
    return gpt2_dp_finish(self->dp, "collecting a stage", status, handle, error);
}

int gpt2_stage_state_distribute(gpt2_stage_state_t *self, gpt2_arena_t arena, size_t group,
                                const float *data, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;
    const size_t bytes = layout->whole->groups[group].count * sizeof(float);
    float *whole = whole_group(self, arena, error);

    if (whole == NULL) return -1;
    if (self->dp->base.rank == 0) memcpy(whole, data, bytes);
    if (gpt2_dp_broadcast(&self->dp->base, 0, whole, bytes, error) != 0) return -1;
    if (gpt2_mesh_holds(self->mesh, group))
        gpt2_group_cut(layout, group, whole, group_data(self, arena, group));
    gpt2_stage_state_end_collect(self); /* nothing follows at once that needs it */
    return 0;
}

static uint64_t hash_tensor(const gpt2_stage_state_t *self, size_t tensor)
{
    const gpt2_layout_t *layout = self->replica->layout;

    return gpt2_tensor_hash(layout, tensor,
                            self->replica->weights + layout->tensors[tensor].offset);
}

static int reduce_words(gpt2_stage_state_t *self, uint64_t *words, size_t count, dp_reduce_t how,
                        gpt2_error_t *error)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL;
    dp_status_t status;

    options.reduce = how;
    status = dp_allreduce(dp_world(self->dp->context), "gpt2.words", words, words, count, DP_U64,
                          &options, &handle);
    return gpt2_dp_finish(self->dp, "hashes of the stages", status, handle, error);
}

int gpt2_stage_state_hash(gpt2_stage_state_t *self, uint64_t *hash, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;

    *hash = 0;
    for (size_t i = 0; i < layout->count; i++) {
        if (gpt2_mesh_counts(self->mesh, &layout->tensors[i])) *hash += hash_tensor(self, i);
    }
    return reduce_words(self, hash, 1, DP_SUM, error);
}

/* Each tensor has a hash and its complement for each place of the tensor axis; all places share the
 * first where they have the whole tensor. */
int gpt2_stage_state_compare(gpt2_stage_state_t *self, int *same, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;
    const size_t count = layout->count * (size_t)places_of(self);
    uint64_t *words = calloc(2 * count, sizeof(*words));
    int code;

    if (words == NULL) return gpt2_fail(error, "out of memory for hashes");
    for (size_t i = 0; i < layout->count; i++) {
        const int is_split = gpt2_mesh_is_split(&layout->tensors[i], GPT2_AXIS_TENSOR);
        const size_t place = is_split ? (size_t)self->mesh->at[GPT2_AXIS_TENSOR] : 0;
        uint64_t *pair = words + 2 * (i * (size_t)places_of(self) + place);

        if (!gpt2_mesh_holds(self->mesh, layout->tensors[i].group)) continue;
        pair[0] = hash_tensor(self, i);
        pair[1] = ~pair[0];
    }
    /* The largest complement is the complement of the smallest hash. */
    code = reduce_words(self, words, 2 * count, DP_MAX, error);
    *same = 1;
    for (size_t i = 0; i < count; i++) {
        const int is_used = words[2 * i] != 0 || words[2 * i + 1] != 0;

        *same = *same && (!is_used || words[2 * i] == ~words[2 * i + 1]);
    }
    free(words);
    return code;
}
