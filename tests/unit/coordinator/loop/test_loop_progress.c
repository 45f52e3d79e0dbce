/*
 * test_loop_progress.c - waiting threads that make the coordinator's rounds (progress.c): launches
 * are made on them, the coordinator thread goes on when they leave, and every submission is
 * launched, whichever thread makes the round.
 */
#include "coordinator/loop/loop.h"
#include "coordinator/loop/post.h"
#include "coordinator/loop/progress.h"
#include "tests/threads/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/cases.h"

#define RANKS 2
#define ROUNDS 300
/* of driving; on a busy machine the other rank may be late */
#define WINDOW_NS ((uint64_t)2 * 1000000)
#define WORK_NS ((uint64_t)200 * 1000000)
#define OPERATION_NS ((uint64_t)300 * 1000)
#define PATIENCE_NS ((uint64_t)30 * 1000000000)

typedef struct rank {
    dp_transport_t *transport;
    dp_loop_t *loop;
    dp_loop_node_t node;
    _Atomic uint32_t state; /* operations launched so far */
    atomic_int own;         /* those made on the thread below */
    pthread_t thread;
    int drives, rounds;
    dp_status_t finalized;
} rank_t;

typedef struct world {
    dp_config_t config;
    dp_topology_t topology;
    dp_log_t log;
    int size;
    rank_t rank[RANKS];
} world_t;

static const dp_signature_part_t part = {1, DP_F32};
static const dp_signature_t signature = {.collective = DP_COLLECTIVE_ALLREDUCE,
                                         .reduce = DP_SUM,
                                         .wire = DP_WIRE_NONE,
                                         .root = -1,
                                         .prescale = 1.0,
                                         .postscale = 1.0,
                                         .part_count = 1,
                                         .parts = &part};

/* Frames of the negotiation that this test's own thread has sent; a heartbeat that is due in its
 * round goes out beside them, and is none. */
enum { KIND_NEGOTIATOR = 1 }; /* the first byte of a frame, as in coordinator/loop/round.c */
static pthread_t own_thread;
static atomic_int own_sent;
static dp_transport_ops_t counting; /* the loopback's, but for this */
static dp_status_t (*send_uncounted)(dp_transport_t *self, int rank, const void *data,
                                     size_t bytes);

static dp_status_t send_counted(dp_transport_t *self, int rank, const void *data, size_t bytes)
{
    if (pthread_equal(pthread_self(), own_thread) && *(const uint8_t *)data == KIND_NEGOTIATOR)
        atomic_fetch_add(&own_sent, 1);
    return send_uncounted(self, rank, data, bytes);
}

static void count_sends(dp_transport_t *transport)
{
    own_thread = pthread_self();
    if (transport->ops == &counting) return;
    counting = *transport->ops;
    send_uncounted = counting.send;
    counting.send = send_counted;
    transport->ops = &counting;
}

static void on_launch(void *user, const dp_output_t *launch)
{
    rank_t *rank = user;

    if (pthread_equal(pthread_self(), rank->thread)) atomic_fetch_add(&rank->own, 1);
    dp_loop_launch_done(rank->loop, launch->sequence);
    atomic_fetch_add(&rank->state, (uint32_t)launch->entry_count);
}

static void on_fail(void *user, void *request, dp_status_t status, const char *text)
{
    (void)user;
    (void)request;
    fail_msg("%s: %s", dp_status_string(status), text);
}

static void on_fatal(void *user, dp_status_t status, int culprit, const char *text)
{
    (void)user;
    (void)culprit;
    fail_msg("%s: %s", dp_status_string(status), text);
}

static world_t *world_start(int size, int may_back_off)
{
    const char *hosts[RANKS] = {"here", "here"};
    uint8_t address[RANKS][DP_ADDRESS_MAX];
    size_t bytes[RANKS];
    world_t *world = calloc(1, sizeof(*world));
    dp_error_t error = {0};

    assert_non_null(world);
    dp_config_defaults(&world->config);
    world->config.spin_ns = 0;
    world->size = size;
    dp_log_init(&world->log, DP_LOG_WARN, -1);
    assert_int_equal(dp_topology_init(&world->topology, hosts, size), DP_OK);
    for (int i = 0; i < size; i++) {
        dp_transport_t **made = &world->rank[i].transport;

        assert_int_equal(threads_transport(i, 1, &world->log, made, NULL), DP_OK);
        if (i == 1) count_sends(*made);
        assert_int_equal((*made)->ops->address(*made, address[i], DP_ADDRESS_MAX, &bytes[i]),
                         DP_OK);
    }
    for (int i = 0; i < size; i++) {
        rank_t *rank = &world->rank[i];
        const int other = 1 - i;
        const void *others[1] = {address[other]};
        const dp_loop_options_t options = {.config = &world->config,
                                           .topology = &world->topology,
                                           .rank = i,
                                           .size = size,
                                           .transport = rank->transport,
                                           .log = &world->log,
                                           .may_back_off = may_back_off,
                                           .callbacks = {rank, on_launch, NULL, on_fail, on_fatal}};

        if (size > 1) {
            assert_int_equal(rank->transport->ops->connect(rank->transport, &other, others,
                                                           &bytes[other], 1, NULL),
                             DP_OK);
        }
        if (dp_loop_start(&options, &rank->loop, &error) != DP_OK) fail_msg("%s", error.text);
        rank->node.submission = (dp_submission_t){
            .name = "loss", .signature = &signature, .last_absmax = -1.0f, .request = rank};
    }
    return world;
}

