/*
 * cuda_cast.cu - pack and unpack on the device: any number of tensors in one launch, cast, scaled
 * and tallied in one pass over memory.
 */
#include "kernels/cuda_cast.cuh"

#include <string.h>

typedef struct cast_launch {
    const cast_entry_t *table; /* NULL: the entries below */
    unsigned long long blocks;
    unsigned count;
    cast_entry_t entries[DP_CUDA_PIECES_INLINE];
} cast_launch_t;

/* ---- On the device -------------------------------------------------------------------------- */

/* Adds up the threads' figures in an order that is always the same; the sum is in thread 0. */
static __device__ void gather_partials(partial_t *partial, partial_t *shared)
{
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    for (unsigned width = 16; width > 0; width /= 2) {
        const partial_t other = {__shfl_down_sync(0xffffffffu, partial->sum_squares, width),
                                 __shfl_down_sync(0xffffffffu, partial->absmax, width),
                                 __shfl_down_sync(0xffffffffu, partial->nonfinite, width)};

        if (lane < width) merge_partial(partial, &other);
    }
    if (lane == 0) shared[warp] = *partial;
    __syncthreads();
    for (unsigned i = 1; threadIdx.x == 0 && i < CAST_WARPS; i++)
        merge_partial(partial, &shared[i]);
}

template <typename From, typename To, bool is_copy>
static __global__ void __launch_bounds__(CAST_THREADS)
    cast_kernel(const __grid_constant__ cast_launch_t launch)
{
    __shared__ words_t vectors[DP_TALLY_BLOCK * sizeof(To) / VECTOR_BYTES + 1];
    __shared__ partial_t partials[CAST_WARPS];
    unsigned char *shared = (unsigned char *)vectors;
    const cast_entry_t *entries = launch.table != NULL ? launch.table : launch.entries;

    for (unsigned long long b = blockIdx.x; b < launch.blocks; b += gridDim.x) {
        const cast_entry_t *entry = &entries[find_entry(entries, launch.count, b)];
        const block_t<From, To> block = block_of<From, To>(entry, b);
        partial_t partial;

        cast_thread<From, To, is_copy>(block, threadIdx.x, shared, &partial);
        if (misalignment(block.to) != 0) {
            __syncthreads();
            store_thread<To>(block.to, block.count, threadIdx.x, shared);
        }
        if (!is_copy && entry->tally != NULL) {
            gather_partials(&partial, partials);
            if (threadIdx.x == 0) tally_add(entry->tally, &partial);
        }
        __syncthreads(); /* shared memory is used again */
    }
}

static __device__ void naive_one(const dp_cuda_piece_t &piece, size_t i, float value, double *seen,
                                 dp_dtype_t to)
{
    if (to == DP_F32) ((float *)piece.to)[i] = value;
    if (to == DP_F16) narrow(value, &((half_bits_t *)piece.to)[i]);
    if (to == DP_BF16) narrow(value, &((bfloat_bits_t *)piece.to)[i]);
    if (to == DP_F32) *seen = value;
    if (to == DP_F16) *seen = widen(((half_bits_t *)piece.to)[i]);
    if (to == DP_BF16) *seen = widen(((bfloat_bits_t *)piece.to)[i]);
}

static __global__ void naive_kernel(dp_dtype_t from, dp_dtype_t to, dp_cuda_piece_t piece)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    partial_t partial = {0.0, 0.0, 0};
    const float scale = (float)piece.scale;
    double seen = 0.0;

    if (i >= piece.count) return;
    if (from == DP_F64) {
        seen = ((const double *)piece.from)[i] * piece.scale;
        ((double *)piece.to)[i] = seen;
    }
    if (from == DP_F32) naive_one(piece, i, ((const float *)piece.from)[i] * scale, &seen, to);
    if (from == DP_F16)
        naive_one(piece, i, widen(((const half_bits_t *)piece.from)[i]) * scale, &seen, to);
    if (from == DP_BF16)
        naive_one(piece, i, widen(((const bfloat_bits_t *)piece.from)[i]) * scale, &seen, to);
    if (piece.tally == NULL) return;
    take_figures(&partial, seen);
    partial.sum_squares = 0.0;
    tally_add(piece.tally, &partial);
}

/* ---- From the host -------------------------------------------------------------------------- */

typedef void (*cast_function_t)(const cast_launch_t);

/* NULL: no such cast. */
static cast_function_t choose(dp_dtype_t from, dp_dtype_t to, bool is_copy)
{
    if (is_copy) {
        switch (from) {
        case DP_U8:
        case DP_I8:
        case DP_BOOL:
            return cast_kernel<uint8_t, uint8_t, true>;
        case DP_U16:
        case DP_I16:
        case DP_F16:
        case DP_BF16:
            return cast_kernel<uint16_t, uint16_t, true>;
        case DP_U32:
        case DP_I32:
        case DP_F32:
            return cast_kernel<uint32_t, uint32_t, true>;
        default:
            return cast_kernel<uint64_t, uint64_t, true>;
        }
    }
    if (from == DP_F32 && to == DP_F32) return cast_kernel<float, float, false>;
    if (from == DP_F32 && to == DP_F16) return cast_kernel<float, half_bits_t, false>;
    if (from == DP_F32 && to == DP_BF16) return cast_kernel<float, bfloat_bits_t, false>;
    if (from == DP_F16 && to == DP_F32) return cast_kernel<half_bits_t, float, false>;
    if (from == DP_F16 && to == DP_F16) return cast_kernel<half_bits_t, half_bits_t, false>;
    if (from == DP_BF16 && to == DP_F32) return cast_kernel<bfloat_bits_t, float, false>;
    if (from == DP_BF16 && to == DP_BF16) return cast_kernel<bfloat_bits_t, bfloat_bits_t, false>;
    if (from == DP_F64 && to == DP_F64) return cast_kernel<double, double, false>;
    return NULL;
}

