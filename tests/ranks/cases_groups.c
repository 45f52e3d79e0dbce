/*
 * cases_groups.c - groups: overlapping ones, in every order, made and ended again and again, by
 * list and by split; names per group; what goes wrong in one leaves the others alone.
 */
#include <stdlib.h>

#include "tests/ranks/cases_internal.h"

enum { RANKS_MAX = 64 };

/* The ranks first, first + step, ... of the world. */
static size_t list_ranks(const dp_context_t *dp, int first, int step, int *ranks)
{
    size_t count = 0;

    for (int rank = first; rank < dp_size(dp); rank += step)
        ranks[count++] = rank;
    return count;
}

static int make(dp_context_t *dp, const char *name, int first, int step, dp_group_t **group)
{
    int ranks[RANKS_MAX];
    size_t count = list_ranks(dp, first, step, ranks);

    *group = NULL;
    if (count == 0) return 0;
    EXPECT_STATUS(dp, dp_group_create(dp, name, ranks, count, NULL, group), DP_OK);
    return 0;
}

static int meet(dp_context_t *dp)
{
    dp_handle_t *handle;

    EXPECT_STATUS(dp, dp_barrier(dp_world(dp), "case.meet", NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    return 0;
}

/* Sum over the members of a group of (rank of the world + 1) * factor. */
static double sum_of_members(const dp_group_t *group, double factor)
{
    double sum = 0.0;

    for (int i = 0; i < dp_group_size(group); i++)
        sum += (dp_group_world_rank(group, i) + 1) * factor;
    return sum;
}

/* ---- Who is in a group ---------------------------------------------------------------------- */

int case_group_places(dp_context_t *dp)
{
    int rank = dp_rank(dp), ranks = dp_size(dp), list[RANKS_MAX];
    size_t count = 0;
    dp_group_t *group, *other = dp_world(dp);

    EXPECT(dp, dp_group_size(other) == ranks && dp_group_rank(other) == rank, "the world");
    EXPECT(dp, strcmp(dp_group_name(other), "world") == 0, "%s", dp_group_name(other));
    EXPECT(dp, dp_group_world_rank(other, ranks - 1) == ranks - 1, "the last rank");
    EXPECT(dp, dp_group_world_rank(other, ranks) == -1, "beyond the last rank");
    /* given backwards, numbered upwards */
    for (int r = ranks - 1; r >= 0; r -= 2)
        list[count++] = r;
    EXPECT_STATUS(dp, dp_group_create(dp, "backwards", list, count, NULL, &group), DP_OK);
    if ((ranks - 1 - rank) % 2 != 0) {
        EXPECT(dp, group == NULL, "a group for a rank that is not listed");
        return 0;
    }
    EXPECT(dp, dp_group_size(group) == (int)count, "%d", dp_group_size(group));
    EXPECT(dp, dp_group_rank(group) == rank / 2, "%d", dp_group_rank(group));
    for (int i = 0; i < (int)count; i++)
        EXPECT(dp, dp_group_world_rank(group, i) == list[count - 1 - (size_t)i], "rank %d is %d", i,
               dp_group_world_rank(group, i));
    EXPECT(dp, strcmp(dp_group_name(group), "backwards") == 0, "%s", dp_group_name(group));
    EXPECT_STATUS(dp, dp_group_destroy(group), DP_OK);
    return 0;
}

int case_group_arguments(dp_context_t *dp)
{
    dp_group_t *group = dp_world(dp);
    char name[DP_GROUP_NAME_MAX + 2];
    int self = dp_rank(dp), twice[2] = {self, self}, beyond[1] = {dp_size(dp)}, below[1] = {-1};
    float value = 0.0f;

    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    EXPECT_STATUS(dp, dp_group_create(NULL, "g", &self, 1, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, NULL, &self, 1, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "", &self, 1, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, name, &self, 1, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "g", NULL, 1, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "g", &self, 0, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "g", &self, 1, NULL, NULL), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_create(dp, "g", beyond, 1, NULL, &group), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "group g");
    EXPECT_STATUS(dp, dp_group_create(dp, "g", below, 1, NULL, &group), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "rank -1");
    EXPECT_STATUS(dp, dp_group_create(dp, "g", twice, 2, NULL, &group), DP_ERR_INVALID);
    EXPECT(dp, group == dp_world(dp), "a failed call wrote its result");
    EXPECT_STATUS(dp, dp_group_split(NULL, "g", 0, 0, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), NULL, 0, 0, NULL, &group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "g", 0, 0, NULL, NULL), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_group_destroy(NULL), DP_OK);
    EXPECT_STATUS(dp, dp_group_destroy(dp_world(dp)), DP_ERR_INVALID);
    EXPECT(dp, dp_group_rank(NULL) == -1 && dp_group_size(NULL) == -1, "NULL");
    EXPECT(dp, dp_group_world_rank(NULL, 0) == -1 && dp_group_name(NULL)[0] == '\0', "NULL");

    /* a group of one, used after its end */
    EXPECT_STATUS(dp, dp_group_create(dp, "alone", &self, 1, NULL, &group), DP_OK);
    if (case_sum(dp, group, "v", 3.0, 3.0) != 0) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(group), DP_OK);
    EXPECT_STATUS(dp, dp_allreduce(group, "v", &value, &value, 1, DP_F32, NULL, NULL),
                  DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "alone");
    EXPECT_TEXT(dp, dp_error_text(dp), "destroyed");
    EXPECT_STATUS(dp, dp_group_destroy(group), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_join(group, NULL, NULL), DP_ERR_INVALID);
    return 0;
}

