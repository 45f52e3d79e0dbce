/*
 * pair_mpi.c - MPI and libdp in the same processes, on the same buffers, in turn, so that both meet
 * the same cores and the same moment. Every element is checked.
 *
 *     DP_ORDER=program mpirun -np 2 --bind-to core --mca pml ob1 --mca btl vader,self pair_mpi
 *         [what=sendrecv,alltoall,allgather,broadcast,allreduce] [sizes=1024,...] [rounds=21]
 *         [memory=arena,ordinary]
 *
 * bytes: what a rank sends to another one, contributes to an allgather, sums. A line for each of
 * them on rank 0: the median over the rounds of the slowest rank's time of a step, in us, of each
 * library, and libdp / MPI. By hand, and by tests/bench/compare.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dp.h"
#include "tests/bench/peers/slices.h"

enum { ROUNDS_MOST = 101, PAGE = 4096 };

typedef struct pair {
    dp_context_t *dp;
    dp_group_t *world;
    int rank, ranks, to, from, root;
    uint32_t *in, *out;
    size_t count;
} pair_t;

/* What is measured; each rank's first element of the step's result, and the value there. */
typedef struct what {
    const char *name;
    void (*mpi)(const pair_t *pair);
    void (*dp)(const pair_t *pair);
    /* Elements of in and of out, in counts. */
    int ins_per_rank, outs_per_rank;
    uint32_t (*expected)(const pair_t *pair, size_t i, uint32_t round);
} what_t;

