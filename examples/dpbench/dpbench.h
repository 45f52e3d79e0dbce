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
    BENCH_REDUCE,
    BENCH_GATHER,
    BENCH_SCATTER,
    BENCH_ALLTOALL,
    BENCH_ALLGATHERV,
    BENCH_REDUCE_SCATTERV,
    BENCH_GATHERV,
    BENCH_SCATTERV,
    BENCH_ALLTOALLV,
    BENCH_SENDRECV, /* a ring: to the next rank, from the one before */
    BENCH_COLLECTIVE_COUNT
} bench_collective_t;

/* A collective: its call, and how much it reads and writes. */
typedef struct bench_operation {
    const char *name;
    int rows_in, rows_out;       /* one row for each rank, else the whole tensor */
    int in_on_root, out_on_root; /* used on rank 0 alone */
    int shares;                  /* in and out may be the same memory */
    int reduces;
} bench_operation_t;

typedef enum bench_memory {
    BENCH_ARENA,      /* from dp_alloc() */
    BENCH_ORDINARY,   /* from malloc() */
    BENCH_REGISTERED, /* from malloc() and given to dp_register() */
    BENCH_MEMORY_COUNT
} bench_memory_t;

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
    bench_memory_t memory;
} bench_options_t;

/* One rank's view of the run. */
typedef struct bench {
    dp_context_t *dp;
    bench_options_t options;
    size_t *counts; /* [size] of a row, for collectives that want them */
} bench_t;

/* ---- support.c ------------------------------------------------------------------------------ */

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

/* ---- operations.c --------------------------------------------------------------------------- */

const bench_operation_t *bench_operation(bench_collective_t collective);
double bench_bus_factor(bench_collective_t collective, int ranks);
/* Small whole numbers, exact in every type: element i of rank r's in, and of this rank's out, where
 * a row has this many elements. */
int bench_pattern(size_t i, int rank);
int bench_expected(const bench_t *bench, size_t i, size_t row);
/* Submits and waits. count: elements of a row, or of the whole tensor where there are none. */
void bench_run_once(const bench_t *bench, const char *name, const void *in, void *out,
                    size_t count);

/* ---- sweep.c, latency.c, gradients.c -------------------------------------------------------- */

void bench_sweep(bench_t *bench);
void bench_latency(const bench_t *bench);
void bench_gradients(const bench_t *bench);

#endif
