/*
 * classifier.cu - softmax, loss and the logits' gradient in one kernel; normalised probabilities
 * never lie in memory.
 *
 * A block per row. First each thread finds, of the logits it owns, the largest and the sum of
 * exponentials relative to it; these pairs are joined over the block (the online softmax of
 * Milakov and Gimelshein 2018, arXiv:1805.02867); then the gradient is written over the logits. A
 * 16-bit row of up to KEPT_COLUMNS stays in registers from the first step to the last, so memory is
 * read once and written once. Other rows are read again, mostly from the L2 cache: rows are taken
 * from the last to the first, because the matrix product before wrote the last ones last.
 *
 * Columns are numbered in 32 bits, elements of the matrix in 64.
 */
#include "examples/gpt2/cuda/device.cuh"

#define THREADS 512 /* of a row that is read twice */
#define KEPT 7      /* vectors that a thread holds otherwise, in 28 registers */
#define KEPT_THREADS 1024
#define KEPT_COLUMNS (KEPT * KEPT_THREADS * VECTOR) /* 57344: GPT-2's 50304 fit */
#define LN2 0.6931471805599453f

/* ---- Exponentials -----------------------------------------------------------------------------
 *
 * A logit's exponent is counted from the base, which is the largest logit in units of the exponent.
 * 16-bit types take powers of two by the special function unit: one fused multiply-add before it,
 * and an error of some 2^-22, far below fp16's 2^-12. fp32, which is for comparisons, takes expf().
 * The sums are relative to the base as it was rounded, so rounding it does not change the loss.
 */

template <typename T> DEVICE_INLINE float base_of(float logit)
{
    return sizeof(T) == 2 ? logit * LOG2E : logit;
}

template <typename T> DEVICE_INLINE float exponent_of(float logit, float base)
{
    return sizeof(T) == 2 ? fmaf(logit, LOG2E, -base) : logit - base;
}

template <typename T> DEVICE_INLINE float power(float exponent)
{
    return sizeof(T) == 2 ? fast_exp2(exponent) : expf(exponent);
}

/* The natural logarithm of a sum of powers relative to the base. */
template <typename T> DEVICE_INLINE float log_of(float base, float sum)
{
    return sizeof(T) == 2 ? (base + log2f(sum)) * LN2 : base + logf(sum);
}

/* The logits seen so far: base and sum of powers; -inf and 0 before the first. */
typedef struct tail {
    float base, sum;
} tail_t;

template <typename T> DEVICE_INLINE tail_t join(tail_t a, tail_t b)
{
    const float base = fmaxf(a.base, b.base);
    tail_t joined = {base, 0.0f};

    /* -inf - -inf would be a NaN; with nothing seen there is nothing to add. */
    if (a.sum != 0.0f) joined.sum += a.sum * power<T>(a.base - base);
    if (b.sum != 0.0f) joined.sum += b.sum * power<T>(b.base - base);
    return joined;
}

template <typename T> DEVICE_INLINE tail_t join_warp(tail_t own)
{
#pragma unroll
    for (int bits = WARP / 2; bits > 0; bits /= 2) {
        tail_t other;

        other.base = __shfl_xor_sync(EVERY_LANE, own.base, bits);
        other.sum = __shfl_xor_sync(EVERY_LANE, own.sum, bits);
        own = join<T>(own, other);
    }
    return own;
}

/* The block's tail, in every thread. shared: one of each warp, up to WARP of them. */
template <typename T> DEVICE_INLINE tail_t join_block(tail_t own, tail_t *shared, unsigned warps)
{
    const unsigned lane = threadIdx.x % WARP;

    own = join_warp<T>(own);
    if (lane == 0) shared[threadIdx.x / WARP] = own;
    __syncthreads();
    own.base = lane < warps ? shared[lane].base : -INFINITY;
    own.sum = lane < warps ? shared[lane].sum : 0.0f;
    return join_warp<T>(own);
}

/* ---- Eight logits --------------------------------------------------------------------------- */

