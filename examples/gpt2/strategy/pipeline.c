/*
 * pipeline.c - runs the schedule's table over dp.h; see pipeline.h.
 *
 * Stage k sends the residual stream behind its last block to stage k + 1, and the gradient of its
 * input to stage k - 1; the tokens are on every rank. Receives are posted before a pass computes,
 * as far as there are buffers, so that a neighbour's send finds its place:
 *
 *     inputs    [slots + 1]  a micro-batch's input lies there from its receive to its backward
 *     outputs   [BORDERS]    from a forward until the next stage has it
 *     gradients [BORDERS]    received, made the gradient of the input in place, and sent on
 */
#include "examples/gpt2/strategy/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/clock.h"
#include "examples/gpt2/strategy/tensor_axis.h"

#define BORDERS 2
#define NAMES 4 /* of messages between two stages in flight, and a spare one */

/* One direction of one border. */
typedef struct channel {
    dp_handle_t **flying; /* [count] in each buffer's place, or NULL */
    float **buffers;      /* [count] of dp_alloc() */
    int count;
} channel_t;

struct gpt2_pipeline {
    gpt2_dp_t *dp;
    gpt2_replica_t *replica;
    const gpt2_mesh_t *mesh;
    gpt2_stage_sums_t *sums;
    gpt2_stage_state_t *state;
    int stage;
    int stages;
    int slots;
    dp_group_t *pipe;           /* the stages of one copy of the model: group rank k is stage k */
    gpt2_tensor_axis_t *tensor; /* NULL: a stage is one rank */
    channel_t inputs;           /* received, with a stage before this one */
    channel_t outputs;          /* sent, with one behind it */
    channel_t gradients;        /* received and sent */
    dp_handle_t **returned;     /* [BORDERS] sends of gradients */
    uint64_t messages[2][2];    /* [forward, backward][sent, received] so far: their names */
    /* of the step at hand */
    const gpt2_batch_t *batches;
    const gpt2_hooks_t *hooks;
    int posted[2]; /* receives */
    int done[2];   /* passes */
    /* of all steps, in seconds */
    double waited; /* for another stage */
    double summed; /* for sums over the tensor axis */
    double total;
};

static int failed(const gpt2_pipeline_t *self, const char *what, dp_status_t status,
                  gpt2_error_t *error)
{
    return gpt2_dp_failed(self->dp, what, status, error);
}

/* ---- Life ----------------------------------------------------------------------------------- */

static int create_channel(gpt2_pipeline_t *self, channel_t *channel, int count, size_t floats,
                          gpt2_error_t *error)
{
    channel->flying = calloc((size_t)count, sizeof(dp_handle_t *));
    channel->buffers = calloc((size_t)count, sizeof(*channel->buffers));
    if (channel->flying == NULL || channel->buffers == NULL)
        return gpt2_fail(error, "out of memory for a pipeline");
    for (; channel->count < count; channel->count++) {
        channel->buffers[channel->count] = gpt2_dp_alloc(&self->dp->base, floats * sizeof(float));
        if (channel->buffers[channel->count] == NULL) {
            return gpt2_fail(error, "out of memory: %zu MiB between two stages",
                             floats * sizeof(float) >> 20);
        }
    }
    return 0;
}

static void destroy_channel(gpt2_pipeline_t *self, channel_t *channel)
{
    for (int i = 0; i < channel->count; i++) {
        dp_release(channel->flying[i]);
        gpt2_dp_free(&self->dp->base, channel->buffers[i]);
    }
    free(channel->flying);
    free(channel->buffers);
}

/* On one node stages send past the coordinator, which an ordered group does; between nodes sends
 * are agreed on. */
static int create_groups(gpt2_pipeline_t *self, gpt2_error_t *error)
{
    dp_context_t *context = self->dp->context;
    dp_group_options_t options = DP_GROUP_OPTIONS_INIT;
    dp_status_t status;

    options.order = dp_node_count(context) > 1 ? DP_ORDER_NEGOTIATED : DP_ORDER_PROGRAM;
    if (self->stages > 1) {
        const int copy = self->mesh->at[GPT2_AXIS_DATA] * self->mesh->size[GPT2_AXIS_TENSOR] +
                         self->mesh->at[GPT2_AXIS_TENSOR];

        status =
            dp_group_split(dp_world(context), "pipeline", copy, self->stage, &options, &self->pipe);
        if (status != DP_OK) return failed(self, "the groups of a mesh", status, error);
    }
    if (self->mesh->size[GPT2_AXIS_TENSOR] == 1) return 0;
    return gpt2_tensor_axis_create(self->dp, self->replica, &self->tensor, error);
}

