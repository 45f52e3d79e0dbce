/*
 * test_context_memory.c - the front door when memory runs out: every allocation of the calling
 * thread fails once, and each time there is an error and nothing is left behind.
 */
#include <stdio.h>
#include <string.h>

#include "coordinator/api/operation/stream.h"
#include "coordinator/api/world/init.h"
#include "coordinator/api/context/context.h"
#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/threads/threads.h"

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
    assert_int_equal(threads_bootstrap(1, bootstraps), DP_OK);
    status = threads_context(&config, bootstraps[0], dp, &error);
    /* a failure comes with a text */
    if (status != DP_OK) assert_true(error.text[0] != '\0');
    return status;
}

/* A thread that waits does the coordinator's work, and a rank that cannot launch what all others do
 * ends the world, perhaps a moment later. So each failure has a world of its own. */
static void replace(dp_context_t **dp)
{
    dp_status_t status = dp_finalize(*dp);

    assert_true(status == DP_OK || status == DP_ERR_NO_MEMORY);
    assert_int_equal(create(dp), DP_OK);
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
        assert_int_equal(threads_bootstrap(1, bootstraps), DP_OK);
        fail_allocation(n);
        status = threads_context(&config, bootstraps[0], &dp, &error);
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
        char name[32];

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

/* ---- Every collective, and groups ----------------------------------------------------------- */

enum { KINDS = 16, COUNT = 40, DEPTH = 8 };

/* One operation of each kind in a group of one. */
static dp_status_t submit_kind(dp_group_t *group, int kind, const char *name, float *in, float *out,
                               dp_handle_t **handle)
{
    static const size_t counts[1] = {COUNT};
    static size_t received[1];
    dp_tensor_t list[2] = {{in, out, COUNT / 2, DP_F32},
                           {in + COUNT / 2, out + COUNT / 2, COUNT / 2, DP_F32}};

    switch (kind) {
    case 0:
        return dp_allreduce(group, name, in, out, COUNT, DP_F32, NULL, handle);
    case 1:
        return dp_reduce(group, name, in, out, COUNT, DP_F32, 0, NULL, handle);
    case 2:
        return dp_reduce_scatter(group, name, in, out, COUNT, DP_F32, NULL, handle);
    case 3:
        return dp_reduce_scatterv(group, name, in, out, counts, DP_F32, NULL, handle);
    case 4:
        return dp_broadcast(group, name, in, out, COUNT, DP_F32, 0, NULL, handle);
    case 5:
        return dp_allgather(group, name, in, out, COUNT, DP_F32, NULL, handle);
    case 6:
        return dp_gather(group, name, in, out, COUNT, DP_F32, 0, NULL, handle);
    case 7:
        return dp_scatter(group, name, in, out, COUNT, DP_F32, 0, NULL, handle);
    case 8:
        return dp_alltoall(group, name, in, out, COUNT, DP_F32, NULL, handle);
    case 9:
        return dp_allgatherv(group, name, in, COUNT, out, COUNT, received, DP_F32, NULL, handle);
    case 10:
        return dp_gatherv(group, name, in, COUNT, out, COUNT, received, DP_F32, 0, NULL, handle);
    case 11:
        return dp_scatterv(group, name, in, counts, out, COUNT, DP_F32, 0, NULL, handle);
    case 12:
        return dp_alltoallv(group, name, in, counts, out, COUNT, received, DP_F32, NULL, handle);
    case 13:
        return dp_grouped_allreduce(group, name, list, 2, NULL, handle);
    case 14:
        return dp_join(group, NULL, handle);
    default:
        return dp_barrier(group, name, NULL, handle);
    }
}

static void submit_and_wait(dp_group_t *group, int kind, const char *name)
{
    float in[COUNT], out[COUNT];
    dp_handle_t *handle;

    for (int i = 0; i < COUNT; i++)
        in[i] = (float)i;
    assert_int_equal(submit_kind(group, kind, name, in, out, &handle), DP_OK);
    assert_int_equal(dp_wait(handle, 10.0, NULL), DP_OK);
    if (kind < 14) assert_true(out[COUNT - 1] == in[COUNT - 1]);
}

/* Several of a kind at once, so that as many requests have what it needs. */
static void warm_up(dp_group_t *group, int kind)
{
    float in[DEPTH][COUNT] = {{0}}, out[DEPTH][COUNT];
    dp_handle_t *handles[DEPTH];
    int depth = kind == 14 ? 1 : DEPTH; /* a rank joins once at a time */

    for (int i = 0; i < depth; i++) {
        char name[32];

        snprintf(name, sizeof(name), "warm.%d.%d", kind, i);
        assert_int_equal(submit_kind(group, kind, name, in[i], out[i], &handles[i]), DP_OK);
    }
    for (int i = 0; i < depth; i++)
        assert_int_equal(dp_wait(handles[i], 10.0, NULL), DP_OK);
}

static void steady_state_of_every_collective_allocates_nothing(void **state)
{
    const int self = 0;
    dp_group_t *group;
    dp_context_t *dp;

    (void)state;
    assert_int_equal(create(&dp), DP_OK);
    assert_int_equal(dp_group_create(dp, "self", &self, 1, NULL, &group), DP_OK);
    for (int kind = 0; kind < KINDS; kind++) {
        dp_group_t *where = kind % 2 ? group : dp_world(dp);
        char name[32];

        snprintf(name, sizeof(name), "kind.%d", kind);
        /* the runtime may still hold a request when its wait has returned: several must exist */
        warm_up(where, kind);
        for (int i = 0; i < 3; i++)
            submit_and_wait(where, kind, name);
        for (int i = 0; i < 20; i++) {
            fail_allocation(1);
            submit_and_wait(where, kind, name);
            assert_int_equal(fail_allocation_reached(), 0);
        }
    }
    assert_int_equal(dp_finalize(dp), DP_OK);
}

static void every_collective_fails_cleanly_at_every_allocation(void **state)
{
    dp_context_t *dp;

    (void)state;
    assert_int_equal(create(&dp), DP_OK);
    for (int kind = 0; kind < KINDS; kind++) {
        int n;

        for (n = 1; n < LIMIT; n++) {
            float in[COUNT] = {0}, out[COUNT];
            dp_handle_t *handle = NULL;
            dp_status_t status;
            char name[32];
            int reached;

            snprintf(name, sizeof(name), "fresh.%d.%d", kind, n);
            fail_allocation(n);
            status = submit_kind(dp_world(dp), kind, name, in, out, &handle);
            reached = fail_allocation_reached();
            if (status == DP_OK) {
                assert_int_equal(dp_wait(handle, 10.0, NULL), DP_OK);
            } else {
                assert_int_equal(status, DP_ERR_NO_MEMORY);
            }
            if (!reached) break;
        }
        assert_true(n < LIMIT);
    }
    assert_int_equal(dp_finalize(dp), DP_OK);
}

static void groups_fail_cleanly_at_every_allocation(void **state)
{
    dp_context_t *dp;
    int n;

    (void)state;
    assert_int_equal(create(&dp), DP_OK);
    for (n = 1; n < LIMIT; n++) {
        dp_group_t *group = NULL, *part = NULL;
        const int self = 0;
        dp_status_t status;

        fail_allocation(n);
        status = dp_group_create(dp, "g", &self, 1, NULL, &group);
        if (status == DP_OK) status = dp_group_split(group, "s", 7, 0, NULL, &part);
        if (fail_allocation_reached() == 0) {
            assert_int_equal(status, DP_OK);
            assert_int_equal(dp_group_destroy(part), DP_OK);
            assert_int_equal(dp_group_destroy(group), DP_OK);
            break;
        }
        if (status != DP_OK) {
            assert_int_equal(status, DP_ERR_NO_MEMORY);
            assert_true(strlen(dp_error_text(dp)) > 0);
        }
        replace(&dp);
    }
    assert_true(n > 5 && n < LIMIT);
    assert_int_equal(dp_finalize(dp), DP_OK);
}

static void streams_of_a_context_take_memory_once(void **state)
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_stream_t *stream = NULL;
    float value = 1.0f, warm[DEPTH] = {0};
    dp_handle_t *handles[DEPTH];
    dp_context_t *dp;
    int n;

    (void)state;
    assert_int_equal(create(&dp), DP_OK);
    for (n = 1; n < LIMIT; n++) {
        dp_status_t status;

        fail_allocation(n);
        status = dp_context_stream_create(dp, &stream);
        if (fail_allocation_reached() == 0) {
            assert_int_equal(status, DP_OK);
            break;
        }
        assert_int_equal(status, DP_ERR_NO_MEMORY);
    }
    assert_true(n > 1 && n < LIMIT);
    options.stream = stream;
    for (int i = 0; i < DEPTH; i++) {
        char name[32];

        snprintf(name, sizeof(name), "warm.%d", i);
        assert_int_equal(
            dp_allreduce(dp_world(dp), name, &warm[i], &warm[i], 1, DP_F32, &options, &handles[i]),
            DP_OK);
    }
    for (int i = 0; i < DEPTH; i++)
        assert_int_equal(dp_wait(handles[i], 10.0, NULL), DP_OK);
    for (int i = 0; i < 60; i++) {
        dp_handle_t *handle;

        if (i > 1) fail_allocation(1);
        assert_int_equal(
            dp_allreduce(dp_world(dp), "v", &value, &value, 1, DP_F32, &options, &handle), DP_OK);
        assert_int_equal(dp_stream_wait(handle, stream, -1.0), DP_OK);
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
        replace(&dp);
    }
    assert_true(n > 3 && n < LIMIT);
    dp_gradients_destroy(gradients);
    assert_int_equal(dp_finalize(dp), DP_OK);
}

