/*
 * dpbench.h - what the three benchmarks share: options, buffers, figures over ranks.
 */
#ifndef DPBENCH_H
#define DPBENCH_H

#include <stddef.h>
#include <stdint.h>

#include "dp.h"

typedef enum bench_kind { BENCH_SWEEP, BENCH_LATENCY, BENCH_GRADIENTS } bench_kind_t;

typedef enum bench_collective {
    BENCH_ALLREDUCE,
    BENCH_BROADCAST,
    BENCH_ALLGATHER,
    BENCH_REDUCE_SCATTER,
    BENCH_COLLECTIVE_COUNT
} bench_collective_t;

typedef struct bench_options {
    bench_kind_t kind;
    bench_collective_t collective;
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    dp_wire_t wire;
    size_t min_bytes, max_bytes; /* of the whole tensor, as nccl-tests counts */
    size_t factor;
    int iterations; /* 0: as many as fit about a third of a second */
    int warmup;
    int check;
    int ordinary; /* 1: malloc, 0: dp_alloc */
} bench_options_t;

/* One rank's view of the run. */
typedef struct bench {
    dp_context_t *dp;
    bench_options_t options;
} bench_t;

uint64_t bench_now_ns(void);

/* Exits 1 with the context's text when status is not DP_OK. */
void bench_must(const bench_t *bench, dp_status_t status, const char *what);

/* Tensor memory of the kind the options ask for. */
void *bench_alloc(const bench_t *bench, size_t bytes);
void bench_free(const bench_t *bench, void *memory);

void bench_barrier(const bench_t *bench);

/* Largest over the ranks, element by element, in place. */
void bench_max(const bench_t *bench, double *values, size_t count);

/* Sorts values and returns the q-quantile. */
double bench_quantile(double *values, size_t count, double q);

void bench_sweep(const bench_t *bench);
void bench_latency(const bench_t *bench);
void bench_gradients(const bench_t *bench);

#endif
