/*
 * powersgd.cu - low-rank gradients on a GPU: the twins of the PowerSGD part of
 * examples/gpt2/cpu/compress_kernels.c.
 *
 * A matrix [rows][columns] is residual + scale * gradient and exists nowhere: each kernel makes its
 * elements as it reads them. Sums have a fixed order, so ranks with GPUs of any size get the same
 * bits from the same numbers. low_rank.c queues them.
 */
#include "examples/gpt2/cuda/device.cuh"

#include <math.h>

#define RANKS 4        /* columns of a factor that a pass over the matrix works on */
#define CHUNK_ROWS 128 /* of a matrix, that one thread adds up */
#define ORTHONORMAL_THREADS 512
#define FINISH_BLOCKS 1024 /* at most: the order of the sums depends on the matrix alone */
#define DEPENDENT 1e-6     /* of a column's length: what is left of one that depends on others */

DEVICE_INLINE float element(const gpt2_powersgd_matrix_t &matrix, size_t at)
{
    return matrix.residual[at] + matrix.scale * matrix.gradient[at];
}

/* p = matrix * q: a warp for each row. */
static __global__ void __launch_bounds__(FLAT_THREADS)
    rows_kernel(const gpt2_powersgd_matrix_t matrix)
{
    const size_t row = (size_t)blockIdx.x * ROW_WARPS + threadIdx.x / WARP;
    const unsigned lane = threadIdx.x % WARP;

    if (row >= matrix.rows) return;
    for (size_t first = 0; first < matrix.rank; first += RANKS) {
        float sums[RANKS] = {};

        for (size_t column = lane; column < matrix.columns; column += WARP) {
            const float x = element(matrix, row * matrix.columns + column);

#pragma unroll
            for (int k = 0; k < RANKS; k++) {
                if (first + (size_t)k < matrix.rank)
                    sums[k] += x * matrix.q[(first + (size_t)k) * matrix.columns + column];
            }
        }
#pragma unroll
        for (int k = 0; k < RANKS; k++) {
            const float sum = warp_sum(sums[k]);

            if (lane == 0 && first + (size_t)k < matrix.rank)
                matrix.p[(first + (size_t)k) * matrix.rows + row] = sum;
        }
    }
}

/* partial [chunks][rank][columns] = transposed chunks of rows * p: a thread for each column. */
static __global__ void __launch_bounds__(FLAT_THREADS)
    columns_kernel(const gpt2_powersgd_matrix_t matrix, float *partial)
{
    const size_t column = (size_t)blockIdx.x * FLAT_THREADS + threadIdx.x;
    const size_t begin = (size_t)blockIdx.y * CHUNK_ROWS;
    const size_t end = begin + CHUNK_ROWS < matrix.rows ? begin + CHUNK_ROWS : matrix.rows;
    float *own = partial + (size_t)blockIdx.y * matrix.rank * matrix.columns;

    if (column >= matrix.columns) return;
    for (size_t first = 0; first < matrix.rank; first += RANKS) {
        float sums[RANKS] = {};

        for (size_t row = begin; row < end; row++) {
            const float x = element(matrix, row * matrix.columns + column);

#pragma unroll
            for (int k = 0; k < RANKS; k++) {
                if (first + (size_t)k < matrix.rank)
                    sums[k] += matrix.p[(first + (size_t)k) * matrix.rows + row] * x;
            }
        }
#pragma unroll
        for (int k = 0; k < RANKS; k++) {
            if (first + (size_t)k < matrix.rank)
                own[(first + (size_t)k) * matrix.columns + column] = sums[k];
        }
    }
}

/* q [count] = the sum of the chunks' parts. */
static __global__ void fold_columns_kernel(float *q, const float *partial, size_t chunks,
                                           size_t count)
{
    const size_t at = (size_t)blockIdx.x * FLAT_THREADS + threadIdx.x;
    float sum = 0.0f;

    if (at >= count) return;
    for (size_t chunk = 0; chunk < chunks; chunk++)
        sum += partial[chunk * count + at];
    q[at] = sum;
}

/* The sum over a block's threads of x * y. Every thread has the same elements in each call. */
DEVICE_INLINE double block_dot(const float *x, const float *y, size_t count, double *shared)
{
    double sum[1] = {0.0};

    for (size_t i = threadIdx.x; i < count; i += ORTHONORMAL_THREADS)
        sum[0] += (double)x[i] * (double)y[i];
    block_sum(sum, shared);
    return sum[0];
}

