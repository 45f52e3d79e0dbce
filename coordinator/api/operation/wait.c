/*
 * wait.c - dp_wait(), dp_test(), dp_stream_wait(), dp_wait_all(): progress, poll, then sleep.
 *
 * A thread that waits is awake, so it first does the coordinator's work and carries out what that
 * launches (docs/design.md); then it polls; then it sleeps on the request's futex. The time that
 * threads were blocked is counted, and how much of it went by before all ranks had submitted.
 * Called on the program's threads. It must not know how ranks agree or how data moves.
 */
#include "coordinator/api/operation/wait.h"

#include <math.h>
#include <string.h>

#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/sized.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/operation/direct.h"
#include "coordinator/api/operation/request.h"
#include "coordinator/api/operation/stream.h"
#include "coordinator/api/operation/stream_span.h"
#include "coordinator/loop/post.h"
#include "coordinator/loop/progress.h"
#include "fusion/plan.h"
#include "runtime/base/thread.h"

#define SOON_NS                                                                                    \
    100000u /* from a submission to the wait for it: there is little to compute meanwhile */

/* NaN is a mistake of the program, neither a short time nor a long one. */
static dp_status_t check_seconds(dp_context_t *context, const char *call, double seconds)
{
    if (!isnan(seconds)) return DP_OK;
    return dp_context_error(context, DP_ERR_INVALID, "%s: seconds is not a number", call);
}

static dp_status_t check_result(dp_context_t *context, const dp_result_t *result)
{
    dp_error_t error;
    dp_status_t status;

    if (result == NULL) return DP_OK;
    status = dp_sized_check("dp_result_t", result->size, &error);
    return status == DP_OK ? DP_OK : dp_context_error(context, status, "dp_wait: %s", error.text);
}

/* A handle that the program has given back is an error, as far as that can be known (dp_wait() in
 * dp.h). The text cannot name its tensor: that may be gone with its group. */
static dp_status_t check_owner(const dp_handle_t *handle, const char *call)
{
    if (atomic_load(&handle->has_owner)) return DP_OK;
    return dp_context_error(handle->context, DP_ERR_INVALID,
                            "%s: this handle was given back before, by dp_wait() or dp_release()",
                            call);
}

static uint64_t deadline_of(double seconds, uint64_t now)
{
    if (seconds < 0.0 || seconds > 1e9) return UINT64_MAX;
    return now + (uint64_t)(seconds * 1e9);
}

static const dp_pipeline_group_t *plane_of(const dp_handle_t *request)
{
    return request->group == &request->context->world ? NULL : &request->group->plane;
}

/* 1: this thread may carry launches out while it waits. With a deadline only if it can leave them
 * in time; never on a device that works by itself, which the launch thread feeds. */
static int may_progress(const dp_handle_t *request, uint64_t deadline)
{
    const dp_context_t *context = request->context;

    if (context->device->ops->is_async) return 0;
    return deadline == UINT64_MAX ||
           dp_pipeline_is_brief(context->pipeline, plane_of(request), request->collective,
                                (size_t)request->bytes);
}

/* Whether the program waits at once for what its submission launches: then the next launch is left
 * to the wait for it, which saves to wake the launch thread. From the end of the submission: to
 * wake that thread may take the core from this one. */
static void learn_habit(const dp_handle_t *handle, double seconds)
{
    const uint64_t now = dp_now_ns();
    dp_group_t *group = handle->group;
    const uint64_t since = atomic_load_explicit(&group->submitted_ns, memory_order_relaxed);

    atomic_store_explicit(&group->waits_soon,
                          now - since < SOON_NS && may_progress(handle, deadline_of(seconds, now)),
                          memory_order_relaxed);
}

/* Does the coordinator's work on this thread until the request is launched, and then its launch.
 * Gives up where nothing happened for progress_ns. */
