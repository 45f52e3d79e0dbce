/*
 * embed.cu - token and position embeddings, there and back.
 *
 * The way back adds many rows of the batch to one row of the table. Atomics would add them in
 * whatever order they come, so the host sorts the rows by token beforehand (a counting sort,
 * stable: the order of the batch) and cuts each token's rows into pieces; a warp sums a piece.
 * Pieces of frequent tokens meet in scratch, where a second kernel folds them in order.
 */
#include "examples/gpt2/cuda/device.cuh"

#define PIECE 64 /* rows that one warp sums one after the other */

/* A token's rows, or some of them: order[first .. first + count). */
typedef struct piece {
    int32_t token;
    int32_t first;
    int32_t count;
    int32_t partial; /* row of scratch for its sum; -1: the token's only piece, which goes to the
                        table */
} piece_t;

typedef struct plan_view {
    int32_t *counts; /* [4]: pieces, folds */
    int32_t *order;  /* [rows] rows of the batch, sorted by token */
    piece_t *pieces; /* [rows] at most */
    piece_t *folds;  /* [rows / PIECE + 1] at most: first and count are of partial sums */
} plan_view_t;

BOTH_INLINE plan_view_t view_plan(void *plan, size_t rows)
{
    plan_view_t view;

    view.counts = (int32_t *)plan;
    view.order = view.counts + 4;
    view.pieces = (piece_t *)(void *)(view.order + (rows + 3) / 4 * 4);
    view.folds = view.pieces + rows;
    return view;
}

/* Partial sums that pieces of tokens with more than one can need: ceil(n / PIECE) < 2 n / PIECE. */
static size_t partials_of(size_t rows)
{
    return 2 * rows / PIECE + 1;
}

/* ---- Kernels -------------------------------------------------------------------------------- */

static __global__ void check_kernel(uint32_t *bad, const int32_t *tokens, size_t count, int vocab)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= count || (tokens[i] >= 0 && tokens[i] < vocab)) return;
    atomicMax(bad, (uint32_t)i + 1);
}

/* Per element: reads two (wpe from the cache), writes one. A warp per row. */
template <typename T, bool aligned>
static __global__ void embed_kernel(T *out, const int32_t *tokens, const T *wte, const T *wpe,
                                    size_t rows, size_t length, size_t width, int vocab)
{
    const size_t row = (size_t)blockIdx.x * ROW_WARPS + threadIdx.y;
    int32_t token;
    bool is_known;

    if (row >= rows) return;
    token = tokens[row];
    is_known = token >= 0 && token < vocab;
    wte += (is_known ? (size_t)token : 0) * width;
    wpe += row % length * width;
    out += row * width;
    for (size_t at = (size_t)threadIdx.x * VECTOR; at < width; at += WARP * VECTOR) {
        float a[VECTOR], b[VECTOR];

        load<aligned>(wte + at, width - at, a);
        load<aligned>(wpe + at, width - at, b);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            a[i] = is_known ? a[i] + b[i] : nanf("");
        store<aligned>(out + at, width - at, a);
    }
}

/* sum [VECTOR] of d[row of k] for k < count, in order; four loads under way at a time. */
template <bool aligned, typename T, typename F>
DEVICE_INLINE void sum_rows(float (&sum)[VECTOR], const T *d, size_t count, size_t left, F offset)
{
    size_t k = 0;

#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        sum[i] = 0.0f;
    for (; k + 4 <= count; k += 4) {
        float x[4][VECTOR];

#pragma unroll
        for (int j = 0; j < 4; j++)
            load<aligned>(d + offset(k + (size_t)j), left, x[j]);
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                sum[i] += x[j][i];
        }
    }
    for (; k < count; k++) {
        float x[VECTOR];

        load<aligned>(d + offset(k), left, x);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum[i] += x[i];
    }
}

template <bool aligned>
DEVICE_INLINE void add_or_set(float *to, size_t left, float (&sum)[VECTOR], int accumulate)
{
    if (accumulate) {
        float old[VECTOR];

        load<aligned>(to, left, old);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            sum[i] += old[i];
    }
    store<aligned>(to, left, sum);
}

/* Per element of d_out: reads it once; per element of a touched row: reads and writes 4 bytes. A
 * warp per piece and 256 columns. */
template <typename T, bool aligned>
static __global__ void pieces_kernel(float *dwte, int accumulate, const T *d_out, void *plan,
                                     float *scratch, size_t rows, size_t width)
{
    const plan_view_t view = view_plan(plan, rows);
    const size_t at = ((size_t)blockIdx.y * WARP + threadIdx.x) * VECTOR;
    const int32_t count = view.counts[0];

    if (at >= width) return;
    for (size_t p = (size_t)blockIdx.x * ROW_WARPS + threadIdx.y; p < (size_t)count;
         p += (size_t)gridDim.x * ROW_WARPS) {
        const piece_t piece = view.pieces[p];
        const int32_t *order = view.order + piece.first;
        float sum[VECTOR];

        sum_rows<aligned>(sum, d_out + at, (size_t)piece.count, width - at,
                          [=](size_t k) { return (size_t)order[k] * width; });
        if (piece.partial >= 0) {
            store<aligned>(scratch + (size_t)piece.partial * width + at, width - at, sum);
        } else {
            add_or_set<aligned>(dwte + (size_t)piece.token * width + at, width - at, sum,
                                accumulate);
        }
    }
}

