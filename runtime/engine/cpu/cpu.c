/*
 * cpu.c - the CPU engine: its ops table, its life, the order of its operations, and abort.
 *
 * The pipeline enqueues from the threads that run launches; in each lane operations run one at a
 * time, in that order, on the thread of the stream they were enqueued on. abort() may come from any
 * thread. The first failure stays: a rank that failed is out of step with the others, so every
 * other operation, in all lanes, fails with the same text until the engine is destroyed. The
 * engine must not know how the ranks agree on the order.
 */
#include "runtime/engine/cpu/inter_node/inter_node.h"
#include "runtime/engine/cpu/direct/direct.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/inject.h"

/* How long to wait for the message that says why a rank left: this long, as a coordinator may lack
 * a core, plus 2 x DP_PEER_TIMEOUT, as one that stood still counts a neighbour's silence anew. */
#define CAUSE_LEAST_NS (1000ull * 1000000)

static dp_cpu_engine_t *cpu_engine_of(dp_engine_t *engine)
{
    return (dp_cpu_engine_t *)(void *)engine;
}

static const dp_cpu_engine_t *cpu_engine_of_const(const dp_engine_t *engine)
{
    return (const dp_cpu_engine_t *)(const void *)engine;
}

static dp_cpu_group_t *group_of(dp_engine_group_t *group)
{
    return (dp_cpu_group_t *)(void *)group;
}

/* ---- Operations ----------------------------------------------------------------------------- */

/* Ends the sleep of running operations, at a barrier or for a message: the reason is there. */
static void wake_lanes(dp_cpu_engine_t *engine)
{
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        dp_ucx_link_t *link;

        dp_control_wake(&engine->lanes[i].control);
        link = __atomic_load_n(&engine->lanes[i].link, __ATOMIC_ACQUIRE);
        if (link != NULL) dp_ucx_link_wake(link);
    }
}

/* Notes why the engine stops; the first reason counts. */
static void stop_engine(dp_cpu_engine_t *engine, dp_status_t status, const char *text)
{
    pthread_mutex_lock(&engine->abort_lock);
    if (!atomic_load_explicit(&engine->is_aborted, memory_order_relaxed)) {
        engine->abort_status = status;
        snprintf(engine->abort_text, sizeof(engine->abort_text), "%s", text);
        /* Acquire loads see status and text. Sequentially consistent for dp_control_wake(), which
         * follows: a rank about to sleep loads its doorbell, then this flag. */
        atomic_store_explicit(&engine->is_aborted, 1, memory_order_seq_cst);
    }
    pthread_mutex_unlock(&engine->abort_lock);
}

/* Gives an operation the reason why the engine stopped, whatever it ran into itself. */
static void fail_as_stopped(dp_cpu_engine_t *engine, dp_engine_op_t *op)
{
    pthread_mutex_lock(&engine->abort_lock);
    op->status = engine->abort_status;
    memcpy(op->text, engine->abort_text, sizeof(op->text));
    pthread_mutex_unlock(&engine->abort_lock);
}

static dp_status_t begin_in_group(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    dp_status_t status;

    group->failure = (dp_error_t){DP_OK, ""};
    group->op = op;
    group->op_index++;
    status = dp_cpu_group_connect(group);
    return status == DP_OK ? dp_layout_set(&group->layout, op->pieces, op->piece_count) : status;
}

/* Of a group whose ranks are on several nodes. */
static dp_status_t run_inter_node(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const dp_status_t status = dp_cpu_arrive(group, op, 0);

    if (status != DP_OK) return status;
    switch (op->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
    case DP_COLLECTIVE_REDUCE:
    case DP_COLLECTIVE_REDUCE_SCATTER:
        return dp_inter_node_reduce(group, op);
    case DP_COLLECTIVE_BROADCAST:
    case DP_COLLECTIVE_ALLGATHER:
    case DP_COLLECTIVE_BARRIER:
        return dp_inter_node_move(group, op);
    default:
        break;
    }
    return dp_cpu_fail(group, DP_ERR_INVALID, "engine: collective %d is unknown",
                       (int)op->collective);
}

