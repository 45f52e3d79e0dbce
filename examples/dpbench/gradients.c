/*
 * gradients.c - averages the gradients of GPT-2 124M step by step: 148 tensors, in the order in
 * which backward finishes them.
 *
 * A real step submits while it computes; here nothing is computed, so the figure is what the
 * exchange costs where none of it is hidden. dpbench.c calls it for --gradients.
 */
#include <stdio.h>
#include <stdlib.h>

#include "examples/dpbench/dpbench.h"

enum { LAYERS = 12, VOCABULARY = 50257, CONTEXT = 1024, TENSORS = 12 * LAYERS + 4 };
#define WIDTH ((size_t)768)

/* The last layer first, as backward goes: the last layer norm, the blocks from 11 down to 0, then
 * the embeddings. Two thirds of all bytes are in the blocks' matrices, a third in the last tensor.
 */
static size_t fill_counts(size_t *counts)
{
    /* one block, from its output back to its input */
    static const size_t block[12] = {
        4 * WIDTH * WIDTH, WIDTH, 4 * WIDTH * WIDTH, 4 * WIDTH, WIDTH, WIDTH,
        WIDTH * WIDTH,     WIDTH, 3 * WIDTH * WIDTH, 3 * WIDTH, WIDTH, WIDTH};
    size_t n = 0, total = 0;

    counts[n++] = WIDTH;
    counts[n++] = WIDTH;
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < 12; i++)
            counts[n++] = block[i];
    }
    counts[n++] = CONTEXT * WIDTH;
    counts[n++] = VOCABULARY * WIDTH;
    for (size_t i = 0; i < n; i++)
        total += counts[i];
    return total;
}

/* A step: a barrier, so that ranks start together; all submissions; all waits. The figures per step
 * are counted from the first step behind the warm-up, when memory is there. */
void bench_gradients(const bench_t *bench)
{
    int iterations = bench->options.iterations > 0 ? bench->options.iterations : 15;
    double *times = calloc((size_t)iterations, sizeof(double));
    size_t counts[TENSORS], total = fill_counts(counts), at = 0;
    dp_handle_t *handles[TENSORS];
    dp_options_t options = DP_OPTIONS_INIT;
    dp_stats_t before = DP_STATS_INIT, after = DP_STATS_INIT;
    char names[TENSORS][32];
    float *arena = bench_alloc(bench, total * sizeof(float)), *parts[TENSORS];

    if (times == NULL) exit(1);
    options.reduce = DP_AVERAGE;
    options.wire = bench->options.wire;
    for (int t = 0; t < TENSORS; t++) {
        snprintf(names[t], sizeof(names[t]), "gradient.%d", t);
        parts[t] = arena + at;
        at += counts[t];
    }
    for (size_t i = 0; i < total; i++)
        arena[i] = (float)(i % 97) * 1e-4f;
    if (dp_rank(bench->dp) == 0) {
        printf("# GPT-2 124M: %d tensors, %zu elements, %.1f MB fp32 per step\n", TENSORS, total,
               (double)total * 4e-6);
    }
    for (int i = -bench->options.warmup; i < iterations; i++) {
        uint64_t begin;

        dp_step_begin(bench->dp, (uint64_t)i + (uint64_t)bench->options.warmup);
        bench_barrier(bench);
        if (i == 0) bench_must(bench, dp_stats_get(bench->dp, &before), "stats");
        begin = bench_now_ns();
        for (int t = 0; t < TENSORS; t++) {
            bench_must(bench,
                       dp_allreduce(dp_world(bench->dp), names[t], parts[t], parts[t], counts[t],
                                    DP_F32, &options, &handles[t]),
                       names[t]);
        }
        for (int t = 0; t < TENSORS; t++)
            bench_must(bench, dp_wait(handles[t], -1.0, NULL), names[t]);
        if (i >= 0) times[i] = (double)(bench_now_ns() - begin) / 1e6;
        dp_step_end(bench->dp);
    }
    bench_must(bench, dp_stats_get(bench->dp, &after), "stats");
    bench_max(bench, times, (size_t)iterations);
    if (dp_rank(bench->dp) == 0) {
        double p95 = bench_quantile(times, (size_t)iterations, 0.95);
        double median = bench_quantile(times, (size_t)iterations, 0.5);
        double steps = iterations;

        printf("step: median %.1f ms, p95 %.1f ms, %.2f GB/s of payload (%d steps)\n", median, p95,
               (double)total * 4.0 / median / 1e6, iterations);
        printf("per step: %.1f buckets, %.1f control messages sent, %.1f MB packed, %.1f MB wire\n",
               (double)(after.buckets - before.buckets) / steps,
               (double)(after.control_sent - before.control_sent) / steps,
               (double)(after.bytes_packed - before.bytes_packed) / steps / 1e6,
               (double)(after.bytes_wire - before.bytes_wire) / steps / 1e6);
    }
    bench_free(bench, arena);
    free(times);
}