template <bool aligned>
static __global__ void folds_kernel(float *dwte, int accumulate, void *plan, const float *scratch,
                                    size_t rows, size_t width)
{
    const plan_view_t view = view_plan(plan, rows);
    const size_t at = ((size_t)blockIdx.y * WARP + threadIdx.x) * VECTOR;
    const int32_t count = view.counts[1];

    if (at >= width) return;
    for (size_t p = (size_t)blockIdx.x * ROW_WARPS + threadIdx.y; p < (size_t)count;
         p += (size_t)gridDim.x * ROW_WARPS) {
        const piece_t fold = view.folds[p];
        float sum[VECTOR];

        sum_rows<aligned>(sum, scratch + (size_t)fold.first * width + at, (size_t)fold.count,
                          width - at, [=](size_t k) { return k * width; });
        add_or_set<aligned>(dwte + (size_t)fold.token * width + at, width - at, sum, accumulate);
    }
}

/* Per element of d_out: reads it once. A warp per position and 256 columns. */
template <typename T, bool aligned>
static __global__ void positions_kernel(float *dwpe, int accumulate, const T *d_out, size_t rows,
                                        size_t length, size_t context, size_t width)
{
    const size_t position = (size_t)blockIdx.x * ROW_WARPS + threadIdx.y;
    const size_t at = ((size_t)blockIdx.y * WARP + threadIdx.x) * VECTOR;
    const size_t count =
        position < length && position < rows ? (rows - position + length - 1) / length : 0;
    float sum[VECTOR];

    if (position >= context || at >= width || (accumulate && count == 0)) return;
    sum_rows<aligned>(sum, d_out + position * width + at, count, width - at,
                      [=](size_t k) { return k * length * width; });
    add_or_set<aligned>(dwpe + position * width + at, width - at, sum, accumulate);
}

/* ---- From the host -------------------------------------------------------------------------- */

int gpt2_cuda_check_tokens(gpt2_cuda_stream_t stream, uint32_t *bad, const int32_t *tokens,
                           size_t count, int vocab)
{
    if (count == 0) return cudaSuccess;
    return LAUNCH(check_kernel, (unsigned)parts_of(count, FLAT_THREADS), FLAT_THREADS, 0, stream,
                  bad, tokens, count, vocab);
}

template <typename T>
static int embed(gpt2_cuda_stream_t stream, void *out, const int32_t *tokens, const void *wte,
                 const void *wpe, size_t rows, size_t length, size_t width, int vocab)
{
    const bool aligned =
        width % VECTOR == 0 && is_aligned(out) && is_aligned(wte) && is_aligned(wpe);

    auto *kernel = aligned ? embed_kernel<T, true> : embed_kernel<T, false>;

    return LAUNCH(kernel, (unsigned)parts_of(rows, ROW_WARPS), dim3(WARP, ROW_WARPS), 0, stream,
                  (T *)out, tokens, (const T *)wte, (const T *)wpe, rows, length, width, vocab);
}

int gpt2_cuda_embed_forward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, void *out,
                            const int32_t *tokens, const void *wte, const void *wpe, size_t rows,
                            size_t length, size_t width, int vocab)
{
    if (rows == 0) return cudaSuccess;
    return of_type(type, embed<float>, embed<bf16_t>, embed<fp16_t>)(stream, out, tokens, wte, wpe,
                                                                     rows, length, width, vocab);
}

size_t gpt2_cuda_embed_plan_bytes(size_t rows)
{
    const plan_view_t view = view_plan(NULL, rows);

    return (size_t)(uintptr_t)(view.folds + rows / PIECE + 1);
}

/* The pieces of one token's rows, which are order[first .. first + count). */
static void cut_token(plan_view_t *view, int32_t token, int32_t first, int32_t count,
                      int32_t *partials)
{
    const int32_t pieces = (count + PIECE - 1) / PIECE;

    if (pieces > 1) {
        view->folds[view->counts[1]++] = piece_t{token, *partials, pieces, -1};
    }
    for (int32_t i = 0; i < pieces; i++) {
        const int32_t left = count - i * PIECE;

        view->pieces[view->counts[0]++] = piece_t{
            token, first + i * PIECE, left < PIECE ? left : PIECE, pieces > 1 ? (*partials)++ : -1};
    }
}

