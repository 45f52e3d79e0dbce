/*
 * watch.c - the two threads of the NCCL engine, and how an abort comes to an end.
 *
 * The keeper makes and ends communicators, one after the other, in the order in which the launch
 * thread asked for that; when the engine is aborted it aborts them all. The launch thread issues
 * nothing while the keeper has such work (dp_nccl_await_keeper() says why).
 *
 * The watcher asks NCCL for errors while operations are in flight, and reads from pinned memory
 * when the GPU began them. If the keeper does not finish an abort in time, a peer or a driver
 * hangs; then the watcher ends the process, as a rank that is stuck would hold up the whole job.
 * The watcher never calls CUDA: such a call may be stuck behind another thread's that waits for the
 * device, and then nothing would notice that the device waits for ever.
 */
#include "runtime/engine/nccl/nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/thread.h"

#define LOOK_NS 10000000u /* between two looks at operations in flight */

/* ---- The keeper ----------------------------------------------------------------------------- */

/* Keeper. No operation of the group is left: the pipeline ends a group behind its last one. */
static void forget_group(dp_nccl_group_t *group)
{
    dp_nccl_engine_t *engine = group->engine;
    dp_nccl_group_t **at = &engine->groups;

    pthread_mutex_lock(&engine->lock);
    while (*at != group)
        at = &(*at)->next;
    *at = group->next;
    pthread_mutex_unlock(&engine->lock);
    dp_nccl_group_free(group);
}

/* lock is held, and given back for the time of the work. */
static void keep_job(dp_nccl_engine_t *engine)
{
    dp_nccl_group_t *group = engine->jobs.first;
    const int is_new = group->state == DP_NCCL_MAKING;

    engine->jobs.first = group->next_job;
    if (engine->jobs.first == NULL) engine->jobs.tail = &engine->jobs.first;
    group->next_job = NULL;
    pthread_mutex_unlock(&engine->lock);
    if (is_new) {
        dp_nccl_keep_make(group);
    } else {
        dp_nccl_keep_end(group);
        if (!dp_nccl_is_aborted(engine)) forget_group(group);
    }
    pthread_mutex_lock(&engine->lock);
    engine->jobs.left--;
    pthread_cond_broadcast(&engine->change);
}

/* An abort comes before everything else, then communicators to be made or ended, then, at the end
 * of the engine, those that are still there. is_torn is what the watcher waits for after an abort.
 */
static void *keeper_main(void *argument)
{
    dp_nccl_engine_t *engine = argument;

    /* what fails here fails again with the first communicator */
    (void)engine->device->ops->enter(engine->device, NULL);
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        if (dp_nccl_is_aborted(engine)) {
            if (!engine->is_torn) {
                pthread_mutex_unlock(&engine->lock);
                dp_nccl_keep_break(engine);
                pthread_mutex_lock(&engine->lock);
                engine->is_torn = 1;
                pthread_cond_broadcast(&engine->change);
                continue;
            }
        } else if (engine->jobs.first != NULL) {
            keep_job(engine);
            continue;
        } else if (engine->is_stopping && engine->groups != NULL) {
            /* The youngest first: the order of all ranks, whatever groups each is in. */
            dp_nccl_group_t *group = engine->groups;

            pthread_mutex_unlock(&engine->lock);
            dp_nccl_keep_end(group);
            if (!dp_nccl_is_aborted(engine)) forget_group(group);
            pthread_mutex_lock(&engine->lock);
            continue;
        }
        if (engine->is_stopping) break;
        pthread_cond_wait(&engine->change, &engine->lock);
    }
    pthread_mutex_unlock(&engine->lock);
    if (!dp_nccl_is_aborted(engine)) dp_nccl_keep_end(engine->world);
    return NULL;
}

/* ---- The watcher ---------------------------------------------------------------------------- */

/* The first operation of a group that is under way, or NULL. lock is held. */
static const dp_nccl_task_t *first_of(const dp_nccl_engine_t *engine, const dp_nccl_group_t *group)
{
    const dp_nccl_task_t *first = NULL;

    for (const dp_nccl_task_t *at = engine->tasks; at != NULL; at = at->next) {
        if (at->group == group && (first == NULL || at->sequence < first->sequence)) first = at;
    }
    return first;
}

/* lock is held. call_lock is only tried: a thread that is stuck in NCCL may hold it, and must not
 * stop the watcher. */
static dp_status_t look_for_error(dp_nccl_engine_t *engine, dp_nccl_group_t *group,
                                  dp_error_t *error)
{
    const dp_nccl_task_t *first;
    ncclResult_t state = ncclSuccess;
    char why[160] = "";

    /* A thread that is inside of a call finds the error itself. */
    if (group->in_flight == 0 || pthread_mutex_trylock(&engine->call_lock) != 0) return DP_OK;
    if (group->comm != NULL) {
        if (ncclCommGetAsyncError(group->comm, &state) != ncclSuccess) state = ncclInternalError;
        if (state != ncclSuccess && state != ncclInProgress) {
            snprintf(why, sizeof(why), "%s", ncclGetLastError(group->comm));
        }
    }
    pthread_mutex_unlock(&engine->call_lock);
    if (state == ncclSuccess || state == ncclInProgress) return DP_OK;
    first = first_of(engine, group);
    return dp_error_set(error, dp_nccl_status(state), "rank %d: nccl: %s %llu%s: %s%s%s",
                        engine->rank,
                        first != NULL ? dp_collective_name(first->collective) : "after operation",
                        first != NULL ? (unsigned long long)first->sequence : 0ull, group->title,
                        ncclGetErrorString(state), why[0] != '\0' ? ": " : "", why);
}