/* root, peer: ranks of the group, for exchanges. */
static dp_status_t run_in_group(dp_cpu_group_t *group, dp_engine_op_t *op, int root, int peer)
{
    const int goes_on = group->op == op;
    dp_status_t status = goes_on ? DP_OK : begin_in_group(group, op);

    if (status != DP_OK) {
        /* nothing has begun */
    } else if (op->exchange != NULL) {
        status = dp_cpu_run_exchange(group, op, root, peer);
    } else if (group->node_count > 1) {
        status = run_inter_node(group, op);
    } else {
        status = dp_cpu_run_intra_node(group, op);
    }
    if (status != DP_ERR_PENDING) group->op = NULL;
    return status;
}

/* A send runs in the pair of its two ranks: the other members of the group do not enqueue it, so
 * it can take part neither in their barriers nor in their numbering of operations. */
static dp_status_t run_send(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const int root = group->ranks[op->root] < group->ranks[op->peer] ? 0 : 1; /* in the pair */
    dp_cpu_group_t *pair;
    dp_status_t status;

    group->failure = (dp_error_t){DP_OK, ""};
    status = dp_cpu_group_pair(group, op->root, op->peer, &pair);
    if (status != DP_OK) return status;
    status = run_in_group(pair, op, root, 1 - root);
    group->failure = pair->failure;
    return status;
}

/* *why: the reason of a failure; lives as long as the group, or is the caller's. */
static dp_status_t run_in_lane(dp_cpu_group_t *group, dp_engine_op_t *op, dp_error_t *own,
                               const char **why)
{
    dp_status_t status = DP_OK;

    *why = own->text;
    if (op->lane != DP_LANE_MAIN) status = dp_cpu_group_beside(group, op->lane, &group, own);
    if (status != DP_OK) return status;
    *why = group->failure.text;
    if (op->collective == DP_COLLECTIVE_SEND) return run_send(group, op);
    return run_in_group(group, op, op->root, op->peer);
}

static void begin_operation(dp_cpu_engine_t *engine, dp_cpu_lane_t *lane, dp_engine_op_t *op)
{
    atomic_store_explicit(&lane->is_running, 1, memory_order_relaxed);
    op->begin_ns = dp_now_ns();
    op->wait_ns = 0;
    op->wire_bytes = 0;
    op->last_rank = -1;
    op->text[0] = '\0';
    dp_activity_moved(&lane->activity);
    dp_inject_enter(engine->injector, DP_INJECT_ENGINE);
}

/* On a stream's thread, or inline in the thread that runs launches: run_lock lets one operation of
 * the lane run at a time, and streams keep them in order. 0: it gave up waiting and must go on. Its
 * stream is busy until then, so no other operation of the lane comes between. */
static int run_operation(dp_cpu_engine_t *engine, dp_engine_op_t *op, int goes_on)
{
    dp_cpu_group_t *group = op->group != NULL ? group_of(op->group) : engine->world;
    dp_cpu_lane_t *lane = &engine->lanes[op->lane];

    pthread_mutex_lock(&lane->run_lock);
    if (!goes_on) begin_operation(engine, lane, op);
    op->status = DP_ERR_ABORTED;
    if (!atomic_load_explicit(&engine->is_aborted, memory_order_acquire)) {
        dp_error_t own; /* its text is large to clear for every operation */
        const char *why;

        own.text[0] = '\0';
        op->status = run_in_lane(group, op, &own, &why);
        if (op->status == DP_ERR_PENDING) {
            pthread_mutex_unlock(&lane->run_lock);
            return 0;
        }
        if (op->status != DP_OK && why[0] == '\0') why = dp_status_string(op->status);
        /* Every rank has found the same and nothing was written: the engine goes on. */
        if (op->status == DP_ERR_TRUNCATED) {
            snprintf(op->text, sizeof(op->text), "%s", why);
        } else if (op->status != DP_OK) {
            stop_engine(engine, op->status, why);
            wake_lanes(engine);
            /* With the operation the link must let go of the program's memory. */
            if (lane->link != NULL) dp_ucx_link_cut(lane->link);
        }
    }
    if (op->status != DP_OK && op->status != DP_ERR_TRUNCATED) fail_as_stopped(engine, op);
    op->end_ns = dp_now_ns();
    dp_activity_wait_end(&lane->activity, op->end_ns);
    atomic_store_explicit(&lane->is_running, 0, memory_order_relaxed);
    pthread_mutex_unlock(&lane->run_lock);
    return 1;
}

