/*
 * optimizers.h - the optimizers' kernels against those of the host, bit by bit.
 */
#ifndef DP_TESTS_GPT2_OPTIMIZERS_H
#define DP_TESTS_GPT2_OPTIMIZERS_H

#include "tests/gpu/gpt2/twice.h"

extern "C" {
#include "examples/gpt2/model/lamb.h"
}

/* The host's optimizer gives the same bits. */
static void check_adamw(gpt2_cuda_type_t copy_type, size_t count, size_t skew)
{
    static const gpt2_adamw_t adamw = {6e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0.271f, 0.142625f};
    const gpt2_kernels_t *const *host = gpt2_kernels_list();
    const size_t grains = (count + GPT2_CUDA_DECAY_GRAIN - 1) / GPT2_CUDA_DECAY_GRAIN;
    tensor_t weights = tensor_make(F32, count, skew, 1.0), m = tensor_make(F32, count, skew, 1e-3);
    tensor_t gradients = tensor_make(F32, count, skew, 1e-2),
             v = tensor_make(F32, count, skew, 1e-5);
    tensor_t copy = tensor_make(copy_type, count, skew, 0.0), words = tensor_make(F32, 2, 0, 1.0);
    tensor_t *outs[] = {&weights, &m, &v, &copy};
    uint8_t *decays = (uint8_t *)malloc(grains), *device_decays;
    float *w = (float *)malloc(4 * count * sizeof(float));
    double *to[4] = {doubles(count), doubles(count), doubles(count), doubles(count)};

    for (size_t i = 0; i < grains; i++)
        decays[i] = (uint8_t)(random_bits() % 2);
    MUST(cudaMalloc((void **)&device_decays, grains));
    MUST(cudaMemcpy(device_decays, decays, grains, cudaMemcpyHostToDevice));
    words.host[0] = 0.75; /* clip */
    words.host[1] = 0.0;  /* skip: a float 0 has the bits of an integer 0, a float 1 not */
    tensor_put(&words);
    for (size_t i = 0; i < count; i++) {
        v.host[i] = fabs(v.host[i]);
        w[i] = (float)weights.host[i];
        w[count + i] = (float)gradients.host[i];
        w[2 * count + i] = (float)m.host[i];
        w[3 * count + i] = (float)v.host[i];
        v.host[i] = (double)w[3 * count + i];
    }
    for (size_t i = 0; i < grains; i++) {
        const size_t at = i * GPT2_CUDA_DECAY_GRAIN;
        const size_t some = count - at < GPT2_CUDA_DECAY_GRAIN ? count - at : GPT2_CUDA_DECAY_GRAIN;
        gpt2_adamw_t own = adamw;

        own.gradient_by = 0.75f;
        if (!decays[i]) own.decay = 0.0f;
        (*host)->adamw(w + at, w + count + at, w + 2 * count + at, w + 3 * count + at, some, &own);
    }
    for (size_t i = 0; i < count; i++) {
        to[0][i] = (double)w[i];
        to[1][i] = (double)w[2 * count + i];
        to[2][i] = (double)w[3 * count + i];
        to[3][i] = rounded(copy_type, to[0][i]);
    }
    for (int is_skipped = 0; is_skipped < 2; is_skipped++) {
        words.host[1] = is_skipped;
        tensor_put(&words);
        run_twice(
            [&] {
                return gpt2_cuda_adamw(NULL, (float *)weights.data, (const float *)gradients.data,
                                       (float *)m.data, (float *)v.data, copy_type, copy.data,
                                       device_decays, count, &adamw, (const float *)words.data,
                                       (const uint32_t *)words.data + 1);
            },
            outs, 4, "AdamW");
        for (int i = 0; i < 4; i++)
            tensor_check(outs[i], is_skipped ? outs[i]->host : to[i], 0.0, "AdamW");
    }
    MUST(cudaFree(device_decays));
    for (tensor_t *tensor : {&weights, &m, &gradients, &v, &copy, &words})
        tensor_free(tensor);
    for (double *at : to)
        free(at);
    free(decays);
    free(w);
}

/* The host's LAMB gives the same bits: two tensors that adapt around one that does not, with a gap
 * between them. */
