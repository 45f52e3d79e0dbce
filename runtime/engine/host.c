/*
 * host.c - the host engine: its life, the order of its operations, and how they are aborted.
 *
 * Operations run one at a time, in the order they were given, on the thread of the stream they were
 * given to. The first failure stays: a rank that failed is out of step with the others, so all that
 * follows fails with the same words until the engine is destroyed. How ranks agree on the order is
 * none of its business.
 */
#include "runtime/engine/host_internal.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/wire.h"

#define BOOT_ID_BYTES 36 /* as /proc/sys/kernel/random/boot_id writes it */
#define CORES ((size_t)1024)
#define CORE_BYTES (CORES / 8)

static dp_host_engine_t *host_of(dp_engine_t *engine)
{
    return (dp_host_engine_t *)(void *)engine;
}

static const dp_host_engine_t *host_of_const(const dp_engine_t *engine)
{
    return (const dp_host_engine_t *)(const void *)engine;
}

/* ---- Operations -------------------------------------------------------------------------------
 */

/* Notes why the engine stops; the first reason counts. */
static void stop(dp_host_engine_t *engine, dp_status_t status, const char *text)
{
    pthread_mutex_lock(&engine->abort_lock);
    if (!atomic_load_explicit(&engine->is_aborted, memory_order_relaxed)) {
        engine->abort_status = status;
        snprintf(engine->abort_text, sizeof(engine->abort_text), "%s", text);
        atomic_store_explicit(&engine->is_aborted, 1, memory_order_seq_cst);
    }
    pthread_mutex_unlock(&engine->abort_lock);
}

static void fail_as_stopped(dp_host_engine_t *engine, dp_engine_op_t *op)
{
    pthread_mutex_lock(&engine->abort_lock);
    op->status = engine->abort_status;
    memcpy(op->text, engine->abort_text, sizeof(op->text));
    pthread_mutex_unlock(&engine->abort_lock);
}

static void run(dp_host_engine_t *engine, dp_engine_op_t *op)
{
    dp_status_t status;

    pthread_mutex_lock(&engine->run_lock);
    op->begin_ns = dp_now_ns();
    op->wait_ns = 0;
    op->wire_bytes = 0;
    op->last_rank = -1;
    op->text[0] = '\0';
    op->status = DP_OK;
    if (!atomic_load_explicit(&engine->is_aborted, memory_order_acquire)) {
        engine->op = op;
        engine->op_index++;
        engine->failure = (dp_error_t){DP_OK, ""};
        status = dp_layout_set(&engine->layout, op->pieces, op->piece_count);
        if (status == DP_OK) {
            status = engine->host_count > 1 ? dp_host_between_run(engine, op)
                                            : dp_host_local_run(engine, op);
        }
        if (status != DP_OK) {
            stop(engine, status,
                 engine->failure.text[0] != '\0' ? engine->failure.text : dp_status_string(status));
        }
        engine->op = NULL;
        op->status = status;
    } else {
        op->status = DP_ERR_ABORTED;
    }
    if (op->status != DP_OK) fail_as_stopped(engine, op);
    op->end_ns = dp_now_ns();
    pthread_mutex_unlock(&engine->run_lock);
}

static void run_task(void *argument)
{
    dp_host_task_t *task = argument;
    dp_host_engine_t *engine = task->engine;

    run(engine, task->op);
    pthread_mutex_lock(&engine->task_lock);
    task->next = engine->tasks;
    engine->tasks = task;
    pthread_mutex_unlock(&engine->task_lock);
}

static dp_status_t host_enqueue(dp_engine_t *self, dp_stream_t *stream, dp_work_size_t size,
                                dp_engine_op_t *op)
{
    dp_host_engine_t *engine = host_of(self);
    dp_host_task_t *task;
    dp_status_t status;

    pthread_mutex_lock(&engine->task_lock);
    task = engine->tasks;
    if (task != NULL) engine->tasks = task->next;
    pthread_mutex_unlock(&engine->task_lock);
    if (task == NULL) task = malloc(sizeof(*task));
    if (task == NULL) return DP_ERR_NO_MEMORY;
    task->engine = engine;
    task->op = op;
    status = engine->device->ops->call(stream, size, run_task, task);
    if (status != DP_OK) free(task);
    return status;
}

