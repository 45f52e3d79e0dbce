/*
 * direct.c - moves the messages of ordered groups between the ranks of a node.
 *
 * A channel (channel.h) is this rank's end of all that two ranks send each other in one group. All
 * of them are guarded by one lock. Its holder makes progress on all channels, a slice on each
 * at a time, so no message waits for another one and sends never wait for receives: ranks that all
 * send first cannot deadlock. Neither the copying of a slice nor done() happens under the lock.
 *
 * A thread that waits polls for DP_SPIN, then sleeps on its rank's bell, a futex in shared memory
 * that other ranks ring only if a thread sleeps there. Messages that no thread waits for are moved
 * by a thread of the engine; while others make progress it backs off, and it sleeps when nothing is
 * posted.
 */
#include "runtime/engine/cpu/direct/direct.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/thread.h"
#include "runtime/engine/cpu/direct/channel.h"

#define SLEEP_NS 100000000u   /* a sleep is checked again after this: never wait unboundedly */
#define POLLS 64              /* between two looks at the clock */
#define REST_LEAST_NS 200000u /* the thread, while others make progress */
#define REST_MOST_NS 1600000u

struct dp_direct {
    _Atomic uint64_t moves;
    _Atomic uint32_t active;  /* messages that are not over */
    _Atomic uint32_t waiters; /* threads in direct_wait() */
    _Atomic uint32_t rounds;  /* of progress by threads of the program */
    _Atomic uint32_t is_idle; /* the engine's thread sleeps until something is posted */
    _Atomic uint32_t wake;    /* its futex */
    _Atomic uint32_t is_stopping;
    dp_direct_node_t node;
    /* guarded by node.lock */
    dp_channel_t *channels;
    pthread_t thread;
    int has_thread;
    int has_left;
};

size_t dp_direct_bytes(int count)
{
    return (size_t)count * sizeof(dp_bell_t);
}

/* Without the lock. */
static void give_back(dp_direct_t *direct, dp_channel_queue_t *over)
{
    dp_engine_message_t *message;

    if (over->first == NULL) return;
    while ((message = dp_channel_pop(over)) != NULL) {
        atomic_fetch_sub(&direct->active, 1);
        message->done(message); /* it may be posted again */
    }
    dp_direct_ring(&direct->node, direct->node.self); /* another thread may sleep for one of them */
}

/* ---- Progress ------------------------------------------------------------------------------- */

/* Once this rank has left, the others learn when nothing more comes from it. */
static void tell_left(dp_direct_t *direct)
{
    dp_bell_t *own = dp_direct_bell(&direct->node, direct->node.self);
    int sends = 0, receives = 0, is_news;

    for (const dp_channel_t *channel = direct->channels; channel != NULL; channel = channel->next) {
        sends |= channel->sends.first != NULL;
        receives |= channel->receives.first != NULL;
    }
    is_news = (!sends && !atomic_load(&own->sends_over)) ||
              (!receives && !atomic_load(&own->receives_over));
    if (!is_news) return;
    if (!sends) atomic_store(&own->sends_over, 1);
    if (!receives) atomic_store(&own->receives_over, 1);
    for (int i = 0; i < direct->node.count; i++)
        if (i != direct->node.self) dp_direct_ring(&direct->node, i);
}

static int make_progress(dp_direct_t *direct)
{
    dp_channel_queue_t over = {NULL, NULL};
    int moved = 0;

    pthread_mutex_lock(&direct->node.lock);
    for (dp_channel_t *channel = direct->channels; channel != NULL; channel = channel->next)
        moved |= dp_channel_move(&direct->node, channel, 1, &over);
    /* After an abort the others learn its cause, not that this rank has left because of it. */
    if (direct->has_left &&
        !atomic_load_explicit(&direct->node.engine->is_aborted, memory_order_acquire))
        tell_left(direct);
    pthread_mutex_unlock(&direct->node.lock);
    if (moved) atomic_fetch_add_explicit(&direct->moves, 1, memory_order_relaxed);
    give_back(direct, &over);
    return moved;
}

static void direct_progress(dp_engine_t *self)
{
    dp_direct_t *direct = ((dp_cpu_engine_t *)(void *)self)->direct;

    atomic_fetch_add_explicit(&direct->rounds, 1, memory_order_relaxed);
    (void)make_progress(direct);
}

/* ---- Sleeping ------------------------------------------------------------------------------- */

/* Sleeps until the bell rings, unless there is something to do: 1. */
static int sleep_on_bell(dp_direct_t *direct, const _Atomic uint32_t *state, uint32_t reached,
                         uint64_t sleep_ns)
{
    dp_bell_t *bell = dp_direct_bell(&direct->node, direct->node.self);
    const uint32_t heard = atomic_load_explicit(&bell->count, memory_order_seq_cst);
    int moved;

    atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    moved = make_progress(direct);
    if (!moved && (state == NULL || atomic_load(state) < reached))
        dp_futex_wait_shared(&bell->count, heard, sleep_ns);
    atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    return moved;
}

