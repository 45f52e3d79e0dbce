/*
 * topk.c - threshold dropping: a rank sends the largest elements of each matrix and keeps the rest
 * for the next steps (Aji and Heafield 2017, arXiv:1704.05021; with momentum as in Lin et al. 2018,
 * arXiv:1712.01887).
 *
 * compress.c calls it on the main thread. The threshold is a quantile of a sample. A message has
 * room for 1.25 times as many elements as wanted, so that all ranks' are of one size and travel by
 * dp_allgather(); where more pass the threshold, or far fewer, the largest are found exactly.
 * Each rank adds up all messages in the order of the ranks, and so gets the same bits.
 *
 * A message:
 *
 *     uint32  how many elements          uint32  1: the rank's gradient has an Inf or a NaN
 *     uint32  [blocks of 65,536] how many elements in each
 *     float   [room] values              uint16  [room] places in their blocks
 */
#include "examples/gpt2/train/topk.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 1.25            /* times as many as wanted */
#define SHORT 0.7            /* of those wanted: with fewer the choice is made exactly */
#define HEADER 2             /* words */
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
    float *momentum;        /* arena; NULL: none */
    float *sample;          /* [GPT2_TOPK_SAMPLE] */
    uint32_t *bins;         /* [GPT2_TOPK_BINS] */
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

size_t gpt2_topk_room(size_t count, double share)
{
    const double room = ceil(ROOM * share * (double)count);

    return room >= (double)count ? count : (size_t)room;
}

static size_t blocks_of(size_t count)
{
    return (count + GPT2_TOPK_BLOCK - 1) / GPT2_TOPK_BLOCK;
}

size_t gpt2_topk_message_bytes(size_t count, size_t room)
{
    const size_t bytes =
        (HEADER + blocks_of(count)) * sizeof(uint32_t) + room * (sizeof(float) + sizeof(uint16_t));

    return (bytes + 7) / 8 * 8;
}

gpt2_topk_list_t gpt2_topk_list(char *message, size_t count, size_t room)
{
    uint32_t *words = (uint32_t *)(void *)message;
    float *values = (float *)(void *)(words + HEADER + blocks_of(count));

    return (gpt2_topk_list_t){.block_counts = words + HEADER,
                              .values = values,
                              .offsets = (uint16_t *)(void *)(values + room),
                              .room = room};
}

static double topk_bytes(const gpt2_compress_settings_t *settings, const gpt2_tensor_t *tensor,
                         int ranks)
{
    const size_t room = gpt2_topk_room(tensor->count, 1.0 - settings->rate);

    return (double)(ranks - 1) * (double)gpt2_topk_message_bytes(tensor->count, room);
}

/* ---- The choice ----------------------------------------------------------------------------- */

static float value_at(const gpt2_topk_values_t *values, size_t at)
{
    float gradient = values->by * values->gradient[at];

    if (values->momentum != NULL) gradient += values->factor * values->momentum[at];
    return values->residual[at] + gradient;
}

/* The element that `position` others are not above, by quickselect; x is reordered. */
static float select_nth(float *x, size_t count, size_t position)
{
    size_t low = 0;
    size_t high = count - 1;

    while (low < high) {
        const float pivot = x[low + (high - low) / 2];
        size_t i = low;
        size_t j = high;

        while (i <= j) {
            while (x[i] < pivot)
                i++;
            while (x[j] > pivot)
                j--;
            if (i <= j) {
                const float swap = x[i];

                x[i++] = x[j];
                x[j] = swap;
                if (j == 0) break;
                j--;
            }
        }
        if (position <= j) {
            high = j;
        } else if (position >= i) {
            low = i;
        } else {
            break;
        }
    }
    return x[position];
}

float gpt2_topk_threshold(const gpt2_topk_values_t *values, double share, float *sample)
{
    /* An odd stride, so that a sample has all columns of a matrix. */
    const size_t stride =
        values->count <= GPT2_TOPK_SAMPLE ? 1 : (values->count / GPT2_TOPK_SAMPLE + 1) | 1;
    const size_t sampled = (values->count + stride - 1) / stride;
    double position;

    if (share >= 1.0) return -1.0f;
    for (size_t i = 0; i < sampled; i++) {
        const float size = fabsf(value_at(values, i * stride));

        sample[i] = isfinite(size) ? size : 0.0f; /* such a step is skipped anyway */
    }
    position = ceil((1.0 - share) * (double)sampled) - 1.0;
    return select_nth(sample, sampled, position < 0.0 ? 0 : (size_t)position);
}

