/*
 * topk.c - threshold dropping: a rank sends the largest elements of each matrix and keeps the rest
 * for the next steps (Aji and Heafield 2017, arXiv:1704.05021; with momentum as in Lin et al. 2018,
 * arXiv:1712.01887).
 *
 * compress.c calls it on the main thread. The threshold is a quantile of a sample. A message has
 * room for 1.25 times as many elements as wanted, so that all ranks' are of one size and travel by
 * dp_allgather(); where more pass the threshold, or far fewer, the largest are found exactly.
 * Each rank adds up all messages in the order of the ranks, and so gets the same bits. Where the
 * replica's memory is a GPU's, messages are made and added up there, with the same bits.
 */
#include "examples/gpt2/strategy/topk.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_SHARE 0.25     /* of the elements, that warm-up begins with, ... */
#define STAGES 4             /* ... and each stage sends this power of it */
#define SMALLEST_TENSOR 1024 /* elements; below, a message's head outweighs what it saves */

typedef struct topk_tensor {
    char *messages; /* [ranks][most bytes], a message of this step behind the other */
    size_t room;    /* of this step */
    size_t bytes;   /* of a message of this step */
} topk_tensor_t;

typedef struct topk {
    topk_tensor_t *tensors; /* [layout->count] */
    char *memory;           /* all messages, from dp_alloc() */
    float *sample;          /* [GPT2_TOPK_SAMPLE] scratch of a choice on the host */
    uint32_t *bins;         /* [GPT2_TOPK_BINS] likewise */
} topk_t;

/* ---- Sizes ---------------------------------------------------------------------------------- */

static int topk_takes(const gpt2_compress_settings_t *settings, const gpt2_tensor_t *tensor)
{
    (void)settings;
    return tensor->rows > 1 && tensor->count >= SMALLEST_TENSOR;
}

double gpt2_topk_share(const gpt2_compress_settings_t *settings, uint64_t step)
{
    const double last = 1.0 - settings->rate;
    double share = FIRST_SHARE;
    uint64_t stage;

    if (step < settings->start || step - settings->start >= settings->warmup) return last;
    stage = (step - settings->start) * STAGES / settings->warmup;
    while (stage-- > 0)
        share *= FIRST_SHARE;
    return share > last ? share : last;
}

static double topk_bytes(const gpt2_compress_settings_t *settings, const gpt2_tensor_t *tensor,
                         int ranks)
{
    const size_t room = gpt2_topk_room(tensor->count, 1.0 - settings->rate);

    return (double)(ranks - 1) * (double)gpt2_topk_message_bytes(tensor->count, room);
}

/* ---- Life ----------------------------------------------------------------------------------- */

/* Hands out the messages' places; with memory NULL only counts. */
static size_t place_messages(const gpt2_compress_t *self, topk_t *topk)
{
    const gpt2_layout_t *layout = self->replica->layout;
    const gpt2_compress_settings_t *settings = &self->settings.compress;
    const double share = gpt2_topk_share(settings, settings->start); /* never larger later */
    const size_t ranks = (size_t)self->dp->base.size;
    size_t at = 0;

    for (size_t i = 0; i < layout->count; i++) {
        const size_t count = layout->tensors[i].count;

        if (!self->takes[i]) continue;
        if (topk->memory != NULL) topk->tensors[i].messages = topk->memory + at;
        at += ranks * gpt2_topk_message_bytes(count, gpt2_topk_room(count, share));
    }
    return at;
}

/* Makes the scratch memory of a choice, on the host or on the device. */
static int create_scratch(gpt2_compress_t *self, topk_t *topk, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;
    const gpt2_sparse_ops_t *device = self->replica->ops->sparse;

    for (size_t i = 0; device != NULL && i < layout->count; i++) {
        if (self->takes[i] && device->prepare(self->replica, layout->tensors[i].count, error) != 0)
            return -1;
    }
    if (device != NULL) return 0;
    topk->sample = malloc(GPT2_TOPK_SAMPLE * sizeof(float));
    topk->bins = malloc(GPT2_TOPK_BINS * sizeof(*topk->bins));
    if (topk->sample != NULL && topk->bins != NULL) return 0;
    return gpt2_fail(error, "out of memory for --compress topk");
}

static int topk_create(gpt2_compress_t *self, gpt2_error_t *error)
{
    topk_t *topk = calloc(1, sizeof(*topk));
    size_t bytes;

    if (topk == NULL) return gpt2_fail(error, "out of memory for --compress topk");
    self->state = topk;
    topk->tensors = calloc(self->replica->layout->count, sizeof(*topk->tensors));
    if (topk->tensors == NULL) return gpt2_fail(error, "out of memory for --compress topk");
    if (create_scratch(self, topk, error) != 0) return -1;
    bytes = place_messages(self, topk);
    topk->memory = gpt2_dp_alloc(&self->dp->base, bytes);
    if (topk->memory == NULL) {
        return gpt2_fail(error, "out of memory: %zu MiB of messages of --compress topk",
                         bytes >> 20);
    }
    (void)place_messages(self, topk);
    return 0;
}

static void topk_destroy(gpt2_compress_t *self)
{
    topk_t *topk = self->state;

    if (topk == NULL) return;
    if (topk->memory != NULL) gpt2_dp_free(&self->dp->base, topk->memory);
    free(topk->tensors);
    free(topk->sample);
    free(topk->bins);
    free(topk);
}

/* ---- Steps ---------------------------------------------------------------------------------- */