static void *finalize(void *argument)
{
    rank_t *rank = argument;

    rank->finalized = dp_loop_finalize(rank->loop);
    return NULL;
}

static void world_end(world_t *world)
{
    pthread_t threads[RANKS];

    for (int i = 0; i < world->size; i++)
        pthread_create(&threads[i], NULL, finalize, &world->rank[i]);
    for (int i = 0; i < world->size; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(world->rank[i].finalized, DP_OK);
    }
    for (int i = 0; i < world->size; i++) {
        dp_loop_stop(world->rank[i].loop);
        dp_transport_destroy(world->rank[i].transport);
    }
    dp_topology_fini(&world->topology);
    free(world);
}

static void await(const rank_t *rank, uint32_t launches)
{
    const uint64_t give_up_ns = dp_now_ns() + PATIENCE_NS;

    while (atomic_load(&rank->state) < launches) {
        assert_true(dp_now_ns() < give_up_ns);
        usleep(50);
    }
}

/* Submits and waits as dp_wait() does: drives for a while, then sleeps for it. */
static void *train(void *argument)
{
    rank_t *rank = argument;
    dp_loop_node_t *node = &rank->node;

    rank->thread = pthread_self();
    for (int i = 0; i < rank->rounds; i++) {
        const uint32_t before = atomic_load(&rank->state);

        dp_loop_submit(rank->loop, node, i > 0 && rank->drives);
        if (rank->drives)
            dp_loop_progress_until(rank->loop, &rank->state, before + 1, WINDOW_NS, UINT64_MAX);
        if (atomic_load(&rank->state) > before) continue;
        dp_loop_count_sleeping_waiter(rank->loop, 1);
        await(rank, before + 1);
        dp_loop_count_sleeping_waiter(rank->loop, -1);
    }
    return NULL;
}

static void train_all(world_t *world, int first_drives, int second_drives)
{
    pthread_t threads[RANKS];

    for (int i = 0; i < world->size; i++) {
        world->rank[i].drives = i == 0 ? first_drives : second_drives;
        world->rank[i].rounds = ROUNDS;
        pthread_create(&threads[i], NULL, train, &world->rank[i]);
    }
    for (int i = 0; i < world->size; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < world->size; i++)
        assert_int_equal(atomic_load(&world->rank[i].state), ROUNDS);
}

static void waiting_thread_makes_its_launches(void **state)
{
    (void)state;
    for (int may_back_off = 0; may_back_off < 2; may_back_off++) {
        world_t *world = world_start(1, may_back_off);

        train_all(world, 1, 0);
        assert_true(atomic_load(&world->rank[0].own) > 0);
        world_end(world);
    }
}

static void two_ranks_drive_one_or_both(void **state)
{
    (void)state;
    for (int may_back_off = 0; may_back_off < 2; may_back_off++) {
        for (int drivers = 1; drivers < 4; drivers++) {
            world_t *world = world_start(2, may_back_off);

            train_all(world, drivers & 1, drivers >> 1);
            for (int i = 0; i < 2; i++) {
                if (!world->rank[i].drives) assert_int_equal(atomic_load(&world->rank[i].own), 0);
            }
            world_end(world);
        }
    }
}

/* The coordinator was told that a thread would make rounds, and none does: it looks itself. */
static void promise_to_drive_that_is_broken_costs_only_time(void **state)
{
    (void)state;
    for (int may_back_off = 0; may_back_off < 2; may_back_off++) {
        world_t *world = world_start(2, may_back_off);
        rank_t *rank = world->rank;

        train_all(world, 1, 1);
        for (uint32_t i = 0; i < 50; i++) {
            for (int r = 0; r < 2; r++) {
                dp_loop_node_t *node = &rank[r].node;

                dp_loop_submit(rank[r].loop, node, 1);
            }
            for (int r = 0; r < 2; r++)
                await(&rank[r], ROUNDS + i + 1);
        }
        world_end(world);
    }
}

