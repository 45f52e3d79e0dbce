/*
 * test_start_memory.c - a start when memory runs out: dp_init() as a program calls it, and the
 * engine alone and beside another rank. Every allocation of the calling thread fails once; each
 * time there is an error with a text, nothing is left, and the other rank does not wait for ever.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "dp.h"
#include "runtime/engine/engine.h"
#include "runtime/shm/arena.h"
#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/threads/threads.h"

enum { LIMIT = 3000 }; /* far more allocations than any call makes */

static size_t open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    size_t count = 0;

    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

/* ---- dp_init() ------------------------------------------------------------------------------ */

static void init_fails_cleanly_at_every_allocation(void **state)
{
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    char text[512];
    dp_context_t *dp = NULL;
    size_t files = 0;
    int failed = 0;
    int n;

    (void)state;
    options.error = text;
    options.error_bytes = sizeof(text);
    assert_int_equal(dp_init(&options, &dp), DP_OK); /* what the first start leaves open for good */
    assert_int_equal(dp_finalize(dp), DP_OK);
    files = open_files();
    for (n = 1; n < LIMIT; n++) {
        dp_status_t status;

        fail_allocation(n);
        status = dp_init(&options, &dp);
        if (fail_allocation_reached() == 0) {
            assert_int_equal(status, DP_OK);
            assert_int_equal(dp_finalize(dp), DP_OK);
            break;
        }
        if (status == DP_OK) { /* the recorder may go without its file */
            assert_int_equal(dp_finalize(dp), DP_OK);
        } else {
            assert_int_equal(status, DP_ERR_NO_MEMORY);
            assert_true(text[0] != '\0');
            failed++;
        }
        if (open_files() != files) fail_msg("allocation %d: a descriptor is left open", n);
    }
    assert_true(n < LIMIT && failed > 10);
}

/* ---- The engine ----------------------------------------------------------------------------- */

typedef struct rank {
    dp_bootstrap_t *bootstrap;
    int nodes;
    dp_topology_t topology;
    dp_config_t config;
    dp_log_t log;
    dp_device_t *device;
    dp_engine_t *engine;
    dp_status_t status;
    dp_error_t error;
} rank_t;

static void open_rank(rank_t *rank, dp_bootstrap_t *bootstrap, int nodes)
{
    const char *const names[2] = {"a", nodes > 1 ? "b" : "a"};

    memset(rank, 0, sizeof(*rank));
    rank->bootstrap = bootstrap;
    dp_config_defaults(&rank->config);
    rank->config.arena_bytes = 64 * DP_MIB;
    dp_log_init(&rank->log, DP_LOG_ERROR, bootstrap->rank);
    assert_int_equal(dp_topology_init(&rank->topology, names, bootstrap->size), DP_OK);
    assert_int_equal(dp_device_host_create(0, &rank->log, &rank->device), DP_OK);
}

/* As the context does it: a rank that fails leaves, and the others learn of it. */
static void create_engine(rank_t *rank)
{
    rank->status =
        dp_engine_cpu_create(rank->bootstrap, &rank->topology, rank->device, &rank->config,
                             &rank->log, NULL, &rank->engine, &rank->error);
}

static void close_rank(rank_t *rank)
{
    if (rank->engine != NULL) rank->engine->ops->abort(rank->engine, DP_ERR_ABORTED, "over");
    dp_engine_destroy(rank->engine);
    dp_device_destroy(rank->device);
    dp_topology_fini(&rank->topology);
    dp_bootstrap_destroy(rank->bootstrap);
}

static void *live(void *context)
{
    rank_t *rank = context;

    create_engine(rank);
    close_rank(rank);
    return NULL;
}

/* On another node, and gone before addresses are given: UCX 1.13 does not always survive a peer
 * that goes while both connect (an assertion of its own, tcp_ep.c). */
static void *live_briefly(void *context)
{
    rank_t *rank = context;
    dp_arena_t *arena = NULL;

    rank->status = dp_arena_create(rank->bootstrap, &rank->topology, rank->config.arena_bytes,
                                   dp_now_ns() + rank->config.start_timeout_ns, &rank->log, &arena,
                                   &rank->error);
    dp_arena_destroy(arena);
    close_rank(rank);
    return NULL;
}

/* One try; 1 when the failing allocation was reached. */
static int try_engine(int size, int nodes, int n)
{
    dp_bootstrap_t *bootstraps[2];
    rank_t ranks[2];
    pthread_t other;
    int reached;

    assert_int_equal(threads_bootstrap(size, bootstraps), DP_OK);
    for (int i = 0; i < size; i++)
        open_rank(&ranks[i], bootstraps[i], nodes);
    if (size > 1) {
        assert_int_equal(pthread_create(&other, NULL, nodes > 1 ? live_briefly : live, &ranks[1]),
                         0);
    }
    fail_allocation(n);
    create_engine(&ranks[0]);
    reached = fail_allocation_reached();
    if (ranks[0].status != DP_OK) assert_true(ranks[0].error.text[0] != '\0');
    if (!reached) assert_int_equal(ranks[0].status, nodes > 1 ? DP_ERR_PEER_LOST : DP_OK);
    close_rank(&ranks[0]);
    if (size > 1) assert_int_equal(pthread_join(other, NULL), 0);
    if (size > 1 && ranks[1].status != DP_OK) assert_true(ranks[1].error.text[0] != '\0');
    return reached;
}

static void try_engines(int size, int nodes)
{
    size_t files = 0;
    int n;

    assert_int_equal(try_engine(size, nodes, 0), 0);
    files = open_files();
    for (n = 1; n < LIMIT && try_engine(size, nodes, n); n++)
        if (open_files() != files) fail_msg("allocation %d: a descriptor is left open", n);
    assert_true(n > 3 && n < LIMIT);
}

static void engine_alone_fails_cleanly_at_every_allocation(void **state)
{
    (void)state;
    try_engines(1, 1);
}

static void engine_of_a_node_fails_cleanly_on_both_ranks(void **state)
{
    (void)state;
    try_engines(2, 1);
}

static void engine_between_nodes_fails_cleanly_before_it_connects(void **state)
{
    (void)state;
    try_engines(2, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_fails_cleanly_at_every_allocation),
        cmocka_unit_test(engine_alone_fails_cleanly_at_every_allocation),
        cmocka_unit_test(engine_of_a_node_fails_cleanly_on_both_ranks),
        cmocka_unit_test(engine_between_nodes_fails_cleanly_before_it_connects),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