/* ---- Work in many groups -------------------------------------------------------------------- */

enum { OVERLAPPING = 7 };

static int make_overlapping(dp_context_t *dp, dp_group_t **groups)
{
    static const int first[OVERLAPPING] = {0, 1, 0, 0, 1, 2, 0};
    static const int step[OVERLAPPING] = {2, 2, 1, 3, 1, 3, 1};
    char name[32];

    for (int i = 0; i < OVERLAPPING; i++) {
        snprintf(name, sizeof(name), "g%d", i);
        if (make(dp, name, first[i], step[i], &groups[i]) != 0) return 1;
    }
    return 0;
}

static void shuffle(int *order, int count, unsigned *seed)
{
    for (int i = 0; i < count; i++)
        order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int other = (int)((unsigned)rand_r(seed) % (unsigned)(i + 1)), kept = order[i];

        order[i] = order[other];
        order[other] = kept;
    }
}

/* Two tensors in each of the groups, named alike everywhere, submitted in another order on every
 * rank and in every step. */
int case_groups(dp_context_t *dp)
{
    enum { STEPS = 15, EACH = 2, ALL = (OVERLAPPING + 1) * EACH };
    dp_group_t *groups[OVERLAPPING + 1];
    unsigned seed = (unsigned)dp_rank(dp) + 1;

    if (make_overlapping(dp, groups) != 0) return 1;
    groups[OVERLAPPING] = dp_world(dp);
    for (int step = 0; step < STEPS; step++) {
        float values[ALL][300];
        dp_handle_t *handles[ALL] = {NULL};
        int order[ALL];

        shuffle(order, ALL, &seed);
        for (int i = 0; i < ALL; i++) {
            dp_group_t *group = groups[order[i] / EACH];
            size_t count = order[i] % EACH == 0 ? 3 : 300;

            if (group == NULL) continue;
            for (size_t k = 0; k < count; k++)
                values[order[i]][k] = (float)((dp_rank(dp) + 1) * (step + 1));
            EXPECT_STATUS(dp,
                          dp_allreduce(group, order[i] % EACH == 0 ? "small" : "large",
                                       values[order[i]], values[order[i]], count, DP_F32, NULL,
                                       &handles[order[i]]),
                          DP_OK);
        }
        for (int i = 0; i < ALL; i++) {
            float wanted = 0.0f;

            if (handles[i] == NULL) continue;
            EXPECT_STATUS(dp, dp_wait(handles[i], 60.0, NULL), DP_OK);
            wanted = (float)sum_of_members(groups[i / EACH], step + 1);
            EXPECT(dp, values[i][2] == wanted, "group %s: %g, wanted %g",
                   dp_group_name(groups[i / EACH]), (double)values[i][2], (double)wanted);
        }
    }
    for (int i = OVERLAPPING - 1; i >= 0; i--)
        EXPECT_STATUS(dp, dp_group_destroy(groups[i]), DP_OK);
    return 0;
}

