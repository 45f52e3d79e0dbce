/*
 * pair_mpi.c - send and receive in a ring of ranks: MPI and libdp in the same processes, on the
 * same buffers, in turn, so that both meet the same cores and the same moment. Every element is
 * checked.
 *
 *     mpicc -O3 -std=gnu17 -I. -Iinclude tests/bench/peers/pair_mpi.c -Lbuild/lib -ldp -o pair_mpi
 *     DP_ORDER=program mpirun -np 2 --bind-to core --mca pml ob1 --mca btl vader,self ./pair_mpi
 *
 * A line for each size and memory: the median of the rounds' times of a step, in us, of each, and
 * libdp / MPI. By hand, and by tests/bench/compare.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp.h"

enum { ROUNDS = 41 };

typedef struct ring {
    dp_context_t *dp;
    int rank, ranks, to, from;
    uint32_t *in, *out;
    size_t count;
} ring_t;

static void must(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "pair_mpi: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void step_mpi(const ring_t *ring)
{
    MPI_Request requests[2];

    MPI_Irecv(ring->out, (int)ring->count, MPI_UINT32_T, ring->from, 0, MPI_COMM_WORLD,
              &requests[0]);
    MPI_Isend(ring->in, (int)ring->count, MPI_UINT32_T, ring->to, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

static void step_dp(const ring_t *ring)
{
    dp_group_t *world = dp_world(ring->dp);
    dp_handle_t *received, *sent;

    must(dp_recv(world, NULL, ring->out, ring->count, DP_I32, ring->from, NULL, &received) == DP_OK,
         dp_error_text(ring->dp));
    must(dp_send(world, NULL, ring->in, ring->count, DP_I32, ring->to, NULL, &sent) == DP_OK,
         dp_error_text(ring->dp));
    must(dp_wait(received, -1.0, NULL) == DP_OK, dp_error_text(ring->dp));
    must(dp_wait(sent, -1.0, NULL) == DP_OK, dp_error_text(ring->dp));
}

static void check(const ring_t *ring, uint32_t round)
{
    for (size_t i = 0; i < ring->count; i++)
        must(ring->out[i] == (uint32_t)i * 7 + (uint32_t)ring->from + round, "a wrong element");
}

/* Microseconds of a step. */
static double measure(const ring_t *ring, void (*step)(const ring_t *), int steps, uint32_t round)
{
    double begin, slowest, own;

    for (size_t i = 0; i < ring->count; i++)
        ring->in[i] = (uint32_t)i * 7 + (uint32_t)ring->rank + round;
    memset(ring->out, 0xff, ring->count * sizeof(*ring->out));
    step(ring);
    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    for (int i = 0; i < steps; i++)
        step(ring);
    own = (MPI_Wtime() - begin) / steps * 1e6;
    check(ring, round);
    MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static int ascending(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

static void compare(ring_t *ring, const char *memory)
{
    double mpi[ROUNDS], dp[ROUNDS];
    const int steps = (int)(4e6 / ((double)ring->count * 4 + 2e4)) + 2;

    for (int round = 0; round < ROUNDS; round++) {
        mpi[round] = measure(ring, step_mpi, steps, (uint32_t)round * 2);
        dp[round] = measure(ring, step_dp, steps, (uint32_t)round * 2 + 1);
    }
    qsort(mpi, ROUNDS, sizeof(*mpi), ascending);
    qsort(dp, ROUNDS, sizeof(*dp), ascending);
    if (ring->rank != 0) return;
    printf("%9zu bytes, %s: MPI %.2f us, libdp %.2f us, libdp / MPI %.2f\n", ring->count * 4,
           memory, mpi[ROUNDS / 2], dp[ROUNDS / 2], dp[ROUNDS / 2] / mpi[ROUNDS / 2]);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {4, 1024, 65536, 1 << 20, 16 << 20};
    ring_t ring = {0};

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &ring.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ring.ranks);
    ring.to = (ring.rank + 1) % ring.ranks;
    ring.from = (ring.rank + ring.ranks - 1) % ring.ranks;
    must(ring.ranks > 1 && dp_init(NULL, &ring.dp) == DP_OK, "dp_init() failed, or one rank alone");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        void *in, *out;

        ring.count = sizes[i] / 4;
        must(dp_alloc(ring.dp, sizes[i], &in) == DP_OK &&
                 dp_alloc(ring.dp, sizes[i], &out) == DP_OK,
             "no memory");
        ring.in = in;
        ring.out = out;
        compare(&ring, "dp_alloc()");
        dp_free(ring.dp, in);
        dp_free(ring.dp, out);
        ring.in = aligned_alloc(4096, (sizes[i] + 4095) / 4096 * 4096);
        ring.out = aligned_alloc(4096, (sizes[i] + 4095) / 4096 * 4096);
        must(ring.in != NULL && ring.out != NULL, "no memory");
        compare(&ring, "ordinary");
        free(ring.in);
        free(ring.out);
    }
    must(dp_finalize(ring.dp) == DP_OK, "dp_finalize() failed");
    MPI_Finalize();
    return 0;
}