static void host_abort(dp_engine_t *self, dp_status_t status, const char *text)
{
    dp_host_engine_t *engine = host_of(self);

    stop(engine, status, text);
    dp_control_wake(&engine->control);
    if (engine->link != NULL) dp_link_wake(engine->link);
}

/* ---- Memory -----------------------------------------------------------------------------------
 */

static dp_status_t host_alloc(dp_engine_t *self, size_t bytes, void **memory)
{
    return dp_arena_alloc(host_of(self)->arena, bytes, memory);
}

static dp_status_t host_free(dp_engine_t *self, void *memory)
{
    return dp_arena_free(host_of(self)->arena, memory);
}

static int host_owns(const dp_engine_t *self, const void *memory, size_t bytes)
{
    return dp_arena_find(host_of_const(self)->arena, memory, bytes, NULL);
}

/* ---- Life -------------------------------------------------------------------------------------
 */

static void host_destroy(dp_engine_t *self)
{
    dp_host_engine_t *engine = host_of(self);

    if (engine == NULL) return;
    dp_link_destroy(engine->link, !atomic_load_explicit(&engine->is_aborted, memory_order_acquire));
    dp_between_destroy(engine->between);
    dp_arena_destroy(engine->arena);
    dp_layout_fini(&engine->layout);
    while (engine->tasks != NULL) {
        dp_host_task_t *task = engine->tasks;

        engine->tasks = task->next;
        free(task);
    }
    free(engine->ins);
    free(engine->outs);
    pthread_mutex_destroy(&engine->abort_lock);
    pthread_mutex_destroy(&engine->task_lock);
    pthread_mutex_destroy(&engine->run_lock);
    free(engine);
}

static const dp_engine_ops_t host_ops = {
    .name = "host",
    .compresses = 1,
    .alloc = host_alloc,
    .free = host_free,
    .owns = host_owns,
    .enqueue = host_enqueue,
    .abort = host_abort,
    .destroy = host_destroy,
};

/* What a rank tells all others when it starts. */
typedef struct card {
    char boot_id[BOOT_ID_BYTES]; /* equal: the same machine, whatever hosts are pretended */
    uint8_t cores[CORE_BYTES];   /* bit set: this rank may run there */
    uint64_t address_bytes;      /* of the link's address, which follows */
} card_t;

static void write_card(const dp_link_t *link, card_t *card, const void **address)
{
    cpu_set_t *set = CPU_ALLOC(CORES);
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    size_t bytes = 0;

    memset(card, 0, sizeof(*card));
    if (fd >= 0) {
        if (read(fd, card->boot_id, sizeof(card->boot_id)) < 0) card->boot_id[0] = '\0';
        close(fd);
    }
    if (set != NULL) {
        CPU_ZERO_S(CORE_BYTES, set);
        if (sched_getaffinity(0, CORE_BYTES, set) == 0) {
            for (size_t i = 0; i < CORES; i++) {
                if (CPU_ISSET_S(i, CORE_BYTES, set)) card->cores[i / 8] |= (uint8_t)(1u << i % 8);
            }
        }
        CPU_FREE(set);
    }
    *address = link == NULL ? NULL : dp_link_address(link, &bytes);
    card->address_bytes = bytes;
}

/* Polling pays only while every rank of the machine can have a core of its own. */
static uint64_t choose_spin(const card_t *const *cards, int size, int rank, uint64_t spin_ns)
{
    uint8_t cores[CORE_BYTES] = {0};
    int ranks = 0;
    int count = 0;

    for (int i = 0; i < size; i++) {
        if (memcmp(cards[i]->boot_id, cards[rank]->boot_id, BOOT_ID_BYTES) != 0) continue;
        ranks++;
        for (size_t k = 0; k < CORE_BYTES; k++)
            cores[k] |= cards[i]->cores[k];
    }
    for (size_t k = 0; k < CORE_BYTES; k++)
        count += __builtin_popcount(cores[k]);
    return ranks <= count ? spin_ns : 0;
}