/* Everything an operation can be, in groups that overlap. */
int case_group_collectives(dp_context_t *dp)
{
    dp_group_t *odd, *third, *tail, *mixed, *backwards;

    if (make(dp, "odd", 1, 2, &odd) != 0) return 1;
    if (make(dp, "third", 0, 3, &third) != 0) return 1;
    if (make(dp, "tail", dp_size(dp) > 1 ? 1 : 0, 1, &tail) != 0) return 1;
    if (odd != NULL && case_collectives_in(dp, odd, "x.", 1) != 0) return 1;
    if (third != NULL && case_collectives_in(dp, third, "x.", 1) != 0) return 1;
    if (tail != NULL && case_collectives_in(dp, tail, "y.", 1) != 0) return 1;
    /* ranks that are not numbered as in the world: odd ones first, and all of them backwards */
    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "mixed", 0, dp_rank(dp) % 2 == 0, NULL, &mixed),
                  DP_OK);
    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "backwards", 0, -dp_rank(dp), NULL, &backwards),
                  DP_OK);
    if (case_collectives_in(dp, mixed, "x.", 1) != 0) return 1;
    if (case_collectives_in(dp, backwards, "x.", 1) != 0) return 1;
    return meet(dp); /* the groups end with the context */
}

/* ---- Coming and going ----------------------------------------------------------------------- */

int case_group_churn(dp_context_t *dp)
{
    enum { ROUNDS = 100 };
    void *before = NULL, *after = NULL;
    dp_group_t *group;

    for (int round = 0; round < ROUNDS; round++) {
        const int is_first = round < 2 * CASE_KINDS;

        /* every kind was run in both shapes of the group, and as large as it gets: what stays,
         * as the buffers of exchanges that are not small, is there */
        if (round == 2 * CASE_KINDS) {
            EXPECT_STATUS(dp, dp_alloc(dp, 1 << 20, &before), DP_OK);
            EXPECT_STATUS(dp, dp_free(dp, before), DP_OK);
        }
        if (make(dp, "again", round % 2, 1, &group) != 0) return 1;
        if (group != NULL) {
            case_op_t op = {.kind = round % CASE_KINDS,
                            .group = group,
                            .dtype = DP_F32,
                            .count = 100 + (size_t)(is_first ? ROUNDS : round),
                            .step = round};

            if (case_op_begin(dp, &op, "t") != 0) return 1;
            /* while it runs: its end waits for it */
            if (round % 3 == 0) EXPECT_STATUS(dp, dp_group_destroy(group), DP_OK);
            if (case_op_end(dp, &op) != 0) return 1;
            if (round % 3 != 0) EXPECT_STATUS(dp, dp_group_destroy(group), DP_OK);
        }
        if (meet(dp) != 0) return 1;
    }
    EXPECT_STATUS(dp, dp_alloc(dp, 1 << 20, &after), DP_OK);
    EXPECT(dp, after == before, "memory is at %p, was at %p before %d groups", after, before,
           ROUNDS - 2 * CASE_KINDS);
    EXPECT_STATUS(dp, dp_free(dp, after), DP_OK);
    return 0;
}

/* As many groups as the last rank may be in: one more is refused, by number; the others, which make
 * half as many of their own, notice nothing; a place that was given back is there again. */
