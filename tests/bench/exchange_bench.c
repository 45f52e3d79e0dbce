/*
 * exchange_bench.c - how close alltoall and allgatherv inside a node come to plain copies.
 *
 * Two processes, 16 MiB per rank. The baseline, in the same run and in turns: each process copies
 * with memcpy() as many bytes as the exchange moves for it, from memory that both map to memory of
 * the same kind as the exchange's output. The best of all turns counts: what other programs take
 * from the machine only adds.
 *
 *     exchange_bench [turns=30] [nodes=1]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../unit/engine_world.h"

#define BYTES ((size_t)16 * DP_MIB) /* per rank */

typedef struct setup {
    int turns;
    char *shared; /* [2][BYTES] */
} setup_t;

static void barrier(engine_rank_t *rank)
{
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_BARRIER};

    engine_run(rank, &op, DP_WORK_SMALL);
}

static double exchange_us(engine_rank_t *rank, dp_collective_t collective, const char *in,
                          char *out)
{
    const size_t row = collective == DP_COLLECTIVE_ALLTOALLV ? BYTES / 2 : BYTES;
    const size_t send_counts[] = {row, row};
    dp_engine_exchange_t exchange = {
        .in = in, .send_counts = send_counts, .out = out, .capacity = 2 * BYTES};
    dp_engine_op_t op = {.collective = collective, .dtype = DP_U8, .exchange = &exchange};
    uint64_t start_ns;

    barrier(rank);
    start_ns = dp_now_ns();
    engine_run(rank, &op, DP_WORK_SMALL);
    if (op.status != DP_OK || exchange.received != 2 * row) abort();
    return (double)(dp_now_ns() - start_ns) / 1e3;
}

static double copy_us(engine_rank_t *rank, const setup_t *setup, dp_collective_t collective,
                      const char *in, char *out)
{
    const size_t row = collective == DP_COLLECTIVE_ALLTOALLV ? BYTES / 2 : BYTES;
    uint64_t start_ns;

    barrier(rank);
    start_ns = dp_now_ns();
    memcpy(out, in, row);
    memcpy(out + row, setup->shared + (size_t)(1 - rank->rank) * BYTES, row);
    return (double)(dp_now_ns() - start_ns) / 1e3;
}

static void measure(engine_rank_t *rank, const setup_t *setup, dp_collective_t collective,
                    int is_engine)
{
    char *in = is_engine ? engine_memory(rank, BYTES) : malloc(BYTES);
    char *out = malloc(2 * BYTES);
    double best = 1e30;
    double best_copy = 1e30;
    const double moved = collective == DP_COLLECTIVE_ALLTOALLV ? (double)BYTES : 2.0 * BYTES;

    if (in == NULL || out == NULL) abort();
    memset(in, rank->rank + 1, BYTES);
    memset(out, 0, 2 * BYTES);
    for (int turn = 0; turn < setup->turns; turn++) {
        const double us = exchange_us(rank, collective, in, out);
        const double us_copy = copy_us(rank, setup, collective, in, out);

        best = dp_min(best, us);
        best_copy = dp_min(best_copy, us_copy);
    }
    if (rank->rank == 0) {
        printf("%-12s %-8s %10.1f %8.2f %10.1f %8.2f %6.2f\n", dp_collective_name(collective),
               is_engine ? "engine" : "ordinary", best, moved / best / 1e3, best_copy,
               moved / best_copy / 1e3, best / best_copy);
        fflush(stdout);
    }
    free(out);
    if (is_engine) {
        rank->engine->ops->free(rank->engine, in);
    } else {
        free(in);
    }
}

static void body(engine_rank_t *rank, void *user)
{
    const setup_t *setup = user;

    if (rank->rank == 0) {
        printf("16 MiB per rank, received by each: us, GB/s; memcpy us, GB/s; ratio\n");
    }
    memset(setup->shared + (size_t)rank->rank * BYTES, 1, BYTES);
    for (int is_engine = 1; is_engine >= 0; is_engine--) {
        measure(rank, setup, DP_COLLECTIVE_ALLTOALLV, is_engine);
        measure(rank, setup, DP_COLLECTIVE_ALLGATHERV, is_engine);
    }
}

int main(int argc, char **argv)
{
    engine_world_t world = ENGINE_WORLD(2, 1);
    setup_t setup = {.turns = 30};

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "turns=", 6) == 0) setup.turns = atoi(argv[i] + 6);
        if (strncmp(argv[i], "nodes=", 6) == 0) world.nodes = atoi(argv[i] + 6);
    }
    world.arena_bytes = DP_GIB;
    world.spin_ns = 20000;
    setup.shared = mmap(NULL, 2 * BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (setup.shared == MAP_FAILED) return 1;
    return engine_world_processes(&world, body, &setup) != 0;
}
