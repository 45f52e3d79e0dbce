/*
 * kernels.h - arithmetic on buffers: reduce, cast, pack, unpack, with the figures taken on the way.
 *
 * No state, no threads, no allocation. Host kernels pick AVX-512, AVX2+F16C or plain C when they
 * are called; tests/unit/naive.c holds the plain loop beside each, and all of them give the same
 * bits: no contraction, fixed order, round to nearest even.
 */
#ifndef DP_KERNELS_H
#define DP_KERNELS_H

#include "dp.h"

/*
 * Sum of squares that does not depend on the order of additions, so that a norm is bit-equal
 * whatever the bucketing: each block of DP_TALLY_BLOCK elements (counted from the tensor's start)
 * is summed in a fixed order in double, and the block sums are added exactly, in one fixed-point
 * number of 640 bits (least bit 2^-320) that holds the square of every fp32 value; what f64 adds
 * beyond its top saturates and reads Inf. Idea: the long accumulator of Kulisch, 1971.
 */
#define DP_TALLY_BLOCK 4096
#define DP_TALLY_WORDS 10

typedef struct dp_tally {
    uint64_t nonfinite;               /* Inf and NaN elements */
    double absmax;                    /* largest finite magnitude */
    uint64_t squares[DP_TALLY_WORDS]; /* low word first; all ones: saturated */
} dp_tally_t;

void dp_tally_init(dp_tally_t *tally);
void dp_tally_merge(dp_tally_t *into, const dp_tally_t *from);
double dp_tally_sum_squares(const dp_tally_t *tally);

/*
 * The figures of a step's gradients for an optimizer on a device, and the sums they follow
 * from. In that device's memory, but for a host's own: there only the words are used.
 */
#define DP_FIGURES_WORDS 24
typedef struct dp_figures {
    uint32_t skip; /* 1: leave the weights alone */
    float clip;    /* factor of all gradients */
    float norm;
    uint32_t unused;
    uint64_t sums[DP_FIGURES_WORDS]; /* as the device keeps them; zeros at the start */
} dp_figures_t;

/*
 * out_k[i] = postscale * (prescale * in_0[i] op prescale * in_1[i] op ...), for every k, in
 * ascending order of in. Outputs may be the inputs. A NaN result is the canonical quiet NaN, so
 * that its bits do not depend on which operand it came from. SUM and AVERAGE are the same here: the
 * caller folds 1/ranks into postscale; integers are divided by `divisor` after the sum, toward
 * zero.
 */
typedef struct dp_reduce_args {
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    const void *const *in; /* [in_count] pointers to [count] */
    int in_count;          /* at least 1 */
    void *const *out;      /* [out_count] pointers to [count] */
    int out_count;
    size_t count;
    double prescale; /* floats; computed in fp32 for 16- and 32-bit types */
    double postscale;
    int64_t divisor;   /* integers; 0 or 1: none */
    dp_tally_t *tally; /* of the result, floats only; added to; NULL: not wanted. Then the call
                          starts at a multiple of DP_TALLY_BLOCK from the tensor's start */
    int streaming;     /* 1: the result will not be read soon; non-temporal stores may pay */
} dp_reduce_args_t;

void dp_kernel_reduce(const dp_reduce_args_t *args);

/*
 * One tensor's part of a fused buffer. Casts where the types differ: to[i] = cast(from[i] * scale).
 * f32 <-> f16, f32 <-> bf16 and equal types (a copy when scale is 1). The cast never saturates: too
 * large becomes Inf.
 */
typedef struct dp_cast_piece {
    const void *from; /* [count] */
    void *to;         /* [count] */
    size_t count;
    double scale;      /* in fp32 unless the types are f64 */
    dp_tally_t *tally; /* of what is written; as above; NULL: not wanted */
} dp_cast_piece_t;

typedef struct dp_cast_args {
    dp_dtype_t from;
    dp_dtype_t to;
    const dp_cast_piece_t *pieces; /* [piece_count] */
    size_t piece_count;
    int streaming; /* 1: the result will not be read soon; non-temporal stores may pay */
} dp_cast_args_t;

void dp_kernel_cast(const dp_cast_args_t *args);

/*
 * The first half of a compressed reduction: out[i] = cast(scale * (in_0[i] + in_1[i] + ...)), fp32
 * in, `wire` (DP_F16 or DP_BF16) out, ascending order, fp32 sums.
 */
void dp_kernel_reduce_cast(const float *const *in, int in_count, dp_dtype_t wire, void *out,
                           size_t count, float scale);

/* The second half: out_k[i] = scale * float(in[i]) for every k, with the tally of what is written.
 */
void dp_kernel_expand(dp_dtype_t wire, const void *in, float *const *out, int out_count,
                      size_t count, float scale, dp_tally_t *tally);

/* A 64-bit checksum, for DP_CHECK_DATA; fast, not cryptographic; the same on every machine. */
uint64_t dp_kernel_hash(const void *data, size_t bytes, uint64_t seed);

/* A checksum of elements at the places first .. first + count - 1: the sum of a number for each
 * place and its bits. So the checksums of parts add up to that of the whole. */
uint64_t dp_kernel_hash_places(const float *data, size_t count, uint64_t first, uint64_t seed);

/* "avx512", "avx2" or "c": what the kernels above use on this machine. */
const char *dp_kernels_name(void);

#endif
