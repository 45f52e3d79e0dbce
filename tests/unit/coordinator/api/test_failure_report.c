/*
 * test_failure_report.c - what each rank tells the launcher when its world ends: typed facts that
 * hold on the rank that caused it and on those that were only told.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/api/operation/report.h"
#include "coordinator/api/world/init.h"
#include "coordinator/api/context/context.h"
#include "tests/threads/threads.h"
#include "tests/unit/cases.h"

enum { RANKS = 2 };

/* In place of dprun: keeps the report of each rank. */
static struct {
    dp_bootstrap_ops_t ops;
    dp_failure_t of_rank[RANKS];
    _Atomic int counts[RANKS];
    _Atomic int has_submitted; /* rank 0 waits for a tensor that rank 1 never submits */
} spy;

static void keep_report(dp_bootstrap_t *self, const dp_failure_t *failure)
{
    spy.of_rank[self->rank] = *failure;
    spy.counts[self->rank]++;
}

typedef struct rank {
    dp_bootstrap_t *bootstrap;
    pthread_t thread;
    dp_status_t status; /* of the wait, or of the start */
} rank_t;

static dp_context_t *start(rank_t *rank)
{
    dp_error_t error = {DP_OK, ""};
    dp_context_t *dp = NULL;
    dp_config_t config;

    dp_config_defaults(&config);
    config.log_level = DP_LOG_ERROR;
    config.fusion_bytes = 65536;
    rank->status = threads_context(&config, rank->bootstrap, &dp, &error);
    return rank->status == DP_OK ? dp : NULL;
}

static void make_ranks(rank_t *ranks, int size)
{
    dp_bootstrap_t *bootstraps[RANKS];

    memset(&spy, 0, sizeof(spy));
    assert_int_equal(threads_bootstrap(size, bootstraps), DP_OK);
    spy.ops = *bootstraps[0]->ops;
    spy.ops.report = keep_report;
    for (int i = 0; i < size; i++) {
        ranks[i] = (rank_t){.bootstrap = bootstraps[i]};
        bootstraps[i]->ops = &spy.ops;
    }
}

static void *wait_for_a_tensor(void *argument)
{
    rank_t *rank = argument;
    dp_context_t *dp = start(rank);
    dp_handle_t *handle = NULL;
    float values[10] = {0};

    if (dp == NULL) return NULL;
    rank->status = dp_allreduce(dp_world(dp), "wte", values, values, 10, DP_F32, NULL, &handle);
    spy.has_submitted = 1;
    if (rank->status == DP_OK) rank->status = dp_wait(handle, 30.0, NULL);
    dp_finalize(dp);
    return NULL;
}

static void *abort_in_step_7(void *argument)
{
    rank_t *rank = argument;
    dp_context_t *dp = start(rank);

    if (dp == NULL) return NULL;
    dp_step_begin(dp, 7);
    while (!spy.has_submitted)
        sched_yield();
    dp_abort(dp, "the disk is full");
    dp_finalize(dp);
    return NULL;
}

static void both_sides_of_an_abort_report_the_same_culprit(void **state)
{
    rank_t ranks[RANKS];

    (void)state;
    make_ranks(ranks, RANKS);
    pthread_create(&ranks[0].thread, NULL, wait_for_a_tensor, &ranks[0]);
    pthread_create(&ranks[1].thread, NULL, abort_in_step_7, &ranks[1]);
    for (int i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(spy.counts[i], 1);
        assert_int_equal(spy.of_rank[i].kind, DP_FAILURE_ABORTED);
        assert_int_equal(spy.of_rank[i].culprit, 1);
        assert_int_equal(spy.of_rank[i].is_seen, i == 1);
        assert_true(spy.of_rank[i].node[0] != '\0');
        assert_non_null(strstr(spy.of_rank[i].text, "the disk is full"));
    }
    assert_int_equal(ranks[0].status, DP_ERR_ABORTED);
    assert_string_equal(spy.of_rank[0].operation, "wte");
    assert_int_equal(spy.of_rank[0].has_step, 0);
    assert_int_equal(spy.of_rank[1].has_step, 1);
    assert_int_equal(spy.of_rank[1].step, 7);
    assert_string_equal(spy.of_rank[1].operation, "");
}

/* All ranks learn the same status; the one that saw the silence says so. */
static void silence_that_this_rank_saw_is_told_from_a_broken_connection(void **state)
{
    rank_t rank;
    dp_context_t *dp;

    (void)state;
    make_ranks(&rank, 1);
    dp = start(&rank);
    assert_non_null(dp);
    dp_context_report(dp, DP_ERR_PEER_LOST, 0, "any text");
    assert_int_equal(spy.of_rank[0].kind, DP_FAILURE_LOST);
    dp_on_loss(dp, 0, 3000000000);
    dp_context_report(dp, DP_ERR_PEER_LOST, 0, "any text");
    assert_int_equal(spy.of_rank[0].kind, DP_FAILURE_SILENT);
    assert_int_equal(spy.of_rank[0].age_ns, 3000000000);
    assert_int_equal(spy.of_rank[0].is_seen, 1);
    dp_on_loss(dp, 0, 0);
    dp_context_report(dp, DP_ERR_PEER_LOST, 0, "any text");
    assert_int_equal(spy.of_rank[0].kind, DP_FAILURE_LOST);
    dp_context_report(dp, DP_ERR_STALLED, -1, "any text"); /* what it saw was of another rank */
    assert_int_equal(spy.of_rank[0].kind, DP_FAILURE_STALLED);
    assert_int_equal(spy.of_rank[0].culprit, -1);
    assert_int_equal(spy.of_rank[0].is_seen, 0);
    assert_string_equal(spy.of_rank[0].node, "");
    assert_int_equal(dp_finalize(dp), DP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_sides_of_an_abort_report_the_same_culprit),
        cmocka_unit_test(silence_that_this_rank_saw_is_told_from_a_broken_connection),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
