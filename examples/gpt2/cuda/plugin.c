/*
 * plugin.c - the door of libgpt2-cuda.so, which the trainer opens where it finds a driver.
 */
#include "examples/gpt2/cuda/plugin.h"

__attribute__((visibility("default"))) const gpt2_device_t *gpt2_cuda_device(size_t size);

const gpt2_device_t *gpt2_cuda_device(size_t size)
{
    static const gpt2_device_t device = {"cuda", gpt2_replica_cuda_create};

    return size == GPT2_CUDA_ABI ? &device : NULL;
}
