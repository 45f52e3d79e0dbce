/*
 * straggler.c - a backward pass in which rank 1 loses LATE ms between the tensors 3 and 4 of 8, and
 * whose every rank then waits for all sums: straggler [LATE]. All passes take equally long, so only
 * what the ranks waited for tells which one was late. With a second argument the gradients are
 * those of an ordered group of all ranks. Rank 0 prints its own figures.
 */
#include <dp.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TENSORS = 8, COUNT = 65536, STEPS = 12 };

static dp_group_t *make_ordered_group(dp_context_t *dp)
{
    dp_group_options_t options = DP_GROUP_OPTIONS_INIT;
    dp_group_t *group;

    options.order = DP_ORDER_PROGRAM;
    return dp_group_split(dp_world(dp), "ordered", 0, 0, &options, &group) == DP_OK ? group : NULL;
}

int main(int argc, char **argv)
{
    const unsigned late_us = argc > 1 ? (unsigned)atoi(argv[1]) * 1000 : 0;
    dp_gradient_t tensors[TENSORS];
    dp_gradients_options_t options = DP_GRADIENTS_OPTIONS_INIT;
    dp_stats_t stats = DP_STATS_INIT;
    char names[TENSORS][8];
    dp_gradients_t *gradients;
    dp_context_t *dp;

    if (dp_init(NULL, &dp) != DP_OK) return 1;
    for (int i = 0; i < TENSORS; i++) {
        void *memory;

        snprintf(names[i], sizeof(names[i]), "layer%d", i);
        if (dp_alloc(dp, COUNT * sizeof(float), &memory) != DP_OK) return 1;
        tensors[i] = (dp_gradient_t){names[i], NULL, memory, COUNT, DP_F32};
    }
    if (argc > 2 && (options.group = make_ordered_group(dp)) == NULL) return 1;
    if (dp_gradients_create(dp, tensors, TENSORS, &options, &gradients) != DP_OK) return 1;
    for (int step = 0; step < STEPS; step++) {
        dp_step_begin(dp, (uint64_t)step);
        dp_span_begin(dp, "backward");
        for (int i = 0; i < TENSORS; i++) {
            usleep(500);
            if (i == 4 && dp_rank(dp) == 1 && late_us > 0) usleep(late_us);
            if (dp_gradients_ready(gradients, (size_t)i, NULL) != DP_OK) return 1;
        }
        dp_span_end(dp);
        if (dp_gradients_sync(gradients, NULL) != DP_OK) return 1;
        dp_step_end(dp);
    }
    if (dp_stats_get(dp, &stats) != DP_OK) return 1;
    if (dp_rank(dp) == 0) {
        printf("wait %.3f skew %.3f transfer %.3f\n", (double)stats.wait_ns / 1e6 / STEPS,
               (double)stats.skew_ns / 1e6 / STEPS, (double)stats.transfer_ns / 1e6 / STEPS);
    }
    dp_gradients_destroy(gradients);
    return dp_finalize(dp) != DP_OK;
}
