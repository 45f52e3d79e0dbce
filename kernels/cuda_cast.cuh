/*
 * cuda_cast.cuh - what one thread of the cast kernel does, in phases that a CPU can run as well.
 *
 * A thread block takes one block of DP_TALLY_BLOCK elements. Thread t converts the vectors t, t +
 * THREADS, ... of it, counted from the block's start whatever the alignment, so that each thread
 * sums the same elements in the same order everywhere. A result whose place is not aligned goes
 * through shared memory, from where aligned vectors are put together.
 */
#ifndef DP_KERNELS_CUDA_CAST_CUH
#define DP_KERNELS_CUDA_CAST_CUH

#include "kernels/cuda_types.cuh"

#define CAST_THREADS 256
#define CAST_WARPS (CAST_THREADS / 32)

/* A piece as the device sees it. */
typedef struct cast_entry {
    const unsigned char *from;
    unsigned char *to;
    unsigned long long count;
    unsigned long long first_block; /* blocks of the pieces before it */
    dp_cuda_tally_t *tally;
    double scale;
} cast_entry_t;

/* The piece that holds a block: the last one that begins at or before it. Pieces are not empty. */
DP_BOTH unsigned find_entry(const cast_entry_t *entries, unsigned count, unsigned long long block)
{
    unsigned low = 0, high = count;

    while (high - low > 1) {
        const unsigned middle = low + (high - low) / 2;

        if (entries[middle].first_block <= block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ---- Figures -------------------------------------------------------------------------------- */

typedef struct partial {
    double sum_squares;
    double absmax;
    unsigned nonfinite;
} partial_t;

DP_BOTH void take_figures(partial_t *partial, double value)
{
    const double magnitude = value < 0.0 ? -value : value;

    if (!(magnitude <= 1.7976931348623157e308)) { /* Inf or NaN */
        partial->nonfinite++;
        return;
    }
    if (magnitude > partial->absmax) partial->absmax = magnitude;
    partial->sum_squares += magnitude * magnitude;
}

DP_BOTH void merge_partial(partial_t *into, const partial_t *from)
{
    into->sum_squares += from->sum_squares;
    if (from->absmax > into->absmax) into->absmax = from->absmax;
    into->nonfinite += from->nonfinite;
}

DP_BOTH void add_word(unsigned long long *to, unsigned long long value)
{
#if defined(__CUDA_ARCH__) || defined(DP_SIMT)
    atomicAdd(to, value);
#else
    *to += value;
#endif
}

DP_BOTH void raise_word(unsigned long long *to, unsigned long long value)
{
#if defined(__CUDA_ARCH__) || defined(DP_SIMT)
    atomicMax(to, value);
#else
    if (value > *to) *to = value;
#endif
}

DP_BOTH unsigned long long double_bits(double value)
{
#ifdef __CUDA_ARCH__
    return (unsigned long long)__double_as_longlong(value);
#else
    unsigned long long bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
#endif
}

/*
 * Adds a block's figures: the device's dp_tally_add_block(). The sum, cut at 2^-320, is an integer
 * of 53 bits at its place among the limbs, so it touches three of them at most.
 */
DP_BOTH void tally_add(dp_cuda_tally_t *tally, const partial_t *partial)
{
    const unsigned long long bits = double_bits(partial->sum_squares);
    unsigned long long mantissa = (bits & ((1ull << 52) - 1)) | 1ull << 52;
    int place = (int)(bits >> 52) - 1075 + 320; /* of the mantissa's last bit, counted from ours */
    int limb, shift;

    if (partial->nonfinite != 0) add_word(&tally->nonfinite, partial->nonfinite);
    if (partial->absmax > 0.0) raise_word(&tally->absmax, double_bits(partial->absmax));
    if (!(partial->sum_squares > 0.0) || place <= -64) return;
    if (!(partial->sum_squares < 0x1p319)) {
        raise_word(&tally->is_saturated, 1);
        return;
    }
    if (place < 0) {
        mantissa >>= -place;
        place = 0;
    }
    limb = place / 32;
    shift = place % 32;
    if (mantissa << shift != 0) {
        add_word(&tally->limbs[limb], (mantissa << shift) & 0xffffffffu);
        add_word(&tally->limbs[limb + 1], mantissa << shift >> 32);
    }
    if (shift != 0 && mantissa >> (64 - shift) != 0) {
        add_word(&tally->limbs[limb + 2], mantissa >> (64 - shift));
    }
}

/* ---- One thread ----------------------------------------------------------------------------- */

/* Where a block's elements are. */
template <typename From, typename To> struct block_t {
    const From *from;
    To *to;
    const unsigned char *from_begin, *from_end; /* of the whole piece */
    unsigned count;
    double scale;
};

template <typename From, typename To>
DP_BOTH block_t<From, To> block_of(const cast_entry_t *entry, unsigned long long index)
{
    const unsigned long long start = (index - entry->first_block) * DP_TALLY_BLOCK;
    const unsigned long long left = entry->count - start;
    block_t<From, To> block;

    block.from = (const From *)(const void *)entry->from + start;
    block.to = (To *)(void *)entry->to + start;
    block.from_begin = entry->from;
    block.from_end = entry->from + entry->count * sizeof(From);
    block.count = (unsigned)(left < DP_TALLY_BLOCK ? left : DP_TALLY_BLOCK);
    block.scale = entry->scale;
    return block;
}

/*
 * The elements that a thread converts at a time: a vector of results. The lanes of a warp store
 * vectors that lie side by side. If each lane had two vectors to store, a store instruction would
 * write one half of every 32-byte sector, and L2 would see each sector twice. So a widening cast
 * loads half a vector. A narrowing one loads two: the second load finds its sectors in L1.
 */
template <typename From, typename To> struct shape_t {
    static constexpr int elements = VECTOR_BYTES / (int)sizeof(To);
    static constexpr int from_bytes = elements * (int)sizeof(From);
    static constexpr int load_bytes = from_bytes < VECTOR_BYTES ? from_bytes : VECTOR_BYTES;
    static constexpr int loads = from_bytes / load_bytes;
    static constexpr int rounds = DP_TALLY_BLOCK / (elements * CAST_THREADS);
};

/* `is_copy`: the bytes as they are, no figures. */
template <typename From, typename To, bool is_copy> struct convert_t {
    static DP_BOTH void one(From from, To *to, double scale, partial_t *partial)
    {
        narrow(widen(from) * (decltype(widen(from)))scale, to);
        take_figures(partial, (double)widen(*to));
    }
};
template <typename Same> struct convert_t<Same, Same, true> {
    static DP_BOTH void one(Same from, Same *to, double, partial_t *)
    {
        *to = from;
    }
};

/*
 * Phase one: reads, converts, and writes to the block's place where that is aligned, else to
 * `shared` (room for a whole block and a vector more).
 */
template <typename From, typename To, bool is_copy>
DP_BOTH void cast_thread(const block_t<From, To> &block, unsigned thread, unsigned char *shared,
                         partial_t *partial)
{
    typedef shape_t<From, To> shape;
    typedef convert_t<From, To, is_copy> convert;
    vector_t<shape::load_bytes> in[shape::rounds][shape::loads];
    To *to = misalignment(block.to) == 0 ? block.to : (To *)(void *)shared;

    *partial = partial_t{0.0, 0.0, 0};
    for (int round = 0; round < shape::rounds; round++) { /* all reads are under way at once */
        const unsigned e = (thread + (unsigned)round * CAST_THREADS) * shape::elements;

        if (e + shape::elements <= block.count) {
            load_vectors((const unsigned char *)(block.from + e), block.from_begin, block.from_end,
                         in[round]);
        }
    }
    for (int round = 0; round < shape::rounds; round++) {
        const unsigned e = (thread + (unsigned)round * CAST_THREADS) * shape::elements;

        if (e + shape::elements <= block.count) {
            words_t out;

            for (int i = 0; i < shape::elements; i++) {
                convert::one(((const From *)(const void *)in[round])[i], &((To *)(void *)&out)[i],
                             block.scale, partial);
            }
            *(words_t *)(void *)(to + e) = out;
        } else {
            for (unsigned i = e; i < block.count && i < e + shape::elements; i++)
                convert::one(block.from[i], &to[i], block.scale, partial);
        }
    }
}

/* Phase two, where the place is not aligned: from shared memory, aligned vectors again. */
template <typename To>
DP_BOTH void store_thread(To *to, unsigned count, unsigned thread, const unsigned char *shared)
{
    unsigned char *at = (unsigned char *)to;
    const unsigned bytes = count * (unsigned)sizeof(To);
    const unsigned gap = VECTOR_BYTES - misalignment(at);
    const unsigned head = gap < bytes ? gap : bytes;
    const unsigned vectors = (bytes - head) / VECTOR_BYTES;
    const unsigned tail = head + vectors * VECTOR_BYTES;
    const unsigned char *end = shared + DP_TALLY_BLOCK * sizeof(To) + VECTOR_BYTES;

    for (unsigned v = thread; v < vectors; v += CAST_THREADS) {
        const unsigned offset = head + v * VECTOR_BYTES;
        words_t out[1];

        load_vectors(shared + offset, shared, end, out);
        *(words_t *)(void *)(at + offset) = out[0];
    }
    if (thread < head) at[thread] = shared[thread];
    if (thread < bytes - tail) at[tail + thread] = shared[tail + thread];
}

#endif
