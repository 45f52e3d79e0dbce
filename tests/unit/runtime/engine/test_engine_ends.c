/*
 * test_engine_ends.c - the process outlives whatever happens to its connections: aborts and deaths
 * in mid-transfer, again and again, and peers that are gone when they are connected to.
 *
 *     test_engine_ends [turns=20]
 *
 * UCX 1.13 ends the process in a few of a hundred such cases if it is let: see inter_node/link.c.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cases.h"
#include "tests/unit/engine_world.h"
#include "runtime/base/thread.h"
#include "runtime/engine/cpu/inter_node/link.h"

static int turns = 20;

typedef struct end_case {
    int after_us;
    dp_collective_t collective; /* alltoallv, or send */
    int dies;                   /* the last rank, instead of an abort */
} end_case_t;

typedef struct ender {
    engine_rank_t *rank;
    const end_case_t *about;
} ender_t;

static void *end_soon(void *argument)
{
    const ender_t *ender = argument;
    dp_engine_t *engine = ender->rank->engine;

    usleep((useconds_t)ender->about->after_us);
    if (!ender->about->dies) {
        engine->ops->abort(engine, DP_ERR_PEER_LOST, "the test says so");
    } else if (ender->rank->rank == ender->rank->size - 1) {
        kill(getpid(), SIGKILL);
    }
    return NULL;
}

/* Blocks in all directions until it ends: always many messages under way, in each state. */
static void exchange_until_the_end(engine_rank_t *rank, void *user)
{
    const size_t block = (size_t)2 * DP_MIB;
    const size_t send_counts[] = {block, block, block};
    const end_case_t *about = user;
    ender_t ender = {rank, about};
    pthread_t thread;
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_BARRIER};

    engine_run(rank, &op, DP_WORK_SMALL);
    engine_check(rank, op.status == DP_OK, "before: %s", op.text);
    if (pthread_create(&thread, NULL, end_soon, &ender) != 0) abort();
    while (op.status == DP_OK) {
        char *in = calloc((size_t)rank->size, block);
        char *out = calloc((size_t)rank->size, block);
        dp_engine_exchange_t exchange = {.in = in,
                                         .send_counts = send_counts,
                                         .out = out,
                                         .capacity = (size_t)rank->size * block};
        if (in == NULL || out == NULL) abort();
        op = (dp_engine_op_t){.collective = about->collective,
                              .dtype = DP_U8,
                              .root = 0,
                              .peer = 1,
                              .exchange = &exchange};
        engine_run(rank, &op, DP_WORK_LARGE);
        free(in); /* what still comes must not go here */
        free(out);
    }
    engine_check(rank, op.status == DP_ERR_PEER_LOST, "status is %s", dp_status_string(op.status));
    pthread_join(thread, NULL);
}

static void engine_aborts_in_mid_transfer_end_nothing_else(void **state)
{
    (void)state;
    for (int turn = 0; turn < turns; turn++) {
        engine_world_t world = ENGINE_WORLD(2, 2);
        end_case_t about = {.after_us = turn * 719 % 6000,
                            .collective =
                                turn % 3 == 0 ? DP_COLLECTIVE_ALLTOALLV : DP_COLLECTIVE_SEND};

        assert_int_equal(engine_world_threads(&world, exchange_until_the_end, &about), 0);
    }
}

/* The one that is killed counts as one failure, and nobody else does. */
static void engine_deaths_in_mid_transfer_end_nobody_else(void **state)
{
    (void)state;
    for (int turn = 0; turn < turns; turn++) {
        engine_world_t world = ENGINE_WORLD(2, 2);
        end_case_t about = {.after_us = turn * 719 % 6000,
                            .collective =
                                turn % 3 == 0 ? DP_COLLECTIVE_ALLTOALLV : DP_COLLECTIVE_SEND,
                            .dies = 1};

        assert_int_equal(engine_world_processes(&world, exchange_until_the_end, &about), 1);
    }
}

/* ---- A rank that leaves for a cause that this one has not heard ----------------------------- */

#define CAUSE "rank 2 (b): no sign of life for 2.5 s, says the test"

/* In the first operation all find each other. In the second, rank 1 has left. */
typedef struct leave_case {
    unsigned told_after_ms; /* the abort that names the cause; 0: never */
} leave_case_t;

typedef struct messenger {
    engine_rank_t *rank;
    unsigned after_ms;
} messenger_t;

