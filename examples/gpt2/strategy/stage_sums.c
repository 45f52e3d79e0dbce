/*
 * stage_sums.c - sums of a stage's gradients along the axes of the mesh, and their norm; see
 * stage_sums.h.
 *
 * Gradients are summed, never averaged: the loss is weighted by 1 / tokens of the global batch. The
 * tensors that the first and the last stage both have are summed over these two first, then along
 * the data axis like all others. Along the tensor axis there is nothing to sum: places have either
 * their own slices' gradients, or the same ones of whole tensors.
 */
#include "examples/gpt2/strategy/stage_sums.h"

#include <stdlib.h>
#include <string.h>

struct gpt2_stage_sums {
    gpt2_dp_t *dp;
    gpt2_replica_t *replica;
    const gpt2_mesh_t *mesh;
    gpt2_strategy_settings_t settings;
    dp_group_t *data; /* the copies of one stage */
    dp_group_t *ends; /* the first and the last stage of one copy; NULL on others, and on one */
    size_t tensors;
    dp_handle_t **reduced; /* [tensors] along the data axis */
    double *squares;       /* [tensors + 1] of what this rank counts; behind them, numbers that are
                              not finite */
};

/* ---- Life ----------------------------------------------------------------------------------- */

static int create_groups(gpt2_stage_sums_t *self, gpt2_error_t *error)
{
    const int copy = self->mesh->at[GPT2_AXIS_DATA];
    const int stage = self->mesh->at[GPT2_AXIS_PIPELINE];
    const int stages = self->mesh->size[GPT2_AXIS_PIPELINE];
    const int is_end = stage == 0 || stage + 1 == stages;
    const int part = self->mesh->at[GPT2_AXIS_TENSOR];
    const int parts = self->mesh->size[GPT2_AXIS_TENSOR];
    dp_group_options_t agreed = DP_GROUP_OPTIONS_INIT;
    dp_group_t *world = dp_world(self->dp->context);
    dp_status_t status;

    agreed.order = DP_ORDER_NEGOTIATED; /* the ends come to it at different times */
    /* An ordered world, the pipeline and the tensor axis have all lanes of ordered groups. */
    status = dp_group_split(world, "data", stage * parts + part, copy, parts > 1 ? &agreed : NULL,
                            &self->data);
    if (status == DP_OK && stages > 1) {
        status = dp_group_split(world, "ends", is_end ? copy * parts + part : -1, stage, &agreed,
                                &self->ends);
    }
    return status == DP_OK ? 0 : gpt2_dp_failed(self->dp, "the groups of a mesh", status, error);
}

int gpt2_stage_sums_create(gpt2_dp_t *dp, gpt2_replica_t *replica,
                           const gpt2_strategy_settings_t *settings, gpt2_stage_sums_t **out,
                           gpt2_error_t *error)
{
    gpt2_stage_sums_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a pipeline");
    self->dp = dp;
    self->replica = replica;
    self->mesh = &dp->base.mesh;
    self->settings = *settings;
    self->tensors = replica->layout->count;
    self->reduced = calloc(self->tensors, sizeof(dp_handle_t *));
    self->squares = calloc(self->tensors + 1, sizeof(*self->squares));
    if (self->reduced == NULL || self->squares == NULL) {
        (void)gpt2_fail(error, "out of memory for a pipeline");
        goto fail;
    }
    if (create_groups(self, error) != 0) goto fail;
    *out = self;
    return 0;
fail:
    gpt2_stage_sums_destroy(self);
    return -1;
}

/* The replica may be gone. */
void gpt2_stage_sums_destroy(gpt2_stage_sums_t *self)
{
    if (self == NULL) return;
    for (size_t i = 0; i < self->tensors && self->reduced != NULL; i++)
        dp_release(self->reduced[i]);
    free(self->reduced);
    free(self->squares);
    free(self);
}

/* ---- The sums of a step --------------------------------------------------------------------- */