static int create_buffers(gpt2_pipeline_t *self, size_t floats, gpt2_error_t *error)
{
    self->returned = calloc(BORDERS, sizeof(dp_handle_t *));
    if (self->returned == NULL) return gpt2_fail(error, "out of memory for a pipeline");
    if (self->stage > 0 && create_channel(self, &self->inputs, self->slots + 1, floats, error) != 0)
        return -1;
    if (self->stage + 1 < self->stages &&
        create_channel(self, &self->outputs, BORDERS, floats, error) != 0)
        return -1;
    if (self->stages == 1) return 0;
    return create_channel(self, &self->gradients, BORDERS, floats, error);
}

int gpt2_pipeline_create(gpt2_dp_t *dp, gpt2_replica_t *replica,
                         const gpt2_strategy_settings_t *settings, gpt2_pipeline_t **out,
                         gpt2_error_t *error)
{
    gpt2_pipeline_t *self = calloc(1, sizeof(*self));
    const size_t width = (size_t)replica->layout->shape.width;

    if (self == NULL) return gpt2_fail(error, "out of memory for a pipeline");
    self->dp = dp;
    self->replica = replica;
    self->mesh = &dp->base.mesh;
    self->stage = self->mesh->at[GPT2_AXIS_PIPELINE];
    self->stages = self->mesh->size[GPT2_AXIS_PIPELINE];
    self->slots = gpt2_mesh_stage(self->mesh).slots;
    if (create_groups(self, error) != 0 ||
        gpt2_stage_sums_create(dp, replica, settings, &self->sums, error) != 0 ||
        gpt2_stage_state_create(dp, replica, self->pipe, gpt2_tensor_axis_group(self->tensor),
                                &self->state, error) != 0 ||
        create_buffers(self, (size_t)replica->room * (size_t)settings->length * width, error) !=
            0) {
        gpt2_pipeline_destroy(self);
        return -1;
    }
    *out = self;
    return 0;
}

/* The replica may be gone. */
void gpt2_pipeline_destroy(gpt2_pipeline_t *self)
{
    if (self == NULL) return;
    gpt2_stage_sums_destroy(self->sums);
    gpt2_stage_state_destroy(self->state);
    gpt2_tensor_axis_destroy(self->tensor);
    for (int i = 0; i < BORDERS && self->returned != NULL; i++)
        dp_release(self->returned[i]);
    destroy_channel(self, &self->inputs);
    destroy_channel(self, &self->outputs);
    destroy_channel(self, &self->gradients);
    free(self->returned);
    free(self);
}

/* ---- Messages between stages ---------------------------------------------------------------- */

/* Floats of a micro-batch's residual stream. */
static size_t stream_floats(const gpt2_pipeline_t *self, const gpt2_batch_t *batch)
{
    return (size_t)batch->count * (size_t)batch->length *
           (size_t)self->replica->layout->shape.width;
}

/* name [32] = of the next message in that direction over the border behind stage `border`. */
static void name_message(gpt2_pipeline_t *self, int is_backward, int is_received, int border,
                         char *name)
{
    (void)snprintf(name, 32, "%c.%d.%d", is_backward ? 'b' : 'f', border,
                   (int)(self->messages[is_backward][is_received]++ % NAMES));
}

/* Sends to the next stage, or backward to the one before. An empty micro-batch needs no message. */
static int send_stream(gpt2_pipeline_t *self, int is_backward, const gpt2_batch_t *batch,
                       const float *from, dp_handle_t **flying, gpt2_error_t *error)
{
    const size_t floats = stream_floats(self, batch);
    const int to = self->stage + (is_backward ? -1 : 1);
    char name[32];
    dp_status_t status;

    if (floats == 0) return 0;
    name_message(self, is_backward, 0, is_backward ? to : self->stage, name);
    status = dp_send(self->pipe, name, from, floats, DP_F32, to, NULL, flying);
    return status == DP_OK ? 0 : failed(self, "dp_send", status, error);
}

static int receive_stream(gpt2_pipeline_t *self, int is_backward, const gpt2_batch_t *batch,
                          float *into, dp_handle_t **flying, gpt2_error_t *error)
{
    const size_t floats = stream_floats(self, batch);
    const int from = self->stage + (is_backward ? 1 : -1);
    char name[32];
    dp_status_t status;

    if (floats == 0) return 0;
    name_message(self, is_backward, 1, is_backward ? self->stage : from, name);
    status = dp_recv(self->pipe, name, into, floats, DP_F32, from, NULL, flying);
    return status == DP_OK ? 0 : failed(self, "dp_recv", status, error);
}