/* Behind the vocabulary x becomes `as`. One question for eight: only a row's end has any such. */
DEVICE_INLINE void set_padding(float (&x)[VECTOR], unsigned at, unsigned vocab, float as)
{
    if (at + VECTOR <= vocab) return;
#pragma unroll
    for (unsigned i = 0; i < VECTOR; i++) {
        if (at + i >= vocab) x[i] = as;
    }
}

/* Adds logits at.. of a row to what a thread has seen. */
template <typename T>
DEVICE_INLINE void see(tail_t &tail, float (&x)[VECTOR], unsigned at, unsigned vocab)
{
    float most = -INFINITY, base;

    set_padding(x, at, vocab, -INFINITY);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        most = fmaxf(most, x[i]);
    base = fmaxf(tail.base, base_of<T>(most));
    if (tail.sum != 0.0f && base > tail.base) tail.sum *= power<T>(tail.base - base);
    tail.base = base;
    if (base == -INFINITY) base = 0.0f; /* so that powers become 0 and not NaN */
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        tail.sum += power<T>(exponent_of<T>(x[i], base));
}

/* Logits at.. become their gradients. by: weight / sum. */
template <typename T>
DEVICE_INLINE void differentiate(float (&x)[VECTOR], unsigned at, unsigned vocab, float base,
                                 float by, unsigned target, float weight)
{
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        x[i] = power<T>(exponent_of<T>(x[i], base)) * by;
    if (target - at < VECTOR) {
#pragma unroll
        for (unsigned i = 0; i < VECTOR; i++) {
            if (at + i == target) x[i] -= weight;
        }
    }
    set_padding(x, at, vocab, 0.0f);
}

/* ---- Kernels -------------------------------------------------------------------------------- */

struct classifier_args {
    float *losses;
    void *logits;
    const int32_t *targets;
    float weight;
    int gradient;
    unsigned rows, vocab, padded;
};

/* A block's row, and what its target is; a target outside of the vocabulary makes NaN. */
template <typename T> struct classifier_row {
    T *logits;
    size_t row;
    unsigned target;
    bool is_known;
    float target_logit; /* thread 0; read before anything is overwritten */
};

template <typename T>
DEVICE_INLINE classifier_row<T> row_of_block(const struct classifier_args &args)
{
    classifier_row<T> row;

    row.row = args.rows - 1 - blockIdx.x;
    row.logits = (T *)args.logits + row.row * args.padded;
    row.target = (unsigned)args.targets[row.row];
    row.is_known = row.target < args.vocab; /* a negative one is a large unsigned */
    row.target_logit = 0.0f;
    if (threadIdx.x == 0) {
        row.target_logit = row.is_known ? widen(row.logits[row.target]) : nanf("");
    }
    return row;
}

template <typename T>
DEVICE_INLINE void write_loss(const struct classifier_args &args, const classifier_row<T> &row,
                              tail_t tail)
{
    if (threadIdx.x == 0) {
        args.losses[row.row] = log_of<T>(tail.base, tail.sum) - row.target_logit;
    }
}

/* Bytes per logit of 16 bits: 2 read, and 2 again, mostly from L2, 2 written. */
template <typename T, bool aligned>
static __global__ void __launch_bounds__(THREADS)
    classifier_kernel(const struct classifier_args args)
{
    __shared__ tail_t shared[THREADS / WARP];
    const classifier_row<T> row = row_of_block<T>(args);
    const unsigned first = threadIdx.x * VECTOR;
    tail_t tail = {-INFINITY, 0.0f};
    float by, x[VECTOR];

    for (unsigned at = first; at < args.vocab; at += THREADS * VECTOR) {
        load<aligned>(row.logits + at, args.padded - at, x);
        see<T>(tail, x, at, args.vocab);
    }
    tail = join_block<T>(tail, shared, THREADS / WARP);
    write_loss(args, row, tail);
    if (!args.gradient) return;
    by = row.is_known ? args.weight / tail.sum : nanf("");
    for (unsigned at = first; at < args.padded; at += THREADS * VECTOR) {
        load<aligned>(row.logits + at, args.padded - at, x);
        differentiate<T>(x, at, args.vocab, tail.base, by, row.target, args.weight);
        store<aligned>(row.logits + at, args.padded - at, x);
    }
}

