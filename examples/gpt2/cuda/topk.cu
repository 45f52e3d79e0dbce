/*
 * topk.cu - threshold dropping on a GPU: the choice of model/topk_choice.c, and the twins of the
 * topk part of cpu/compress_kernels.c. sparse.c queues them.
 *
 * Messages, residuals and averages have the host's bits. A threshold is an element of the sample or
 * of the tensor; it is found by counting the digits of magnitudes, from the first of three digits
 * to the last, and counts do not depend on the order in which atomics add them up. Lists are
 * written at places that are known before. Values that are added up are added in the order of the
 * ranks.
 *
 * The host never waits inside a choice: decide_kernel() says in the scratch memory whether the
 * sample's threshold serves, and if it does, the kernels of the exact choice return at once.
 */
#include "examples/gpt2/cuda/device.cuh"

#define WARPS (FLAT_THREADS / WARP)
#define DIGITS 3              /* of a magnitude's 31 bits: 11, 10 and 10 */
#define BINS 2048             /* of a digit */
#define BITS 10               /* of all digits but the first */
#define SEARCHES 2            /* for a threshold: in the sample, in all elements */
#define HISTOGRAM_BLOCKS 1024 /* at most */
#define BLOCK_PARTS (GPT2_TOPK_BLOCK / GPT2_TOPK_PART)

static_assert(FLAT_THREADS * VECTOR == BINS, "a thread of find_kernel() has eight bins");

/* Results that a kernel leaves for those behind it. */
struct topk_state {
    float threshold;
    uint32_t prefix; /* the threshold's digits so far */
    uint32_t wanted; /* at most so many elements are above the threshold */
    uint32_t above;  /* elements above the digits so far */
    uint32_t ties;   /* elements as large as the threshold that are chosen */
    uint32_t bad;    /* 1: there is an Inf or a NaN */
    uint32_t exact;  /* 1: the threshold is sought among all elements */
};

/* The scratch memory of a choice. */
struct topk_scratch {
    struct topk_state *state;
    uint32_t *bins;    /* [SEARCHES][DIGITS][BINS] */
    uint32_t *greater; /* [parts] elements above the threshold */
    uint32_t *equal;   /* [parts] elements as large as it */
    uint32_t *before;  /* [parts] of the equal ones in parts before */
    uint32_t *starts;  /* [parts + 1] where each part's elements begin in the list */
    size_t parts;
};

/* ---- Values --------------------------------------------------------------------------------- */

/* As make_values() of the host computes them. */
DEVICE_INLINE float value_at(const gpt2_topk_values_t &values, size_t at)
{
    const float gradient = values.by * values.gradient[at];

    if (values.momentum == NULL) return values.residual[at] + gradient;
    return values.residual[at] + (values.factor * values.momentum[at] + gradient);
}

DEVICE_INLINE uint32_t magnitude_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits & 0x7fffffffu;
}

#define FIRST_INF 0x7f800000u /* bits of the smallest magnitude that is not finite */

/* The sum of the values of the block's threads before this one; *total: of all. shared [WARPS]. */
DEVICE_INLINE uint32_t sum_before(uint32_t value, uint32_t *shared, uint32_t *total)
{
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t sum = value, base = 0;

#pragma unroll
    for (unsigned distance = 1; distance < WARP; distance *= 2) {
        const uint32_t other = __shfl_up_sync(EVERY_LANE, sum, distance);

        if (lane >= distance) sum += other;
    }
    if (lane == WARP - 1) shared[warp] = sum;
    __syncthreads();
    *total = 0;
    for (unsigned w = 0; w < WARPS; w++) {
        if (w < warp) base += shared[w];
        *total += shared[w];
    }
    __syncthreads();
    return base + sum - value;
}

/* ---- The threshold -------------------------------------------------------------------------- */

