/*
 * way_mpi.c - MPI_Allreduce in place, built once with each MPI's own compiler.
 *
 *     mpiexec -n 2 way_mpi [variant=flat|each|fused] table=FILE ...
 *
 * A set of tensors goes as one (flat), one after the other (each), or copied into buffers of `fuse`
 * bytes and back (fused).
 */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/peers/slices.h"

typedef struct state {
    const char *variant;
    size_t fuse; /* elements */
    float *buffer;
} state_t;

static void *memory(void *user, size_t bytes)
{
    (void)user;
    return aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
}

static int sum(float *tensor, size_t count)
{
    return MPI_Allreduce(MPI_IN_PLACE, tensor, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Fuses as a runtime does: whole tensors while they fit, larger ones in pieces. */
static int fused(state_t *state, float *tensor, size_t count)
{
    for (size_t at = 0; at < count; at += state->fuse) {
        const size_t part = count - at < state->fuse ? count - at : state->fuse;

        memcpy(state->buffer, tensor + at, part * sizeof(*tensor));
        if (sum(state->buffer, part) != MPI_SUCCESS) return -1;
        memcpy(tensor + at, state->buffer, part * sizeof(*tensor));
    }
    return 0;
}

static int reduce(void *user, float *tensor, size_t count, const slices_parts_t *parts)
{
    state_t *state = user;

    if (strcmp(state->variant, "fused") == 0) return fused(state, tensor, count);
    if (strcmp(state->variant, "flat") == 0) return sum(tensor, count) == MPI_SUCCESS ? 0 : -1;
    for (size_t i = 0; i < parts->count; i++) {
        if (sum(tensor, parts->counts[i]) != MPI_SUCCESS) return -1;
        tensor += parts->counts[i];
    }
    return 0;
}

int main(int argc, char **argv)
{
    static state_t state;
    const slices_way_t way = {"mpi", &state, memory, reduce};
    int rank, ranks, code;

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    state.variant = slices_argument(argc, argv, "variant", "flat");
    state.fuse = strtoull(slices_argument(argc, argv, "fuse", "2097152"), NULL, 10) / sizeof(float);
    state.buffer = malloc(state.fuse * sizeof(float));
    if (state.buffer == NULL || state.fuse == 0) return 1;
    code = slices_run(&way, rank, ranks, argc, argv);
    if (code != 0) MPI_Abort(MPI_COMM_WORLD, code);
    MPI_Finalize();
    free(state.buffer);
    return code;
}