static void run_task(void *argument)
{
    dp_cpu_task_t *task = argument;
    dp_cpu_engine_t *engine = task->engine;

    /* An operation that gives up queues its rest behind all work of the stream. That keeps the
     * order only while the enqueuing thread is still inside enqueue(): on any other thread the
     * operation must not give up. */
    if (!pthread_equal(task->enqueuer, pthread_self())) task->op->give_up_ns = 0;
    while (!run_operation(engine, task->op, task->goes_on)) {
        task->op->give_up_ns = 0;
        task->goes_on = 1;
        if (engine->device->ops->call(task->stream, DP_WORK_LARGE, run_task, task) == DP_OK) return;
        /* no memory or no thread for that: this thread waits on */
    }
    pthread_mutex_lock(&engine->task_lock);
    task->next = engine->tasks;
    engine->tasks = task;
    pthread_mutex_unlock(&engine->task_lock);
}

static dp_status_t cpu_enqueue(dp_engine_t *self, dp_stream_t *stream, dp_work_size_t size,
                               dp_engine_op_t *op)
{
    dp_cpu_engine_t *engine = cpu_engine_of(self);
    dp_cpu_task_t *task;
    dp_status_t status;

    pthread_mutex_lock(&engine->task_lock);
    task = engine->tasks;
    if (task != NULL) engine->tasks = task->next;
    pthread_mutex_unlock(&engine->task_lock);
    if (task == NULL) task = malloc(sizeof(*task)); /* more in flight than ever before */
    if (task == NULL) return DP_ERR_NO_MEMORY;
    task->engine = engine;
    task->stream = stream;
    task->op = op;
    task->goes_on = 0;
    task->enqueuer = pthread_self();
    /* A small operation on an idle stream runs before this returns. */
    status = engine->device->ops->call(stream, size, run_task, task);
    if (status != DP_OK) free(task);
    return status;
}

static void cpu_abort(dp_engine_t *self, dp_status_t status, const char *text)
{
    dp_cpu_engine_t *engine = cpu_engine_of(self);

    stop_engine(engine, status, text);
    wake_lanes(engine);
    dp_direct_abort(engine->direct);
}

static size_t cpu_brief_bytes(const dp_engine_t *self, const dp_engine_group_t *group)
{
    const dp_cpu_group_t *of = group != NULL ? (const dp_cpu_group_t *)(const void *)group
                                             : cpu_engine_of_const(self)->world;

    return of->node_count == 1 ? dp_cpu_eager_bytes(of) : 0;
}

static uint64_t cpu_moves(const dp_engine_t *self, dp_lane_t lane, int *awaits)
{
    const dp_cpu_lane_t *at = &cpu_engine_of_const(self)->lanes[lane];

    if (lane == DP_LANE_DIRECT) return dp_direct_moves(cpu_engine_of_const(self)->direct, awaits);
    *awaits = atomic_load_explicit(&at->is_running, memory_order_relaxed)
                  ? atomic_load_explicit(&at->activity.awaits, memory_order_relaxed)
                  : DP_ENGINE_RESTS;
    return atomic_load_explicit(&at->activity.moves, memory_order_relaxed);
}

static uint64_t cpu_skew_ns(const dp_engine_t *self, dp_lane_t lane, uint64_t now_ns)
{
    if (lane == DP_LANE_DIRECT) return 0;
    return dp_activity_skew_ns(&cpu_engine_of_const(self)->lanes[lane].activity, now_ns);
}

/* ---- Memory --------------------------------------------------------------------------------- */

static dp_status_t cpu_alloc(dp_engine_t *self, size_t bytes, void **memory)
{
    return dp_arena_alloc(cpu_engine_of(self)->arena, bytes, memory);
}

