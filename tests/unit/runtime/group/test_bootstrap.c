/*
 * test_bootstrap.c - a world of one, ranks as threads, ranks of dprun and ranks of other launchers
 * find each other, or say who is missing.
 */
#include "runtime/group/bootstrap.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/rendezvous.h"
#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"
#include "tests/unit/kv_server.h"
#include "tests/threads/threads.h"

#define SOON (dp_now_ns() + 20000000000u) /* never reached unless something is wrong */
#define RANKS_MAX 8

static dp_config_t config;
static dp_error_t error;

static int fresh(void **state)
{
    (void)state;
    dp_config_defaults(&config);
    memset(&error, 0, sizeof(error));
    return 0;
}

static void report(dp_bootstrap_t *bootstrap, const char *text)
{
    dp_failure_t failure;

    dp_failure_init(&failure, DP_FAILURE_LOST, 1, text);
    bootstrap->ops->report(bootstrap, &failure);
}

static void expect_text(const char *part)
{
    if (strstr(error.text, part) == NULL) fail_msg("'%s' lacks '%s'", error.text, part);
}

/* ---- Alone ---------------------------------------------------------------------------------- */

static void bootstrap_without_launcher_is_a_world_of_one(void **state)
{
    dp_bootstrap_t *one = NULL;
    dp_bootstrap_t *two = NULL;
    void *value = NULL;
    size_t bytes = 0;

    (void)state;
    assert_int_equal(dp_bootstrap_create(&config, &one, &error), DP_OK);
    assert_int_equal(dp_bootstrap_create(&config, &two, &error), DP_OK);
    assert_string_equal(one->ops->name, "solo");
    assert_int_equal(one->rank, 0);
    assert_int_equal(one->size, 1);
    assert_int_equal(one->local_rank, 0);
    assert_int_equal(one->local_size, 1);
    assert_true(one->tag != two->tag); /* two worlds of one never mistake each other */
    assert_string_not_equal(one->job, two->job);
    assert_int_equal(one->ops->exchange(one, "x", "own", 3, &value, &bytes, 0, &error), DP_OK);
    assert_int_equal(bytes, 3);
    assert_string_equal(value, "own");
    free(value);
    assert_int_equal(one->ops->exchange(one, "x", NULL, 0, &value, &bytes, 0, &error), DP_OK);
    assert_int_equal(bytes, 0);
    free(value);
    report(one, "nobody listens");
    dp_bootstrap_destroy(one);
    dp_bootstrap_destroy(two);
    dp_bootstrap_destroy(NULL);
}

static void bootstrap_half_of_dpruns_variables_is_an_error(void **state)
{
    static const char *const names[] = {"DP_RANK", "DP_SIZE", "DP_LOCAL_RANK", "DP_LOCAL_SIZE"};
    int *const fields[] = {&config.rank, &config.world_size, &config.local_rank,
                           &config.local_size};
    dp_bootstrap_t *bootstrap = NULL;

    (void)state;
    config.bootstrap_fd = 1;
    for (unsigned set = 0; set < 15; set++) {
        int first = -1;

        for (int i = 0; i < 4; i++) {
            *fields[i] = set >> i & 1 ? 1 : -1;
            if (*fields[i] < 0 && first < 0) first = i;
        }
        assert_int_equal(dp_bootstrap_create(&config, &bootstrap, &error), DP_ERR_CONFIG);
        expect_text("half of dprun: ");
        expect_text("DP_BOOTSTRAP_FD=1");
        expect_text(names[first]);
    }
    assert_null(bootstrap);
}

static void expect_bad_numbers(int rank, int size, int local_rank, int local_size, const char *part)
{
    dp_bootstrap_t *bootstrap = NULL;

    config.rank = rank;
    config.world_size = size;
    config.local_rank = local_rank;
    config.local_size = local_size;
    config.bootstrap_fd = 1000;
    assert_int_equal(dp_bootstrap_create(&config, &bootstrap, &error), DP_ERR_CONFIG);
    expect_text(part);
}

