/*
 * oracle.h - the model once more, naive and in double, to judge the fast one by.
 *
 * Shares with it only the layout of the arena. Every loop is the formula; nothing is fused.
 */
#ifndef GPT2_TEST_ORACLE_H
#define GPT2_TEST_ORACLE_H

#include <stdint.h>

#include "examples/gpt2/model/shape.h"

/*
 * The mean loss of a batch; weights and gradients are arenas of doubles. gradients NULL: loss
 * only; otherwise they are written.
 */
double oracle_loss(const gpt2_layout_t *layout, const double *weights, const int32_t *x,
                   const int32_t *y, int batch, int length, double *gradients);

#endif
