/*
 * operations.c - the collectives that a sweep can measure: how to call them, which values they must
 * give, and how nccl-tests computes bus bandwidth from their time.
 *
 * sweep.c drives them by the table below and knows no collective by name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/dpbench/dpbench.h"

static const bench_operation_t operations[BENCH_COLLECTIVE_COUNT] = {
    [BENCH_ALLREDUCE] = {"allreduce", .shares = 1, .reduces = 1},
    [BENCH_BROADCAST] = {"broadcast", .in_on_root = 1, .shares = 1},
    [BENCH_ALLGATHER] = {"allgather", .rows_out = 1, .shares = 1},
    [BENCH_REDUCE_SCATTER] = {"reduce_scatter", .rows_in = 1, .shares = 1, .reduces = 1},
    [BENCH_REDUCE] = {"reduce", .out_on_root = 1, .shares = 1, .reduces = 1},
    [BENCH_GATHER] = {"gather", .rows_out = 1, .out_on_root = 1, .shares = 1},
    [BENCH_SCATTER] = {"scatter", .rows_in = 1, .in_on_root = 1, .shares = 1},
    [BENCH_ALLTOALL] = {"alltoall", .rows_in = 1, .rows_out = 1},
    [BENCH_ALLGATHERV] = {"allgatherv", .rows_out = 1},
    [BENCH_REDUCE_SCATTERV] = {"reduce_scatterv", .rows_in = 1, .shares = 1, .reduces = 1},
    [BENCH_GATHERV] = {"gatherv", .rows_out = 1, .out_on_root = 1},
    [BENCH_SCATTERV] = {"scatterv", .rows_in = 1, .in_on_root = 1},
    [BENCH_ALLTOALLV] = {"alltoallv", .rows_in = 1, .rows_out = 1},
    [BENCH_SENDRECV] = {"sendrecv"},
};

const bench_operation_t *bench_operation(bench_collective_t collective)
{
    return &operations[collective];
}

/* Bus bandwidth is what a perfect implementation would move over each rank's link, so that figures
 * of different collectives and rank counts can be compared: an allreduce sends and receives each
 * element but one rank's share twice, what has rows moves all rows but the rank's own. */
double bench_bus_factor(bench_collective_t collective, int ranks)
{
    const bench_operation_t *operation = &operations[collective];
    double n = ranks;

    if (collective == BENCH_ALLREDUCE) return 2.0 * (n - 1.0) / n;
    return operation->rows_in || operation->rows_out ? (n - 1.0) / n : 1.0;
}

/* ---- Values --------------------------------------------------------------------------------- */

int bench_pattern(size_t i, int rank)
{
    return (int)((i * 7 + (size_t)rank * 3) % 4);
}

/* Computes the value that element i of this rank's out must have, from the in of all ranks:
 *
 *     rows_out            row r came from rank r, which has it at its own place `at` in rows_in
 *     neither             the root's, rank 0's
 *     reduces             the sum over the ranks, of this rank's row where in has rows
 */
int bench_expected(const bench_t *bench, size_t i, size_t row)
{
    const bench_operation_t *operation = &operations[bench->options.collective];
    int size = dp_size(bench->dp), rank = dp_rank(bench->dp), sum = 0;
    size_t at = operation->rows_in ? (size_t)rank * row : 0;

    if (bench->options.collective == BENCH_SENDRECV)
        return bench_pattern(i, (rank + size - 1) % size);
    if (operation->rows_out) return bench_pattern(at + i % row, (int)(i / row));
    if (!operation->reduces) return bench_pattern(at + i, 0);
    for (int r = 0; r < size; r++)
        sum += bench_pattern(at + i, r);
    return sum;
}

/* ---- Calls ---------------------------------------------------------------------------------- */

/* A ring: sends to the next rank, receives from the one before. Neither call waits for the other
 * rank, so all ranks may do the same in the same order and the ring does not stand still. */
static void run_ring(const bench_t *bench, const char *name, const void *in, void *out,
                     size_t count, const dp_options_t *options)
{
    dp_group_t *world = dp_world(bench->dp);
    int size = dp_size(bench->dp), rank = dp_rank(bench->dp);
    dp_dtype_t dtype = bench->options.dtype;
    dp_handle_t *sent, *received;

    bench_must(
        bench,
        dp_recv(world, name, out, count, dtype, (rank + size - 1) % size, options, &received),
        name);
    bench_must(bench, dp_send(world, name, in, count, dtype, (rank + 1) % size, options, &sent),
               name);
    bench_must(bench, dp_wait(received, -1.0, NULL), name);
    bench_must(bench, dp_wait(sent, -1.0, NULL), name);
}

void bench_run_once(const bench_t *bench, const char *name, const void *in, void *out, size_t count)
{
    const bench_options_t *o = &bench->options;
    dp_group_t *world = dp_world(bench->dp);
    dp_options_t options = DP_OPTIONS_INIT;
    const size_t *counts = bench->counts;
    size_t all = count * (size_t)dp_size(bench->dp);
    dp_handle_t *handle = NULL;
    dp_status_t status = DP_ERR_INVALID;

    options.reduce = o->reduce;
    options.wire = o->wire;
    switch (o->collective) {
    case BENCH_ALLREDUCE:
        status = dp_allreduce(world, name, in, out, count, o->dtype, &options, &handle);
        break;
    case BENCH_BROADCAST:
        status = dp_broadcast(world, name, in, out, count, o->dtype, 0, &options, &handle);
        break;
    case BENCH_ALLGATHER:
        status = dp_allgather(world, name, in, out, count, o->dtype, &options, &handle);
        break;
    case BENCH_REDUCE_SCATTER:
        status = dp_reduce_scatter(world, name, in, out, count, o->dtype, &options, &handle);
        break;
    case BENCH_REDUCE:
        status = dp_reduce(world, name, in, out, count, o->dtype, 0, &options, &handle);
        break;
    case BENCH_GATHER:
        status = dp_gather(world, name, in, out, count, o->dtype, 0, &options, &handle);
        break;
    case BENCH_SCATTER:
        status = dp_scatter(world, name, in, out, count, o->dtype, 0, &options, &handle);
        break;
    case BENCH_ALLTOALL:
        status = dp_alltoall(world, name, in, out, count, o->dtype, &options, &handle);
        break;
    case BENCH_ALLGATHERV:
        status = dp_allgatherv(world, name, in, count, out, all, NULL, o->dtype, &options, &handle);
        break;
    case BENCH_REDUCE_SCATTERV:
        status = dp_reduce_scatterv(world, name, in, out, counts, o->dtype, &options, &handle);
        break;
    case BENCH_GATHERV:
        status = dp_gatherv(world, name, in, count, out, all, NULL, o->dtype, 0, &options, &handle);
        break;
    case BENCH_SCATTERV:
        status = dp_scatterv(world, name, in, counts, out, count, o->dtype, 0, &options, &handle);
        break;
    case BENCH_ALLTOALLV:
        status = dp_alltoallv(world, name, in, counts, out, all, NULL, o->dtype, &options, &handle);
        break;
    case BENCH_SENDRECV:
        run_ring(bench, name, in, out, count, &options);
        return;
    case BENCH_COLLECTIVE_COUNT:
        break;
    }
    bench_must(bench, status, name);
    bench_must(bench, dp_wait(handle, -1.0, NULL), name);
}
