/*
 * slices.h - the one measuring loop of compare: every way of summing a tensor over ranks, ours, a
 * peer's or a bare floor, is timed by it, so that the ways differ in nothing else.
 *
 * The ranks of a run share a table in a file. Each iteration they meet there, and the time is that
 * from the last rank's start to the last rank's end. Iterations come in slices of some 10 ms with
 * the distance of the two cores measured before and after each (../placement.h); samples are kept
 * apart by it. Results are checked: whole once, at three places in every iteration.
 */
#ifndef DP_BENCH_SLICES_H
#define DP_BENCH_SLICES_H

#include <stddef.h>

/* Tensors that lie one behind the other, in the order backward finishes them. */
typedef struct slices_parts {
    size_t count;         /* 1: the tensor is one */
    const size_t *counts; /* [count] elements */
} slices_parts_t;

typedef struct slices_way {
    const char *name;
    void *user;
    /* Memory for a tensor, page-aligned; NULL: none is left. Freed with the process. */
    void *(*memory)(void *user, size_t bytes);
    /* Sums fp32 over the ranks, in place. 0: done. */
    int (*reduce)(void *user, float *tensor, size_t count, const slices_parts_t *parts);
} slices_way_t;

/*
 * Measures as the arguments say and, on rank 0, prints a line of JSON for each size and placement:
 *
 *     table=FILE     shared by the ranks of this run; made by whoever comes first
 *     sizes=4,1048576
 *     set=gpt2       the 148 gradients of GPT-2 124M instead of sizes; a number: so many of 1 MiB
 *     seconds=0.3    of iterations for each size, which ends early after three times that
 *     touch=1        0: nobody rewrites its tensor between iterations
 *     probe=1        0: nobody asks where the cores are, for a machine that is busy anyway
 *     loop=0         1: iterations follow each other without a meeting; time is the loop's
 *
 * Others are the way's own and left alone. Returns 0, or 1 after a text on standard error.
 */
__attribute__((visibility("default"))) /* Python looks for it in a shared library */
int slices_run(const slices_way_t *way, int rank, int ranks, int argc, char **argv);

/* The value of NAME=VALUE among the arguments, or otherwise. */
const char *slices_argument(int argc, char **argv, const char *name, const char *otherwise);

/* All ranks of a run meet; usable inside reduce() by ways that have no other means. */
void slices_meet(void);

#endif
