/*
 * plugin.c - the one exported function of libgpt2-cuda.so. model/device_cuda.c opens the library
 * where it finds a driver, and calls this to get the device's table.
 */
#include "examples/gpt2/cuda/plugin.h"

__attribute__((visibility("default"))) const gpt2_device_t *gpt2_cuda_device(size_t size);

const gpt2_device_t *gpt2_cuda_device(size_t size)
{
    static const gpt2_device_t device = {"cuda", gpt2_replica_cuda_create};

    return size == GPT2_CUDA_ABI ? &device : NULL;
}
