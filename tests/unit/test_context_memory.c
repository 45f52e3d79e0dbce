/*
 * test_context_memory.c - the front door when memory runs out: every allocation of the calling
 * thread fails once, and each time there is an error and nothing is left behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "coordinator/context.h"
#include "tests/unit/fail_allocation.h"

enum { LIMIT = 3000 }; /* far more allocations than any call makes */

static dp_status_t create(dp_context_t **dp)
{
    dp_bootstrap_t *bootstraps[1];
    dp_error_t error = {DP_OK, ""};
    dp_config_t config;
    dp_status_t status;

    dp_config_defaults(&config);
    config.log_level = DP_LOG_ERROR;
    config.fusion_bytes = 65536;
    assert_int_equal(dp_bootstrap_create_threads(1, bootstraps), DP_OK);
    status = dp_context_create(&config, bootstraps[0], 1, dp, &error);
    /* who is told that something failed is also told what */
    if (status != DP_OK) assert_true(error.text[0] != '\0');
    return status;
}

static void creation_fails_cleanly_at_every_allocation(void **state)
{
    dp_context_t *dp = NULL;
    int n;

    (void)state;
    for (n = 1; n < LIMIT; n++) {
        dp_bootstrap_t *bootstraps[1];
        dp_error_t error = {DP_OK, ""};
        dp_config_t config;
        dp_status_t status;

        dp_config_defaults(&config);
        config.log_level = DP_LOG_ERROR;
        config.fusion_bytes = 65536;
        assert_int_equal(dp_bootstrap_create_threads(1, bootstraps), DP_OK);
        fail_allocation(n);
        status = dp_context_create(&config, bootstraps[0], 1, &dp, &error);
        if (fail_allocation_reached() == 0) {
            assert_int_equal(status, DP_OK);
            assert_int_equal(dp_finalize(dp), DP_OK);
            break;
        }
        /* the recorder may go without its file; all else is needed */
        if (status == DP_OK) {
            assert_int_equal(dp_finalize(dp), DP_OK);
        } else {
            assert_true(error.text[0] != '\0');
        }
    }
    assert_true(n > 10 && n < LIMIT);
}

static void submissions_fail_cleanly_at_every_allocation(void **state)
{
    float a[10] = {0}, b[20] = {0};
    dp_tensor_t tensors[2] = {{a, a, 10, DP_F32}, {b, b, 20, DP_F32}};
    dp_context_t *dp;
    int n;

    (void)state;
    assert_int_equal(create(&dp), DP_OK);
    for (n = 1; n < LIMIT; n++) {
        dp_handle_t *handle = NULL;
        dp_status_t status;
        char name[32];

        snprintf(name, sizeof(name), "fresh.%d", n);
        fail_allocation(n);
        status = dp_grouped_allreduce(dp_world(dp), name, tensors, 2, NULL, &handle);
        if (fail_allocation_reached() == 0) {
            assert_int_equal(status, DP_OK);
            assert_int_equal(dp_wait(handle, 10.0, NULL), DP_OK);
            break;
        }
        if (status == DP_OK) { /* the recorder lost a name */
            assert_int_equal(dp_wait(handle, 10.0, NULL), DP_OK);
        } else {
            assert_int_equal(status, DP_ERR_NO_MEMORY);
        }
    }
    assert_true(n > 1 && n < LIMIT);
    assert_int_equal(dp_finalize(dp), DP_OK);
}

/* From the second use of a name on, submitting and waiting take nothing from the system. */
static void steady_state_allocates_nothing(void **state)
{
    float value = 1.0f, warm[4] = {0};
    dp_context_t *dp;

    (void)state;
    assert_int_equal(create(&dp), DP_OK);
    /* A depth of four: the runtime may still hold a request when its wait has returned. */
    for (int i = 0; i < 4; i++) {
        char name[16];

        snprintf(name, sizeof(name), "warm.%d", i);
        assert_int_equal(
            dp_allreduce(dp_world(dp), name, &warm[i], &warm[i], 1, DP_F32, NULL, NULL), DP_OK);
    }
    assert_int_equal(dp_wait_all(dp, 10.0), DP_OK);
    for (int i = 0; i < 50; i++) {
        dp_handle_t *handle;

        if (i > 1) fail_allocation(1);
        assert_int_equal(
            dp_allreduce(dp_world(dp), "steady", &value, &value, 1, DP_F32, NULL, &handle), DP_OK);
        assert_int_equal(dp_wait(handle, 10.0, NULL), DP_OK);
        assert_int_equal(fail_allocation_reached(), 0);
    }
    assert_int_equal(dp_finalize(dp), DP_OK);
}

static void gradients_fail_cleanly_at_every_allocation(void **state)
{
    float weight[8] = {0}, gradient[8] = {0};
    dp_gradient_t tensors[2] = {{"first", weight, gradient, 4, DP_F32},
                                {"second", weight + 4, gradient + 4, 4, DP_F32}};
    dp_gradients_t *gradients = NULL;
    dp_context_t *dp;
    int n;

    (void)state;
    assert_int_equal(create(&dp), DP_OK);
    for (n = 1; n < LIMIT; n++) {
        dp_status_t status;

        fail_allocation(n);
        status = dp_gradients_create(dp, tensors, 2, NULL, &gradients);
        if (fail_allocation_reached() == 0) {
            assert_int_equal(status, DP_OK);
            break;
        }
        if (status == DP_OK) {
            dp_gradients_destroy(gradients);
        } else {
            assert_int_equal(status, DP_ERR_NO_MEMORY);
            assert_true(strlen(dp_error_text(dp)) > 0);
        }
    }
    assert_true(n > 3 && n < LIMIT);
    dp_gradients_destroy(gradients);
    assert_int_equal(dp_finalize(dp), DP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_fails_cleanly_at_every_allocation),
        cmocka_unit_test(submissions_fail_cleanly_at_every_allocation),
        cmocka_unit_test(steady_state_allocates_nothing),
        cmocka_unit_test(gradients_fail_cleanly_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
