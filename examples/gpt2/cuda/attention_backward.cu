/*
 * attention_backward.cu - causal attention in 16 bits on tensor cores, backward, without atomics.
 *
 * With S = scale * Q K^T, P = exp(S - lse), O = P V the gradients are
 *
 *   dV = P^T dO      dP = dO V^T      dS = P (dP - dots), dots = rows of dO . O
 *   dQ = scale * dS K                 dK = scale * dS^T Q
 *
 * A first kernel makes dots and lse in units of log2, both padded. Then one kernel sums dK and dV,
 * a block for a tile of keys that walks over the queries from its diagonal on, and one sums dQ, a
 * block for a tile of queries that walks over the keys. Both compute S and dP again: seven products
 * where five would do, but every sum has one owner and one order, so the bits are the same in every
 * run.
 *
 * The kernel for keys works on transposes, P^T [keys][queries]: so probabilities and dS are, as
 * they come out of one product, already the left side of the next, and never leave registers.
 *
 * Queries behind the end are zero and their lse is +Inf: their probabilities vanish. Keys behind
 * the end lie right of every diagonal.
 */
#include "examples/gpt2/cuda/attention_tiles.cuh"

#define STEP 64  /* rows of a tile in flight */
#define CHUNK 32 /* of them whose scores are in registers at a time */
#define STEP_FLOATS (STEP * 4)

/* Rows that a block owns: 16 * tall per warp. */
template <int width> struct backward_shape {
    static const int tall = width <= 64 ? 2 : 1;
    static const int rows = ATTENTION_WARPS * 16 * tall;
    static const int own = rows * width * 2; /* bytes of a tile of these */
    static const int tile = STEP * width * 2;
    static const int key_stage = 2 * tile + 2 * STEP_FLOATS;
    static const int key_shared = 2 * own + 2 * key_stage;
    static const int query_shared = 2 * own + 4 * tile;
};

/*
 * Sums over the rows that a block owns, of one of queries, keys and values: a part of the gradient
 * of the projection's bias. Rows behind the end are zeros. The stage at `room` is no longer needed
 * by any warp; the whole block calls, and twice with different rooms.
 */
template <int width, int tall>
DEVICE_INLINE void store_row_sums(shared_t room, const float (&rows)[tall][width / 8][4], float by,
                                  const attention_t &it, const attention_task_t &task, int first,
                                  unsigned which)
{
    const unsigned tiles =
        ((unsigned)it.length + backward_shape<width>::rows - 1) / backward_shape<width>::rows;
    const unsigned part =
        task.pair / (unsigned)it.heads * tiles + (unsigned)first / backward_shape<width>::rows;
    const unsigned head = task.pair % (unsigned)it.heads, column = threadIdx.x;

#pragma unroll
    for (int n = 0; n < width / 8; n++) {
        float2 sum = {0.0f, 0.0f};

#pragma unroll
        for (int m = 0; m < tall; m++) {
            sum.x += rows[m][n][0] + rows[m][n][2];
            sum.y += rows[m][n][1] + rows[m][n][3];
        }
#pragma unroll
        for (int bits = 4; bits < 32; bits *= 2) { /* threads of the same columns */
            sum.x += __shfl_xor_sync(0xffffffffu, sum.x, bits);
            sum.y += __shfl_xor_sync(0xffffffffu, sum.y, bits);
        }
        if (warp_lane() < 4) {
            const shared_t to =
                room + (threadIdx.x / 32 * width + (unsigned)n * 8 + warp_lane() * 2) * 4;

            shared_store(to, __float_as_uint(sum.x * by));
            shared_store(to + 4, __float_as_uint(sum.y * by));
        }
    }
    __syncthreads();
    if (column % 2 == 0 && column < (unsigned)it.size) {
        float2 total = {0.0f, 0.0f};
        float *to = it.sums + ((size_t)part * 3 + which) * (unsigned)(it.heads * it.size) +
                    head * (unsigned)it.size + column;

#pragma unroll
        for (unsigned warp = 0; warp < ATTENTION_WARPS; warp++) {
            const float2 own = shared_load_floats(room + (warp * width + column) * 4);

            total.x += own.x;
            total.y += own.y;
        }
        to[0] = total.x;
        to[1] = total.y;
    }
}

/* ---- dots ----------------------------------------------------------------------------------- */

#define DOTS_THREADS 256
#define DOTS_LANES 8 /* threads of a row: 128 bytes at a time */

/* Of two pairs. */
template <typename T> DEVICE_INLINE float dot_of_words(uint32_t a, uint32_t b)
{
    const float2 x = unpack_pair<T>(a), y = unpack_pair<T>(b);

    return fmaf(x.y, y.y, x.x * y.x);
}

