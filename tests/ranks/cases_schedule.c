/*
 * cases_schedule.c - rounds that repeat themselves are launched by a cached schedule, without a
 * message; every way to leave it; results that are the same bits with it and without.
 */
#include <math.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/ranks/cases_internal.h"
#include "tests/unit/sanitizer.h"

enum { TENSORS = 3, COUNT = under_sanitizer ? 300 : 3000, WARM = 8 };

typedef struct loop {
    float *data[TENSORS]; /* in place */
    float first[TENSORS][COUNT];
    int rounds, in_arena;
    dp_handle_t *handles[TENSORS];
} loop_t;

static int loop_begin(dp_context_t *dp, loop_t *loop, int in_arena)
{
    memset(loop, 0, sizeof(*loop));
    loop->in_arena = in_arena;
    for (int t = 0; t < TENSORS; t++) {
        loop->data[t] = (float *)(void *)case_allocate(dp, COUNT * sizeof(float), in_arena);
        EXPECT(dp, loop->data[t] != NULL, "no memory");
    }
    return 0;
}

static void loop_end(dp_context_t *dp, loop_t *loop)
{
    for (int t = 0; t < TENSORS; t++)
        case_give_back(dp, (char *)loop->data[t], loop->in_arena);
}

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Sums whose last bits depend on the order of adding. */
static int submit(dp_context_t *dp, loop_t *loop, int t, size_t count)
{
    char name[32];

    for (int i = 0; i < COUNT; i++)
        loop->data[t][i] = 1.0f / (float)(i + 3 * t + 7 * dp_rank(dp) + 1);
    snprintf(name, sizeof(name), "schedule.%d", t);
    EXPECT_STATUS(dp,
                  dp_allreduce(dp_world(dp), name, loop->data[t], loop->data[t], count, DP_F32,
                               NULL, &loop->handles[t]),
                  DP_OK);
    return 0;
}

/* To the last bit. */
static int is_same(const void *a, const void *b)
{
    return memcmp(a, b, COUNT * sizeof(float)) == 0;
}

static int finish(dp_context_t *dp, loop_t *loop)
{
    for (int t = 0; t < TENSORS; t++) {
        EXPECT_STATUS(dp, dp_wait(loop->handles[t], 60.0, NULL), DP_OK);
        if (loop->rounds == 0) memcpy(loop->first[t], loop->data[t], sizeof(loop->first[t]));
        EXPECT(dp, is_same(loop->first[t], loop->data[t]),
               "round %d, tensor %d: other bits than in the first round", loop->rounds, t);
    }
    loop->rounds++;
    return 0;
}

static int rounds(dp_context_t *dp, loop_t *loop, int count)
{
    for (int i = 0; i < count; i++) {
        for (int t = 0; t < TENSORS; t++)
            if (submit(dp, loop, t, COUNT) != 0) return 1;
        if (finish(dp, loop) != 0) return 1;
    }
    return 0;
}

static dp_stats_t stats_of(dp_context_t *dp)
{
    dp_stats_t stats = DP_STATS_INIT;

    (void)dp_stats_get(dp, &stats);
    return stats;
}

/* Rounds until a schedule is cached. After one that did not last it takes more of them. */
static int cache_again(dp_context_t *dp, loop_t *loop)
{
    dp_stats_t before = stats_of(dp), stats;

    if (rounds(dp, loop, 400) != 0) return 1;
    stats = stats_of(dp); /* others may be further by now, and have ended it again */
    EXPECT(dp, dp_size(dp) == 1 || stats.schedules > before.schedule_ends,
           "%llu schedules, %llu ends", (unsigned long long)stats.schedules,
           (unsigned long long)before.schedule_ends);
    return 0;
}

/* It ended for this reason, and goes on from there. */
static int expect_end(dp_context_t *dp, const char *reason)
{
    dp_stats_t stats = stats_of(dp);

    if (dp_size(dp) == 1) return 0;
    EXPECT(dp, strcmp(stats.schedule_end_reason, reason) == 0,
           "the schedule ended for \"%s\", wanted \"%s\"", stats.schedule_end_reason, reason);
    return 0;
}