int case_group_limit(dp_context_t *dp)
{
    dp_group_t **groups = calloc(DP_GROUPS_MAX, sizeof(dp_group_t *)), *more = NULL;
    int self = dp_rank(dp);

    EXPECT(dp, groups != NULL, "no memory");
    for (int i = 0; self < dp_size(dp) - 1 && i < DP_GROUPS_MAX / 2; i++)
        EXPECT_STATUS(dp, dp_group_create(dp, "one of many", &self, 1, NULL, &more), DP_OK);
    if (self == dp_size(dp) - 1) {
        for (int i = 0; i < DP_GROUPS_MAX; i++)
            EXPECT_STATUS(dp, dp_group_create(dp, "one of many", &self, 1, NULL, &groups[i]),
                          DP_OK);
        EXPECT_STATUS(dp, dp_group_create(dp, "too many", &self, 1, NULL, &more), DP_ERR_FULL);
        EXPECT_TEXT(dp, dp_error_text(dp), "too many");
        EXPECT_TEXT(dp, dp_error_text(dp), "1023");
        if (case_sum(dp, groups[DP_GROUPS_MAX - 1], "v", 2.0, 2.0) != 0) return 1;
        EXPECT_STATUS(dp, dp_group_destroy(groups[17]), DP_OK);
        EXPECT_STATUS(dp, dp_group_create(dp, "just enough", &self, 1, NULL, &more), DP_OK);
        if (case_sum(dp, more, "v", 2.0, 2.0) != 0) return 1;
    }
    free(groups);
    return meet(dp);
}

int case_group_split(dp_context_t *dp)
{
    int rank = dp_rank(dp), ranks = dp_size(dp);
    dp_group_t *halves, *again, *quarter;

    for (int round = 0; round < 3; round++) {
        /* the last rank of three or more stays outside */
        int color = ranks > 2 && rank == ranks - 1 ? -1 : rank % 2;

        EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "half", color, 0, NULL, &halves), DP_OK);
        EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "half", rank / 2, 0, NULL, &again), DP_OK);
        EXPECT(dp, (halves == NULL) == (color < 0), "color %d", color);
        EXPECT(dp, dp_group_rank(again) == rank % 2, "%d", dp_group_rank(again));
        EXPECT(dp, dp_group_world_rank(again, 0) == rank / 2 * 2, "%d",
               dp_group_world_rank(again, 0));
        if (case_sum(dp, again, "v", rank + 1.0, sum_of_members(again, 1.0)) != 0) return 1;
        if (halves != NULL) {
            EXPECT(dp, dp_group_rank(halves) == rank / 2, "%d", dp_group_rank(halves));
            EXPECT_STATUS(dp, dp_group_split(halves, "quarter", rank / 2 % 2, 0, NULL, &quarter),
                          DP_OK);
            EXPECT(dp, dp_group_world_rank(quarter, dp_group_rank(quarter)) == rank, "%d",
                   dp_group_rank(quarter));
            if (case_sum(dp, quarter, "v", rank + 1.0, sum_of_members(quarter, 1.0)) != 0) return 1;
            EXPECT_STATUS(dp, dp_group_destroy(quarter), DP_OK);
            if (case_sum(dp, halves, "v", rank + 1.0, sum_of_members(halves, 1.0)) != 0) return 1;
        }
        EXPECT_STATUS(dp, dp_group_destroy(halves), DP_OK);
        if (round % 2 == 0) EXPECT_STATUS(dp, dp_group_destroy(again), DP_OK);
    }
    return 0;
}

