/*
 * tally.c - the long accumulator behind the sum of squares.
 *
 * A block's sum is a double; cut at 2^-320 it is an integer of at most 53 bits shifted to its place
 * in a 640-bit number. Integer addition is associative, and so is saturating it at the top, so the
 * order in which blocks, pieces and ranks are merged does not show.
 *
 * The kernels add blocks to a tally; engines, pipeline and coordinator/api merge and read them.
 * Each tally is one thread's at a time.
 */
#include "kernels/kernels.h"
#include "kernels/variant.h"

#include <math.h>
#include <string.h>

enum { least_exponent = -320, word_bits = 64 };

static void saturate(dp_tally_t *tally)
{
    memset(tally->squares, 0xff, sizeof(tally->squares));
}

static int is_saturated(const dp_tally_t *tally)
{
    for (int i = 0; i < DP_TALLY_WORDS; i++) {
        if (tally->squares[i] != UINT64_MAX) return 0;
    }
    return 1;
}

/* Adds a word at index, carrying upwards. */
static void add_word(dp_tally_t *tally, int index, uint64_t word)
{
    for (; word != 0; index++) {
        if (index >= DP_TALLY_WORDS) {
            saturate(tally);
            return;
        }
        tally->squares[index] += word;
        word = tally->squares[index] < word; /* the carry */
    }
}

void dp_tally_init(dp_tally_t *tally)
{
    memset(tally, 0, sizeof(*tally));
}

void dp_tally_add_block(dp_tally_t *tally, double sum_squares, double absmax, uint64_t nonfinite)
{
    uint64_t mantissa;
    int exponent, shift, index;

    tally->nonfinite += nonfinite;
    if (absmax > tally->absmax) tally->absmax = absmax;
    if (!(sum_squares > 0.0) || is_saturated(tally)) return;
    if (!(sum_squares < 0x1p319)) {
        saturate(tally);
        return;
    }
    mantissa = (uint64_t)ldexp(frexp(sum_squares, &exponent), 53);
    exponent -= 53 + least_exponent; /* of the mantissa's last bit, counted from ours */
    if (exponent < 0) {
        if (exponent <= -word_bits) return;
        mantissa >>= -exponent;
        exponent = 0;
    }
    index = exponent / word_bits;
    shift = exponent % word_bits;
    /* High part first: a carry out of the low part then lands on a number that is complete. */
    if (shift > 0) add_word(tally, index + 1, mantissa >> (word_bits - shift));
    if (!is_saturated(tally)) add_word(tally, index, mantissa << shift);
}

void dp_tally_merge(dp_tally_t *into, const dp_tally_t *from)
{
    uint64_t carry = 0;

    into->nonfinite += from->nonfinite;
    if (from->absmax > into->absmax) into->absmax = from->absmax;
    if (is_saturated(into) || is_saturated(from)) {
        saturate(into);
        return;
    }
    for (int i = 0; i < DP_TALLY_WORDS; i++) {
        uint64_t sum = into->squares[i] + carry;

        carry = sum < carry;
        sum += from->squares[i];
        carry += sum < from->squares[i];
        into->squares[i] = sum;
    }
    if (carry != 0) saturate(into);
}

double dp_tally_sum_squares(const dp_tally_t *tally)
{
    uint64_t high, low, sticky = 0;
    int top = DP_TALLY_WORDS - 1, lead;

    if (is_saturated(tally)) return INFINITY;
    while (top >= 0 && tally->squares[top] == 0)
        top--;
    if (top < 0) return 0.0;
    /* The 64 leading bits, the last one sticky, so that the conversion rounds once and rightly. */
    high = tally->squares[top];
    low = top > 0 ? tally->squares[top - 1] : 0;
    lead = __builtin_clzll(high);
    if (lead > 0) {
        high = high << lead | low >> (word_bits - lead);
        low <<= lead;
    }
    for (int i = 0; i < top - 1; i++)
        sticky |= tally->squares[i];
    if ((sticky | low) != 0) high |= 1;
    return ldexp((double)high, top * word_bits - lead + least_exponent);
}