/* No message before a launch: a count now and then, and nothing else. */
int case_schedule(dp_context_t *dp)
{
    enum { ROUNDS = 128 };
    loop_t loop;
    dp_stats_t before, after;
    uint64_t sent;

    if (loop_begin(dp, &loop, 0) != 0 || rounds(dp, &loop, WARM) != 0) return 1;
    before = stats_of(dp);
    if (rounds(dp, &loop, ROUNDS) != 0) return 1;
    after = stats_of(dp);
    loop_end(dp, &loop);
    if (dp_size(dp) == 1) return 0;
    sent = after.control_sent - before.control_sent;
    /* others may be in dp_finalize() by now */
    EXPECT(dp, after.schedules == 1 && strstr(" finalize", after.schedule_end_reason) != NULL,
           "%llu schedules, %llu ends (%s)", (unsigned long long)after.schedules,
           (unsigned long long)after.schedule_ends, after.schedule_end_reason);
    EXPECT(dp, after.scheduled_launches - before.scheduled_launches >= ROUNDS,
           "%llu launches in %d rounds",
           (unsigned long long)(after.scheduled_launches - before.scheduled_launches), ROUNDS);
    /* one per neighbour in six rounds or more */
    EXPECT(dp, sent <= (uint64_t)(ROUNDS / 6 + 2) * (uint64_t)dp_size(dp),
           "%llu messages in %d rounds", (unsigned long long)sent, ROUNDS);
    return 0;
}

static int other_shape(dp_context_t *dp, loop_t *loop)
{
    for (int t = 0; t < TENSORS; t++)
        if (submit(dp, loop, t, t == 1 ? COUNT - 1 : COUNT) != 0) return 1;
    for (int t = 0; t < TENSORS; t++)
        EXPECT_STATUS(dp, dp_wait(loop->handles[t], 60.0, NULL), DP_OK);
    return expect_end(dp, "signature");
}

static int mismatch(dp_context_t *dp, loop_t *loop)
{
    int is_odd = dp_rank(dp) == dp_size(dp) - 1 && dp_size(dp) > 1;
    dp_result_t result = DP_RESULT_INIT;

    for (int t = 0; t < TENSORS; t++)
        if (submit(dp, loop, t, t == 1 && is_odd ? COUNT - 7 : COUNT) != 0) return 1;
    for (int t = 0; t < TENSORS; t++) {
        dp_status_t wanted = t == 1 && dp_size(dp) > 1 ? DP_ERR_MISMATCH : DP_OK;

        EXPECT_STATUS(dp, dp_wait(loop->handles[t], 60.0, &result), wanted);
        if (wanted != DP_OK) EXPECT_TEXT(dp, result.text, "count");
    }
    return expect_end(dp, "signature");
}

/* Some ranks do something among themselves, and wait for it, before the round that others are in
 * already. */
static int subset_first(dp_context_t *dp, loop_t *loop, dp_group_t *some)
{
    if (dp_rank(dp) > 0 && case_sum(dp, some, "schedule.some", 1.0, dp_group_size(some)) != 0)
        return 1;
    return rounds(dp, loop, 1);
}

/* The last rank's memory is no longer the engine's. */
static int moved(dp_context_t *dp, loop_t *loop)
{
    loop_t elsewhere;
    int moves = dp_rank(dp) == dp_size(dp) - 1;

    if (loop_begin(dp, &elsewhere, !moves) != 0) return 1;
    memcpy(elsewhere.first, loop->first, sizeof(elsewhere.first));
    elsewhere.rounds = 1;
    if (rounds(dp, &elsewhere, 3) != 0) return 1;
    loop_end(dp, &elsewhere);
    return expect_end(dp, "memory");
}