static void progress_until(dp_handle_t *request, uint32_t wanted, uint64_t deadline)
{
    dp_context_t *context = request->context;
    const int carries = may_progress(request, deadline);
    const dp_lane_t lane = dp_request_lane(request);

    atomic_store(&context->waiting.progressed_ticket,
                 request->ticket + 1); /* read by the next dp_submit() */
    dp_loop_count_awake_waiter(context->loop, 1);
    if (carries) dp_pipeline_progress_begin(context->pipeline, lane);
    dp_loop_progress_until(context->loop, &request->state, DP_REQUEST_LAUNCHED,
                           context->waiting.progress_ns, deadline);
    if (carries) {
        if (atomic_load(&request->state) != DP_REQUEST_PENDING) {
            (void)dp_pipeline_progress(context->pipeline, request->lane, &request->state, wanted,
                                       deadline);
        }
        dp_pipeline_progress_end(context->pipeline, lane);
    }
    dp_loop_count_awake_waiter(context->loop, -1);
}

/* The same for an operation of an ordered group, which waits for no round of the coordinator. */
static void progress_ordered(dp_handle_t *request, uint32_t wanted, uint64_t deadline)
{
    dp_context_t *context = request->context;
    const int carries = may_progress(request, deadline);
    const dp_lane_t lane = dp_request_lane(request);

    if (carries) dp_pipeline_progress_begin(context->pipeline, lane);
    dp_program_wait(context->program, &request->program_op);
    if (!carries) return;
    (void)dp_pipeline_progress(context->pipeline, lane, &request->state, wanted, deadline);
    dp_pipeline_progress_end(context->pipeline, lane);
}

/* Blocks until the request's state is `wanted` or later (1), or the deadline has passed (0). */
static int block(dp_handle_t *request, uint32_t wanted, uint64_t begin, uint64_t deadline)
{
    dp_context_t *context = request->context;
    uint64_t spin_until = begin + context->waiting.spin_ns;
    uint32_t state;
    const int carries = may_progress(request, deadline);
    int over = 0;

    if (request->program_op.group != NULL) {
        progress_ordered(request, wanted, deadline);
    } else {
        progress_until(request, wanted, deadline);
    }
    /* Acquire pairs with the store of DONE in dp_request_complete(), which releases the result. */
    while (atomic_load_explicit(&request->state, memory_order_acquire) < wanted &&
           dp_now_ns() < spin_until)
        dp_spin_pause();
    if (atomic_load(&request->state) == DP_REQUEST_PENDING && context->size > 1) {
        dp_request_await(request, carries);
        /* The root holds a tensor back, to fuse it, only while earlier launches are in its data
         * plane, and then they are probably in this rank's too. Otherwise there is nothing to
         * hurry. */
        if (request->collective != DP_COLLECTIVE_JOIN &&
            dp_pipeline_pending(context->pipeline) > 0) {
            dp_loop_urgent(context->loop, request->group->about.uid, request->name_state->name);
        }
    }
    /* Sequentially consistent: sleepers first, then the state. Changes of the state are stored
     * first, and sleepers loaded then, so a change is either seen here or followed by a wake-up. */
    atomic_fetch_add(&request->waiting.sleepers, 1);
    for (;;) {
        uint64_t now;

        state = atomic_load(&request->state);
        over = state >= wanted;
        if (over) break;
        now = dp_now_ns();
        if (now >= deadline) break;
        if (state == DP_REQUEST_HANDED && carries &&
            dp_pipeline_progress(context->pipeline, request->lane, &request->state, wanted,
                                 deadline))
            continue;
        dp_futex_wait(&request->state, state, deadline == UINT64_MAX ? UINT64_MAX : deadline - now);
    }
    atomic_fetch_sub(&request->waiting.sleepers, 1);
    /* The launch may have been handed to this thread just as its deadline came. The other side of
     * this is in hand_to_waiter(). */
    if (!over && atomic_load(&request->state) == DP_REQUEST_HANDED)
        dp_pipeline_wake(context->pipeline, request->lane);
    return over;
}