static __global__ void begin_kernel(const struct topk_scratch scratch,
                                    const gpt2_topk_quota_t quota)
{
    const size_t at = (size_t)blockIdx.x * FLAT_THREADS + threadIdx.x;

    if (at < SEARCHES * DIGITS * BINS) scratch.bins[at] = 0;
    if (at != 0) return;
    *scratch.state = {};
    scratch.state->threshold = -1.0f; /* all are above it */
    scratch.state->wanted = (uint32_t)(quota.sampled - 1 - quota.position);
}

/* The bits of a digit are those from `shift` on; those from `shift_before` on were found before. */
DEVICE_INLINE unsigned digit_shift(int digit)
{
    return (unsigned)(DIGITS - 1 - digit) * BITS;
}

/* bins += the elements `stride` apart, by a digit, where the digits before it are the threshold's.
 */
static __global__ void __launch_bounds__(FLAT_THREADS)
    histogram_kernel(const gpt2_topk_values_t values, size_t stride, size_t count, int digit,
                     bool is_exact, const struct topk_scratch scratch)
{
    __shared__ uint32_t own[BINS];
    const unsigned shift = digit_shift(digit);
    const unsigned shift_before = digit == 0 ? 31 : digit_shift(digit - 1);
    const uint32_t mask = (1u << (shift_before - shift)) - 1;
    const uint32_t prefix = scratch.state->prefix;
    uint32_t *bins = scratch.bins + (size_t)((is_exact ? DIGITS : 0) + digit) * BINS;

    if (is_exact && !scratch.state->exact) return;
    for (unsigned bin = threadIdx.x; bin < BINS; bin += FLAT_THREADS)
        own[bin] = 0;
    __syncthreads();
    for (size_t i = (size_t)blockIdx.x * FLAT_THREADS + threadIdx.x; i < count;
         i += (size_t)gridDim.x * FLAT_THREADS) {
        uint32_t bits = magnitude_bits(value_at(values, i * stride));

        if (bits >= FIRST_INF) bits = 0; /* such a step is skipped anyway */
        if (bits >> shift_before == prefix) atomicAdd(&own[bits >> shift & mask], 1u);
    }
    __syncthreads();
    for (unsigned bin = threadIdx.x; bin < BINS; bin += FLAT_THREADS) {
        if (own[bin] != 0) atomicAdd(&bins[bin], own[bin]);
    }
}

/*
 * One block. From the highest bin down: the one in which the number of elements gets above what is
 * wanted, or bin 0, is the threshold's next digit. Each thread has eight bins, and one thread has
 * the bin that is sought.
 */
static __global__ void __launch_bounds__(FLAT_THREADS)
    find_kernel(int digit, bool is_exact, const struct topk_scratch scratch)
{
    __shared__ uint32_t shared[WARPS];
    const uint32_t *bins = scratch.bins + (size_t)((is_exact ? DIGITS : 0) + digit) * BINS;
    struct topk_state *state = scratch.state;
    const uint32_t wanted = state->wanted;
    const uint32_t first = threadIdx.x * VECTOR;
    uint32_t all = 0, sum = 0, above, bin = first + VECTOR - 1;

    if (is_exact && !state->exact) return;
    for (uint32_t i = 0; i < VECTOR; i++)
        sum += bins[first + i];
    above = sum_before(sum, shared, &all);
    above = state->above + (all - above - sum); /* in the bins over this thread's */
    __syncthreads();                            /* all have read the state */
    if (above > wanted || (threadIdx.x > 0 && above + sum <= wanted)) return;
    while (bin > first && above + bins[bin] <= wanted)
        above += bins[bin--];
    state->above = above;
    state->prefix = digit == 0 ? bin : state->prefix << BITS | bin;
    if (digit < DIGITS - 1) return;
    state->threshold = bits_to_float(state->prefix);
    if (is_exact) state->ties = wanted - above;
}

/* ---- The list ------------------------------------------------------------------------------- */

