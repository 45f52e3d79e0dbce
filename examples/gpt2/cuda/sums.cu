/*
 * sums.cu - sums over rows (gradients of biases) and over whole arenas (losses, norms).
 *
 * Two passes without atomics: every block writes its share, a second kernel adds the shares in one
 * order. How the work is cut depends on its size only, not on the GPU.
 */
#include "examples/gpt2/cuda/device.cuh"

#define STRIP (WARP * VECTOR) /* columns of a block */
#define SHARES 1024           /* at most, of either kind of sum */
#define ROWS_LEAST 64         /* per block of a column sum: 8 per warp */
#define FOLD_COLUMNS 8        /* of a block of the second pass: 32 bytes, the least of a read */
#define FOLD_LANES 16         /* threads that share one of them */
#define FOLD_LOADS 16         /* of a thread under way at a time */

/* ---- Columns -------------------------------------------------------------------------------- */

/* Per element: reads it once. Each warp takes every eighth row of the block's. */
template <typename T, bool aligned>
static __global__ void columns_kernel(float *partial, const T *x, size_t rows, size_t width,
                                      size_t rows_per_block)
{
    __shared__ float shared[ROW_WARPS][STRIP + WARP]; /* +WARP: rows start in other banks */
    const size_t at = ((size_t)blockIdx.x * WARP + threadIdx.x) * VECTOR;
    const size_t left = at < width ? width - at : 0;
    const size_t begin = blockIdx.y * rows_per_block;
    const size_t last = begin + rows_per_block < rows ? begin + rows_per_block : rows;
    const size_t end = left > 0 ? last : begin;
    float sum[VECTOR] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    const unsigned column = threadIdx.y * WARP + threadIdx.x;

#pragma unroll 4
    for (size_t row = begin + threadIdx.y; row < end; row += ROW_WARPS) {
        float own[VECTOR];

        load<aligned>(x + row * width + at, left, own);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum[i] += own[i];
    }
    /* Element i of lane l lies at 32 i + l: neighbours write to neighbouring banks. */
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        shared[threadIdx.y][i * WARP + (int)threadIdx.x] = sum[i];
    __syncthreads();
    /* 256 threads, 256 columns: each adds one over the warps. */
    {
        const size_t own_at = (size_t)blockIdx.x * STRIP + column;
        float total = 0.0f;

        for (int w = 0; w < ROW_WARPS; w++)
            total += shared[w][column % VECTOR * WARP + column / VECTOR];
        if (own_at < width) partial[blockIdx.y * width + own_at] = total;
    }
}

/* A block has few columns, so that there are many blocks, and a thread asks for FOLD_LOADS shares
 * before it adds the first: it is the number of trips to memory, one after the other, that takes
 * the time. */
static __global__ void fold_kernel(const fold_outs_t outs, const float *partial, size_t parts,
                                   size_t width)
{
    __shared__ float shared[FOLD_LANES][FOLD_COLUMNS];
    const size_t column = (size_t)blockIdx.x * FOLD_COLUMNS + threadIdx.x;
    const size_t step = FOLD_LANES * gridDim.y * width, end = column < width ? parts : 0;
    const float *at = partial + (threadIdx.y * gridDim.y + blockIdx.y) * width + column;
    float *to = blockIdx.y == 0 ? outs.to[0] : blockIdx.y == 1 ? outs.to[1] : outs.to[2];
    const int adds = blockIdx.y == 0 ? outs.adds[0] : blockIdx.y == 1 ? outs.adds[1] : outs.adds[2];
    float total = 0.0f;

    if (to == NULL) return;
    for (size_t part = threadIdx.y; part < end; part += FOLD_LANES * FOLD_LOADS) {
        float own[FOLD_LOADS];

#pragma unroll
        for (int i = 0; i < FOLD_LOADS; i++, at += step)
            own[i] = part + (size_t)i * FOLD_LANES < end ? *at : 0.0f;
#pragma unroll
        for (int i = 0; i < FOLD_LOADS; i++)
            total += own[i];
    }
    shared[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y != 0 || column >= width) return;
    for (int y = 1; y < FOLD_LANES; y++)
        total += shared[y][threadIdx.x];
    to[column] = adds ? to[column] + total : total;
}

