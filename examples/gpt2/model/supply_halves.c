/*
 * supply_halves.c - groups of 16-bit weights, widened for as long as a pass uses them.
 *
 * Groups of equal size take turns in the same memory, so that a walk through the blocks needs that
 * of the two or three that are in use together.
 */
#include "examples/gpt2/model/supply_halves.h"

#include <stdlib.h>

#include "examples/gpt2/base/halves.h"

typedef struct widened {
    float *memory; /* [count]; NULL: not allocated yet */
    size_t count;
    size_t group; /* whose weights are in it, if it is used */
    int is_used;
} widened_t;

struct gpt2_supply_halves {
    gpt2_supply_t supply;
    gpt2_error_t error;
    const gpt2_supply_t *from;
    const gpt2_layout_t *layout;
    widened_t *widened; /* [groups] at most one for each */
    int is_fp16;
};

/* The memory that has a group's weights; NULL: there is none. */
static widened_t *find_widened(const gpt2_supply_halves_t *self, size_t group)
{
    for (size_t i = 0; i < self->layout->group_count; i++) {
        if (self->widened[i].is_used && self->widened[i].group == group) return &self->widened[i];
    }
    return NULL;
}

/* Memory for a group: some that another of its size has left, or new. */
static widened_t *reserve_widened(gpt2_supply_halves_t *self, size_t group)
{
    const size_t count = self->layout->groups[group].count;
    size_t i = 0;

    /* There are as many places as groups, so one is free. */
    while (self->widened[i].is_used ||
           (self->widened[i].memory != NULL && self->widened[i].count != count))
        i++;
    if (self->widened[i].memory == NULL) {
        self->widened[i].memory = aligned_alloc(256, count * sizeof(float));
        if (self->widened[i].memory == NULL) {
            gpt2_fail(&self->error, "out of memory: %zu MiB of weights of %s in fp32",
                      count * sizeof(float) >> 20, self->layout->groups[group].name);
            return NULL;
        }
    }
    self->widened[i].count = count;
    self->widened[i].group = group;
    self->widened[i].is_used = 1;
    return &self->widened[i];
}

/* -1 with the reason of the supply behind. */
static int pass_on(gpt2_supply_halves_t *self, int code)
{
    if (code != 0) self->error = *self->from->error;
    return code;
}

static int before_use(void *user, size_t group, gpt2_phase_t phase, float **weights,
                      float **gradients)
{
    gpt2_supply_halves_t *self = user;
    widened_t *widened = find_widened(self, group);
    float *halves;

    if (pass_on(self, self->from->before_use(self->from->user, group, phase, &halves, gradients)) !=
        0) {
        return -1;
    }
    if (widened == NULL) {
        widened = reserve_widened(self, group);
        if (widened == NULL) return -1;
        gpt2_halves_unpack(widened->memory, (const uint16_t *)(const void *)halves,
                           self->layout->groups[group].count, self->is_fp16);
    }
    *weights = widened->memory;
    return 0;
}

static int after_use(void *user, size_t group, gpt2_phase_t phase)
{
    gpt2_supply_halves_t *self = user;
    widened_t *widened = find_widened(self, group);

    if (widened != NULL) widened->is_used = 0;
    return pass_on(self, self->from->after_use(self->from->user, group, phase));
}

static int after_update(void *user, size_t group)
{
    gpt2_supply_halves_t *self = user;

    return pass_on(self, self->from->after_update(self->from->user, group));
}

static int sum(void *user, double *values, size_t count)
{
    gpt2_supply_halves_t *self = user;

    return pass_on(self, self->from->sum(self->from->user, values, count));
}

int gpt2_supply_halves_create(const gpt2_supply_t *from, const gpt2_layout_t *layout, int is_fp16,
                              gpt2_supply_halves_t **out, gpt2_error_t *error)
{
    gpt2_supply_halves_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a supply");
    self->from = from;
    self->layout = layout;
    self->is_fp16 = is_fp16;
    self->supply = (gpt2_supply_t){self, before_use, after_use, after_update, sum, &self->error};
    self->widened = calloc(layout->group_count, sizeof(*self->widened));
    if (self->widened == NULL) {
        gpt2_supply_halves_destroy(self);
        return gpt2_fail(error, "out of memory for a supply");
    }
    *out = self;
    return 0;
}

void gpt2_supply_halves_destroy(gpt2_supply_halves_t *self)
{
    if (self == NULL) return;
    for (size_t i = 0; self->widened != NULL && i < self->layout->group_count; i++)
        free(self->widened[i].memory);
    free(self->widened);
    free(self);
}

const gpt2_supply_t *gpt2_supply_halves_get(const gpt2_supply_halves_t *self)
{
    return &self->supply;
}
