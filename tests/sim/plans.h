/*
 * plans.h - the small worlds that the explorer walks through.
 */
#ifndef DP_TESTS_SIM_PLANS_H
#define DP_TESTS_SIM_PLANS_H

#include "world.h"

#define NOBODY (-1)
#define ANYBODY (-2)
#define CAST_TENSORS_MAX 8
#define BY_PRIORITY 2

/* Groups and what is done in them. What is made must be there before it is used, and ends after
 * all that was done in it; apart from that everything may happen in any order. */
typedef struct cast {
    int group_count, tensor_count;
    world_group_t groups[4];
    world_tensor_t kinds[CAST_TENSORS_MAX];
    int prelude; /* these tensors are launched everywhere before the search begins: a bit each */
    int joins;   /* groups that every member joins once, at any time: a bit each */
    int silent[CAST_TENSORS_MAX]; /* ranks that take part and do not submit it: a bit each */
    /* Groups are made under one name. 1: some ways lead to a mismatch, some do not. 2: all do, and
     * nobody finalizes before everybody knows. */
    int contests;
} cast_t;

/* The calls of a world's ranks, and the one fault that may come at any moment. */
typedef struct plan {
    const char *name;
    int size, arity, tensors, occurrences;
    int holds;   /* the root holds back while launches are in flight; BY_PRIORITY: likewise, and on
                    the last rank tensor t has priority t */
    int is_lazy; /* taking outputs is a step of its own, so that inputs coalesce */
    int dies;    /* a rank, ANYBODY: one of them; NOBODY */
    int leaves;  /* a rank that may finalize at any time, ANYBODY, NOBODY */
    int aborts;  /* a rank that may abort at any time */
    int mismatch_rank, mismatch_tensor, mismatch_occurrence; /* NOBODY: none */
    int is_urgent;      /* a waiter may say so of tensor 0, on the last rank, at any time */
    const cast_t *cast; /* groups; NULL: the world alone */
    const char *set;    /* NULL: pair or trio, by size */
} plan_t;

extern const plan_t explore_plans[];
extern const size_t explore_plan_count;

#endif