static void *tell_cause(void *argument)
{
    const messenger_t *messenger = argument;
    dp_engine_t *engine = messenger->rank->engine;

    usleep(messenger->after_ms * 1000);
    engine->ops->abort(engine, DP_ERR_PEER_LOST, CAUSE);
    return NULL;
}

static void reduce_large(engine_rank_t *rank, void *data, size_t bytes, dp_engine_op_t *op)
{
    dp_engine_piece_t piece = {
        .in = data, .out = data, .count = bytes / sizeof(float), .prescale = 1.0, .postscale = 1.0};

    *op = (dp_engine_op_t){
        .collective = DP_COLLECTIVE_ALLREDUCE, .dtype = DP_F32, .pieces = &piece, .piece_count = 1};
    engine_run(rank, op, DP_WORK_LARGE);
}

static void *leave_soon(void *argument)
{
    (void)argument;
    usleep(20000);
    _exit(0);
}

/* Rank 1 ends in the middle of the operation: its own thread waits there for rank 0. */
static void leave_in_mid_operation(engine_rank_t *rank, void *user)
{
    const leave_case_t *about = user;
    const size_t bytes = (size_t)32 * DP_MIB;
    void *data = engine_memory(rank, bytes);
    messenger_t messenger = {rank, about->told_after_ms};
    dp_engine_op_t op = {.status = DP_OK};
    pthread_t thread;
    uint64_t begin_ns;

    if (data == NULL) abort();
    reduce_large(rank, data, bytes, &op);
    engine_check(rank, op.status == DP_OK, "before: %s", op.text);
    if (rank->rank == 1) {
        if (pthread_create(&thread, NULL, leave_soon, NULL) != 0) abort();
        for (;;)
            reduce_large(rank, data, bytes, &op);
    }
    begin_ns = dp_now_ns();
    if (about->told_after_ms > 0 && pthread_create(&thread, NULL, tell_cause, &messenger) != 0)
        abort();
    do {
        reduce_large(rank, data, bytes, &op);
    } while (op.status == DP_OK);
    engine_check(rank, op.status == DP_ERR_PEER_LOST, "status is %s", dp_status_string(op.status));
    if (about->told_after_ms > 0) {
        pthread_join(thread, NULL);
        engine_check(rank, strcmp(op.text, CAUSE) == 0, "text is '%s'", op.text);
        engine_check(rank, dp_now_ns() - begin_ns >= about->told_after_ms * UINT64_C(1000000),
                     "it ended before the cause came");
    } else {
        engine_check(rank, strstr(op.text, "rank 0 lost the connection to rank 1") != NULL,
                     "text is '%s'", op.text);
    }
}

/* These are about the cause, not about UCX's end of a send that was not copied, which may end the
 * process (link.c). */
static void copy_all_sends(void)
{
    assert_int_equal(setenv("UCX_ZCOPY_THRESH", "inf", 1), 0);
}

/* Later than any second, and well before twice the silence that a coordinator allows. */
static void engine_a_rank_that_left_is_not_the_cause(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 2);
    leave_case_t about = {.told_after_ms = 1800};

    (void)state;
    copy_all_sends();
    world.peer_timeout_ns = UINT64_C(20000000000);
    assert_int_equal(engine_world_processes(&world, leave_in_mid_operation, &about), 0);
    assert_int_equal(unsetenv("UCX_ZCOPY_THRESH"), 0);
}

static void engine_a_broken_connection_is_told_if_nobody_names_another_cause(void **state)
{
    engine_world_t world = ENGINE_WORLD(2, 2);
    leave_case_t about = {.told_after_ms = 0};

    (void)state;
    copy_all_sends();
    assert_int_equal(engine_world_processes(&world, leave_in_mid_operation, &about), 0);
    assert_int_equal(unsetenv("UCX_ZCOPY_THRESH"), 0);
}

/* ---- Connecting to who is gone -------------------------------------------------------------- */

/* The shared state of two processes. */
typedef struct meeting {
    _Atomic int stage;
    size_t bytes[2];
    char addresses[2][512];
} meeting_t;

static void come_to(meeting_t *meeting, int stage)
{
    const uint64_t deadline_ns = dp_now_ns() + UINT64_C(60000000000);

    while (atomic_load(&meeting->stage) < stage) {
        if (dp_now_ns() >= deadline_ns) {
            fprintf(stderr, "the other one never came to stage %d\n", stage);
            _exit(5);
        }
        usleep(200);
    }
}