/* A warp for each part. */
static __global__ void __launch_bounds__(FLAT_THREADS)
    count_kernel(const gpt2_topk_values_t values, bool is_exact, const struct topk_scratch scratch)
{
    const size_t part = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const unsigned lane = threadIdx.x % WARP;
    const size_t first = part * GPT2_TOPK_PART;
    const size_t end =
        first + GPT2_TOPK_PART < values.count ? first + GPT2_TOPK_PART : values.count;
    const float threshold = scratch.state->threshold;
    uint32_t greater = 0, equal = 0, bad = 0;

    if (part >= scratch.parts || (is_exact && !scratch.state->exact)) return;
#pragma unroll 4
    for (size_t at = first + lane; at < end; at += WARP) {
        const float value = value_at(values, at);
        const float size = fabsf(value);

        greater += size > threshold;
        equal += size == threshold;
        bad |= magnitude_bits(value) >= FIRST_INF;
    }
    greater = warp_sum(greater);
    equal = warp_sum(equal);
    bad = warp_sum(bad);
    if (lane != 0) return;
    scratch.greater[part] = greater;
    scratch.equal[part] = equal;
    if (bad != 0) atomicMax(&scratch.state->bad, 1u);
}

/* One block: does the sample's threshold serve? */
static __global__ void __launch_bounds__(FLAT_THREADS)
    decide_kernel(const gpt2_topk_quota_t quota, size_t room, const struct topk_scratch scratch)
{
    __shared__ uint32_t shared[WARPS];
    struct topk_state *state = scratch.state;
    uint32_t total[1] = {0};
    bool is_short;

    for (size_t part = threadIdx.x; part < scratch.parts; part += FLAT_THREADS)
        total[0] += scratch.greater[part];
    block_sum(total, shared);
    if (threadIdx.x != 0) return;
    /* Too few, where many elements are as large as the threshold: they would never be sent. */
    is_short = state->threshold > 0.0f && total[0] < quota.least;
    state->exact = state->bad == 0 && (total[0] > room || is_short);
    state->wanted = (uint32_t)(is_short ? quota.wanted : room);
    state->above = 0;
    state->prefix = 0;
}

/* Of the part's elements that equal the threshold, those that are chosen. */
DEVICE_INLINE uint32_t ties_of(const struct topk_scratch &scratch, size_t part, uint32_t before)
{
    const uint32_t left = scratch.state->ties > before ? scratch.state->ties - before : 0;

    return scratch.equal[part] < left ? scratch.equal[part] : left;
}

/* One block: where each part's elements begin, and the head of the message. Each thread has some
 * parts behind each other. */
static __global__ void __launch_bounds__(FLAT_THREADS)
    place_kernel(const gpt2_topk_list_t list, uint32_t *head, const struct topk_scratch scratch)
{
    __shared__ uint32_t shared[WARPS];
    const size_t each = (scratch.parts + FLAT_THREADS - 1) / FLAT_THREADS;
    const size_t first = threadIdx.x * each < scratch.parts ? threadIdx.x * each : scratch.parts;
    const size_t end = first + each < scratch.parts ? first + each : scratch.parts;
    uint32_t equal = 0, chosen = 0, at, total;

    for (size_t part = first; part < end; part++)
        equal += scratch.equal[part];
    at = sum_before(equal, shared, &total);
    for (size_t part = first; part < end; part++) {
        scratch.before[part] = at;
        chosen += scratch.greater[part] + ties_of(scratch, part, at);
        at += scratch.equal[part];
    }
    at = sum_before(chosen, shared, &total);
    for (size_t part = first; part < end; part++) {
        scratch.starts[part] = at;
        at += scratch.greater[part] + ties_of(scratch, part, scratch.before[part]);
    }
    if (threadIdx.x == 0) {
        scratch.starts[scratch.parts] = total;
        head[0] = scratch.state->bad != 0 ? 0 : total;
        head[1] = scratch.state->bad;
    }
    __syncthreads();
    for (size_t block = threadIdx.x; block * BLOCK_PARTS < scratch.parts; block += FLAT_THREADS) {
        const size_t behind = (block + 1) * BLOCK_PARTS;

        list.block_counts[block] = scratch.starts[behind < scratch.parts ? behind : scratch.parts] -
                                   scratch.starts[block * BLOCK_PARTS];
    }
}

