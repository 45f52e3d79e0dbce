/*
 * planted.cu - launches that are wrong on purpose: an index in 32 bits, a bound that is missing, a
 * grid that is too large, shared memory that was not asked for.
 */
#include "tests/gpu/gpt2/launches/planted.h"

#include "examples/gpt2/cuda/launch.cuh"

#define ROWS 8 /* of a block, one a thread */

enum planted_index { INT_INDEX, UNSIGNED_INDEX, ANY_ROW, RIGHT_INDEX };

/* Writes the last byte of its row. */
template <planted_index form>
static __global__ void index_kernel(uint8_t *to, size_t rows, size_t width)
{
    const size_t row = (size_t)blockIdx.x * ROWS + threadIdx.x;
    const size_t right = row * width + width - 1;

    if (form != ANY_ROW && row >= rows) return;
    if (form == INT_INDEX) {
        to[(ptrdiff_t)(int32_t)(uint32_t)right] = 1;
    } else if (form == UNSIGNED_INDEX) {
        to[(uint32_t)right] = 1;
    } else {
        to[right] = 1;
    }
}

static __global__ void nothing_kernel(int)
{
}

template <planted_index form> static int run(uint8_t *to, size_t rows, size_t width)
{
    const unsigned blocks = (unsigned)((rows + ROWS - 1) / ROWS);

    return LAUNCH(index_kernel<form>, blocks, ROWS, 0, NULL, to, rows, width);
}

extern "C" int planted_int_index(uint8_t *to, size_t rows, size_t width)
{
    return run<INT_INDEX>(to, rows, width);
}

extern "C" int planted_unsigned_index(uint8_t *to, size_t rows, size_t width)
{
    return run<UNSIGNED_INDEX>(to, rows, width);
}

extern "C" int planted_row_too_many(uint8_t *to, size_t rows, size_t width)
{
    return run<ANY_ROW>(to, rows, width);
}

extern "C" int planted_right_index(uint8_t *to, size_t rows, size_t width)
{
    return run<RIGHT_INDEX>(to, rows, width);
}

extern "C" int planted_grid(void)
{
    return LAUNCH(nothing_kernel, dim3(1, 65536), 32, 0, NULL, 0);
}

extern "C" int planted_shared(int is_allowed)
{
    const int bytes = 64 << 10;
    cudaError_t status = cudaSuccess;

    if (is_allowed) {
        status = cudaFuncSetAttribute((const void *)nothing_kernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    }
    return status != cudaSuccess ? status : LAUNCH(nothing_kernel, 1, 32, bytes, NULL, 0);
}
