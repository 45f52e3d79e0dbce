/*
 * bootstrap.c - the bootstrap of ranks that are threads of one process: one table under a lock.
 *
 * Exchanges are matched by the count of calls and checked by name. A rank that gives a value in
 * round n + 1 has seen the end of round n, so two rounds are in use at most: one from which slow
 * ranks still take their results, and one that fills.
 */
#include "tests/threads/threads.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/auth.h"
#include "runtime/group/bootstrap_internal.h"

#define ROUND_NAME_MAX 63

typedef struct round {
    char name[ROUND_NAME_MAX + 1]; /* as the first to come called it */
    int first;                     /* who that was */
    int given;
    int collected;
    void **values; /* [size]; NULL: not given */
    size_t *bytes; /* [size] */
} round_t;

typedef struct world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size;
    /* guarded by lock */
    int references;     /* bootstraps not destroyed */
    char *is_gone;      /* [size] */
    round_t rounds[2];  /* call n uses rounds[n % 2] */
    dp_error_t failure; /* every later exchange fails with it */
} world_t;

typedef struct thread_rank {
    dp_bootstrap_t base; /* first: ops receive its address */
    world_t *world;
    unsigned call; /* exchanges completed */
} thread_rank_t;

/* ---- The shared table ----------------------------------------------------------------------- */

static void world_destroy(world_t *world)
{
    for (int i = 0; i < 2; i++) {
        if (world->rounds[i].values != NULL) {
            dp_bootstrap_free_values(world->rounds[i].values, world->size);
        }
        free(world->rounds[i].values);
        free(world->rounds[i].bytes);
    }
    free(world->is_gone);
    pthread_cond_destroy(&world->changed);
    pthread_mutex_destroy(&world->lock);
    free(world);
}

