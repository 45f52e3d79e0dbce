/*
 * sparse.h - threshold dropping on a device against the host's, bit by bit: messages, and what
 * becomes of gradients, residuals and momentum when all ranks' messages are there.
 */
#ifndef DP_TESTS_GPT2_SPARSE_H
#define DP_TESTS_GPT2_SPARSE_H

#include "tests/gpu/gpt2/twice.h"

extern "C" {
#include "examples/gpt2/model/topk_choice.h"
}

#define SPARSE_RANKS 3
#define SPARSE_HEAD 2 /* words of a message's head */

typedef enum sparse_kind {
    SPARSE_NOISE,
    SPARSE_MISSED, /* the sample has the small elements alone: too many are above its threshold */
    SPARSE_TIES,   /* most elements are as large as the threshold: too few are above it */
    SPARSE_FEW,    /* a threshold of 0, and one element above it */
    SPARSE_BAD     /* an Inf */
} sparse_kind_t;

/* One rank's tensor on the host, and its message. */
typedef struct sparse_rank {
    float *gradient, *residual, *momentum;
    char *message;
} sparse_rank_t;

static float sparse_number(sparse_kind_t kind, size_t i, size_t count)
{
    const float noise = (float)random_number();

    switch (kind) {
    case SPARSE_MISSED:
        return i % 3 == 0 ? 1e-6f : noise;
    case SPARSE_TIES:
        return i % 3 == 0 ? 0.0f : i % 2 == 0 ? -2.0f : 2.0f;
    case SPARSE_FEW:
        return i + 1 == count ? -1e-30f : 0.0f;
    case SPARSE_BAD:
        return i == count / 2 ? -INFINITY : noise;
    case SPARSE_NOISE:
        break;
    }
    return noise * noise * noise;
}

static float *sparse_floats(size_t count)
{
    return (float *)calloc(count + 1, sizeof(float));
}

static gpt2_topk_values_t sparse_values(const sparse_rank_t *rank, size_t count, int momentum)
{
    gpt2_topk_values_t values = {};

    values.gradient = rank->gradient;
    values.by = 0.25f;
    values.residual = rank->residual;
    values.momentum = momentum ? rank->momentum : NULL;
    values.factor = 0.9f;
    values.count = count;
    return values;
}

/* Ties and small numbers are the gradient's; noise has residuals and momentum as well. */
static void sparse_make_rank(sparse_rank_t *rank, sparse_kind_t kind, size_t count, double share,
                             int momentum)
{
    const size_t room = gpt2_topk_room(count, share);
    const gpt2_compress_kernels_t *kernels = gpt2_kernels_list()[0]->compress;
    float *sample = sparse_floats(GPT2_TOPK_SAMPLE);
    uint32_t *bins = (uint32_t *)calloc(GPT2_TOPK_BINS, sizeof(*bins));
    gpt2_topk_values_t values;
    gpt2_topk_list_t list;
    int bad = 0;
    size_t chosen;

    rank->gradient = sparse_floats(count);
    rank->residual = sparse_floats(count);
    rank->momentum = sparse_floats(count);
    rank->message = (char *)calloc(1, gpt2_topk_message_bytes(count, room));
    for (size_t i = 0; i < count; i++) {
        rank->gradient[i] = sparse_number(kind, i, count);
        if (kind != SPARSE_NOISE) continue;
        rank->residual[i] = (float)random_number();
        rank->momentum[i] = (float)random_number();
    }
    values = sparse_values(rank, count, momentum);
    list = gpt2_topk_list(rank->message, count, room);
    chosen = gpt2_topk_choose(kernels, &values, share, &list, sample, bins, &bad);
    ((uint32_t *)(void *)rank->message)[0] = bad ? 0 : (uint32_t)chosen;
    ((uint32_t *)(void *)rank->message)[1] = (uint32_t)bad;
    free(sample);
    free(bins);
}

static void sparse_end_rank(sparse_rank_t *rank)
{
    free(rank->gradient);
    free(rank->residual);
    free(rank->momentum);
    free(rank->message);
}

