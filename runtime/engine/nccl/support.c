/*
 * support.c - what all files of the NCCL engine use: how it stops, errors of NCCL and CUDA in
 * words, waiting turn by turn, and threads.
 *
 * Called on any thread of the engine. It must not know what the engine is doing.
 */
#include "runtime/engine/nccl/nccl_internal.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Stopping ------------------------------------------------------------------------------- */

/* The device learns first: nothing that was half reduced may be used once streams move again. */
void dp_nccl_stop(dp_nccl_engine_t *engine, dp_status_t status, const char *text)
{
    if (engine->device->ops->abort != NULL) engine->device->ops->abort(engine->device);
    pthread_mutex_lock(&engine->lock);
    if (!dp_nccl_is_aborted(engine)) {
        engine->abort.status = status;
        engine->abort.ns = dp_now_ns();
        snprintf(engine->abort.text, sizeof(engine->abort.text), "%s", text);
        atomic_store_explicit(&engine->abort.is_set, 1, memory_order_release);
        pthread_cond_broadcast(&engine->change);
    }
    pthread_mutex_unlock(&engine->lock);
}

dp_status_t dp_nccl_stop_in(const dp_nccl_task_t *task, dp_status_t status, const char *format, ...)
{
    char why[DP_ERROR_TEXT_MAX];
    dp_error_t error;
    va_list list;

    va_start(list, format);
    vsnprintf(why, sizeof(why), format, list); /* NOLINT(clang-analyzer-valist.Uninitialized) */
    va_end(list);
    dp_error_set(&error, status, "rank %d: nccl: %s %llu%s: %s", task->engine->rank,
                 dp_collective_name(task->collective), (unsigned long long)task->sequence,
                 task->group->title, why);
    dp_nccl_stop(task->engine, status, error.text);
    return status;
}

/* ---- Errors, turns, threads ----------------------------------------------------------------- */

/* Most calls of NCCL settle within microseconds, so the first turns only yield. A wait that takes
 * longer takes seconds as a rule (a peer is late), and must not burn a core meanwhile. */
void dp_nccl_back_off(unsigned *turns)
{
    const long ns = *turns < 200 ? 0 : *turns < 1000 ? 20000 : 500000;
    const struct timespec pause = {0, ns};

    ++*turns;
    if (ns == 0) {
        sched_yield();
    } else {
        nanosleep(&pause, NULL);
    }
}

/* Only what a caller would act on differently has a status of its own; the text has NCCL's words.
 */
dp_status_t dp_nccl_status(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return DP_OK;
    case ncclRemoteError:
        return DP_ERR_PEER_LOST;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return DP_ERR_INVALID;
    default:
        return DP_ERR_SYSTEM;
    }
}

dp_status_t dp_nccl_cuda(int result, const char *what, dp_error_t *error)
{
    if (result == cudaSuccess) return DP_OK;
    (void)cudaGetLastError(); /* told here; the program's next question is not answered with it */
    return dp_error_set(error, DP_ERR_SYSTEM, "%.*s: %s", (int)strcspn(what, "("), what,
                        cudaGetErrorString((cudaError_t)result));
}
