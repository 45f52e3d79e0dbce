/*
 * test_loop_ucx.c - coordinators of several processes, over UCX and on one node through shared
 * memory: how long agreement takes, what idling costs, and how survivors learn that one was killed,
 * stopped or gave up.
 */
#include "coordinator/loop/loop.h"
#include "coordinator/loop/post.h"
#include "coordinator/loop/progress.h"

#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cases.h"

#define MS 1000000ull
#define ROUNDS 500
#define IDLE_US 300
#define SIZE_MAX_HERE 8

/* Where the processes of a world find each other; shared memory. */
typedef struct meeting {
    int size;
    atomic_size_t bytes[SIZE_MAX_HERE]; /* 0: not there yet */
    uint8_t address[SIZE_MAX_HERE][DP_ADDRESS_MAX];
} meeting_t;

typedef struct rank {
    dp_config_t config;
    dp_topology_t topology;
    dp_log_t log;
    int is_near; /* all are on one node */
    dp_transport_t *transport;
    dp_loop_t *loop;
    sem_t launched;
    uint64_t launched_ns; /* before launched is posted */
    sem_t died;
    atomic_int is_dead;
    uint64_t died_ns;
    int culprit;
    char text[512];
} rank_t;

static const dp_signature_t barrier = {
    .collective = DP_COLLECTIVE_BARRIER, .root = -1, .prescale = 1.0, .postscale = 1.0};

static void on_launch(void *user, const dp_output_t *launch)
{
    rank_t *rank = user;

    rank->launched_ns = dp_now_ns();
    dp_loop_launch_done(rank->loop, launch->sequence);
    sem_post(&rank->launched);
}

static void on_fail(void *user, void *request, dp_status_t status, const char *text)
{
    (void)user;
    (void)request;
    (void)status;
    (void)text;
}

static void on_fatal(void *user, dp_status_t status, int culprit, const char *text)
{
    rank_t *rank = user;

    (void)status;
    rank->died_ns = dp_now_ns();
    rank->culprit = culprit;
    snprintf(rank->text, sizeof(rank->text), "%s", text);
    atomic_store(&rank->is_dead, 1);
    sem_post(&rank->died);
    sem_post(&rank->launched); /* nobody waits for ever */
}

static void configure(rank_t *rank, void **state)
{
    memset(rank, 0, sizeof(*rank));
    rank->is_near = *(int *)*state;
    dp_config_defaults(&rank->config);
    rank->config.spin_ns = 0;
}

/* Joins the world as `me`, once all have come. */
static dp_status_t start(rank_t *rank, int me, meeting_t *meeting)
{
    static const char *const hosts[SIZE_MAX_HERE] = {"host0", "host1", "host2", "host3",
                                                     "host4", "host5", "host6", "host7"};
    static const char *const here[SIZE_MAX_HERE] = {"here", "here", "here", "here",
                                                    "here", "here", "here", "here"};
    int ranks[2 * SIZE_MAX_HERE + 1];
    const void *others[2 * SIZE_MAX_HERE + 1];
    size_t lengths[2 * SIZE_MAX_HERE + 1];
    size_t bytes;
    int count;
    dp_error_t error = {0};
    dp_status_t status;
    dp_loop_options_t options = {.config = &rank->config,
                                 .topology = &rank->topology,
                                 .rank = me,
                                 .size = meeting->size,
                                 .log = &rank->log,
                                 .callbacks = {rank, on_launch, NULL, on_fail, on_fatal}};

    dp_log_init(&rank->log, DP_LOG_WARN, me);
    sem_init(&rank->launched, 0, 0);
    sem_init(&rank->died, 0, 0);
    status = dp_topology_init(&rank->topology, rank->is_near ? here : hosts, meeting->size);
    if (status != DP_OK) return status;
    status = dp_loop_neighbours(&rank->topology, rank->config.tree_arity, me, ranks, &count);
    if (status != DP_OK) return status;
    status = rank->is_near ? dp_transport_shm_create(me, 7, ranks, count, NULL, &rank->log,
                                                     &rank->transport, &error)
                           : dp_transport_ucx_create(me, 7, &rank->config, &rank->log,
                                                     &rank->transport, &error);
    if (status != DP_OK) return status;
    options.transport = rank->transport;
    status = rank->transport->ops->address(rank->transport, meeting->address[me], DP_ADDRESS_MAX,
                                           &bytes);
    if (status != DP_OK) return status;
    atomic_store(&meeting->bytes[me], bytes);
    for (int i = 0; i < meeting->size; i++) {
        while (atomic_load(&meeting->bytes[i]) == 0)
            usleep(100);
    }
    for (int i = 0; i < count; i++) {
        others[i] = meeting->address[ranks[i]];
        lengths[i] = atomic_load(&meeting->bytes[ranks[i]]);
    }
    status = rank->transport->ops->connect(rank->transport, ranks, others, lengths, count, &error);
    if (status == DP_OK) status = dp_loop_start(&options, &rank->loop, &error);
    return status;
}

