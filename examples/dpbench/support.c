/*
 * support.c - what the three benchmarks share: the clock, memory of the kind that was asked for,
 * and figures over ranks. Called by sweep.c, latency.c, gradients.c and operations.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "examples/dpbench/dpbench.h"

/* Ranks of one node read the same clock, so their times can be compared (latency.c does). */
uint64_t bench_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A benchmark that went on after an error would measure something else. */
void bench_must(const bench_t *bench, dp_status_t status, const char *what)
{
    if (status == DP_OK) return;
    fprintf(stderr, "dpbench: %s: %s: %s\n", what, dp_status_string(status),
            dp_error_text(bench->dp));
    exit(1);
}

/* Ordinary memory is written once, so that page faults of the first touch are not measured. It ends
 * on a page of its own: registering works on whole pages, and must not take a neighbour in. */
void *bench_alloc(const bench_t *bench, size_t bytes)
{
    const size_t whole = (bytes + 4095) / 4096 * 4096 + 4096;
    void *memory = NULL;

    if (bench->options.memory == BENCH_ARENA) {
        bench_must(bench, dp_alloc(bench->dp, bytes, &memory), "dp_alloc");
        return memory;
    }
    memory = aligned_alloc(4096, whole);
    if (memory == NULL) {
        fprintf(stderr, "dpbench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(memory, 0, bytes);
    if (bench->options.memory == BENCH_REGISTERED) {
        bench_must(bench, dp_register(bench->dp, memory, whole), "dp_register");
    }
    return memory;
}

void bench_free(const bench_t *bench, void *memory)
{
    if (bench->options.memory == BENCH_ARENA) {
        bench_must(bench, dp_free(bench->dp, memory), "dp_free");
        return;
    }
    if (bench->options.memory == BENCH_REGISTERED) {
        bench_must(bench, dp_deregister(bench->dp, memory), "dp_deregister");
    }
    free(memory);
}

/* A sum, which no rank has before all have come. Unlike dp_barrier() it is not agreed on where the
 * program's own order holds. */
void bench_barrier(const bench_t *bench)
{
    dp_handle_t *handle;
    float one = 1.0f;

    bench_must(
        bench,
        dp_allreduce(dp_world(bench->dp), "bench.barrier", &one, &one, 1, DP_F32, NULL, &handle),
        "barrier");
    bench_must(bench, dp_wait(handle, -1.0, NULL), "barrier");
}

/* The slowest rank of each iteration, by the library that is measured: its exactness for maxima is
 * what the tests are for. */
void bench_max(const bench_t *bench, double *values, size_t count)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle;

    options.reduce = DP_MAX;
    bench_must(bench,
               dp_allreduce(dp_world(bench->dp), "bench.max", values, values, count, DP_F64,
                            &options, &handle),
               "maximum");
    bench_must(bench, dp_wait(handle, -1.0, NULL), "maximum");
}

static int ascending(const void *a, const void *b)
{
    double x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

/* The nearest value that was measured, never one between two of them. */
double bench_quantile(double *values, size_t count, double q)
{
    qsort(values, count, sizeof(*values), ascending);
    return values[(size_t)(q * (double)(count - 1) + 0.5)];
}