static dp_status_t cpu_free(dp_engine_t *self, void *memory)
{
    return dp_arena_free(cpu_engine_of(self)->arena, memory);
}

static int cpu_owns(const dp_engine_t *self, const void *memory, size_t bytes)
{
    return dp_arena_find(cpu_engine_of_const(self)->arena, memory, bytes, NULL);
}

/* Adopted memory has an offset in the arena, which is how the ranks of a node find each other's
 * buffers, so that no collective needs to know. */
static dp_status_t cpu_adopt(dp_engine_t *self, void *memory, size_t bytes, dp_error_t *error)
{
    return dp_arena_adopt(cpu_engine_of(self)->arena, memory, bytes, error);
}

static dp_status_t cpu_disown(dp_engine_t *self, void *memory)
{
    return dp_arena_disown(cpu_engine_of(self)->arena, memory);
}

/* Where data only moves, a quarter of the size is worth the system calls: nothing else copies it.
 */
static int cpu_pulls(const dp_engine_t *self, dp_collective_t collective, const int *ranks,
                     int count, size_t bytes)
{
    const dp_cpu_engine_t *engine = cpu_engine_of_const(self);
    const dp_topology_t *topology = engine->topology;
    const size_t least =
        dp_lane_of(collective) == DP_LANE_GATHER ? engine->pull_bytes / 4 : engine->pull_bytes;

    if (engine->pull_bytes == 0 || bytes < least) return 0;
    if (!dp_cpu_takes_private(engine, collective)) return 0;
    if (ranks == NULL) return topology->node_count == 1;
    for (int i = 0; i < count; i++) {
        if (topology->node[ranks[i]] != topology->node[engine->rank]) return 0;
    }
    return 1;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static dp_status_t cpu_group_create(dp_engine_t *self, const dp_engine_members_t *members,
                                    dp_engine_group_t **group, dp_error_t *error)
{
    dp_cpu_engine_t *engine = cpu_engine_of(self);
    dp_cpu_group_t *made;
    dp_status_t status;

    if (members->group_index == 0 || members->uid == 0) {
        return dp_error_set(error, DP_ERR_INVALID, "engine: group '%s' has the world's number",
                            members->name);
    }
    status = dp_cpu_group_make(engine, members, &made, error);
    if (status != DP_OK) return status;
    made->next = engine->groups;
    engine->groups = made;
    *group = (dp_engine_group_t *)(void *)made;
    return DP_OK;
}

static void cpu_group_destroy(dp_engine_t *self, dp_engine_group_t *group)
{
    dp_cpu_engine_t *engine = cpu_engine_of(self);
    dp_cpu_group_t **at = &engine->groups;

    /* Messages of an operation that failed may still point into it: then it goes with the link. */
    if (group == NULL || atomic_load_explicit(&engine->is_aborted, memory_order_acquire)) return;
    while (*at != group_of(group))
        at = &(*at)->next;
    *at = (*at)->next;
    dp_cpu_group_end(group_of(group));
}

static void cpu_destroy(dp_engine_t *self)
{
    dp_cpu_engine_t *engine = cpu_engine_of(self);

    if (engine == NULL) return;
    dp_direct_destroy(engine->direct);
    engine->direct = NULL;
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        dp_ucx_link_destroy(engine->lanes[i].link,
                            !atomic_load_explicit(&engine->is_aborted, memory_order_acquire));
    }
    for (int i = 0; engine->pairs != NULL && i < engine->size; i++)
        dp_cpu_group_free(engine->pairs[i]);
    while (engine->groups != NULL) {
        dp_cpu_group_t *group = engine->groups;

        engine->groups = group->next;
        dp_cpu_group_free(group);
    }
    dp_cpu_group_free(engine->world);
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        dp_cpu_lane_fini(&engine->lanes[i]);
    }
    dp_arena_destroy(engine->arena);
    while (engine->tasks != NULL) {
        dp_cpu_task_t *task = engine->tasks;

        engine->tasks = task->next;
        free(task);
    }
    for (int i = 0; engine->hellos != NULL && i < engine->size; i++)
        free(engine->hellos[i].value);
    free(engine->hellos);
    free(engine->pairs);
    free(engine->pids);
    pthread_mutex_destroy(&engine->abort_lock);
    pthread_mutex_destroy(&engine->task_lock);
    free(engine);
}

