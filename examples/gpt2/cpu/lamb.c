/*
 * lamb.c - LAMB's arithmetic over a part of one tensor; see You et al. 2020, arXiv:1904.00962.
 *
 * The optimizer (model/lamb.c) calls it on every thread of the team, with spans that are disjoint.
 * Compiled without contraction, as adamw.c is: every operation rounds once. The squares of a block
 * are added up in one order for every instruction set, and on a GPU: element i of a block belongs
 * to lane i modulo 32, and the lanes are added in a tree. So norms have the same bits on all ranks,
 * for any placement of blocks. It must not know of tensors, threads or ranks.
 */
#include "examples/gpt2/cpu/isa.h"

#include <math.h>

#define LANES GPT2_LAMB_LANES

/* lanes [LANES] become their sum: the one order in which they are added. */
static double fold_lanes(double *lanes)
{
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

/* One block, at most GPT2_LAMB_BLOCK elements: moments, directions, and the squares of both. */
static void direct_block(const float *restrict weights, float *restrict gradients,
                         float *restrict m, float *restrict v, size_t count,
                         const gpt2_lamb_t *lamb, double *restrict squares)
{
    const float beta1 = lamb->beta1;
    const float beta2 = lamb->beta2;
    const float rest1 = lamb->rest1;
    const float rest2 = lamb->rest2;
    const float by = lamb->gradient_by;
    const float unbias = 1.0f / lamb->correction1;
    const float root = 1.0f / sqrtf(lamb->correction2);
    const float epsilon = lamb->epsilon;
    const float decay = lamb->decay;
    double of_weights[LANES] = {0.0};
    double of_directions[LANES] = {0.0};

    for (size_t i = 0; i < count; i++) {
        const float gradient = gradients[i] * by;
        const float first = beta1 * m[i] + rest1 * gradient;
        const float second = beta2 * v[i] + rest2 * (gradient * gradient);

        m[i] = first;
        v[i] = second;
        gradients[i] = first * unbias / (sqrtf(second) * root + epsilon) + decay * weights[i];
    }
    /* A product of two floats is exact in double, so only the sums round. */
    for (size_t at = 0; at < count; at += LANES) {
        const size_t lanes = count - at < LANES ? count - at : LANES;

        for (size_t i = 0; i < lanes; i++) {
            of_weights[i] += (double)weights[at + i] * (double)weights[at + i];
            of_directions[i] += (double)gradients[at + i] * (double)gradients[at + i];
        }
    }
    squares[0] = fold_lanes(of_weights);
    squares[1] = fold_lanes(of_directions);
}

void GPT2_ISA_NAME(gpt2_lamb_direct)(const float *weights, float *gradients, float *m, float *v,
                                     size_t count, const gpt2_lamb_t *lamb, double *squares)
{
    for (size_t at = 0; at < count; at += GPT2_LAMB_BLOCK) {
        const size_t size = count - at < GPT2_LAMB_BLOCK ? count - at : GPT2_LAMB_BLOCK;

        direct_block(weights + at, gradients + at, m + at, v + at, size, lamb,
                     squares + at / GPT2_LAMB_BLOCK * 2);
    }
}

void GPT2_ISA_NAME(gpt2_lamb_add)(double *sums, const double *squares, size_t blocks)
{
    double of_weights[LANES] = {0.0};
    double of_directions[LANES] = {0.0};

    for (size_t block = 0; block < blocks; block++) {
        of_weights[block % LANES] += squares[2 * block];
        of_directions[block % LANES] += squares[2 * block + 1];
    }
    sums[0] = fold_lanes(of_weights);
    sums[1] = fold_lanes(of_directions);
}

void GPT2_ISA_NAME(gpt2_lamb_apply)(float *restrict weights, const float *restrict directions,
                                    size_t count, float rate)
{
    for (size_t i = 0; i < count; i++)
        weights[i] -= rate * directions[i];
}