/* A warp for each part, which it walks from the first element to the last. */
static __global__ void __launch_bounds__(FLAT_THREADS)
    write_kernel(const gpt2_topk_values_t values, const gpt2_topk_list_t list,
                 const struct topk_scratch scratch)
{
    const size_t part = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const unsigned lane = threadIdx.x % WARP;
    const unsigned lower = (1u << lane) - 1; /* the lanes before this one */
    const size_t first = part * GPT2_TOPK_PART;
    const float threshold = scratch.state->threshold;
    uint32_t ties, next;

    if (part >= scratch.parts) return;
    next = scratch.starts[part];
    if (next == scratch.starts[part + 1]) return;
    ties = ties_of(scratch, part, scratch.before[part]);
    for (size_t from = first; from < first + GPT2_TOPK_PART && from < values.count; from += WARP) {
        const size_t at = from + lane;
        const float value = at < values.count ? value_at(values, at) : 0.0f;
        const float size = at < values.count ? fabsf(value) : -2.0f; /* below every threshold */
        const unsigned equal = __ballot_sync(EVERY_LANE, size == threshold);
        const bool is_tie = size == threshold && (uint32_t)__popc(equal & lower) < ties;
        const unsigned chosen = __ballot_sync(EVERY_LANE, size > threshold || is_tie);
        const uint32_t place = next + (uint32_t)__popc(chosen & lower);

        if ((chosen >> lane & 1) != 0 && place < list.room) {
            list.values[place] = value;
            list.offsets[place] = (uint16_t)(at % GPT2_TOPK_BLOCK);
        }
        next += (uint32_t)__popc(chosen);
        ties -= (uint32_t)__popc(equal) < ties ? (uint32_t)__popc(equal) : ties;
    }
}

/* ---- What the ranks have sent --------------------------------------------------------------- */

/* *bad = 1 where a message says that its rank has an Inf or a NaN, else 0. */
static __global__ void bad_kernel(uint32_t *bad, const uint32_t *heads, size_t stride, int ranks)
{
    uint32_t any = 0;

    for (int rank = 0; rank < ranks; rank++)
        any |= heads[(size_t)rank * stride + 1];
    *bad = any;
}

/* Residuals become the values, momentum moves on, gradients become zeros. Bytes per element: 16, 24
 * with momentum. */
static __global__ void __launch_bounds__(FLAT_THREADS)
    keep_kernel(const gpt2_topk_values_t values, float *gradient)
{
    for (size_t at = (size_t)blockIdx.x * FLAT_THREADS + threadIdx.x; at < values.count;
         at += (size_t)gridDim.x * FLAT_THREADS) {
        const float value = value_at(values, at);

        if (values.momentum != NULL) {
            values.momentum[at] =
                values.factor * values.momentum[at] + values.by * values.gradient[at];
        }
        values.residual[at] = value;
        gradient[at] = 0.0f;
    }
}

template <typename T> DEVICE_INLINE T *moved_by(T *at, size_t bytes)
{
    return (T *)(void *)((char *)(void *)at + bytes);
}

