/*
 * tensors.h - device memory for kernel tests, seen from the host as doubles.
 *
 * A tensor has a pattern on both sides that must survive, and may begin away from an aligned
 * address. What a test puts in is rounded to the tensor's type, so that references can start from
 * the numbers the kernel sees.
 */
#ifndef DP_TESTS_GPT2_TENSORS_H
#define DP_TESTS_GPT2_TENSORS_H

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/cuda/kernels.h"
#include "kernels/convert.h"

#define GUARD 64 /* bytes on either side */
#define GUARD_BYTE 0xa5

static int failures;

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

#define MUST(call)                                                                                 \
    do {                                                                                           \
        const int must_status = (int)(call);                                                       \
        if (must_status != 0) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString((cudaError_t)must_status));                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* A small generator (xorshift64*); state must not be 0. */
static uint64_t random_bits(void)
{
    static uint64_t state = 0x243f6a8885a308d3u;

    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1du;
}

static double random_number(void)
{
    return (double)(int64_t)random_bits() * 0x1p-63;
}

typedef struct tensor {
    gpt2_cuda_type_t type;
    size_t count;
    unsigned char *base;
    void *data;   /* device */
    double *host; /* [count] what put() left, rounded to the type */
} tensor_t;

static uint16_t half_of(gpt2_cuda_type_t type, float value)
{
    return type == GPT2_CUDA_F16 ? dp_convert_f32_to_f16(value) : dp_convert_f32_to_bf16(value);
}

static float of_half(gpt2_cuda_type_t type, uint16_t value)
{
    return type == GPT2_CUDA_F16 ? dp_convert_f16_to_f32(value) : dp_convert_bf16_to_f32(value);
}

static double rounded(gpt2_cuda_type_t type, double value)
{
    if (type == GPT2_CUDA_F32) return (double)(float)value;
    return (double)of_half(type, half_of(type, (float)value));
}

/* Writes host to the device. */
static void tensor_put(tensor_t *tensor)
{
    const size_t each = gpt2_cuda_type_bytes(tensor->type);
    unsigned char *bytes = (unsigned char *)malloc(tensor->count * each + 1);

    for (size_t i = 0; i < tensor->count; i++) {
        tensor->host[i] = rounded(tensor->type, tensor->host[i]);
        if (tensor->type == GPT2_CUDA_F32) {
            const float value = (float)tensor->host[i];

            memcpy(bytes + i * sizeof(value), &value, sizeof(value));
        } else {
            const uint16_t value = half_of(tensor->type, (float)tensor->host[i]);

            memcpy(bytes + i * sizeof(value), &value, sizeof(value));
        }
    }
    if (tensor->count > 0) {
        MUST(cudaMemcpy(tensor->data, bytes, tensor->count * each, cudaMemcpyHostToDevice));
    }
    free(bytes);
}

/* skew: elements behind an aligned address. Filled with numbers of this magnitude; 0: NaN, as what
 * a kernel must overwrite. */
static tensor_t tensor_make(gpt2_cuda_type_t type, size_t count, size_t skew, double magnitude)
{
    const size_t bytes = (count + skew) * gpt2_cuda_type_bytes(type) + 2 * GUARD;
    tensor_t tensor;

    tensor.type = type;
    tensor.count = count;
    tensor.host = (double *)malloc(count * sizeof(double) + 1);
    MUST(cudaMalloc((void **)&tensor.base, bytes));
    MUST(cudaMemset(tensor.base, GUARD_BYTE, bytes));
    tensor.data = tensor.base + GUARD + skew * gpt2_cuda_type_bytes(type);
    for (size_t i = 0; i < count; i++)
        tensor.host[i] = magnitude == 0.0 ? (double)NAN : magnitude * random_number();
    tensor_put(&tensor);
    return tensor;
}

/* out [count]: what the device has now. */
static void tensor_get(const tensor_t *tensor, double *out)
{
    const size_t each = gpt2_cuda_type_bytes(tensor->type);
    unsigned char *bytes = (unsigned char *)malloc(tensor->count * each + 1);

    if (tensor->count > 0) {
        MUST(cudaMemcpy(bytes, tensor->data, tensor->count * each, cudaMemcpyDeviceToHost));
    }
    for (size_t i = 0; i < tensor->count; i++) {
        float value;
        uint16_t half;

        if (tensor->type == GPT2_CUDA_F32) {
            memcpy(&value, bytes + i * sizeof(value), sizeof(value));
        } else {
            memcpy(&half, bytes + i * sizeof(half), sizeof(half));
            value = of_half(tensor->type, half);
        }
        out[i] = (double)value;
    }
    free(bytes);
}

/* 1: the same numbers, or both NaN. */
static int are_same(const double *a, const double *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (a[i] != b[i] && !(isnan(a[i]) && isnan(b[i]))) return 0;
    }
    return 1;
}

/*
 * |device - expected| / |expected| <= tolerance over all elements together, and where fp16 has no
 * smaller numbers half of its smallest one each; the guards are whole.
 * An expected NaN must be one.
 */
static void tensor_check(const tensor_t *tensor, const double *expected, double tolerance,
                         const char *what)
{
    double *got = (double *)malloc(tensor->count * sizeof(double) + 1), off = 0.0, all = 0.0,
           least = 0.0;
    unsigned char guard[2][GUARD];
    const size_t each = gpt2_cuda_type_bytes(tensor->type);
    int is_nan_wrong = 0, is_guard_wrong = 0;
    size_t worst = 0;

    tensor_get(tensor, got);
    for (size_t i = 0; i < tensor->count; i++) {
        if (isnan(expected[i]) || isnan(got[i])) {
            is_nan_wrong |= isnan(expected[i]) != isnan(got[i]);
            continue;
        }
        off += (got[i] - expected[i]) * (got[i] - expected[i]);
        all += expected[i] * expected[i];
        if (tensor->type == GPT2_CUDA_F16) least += 0x1p-50;
        if (fabs(got[i] - expected[i]) > fabs(got[worst] - expected[worst])) worst = i;
    }
    MUST(
        cudaMemcpy(guard[0], (unsigned char *)tensor->data - GUARD, GUARD, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(guard[1], (unsigned char *)tensor->data + tensor->count * each, GUARD,
                    cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2 * GUARD; i++)
        is_guard_wrong |= guard[i / GUARD][i % GUARD] != GUARD_BYTE;
    EXPECT(!is_guard_wrong, "%s: wrote outside of %zu elements", what, tensor->count);
    EXPECT(!is_nan_wrong, "%s: a NaN where there is none in the reference, or the reverse", what);
    EXPECT(off <= tolerance * tolerance * all + least,
           "%s: off by %.3g (allowed %.3g); at %zu %g, not %g", what, sqrt(off / all), tolerance,
           worst, got[worst], expected[worst]);
    free(got);
}

static void tensor_free(tensor_t *tensor)
{
    MUST(cudaFree(tensor->base));
    free(tensor->host);
}

/* Device integers; from NULL: not set yet. */
static int32_t *integers_put(const int32_t *from, size_t count)
{
    int32_t *data;

    MUST(cudaMalloc((void **)&data, (count + 1) * sizeof(*data)));
    if (from != NULL) MUST(cudaMemcpy(data, from, count * sizeof(*data), cudaMemcpyHostToDevice));
    return data;
}

#endif
