/*
 * memory.c - memory that the ranks of a node can reduce where it lies: dp_alloc(), dp_register().
 *
 * The engine does the work; here its answers become statuses and texts of dp.h. Called on any of
 * the program's threads.
 */
#include "coordinator/api/context/context.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/operation/request.h"

#include <stdint.h>
#include <stdio.h>

#include "coordinator/api/context/fork.h"
#include "runtime/base/inject.h"
#include "runtime/base/limits.h"

dp_status_t dp_alloc(dp_context_t *context, size_t bytes, void **memory)
{
    char limits[160];
    dp_status_t status;

    if (context == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    if (memory == NULL)
        return dp_context_error(context, DP_ERR_INVALID, "dp_alloc: memory is NULL");
    status = dp_inject_refuses(context->config.injector)
                 ? DP_ERR_NO_MEMORY
                 : context->engine->ops->alloc(context->engine, bytes, memory);
    if (status != DP_OK) {
        return dp_context_error(
            context, status, "dp_alloc: no memory for %zu bytes (DP_ARENA_BYTES is %zu)%s", bytes,
            context->config.arena_bytes, dp_limits_describe_memory(limits, sizeof(limits)));
    }
    return DP_OK;
}

/* 1: address lies in the block of engine memory that begins at memory. */
static int is_inside(const dp_context_t *context, const char *memory, const void *address)
{
    const uintptr_t first = (uintptr_t)memory, at = (uintptr_t)address;

    return address != NULL && at >= first &&
           context->engine->ops->owns(context->engine, memory, at - first + 1);
}

/* 1: the operation reads or writes that block. */
static int uses(const dp_handle_t *request, const char *memory)
{
    for (size_t i = 0; i < request->tensor_count; i++) {
        const dp_pipeline_tensor_t *tensor = &request->tensors[i];

        if (is_inside(request->context, memory, tensor->in) ||
            is_inside(request->context, memory, tensor->out))
            return 1;
    }
    return is_inside(request->context, memory, request->exchange.recv_counts);
}

/* Memory that an operation in flight reads or writes must stay: other ranks of the node may be
 * working in it, and after a dp_free() it could be another tensor's. */
static dp_status_t check_unused(dp_context_t *context, const char *call, const void *memory)
{
    char name[DP_NAME_MAX + DP_GROUP_NAME_MAX + 32] = "";
    const dp_handle_t *request;

    pthread_mutex_lock(&context->lock);
    request = context->requests.live_first;
    while (request != NULL && !uses(request, memory))
        request = request->links.following;
    if (request != NULL) snprintf(name, sizeof(name), "%s", request->name_state->label);
    pthread_mutex_unlock(&context->lock);
    if (name[0] == '\0') return DP_OK;
    return dp_context_error(context, DP_ERR_BUSY, "%s: tensor %s is in flight and lies in %p", call,
                            name, memory);
}

dp_status_t dp_free(dp_context_t *context, void *memory)
{
    dp_status_t status;

    if (context == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    if (memory == NULL) return DP_OK;
    status = check_unused(context, "dp_free", memory);
    if (status != DP_OK) return status;
    /* A queued kernel may still use it. Waits like cudaFree(), which programs know. */
    if (context->device->ops->is_async) context->device->ops->synchronize(context->device);
    status = context->engine->ops->free(context->engine, memory);
    if (status != DP_OK)
        return dp_context_error(context, status, "dp_free: %p is not from dp_alloc", memory);
    return DP_OK;
}

dp_status_t dp_register(dp_context_t *context, void *memory, size_t bytes)
{
    dp_error_t error = {DP_OK, ""};
    dp_status_t status;

    if (context == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    if (memory == NULL)
        return dp_context_error(context, DP_ERR_INVALID, "dp_register: memory is NULL");
    status = context->engine->ops->adopt(context->engine, memory, bytes, &error);
    if (status != DP_OK) {
        return dp_context_error(context, status, "dp_register: rank %d: %zu bytes at %p: %s",
                                context->rank, bytes, memory, error.text);
    }
    return DP_OK;
}

dp_status_t dp_deregister(dp_context_t *context, void *memory)
{
    dp_status_t status;

    if (context == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    if (memory == NULL) return DP_OK;
    status = check_unused(context, "dp_deregister", memory);
    if (status != DP_OK) return status;
    status = context->engine->ops->disown(context->engine, memory);
    if (status == DP_ERR_INVALID) {
        return dp_context_error(
            context, status,
            "dp_deregister: rank %d: %p is not the start of a registration that still stands",
            context->rank, memory);
    }
    if (status != DP_OK) {
        return dp_context_error(context, status,
                                "dp_deregister: rank %d: no private memory for what is "
                                "registered at %p, which stays so",
                                context->rank, memory);
    }
    return DP_OK;
}