/* The entries of pieces that are not empty; returns how many. */
static unsigned fill_entries(cast_entry_t *entries, const dp_cuda_piece_t *pieces, size_t count,
                             unsigned long long *blocks)
{
    unsigned filled = 0;

    *blocks = 0;
    for (size_t i = 0; i < count; i++) {
        if (pieces[i].count == 0) continue;
        entries[filled].from = (const unsigned char *)pieces[i].from;
        entries[filled].to = (unsigned char *)pieces[i].to;
        entries[filled].count = pieces[i].count;
        entries[filled].first_block = *blocks;
        entries[filled].tally = pieces[i].tally;
        entries[filled].scale = pieces[i].scale;
        *blocks += (pieces[i].count + DP_TALLY_BLOCK - 1) / DP_TALLY_BLOCK;
        filled++;
    }
    return filled;
}

static bool is_plain(dp_dtype_t from, dp_dtype_t to, const dp_cuda_piece_t *pieces, size_t count)
{
    bool is_float = from == DP_F16 || from == DP_BF16 || from == DP_F32 || from == DP_F64;

    if (from != to) return false;
    for (size_t i = 0; is_float && i < count; i++) {
        if (pieces[i].scale != 1.0 || pieces[i].tally != NULL) return false;
    }
    return true;
}

extern "C" size_t dp_cuda_table_bytes(size_t pieces)
{
    return pieces * sizeof(cast_entry_t);
}

extern "C" int dp_cuda_cast(dp_dtype_t from, dp_dtype_t to, const dp_cuda_piece_t *pieces,
                            size_t piece_count, const dp_cuda_table_t *table, void *stream)
{
    const cast_function_t function = choose(from, to, is_plain(from, to, pieces, piece_count));
    cast_launch_t launch;
    unsigned grid;

    if (function == NULL) return cudaErrorInvalidValue;
    memset(&launch, 0, sizeof(launch));
    if (piece_count <= DP_CUDA_PIECES_INLINE) {
        launch.count = fill_entries(launch.entries, pieces, piece_count, &launch.blocks);
    } else {
        cudaError_t status;

        if (table == NULL || table->bytes < dp_cuda_table_bytes(piece_count)) {
            return cudaErrorInvalidValue;
        }
        launch.count =
            fill_entries((cast_entry_t *)table->host, pieces, piece_count, &launch.blocks);
        launch.table = (const cast_entry_t *)table->device;
        status = cudaMemcpyAsync(table->device, table->host, dp_cuda_table_bytes(launch.count),
                                 cudaMemcpyHostToDevice, (cudaStream_t)stream);
        if (status != cudaSuccess) return status;
    }
    if (launch.count == 0) return cudaSuccess;
    grid = (unsigned)(launch.blocks < 0x7fffffffu ? launch.blocks : 0x7fffffffu);
    return DP_LAUNCH(function, grid, CAST_THREADS, 0, stream, launch);
}

extern "C" int dp_cuda_naive_cast(dp_dtype_t from, dp_dtype_t to, const dp_cuda_piece_t *piece,
                                  void *stream)
{
    const unsigned threads = 256;
    const size_t blocks = (piece->count + threads - 1) / threads;

    if (choose(from, to, false) == NULL || blocks > 0x7fffffffu) return cudaErrorInvalidValue;
    if (blocks == 0) return cudaSuccess;
    return DP_LAUNCH(naive_kernel, (unsigned)blocks, threads, 0, stream, from, to, *piece);
}

/* Loads what this file holds. */
int dp_cuda_cast_preload(void)
{
    static const dp_dtype_t types[][2] = {{DP_F32, DP_F32},   {DP_F32, DP_F16}, {DP_F32, DP_BF16},
                                          {DP_F16, DP_F32},   {DP_F16, DP_F16}, {DP_BF16, DP_F32},
                                          {DP_BF16, DP_BF16}, {DP_F64, DP_F64}};
    static const dp_dtype_t copies[] = {DP_U8, DP_U16, DP_U32, DP_U64};
    cudaFuncAttributes attributes;
    cudaError_t status = cudaSuccess;

    for (size_t i = 0; status == cudaSuccess && i < sizeof(types) / sizeof(types[0]); i++) {
        status = cudaFuncGetAttributes(&attributes,
                                       (const void *)choose(types[i][0], types[i][1], false));
    }
    for (size_t i = 0; status == cudaSuccess && i < sizeof(copies) / sizeof(copies[0]); i++) {
        status =
            cudaFuncGetAttributes(&attributes, (const void *)choose(copies[i], copies[i], true));
    }
    return status;
}