static dp_ucx_link_t *make_link(meeting_t *meeting, int rank)
{
    dp_config_t config;
    dp_log_t log;
    dp_ucx_link_t *link;
    dp_error_t error = {DP_OK, ""};
    const void *address;

    dp_config_defaults(&config);
    dp_log_init(&log, DP_LOG_WARN, rank);
    if (dp_ucx_link_create(&config, rank, 2, &log, &link, &error) != DP_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, error.text);
        _exit(2);
    }
    address = dp_ucx_link_address(link, &meeting->bytes[rank]);
    if (meeting->bytes[rank] > sizeof(meeting->addresses[rank])) _exit(3);
    memcpy(meeting->addresses[rank], address, meeting->bytes[rank]);
    return link;
}

static void progress_for(dp_ucx_link_t *link, unsigned ms)
{
    const uint64_t until_ns = dp_now_ns() + ms * UINT64_C(1000000);

    while (dp_now_ns() < until_ns)
        dp_ucx_link_progress(link);
}

/* Connects to the other one, and then never looks at the answer. */
static void call_and_fall_silent(meeting_t *meeting)
{
    dp_ucx_link_t *link = make_link(meeting, 1);
    dp_error_t error = {DP_OK, ""};
    int peer;

    atomic_store(&meeting->stage, 1);
    come_to(meeting, 2);
    if (dp_ucx_link_connect(link, 0, meeting->addresses[0], &peer, &error) != DP_OK) _exit(4);
    progress_for(link, 2);
    atomic_store(&meeting->stage, 3);
    for (;;)
        pause();
}

/* Accepts that connection, and connects back when the caller is gone. */
static void call_back_too_late(meeting_t *meeting, pid_t caller)
{
    const dp_ucx_link_tag_t tag = {.from_rank = 0};
    const uint64_t deadline_ns = dp_now_ns() + UINT64_C(20000000000);
    dp_ucx_link_message_t message = {0};
    dp_error_t error = {DP_OK, ""};
    dp_ucx_link_t *link;
    int peer;

    come_to(meeting, 1);
    link = make_link(meeting, 0);
    atomic_store(&meeting->stage, 2);
    come_to(meeting, 3);
    progress_for(link, 20);
    kill(caller, SIGKILL);
    waitpid(caller, NULL, 0);
    if (dp_ucx_link_connect(link, 1, meeting->addresses[1], &peer, &error) == DP_OK) {
        dp_ucx_link_send(link, peer, dp_ucx_link_tag(&tag), "x", 1, &message);
        while (!dp_ucx_link_is_lost(link, peer, NULL) && dp_now_ns() < deadline_ns)
            dp_ucx_link_progress(link);
        if (!dp_ucx_link_is_lost(link, peer, NULL)) {
            fprintf(stderr, "nobody said that the other one is gone\n");
            _exit(7);
        }
    }
    dp_ucx_link_destroy(link, 0);
}

/* Both in processes of their own: what UCX keeps of a broken link has threads, and who forks beside
 * a thread that holds a lock, as the allocator's, leaves it locked for ever in the child. */
static void meet_and_part(meeting_t *meeting)
{
    const pid_t caller = fork();

    if (caller < 0) _exit(6);
    if (caller == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        call_and_fall_silent(meeting);
    }
    call_back_too_late(meeting, caller);
    _exit(0);
}

static void engine_connects_to_who_is_gone_and_learns_it(void **state)
{
    (void)state;
    for (int turn = 0; turn < 5; turn++) {
        meeting_t *meeting =
            mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        int status = -1;
        pid_t pair;

        assert_ptr_not_equal(meeting, MAP_FAILED);
        fflush(NULL);
        pair = fork();
        assert_true(pair >= 0);
        if (pair == 0) meet_and_part(meeting);
        assert_int_equal(waitpid(pair, &status, 0), pair);
        assert_int_equal(status, 0);
        munmap(meeting, sizeof(*meeting));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_deaths_in_mid_transfer_end_nobody_else),
        cmocka_unit_test(engine_connects_to_who_is_gone_and_learns_it),
        cmocka_unit_test(engine_a_rank_that_left_is_not_the_cause),
        cmocka_unit_test(engine_a_broken_connection_is_told_if_nobody_names_another_cause),
        cmocka_unit_test(engine_aborts_in_mid_transfer_end_nothing_else),
    };
    struct rlimit files;

    if (argc > 1) turns = atoi(argv[1]);
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    /* Each abort keeps some twenty open. */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
