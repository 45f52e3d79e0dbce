/*
 * supply.c - passes over a model whose weights and gradients come group by group, when they are
 * needed, from gpt2_supply_t.
 *
 * Member 0 of the team, which is the caller's thread, fetches and returns groups; the others meet
 * it at a barrier. A pass without sequences makes the same calls in the same order as any other,
 * because on the other side of a supply ranks may wait for each other.
 */
#include "examples/gpt2/model/pass.h"

#include <string.h>

/* Gradients that no pass writes: the gaps behind tensors, and rows of the embedding that no token
 * has. They must be zeros, and memory that groups use in turn may have something else there. */
static void clear_unwritten(const gpt2_model_t *model, size_t group)
{
    const gpt2_layout_t *layout = model->layout;
    float *gradients = model->gradients_at[group];
    size_t end = 0;

    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];
        size_t written = tensor->count;

        if (tensor->group != group) continue;
        if (i == gpt2_layout_wte(layout)) {
            written = (size_t)layout->shape.vocab * (size_t)layout->shape.width;
        }
        memset(gradients + end, 0, (tensor->place - end) * sizeof(*gradients));
        end = tensor->place + written;
    }
    memset(gradients + end, 0, (layout->groups[group].count - end) * sizeof(*gradients));
}

void gpt2_member_fetch(const gpt2_member_t *self, size_t group, gpt2_phase_t phase)
{
    gpt2_model_t *model = self->model;
    const gpt2_supply_t *supply = model->supply;

    if (self->index != 0 || supply == NULL || self->pass->failed) return;
    if (supply->before_use(supply->user, group, phase, &model->weights_at[group],
                           &model->gradients_at[group]) != 0) {
        self->pass->failed = model->is_stopped = 1;
        return;
    }
    if (phase == GPT2_BACKWARD && !self->pass->accumulate) clear_unwritten(model, group);
}

void gpt2_member_return(const gpt2_member_t *self, size_t group, gpt2_phase_t phase)
{
    gpt2_model_t *model = self->model;
    const gpt2_supply_t *supply = model->supply;

    if (self->index != 0 || supply == NULL || self->pass->failed) return;
    if (supply->after_use(supply->user, group, phase) != 0) {
        self->pass->failed = model->is_stopped = 1;
    }
}

int gpt2_member_fetched(const gpt2_member_t *self)
{
    if (self->model->supply == NULL) return 0;
    gpt2_team_barrier(self->model->team);
    return self->pass->failed;
}

void gpt2_member_meet(const gpt2_member_t *self)
{
    if (self->model->supply != NULL) gpt2_team_barrier(self->model->team);
}

/* ---- Passes without sequences --------------------------------------------------------------- */

/* Gradients of a group in a pass that contributes nothing. */
static void fetch_zeros(const gpt2_member_t *self, size_t group)
{
    const gpt2_model_t *model = self->model;

    gpt2_member_fetch(self, group, GPT2_BACKWARD);
    if (self->pass->failed || self->pass->accumulate) return;
    memset(model->gradients_at[group], 0, model->layout->groups[group].count * sizeof(float));
}

static void walk_ready(const gpt2_member_t *self, size_t first, size_t count)
{
    const gpt2_hooks_t *hooks = self->pass->hooks;

    if (self->pass->failed || hooks == NULL || hooks->ready == NULL) return;
    if (hooks->ready(hooks->user, first, count) != 0) self->pass->failed = 1;
}

void gpt2_walk_forward(gpt2_pass_t *pass)
{
    const gpt2_member_t self = {.pass = pass, .model = pass->model};
    const int layers = pass->model->options.shape.layers;

    gpt2_member_fetch(&self, GPT2_GROUP_WTE, GPT2_FORWARD);
    gpt2_member_fetch(&self, GPT2_GROUP_ROOT, GPT2_FORWARD);
    gpt2_member_fetch(&self, gpt2_layout_group(0), GPT2_FORWARD);
    for (int layer = 0; layer < layers; layer++) {
        if (layer + 1 < layers) {
            gpt2_member_fetch(&self, gpt2_layout_group(layer + 1), GPT2_FORWARD);
        }
        gpt2_member_return(&self, gpt2_layout_group(layer), GPT2_FORWARD);
    }
}

void gpt2_walk_head(gpt2_pass_t *pass)
{
    const gpt2_member_t self = {.pass = pass, .model = pass->model};

    if (pass->training) {
        fetch_zeros(&self, GPT2_GROUP_WTE);
        return;
    }
    gpt2_member_return(&self, GPT2_GROUP_WTE, GPT2_FORWARD);
    gpt2_member_return(&self, GPT2_GROUP_ROOT, GPT2_FORWARD);
}

void gpt2_walk_backward(gpt2_pass_t *pass)
{
    const gpt2_member_t self = {.pass = pass, .model = pass->model};
    const gpt2_layout_t *layout = pass->model->layout;

    fetch_zeros(&self, GPT2_GROUP_ROOT);
    walk_ready(&self, 0, 2);
    for (int layer = layout->shape.layers - 1; layer >= 0; layer--) {
        fetch_zeros(&self, gpt2_layout_group(layer));
        walk_ready(&self, gpt2_layout_block(layout, layer), GPT2_BLOCK_TENSORS);
        gpt2_member_return(&self, gpt2_layout_group(layer), GPT2_BACKWARD);
    }
    walk_ready(&self, gpt2_layout_wpe(layout), 2);
    gpt2_member_return(&self, GPT2_GROUP_WTE, GPT2_BACKWARD);
    gpt2_member_return(&self, GPT2_GROUP_ROOT, GPT2_BACKWARD);
}