static void must(int holds, const char *why)
{
    if (holds) return;
    fprintf(stderr, "pair_mpi: %s\n", why);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void must_dp(const pair_t *pair, dp_status_t status)
{
    if (status != DP_OK) must(0, dp_error_text(pair->dp));
}

/* Element i of rank's input; small enough for sums. */
static uint32_t value(int rank, size_t i, uint32_t round)
{
    return ((uint32_t)i * 7 + (uint32_t)rank * 1000003 + round * 31) & 0xffffff;
}

/* ---- What is measured ----------------------------------------------------------------------- */

static void sendrecv_mpi(const pair_t *pair)
{
    MPI_Request requests[2];

    MPI_Irecv(pair->out, (int)pair->count, MPI_UINT32_T, pair->from, 0, MPI_COMM_WORLD,
              &requests[0]);
    MPI_Isend(pair->in, (int)pair->count, MPI_UINT32_T, pair->to, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

static void sendrecv_dp(const pair_t *pair)
{
    dp_handle_t *received, *sent;

    must_dp(pair, dp_recv(pair->world, NULL, pair->out, pair->count, DP_I32, pair->from, NULL,
                          &received));
    must_dp(pair, dp_send(pair->world, NULL, pair->in, pair->count, DP_I32, pair->to, NULL, &sent));
    must_dp(pair, dp_wait(received, -1.0, NULL));
    must_dp(pair, dp_wait(sent, -1.0, NULL));
}

static uint32_t sendrecv_expected(const pair_t *pair, size_t i, uint32_t round)
{
    return value(pair->from, i, round);
}

static void alltoall_mpi(const pair_t *pair)
{
    MPI_Alltoall(pair->in, (int)pair->count, MPI_UINT32_T, pair->out, (int)pair->count,
                 MPI_UINT32_T, MPI_COMM_WORLD);
}

static void alltoall_dp(const pair_t *pair)
{
    dp_handle_t *handle;

    must_dp(pair, dp_alltoall(pair->world, NULL, pair->in, pair->out, pair->count, DP_I32, NULL,
                              &handle));
    must_dp(pair, dp_wait(handle, -1.0, NULL));
}

static uint32_t alltoall_expected(const pair_t *pair, size_t i, uint32_t round)
{
    return value((int)(i / pair->count), (size_t)pair->rank * pair->count + i % pair->count, round);
}

static void allgather_mpi(const pair_t *pair)
{
    MPI_Allgather(pair->in, (int)pair->count, MPI_UINT32_T, pair->out, (int)pair->count,
                  MPI_UINT32_T, MPI_COMM_WORLD);
}

static void allgather_dp(const pair_t *pair)
{
    dp_handle_t *handle;

    must_dp(pair, dp_allgather(pair->world, NULL, pair->in, pair->out, pair->count, DP_I32, NULL,
                               &handle));
    must_dp(pair, dp_wait(handle, -1.0, NULL));
}

static uint32_t allgather_expected(const pair_t *pair, size_t i, uint32_t round)
{
    return value((int)(i / pair->count), i % pair->count, round);
}

/* In place on the root, as MPI has it. */
static void broadcast_mpi(const pair_t *pair)
{
    MPI_Bcast(pair->rank == pair->root ? pair->in : pair->out, (int)pair->count, MPI_UINT32_T,
              pair->root, MPI_COMM_WORLD);
}

static void broadcast_dp(const pair_t *pair)
{
    dp_handle_t *handle;

    must_dp(pair, dp_broadcast(pair->world, NULL, pair->in,
                               pair->rank == pair->root ? pair->in : pair->out, pair->count, DP_I32,
                               pair->root, NULL, &handle));
    must_dp(pair, dp_wait(handle, -1.0, NULL));
}

/* pair->root: of the last step. The root has its input; rank by rank all of them were roots. */
static uint32_t broadcast_expected(const pair_t *pair, size_t i, uint32_t round)
{
    const int before = (pair->root + pair->ranks - 1) % pair->ranks;

    return value(pair->rank == pair->root ? before : pair->root, i, round);
}

static void allreduce_mpi(const pair_t *pair)
{
    MPI_Allreduce(pair->in, pair->out, (int)pair->count, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD);
}

static void allreduce_dp(const pair_t *pair)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle;

    options.reduce = DP_SUM;
    must_dp(pair, dp_allreduce(pair->world, NULL, pair->in, pair->out, pair->count, DP_I32,
                               &options, &handle));
    must_dp(pair, dp_wait(handle, -1.0, NULL));
}

static uint32_t allreduce_expected(const pair_t *pair, size_t i, uint32_t round)
{
    uint32_t sum = 0;

    for (int rank = 0; rank < pair->ranks; rank++)
        sum += value(rank, i, round);
    return sum;
}

static const what_t whats[] = {
    {"sendrecv", sendrecv_mpi, sendrecv_dp, 0, 0, sendrecv_expected},
    {"alltoall", alltoall_mpi, alltoall_dp, 1, 1, alltoall_expected},
    {"allgather", allgather_mpi, allgather_dp, 0, 1, allgather_expected},
    {"broadcast", broadcast_mpi, broadcast_dp, 0, 0, broadcast_expected},
    {"allreduce", allreduce_mpi, allreduce_dp, 0, 0, allreduce_expected},
};

/* ---- Measuring ------------------------------------------------------------------------------ */

/* Microseconds of a step. Roots take turns, so that no rank runs ahead of the others. */
static double measure(pair_t *pair, const what_t *what, int is_dp, int steps, uint32_t round)
{
    void (*step)(const pair_t *) = is_dp ? what->dp : what->mpi;
    const size_t ins = pair->count * (size_t)(what->ins_per_rank ? pair->ranks : 1);
    const size_t outs = pair->count * (size_t)(what->outs_per_rank ? pair->ranks : 1);
    double begin, slowest, own;

    for (size_t i = 0; i < ins; i++)
        pair->in[i] = value(pair->rank, i, round);
    memset(pair->out, 0xff, outs * sizeof(*pair->out));
    for (pair->root = 0; pair->root < pair->ranks; pair->root++)
        step(pair);
    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    for (int i = 0; i < steps; i++) {
        pair->root = i % pair->ranks;
        step(pair);
    }
    own = (MPI_Wtime() - begin) / steps * 1e6;
    for (size_t i = 0; i < outs; i++)
        must(pair->out[i] == what->expected(pair, i, round), "a wrong element");
    MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

static int ascending(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

static void compare(pair_t *pair, const what_t *what, const char *memory, int rounds)
{
    double us[2][ROUNDS_MOST];
    const int steps = (int)(4e6 / ((double)pair->count * 4 + 2e4)) + 2;

    for (int round = 0; round < rounds; round++) {
        for (int is_dp = 0; is_dp < 2; is_dp++)
            us[is_dp][round] = measure(pair, what, is_dp, steps, (uint32_t)round * 2 + is_dp);
    }
    for (int is_dp = 0; is_dp < 2; is_dp++)
        qsort(us[is_dp], (size_t)rounds, sizeof(double), ascending);
    if (pair->rank != 0) return;
    printf("%s %zu bytes, %s memory: MPI %.2f us, libdp %.2f us, libdp / MPI %.2f\n", what->name,
           pair->count * 4, memory, us[0][rounds / 2], us[1][rounds / 2],
           us[1][rounds / 2] / us[0][rounds / 2]);
    fflush(stdout);
}

static void *take_memory(const pair_t *pair, const char *memory, size_t bytes)
{
    void *taken = NULL;

    if (strcmp(memory, "arena") == 0) {
        must_dp(pair, dp_alloc(pair->dp, bytes, &taken));
    } else {
        taken = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
        must(taken != NULL, "no memory");
    }
    return taken;
}

static void give_memory(const pair_t *pair, const char *memory, void *taken)
{
    if (strcmp(memory, "arena") == 0) {
        dp_free(pair->dp, taken);
    } else {
        free(taken);
    }
}

/* 1: a word of a list with commas. */
static int is_among(const char *word, const char *list)
{
    const size_t length = strlen(word);

    for (; list != NULL; list = strchr(list, ',')) {
        list += *list == ',';
        if (strncmp(list, word, length) == 0 && (list[length] == ',' || list[length] == '\0'))
            return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const memories[] = {"arena", "ordinary"};
    const char *wanted =
        slices_argument(argc, argv, "what", "sendrecv,alltoall,allgather,broadcast,allreduce");
    const char *lies = slices_argument(argc, argv, "memory", "arena,ordinary");
    const char *sizes = slices_argument(argc, argv, "sizes", "1024,65536,1048576,16777216");
    const int rounds = atoi(slices_argument(argc, argv, "rounds", "21"));
    pair_t pair = {0};

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &pair.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &pair.ranks);
    pair.to = (pair.rank + 1) % pair.ranks;
    pair.from = (pair.rank + pair.ranks - 1) % pair.ranks;
    must(rounds > 0 && rounds <= ROUNDS_MOST, "rounds: 1 to 101");
    must(pair.ranks > 1 && dp_init(NULL, &pair.dp) == DP_OK, "dp_init() failed, or one rank alone");
    pair.world = dp_world(pair.dp);
    for (char *end; *sizes != '\0'; sizes = *end == ',' ? end + 1 : end) {
        const size_t bytes = strtoull(sizes, &end, 10);

        must(bytes >= 4 && bytes % 4 == 0 && (*end == ',' || *end == '\0'), "sizes: of 4 bytes");
        pair.count = bytes / 4;
        for (size_t i = 0; i < sizeof(whats) / sizeof(whats[0]); i++) {
            if (!is_among(whats[i].name, wanted)) continue;
            for (size_t k = 0; k < sizeof(memories) / sizeof(memories[0]); k++) {
                if (!is_among(memories[k], lies)) continue;
                pair.in = take_memory(&pair, memories[k], bytes * (size_t)pair.ranks);
                pair.out = take_memory(&pair, memories[k], bytes * (size_t)pair.ranks);
                compare(&pair, &whats[i], memories[k], rounds);
                give_memory(&pair, memories[k], pair.in);
                give_memory(&pair, memories[k], pair.out);
            }
        }
    }
    must(dp_finalize(pair.dp) == DP_OK, "dp_finalize() failed");
    MPI_Finalize();
    return 0;
}