/* The coordinator thread of a rank with a parent sleeps in its event loop: the submitting thread
 * tells the parent by itself, where it used to wake that thread for it. */
static void submission_after_idling_is_told_by_its_own_thread(void **state)
{
    enum { TIMES = 20 };
    world_t *world = world_start(2, 1);
    rank_t *rank = world->rank;
    int told;

    (void)state;
    atomic_store(&own_sent, 0);
    for (uint32_t i = 0; i < TIMES; i++) {
        dp_loop_node_t *node = &rank[1].node, *other = &rank[0].node;

        usleep(10000);
        dp_loop_submit(rank[1].loop, node, 1);
        dp_loop_submit(rank[0].loop, other, 0);
        await(&rank[0], i + 1);
        await(&rank[1], i + 1);
    }
    told = atomic_load(&own_sent);
    assert_in_range(told, TIMES / 2, TIMES); /* at other times a heartbeat had woken it */
    world_end(world);
}

/* Nobody is woken for a queued one: it is launched with the next submission, by a thread that waits
 * for it, or once a thread looks. */
static void queued_submission_goes_with_the_next_or_a_wait(void **state)
{
    enum { TIMES = 20 };
    world_t *world = world_start(1, 1);
    rank_t *rank = world->rank;
    dp_loop_node_t next = rank->node;
    uint32_t launches = 0;
    int alone = 0;

    (void)state;
    next.submission.name = "norm";
    for (int i = 0; i < TIMES; i++) {
        usleep(5000);
        dp_loop_queue(rank->loop, &rank->node);
        usleep(2000);
        alone += atomic_load(&rank->state) > launches;
        if (i % 3 == 0) {
            dp_loop_submit(rank->loop, &next, 0);
            launches += 2;
        } else if (i % 3 == 1) {
            dp_loop_look(rank->loop);
            launches++;
        } else {
            launches++;
            dp_loop_progress_until(rank->loop, &rank->state, launches, WINDOW_NS, UINT64_MAX);
        }
        await(rank, launches);
    }
    assert_in_range(alone, 0, TIMES / 2); /* where something else had woken the coordinator */
    world_end(world);
}

/* There is no answer to wait for: the time is over, and the world goes on without this thread. */
static void driving_ends_in_time(void **state)
{
    world_t *world = world_start(2, 1);
    rank_t *rank = world->rank;
    dp_loop_node_t *node = &rank[1].node;
    const uint64_t begin_ns = dp_now_ns();

    (void)state;
    dp_loop_submit(rank[1].loop, node, 1);
    dp_loop_progress_until(rank[1].loop, &rank[1].state, 1, WINDOW_NS, begin_ns + WINDOW_NS);
    assert_true(dp_now_ns() >= begin_ns + WINDOW_NS);
    assert_int_equal(atomic_load(&rank[1].state), 0);
    node = &rank[0].node;
    dp_loop_submit(rank[0].loop, node, 0);
    await(&rank[0], 1);
    await(&rank[1], 1);
    world_end(world);
}

/* A thread that is at work for longer than the first back-offs is left alone: each look of the
 * coordinator thread costs the core that they share. */
static void backoffs_grow_while_others_are_at_work(void **state)
{
    world_t *world = world_start(1, 1);
    rank_t *rank = world->rank;
    dp_loop_node_t *node = &rank->node;
    const uint64_t begin_ns = dp_now_ns();
    dp_loop_stats_t stats;
    uint32_t rounds = 0;

    (void)state;
    dp_loop_count_awake_waiter(rank->loop, 1);
    while (dp_now_ns() - begin_ns < WORK_NS) {
        const uint64_t busy_ns = dp_now_ns() + OPERATION_NS;

        dp_loop_submit(rank->loop, node, rounds > 0);
        dp_loop_progress_until(rank->loop, &rank->state, ++rounds, WINDOW_NS, UINT64_MAX);
        await(rank, rounds);
        while (dp_now_ns() < busy_ns) {
        }
    }
    dp_loop_count_awake_waiter(rank->loop, -1);
    dp_loop_stats(rank->loop, &stats);
    /* back-offs of 200 us would be five times as many */
    assert_true(stats.backoffs <= (dp_now_ns() - begin_ns) / 1000000u + 20);
    world_end(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_thread_makes_its_launches),
        cmocka_unit_test(two_ranks_drive_one_or_both),
        cmocka_unit_test(promise_to_drive_that_is_broken_costs_only_time),
        cmocka_unit_test(submission_after_idling_is_told_by_its_own_thread),
        cmocka_unit_test(queued_submission_goes_with_the_next_or_a_wait),
        cmocka_unit_test(driving_ends_in_time),
        cmocka_unit_test(backoffs_grow_while_others_are_at_work),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