static void shards_fail_cleanly_at_every_allocation(void **state)
{
    dp_shard_unit_t groups[4] = {
        {.name = "a", .count = 9}, {.name = "b", .count = 9}, {.name = "c", .count = 9}};
    dp_shards_options_t options = DP_SHARDS_OPTIONS_INIT;
    dp_shards_t *shards = NULL;
    dp_context_t *dp;
    int n;

    (void)state;
    groups[3] = (dp_shard_unit_t){.name = "d", .count = 5, .is_whole = 1};
    options.stage = DP_SHARD_WEIGHTS;
    assert_int_equal(create(&dp), DP_OK);
    for (n = 1; n < LIMIT; n++) {
        dp_status_t status;

        fail_allocation(n);
        status = dp_shards_create(dp, groups, 4, &options, &shards);
        if (fail_allocation_reached() == 0) {
            assert_int_equal(status, DP_OK);
            break;
        }
        if (status == DP_OK) {
            dp_shards_destroy(shards);
        } else {
            assert_int_equal(status, DP_ERR_NO_MEMORY);
            assert_true(strlen(dp_error_text(dp)) > 0);
        }
        replace(&dp);
    }
    assert_true(n > 12 && n < LIMIT);
    dp_shards_destroy(shards);
    assert_int_equal(dp_finalize(dp), DP_OK);
}

