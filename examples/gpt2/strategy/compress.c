/*
 * compress.c - gradients that travel compressed: which tensors, when, and what becomes of a step.
 *
 * strategy_coordinator.c calls it on the main thread. It uses plain collectives of dp.h, one or two
 * per tensor, which libdp gathers and sends while backward goes on. Nothing of a step is kept until
 * it is known that no rank has an Inf or a NaN: a step that is skipped leaves residuals as they
 * were.
 */
#include "examples/gpt2/strategy/compress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const gpt2_compress_method_t *const METHODS[] = {&gpt2_compress_topk,
                                                        &gpt2_compress_powersgd};
#define METHOD_COUNT (sizeof(METHODS) / sizeof(METHODS[0]))

const gpt2_compress_method_t *gpt2_compress_find(const char *name)
{
    for (size_t i = 0; name != NULL && i < METHOD_COUNT; i++) {
        if (strcmp(METHODS[i]->name, name) == 0) return METHODS[i];
    }
    return NULL;
}

/* ---- Bytes ---------------------------------------------------------------------------------- */

/* Of an all-reduce in fp32: reduce-scatter and all-gather. */
static double allreduce_bytes(size_t count, int ranks)
{
    return 2.0 * (ranks - 1) / ranks * (double)count * sizeof(float);
}

void gpt2_compress_bytes(const gpt2_compress_settings_t *settings, const gpt2_layout_t *layout,
                         int ranks, double *compressed, double *dense)
{
    const gpt2_compress_method_t *method = gpt2_compress_find(settings->method);

    *compressed = *dense = 0.0;
    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];
        const double whole = allreduce_bytes(tensor->count, ranks);

        *dense += whole;
        *compressed += method != NULL && method->takes(settings, tensor)
                           ? method->bytes(settings, tensor, ranks)
                           : whole;
    }
}

size_t gpt2_compress_memory(const gpt2_compress_settings_t *settings, const gpt2_layout_t *layout)
{
    const size_t arena = layout->arena_count * sizeof(float);

    if (gpt2_compress_find(settings->method) == NULL) return 0;
    return settings->momentum ? 2 * arena : arena;
}

/* Where fewer bytes cannot save time; "" where they may. */
static const char *why_not_win(const gpt2_compress_t *self, double compressed, double dense)
{
    if (self->dp->base.size == 1) return "";
    if (compressed >= dense) return "; it cannot win on so many ranks";
    if (dp_node_count(self->dp->context) > 1) return "";
    return "; all ranks are on one node, where no link is slow: it only adds work";
}

void gpt2_compress_describe(const gpt2_compress_t *self, char *text, size_t room)
{
    const int ranks = self->dp->base.size;
    double compressed;
    double dense;

    gpt2_compress_bytes(&self->settings.compress, self->replica->layout, ranks, &compressed,
                        &dense);
    (void)snprintf(text, room, "gradients by %s: %.3f MB sent per rank and step, %.3f MB without%s",
                   self->method->name, 1e-6 * compressed, 1e-6 * dense,
                   why_not_win(self, compressed, dense));
}

/* ---- Life ----------------------------------------------------------------------------------- */

static int create_arena(gpt2_compress_t *self, gpt2_compress_arena_t *arena, const char *what,
                        gpt2_error_t *error)
{
    const size_t bytes = self->replica->layout->arena_count * sizeof(float);

    if (self->is_on_host) {
        arena->at = calloc(1, bytes);
    } else {
        arena->at = gpt2_dp_alloc(&self->dp->base, bytes);
        arena->mirror = calloc(1, bytes);
    }
    if (arena->at != NULL && (self->is_on_host || arena->mirror != NULL)) return 0;
    return gpt2_fail(error, "out of memory: %zu MiB of %s", bytes >> 20, what);
}

static void destroy_arena(gpt2_compress_t *self, gpt2_compress_arena_t *arena)
{
    if (self->is_on_host) {
        free(arena->at);
    } else if (arena->at != NULL) {
        gpt2_dp_free(&self->dp->base, arena->at);
    }
    free(arena->mirror);
}