/* Rows are numbered [batch][padded][heads], as they lie in memory. 4 bytes read per element. */
template <typename T>
__global__ void __launch_bounds__(DOTS_THREADS) attention_dots_kernel(attention_t it)
{
    const size_t rows = (size_t)it.batch * (size_t)it.padded * (size_t)it.heads;
    const size_t row = (size_t)blockIdx.x * (DOTS_THREADS / DOTS_LANES) + threadIdx.x / DOTS_LANES;
    const unsigned lane = threadIdx.x % DOTS_LANES;
    const size_t position = row / (size_t)it.heads;
    const size_t head = row % (size_t)it.heads, batch = position / (size_t)it.padded;
    const int at = (int)(position % (size_t)it.padded);
    const size_t pair = batch * (size_t)it.heads + head;
    const bool is_there = row < rows && at < it.length;
    float dot = 0.0f;

    if (is_there) {
        const size_t begin =
            ((batch * (size_t)it.length + (size_t)at) * (size_t)it.heads + head) * (size_t)it.size;
        const uint16_t *out = (const uint16_t *)it.out + begin;
        const uint16_t *dout = (const uint16_t *)it.dout + begin;

        for (int i = (int)lane * 8; i < it.size; i += DOTS_LANES * 8) {
            const uint4 a = *(const uint4 *)(const void *)(out + i);
            const uint4 b = *(const uint4 *)(const void *)(dout + i);

            dot += dot_of_words<T>(a.x, b.x) + dot_of_words<T>(a.y, b.y) +
                   dot_of_words<T>(a.z, b.z) + dot_of_words<T>(a.w, b.w);
        }
    }
    for (int bits = 1; bits < DOTS_LANES; bits *= 2)
        dot += __shfl_xor_sync(0xffffffffu, dot, bits);
    if (row < rows && lane == 0) {
        const size_t to = pair * (size_t)it.padded + (size_t)at;

        it.dots[to] = dot;
        it.lse2[to] = is_there ? it.lse[pair * (size_t)it.length + (size_t)at] * LOG2E : INFINITY;
    }
}

/* ---- dK and dV ------------------------------------------------------------------------------ */

/* One chunk of queries: s, scores, becomes P^T, and dp becomes dS^T. Columns are queries, whose
 * figures lie at lse2 and dots in shared memory. */
template <int tall>
DEVICE_INLINE void take_scores_of_keys(float (&s)[tall][CHUNK / 8][4],
                                       float (&dp)[tall][CHUNK / 8][4], shared_t lse2,
                                       shared_t dots, float scale2)
{
    const unsigned pair = warp_lane() % 4 * 8;

#pragma unroll
    for (int n = 0; n < CHUNK / 8; n++) {
        const float2 base = shared_load_floats(lse2 + (unsigned)(8 * n) * 4 + pair);
        const float2 dot = shared_load_floats(dots + (unsigned)(8 * n) * 4 + pair);

#pragma unroll
        for (int m = 0; m < tall; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[m][n][i] = fast_exp2(fmaf(s[m][n][i], scale2, i % 2 == 0 ? -base.x : -base.y));
                dp[m][n][i] = s[m][n][i] * (dp[m][n][i] - (i % 2 == 0 ? dot.x : dot.y));
            }
        }
    }
}

/* Starts the copies of a stage: queries, their dout and figures, from row `first` on. */
template <int width>
DEVICE_INLINE void load_queries(shared_t stage, const attention_t &it, const attention_task_t &task,
                                int first)
{
    typedef backward_shape<width> shape;
    const unsigned plain = (unsigned)(it.heads * it.size);
    const size_t figure = task.pair * (size_t)it.padded + (unsigned)first;

    tile_load<width, STEP>(stage,
                           (const uint16_t *)it.qkv + attention_packed(it, task, 0) +
                               (size_t)(unsigned)first * (3 * plain),
                           3 * plain, it.length - first, it.size);
    tile_load<width, STEP>(stage + shape::tile,
                           (const uint16_t *)it.dout + attention_rows(it, task) +
                               (size_t)first * plain,
                           plain, it.length - first, it.size);
    tile_load_floats<STEP>(stage + 2 * shape::tile, it.lse2 + figure);
    tile_load_floats<STEP>(stage + 2 * shape::tile + STEP_FLOATS, it.dots + figure);
}

