/*
 * stage_state.c - the state of all stages on its way from and to rank 0; see stage_state.h.
 */
#include "examples/gpt2/strategy/stage_state.h"

#include <stdlib.h>
#include <string.h>

struct gpt2_stage_state {
    gpt2_dp_t *dp;
    gpt2_replica_t *replica;
    const gpt2_mesh_t *mesh;
    dp_group_t *pipe;          /* borrowed */
    float *whole[GPT2_ARENAS]; /* [largest group] on its way; NULL between */
};

int gpt2_stage_state_create(gpt2_dp_t *dp, gpt2_replica_t *replica, dp_group_t *pipe,
                            gpt2_stage_state_t **out, gpt2_error_t *error)
{
    gpt2_stage_state_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a pipeline");
    self->dp = dp;
    self->replica = replica;
    self->mesh = &dp->base.mesh;
    self->pipe = pipe;
    *out = self;
    return 0;
}

void gpt2_stage_state_destroy(gpt2_stage_state_t *self)
{
    if (self == NULL) return;
    gpt2_stage_state_end_collect(self);
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
    const size_t bytes = gpt2_layout_largest_group(self->replica->layout) * sizeof(float);

    if (self->whole[arena] == NULL) self->whole[arena] = malloc(bytes);
    if (self->whole[arena] == NULL)
        (void)gpt2_fail(error, "out of memory: %zu MiB for a group of another stage", bytes >> 20);
    return self->whole[arena];
}

int gpt2_stage_state_collect(gpt2_stage_state_t *self, gpt2_arena_t arena, size_t group,
                             const float **data, gpt2_error_t *error)
{
    const int stage = self->mesh->at[GPT2_AXIS_PIPELINE];
    const int owner = gpt2_mesh_owner(self->mesh, group);
    const size_t count = self->replica->layout->groups[group].count;
    dp_handle_t *handle = NULL;
    dp_status_t status;

    if (self->mesh->at[GPT2_AXIS_DATA] != 0) return 0;
    if (owner == 0) {
        if (stage == 0) *data = group_data(self, arena, group);
        return 0;
    }
    if (stage == 0) {
        float *into = whole_group(self, arena, error);

        if (into == NULL) return -1;
        *data = into;
        status = dp_recv(self->pipe, "collect", into, count, DP_F32, owner, NULL, &handle);
    } else if (stage == owner) {
        status = dp_send(self->pipe, "collect", group_data(self, arena, group), count, DP_F32, 0,
                         NULL, &handle);
    } else {
        return 0;
    }
    return gpt2_dp_finish(self->dp, "collecting a stage", status, handle, error);
}

int gpt2_stage_state_distribute(gpt2_stage_state_t *self, gpt2_arena_t arena, size_t group,
                                const float *data, gpt2_error_t *error)
{
    const size_t bytes = self->replica->layout->groups[group].count * sizeof(float);
    float *whole = whole_group(self, arena, error);

    if (whole == NULL) return -1;
    if (self->dp->base.rank == 0) memcpy(whole, data, bytes);
    if (gpt2_dp_broadcast(&self->dp->base, 0, whole, bytes, error) != 0) return -1;
    if (gpt2_mesh_holds(self->mesh, group)) memcpy(group_data(self, arena, group), whole, bytes);
    gpt2_stage_state_end_collect(self); /* nothing follows at once that needs it */
    return 0;
}

static uint64_t hash_group(const gpt2_stage_state_t *self, size_t group)
{
    return gpt2_part_hash(self->replica->layout, group, &self->replica->parts[group]);
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
    *hash = 0;
    for (size_t i = 0; i < self->replica->layout->group_count; i++) {
        if (gpt2_mesh_counts(self->mesh, i)) *hash += hash_group(self, i);
    }
    return reduce_words(self, hash, 1, DP_SUM, error);
}

int gpt2_stage_state_compare(gpt2_stage_state_t *self, int *same, gpt2_error_t *error)
{
    const size_t groups = self->replica->layout->group_count;
    uint64_t *words = calloc(2 * groups, sizeof(*words)); /* a hash, and its complement */
    int code;

    if (words == NULL) return gpt2_fail(error, "out of memory for hashes");
    for (size_t i = 0; i < groups; i++) {
        if (!gpt2_mesh_holds(self->mesh, i)) continue;
        words[2 * i] = hash_group(self, i);
        words[2 * i + 1] = ~words[2 * i];
    }
    /* The largest complement is the complement of the smallest hash. */
    code = reduce_words(self, words, 2 * groups, DP_MAX, error);
    *same = 1;
    for (size_t i = 0; i < groups; i++)
        *same = *same && words[2 * i] == ~words[2 * i + 1];
    free(words);
    return code;
}
