/*
 * memory.c - memory that NCCL sends from and receives into without a copy: fused buffers and
 * dp_alloc() from ncclMemAlloc(), and what the program registers. Called from any thread; the
 * keeper calls dp_nccl_memory_join() and _leave().
 *
 * Each communicator knows each range under a handle of its own; one that is made later learns of
 * all there are. Between nodes NCCL before 2.32 may hang with registered memory, when an operation
 * of its protocol for small messages is followed by one that the network reads from there
 * (NVIDIA/nccl 2389): nothing is registered then. NCCL reduces in any device memory, so a
 * registration of our own that fails costs speed and is told at level debug; a program that asks
 * for one hears of it.
 */
#include "runtime/engine/nccl/nccl_internal.h"

#include <stdlib.h>

#define PAGE ((size_t)4096)
#define REGISTERS_BETWEEN_NODES 23200 /* as ncclGetVersion() says it */

/* ---- Handles -------------------------------------------------------------------------------- */

/* memory.lock is held. Room for the handle is made first: one that could not be kept could never be
 * given back. */
static dp_status_t add_handle(dp_nccl_range_t *range, dp_nccl_group_t *group, dp_error_t *error)
{
    dp_nccl_handle_t *grown;
    void *handle = NULL;
    dp_status_t status;

    if (!group->engine->memory.registers) return DP_OK;
    grown = realloc(range->handles, (range->handle_count + 1) * sizeof(*range->handles));
    if (grown == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory");
    range->handles = grown;
    pthread_mutex_lock(&group->issue_lock);
    status = DP_NCCL_CALL(group, ncclCommRegister(group->comm, range->base, range->bytes, &handle),
                          error);
    pthread_mutex_unlock(&group->issue_lock);
    if (status != DP_OK) return status;
    range->handles[range->handle_count++] = (dp_nccl_handle_t){group, handle};
    return DP_OK;
}

/* A communicator that was aborted has forgotten it. */
static void drop_handle(dp_nccl_engine_t *engine, const dp_nccl_handle_t *handle)
{
    dp_error_t error = {DP_OK, ""};
    dp_status_t status;

    pthread_mutex_lock(&handle->group->issue_lock);
    status = DP_NCCL_CALL(handle->group, ncclCommDeregister(handle->group->comm, handle->handle),
                          &error);
    pthread_mutex_unlock(&handle->group->issue_lock);
    if (status != DP_OK && status != DP_ERR_ABORTED) {
        dp_log_debug(engine->log, "nccl: a range stays registered: %s", error.text);
    }
}

/* memory.lock is held. */
static void free_range(dp_nccl_engine_t *engine, dp_nccl_range_t *range)
{
    for (size_t i = 0; i < range->handle_count; i++)
        drop_handle(engine, &range->handles[i]);
    if (range->is_own) {
        const ncclResult_t result = ncclMemFree(range->base);

        if (result != ncclSuccess) {
            dp_log_warn(engine->log, "nccl: %zu bytes are not freed: %s", range->bytes,
                        ncclGetErrorString(result));
        }
    }
    free(range->handles);
    free(range);
}

/* memory.lock is held, so no communicator joins or leaves meanwhile, and none of those that have
 * joined is freed. */
static dp_status_t register_everywhere(dp_nccl_engine_t *engine, dp_nccl_range_t *range,
                                       dp_error_t *error)
{
    dp_status_t status = add_handle(range, engine->world, error);

    for (dp_nccl_group_t *at = engine->memory.joined; status == DP_OK && at != NULL;
         at = at->next_joined)
        status = add_handle(range, at, error);
    return status;
}

void dp_nccl_memory_init(dp_nccl_engine_t *engine, int version)
{
    engine->memory.registers =
        engine->topology->node_count == 1 || version >= REGISTERS_BETWEEN_NODES;
    if (!engine->memory.registers) {
        dp_log_debug(engine->log,
                     "nccl: between nodes this NCCL may hang with registered memory, so "
                     "none is registered; 2.32 mends that");
    }
}

void dp_nccl_memory_join(dp_nccl_group_t *group)
{
    dp_nccl_engine_t *engine = group->engine;
    dp_error_t error = {DP_OK, ""};

    pthread_mutex_lock(&engine->memory.lock);
    for (dp_nccl_range_t *at = engine->memory.ranges; at != NULL; at = at->next) {
        const dp_status_t status = add_handle(at, group, &error);

        if (status != DP_OK && status != DP_ERR_ABORTED) {
            dp_log_debug(engine->log, "nccl: %zu bytes are not registered%s: %s", at->bytes,
                         group->title, error.text);
        }
    }
    group->next_joined = engine->memory.joined;
    engine->memory.joined = group;
    pthread_mutex_unlock(&engine->memory.lock);
}

/* Keeper, before the communicator ends: behind this call no other thread knows the group by way of
 * memory, and the keeper may free it. The world never joined, as all memory is registered with it.
 */
void dp_nccl_memory_leave(dp_nccl_group_t *group)
{
    dp_nccl_engine_t *engine = group->engine;
    dp_nccl_group_t **link = &engine->memory.joined;

    pthread_mutex_lock(&engine->memory.lock);
    while (*link != NULL && *link != group)
        link = &(*link)->next_joined;
    if (*link != NULL) *link = group->next_joined;
    for (dp_nccl_range_t *at = engine->memory.ranges; at != NULL; at = at->next) {
        for (size_t i = at->handle_count; i-- > 0;) {
            if (at->handles[i].group != group) continue;
            drop_handle(engine, &at->handles[i]);
            at->handles[i] = at->handles[--at->handle_count];
        }
    }
    pthread_mutex_unlock(&engine->memory.lock);
}

/* ---- Ranges --------------------------------------------------------------------------------- */

/* The link that points to the range, or the one at the end of the list. memory.lock is held. */
static dp_nccl_range_t **find_range(dp_nccl_engine_t *engine, const char *base)
{
    dp_nccl_range_t **at = &engine->memory.ranges;

    while (*at != NULL && (*at)->base != base)
        at = &(*at)->next;
    return at;
}

static dp_nccl_range_t *new_range(dp_nccl_engine_t *engine, void *base, size_t bytes, int is_own)
{
    dp_nccl_range_t *range = calloc(1, sizeof(*range));

    if (range == NULL) return NULL;
    range->base = base;
    range->bytes = bytes;
    range->is_own = is_own;
    range->next = engine->memory.ranges;
    engine->memory.ranges = range;
    return range;
}

/* On a stream of its own: cudaMemset() would wait for the default stream, where the program's work
 * may be waiting for an operation of this engine. */
static dp_status_t zero_memory(dp_nccl_engine_t *engine, void *memory, size_t bytes,
                               dp_error_t *error)
{
    dp_status_t status =
        DP_NCCL_CUDA(cudaMemsetAsync(memory, 0, bytes, engine->memory.zeroing), error);

    return status == DP_OK ? DP_NCCL_CUDA(cudaStreamSynchronize(engine->memory.zeroing), error)
                           : status;
}

/* On the calling thread's device. */
static dp_status_t alloc_here(dp_nccl_engine_t *engine, size_t room, void **memory)
{
    dp_error_t error = {DP_OK, ""};
    const ncclResult_t result = ncclMemAlloc(memory, room);
    dp_status_t status;

    if (result != ncclSuccess) {
        dp_log_debug(engine->log, "nccl: no %zu bytes of device memory: %s", room,
                     ncclGetErrorString(result));
        return DP_ERR_NO_MEMORY;
    }
    status = zero_memory(engine, *memory, room, &error);
    if (status != DP_OK) ncclMemFree(*memory);
    return status;
}

/* Zeroed and registered with every communicator that is ready. A registration that fails is no
 * failure: NCCL then copies through buffers of its own. */
dp_status_t dp_nccl_alloc(dp_engine_t *self, size_t bytes, void **memory)
{
    dp_nccl_engine_t *engine = dp_nccl_of(self);
    const dp_device_ops_t *device = engine->device->ops;
    const size_t room = dp_align_up(dp_max(bytes, 1), PAGE);
    dp_error_t error = {DP_OK, ""};
    dp_nccl_range_t *range;
    void *base = NULL;
    int back;
    dp_status_t status;

    if (bytes > SIZE_MAX - PAGE) return DP_ERR_NO_MEMORY;
    status = device->enter(engine->device, &back);
    if (status != DP_OK) return status;
    pthread_mutex_lock(&engine->memory.lock);
    status = alloc_here(engine, room, &base);
    range = status == DP_OK ? new_range(engine, base, room, 1) : NULL;
    if (range != NULL) {
        if (register_everywhere(engine, range, &error) != DP_OK) {
            dp_log_debug(engine->log, "nccl: %zu bytes are not registered: %s", room, error.text);
        }
        *memory = base;
    } else if (status == DP_OK) {
        status = DP_ERR_NO_MEMORY;
        ncclMemFree(base);
    }
    pthread_mutex_unlock(&engine->memory.lock);
    device->leave(engine->device, back);
    return status;
}

/* is_own: allocated here; 0: the program's. Memory of one origin cannot be released by the function
 * that is for the other. */
static dp_status_t forget_range(dp_nccl_engine_t *engine, void *memory, int is_own)
{
    const dp_device_ops_t *device = engine->device->ops;
    dp_nccl_range_t **at;
    dp_nccl_range_t *range;
    int back;
    dp_status_t status = device->enter(engine->device, &back);

    if (status != DP_OK) return status;
    pthread_mutex_lock(&engine->memory.lock);
    at = find_range(engine, memory);
    range = *at;
    if (range != NULL && range->is_own == is_own) {
        *at = range->next;
        free_range(engine, range);
    } else {
        range = NULL;
    }
    pthread_mutex_unlock(&engine->memory.lock);
    device->leave(engine->device, back);
    return range != NULL ? DP_OK : DP_ERR_INVALID;
}

dp_status_t dp_nccl_free(dp_engine_t *self, void *memory)
{
    return memory == NULL ? DP_OK : forget_range(dp_nccl_of(self), memory, 1);
}

int dp_nccl_owns(const dp_engine_t *self, const void *memory, size_t bytes)
{
    /* The lock is not the state that const speaks of. */
    dp_nccl_engine_t *engine = ((const dp_nccl_engine_t *)(const void *)self)->self;
    const char *at = memory;
    int owns = 0;

    pthread_mutex_lock(&engine->memory.lock);
    for (const dp_nccl_range_t *range = engine->memory.ranges; range != NULL && !owns;
         range = range->next) {
        owns = at >= range->base && bytes <= range->bytes &&
               (size_t)(at - range->base) <= range->bytes - bytes;
    }
    pthread_mutex_unlock(&engine->memory.lock);
    return owns;
}

static int overlaps(const dp_nccl_engine_t *engine, const char *base, size_t bytes)
{
    for (const dp_nccl_range_t *at = engine->memory.ranges; at != NULL; at = at->next) {
        if (base < at->base + at->bytes && at->base < base + bytes) return 1;
    }
    return 0;
}

dp_status_t dp_nccl_adopt(dp_engine_t *self, void *memory, size_t bytes, dp_error_t *error)
{
    dp_nccl_engine_t *engine = dp_nccl_of(self);
    dp_error_t why = {DP_OK, ""};
    const dp_device_ops_t *device = engine->device->ops;
    dp_nccl_range_t *range = NULL;
    dp_status_t status;
    int back;

    if (memory == NULL || bytes == 0) {
        return dp_error_set(error, DP_ERR_INVALID, "nccl: no memory to register");
    }
    if (device->kind(engine->device, memory) != DP_MEMORY_DEVICE) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "rank %d: nccl: %zu bytes at %p are not memory of this GPU",
                            engine->rank, bytes, memory);
    }
    status = device->enter(engine->device, &back);
    if (status != DP_OK) return status;
    pthread_mutex_lock(&engine->memory.lock);
    if (overlaps(engine, memory, bytes)) {
        status = dp_error_set(error, DP_ERR_INVALID,
                              "rank %d: nccl: some of %zu bytes at %p are registered already",
                              engine->rank, bytes, memory);
    } else {
        range = new_range(engine, memory, bytes, 0);
        if (range == NULL) status = dp_error_set(error, DP_ERR_NO_MEMORY, "nccl: no memory");
    }
    if (range != NULL) status = register_everywhere(engine, range, &why);
    if (range != NULL && status != DP_OK) {
        dp_error_set(error, status, "rank %d: nccl: registering %zu bytes: %s", engine->rank, bytes,
                     why.text);
        engine->memory.ranges = range->next;
        free_range(engine, range);
    }
    pthread_mutex_unlock(&engine->memory.lock);
    device->leave(engine->device, back);
    return status;
}

dp_status_t dp_nccl_disown(dp_engine_t *self, void *memory)
{
    return forget_range(dp_nccl_of(self), memory, 0);
}

void dp_nccl_memory_fini(dp_nccl_engine_t *engine)
{
    /* the program's kernels may use what it was given until the end */
    if (engine->memory.ranges != NULL) engine->device->ops->synchronize(engine->device);
    while (engine->memory.ranges != NULL) {
        dp_nccl_range_t *range = engine->memory.ranges;

        engine->memory.ranges = range->next;
        range->handle_count = 0; /* they went with the communicators */
        free_range(engine, range);
    }
}