static void bootstrap_numbers_that_do_not_fit_are_an_error(void **state)
{
    (void)state;
    expect_bad_numbers(2, 2, 0, 1, "DP_RANK=2 is not below DP_SIZE=2");
    expect_bad_numbers(0, 0, 0, 1, "DP_RANK=0 is not below DP_SIZE=0");
    expect_bad_numbers(0, 2, 3, 2, "DP_LOCAL_RANK=3 is not below DP_LOCAL_SIZE=2");
    expect_bad_numbers(0, 2, 0, 0, "DP_LOCAL_RANK=0 is not below DP_LOCAL_SIZE=0");
    expect_bad_numbers(0, 2, 0, 3, "DP_LOCAL_SIZE=3 is above DP_SIZE=2");
    expect_bad_numbers(0, 2, 0, 2, "DP_BOOTSTRAP_FD=1000 is not open");
}

/* ---- Threads -------------------------------------------------------------------------------- */

typedef struct rank_thread {
    dp_bootstrap_t *bootstrap;
    int rounds;
    uint64_t deadline;
    const char *name;
    dp_status_t status;
    dp_error_t error;
    pthread_t thread;
} rank_thread_t;

static void join_all(rank_thread_t *ranks, int count)
{
    for (int i = 0; i < count; i++)
        pthread_join(ranks[i].thread, NULL);
}

/* A value differs by rank and round, in length too. */
static size_t value_of(int rank, int round, char value[64])
{
    return (size_t)snprintf(value, 64, "%.*s%d:%d", round % 17, "-----------------", rank, round);
}

static void *exchange_rounds(void *argument)
{
    rank_thread_t *self = argument;
    void *values[RANKS_MAX];
    size_t bytes[RANKS_MAX];
    char value[64];

    for (int round = 0; round < self->rounds && self->status == DP_OK; round++) {
        char name[32];

        snprintf(name, sizeof(name), "round %d", round);
        self->status = self->bootstrap->ops->exchange(self->bootstrap, name, value,
                                                      value_of(self->bootstrap->rank, round, value),
                                                      values, bytes, self->deadline, &self->error);
        if (self->status != DP_OK) break;
        for (int rank = 0; rank < self->bootstrap->size; rank++) {
            const size_t expected = value_of(rank, round, value);

            if (bytes[rank] != expected || strcmp(values[rank], value) != 0) {
                self->status = DP_ERR_CHECK;
            }
            free(values[rank]);
        }
    }
    dp_bootstrap_destroy(self->bootstrap); /* the others may still be collecting */
    return NULL;
}

static void threads_exchange_many_rounds(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS_MAX; size++) {
        dp_bootstrap_t *bootstraps[RANKS_MAX];
        rank_thread_t ranks[RANKS_MAX];

        assert_int_equal(threads_bootstrap(size, bootstraps), DP_OK);
        memset(ranks, 0, sizeof(ranks));
        for (int i = 0; i < size; i++) {
            assert_int_equal(bootstraps[i]->rank, i);
            assert_int_equal(bootstraps[i]->size, size);
            assert_true(bootstraps[i]->tag == bootstraps[0]->tag);
            ranks[i].bootstrap = bootstraps[i];
            ranks[i].rounds = 200;
            ranks[i].deadline = SOON;
        }
        for (int i = 0; i < size; i++) {
            pthread_create(&ranks[i].thread, NULL, exchange_rounds, &ranks[i]);
        }
        join_all(ranks, size);
        for (int i = 0; i < size; i++) {
            if (ranks[i].status != DP_OK) fail_msg("rank %d: %s", i, ranks[i].error.text);
        }
    }
}

static void *exchange_once(void *argument)
{
    rank_thread_t *self = argument;
    void *values[RANKS_MAX] = {NULL};
    size_t bytes[RANKS_MAX];

    self->status = self->bootstrap->ops->exchange(self->bootstrap, self->name, "v", 1, values,
                                                  bytes, self->deadline, &self->error);
    for (int i = 0; i < RANKS_MAX; i++)
        free(values[i]);
    return NULL;
}

