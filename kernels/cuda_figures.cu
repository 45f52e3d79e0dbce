/*
 * cuda_figures.cu - the figures of a step's gradients, added up and decided on where they are: so
 * that the processor need not wait for them.
 */
#include "kernels/cuda_types.cuh"

#define TALLY_WORDS (sizeof(dp_cuda_tally_t) / sizeof(unsigned long long))

static_assert(sizeof(dp_cuda_tally_t) <= sizeof(((dp_figures_t *)0)->sums), "the sums fit");

/* ---- From a tally in limbs to numbers: integers alone up to the last step, so all ranks get the
 * same bits. */

#define FIGURES_WORDS (DP_CUDA_LIMBS / 2)

/* The sum of squares: dp_tally_sum_squares() of dp_cuda_tally_read(). */
DP_BOTH double limbs_value(const dp_cuda_tally_t *tally)
{
    unsigned long long words[FIGURES_WORDS], carry = 0, high, low, sticky = 0;
    int top = FIGURES_WORDS - 1, lead = 0;

    for (int i = 0; i < DP_CUDA_LIMBS; i++) {
        const unsigned long long limb = (tally->limbs[i] & 0xffffffffu) + (carry & 0xffffffffu);

        carry = (tally->limbs[i] >> 32) + (carry >> 32) + (limb >> 32);
        words[i / 2] = i % 2 == 0 ? limb & 0xffffffffu : words[i / 2] | limb << 32;
    }
    if (carry != 0 || tally->is_saturated != 0) return (double)INFINITY;
    while (top >= 0 && words[top] == 0)
        top--;
    if (top < 0) return 0.0;
    /* The 64 leading bits, the last one sticky, so that the conversion rounds once. */
    high = words[top];
    low = top > 0 ? words[top - 1] : 0;
    while ((high << lead & 1ull << 63) == 0)
        lead++;
    if (lead > 0) {
        high = high << lead | low >> (64 - lead);
        low <<= lead;
    }
    for (int i = 0; i < top - 1; i++)
        sticky |= words[i];
    if ((sticky | low) != 0) high |= 1;
    return ldexp((double)high, top * 64 - lead - 320);
}

/* ---- Kernels -------------------------------------------------------------------------------- */

/* Thread w has word w of all tallies. Streams may do this at the same time. */
static __global__ void add_kernel(dp_cuda_tally_t *sums, const dp_cuda_tally_t *tallies,
                                  unsigned count)
{
    const unsigned word = threadIdx.x;
    const bool is_largest = word == 1 || word == 2; /* absmax, is_saturated */
    unsigned long long value = 0;

    if (word >= TALLY_WORDS) return;
    for (unsigned i = 0; i < count; i++) {
        const unsigned long long one = ((const unsigned long long *)&tallies[i])[word];

        value = !is_largest ? value + one : one > value ? one : value;
    }
    if (value == 0) return;
    if (is_largest) {
        atomicMax((unsigned long long *)sums + word, value);
    } else {
        atomicAdd((unsigned long long *)sums + word, value);
    }
}

/* Thread w has word w. absmax is only as good as in `from`: sums over ranks have none. */
static __global__ void merge_kernel(dp_figures_t *into, dp_figures_t *from)
{
    const unsigned word = threadIdx.x;

    if (word < TALLY_WORDS) {
        unsigned long long *to = (unsigned long long *)into->sums + word;
        const unsigned long long value = from->sums[word];

        if (word == 1 || word == 2) { /* absmax, is_saturated */
            atomicMax(to, value);
        } else {
            atomicAdd(to, value);
        }
    }
    if (word < DP_FIGURES_WORDS) from->sums[word] = 0;
}

/* Written by the processor at any time. */
static __device__ uint32_t load_word(const uint32_t *word)
{
#ifdef DP_SIMT
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
#else
    return *(const volatile uint32_t *)word;
#endif
}

static __global__ void decide_kernel(dp_figures_t *figures, const uint32_t *abort_word,
                                     double clip_norm, int is_failed)
{
    dp_cuda_tally_t *sums = (dp_cuda_tally_t *)(void *)figures->sums;
    double norm, clip = 1.0;
    bool is_overflow;

    if (is_failed) { /* the sums may be cleared meanwhile, on another stream */
        figures->skip = 1;
        return;
    }
    is_overflow = sums->nonfinite != 0;
    norm = is_overflow ? (double)INFINITY : sqrt(limbs_value(sums));
    if (clip_norm > 0.0 && norm > clip_norm) clip = clip_norm / norm;
    figures->skip = is_overflow || load_word(abort_word) != 0;
    figures->clip = (float)clip;
    figures->norm = (float)norm;
    for (unsigned i = 0; i < DP_FIGURES_WORDS; i++)
        figures->sums[i] = 0;
}

extern "C" int dp_cuda_figures_add(dp_figures_t *figures, const dp_cuda_tally_t *tallies,
                                   size_t count, void *stream)
{
    dp_cuda_tally_t *sums = (dp_cuda_tally_t *)(void *)figures->sums;

    return DP_LAUNCH(add_kernel, 1, 32, 0, stream, sums, tallies, (unsigned)count);
}

extern "C" int dp_cuda_figures_merge(dp_figures_t *into, dp_figures_t *from, void *stream)
{
    return DP_LAUNCH(merge_kernel, 1, 32, 0, stream, into, from);
}

extern "C" int dp_cuda_figures_decide(dp_figures_t *figures, const uint32_t *abort_word,
                                      double clip_norm, int is_failed, void *stream)
{
    return DP_LAUNCH(decide_kernel, 1, 1, 0, stream, figures, abort_word, clip_norm, is_failed);
}

/* Loads what this file holds. */
int dp_cuda_figures_preload(void)
{
    cudaFuncAttributes attributes;
    cudaError_t status = cudaFuncGetAttributes(&attributes, (const void *)add_kernel);

    if (status == cudaSuccess)
        status = cudaFuncGetAttributes(&attributes, (const void *)merge_kernel);
    return status == cudaSuccess ? cudaFuncGetAttributes(&attributes, (const void *)decide_kernel)
                                 : status;
}
