/*
 * attention.cu - attention.h over the kernels of each type: checks sizes, cuts up the scratch.
 */
#include "examples/gpt2/cuda/attention.h"

#include <limits.h>
#include <math.h>

#include "examples/gpt2/cuda/attention_kernels.h"
#include "examples/gpt2/cuda/device.cuh"

static int padded_length(int length)
{
    return (int)(((unsigned)length + ATTENTION_LENGTH_PAD - 1) / ATTENTION_LENGTH_PAD *
                 ATTENTION_LENGTH_PAD);
}

static int is_supported(int size)
{
    return size > 0 && size <= GPT2_ATTENTION_SIZE_MAX && size % 16 == 0;
}

/* Offsets inside a tile and numbers of blocks fit in 32 bits. */
static int fits(int batch, int length, int heads, int size)
{
    if (batch < 1 || length < 1 || heads < 1 || !is_supported(size)) return 0;
    if (length > INT_MAX - ATTENTION_LENGTH_PAD || heads > (1 << 20) / size) return 0;
    return (size_t)padded_length(length) * (size_t)heads <= (size_t)INT_MAX / (size_t)batch * 4;
}

int gpt2_attention_prepare(gpt2_cuda_type_t type, int size, gpt2_error_t *error)
{
    int status;

    if (!is_supported(size)) {
        return gpt2_fail(error, "attention: heads of %d, supported are multiples of 16 up to %d",
                         size, GPT2_ATTENTION_SIZE_MAX);
    }
    if (type == GPT2_CUDA_F32) {
        status = attention_fp32_prepare();
    } else {
        status = attention_half_prepare_forward(type, size);
        if (status == 0) status = attention_half_prepare_backward(type, size);
    }
    if (status == 0) return 0;
    return gpt2_fail(error, "attention: the device refuses kernels for %s heads of %d: %s",
                     gpt2_cuda_type_name(type), size, cudaGetErrorString((cudaError_t)status));
}

int gpt2_attention_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, const void *qkv,
                           void *out, float *lse, int batch, int length, int heads, int size)
{
    attention_t it = {};

    if (!fits(batch, length, heads, size)) return cudaErrorInvalidValue;
    it.qkv = qkv;
    it.out = out;
    it.lse = lse;
    it.batch = batch;
    it.length = length;
    it.heads = heads;
    it.size = size;
    it.padded = padded_length(length);
    it.scale = 1.0f / sqrtf((float)size);
    return type == GPT2_CUDA_F32 ? attention_fp32_forward(&it, stream)
                                 : attention_half_forward(type, &it, stream);
}

static size_t table_count(int batch, int length, int heads)
{
    return (size_t)batch * (size_t)heads * (size_t)padded_length(length);
}

/* Two tables of a figure for every row, and shares of sums. */
size_t gpt2_attention_scratch_bytes(gpt2_cuda_type_t type, int batch, int length, int heads,
                                    int size)
{
    const size_t wide = 3 * (size_t)heads * (size_t)size;

    if (!fits(batch, length, heads, size)) return 0;
    return table_count(batch, length, heads) * 2 * sizeof(float) +
           (type == GPT2_CUDA_F32
                ? gpt2_cuda_column_sum_scratch_bytes((size_t)batch * (size_t)length, wide)
                : attention_half_parts(batch, length, size) * wide * sizeof(float));
}

int gpt2_attention_backward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, const void *qkv,
                            const void *out, const void *dout, const float *lse, void *dqkv,
                            float *dbias, int accumulate, float *scratch, int batch, int length,
                            int heads, int size)
{
    const size_t wide = 3 * (size_t)heads * (size_t)size;
    attention_t it = {};
    int status;

    if (!fits(batch, length, heads, size)) return cudaErrorInvalidValue;
    it.qkv = qkv;
    it.out = (void *)(uintptr_t)out;
    it.dout = dout;
    it.lse = (float *)(uintptr_t)lse;
    it.dqkv = dqkv;
    it.batch = batch;
    it.length = length;
    it.heads = heads;
    it.size = size;
    it.padded = padded_length(length);
    it.scale = 1.0f / sqrtf((float)size);
    it.lse2 = scratch;
    it.dots = scratch + table_count(batch, length, heads);
    it.sums = it.dots + table_count(batch, length, heads);
    status = type == GPT2_CUDA_F32 ? attention_fp32_backward(&it, stream)
                                   : attention_half_backward(type, &it, stream);
    if (status != cudaSuccess) return status;
    if (type == GPT2_CUDA_F32) {
        return gpt2_cuda_column_sum(stream, type, dbias, accumulate, dqkv, it.sums,
                                    (size_t)batch * (size_t)length, wide);
    }
    return gpt2_cuda_fold(stream, {{dbias}, {accumulate}}, 1, it.sums,
                          attention_half_parts(batch, length, size), wide);
}
