/*
 * nccl.c - the NCCL engine: its life, its operations' life, and its end by abort.
 *
 * An operation is issued on the stream by the launch thread between two stamps of the time; the
 * device's completion thread ends it once the stream has come there. The first failure
 * stays and ends the engine: communicators are broken so that no kernel waits for a peer any more,
 * streams run dry, and every operation on them completes with the same text. How ranks agree on
 * the order of operations is none of its business; nor does it compress: fused buffers hold the
 * type that travels, and the casts of packing apply the scales.
 */
#include "runtime/engine/nccl/nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda.h"
#include "runtime/base/inject.h"

/* ---- Operations ----------------------------------------------------------------------------- */

/* Flags of tasks: the GPU writes 1 when it comes to an operation, and the watcher reads it. The
 * memory is pinned and mapped, so that reading needs no call into CUDA (watch.c says why that
 * matters). Pages are never given back before the end: a kernel of an aborted operation may write
 * its flag late. */
static dp_status_t add_page(dp_nccl_issuing_t *issuing)
{
    dp_nccl_page_t *page = calloc(1, sizeof(*page));

    if (page == NULL) return DP_ERR_NO_MEMORY;
    if (cudaHostAlloc((void **)&page->flags, DP_NCCL_PAGE * sizeof(*page->flags),
                      cudaHostAllocMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        free(page);
        return DP_ERR_NO_MEMORY;
    }
    page->next = issuing->pages;
    issuing->pages = page;
    return DP_OK;
}

static void free_pages(dp_nccl_issuing_t *issuing)
{
    while (issuing->pages != NULL) {
        dp_nccl_page_t *page = issuing->pages;

        issuing->pages = page->next;
        cudaFreeHost(page->flags);
        free(page);
    }
}

static dp_nccl_task_t *make_task(dp_nccl_engine_t *engine, dp_lane_t lane)
{
    dp_nccl_issuing_t *issuing = dp_nccl_issuing_of(engine, lane);
    dp_nccl_task_t *task = calloc(1, sizeof(*task));

    if (task == NULL) return NULL;
    if (issuing->pages->used == DP_NCCL_PAGE && add_page(issuing) != DP_OK) {
        free(task);
        return NULL;
    }
    task->engine = engine;
    task->begun = &issuing->pages->flags[issuing->pages->used++];
    return task;
}

/* Whose communicator carries the operation. */
static dp_nccl_group_t *group_of(const dp_nccl_engine_t *engine, const dp_engine_op_t *op)
{
    dp_nccl_group_t *group =
        op->group != NULL ? (dp_nccl_group_t *)(void *)op->group : engine->world;

    /* An ordered group's other operations, those by which it is made and ended, are over before its
     * own begin, and begin after those. */
    if (op->lane >= DP_LANE_ORDERED) return op->group != NULL ? group : engine->ordered;
    if (op->lane == DP_LANE_MAIN) return group;
    DP_ASSERT(group->gathers != NULL); /* dp_nccl_open_gather_lane() came before */
    return group->gathers;
}

/* The task enters the list before it is issued, so that dp_nccl_await_event() sees which operations
 * are earlier and the watcher looks for errors while NCCL is still taking it. */
static dp_nccl_task_t *acquire_task(dp_nccl_engine_t *engine, dp_engine_op_t *op)
{
    dp_nccl_task_t *task;

    pthread_mutex_lock(&engine->lock);
    task = engine->spare_tasks;
    if (task != NULL) engine->spare_tasks = task->next;
    pthread_mutex_unlock(&engine->lock);
    if (task == NULL) task = make_task(engine, op->lane);
    if (task == NULL) return NULL;
    task->op = op;
    task->group = group_of(engine, op);
    task->sequence = op->sequence;
    task->collective = op->collective;
    task->is_issued = 0;
    task->begun_ns = 0;
    __atomic_store_n(task->begun, 0u, __ATOMIC_RELAXED); /* its last kernel has written it */
    task->truncated.status = DP_OK;
    pthread_mutex_lock(&engine->lock);
    task->group->in_flight++;
    task->next = engine->tasks;
    task->link = &engine->tasks;
    if (task->next != NULL) task->next->link = &task->next;
    engine->tasks = task;
    pthread_cond_broadcast(&engine->change);
    pthread_mutex_unlock(&engine->lock);
    return task;
}

static void release_task(dp_nccl_task_t *task)
{
    dp_nccl_engine_t *engine = task->engine;

    pthread_mutex_lock(&engine->lock);
    *task->link = task->next;
    if (task->next != NULL) task->next->link = task->link;
    task->group->in_flight--;
    task->next = engine->spare_tasks;
    engine->spare_tasks = task;
    pthread_mutex_unlock(&engine->lock);
}

/* Completion thread: the device has passed the operation. An engine that was aborted before may
 * have cut it short, so its result is never reported as good. A time that was not stamped (the
 * engine stopped in between) becomes the end's. */
static void finish_operation(void *argument)
{
    dp_nccl_task_t *task = argument;
    dp_nccl_engine_t *engine = task->engine;
    dp_engine_op_t *op = task->op;

    if (op->end_ns == 0) op->end_ns = dp_now_ns();
    if (op->begin_ns == 0) op->begin_ns = op->end_ns;
    op->status = DP_OK;
    op->text[0] = '\0';
    if (dp_nccl_is_aborted(engine)) {
        pthread_mutex_lock(&engine->lock);
        op->status = engine->abort.status;
        memcpy(op->text, engine->abort.text, sizeof(op->text));
        pthread_mutex_unlock(&engine->lock);
    } else if (task->truncated.status != DP_OK) {
        op->status = task->truncated.status;
        memcpy(op->text, task->truncated.text, sizeof(op->text));
    }
    release_task(task); /* last: from here on another operation may get the task */
}

/* The bytes that the ring makes a rank send to other nodes: an upper bound, as only the last
 * rank of a node sends there. */
static uint64_t wire_bytes(const dp_nccl_task_t *task)
{
    const dp_engine_op_t *op = task->op;
    const uint64_t size = (uint64_t)task->group->size;
    uint64_t elements = 0;

    if (task->engine->topology->node_count < 2) return 0;
    for (size_t i = 0; i < op->piece_count; i++)
        elements += op->pieces[i].count;
    if (op->collective == DP_COLLECTIVE_ALLREDUCE)
        return 2 * elements * (size - 1) / size * dp_dtype_bytes(op->dtype);
    if (op->collective == DP_COLLECTIVE_ALLGATHER ||
        op->collective == DP_COLLECTIVE_REDUCE_SCATTER) {
        elements *= size - 1;
    }
    return elements * dp_dtype_bytes(op->dtype);
}

/* The group's issue_lock is held for all calls of one operation. The keeper takes it for each of
 * its own, so these come before or behind an operation and never between its parts. An ordered lane
 * does not wait for the keeper: its group's communicator is there, and where all ranks keep the
 * program's order, what this one has issued ends whatever the keepers wait for. */
static dp_status_t issue_operation(dp_nccl_task_t *task, cudaStream_t stream, dp_error_t *error)
{
    dp_engine_op_t *op = task->op;
    dp_status_t status =
        op->lane >= DP_LANE_ORDERED ? DP_OK : dp_nccl_await_keeper(task->group, error);

    if (status != DP_OK) return status;
    if (op->wire == DP_WIRE_FP16 || op->wire == DP_WIRE_BF16) {
        return dp_error_set(error, DP_ERR_INVALID, "a wire of another type than the elements");
    }
    pthread_mutex_lock(&task->group->issue_lock);
    status = op->exchange != NULL ? dp_nccl_issue_exchange(task, stream, error)
                                  : dp_nccl_issue(task, stream, error);
    pthread_mutex_unlock(&task->group->issue_lock);
    return status;
}

/*
 * On the stream, in this order:
 *
 *     stamp begin_ns | begun = 1 | NCCL's kernels | stamp end_ns | finish_operation()
 *
 * Where an operation cannot be issued, the engine stops, and finish_operation() is queued all the
 * same. So every operation ends in one place, in the order of the stream, with the engine's reason.
 */
static dp_status_t nccl_enqueue(dp_engine_t *self, dp_stream_t *stream, dp_work_size_t size,
                                dp_engine_op_t *op)
{
    dp_nccl_engine_t *engine = dp_nccl_of(self);
    const dp_device_ops_t *device = engine->device->ops;
    cudaStream_t native = device->stream_native(stream);
    dp_nccl_task_t *task;
    dp_error_t error = {DP_OK, ""};
    dp_status_t status = device->enter(engine->device, NULL);

    if (status != DP_OK) return status;
    task = acquire_task(engine, op);
    if (task == NULL) return DP_ERR_NO_MEMORY;
    op->begin_ns = op->end_ns = op->wait_ns = 0;
    op->last_rank = -1;
    op->wire_bytes = wire_bytes(task);
    dp_inject_enter(engine->injector, DP_INJECT_ENGINE);
    if (!dp_nccl_is_aborted(engine)) {
        status = device->stamp(stream, &op->begin_ns);
        if (status == DP_OK)
            status = DP_NCCL_CUDA(dp_cuda_set_word(task->begun, 1, native), &error);
        if (status == DP_OK) status = issue_operation(task, native, &error);
        if (status == DP_OK) status = device->stamp(stream, &op->end_ns);
        if (status != DP_OK) {
            dp_nccl_stop_in(task, status, "%s",
                            error.text[0] != '\0' ? error.text : dp_status_string(status));
        } else {
            pthread_mutex_lock(&engine->lock);
            task->is_issued = 1;
            pthread_mutex_unlock(&engine->lock);
        }
    }
    status = device->call(stream, size, finish_operation, task);
    if (status != DP_OK) release_task(task);
    return status;
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void free_issuing(dp_nccl_issuing_t *issuing)
{
    free_pages(issuing);
    if (issuing->scratch.pool != NULL) cudaMemPoolDestroy(issuing->scratch.pool);
    if (issuing->side != NULL) cudaStreamDestroy(issuing->side);
    if (issuing->manifests.came != NULL) cudaEventDestroy(issuing->manifests.came);
    if (issuing->manifests.host != NULL) cudaFreeHost(issuing->manifests.host);
    if (issuing->manifests.device != NULL) cudaFree(issuing->manifests.device);
    if (issuing->barrier != NULL) cudaFree(issuing->barrier);
    free(issuing->pieces.sources);
    free(issuing->pieces.outputs);
    free(issuing->pieces.strides);
    free(issuing->pieces.inputs);
    free(issuing->scratch.list);
}

/* The threads end the communicators, so they go first; memory was known to communicators, so it
 * goes behind them; locks and pinned flags last. Also of an engine that was made in part. */
static void nccl_destroy(dp_engine_t *self)
{
    dp_nccl_engine_t *engine = dp_nccl_of(self);

    if (engine == NULL) return;
    dp_nccl_threads_stop(engine);
    dp_nccl_memory_fini(engine);
    while (engine->groups != NULL) {
        dp_nccl_group_t *group = engine->groups;

        engine->groups = group->next;
        dp_nccl_group_free(group);
    }
    dp_nccl_group_free(engine->world);
    while (engine->spare_tasks != NULL) {
        dp_nccl_task_t *task = engine->spare_tasks;

        engine->spare_tasks = task->next;
        free(task);
    }
    for (int i = 0; i < DP_LANE_COUNT; i++)
        free_issuing(&engine->issuing[i]);
    if (engine->memory.zeroing != NULL) cudaStreamDestroy(engine->memory.zeroing);
    if (engine->making.id != NULL) cudaFreeHost(engine->making.id);
    if (engine->making.device_id != NULL) cudaFree(engine->making.device_id);
    pthread_cond_destroy(&engine->change);
    pthread_mutex_destroy(&engine->lock);
    pthread_mutex_destroy(&engine->call_lock);
    pthread_mutex_destroy(&engine->memory.lock);
    free(engine);
}

static void nccl_abort(dp_engine_t *self, dp_status_t status, const char *text)
{
    dp_nccl_stop(dp_nccl_of(self), status, text);
}

/* The objects only; dp_nccl_connect_world() makes the communicators. */
static dp_status_t make_world(dp_nccl_engine_t *engine, dp_nccl_group_t **out, dp_error_t *error)
{
    int *ranks = calloc((size_t)engine->size, sizeof(*ranks));
    const dp_engine_members_t members = {.ranks = ranks, .count = engine->size, .name = "world"};
    dp_status_t status;

    if (ranks == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "nccl: no memory");
    for (int i = 0; i < engine->size; i++)
        ranks[i] = i;
    status = dp_nccl_group_make(engine, &members, out, error);
    free(ranks);
    return status;
}

static dp_status_t make_stream(cudaStream_t *stream, dp_error_t *error)
{
    return DP_NCCL_CUDA(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), error);
}

/* Scratch of operations. The device's own pool gives memory back to the driver whenever somebody
 * waits for the device, and it is the program's to tune; this one keeps what it has. */
static void make_pool(const dp_nccl_engine_t *engine, dp_nccl_issuing_t *issuing)
{
    const struct cudaMemPoolProps wanted = {
        .allocType = cudaMemAllocationTypePinned,
        .handleTypes = cudaMemHandleTypeNone,
        .location = {.type = cudaMemLocationTypeDevice, .id = engine->gpu}};
    uint64_t all = UINT64_MAX;

    if (cudaMemPoolCreate(&issuing->scratch.pool, &wanted) != cudaSuccess) {
        (void)cudaGetLastError(); /* the device's pool will do, or the operation says why not */
        issuing->scratch.pool = NULL;
    } else if (cudaMemPoolSetAttribute(issuing->scratch.pool, cudaMemPoolAttrReleaseThreshold,
                                       &all) != cudaSuccess) {
        (void)cudaGetLastError(); /* only slower */
    }
}

/* Memory that no operation may have to wait for: memory of the device and pinned memory. Manifests
 * of MANIFESTS_AT_ONCE ranks find room from the beginning, so that nothing is allocated, let alone
 * freed, while the device is at work: CUDA may wait for all of it, also for what waits for this
 * thread. */
static dp_status_t make_issuing(dp_nccl_engine_t *engine, dp_lane_t lane, dp_error_t *error)
{
    enum { MANIFESTS_AT_ONCE = 512 };
    const size_t size = (size_t)engine->size;
    dp_nccl_issuing_t *issuing = &engine->issuing[lane];
    dp_status_t status = make_stream(&issuing->side, error);

    if (status != DP_OK) return status;
    status = add_page(issuing);
    if (status != DP_OK) return dp_error_set(error, status, "nccl: no pinned memory");
    issuing->pieces.inputs = calloc(size, sizeof(*issuing->pieces.inputs));
    if (issuing->pieces.inputs == NULL)
        return dp_error_set(error, DP_ERR_NO_MEMORY, "nccl: no memory");
    make_pool(engine, issuing);
    issuing->manifests.words = size * (3 + dp_min(size, MANIFESTS_AT_ONCE));
    status = DP_NCCL_CUDA(cudaMallocHost((void **)&issuing->manifests.host,
                                         issuing->manifests.words * sizeof(uint64_t)),
                          error);
    if (status == DP_OK) {
        status = DP_NCCL_CUDA(cudaMalloc((void **)&issuing->manifests.device,
                                         issuing->manifests.words * sizeof(uint64_t)),
                              error);
    }
    if (status == DP_OK) status = DP_NCCL_CUDA(cudaMalloc((void **)&issuing->barrier, 256), error);
    if (status == DP_OK) { /* our streams do not wait for the default one */
        status =
            DP_NCCL_CUDA(cudaMemsetAsync(issuing->barrier, 0, 256, engine->memory.zeroing), error);
    }
    if (status == DP_OK)
        status = DP_NCCL_CUDA(cudaStreamSynchronize(engine->memory.zeroing), error);
    if (status == DP_OK) {
        status = DP_NCCL_CUDA(
            cudaEventCreateWithFlags(&issuing->manifests.came, cudaEventDisableTiming), error);
    }
    return status;
}

/* For the ids of communicators. */
static dp_status_t make_making(dp_nccl_engine_t *engine, dp_error_t *error)
{
    const dp_status_t status = DP_NCCL_CUDA(
        cudaMallocHost((void **)&engine->making.id, sizeof(*engine->making.id)), error);

    if (status != DP_OK) return status;
    return DP_NCCL_CUDA(
        cudaMalloc((void **)&engine->making.device_id, sizeof(*engine->making.device_id)), error);
}

/* A group's communicator is there, so no rank needs to know more of the others. */
static dp_status_t nccl_lane_open(dp_engine_t *self, dp_lane_t lane, const void **address,
                                  size_t *bytes, dp_error_t *error)
{
    dp_nccl_engine_t *engine = dp_nccl_of(self);
    const dp_status_t status = engine->device->ops->enter(engine->device, NULL);

    *address = NULL;
    *bytes = 0;
    if (status != DP_OK || engine->issuing[lane].side != NULL) return status;
    return make_issuing(engine, lane, error);
}

static const dp_engine_ops_t nccl_ops = {
    .name = "nccl",
    .compresses = 0,
    .alloc = dp_nccl_alloc,
    .free = dp_nccl_free,
    .owns = dp_nccl_owns,
    .adopt = dp_nccl_adopt,
    .disown = dp_nccl_disown,
    .group_create = dp_nccl_group_create,
    .lane_open = nccl_lane_open,
    .open_gather_lane = dp_nccl_open_gather_lane,
    .group_destroy = dp_nccl_group_destroy,
    .enqueue = nccl_enqueue,
    .abort = nccl_abort,
    .destroy = nccl_destroy,
};

/* Groups and lanes share the GPU: on all ranks their kernels start in the order they are issued in,
 * and may then run beside each other. NCCL reads this once in a process, perhaps for other
 * communicators than ours, and setenv() is not safe beside other threads. So it must be there. */
static dp_status_t check_launch_order(const dp_nccl_engine_t *engine, dp_error_t *error)
{
    static const char variable[] = "NCCL_LAUNCH_ORDER_IMPLICIT";

    if (engine->size == 1 || dp_environment(variable) != NULL) return DP_OK;
    return dp_error_set(error, DP_ERR_CONFIG,
                        "rank %d: nccl: %s=1 is not in the environment, and communicators that "
                        "share a GPU may wait for each other for ever without it: start the job by "
                        "dprun or import dp before torch works, which set it, or set it yourself",
                        engine->rank, variable);
}

static dp_status_t init_engine(dp_nccl_engine_t *engine, const dp_config_t *config,
                               dp_error_t *error)
{
    char text[80];
    dp_status_t status = check_launch_order(engine, error);

    if (status == DP_OK) status = make_world(engine, &engine->world, error);
    if (status == DP_OK && config->order == DP_CONFIG_ORDER_PROGRAM) {
        status = make_world(engine, &engine->ordered, error);
        engine->groups = engine->ordered; /* it ends with the groups */
    }
    if (status == DP_OK) status = DP_NCCL_CUDA(cudaGetDevice(&engine->gpu), error);
    if (status == DP_OK) status = make_stream(&engine->memory.zeroing, error);
    if (status == DP_OK) status = make_issuing(engine, DP_LANE_MAIN, error);
    if (status == DP_OK) status = make_making(engine, error);
    if (status == DP_OK) status = dp_nccl_connect_world(engine, error);
    if (status == DP_OK) status = dp_nccl_threads_start(engine, error);
    if (status != DP_OK) return status;
    dp_engine_nccl_describe(text, sizeof(text));
    dp_log_debug(engine->log, "engine nccl: %s, rank %d of %d on GPU %d, at most %d CTAs", text,
                 engine->rank, engine->size, engine->gpu, engine->max_ctas);
    return DP_OK;
}

/* DP_START_TIMEOUT is for what takes milliseconds: processes that meet. Each step of a GPU's start
 * has so many times as long. On a cold cluster ranks come to it apart by the time in which a file
 * system hands out 250 MB of libnccl and CUDA makes its contexts, and NCCL's own search of the
 * fabric takes tens of seconds for many GPUs. A rank that dies meanwhile is noticed at once. */
#define START_TIMES 10

/* The watcher's sleeps end at times of dp_now_ns(), which is the monotonic clock. */
static void init_locks(dp_nccl_engine_t *engine)
{
    pthread_condattr_t clock;

    pthread_mutex_init(&engine->lock, NULL);
    pthread_mutex_init(&engine->call_lock, NULL);
    pthread_mutex_init(&engine->memory.lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&engine->change, &clock);
    pthread_condattr_destroy(&clock);
}

dp_status_t dp_engine_nccl_create(dp_bootstrap_t *bootstrap, const dp_topology_t *topology,
                                  dp_device_t *device, const dp_config_t *config,
                                  const dp_log_t *log, dp_trace_t *trace, dp_engine_t **out,
                                  dp_error_t *error)
{
    dp_nccl_engine_t *engine = calloc(1, sizeof(*engine));
    dp_status_t status;

    (void)trace; /* the pipeline records from begin_ns to end_ns of each operation */
    if (engine == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "nccl: no memory");
    engine->base.ops = &nccl_ops;
    engine->self = engine;
    engine->topology = topology;
    engine->bootstrap = bootstrap;
    engine->device = device;
    engine->log = log;
    engine->injector = config->injector;
    engine->rank = bootstrap->rank;
    engine->size = bootstrap->size;
    engine->max_ctas = config->nccl_ctas;
    if (topology->node_count > 1)
        snprintf(engine->interface, sizeof(engine->interface), "%s", config->net_interface);
    engine->limits.operation_ns = config->nccl_limit_ns;
    engine->limits.break_ns = config->nccl_abort_ns;
    engine->limits.start_ns = START_TIMES * config->start_timeout_ns;
    engine->jobs.tail = &engine->jobs.first;
    init_locks(engine);
    if (!device->ops->is_async) {
        status = dp_error_set(error, DP_ERR_INVALID, "nccl: the device '%s' has no CUDA streams",
                              device->ops->name);
    } else {
        status = init_engine(engine, config, error);
    }
    if (status != DP_OK) {
        dp_nccl_stop(engine, status, "the engine could not be made");
        nccl_destroy(&engine->base);
        return status;
    }
    *out = &engine->base;
    return DP_OK;
}