uint64_t dp_context_lane_skew(const dp_context_t *context, dp_lane_t lane, uint64_t now_ns)
{
    const dp_engine_t *engine = context->engine;

    return engine->ops->skew_ns == NULL ? 0 : engine->ops->skew_ns(engine, lane, now_ns);
}

/*
 * For the statistics: how much of the wait [begin, end) was skew. Until the ranks have agreed on
 * the operation some rank had not submitted it. From then on it is the time in which the engine
 * waited for a rank to come, be it to this operation or to an earlier one of its lane.
 *
 *     wait       [---------------------------------------)
 *     the ranks have agreed      ^
 *     engine                       | op 4: waits | wire | op 5 |
 *     skew       [---------------) [------------)
 *
 * lane_skew: of the lane at `begin`, where the ranks had agreed by then.
 */
static void account(dp_context_t *context, const dp_handle_t *request, uint64_t begin, uint64_t end,
                    uint64_t lane_skew)
{
    uint64_t agreed = atomic_load(&request->agree_ns);
    uint64_t skew = end - begin;

    if (agreed != 0 && agreed < end) {
        const uint64_t now = dp_context_lane_skew(context, request->lane, end);

        skew = 0;
        if (agreed > begin) {
            skew = agreed - begin;
            lane_skew = request->agree_skew_ns;
        }
        skew += dp_min(now > lane_skew ? now - lane_skew : 0, end - dp_max(agreed, begin));
    }
    atomic_fetch_add_explicit(&context->counts.wait_ns, end - begin, memory_order_relaxed);
    if (skew > 0) atomic_fetch_add_explicit(&context->counts.skew_ns, skew, memory_order_relaxed);
}

/* DP_CHECK_DATA: the result must not have been written between its completion and this wait. */
static dp_status_t compare_output_hash(dp_handle_t *request, const char **text)
{
    dp_context_t *context = request->context;
    uint64_t hash = dp_request_hash_outputs(request);

    if (hash == request->check.output_hash) return DP_OK;
    dp_context_error(context, DP_ERR_CHECK,
                     "rank %d: tensor %s was written before the program waited for it: its "
                     "checksum was %016llx at completion and is %016llx now",
                     context->rank, request->name_state->label,
                     (unsigned long long)request->check.output_hash, (unsigned long long)hash);
    *text = dp_error_text(context);
    return DP_ERR_CHECK;
}

/* block() with a mark on the timeline, accounted. */
static int block_visibly(dp_handle_t *handle, uint32_t wanted, double seconds)
{
    dp_context_t *context = handle->context;
    dp_trace_track_t *track = dp_trace_thread_track(context->trace);
    const uint64_t begin = dp_now_ns();
    const uint64_t lane_skew = atomic_load(&handle->agree_ns) != 0
                                   ? dp_context_lane_skew(context, handle->lane, begin)
                                   : 0;
    uint64_t end;
    int over;

    dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_WAIT,
                                              .start_ns = begin,
                                              .id = handle->ticket + 1,
                                              .bytes = handle->bytes,
                                              .name = handle->name_state->trace_name});
    over = handle->is_direct ? dp_direct_wait(handle, wanted, deadline_of(seconds, begin))
                             : block(handle, wanted, begin, deadline_of(seconds, begin));
    end = dp_now_ns();
    dp_trace_end_at(track, end);
    account(context, handle, begin, end, lane_skew);
    return over;
}

/* The program asks for an operation that is not over, and does not block for it. */
static void look(dp_handle_t *handle)
{
    dp_context_t *context = handle->context;

    if (handle->is_direct) {
        dp_direct_look(context);
    } else if (handle->program_op.group != NULL) {
        dp_program_wait(context->program, &handle->program_op);
    } else {
        dp_loop_look(context->loop);
    }
}

