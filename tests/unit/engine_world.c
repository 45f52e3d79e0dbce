/*
 * engine_world.c - ranks with an engine each, as threads of a test or as processes it forks.
 */
#include "engine_world.h"
#include "tests/threads/threads.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define VALUE_MAX 4096
#define ROUNDS 4
#define RANKS 16

int engine_failed(engine_rank_t *rank, const char *format, ...)
{
    char text[400];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    if (rank->failures++ < 5) {
        fprintf(stderr, "rank %d of %d, %d nodes: %s\n", rank->rank, rank->size,
                rank->topology.node_count, text);
    }
    return 0;
}

int engine_node(const engine_world_t *world, int rank)
{
    return world->interleave ? rank % world->nodes : rank * world->nodes / world->size;
}

static dp_status_t open_rank(const engine_world_t *world, engine_rank_t *rank, dp_error_t *error)
{
    char names[RANKS][16];
    const char *list[RANKS];
    dp_status_t status;

    for (int i = 0; i < world->size; i++) {
        snprintf(names[i], sizeof(names[i]), "host%d", engine_node(world, i));
        list[i] = names[i];
    }
    dp_config_defaults(&rank->config);
    rank->config.arena_bytes = world->arena_bytes;
    rank->config.spin_ns = world->spin_ns;
    rank->config.peer_timeout_ns = world->peer_timeout_ns;
    if (world->pulls_nothing >> rank->rank & 1) rank->config.pull_bytes = 0;
    dp_log_init(&rank->log, DP_LOG_WARN, rank->rank);
    status = dp_topology_init(&rank->topology, list, world->size);
    if (status == DP_OK) {
        status = dp_device_host_create(world->spin_ns, &rank->log, &rank->device);
    }
    if (status == DP_OK) {
        status = rank->device->ops->stream_create(rank->device, "engine", &rank->stream);
    }
    if (status == DP_OK) {
        status = dp_engine_cpu_create(rank->bootstrap, &rank->topology, rank->device, &rank->config,
                                      &rank->log, NULL, &rank->engine, error);
    }
    return status;
}

static void close_rank(engine_rank_t *rank)
{
    if (rank->stream != NULL) rank->device->ops->stream_destroy(rank->stream);
    dp_engine_destroy(rank->engine);
    dp_device_destroy(rank->device);
    dp_topology_fini(&rank->topology);
}

static void live(const engine_world_t *world, engine_rank_t *rank, engine_body_t body, void *user)
{
    dp_error_t error = {DP_OK, ""};
    const dp_status_t status = open_rank(world, rank, &error);

    if (engine_check(rank, status == DP_OK, "create: %s: %s", dp_status_string(status),
                     error.text)) {
        body(rank, user);
    }
    close_rank(rank);
}

/* ---- Threads -------------------------------------------------------------------------------- */

typedef struct thread_rank {
    const engine_world_t *world;
    engine_rank_t rank;
    engine_body_t body;
    void *user;
} thread_rank_t;

static void *thread_main(void *argument)
{
    thread_rank_t *thread = argument;

    live(thread->world, &thread->rank, thread->body, thread->user);
    return NULL;
}

int engine_world_threads(const engine_world_t *world, engine_body_t body, void *user)
{
    thread_rank_t threads[RANKS] = {0};
    dp_bootstrap_t *bootstraps[RANKS];
    pthread_t ids[RANKS];
    int failures = 0;

    if (threads_bootstrap(world->size, bootstraps) != DP_OK) return 1;
    for (int i = 0; i < world->size; i++) {
        threads[i].world = world;
        threads[i].rank.rank = i;
        threads[i].rank.size = world->size;
        threads[i].rank.bootstrap = bootstraps[i];
        threads[i].body = body;
        threads[i].user = user;
        if (pthread_create(&ids[i], NULL, thread_main, &threads[i]) != 0) abort();
    }
    for (int i = 0; i < world->size; i++) {
        pthread_join(ids[i], NULL);
        failures += threads[i].rank.failures;
    }
    for (int i = 0; i < world->size; i++)
        dp_bootstrap_destroy(bootstraps[i]);
    return failures;
}