/* Four ranks, of which those in who exchange under the names; all must get the expected error. */
static void expect_all_fail(const char *const names[4], int leaver, uint64_t deadline,
                            dp_status_t expected, const char *part)
{
    dp_bootstrap_t *bootstraps[4];
    rank_thread_t ranks[4];

    assert_int_equal(threads_bootstrap(4, bootstraps), DP_OK);
    memset(ranks, 0, sizeof(ranks));
    for (int i = 0; i < 4; i++) {
        ranks[i].bootstrap = bootstraps[i];
        ranks[i].deadline = deadline;
        ranks[i].name = names[i];
        if (names[i] == NULL) continue;
        pthread_create(&ranks[i].thread, NULL, exchange_once, &ranks[i]);
    }
    if (leaver >= 0) dp_bootstrap_destroy(bootstraps[leaver]);
    for (int i = 0; i < 4; i++) {
        if (names[i] != NULL) pthread_join(ranks[i].thread, NULL);
    }
    for (int i = 0; i < 4; i++) {
        if (names[i] == NULL) continue;
        error = ranks[i].error;
        assert_int_equal(ranks[i].status, expected);
        expect_text(part);
    }
    for (int i = 0; i < 4; i++) {
        if (i != leaver) dp_bootstrap_destroy(bootstraps[i]);
    }
}

static void threads_rank_that_leaves_early_is_named(void **state)
{
    static const char *const names[] = {"x", "x", NULL, "x"};

    (void)state;
    expect_all_fail(names, 2, SOON, DP_ERR_PEER_LOST, "exchange 'x': rank 2 left");
}

static void threads_ranks_that_do_not_come_are_named(void **state)
{
    static const char *const names[] = {"x", NULL, "x", NULL};

    (void)state;
    /* within which the other two come, however busy the machine is */
    expect_all_fail(names, -1, dp_now_ns() + 1000000000u, DP_ERR_TIMEOUT, "for ranks 1, 3");
}

static void threads_different_names_are_a_mismatch(void **state)
{
    static const char *const names[] = {"hosts", "addresses", NULL, NULL};

    (void)state;
    expect_all_fail(names, -1, SOON, DP_ERR_MISMATCH, "'addresses'");
}

static void threads_bad_arguments_are_refused(void **state)
{
    dp_bootstrap_t *bootstrap = NULL;
    char name[100];
    void *value;
    size_t bytes;

    (void)state;
    assert_int_equal(threads_bootstrap(0, &bootstrap), DP_ERR_INVALID);
    assert_int_equal(threads_bootstrap(1, &bootstrap), DP_OK);
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(
        bootstrap->ops->exchange(bootstrap, name, "v", 1, &value, &bytes, SOON, &error),
        DP_ERR_INVALID);
    assert_int_equal(bootstrap->ops->exchange(bootstrap, "", "v", 1, &value, &bytes, SOON, &error),
                     DP_ERR_INVALID);
    dp_bootstrap_destroy(bootstrap);
}

/* ---- dprun ---------------------------------------------------------------------------------- */

static int ticket_fd(const dp_kv_ticket_t *ticket)
{
    uint8_t data[256];
    const size_t bytes = dp_kv_ticket_write(ticket, data, sizeof(data));
    int fds[2];

    assert_int_equal(pipe(fds), 0);
    assert_int_equal(write(fds[1], data, bytes), (ssize_t)bytes);
    close(fds[1]);
    return fds[0];
}

static void under_dprun(const dp_kv_ticket_t *ticket)
{
    config.rank = 1;
    config.world_size = 3;
    config.local_rank = 0;
    config.local_size = 2;
    config.bootstrap_fd = ticket_fd(ticket);
}

static void start(kv_server_t *server)
{
    memset(server, 0, sizeof(*server));
    server->script = kv_server_echo;
    server->clients = 1;
    kv_server_start(server);
}

static void dprun_rank_exchanges_through_its_rendezvous(void **state)
{
    kv_server_t server;
    dp_bootstrap_t *bootstrap = NULL;
    void *values[3];
    size_t bytes[3];

    (void)state;
    start(&server);
    under_dprun(&server.ticket);
    assert_int_equal(dp_bootstrap_create(&config, &bootstrap, &error), DP_OK);
    assert_string_equal(bootstrap->ops->name, "dprun");
    assert_int_equal(bootstrap->rank, 1);
    assert_int_equal(bootstrap->size, 3);
    assert_int_equal(bootstrap->local_rank, 0);
    assert_int_equal(bootstrap->local_size, 2);
    assert_string_equal(bootstrap->job, "job-7");
    assert_true(bootstrap->tag == dp_auth_tag(&server.ticket.secret, "control"));
    assert_int_equal(server.rank, 1);
    report(bootstrap, "starting");
    assert_int_equal(
        bootstrap->ops->exchange(bootstrap, "x", "val", 3, values, bytes, SOON, &error), DP_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(bytes[i], 3);
        assert_string_equal(values[i], "val");
        free(values[i]);
    }
    dp_bootstrap_destroy(bootstrap);
    kv_server_stop(&server);
}

