/*
 * test_store.c - worlds that a program describes itself: ranks that meet through a key-value store
 * of its own, one world after another and side by side, and every way in which a store can fail.
 *
 * Ranks are threads of this process with real transports; the store is a table under a lock.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dp.h"
#include "tests/unit/cases.h"

enum { RANKS_MAX = 4, KEYS_MAX = 64, VALUE_MAX = 4096 };

typedef struct entry {
    char key[96];
    char value[VALUE_MAX];
    size_t bytes;
} entry_t;

/* Shared by all worlds of a test; each world has a prefix. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    entry_t entries[KEYS_MAX];
    int count;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static entry_t last_address; /* that a rank 0 has put there */

enum flaw { NONE, PUT_FAILS, GET_FAILS, GET_IS_LONG, GET_IS_GARBAGE, NOBODY_ELSE };

typedef struct member {
    const char *prefix;
    int rank, ranks;
    enum flaw flaw;
    double seconds;
    dp_status_t status;
    char error[512];
    double sum;
    pthread_t thread;
} member_t;

static entry_t *find(const char *name)
{
    for (int i = 0; i < table.count; i++)
        if (strcmp(table.entries[i].key, name) == 0) return &table.entries[i];
    return NULL;
}

static int put(void *user, const char *key, const void *value, size_t bytes)
{
    const member_t *self = user;
    entry_t *entry;
    char name[96];

    if (self->flaw == PUT_FAILS) return 5;
    pthread_mutex_lock(&table.lock);
    snprintf(name, sizeof(name), "%s/%s", self->prefix, key);
    entry = find(name);
    if (entry == NULL) entry = &table.entries[table.count++];
    memcpy(entry->key, name, sizeof(name));
    memcpy(entry->value, value, bytes);
    entry->bytes = bytes;
    if (bytes > 0 && strstr(key, "/rendezvous") != NULL) last_address = *entry;
    pthread_cond_broadcast(&table.changed);
    pthread_mutex_unlock(&table.lock);
    return 0;
}

static int get(void *user, const char *key, void *value, size_t room, size_t *bytes, double seconds)
{
    const member_t *self = user;
    const entry_t *entry;
    struct timespec until;
    char name[96];
    int code = 0;

    if (self->flaw == GET_FAILS) return 7;
    if (self->flaw == GET_IS_LONG) {
        *bytes = room + 1;
        return 0;
    }
    snprintf(name, sizeof(name), "%s/%s", self->prefix, key);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&table.lock);
    while (code == 0 && (entry = find(name)) == NULL)
        code = pthread_cond_timedwait(&table.changed, &table.lock, &until);
    if (code == 0 && entry->bytes <= room) {
        memcpy(value, entry->value, entry->bytes);
        *bytes = entry->bytes;
    }
    pthread_mutex_unlock(&table.lock);
    if (self->flaw == GET_IS_GARBAGE) memset(value, 'g', *bytes);
    return code;
}

static void *join_world(void *argument)
{
    member_t *self = argument;
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    float value = (float)self->rank + 1.0f;
    dp_handle_t *handle;
    dp_context_t *dp;

    options.error = self->error;
    options.error_bytes = sizeof(self->error);
    options.store_put = put;
    options.store_get = get;
    options.store_user = self;
    options.store_rank = self->rank;
    options.store_ranks = self->ranks;
    options.store_seconds = self->seconds;
    self->status = dp_init(&options, &dp);
    if (self->status != DP_OK) return NULL;
    if (dp_rank(dp) != self->rank || dp_size(dp) != self->ranks) self->status = DP_ERR_CHECK;
    if (dp_allreduce(dp_world(dp), "value", &value, &value, 1, DP_F32, NULL, &handle) != DP_OK ||
        dp_wait(handle, 60.0, NULL) != DP_OK)
        self->status = DP_ERR_CHECK;
    self->sum = (double)value;
    if (dp_finalize(dp) != DP_OK) self->status = DP_ERR_CHECK;
    return NULL;
}

static void start_rank(member_t *members, const char *prefix, int rank, int ranks, double seconds)
{
    member_t *member = &members[rank];

    *member = (member_t){.prefix = prefix, .rank = rank, .ranks = ranks, .seconds = seconds};
    assert_int_equal(pthread_create(&member->thread, NULL, join_world, member), 0);
}

static void start_world(member_t *members, const char *prefix, int ranks)
{
    for (int i = 0; i < ranks; i++)
        start_rank(members, prefix, i, ranks, 0);
}

static void end_world(member_t *members, int ranks)
{
    for (int i = 0; i < ranks; i++)
        pthread_join(members[i].thread, NULL);
    for (int i = 0; i < ranks; i++) {
        assert_string_equal(members[i].error, "");
        assert_int_equal(members[i].status, DP_OK);
        assert_true(members[i].sum == ranks * (ranks + 1) / 2.0);
    }
}

static int empty_table(void **state)
{
    (void)state;
    table.count = 0;
    unsetenv("DP_START_TIMEOUT");
    return 0;
}