static void check_lamb(size_t count, size_t skew)
{
    enum { TENSORS = 3 };
    static const gpt2_lamb_t lamb = {0.9f,  0.999f, 0.1f,   0.001f,   1e-6f,
                                     0.01f, 1.0f,   0.271f, 0.002997f};
    const gpt2_kernels_t *host = gpt2_kernels_list()[0];
    const size_t counts[TENSORS] = {count, 100, count / 2 + 1}, all = 2 * count + 300;
    tensor_t weights = tensor_make(F32, all, skew, 1.0), m = tensor_make(F32, all, skew, 1e-3);
    tensor_t gradients = tensor_make(F32, all, skew, 1e-2), v = tensor_make(F32, all, skew, 1e-5);
    tensor_t words = tensor_make(F32, 2, 0, 1.0);
    tensor_t *outs[] = {&weights, &gradients, &m, &v};
    gpt2_cuda_lamb_tensor_t tensors[TENSORS];
    uint32_t *owners = (uint32_t *)calloc(2 * count / GPT2_LAMB_BLOCK + 3, sizeof(*owners));
    gpt2_cuda_lamb_t places = {};
    float *w[4];
    double *to[4];

    for (uint32_t i = 0; i < TENSORS; i++) {
        const uint64_t before = i == 0 ? 0 : tensors[i - 1].offset + counts[i - 1] + 7;

        tensors[i] = {before, counts[i], (uint32_t)places.blocks, i != 1, (uint32_t)places.blocks,
                      i};
        for (size_t at = 0; at < counts[i]; at += GPT2_LAMB_BLOCK)
            owners[places.blocks++] = i;
    }
    places.tensor_count = TENSORS;
    words.host[0] = 0.75; /* clip; behind it skip, as for AdamW */
    for (int i = 0; i < 4; i++) {
        w[i] = (float *)malloc(all * sizeof(float));
        to[i] = doubles(all);
    }
    for (size_t at = 0; at < all; at++) {
        v.host[at] = fabs(v.host[at]);
        for (int i = 0; i < 4; i++)
            w[i][at] = (float)outs[i]->host[at];
    }
    for (int i = 0; i < TENSORS; i++) {
        const size_t blocks = (counts[i] + GPT2_LAMB_BLOCK - 1) / GPT2_LAMB_BLOCK,
                     at = tensors[i].offset;
        double *squares = doubles(2 * blocks), sums[2], rate = 1e-2;
        gpt2_lamb_t own = lamb;

        own.gradient_by = 0.75f;
        if (!tensors[i].adapts) own.decay = 0.0f;
        host->lamb_direct(w[0] + at, w[1] + at, w[2] + at, w[3] + at, counts[i], &own, squares);
        host->lamb_add(sums, squares, blocks);
        if (tensors[i].adapts) rate = gpt2_lamb_rate(rate, 20.0, sums);
        host->lamb_apply(w[0] + at, w[1] + at, counts[i], (float)rate);
        free(squares);
    }
    MUST(cudaMalloc((void **)&places.tensors, sizeof(tensors)));
    MUST(cudaMalloc((void **)&places.owners, places.blocks * sizeof(*owners)));
    MUST(cudaMalloc((void **)&places.squares, 2 * places.blocks * sizeof(double)));
    MUST(cudaMalloc((void **)&places.rates, TENSORS * sizeof(float)));
    MUST(cudaMemcpy(places.tensors, tensors, sizeof(tensors), cudaMemcpyHostToDevice));
    MUST(
        cudaMemcpy(places.owners, owners, places.blocks * sizeof(*owners), cudaMemcpyHostToDevice));
    for (size_t at = 0; at < all; at++) {
        for (int i = 0; i < 4; i++)
            to[i][at] = (double)w[i][at];
    }
    for (int is_skipped = 0; is_skipped < 2; is_skipped++) {
        words.host[1] = is_skipped;
        tensor_put(&words);
        run_twice(
            [&] {
                const gpt2_cuda_lamb_step_t one = {&lamb, 1e-2, 20.0, (const float *)words.data,
                                                   (const uint32_t *)words.data + 1};

                return gpt2_cuda_lamb(NULL, (float *)weights.data, (float *)gradients.data,
                                      (float *)m.data, (float *)v.data, F32, NULL, &places, &one);
            },
            outs, 4, "LAMB");
        for (int i = 0; i < 4; i++)
            tensor_check(outs[i], is_skipped ? outs[i]->host : to[i], 0.0, "LAMB");
    }
    MUST(cudaFree(places.tensors));
    MUST(cudaFree(places.owners));
    MUST(cudaFree(places.squares));
    MUST(cudaFree(places.rates));
    for (tensor_t *tensor : {&weights, &m, &gradients, &v, &words})
        tensor_free(tensor);
    for (int i = 0; i < 4; i++) {
        free(w[i]);
        free(to[i]);
    }
    free(owners);
}

#endif
