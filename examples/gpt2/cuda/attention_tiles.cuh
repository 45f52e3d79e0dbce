/*
 * attention_tiles.cuh - tiles of queries, keys and values in shared memory, for the 16-bit kernels.
 *
 * A tile is [rows][width] of bf16 or fp16, width one of 32, 64, 96, 128; a head of a smaller size
 * is padded with zeros, which change no product. It is stored in chunks of 16 bytes whose place in
 * their row is permuted ("swizzled") so that the eight rows an ldmatrix reads at one column lie in
 * eight different groups of banks. The chunk a row begins at follows from its number: with 8 or 16
 * chunks a row all rows begin at the same banks, so three bits of the row are mixed in; with 4 or
 * 12 every other row begins in the other half, so two bits of row / 2 do.
 *
 * Fragments are those of mma.cuh. It must not know what is computed with them.
 */
#ifndef GPT2_CUDA_ATTENTION_TILES_CUH
#define GPT2_CUDA_ATTENTION_TILES_CUH

#include "examples/gpt2/cuda/attention_kernels.h"
#include "examples/gpt2/cuda/mma.cuh"

#define ATTENTION_WARPS 4
#define ATTENTION_THREADS (32 * ATTENTION_WARPS)

/* Bytes of a tile. */
template <int width> DEVICE_INLINE constexpr int tile_bytes(int rows)
{
    return rows * width * 2;
}

template <int width> DEVICE_INLINE unsigned tile_swizzle(unsigned row)
{
    return width % 64 == 0 ? row & 7u : row / 2 & 3u;
}

/* Byte of a chunk in a tile. */
template <int width> DEVICE_INLINE unsigned tile_place(unsigned row, unsigned chunk)
{
    return row * (width * 2) + (chunk ^ tile_swizzle<width>(row)) * 16;
}

/* ---- Between memory and tiles --------------------------------------------------------------- */

typedef struct chunk_at {
    unsigned row, chunk;
} chunk_at_t;

/* Chunk `thread` of turn i, when `threads` threads take the chunks of a tile in turns. Where whole
 * rows are a turn, a thread's places differ by constants, which are worth a register each. */
template <unsigned chunks, unsigned threads>
DEVICE_INLINE chunk_at_t chunk_of(unsigned thread, unsigned i)
{
    if (threads % chunks == 0)
        return chunk_at_t{thread / chunks + i * (threads / chunks), thread % chunks};
    return chunk_at_t{(thread + i * threads) / chunks, (thread + i * threads) % chunks};
}

/*
 * Starts the copy of rows from [..][stride] of which `there` exist, `size` elements each; what does
 * not exist becomes 0. The whole block calls. Commit and wait are the caller's.
 */
template <int width, int rows>
DEVICE_INLINE void tile_load(shared_t tile, const uint16_t *from, unsigned stride, int there,
                             int size)
{
    constexpr unsigned chunks = width / 8;

    static_assert(rows * chunks % ATTENTION_THREADS == 0, "every thread copies as much");
#pragma unroll
    for (unsigned i = 0; i < rows * chunks / ATTENTION_THREADS; i++) {
        const chunk_at_t at = chunk_of<chunks, ATTENTION_THREADS>(threadIdx.x, i);
        const bool is_there = (int)at.row < there && (int)at.chunk * 8 < size;

        async_copy(tile + tile_place<width>(at.row, at.chunk),
                   is_there ? from + at.row * stride + at.chunk * 8 : from, is_there);
    }
}

/* Starts the copy of `count` floats, a multiple of 4, aligned to 16 bytes. */
template <int count> DEVICE_INLINE void tile_load_floats(shared_t to, const float *from)
{
    static_assert(count / 4 <= ATTENTION_THREADS, "one copy a thread");
    if (threadIdx.x < count / 4)
        async_copy(to + threadIdx.x * 16, from + (size_t)threadIdx.x * 4, true);
}

