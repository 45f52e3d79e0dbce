/*
 * memory.c - the memory half of dp.h: what ranks of a machine can reduce where it lies.
 *
 * The engine does the work; here its answers get the words of dp.h.
 */
#include "coordinator/context.h"
#include "runtime/base/inject.h"

dp_status_t dp_alloc(dp_context_t *context, size_t bytes, void **memory)
{
    dp_status_t status;

    if (context == NULL) return DP_ERR_INVALID;
    if (memory == NULL)
        return dp_context_error(context, DP_ERR_INVALID, "dp_alloc: memory is NULL");
    status = dp_inject_refuses(context->config.injector)
                 ? DP_ERR_NO_MEMORY
                 : context->engine->ops->alloc(context->engine, bytes, memory);
    if (status != DP_OK) {
        return dp_context_error(context, status,
                                "dp_alloc: %zu bytes are not to be had (DP_ARENA_BYTES is %zu)",
                                bytes, context->config.arena_bytes);
    }
    return DP_OK;
}

dp_status_t dp_free(dp_context_t *context, void *memory)
{
    dp_status_t status;

    if (context == NULL) return DP_ERR_INVALID;
    if (memory == NULL) return DP_OK;
    status = context->engine->ops->free(context->engine, memory);
    if (status != DP_OK)
        return dp_context_error(context, status, "dp_free: %p is not from dp_alloc", memory);
    return DP_OK;
}

dp_status_t dp_register(dp_context_t *context, void *memory, size_t bytes)
{
    dp_error_t error = {DP_OK, ""};
    dp_status_t status;

    if (context == NULL) return DP_ERR_INVALID;
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

    if (context == NULL) return DP_ERR_INVALID;
    if (memory == NULL) return DP_OK;
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