/* Ranks in the order of their keys: negative ones first, equal ones as in the parent. */
int case_group_keys(dp_context_t *dp)
{
    int rank = dp_rank(dp), ranks = dp_size(dp), at, value = -1;
    dp_group_options_t options = DP_GROUP_OPTIONS_INIT;
    dp_group_t *group, *never = NULL;
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle;

    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "keys", 3, -rank, &options, &group), DP_OK);
    at = dp_group_rank(group);
    EXPECT(dp, at == ranks - 1 - rank, "rank %d is %d of %d", rank, at, ranks);
    for (int i = 0; i < ranks; i++)
        EXPECT(dp, dp_group_world_rank(group, i) == ranks - 1 - i, "rank %d is %d", i,
               dp_group_world_rank(group, i));
    /* each rank but the last to the next one */
    for (int to = 1; to < ranks; to++) {
        if (at == to - 1)
            EXPECT_STATUS(dp, dp_send(group, "m", &rank, 1, DP_I32, to, NULL, &handle), DP_OK);
        if (at == to)
            EXPECT_STATUS(dp, dp_recv(group, "m", &value, 1, DP_I32, to - 1, NULL, &handle), DP_OK);
        if (at == to || at == to - 1) EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    }
    EXPECT(dp, value == (at == 0 ? -1 : rank + 1), "%d came to rank %d", value, rank);
    /* rank 0 of the group, the last of the world, joins last */
    if (at == 0 && ranks > 1) {
        value = 1;
        EXPECT_STATUS(dp, dp_allreduce(group, "v", &value, &value, 1, DP_I32, NULL, &handle),
                      DP_OK);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
        EXPECT(dp, value == 1, "%d", value);
    }
    EXPECT_STATUS(dp, dp_join(group, NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
    EXPECT(dp, result.last_rank >= 0 && result.last_rank < ranks, "%d", result.last_rank);
    EXPECT_STATUS(dp, dp_group_destroy(group), DP_OK);

    options.order = (dp_order_t)9;
    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "keys", 0, 0, &options, &never), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "order 9");
    return 0;
}

/* A box of 2 x half the ranks, or of 1 x all of them. */
int case_group_mesh(dp_context_t *dp)
{
    static const char *const names[3] = {"outer", "inner", "one"};
    static const char *const twice[2] = {"a", "a"};
    int rank = dp_rank(dp), ranks = dp_size(dp);
    int outer = ranks % 2 == 0 ? 2 : 1, inner = ranks / outer;
    const int dims[3] = {outer, inner, 1}, wrong[2] = {ranks, 2}, none[1] = {0};
    const int differing[2] = {rank == 0 ? 1 : ranks, rank == 0 ? ranks : 1};
    dp_group_t *groups[3] = {NULL}, *never[2] = {NULL};

    EXPECT_STATUS(dp, dp_mesh_create(dp, dims, 3, names, NULL, groups), DP_OK);
    EXPECT(dp, dp_group_size(groups[0]) == outer && dp_group_rank(groups[0]) == rank / inner,
           "rank %d: outer %d", rank, dp_group_rank(groups[0]));
    EXPECT(dp, dp_group_size(groups[1]) == inner && dp_group_rank(groups[1]) == rank % inner,
           "rank %d: inner %d", rank, dp_group_rank(groups[1]));
    EXPECT(dp, dp_group_size(groups[2]) == 1, "%d", dp_group_size(groups[2]));
    for (int i = 0; i < 3; i++) {
        EXPECT(dp, strcmp(dp_group_name(groups[i]), names[i]) == 0, "%s", dp_group_name(groups[i]));
        if (case_sum(dp, groups[i], "v", rank + 1.0, sum_of_members(groups[i], 1.0)) != 0) return 1;
    }
    EXPECT_STATUS(dp, dp_mesh_create(dp, wrong, 2, names, NULL, never), DP_ERR_INVALID);
    EXPECT_TEXT(dp, dp_error_text(dp), "product");
    EXPECT_STATUS(dp, dp_mesh_create(dp, none, 1, names, NULL, never), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_mesh_create(dp, dims, 0, names, NULL, never), DP_ERR_INVALID);
    EXPECT_STATUS(dp, dp_mesh_create(dp, dims, 2, twice, NULL, never), DP_ERR_INVALID);
    if (ranks > 1) {
        EXPECT_STATUS(dp, dp_mesh_create(dp, differing, 2, names, NULL, never), DP_ERR_MISMATCH);
        EXPECT_TEXT(dp, dp_error_text(dp), "axis 0 (outer)");
    }
    EXPECT(dp, never[0] == NULL && never[1] == NULL, "written");
    EXPECT_STATUS(dp, dp_async_error(dp), DP_OK);
    return 0;
}