/* Rows of up to KEPT_COLUMNS, aligned. Bytes per logit: 2 read, 2 written. */
template <typename T>
static __global__ void __launch_bounds__(KEPT_THREADS)
    classifier_kept_kernel(const struct classifier_args args)
{
    __shared__ tail_t shared[KEPT_THREADS / WARP];
    const classifier_row<T> row = row_of_block<T>(args);
    const unsigned first = threadIdx.x * VECTOR;
    tail_t tail = {-INFINITY, 0.0f};
    uint4 kept[KEPT];
    float by, x[VECTOR];

    /* All of them are under way before the first is looked at. */
#pragma unroll
    for (unsigned j = 0; j < KEPT; j++) {
        const unsigned at = first + j * KEPT_THREADS * VECTOR;

        if (at < args.padded) kept[j] = *(const uint4 *)(const void *)(row.logits + at);
    }
#pragma unroll
    for (unsigned j = 0; j < KEPT; j++) {
        const unsigned at = first + j * KEPT_THREADS * VECTOR;

        if (at >= args.vocab) continue;
        unpack((const T *)(const void *)&kept[j], x);
        see<T>(tail, x, at, args.vocab);
    }
    tail = join_block<T>(tail, shared, KEPT_THREADS / WARP);
    write_loss(args, row, tail);
    if (!args.gradient) return;
    by = row.is_known ? args.weight / tail.sum : nanf("");
#pragma unroll
    for (unsigned j = 0; j < KEPT; j++) {
        const unsigned at = first + j * KEPT_THREADS * VECTOR;

        if (at >= args.padded) continue;
        unpack((const T *)(const void *)&kept[j], x);
        differentiate<T>(x, at, args.vocab, tail.base, by, row.target, args.weight);
        pack(row.logits + at, x);
    }
}

template <typename T>
static int classify(gpt2_cuda_stream_t stream, const struct classifier_args &args)
{
    const bool aligned = args.padded % VECTOR == 0 && is_aligned(args.logits);
    auto *kernel = aligned ? classifier_kernel<T, true> : classifier_kernel<T, false>;
    typedef
        typename std::conditional<sizeof(T) == 2, T, bf16_t>::type half_t; /* made only for these */

    if (sizeof(T) == 2 && aligned && args.padded <= KEPT_COLUMNS) {
        return LAUNCH(classifier_kept_kernel<half_t>, args.rows, KEPT_THREADS, 0, stream, args);
    }
    return LAUNCH(kernel, args.rows, THREADS, 0, stream, args);
}

int gpt2_cuda_classifier(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, float *losses,
                         void *logits, const int32_t *targets, float weight, int gradient,
                         size_t rows, int vocab, int vocab_padded)
{
    if (rows == 0) return cudaSuccess;
    if (rows > 0x7fffffffu || vocab <= 0 || vocab_padded < vocab) return cudaErrorInvalidValue;
    const struct classifier_args args = {
        losses,   logits,         targets,         weight,
        gradient, (unsigned)rows, (unsigned)vocab, (unsigned)vocab_padded};

    return of_type(type, classify<float>, classify<bf16_t>, classify<fp16_t>)(stream, args);
}

int gpt2_cuda_classifier_prepare(void)
{
    int status = load_kernel(classifier_kernel<float, true>);

    if (status == 0) status = load_kernel(classifier_kernel<float, false>);
    if (status == 0) status = load_kernel(classifier_kernel<bf16_t, true>);
    if (status == 0) status = load_kernel(classifier_kernel<bf16_t, false>);
    if (status == 0) status = load_kernel(classifier_kernel<fp16_t, true>);
    if (status == 0) status = load_kernel(classifier_kernel<fp16_t, false>);
    if (status == 0) status = load_kernel(classifier_kept_kernel<bf16_t>);
    if (status == 0) status = load_kernel(classifier_kept_kernel<fp16_t>);
    return status;
}
