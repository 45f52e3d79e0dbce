/*
 * cuda_figures.cuh - from a tally in limbs to the numbers an optimizer asks for.
 *
 * Integers alone up to the last step, so all ranks get the same bits.
 */
#ifndef DP_KERNELS_CUDA_FIGURES_CUH
#define DP_KERNELS_CUDA_FIGURES_CUH

#include "kernels/cuda_types.cuh"

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

#endif