/*
 * Writes a warp's sums [16 tall][width] times `by` as T to memory, by way of its own rows of a
 * tile, so that whole chunks are written. `there` rows exist. The warp may not need the rows any
 * more.
 */
template <typename T, int width, int tall>
DEVICE_INLINE void tile_store(shared_t tile, unsigned first_row,
                              const float (&sums)[tall][width / 8][4], const float (&by)[tall][2],
                              uint16_t *to, unsigned stride, int there, int size)
{
    const unsigned group = warp_lane() / 4, quad = warp_lane() % 4;
    constexpr unsigned chunks = width / 8;

    __syncwarp();
#pragma unroll
    for (int m = 0; m < tall; m++) {
#pragma unroll
        for (int n = 0; n < width / 8; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const unsigned row = first_row + (unsigned)(16 * m + 8 * half) + group;

                shared_store(tile + tile_place<width>(row, (unsigned)n) + quad * 4,
                             pack_pair<T>(sums[m][n][2 * half] * by[m][half],
                                          sums[m][n][2 * half + 1] * by[m][half]));
            }
        }
    }
    __syncwarp();
#pragma unroll
    for (unsigned i = 0; i < 16 * tall * chunks / 32; i++) {
        const chunk_at_t at = chunk_of<chunks, 32>(warp_lane(), i);
        const uint4 words = shared_load_16(tile + tile_place<width>(first_row + at.row, at.chunk));

        if ((int)at.row < there && (int)at.chunk * 8 < size)
            global_store_16(to + at.row * stride + at.chunk * 8, words);
    }
}

/* Two stages of copies: what is here, and what comes next. */
DEVICE_INLINE void swap_stages(shared_t &here, shared_t &next)
{
    const shared_t was_here = here;

    here = next;
    next = was_here;
}

/* ---- Fragments ------------------------------------------------------------------------------ */

/*
 * Where a thread's row of an ldmatrix begins: 16 rows from first_row, a multiple of 16, on; row and
 * chunk are the thread's among them, the chunk one of the pair that holds columns 16 k .. + 15.
 *
 * The swizzle permutes chunks inside of 128 bytes (of 64, where two bits of the row are mixed in),
 * at which tiles and rows are aligned. So another k there is an exclusive or on top of one address,
 * which saves a register for each.
 */
template <int width>
DEVICE_INLINE shared_t tile_row(shared_t tile, unsigned first_row, unsigned row, unsigned chunk,
                                int k)
{
    constexpr unsigned pairs = width % 64 == 0 ? 4 : 2;
    const shared_t first = tile + tile_place<width>(row, chunk);

    return (first ^ ((unsigned)k % pairs * 32)) + (unsigned)k / pairs * (pairs * 32) +
           first_row * (width * 2);
}

/* Rows first_row .. + 15, columns 16 k .. + 15, as A. */
template <int width>
DEVICE_INLINE void tile_as_a(uint32_t (&a)[4], shared_t tile, unsigned first_row, int k)
{
    ldmatrix(a, tile_row<width>(tile, first_row, warp_lane() % 16, warp_lane() / 16, k));
}

/* The transpose of rows first_row .. + 15, columns 16 k .. + 15, as two B beside each other: the
 * first of rows first_row .. + 7 in b[0], b[1], the other in b[2], b[3]. */
template <int width>
DEVICE_INLINE void tile_as_b_transposed(uint32_t (&b)[4], shared_t tile, unsigned first_row, int k)
{
    ldmatrix(b, tile_row<width>(tile, first_row, warp_lane() % 8 + warp_lane() / 16 * 8,
                                warp_lane() / 8 % 2, k));
}

/* Rows first_row .. + 15, columns 16 n .. + 15, as two B beside each other. */
template <int width>
DEVICE_INLINE void tile_as_b(uint32_t (&b)[4], shared_t tile, unsigned first_row, int n)
{
    ldmatrix_transposed(b, tile_row<width>(tile, first_row, warp_lane() % 16, warp_lane() / 16, n));
}

