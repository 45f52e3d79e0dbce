/*
 * plans.c - who does what in the explorer's worlds, and what may go wrong there.
 */
#include "plans.h"

#define CALM NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL
#define GROUPED(dies, leaves) dies, leaves, NOBODY, NOBODY, 0, 0, 0

#define ALL_SUBMIT {0}, 0

#define MAKE(group, name)                                                                          \
    {                                                                                              \
        group, DP_COLLECTIVE_GROUP_CREATE, -1, -1, name                                            \
    }
#define END(group, name)                                                                           \
    {                                                                                              \
        group, DP_COLLECTIVE_GROUP_DESTROY, -1, -1, name                                           \
    }
#define SUM(group, name)                                                                           \
    {                                                                                              \
        group, DP_COLLECTIVE_ALLREDUCE, -1, -1, name                                               \
    }
#define SEND(group, from, to, name)                                                                \
    {                                                                                              \
        group, DP_COLLECTIVE_SEND, from, to, name                                                  \
    }

#define OVERLAP                                                                                    \
    {                                                                                              \
        {0, {0}}, {2, {0, 1}},                                                                     \
        {                                                                                          \
            2,                                                                                     \
            {                                                                                      \
                1, 2                                                                               \
            }                                                                                      \
        }                                                                                          \
    }

/* Two groups that overlap in rank 1, a tensor in each and one of the world. */
static const cast_t overlap = {
    3,      5, OVERLAP,   {SUM(0, 0), SUM(1, 0), SUM(2, 0), MAKE(1, 8), MAKE(2, 9)},
    3 << 3, 0, ALL_SUBMIT};
/* The same, made meanwhile. */
static const cast_t making = {3, 4, OVERLAP,   {SUM(1, 0), SUM(2, 0), MAKE(1, 8), MAKE(2, 9)},
                              0, 0, ALL_SUBMIT};
static const cast_t making_three = {
    3, 5, OVERLAP, {SUM(0, 0), SUM(1, 0), SUM(2, 0), MAKE(1, 8), MAKE(2, 9)}, 0, 0, ALL_SUBMIT};
/* Made, used and ended. */
static const cast_t ending = {3, 4, OVERLAP,   {SUM(1, 0), MAKE(1, 8), END(1, 9), SUM(0, 0)},
                              0, 0, ALL_SUBMIT};
/* The end of a group, and what its leavers keep. */
static const cast_t ending_only = {
    2, 3, {{0, {0}}, {3, {0, 1, 2}}}, {SUM(1, 0), MAKE(1, 8), END(1, 9)}, 1 << 1, 0, ALL_SUBMIT};
static const cast_t ending_two = {
    3,      6, OVERLAP,   {SUM(1, 0), SUM(2, 0), MAKE(1, 8), MAKE(2, 9), END(1, 10), END(2, 10)},
    3 << 2, 0, ALL_SUBMIT};
/* Ranks run out of data. */
static const cast_t join_world = {1, 2, {{0, {0}}}, {SUM(0, 0), SUM(0, 1)}, 0, 1, ALL_SUBMIT};
static const cast_t join_groups = {
    3, 4, OVERLAP, {SUM(1, 0), SUM(2, 0), MAKE(1, 8), MAKE(2, 9)}, 3 << 2, 6, ALL_SUBMIT};
static const cast_t join_and_end = {
    2, 3, {{0, {0}}, {2, {0, 2}}}, {SUM(1, 0), MAKE(1, 8), END(1, 9)}, 1 << 1, 2, ALL_SUBMIT};
static const cast_t join_send = {1, 2, {{0, {0}}}, {SEND(0, 1, 2, 0), SUM(0, 1)}, 0, 1, ALL_SUBMIT};
/* Two ranks among themselves, under one name. */
static const cast_t sends = {1, 3, {{0, {0}}}, {SEND(0, 0, 1, 0), SEND(0, 2, 1, 0), SUM(0, 0)},
                             0, 0, ALL_SUBMIT};
/* One rank to two others, under one name. */
static const cast_t sends_apart = {1, 2, {{0, {0}}}, {SEND(0, 0, 1, 0), SEND(0, 0, 2, 0)},
                                   0, 0, ALL_SUBMIT};
static const cast_t send_below = {1, 2, {{0, {0}}}, {SEND(0, 1, 2, 0), SEND(0, 2, 0, 0)},
                                  0, 0, ALL_SUBMIT};
/* A pair of ranks. */
static const cast_t pair_groups = {3,
                                   5,
                                   {{0, {0}}, {2, {0, 1}}, {1, {1}}},
                                   {SUM(1, 0), SUM(2, 0), MAKE(1, 8), MAKE(2, 9), END(1, 10)},
                                   0,
                                   0,
                                   ALL_SUBMIT};
