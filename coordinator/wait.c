/*
 * wait.c - the waiting half of dp.h: a short adaptive spin, then sleep on a futex.
 *
 * Accounts the time a program's threads were blocked, and how much of it went by before all ranks
 * had submitted.
 */
#include "coordinator/context.h"

#include <string.h>

#include "runtime/base/futex.h"

static uint64_t deadline_of(double seconds, uint64_t now)
{
    if (seconds < 0.0 || seconds > 1e9) return UINT64_MAX;
    return now + (uint64_t)(seconds * 1e9);
}

/* Blocks until the request is over or the deadline has passed; 1 when it is over. */
static int block(dp_handle_t *request, uint64_t begin, uint64_t deadline)
{
    dp_context_t *context = request->context;
    uint64_t spin_until = begin + context->wait_spin_ns;
    uint32_t state;
    int over = 0;

    while (atomic_load_explicit(&request->state, memory_order_acquire) != DP_REQUEST_DONE &&
           dp_now_ns() < spin_until)
        dp_spin_pause();
    if (atomic_load(&request->state) == DP_REQUEST_PENDING && context->size > 1) {
        dp_request_await(request);
        /* The root holds a tensor back only while earlier ones are in flight, here as there. */
        if (dp_pipeline_pending(context->pipeline) > 0) {
            dp_loop_urgent(context->loop, request->entry->name);
        }
    }
    atomic_fetch_add(&request->sleepers, 1);
    for (;;) {
        uint64_t now;

        state = atomic_load(&request->state);
        over = state == DP_REQUEST_DONE;
        now = dp_now_ns();
        if (over || now >= deadline) break;
        dp_futex_wait(&request->state, state, deadline == UINT64_MAX ? UINT64_MAX : deadline - now);
    }
    atomic_fetch_sub(&request->sleepers, 1);
    return over;
}

static void account(dp_context_t *context, const dp_handle_t *request, uint64_t begin, uint64_t end)
{
    uint64_t agreed = atomic_load(&request->agree_ns);

    atomic_fetch_add_explicit(&context->wait_ns, end - begin, memory_order_relaxed);
    if (agreed == 0 || agreed > end) agreed = end;
    if (agreed > begin)
        atomic_fetch_add_explicit(&context->skew_ns, agreed - begin, memory_order_relaxed);
}

/* DP_CHECK: nobody may have written the result between its completion and this wait. */
static dp_status_t check_output(dp_handle_t *request, const char **text)
{
    dp_context_t *context = request->context;
    size_t rows =
        request->entry->signature.collective == DP_COLLECTIVE_ALLGATHER ? (size_t)context->size : 1;
    uint64_t hash = 0;

    for (size_t i = 0; i < request->tensor_count; i++) {
        const dp_pipeline_tensor_t *tensor = &request->tensors[i];

        hash =
            dp_kernel_hash(tensor->out, tensor->count * rows * dp_dtype_bytes(tensor->dtype), hash);
    }
    if (hash == request->output_hash) return DP_OK;
    dp_context_error(context, DP_ERR_CHECK,
                     "rank %d: tensor %s was written before the program waited for it: its "
                     "checksum was %016llx at completion and is %016llx now",
                     context->rank, request->entry->name, (unsigned long long)request->output_hash,
                     (unsigned long long)hash);
    *text = context->last_text;
    return DP_ERR_CHECK;
}