static void dprun_secret_does_not_reach_grandchildren(void **state)
{
    kv_server_t server;
    dp_bootstrap_t *bootstrap = NULL;
    int was_open[256];

    (void)state;
    for (int fd = 0; fd < 256; fd++)
        was_open[fd] = fcntl(fd, F_GETFD) >= 0;
    start(&server);
    under_dprun(&server.ticket);
    assert_int_equal(dp_bootstrap_create(&config, &bootstrap, &error), DP_OK);
    for (int fd = 3; fd < 256; fd++) { /* what is new closes on exec; the ticket is gone */
        const int flags = fcntl(fd, F_GETFD);

        if (flags < 0 || was_open[fd]) continue;
        assert_int_equal(flags & FD_CLOEXEC, FD_CLOEXEC);
    }
    dp_bootstrap_destroy(bootstrap);
    kv_server_stop(&server);
}

static void dprun_with_the_wrong_secret_leaves_nothing_open(void **state)
{
    kv_server_t server;
    dp_kv_ticket_t ticket;
    dp_bootstrap_t *bootstrap = NULL;
    int before;
    int after;

    (void)state;
    start(&server);
    before = dup(0);
    close(before);
    ticket = server.ticket;
    ticket.secret.bytes[0] ^= 1;
    under_dprun(&ticket);
    assert_int_equal(dp_bootstrap_create(&config, &bootstrap, &error), DP_ERR_CONFIG);
    assert_null(bootstrap);
    kv_server_stop(&server);
    after = dup(0);
    close(after);
    assert_true(after <= before);
}

/* ---- Elsewhere ------------------------------------------------------------------------------ */

static char runtime[64]; /* XDG_RUNTIME_DIR */
static char place[64];   /* DP_RENDEZVOUS */

/* A rank that a script started, by plain variables: they are all in the configuration, so the ranks
 * of a job can be threads of this process. Ports below those that connections are given. */
static void enter_elsewhere(void)
{
    uint16_t port;
    int listener;
    int seed = (int)(dp_now_ns() / 1000 % 10000);

    snprintf(runtime, sizeof(runtime), "/tmp/test_bootstrap-XXXXXX");
    assert_non_null(mkdtemp(runtime));
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    while (dp_rendezvous_bind((uint16_t)(20000 + seed), &listener, &port, NULL) != DP_OK)
        seed = (seed + 1) % 10000;
    close(listener);
    snprintf(place, sizeof(place), "127.0.0.1:%u", port);
}

static void leave_elsewhere(void)
{
    assert_int_equal(rmdir(runtime), 0); /* nothing is left in it */
}

static void under_a_script(dp_config_t *out, int rank, int size)
{
    dp_config_defaults(out);
    out->rank = rank;
    out->world_size = size;
    snprintf(out->rendezvous, sizeof(out->rendezvous), "%s", place);
}

typedef struct member {
    dp_config_t config;
    int exchanges;
    char job[64];
    uint64_t tag;
    dp_status_t status;
    dp_error_t error;
    pthread_t thread;
} member_t;

/* Comes, exchanges some times, and leaves. */
static void *come(void *argument)
{
    member_t *self = argument;
    dp_bootstrap_t *bootstrap = NULL;
    void *values[RANKS_MAX];
    size_t bytes[RANKS_MAX];
    char own[16];

    self->status = dp_bootstrap_create(&self->config, &bootstrap, &self->error);
    if (self->status != DP_OK) return NULL;
    snprintf(self->job, sizeof(self->job), "%s", bootstrap->job);
    self->tag = bootstrap->tag;
    report(bootstrap, "nobody listens");
    for (int i = 0; i < self->exchanges && self->status == DP_OK; i++) {
        snprintf(own, sizeof(own), "%d", bootstrap->rank);
        self->status = bootstrap->ops->exchange(bootstrap, "x", own, strlen(own), values, bytes,
                                                SOON, &self->error);
        for (int rank = 0; self->status == DP_OK && rank < bootstrap->size; rank++) {
            snprintf(own, sizeof(own), "%d", rank);
            if (strcmp(values[rank], own) != 0) self->status = DP_ERR_CHECK;
            free(values[rank]);
        }
    }
    dp_bootstrap_destroy(bootstrap);
    return NULL;
}