static const dp_engine_ops_t cpu_ops = {
    .name = "cpu",
    .compresses = 1,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .owns = cpu_owns,
    .pulls = cpu_pulls,
    .adopt = cpu_adopt,
    .disown = cpu_disown,
    .views = &dp_cpu_views,
    .direct = &dp_cpu_direct,
    .group_create = cpu_group_create,
    .lane_open = dp_cpu_lane_open,
    .lane_meet = dp_cpu_lane_meet,
    .group_destroy = cpu_group_destroy,
    .enqueue = cpu_enqueue,
    .brief_bytes = cpu_brief_bytes,
    .abort = cpu_abort,
    .moves = cpu_moves,
    .skew_ns = cpu_skew_ns,
    .destroy = cpu_destroy,
};

/* The group of all ranks. */
static dp_status_t make_world(dp_cpu_engine_t *engine, dp_error_t *error)
{
    int *ranks = calloc((size_t)engine->size, sizeof(*ranks));
    const dp_engine_members_t members = {.ranks = ranks, .count = engine->size, .name = "world"};
    dp_status_t status;

    if (ranks == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    for (int i = 0; i < engine->size; i++)
        ranks[i] = i;
    status = dp_cpu_group_make(engine, &members, &engine->world, error);
    free(ranks);
    return status;
}

/* The arena, and in it for each lane the control block for the node's barriers. */
static dp_status_t make_shared(dp_cpu_engine_t *engine, dp_bootstrap_t *bootstrap,
                               const dp_config_t *config, uint64_t deadline_ns, dp_error_t *error)
{
    const int local_size = engine->topology->node_size[engine->topology->node[engine->rank]];
    const size_t bytes = dp_align_up(dp_control_bytes(local_size), DP_CONTROL_LINE);
    const size_t all = DP_LANE_COUNT * bytes + dp_direct_bytes(local_size) +
                       (size_t)local_size * sizeof(*engine->readers);
    const dp_topology_t *topology = engine->topology;
    const int *ranks = topology->node_ranks + topology->node_begin[topology->node[engine->rank]];
    dp_status_t status;
    char *memory;

    status = dp_arena_create(bootstrap, engine->topology, config->arena_bytes, deadline_ns,
                             engine->log, &engine->arena, error);
    if (status != DP_OK) return status;
    memory = dp_arena_control(engine->arena, all);
    if (memory == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY,
                            "engine: no room for control blocks of %zu bytes", all);
    }
    engine->readers = (void *)(memory + DP_LANE_COUNT * bytes + dp_direct_bytes(local_size));
    status = dp_direct_create(engine, memory + DP_LANE_COUNT * bytes, &engine->direct);
    if (status != DP_OK) return dp_error_set(error, status, "engine: no memory");
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        dp_control_node_init(&engine->lanes[i].control, engine->arena, memory + (size_t)i * bytes,
                             engine->local_rank, local_size, 0, &engine->is_aborted, ranks,
                             &engine->lanes[i].activity);
    }
    return DP_OK;
}

/* Between nodes: a worker for each lane that the world uses; other ordered lanes follow when a
 * group takes them. A connection is made when a lane first needs it. */
static dp_status_t make_lanes(dp_cpu_engine_t *engine, dp_error_t *error)
{
    const int is_ordered = engine->config->order == DP_CONFIG_ORDER_PROGRAM;
    const int count = is_ordered ? DP_LANE_ORDERED_GATHER + 1 : DP_LANE_ORDERED;
    dp_status_t status = DP_OK;

    for (int i = 0; i < count && status == DP_OK && engine->topology->node_count > 1; i++)
        status = dp_cpu_lane_link(&engine->lanes[i], error);
    return status == DP_OK ? dp_cpu_lane_prepare(&engine->lanes[DP_LANE_MAIN], error) : status;
}

