/*
 * topk_choice.c - see topk_choice.h.
 *
 * train/topk.c calls it on the main thread, inside the backward pass when a tensor is complete.
 */
#include "examples/gpt2/model/topk_choice.h"

#include <math.h>
#include <string.h>

#define ROOM 1.25 /* times as many as wanted */
#define SHORT 0.7 /* of those wanted: with fewer the choice is made exactly */
#define HEADER 2  /* words */

/* ---- Sizes ---------------------------------------------------------------------------------- */

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

gpt2_topk_quota_t gpt2_topk_quota(size_t count, double share)
{
    /* An odd stride, so that a sample has all columns of a matrix. */
    const size_t stride = count <= GPT2_TOPK_SAMPLE ? 1 : (count / GPT2_TOPK_SAMPLE + 1) | 1;
    const size_t sampled = (count + stride - 1) / stride;
    const double position = ceil((1.0 - share) * (double)sampled) - 1.0;
    const size_t wanted = (size_t)ceil(share * (double)count);

    return (gpt2_topk_quota_t){.everything = share >= 1.0,
                               .stride = stride,
                               .sampled = sampled,
                               .position = position < 0.0 ? 0 : (size_t)position,
                               .wanted = wanted,
                               .least = (size_t)ceil(SHORT * (double)wanted)};
}

float gpt2_topk_threshold(const gpt2_topk_values_t *values, const gpt2_topk_quota_t *quota,
                          float *sample)
{
    if (quota->everything) return -1.0f;
    for (size_t i = 0; i < quota->sampled; i++) {
        const float size = fabsf(value_at(values, i * quota->stride));

        sample[i] = isfinite(size) ? size : 0.0f; /* such a step is skipped anyway */
    }
    return select_nth(sample, quota->sampled, quota->position);
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
    const gpt2_topk_quota_t quota = gpt2_topk_quota(values->count, share);
    const float threshold = gpt2_topk_threshold(values, &quota, sample);
    size_t chosen = kernels->topk_select(values, threshold, 0, list, nonfinite);
    const int is_short = threshold > 0.0f && chosen < quota.least;

    /* Too few, where many elements are as large as the threshold: they would never be sent. */
    if ((chosen > list->room || is_short) && !*nonfinite) {
        size_t ties;
        const float exact =
            exact_threshold(kernels, values, is_short ? quota.wanted : list->room, bins, &ties);

        chosen = kernels->topk_select(values, exact, ties, list, nonfinite);
    }
    return chosen;
}
