/*
 * test_loop.c - coordinators of 1 to 8 ranks in one process over the loopback transport.
 */
#include "coordinator/loop/loop.h"
#include "coordinator/loop/post.h"
#include "coordinator/loop/progress.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/inject.h"
#include "tests/threads/threads.h"
#include "tests/unit/cases.h"

#define MS 1000000ull
#define RANKS_MAX 8
#define TENSORS 60
#define ROUNDS 20
#define PATIENCE_NS (30ull * 1000000000)
#define SILENCE_NS (1500 * MS) /* longer than a live rank is silent on a busy machine */

typedef struct request {
    dp_loop_node_t node;
    char name[32];
    int tensor;
    atomic_int is_launched;
} request_t;

typedef struct rank {
    dp_transport_t *transport;
    dp_loop_t *loop;
    request_t requests[TENSORS];
    int order[TENSORS * ROUNDS]; /* coordinator thread only, until joined */
    atomic_int launched;
    atomic_int failed;
    atomic_int fatal; /* dp_status_t */
    int fatal_calls;
    int culprit;
    char text[512];
    uint64_t fatal_ns;
    dp_status_t finalized;
} rank_t;

typedef struct world {
    dp_config_t config;
    dp_topology_t topology;
    dp_log_t log;
    int size;
    rank_t rank[RANKS_MAX];
} world_t;

static const dp_signature_part_t part = {768, DP_F32};
static const dp_signature_t signature = {.collective = DP_COLLECTIVE_ALLREDUCE,
                                         .reduce = DP_SUM,
                                         .wire = DP_WIRE_NONE,
                                         .root = -1,
                                         .prescale = 1.0,
                                         .postscale = 1.0,
                                         .part_count = 1,
                                         .parts = &part};

static void on_launch(void *user, const dp_output_t *launch)
{
    rank_t *rank = user;

    for (size_t i = 0; i < launch->entry_count; i++) {
        request_t *request = launch->entries[i].request;

        rank->order[atomic_load(&rank->launched)] = request->tensor;
        atomic_fetch_add(&rank->launched, 1);
        atomic_store(&request->is_launched, 1);
    }
    dp_loop_launch_done(rank->loop, launch->sequence);
}

static void on_fail(void *user, void *request, dp_status_t status, const char *text)
{
    rank_t *rank = user;

    (void)request;
    (void)status;
    (void)text;
    atomic_fetch_add(&rank->failed, 1);
}

static void on_fatal(void *user, dp_status_t status, int culprit, const char *text)
{
    rank_t *rank = user;

    rank->fatal_calls++;
    rank->culprit = culprit;
    rank->fatal_ns = dp_now_ns();
    snprintf(rank->text, sizeof(rank->text), "%s", text);
    atomic_store(&rank->fatal, (int)status);
}

static world_t *world_open(int size, int arity)
{
    const char *hosts[RANKS_MAX];
    uint8_t address[RANKS_MAX][DP_ADDRESS_MAX];
    size_t bytes[RANKS_MAX];
    world_t *world = calloc(1, sizeof(*world));

    assert_non_null(world);
    dp_config_defaults(&world->config);
    world->config.tree_arity = arity;
    world->config.spin_ns = 0;
    world->size = size;
    dp_log_init(&world->log, DP_LOG_WARN, -1);
    for (int i = 0; i < size; i++)
        hosts[i] = "here";
    assert_int_equal(dp_topology_init(&world->topology, hosts, size), DP_OK);
    for (int i = 0; i < size; i++) {
        rank_t *rank = &world->rank[i];

        assert_int_equal(threads_transport(i, 1, &world->log, &rank->transport, NULL), DP_OK);
        assert_int_equal(
            rank->transport->ops->address(rank->transport, address[i], DP_ADDRESS_MAX, &bytes[i]),
            DP_OK);
    }
    for (int i = 0; i < size; i++) {
        rank_t *rank = &world->rank[i];
        int ranks[2 * RANKS_MAX + 1];
        const void *others[2 * RANKS_MAX + 1];
        size_t lengths[2 * RANKS_MAX + 1];
        int count;

        assert_int_equal(dp_loop_neighbours(&world->topology, arity, i, ranks, &count), DP_OK);
        for (int j = 0; j < count; j++) {
            others[j] = address[ranks[j]];
            lengths[j] = bytes[ranks[j]];
        }
        assert_int_equal(
            rank->transport->ops->connect(rank->transport, ranks, others, lengths, count, NULL),
            DP_OK);
    }
    return world;
}