/* dp_wait(). tally: the exact figures are merged into it; NULL: not wanted. */
static dp_status_t wait_for_handle(dp_handle_t *handle, double seconds, dp_result_t *result,
                                   dp_tally_t *tally)
{
    dp_context_t *context;
    dp_status_t status;
    const char *text;

    if (handle == NULL || dp_context_is_forked(handle->context)) return DP_ERR_INVALID;
    context = handle->context;
    status = check_result(context, result);
    if (status == DP_OK) status = check_seconds(context, "dp_wait", seconds);
    if (status == DP_OK) status = check_owner(handle, "dp_wait");
    if (status != DP_OK) return status;
    if (handle->program_op.group != NULL && dp_plan_is_alone(handle->collective))
        learn_habit(handle, seconds);
    if (atomic_load_explicit(&handle->state, memory_order_acquire) != DP_REQUEST_DONE) {
        if (seconds == 0.0) look(handle);
        if (seconds == 0.0 || !block_visibly(handle, DP_REQUEST_DONE, seconds))
            return DP_ERR_PENDING;
    }
    /* Two threads that wait for one handle are a mistake too: one of them gives it back. */
    if (!atomic_exchange(&handle->has_owner, 0)) return check_owner(handle, "dp_wait");
    status = handle->end.status;
    text = handle->end.result.text;
    if (status == DP_OK && handle->check.output_hash != 0)
        status = compare_output_hash(handle, &text);
    if (result != NULL) {
        handle->end.result.text = text;
        dp_sized_write(result, &handle->end.result, sizeof(handle->end.result));
    }
    if (tally != NULL && status == DP_OK) dp_tally_merge(tally, &handle->end.tally);
    dp_request_unref(handle);
    return status;
}

dp_status_t dp_wait(dp_handle_t *handle, double seconds, dp_result_t *result)
{
    return wait_for_handle(handle, seconds, result, NULL);
}

dp_status_t dp_wait_tally(dp_handle_t *handle, dp_tally_t *tally)
{
    return wait_for_handle(handle, -1.0, NULL, tally);
}

dp_status_t dp_stream_wait(dp_handle_t *handle, void *stream, double seconds)
{
    dp_context_t *context;
    dp_stream_t *waiting = NULL;
    dp_stream_span_t *span;
    uint32_t wanted;
    dp_status_t status;

    if (handle == NULL || dp_context_is_forked(handle->context)) return DP_ERR_INVALID;
    context = handle->context;
    status = check_seconds(context, "dp_stream_wait", seconds);
    if (status == DP_OK) status = check_owner(handle, "dp_stream_wait");
    if (status != DP_OK) return status;
    if (stream != NULL) {
        pthread_mutex_lock(&context->lock);
        waiting = dp_stream_find(context, stream);
        pthread_mutex_unlock(&context->lock);
        if (waiting == NULL) {
            return dp_context_error(context, DP_ERR_UNSUPPORTED,
                                    "tensor %s: the stream %p is none of a device of this context",
                                    handle->name_state->label, stream);
        }
    }
    /* An operation submitted when no stream was known has no event to wait for but its end. */
    wanted = waiting != NULL && handle->stream.done != NULL ? DP_REQUEST_ISSUED : DP_REQUEST_DONE;
    if (atomic_load_explicit(&handle->state, memory_order_acquire) < wanted) {
        if (seconds == 0.0) look(handle);
        if (seconds == 0.0 || !block_visibly(handle, wanted, seconds)) return DP_ERR_PENDING;
    }
    if (atomic_load_explicit(&handle->state, memory_order_acquire) == DP_REQUEST_DONE)
        return handle->end.status;
    span = dp_stream_span_wait(context, waiting, handle->name_state->trace_name);
    status = context->device->ops->stream_wait(waiting, handle->stream.done->event);
    dp_stream_span_waited(context, span);
    if (status == DP_OK) return DP_OK;
    return dp_context_error(context, status, "tensor %s: the stream %p cannot wait for it: %s",
                            handle->name_state->label, stream, dp_status_string(status));
}

dp_status_t dp_test(const dp_handle_t *handle)
{
    dp_status_t status;

    if (handle == NULL || dp_context_is_forked(handle->context)) return DP_ERR_INVALID;
    status = check_owner(handle, "dp_test");
    if (status != DP_OK) return status;
    if (atomic_load_explicit(&handle->state, memory_order_acquire) != DP_REQUEST_DONE) {
        look(handle->self);
        return DP_ERR_PENDING;
    }
    return handle->end.status;
}

