/*
 * test_program_memory.c - order=program when memory runs out: whichever allocation of the program's
 * thread fails, in a submission or in the launch it makes, every request ends and nothing is left
 * behind.
 */
#include <stdio.h>

#include "coordinator/api/world/init.h"
#include "coordinator/api/context/context.h"
#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/threads/threads.h"

enum { LIMIT = 3000, TENSORS = 20 };

static dp_status_t create(dp_context_t **dp)
{
    dp_bootstrap_t *bootstraps[1];
    dp_error_t error = {DP_OK, ""};
    dp_config_t config;

    dp_config_defaults(&config);
    config.log_level = DP_LOG_ERROR;
    config.order = DP_CONFIG_ORDER_PROGRAM;
    config.fusion_bytes = 65536;
    assert_int_equal(threads_bootstrap(1, bootstraps), DP_OK);
    return threads_context(&config, bootstraps[0], dp, &error);
}

static int is_expected(dp_status_t status)
{
    return status == DP_OK || status == DP_ERR_NO_MEMORY;
}

/* Some tensors of a bucket, and a barrier with something held behind it. */
static void use(dp_context_t *dp, float *values, dp_handle_t **handles)
{
    for (int i = 0; i < TENSORS; i++) {
        char name[32];

        snprintf(name, sizeof(name), "t.%d", i);
        if (i == TENSORS / 2) {
            if (dp_barrier(dp_world(dp), name, NULL, &handles[i]) != DP_OK) handles[i] = NULL;
        } else if (dp_allreduce(dp_world(dp), name, &values[i], &values[i], 1, DP_F32, NULL,
                                &handles[i]) != DP_OK) {
            handles[i] = NULL;
        }
    }
    for (int i = 0; i < TENSORS; i++) {
        if (handles[i] != NULL) assert_true(is_expected(dp_wait(handles[i], 60.0, NULL)));
    }
}

static void program_order_survives_every_failed_allocation(void **state)
{
    float values[TENSORS] = {0};
    int n, failed = 0;

    (void)state;
    for (n = 1; n < LIMIT; n++) {
        dp_handle_t *handles[TENSORS] = {NULL};
        dp_context_t *dp;
        dp_status_t status;

        assert_int_equal(create(&dp), DP_OK);
        fail_allocation(n);
        use(dp, values, handles);
        if (fail_allocation_reached() == 0) {
            assert_int_equal(dp_finalize(dp), DP_OK);
            break;
        }
        status = dp_finalize(dp);
        assert_true(is_expected(status));
        failed += status != DP_OK;
    }
    assert_true(n > TENSORS && n < LIMIT);
    assert_true(failed > 0); /* some of them were a launch's */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(program_order_survives_every_failed_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