static void rank_start(world_t *world, int i)
{
    rank_t *rank = &world->rank[i];
    const dp_loop_options_t options = {.config = &world->config,
                                       .topology = &world->topology,
                                       .rank = i,
                                       .size = world->size,
                                       .transport = rank->transport,
                                       .log = &world->log,
                                       .callbacks = {rank, on_launch, NULL, on_fail, on_fatal}};
    dp_error_t error = {0};

    if (dp_loop_start(&options, &rank->loop, &error) != DP_OK) fail_msg("%s", error.text);
    for (int t = 0; t < TENSORS; t++) {
        request_t *request = &rank->requests[t];

        snprintf(request->name, sizeof(request->name), "h.%d.weight", t);
        request->tensor = t;
        request->node.submission = (dp_submission_t){.name = request->name,
                                                     .signature = &signature,
                                                     .last_absmax = -1.0f,
                                                     .request = request};
    }
}

static void world_start(world_t *world)
{
    for (int i = 0; i < world->size; i++)
        rank_start(world, i);
}

static void *finalize(void *arg)
{
    rank_t *rank = arg;

    rank->finalized = dp_loop_finalize(rank->loop);
    return NULL;
}

/* Finalizes on all ranks at once, as programs do, and stops them. */
static void world_finalize(world_t *world)
{
    pthread_t thread[RANKS_MAX];

    for (int i = 0; i < world->size; i++)
        pthread_create(&thread[i], NULL, finalize, &world->rank[i]);
    for (int i = 0; i < world->size; i++)
        pthread_join(thread[i], NULL);
}

static void world_destroy(world_t *world)
{
    for (int i = 0; i < world->size; i++) {
        dp_loop_stop(world->rank[i].loop);
        world->rank[i].loop = NULL;
        dp_transport_destroy(world->rank[i].transport);
    }
    dp_topology_fini(&world->topology);
    free(world);
}

/* ---- Cases ---------------------------------------------------------------------------------- */

typedef struct job {
    rank_t *rank;
    unsigned seed;
    int first, step; /* tensors first, first + step, ... */
} job_t;

/* Submits its share of the tensors in random order, in batches, then waits for each of them. */
static void *train(void *arg)
{
    job_t *job = arg;

    for (int round = 0; round < ROUNDS; round++) {
        dp_loop_node_t *nodes[TENSORS];
        size_t count = 0;

        for (int t = job->first; t < TENSORS; t += job->step) {
            atomic_store(&job->rank->requests[t].is_launched, 0);
            nodes[count++] = &job->rank->requests[t].node;
        }
        for (size_t i = count; i > 1; i--) {
            const size_t other = (size_t)rand_r(&job->seed) % i;
            dp_loop_node_t *swap = nodes[i - 1];

            nodes[i - 1] = nodes[other];
            nodes[other] = swap;
        }
        for (size_t i = 0; i < count; i++) {
            dp_loop_submit(job->rank->loop, nodes[i], 0);
            if (rand_r(&job->seed) % 16 == 0) usleep(50);
        }
        if (job->first == 0) dp_loop_set_activity(job->rank->loop, "in a test");
        for (int t = job->first; t < TENSORS; t += job->step) {
            const uint64_t give_up_ns = dp_now_ns() + PATIENCE_NS;

            if (t % 7 == 0)
                dp_loop_urgent(job->rank->loop, DP_GROUP_WORLD, job->rank->requests[t].name);
            while (!atomic_load(&job->rank->requests[t].is_launched)) {
                if (dp_now_ns() > give_up_ns) return job;
                usleep(20);
            }
        }
    }
    return NULL;
}

static void run_world(int size, int arity)
{
    enum { THREADS = 2 };
    world_t *world = world_open(size, arity);
    pthread_t thread[RANKS_MAX * THREADS];
    job_t jobs[RANKS_MAX * THREADS];
    int stuck = 0;

    world_start(world);
    for (int i = 0; i < size * THREADS; i++) {
        jobs[i] = (job_t){&world->rank[i / THREADS], (unsigned)i + 1, i % THREADS, THREADS};
        pthread_create(&thread[i], NULL, train, &jobs[i]);
    }
    for (int i = 0; i < size * THREADS; i++) {
        void *answer;

        pthread_join(thread[i], &answer);
        stuck += answer != NULL;
    }
    assert_int_equal(stuck, 0);
    world_finalize(world);
    for (int i = 0; i < size; i++) {
        rank_t *rank = &world->rank[i];
        dp_loop_stats_t stats;

        dp_loop_stats(rank->loop, &stats);
        assert_true(stats.cpu_ns > 0);
        assert_int_equal(rank->finalized, DP_OK);
        assert_int_equal(rank->fatal_calls, 0);
        assert_int_equal(atomic_load(&rank->failed), 0);
        assert_int_equal(atomic_load(&rank->launched), TENSORS * ROUNDS);
        /* the one order: NCCL would hang on any other */
        assert_memory_equal(rank->order, world->rank[0].order, sizeof(rank->order));
    }
    world_destroy(world);
}