/* Enough blocks for any GPU, few enough for the second pass. */
static size_t column_rows(size_t rows, size_t width)
{
    const size_t strips = parts_of(width, STRIP);
    const size_t shares = strips < SHARES / 4 ? SHARES / strips : 4;
    const size_t share = parts_of(rows, shares);

    return share < ROWS_LEAST ? ROWS_LEAST : share;
}

int gpt2_cuda_fold(gpt2_cuda_stream_t stream, const fold_outs_t &outs, unsigned count,
                   const float *partial, size_t parts, size_t width)
{
    if (width == 0) return cudaSuccess;
    return LAUNCH(fold_kernel, dim3((unsigned)parts_of(width, FOLD_COLUMNS), count),
                  dim3(FOLD_COLUMNS, FOLD_LANES), 0, stream, outs, partial, parts, width);
}

size_t gpt2_cuda_column_sum_scratch_bytes(size_t rows, size_t width)
{
    return parts_of(rows, column_rows(rows, width)) * width * sizeof(float);
}

template <typename T>
static int column_sum(gpt2_cuda_stream_t stream, float *sums, int accumulate, const void *x,
                      float *scratch, size_t rows, size_t width)
{
    const size_t per_block = column_rows(rows, width), parts = parts_of(rows, per_block);
    const bool aligned = width % VECTOR == 0 && is_aligned(x);
    auto *kernel = aligned ? columns_kernel<T, true> : columns_kernel<T, false>;
    cudaError_t status = cudaSuccess;

    if (rows > 0 && width > 0) {
        status =
            LAUNCH(kernel, dim3((unsigned)parts_of(width, STRIP), (unsigned)parts),
                   dim3(WARP, ROW_WARPS), 0, stream, scratch, (const T *)x, rows, width, per_block);
    }
    if (status != cudaSuccess) return status;
    return gpt2_cuda_fold(stream, {{sums}, {accumulate}}, 1, scratch, parts, width);
}

int gpt2_cuda_column_sum(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, float *sums,
                         int accumulate, const void *x, float *scratch, size_t rows, size_t width)
{
    return of_type(type, column_sum<float>, column_sum<bf16_t>,
                   column_sum<fp16_t>)(stream, sums, accumulate, x, scratch, rows, width);
}

/* ---- Arenas --------------------------------------------------------------------------------- */