static world_t *world_create(int size)
{
    const size_t count = (size_t)size;
    world_t *world = calloc(1, sizeof(*world));
    pthread_condattr_t attributes;

    if (world == NULL) return NULL;
    world->size = size;
    pthread_mutex_init(&world->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); /* deadlines are dp_now_ns() */
    pthread_cond_init(&world->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    world->is_gone = calloc(count, 1);
    for (int i = 0; i < 2; i++) {
        world->rounds[i].values = calloc(count, sizeof(void *));
        world->rounds[i].bytes = calloc(count, sizeof(size_t));
    }
    if (world->is_gone != NULL && world->rounds[0].values != NULL &&
        world->rounds[0].bytes != NULL && world->rounds[1].values != NULL &&
        world->rounds[1].bytes != NULL) {
        return world;
    }
    world_destroy(world);
    return NULL;
}

/* Called with the lock held. */
static dp_status_t world_fail(world_t *world)
{
    pthread_cond_broadcast(&world->changed);
    return world->failure.status;
}

/* "1, 4, 5 and 12 more": the ranks that have not given a value. */
static void list_missing(const world_t *world, const round_t *round, char *text, size_t room)
{
    size_t bytes = 0;
    int missing = 0;

    text[0] = '\0';
    for (int rank = 0; rank < world->size; rank++) {
        if (round->values[rank] != NULL) continue;
        if (++missing > 16) continue;
        bytes +=
            (size_t)snprintf(text + bytes, room - bytes, "%s%d", missing > 1 ? ", " : "", rank);
    }
    if (missing > 16) snprintf(text + bytes, room - bytes, " and %d more", missing - 16);
}

/* ---- Exchange ------------------------------------------------------------------------------- */

/* Puts this rank's value in; called with the lock held. */
static dp_status_t give_value(thread_rank_t *member, round_t *round, const char *name,
                              const void *value, size_t value_bytes)
{
    world_t *world = member->world;
    const int rank = member->base.rank;
    void *copy;

    if (round->given > 0 && strcmp(round->name, name) != 0) {
        dp_error_set(&world->failure, DP_ERR_MISMATCH,
                     "exchange %u: rank %d calls it '%s', rank %d '%s'", member->call, round->first,
                     round->name, rank, name);
        return world_fail(world);
    }
    copy = dp_bootstrap_copy(value, value_bytes);
    if (copy == NULL) {
        dp_error_set(&world->failure, DP_ERR_NO_MEMORY,
                     "exchange '%s': rank %d has no memory for %zu bytes", name, rank, value_bytes);
        return world_fail(world);
    }
    if (round->given == 0) {
        snprintf(round->name, sizeof(round->name), "%s", name);
        round->first = rank;
    }
    round->values[rank] = copy;
    round->bytes[rank] = value_bytes;
    if (++round->given == world->size) pthread_cond_broadcast(&world->changed);
    return DP_OK;
}

/* Waits until all have given; called with the lock held. */
static dp_status_t await(thread_rank_t *member, round_t *round, uint64_t deadline_ns)
{
    world_t *world = member->world;
    const struct timespec until = {(time_t)(deadline_ns / 1000000000u),
                                   (long)(deadline_ns % 1000000000u)};
    char missing[256];

    while (round->given < world->size) {
        if (world->failure.status != DP_OK) return world->failure.status;
        for (int rank = 0; rank < world->size; rank++) {
            if (!world->is_gone[rank] || round->values[rank] != NULL) continue;
            dp_error_set(&world->failure, DP_ERR_PEER_LOST,
                         "exchange '%s': rank %d left without giving its value", round->name, rank);
            return world_fail(world);
        }
        if (dp_now_ns() >= deadline_ns) {
            list_missing(world, round, missing, sizeof(missing));
            dp_error_set(&world->failure, DP_ERR_TIMEOUT,
                         "exchange '%s': rank %d waited in vain for ranks %s", round->name,
                         member->base.rank, missing);
            return world_fail(world);
        }
        pthread_cond_timedwait(&world->changed, &world->lock, &until);
    }
    return DP_OK;
}

/* Copies everyone's values out; the last to collect empties the round. Called with the lock held.
 */
static dp_status_t collect(thread_rank_t *member, round_t *round, void **values, size_t *bytes)
{
    world_t *world = member->world;
    dp_status_t status = DP_OK;
    int taken = 0;

    for (; taken < world->size && status == DP_OK; taken++) {
        bytes[taken] = round->bytes[taken];
        values[taken] = dp_bootstrap_copy(round->values[taken], round->bytes[taken]);
        if (values[taken] == NULL) status = DP_ERR_NO_MEMORY;
    }
    if (status != DP_OK) {
        dp_bootstrap_free_values(values, taken);
        dp_error_set(&world->failure, status, "exchange '%s': rank %d has no memory for the values",
                     round->name, member->base.rank);
        world_fail(world);
    }
    if (++round->collected == world->size) {
        dp_bootstrap_free_values(round->values, world->size);
        round->given = 0;
        round->collected = 0;
    }
    return status;
}

static dp_status_t threads_exchange(dp_bootstrap_t *self, const char *name, const void *value,
                                    size_t value_bytes, void **values, size_t *bytes,
                                    uint64_t deadline_ns, dp_error_t *error)
{
    thread_rank_t *member = (thread_rank_t *)self;
    world_t *world = member->world;
    round_t *round = &world->rounds[member->call % 2];
    dp_status_t status;

    if (name[0] == '\0' || strlen(name) > ROUND_NAME_MAX) {
        return dp_error_set(error, DP_ERR_INVALID, "exchange '%.80s': 1 to %d bytes of name", name,
                            ROUND_NAME_MAX);
    }
    pthread_mutex_lock(&world->lock);
    status = world->failure.status;
    if (status == DP_OK) status = give_value(member, round, name, value, value_bytes);
    if (status == DP_OK) status = await(member, round, deadline_ns);
    if (status == DP_OK) status = collect(member, round, values, bytes);
    if (status == DP_OK) {
        member->call++;
    } else {
        dp_error_set(error, status, "%s", world->failure.text);
    }
    pthread_mutex_unlock(&world->lock);
    return status;
}

static void threads_report(dp_bootstrap_t *self, const dp_failure_t *failure)
{
    (void)self;
    (void)failure; /* no launcher reads it */
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void threads_destroy(dp_bootstrap_t *self)
{
    thread_rank_t *member = (thread_rank_t *)self;
    world_t *world = member->world;
    int left;

    pthread_mutex_lock(&world->lock);
    world->is_gone[self->rank] = 1;
    left = --world->references;
    pthread_cond_broadcast(&world->changed);
    pthread_mutex_unlock(&world->lock);
    free(member);
    if (left == 0) world_destroy(world);
}

static const dp_bootstrap_ops_t threads_ops = {"threads", threads_exchange, threads_report, NULL,
                                               threads_destroy};

dp_status_t threads_bootstrap(int size, dp_bootstrap_t **bootstraps)
{
    world_t *world;
    uint64_t random;
    int made = 0;

    if (size < 1) return DP_ERR_INVALID;
    world = world_create(size);
    if (world == NULL) return DP_ERR_NO_MEMORY;
    dp_random(&random, sizeof(random));
    for (; made < size; made++) {
        thread_rank_t *member = calloc(1, sizeof(*member));

        if (member == NULL) goto fail;
        member->base.ops = &threads_ops;
        member->base.rank = made;
        member->base.size = size;
        member->base.local_rank = made;
        member->base.local_size = size;
        dp_bootstrap_name_world(&member->base, "threads", random);
        member->world = world;
        world->references++;
        bootstraps[made] = &member->base;
    }
    return DP_OK;
fail:
    for (int i = 0; i < made; i++) {
        free(bootstraps[i]);
        bootstraps[i] = NULL;
    }
    world_destroy(world);
    return DP_ERR_NO_MEMORY;
}