int gpt2_cuda_embed_plan_make(void *plan, const int32_t *tokens, size_t rows, int vocab,
                              int32_t *counts, gpt2_error_t *error)
{
    plan_view_t view = view_plan(plan, rows);
    int32_t before = 0, partials = 0;

    if (rows > INT32_MAX) return gpt2_fail(error, "a batch of %zu tokens is too large", rows);
    memset(view.counts, 0, 4 * sizeof(*view.counts));
    memset(counts, 0, (size_t)vocab * sizeof(*counts));
    for (size_t row = 0; row < rows; row++) {
        if (tokens[row] < 0 || tokens[row] >= vocab) {
            return gpt2_fail(error, "token %zu of the batch is %d, the vocabulary has %d", row,
                             (int)tokens[row], vocab);
        }
        counts[tokens[row]]++;
    }
    for (int32_t token = 0; token < vocab; token++) {
        const int32_t count = counts[token];

        if (count > 0) cut_token(&view, token, before, count, &partials);
        counts[token] = before;
        before += count;
    }
    for (size_t row = 0; row < rows; row++)
        view.order[counts[tokens[row]]++] = (int32_t)row;
    return 0;
}

size_t gpt2_cuda_embed_scratch_bytes(size_t rows, size_t width)
{
    return partials_of(rows) * width * sizeof(float);
}

template <typename T>
static int embed_back(gpt2_cuda_stream_t stream, float *dwte, int accumulate_wte, float *dwpe,
                      int accumulate_wpe, const void *d_out, const void *plan, float *scratch,
                      size_t rows, size_t length, size_t context, size_t width)
{
    const bool aligned = width % VECTOR == 0 && is_aligned(dwte) && is_aligned(dwpe) &&
                         is_aligned(d_out) && is_aligned(scratch);
    const unsigned strips = (unsigned)parts_of(width, WARP * VECTOR);
    const dim3 block(WARP, ROW_WARPS);
    const size_t groups = parts_of(rows, ROW_WARPS),
                 fold_groups = parts_of(rows / PIECE, ROW_WARPS);
    void *const own_plan = (void *)(uintptr_t)plan;
    auto *pieces = aligned ? pieces_kernel<T, true> : pieces_kernel<T, false>;
    auto *folds = aligned ? folds_kernel<true> : folds_kernel<false>;
    auto *positions = aligned ? positions_kernel<T, true> : positions_kernel<T, false>;
    cudaError_t status = cudaSuccess;

    /* Grids go by the sizes: how many pieces there are is known to the device's copy of the plan.
     */
    if (dwte != NULL && rows > 0) {
        status =
            LAUNCH(pieces, dim3((unsigned)(groups < 4096 ? groups : 4096), strips), block, 0,
                   stream, dwte, accumulate_wte, (const T *)d_out, own_plan, scratch, rows, width);
    }
    if (status == cudaSuccess && dwte != NULL && fold_groups > 0) {
        status = LAUNCH(folds, dim3((unsigned)(fold_groups < 256 ? fold_groups : 256), strips),
                        block, 0, stream, dwte, accumulate_wte, own_plan, scratch, rows, width);
    }
    if (status == cudaSuccess && dwpe != NULL) {
        status =
            LAUNCH(positions, dim3((unsigned)parts_of(context, ROW_WARPS), strips), block, 0,
                   stream, dwpe, accumulate_wpe, (const T *)d_out, rows, length, context, width);
    }
    return status;
}

int gpt2_cuda_embed_backward(gpt2_cuda_stream_t stream, gpt2_cuda_type_t type, float *dwte,
                             int accumulate_wte, float *dwpe, int accumulate_wpe, const void *d_out,
                             const void *plan, float *scratch, size_t rows, size_t length,
                             size_t context, size_t width)
{
    return of_type(type, embed_back<float>, embed_back<bf16_t>,
                   embed_back<fp16_t>)(stream, dwte, accumulate_wte, dwpe, accumulate_wpe, d_out,
                                       plan, scratch, rows, length, context, width);
}

template <typename T, bool aligned> static int prepare_one(void)
{
    int status = load_kernel(embed_kernel<T, aligned>);

    if (status == 0) status = load_kernel(pieces_kernel<T, aligned>);
    if (status == 0) status = load_kernel(folds_kernel<aligned>);
    if (status == 0) status = load_kernel(positions_kernel<T, aligned>);
    return status;
}

int gpt2_cuda_embed_prepare(void)
{
    int status = load_kernel(check_kernel);

    if (status == 0) status = prepare_one<float, true>();
    if (status == 0) status = prepare_one<float, false>();
    if (status == 0) status = prepare_one<bf16_t, true>();
    if (status == 0) status = prepare_one<bf16_t, false>();
    if (status == 0) status = prepare_one<fp16_t, true>();
    if (status == 0) status = prepare_one<fp16_t, false>();
    return status;
}
