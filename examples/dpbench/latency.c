/*
 * latency.c - what a small tensor waits for: agreement, launch, wake-ups; and what idling costs.
 *
 * Ranks of one node share a clock, so an operation's latency is taken from the moment the last
 * rank submitted to the end of the slowest wait: late wake-ups from the pause do not count.
 *
 *     rank 0   sleep ........ submit [---------- wait ----------]
 *     rank 1   sleep ............ submit [------- wait -----------]
 *                                 |<-------- latency -------->|
 *
 * dpbench.c calls it for --latency.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "examples/dpbench/dpbench.h"

/* Until a moment, not for a time: a sleep that a signal cuts short is continued without drift. */
static void sleep_until(uint64_t when_ns)
{
    struct timespec when = {(time_t)(when_ns / 1000000000u), (long)(when_ns % 1000000000u)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR) {
    }
}

/* Of all threads of this process, libdp's among them. */
static double cpu_seconds(void)
{
    struct timespec used;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

/* Each rank keeps its own moments; the maxima over the ranks are taken behind the loop, so that the
 * measurement sends nothing of its own between two operations. */
static void measure(const bench_t *bench, uint64_t gap_ns, int iterations)
{
    double *submits = calloc((size_t)iterations, sizeof(double));
    double *ends = calloc((size_t)iterations, sizeof(double));
    dp_handle_t *handle;
    float *value = bench_alloc(bench, sizeof(*value));

    if (submits == NULL || ends == NULL) exit(1);
    for (int i = -bench->options.warmup; i < iterations; i++) {
        uint64_t submit;

        if (gap_ns > 0) sleep_until(bench_now_ns() + gap_ns);
        submit = bench_now_ns();
        bench_must(bench,
                   dp_allreduce(dp_world(bench->dp), "bench.latency", value, value, 1, DP_F32, NULL,
                                &handle),
                   "allreduce");
        bench_must(bench, dp_wait(handle, -1.0, NULL), "allreduce");
        if (i < 0) continue;
        submits[i] = (double)submit / 1e3;
        ends[i] = (double)bench_now_ns() / 1e3;
    }
    bench_max(bench, submits, (size_t)iterations);
    bench_max(bench, ends, (size_t)iterations);
    for (int i = 0; i < iterations; i++)
        ends[i] -= submits[i];
    if (dp_rank(bench->dp) == 0) {
        double p95 = bench_quantile(ends, (size_t)iterations, 0.95);
        double p5 = bench_quantile(ends, (size_t)iterations, 0.05);

        printf("%10.1f us idle %10.1f %10.1f %10.1f   (%d iterations)\n", (double)gap_ns / 1e3, p5,
               bench_quantile(ends, (size_t)iterations, 0.5), p95, iterations);
        fflush(stdout);
    }
    bench_free(bench, value);
    free(submits);
    free(ends);
}

/* Pauses of a loop that only communicates, of a short and a long computation, and of one so long
 * that every thread has gone to sleep. At the end: what a job costs that does nothing. */
void bench_latency(const bench_t *bench)
{
    static const struct {
        uint64_t gap_ns;
        int iterations;
    } rows[] = {{0, 20000}, {300000, 1000}, {10000000, 100}, {100000000, 30}};
    double before, used, seconds = 3.0;

    if (dp_rank(bench->dp) == 0) {
        printf("# 4-byte allreduce, us from the last submission to the last completion;\n"
               "#%17s %10s %10s %10s\n",
               "", "p5", "median", "p95");
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int iterations =
            bench->options.iterations > 0 ? bench->options.iterations : rows[i].iterations;

        measure(bench, rows[i].gap_ns, iterations);
    }
    bench_barrier(bench);
    before = cpu_seconds();
    sleep_until(bench_now_ns() + (uint64_t)(seconds * 1e9));
    used = (cpu_seconds() - before) / seconds * 100.0;
    bench_max(bench, &used, 1);
    if (dp_rank(bench->dp) == 0)
        printf("idle CPU of a rank: %.3f %% of a core (largest, over %.0f s)\n", used, seconds);
}