/* The main lane's links to this rank's partners, tried before the first operation needs them. */
static dp_status_t connect_world(dp_cpu_engine_t *engine, const dp_config_t *config,
                                 uint64_t deadline_ns, dp_error_t *error)
{
    dp_status_t status;

    if (engine->lanes[DP_LANE_MAIN].link == NULL) return DP_OK;
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        if (engine->lanes[i].link != NULL)
            dp_ucx_link_set_spin(engine->lanes[i].link, config->spin_ns);
    }
    status = dp_cpu_group_connect(engine->world);
    if (status != DP_OK) return dp_error_set(error, status, "%s", engine->world->failure.text);
    return dp_ucx_link_greet(engine->lanes[DP_LANE_MAIN].link, deadline_ns, error);
}

static dp_status_t init_engine(dp_cpu_engine_t *engine, dp_bootstrap_t *bootstrap,
                               const dp_config_t *config, dp_error_t *error)
{
    const uint64_t deadline_ns = dp_now_ns() + config->start_timeout_ns;
    const dp_topology_t *topology = engine->topology;
    dp_status_t status;

    if (engine->size > DP_UCX_LINK_RANKS_MAX) {
        return dp_error_set(error, DP_ERR_UNSUPPORTED, "engine: %d ranks are more than %d",
                            engine->size, DP_UCX_LINK_RANKS_MAX);
    }
    engine->hellos = calloc((size_t)engine->size, sizeof(*engine->hellos));
    engine->pairs = calloc((size_t)engine->size, sizeof(dp_cpu_group_t *));
    if (engine->hellos == NULL || engine->pairs == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    }
    status = make_shared(engine, bootstrap, config, deadline_ns, error);
    if (status != DP_OK) return status;
    status = make_lanes(engine, error);
    if (status != DP_OK) return status;
    status = make_world(engine, error);
    if (status != DP_OK) return status;
    status = dp_cpu_say_hello(engine, bootstrap, config, deadline_ns, error);
    if (status != DP_OK) return status;
    status = connect_world(engine, config, deadline_ns, error);
    if (status != DP_OK) return status;
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        engine->lanes[i].control.spin_ns = config->spin_ns;
        if (config->takes_turns) engine->lanes[i].control.polls = 1;
    }
    dp_log_debug(engine->log, "engine cpu: local rank %d of %d, node %d of %d, spin %llu ns, %s",
                 engine->local_rank, engine->lanes[0].control.count, topology->node[engine->rank],
                 topology->node_count, (unsigned long long)config->spin_ns, dp_kernels_name());
    return DP_OK;
}

dp_status_t dp_engine_cpu_create(dp_bootstrap_t *bootstrap, const dp_topology_t *topology,
                                 dp_device_t *device, const dp_config_t *config,
                                 const dp_log_t *log, dp_trace_t *trace, dp_engine_t **out,
                                 dp_error_t *error)
{
    dp_cpu_engine_t *engine = calloc(1, sizeof(*engine));
    dp_status_t status;

    if (engine == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    engine->base.ops = &cpu_ops;
    engine->topology = topology;
    engine->device = device;
    engine->config = config;
    engine->log = log;
    engine->injector = config->injector;
    engine->cause_wait_ns = CAUSE_LEAST_NS + 2 * config->peer_timeout_ns;
    engine->rank = bootstrap->rank;
    engine->size = bootstrap->size;
    engine->local_rank = topology->local_rank[engine->rank];
    pthread_mutex_init(&engine->abort_lock, NULL);
    pthread_mutex_init(&engine->task_lock, NULL);
    engine->trace = trace;
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        engine->lanes[i].engine = engine;
        pthread_mutex_init(&engine->lanes[i].run_lock, NULL);
    }
    status = init_engine(engine, bootstrap, config, error);
    if (status != DP_OK) {
        atomic_store(&engine->is_aborted, 1); /* nothing to say farewell to */
        cpu_destroy(&engine->base);
        return status;
    }
    *out = &engine->base;
    return DP_OK;
}
