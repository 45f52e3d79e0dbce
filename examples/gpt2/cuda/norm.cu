/*
 * norm.cu - layer norm forward, with the residual sum before it.
 *
 * A warp per row. Aligned rows up to 2048 wide stay in registers between mean, variance and result,
 * so each element is read once; wider ones are read again from the cache.
 */
#include "examples/gpt2/cuda/device.cuh"

#define EPSILON 1e-5f
#define LANE_COLUMNS (WARP * VECTOR) /* columns that a warp covers at once */

template <typename T> struct norm_args {
    T *out, *sum;
    float *mean, *rstd;
    const T *a, *b;
    const float *bias, *weight, *shift;
    size_t rows, width;
};

/* Columns at.. of the row as they were stored: of a, or of the sum. */
template <typename T, bool is_sum, bool aligned>
DEVICE_INLINE void read_again(const norm_args<T> &args, size_t row, size_t at, float (&x)[VECTOR])
{
    load<aligned>((is_sum ? args.sum : args.a) + row * args.width + at, args.width - at, x);
}

/*
 * Columns first.. and every LANE_COLUMNS behind them, `count` times: a, or a + b + bias, which is
 * written to sum. sum may be a or b, so that no load can be moved before a store: all loads come
 * first.
 */
template <typename T, bool is_sum, bool aligned, int count>
DEVICE_INLINE void read_columns(const norm_args<T> &args, size_t row, size_t first,
                                float (&x)[count][VECTOR])
{
    const size_t place = row * args.width + first;
    float other[is_sum ? count : 1][VECTOR];

#pragma unroll
    for (int j = 0; j < count; j++) {
        const size_t at = (size_t)j * LANE_COLUMNS, left = args.width - first - at;

        if (first + at >= args.width) continue;
        load<aligned>(args.a + place + at, left, x[j]);
        if (is_sum) load<aligned>(args.b + place + at, left, other[is_sum ? j : 0]);
    }
    if (!is_sum) return;
    if (args.bias != NULL) {
#pragma unroll
        for (int j = 0; j < count; j++) {
            const size_t at = (size_t)j * LANE_COLUMNS, left = args.width - first - at;
            float bias[VECTOR];

            if (first + at >= args.width) continue;
            load<aligned>(args.bias + first + at, left, bias);
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                other[is_sum ? j : 0][i] += bias[i];
        }
    }
#pragma unroll
    for (int j = 0; j < count; j++) {
        const size_t at = (size_t)j * LANE_COLUMNS, left = args.width - first - at;

        if (first + at >= args.width) continue;
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            x[j][i] = as_stored<T>(x[j][i] + other[is_sum ? j : 0][i]);
        store<aligned>(args.sum + place + at, left, x[j]);
    }
}

/*
 * Bytes per element of 16 bits: 4 (a read, out written), with the sum 8 (a, b read; sum, out
 * written). kept: how many times 256 columns are held in registers; 0: any width, read again from
 * memory.
 */
template <typename T, int kept, bool is_sum, bool aligned>
static __global__ void __launch_bounds__(WARP *ROW_WARPS) norm_kernel(const norm_args<T> args)
{
    const size_t row = (size_t)blockIdx.x * ROW_WARPS + threadIdx.y;
    const size_t first = (size_t)threadIdx.x * VECTOR, width = args.width;
    float x[kept > 0 ? kept : 1][VECTOR];
    float total = 0.0f, squares = 0.0f, mean, rstd;

    if (row >= args.rows) return;
    if (kept > 0) read_columns<T, is_sum, aligned>(args, row, first, x);
#pragma unroll
    for (size_t j = 0; kept == 0 ? j * LANE_COLUMNS + first < width : j < kept; j++) {
        const size_t at = j * LANE_COLUMNS + first;
        float(&own)[VECTOR] = x[kept > 0 ? j : 0];

        if (at >= width) continue;
        if (kept == 0) read_columns<T, is_sum, aligned>(args, row, at, x);
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
        if (kept == 0) read_again<T, is_sum, aligned>(args, row, at, own);
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
        if (kept == 0) read_again<T, is_sum, aligned>(args, row, at, own);
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

template <typename T, bool is_sum> static norm_function<T> choose(size_t width, bool aligned)
{
    if (!aligned) return norm_kernel<T, 0, is_sum, false>;
    if (width <= 1 * LANE_COLUMNS) return norm_kernel<T, 1, is_sum, true>;
    if (width <= 2 * LANE_COLUMNS) return norm_kernel<T, 2, is_sum, true>;
    if (width <= 3 * LANE_COLUMNS) return norm_kernel<T, 3, is_sum, true>;
    if (width <= 4 * LANE_COLUMNS) return norm_kernel<T, 4, is_sum, true>;
    if (width <= 5 * LANE_COLUMNS) return norm_kernel<T, 5, is_sum, true>;
    if (width <= 7 * LANE_COLUMNS) return norm_kernel<T, 7, is_sum, true>;
    if (width <= 8 * LANE_COLUMNS) return norm_kernel<T, 8, is_sum, true>;
    return norm_kernel<T, 0, is_sum, true>;
}

template <typename T>
static int norm(gpt2_cuda_stream_t stream, void *out, void *sum, float *mean, float *rstd,
                const void *a, const void *b, const float *bias, const float *weight,
                const float *shift, size_t rows, size_t width)
{
    const norm_args<T> args = {(T *)out, (T *)sum, mean,  rstd, (const T *)a, (const T *)b,
                               bias,     weight,   shift, rows, width};
    const bool aligned = width % VECTOR == 0 && is_aligned(out) && is_aligned(sum) &&
                         is_aligned(a) && is_aligned(b) && is_aligned(bias) && is_aligned(weight) &&
                         is_aligned(shift);
    const norm_function<T> function =
        b != NULL ? choose<T, true>(width, aligned) : choose<T, false>(width, aligned);

    if (rows == 0) return cudaSuccess;
    return LAUNCH(function, (unsigned)parts_of(rows, ROW_WARPS), dim3(WARP, ROW_WARPS), 0, stream,
                  args);
}

int gpt2_cuda_norm_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *out, float *mean,
                           float *rstd, const void *x, const float *weight, const float *shift,
                           size_t rows, size_t width)
{
    return of_type(type, norm<float>, norm<bf16_t>, norm<fp16_t>)(
        stream, out, NULL, mean, rstd, x, NULL, NULL, weight, shift, rows, width);
}

int gpt2_cuda_add_norm_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *out,
                               void *sum, float *mean, float *rstd, const void *a, const void *b,
                               const float *bias, const float *weight, const float *shift,
                               size_t rows, size_t width)
{
    return of_type(type, norm<float>, norm<bf16_t>, norm<fp16_t>)(
        stream, out, sum, mean, rstd, a, b, bias, weight, shift, rows, width);
}

template <typename T, bool is_sum> static int prepare_one(void)
{
    int status = load_kernel(choose<T, is_sum>(1, false));

    for (size_t columns = 1; status == 0 && columns <= 9; columns++)
        status = load_kernel(choose<T, is_sum>(columns * LANE_COLUMNS, true));
    return status;
}

int gpt2_cuda_norm_prepare(void)
{
    int status = prepare_one<float, false>();

    if (status == 0) status = prepare_one<float, true>();
    if (status == 0) status = prepare_one<bf16_t, false>();
    if (status == 0) status = prepare_one<bf16_t, true>();
    if (status == 0) status = prepare_one<fp16_t, false>();
    if (status == 0) status = prepare_one<fp16_t, true>();
    return status;
}
