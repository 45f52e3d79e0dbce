/*
 * norm_backward.cu - layer norm backward: added into the residual gradient, and in two passes the
 * weight's and shift's gradients and the sums of the residual gradient's columns, which are the
 * gradient of the bias before the norm.
 *
 * A block takes some rows; each of its threads owns eight columns and keeps their share of the
 * three sums in registers over all of the block's rows. Two sums that a row needs from all columns
 * go through shared memory, for ROWS rows at a time. gpt2_cuda_fold() folds the blocks' shares in
 * order. The number of blocks depends on the rows alone.
 */
#include "examples/gpt2/cuda/device.cuh"

#define ROWS_MOST 2   /* whose sums travel together; more cost registers */
#define WARPS 2640    /* of all blocks, at most: see rows_per_block() */
#define ROWS_LEAST 16 /* per block, or the shares would outweigh the rows */
#define WARPS_MOST (GPT2_CUDA_WIDTH_MAX / VECTOR / WARP)

template <typename T> struct back_args {
    T *dx;
    float *partial; /* [blocks][3][width] */
    const T *d_out, *x;
    const float *weight, *mean, *rstd;
    float per_column; /* 1 / width: a division is a call, and registers would be spilled for it */
    size_t rows, width, rows_per_block;
    int fresh;
};

/* Bytes per element of 16 bits: 8 (d_out, x, dx read; dx written), fresh 6. */
template <typename T, bool aligned>
static __global__ void __launch_bounds__(GPT2_CUDA_WIDTH_MAX / VECTOR)
    back_kernel(const back_args<T> args)
{
    constexpr int ROWS = sizeof(T) == 2 ? ROWS_MOST : 1; /* fp32 takes twice the registers */
    __shared__ float shared[WARPS_MOST * 2 * ROWS];
    const size_t at = (size_t)threadIdx.x * VECTOR, width = args.width;
    const size_t left = at < width ? width - at : 0;
    const size_t begin = blockIdx.x * args.rows_per_block;
    const size_t end =
        begin + args.rows_per_block < args.rows ? begin + args.rows_per_block : args.rows;
    float weight[VECTOR], dweight[VECTOR], dshift[VECTOR], dx_sum[VECTOR];

    if (left > 0) load<aligned>(args.weight + at, left, weight);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (left == 0) weight[i] = 0.0f;
        dweight[i] = dshift[i] = dx_sum[i] = 0.0f;
    }
    for (size_t row = begin; row < end; row += ROWS) {
        packed<T> d_out[ROWS], x[ROWS], old[ROWS];
        float dn[ROWS][VECTOR], normed[ROWS][VECTOR], mean[ROWS], rstd[ROWS], sums[2 * ROWS];

        /* All loads are issued before the first result is used, so they stand behind no branch. A
         * row past the end reads the last one, a thread past the columns the first ones; zeros for
         * d_out then keep them out of all sums. */
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const size_t near = row + (size_t)r < end ? row + (size_t)r : end - 1;
            const size_t place = near * width + (left > 0 ? at : 0);

            load_packed<aligned>(args.d_out + place, left, &d_out[r]);
            load_packed<aligned>(args.x + place, left, &x[r]);
            if (!args.fresh) load_packed<aligned>(args.dx + place, left, &old[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) { /* the last ones: the compiler waits for what is uniform */
            const size_t near = row + (size_t)r < end ? row + (size_t)r : end - 1;

            mean[r] = args.mean[near];
            rstd[r] = args.rstd[near];
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const bool is_there = row + (size_t)r < end && left > 0;

            unpack(d_out[r], dn[r]);
            unpack(x[r], normed[r]);
            sums[2 * r] = sums[2 * r + 1] = 0.0f;
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                const float own = is_there ? dn[r][i] : 0.0f;

                normed[r][i] = (normed[r][i] - mean[r]) * rstd[r];
                dweight[i] += own * normed[r][i];
                dshift[i] += own;
                dn[r][i] = own * weight[i];
                sums[2 * r] += dn[r][i];
                sums[2 * r + 1] += dn[r][i] * normed[r][i];
            }
        }
        block_sum(sums, shared);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float sum = sums[2 * r] * args.per_column;
            const float dot = sums[2 * r + 1] * args.per_column;
            float dx[VECTOR];

            if (row + (size_t)r >= end || left == 0) continue;
            if (!args.fresh) unpack(old[r], dx);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                const float own = (dn[r][i] - sum - normed[r][i] * dot) * rstd[r];

                dx[i] = args.fresh ? own : dx[i] + own;
                dx_sum[i] += as_stored<T>(dx[i]);
            }
            store<aligned>(args.dx + (row + (size_t)r) * width + at, left, dx);
        }
    }
    if (left == 0) return;
    store<aligned>(args.partial + 3 * blockIdx.x * width + at, left, dweight);
    store<aligned>(args.partial + (3 * blockIdx.x + 1) * width + at, left, dshift);
    store<aligned>(args.partial + (3 * blockIdx.x + 2) * width + at, left, dx_sum);
}