int case_schedule_deviations(dp_context_t *dp)
{
    loop_t loop;
    dp_group_t *made, *some = NULL;
    int list[64], others = dp_size(dp) - 1;

    EXPECT(dp, others < 64, "%d ranks", others + 1);
    for (int i = 0; i < others; i++)
        list[i] = i + 1;
    if (others > 0 && dp_rank(dp) > 0)
        EXPECT_STATUS(dp, dp_group_create(dp, "some", list, (size_t)others, NULL, &some), DP_OK);
    if (loop_begin(dp, &loop, 1) != 0 || cache_again(dp, &loop) != 0) return 1;
    if (case_sum(dp, dp_world(dp), "schedule.other", 2.0, 2.0 * dp_size(dp)) != 0) return 1;
    if (expect_end(dp, "tensor") != 0 || cache_again(dp, &loop) != 0) return 1;
    if (other_shape(dp, &loop) != 0 || cache_again(dp, &loop) != 0) return 1;
    if (mismatch(dp, &loop) != 0 || cache_again(dp, &loop) != 0) return 1;
    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "all", 0, 0, NULL, &made), DP_OK);
    if (cache_again(dp, &loop) != 0) return 1;
    EXPECT_STATUS(dp, dp_group_destroy(made), DP_OK);
    if (cache_again(dp, &loop) != 0) return 1;
    for (int i = 0; i < 3 && others > 0; i++)
        if (subset_first(dp, &loop, some) != 0) return 1;
    if (cache_again(dp, &loop) != 0 || moved(dp, &loop) != 0 || cache_again(dp, &loop) != 0)
        return 1;
    loop_end(dp, &loop);
    return 0;
}

/* ---- Asking without a long wait ------------------------------------------------------------- */

enum { BY_TEST, BY_SHORT_WAITS, BY_WAIT_ALL, BY_COOKIE, ASKS };

static int is_over(dp_context_t *dp, dp_handle_t *handle, int how)
{
    uint64_t cookie;

    switch (how) {
    case BY_TEST:
        return dp_test(handle) != DP_ERR_PENDING;
    case BY_SHORT_WAITS:
        return dp_wait(handle, 0.0002, NULL) != DP_ERR_TIMEOUT;
    case BY_WAIT_ALL:
        return dp_wait_all(dp, 0.0002) != DP_ERR_TIMEOUT;
    default:
        return dp_completions_read(dp, &cookie, 1) == 1;
    }
}

/* A round of one tensor, which is not the first of the cached ones. */
static int one_alone(dp_context_t *dp, loop_t *loop, int how)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle;
    const double begin = seconds_now();

    options.cookie = how == BY_COOKIE;
    EXPECT_STATUS(dp,
                  dp_allreduce(dp_world(dp), "schedule.2", loop->data[2], loop->data[2], COUNT,
                               DP_F32, &options, &handle),
                  DP_OK);
    while (!is_over(dp, handle, how)) {
        EXPECT(dp, seconds_now() - begin < 30.0, "never over, asked for in way %d", how);
        usleep(100);
    }
    if (how != BY_SHORT_WAITS) EXPECT_STATUS(dp, dp_wait(handle, 0.0, NULL), DP_OK);
    return 0;
}

/* The cached schedule ends for a program that asks in many short calls, as for one that waits. */
int case_schedule_asked(dp_context_t *dp)
{
    loop_t loop;

    if (loop_begin(dp, &loop, 1) != 0) return 1;
    for (int how = 0; how < ASKS; how++) {
        if (cache_again(dp, &loop) != 0 || one_alone(dp, &loop, how) != 0) return 1;
        for (int t = 0; t < 2; t++)
            if (submit(dp, &loop, t, COUNT) != 0) return 1;
        for (int t = 0; t < 2; t++)
            EXPECT_STATUS(dp, dp_wait(loop.handles[t], 60.0, NULL), DP_OK);
    }
    loop_end(dp, &loop);
    return 0;
}

/* Rank r has its own number of rounds; averages are over the ranks that still have data, also where
 * others had launched a round before they knew. */