/* Waits for a message, if there is one. The time counts as the bubble. */
static int await(gpt2_pipeline_t *self, dp_handle_t **flying, const char *what, gpt2_error_t *error)
{
    dp_handle_t *handle = *flying;
    const double start = gpt2_now();
    const gpt2_hooks_t *hooks = self->hooks;
    int code;

    if (handle == NULL) return 0;
    *flying = NULL;
    if (hooks != NULL) hooks->span_begin(hooks->user, "bubble");
    code = gpt2_dp_finish(self->dp, what, DP_OK, handle, error);
    if (hooks != NULL) hooks->span_end(hooks->user);
    self->waited += gpt2_now() - start;
    return code;
}

/* Posts receives of inputs: a buffer is free again when its micro-batch has had its backward. */
static int post_inputs(gpt2_pipeline_t *self, gpt2_error_t *error)
{
    channel_t *inputs = &self->inputs;

    for (; self->posted[0] < self->mesh->micros && self->posted[0] < self->done[1] + inputs->count;
         self->posted[0]++) {
        const int place = self->posted[0] % inputs->count;

        if (receive_stream(self, 0, &self->batches[self->posted[0]], inputs->buffers[place],
                           &inputs->flying[place], error) != 0) {
            return -1;
        }
    }
    return 0;
}

/* Posts receives of gradients, the one of micro-batch `needed` in any case: a buffer is free again
 * when the stage before has what was sent from it. */