/* Sums a tensor's gradient over a group, where it lies. */
static int start_sum(gpt2_stage_sums_t *self, dp_group_t *group, size_t index, dp_handle_t **handle,
                     gpt2_error_t *error)
{
    const gpt2_tensor_t *tensor = &self->replica->layout->tensors[index];
    float *gradient = self->replica->gradients + tensor->offset;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_status_t status;

    options.wire = gpt2_dp_wire(self->settings.wire);
    status = dp_allreduce(group, tensor->name, gradient, gradient, tensor->count, DP_F32, &options,
                          handle);
    return status == DP_OK ? 0 : gpt2_dp_failed(self->dp, "dp_allreduce", status, error);
}

/* Both uses of wte are over before it can be summed over the ends, which gpt2_stage_sums_sync()
 * does.
 */
static int is_tied(const gpt2_stage_sums_t *self, size_t index)
{
    const gpt2_tensor_t *tensor = &self->replica->layout->tensors[index];

    return tensor->group == GPT2_GROUP_WTE ||
           gpt2_mesh_sums(self->mesh, tensor, GPT2_AXIS_PIPELINE);
}

int gpt2_stage_sums_ready(gpt2_stage_sums_t *self, size_t first, size_t count, gpt2_error_t *error)
{
    for (size_t i = first; i < first + count; i++) {
        if (is_tied(self, i)) continue;
        if (start_sum(self, self->data, i, &self->reduced[i], error) != 0) return -1;
    }
    return 0;
}

/* Sums what both ends have over the two of them, then along the data axis. */
static int sum_tied(gpt2_stage_sums_t *self, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;
    dp_handle_t *handles[4] = {NULL}; /* the final norm's two, positions, tokens */
    size_t tied[4];
    size_t count = 0;
    int code = 0;

    self->replica->ops->stage->join_lookups(self->replica);
    for (size_t i = 0; i < layout->count; i++) {
        if (gpt2_mesh_holds(self->mesh, layout->tensors[i].group) && is_tied(self, i))
            tied[count++] = i;
    }
    for (size_t i = 0; i < count && code == 0; i++) {
        if (!gpt2_mesh_sums(self->mesh, &layout->tensors[tied[i]], GPT2_AXIS_PIPELINE)) continue;
        code = start_sum(self, self->ends, tied[i], &handles[i], error);
    }
    for (size_t i = 0; i < count && code == 0; i++) {
        if (handles[i] != NULL)
            code = gpt2_dp_finish(self->dp, "a sum over both ends", DP_OK, handles[i], error);
        if (code == 0) code = start_sum(self, self->data, tied[i], &self->reduced[tied[i]], error);
    }
    return code;
}

int gpt2_stage_sums_sync(gpt2_stage_sums_t *self, gpt2_sync_t *out, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;
    const double clip = self->settings.clip;

    if (sum_tied(self, error) != 0) return -1;
    memset(self->squares, 0, (layout->count + 1) * sizeof(*self->squares));
    for (size_t i = 0; i < layout->count; i++) {
        dp_result_t result = DP_RESULT_INIT;
        dp_handle_t *handle = self->reduced[i];
        dp_status_t status;

        if (handle == NULL) continue;
        self->reduced[i] = NULL;
        status = dp_wait(handle, -1.0, &result);
        if (status != DP_OK)
            return gpt2_dp_failed(self->dp, layout->tensors[i].name, status, error);
        if (!gpt2_mesh_counts(self->mesh, &layout->tensors[i])) continue;
        self->squares[i] = result.sum_squares;
        self->squares[layout->count] += (double)result.nonfinite;
    }
    if (gpt2_dp_sum(&self->dp->base, self->squares, layout->count + 1, error) != 0) return -1;
    *out = (gpt2_sync_t){.norm = gpt2_mesh_norm(layout, self->squares),
                         .clip = 1.0,
                         .skip = self->squares[layout->count] > 0.0};
    if (clip > 0.0 && out->norm > clip) out->clip = clip / out->norm;
    return 0;
}
