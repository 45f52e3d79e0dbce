/*
 * cases.h - what N ranks must be able to do together, written once and run two ways: as threads of
 * one process over loopback, and as processes under dprun over UCX.
 */
#ifndef DP_TESTS_CASES_H
#define DP_TESTS_CASES_H

#include "dp.h"

typedef struct rank_case {
    const char *name;
    int (*run)(dp_context_t *dp); /* on every rank; 0 when all held */
    int least_ranks;
    dp_status_t finalize; /* what dp_finalize() must answer afterwards */
    int check;            /* 1: with DP_CHECK_DATA=1 */
} rank_case_t;

/* Cases called so run with order=program. */
#define PROGRAM_PREFIX "program_"

extern const rank_case_t rank_cases[];
extern const int rank_case_count;

#endif
