/*
 * tensor_axis.c - sums of activations and their gradients over the tensor axis; see tensor_axis.h.
 *
 * Every place runs the same passes, so the group is an ordered one: a sum is launched when it is
 * submitted, without a message of the coordinator's. Numbers travel as they are, whatever --wire
 * says of gradients.
 */
#include "examples/gpt2/strategy/tensor_axis.h"

#include <stdlib.h>

#include "examples/gpt2/base/clock.h"

struct gpt2_tensor_axis {
    gpt2_dp_t *dp;
    dp_group_t *group;
    dp_handle_t *flying; /* the sum that has begun; NULL: none */
    gpt2_reducer_t reducer;
    gpt2_error_t error;
    double waited;
};

static int start_sum(void *user, float *values, size_t count, int is_max)
{
    gpt2_tensor_axis_t *self = user;
    dp_options_t options = DP_OPTIONS_INIT;
    dp_status_t status;

    options.reduce = is_max ? DP_MAX : DP_SUM;
    options.wire = DP_WIRE_NONE;
    options.launch_now = 1;
    status = dp_allreduce(self->group, is_max ? "max" : "sum", values, values, count, DP_F32,
                          &options, &self->flying);
    if (status == DP_OK) return 0;
    return gpt2_dp_failed(self->dp, "a sum over --tp", status, &self->error);
}

static int finish_sum(void *user)
{
    gpt2_tensor_axis_t *self = user;
    dp_handle_t *handle = self->flying;
    const double start = gpt2_now();
    int code;

    self->flying = NULL;
    gpt2_dp_span_begin(&self->dp->base, "tensor sum", NULL);
    code = gpt2_dp_finish(self->dp, "a sum over --tp", DP_OK, handle, &self->error);
    gpt2_dp_span_end(&self->dp->base, NULL);
    self->waited += gpt2_now() - start;
    return code;
}

int gpt2_tensor_axis_create(gpt2_dp_t *dp, gpt2_replica_t *replica, gpt2_tensor_axis_t **out,
                            gpt2_error_t *error)
{
    const gpt2_mesh_t *mesh = &dp->base.mesh;
    dp_group_options_t options = DP_GROUP_OPTIONS_INIT;
    gpt2_tensor_axis_t *self = calloc(1, sizeof(*self));
    dp_status_t status;

    if (self == NULL) return gpt2_fail(error, "out of memory for the tensor axis");
    self->dp = dp;
    self->reducer = (gpt2_reducer_t){self, start_sum, finish_sum, &self->error};
    options.order = DP_ORDER_PROGRAM;
    status = dp_group_split(dp_world(dp->context), "tensor",
                            dp->base.rank / mesh->size[GPT2_AXIS_TENSOR],
                            mesh->at[GPT2_AXIS_TENSOR], &options, &self->group);
    if (status != DP_OK) {
        free(self);
        return gpt2_dp_failed(dp, "the groups of a mesh", status, error);
    }
    replica->ops->stage->reduce_by(replica, &self->reducer);
    *out = self;
    return 0;
}

void gpt2_tensor_axis_destroy(gpt2_tensor_axis_t *self)
{
    if (self == NULL) return;
    dp_release(self->flying);
    free(self);
}

dp_group_t *gpt2_tensor_axis_group(const gpt2_tensor_axis_t *self)
{
    return self == NULL ? NULL : self->group;
}

double gpt2_tensor_axis_waited(const gpt2_tensor_axis_t *self)
{
    return self == NULL ? 0.0 : self->waited;
}