/* A block of threads for each block of the lists, of which each place occurs once per rank. */
static __global__ void __launch_bounds__(FLAT_THREADS)
    add_kernel(const gpt2_topk_values_t values, float *gradient,
               const gpt2_topk_messages_t messages)
{
    __shared__ uint32_t shared[WARPS];
    const size_t base = (size_t)blockIdx.x * GPT2_TOPK_BLOCK;

    for (int rank = 0; rank < messages.ranks; rank++) {
        const size_t bytes = (size_t)rank * messages.stride;
        const uint32_t *counts = moved_by(messages.first.block_counts, bytes);
        const float *sent = moved_by(messages.first.values, bytes);
        const uint16_t *offsets = moved_by(messages.first.offsets, bytes);
        uint32_t start[1] = {0};

        for (unsigned block = threadIdx.x; block < blockIdx.x; block += FLAT_THREADS)
            start[0] += counts[block];
        block_sum(start, shared); /* behind its barrier the rank before has been added up */
        for (uint32_t i = threadIdx.x; i < counts[blockIdx.x]; i += FLAT_THREADS) {
            const size_t at = base + offsets[start[0] + i];

            gradient[at] += sent[start[0] + i];
            if (rank != messages.own) continue;
            values.residual[at] = 0.0f;
            if (values.momentum != NULL) values.momentum[at] = 0.0f;
        }
    }
}

/* gradient *= by; squares [parts]: a warp for each part, whose lanes are those of scale_squares().
 */