/* One block: columns depend on those before them. */
static __global__ void __launch_bounds__(ORTHONORMAL_THREADS)
    orthonormal_kernel(float *x, size_t count, size_t rank)
{
    __shared__ double shared[ORTHONORMAL_THREADS / WARP];

    for (size_t k = 0; k < rank; k++) {
        float *column = x + k * count;
        const double before = block_dot(column, column, count, shared);
        double left;
        float by;

        for (size_t j = 0; j < k; j++) {
            const float *other = x + j * count;
            const float less = (float)block_dot(column, other, count, shared);

            for (size_t i = threadIdx.x; i < count; i += ORTHONORMAL_THREADS)
                column[i] -= less * other[i];
        }
        left = block_dot(column, column, count, shared);
        by = left > DEPENDENT * DEPENDENT * before ? (float)(1.0 / sqrt(left)) : 0.0f;
        for (size_t i = threadIdx.x; i < count; i += ORTHONORMAL_THREADS)
            column[i] *= by;
    }
}

/* Bytes per element: 16. partial [blocks] sums of squares. */
static __global__ void __launch_bounds__(FLAT_THREADS)
    finish_kernel(const gpt2_powersgd_matrix_t matrix, double *partial)
{
    __shared__ double shared[FLAT_THREADS / WARP];
    const size_t count = matrix.rows * matrix.columns;
    double sum[1] = {0.0};

    for (size_t at = (size_t)blockIdx.x * FLAT_THREADS + threadIdx.x; at < count;
         at += (size_t)gridDim.x * FLAT_THREADS) {
        const size_t row = at / matrix.columns, column = at % matrix.columns;
        const float x = element(matrix, at);
        float product = 0.0f;

        for (size_t k = 0; k < matrix.rank; k++)
            product += matrix.p[k * matrix.rows + row] * matrix.q[k * matrix.columns + column];
        matrix.residual[at] = x - product;
        matrix.gradient[at] = product;
        sum[0] += (double)product * (double)product;
    }
    block_sum(sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum[0];
}

/* *total = the sum of partial [count]. */
static __global__ void total_kernel(double *total, const double *partial, unsigned count)
{
    __shared__ double shared[FLAT_THREADS / WARP];
    double sum[1] = {0.0};

    for (unsigned i = threadIdx.x; i < count; i += FLAT_THREADS)
        sum[0] += partial[i];
    block_sum(sum, shared);
    if (threadIdx.x == 0) *total = sum[0];
}

/* ---- Launchers ------------------------------------------------------------------------------ */

size_t gpt2_cuda_powersgd_scratch_bytes(size_t rows, size_t columns, size_t rank)
{
    const size_t partial = parts_of(rows, CHUNK_ROWS) * rank * columns * sizeof(float);
    const size_t sums = (FINISH_BLOCKS + 1) * sizeof(double);

    return partial > sums ? partial : sums;
}

int gpt2_cuda_powersgd_rows(gpt2_cuda_stream_t stream, const gpt2_powersgd_matrix_t *matrix)
{
    return LAUNCH(rows_kernel, (unsigned)parts_of(matrix->rows, ROW_WARPS), FLAT_THREADS, 0, stream,
                  *matrix);
}

int gpt2_cuda_powersgd_columns(gpt2_cuda_stream_t stream, const gpt2_powersgd_matrix_t *matrix,
                               void *scratch)
{
    const size_t chunks = parts_of(matrix->rows, CHUNK_ROWS);
    const size_t count = matrix->rank * matrix->columns;
    const dim3 grid((unsigned)parts_of(matrix->columns, FLAT_THREADS), (unsigned)chunks);
    const int status =
        LAUNCH(columns_kernel, grid, FLAT_THREADS, 0, stream, *matrix, (float *)scratch);

    if (status != 0) return status;
    return LAUNCH(fold_columns_kernel, (unsigned)parts_of(count, FLAT_THREADS), FLAT_THREADS, 0,
                  stream, matrix->q, (const float *)scratch, chunks, count);
}

int gpt2_cuda_powersgd_orthonormal(gpt2_cuda_stream_t stream, float *x, size_t count, size_t rank)
{
    return LAUNCH(orthonormal_kernel, 1u, ORTHONORMAL_THREADS, 0, stream, x, count, rank);
}

int gpt2_cuda_powersgd_finish(gpt2_cuda_stream_t stream, const gpt2_powersgd_matrix_t *matrix,
                              double *squares, void *scratch)
{
    const size_t parts = parts_of(matrix->rows * matrix->columns, FLAT_THREADS);
    const unsigned blocks = (unsigned)(parts < FINISH_BLOCKS ? parts : FINISH_BLOCKS);
    const int status =
        LAUNCH(finish_kernel, blocks, FLAT_THREADS, 0, stream, *matrix, (double *)scratch);

    if (status != 0) return status;
    return LAUNCH(total_kernel, 1u, FLAT_THREADS, 0, stream, squares, (const double *)scratch,
                  blocks);
}

int gpt2_cuda_powersgd_prepare(void)
{
    int status = load_kernel(rows_kernel);

    if (status == 0) status = load_kernel(columns_kernel);
    if (status == 0) status = load_kernel(fold_columns_kernel);
    if (status == 0) status = load_kernel(orthonormal_kernel);
    if (status == 0) status = load_kernel(finish_kernel);
    if (status == 0) status = load_kernel(total_kernel);
    return status;
}
