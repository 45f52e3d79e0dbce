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

/* Columns at.. of the row, as stored: a, or a + b + bias, which is written if is_first. */
template <typename T, bool is_sum, bool aligned>
DEVICE_INLINE void read_row(const norm_args<T> &args, size_t row, size_t at, bool is_first,
                            float (&x)[VECTOR])
{
    const size_t place = row * args.width + at, left = args.width - at;
    float other[VECTOR];

    if (!is_sum) {
        load<aligned>(args.a + place, left, x);
        return;
    }
    if (!is_first) {
        load<aligned>(args.sum + place, left, x);
        return;
    }
    load<aligned>(args.a + place, left, x);
    load<aligned>(args.b + place, left, other);
    if (args.bias != NULL) {
        float bias[VECTOR];

        load<aligned>(args.bias + at, left, bias);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            other[i] += bias[i];
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        x[i] = as_stored<T>(x[i] + other[i]);
    store<aligned>(args.sum + place, left, x);
}

/*
 * Bytes per element in bf16: 4 (a read, out written), with the sum 8 (a, b read; sum, out written).
 * kept: how many times 256 columns are held in registers; 0: any width, read again from memory.
 */
template <typename T, int kept, bool is_sum, bool aligned>
static __global__ void __launch_bounds__(WARP *ROW_WARPS) norm_kernel(const norm_args<T> args)
{
    const size_t row = (size_t)blockIdx.x * ROW_WARPS + threadIdx.y;
    const size_t first = (size_t)threadIdx.x * VECTOR, width = args.width;
    float x[kept > 0 ? kept : 1][VECTOR];
    float total = 0.0f, squares = 0.0f, mean, rstd;

    if (row >= args.rows) return;
#pragma unroll
    for (size_t j = 0; kept == 0 ? j * LANE_COLUMNS + first < width : j < kept; j++) {
        const size_t at = j * LANE_COLUMNS + first;
        float(&own)[VECTOR] = x[kept > 0 ? j : 0];

        if (at >= width) continue;
        read_row<T, is_sum, aligned>(args, row, at, true, own);
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
        if (kept == 0) read_row<T, is_sum, aligned>(args, row, at, false, own);
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
        if (kept == 0) read_row<T, is_sum, aligned>(args, row, at, false, own);
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
    return (type == GPT2_CUDA_BF16 ? norm<bf16_t> : norm<float>)(stream, out, NULL, mean, rstd, x,
                                                                 NULL, NULL, weight, shift, rows,
                                                                 width);
}

int gpt2_cuda_add_norm_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *out,
                               void *sum, float *mean, float *rstd, const void *a, const void *b,
                               const float *bias, const float *weight, const float *shift,
                               size_t rows, size_t width)
{
    return (type == GPT2_CUDA_BF16 ? norm<bf16_t> : norm<float>)(stream, out, sum, mean, rstd, a, b,
                                                                 bias, weight, shift, rows, width);
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
    return status;
}