static const cast_t pair_joins = {
    2, 3, {{0, {0}}, {2, {0, 1}}}, {SUM(0, 0), SUM(1, 0), MAKE(1, 8)}, 1 << 2, 3, ALL_SUBMIT};

/* Two lists under one name. They share their lowest rank, as dp_group_create() has it, which asks
 * for one of them: 1 announces its list before it hears of the other one, or finds both. */
static const cast_t contest_below = {
    3, 2, {{0, {0}}, {2, {0, 2}}, {2, {0, 3}}}, {MAKE(1, 8), MAKE(2, 8)}, 0, 0, {0, 1}, 1};
/* Likewise, and 0 asks for neither: nothing but the mismatch ends them. */
static const cast_t contest_waits = {
    3, 2, {{0, {0}}, {2, {0, 2}}, {2, {0, 3}}}, {MAKE(1, 8), MAKE(2, 8)}, 0, 0, {1, 1}, 2};
/* Neither list has the root: it may hold back the one it has heard of. */
static const cast_t contest_apart = {
    3, 2, {{0, {0}}, {2, {1, 3}}, {2, {1, 2}}}, {MAKE(1, 8), MAKE(2, 8)}, 0, 0, {0, 2}, 1};
/* Lists without a common rank, which nothing forbids. */
static const cast_t contest_disjoint = {
    3, 2, {{0, {0}}, {2, {2, 3}}, {2, {0, 1}}}, {MAKE(1, 8), MAKE(2, 8)}, 0, 0, {0, 0}, 1};
static const cast_t contest_chain = {
    3, 2, {{0, {0}}, {2, {0, 2}}, {2, {0, 1}}}, {MAKE(1, 8), MAKE(2, 8)}, 0, 0, {0, 1}, 1};

