/*
 * twice.h - runs a kernel twice from one state, simulated in two orders of the threads, and wants
 * the same bits. Tests of kernels include it; it must not know what the kernels compute.
 */
#ifndef DP_TESTS_GPT2_TWICE_H
#define DP_TESTS_GPT2_TWICE_H

#include "tests/gpu/gpt2/tensors.h"

#ifdef DP_SIMT
#include "tests/gpu/double/simt.h"
#define IS_SIMULATED 1
#else
#define IS_SIMULATED 0
static unsigned simt_order; /* has no effect */
#endif

#define BF16 GPT2_CUDA_BF16
#define F16 GPT2_CUDA_F16
#define F32 GPT2_CUDA_F32
#define TENSORS_MOST 4

static double *doubles(size_t count)
{
    return (double *)calloc(count + 1, sizeof(double));
}

/* Launches twice from the same state; outs [count] are what the kernel writes. */
template <typename F>
static void run_twice(F launch, tensor_t *const *outs, int count, const char *what)
{
    const unsigned order = simt_order;
    double *first[TENSORS_MOST] = {};

    for (int pass = 0; pass < 2; pass++) {
        simt_order = order + 3 * (unsigned)pass;
        for (int i = 0; i < count; i++)
            tensor_put(outs[i]);
        MUST(launch());
        MUST(cudaDeviceSynchronize());
        for (int i = 0; i < count; i++) {
            double *got = doubles(outs[i]->count);

            tensor_get(outs[i], got);
            EXPECT(pass == 0 || are_same(got, first[i], outs[i]->count),
                   "%s: output %d differs from run to run", what, i);
            if (pass == 0) {
                first[i] = got;
            } else {
                free(got);
                free(first[i]);
            }
        }
    }
    simt_order = order;
}

#endif