/* Per element: reads it once. */
template <bool is_square>
static __global__ void sum_kernel(double *partial, const float *x, size_t count, bool aligned)
{
    __shared__ double shared[FLAT_THREADS / WARP];
    const size_t stride = (size_t)gridDim.x * blockDim.x * VECTOR;
    double total[1] = {0.0};

    for (size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR; at < count;
         at += stride) {
        float own[VECTOR];

        if (aligned && count - at >= VECTOR) {
            load<true>(x + at, count - at, own);
        } else {
            load<false>(x + at, count - at, own);
        }
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            total[0] += is_square ? (double)own[i] * (double)own[i] : (double)own[i];
    }
    block_sum(total, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = total[0];
}

static __global__ void total_kernel(double *out, int accumulate, const double *partial,
                                    unsigned parts)
{
    __shared__ double shared[FLAT_THREADS / WARP];
    double total[1] = {0.0};

    for (unsigned i = threadIdx.x; i < parts; i += blockDim.x)
        total[0] += partial[i];
    block_sum(total, shared);
    if (threadIdx.x == 0) *out = accumulate ? *out + total[0] : total[0];
}

/* Per element: reads two, writes one. A thread for eight columns of a row. */
template <bool aligned>
static __global__ void add_rows_kernel(float *to, const float *rows, const int32_t *places,
                                       size_t count, size_t width)
{
    const size_t strips = (width + VECTOR - 1) / VECTOR;
    const size_t index = (size_t)blockIdx.x * FLAT_THREADS + threadIdx.x;
    const size_t row = index / strips, at = index % strips * VECTOR;
    float sum[VECTOR], x[VECTOR];

    if (row >= count) return;
    to += (size_t)places[row] * width + at;
    load<aligned>(to, width - at, sum);
    load<aligned>(rows + row * width + at, width - at, x);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sum[i] += x[i];
    store<aligned>(to, width - at, sum);
}

static __global__ void clip_kernel(uint32_t *skip, float *clip, float *norm, const double *squares,
                                   const uint32_t *also, float by, float max_norm)
{
    const double length = sqrt(*squares) * (double)fabsf(by);

    *skip = isfinite(length) && (also == NULL || *also == 0) ? 0 : 1;
    *clip =
        max_norm > 0.0f && length > (double)max_norm ? (float)((double)max_norm / length) : 1.0f;
    if (norm != NULL) *norm = (float)length;
}

template <bool is_square>
static int sum(gpt2_cuda_stream_t stream, double *out, int accumulate, const float *x, size_t count,
               double *scratch)
{
    const size_t wanted = parts_of(count, (size_t)FLAT_THREADS * VECTOR);
    const unsigned parts = (unsigned)(wanted < SHARES ? wanted : SHARES);
    cudaError_t status = cudaSuccess;

    if (parts > 0) {
        status = LAUNCH(sum_kernel<is_square>, parts, FLAT_THREADS, 0, stream, scratch, x, count,
                        is_aligned(x));
    }
    if (status != cudaSuccess) return status;
    return LAUNCH(total_kernel, 1, FLAT_THREADS, 0, stream, out, accumulate, scratch, parts);
}

int gpt2_cuda_sum(gpt2_cuda_stream_t stream, double *out, int accumulate, const float *x,
                  size_t count, double *scratch)
{
    return sum<false>(stream, out, accumulate, x, count, scratch);
}

int gpt2_cuda_sum_squares(gpt2_cuda_stream_t stream, double *out, int accumulate, const float *x,
                          size_t count, double *scratch)
{
    return sum<true>(stream, out, accumulate, x, count, scratch);
}

int gpt2_cuda_clip(gpt2_cuda_stream_t stream, uint32_t *skip, float *clip, float *norm,
                   const double *sum_squares, const uint32_t *also, float by, float max_norm)
{
    return LAUNCH(clip_kernel, 1, 1, 0, stream, skip, clip, norm, sum_squares, also, by, max_norm);
}

int gpt2_cuda_add_rows(gpt2_cuda_stream_t stream, float *to, const float *rows,
                       const int32_t *places, size_t count, size_t width)
{
    const bool aligned = width % VECTOR == 0 && is_aligned(to) && is_aligned(rows);
    auto *kernel = aligned ? add_rows_kernel<true> : add_rows_kernel<false>;

    if (count == 0 || width == 0) return cudaSuccess;
    return LAUNCH(kernel, (unsigned)parts_of(count * parts_of(width, VECTOR), FLAT_THREADS),
                  FLAT_THREADS, 0, stream, to, rows, places, count, width);
}

int gpt2_cuda_sums_prepare(void)
{
    int status = load_kernel(columns_kernel<float, true>);

    if (status == 0) status = load_kernel(columns_kernel<float, false>);
    if (status == 0) status = load_kernel(columns_kernel<bf16_t, true>);
    if (status == 0) status = load_kernel(columns_kernel<bf16_t, false>);
    if (status == 0) status = load_kernel(columns_kernel<fp16_t, true>);
    if (status == 0) status = load_kernel(columns_kernel<fp16_t, false>);
    if (status == 0) status = load_kernel(fold_kernel);
    if (status == 0) status = load_kernel(sum_kernel<false>);
    if (status == 0) status = load_kernel(sum_kernel<true>);
    if (status == 0) status = load_kernel(total_kernel);
    if (status == 0) status = load_kernel(add_rows_kernel<true>);
    if (status == 0) status = load_kernel(add_rows_kernel<false>);
    if (status == 0) status = load_kernel(clip_kernel);
    return status;
}
