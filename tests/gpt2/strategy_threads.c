/*
 * strategy_threads.c - averages gradients through shared memory and barriers.
 *
 * It follows the contract of strategy.h as libdp's does: weights are made equal by attach, sums run
 * in rank order, and every tensor must have been ready once per pass.
 */
#include "tests/gpt2/strategy_threads.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_MAX_RANKS 16

struct threads_world {
    int size;
    int has_extras;
    pthread_barrier_t barrier;
    const void *shared[SIZE_MAX_RANKS]; /* what each rank shows between two barriers */
    int broken_rank;                    /* -1: none */
    uint64_t broken_sync;               /* the first */
    uint64_t broken_syncs;
};

typedef struct threads {
    gpt2_strategy_t base;
    threads_world_t *world;
    gpt2_replica_t *replica;
    float *average;
    size_t readies;
    uint64_t syncs;
    gpt2_strategy_settings_t settings;
    uint64_t *counts; /* [2][THREADS_COUNTS] extra state: of all, and this rank's; or NULL */
} threads_t;

threads_world_t *threads_world_create(int size)
{
    threads_world_t *world = calloc(1, sizeof(*world));

    if (world == NULL || pthread_barrier_init(&world->barrier, NULL, (unsigned)size) != 0) abort();
    world->size = size;
    world->broken_rank = -1;
    return world;
}

void threads_world_add_extras(threads_world_t *world)
{
    world->has_extras = 1;
}

void threads_world_break(threads_world_t *world, int rank, uint64_t sync, uint64_t count)
{
    world->broken_rank = rank;
    world->broken_sync = sync;
    world->broken_syncs = count;
}

void threads_world_destroy(threads_world_t *world)
{
    (void)pthread_barrier_destroy(&world->barrier);
    free(world);
}

static void show(threads_t *self, const void *what)
{
    self->world->shared[self->base.rank] = what;
    (void)pthread_barrier_wait(&self->world->barrier);
}

static void done(threads_t *self)
{
    (void)pthread_barrier_wait(&self->world->barrier);
}

static int destroy(gpt2_strategy_t *base, gpt2_error_t *error)
{
    (void)error;
    free(((threads_t *)base)->average);
    free(((threads_t *)base)->counts);
    free(base);
    return 0;
}

static void give_up(gpt2_strategy_t *self, const char *reason)
{
    (void)self;
    (void)reason;
}

static int broadcast(gpt2_strategy_t *base, int root, void *data, size_t bytes, gpt2_error_t *error)
{
    threads_t *self = (threads_t *)base;

    (void)error;
    show(self, data);
    if (base->rank != root) memcpy(data, self->world->shared[root], bytes);
    done(self);
    return 0;
}

static int attach(gpt2_strategy_t *base, gpt2_replica_t *replica,
                  const gpt2_strategy_settings_t *settings, gpt2_error_t *error)
{
    threads_t *self = (threads_t *)base;
    size_t bytes = replica->layout->arena_count * sizeof(float);

    self->replica = replica;
    self->settings = *settings;
    self->average = malloc(bytes);
    if (self->average == NULL) return gpt2_fail(error, "out of memory");
    base->divisor = (double)base->size * settings->accumulate;
    base->scale = gpt2_loss_scale_start(&settings->scale);
    return broadcast(base, 0, replica->weights, bytes, error);
}

static int ready(gpt2_strategy_t *base, size_t first, size_t count, gpt2_error_t *error)
{
    threads_t *self = (threads_t *)base;

    if (first != self->readies % self->replica->layout->count) {
        return gpt2_fail(error, "tensor %zu is ready, expected %zu", first,
                         self->readies % self->replica->layout->count);
    }
    self->readies += count;
    return 0;
}

/* Of the average, tensor by tensor. */
static double norm(const threads_t *self)
{
    const gpt2_layout_t *layout = self->replica->layout;
    double total = 0.0;

    for (size_t i = 0; i < layout->count; i++) {
        total += gpt2_kernels_list()[0]->sum_squares(self->average + layout->tensors[i].offset,
                                                     layout->tensors[i].count);
    }
    return sqrt(total);
}

static int sync(gpt2_strategy_t *base, gpt2_sync_t *out, gpt2_error_t *error)
{
    threads_t *self = (threads_t *)base;
    gpt2_replica_t *replica = self->replica;
    size_t count = replica->layout->arena_count;
    uint64_t checksum;

    /* It waits for all that is queued, so that gradients can be read. */
    if (replica->ops->checksum(replica, &checksum, error) != 0) return -1;
    if (self->readies != replica->layout->count * (size_t)self->settings.accumulate) {
        return gpt2_fail(error, "%zu readies before a sync", self->readies);
    }
    self->readies = 0;
    for (size_t i = 0; self->counts != NULL && i < THREADS_COUNTS; i++) {
        self->counts[i] += i;
        self->counts[THREADS_COUNTS + i] += i * (uint64_t)(base->rank + 1);
    }
    if (self->world->broken_rank == base->rank &&
        self->syncs - self->world->broken_sync < self->world->broken_syncs) {
        replica->gradients[0] = INFINITY;
    }
    self->syncs++;
    show(self, replica->gradients);
    memset(self->average, 0, count * sizeof(float));
    for (int rank = 0; rank < base->size; rank++) {
        const float *theirs = self->world->shared[rank];
        for (size_t i = 0; i < count; i++)
            self->average[i] += theirs[i];
    }
    done(self);
    for (size_t i = 0; i < count; i++)
        self->average[i] /= (float)(base->divisor * base->scale.scale);
    *out = (gpt2_sync_t){.norm = norm(self)};
    memset(replica->gradients, 0xff, count * sizeof(float)); /* of no use to a follower */
    if (!base->is_follower) memcpy(replica->gradients, self->average, count * sizeof(float));
    out->skip = !isfinite(out->norm);
    out->clip = self->settings.clip > 0.0 && out->norm > self->settings.clip
                    ? self->settings.clip / out->norm
                    : 1.0;
    return 0;
}