int case_schedule_join(dp_context_t *dp)
{
    enum { EVEN = 40 };
    int rank = dp_rank(dp), size = dp_size(dp);
    float *values = (float *)(void *)case_allocate(dp, COUNT * sizeof(float), 1);
    dp_options_t options = DP_OPTIONS_INIT;
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle;

    EXPECT(dp, values != NULL, "no memory");
    options.reduce = DP_AVERAGE;
    for (int step = 0; step < EVEN + 3 * rank; step++) {
        int first = step < EVEN ? 0 : (step - EVEN) / 3 + 1;
        double wanted = (double)(first + size - 1) / 2.0;

        for (int i = 0; i < COUNT; i++)
            values[i] = (float)rank;
        EXPECT_STATUS(dp,
                      dp_allreduce(dp_world(dp), "schedule.joined", values, values, COUNT, DP_F32,
                                   &options, &handle),
                      DP_OK);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
        EXPECT(dp, result.contributors == size - first, "step %d: %d contributors, wanted %d", step,
               result.contributors, size - first);
        EXPECT(dp, fabs((double)values[COUNT - 1] - wanted) <= 1e-6 * wanted,
               "step %d: %.9g, wanted %.9g", step, (double)values[COUNT - 1], wanted);
    }
    EXPECT_STATUS(dp, dp_join(dp_world(dp), &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    case_give_back(dp, (char *)values, 1);
    return 0;
}

/* Rows in place, as sharded training has them: gradients are reduced and scattered, weights
 * gathered, two small tensors beside them as one operation. */
typedef struct shards {
    float *gradients, *weights; /* [size of the group][ROW] */
    float *small;               /* [2][size of the group] */
    dp_group_t *group;
    int round;
} shards_t;

enum { ROW = 5000 };

static int shards_round(dp_context_t *dp, shards_t *shards)
{
    const size_t size = (size_t)dp_group_size(shards->group);
    const size_t rank = (size_t)dp_group_rank(shards->group);
    float *row = shards->gradients + rank * ROW, *own = shards->weights + rank * ROW;
    const dp_tensor_t pair[2] = {{shards->small + rank, shards->small, 1, DP_F32},
                                 {shards->small + size + rank, shards->small + size, 1, DP_F32}};
    const float step = (float)(shards->round++ % 100);
    dp_handle_t *handles[3];

    for (size_t i = 0; i < size * ROW; i++)
        shards->gradients[i] = step + (float)(i / ROW) + (float)rank;
    EXPECT_STATUS(dp,
                  dp_reduce_scatter(shards->group, "shards.gradients", shards->gradients, row, ROW,
                                    DP_F32, NULL, &handles[0]),
                  DP_OK);
    EXPECT_STATUS(dp, dp_wait(handles[0], 60.0, NULL), DP_OK);
    for (size_t i = 0; i < ROW; i++)
        own[i] = 0.5f * row[i];
    shards->small[rank] = step;
    shards->small[size + rank] = (float)rank;
    EXPECT_STATUS(dp,
                  dp_allgather(shards->group, "shards.weights", own, shards->weights, ROW, DP_F32,
                               NULL, &handles[1]),
                  DP_OK);
    EXPECT_STATUS(
        dp, dp_grouped_allgather(shards->group, "shards.small", pair, 2, NULL, &handles[2]), DP_OK);
    for (int i = 1; i < 3; i++)
        EXPECT_STATUS(dp, dp_wait(handles[i], 60.0, NULL), DP_OK);
    for (size_t r = 0; r < size; r++) {
        const float sum = (float)size * (step + (float)r) + (float)(size * (size - 1) / 2);

        EXPECT(dp,
               shards->weights[r * ROW] == 0.5f * sum &&
                   shards->weights[r * ROW + ROW - 1] == 0.5f * sum,
               "round %d, row %zu: %g and %g, wanted %g", shards->round, r,
               (double)shards->weights[r * ROW], (double)shards->weights[r * ROW + ROW - 1],
               0.5 * (double)sum);
        EXPECT(dp, shards->small[r] == step && shards->small[size + r] == (float)r, "%g, %g",
               (double)shards->small[r], (double)shards->small[size + r]);
    }
    return 0;
}

/* Rounds of a group's ranks; on_heap: what this rank gathers is not in the engine's memory. */
static int shards_rounds(dp_context_t *dp, dp_group_t *group, int count, int on_heap)
{
    const size_t size = (size_t)dp_group_size(group);
    shards_t shards = {.group = group};

    shards.gradients = (float *)(void *)case_allocate(dp, size * ROW * sizeof(float), 1);
    shards.weights = (float *)(void *)case_allocate(dp, size * ROW * sizeof(float), !on_heap);
    shards.small = (float *)(void *)case_allocate(dp, 2 * size * sizeof(float), !on_heap);
    EXPECT(dp, shards.gradients != NULL && shards.weights != NULL && shards.small != NULL,
           "no memory");
    for (int i = 0; i < count; i++)
        if (shards_round(dp, &shards) != 0) return 1;
    case_give_back(dp, (char *)shards.gradients, 1);
    case_give_back(dp, (char *)shards.weights, !on_heap);
    case_give_back(dp, (char *)shards.small, !on_heap);
    return 0;
}

/* Gathers keep no round from being cached, and rows in place are not copied. */
int case_schedule_gathers(dp_context_t *dp)
{
    enum { ROUNDS = 60 };
    const int is_last = dp_rank(dp) == dp_size(dp) - 1;
    dp_stats_t before = stats_of(dp), after;

    if (shards_rounds(dp, dp_world(dp), ROUNDS, 0) != 0) return 1;
    after = stats_of(dp);
    EXPECT(dp, after.bytes_packed == before.bytes_packed, "%llu bytes were copied",
           (unsigned long long)(after.bytes_packed - before.bytes_packed));
    EXPECT(dp,
           dp_size(dp) == 1 ||
               after.scheduled_launches - before.scheduled_launches >= 2 * (ROUNDS - 8),
           "%llu launches by schedule in %d rounds",
           (unsigned long long)(after.scheduled_launches - before.scheduled_launches), ROUNDS);
    /* One rank's weights move to other memory when the others have launched the gather. */
    if (shards_rounds(dp, dp_world(dp), 3, is_last) != 0) return 1;
    return expect_end(dp, "memory");
}

/* Rows in place in groups other than the world: of the even and the odd ranks, of all but the
 * first. In either order. */
int case_rows_in_groups(dp_context_t *dp)
{
    dp_group_t *parity, *tail;
    dp_stats_t before, after;

    EXPECT_STATUS(dp, dp_group_split(dp_world(dp), "parity", dp_rank(dp) % 2, 0, NULL, &parity),
                  DP_OK);
    EXPECT_STATUS(
        dp, dp_group_split(dp_world(dp), "tail", dp_rank(dp) > 0 ? 0 : -1, 0, NULL, &tail), DP_OK);
    before = stats_of(dp);
    if (shards_rounds(dp, parity, 12, 0) != 0) return 1;
    if (tail != NULL && shards_rounds(dp, tail, 12, 0) != 0) return 1;
    after = stats_of(dp);
    EXPECT(dp, after.bytes_packed == before.bytes_packed, "%llu bytes were copied",
           (unsigned long long)(after.bytes_packed - before.bytes_packed));
    return 0;
}

/* Rank r has its own number of rounds; the rows of ranks without data are zero. */
int case_schedule_gathers_join(dp_context_t *dp)
{
    enum { EVEN = 40 };
    const int rank = dp_rank(dp), size = dp_size(dp);
    float *rows = (float *)(void *)case_allocate(dp, (size_t)size * ROW * sizeof(float), 1);
    dp_result_t result = DP_RESULT_INIT;
    dp_handle_t *handle;

    EXPECT(dp, rows != NULL, "no memory");
    for (int step = 0; step < EVEN + 3 * rank; step++) {
        const int first = step < EVEN ? 0 : (step - EVEN) / 3 + 1;
        float *own = rows + (size_t)rank * ROW;

        for (size_t i = 0; i < ROW; i++)
            own[i] = (float)(step + rank + 1);
        EXPECT_STATUS(
            dp, dp_allgather(dp_world(dp), "schedule.rows", own, rows, ROW, DP_F32, NULL, &handle),
            DP_OK);
        EXPECT_STATUS(dp, dp_wait(handle, 60.0, &result), DP_OK);
        EXPECT(dp, result.contributors == size - first, "step %d: %d contributors, wanted %d", step,
               result.contributors, size - first);
        for (int r = 0; r < size; r++) {
            const float wanted = r < first ? 0.0f : (float)(step + r + 1);

            EXPECT(dp,
                   rows[r * ROW] == wanted && rows[r * ROW + ROW - 1] == wanted &&
                       !signbit(rows[r * ROW]),
                   "step %d, row %d: %g and %g, wanted %g", step, r, (double)rows[r * ROW],
                   (double)rows[r * ROW + ROW - 1], (double)wanted);
        }
    }
    EXPECT_STATUS(dp, dp_join(dp_world(dp), &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    case_give_back(dp, (char *)rows, 1);
    return 0;
}

/* The last rank leaves while the others are in the next round. */
int case_schedule_left(dp_context_t *dp)
{
    loop_t loop;
    dp_result_t result = DP_RESULT_INIT;

    if (loop_begin(dp, &loop, 0) != 0 || rounds(dp, &loop, 20) != 0) return 1;
    if (dp_rank(dp) < dp_size(dp) - 1) {
        for (int t = 0; t < TENSORS; t++)
            if (submit(dp, &loop, t, COUNT) != 0) return 1;
        for (int t = 0; t < TENSORS; t++) {
            EXPECT_STATUS(dp, dp_wait(loop.handles[t], 60.0, &result), DP_ERR_LEFT);
            EXPECT_TEXT(dp, result.text, "finalized before");
        }
    }
    loop_end(dp, &loop);
    return 0;
}

/* Gradients have a cached schedule from their first declared round on. */
int case_schedule_gradients(dp_context_t *dp)
{
    enum { SYNCS = 12 };
    float weight[64] = {0}, gradient[64];
    dp_gradient_t tensor = {"w", weight, gradient, 64, DP_F32};
    dp_gradients_t *gradients;
    dp_stats_t stats;

    EXPECT_STATUS(dp, dp_gradients_create(dp, &tensor, 1, NULL, &gradients), DP_OK);
    for (int step = 0; step < SYNCS; step++) {
        for (int i = 0; i < 64; i++)
            gradient[i] = (float)dp_rank(dp);
        EXPECT_STATUS(dp, dp_gradients_ready(gradients, 0, NULL), DP_OK);
        EXPECT_STATUS(dp, dp_gradients_sync(gradients, NULL), DP_OK);
        EXPECT(dp, fabsf(gradient[7] - 0.5f * (float)(dp_size(dp) - 1)) < 1e-5f, "%g",
               (double)gradient[7]);
    }
    stats = stats_of(dp);
    EXPECT(dp, dp_size(dp) == 1 || stats.scheduled_launches >= SYNCS - 3,
           "%llu of %d rounds were scheduled", (unsigned long long)stats.scheduled_launches, SYNCS);
    dp_gradients_destroy(gradients);
    return 0;
}

/* What a program reduces between its steps is of the round, as it comes each time. */
int case_schedule_between_steps(dp_context_t *dp)
{
    enum { STEPS = 40 };
    loop_t loop;
    dp_stats_t stats;

    if (loop_begin(dp, &loop, 0) != 0) return 1;
    for (int step = 0; step < STEPS; step++) {
        dp_step_begin(dp, (uint64_t)step);
        if (rounds(dp, &loop, 1) != 0) return 1;
        dp_step_end(dp);
        if (case_sum(dp, dp_world(dp), "schedule.loss", 1.0, dp_size(dp)) != 0) return 1;
    }
    loop_end(dp, &loop);
    if (dp_size(dp) == 1) return 0;
    stats = stats_of(dp);
    EXPECT(dp, stats.scheduled_launches >= 2 * (STEPS - 8), "%llu launches in %d steps",
           (unsigned long long)stats.scheduled_launches, STEPS);
    return 0;
}

/* An operation that comes now and then ends the schedule, and the next round is cached again. */
int case_schedule_interludes(dp_context_t *dp)
{
    enum { INTERLUDES = 6, BETWEEN = 8 };
    loop_t loop;
    dp_stats_t before, after;

    if (loop_begin(dp, &loop, 0) != 0 || rounds(dp, &loop, WARM) != 0) return 1;
    before = stats_of(dp);
    for (int i = 0; i < INTERLUDES; i++) {
        for (int again = 0; again < 3; again++) {
            if (case_sum(dp, dp_world(dp), "schedule.loss", 1.0, dp_size(dp)) != 0) return 1;
        }
        if (rounds(dp, &loop, BETWEEN) != 0) return 1;
    }
    after = stats_of(dp);
    loop_end(dp, &loop);
    if (dp_size(dp) == 1) return 0;
    EXPECT(dp, after.schedules - before.schedules >= INTERLUDES,
           "%llu schedules behind %d interludes",
           (unsigned long long)(after.schedules - before.schedules), INTERLUDES);
    EXPECT(dp, after.scheduled_launches - before.scheduled_launches >= INTERLUDES * BETWEEN,
           "%llu launches by schedule in %d rounds",
           (unsigned long long)(after.scheduled_launches - before.scheduled_launches),
           INTERLUDES * BETWEEN);
    return 0;
}
