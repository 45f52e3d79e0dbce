/*
 * cuda.h - the kernels of kernels.h for buffers in the memory of a CUDA device.
 *
 * Every function enqueues on a stream and returns a cudaError_t as int: 0, or why nothing was
 * enqueued. No state, no allocation, no synchronisation. Streams travel as void *, so that C files
 * need no CUDA header. kernels/cuda_naive.cu holds the plain loop beside each.
 */
#ifndef DP_KERNELS_CUDA_H
#define DP_KERNELS_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

#define DP_CUDA_LIMBS 20 /* of 32 bits: the 640 of dp_tally_t */

/*
 * A tally under way in device memory; all zero at the start. The sum of squares is held in limbs of
 * 32 bits with room for carries, so that adding is a few integer atomics, whose order does not
 * show. A block's own sum has a fixed order that depends on neither alignment nor fusion, and is
 * not the order of the host kernels: figures of the two may differ in their last bits.
 */
typedef struct dp_cuda_tally {
    unsigned long long nonfinite;
    unsigned long long absmax; /* bits of a double that is not negative: they order as it does */
    unsigned long long is_saturated;
    unsigned long long limbs[DP_CUDA_LIMBS];
} dp_cuda_tally_t;

/* Adds what a copy of a device tally in host memory holds. */
void dp_cuda_tally_read(const dp_cuda_tally_t *from, dp_tally_t *into);

/* Adds up [count] tallies in the sums of figures; all in device memory. */
int dp_cuda_figures_add(dp_figures_t *figures, const dp_cuda_tally_t *tallies, size_t count,
                        void *stream);

/* Adds the sums of one to those of another, and clears the former. */
int dp_cuda_figures_merge(dp_figures_t *into, dp_figures_t *from, void *stream);

/*
 * Settles the words of figures from their sums, which begin anew: the norm, the factor that brings
 * it to clip_norm (0: any norm will do), and skip where an element is Inf or NaN or *abort_word,
 * the device's skip flag, is not 0. With is_failed only skip is set. The same on all ranks whose
 * sums are the same.
 */
int dp_cuda_figures_decide(dp_figures_t *figures, const uint32_t *abort_word, double clip_norm,
                           int is_failed, void *stream);

/* As dp_cast_piece_t, in device memory. */
typedef struct dp_cuda_piece {
    const void *from;
    void *to;
    size_t count;
    double scale;
    dp_cuda_tally_t *tally; /* NULL: not wanted */
} dp_cuda_piece_t;

/* Pieces that come in one launch without a table. */
#define DP_CUDA_PIECES_INLINE 32

/* Where a longer list travels; the caller must not use it again before the launch has run. */
typedef struct dp_cuda_table {
    void *host;   /* [bytes] pinned */
    void *device; /* [bytes] */
    size_t bytes; /* dp_cuda_table_bytes() of the longest list */
} dp_cuda_table_t;
size_t dp_cuda_table_bytes(size_t pieces);

/*
 * dp_kernel_cast() with any number of pieces in one launch and one pass over memory: accesses
 * of 8 or 16 bytes whatever the alignment of from and to (which is at least that of their types).
 *
 * @param table may be NULL up to DP_CUDA_PIECES_INLINE pieces
 */
int dp_cuda_cast(dp_dtype_t from, dp_dtype_t to, const dp_cuda_piece_t *pieces, size_t piece_count,
                 const dp_cuda_table_t *table, void *stream);

/* dp_kernel_reduce() of up to DP_CUDA_REDUCE_MAX inputs into one output; no tally. */
#define DP_CUDA_REDUCE_MAX 16
int dp_cuda_reduce(const dp_reduce_args_t *args, void *stream);

/* Fills with the identity of a reduction: 0, 1, or the other end of the type. */
int dp_cuda_fill_identity(dp_dtype_t dtype, dp_reduce_t reduce, void *to, size_t count,
                          void *stream);

/* *word = value, once the stream has come here. */
int dp_cuda_set_word(uint32_t *word, uint32_t value, void *stream);

/* Loads every kernel, so that none is loaded later while a collective holds the device. */
int dp_cuda_kernels_preload(void);

/* The reference for dp_cuda_cast(), one thread per element; the tally without its sum of squares.
 */
int dp_cuda_naive_cast(dp_dtype_t from, dp_dtype_t to, const dp_cuda_piece_t *piece, void *stream);

#ifdef __cplusplus
}
#endif
#endif