const plan_t explore_plans[] = {
    {"pair", 2, 2, 2, 2, 0, 0, CALM},
    {"pair, holding", 2, 2, 2, 2, 1, 0, CALM},
    {"pair, lazy", 2, 2, 2, 2, 0, 1, CALM},
    {"pair, lazy and holding", 2, 2, 2, 2, 1, 1, CALM},
    {"pair, lazy and holding, priorities", 2, 2, 2, 2, BY_PRIORITY, 1, CALM},
    {"pair, urgent", 2, 2, 2, 2, 1, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 1, NULL, NULL},
    {"pair, death", 2, 2, 2, 2, 0, 0, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL},
    {"pair, death, lazy", 2, 2, 2, 1, 1, 1, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL},
    {"pair, leaver", 2, 2, 2, 2, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL},
    {"pair, leaver, holding", 2, 2, 2, 2, 1, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     NULL},
    {"pair, leaver, lazy", 2, 2, 2, 1, 1, 1, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL},
    {"pair, abort", 2, 2, 2, 1, 0, 1, NOBODY, NOBODY, ANYBODY, NOBODY, 0, 0, 0, NULL, NULL},
    {"pair, mismatch first", 2, 2, 2, 2, 0, 0, NOBODY, NOBODY, NOBODY, 1, 0, 0, 0, NULL, NULL},
    {"pair, mismatch later", 2, 2, 2, 2, 1, 0, NOBODY, NOBODY, NOBODY, 0, 1, 1, 0, NULL, NULL},
    {"pair, mismatch, lazy", 2, 2, 2, 2, 0, 1, NOBODY, NOBODY, NOBODY, 1, 0, 0, 0, NULL, NULL},
    {"pair, mismatch and death", 2, 2, 2, 2, 0, 0, ANYBODY, NOBODY, NOBODY, 1, 0, 0, 0, NULL, NULL},
    {"pair, mismatch and leaver", 2, 2, 2, 2, 0, 0, NOBODY, ANYBODY, NOBODY, 1, 0, 0, 0, NULL,
     NULL},
    {"chain", 3, 1, 2, 1, 0, 0, CALM},
    {"star", 3, 2, 2, 1, 0, 0, CALM},
    {"chain, twice", 3, 1, 1, 2, 1, 1, CALM},
    {"star, twice", 3, 2, 1, 2, 1, 1, CALM},
    {"chain, death", 3, 1, 2, 1, 0, 0, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL},
    {"star, death", 3, 2, 2, 1, 0, 0, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL},
    {"chain, leaver", 3, 1, 2, 1, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL},
    {"chain, leaver, twice", 3, 1, 1, 2, 1, 1, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     NULL},
    {"star, leaver", 3, 2, 2, 1, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL},
    {"chain, mismatch below", 3, 1, 1, 3, 0, 0, NOBODY, NOBODY, NOBODY, 2, 0, 0, 0, NULL, NULL},
    {"chain, mismatch between", 3, 1, 1, 3, 0, 0, NOBODY, NOBODY, NOBODY, 1, 0, 1, 0, NULL, NULL},
    {"chain, mismatch above", 3, 1, 1, 3, 0, 1, NOBODY, NOBODY, NOBODY, 0, 0, 0, 0, NULL, NULL},
    {"star, mismatch", 3, 2, 1, 3, 0, 0, NOBODY, NOBODY, NOBODY, 1, 0, 0, 0, NULL, NULL},
    {"star, mismatch, two tensors", 3, 2, 2, 1, 0, 0, NOBODY, NOBODY, NOBODY, 2, 1, 0, 0, NULL,
     NULL},
    {"star, mismatch and leaver", 3, 2, 1, 2, 0, 0, NOBODY, ANYBODY, NOBODY, 1, 0, 0, 0, NULL,
     NULL},
    {"chain, mismatch and death", 3, 1, 1, 2, 0, 0, ANYBODY, NOBODY, NOBODY, 2, 0, 0, 0, NULL,
     NULL},
    {"pair, groups", 2, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &pair_groups, "groups"},
    {"pair, groups, death", 2, 2, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &pair_groups, "groups"},
    {"pair, groups, leaver", 2, 2, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &pair_groups, "groups"},
    {"pair, joins, lazy", 2, 2, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &pair_joins, "groups"},
    {"pair, joins, leaver", 2, 2, 0, 2, 0, 0, GROUPED(NOBODY, ANYBODY), &pair_joins, "long"},
    {"pair, joins, death", 2, 2, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &pair_joins, "groups"},
    {"chain, overlap", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &overlap, "groups"},
    {"star, overlap", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &overlap, "groups"},
    {"star, making", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &making, "groups"},
    {"chain, contest", 3, 1, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_chain, "contest"},
    {"chain, contest, death", 3, 1, 0, 1, 0, 1, GROUPED(ANYBODY, NOBODY), &contest_chain,
     "contest"},
    {"chain of four, contest", 4, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &contest_below,
     "contest"},
    {"tree, contest below", 4, 2, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_below, "contest"},
    {"star, contest below", 4, 3, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_below, "contest"},
    {"chain of four, contest waits", 4, 1, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_waits,
     "contest"},
    {"star, contest waits", 4, 3, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_waits, "contest"},
    {"tree, contest apart", 4, 2, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_apart, "contest"},
    {"chain, contest apart", 4, 1, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_apart, "contest"},
    {"tree, contest apart, leaver", 4, 2, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &contest_apart,
     "long"},
    {"tree, disjoint lists", 4, 2, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_disjoint,
     "contest"},
    {"chain, disjoint lists", 4, 1, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_disjoint,
     "contest"},
    {"chain, sends", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &sends, "groups"},
    {"chain, sends apart", 3, 1, 0, 2, 0, 0, GROUPED(NOBODY, NOBODY), &sends_apart, "groups"},
    {"star, sends apart", 3, 2, 0, 2, 0, 0, GROUPED(NOBODY, NOBODY), &sends_apart, "groups"},
    {"chain, end and leaver, lazy", 3, 1, 0, 1, 0, 1, GROUPED(NOBODY, 2), &ending_only, "groups"},
    {"chain, sends, leaver", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &send_below, "groups"},
    {"star, sends, leaver", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &send_below, "groups"},
    {"chain, join and end", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_and_end, "groups"},
    {"chain, overlap, death", 3, 1, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &overlap, "long"},
    {"star, overlap, death", 3, 2, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &overlap, "long"},
    {"chain, overlap, leaver", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &overlap, "long"},
    {"star, overlap, leaver", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &overlap, "long"},
    {"chain, making", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &making, "long"},
    {"chain, making, death", 3, 1, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &making, "long"},
    {"star, making, leaver", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &making, "long"},
    {"chain, making three", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &making_three, "long"},
    {"star, ending", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &ending, "long"},
    {"chain, ending, death", 3, 1, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &ending, "long"},
    {"chain, ending, leaver", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &ending, "long"},
    {"chain, ending two", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &ending_two, "long"},
    {"star, ending two, death", 3, 2, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &ending_two, "long"},
    {"chain, join", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_world, "long"},
    {"star, join", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_world, "long"},
    {"chain, join, death", 3, 1, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &join_world, "long"},
    {"chain, join, leaver", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &join_world, "long"},
    {"chain, join groups", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_groups, "long"},
    {"star, join groups, death", 3, 2, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &join_groups, "long"},
    {"chain, join and send", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_send, "long"},
    {"star, join and send", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_send, "long"},
    {"chain, sends, death", 3, 1, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &sends, "long"},
    {"chain, join and end, lazy", 3, 1, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &join_and_end, "long"},
};
const size_t explore_plan_count = DP_ARRAY_LEN(explore_plans);