static void stop(rank_t *rank)
{
    dp_loop_stop(rank->loop);
    dp_transport_destroy(rank->transport);
    dp_topology_fini(&rank->topology);
    sem_destroy(&rank->launched);
    sem_destroy(&rank->died);
}

/* Submits, waits for the launch, idles. took[i]: from submission to the launch callback. */
static int agree(rank_t *rank, uint64_t *took, int rounds, int idle_us)
{
    dp_loop_node_t node = {
        .submission = {
            .name = "probe", .signature = &barrier, .last_absmax = -1.0f, .request = rank}};
    dp_loop_node_t *nodes[] = {&node};

    for (int i = 0; i < rounds; i++) {
        struct timespec limit;
        uint64_t start_ns;

        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += 20;
        start_ns = dp_now_ns();
        dp_loop_submit(rank->loop, nodes[0], 0);
        if (sem_timedwait(&rank->launched, &limit) != 0) return 0;
        if (atomic_load(&rank->is_dead)) return 0;
        if (took != NULL) took[i] = rank->launched_ns - start_ns;
        if (idle_us > 0) usleep((unsigned)idle_us);
    }
    return 1;
}

/* The other process's part after it has joined; returns its exit code. */
typedef int (*part_t)(rank_t *rank);

/* Starts ranks 1 .. size-1 as processes, which then do their part, and rank 0 here. */
static void start_world(rank_t *rank, int size, part_t part, pid_t *children)
{
    meeting_t *meeting =
        mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(meeting, MAP_FAILED);
    meeting->size = size;
    for (int i = 1; i < size; i++) {
        children[i] = fork(); /* before any UCX of this world: a child must not inherit it */
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            rank_t other = *rank;

            _exit(start(&other, i, meeting) == DP_OK ? part(&other) : 9);
        }
    }
    assert_int_equal(start(rank, 0, meeting), DP_OK);
    munmap(meeting, sizeof(*meeting));
}

