/*
 * plans.c - who does what in the explorer's worlds, and what may go wrong there.
 */
#include "plans.h"

#define CALM NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL, NULL
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
#define GATHER(group, name)                                                                        \
    {                                                                                              \
        group, DP_COLLECTIVE_ALLGATHER, -1, -1, name                                               \
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
/* Ranks that finalize when all has come back to them. */
static const cast_t two_sums = {1, 2, {{0, {0}}}, {SUM(0, 0), SUM(0, 1)}, 0, 0, ALL_SUBMIT};
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

/* with a cached schedule */
static const routine_t steady = {3, 3, 1, NOBODY, 1, 0, 0, 0};
static const routine_t beginning = {3, 2, 1, NOBODY, 0, 0, 0, 0};
static const routine_t ended = {3, 3, 1, ANYBODY, 1, 0, 0, 0};
static const routine_t other = {3, 3, 1, NOBODY, 1, 0, 0, 0};
static const routine_t one = {1, 3, 1, NOBODY, 1, 0, 0, 0};
static const routine_t one_returns = {1, 3, 1, NOBODY, 1, 1, 0, 0};
static const routine_t other_returns = {3, 3, 1, NOBODY, 1, 1, 0, 0};
static const routine_t ended_one = {1, 3, 1, 2, 1, 0, 0, 0};
/* One tensor, and the one of an earlier schedule beside it may come at any time. */
static const routine_t one_of_two = {1, 8, 1, NOBODY, 0, 0, 0, 3};
/* in buckets of two */
static const routine_t fused = {3, 3, 1, NOBODY, 1, 0, 1, 0};
static const cast_t join_one = {1, 1, {{0, {0}}}, {SUM(0, 0)}, 0, 1, ALL_SUBMIT};
static const cast_t schedule_groups = {
    3, 4, OVERLAP, {SUM(1, 0), SUM(2, 0), MAKE(1, 8), MAKE(2, 9)}, 3 << 2, 0, ALL_SUBMIT};
/* A sum and a gather. */
static const cast_t sum_and_gather = {1, 2, {{0, {0}}}, {SUM(0, 0), GATHER(0, 1)},
                                      0, 0, ALL_SUBMIT};
static const cast_t join_gather = {1, 2, {{0, {0}}}, {SUM(0, 0), GATHER(0, 1)}, 0, 1, ALL_SUBMIT};
/* A tensor of the world, and one of a group of the same ranks. */
static const cast_t schedule_pair_groups = {
    2, 3, {{0, {0}}, {2, {0, 1}}}, {SUM(0, 0), SUM(1, 0), MAKE(1, 8)}, 1 << 2, 0, ALL_SUBMIT};
/* Likewise, and the group ends; another is made, used and ended. */
static const cast_t schedule_end = {
    2, 4,         {{0, {0}}, {2, {0, 1}}}, {SUM(0, 0), SUM(1, 0), MAKE(1, 8), END(1, 9)}, 1 << 2,
    0, ALL_SUBMIT};
static const cast_t schedule_make = {
    2, 4, {{0, {0}}, {2, {0, 1}}}, {SUM(0, 0), SUM(1, 0), MAKE(1, 8), END(1, 9)}, 0, 0, ALL_SUBMIT};
static const cast_t schedule_end_below = {
    2, 4,         {{0, {0}}, {2, {1, 2}}}, {SUM(0, 0), SUM(1, 0), MAKE(1, 8), END(1, 9)}, 1 << 2,
    0, ALL_SUBMIT};
static const routine_t grouped = {3, 3, 1, NOBODY, 0, 0, 0, 0};

const plan_t explore_plans[] = {
    {"pair", 2, 2, 2, 2, 0, 0, CALM},
    {"pair, holding", 2, 2, 2, 2, 1, 0, CALM},
    {"pair, lazy", 2, 2, 2, 2, 0, 1, CALM},
    {"pair, lazy and holding", 2, 2, 2, 2, 1, 1, CALM},
    {"pair, lazy and holding, priorities", 2, 2, 2, 2, BY_PRIORITY, 1, CALM},
    {"pair, urgent", 2, 2, 2, 2, 1, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 1, NULL, NULL, NULL},
    {"pair, death", 2, 2, 2, 2, 0, 0, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL, NULL},
    {"pair, death, lazy", 2, 2, 2, 1, 1, 1, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL,
     NULL},
    {"pair, leaver", 2, 2, 2, 2, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL, NULL},
    {"pair, leaver, holding", 2, 2, 2, 2, 1, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     NULL, NULL},
    {"pair, leaver, lazy", 2, 2, 2, 1, 1, 1, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL,
     NULL},
    {"pair, abort", 2, 2, 2, 1, 0, 1, NOBODY, NOBODY, ANYBODY, NOBODY, 0, 0, 0, NULL, NULL, NULL},
    {"pair, mismatch first", 2, 2, 2, 2, 0, 0, NOBODY, NOBODY, NOBODY, 1, 0, 0, 0, NULL, NULL,
     NULL},
    {"pair, mismatch later", 2, 2, 2, 2, 1, 0, NOBODY, NOBODY, NOBODY, 0, 1, 1, 0, NULL, NULL,
     NULL},
    {"pair, mismatch, lazy", 2, 2, 2, 2, 0, 1, NOBODY, NOBODY, NOBODY, 1, 0, 0, 0, NULL, NULL,
     NULL},
    {"pair, mismatch and death", 2, 2, 2, 2, 0, 0, ANYBODY, NOBODY, NOBODY, 1, 0, 0, 0, NULL, NULL,
     NULL},
    {"pair, mismatch and leaver", 2, 2, 2, 2, 0, 0, NOBODY, ANYBODY, NOBODY, 1, 0, 0, 0, NULL, NULL,
     NULL},
    {"chain", 3, 1, 2, 1, 0, 0, CALM},
    {"star", 3, 2, 2, 1, 0, 0, CALM},
    {"chain, twice", 3, 1, 1, 2, 1, 1, CALM},
    {"star, twice", 3, 2, 1, 2, 1, 1, CALM},
    {"chain, death", 3, 1, 2, 1, 0, 0, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL, NULL},
    {"star, death", 3, 2, 2, 1, 0, 0, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL, NULL},
    {"chain, leaver", 3, 1, 2, 1, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL, NULL},
    {"chain, leaver, twice", 3, 1, 1, 2, 1, 1, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL,
     NULL},
    {"star, leaver", 3, 2, 2, 1, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL, NULL, NULL},
    {"chain, mismatch below", 3, 1, 1, 3, 0, 0, NOBODY, NOBODY, NOBODY, 2, 0, 0, 0, NULL, NULL,
     NULL},
    {"chain, mismatch between", 3, 1, 1, 3, 0, 0, NOBODY, NOBODY, NOBODY, 1, 0, 1, 0, NULL, NULL,
     NULL},
    {"chain, mismatch above", 3, 1, 1, 3, 0, 1, NOBODY, NOBODY, NOBODY, 0, 0, 0, 0, NULL, NULL,
     NULL},
    {"star, mismatch", 3, 2, 1, 3, 0, 0, NOBODY, NOBODY, NOBODY, 1, 0, 0, 0, NULL, NULL, NULL},
    {"star, mismatch, two tensors", 3, 2, 2, 1, 0, 0, NOBODY, NOBODY, NOBODY, 2, 1, 0, 0, NULL,
     NULL, NULL},
    {"star, mismatch and leaver", 3, 2, 1, 2, 0, 0, NOBODY, ANYBODY, NOBODY, 1, 0, 0, 0, NULL, NULL,
     NULL},
    {"chain, mismatch and death", 3, 1, 1, 2, 0, 0, ANYBODY, NOBODY, NOBODY, 2, 0, 0, 0, NULL, NULL,
     NULL},
    {"pair, groups", 2, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &pair_groups, "groups", NULL},
    {"pair, groups, death", 2, 2, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &pair_groups, "groups",
     NULL},
    {"pair, groups, leaver", 2, 2, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &pair_groups, "groups",
     NULL},
    {"pair, joins, lazy", 2, 2, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &pair_joins, "groups", NULL},
    {"pair, joins, leaver", 2, 2, 0, 2, 0, 0, GROUPED(NOBODY, ANYBODY), &pair_joins, "long", NULL},
    {"pair, joins, death", 2, 2, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &pair_joins, "groups", NULL},
    {"chain, overlap", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &overlap, "groups", NULL},
    {"star, overlap", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &overlap, "groups", NULL},
    {"star, making", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &making, "groups", NULL},
    {"chain, contest", 3, 1, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_chain, "contest", NULL},
    {"chain, contest, death", 3, 1, 0, 1, 0, 1, GROUPED(ANYBODY, NOBODY), &contest_chain, "contest",
     NULL},
    {"chain of four, contest", 4, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &contest_below, "contest",
     NULL},
    {"tree, contest below", 4, 2, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_below, "contest",
     NULL},
    {"star, contest below", 4, 3, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_below, "contest",
     NULL},
    {"chain of four, contest waits", 4, 1, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_waits,
     "contest", NULL},
    {"star, contest waits", 4, 3, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_waits, "contest",
     NULL},
    {"tree, contest apart", 4, 2, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_apart, "contest",
     NULL},
    {"chain, contest apart", 4, 1, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_apart, "contest",
     NULL},
    {"tree, contest apart, leaver", 4, 2, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &contest_apart,
     "long", NULL},
    {"tree, disjoint lists", 4, 2, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_disjoint,
     "contest", NULL},
    {"chain, disjoint lists", 4, 1, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &contest_disjoint,
     "contest", NULL},
    {"chain, sends", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &sends, "groups", NULL},
    {"chain, sends apart", 3, 1, 0, 2, 0, 0, GROUPED(NOBODY, NOBODY), &sends_apart, "groups", NULL},
    {"star, sends apart", 3, 2, 0, 2, 0, 0, GROUPED(NOBODY, NOBODY), &sends_apart, "groups", NULL},
    {"chain, end and leaver, lazy", 3, 1, 0, 1, 0, 1, GROUPED(NOBODY, 2), &ending_only, "groups",
     NULL},
    {"chain, sends, leaver", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &send_below, "groups",
     NULL},
    {"star, sends, leaver", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &send_below, "groups",
     NULL},
    {"chain, join and end", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_and_end, "groups",
     NULL},
    {"chain, overlap, death", 3, 1, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &overlap, "long", NULL},
    {"star, overlap, death", 3, 2, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &overlap, "long", NULL},
    {"chain, overlap, leaver", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &overlap, "long", NULL},
    {"star, overlap, leaver", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &overlap, "long", NULL},
    {"chain, making", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &making, "long", NULL},
    {"chain, making, death", 3, 1, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &making, "long", NULL},
    {"star, making, leaver", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &making, "long", NULL},
    {"chain, making three", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &making_three, "long", NULL},
    {"star, ending", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &ending, "long", NULL},
    {"chain, ending, death", 3, 1, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &ending, "long", NULL},
    {"chain, ending, leaver", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &ending, "long", NULL},
    {"chain, ending two", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &ending_two, "long", NULL},
    {"star, ending two, death", 3, 2, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &ending_two, "long",
     NULL},
    {"chain, join", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_world, "long", NULL},
    {"star, join", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_world, "long", NULL},
    {"chain, join, death", 3, 1, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &join_world, "long", NULL},
    {"chain, join, leaver", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, ANYBODY), &join_world, "long", NULL},
    {"chain, join groups", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_groups, "long", NULL},
    {"star, join groups, death", 3, 2, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &join_groups, "long",
     NULL},
    {"chain, join and send", 3, 1, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_send, "long", NULL},
    {"star, join and send", 3, 2, 0, 1, 0, 0, GROUPED(NOBODY, NOBODY), &join_send, "long", NULL},
    {"chain, sends, death", 3, 1, 0, 1, 0, 0, GROUPED(ANYBODY, NOBODY), &sends, "long", NULL},
    {"chain, join and end, lazy", 3, 1, 0, 1, 0, 1, GROUPED(NOBODY, NOBODY), &join_and_end, "long",
     NULL},
    /* Two tensors with a cached schedule: rounds three to six, in any order. */
    {"schedule, pair", 2, 2, 2, 5, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL, "schedule",
     &steady},
    {"schedule, pair, lazy", 2, 2, 2, 4, 0, 1, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedule", &steady},
    {"schedule, pair, beginning", 2, 2, 2, 4, 0, 1, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedule", &beginning},
    {"schedule, pair, ended", 2, 2, 2, 5, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedule", &ended},
    {"schedule, pair, other tensor", 2, 2, 3, 4, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0,
     NULL, "schedule", &other},
    {"schedule, pair, tensor of another schedule", 2, 2, 0, 10, 0, 0, GROUPED(NOBODY, NOBODY),
     &two_sums, "schedule", &one_of_two},
    {"schedule, pair, other tensor, lazy", 2, 2, 2, 4, 0, 1, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0,
     0, NULL, "schedule", &one},
    {"schedule, pair, comes back", 2, 2, 2, 6, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedule", &one_returns},
    {"schedule, pair, comes back, lazy", 2, 2, 2, 5, 0, 1, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0,
     NULL, "schedule", &one_returns},
    {"schedule, pair, comes back, leaver", 2, 2, 2, 5, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0,
     0, NULL, "schedule", &one_returns},
    {"schedule, pair, comes back, death", 2, 2, 2, 5, 0, 0, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0,
     0, NULL, "schedule", &one_returns},
    {"schedule, pair, other group", 2, 2, 0, 4, 0, 0, GROUPED(NOBODY, NOBODY),
     &schedule_pair_groups, "schedule", &one},
    {"schedule, pair, group ends", 2, 2, 0, 5, 0, 0, GROUPED(NOBODY, NOBODY), &schedule_end,
     "schedule", &steady},
    {"schedule, pair, group ends, lazy", 2, 2, 0, 4, 0, 1, GROUPED(NOBODY, NOBODY), &schedule_end,
     "schedule", &steady},
    {"schedule, pair, group ends, leaver", 2, 2, 0, 4, 0, 0, GROUPED(NOBODY, ANYBODY),
     &schedule_end, "schedule", &steady},
    {"schedule, pair, group made", 2, 2, 0, 5, 0, 0, GROUPED(NOBODY, NOBODY), &schedule_make,
     "schedule", &one},
    {"schedule, pair, group made, lazy", 2, 2, 0, 4, 0, 1, GROUPED(NOBODY, NOBODY), &schedule_make,
     "schedule", &one},
    {"schedule, chain, group ends", 3, 1, 0, 4, 0, 0, GROUPED(NOBODY, NOBODY), &schedule_end_below,
     "schedule3", &steady},
    {"schedule, star, group ends", 3, 2, 0, 4, 0, 0, GROUPED(NOBODY, NOBODY), &schedule_end_below,
     "schedule3", &steady},
    {"schedule, pair, other tensor, death", 2, 2, 3, 4, 0, 0, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0,
     0, NULL, "schedule", &other},
    {"schedule, pair, leaver", 2, 2, 2, 5, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedule", &steady},
    {"schedule, pair, leaver, lazy", 2, 2, 2, 4, 0, 1, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0,
     NULL, "schedule", &steady},
    {"schedule, pair, mismatch", 2, 2, 2, 5, 0, 0, NOBODY, NOBODY, NOBODY, 1, 1, 3, 0, NULL,
     "schedule", &steady},
    {"schedule, pair, mismatch above", 2, 2, 2, 5, 0, 0, NOBODY, NOBODY, NOBODY, 0, 0, 4, 0, NULL,
     "schedule", &steady},
    {"schedule, pair, mismatch, leaver", 2, 2, 2, 5, 0, 0, NOBODY, ANYBODY, NOBODY, 1, 0, 3, 0,
     NULL, "schedule", &steady},
    {"schedule, pair, death", 2, 2, 2, 5, 0, 0, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedule", &ended},
    {"schedule, pair, abort", 2, 2, 2, 4, 0, 0, NOBODY, NOBODY, ANYBODY, NOBODY, 0, 0, 0, NULL,
     "schedule", &other},
    {"schedule, pair, urgent", 2, 2, 2, 5, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 1, NULL,
     "schedule", &steady},
    {"schedule, pair, join", 2, 2, 0, 5, 0, 0, GROUPED(NOBODY, NOBODY), &join_world, "schedule",
     &steady},
    {"schedule, pair, join, leaver", 2, 2, 0, 4, 0, 0, GROUPED(NOBODY, ANYBODY), &join_world,
     "schedule", &steady},
    {"schedule, pair, gather, lazy", 2, 2, 0, 4, 0, 1, GROUPED(NOBODY, NOBODY), &sum_and_gather,
     "schedule", &steady},
    {"schedule, pair, gather, leaver", 2, 2, 0, 4, 0, 0, GROUPED(NOBODY, ANYBODY), &sum_and_gather,
     "schedule", &steady},
    {"schedule, pair, gather, join", 2, 2, 0, 4, 0, 0, GROUPED(NOBODY, NOBODY), &join_gather,
     "schedule", &steady},
    {"schedule, pair, gather, priorities", 2, 2, 0, 4, BY_PRIORITY, 1, GROUPED(NOBODY, NOBODY),
     &sum_and_gather, "schedule", &beginning},
    {"schedule, pair, fused", 2, 2, 2, 5, 0, 1, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedule", &fused},
    {"schedule, pair, fused, other tensor", 2, 2, 3, 4, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0,
     0, NULL, "schedule", &fused},
    {"schedule, pair, fused, leaver", 2, 2, 2, 5, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0,
     NULL, "schedule", &fused},
    {"schedule, pair, fused, mismatch", 2, 2, 2, 5, 0, 0, NOBODY, NOBODY, NOBODY, 1, 1, 3, 0, NULL,
     "schedule", &fused},
    {"schedule, pair, fused, join", 2, 2, 0, 5, 0, 0, GROUPED(NOBODY, NOBODY), &join_world,
     "schedule", &fused},
    {"schedule, chain", 3, 1, 1, 4, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedule3", &ended_one},
    {"schedule, star", 3, 2, 1, 5, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedulelong", &ended_one},
    {"schedule, chain, other tensor", 3, 1, 2, 4, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0,
     NULL, "schedulelong", &one},
    {"schedule, pair, two, comes back", 2, 2, 3, 5, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0,
     NULL, "schedulelong", &other_returns},
    {"schedule, chain, comes back", 3, 1, 2, 5, 0, 0, NOBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedulelong", &one_returns},
    {"schedule, star, leaver", 3, 2, 1, 5, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedulelong", &one},
    {"schedule, chain, leaver", 3, 1, 1, 5, 0, 0, NOBODY, ANYBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedule3", &one},
    {"schedule, chain, two, leaver", 3, 1, 2, 4, 0, 0, NOBODY, 2, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedulelong", &steady},
    {"schedule, chain, mismatch", 3, 1, 1, 5, 0, 0, NOBODY, NOBODY, NOBODY, 2, 0, 4, 0, NULL,
     "schedule3", &one},
    {"schedule, star, mismatch, lazy", 3, 2, 1, 4, 0, 1, NOBODY, NOBODY, NOBODY, 2, 0, 3, 0, NULL,
     "schedule3", &one},
    {"schedule, star, mismatch", 3, 2, 2, 4, 0, 0, NOBODY, NOBODY, NOBODY, 2, 1, 3, 0, NULL,
     "schedulelong", &steady},
    {"schedule, chain, death", 3, 1, 1, 4, 0, 0, ANYBODY, NOBODY, NOBODY, NOBODY, 0, 0, 0, NULL,
     "schedulelong", &ended_one},
    {"schedule, chain, groups", 3, 1, 0, 4, 0, 0, GROUPED(NOBODY, NOBODY), &schedule_groups,
     "schedule3", &grouped},
    {"schedule, star, groups, leaver", 3, 2, 0, 4, 0, 0, GROUPED(NOBODY, 1), &schedule_groups,
     "schedulelong", &grouped},
    {"schedule, chain, join", 3, 1, 0, 4, 0, 0, GROUPED(NOBODY, NOBODY), &join_one, "schedule3",
     &one},
    {"schedule, star, join", 3, 2, 0, 4, 0, 0, GROUPED(NOBODY, NOBODY), &join_one, "schedule3",
     &one},
};
const size_t explore_plan_count = DP_ARRAY_LEN(explore_plans);
