/*
 * test_transport_memory.c - transports and coordinators when the nth allocation of ours fails, for
 * every n: a status, nothing left open, nothing leaked.
 */
#include "coordinator/loop/loop.h"
#include "coordinator/loop/progress.h"
#include "tests/threads/threads.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cases.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

/* Counts down to the allocation that fails; negative: none does. */
static atomic_int until_failure = -1;

static int must_fail(void)
{
    return atomic_load(&until_failure) >= 0 && atomic_fetch_sub(&until_failure, 1) == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return must_fail() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return must_fail() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return must_fail() ? NULL : __real_realloc(old, bytes);
}

typedef dp_status_t (*create_t)(int rank, dp_transport_t **out);

static dp_status_t create_loopback(int rank, dp_transport_t **out)
{
    return threads_transport(rank, 3, NULL, out, NULL);
}

static dp_status_t create_shm(int rank, dp_transport_t **out)
{
    const int other = 1 - rank;

    return dp_transport_shm_create(rank, 3, &other, 1, NULL, NULL, out, NULL);
}

#if !defined(__SANITIZE_THREAD__) /* UCX is not instrumented */
static dp_status_t create_ucx(int rank, dp_transport_t **out)
{
    dp_config_t config;

    dp_config_defaults(&config);
    return dp_transport_ucx_create(rank, 3, &config, NULL, out, NULL);
}
#endif

/* Two ranks, a long message from 1 to 0. Where memory runs out under way, a loss will do. */
static dp_status_t exchange(create_t create, dp_transport_t **pair)
{
    static uint8_t address[2][DP_ADDRESS_MAX];
    static const uint8_t data[10000];
    const uint64_t give_up_ns = dp_now_ns() + 10ull * 1000000000;
    dp_transport_event_t event;
    dp_status_t status = DP_OK;
    size_t bytes[2];

    for (int i = 0; i < 2 && status == DP_OK; i++) {
        status = create(i, &pair[i]);
        if (status == DP_OK) {
            status = pair[i]->ops->address(pair[i], address[i], DP_ADDRESS_MAX, &bytes[i]);
        }
    }
    for (int i = 0; i < 2 && status == DP_OK; i++) {
        const int other = 1 - i;
        const void *others[] = {address[other]};

        status = pair[i]->ops->connect(pair[i], &other, others, &bytes[other], 1, NULL);
    }
    if (status == DP_OK) status = pair[1]->ops->send(pair[1], 0, data, sizeof(data));
    if (status != DP_OK) return status;
    for (;;) {
        dp_transport_event_t other;

        assert_true(dp_now_ns() < give_up_ns);
        if (pair[0]->ops->poll(pair[0], &event) == DP_OK) break;
        (void)pair[1]->ops->poll(pair[1], &other);
    }
    if (event.kind == DP_TRANSPORT_PEER_LOST) return DP_ERR_PEER_LOST;
    assert_int_equal(event.bytes, sizeof(data));
    return DP_OK;
}

static void fail_every_allocation(create_t create)
{
    int is_done = 0;

    for (int n = 0; !is_done; n++) {
        dp_transport_t *pair[2] = {NULL, NULL};
        dp_status_t status;

        assert_true(n < 1000);
        atomic_store(&until_failure, n);
        status = exchange(create, pair);
        is_done = atomic_exchange(&until_failure, -1) >= 0; /* it did not get as far as n */
        if (is_done) assert_int_equal(status, DP_OK);
        dp_transport_destroy(pair[0]);
        dp_transport_destroy(pair[1]);
    }
}

static void loopback_survives_each_failure(void **state)
{
    (void)state;
    fail_every_allocation(create_loopback);
}

static void shm_survives_each_failure(void **state)
{
    (void)state;
    fail_every_allocation(create_shm);
}

#if !defined(__SANITIZE_THREAD__)
static void ucx_survives_each_failure(void **state)
{
    (void)state;
    fail_every_allocation(create_ucx);
}
#endif

static void on_launch(void *user, const dp_output_t *launch)
{
    (void)launch;
    atomic_fetch_add((atomic_int *)user, 1);
}

static void on_fail(void *user, void *request, dp_status_t status, const char *text)
{
    (void)request;
    (void)status;
    (void)text;
    atomic_fetch_add((atomic_int *)user, 1);
}

static void on_fatal(void *user, dp_status_t status, int culprit, const char *text)
{
    (void)status;
    (void)culprit;
    (void)text;
    atomic_fetch_add((atomic_int *)user, 1);
}

/* A world of one that launches one barrier, or says why not. */
static dp_status_t run_one(const dp_topology_t *topology, dp_transport_t *transport)
{
    static const dp_signature_t barrier = {
        .collective = DP_COLLECTIVE_BARRIER, .root = -1, .prescale = 1.0, .postscale = 1.0};
    const uint64_t give_up_ns = dp_now_ns() + 10ull * 1000000000;
    atomic_int answers = 0;
    dp_loop_node_t node = {.submission = {.name = "b", .signature = &barrier, .request = &node}};
    dp_loop_node_t *nodes[] = {&node};
    dp_config_t config;
    dp_loop_t *loop;
    dp_log_t log;
    dp_loop_options_t options = {.config = &config,
                                 .topology = topology,
                                 .size = 1,
                                 .transport = transport,
                                 .log = &log,
                                 .callbacks = {&answers, on_launch, NULL, on_fail, on_fatal}};
    dp_status_t status;

    dp_config_defaults(&config);
    dp_log_init(&log, DP_LOG_ERROR, 0);
    status = dp_loop_start(&options, &loop, NULL);
    if (status != DP_OK) return status;
    dp_loop_submit(loop, nodes[0], 0);
    while (atomic_load(&answers) == 0) {
        assert_true(dp_now_ns() < give_up_ns);
        usleep(50);
    }
    status = dp_loop_finalize(loop);
    dp_loop_stop(loop);
    return status;
}

static void loop_survives_each_failure(void **state)
{
    static const char *const hosts[] = {"here"};
    dp_topology_t topology;
    int is_done = 0;

    (void)state;
    assert_int_equal(dp_topology_init(&topology, hosts, 1), DP_OK);
    for (int n = 0; !is_done; n++) {
        dp_transport_t *transport = NULL;
        dp_status_t status;

        assert_true(n < 1000);
        assert_int_equal(create_loopback(0, &transport), DP_OK);
        atomic_store(&until_failure, n);
        status = run_one(&topology, transport);
        is_done = atomic_exchange(&until_failure, -1) >= 0;
        if (is_done) assert_int_equal(status, DP_OK);
        dp_transport_destroy(transport);
    }
    dp_topology_fini(&topology);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_survives_each_failure),
        cmocka_unit_test(shm_survives_each_failure),
#if !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(ucx_survives_each_failure),
#endif
        cmocka_unit_test(loop_survives_each_failure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
