/*
 * nccl_world.c - engine_world.h for the NCCL engine: ranks as threads, a CUDA device each, over the
 * doubles of the runtime and of NCCL.
 */
#include "nccl_world.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "runtime/device/cuda.h"
#include "runtime/engine/nccl/nccl.h"
#include "tests/threads/threads.h"

int engine_failed(engine_rank_t *rank, const char *format, ...)
{
    char text[400];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    if (rank->failures++ < 5) fprintf(stderr, "rank %d of %d: %s\n", rank->rank, rank->size, text);
    return 0;
}

int engine_node(const engine_world_t *world, int rank)
{
    return rank * world->nodes / world->size;
}

dp_status_t nccl_rank_open(const nccl_world_t *world, engine_rank_t *rank, dp_error_t *error)
{
    const dp_device_options_t options = {.local_rank = rank->rank, .local_size = rank->size};
    char names[NCCL_WORLD_RANKS][16];
    const char *list[NCCL_WORLD_RANKS];
    dp_status_t status;

    for (int i = 0; i < world->world.size; i++) {
        snprintf(names[i], sizeof(names[i]), "host%d", engine_node(&world->world, i));
        list[i] = names[i];
    }
    if (rank->rank > 0 && world->late_ns != 0) usleep((useconds_t)(world->late_ns / 1000));
    dp_config_defaults(&rank->config);
    if (world->limit_ns != 0) rank->config.nccl_limit_ns = world->limit_ns;
    if (world->start_ns != 0) rank->config.start_timeout_ns = world->start_ns;
    snprintf(rank->config.net_interface, sizeof(rank->config.net_interface), "eth3");
    if (world->abort_ns != 0) rank->config.nccl_abort_ns = world->abort_ns;
    dp_log_init(&rank->log, DP_LOG_ERROR, rank->rank);
    status = dp_topology_init(&rank->topology, list, world->world.size);
    if (status == DP_OK) {
        status = dp_device_cuda_create(&options, &rank->log, &rank->device, error);
    }
    if (status == DP_OK) {
        status = rank->device->ops->stream_create(rank->device, "engine", &rank->stream);
    }
    if (status == DP_OK) {
        status = dp_engine_nccl_create(rank->bootstrap, &rank->topology, rank->device,
                                       &rank->config, &rank->log, NULL, &rank->engine, error);
    }
    cudaSetDevice(0); /* as in a thread that works with another GPU, or with none yet */
    return status;
}

void nccl_rank_close(engine_rank_t *rank)
{
    if (rank->stream != NULL) rank->device->ops->stream_destroy(rank->stream);
    dp_engine_destroy(rank->engine);
    dp_device_destroy(rank->device);
    dp_topology_fini(&rank->topology);
}

typedef struct thread_rank {
    const nccl_world_t *world;
    engine_rank_t rank;
    engine_body_t body;
    void *user;
} thread_rank_t;

static void *thread_main(void *argument)
{
    thread_rank_t *thread = argument;
    engine_rank_t *rank = &thread->rank;
    dp_error_t error = {DP_OK, ""};
    const dp_status_t status = nccl_rank_open(thread->world, rank, &error);

    if (thread->world->opened != NULL) {
        thread->world->opened(rank, status, &error);
    } else {
        engine_check(rank, status == DP_OK, "create: %s: %s", dp_status_string(status), error.text);
    }
    if (status == DP_OK) thread->body(rank, thread->user);
    nccl_rank_close(rank);
    return NULL;
}

int nccl_world_run(const nccl_world_t *world, engine_body_t body, void *user)
{
    const int size = world->world.size;
    thread_rank_t threads[NCCL_WORLD_RANKS] = {0};
    dp_bootstrap_t *bootstraps[NCCL_WORLD_RANKS];
    pthread_t ids[NCCL_WORLD_RANKS];
    int failures = 0;

    if (threads_bootstrap(size, bootstraps) != DP_OK) return 1;
    if (world->is_bare) {
        unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    } else {
        setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1); /* as dprun does */
    }
    for (int i = 0; i < size; i++) {
        threads[i].world = world;
        threads[i].rank.rank = i;
        threads[i].rank.size = size;
        threads[i].rank.bootstrap = bootstraps[i];
        threads[i].body = body;
        threads[i].user = user;
        if (pthread_create(&ids[i], NULL, thread_main, &threads[i]) != 0) abort();
    }
    for (int i = 0; i < size; i++) {
        pthread_join(ids[i], NULL);
        failures += threads[i].rank.failures;
    }
    for (int i = 0; i < size; i++)
        dp_bootstrap_destroy(bootstraps[i]);
    return failures;
}

void engine_run(engine_rank_t *rank, dp_engine_op_t *op, dp_work_size_t size)
{
    nccl_run_all(rank, op, 1, size);
}

static void note_end(void *argument)
{
    nccl_end_t *end = argument;

    pthread_mutex_lock(&end->lock);
    end->is_over = 1;
    pthread_cond_signal(&end->change);
    pthread_mutex_unlock(&end->lock);
}

void nccl_run_all(engine_rank_t *rank, dp_engine_op_t *ops, size_t count, dp_work_size_t size)
{
    nccl_end_t end = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

    for (size_t i = 0; i < count; i++) {
        ops[i].sequence = ++rank->sequence;
        if (rank->engine->ops->enqueue(rank->engine, rank->stream, size, &ops[i]) != DP_OK) abort();
    }
    if (rank->device->ops->call(rank->stream, size, note_end, &end) != DP_OK) abort();
    pthread_mutex_lock(&end.lock);
    while (!end.is_over)
        pthread_cond_wait(&end.change, &end.lock);
    pthread_mutex_unlock(&end.lock);
}

void *engine_memory(engine_rank_t *rank, size_t bytes)
{
    void *memory = NULL;
    const dp_status_t status = rank->engine->ops->alloc(rank->engine, bytes, &memory);

    engine_check(rank, status == DP_OK, "alloc of %zu bytes: %s", bytes, dp_status_string(status));
    return memory;
}