/* ---- Products of a warp -----------------------------------------------------------------------
 *
 * A warp owns 16 * tall rows of every product; tall is 2 where registers allow, as each fragment
 * read from shared memory then serves two mma.
 */

template <int tall, int columns> DEVICE_INLINE void set_zero(float (&c)[tall][columns][4])
{
#pragma unroll
    for (int m = 0; m < tall; m++) {
#pragma unroll
        for (int n = 0; n < columns; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[m][n][i] = 0.0f;
        }
    }
}

/* c += A B^T over columns 16 k .. + 15 of both, B rows b_row .. + columns of a tile. */
template <typename T, int width, int tall, int columns>
DEVICE_INLINE void multiply_slice(float (&c)[tall][columns / 8][4], const uint32_t (&a)[tall][4],
                                  shared_t b_tile, unsigned b_row, int k)
{
    uint32_t b[4];

#pragma unroll
    for (int n = 0; n < columns / 16; n++) {
        tile_as_b_transposed<width>(b, b_tile, b_row + (unsigned)(16 * n), k);
#pragma unroll
        for (int m = 0; m < tall; m++) {
            mma<T>(c[m][2 * n], a[m], b[0], b[1]);
            mma<T>(c[m][2 * n + 1], a[m], b[2], b[3]);
        }
    }
}

/* c = A B^T: A is rows a_row .. of a tile, B rows b_row .. + columns of another. */
template <typename T, int width, int tall, int columns>
DEVICE_INLINE void multiply_transposed(float (&c)[tall][columns / 8][4], shared_t a_tile,
                                       unsigned a_row, shared_t b_tile, unsigned b_row)
{
    set_zero(c);
#pragma unroll
    for (int k = 0; k < width / 16; k++) {
        uint32_t a[tall][4];

#pragma unroll
        for (int m = 0; m < tall; m++)
            tile_as_a<width>(a[m], a_tile, a_row + (unsigned)(16 * m), k);
        multiply_slice<T, width, tall, columns>(c, a, b_tile, b_row, k);
    }
}