static int allocate_compress(gpt2_compress_t *self, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;

    self->takes = calloc(layout->count, sizeof(*self->takes));
    self->readies = calloc(layout->count, sizeof(*self->readies));
    self->handles = calloc(layout->count, sizeof(dp_handle_t *));
    if (self->takes == NULL || self->readies == NULL || self->handles == NULL) {
        return gpt2_fail(error, "out of memory for compressed gradients");
    }
    if (create_arena(self, &self->residual, "residuals", error) != 0) return -1;
    if (self->settings.compress.momentum &&
        create_arena(self, &self->momentum, "momentum", error) != 0) {
        return -1;
    }
    for (size_t i = 0; i < layout->count; i++) {
        self->takes[i] =
            (uint8_t)self->method->takes(&self->settings.compress, &layout->tensors[i]);
    }
    return self->method->create(self, error);
}

static int broadcast_weights(gpt2_compress_t *self, gpt2_error_t *error)
{
    gpt2_replica_t *replica = self->replica;
    dp_handle_t *handle = NULL;
    const dp_status_t status =
        dp_broadcast(dp_world(self->dp->context), "gpt2.weights", replica->weights,
                     replica->weights, replica->layout->arena_count, DP_F32, 0, NULL, &handle);

    return gpt2_dp_finish(self->dp, "broadcast of the weights", status, handle, error);
}

int gpt2_compress_create(gpt2_dp_t *dp, gpt2_replica_t *replica,
                         const gpt2_strategy_settings_t *settings, gpt2_compress_t **out,
                         gpt2_error_t *error)
{
    gpt2_compress_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for compressed gradients");
    self->dp = dp;
    self->replica = replica;
    self->is_on_host = replica->ops->copy == NULL;
    self->settings = *settings;
    self->method = gpt2_compress_find(settings->compress.method);
    self->kernels = gpt2_kernels_list()[0]->compress;
    if (allocate_compress(self, error) != 0 || broadcast_weights(self, error) != 0) {
        gpt2_compress_destroy(self);
        return -1;
    }
    *out = self;
    return 0;
}

/* Operations in flight end with the context. */
void gpt2_compress_destroy(gpt2_compress_t *self)
{
    if (self == NULL) return;
    self->method->destroy(self);
    free(self->takes);
    free(self->readies);
    free(self->handles);
    destroy_arena(self, &self->residual);
    destroy_arena(self, &self->momentum);
    free(self);
}

static gpt2_extra_t arena_extra(const gpt2_compress_t *self, const gpt2_compress_arena_t *arena,
                                const char *name)
{
    return (gpt2_extra_t){.name = name,
                          .data = arena->mirror != NULL ? arena->mirror : arena->at,
                          .bytes = self->replica->layout->arena_count * sizeof(float),
                          .per_rank = 1,
                          .is_optional = 1};
}

size_t gpt2_compress_extra(gpt2_compress_t *self, gpt2_extra_t *list, size_t room)
{
    size_t count = 0;

    if (count < room) list[count++] = arena_extra(self, &self->residual, "residual");
    if (count < room && self->momentum.at != NULL) {
        list[count++] = arena_extra(self, &self->momentum, "momentum");
    }
    if (self->method->extra != NULL) {
        count += self->method->extra(self, list + count, room - count);
    }
    return count;
}

int gpt2_compress_copy(gpt2_compress_t *self, void *to, const void *from, size_t bytes,
                       gpt2_error_t *error)
{
    if (bytes == 0) return 0;
    if (!self->is_on_host) return self->replica->ops->copy(self->replica, to, from, bytes, error);
    memcpy(to, from, bytes);
    return 0;
}

int gpt2_compress_move_extra(gpt2_compress_t *self, int is_loaded, gpt2_error_t *error)
{
    const size_t bytes = self->replica->layout->arena_count * sizeof(float);
    gpt2_compress_arena_t *const arenas[] = {&self->residual, &self->momentum};

    for (int i = 0; i < 2; i++) {
        float *to = is_loaded ? arenas[i]->at : arenas[i]->mirror;
        float *from = is_loaded ? arenas[i]->mirror : arenas[i]->at;

        if (arenas[i]->mirror == NULL) continue;
        if (gpt2_compress_copy(self, to, from, bytes, error) != 0) return -1;
    }
    return 0;
}

/* ---- Steps ---------------------------------------------------------------------------------- */

