/*
 * embed.c - five lines that make a training loop data-parallel: a line is fitted to noisy points,
 * each rank sees its own, and all end with the same weights.
 *
 *     dprun -np 4 build/embed          (or build/embed: a world of one)
 */
#include <stdio.h>
#include <stdlib.h>

#include "dp.h"

/* A point of y = 3x - 2 with a little noise; ranks draw different ones. */
static void draw(unsigned *seed, float *x, float *y)
{
    *x = (float)rand_r(seed) / (float)RAND_MAX * 4.0f - 2.0f;
    *y = 3.0f * *x - 2.0f + ((float)rand_r(seed) / (float)RAND_MAX - 0.5f) * 0.2f;
}

int main(void)
{
    float w[2] = {0.0f, 0.0f}; /* slope, offset */
    float g[2];
    dp_gradient_t tensors[2] = {{"slope", &w[0], &g[0], 1, DP_F32},
                                {"offset", &w[1], &g[1], 1, DP_F32}};
    dp_gradients_result_t result = DP_GRADIENTS_RESULT_INIT;
    dp_gradients_t *gradients;
    dp_context_t *dp;
    unsigned seed;

    if (dp_init(NULL, &dp) != DP_OK) return 1;                                       /* 1 */
    if (dp_gradients_create(dp, tensors, 2, NULL, &gradients) != DP_OK) goto failed; /* 2 */
    seed = 1234u + (unsigned)dp_rank(dp);
    for (int step = 0; step < 200; step++) {
        float x, y, error;

        draw(&seed, &x, &y);
        error = w[0] * x + w[1] - y;
        g[0] = 2.0f * error * x;
        if (dp_gradients_ready(gradients, 0, NULL) != DP_OK) goto failed; /* 3 */
        g[1] = 2.0f * error;
        if (dp_gradients_ready(gradients, 1, NULL) != DP_OK) goto failed;
        if (dp_gradients_sync(gradients, &result) != DP_OK) goto failed; /* 4 */
        if (result.skip) continue; /* Inf or NaN on some rank: all leave it out */
        for (int i = 0; i < 2; i++)
            w[i] -= 0.05f * (float)result.clip_coef * g[i];
    }
    printf("rank %d of %d: y = %.3f x %+.3f\n", dp_rank(dp), dp_size(dp), (double)w[0],
           (double)w[1]);
    dp_gradients_destroy(gradients);
    return dp_finalize(dp) == DP_OK ? 0 : 1; /* 5 */
failed:
    fprintf(stderr, "embed: %s\n", dp_error_text(dp));
    dp_finalize(dp);
    return 1;
}
