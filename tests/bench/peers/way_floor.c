/*
 * way_floor.c - what two ranks of one machine could reach: an allreduce without any library.
 *
 *     way_floor variant=direct|cma table=FILE ...
 *
 * direct: both tensors are mapped by both ranks; each adds one half of the two and stores the sum
 * to both. cma: tensors are private; each rank reads the other's half of them in pieces by
 * process_vm_readv, adds it to its own, and then fetches the sums of the other half.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/apart.h"
#include "tests/bench/peers/slices.h"

#define TENSOR_MAX ((size_t)512 << 20)
#define PIECE ((size_t)256 << 10)

/* Mapped by both before they part. */
typedef struct shared {
    pid_t process[2];
    float *tensor[2]; /* cma: where it lies in its process */
} shared_t;

typedef struct state {
    int rank;
    shared_t *shared;
    float *mapped[2]; /* direct: both tensors */
    float *piece;
} state_t;

static void *map(size_t bytes, int flags)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED) return NULL;
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* where the system lets us */
    return memory;
}

/* Both tensors of the direct floor, in one mapping, so that their distance is ours to choose. */
static int map_both(state_t *state)
{
    const size_t distance = TENSOR_MAX + APART;
    char *both = map(distance + TENSOR_MAX, MAP_SHARED);

    _Static_assert((TENSOR_MAX + APART) % APART_HASHED != 0, "see apart.h");
    if (both == NULL) return -1;
    for (int i = 0; i < 2; i++)
        state->mapped[i] = (float *)(void *)(both + (size_t)i * distance);
    return 0;
}

static void *direct_memory(void *user, size_t bytes)
{
    const state_t *state = user;

    return bytes <= TENSOR_MAX ? state->mapped[state->rank] : NULL;
}

static int direct(void *user, float *tensor, size_t count, const slices_parts_t *parts)
{
    const state_t *state = user;
    float *restrict own = tensor;
    float *restrict other = state->mapped[1 - state->rank];
    const size_t half = count / 2;
    const size_t from = state->rank == 0 ? 0 : half, to = state->rank == 0 ? half : count;

    (void)parts;
    slices_meet();
    for (size_t i = from; i < to; i++)
        own[i] = other[i] = own[i] + other[i];
    slices_meet();
    return 0;
}

static void *cma_memory(void *user, size_t bytes)
{
    const state_t *state = user;

    state->shared->tensor[state->rank] = map(bytes, MAP_PRIVATE);
    return state->shared->tensor[state->rank];
}

static int fetch(const state_t *state, float *to, size_t at, size_t count)
{
    struct iovec here = {to, count * sizeof(*to)};
    struct iovec there = {state->shared->tensor[1 - state->rank] + at, count * sizeof(*to)};

    if (process_vm_readv(state->shared->process[1 - state->rank], &here, 1, &there, 1, 0) ==
        (ssize_t)here.iov_len) {
        return 0;
    }
    fprintf(stderr, "cma: process_vm_readv: %s\n", strerror(errno));
    return -1;
}

static int cma(void *user, float *tensor, size_t count, const slices_parts_t *parts)
{
    const state_t *state = user;
    const size_t half = count / 2, each = PIECE / sizeof(*tensor);
    const size_t from = state->rank == 0 ? 0 : half, to = state->rank == 0 ? half : count;
    const size_t other_from = state->rank == 0 ? half : 0;
    const size_t other_count = count - (to - from);

    (void)parts;
    slices_meet();
    for (size_t at = from; at < to; at += each) {
        const size_t part = to - at < each ? to - at : each;
        float *restrict own = tensor + at;
        const float *restrict other = state->piece;

        if (fetch(state, state->piece, at, part) != 0) return -1;
        for (size_t i = 0; i < part; i++)
            own[i] += other[i];
    }
    slices_meet();
    if (other_count > 0 && fetch(state, tensor + other_from, other_from, other_count) != 0) {
        return -1;
    }
    slices_meet();
    return 0;
}

static void pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    (void)sched_setaffinity(0, sizeof(set), &set);
}

int main(int argc, char **argv)
{
    static state_t state;
    const int is_cma = strcmp(slices_argument(argc, argv, "variant", "direct"), "cma") == 0;
    const slices_way_t way = {is_cma ? "cma" : "direct", &state,
                              is_cma ? cma_memory : direct_memory, is_cma ? cma : direct};
    int code, other = 0;
    pid_t child;

    state.shared = map(sizeof(*state.shared), MAP_SHARED);
    state.piece = aligned_alloc(4096, PIECE);
    if (state.shared == NULL || state.piece == NULL) return 1;
    if (!is_cma && map_both(&state) != 0) return 1;
    child = fork();
    if (child < 0) return 1;
    /* Rank 1 does not outlive rank 0, for which it would wait. */
    if (child == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(1);
    state.rank = child == 0;
    state.shared->process[0] = child == 0 ? getppid() : getpid();
    state.shared->process[1] = child == 0 ? getpid() : child;
    pin(state.rank);
    code = slices_run(&way, state.rank, 2, argc, argv);
    if (child == 0) _exit(code);
    if (code != 0) return code;
    return waitpid(child, &other, 0) == child && other == 0 ? 0 : 1;
}