double gpt2_compress_unscale(const gpt2_compress_t *self)
{
    return 1.0 / self->dp->base.scale.scale;
}

int gpt2_compress_average(gpt2_compress_t *self, size_t index, const char *suffix, float *x,
                          size_t count, double scale, gpt2_error_t *error)
{
    char name[GPT2_NAME_MAX + 8];
    dp_options_t options = DP_OPTIONS_INIT;
    dp_status_t status;

    (void)snprintf(name, sizeof(name), "%s%s", self->replica->layout->tensors[index].name, suffix);
    options.reduce = DP_AVERAGE;
    options.wire = gpt2_dp_wire(self->settings.wire);
    options.postscale = scale;
    options.stream = self->replica->stream;
    status = dp_allreduce(dp_world(self->dp->context), name, x, x, count, DP_F32, &options,
                          &self->handles[index]);
    return status == DP_OK ? 0 : gpt2_dp_failed(self->dp, "dp_allreduce", status, error);
}

int gpt2_compress_wait(gpt2_compress_t *self, size_t index, dp_result_t *result,
                       gpt2_error_t *error)
{
    dp_handle_t *handle = self->handles[index];
    dp_status_t status;

    self->handles[index] = NULL;
    status = dp_wait(handle, -1.0, result);
    return status == DP_OK ? 0
                           : gpt2_dp_failed(self->dp, self->replica->layout->tensors[index].name,
                                            status, error);
}

static int is_compressed(const gpt2_compress_t *self, size_t index)
{
    return self->takes[index] && !self->is_dense;
}

int gpt2_compress_ready(gpt2_compress_t *self, size_t first, size_t count, gpt2_error_t *error)
{
    const int accumulate = self->settings.accumulate;

    self->is_dense = self->dp->step < self->settings.compress.start;
    for (size_t i = first; i < first + count; i++) {
        const gpt2_tensor_t *tensor = &self->replica->layout->tensors[i];
        int code;

        if (++self->readies[i] < accumulate) continue;
        code = is_compressed(self, i)
                   ? self->method->begin(self, i, error)
                   : gpt2_compress_average(self, i, "", self->replica->gradients + tensor->offset,
                                           tensor->count, gpt2_compress_unscale(self) / accumulate,
                                           error);
        if (code != 0) return -1;
    }
    return 0;
}

/* Takes all answers. *squares [layout->count] of the tensors that travelled as they are. */
static int take_answers(gpt2_compress_t *self, double *squares, int *skip, gpt2_error_t *error)
{
    const size_t count = self->replica->layout->count;

    for (size_t i = 0; i < count && self->method->middle != NULL; i++) {
        if (is_compressed(self, i) && self->method->middle(self, i, error) != 0) return -1;
    }
    for (size_t i = 0; i < count; i++) {
        dp_result_t result = DP_RESULT_INIT;
        int bad = 0;

        self->readies[i] = 0;
        if (is_compressed(self, i)) {
            if (self->method->end(self, i, &bad, error) != 0) return -1;
        } else {
            if (gpt2_compress_wait(self, i, &result, error) != 0) return -1;
            bad = result.nonfinite != 0;
            squares[i] = result.sum_squares;
        }
        *skip |= bad;
    }
    return 0;
}

int gpt2_compress_sync(gpt2_compress_t *self, gpt2_sync_t *out, gpt2_error_t *error)
{
    const size_t count = self->replica->layout->count;
    double *squares = calloc(count, sizeof(*squares));
    double total = 0.0;
    int skip = 0;

    if (squares == NULL) return gpt2_fail(error, "out of memory for the norm of the gradients");
    if (take_answers(self, squares, &skip, error) != 0) {
        free(squares);
        return -1;
    }
    for (size_t i = 0; i < count && !skip; i++) {
        if (is_compressed(self, i) && self->method->finish(self, i, &squares[i], error) != 0) {
            free(squares);
            return -1;
        }
        total += squares[i];
    }
    free(squares);
    *out = (gpt2_sync_t){.norm = skip ? (double)INFINITY : sqrt(total), .clip = 1.0};
    out->skip = !isfinite(out->norm);
    if (self->settings.clip > 0.0 && out->norm > self->settings.clip) {
        out->clip = self->settings.clip / out->norm;
    }
    return 0;
}
