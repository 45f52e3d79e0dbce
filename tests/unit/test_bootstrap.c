/*
 * test_bootstrap.c - a world of one, ranks as threads, and ranks of dprun find each other, or say
 * who is missing.
 */
#include "runtime/group/bootstrap.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/fail_allocation.h"
#include "tests/unit/kv_server.h"

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

static void expect_text(const char *part)
{
    if (strstr(error.text, part) == NULL) fail_msg("'%s' lacks '%s'", error.text, part);
}

/* ---- Alone --------------------------------------------------------------------------------- */

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
    one->ops->note(one, "nobody listens");
    dp_bootstrap_destroy(one);
    dp_bootstrap_destroy(two);
    dp_bootstrap_destroy(NULL);
}

static void bootstrap_half_of_the_launchers_variables_is_an_error(void **state)
{
    static const char *const names[] = {"DP_RANK", "DP_SIZE", "DP_LOCAL_RANK", "DP_LOCAL_SIZE",
                                        "DP_BOOTSTRAP_FD"};
    int *const fields[] = {&config.rank, &config.world_size, &config.local_rank, &config.local_size,
                           &config.bootstrap_fd};
    dp_bootstrap_t *bootstrap = NULL;

    (void)state;
    for (unsigned set = 1; set < 31; set++) {
        char missing[64];
        int first = -1;

        for (int i = 0; i < 5; i++) {
            *fields[i] = set >> i & 1 ? 1 : -1;
            if (*fields[i] < 0 && first < 0) first = i;
        }
        assert_int_equal(dp_bootstrap_create(&config, &bootstrap, &error), DP_ERR_CONFIG);
        snprintf(missing, sizeof(missing), "is set but %s is not", names[first]);
        expect_text(missing);
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

/* ---- Threads ------------------------------------------------------------------------------- */

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

        assert_int_equal(dp_bootstrap_create_threads(size, bootstraps), DP_OK);
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

    assert_int_equal(dp_bootstrap_create_threads(4, bootstraps), DP_OK);
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
    expect_all_fail(names, -1, dp_now_ns() + 50000000u, DP_ERR_TIMEOUT, "for ranks 1, 3");
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
    assert_int_equal(dp_bootstrap_create_threads(0, &bootstrap), DP_ERR_INVALID);
    assert_int_equal(dp_bootstrap_create_threads(1, &bootstrap), DP_OK);
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(
        bootstrap->ops->exchange(bootstrap, name, "v", 1, &value, &bytes, SOON, &error),
        DP_ERR_INVALID);
    assert_int_equal(bootstrap->ops->exchange(bootstrap, "", "v", 1, &value, &bytes, SOON, &error),
                     DP_ERR_INVALID);
    dp_bootstrap_destroy(bootstrap);
}

/* ---- dprun --------------------------------------------------------------------------------- */

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
    bootstrap->ops->note(bootstrap, "starting");
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
    assert_int_equal(dp_bootstrap_create(&config, &bootstrap, &error), DP_ERR_SYSTEM);
    assert_null(bootstrap);
    kv_server_stop(&server);
    after = dup(0);
    close(after);
    assert_true(after <= before);
}

/* ---- Memory -------------------------------------------------------------------------------- */

static dp_status_t live_as_threads(void)
{
    dp_bootstrap_t *bootstraps[2] = {NULL, NULL};
    void *value = NULL;
    size_t bytes;
    dp_status_t status = dp_bootstrap_create_threads(2, bootstraps);

    if (status != DP_OK) return status;
    dp_bootstrap_destroy(bootstraps[0]);
    dp_bootstrap_destroy(bootstraps[1]);
    status = dp_bootstrap_create_threads(1, bootstraps);
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
        CASE(bootstrap_half_of_the_launchers_variables_is_an_error),
        CASE(bootstrap_numbers_that_do_not_fit_are_an_error),
        CASE(threads_exchange_many_rounds),
        CASE(threads_rank_that_leaves_early_is_named),
        CASE(threads_ranks_that_do_not_come_are_named),
        CASE(threads_different_names_are_a_mismatch),
        CASE(threads_bad_arguments_are_refused),
        CASE(dprun_rank_exchanges_through_its_rendezvous),
        CASE(dprun_secret_does_not_reach_grandchildren),
        CASE(dprun_with_the_wrong_secret_leaves_nothing_open),
        CASE(bootstrap_nth_allocation_fails_without_a_leak),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