static void run_members(member_t *members, int size, const int *exchanges)
{
    memset(members, 0, (size_t)size * sizeof(*members));
    for (int i = 0; i < size; i++) {
        under_a_script(&members[i].config, i, size);
        members[i].exchanges = exchanges[i];
        assert_int_equal(pthread_create(&members[i].thread, NULL, come, &members[i]), 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(members[i].thread, NULL);
}

static void elsewhere_ranks_meet(void **state)
{
    static const int exchanges[RANKS_MAX] = {50, 50, 50, 50, 50, 50, 50, 50};
    member_t members[RANKS_MAX];
    uint64_t tag = 0;

    (void)state;
    enter_elsewhere();
    for (int size = 2; size <= RANKS_MAX; size++) {
        run_members(members, size, exchanges);
        for (int i = 0; i < size; i++) {
            assert_string_equal(members[i].error.text, "");
            assert_int_equal(members[i].status, DP_OK);
            assert_string_equal(members[i].job, members[0].job);
            assert_int_equal(strlen(members[i].job), 16);
            assert_true(members[i].tag == members[0].tag);
        }
        assert_true(members[0].tag != tag); /* one job is not the next */
        tag = members[0].tag;
    }
    leave_elsewhere();
}

static void elsewhere_rank_that_leaves_is_named(void **state)
{
    member_t members[3];

    (void)state;
    enter_elsewhere();
    for (int leaver = 0; leaver < 3; leaver++) {
        const int exchanges[3] = {leaver != 0, leaver != 1, leaver != 2};
        char text[64];

        run_members(members, 3, exchanges);
        snprintf(text, sizeof(text), "rank %d", leaver);
        for (int i = 0; i < 3; i++) {
            if (i == leaver) {
                assert_int_equal(members[i].status, DP_OK);
                continue;
            }
            error = members[i].error;
            /* rank 2 may come so late that rank 0 has gone for it */
            if (i == 0 || leaver == 0) expect_text(text);
            assert_int_equal(members[i].status, DP_ERR_PEER_LOST);
        }
    }
    leave_elsewhere();
}

static void elsewhere_rank_of_another_job_is_named(void **state)
{
    static const uint8_t data[32] = {1, 2, 3};
    member_t members[2];
    char path[128];
    int fd;

    (void)state;
    enter_elsewhere();
    snprintf(path, sizeof(path), "%s/secret", runtime);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_int_equal(write(fd, data, sizeof(data)), (ssize_t)sizeof(data));
    close(fd);
    memset(members, 0, sizeof(members));
    for (int i = 0; i < 2; i++) {
        under_a_script(&members[i].config, i, 2);
        snprintf(members[i].config.secret_file, sizeof(members[i].config.secret_file), "%s", path);
        members[i].config.local_rank = 0; /* one on each machine: by port and secret */
        members[i].config.local_size = 1;
    }
    /* the same place by another name: what they say of the job differs */
    snprintf(members[1].config.rendezvous, sizeof(members[1].config.rendezvous), "localhost%s",
             strchr(place, ':'));
    for (int i = 0; i < 2; i++)
        pthread_create(&members[i].thread, NULL, come, &members[i]);
    for (int i = 0; i < 2; i++) {
        pthread_join(members[i].thread, NULL);
        assert_int_equal(members[i].status, DP_ERR_MISMATCH);
        error = members[i].error;
        expect_text("belongs to job 'plain-");
        expect_text("variables of another run?");
    }
    assert_int_equal(unlink(path), 0);
    leave_elsewhere();
}

/* Rank 0 of two: without a second it ends by its patience, with too little memory before. */
static dp_status_t wait_alone(int rank)
{
    dp_bootstrap_t *bootstrap = NULL;
    dp_config_t alone;

    under_a_script(&alone, rank, 2);
    alone.start_timeout_ns = 400000000;
    return dp_bootstrap_create(&alone, &bootstrap, &error);
}

static void elsewhere_nth_allocation_fails_without_a_leak(void **state)
{
    (void)state;
    enter_elsewhere();
    for (int rank = 0; rank < 2; rank++) {
        int is_reached = 1;
        int failed = 0;

        while (is_reached) {
            dp_status_t status;

            fail_allocation(failed + 1);
            status = wait_alone(rank);
            is_reached = fail_allocation_reached();
            failed += is_reached;
            if (is_reached) {
                assert_true(status == DP_ERR_NO_MEMORY || status == DP_ERR_TIMEOUT);
            } else {
                assert_int_equal(status, DP_ERR_TIMEOUT);
                expect_text(rank == 0 ? "1 of 2 ranks did not come in time: 1"
                                      : "rank 0 did not come within DP_START_TIMEOUT=400ms");
            }
        }
        assert_true(failed >= (rank == 0 ? 5 : 1));
    }
    leave_elsewhere();
}

/* ---- Memory --------------------------------------------------------------------------------- */

static dp_status_t live_as_threads(void)
{
    dp_bootstrap_t *bootstraps[2] = {NULL, NULL};
    void *value = NULL;
    size_t bytes;
    dp_status_t status = threads_bootstrap(2, bootstraps);

    if (status != DP_OK) return status;
    dp_bootstrap_destroy(bootstraps[0]);
    dp_bootstrap_destroy(bootstraps[1]);
    status = threads_bootstrap(1, bootstraps);
    if (status != DP_OK) return status;
    status = bootstraps[0]->ops->exchange(bootstraps[0], "x", "v", 1, &value, &bytes, SOON, &error);
    free(value);
    dp_bootstrap_destroy(bootstraps[0]);
    return status;
}

static dp_status_t live_alone(void)
{
    dp_bootstrap_t *bootstrap = NULL;
    void *value = NULL;
    size_t bytes;
    dp_status_t status = dp_bootstrap_create(&config, &bootstrap, &error);

    if (status != DP_OK) return status;
    status = bootstrap->ops->exchange(bootstrap, "x", "v", 1, &value, &bytes, SOON, &error);
    free(value);
    dp_bootstrap_destroy(bootstrap);
    return status;
}

static void expect_nth_allocation_survived(dp_status_t (*live)(void), int least)
{
    int failed = 0;

    for (int is_reached = 1; is_reached; failed += is_reached) {
        dp_status_t status;

        fail_allocation(failed + 1);
        status = live();
        is_reached = fail_allocation_reached();
        assert_int_equal(status, is_reached ? DP_ERR_NO_MEMORY : DP_OK);
    }
    assert_true(failed >= least);
}

static void bootstrap_nth_allocation_fails_without_a_leak(void **state)
{
    (void)state;
    expect_nth_allocation_survived(live_alone, 2);
    expect_nth_allocation_survived(live_as_threads, 12);
}

#define CASE(test) cmocka_unit_test_setup(test, fresh)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(bootstrap_without_launcher_is_a_world_of_one),
        CASE(bootstrap_half_of_dpruns_variables_is_an_error),
        CASE(bootstrap_numbers_that_do_not_fit_are_an_error),
        CASE(threads_exchange_many_rounds),
        CASE(threads_rank_that_leaves_early_is_named),
        CASE(threads_ranks_that_do_not_come_are_named),
        CASE(threads_different_names_are_a_mismatch),
        CASE(threads_bad_arguments_are_refused),
        CASE(dprun_rank_exchanges_through_its_rendezvous),
        CASE(dprun_secret_does_not_reach_grandchildren),
        CASE(dprun_with_the_wrong_secret_leaves_nothing_open),
        CASE(elsewhere_ranks_meet),
        CASE(elsewhere_rank_that_leaves_is_named),
        CASE(elsewhere_rank_of_another_job_is_named),
        CASE(elsewhere_nth_allocation_fails_without_a_leak),
        CASE(bootstrap_nth_allocation_fails_without_a_leak),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