/* ---- What goes wrong ------------------------------------------------------------------------ */

/* Ranks disagree in one group: it names the group, and the others go on. */
int case_group_mismatch(dp_context_t *dp)
{
    int rank = dp_rank(dp), ranks = dp_size(dp), pair[2] = {0, 1};
    float values[8] = {0}, good;
    dp_group_t *group, *everyone, *wrong = NULL;
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *bad, *fine;

    EXPECT_STATUS(dp, dp_group_create(dp, "pair", pair, 2, NULL, &group), DP_OK);
    if (make(dp, "everyone", 0, 1, &everyone) != 0) return 1;
    for (int round = 0; round < 3; round++) {
        good = 1.0f;
        if (group != NULL)
            EXPECT_STATUS(
                dp,
                dp_allreduce(group, "act", values, values, (size_t)rank + 4, DP_F32, NULL, &bad),
                DP_OK);
        EXPECT_STATUS(dp, dp_allreduce(everyone, "act", &good, &good, 1, DP_F32, NULL, &fine),
                      DP_OK);
        if (group != NULL) {
            EXPECT_STATUS(dp, dp_wait(bad, 60.0, &result), DP_ERR_MISMATCH);
            EXPECT_TEXT(dp, result.text, "act");
            EXPECT_TEXT(dp, result.text, "pair");
        }
        EXPECT_STATUS(dp, dp_wait(fine, 60.0, NULL), DP_OK);
        EXPECT(dp, good == (float)ranks, "%g", (double)good);
    }
    /* the group itself goes on too */
    if (group != NULL && case_sum(dp, group, "act", rank + 1.0, 3.0) != 0) return 1;
    /* two lists under one name */
    if (ranks > 2 && rank < 3) {
        static const int two[] = {1, 0}, three[] = {0, 1, 2};

        EXPECT_STATUS(
            dp,
            dp_group_create(dp, "lists", rank == 0 ? two : three, rank == 0 ? 2 : 3, NULL, &wrong),
            DP_ERR_MISMATCH);
        EXPECT(dp, wrong == NULL, "a group all the same");
        EXPECT_TEXT(dp, dp_error_text(dp), "lists");
        EXPECT_STATUS(dp, dp_group_create(dp, "lists", three, 3, NULL, &wrong), DP_OK);
        if (case_sum(dp, wrong, "act", rank + 1.0, 6.0) != 0) return 1;
    }
    return meet(dp);
}

/* The last rank goes: groups with it end for the ranks that wait in them, others go on. */
int case_group_left(dp_context_t *dp)
{
    int rank = dp_rank(dp), ranks = dp_size(dp), rest[RANKS_MAX];
    dp_result_t result = DP_RESULT_INIT;
    dp_group_t *with, *without = NULL, *more = NULL;
    dp_handle_t *handle;
    float value = 1.0f;
    char name[32];

    for (int r = 0; r < ranks - 1; r++)
        rest[r] = r;
    if (make(dp, "with", 0, 1, &with) != 0) return 1;
    EXPECT_STATUS(dp, dp_group_create(dp, "without", rest, (size_t)ranks - 1, NULL, &without),
                  DP_OK);
    if (rank == ranks - 1) return 0;
    EXPECT_STATUS(dp, dp_allreduce(with, "lonely", &value, &value, 1, DP_F32, NULL, &handle),
                  DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_ERR_LEFT);
    snprintf(name, sizeof(name), "rank %d", ranks - 1);
    EXPECT_TEXT(dp, result.text, name);
    EXPECT_TEXT(dp, result.text, "lonely");
    EXPECT_STATUS(dp, dp_group_create(dp, "again", (const int[]){rank, ranks - 1}, 2, NULL, &more),
                  DP_ERR_LEFT);
    EXPECT_STATUS(dp, dp_group_destroy(with), DP_ERR_LEFT);
    for (int i = 0; i < 5; i++)
        if (case_sum(dp, without, "v", rank + 1.0, sum_of_members(without, 1.0)) != 0) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(without), DP_OK);
    return 0;
}