static int post_gradients(gpt2_pipeline_t *self, int needed, gpt2_error_t *error)
{
    channel_t *gradients = &self->gradients;

    for (; self->posted[1] < self->mesh->micros && self->posted[1] < self->done[1] + BORDERS;
         self->posted[1]++) {
        const int place = self->posted[1] % BORDERS;
        dp_handle_t **sent = &self->returned[place];

        if (self->posted[1] > needed && *sent != NULL && dp_test(*sent) == DP_ERR_PENDING) return 0;
        if (await(self, sent, "dp_send", error) != 0) return -1;
        if (receive_stream(self, 1, &self->batches[self->posted[1]], gradients->buffers[place],
                           &gradients->flying[place], error) != 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- The passes of a step ------------------------------------------------------------------- */

static float *buffer_of(const channel_t *channel, int micro)
{
    return channel->count == 0 ? NULL : channel->buffers[micro % channel->count];
}

static int run_forward(gpt2_pipeline_t *self, int micro, gpt2_error_t *error)
{
    const gpt2_stage_ops_t *ops = self->replica->ops->stage;
    const gpt2_batch_t *batch = &self->batches[micro];
    const gpt2_edges_t edges = {.input = buffer_of(&self->inputs, micro),
                                .output = buffer_of(&self->outputs, micro)};
    const int place = micro % BORDERS;
    char name[32];

    if (self->inputs.count > 0 &&
        await(self, &self->inputs.flying[micro % self->inputs.count], "dp_recv", error) != 0)
        return -1;
    if (self->outputs.count > 0 && await(self, &self->outputs.flying[place], "dp_send", error) != 0)
        return -1;
    (void)snprintf(name, sizeof(name), "forward micro %d", micro);
    self->hooks->span_begin(self->hooks->user, name);
    if (ops->forward(self->replica, batch, micro % self->slots, &edges, self->hooks, error) != 0)
        return -1;
    self->hooks->span_end(self->hooks->user);
    self->done[0]++;
    if (self->outputs.count == 0) return 0;
    return send_stream(self, 0, batch, edges.output, &self->outputs.flying[place], error);
}

static int run_backward(gpt2_pipeline_t *self, int micro, float weight, gpt2_error_t *error)
{
    const gpt2_stage_ops_t *ops = self->replica->ops->stage;
    const gpt2_batch_t *batch = &self->batches[micro];
    const gpt2_edges_t edges = {.input = buffer_of(&self->inputs, micro),
                                .output = buffer_of(&self->outputs, micro),
                                .gradient = buffer_of(&self->gradients, micro)};
    const int is_last = micro + 1 == self->mesh->micros;
    const int place = micro % BORDERS;
    gpt2_hooks_t hooks = *self->hooks;
    char name[32];

    if (!is_last) hooks.ready = NULL; /* sums are complete in the last pass alone */
    if (self->gradients.count > 0 &&
        (await(self, &self->gradients.flying[place], "dp_recv", error) != 0 ||
         await(self, &self->returned[place], "dp_send", error) != 0))
        return -1;
    (void)snprintf(name, sizeof(name), "backward micro %d", micro);
    hooks.span_begin(hooks.user, name);
    if (ops->backward(self->replica, batch, micro % self->slots, &edges, weight, micro > 0, &hooks,
                      error) != 0)
        return -1;
    hooks.span_end(hooks.user);
    self->done[1]++;
    if (self->stage == 0) return 0;
    return send_stream(self, 1, batch, edges.gradient, &self->returned[place], error);
}

static int run_actions(gpt2_pipeline_t *self, const gpt2_action_t *actions, float weight,
                       gpt2_error_t *error)
{
    for (int i = 0; i < 2 * self->mesh->micros; i++) {
        const gpt2_action_t *action = &actions[i];
        const int needed = action->is_backward ? action->micro : -1;

        if (self->inputs.count > 0 && post_inputs(self, error) != 0) return -1;
        if (self->stage + 1 < self->stages && post_gradients(self, needed, error) != 0) return -1;
        if ((action->is_backward ? run_backward(self, action->micro, weight, error)
                                 : run_forward(self, action->micro, error)) != 0) {
            return -1;
        }
    }
    return 0;
}

int gpt2_pipeline_passes(gpt2_pipeline_t *self, const gpt2_batch_t *batches, float weight,
                         const gpt2_hooks_t *hooks, gpt2_error_t *error)
{
    const double start = gpt2_now();
    const double summed = gpt2_tensor_axis_waited(self->tensor);
    const int micros = self->mesh->micros;
    gpt2_action_t *actions = malloc(2 * (size_t)micros * sizeof(*actions));
    int code;

    if (actions == NULL) return gpt2_fail(error, "out of memory for a schedule");
    gpt2_schedule_make(self->mesh->schedule, self->stages, self->stage, micros, actions);
    self->batches = batches;
    self->hooks = hooks;
    memset(self->posted, 0, sizeof(self->posted));
    memset(self->done, 0, sizeof(self->done));
    code = run_actions(self, actions, weight, error);
    /* The next step writes these buffers. */
    for (int i = 0; i < BORDERS && code == 0 && self->stages > 1; i++) {
        code = await(self, &self->returned[i], "dp_send", error);
        if (code == 0 && self->outputs.count > 0)
            code = await(self, &self->outputs.flying[i], "dp_send", error);
    }
    self->hooks = NULL;
    self->batches = NULL;
    free(actions);
    self->total += gpt2_now() - start;
    self->summed += gpt2_tensor_axis_waited(self->tensor) - summed;
    return code;
}

int gpt2_pipeline_evaluate(gpt2_pipeline_t *self, const gpt2_batch_t *batch, double *loss_sum,
                           gpt2_error_t *error)
{
    const gpt2_stage_ops_t *ops = self->replica->ops->stage;
    const gpt2_edges_t edges = {.input = buffer_of(&self->inputs, 0),
                                .output = buffer_of(&self->outputs, 0)};
    const double waited = self->waited;

    *loss_sum = 0.0;
    if (self->inputs.count > 0 &&
        (receive_stream(self, 0, batch, edges.input, &self->inputs.flying[0], error) != 0 ||
         await(self, &self->inputs.flying[0], "dp_recv", error) != 0))
        return -1;
    if (ops->forward(self->replica, batch, 0, &edges, NULL, error) != 0) return -1;
    if (self->stage + 1 == self->stages) {
        if (ops->loss(self->replica, batch, loss_sum, error) != 0) return -1;
    } else if (send_stream(self, 0, batch, edges.output, &self->outputs.flying[0], error) != 0 ||
               await(self, &self->outputs.flying[0], "dp_send", error) != 0) {
        return -1;
    }
    self->waited = waited; /* the bubble is that of steps */
    return 0;
}

void gpt2_pipeline_waits(const gpt2_pipeline_t *self, gpt2_waits_t *waits)
{
    *waits = (gpt2_waits_t){.bubble = self->waited, .sums = self->summed, .total = self->total};
}

gpt2_stage_sums_t *gpt2_pipeline_sums(const gpt2_pipeline_t *self)
{
    return self->sums;
}

gpt2_stage_state_t *gpt2_pipeline_state(const gpt2_pipeline_t *self)
{
    return self->state;
}

void gpt2_pipeline_describe(const gpt2_pipeline_t *self, char *text, size_t room)
{
    const gpt2_stages_t *stages = &self->mesh->stages;
    size_t used;

    (void)snprintf(text, room, "%d cop%s of %d stage%s, ", self->mesh->size[GPT2_AXIS_DATA],
                   self->mesh->size[GPT2_AXIS_DATA] == 1 ? "y" : "ies", self->stages,
                   self->stages == 1 ? "" : "s");
    used = strlen(text);
    if (self->tensor != NULL) {
        (void)snprintf(text + used, room - used, "each of %d ranks, ",
                       self->mesh->size[GPT2_AXIS_TENSOR]);
    }
    used = strlen(text);
    (void)snprintf(text + used, room - used, "%s, blocks ",
                   self->mesh->schedule == GPT2_SCHEDULE_GPIPE ? "gpipe" : "1f1b");
    for (int k = 0; k < self->stages; k++) {
        used = strlen(text);
        (void)snprintf(text + used, room - used, "%s%d", k == 0 ? "" : ",",
                       stages->first[k + 1] - stages->first[k]);
    }
}