dp_status_t dp_wait(dp_handle_t *handle, double seconds, dp_result_t *result)
{
    dp_context_t *context;
    dp_status_t status;
    const char *text;

    if (handle == NULL) return DP_ERR_INVALID;
    context = handle->context;
    if (result != NULL && result->size < sizeof(dp_result_t)) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "dp_wait: the result says it has %zu bytes, dp_result_t has %zu; "
                                "use DP_RESULT_INIT",
                                result->size, sizeof(dp_result_t));
    }
    if (atomic_load_explicit(&handle->state, memory_order_acquire) != DP_REQUEST_DONE) {
        dp_trace_lane_t *lane = dp_trace_thread_lane(context->trace);
        uint64_t begin = dp_now_ns();
        int over;

        if (seconds == 0.0) return DP_ERR_TIMEOUT;
        dp_trace_begin(lane, (dp_trace_record_t){.kind = DP_TRACE_WAIT,
                                                 .id = handle->ticket + 1,
                                                 .bytes = handle->bytes,
                                                 .name = handle->entry->trace_name});
        over = block(handle, begin, deadline_of(seconds, begin));
        dp_trace_end(lane);
        account(context, handle, begin, dp_now_ns());
        if (!over) return DP_ERR_TIMEOUT;
    }
    status = handle->status;
    text = handle->result.text;
    if (status == DP_OK && handle->output_hash != 0) status = check_output(handle, &text);
    if (result != NULL) {
        *result = handle->result;
        result->text = text;
    }
    atomic_store(&handle->has_owner, 0);
    dp_request_unref(handle);
    return status;
}

dp_status_t dp_test(const dp_handle_t *handle)
{
    if (handle == NULL) return DP_ERR_INVALID;
    if (atomic_load_explicit(&handle->state, memory_order_acquire) != DP_REQUEST_DONE)
        return DP_ERR_AGAIN;
    return handle->status;
}

void dp_release(dp_handle_t *handle)
{
    dp_context_t *context;

    if (handle == NULL) return;
    context = handle->context;
    pthread_mutex_lock(&context->lock);
    atomic_store(&handle->has_owner, 0);
    if (atomic_load(&handle->state) == DP_REQUEST_DONE && handle->status != DP_OK &&
        context->unowned_failure == DP_OK)
        context->unowned_failure = handle->status;
    pthread_mutex_unlock(&context->lock);
    dp_request_unref(handle);
}

/* 1 while an operation with a ticket below `limit` is live. */
static int is_live_below(dp_context_t *context, uint64_t limit)
{
    int live;

    pthread_mutex_lock(&context->lock);
    live = context->live_first != NULL && context->live_first->ticket < limit;
    pthread_mutex_unlock(&context->lock);
    return live;
}

dp_status_t dp_wait_all(dp_context_t *context, double seconds)
{
    uint64_t begin, deadline, limit;
    dp_trace_lane_t *lane;
    dp_status_t status = DP_OK;

    if (context == NULL) return DP_ERR_INVALID;
    begin = dp_now_ns();
    deadline = deadline_of(seconds, begin);
    pthread_mutex_lock(&context->lock);
    limit = context->next_ticket;
    pthread_mutex_unlock(&context->lock);
    lane = dp_trace_thread_lane(context->trace);
    if (is_live_below(context, limit)) {
        dp_trace_begin(lane, (dp_trace_record_t){.kind = DP_TRACE_WAIT,
                                                 .name = dp_trace_name(context->trace, "all")});
        atomic_fetch_add(&context->completion_sleepers, 1);
        for (;;) {
            uint32_t seen = atomic_load(&context->completions);
            uint64_t now = dp_now_ns();

            if (!is_live_below(context, limit)) break;
            if (now >= deadline) {
                status = DP_ERR_TIMEOUT;
                break;
            }
            dp_futex_wait(&context->completions, seen,
                          deadline == UINT64_MAX ? UINT64_MAX : deadline - now);
        }
        atomic_fetch_sub(&context->completion_sleepers, 1);
        dp_trace_end(lane);
        atomic_fetch_add_explicit(&context->wait_ns, dp_now_ns() - begin, memory_order_relaxed);
    }
    if (status != DP_OK) return status;
    pthread_mutex_lock(&context->lock);
    status = context->unowned_failure;
    context->unowned_failure = DP_OK;
    pthread_mutex_unlock(&context->lock);
    return status;
}
