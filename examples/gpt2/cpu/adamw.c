/*
 * adamw.c - the optimizer's update of one span of weights.
 *
 * Compiled without contraction: every operation rounds once, in any instruction set, so replicas
 * on unlike processors get the same bits.
 */
#include "examples/gpt2/cpu/isa.h"

#include <math.h>

void GPT2_ISA_NAME(gpt2_adamw_update)(float *restrict weights, const float *restrict gradients,
                                      float *restrict m, float *restrict v, size_t count,
                                      const gpt2_adamw_t *adamw)
{
    float beta1 = adamw->beta1;
    float beta2 = adamw->beta2;
    float rest1 = 1.0f - beta1;
    float rest2 = 1.0f - beta2;
    float by = adamw->gradient_by;
    float keep = 1.0f - adamw->learning_rate * adamw->decay;
    float step = adamw->learning_rate / adamw->correction1;
    float root = 1.0f / sqrtf(adamw->correction2);
    float epsilon = adamw->epsilon;

    for (size_t i = 0; i < count; i++) {
        float gradient = gradients[i] * by;
        float first = beta1 * m[i] + rest1 * gradient;
        float second = beta2 * v[i] + rest2 * (gradient * gradient);

        m[i] = first;
        v[i] = second;
        weights[i] = weights[i] * keep - step * (first / (sqrtf(second) * root + epsilon));
    }
}