static gpt2_topk_values_t values_of(const gpt2_compress_t *self, size_t index)
{
    const size_t offset = self->replica->layout->tensors[index].offset;
    float *momentum = self->momentum.at;

    return (gpt2_topk_values_t){.gradient = self->replica->gradients + offset,
                                .by = (float)gpt2_compress_unscale(self),
                                .residual = self->residual.at + offset,
                                .momentum = momentum == NULL ? NULL : momentum + offset,
                                .factor = (float)self->settings.compress.momentum_factor,
                                .count = self->replica->layout->tensors[index].count};
}

static char *message_of(const topk_tensor_t *tensor, int rank)
{
    return tensor->messages + (size_t)rank * tensor->bytes;
}

/* Makes this rank's message, on a GPU behind what is queued. */
static int make_message(gpt2_compress_t *self, size_t index, double share, gpt2_error_t *error)
{
    const topk_t *topk = self->state;
    const topk_tensor_t *tensor = &topk->tensors[index];
    const gpt2_sparse_ops_t *device = self->replica->ops->sparse;
    const gpt2_topk_values_t values = values_of(self, index);
    char *own = message_of(tensor, self->dp->base.rank);
    const gpt2_topk_list_t list = gpt2_topk_list(own, values.count, tensor->room);
    uint32_t *head = (uint32_t *)(void *)own;
    int nonfinite;
    size_t chosen;

    if (device != NULL) {
        const gpt2_topk_quota_t quota = gpt2_topk_quota(values.count, share);

        return device->choose(self->replica, &values, &quota, &list, head, error);
    }
    chosen = gpt2_topk_choose(self->kernels, &values, share, &list, topk->sample, topk->bins,
                              &nonfinite);
    head[0] = nonfinite ? 0 : (uint32_t)chosen;
    head[1] = (uint32_t)nonfinite;
    return 0;
}

static int topk_begin(gpt2_compress_t *self, size_t index, gpt2_error_t *error)
{
    topk_tensor_t *tensor = &((topk_t *)self->state)->tensors[index];
    const size_t count = self->replica->layout->tensors[index].count;
    const double share = gpt2_topk_share(&self->settings.compress, self->dp->step);
    dp_options_t options = DP_OPTIONS_INIT;
    char name[GPT2_NAME_MAX + 8];
    dp_status_t status;

    tensor->room = gpt2_topk_room(count, share);
    tensor->bytes = gpt2_topk_message_bytes(count, tensor->room);
    if (make_message(self, index, share, error) != 0) return -1;
    (void)snprintf(name, sizeof(name), "%s.topk", self->replica->layout->tensors[index].name);
    options.stream = self->replica->stream;
    status =
        dp_allgather(dp_world(self->dp->context), name, message_of(tensor, self->dp->base.rank),
                     tensor->messages, tensor->bytes, DP_U8, &options, &self->handles[index]);
    return status == DP_OK ? 0 : gpt2_dp_failed(self->dp, "dp_allgather", status, error);
}

static int topk_end(gpt2_compress_t *self, size_t index, int *bad, gpt2_error_t *error)
{
    const topk_tensor_t *tensor = &((const topk_t *)self->state)->tensors[index];
    const gpt2_sparse_ops_t *device = self->replica->ops->sparse;
    const int ranks = self->dp->base.size;

    if (gpt2_compress_wait(self, index, NULL, error) != 0) return -1;
    if (device != NULL) {
        return device->is_bad(self->replica, (const uint32_t *)(void *)tensor->messages,
                              tensor->bytes, ranks, bad, error);
    }
    for (int rank = 0; rank < ranks; rank++)
        *bad |= ((const uint32_t *)(const void *)message_of(tensor, rank))[1] != 0;
    return 0;
}

/* Adds all messages up in host memory. */
static double add_messages(const gpt2_compress_t *self, const gpt2_topk_values_t *values,
                           float *gradient, const topk_tensor_t *tensor, float by)
{
    const gpt2_topk_list_t own =
        gpt2_topk_list(message_of(tensor, self->dp->base.rank), values->count, tensor->room);

    self->kernels->topk_keep(values, &own);
    memset(gradient, 0, values->count * sizeof(float));
    for (int rank = 0; rank < self->dp->base.size; rank++) {
        const gpt2_topk_list_t list =
            gpt2_topk_list(message_of(tensor, rank), values->count, tensor->room);

        self->kernels->topk_add(gradient, values->count, &list);
    }
    return self->kernels->scale_squares(gradient, values->count, by);
}

static int topk_finish(gpt2_compress_t *self, size_t index, double *squares, gpt2_error_t *error)
{
    const topk_tensor_t *tensor = &((const topk_t *)self->state)->tensors[index];
    const gpt2_sparse_ops_t *device = self->replica->ops->sparse;
    const gpt2_topk_values_t values = values_of(self, index);
    float *gradient = self->replica->gradients + self->replica->layout->tensors[index].offset;
    const int ranks = self->dp->base.size;
    /* As libdp's average has it, so that with nothing dropped the bits are the same. */
    const float by = (float)(1.0 / self->settings.accumulate / ranks);

    if (device != NULL) {
        const gpt2_topk_messages_t messages = {
            .first = gpt2_topk_list(tensor->messages, values.count, tensor->room),
            .stride = tensor->bytes,
            .ranks = ranks,
            .own = self->dp->base.rank};

        return device->finish(self->replica, &values, gradient, &messages, by, squares, error);
    }
    *squares = add_messages(self, &values, gradient, tensor, by);
    return 0;
}

const gpt2_compress_method_t gpt2_compress_topk = {
    .name = "topk",
    .takes = topk_takes,
    .bytes = topk_bytes,
    .create = topk_create,
    .destroy = topk_destroy,
    .begin = topk_begin,
    .end = topk_end,
    .finish = topk_finish,
};