void dp_release(dp_handle_t *handle)
{
    dp_context_t *context;

    if (handle == NULL || dp_context_is_forked(handle->context)) return;
    context = handle->context;
    if (check_owner(handle, "dp_release") != DP_OK) return;
    pthread_mutex_lock(&context->lock);
    if (!atomic_exchange(&handle->has_owner, 0)) {
        pthread_mutex_unlock(&context->lock);
        return;
    }
    /* It has failed already: dp_wait_all() reports that, as no dp_wait() will. */
    if (atomic_load(&handle->state) == DP_REQUEST_DONE && handle->end.status != DP_OK &&
        context->unowned_failure == DP_OK)
        context->unowned_failure = handle->end.status;
    pthread_mutex_unlock(&context->lock);
    dp_request_unref(handle);
}

/* Several operations that a thread waits for at once. */
typedef struct set {
    dp_group_t *group; /* all operations of this group; NULL: of any */
    uint64_t limit;    /* with a ticket below this */
} wait_set_t;

static int is_set_live(dp_context_t *context, const wait_set_t *set)
{
    int live;

    pthread_mutex_lock(&context->lock);
    live = set->group != NULL ? set->group->live_count > 0
                              : context->requests.live_first != NULL &&
                                    context->requests.live_first->ticket < set->limit;
    pthread_mutex_unlock(&context->lock);
    return live;
}

/* DP_OK: none of them is live any more; DP_ERR_PENDING. */
static dp_status_t wait_for_set(dp_context_t *context, const wait_set_t *set, double seconds)
{
    const uint64_t begin = dp_now_ns(), deadline = deadline_of(seconds, begin);
    dp_trace_track_t *track;
    dp_status_t status = DP_OK;
    uint64_t end;

    dp_program_wait_all(context->program, set->group == NULL ? NULL : &set->group->ordered);
    if (!is_set_live(context, set)) return DP_OK;
    track = dp_trace_thread_track(context->trace);
    dp_trace_begin(track, (dp_trace_record_t){.kind = DP_TRACE_WAIT,
                                              .start_ns = begin,
                                              .name = dp_trace_name(context->trace, "all")});
    /* As in block(): this thread counts itself, then looks; a completion counts itself, then looks
     * for sleepers. */
    atomic_fetch_add(&context->waiting.sleepers, 1);
    for (;;) {
        uint32_t seen = atomic_load(&context->waiting.completions);
        uint64_t now = dp_now_ns();

        if (!is_set_live(context, set)) break;
        if (now >= deadline) {
            status = DP_ERR_PENDING;
            break;
        }
        dp_futex_wait(&context->waiting.completions, seen,
                      deadline == UINT64_MAX ? UINT64_MAX : deadline - now);
    }
    atomic_fetch_sub(&context->waiting.sleepers, 1);
    end = dp_now_ns();
    dp_trace_end_at(track, end);
    atomic_fetch_add_explicit(&context->counts.wait_ns, end - begin, memory_order_relaxed);
    return status;
}

void dp_group_drain(dp_group_t *group)
{
    const wait_set_t set = {.group = group};

    (void)wait_for_set(group->context, &set, -1.0);
}

dp_status_t dp_wait_all(dp_context_t *context, double seconds)
{
    wait_set_t set = {.group = NULL};
    dp_status_t status;

    if (context == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    status = check_seconds(context, "dp_wait_all", seconds);
    if (status != DP_OK) return status;
    pthread_mutex_lock(&context->lock);
    set.limit = context->requests.next_ticket;
    pthread_mutex_unlock(&context->lock);
    status = wait_for_set(context, &set, seconds);
    if (status != DP_OK) return status;
    pthread_mutex_lock(&context->lock);
    status = context->unowned_failure;
    context->unowned_failure = DP_OK;
    pthread_mutex_unlock(&context->lock);
    return status;
}