template <typename T, int width>
__global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    attention_keys_kernel(attention_t it, attention_grid_t grid)
{
    typedef backward_shape<width> shape;
    constexpr int tall = shape::tall;
    const attention_task_t task = attention_task(grid, it.heads);
    const int first = (int)task.tile * shape::rows;
    const unsigned stride = 3u * (unsigned)it.heads * (unsigned)it.size;
    const int warp_row = (int)(threadIdx.x / 32) * 16 * tall;
    float dk[tall][width / 8][4] = {}, dv[tall][width / 8][4] = {}, by[tall][2];

    DYNAMIC_SHARED(unsigned char, memory);
    const shared_t k_tile = shared_address(memory), v_tile = k_tile + shape::own;
    shared_t here = v_tile + shape::own, next = here + shape::key_stage;

    load_keys<width, shape::rows>(k_tile, it, task, first);
    load_queries<width>(here, it, task, first);
    async_commit();
    async_wait<0>();
    __syncthreads();
    for (int query = first; query < it.length; query += STEP) {
        if (query + STEP < it.length) {
            load_queries<width>(next, it, task, query + STEP);
            async_commit();
        }
#pragma unroll
        for (int chunk = 0; chunk < STEP; chunk += CHUNK) {
            const shared_t figures = here + 2 * shape::tile + (unsigned)chunk * 4;
            float s[tall][CHUNK / 8][4], dp[tall][CHUNK / 8][4];

            if (query + chunk + CHUNK <= first + warp_row) continue; /* before all its keys */
            multiply_transposed<T, width, tall, CHUNK>(s, k_tile, (unsigned)warp_row, here,
                                                       (unsigned)chunk);
            hide_future<false, tall, CHUNK>(s, first + warp_row, query + chunk);
            multiply_transposed<T, width, tall, CHUNK>(dp, v_tile, (unsigned)warp_row,
                                                       here + shape::tile, (unsigned)chunk);
            take_scores_of_keys<tall>(s, dp, figures, figures + STEP_FLOATS, it.scale * LOG2E);
            multiply_sums<T, width, tall, CHUNK>(dv, s, here + shape::tile, (unsigned)chunk);
            multiply_sums<T, width, tall, CHUNK>(dk, dp, here, (unsigned)chunk);
        }
        /* The next tiles are here for all, and all are done with these. */
        async_wait<0>();
        __syncthreads();
        swap_stages(here, next);
    }

    store_row_sums<width, tall>(here, dk, it.scale, it, task, first, 1);
    store_row_sums<width, tall>(next, dv, 1.0f, it, task, first, 2);

    uint16_t *to = (uint16_t *)it.dqkv + (size_t)(first + warp_row) * stride;
    const int there = it.length - first - warp_row;

#pragma unroll
    for (int m = 0; m < tall; m++)
        by[m][0] = by[m][1] = it.scale;
    tile_store<T, width, tall>(k_tile, (unsigned)warp_row, dk, by,
                               to + attention_packed(it, task, 1), stride, there, it.size);
#pragma unroll
    for (int m = 0; m < tall; m++)
        by[m][0] = by[m][1] = 1.0f;
    tile_store<T, width, tall>(v_tile, (unsigned)warp_row, dv, by,
                               to + attention_packed(it, task, 2), stride, there, it.size);
}

/* ---- dQ ------------------------------------------------------------------------------------- */

