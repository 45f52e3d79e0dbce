/*
 * cases_memory.c - dp_register(): memory of the program's own is reduced where it lies.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/parity/parity.h"

#define PAGE ((size_t)4096)

/* Bytes copied through fusion buffers so far. */
static uint64_t packed_bytes(dp_context_t *dp)
{
    dp_stats_t stats = DP_STATS_INIT;

    return dp_stats_get(dp, &stats) == DP_OK ? stats.bytes_packed : UINT64_MAX;
}

static int sum_of(dp_context_t *dp, const char *name, float *in, float *out, size_t count)
{
    dp_handle_t *handle = NULL;

    parity_fill(DP_F32, in, count, 1.0, dp_rank(dp));
    EXPECT_STATUS(
        dp,
        parity_wait(dp_allreduce(dp_world(dp), name, in, out, count, DP_F32, NULL, &handle),
                    &handle, NULL),
        DP_OK);
    EXPECT(dp,
           parity_differs(DP_F32, out, count, dp_size(dp),
                          (double)dp_size(dp) * (dp_size(dp) - 1) / 2) == SIZE_MAX,
           "%s: element %zu", name,
           parity_differs(DP_F32, out, count, dp_size(dp),
                          (double)dp_size(dp) * (dp_size(dp) - 1) / 2));
    return 0;
}