static void direct_wait(dp_engine_t *self, const _Atomic uint32_t *state, uint32_t reached,
                        uint64_t deadline_ns)
{
    dp_direct_t *direct = ((dp_cpu_engine_t *)(void *)self)->direct;
    const uint64_t spin_ns = direct->node.engine->lanes[DP_LANE_MAIN].control.spin_ns;
    uint64_t start_ns = 0;

    atomic_fetch_add(&direct->waiters, 1);
    /* Acquire pairs with the store of DONE in dp_request_complete(). */
    for (unsigned polls = 1; atomic_load_explicit(state, memory_order_acquire) < reached; polls++) {
        const int moved = make_progress(direct);
        uint64_t now;

        atomic_fetch_add_explicit(&direct->rounds, 1, memory_order_relaxed);
        if (moved) {
            start_ns = 0;
            continue;
        }
        dp_spin_pause();
        if (spin_ns != 0 && polls % direct->node.engine->lanes[DP_LANE_MAIN].control.polls != 0)
            continue;
        now = dp_now_ns();
        if (now >= deadline_ns) break;
        if (start_ns == 0) start_ns = now;
        if (now - start_ns < spin_ns) {
            dp_control_offer_core(&direct->node.engine->lanes[DP_LANE_MAIN].control,
                                  now - start_ns);
            continue;
        }
        if (sleep_on_bell(direct, state, reached, dp_min((uint64_t)SLEEP_NS, deadline_ns - now)))
            start_ns = 0;
    }
    atomic_fetch_sub(&direct->waiters, 1);
}

/* The engine's thread moves what nobody waits for. A post that finds it idle wakes it; otherwise it
 * looks again within REST_MOST_NS, so that a post costs no system call. */
static void *thread_main(void *argument)
{
    dp_direct_t *direct = argument;
    uint64_t rest_ns = REST_LEAST_NS;
    uint32_t seen = atomic_load(&direct->rounds);

    while (!atomic_load(&direct->is_stopping)) {
        const uint32_t wake = atomic_load(&direct->wake);
        const uint32_t rounds = atomic_load(&direct->rounds);

        if (rounds != seen || atomic_load(&direct->waiters) != 0) {
            seen = rounds;
            dp_futex_wait(&direct->wake, wake, rest_ns);
            rest_ns = dp_min(2 * rest_ns, (uint64_t)REST_MOST_NS);
            continue;
        }
        rest_ns = REST_LEAST_NS;
        if (atomic_load(&direct->active) != 0) {
            (void)sleep_on_bell(direct, NULL, 0, SLEEP_NS);
            continue;
        }
        /* Sequentially consistent: idle, then active here; active, then idle in direct_post(). */
        atomic_store(&direct->is_idle, 1);
        if (atomic_load(&direct->active) == 0 && !atomic_load(&direct->is_stopping))
            dp_futex_wait(&direct->wake, wake, UINT64_MAX);
        atomic_store(&direct->is_idle, 0);
    }
    return NULL;
}

static void wake_thread(dp_direct_t *direct)
{
    atomic_fetch_add(&direct->wake, 1);
    dp_futex_wake(&direct->wake);
}

/* ---- Posting -------------------------------------------------------------------------------- */

static const dp_cpu_group_t *group_of(const dp_engine_t *self, const dp_engine_group_t *group)
{
    return group != NULL ? (const dp_cpu_group_t *)(const void *)group
                         : ((const dp_cpu_engine_t *)(const void *)self)->world;
}

static int direct_reaches(const dp_engine_t *self, const dp_engine_group_t *group, int other)
{
    const dp_topology_t *topology = group_of(self, group)->topology;

    return topology->node[other] == topology->node[group_of(self, group)->rank];
}

/* NULL: no memory. Lock held. */
static dp_channel_t *find_channel(dp_direct_t *direct, const dp_cpu_group_t *group, int other)
{
    const dp_cpu_engine_t *engine = direct->node.engine;
    dp_channel_t *channel = direct->channels;

    while (channel != NULL && (channel->group != group || channel->other != other))
        channel = channel->next;
    if (channel != NULL) return channel;
    channel = calloc(1, sizeof(*channel));
    if (channel == NULL) return NULL;
    channel->group = group;
    channel->key = (uint64_t)group->uid + 1;
    channel->self = group->rank;
    channel->other = other;
    channel->world = group->ranks[other];
    channel->local = engine->topology->local_rank[channel->world];
    channel->next = direct->channels;
    direct->channels = channel;
    return channel;
}

/* What is there when a message is posted, the first time. Lock held. */
static dp_status_t prepare(dp_direct_t *direct, const dp_cpu_group_t *group,
                           const dp_engine_message_t *message, dp_channel_t **out)
{
    *out = find_channel(direct, group, message->other);
    if (*out == NULL) return DP_ERR_NO_MEMORY;
    if (!direct->has_thread) {
        if (dp_thread_start(&direct->thread, thread_main, direct) != 0) return DP_ERR_SYSTEM;
        direct->has_thread = 1;
    }
    return message->is_send ? dp_channel_make_out(&direct->node, *out) : DP_OK;
}