/* The launcher's variables of a rank of something else do not count. */
static void store_worlds_follow_each_other(void **state)
{
    member_t members[RANKS_MAX];
    char prefix[32];

    (void)state;
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "8", 1);
    for (int round = 0; round < 6; round++) {
        const int ranks = 1 + round % RANKS_MAX;

        snprintf(prefix, sizeof(prefix), "world %d", round);
        start_world(members, prefix, ranks);
        end_world(members, ranks);
    }
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static void store_worlds_live_side_by_side(void **state)
{
    member_t one[2], two[3];

    (void)state;
    start_world(one, "one", 2);
    start_world(two, "two", 3);
    end_world(one, 2);
    end_world(two, 3);
}

/* One rank alone, with a flaw or without others. */
static void expect_failure(int rank, int ranks, enum flaw flaw, dp_status_t status,
                           const char *text)
{
    member_t member = {
        .prefix = "broken", .rank = rank, .ranks = ranks, .flaw = flaw, .status = DP_OK};

    join_world(&member);
    assert_int_equal(member.status, status);
    if (strstr(member.error, text) == NULL) fail_msg("'%s' lacks '%s'", member.error, text);
}

static void store_failures_are_told(void **state)
{
    member_t other = {.prefix = "broken"};

    (void)state;
    setenv("DP_START_TIMEOUT", "300ms", 1);
    expect_failure(0, 2, NOBODY_ELSE, DP_ERR_TIMEOUT,
                   "rank 1 did not come to the store within DP_START_TIMEOUT=300ms: did it start?");
    expect_failure(0, 2, PUT_FAILS, DP_ERR_SYSTEM, "put of 'dp/world' returned 5");
    expect_failure(1, 2, GET_FAILS, DP_ERR_SYSTEM, "get of 'dp/world' returned 7");
    expect_failure(1, 2, GET_IS_LONG, DP_ERR_INVALID, "get of 'dp/world' gave");
    expect_failure(1, 2, NOBODY_ELSE, DP_ERR_TIMEOUT, "rank 0 did not come to the store within");
    assert_int_equal(put(&other, "dp/world", "x", 1), 0);
    expect_failure(1, 2, NONE, DP_ERR_TIMEOUT, "rank 0 did not come to the store within");
    assert_int_equal(put(&other, "dp/gg/rendezvous", "x", 1), 0);
    assert_int_equal(put(&other, "dp/world", "gg", 2), 0);
    expect_failure(1, 2, GET_IS_GARBAGE, DP_ERR_SYSTEM, "rank 1 of 2 (store)");
}

/* Worlds that meet under the same keys, with either rank first; at last with those that ranks left
 * who ended while they met: a name, an address where nobody is, and a node that is another one now.
 */
static void store_keys_serve_one_world_after_another(void **state)
{
    const struct timespec pause = {0, 100000000};
    member_t members[2], other = {.prefix = "again"};

    (void)state;
    for (int round = 0; round < 6; round++) {
        const int first = round % 2;

        start_rank(members, "again", first, 2, 60);
        nanosleep(&pause, NULL);
        start_rank(members, "again", 1 - first, 2, 60);
        end_world(members, 2);
        if (round < 3) continue;
        put(&other, "dp/world", "left", 4);
        put(&other, "dp/left/node/1", "elsewhere", 9);
        put(&other, "dp/left/rendezvous", last_address.value, last_address.bytes);
    }
}

/* The program's own limit holds for the meeting: the other rank comes later than DP_START_TIMEOUT.
 */
static void store_ranks_may_come_late(void **state)
{
    const struct timespec late = {1, 500000000};
    member_t members[2];

    (void)state;
    setenv("DP_START_TIMEOUT", "1s", 1);
    for (int first = 0; first < 2; first++) {
        start_rank(members, "late", first, 2, 60);
        nanosleep(&late, NULL);
        start_rank(members, "late", 1 - first, 2, 60);
        end_world(members, 2);
    }
}

static void store_arguments_are_checked(void **state)
{
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    char text[512];
    dp_context_t *dp = NULL;

    (void)state;
    options.error = text;
    options.error_bytes = sizeof(text);
    options.store_put = put;
    options.store_ranks = 2;
    assert_int_equal(dp_init(&options, &dp), DP_ERR_INVALID);
    assert_non_null(strstr(text, "no store_get"));
    options.store_get = get;
    options.store_rank = 2;
    assert_int_equal(dp_init(&options, &dp), DP_ERR_INVALID);
    assert_non_null(strstr(text, "rank 2 of 2"));
    options.store_ranks = 0;
    options.store_rank = 0;
    assert_int_equal(dp_init(&options, &dp), DP_ERR_INVALID);
    assert_null(dp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(store_worlds_follow_each_other, empty_table),
        cmocka_unit_test_setup(store_worlds_live_side_by_side, empty_table),
        cmocka_unit_test_setup(store_failures_are_told, empty_table),
        cmocka_unit_test_setup(store_keys_serve_one_world_after_another, empty_table),
        cmocka_unit_test_setup(store_ranks_may_come_late, empty_table),
        cmocka_unit_test_setup(store_arguments_are_checked, empty_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