/* Local rank that serves local rank `local` of another host, on a host of `size` ranks. */
static int partner(int local, int size)
{
    return local % size;
}

/* Whether two ranks of different hosts exchange messages: one serves the other. */
static int are_partners(const dp_topology_t *topology, int a, int b)
{
    const int a_local = topology->local_rank[a];
    const int b_local = topology->local_rank[b];

    return topology->host[a] != topology->host[b] &&
           (partner(a_local, topology->host_size[topology->host[b]]) == b_local ||
            partner(b_local, topology->host_size[topology->host[a]]) == a_local);
}

static int count_partners(const dp_topology_t *topology, int rank)
{
    int count = 0;

    for (int i = 0; i < topology->size; i++)
        count += are_partners(topology, rank, i);
    return count;
}

static dp_status_t connect_partners(dp_host_engine_t *engine, const card_t *const *cards,
                                    uint64_t deadline_ns, dp_error_t *error)
{
    for (int i = 0; i < engine->size; i++) {
        dp_status_t status;
        int peer;

        if (!are_partners(engine->topology, engine->rank, i)) continue;
        if (cards[i]->address_bytes == 0) {
            return dp_error_set(error, DP_ERR_SYSTEM, "engine: rank %d gave no address", i);
        }
        status = dp_link_connect(engine->link, i, cards[i] + 1, &peer, error);
        if (status != DP_OK) return status;
    }
    return dp_link_greet(engine->link, deadline_ns, error);
}

/* Tells all ranks what they need to know and acts on what they tell. */
static dp_status_t introduce(dp_host_engine_t *engine, dp_bootstrap_t *bootstrap,
                             const dp_config_t *config, uint64_t deadline_ns, uint64_t *spin_ns,
                             dp_error_t *error)
{
    const size_t size = (size_t)engine->size;
    void **values = calloc(size, sizeof(*values));
    size_t *bytes = calloc(size, sizeof(*bytes));
    char *own = NULL;
    const void *address;
    card_t card;
    dp_status_t status;

    write_card(engine->link, &card, &address);
    own = malloc(sizeof(card) + card.address_bytes);
    if (values == NULL || bytes == NULL || own == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
        goto done;
    }
    memcpy(own, &card, sizeof(card));
    if (card.address_bytes != 0) memcpy(own + sizeof(card), address, card.address_bytes);
    status = bootstrap->ops->exchange(bootstrap, "engine", own, sizeof(card) + card.address_bytes,
                                      values, bytes, deadline_ns, error);
    for (int i = 0; status == DP_OK && i < engine->size; i++) {
        const card_t *other = values[i];

        if (bytes[i] < sizeof(card) || other->address_bytes != bytes[i] - sizeof(card)) {
            status = dp_error_set(error, DP_ERR_SYSTEM,
                                  "engine: rank %d introduced itself with %zu bytes", i, bytes[i]);
        }
    }
    if (status != DP_OK) goto done;
    *spin_ns = choose_spin((const card_t *const *)(void *)values, engine->size, engine->rank,
                           config->spin_ns);
    if (engine->link != NULL) {
        dp_link_set_spin(engine->link, *spin_ns);
        status =
            connect_partners(engine, (const card_t *const *)(void *)values, deadline_ns, error);
        if (status == DP_OK) dp_between_find_partners(engine);
    }
done:
    for (size_t i = 0; values != NULL && i < size; i++)
        free(values[i]);
    free(own);
    free(bytes);
    free(values);
    return status;
}