static void *sparse_to_device(const void *host, size_t bytes)
{
    void *device;

    MUST(cudaMalloc(&device, bytes));
    MUST(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    return device;
}

/* -1: equal up to `bytes`; else the first byte that differs. */
static long sparse_difference(const void *device, const void *host, size_t bytes)
{
    unsigned char *copy = (unsigned char *)malloc(bytes + 1);
    long at = -1;

    MUST(cudaMemcpy(copy, device, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes && at < 0; i++) {
        if (copy[i] != ((const unsigned char *)host)[i]) at = (long)i;
    }
    free(copy);
    return at;
}

/* Memory behind the elements of a message has no meaning. */
static void sparse_compare_message(const char *device, char *host, size_t count, size_t room,
                                   const char *what)
{
    const gpt2_topk_list_t list = gpt2_topk_list(host, count, room);
    const uint32_t *head = (const uint32_t *)(const void *)host;
    const size_t chosen = head[0];
    const size_t values_at = (size_t)((char *)(void *)list.values - host);
    const size_t offsets_at = (size_t)((char *)(void *)list.offsets - host);
    const size_t head_bytes = head[1] != 0 ? SPARSE_HEAD * sizeof(uint32_t) : values_at;
    long at = sparse_difference(device, host, head_bytes);

    EXPECT(at < 0, "%s: the message's head differs at byte %ld", what, at);
    at = sparse_difference(device + values_at, list.values, chosen * sizeof(float));
    EXPECT(at < 0, "%s: of %zu values, number %ld differs", what, chosen, at / 4);
    at = sparse_difference(device + offsets_at, list.offsets, chosen * sizeof(uint16_t));
    EXPECT(at < 0, "%s: of %zu places, number %ld differs", what, chosen, at / 2);
}

/* The end of a step, of rank 1: its message is among those of other ranks. */
static void sparse_check_finish(sparse_rank_t *ranks, size_t count, double share, int momentum,
                                const char *what)
{
    const gpt2_compress_kernels_t *kernels = gpt2_kernels_list()[0]->compress;
    const size_t room = gpt2_topk_room(count, share);
    const size_t stride = gpt2_topk_message_bytes(count, room), bytes = count * sizeof(float);
    sparse_rank_t *own = &ranks[1];
    const gpt2_topk_values_t values = sparse_values(own, count, momentum);
    const gpt2_topk_list_t own_list = gpt2_topk_list(own->message, count, room);
    gpt2_topk_values_t there = values;
    gpt2_topk_messages_t messages = {};
    const size_t parts = gpt2_cuda_topk_parts(count);
    double *squares, total = 0.0, expected;
    double *sums = (double *)malloc(parts * sizeof(*sums));
    float *gradient = (float *)sparse_to_device(own->gradient, bytes);
    char *all;

    there.gradient = gradient;
    there.residual = (float *)sparse_to_device(own->residual, bytes);
    if (momentum) there.momentum = (float *)sparse_to_device(own->momentum, bytes);
    MUST(cudaMalloc((void **)&squares, parts * sizeof(*squares)));
    MUST(cudaMalloc((void **)&all, SPARSE_RANKS * stride));
    for (int r = 0; r < SPARSE_RANKS; r++)
        MUST(
            cudaMemcpy(all + (size_t)r * stride, ranks[r].message, stride, cudaMemcpyHostToDevice));
    messages.first = gpt2_topk_list(all, count, room);
    messages.stride = stride;
    messages.ranks = SPARSE_RANKS;
    messages.own = 1;
    MUST(gpt2_cuda_topk_finish(NULL, &there, gradient, &messages, 0.5f, squares));
    MUST(cudaMemcpy(sums, squares, parts * sizeof(*sums), cudaMemcpyDeviceToHost));
    for (size_t part = 0; part < parts; part++)
        total += sums[part];
    kernels->topk_keep(&values, &own_list);
    memset(own->gradient, 0, bytes);
    for (int r = 0; r < SPARSE_RANKS; r++) {
        const gpt2_topk_list_t list = gpt2_topk_list(ranks[r].message, count, room);

        kernels->topk_add(own->gradient, count, &list);
    }
    expected = kernels->scale_squares(own->gradient, count, 0.5f);
    EXPECT(total == expected, "%s: squares %.17g, not %.17g", what, total, expected);
    EXPECT(sparse_difference(gradient, own->gradient, bytes) < 0, "%s: gradients differ", what);
    EXPECT(sparse_difference(there.residual, own->residual, bytes) < 0, "%s: residuals differ",
           what);
    EXPECT(!momentum || sparse_difference(there.momentum, own->momentum, bytes) < 0,
           "%s: momentum differs", what);
    for (void *at : {(void *)gradient, (void *)there.residual, (void *)there.momentum,
                     (void *)squares, (void *)all}) {
        if (at != NULL) MUST(cudaFree(at));
    }
    free(sums);
}

/* Twice, simulated in two orders of the threads. */
static void sparse_check_choice(sparse_rank_t *rank, size_t count, double share, int momentum,
                                const char *what)
{
    const size_t room = gpt2_topk_room(count, share), bytes = count * sizeof(float);
    const size_t message_bytes = gpt2_topk_message_bytes(count, room);
    const gpt2_topk_quota_t quota = gpt2_topk_quota(count, share);
    const unsigned order = simt_order;
    gpt2_topk_values_t there = sparse_values(rank, count, momentum);
    void *gradient = sparse_to_device(rank->gradient, bytes), *scratch;
    char *message;
    uint32_t *bad, found = 7;

    there.gradient = (float *)gradient;
    there.residual = (float *)sparse_to_device(rank->residual, bytes);
    if (momentum) there.momentum = (float *)sparse_to_device(rank->momentum, bytes);
    MUST(cudaMalloc((void **)&message, message_bytes));
    MUST(cudaMalloc((void **)&bad, sizeof(*bad)));
    MUST(cudaMalloc(&scratch, gpt2_cuda_topk_scratch_bytes(count)));
    for (int pass = 0; pass < 2; pass++) {
        const gpt2_topk_list_t list = gpt2_topk_list(message, count, room);

        simt_order = order + 3 * (unsigned)pass;
        MUST(cudaMemset(message, GUARD_BYTE, message_bytes));
        MUST(cudaMemset(scratch, GUARD_BYTE, gpt2_cuda_topk_scratch_bytes(count)));
        MUST(gpt2_cuda_topk_choose(NULL, &there, &quota, &list, (uint32_t *)(void *)message,
                                   scratch));
        MUST(cudaDeviceSynchronize());
        sparse_compare_message(message, rank->message, count, room, what);
    }
    simt_order = order;
    MUST(gpt2_cuda_topk_bad(NULL, bad, (const uint32_t *)(void *)message, message_bytes, 1));
    MUST(cudaMemcpy(&found, bad, sizeof(found), cudaMemcpyDeviceToHost));
    EXPECT(found == ((const uint32_t *)(const void *)rank->message)[1], "%s: bad %u", what, found);
    for (void *at : {gradient, (void *)there.residual, (void *)there.momentum, (void *)message,
                     (void *)bad, scratch}) {
        if (at != NULL) MUST(cudaFree(at));
    }
}

static void check_sparse(sparse_kind_t kind, size_t count, double share, int momentum)
{
    sparse_rank_t ranks[SPARSE_RANKS];
    char what[96];

    snprintf(what, sizeof(what), "topk of %zu, share %g, kind %d%s", count, share, (int)kind,
             momentum ? ", momentum" : "");
    for (int r = 0; r < SPARSE_RANKS; r++)
        sparse_make_rank(&ranks[r], kind, count, share, momentum);
    sparse_check_choice(&ranks[1], count, share, momentum, what);
    if (kind != SPARSE_BAD) sparse_check_finish(ranks, count, share, momentum, what);
    for (int r = 0; r < SPARSE_RANKS; r++)
        sparse_end_rank(&ranks[r]);
}

static void check_sparse_all(void)
{
    check_sparse(SPARSE_NOISE, 1, 0.01, 0);
    check_sparse(SPARSE_NOISE, 5000, 0.01, 1);
    check_sparse(SPARSE_NOISE, 5000, 1.0, 1);    /* everything */
    check_sparse(SPARSE_NOISE, 70001, 0.25, 0);  /* two blocks of places */
    check_sparse(SPARSE_NOISE, 200003, 0.01, 0); /* a sample of every third element */
    check_sparse(SPARSE_MISSED, 200003, 0.01, 0);
    check_sparse(SPARSE_TIES, 70001, 0.01, 1);
    check_sparse(SPARSE_TIES, 70001, 0.25, 0);    /* equal elements of several parts are chosen */
    check_sparse(SPARSE_TIES, 150000, 0.9999, 0); /* as many wanted as there are */
    check_sparse(SPARSE_FEW, 70001, 0.01, 0);
    check_sparse(SPARSE_BAD, 9000, 0.01, 0);
}

#endif