static pid_t start_pair(rank_t *rank, part_t part)
{
    pid_t children[2];

    start_world(rank, 2, part, children);
    return children[1];
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void print_times(const char *what, uint64_t *took, int rounds)
{
    const int middle = rounds / 2;
    const int late = rounds * 95 / 100;

    qsort(took, (size_t)rounds, sizeof(took[0]), compare_u64);
    print_message("%s: median %.1f us, p95 %.1f us\n", what, (double)took[middle] / 1e3,
                  (double)took[late] / 1e3);
}

static int agree_and_finalize(rank_t *rank)
{
    uint64_t took[ROUNDS];

    if (!agree(rank, NULL, 100, 0) || !agree(rank, took, ROUNDS, IDLE_US)) return 1;
    print_times("submit to launch after 300 us idle, rank 1", took, ROUNDS);
    if (!agree(rank, took, 20, 100000)) return 1;
    print_times("submit to launch after 100 ms idle, rank 1", took, 20);
    if (dp_loop_finalize(rank->loop) != DP_OK) return 2;
    stop(rank);
    return 0;
}

static void two_processes_agree_and_end_in_order(void **state)
{
    uint64_t took[ROUNDS];
    rank_t rank;
    pid_t child;
    int status;

    configure(&rank, state);
    child = start_pair(&rank, agree_and_finalize);
    assert_true(agree(&rank, NULL, 100, 0));
    assert_true(agree(&rank, took, ROUNDS, IDLE_US));
    print_times("submit to launch after 300 us idle, rank 0", took, ROUNDS);
    assert_true(agree(&rank, took, 20, 100000));
    print_times("submit to launch after 100 ms idle, rank 0", took, 20);
    assert_int_equal(dp_loop_finalize(rank.loop), DP_OK);
    stop(&rank);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int idle_and_finalize(rank_t *rank)
{
    dp_loop_stats_t before, after;

    dp_loop_stats(rank->loop, &before);
    sleep(2);
    dp_loop_stats(rank->loop, &after);
    print_message("idle for 2 s: coordinator used %.3f %% of a core, woke %llu times\n",
                  (double)(after.cpu_ns - before.cpu_ns) / 2e9 * 100,
                  (unsigned long long)(after.wakeups - before.wakeups));
    if (after.cpu_ns - before.cpu_ns > 200 * MS) return 3; /* 10 %: it does not sleep */
    if (dp_loop_finalize(rank->loop) != DP_OK) return 2;
    stop(rank);
    return 0;
}

static void idle_coordinators_sleep(void **state)
{
    rank_t rank;
    pid_t child;
    int status;

    configure(&rank, state);
    child = start_pair(&rank, idle_and_finalize);
    assert_int_equal(idle_and_finalize(&rank), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int agree_for_ever(rank_t *rank)
{
    return agree(rank, NULL, 1 << 30, 0) ? 0 : 1;
}

static void killed_rank_is_the_culprit(void **state)
{
    rank_t rank;
    pid_t child;
    uint64_t start_ns;
    int status;

    configure(&rank, state);
    child = start_pair(&rank, agree_for_ever);
    assert_true(agree(&rank, NULL, 20, 0));
    start_ns = dp_now_ns();
    kill(child, SIGKILL);
    assert_int_equal(sem_wait(&rank.died), 0);
    print_message("SIGKILL ended the world after %.2f ms: %s\n",
                  (double)(rank.died_ns - start_ns) / 1e6, rank.text);
    assert_int_equal(rank.culprit, 1);
    assert_non_null(strstr(rank.text, "rank 1"));
    assert_int_equal(dp_loop_finalize(rank.loop), DP_ERR_PEER_LOST);
    stop(&rank);
    assert_int_equal(waitpid(child, &status, 0), child);
}

static void stopped_rank_is_the_culprit(void **state)
{
    rank_t rank;
    pid_t child;
    uint64_t start_ns;
    int status;

    configure(&rank, state);
    rank.config.heartbeat_ns = 20 * MS;
    rank.config.peer_timeout_ns = 2000 * MS; /* a live rank must not be silent for so long */
    child = start_pair(&rank, agree_for_ever);
    assert_true(agree(&rank, NULL, 20, 0));
    start_ns = dp_now_ns();
    kill(child, SIGSTOP);
    assert_int_equal(sem_wait(&rank.died), 0);
    print_message("SIGSTOP ended the world after %.0f ms: %s\n",
                  (double)(rank.died_ns - start_ns) / 1e6, rank.text);
    assert_int_equal(rank.culprit, 1);
    assert_non_null(strstr(rank.text, "no sign of life"));
    assert_int_equal(dp_loop_finalize(rank.loop), DP_ERR_PEER_LOST); /* its close is bounded */
    stop(&rank);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
}

static void expect_exit(pid_t child, int code)
{
    int status;

    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), code);
}

static int agree_briefly(rank_t *rank)
{
    if (!agree(rank, NULL, 50, 0)) return 1;
    if (dp_loop_finalize(rank->loop) != DP_OK) return 2;
    stop(rank);
    return 0;
}

static void many_processes_end_in_order(void **state)
{
    for (int size = 3; size <= SIZE_MAX_HERE; size += 5) {
        pid_t children[SIZE_MAX_HERE];
        rank_t rank;
        uint64_t start_ns;

        configure(&rank, state);
        rank.config.tree_arity = 2;
        start_world(&rank, size, agree_briefly, children);
        assert_true(agree(&rank, NULL, 50, 0));
        start_ns = dp_now_ns();
        assert_int_equal(dp_loop_finalize(rank.loop), DP_OK);
        print_message("%d processes finalized in %.1f ms\n", size,
                      (double)(dp_now_ns() - start_ns) / 1e6);
        stop(&rank);
        for (int i = 1; i < size; i++)
            expect_exit(children[i], 0);
    }
}

/* Rank 3 gives up; all others must hear why. */
static int hear_of_abort(rank_t *rank)
{
    (void)agree(rank, NULL, 5, 0); /* the end may be faster than the last launch */
    if (rank->log.rank == 3) dp_loop_abort(rank->loop, DP_ERR_ABORTED, "the loss is not a number");
    if (sem_wait(&rank->died) != 0) return 2;
    if (rank->culprit != 3 || strstr(rank->text, "the loss is not a number") == NULL) return 3;
    if (dp_loop_finalize(rank->loop) != DP_ERR_ABORTED) return 4;
    stop(rank);
    return 0;
}

static void abort_reaches_every_process(void **state)
{
    pid_t children[5];
    rank_t rank;

    configure(&rank, state);
    rank.config.tree_arity = 2;
    start_world(&rank, 5, hear_of_abort, children);
    assert_int_equal(hear_of_abort(&rank), 0);
    for (int i = 1; i < 5; i++)
        expect_exit(children[i], 0);
}

/* Rank 4 is killed; the others must name it, whoever its neighbours are. */
static int hear_of_death(rank_t *rank)
{
    (void)agree(rank, NULL, 5, 0); /* the end may be faster than the last launch */
    if (rank->log.rank == 4) raise(SIGKILL);
    if (sem_wait(&rank->died) != 0) return 2;
    if (rank->culprit != 4 || strstr(rank->text, "rank 4") == NULL) return 3;
    if (dp_loop_finalize(rank->loop) != DP_ERR_PEER_LOST) return 4;
    stop(rank);
    return 0;
}

static void death_is_told_to_every_process(void **state)
{
    pid_t children[6];
    rank_t rank;
    int status;

    configure(&rank, state);
    rank.config.tree_arity = 2;
    start_world(&rank, 6, hear_of_death, children);
    assert_int_equal(hear_of_death(&rank), 0);
    for (int i = 1; i < 6; i++) {
        if (i != 4) expect_exit(children[i], 0);
    }
    assert_int_equal(waitpid(children[4], &status, 0), children[4]);
}

static int is_ucx = 0, is_near = 1;

#define OVER(name, kind)                                                                           \
    {                                                                                              \
#name " over " #kind, name, NULL, NULL, &is_##kind                                         \
    }
#define BOTH(name) OVER(name, ucx), OVER(name, near)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(two_processes_agree_and_end_in_order), BOTH(idle_coordinators_sleep),
        BOTH(killed_rank_is_the_culprit),           BOTH(stopped_rank_is_the_culprit),
        BOTH(many_processes_end_in_order),          BOTH(abort_reaches_every_process),
        BOTH(death_is_told_to_every_process),
    };

#if defined(__SANITIZE_THREAD__)
    return 77; /* UCX is not instrumented */
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