/* c += P B: P is sums [16 tall][inner], rounded here, B rows b_row .. + inner of a tile. */
template <typename T, int width, int tall, int inner>
DEVICE_INLINE void multiply_sums(float (&c)[tall][width / 8][4],
                                 const float (&p)[tall][inner / 8][4], shared_t b_tile,
                                 unsigned b_row)
{
#pragma unroll
    for (int k = 0; k < inner / 16; k++) {
        uint32_t a[tall][4], b[4];

#pragma unroll
        for (int m = 0; m < tall; m++) {
            a[m][0] = pack_pair<T>(p[m][2 * k][0], p[m][2 * k][1]);
            a[m][1] = pack_pair<T>(p[m][2 * k][2], p[m][2 * k][3]);
            a[m][2] = pack_pair<T>(p[m][2 * k + 1][0], p[m][2 * k + 1][1]);
            a[m][3] = pack_pair<T>(p[m][2 * k + 1][2], p[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < width / 16; n++) {
            tile_as_b<width>(b, b_tile, b_row + (unsigned)(16 * k), n);
#pragma unroll
            for (int m = 0; m < tall; m++) {
                mma<T>(c[m][2 * n], a[m], b[0], b[1]);
                mma<T>(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Element (row, column) of sums [16 tall][columns] that begin at (first_row, first_column) becomes
 * -Inf where it is hidden: in a product of queries and keys, where the key (the column; or, if
 * columns are queries, the row) comes after the query. One branch, as most tiles have none. */
template <bool columns_are_keys, int tall, int columns>
DEVICE_INLINE void hide_future(float (&s)[tall][columns / 8][4], int first_row, int first_column)
{
    const int ahead =
        first_column - first_row + (int)(warp_lane() % 4 * 2) - (int)(warp_lane() / 4);
    const bool is_crossed = columns_are_keys ? first_column + columns - 1 > first_row
                                             : first_row + 16 * tall - 1 > first_column;

    if (!is_crossed) return;
#pragma unroll
    for (int m = 0; m < tall; m++) {
#pragma unroll
        for (int n = 0; n < columns / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int here = ahead + 8 * n + i % 2 - 16 * m - i / 2 * 8; /* column - row */

                if (columns_are_keys ? here > 0 : here < 0) s[m][n][i] = -INFINITY;
            }
        }
    }
}

/* ---- The tiles of a thread block ------------------------------------------------------------ */

/* The tile, and its head, that a block works on. Blocks start in about the order of their numbers:
 * heads go in groups whose keys and values stay in the second-level cache, and inside a group the
 * tiles with the most work come first, which leaves the short ones to fill the end. */
typedef struct attention_grid {
    unsigned tiles; /* of a head */
    unsigned pairs; /* of batch and head */
    unsigned group; /* pairs that run together */
} attention_grid_t;

typedef struct attention_task {
    unsigned tile; /* 0 has the most work */
    unsigned batch, head;
    size_t pair;
} attention_task_t;

DEVICE_INLINE attention_task_t attention_task(const attention_grid_t &grid, int heads)
{
    const unsigned of_group = blockIdx.x / (grid.group * grid.tiles);
    const unsigned first = of_group * grid.group;
    const unsigned here = grid.pairs - first < grid.group ? grid.pairs - first : grid.group;
    const unsigned in_group = blockIdx.x % (grid.group * grid.tiles);
    const unsigned pair = first + in_group % here;

    return attention_task_t{in_group / here, pair / (unsigned)heads, pair % (unsigned)heads, pair};
}

/* Two blocks on each of 160 multiprocessors. */
#define ATTENTION_WAVE 320

/* A group has 16 MiB of keys and values, less than any second-level cache since sm_80, but not
 * less than a wave of blocks, and of short sequences not more pairs than that. */
static inline attention_grid_t attention_grid(const attention_t *it, int rows)
{
    const size_t bytes = (size_t)it->length * (size_t)it->size * 2 * 2;
    attention_grid_t grid;
    size_t group = ((size_t)16 << 20) / bytes;

    grid.tiles = ((unsigned)it->length + (unsigned)rows - 1) / (unsigned)rows;
    grid.pairs = (unsigned)it->batch * (unsigned)it->heads;
    if (group * grid.tiles < ATTENTION_WAVE) group = ATTENTION_WAVE / grid.tiles + 1;
    if (group > ATTENTION_WAVE) group = ATTENTION_WAVE;
    grid.group = group < grid.pairs ? (unsigned)group : grid.pairs;
    return grid;
}

/* Where a head begins in the packed projection: which is 0 for queries, 1 keys, 2 values. */
DEVICE_INLINE size_t attention_packed(const attention_t &it, const attention_task_t &task,
                                      int which)
{
    return (((size_t)task.batch * (size_t)it.length * 3 + (size_t)which) * (size_t)it.heads +
            task.head) *
           (size_t)it.size;
}

/* And in out and dout. */
DEVICE_INLINE size_t attention_rows(const attention_t &it, const attention_task_t &task)
{
    return ((size_t)task.batch * (size_t)it.length * (size_t)it.heads + task.head) *
           (size_t)it.size;
}

/* Starts the copies of keys from `first` on, and of their values behind them. */
template <int width, int rows>
DEVICE_INLINE void load_keys(shared_t stage, const attention_t &it, const attention_task_t &task,
                             int first)
{
    const unsigned row = (unsigned)(it.heads * it.size);
    const uint16_t *keys = (const uint16_t *)it.qkv + attention_packed(it, task, 1) +
                           (size_t)(unsigned)first * (3 * row);

    tile_load<width, rows>(stage, keys, 3 * row, it.length - first, it.size);
    tile_load<width, rows>(stage + (shared_t)tile_bytes<width>(rows), keys + row, 3 * row,
                           it.length - first, it.size);
}

#endif