static void launch_order_is_equal_on_all_ranks(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++)
        run_world(size, 8);
}

static void launch_order_is_equal_in_a_deep_tree(void **state)
{
    (void)state;
    run_world(7, 1);
    run_world(8, 2);
}

static int await_fatal(world_t *world, int except)
{
    const uint64_t give_up_ns = dp_now_ns() + PATIENCE_NS;

    for (int i = 0; i < world->size; i++) {
        if (i == except) continue;
        while (atomic_load(&world->rank[i].fatal) == DP_OK) {
            if (dp_now_ns() > give_up_ns) return 0;
            usleep(200);
        }
    }
    return 1;
}

static void abort_reaches_every_rank(void **state)
{
    world_t *world = world_open(5, 2);
    dp_loop_node_t *node;

    (void)state;
    world_start(world);
    node = &world->rank[1].requests[0].node; /* pending for ever */
    dp_loop_submit(world->rank[1].loop, node, 0);
    dp_loop_abort(world->rank[3].loop, DP_ERR_ABORTED, "the loss is not a number");
    dp_loop_abort(world->rank[3].loop, DP_ERR_ABORTED, "a second reason");
    assert_true(await_fatal(world, -1));
    for (int i = 0; i < world->size; i++) {
        rank_t *rank = &world->rank[i];

        assert_int_equal(dp_loop_finalize(rank->loop), DP_ERR_ABORTED);
        assert_int_equal(rank->fatal_calls, 1);
        assert_int_equal(rank->culprit, 3);
        assert_non_null(strstr(rank->text, "the loss is not a number"));
        node = &rank->requests[1].node; /* too late: forgotten, and nothing breaks */
        dp_loop_submit(rank->loop, node, 0);
        dp_loop_urgent(rank->loop, DP_GROUP_WORLD, "h.1.weight");
    }
    world_destroy(world);
}

static void vanished_rank_is_named_everywhere(void **state)
{
    world_t *world = world_open(5, 2);

    (void)state;
    world_start(world);
    usleep(2000);
    dp_loop_stop(world->rank[4].loop);
    world->rank[4].loop = NULL;
    dp_transport_destroy(world->rank[4].transport);
    world->rank[4].transport = NULL;
    assert_true(await_fatal(world, 4));
    for (int i = 0; i < 4; i++) {
        rank_t *rank = &world->rank[i];

        assert_int_equal(dp_loop_finalize(rank->loop), DP_ERR_PEER_LOST);
        assert_int_equal(rank->fatal_calls, 1);
        assert_int_equal(rank->culprit, 4);
        assert_non_null(strstr(rank->text, "rank 4"));
    }
    world_destroy(world);
}

static void silent_rank_is_declared_dead(void **state)
{
    world_t *world = world_open(3, 8);
    uint64_t start_ns;

    (void)state;
    world->config.heartbeat_ns = 20 * MS;
    world->config.peer_timeout_ns = SILENCE_NS;
    world->config.start_timeout_ns = SILENCE_NS;
    start_ns = dp_now_ns();
    rank_start(world, 0);
    rank_start(world, 1); /* rank 2 is connected and never lives */
    assert_true(await_fatal(world, 2));
    assert_true(world->rank[0].fatal_ns - start_ns >= SILENCE_NS);
    assert_int_equal(world->rank[0].culprit, 2);
    assert_int_equal(world->rank[1].culprit, 2);
    /* In one text, though limits differ: it holds no time. */
    assert_non_null(strstr(world->rank[1].text, "no sign of life (stopped or unreachable)"));
    assert_non_null(strstr(world->rank[0].text, "no sign of life (stopped or unreachable)"));
    world_destroy(world);
}

