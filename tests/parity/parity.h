/*
 * parity.h - the cases that Horovod's own parallel tests assert, as cases of dp.h, each named after
 * Horovod's function without "test_horovod_"; and the rules of dp.h about handles and memory. The
 * table is docs/horovod-parity.md. Written once, run as threads and as processes.
 */
#ifndef DP_TESTS_PARITY_H
#define DP_TESTS_PARITY_H

#include "dp.h"
#include "kernels/kernels.h"
#include "runtime/base/common.h"
#include "tests/parity/list.h"
#include "tests/ranks/cases_internal.h"

#define PARITY_DECLARE(name, least_ranks) int parity_##name(dp_context_t *dp);
PARITY_CASES(PARITY_DECLARE)

typedef struct parity_case {
    const char *name;
    int (*run)(dp_context_t *dp); /* on every rank; 0 when all held */
    int least_ranks;
} parity_case_t;

extern const parity_case_t parity_cases[];
extern const size_t parity_case_count;

/* Runs a case by name, or "all", on this rank. 0 when all held; 2: no such case. */
int parity_run(dp_context_t *dp, const char *name);

/* After dp_finalize(): 1 unless what a case of this rank left registered has other contents. */
int parity_left_registrations_are_intact(int rank);

/* ---- Numbers of any type -------------------------------------------------------------------- */

/* Whole numbers, of which sums over a few ranks are exact in every type (integers wrap alike). */
double parity_value(dp_dtype_t dtype, size_t i);
int parity_is_float(dp_dtype_t dtype);
/* Element i as its type holds it; bf16 and f16 round to nearest even. */
void parity_store(dp_dtype_t dtype, void *data, size_t i, double value);
/* [count] of parity_value(i) * by + plus */
void parity_fill(dp_dtype_t dtype, void *data, size_t count, double by, double plus);
/* The first element that is not what parity_fill() of the same arguments stores; SIZE_MAX: none. */
size_t parity_differs(dp_dtype_t dtype, const void *data, size_t count, double by, double plus);

/* ---- Doing ---------------------------------------------------------------------------------- */

/* Waits for what was submitted with this status; the operation's status. The handle is read here,
 * as the submission may be an argument beside it. */
dp_status_t parity_wait(dp_status_t submitted, dp_handle_t **handle, dp_result_t *result);
/* Rank 0 has come here before any other rank goes on. */
int parity_after_rank0(dp_context_t *dp, const char *name);
/* The group of this rank's parity: {0, 2, ...} "even" or {1, 3, ...} "odd". */
int parity_half(dp_context_t *dp, dp_group_t **group);

static const size_t parity_counts[] = {17, 17 * 17, 17 * 17 * 17}; /* 1, 2 and 3 dimensions */
#define PARITY_COUNT_MAX ((size_t)17 * 17 * 17)
#define PARITY_COUNTS (sizeof(parity_counts) / sizeof(parity_counts[0]))
#define PARITY_RANKS_MAX 16

#endif