/* From the highest bin down: the one in which the number of elements reaches `wanted`. *above: how
 * many are in the bins over it. */
static uint32_t find_bin(const uint32_t *bins, size_t wanted, size_t *above)
{
    uint32_t bin = GPT2_TOPK_BINS - 1;

    while (bin > 0 && *above + bins[bin] <= wanted)
        *above += bins[bin--];
    return bin;
}

/* The threshold above which there are at most `room` elements, and how many that equal it have a
 * place as well; exact. */
static float exact_threshold(const gpt2_compress_kernels_t *kernels,
                             const gpt2_topk_values_t *values, size_t room, uint32_t *bins,
                             size_t *ties)
{
    size_t above = 0;
    uint32_t upper;
    uint32_t bits;
    float threshold;

    memset(bins, 0, GPT2_TOPK_BINS * sizeof(*bins));
    kernels->topk_histogram(values, -1, bins);
    upper = find_bin(bins, room, &above);
    memset(bins, 0, GPT2_TOPK_BINS * sizeof(*bins));
    kernels->topk_histogram(values, (int32_t)upper, bins);
    bits = upper << 15 | find_bin(bins, room, &above);
    memcpy(&threshold, &bits, sizeof(threshold));
    *ties = room - above;
    return threshold;
}

size_t gpt2_topk_choose(const gpt2_compress_kernels_t *kernels, const gpt2_topk_values_t *values,
                        double share, const gpt2_topk_list_t *list, float *sample, uint32_t *bins,
                        int *nonfinite)
{
    const float threshold = gpt2_topk_threshold(values, share, sample);
    const size_t wanted = (size_t)ceil(share * (double)values->count);
    size_t chosen = kernels->topk_select(values, threshold, 0, list, nonfinite);
    const int is_short = threshold > 0.0f && (double)chosen < SHORT * (double)wanted;

    /* Too few, where many elements are as large as the threshold: they would never be sent. */
    if ((chosen > list->room || is_short) && !*nonfinite) {
        size_t ties;
        const float exact =
            exact_threshold(kernels, values, is_short ? wanted : list->room, bins, &ties);

        chosen = kernels->topk_select(values, exact, ties, list, nonfinite);
    }
    return chosen;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static int topk_create(gpt2_compress_t *self, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;
    const gpt2_compress_settings_t *settings = &self->settings.compress;
    const double share = gpt2_topk_share(settings, settings->start); /* never larger later */
    const size_t ranks = (size_t)self->dp->base.size;
    topk_t *topk = calloc(1, sizeof(*topk));
    size_t bytes = 0;

    if (topk == NULL) return gpt2_fail(error, "out of memory for --compress topk");
    self->state = topk;
    topk->tensors = calloc(layout->count, sizeof(*topk->tensors));
    topk->sample = malloc(GPT2_TOPK_SAMPLE * sizeof(float));
    topk->bins = malloc(GPT2_TOPK_BINS * sizeof(*topk->bins));
    if (settings->momentum) topk->momentum = calloc(layout->arena_count, sizeof(float));
    if (topk->tensors == NULL || topk->sample == NULL || topk->bins == NULL ||
        (settings->momentum && topk->momentum == NULL)) {
        return gpt2_fail(error, "out of memory for --compress topk");
    }
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;

        for (size_t i = 0; i < layout->count; i++) {
            const size_t count = layout->tensors[i].count;

            if (!self->takes[i]) continue;
            if (pass == 1) topk->tensors[i].messages = topk->memory + at;
            at += ranks * gpt2_topk_message_bytes(count, gpt2_topk_room(count, share));
        }
        if (pass == 1) break;
        bytes = at;
        topk->memory = gpt2_dp_alloc(&self->dp->base, bytes);
        if (topk->memory == NULL) {
            return gpt2_fail(error, "out of memory: %zu MiB of messages of --compress topk",
                             bytes >> 20);
        }
    }
    return 0;
}

static void topk_destroy(gpt2_compress_t *self)
{
    topk_t *topk = self->state;

    if (topk == NULL) return;
    if (topk->memory != NULL) gpt2_dp_free(&self->dp->base, topk->memory);
    free(topk->tensors);
    free(topk->momentum);
    free(topk->sample);
    free(topk->bins);
    free(topk);
}

