/*
 * cuda_tally.c - what a device has summed up in limbs, as the tally the rest of the house knows.
 *
 * Called by runtime/device/cuda_completion.c, on the device's completion thread.
 */
#include "kernels/cuda.h"

#include <string.h>

void dp_cuda_tally_read(const dp_cuda_tally_t *from, dp_tally_t *into)
{
    uint64_t carry = 0;
    dp_tally_t tally;

    dp_tally_init(&tally);
    tally.nonfinite = from->nonfinite;
    memcpy(&tally.absmax, &from->absmax, sizeof(tally.absmax));
    for (int i = 0; i < DP_CUDA_LIMBS; i++) {
        const uint64_t limb = (from->limbs[i] & 0xffffffffu) + (carry & 0xffffffffu);

        carry = (from->limbs[i] >> 32) + (carry >> 32) + (limb >> 32);
        tally.squares[i / 2] |= (limb & 0xffffffffu) << (i % 2 * 32);
    }
    if (carry != 0 || from->is_saturated != 0) {
        memset(tally.squares, 0xff, sizeof(tally.squares));
    }
    dp_tally_merge(into, &tally);
}