/* Whichever of the first messages gets lost: all ranks end, with the same words. */
static void lost_message_is_missed_everywhere(void **state)
{
    (void)state;
    for (int nth = 1; nth <= 6; nth++) {
        world_t *world = world_open(4, 2);
        dp_log_t quiet;
        char fault[32];

        dp_log_init(&quiet, DP_LOG_ERROR, 0);
        quiet.fd = -1;
        snprintf(fault, sizeof(fault), "drop:0=%d", nth);
        assert_int_equal(dp_inject_create(fault, 0, 1, &quiet, &world->config.injector, NULL),
                         DP_OK);
        world->config.heartbeat_ns = 20 * MS;
        world_start(world);
        for (int i = 0; i < world->size; i++) {
            dp_loop_node_t *node = &world->rank[i].requests[0].node;

            dp_loop_submit(world->rank[i].loop, node, 0); /* three go up, three come down */
        }
        assert_true(await_fatal(world, -1));
        for (int i = 0; i < world->size; i++) {
            assert_non_null(strstr(world->rank[i].text, "a control message from rank "));
            assert_string_equal(world->rank[i].text, world->rank[0].text);
            assert_int_equal(world->rank[i].culprit, world->rank[0].culprit);
        }
        for (int i = 0; i < world->size; i++)
            dp_loop_stop(world->rank[i].loop);
        dp_inject_destroy(world->config.injector);
        for (int i = 0; i < world->size; i++)
            world->rank[i].loop = NULL;
        world_destroy(world);
    }
}

static void idle_world_stays_alive_on_heartbeats(void **state)
{
    world_t *world = world_open(3, 8);
    dp_loop_stats_t stats;
    uint64_t start_ns, lived_ms;

    (void)state;
    world->config.heartbeat_ns = 20 * MS;
    world->config.peer_timeout_ns = SILENCE_NS;
    start_ns = dp_now_ns();
    world_start(world);
    usleep((useconds_t)((SILENCE_NS + 500 * MS) / 1000));
    for (int i = 0; i < 3; i++) {
        dp_loop_stats(world->rank[i].loop, &stats);
        lived_ms = (dp_now_ns() - start_ns) / MS;
        assert_int_equal(world->rank[i].fatal_calls, 0);
        assert_int_equal(stats.control_sent, 0);
        assert_true(stats.heartbeats > 5);
        assert_true(stats.wakeups < lived_ms); /* sleeps in between */
    }
    world_finalize(world);
    for (int i = 0; i < 3; i++)
        assert_int_equal(world->rank[i].finalized, DP_OK);
    world_destroy(world);
}

static void stop_at_any_time_leaves_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++) {
        world_t *world = world_open(3, 8);

        world_start(world);
        for (int r = 0; r < 3; r++) {
            for (int t = 0; t < TENSORS - r; t++)
                dp_loop_submit(world->rank[r].loop, &world->rank[r].requests[t].node, 0);
        }
        usleep((unsigned)(i * 30));
        world_destroy(world);
    }
}

static void busy_name_fails_that_request_only(void **state)
{
    world_t *world = world_open(1, 8);
    request_t twin = {.name = "h.0.weight"};
    const uint64_t give_up_ns = dp_now_ns() + PATIENCE_NS;

    (void)state;
    world_start(world);
    twin.node.submission = world->rank[0].requests[0].node.submission;
    twin.node.submission.request = &twin;
    dp_loop_submit(world->rank[0].loop, &world->rank[0].requests[0].node, 0);
    dp_loop_submit(world->rank[0].loop, &twin.node, 0);
    while (atomic_load(&world->rank[0].launched) + atomic_load(&world->rank[0].failed) < 2) {
        assert_true(dp_now_ns() < give_up_ns);
        usleep(100);
    }
    world_finalize(world);
    assert_int_equal(world->rank[0].finalized, DP_OK);
    world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launch_order_is_equal_on_all_ranks),
        cmocka_unit_test(launch_order_is_equal_in_a_deep_tree),
        cmocka_unit_test(abort_reaches_every_rank),
        cmocka_unit_test(vanished_rank_is_named_everywhere),
        cmocka_unit_test(silent_rank_is_declared_dead),
        cmocka_unit_test(lost_message_is_missed_everywhere),
        cmocka_unit_test(idle_world_stays_alive_on_heartbeats),
        cmocka_unit_test(stop_at_any_time_leaves_nothing),
        cmocka_unit_test(busy_name_fails_that_request_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