/* Every rank's memory lies elsewhere and is of another kind; some of it is not registered. */
int parity_registered_memory_is_reduced_in_place(dp_context_t *dp)
{
    const size_t bytes = 2 * DP_MIB, count = bytes / sizeof(float) / 2;
    char *mapped =
        mmap(NULL, bytes + 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *allocated = aligned_alloc(PAGE, bytes);
    char *memory = dp_rank(dp) % 2 == 0 ? mapped + PAGE : allocated;
    float *values = (float *)(void *)memory;
    uint64_t packed;

    EXPECT(dp, mapped != MAP_FAILED && allocated != NULL, "no memory");
    parity_fill(DP_F32, memory, 2 * count, 1.0, 5.0);
    EXPECT_STATUS(dp, dp_register(dp, memory, bytes), DP_OK);
    EXPECT(dp, parity_differs(DP_F32, memory, 2 * count, 1.0, 5.0) == SIZE_MAX, "contents");
    packed = packed_bytes(dp);
    for (int turn = 0; turn < 3; turn++) {
        if (sum_of(dp, "registered", values, values, count)) return 1;
        if (sum_of(dp, "registered.out", values, values + count, count)) return 1;
    }
    if (dp_node_count(dp) == 1) {
        /* small operations of earlier cases may still have run */
        EXPECT(dp, packed_bytes(dp) - packed < count * sizeof(float), "%llu bytes were packed",
               (unsigned long long)(packed_bytes(dp) - packed));
    }
    EXPECT_STATUS(dp, dp_deregister(dp, memory), DP_OK);
    EXPECT(dp,
           parity_differs(DP_F32, values + count, count, dp_size(dp),
                          (double)dp_size(dp) * (dp_size(dp) - 1) / 2) == SIZE_MAX,
           "contents after");
    if (sum_of(dp, "registered", values, values, count)) return 1; /* as ordinary memory */
    /* on one rank only: what is not in place everywhere is so nowhere */
    if (dp_rank(dp) == 0) EXPECT_STATUS(dp, dp_register(dp, memory, bytes), DP_OK);
    if (sum_of(dp, "registered", values, values, count)) return 1;
    if (dp_rank(dp) == 0) EXPECT_STATUS(dp, dp_deregister(dp, memory), DP_OK);
    free(allocated);
    munmap(mapped, bytes + 3 * PAGE);
    return 0;
}

int parity_registered_memory_serves_every_collective(dp_context_t *dp)
{
    const size_t ranks = (size_t)dp_size(dp), count = 3000;
    const size_t bytes = dp_align_up(count * (ranks + 1) * sizeof(float), PAGE);
    float *in = aligned_alloc(PAGE, bytes), *out = aligned_alloc(PAGE, bytes);
    dp_handle_t *handle = NULL;

    EXPECT(dp, in != NULL && out != NULL, "no memory");
    EXPECT_STATUS(dp, dp_register(dp, in, bytes), DP_OK);
    EXPECT_STATUS(dp, dp_register(dp, out, bytes), DP_OK);
    for (int turn = 0; turn < 2; turn++) {
        parity_fill(DP_F32, in, count, 1.0, dp_rank(dp));
        EXPECT_STATUS(dp,
                      parity_wait(dp_broadcast(dp_world(dp), "r.broadcast", in, out, count, DP_F32,
                                               dp_size(dp) - 1, NULL, &handle),
                                  &handle, NULL),
                      DP_OK);
        EXPECT(dp, parity_differs(DP_F32, out, count, 1.0, dp_size(dp) - 1) == SIZE_MAX,
               "broadcast");
        EXPECT_STATUS(dp,
                      parity_wait(dp_allgather(dp_world(dp), "r.allgather", in, out, count, DP_F32,
                                               NULL, &handle),
                                  &handle, NULL),
                      DP_OK);
        for (size_t r = 0; r < ranks; r++) {
            EXPECT(dp, parity_differs(DP_F32, out + r * count, count, 1.0, (double)r) == SIZE_MAX,
                   "allgather, row %zu", r);
        }
        for (size_t r = 0; r < ranks; r++)
            parity_fill(DP_F32, in + r * count, count, 1.0, (double)r);
        EXPECT_STATUS(dp,
                      parity_wait(dp_reduce_scatter(dp_world(dp), "r.scatter", in, out, count,
                                                    DP_F32, NULL, &handle),
                                  &handle, NULL),
                      DP_OK);
        EXPECT(dp,
               parity_differs(DP_F32, out, count, dp_size(dp), dp_size(dp) * dp_rank(dp)) ==
                   SIZE_MAX,
               "reduce_scatter");
        EXPECT_STATUS(dp,
                      parity_wait(dp_reduce(dp_world(dp), "r.reduce", in, out, count, DP_F32, 0,
                                            NULL, &handle),
                                  &handle, NULL),
                      DP_OK);
        if (dp_rank(dp) == 0)
            EXPECT(dp, parity_differs(DP_F32, out, count, dp_size(dp), 0.0) == SIZE_MAX, "reduce");
        parity_fill(DP_F32, in, count * ranks, 0.0, dp_rank(dp));
        EXPECT_STATUS(dp,
                      parity_wait(dp_alltoall(dp_world(dp), "r.alltoall", in, out, count, DP_F32,
                                              NULL, &handle),
                                  &handle, NULL),
                      DP_OK);
        for (size_t r = 0; r < ranks; r++) {
            EXPECT(dp, parity_differs(DP_F32, out + r * count, count, 0.0, (double)r) == SIZE_MAX,
                   "alltoall, row %zu", r);
        }
    }
    EXPECT_STATUS(dp, dp_deregister(dp, in), DP_OK);
    EXPECT_STATUS(dp, dp_deregister(dp, out), DP_OK);
    free(in);
    free(out);
    return 0;
}

int parity_registering_what_cannot_be_says_why(dp_context_t *dp)
{
    char *memory = aligned_alloc(PAGE, 8 * PAGE);
    void *shared = NULL;

    EXPECT(dp, memory != NULL, "no memory");
    EXPECT_STATUS(dp, dp_register(NULL, memory, PAGE), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_deregister(NULL, memory), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_register(dp, NULL, PAGE), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_register(dp, memory, 0), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_register(dp, memory + 64, PAGE), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_register(dp, memory, 100), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "whole pages");
    EXPECT_STATUS(dp, dp_deregister(dp, memory), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_deregister(dp, NULL), DP_OK);
    EXPECT_STATUS(dp, dp_register(dp, memory, 4 * PAGE), DP_OK);
    EXPECT_STATUS(dp, dp_register(dp, memory, 4 * PAGE), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_register(dp, memory + 3 * PAGE, 2 * PAGE), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "overlaps");
    EXPECT_STATUS(dp, dp_register(dp, memory + 4 * PAGE, 4 * PAGE), DP_OK); /* beside it */
    EXPECT_STATUS(dp, dp_deregister(dp, memory + PAGE), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_free(dp, memory), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_alloc(dp, PAGE, &shared), DP_OK);
    EXPECT_STATUS(dp, dp_register(dp, shared, PAGE), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_deregister(dp, shared), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_free(dp, shared), DP_OK);
    shared = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_STATUS(dp, dp_register(dp, shared, PAGE), DP_ERR_UNSUPPORTED);
    EXPECT_TEXT(dp, dp_error_text(dp), "rank ");
    munmap(shared, PAGE);
    EXPECT_STATUS(dp, dp_deregister(dp, memory), DP_OK);
    EXPECT_STATUS(dp, dp_deregister(dp, memory), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_deregister(dp, memory + 4 * PAGE), DP_OK);
    free(memory);
    return 0;
}

/* Registered at dp_finalize(): private again, which the runner looks at. */
static char left_registered[PARITY_RANKS_MAX][4 * 4096] __attribute__((aligned(4096)));

int parity_registrations_may_be_left_to_finalize(dp_context_t *dp)
{
    char *mine = left_registered[dp_rank(dp)];

    parity_fill(DP_U8, mine, 4 * PAGE, 1.0, 3.0);
    EXPECT_STATUS(dp, dp_register(dp, mine, 4 * PAGE), DP_OK);
    EXPECT(dp, parity_differs(DP_U8, mine, 4 * PAGE, 1.0, 3.0) == SIZE_MAX, "contents");
    return 0;
}

int parity_left_registrations_are_intact(int rank)
{
    return left_registered[rank][0] == 0 ||
           parity_differs(DP_U8, left_registered[rank], 4 * PAGE, 1.0, 3.0) == SIZE_MAX;
}
