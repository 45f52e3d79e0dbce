/*
 * attention_forward.cu - causal attention in 16 bits on tensor cores, forward.
 *
 * A block takes a tile of queries of one head and walks over the keys from the first to the one on
 * the diagonal, 64 at a time, while the next 64 keys and values are on their way. Each row keeps
 * its largest score so far, the sum of exponentials relative to it, and the output accumulated on
 * the same footing; when the maximum grows, sum and output shrink. All in fp32; probabilities are
 * rounded to 16 bits for their product with the values.
 *
 * As every row sees key 0, the maximum is finite from the first tile on, and rows or keys behind
 * the end need no mask of their own: such rows are not written, such keys lie right of every
 * diagonal that is.
 */
#include "examples/gpt2/cuda/attention_tiles.cuh"

#define KEYS 64 /* in a tile */

/* Queries of a block: 16 * tall per warp. */
template <int width> struct forward_shape {
    static const int tall = width <= 64 ? 2 : 1;
    static const int rows = ATTENTION_WARPS * 16 * tall;
    static const int query_bytes = rows * width * 2;
    static const int tile = KEYS * width * 2;
    static const int shared = query_bytes + 4 * tile; /* two stages of keys and values */
};

/* Scores s [16 tall][KEYS] become exponentials relative to each row's new maximum; what was summed
 * so far shrinks to the same footing. A row lies in four threads, each of which has its own part of
 * the sum. */
template <int width, int tall>
DEVICE_INLINE void take_scores(float (&s)[tall][KEYS / 8][4], float (&out)[tall][width / 8][4],
                               float (&most)[tall][2], float (&sum)[tall][2], float scale2)
{
#pragma unroll
    for (int m = 0; m < tall; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = most[m][half], shrink, base;

#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            base = top * scale2;
            shrink = fast_exp2(fmaf(most[m][half], scale2, -base));
            most[m][half] = top;
            sum[m][half] *= shrink;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[m][n][i] = fast_exp2(fmaf(s[m][n][i], scale2, -base));
                    sum[m][half] += s[m][n][i];
                }
            }
#pragma unroll
            for (int n = 0; n < width / 8; n++) {
                out[m][n][2 * half] *= shrink;
                out[m][n][2 * half + 1] *= shrink;
            }
        }
    }
}

template <typename T, int width>
__global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    attention_forward_kernel(attention_t it, attention_grid_t grid)
{
    typedef forward_shape<width> shape;
    constexpr int tall = shape::tall;
    const attention_task_t task = attention_task(grid, it.heads);
    const int first = (int)(grid.tiles - 1 - task.tile) * shape::rows;
    const int last = first + shape::rows < it.length ? first + shape::rows - 1 : it.length - 1;
    const int warp_row = (int)(threadIdx.x / 32) * 16 * tall;
    const unsigned stride = 3u * (unsigned)it.heads * (unsigned)it.size;
    const uint16_t *queries = (const uint16_t *)it.qkv + attention_packed(it, task, 0);
    float out[tall][width / 8][4] = {}, most[tall][2], sum[tall][2], by[tall][2];
    uint32_t q[width / 16][tall][4];

    DYNAMIC_SHARED(unsigned char, memory);
    const shared_t q_tile = shared_address(memory);
    shared_t here = q_tile + shape::query_bytes, next = here + 2 * shape::tile;

    tile_load<width, shape::rows>(q_tile, queries + (size_t)first * stride, stride,
                                  it.length - first, it.size);
    load_keys<width, KEYS>(here, it, task, 0);
    async_commit();
    async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < tall; m++) {
        most[m][0] = most[m][1] = -INFINITY;
        sum[m][0] = sum[m][1] = 0.0f;
#pragma unroll
        for (int k = 0; k < width / 16; k++)
            tile_as_a<width>(q[k][m], q_tile, (unsigned)(warp_row + 16 * m), k);
    }

    for (int key = 0; key <= last; key += KEYS) {
        if (key + KEYS <= last) {
            load_keys<width, KEYS>(next, it, task, key + KEYS);
            async_commit();
        }
        if (key < first + warp_row + 16 * tall) { /* else these keys come after all its queries */
            float s[tall][KEYS / 8][4] = {};

#pragma unroll
            for (int k = 0; k < width / 16; k++)
                multiply_slice<T, width, tall, KEYS>(s, q[k], here, 0, k);
            hide_future<true, tall, KEYS>(s, first + warp_row, key);
            take_scores<width, tall>(s, out, most, sum, it.scale * LOG2E);
            multiply_sums<T, width, tall, KEYS>(out, s, here + shape::tile, 0);
        }
        /* The next tiles are here for all, and all are done with these. */
        async_wait<0>();
        __syncthreads();
        swap_stages(here, next);
    }

#pragma unroll
    for (int m = 0; m < tall; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first + warp_row + 16 * m + 8 * half + (int)warp_lane() / 4;
            float all = sum[m][half];

            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            by[m][half] = 1.0f / all;
            if (warp_lane() % 4 == 0 && row < it.length) {
                it.lse[task.pair * (size_t)it.length + (size_t)row] =
                    fmaf(most[m][half], it.scale, logf(all));
            }
        }
    }
    tile_store<T, width, tall>(q_tile, (unsigned)warp_row, out, by,
                               (uint16_t *)it.out + attention_rows(it, task) +
                                   (size_t)(first + warp_row) * (size_t)it.heads * (size_t)it.size,
                               (unsigned)(it.heads * it.size), it.length - first - warp_row,
                               it.size);
}

template <typename T, int width> static int prepare(void)
{
    cudaFuncAttributes attributes;
    const void *kernel = (const void *)attention_forward_kernel<T, width>;
    cudaError_t status = cudaFuncGetAttributes(&attributes, kernel);

    if (status != cudaSuccess) return status;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                forward_shape<width>::shared);
}

template <typename T, int width> static int launch(const attention_t *it, cudaStream_t stream)
{
    void (*kernel)(attention_t, attention_grid_t) = attention_forward_kernel<T, width>;
    const attention_grid_t grid = attention_grid(it, forward_shape<width>::rows);
    const attention_t copy = *it;

    return LAUNCH(kernel, grid.tiles * grid.pairs, ATTENTION_THREADS, forward_shape<width>::shared,
                  stream, copy, grid);
}

template <typename T> static int prepare_size(int size)
{
    if (size <= 32) return prepare<T, 32>();
    if (size <= 64) return prepare<T, 64>();
    if (size <= 96) return prepare<T, 96>();
    return prepare<T, 128>();
}

int attention_half_prepare_forward(gpt2_cuda_type_t type, int size)
{
    return type == GPT2_CUDA_F16 ? prepare_size<fp16_t>(size) : prepare_size<bf16_t>(size);
}

template <typename T> static int launch_size(const attention_t *it, cudaStream_t stream)
{
    if (it->size <= 32) return launch<T, 32>(it, stream);
    if (it->size <= 64) return launch<T, 64>(it, stream);
    if (it->size <= 96) return launch<T, 96>(it, stream);
    return launch<T, 128>(it, stream);
}

int attention_half_forward(gpt2_cuda_type_t type, const attention_t *it, cudaStream_t stream)
{
    return type == GPT2_CUDA_F16 ? launch_size<fp16_t>(it, stream)
                                 : launch_size<bf16_t>(it, stream);
}