static dp_status_t make_boards(dp_host_engine_t *engine, dp_error_t *error)
{
    for (int i = 0; i < 2; i++) {
        dp_host_board_t *board = &engine->boards[i];
        void *memory;
        dp_status_t status;

        /* One page each: pieces and tallies of 64, then the inputs of small operations. */
        status = dp_arena_alloc(engine->arena, 4096, &memory);
        if (status == DP_OK) {
            board->pieces = memory;
            status = dp_arena_alloc(engine->arena, 4096, &memory);
        }
        if (status == DP_OK) {
            board->tallies = memory;
            board->room = 4096 / DP_MAX(sizeof(*board->pieces), sizeof(*board->tallies));
            status = dp_arena_alloc(engine->arena, DP_EAGER_BYTES, &memory);
        }
        if (status != DP_OK) {
            return dp_error_set(error, status, "engine: no shared memory for its own use");
        }
        board->eager = memory;
    }
    return DP_OK;
}

static dp_status_t init(dp_host_engine_t *engine, dp_bootstrap_t *bootstrap,
                        const dp_config_t *config, dp_error_t *error)
{
    const uint64_t deadline_ns = dp_now_ns() + config->start_timeout_ns;
    const size_t width = (size_t)DP_MAX(engine->local_size, engine->host_count);
    const size_t control_bytes = dp_control_bytes(engine->local_size);
    uint64_t spin_ns = 0;
    void *control;
    dp_status_t status;

    engine->ins = calloc(width, sizeof(*engine->ins));
    engine->outs = calloc(width, sizeof(*engine->outs));
    if (engine->ins == NULL || engine->outs == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    }
    status = dp_arena_create(bootstrap, engine->topology, config->arena_bytes, deadline_ns,
                             engine->log, &engine->arena, error);
    if (status != DP_OK) return status;
    control = dp_arena_control(engine->arena, control_bytes);
    if (control == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY,
                            "engine: no room for a control block of %zu bytes", control_bytes);
    }
    status = make_boards(engine, error);
    if (status != DP_OK) return status;
    if (engine->host_count > 1) {
        status =
            dp_link_create(config, engine->rank, count_partners(engine->topology, engine->rank),
                           engine->log, &engine->link, error);
        if (status != DP_OK) return status;
        status = dp_between_create(engine, &engine->between, error);
        if (status != DP_OK) return status;
    }
    status = introduce(engine, bootstrap, config, deadline_ns, &spin_ns, error);
    if (status != DP_OK) return status;
    dp_control_init(&engine->control, control, engine->local_rank, engine->local_size, spin_ns,
                    &engine->is_aborted);
    dp_log_debug(engine->log, "engine host: local rank %d of %d, host %d of %d, spin %llu ns, %s",
                 engine->local_rank, engine->local_size, engine->host, engine->host_count,
                 (unsigned long long)spin_ns, dp_kernels_name());
    return DP_OK;
}

dp_status_t dp_engine_host_create(dp_bootstrap_t *bootstrap, const dp_topology_t *topology,
                                  dp_device_t *device, const dp_config_t *config,
                                  const dp_log_t *log, dp_trace_t *trace, dp_engine_t **out,
                                  dp_error_t *error)
{
    dp_host_engine_t *engine = calloc(1, sizeof(*engine));
    dp_status_t status;

    if (engine == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    engine->base.ops = &host_ops;
    engine->topology = topology;
    engine->device = device;
    engine->log = log;
    engine->rank = bootstrap->rank;
    engine->size = bootstrap->size;
    engine->host = topology->host[engine->rank];
    engine->host_count = topology->host_count;
    engine->local_rank = topology->local_rank[engine->rank];
    engine->local_size = topology->host_size[engine->host];
    engine->local_ranks = topology->host_ranks + topology->host_begin[engine->host];
    pthread_mutex_init(&engine->abort_lock, NULL);
    pthread_mutex_init(&engine->task_lock, NULL);
    pthread_mutex_init(&engine->run_lock, NULL);
    engine->lane = dp_trace_lane(trace, "engine", DP_TRACE_LANE_STREAM);
    status = init(engine, bootstrap, config, error);
    if (status != DP_OK) {
        atomic_store(&engine->is_aborted, 1); /* nothing to say farewell to */
        host_destroy(&engine->base);
        return status;
    }
    *out = &engine->base;
    return DP_OK;
}