/* Objects that a program destroys twice, or behind dp_finalize(), and those of another context. */
static void destroy_of_what_is_gone_does_nothing(void **state)
{
    float gradient[4] = {0};
    const dp_gradient_t tensor = {"a", NULL, gradient, 4, DP_F32};
    const dp_shard_unit_t unit = {.name = "a", .count = 9};
    dp_gradients_t *gradients[2];
    dp_shards_t *shards[2];
    dp_context_t *dp[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(create(&dp[i]), DP_OK);
        assert_int_equal(dp_gradients_create(dp[i], &tensor, 1, NULL, &gradients[i]), DP_OK);
        assert_int_equal(dp_shards_create(dp[i], &unit, 1, NULL, &shards[i]), DP_OK);
    }
    dp_gradients_destroy(gradients[0]);
    dp_gradients_destroy(gradients[0]);
    assert_int_equal(dp_finalize(dp[0]), DP_OK);
    dp_gradients_destroy(gradients[0]);
    dp_shards_destroy(shards[0]);
    assert_int_equal(dp_gradients_ready(gradients[1], 0, NULL), DP_OK); /* the others stand */
    assert_int_equal(dp_gradients_sync(gradients[1], NULL), DP_OK);
    assert_int_equal(dp_finalize(dp[1]), DP_OK);
    dp_shards_destroy(shards[1]);
    dp_gradients_destroy(gradients[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_fails_cleanly_at_every_allocation),
        cmocka_unit_test(submissions_fail_cleanly_at_every_allocation),
        cmocka_unit_test(steady_state_allocates_nothing),
        cmocka_unit_test(steady_state_of_every_collective_allocates_nothing),
        cmocka_unit_test(every_collective_fails_cleanly_at_every_allocation),
        cmocka_unit_test(groups_fail_cleanly_at_every_allocation),
        cmocka_unit_test(streams_of_a_context_take_memory_once),
        cmocka_unit_test(gradients_fail_cleanly_at_every_allocation),
        cmocka_unit_test(shards_fail_cleanly_at_every_allocation),
        cmocka_unit_test(destroy_of_what_is_gone_does_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
