/*
 * test_hello.c - ranks that cannot work together say so at their start: a rank that runs another
 * version of libdp is named on every rank, with both versions.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/api/world/init.h"
#include "coordinator/api/context/context.h"
#include "tests/threads/threads.h"
#include "tests/unit/cases.h"

enum { RANKS = 3 };

const char *__real_dp_version(void);
const char *__wrap_dp_version(void);

static _Thread_local const char
    *own_version; /* of the rank that this thread is; NULL: the real one */

const char *__wrap_dp_version(void)
{
    return own_version != NULL ? own_version : __real_dp_version();
}

typedef struct rank {
    dp_bootstrap_t *bootstrap;
    const char *version;
    pthread_t thread;
    dp_status_t status;
    dp_error_t error;
} rank_t;

static void *start(void *argument)
{
    rank_t *rank = argument;
    dp_context_t *dp = NULL;
    dp_config_t config;

    own_version = rank->version;
    dp_config_defaults(&config);
    config.log_level = DP_LOG_ERROR;
    config.fusion_bytes = 65536;
    rank->error = (dp_error_t){DP_OK, ""};
    rank->status = threads_context(&config, rank->bootstrap, &dp, &rank->error);
    if (rank->status == DP_OK) dp_finalize(dp);
    return NULL;
}

static void run_ranks(rank_t *ranks)
{
    dp_bootstrap_t *bootstraps[RANKS];

    assert_int_equal(threads_bootstrap(RANKS, bootstraps), DP_OK);
    for (int i = 0; i < RANKS; i++) {
        ranks[i].bootstrap = bootstraps[i];
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, start, &ranks[i]), 0);
    }
    for (int i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
}

static void ranks_of_one_version_start(void **state)
{
    rank_t ranks[RANKS] = {{.version = "9.9.9"}, {.version = "9.9.9"}, {.version = "9.9.9"}};

    (void)state;
    run_ranks(ranks);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].status, DP_OK);
}

static void a_rank_of_another_version_is_named(void **state)
{
    rank_t ranks[RANKS] = {{.version = NULL}, {.version = NULL}, {.version = "9.9.9"}};

    (void)state;
    run_ranks(ranks);
    for (int i = 0; i < RANKS; i++) {
        char other[64];
        char own[64];

        (void)snprintf(other, sizeof(other), "runs libdp %s, rank %d runs",
                       i == 2 ? __real_dp_version() : "9.9.9", i);
        (void)snprintf(own, sizeof(own), "runs %s", i == 2 ? "9.9.9" : __real_dp_version());
        assert_int_equal(ranks[i].status, DP_ERR_MISMATCH);
        assert_non_null(strstr(ranks[i].error.text, i == 2 ? "rank 0 (" : "rank 2 ("));
        assert_non_null(strstr(ranks[i].error.text, other));
        assert_non_null(strstr(ranks[i].error.text, own));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_one_version_start),
        cmocka_unit_test(a_rank_of_another_version_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