static unsigned warps_of(size_t width)
{
    return (unsigned)parts_of(width, WARP * VECTOR);
}

/*
 * All blocks should run at once, or a last few would double the time. With 96 registers a thread a
 * multiprocessor holds 21 warps (sm_80 to sm_100): 7 blocks of 3 warps, 5 of 4, 4 of 5, 3 of 7. 20
 * on each of an H200's 132 make 2640. Other chips are not far from whole waves of that; the number
 * may not depend on the chip, as it decides how sums are split.
 */
static size_t rows_per_block(size_t rows, size_t width)
{
    const size_t share = parts_of(parts_of(rows, WARPS / warps_of(width)), ROWS_MOST) * ROWS_MOST;

    return share < ROWS_LEAST ? ROWS_LEAST : share;
}

size_t gpt2_cuda_norm_scratch_bytes(size_t rows, size_t width)
{
    if (width == 0 || width > GPT2_CUDA_WIDTH_MAX) return 0;
    return parts_of(rows, rows_per_block(rows, width)) * 3 * width * sizeof(float);
}

template <typename T>
static int norm_back(gpt2_cuda_stream_t stream, void *dx, int fresh, float *dweight, float *dshift,
                     int accumulate, float *dx_sums, const void *d_out, const void *x,
                     const float *weight, const float *mean, const float *rstd, float *scratch,
                     size_t rows, size_t width)
{
    if (width == 0 || width > GPT2_CUDA_WIDTH_MAX) return cudaErrorInvalidValue;

    const back_args<T> args = {(T *)dx,
                               scratch,
                               (const T *)d_out,
                               (const T *)x,
                               weight,
                               mean,
                               rstd,
                               1.0f / (float)width,
                               rows,
                               width,
                               rows_per_block(rows, width),
                               fresh};
    const bool aligned = width % VECTOR == 0 && is_aligned(dx) && is_aligned(d_out) &&
                         is_aligned(x) && is_aligned(weight) && is_aligned(scratch);
    auto *kernel = aligned ? back_kernel<T, true> : back_kernel<T, false>;
    const size_t blocks = parts_of(rows, args.rows_per_block);
    const unsigned threads = warps_of(width) * WARP;
    cudaError_t status = cudaSuccess;

    if (rows > 0) {
        status = LAUNCH(kernel, (unsigned)blocks, threads, 0, stream, args);
    }
    if (status != cudaSuccess) return status;
    return gpt2_cuda_fold(stream, {{dweight, dshift, dx_sums}, {accumulate, accumulate, 0}}, 3,
                          scratch, blocks, width);
}

int gpt2_cuda_norm_backward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *dx, int fresh,
                            float *dweight, float *dshift, int accumulate, float *dx_sums,
                            const void *d_out, const void *x, const float *weight,
                            const float *mean, const float *rstd, float *scratch, size_t rows,
                            size_t width)
{
    return of_type(type, norm_back<float>, norm_back<bf16_t>,
                   norm_back<fp16_t>)(stream, dx, fresh, dweight, dshift, accumulate, dx_sums,
                                      d_out, x, weight, mean, rstd, scratch, rows, width);
}

int gpt2_cuda_norm_backward_prepare(void)
{
    int status = load_kernel(back_kernel<float, true>);

    if (status == 0) status = load_kernel(back_kernel<float, false>);
    if (status == 0) status = load_kernel(back_kernel<bf16_t, true>);
    if (status == 0) status = load_kernel(back_kernel<bf16_t, false>);
    if (status == 0) status = load_kernel(back_kernel<fp16_t, true>);
    if (status == 0) status = load_kernel(back_kernel<fp16_t, false>);
    return status;
}