static size_t extra(gpt2_strategy_t *base, gpt2_extra_t *list, size_t room)
{
    const threads_t *self = (const threads_t *)base;
    const size_t bytes = THREADS_COUNTS * sizeof(*self->counts);

    if (self->counts == NULL || room < 2) return 0;
    list[0] = (gpt2_extra_t){.name = "syncs", .data = self->counts, .bytes = bytes};
    list[1] = (gpt2_extra_t){
        .name = "turns", .data = self->counts + THREADS_COUNTS, .bytes = bytes, .per_rank = 1};
    return 2;
}

uint64_t threads_count(const gpt2_strategy_t *base, int is_own, size_t index)
{
    const threads_t *self = (const threads_t *)base;

    return self->counts[(is_own ? THREADS_COUNTS : 0) + index];
}

static int move_scale(gpt2_strategy_t *base, int skipped, gpt2_error_t *error)
{
    (void)error;
    gpt2_loss_scale_move(&base->scale, &((threads_t *)base)->settings.scale, skipped);
    return 0;
}

static int publish(gpt2_strategy_t *base, gpt2_error_t *error)
{
    threads_t *self = (threads_t *)base;
    gpt2_replica_t *replica = self->replica;
    uint64_t checksum;

    if (replica->ops->checksum(replica, &checksum, error) != 0) return -1; /* the update is over */
    return broadcast(base, 0, replica->weights, replica->layout->arena_count * sizeof(float),
                     error);
}

static int sum(gpt2_strategy_t *base, double *values, size_t count, gpt2_error_t *error)
{
    threads_t *self = (threads_t *)base;
    double totals[8] = {0.0};

    if (count > 8) return gpt2_fail(error, "%zu values to sum", count);
    show(self, values);
    for (int rank = 0; rank < base->size; rank++) {
        for (size_t i = 0; i < count; i++)
            totals[i] += ((const double *)self->world->shared[rank])[i];
    }
    done(self);
    memcpy(values, totals, count * sizeof(double));
    return 0;
}

static int equal(gpt2_strategy_t *base, uint64_t value, int *same, gpt2_error_t *error)
{
    threads_t *self = (threads_t *)base;

    (void)error;
    show(self, &value);
    *same = 1;
    for (int rank = 0; rank < base->size; rank++) {
        *same &= *(const uint64_t *)self->world->shared[rank] == value;
    }
    done(self);
    return 0;
}

static void step_begin(gpt2_strategy_t *self, uint64_t step)
{
    (void)self;
    (void)step;
}

static void span_begin(gpt2_strategy_t *self, const char *name, void *stream)
{
    (void)self;
    (void)name;
    (void)stream;
}

static void span_end(gpt2_strategy_t *self, void *stream)
{
    (void)self;
    (void)stream;
}

static void end(gpt2_strategy_t *self)
{
    (void)self;
}

static void traffic(gpt2_strategy_t *self, gpt2_traffic_t *out)
{
    (void)self;
    memset(out, 0, sizeof(*out));
}

static const char *setting(gpt2_strategy_t *self, const char *name)
{
    (void)self;
    (void)name;
    return "";
}

/* clang-format off */
#define COMMON_OPS                                                                                 \
    .name = "threads", .destroy = destroy, .abort = give_up, .attach = attach,                     \
    .ready = ready, .sync = sync, .move_scale = move_scale, .extra = extra, .sum = sum,            \
    .equal = equal,                                                                                \
    .broadcast = broadcast, .step_begin = step_begin, .step_end = end, .span_begin = span_begin,   \
    .span_end = span_end, .traffic = traffic, .setting = setting
/* clang-format on */

static const gpt2_strategy_ops_t OPS = {COMMON_OPS};
static const gpt2_strategy_ops_t SERVER_OPS = {COMMON_OPS, .publish = publish};

gpt2_strategy_t *threads_strategy(threads_world_t *world, int rank, int has_server)
{
    threads_t *self = calloc(1, sizeof(*self));

    if (self == NULL) abort();
    self->base = (gpt2_strategy_t){.ops = has_server ? &SERVER_OPS : &OPS,
                                   .rank = rank,
                                   .size = world->size,
                                   .divisor = 1.0,
                                   .is_follower = has_server && rank != 0};
    self->world = world;
    if (world->has_extras) {
        self->counts = calloc(2 * THREADS_COUNTS, sizeof(*self->counts));
        if (self->counts == NULL) abort();
    }
    return &self->base;
}