static __global__ void __launch_bounds__(FLAT_THREADS)
    scale_kernel(float *gradient, size_t count, float by, double *squares)
{
    const size_t part = (size_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const unsigned lane = threadIdx.x % WARP;
    const size_t first = part * GPT2_TOPK_PART;
    double sum = 0.0;

    if (first >= count) return;
    for (size_t at = first + lane; at < first + GPT2_TOPK_PART && at < count; at += WARP) {
        const float x = gradient[at] * by;

        gradient[at] = x;
        sum += (double)x * (double)x;
    }
    sum = warp_sum(sum);
    if (lane == 0) squares[part] = sum;
}

/* ---- Launchers ------------------------------------------------------------------------------ */

size_t gpt2_cuda_topk_parts(size_t count)
{
    return parts_of(count, GPT2_TOPK_PART);
}

/* memory NULL: only its size counts. */
static size_t lay_out(void *memory, size_t count, struct topk_scratch *scratch)
{
    const size_t parts = gpt2_cuda_topk_parts(count);
    const size_t sizes[] = {SEARCHES * DIGITS * BINS, parts, parts, parts, parts + 1};
    uint32_t **const places[] = {&scratch->bins, &scratch->greater, &scratch->equal,
                                 &scratch->before, &scratch->starts};
    size_t bytes = 64; /* the state's */

    static_assert(sizeof(struct topk_state) <= 64, "the tables begin behind it");
    scratch->state = (struct topk_state *)memory;
    scratch->parts = parts;
    for (int i = 0; i < 5; i++) {
        *places[i] = memory == NULL ? NULL : (uint32_t *)(void *)((char *)memory + bytes);
        bytes += sizes[i] * sizeof(uint32_t);
    }
    return bytes;
}

size_t gpt2_cuda_topk_scratch_bytes(size_t count)
{
    struct topk_scratch scratch;
    const size_t bytes = lay_out(NULL, count, &scratch);
    const size_t squares = gpt2_cuda_topk_parts(count) * sizeof(double);

    return bytes > squares ? bytes : squares;
}

/* A threshold, digit by digit, in `count` elements that are `stride` apart. */
static int queue_search(gpt2_cuda_stream_t stream, const gpt2_topk_values_t *values, size_t stride,
                        size_t count, bool is_exact, const struct topk_scratch &scratch)
{
    const size_t parts = parts_of(count, (size_t)FLAT_THREADS * VECTOR);
    const unsigned blocks = (unsigned)(parts < HISTOGRAM_BLOCKS ? parts : HISTOGRAM_BLOCKS);
    int status = 0;

    for (int digit = 0; digit < DIGITS && status == 0; digit++) {
        status = LAUNCH(histogram_kernel, blocks, FLAT_THREADS, 0, stream, *values, stride, count,
                        digit, is_exact, scratch);
        if (status != 0) return status;
        status = LAUNCH(find_kernel, 1u, FLAT_THREADS, 0, stream, digit, is_exact, scratch);
    }
    return status;
}

int gpt2_cuda_topk_choose(gpt2_cuda_stream_t stream, const gpt2_topk_values_t *values,
                          const gpt2_topk_quota_t *quota, const gpt2_topk_list_t *list,
                          uint32_t *head, void *memory)
{
    struct topk_scratch scratch;
    unsigned blocks;
    int status;

    if (values->count > UINT32_MAX) return cudaErrorInvalidValue; /* counts have 32 bits */
    (void)lay_out(memory, values->count, &scratch);
    blocks = (unsigned)parts_of(scratch.parts, WARPS);
    status = LAUNCH(begin_kernel, (unsigned)parts_of(SEARCHES * DIGITS * BINS, FLAT_THREADS),
                    FLAT_THREADS, 0, stream, scratch, *quota);
    if (status == 0 && !quota->everything)
        status = queue_search(stream, values, quota->stride, quota->sampled, false, scratch);
    if (status == 0)
        status = LAUNCH(count_kernel, blocks, FLAT_THREADS, 0, stream, *values, false, scratch);
    if (status == 0) {
        status = LAUNCH(decide_kernel, 1u, FLAT_THREADS, 0, stream, *quota, list->room, scratch);
    }
    if (status == 0) status = queue_search(stream, values, 1, values->count, true, scratch);
    if (status == 0)
        status = LAUNCH(count_kernel, blocks, FLAT_THREADS, 0, stream, *values, true, scratch);
    if (status == 0)
        status = LAUNCH(place_kernel, 1u, FLAT_THREADS, 0, stream, *list, head, scratch);
    if (status != 0) return status;
    return LAUNCH(write_kernel, blocks, FLAT_THREADS, 0, stream, *values, *list, scratch);
}

int gpt2_cuda_topk_bad(gpt2_cuda_stream_t stream, uint32_t *bad, const uint32_t *heads,
                       size_t stride, int ranks)
{
    return LAUNCH(bad_kernel, 1u, 1u, 0, stream, bad, heads, stride / sizeof(uint32_t), ranks);
}

int gpt2_cuda_topk_finish(gpt2_cuda_stream_t stream, const gpt2_topk_values_t *values,
                          float *gradient, const gpt2_topk_messages_t *messages, float by,
                          double *squares)
{
    const size_t some = parts_of(values->count, FLAT_THREADS);
    const unsigned blocks = (unsigned)(some < 65536 ? some : 65536);
    const unsigned lists = (unsigned)parts_of(values->count, GPT2_TOPK_BLOCK);
    int status;

    if (values->count == 0) return cudaSuccess;
    status = LAUNCH(keep_kernel, blocks, FLAT_THREADS, 0, stream, *values, gradient);
    if (status == 0)
        status = LAUNCH(add_kernel, lists, FLAT_THREADS, 0, stream, *values, gradient, *messages);
    if (status != 0) return status;
    return LAUNCH(scale_kernel, (unsigned)parts_of(gpt2_cuda_topk_parts(values->count), WARPS),
                  FLAT_THREADS, 0, stream, gradient, values->count, by, squares);
}

int gpt2_cuda_topk_prepare(void)
{
    int status = load_kernel(begin_kernel);

    if (status == 0) status = load_kernel(histogram_kernel);
    if (status == 0) status = load_kernel(find_kernel);
    if (status == 0) status = load_kernel(count_kernel);
    if (status == 0) status = load_kernel(decide_kernel);
    if (status == 0) status = load_kernel(place_kernel);
    if (status == 0) status = load_kernel(write_kernel);
    if (status == 0) status = load_kernel(bad_kernel);
    if (status == 0) status = load_kernel(keep_kernel);
    if (status == 0) status = load_kernel(add_kernel);
    if (status == 0) status = load_kernel(scale_kernel);
    return status;
}