static dp_status_t direct_post(dp_engine_t *self, dp_engine_group_t *in_group,
                               dp_engine_message_t *message)
{
    dp_cpu_engine_t *engine = (dp_cpu_engine_t *)(void *)self;
    dp_direct_t *direct = engine->direct;
    dp_channel_queue_t over = {NULL, NULL};
    dp_channel_t *channel;
    dp_status_t status;
    int moved = 0;

    message->bytes = message->is_send ? message->count * dp_dtype_bytes(message->dtype) : 0;
    message->moved = 0;
    message->received = 0;
    message->failed_ns = 0;
    message->is_begun = 0;
    message->text[0] = '\0';
    message->abort_text = "";
    pthread_mutex_lock(&direct->node.lock);
    status = prepare(direct, group_of(self, in_group), message, &channel);
    if (status == DP_OK) {
        dp_channel_queue_t *queue = message->is_send ? &channel->sends : &channel->receives;

        atomic_fetch_add(&direct->active, 1);
        dp_channel_push(queue, message);
        if (atomic_load_explicit(&engine->is_aborted, memory_order_acquire)) {
            dp_channel_abort(&direct->node, channel, &over);
        } else {
            /* A large message is not copied yet: this thread probably posts a send next, which
             * its receiver then copies at the same time. */
            moved = dp_channel_move(&direct->node, channel, 0, &over);
        }
    }
    pthread_mutex_unlock(&direct->node.lock);
    if (status != DP_OK) return status;
    if (moved) atomic_fetch_add_explicit(&direct->moves, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&direct->rounds, 1, memory_order_relaxed);
    give_back(direct, &over);
    if (atomic_load(&direct->active) != 0 && atomic_load(&direct->is_idle)) wake_thread(direct);
    return DP_OK;
}

/* ---- Ends ----------------------------------------------------------------------------------- */

static void direct_leave(dp_engine_t *self)
{
    dp_direct_t *direct = ((dp_cpu_engine_t *)(void *)self)->direct;

    pthread_mutex_lock(&direct->node.lock);
    direct->has_left = 1;
    pthread_mutex_unlock(&direct->node.lock);
    (void)make_progress(direct);
}

void dp_direct_forget(dp_direct_t *direct, const dp_cpu_group_t *group)
{
    dp_channel_t **at;

    if (direct == NULL) return;
    pthread_mutex_lock(&direct->node.lock);
    at = &direct->channels;
    while (*at != NULL) {
        dp_channel_t *channel = *at;

        if (channel->group != group) {
            at = &channel->next;
            continue;
        }
        if (channel->out != NULL)
            atomic_store_explicit(&channel->out->key, 0, memory_order_release);
        *at = channel->next;
        free(channel);
    }
    pthread_mutex_unlock(&direct->node.lock);
}

void dp_direct_abort(dp_direct_t *direct)
{
    dp_channel_queue_t over = {NULL, NULL};

    if (direct == NULL) return;
    pthread_mutex_lock(&direct->node.lock);
    for (dp_channel_t *channel = direct->channels; channel != NULL; channel = channel->next)
        dp_channel_abort(&direct->node, channel, &over);
    pthread_mutex_unlock(&direct->node.lock);
    give_back(direct, &over);
}

uint64_t dp_direct_moves(dp_direct_t *direct, int *awaits)
{
    *awaits = DP_ENGINE_RESTS;
    pthread_mutex_lock(&direct->node.lock);
    for (const dp_channel_t *channel = direct->channels; channel != NULL; channel = channel->next) {
        if (channel->receives.first != NULL || channel->announced.first != NULL ||
            channel->sends.first != NULL)
            *awaits = channel->world;
    }
    pthread_mutex_unlock(&direct->node.lock);
    return atomic_load_explicit(&direct->moves, memory_order_relaxed);
}

dp_status_t dp_direct_create(dp_cpu_engine_t *engine, void *memory, dp_direct_t **out)
{
    const dp_topology_t *topology = engine->topology;
    dp_direct_t *direct = calloc(1, sizeof(*direct));

    if (direct == NULL) return DP_ERR_NO_MEMORY;
    direct->node.engine = engine;
    direct->node.bells = memory;
    direct->node.self = engine->local_rank;
    direct->node.count = topology->node_size[topology->node[engine->rank]];
    pthread_mutex_init(&direct->node.lock, NULL);
    *out = direct;
    return DP_OK;
}

void dp_direct_destroy(dp_direct_t *direct)
{
    if (direct == NULL) return;
    if (direct->has_thread) {
        atomic_store(&direct->is_stopping, 1);
        wake_thread(direct);
        dp_direct_ring(&direct->node, direct->node.self);
        pthread_join(direct->thread, NULL);
    }
    while (direct->channels != NULL) {
        dp_channel_t *channel = direct->channels;

        direct->channels = channel->next;
        free(channel);
    }
    pthread_mutex_destroy(&direct->node.lock);
    free(direct);
}

const dp_engine_direct_t dp_cpu_direct = {
    .reaches = direct_reaches,
    .post = direct_post,
    .progress = direct_progress,
    .wait = direct_wait,
    .leave = direct_leave,
};