static size_t topk_extra(gpt2_compress_t *self, gpt2_extra_t *list, size_t room)
{
    topk_t *topk = self->state;

    if (topk->momentum == NULL || room == 0) return 0;
    list[0] = (gpt2_extra_t){.name = "momentum",
                             .data = topk->momentum,
                             .bytes = self->replica->layout->arena_count * sizeof(float),
                             .per_rank = 1,
                             .is_optional = 1};
    return 1;
}

/* ---- Steps ---------------------------------------------------------------------------------- */

static gpt2_topk_values_t values_of(const gpt2_compress_t *self, size_t index)
{
    const gpt2_tensor_t *tensor = &self->replica->layout->tensors[index];
    const topk_t *topk = self->state;

    return (gpt2_topk_values_t){.gradient = self->replica->gradients + tensor->offset,
                                .by = (float)gpt2_compress_unscale(self),
                                .residual = self->residual + tensor->offset,
                                .momentum =
                                    topk->momentum == NULL ? NULL : topk->momentum + tensor->offset,
                                .factor = (float)self->settings.compress.momentum_factor,
                                .count = tensor->count};
}

static char *message_of(const topk_tensor_t *tensor, int rank)
{
    return tensor->messages + (size_t)rank * tensor->bytes;
}

static int topk_begin(gpt2_compress_t *self, size_t index, gpt2_error_t *error)
{
    topk_t *topk = self->state;
    topk_tensor_t *tensor = &topk->tensors[index];
    const gpt2_topk_values_t values = values_of(self, index);
    const double share = gpt2_topk_share(&self->settings.compress, self->dp->step);
    char name[GPT2_NAME_MAX + 8];
    gpt2_topk_list_t list;
    uint32_t *head;
    char *own;
    int nonfinite;
    size_t chosen;
    dp_status_t status;

    tensor->room = gpt2_topk_room(values.count, share);
    tensor->bytes = gpt2_topk_message_bytes(values.count, tensor->room);
    own = message_of(tensor, self->dp->base.rank);
    head = (uint32_t *)(void *)own;
    list = gpt2_topk_list(own, values.count, tensor->room);
    chosen = gpt2_topk_choose(self->kernels, &values, share, &list, topk->sample, topk->bins,
                              &nonfinite);
    head[0] = nonfinite ? 0 : (uint32_t)chosen;
    head[1] = (uint32_t)nonfinite;
    (void)snprintf(name, sizeof(name), "%s.topk", self->replica->layout->tensors[index].name);
    status = dp_allgather(dp_world(self->dp->context), name, own, tensor->messages, tensor->bytes,
                          DP_U8, NULL, &self->handles[index]);
    return status == DP_OK ? 0 : gpt2_dp_failed(self->dp, "dp_allgather", status, error);
}

static int topk_end(gpt2_compress_t *self, size_t index, int *bad, gpt2_error_t *error)
{
    const topk_tensor_t *tensor = &((const topk_t *)self->state)->tensors[index];

    if (gpt2_compress_wait(self, index, NULL, error) != 0) return -1;
    for (int rank = 0; rank < self->dp->base.size; rank++)
        *bad |= ((const uint32_t *)(const void *)message_of(tensor, rank))[1] != 0;
    return 0;
}

static int topk_finish(gpt2_compress_t *self, size_t index, double *squares, gpt2_error_t *error)
{
    const topk_tensor_t *tensor = &((const topk_t *)self->state)->tensors[index];
    const gpt2_topk_values_t values = values_of(self, index);
    float *gradient = self->replica->gradients + self->replica->layout->tensors[index].offset;
    const gpt2_topk_list_t own =
        gpt2_topk_list(message_of(tensor, self->dp->base.rank), values.count, tensor->room);
    /* As libdp's average has it, so that with nothing dropped the bits are the same. */
    const double by = 1.0 / self->settings.accumulate / self->dp->base.size;

    (void)error;
    self->kernels->topk_keep(&values, &own);
    memset(gradient, 0, values.count * sizeof(float));
    for (int rank = 0; rank < self->dp->base.size; rank++) {
        const gpt2_topk_list_t list =
            gpt2_topk_list(message_of(tensor, rank), values.count, tensor->room);

        self->kernels->topk_add(gradient, values.count, &list);
    }
    *squares = self->kernels->scale_squares(gradient, values.count, (float)by);
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
    .extra = topk_extra,
};