template <typename T, int width>
__global__ void __launch_bounds__(ATTENTION_THREADS, 2)
    attention_queries_kernel(attention_t it, attention_grid_t grid)
{
    typedef backward_shape<width> shape;
    constexpr int tall = shape::tall;
    const attention_task_t task = attention_task(grid, it.heads);
    const int first = (int)(grid.tiles - 1 - task.tile) * shape::rows;
    const int last = first + shape::rows < it.length ? first + shape::rows - 1 : it.length - 1;
    const unsigned stride = 3u * (unsigned)it.heads * (unsigned)it.size;
    const unsigned plain = (unsigned)(it.heads * it.size);
    const uint16_t *qkv = (const uint16_t *)it.qkv;
    const unsigned group = warp_lane() / 4;
    const int warp_row = (int)(threadIdx.x / 32) * 16 * tall;
    const float scale2 = it.scale * LOG2E;
    float dq[tall][width / 8][4] = {}, base[tall][2], dot[tall][2], by[tall][2];

    DYNAMIC_SHARED(unsigned char, memory);
    const shared_t q_tile = shared_address(memory), do_tile = q_tile + shape::own;
    shared_t here = do_tile + shape::own, next = here + 2 * shape::tile;

    tile_load<width, shape::rows>(q_tile,
                                  qkv + attention_packed(it, task, 0) + (size_t)first * stride,
                                  stride, it.length - first, it.size);
    tile_load<width, shape::rows>(
        do_tile, (const uint16_t *)it.dout + attention_rows(it, task) + (size_t)first * plain,
        plain, it.length - first, it.size);
#pragma unroll
    for (int m = 0; m < tall; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const size_t row = task.pair * (size_t)it.padded +
                               (size_t)(first + warp_row + 16 * m + 8 * half) + group;

            base[m][half] = it.lse2[row];
            dot[m][half] = it.dots[row];
            by[m][half] = it.scale;
        }
    }
    load_keys<width, STEP>(here, it, task, 0);
    async_commit();
    async_wait<0>();
    __syncthreads();
    for (int key = 0; key <= last; key += STEP) {
        if (key + STEP <= last) {
            load_keys<width, STEP>(next, it, task, key + STEP);
            async_commit();
        }
#pragma unroll 1
        for (int chunk = 0; chunk < STEP; chunk += CHUNK) {
            float s[tall][CHUNK / 8][4], ds[tall][CHUNK / 8][4];

            if (key + chunk >= first + warp_row + 16 * tall) break; /* after all its queries */
            multiply_transposed<T, width, tall, CHUNK>(s, q_tile, (unsigned)warp_row, here,
                                                       (unsigned)chunk);
            hide_future<true, tall, CHUNK>(s, first + warp_row, key + chunk);
            multiply_transposed<T, width, tall, CHUNK>(ds, do_tile, (unsigned)warp_row,
                                                       here + shape::tile, (unsigned)chunk);
#pragma unroll
            for (int m = 0; m < tall; m++) {
#pragma unroll
                for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float p = fast_exp2(fmaf(s[m][n][i], scale2, -base[m][i / 2]));

                        ds[m][n][i] = p * (ds[m][n][i] - dot[m][i / 2]);
                    }
                }
            }
            multiply_sums<T, width, tall, CHUNK>(dq, ds, here, (unsigned)chunk);
        }
        /* The next tiles are here for all, and all are done with these. */
        async_wait<0>();
        __syncthreads();
        swap_stages(here, next);
    }
    store_row_sums<width, tall>(here, dq, it.scale, it, task, first, 0);
    tile_store<T, width, tall>(q_tile, (unsigned)warp_row, dq, by,
                               (uint16_t *)it.dqkv + attention_packed(it, task, 0) +
                                   (size_t)(first + warp_row) * stride,
                               stride, it.length - first - warp_row, it.size);
}

/* ---- From the host -------------------------------------------------------------------------- */

static int prepare_kernel(const void *kernel, int shared)
{
    cudaFuncAttributes attributes;
    cudaError_t status = cudaFuncGetAttributes(&attributes, kernel); /* loads it */

    if (status != cudaSuccess || shared == 0) return status;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
}

template <typename T, int width> static int prepare(void)
{
    int status = prepare_kernel((const void *)attention_dots_kernel<T>, 0);

    if (status == 0) {
        status = prepare_kernel((const void *)attention_keys_kernel<T, width>,
                                backward_shape<width>::key_shared);
    }
    if (status == 0) {
        status = prepare_kernel((const void *)attention_queries_kernel<T, width>,
                                backward_shape<width>::query_shared);
    }
    return status;
}

template <typename T, int width> static int launch(const attention_t *it, cudaStream_t stream)
{
    void (*keys)(attention_t, attention_grid_t) = attention_keys_kernel<T, width>;
    void (*queries)(attention_t, attention_grid_t) = attention_queries_kernel<T, width>;
    const attention_grid_t grid = attention_grid(it, backward_shape<width>::rows);
    const size_t rows = (size_t)it->batch * (size_t)it->padded * (size_t)it->heads;
    const attention_t copy = *it;
    cudaError_t status;

    status = LAUNCH(attention_dots_kernel<T>,
                    (unsigned)((rows * DOTS_LANES + DOTS_THREADS - 1) / DOTS_THREADS), DOTS_THREADS,
                    0, stream, copy);
    if (status != cudaSuccess) return status;
    status = LAUNCH(keys, grid.tiles * grid.pairs, ATTENTION_THREADS,
                    backward_shape<width>::key_shared, stream, copy, grid);
    if (status != cudaSuccess) return status;
    return LAUNCH(queries, grid.tiles * grid.pairs, ATTENTION_THREADS,
                  backward_shape<width>::query_shared, stream, copy, grid);
}

template <typename T> static int prepare_size(int size)
{
    if (size <= 32) return prepare<T, 32>();
    if (size <= 64) return prepare<T, 64>();
    if (size <= 96) return prepare<T, 96>();
    return prepare<T, 128>();
}

size_t attention_half_parts(int batch, int length, int size)
{
    const int rows = size <= 64 ? backward_shape<64>::rows : backward_shape<128>::rows;

    return (size_t)batch * (size_t)((length + rows - 1) / rows);
}

int attention_half_prepare_backward(gpt2_cuda_type_t type, int size)
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

int attention_half_backward(gpt2_cuda_type_t type, const attention_t *it, cudaStream_t stream)
{
    return type == GPT2_CUDA_F16 ? launch_size<fp16_t>(it, stream)
                                 : launch_size<bf16_t>(it, stream);
}