/* The limit counts from when the GPU began the operation, not from when it was issued: behind a
 * long backward pass it may lie on the stream for as long as that takes. lock is held. */
static dp_status_t look_at_time(dp_nccl_task_t *task, dp_error_t *error)
{
    dp_nccl_engine_t *engine = task->engine;
    const uint64_t now_ns = dp_now_ns();

    if (engine->limits.operation_ns == 0) return DP_OK;
    if (task->begun_ns == 0) {
        /* The GPU's store into pinned memory needs no partner: the flag says all there is. */
        if (task->is_issued && __atomic_load_n(task->begun, __ATOMIC_ACQUIRE) != 0) {
            task->begun_ns = now_ns;
        }
        return DP_OK;
    }
    if (now_ns - task->begun_ns <= engine->limits.operation_ns) return DP_OK;
    return dp_error_set(
        error, DP_ERR_TIMEOUT, "rank %d: nccl: %s %llu%s runs for longer than %llu ms",
        engine->rank, dp_collective_name(task->collective), (unsigned long long)task->sequence,
        task->group->title, (unsigned long long)(engine->limits.operation_ns / 1000000));
}

/* lock is held. */
static dp_status_t look_at_operations(dp_nccl_engine_t *engine, dp_error_t *error)
{
    dp_status_t status = look_for_error(engine, engine->world, error);

    for (dp_nccl_group_t *at = engine->groups; status == DP_OK && at != NULL; at = at->next)
        status = look_for_error(engine, at, error);
    for (dp_nccl_task_t *at = engine->tasks; status == DP_OK && at != NULL; at = at->next)
        status = look_at_time(at, error);
    return status;
}

/* The abort hangs in NCCL or in the driver, so no handler may run that calls them: _exit(), after
 * the launcher has been told why. The kernel closes the rest. */
static _Noreturn void end_process(const dp_nccl_engine_t *engine)
{
    char text[DP_ERROR_TEXT_MAX + 160];
    dp_failure_t failure;

    snprintf(text, sizeof(text),
             "rank %d: nccl: communicators still hang %llu ms after the abort, the process ends; "
             "aborted because: %s",
             engine->rank, (unsigned long long)(engine->limits.break_ns / 1000000),
             engine->abort.text);
    dp_log_error(engine->log, "%s", text);
    dp_failure_init(&failure, DP_FAILURE_ABORTED, engine->rank, text);
    failure.is_seen = 1;
    if (engine->bootstrap->ops->report != NULL)
        engine->bootstrap->ops->report(engine->bootstrap, &failure);
    _exit(DP_NCCL_EXIT_CODE);
}

static void sleep_until_next_look(dp_nccl_engine_t *engine)
{
    const uint64_t until_ns = dp_now_ns() + LOOK_NS;
    const struct timespec until = {(time_t)(until_ns / 1000000000u),
                                   (long)(until_ns % 1000000000u)};

    pthread_cond_timedwait(&engine->change, &engine->lock, &until);
}

/* Sleeps without a time while nothing is in flight; acquire_task() wakes it. It stays until an
 * abort has come to its end, as only then nothing can hang any more. */
static void *watcher_main(void *argument)
{
    dp_nccl_engine_t *engine = argument;

    pthread_mutex_lock(&engine->lock);
    for (;;) {
        const int is_breaking = dp_nccl_is_aborted(engine) && !engine->is_torn;
        dp_error_t error = {DP_OK, ""};

        if (is_breaking) {
            if (dp_now_ns() - engine->abort.ns > engine->limits.break_ns) end_process(engine);
            sleep_until_next_look(engine);
        } else if (engine->is_stopping) {
            break;
        } else if (engine->tasks == NULL || dp_nccl_is_aborted(engine)) {
            pthread_cond_wait(&engine->change, &engine->lock);
        } else if (look_at_operations(engine, &error) != DP_OK) {
            pthread_mutex_unlock(&engine->lock);
            dp_nccl_stop(engine, error.status, error.text);
            pthread_mutex_lock(&engine->lock);
        } else {
            sleep_until_next_look(engine);
        }
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* ---- Both ----------------------------------------------------------------------------------- */

dp_status_t dp_nccl_threads_start(dp_nccl_engine_t *engine, dp_error_t *error)
{
    engine->threads.has_keeper = dp_thread_start(&engine->threads.keeper, keeper_main, engine) == 0;
    engine->threads.has_watcher =
        engine->threads.has_keeper &&
        dp_thread_start(&engine->threads.watcher, watcher_main, engine) == 0;
    if (engine->threads.has_watcher) return DP_OK;
    return dp_error_set(error, DP_ERR_SYSTEM, "rank %d: nccl: no thread can be started",
                        engine->rank);
}

/* The watcher stays until the keeper is through: an abort may come, or hang, until then. */
void dp_nccl_threads_stop(dp_nccl_engine_t *engine)
{
    pthread_mutex_lock(&engine->lock);
    engine->is_stopping = engine->threads.has_keeper;
    pthread_cond_broadcast(&engine->change);
    pthread_mutex_unlock(&engine->lock);
    if (engine->threads.has_keeper) {
        pthread_join(engine->threads.keeper, NULL);
    } else {
        dp_nccl_keep_break(engine);
    }
    if (engine->threads.has_watcher) pthread_join(engine->threads.watcher, NULL);
}