/* ---- Processes: a bootstrap over one page table of values ----------------------------------- */

typedef struct board {
    struct {
        _Atomic int given;
        size_t bytes[RANKS];
        char values[RANKS][VALUE_MAX];
    } rounds[ROUNDS];
} board_t;

typedef struct process_bootstrap {
    dp_bootstrap_t base;
    board_t *board;
    int round;
} process_bootstrap_t;

static dp_status_t process_exchange(dp_bootstrap_t *self, const char *name, const void *value,
                                    size_t value_bytes, void **values, size_t *bytes,
                                    uint64_t deadline_ns, dp_error_t *error)
{
    process_bootstrap_t *bootstrap = (process_bootstrap_t *)(void *)self;
    const int round = bootstrap->round++;
    board_t *board = bootstrap->board;

    if (round >= ROUNDS || value_bytes > VALUE_MAX) {
        return dp_error_set(error, DP_ERR_SYSTEM, "test bootstrap: %s is too much", name);
    }
    memcpy(board->rounds[round].values[self->rank], value, value_bytes);
    board->rounds[round].bytes[self->rank] = value_bytes;
    atomic_fetch_add(&board->rounds[round].given, 1);
    while (atomic_load(&board->rounds[round].given) < self->size) {
        if (dp_now_ns() > deadline_ns) {
            return dp_error_set(error, DP_ERR_TIMEOUT, "test bootstrap: %s", name);
        }
        usleep(500);
    }
    for (int i = 0; i < self->size; i++) {
        bytes[i] = board->rounds[round].bytes[i];
        values[i] = malloc(bytes[i] + 1);
        if (values[i] == NULL) abort();
        memcpy(values[i], board->rounds[round].values[i], bytes[i]);
    }
    return DP_OK;
}

static const dp_bootstrap_ops_t process_ops = {.name = "processes", .exchange = process_exchange};

int engine_world_processes(const engine_world_t *world, engine_body_t body, void *user)
{
    board_t *board =
        mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t children[RANKS];
    int failures = 0;

    if (board == MAP_FAILED) return 1;
    fflush(NULL);
    for (int i = 0; i < world->size; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            process_bootstrap_t bootstrap = {
                .base = {.ops = &process_ops, .rank = i, .size = world->size, .tag = 4711},
                .board = board};
            engine_rank_t rank = {.rank = i, .size = world->size, .bootstrap = &bootstrap.base};

            live(world, &rank, body, user);
            fflush(NULL);
            _exit(dp_min(rank.failures, 100));
        }
    }
    for (int i = 0; i < world->size; i++) {
        int status = 0;

        if (waitpid(children[i], &status, 0) != children[i] || !WIFEXITED(status)) {
            failures++;
        } else {
            failures += WEXITSTATUS(status);
        }
    }
    munmap(board, sizeof(*board));
    return failures;
}

/* ---- Operations ----------------------------------------------------------------------------- */

void engine_run(engine_rank_t *rank, dp_engine_op_t *op, dp_work_size_t size)
{
    dp_event_t *event;
    const dp_device_ops_t *device = rank->device->ops;
    dp_status_t status;

    op->sequence = ++rank->sequence;
    if (device->event_create(rank->device, &event) != DP_OK) abort();
    status = rank->engine->ops->enqueue(rank->engine, rank->stream, size, op);
    if (status != DP_OK) op->status = status; /* else it may be over already */
    if (device->event_record(event, rank->stream) != DP_OK) abort();
    device->event_wait(event);
    device->event_destroy(event);
}

void *engine_memory(engine_rank_t *rank, size_t bytes)
{
    void *memory = NULL;
    const dp_status_t status = rank->engine->ops->alloc(rank->engine, bytes, &memory);

    engine_check(rank, status == DP_OK, "alloc of %zu bytes: %s", bytes, dp_status_string(status));
    return memory;
}
