/*
 * norm.cu - layer norm forward.
 *
 * A warp per row. Aligned rows up to 2048 wide stay in registers between mean, variance and result,
 * so each element is read once; wider ones are read again from the cache.
 */
#include "examples/gpt2/cuda/device.cuh"

#define EPSILON 1e-5f
#define LANE_COLUMNS (WARP * VECTOR) /* columns that a warp covers at once */

template <typename T> struct norm_args {
    T *out;
    float *mean, *rstd;
    const T *x;
    const float *weight, *shift;
    size_t rows, width;
};

/* Columns at.. of a row. */
template <typename T, bool aligned>
DEVICE_INLINE void read_columns(const norm_args<T> &args, size_t row, size_t at, float (&x)[VECTOR])
{
    if (at < args.width) load<aligned>(args.x + row * args.width + at, args.width - at, x);
}

/*
 * Bytes per element of 16 bits: 4 (x read, out written). kept: how many times 256 columns are held
 * in registers; 0: any width, read again from memory.
 */
template <typename T, int kept, bool aligned>
static __global__ void __launch_bounds__(WARP *ROW_WARPS) norm_kernel(const norm_args<T> args)
{
    const size_t row = (size_t)blockIdx.x * ROW_WARPS + threadIdx.y;
    const size_t first = (size_t)threadIdx.x * VECTOR, width = args.width;
    float x[kept > 0 ? kept : 1][VECTOR];
    float total = 0.0f, squares = 0.0f, mean, rstd;

    if (row >= args.rows) return;
#pragma unroll
    for (int j = 0; j < kept; j++)
        read_columns<T, aligned>(args, row, (size_t)j * LANE_COLUMNS + first, x[kept > 0 ? j : 0]);
#pragma unroll
    for (size_t j = 0; kept == 0 ? j * LANE_COLUMNS + first < width : j < kept; j++) {
        const size_t at = j * LANE_COLUMNS + first;
        float(&own)[VECTOR] = x[kept > 0 ? j : 0];

        if (at >= width) continue;
        if (kept == 0) read_columns<T, aligned>(args, row, at, own);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            total += own[i]; /* zeros past the row's end */
    }
    mean = warp_sum(total) / (float)width;
#pragma unroll
    for (size_t j = 0; kept == 0 ? j * LANE_COLUMNS + first < width : j < kept; j++) {
        const size_t at = j * LANE_COLUMNS + first;
        float(&own)[VECTOR] = x[kept > 0 ? j : 0];

        if (at >= width) continue;
        if (kept == 0) read_columns<T, aligned>(args, row, at, own);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const float off = at + (size_t)i < width ? own[i] - mean : 0.0f;

            squares += off * off;
        }
    }
    rstd = 1.0f / sqrtf(warp_sum(squares) / (float)width + EPSILON);
#pragma unroll
    for (size_t j = 0; kept == 0 ? j * LANE_COLUMNS + first < width : j < kept; j++) {
        const size_t at = j * LANE_COLUMNS + first;
        float(&own)[VECTOR] = x[kept > 0 ? j : 0];
        float weight[VECTOR], shift[VECTOR];

        if (at >= width) continue;
        if (kept == 0) read_columns<T, aligned>(args, row, at, own);
        load<aligned>(args.weight + at, width - at, weight);
        load<aligned>(args.shift + at, width - at, shift);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            weight[i] = (own[i] - mean) * rstd * weight[i] + shift[i];
        store<aligned>(args.out + row * width + at, width - at, weight);
    }
    if (threadIdx.x != 0 || args.mean == NULL) return;
    args.mean[row] = mean;
    args.rstd[row] = rstd;
}

template <typename T> using norm_function = void (*)(const norm_args<T>);

template <typename T> static norm_function<T> choose(size_t width, bool aligned)
{
    if (!aligned) return norm_kernel<T, 0, false>;
    if (width <= 1 * LANE_COLUMNS) return norm_kernel<T, 1, true>;
    if (width <= 2 * LANE_COLUMNS) return norm_kernel<T, 2, true>;
    if (width <= 3 * LANE_COLUMNS) return norm_kernel<T, 3, true>;
    if (width <= 4 * LANE_COLUMNS) return norm_kernel<T, 4, true>;
    if (width <= 5 * LANE_COLUMNS) return norm_kernel<T, 5, true>;
    if (width <= 7 * LANE_COLUMNS) return norm_kernel<T, 7, true>;
    if (width <= 8 * LANE_COLUMNS) return norm_kernel<T, 8, true>;
    return norm_kernel<T, 0, true>;
}

template <typename T>
static int norm(gpt2_cuda_stream_t stream, void *out, float *mean, float *rstd, const void *x,
                const float *weight, const float *shift, size_t rows, size_t width)
{
    const norm_args<T> args = {(T *)out, mean, rstd, (const T *)x, weight, shift, rows, width};
    const bool aligned = width % VECTOR == 0 && is_aligned(out) && is_aligned(x) &&
                         is_aligned(weight) && is_aligned(shift);

    if (rows == 0) return cudaSuccess;
    return LAUNCH(choose<T>(width, aligned), (unsigned)parts_of(rows, ROW_WARPS),
                  dim3(WARP, ROW_WARPS), 0, stream, args);
}

int gpt2_cuda_norm_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *out, float *mean,
                           float *rstd, const void *x, const float *weight, const float *shift,
                           size_t rows, size_t width)
{
    return of_type(type, norm<float>, norm<bf16_t>, norm<fp16_t>)(stream, out, mean, rstd, x,
                                                                  weight, shift, rows, width);
}

template <typename T> static int prepare_one(void)
{
    int status = load_kernel(choose<T>(1, false));

    for (size_t columns = 1; status == 0 && columns <= 9; columns++)
        status = load_kernel(choose<T>(columns * LANE_COLUMNS, true));
    return status;
}

int gpt2_cuda_norm_prepare(void)
{
    int status = prepare_one<float>();

    if (status == 0) status = prepare_one<bf16_t>();
    if (status == 0) status = prepare_one<fp16_t>();
    return status;
}
