/*
 * request.c - the life of a request: from the pool, through completion, and back when both the
 * runtime and the program have let it go. request.h has the picture.
 *
 * Requests are made when more are in flight than ever before; otherwise submitting allocates
 * nothing. Called by submit.c and wait.c on the program's threads, by launch.c on the thread that
 * owns progress or on one of the data plane, and by init.c at the end. It must not know how ranks
 * agree or how data moves.
 */
#include "coordinator/api/operation/request.h"

#include <stdlib.h>

#include "coordinator/api/context/completions.h"
#include "coordinator/api/context/names.h"
#include "coordinator/api/operation/stage.h"
#include "coordinator/api/operation/stream.h"
#include "coordinator/loop/progress.h"
#include "runtime/base/thread.h"

/* Room for the tensors and the counts of an operation that has several. */
static dp_status_t reserve_lists(dp_handle_t *request, size_t tensor_count, size_t count_count)
{
    if (tensor_count > 1 && request->room.count < tensor_count) {
        void *room = realloc(request->room.list, tensor_count * sizeof(*request->room.list));

        if (room == NULL) return DP_ERR_NO_MEMORY;
        request->room.list = room;
        request->room.count = tensor_count;
    }
    if (request->exchange.room < count_count) {
        void *room =
            realloc(request->exchange.counts, count_count * sizeof(*request->exchange.counts));

        if (room == NULL) return DP_ERR_NO_MEMORY;
        request->exchange.counts = room;
        request->exchange.room = count_count;
    }
    return DP_OK;
}

dp_status_t dp_request_acquire(dp_group_t *group, dp_name_state_t *name_state, size_t tensor_count,
                               size_t count_count, dp_handle_t **out)
{
    dp_context_t *context = group->context;
    dp_handle_t *request = context->requests.pool;
    dp_status_t status;

    if (request != NULL) {
        context->requests.pool = request->links.next_free;
    } else {
        request = calloc(1, sizeof(*request));
        if (request == NULL) return DP_ERR_NO_MEMORY;
        request->self = request;
        request->context = context;
        request->links.next_made = context->requests.made;
        context->requests.made = request;
    }
    request->group = group;
    request->name_state = name_state;
    name_state->users++;
    group->request_count++;
    status = reserve_lists(request, tensor_count, count_count);
    if (status != DP_OK) {
        dp_request_discard(request);
        return status;
    }
    request->new_group = NULL;
    request->tensors = tensor_count > 1 ? request->room.list : &request->room.one;
    request->tensor_count = tensor_count;
    request->exchange.count = count_count;
    request->exchange.capacity = 0;
    request->exchange.recv_counts = NULL;
    request->exchange.output = NULL;
    request->is_absent = 0;
    request->bytes = 0;
    request->stream.figures = NULL;
    request->cookie = 0;
    dp_tally_init(&request->end.tally);
    request->program_op = (dp_program_op_t){.submission = &request->node.submission};
    request->is_direct = 0;
    request->lane = DP_LANE_MAIN; /* its last one may have been a message, which has none */
    request->check.is_on = 0;
    request->check.input_hash = request->check.output_hash = 0;
    *out = request;
    return DP_OK;
}

/* The last request of a group that has ended frees the group's names: an entry must not go while a
 * request points to it. */
void dp_request_discard(dp_handle_t *request)
{
    dp_group_t *group = request->group;

    dp_stream_detach(request);
    request->links.next_free = request->context->requests.pool;
    request->context->requests.pool = request;
    request->name_state->users--;
    if (--group->request_count == 0 && group->is_ended) dp_names_fini(&group->names);
}

/* Two references: the runtime's, given up in dp_request_complete(), and the program's, given up by
 * dp_wait() or dp_release(). Without a handle there is only the first. */
void dp_request_enlist(dp_handle_t *request, int has_owner)
{
    dp_context_t *context = request->context;

    atomic_store(&request->references, has_owner ? 2 : 1);
    atomic_store(&request->has_owner, has_owner);
    atomic_store(&request->state, DP_REQUEST_PENDING);
    atomic_store(&request->agree_ns, 0);
    request->waiting.is_awaited = 0;
    request->waiting.will_progress = 0;
    request->contributors = 0;
    request->ticket = context->requests.next_ticket++;
    request->links.previous = context->requests.live_last;
    request->links.following = NULL;
    if (context->requests.live_last != NULL) {
        context->requests.live_last->links.following = request;
    } else {
        context->requests.live_first = request;
    }
    context->requests.live_last = request;
    context->requests.live_count++;
    request->group->live_count++;
    request->name_state->live_count++;
    request->name_state->pending = request;
}

static void live_remove(dp_handle_t *request)
{
    dp_context_t *context = request->context;

    if (request->links.previous != NULL) {
        request->links.previous->links.following = request->links.following;
    } else {
        context->requests.live_first = request->links.following;
    }
    if (request->links.following != NULL) {
        request->links.following->links.previous = request->links.previous;
    } else {
        context->requests.live_last = request->links.previous;
    }
    request->links.previous = request->links.following = NULL;
    context->requests.live_count--;
    request->group->live_count--;
    request->name_state->live_count--;
}

void dp_request_unref(dp_handle_t *request)
{
    dp_context_t *context = request->context;

    /* Release: this side is done with the request. Acquire: so is the other one, if it was first.
     */
    if (atomic_fetch_sub_explicit(&request->references, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_lock(&context->lock);
    dp_request_discard(request);
    pthread_mutex_unlock(&context->lock);
}

/* Ends a request: result first, then the state, then the wake-ups. The runtime's reference goes
 * with it, so the request may be another one's when this returns. */
void dp_request_complete(dp_handle_t *request, dp_status_t status, const dp_result_t *result)
{
    dp_context_t *context = request->context;
    const uint64_t cookie = request->cookie;

    dp_staging_end(context, request->stage, status == DP_OK);
    request->stage = NULL;
    request->end.status = status;
    request->end.result = *result;
    atomic_fetch_add_explicit(&context->counts.completed, 1, memory_order_relaxed);
    if (status != DP_OK) {
        atomic_fetch_add_explicit(&context->counts.failed, 1, memory_order_relaxed);
    } else {
        atomic_fetch_add_explicit(&context->counts.bytes_reduced, request->bytes,
                                  memory_order_relaxed);
    }

    pthread_mutex_lock(&context->lock);
    live_remove(request);
    if (status != DP_OK && context->unowned_failure == DP_OK && !atomic_load(&request->has_owner))
        context->unowned_failure = status;
    pthread_mutex_unlock(&context->lock);

    /* Sequentially consistent, as in wait.c: a waiter adds itself to sleepers, then loads the
     * state; here the state is stored, then sleepers loaded. One of the two sees the other. The
     * store of DONE releases status and result to a waiter that does not sleep. */
    atomic_store(&request->state, DP_REQUEST_DONE);
    if (atomic_load(&request->waiting.sleepers) != 0) dp_futex_wake(&request->state);
    atomic_fetch_add(&context->waiting.completions, 1);
    if (atomic_load(&context->waiting.sleepers) != 0) dp_futex_wake(&context->waiting.completions);
    /* Behind the state: the program that reads the cookie finds the operation over. */
    if (cookie != 0) dp_completions_push(&context->completions, cookie);
    dp_request_unref(request);
}

void dp_request_succeed(dp_handle_t *request, const dp_pipeline_done_t *done)
{
    dp_context_t *context = request->context;
    dp_result_t result = DP_RESULT_INIT;

    result.nonfinite = done->tally.nonfinite;
    result.sum_squares = dp_tally_sum_squares(&done->tally);
    result.absmax = done->tally.absmax;
    result.count = done->count;
    result.contributors = request->contributors;
    request->end.tally = done->tally;
    /* A rank that only receives learns on arrival how much. request->bytes stays: a waiting thread
     * may be reading it. */
    if (request->bytes == 0 && request->tensor_count > 0) {
        atomic_fetch_add_explicit(&context->counts.bytes_reduced,
                                  done->count * dp_dtype_bytes(request->tensors[0].dtype),
                                  memory_order_relaxed);
    }
    pthread_mutex_lock(&context->lock);
    request->name_state->last_absmax = done->raw_absmax;
    pthread_mutex_unlock(&context->lock);
    if (request->check.is_on) {
        request->end.result.count =
            done->count; /* how much of an exchange's out there is to look at */
        request->check.output_hash = dp_request_hash_outputs(request);
    }
    dp_request_complete(request, DP_OK, &result);
}

void dp_request_fail(dp_handle_t *request, dp_status_t status, const char *text)
{
    dp_result_t result = DP_RESULT_INIT;

    result.text = text;
    dp_request_complete(request, status, &result);
}

/* Counted once, however many threads sleep; dp_request_leave() takes it back. */
void dp_request_await(dp_handle_t *request, int will_progress)
{
    dp_context_t *context = request->context;

    pthread_mutex_lock(&context->lock);
    if (request->name_state->pending == request) {
        request->waiting.will_progress |= will_progress;
        if (!request->waiting.is_awaited) {
            request->waiting.is_awaited = 1;
            dp_loop_count_sleeping_waiter(context->loop, 1);
        }
    }
    pthread_mutex_unlock(&context->lock);
}

void dp_request_leave(dp_handle_t *request)
{
    request->name_state->pending = NULL;
    if (!request->waiting.is_awaited) return;
    request->waiting.is_awaited = 0;
    dp_loop_count_sleeping_waiter(request->context->loop, -1);
}

dp_lane_t dp_request_lane(const dp_handle_t *request)
{
    const dp_context_t *context = request->context;
    const dp_group_t *group = request->group;

    return dp_pipeline_lane(context->pipeline, group == &context->world ? NULL : &group->plane,
                            request->program_op.group != NULL, request->collective);
}

/* ---- DP_CHECK_DATA ------------------------------------------------------------------------------- */

/* Elements that were written to a tensor's out. */
static size_t elements_out(const dp_handle_t *request, const dp_pipeline_tensor_t *tensor)
{
    if (dp_is_exchange(request->collective)) return request->end.result.count;
    if (request->collective != DP_COLLECTIVE_ALLGATHER) return tensor->count;
    return tensor->count * (size_t)request->group->size;
}

uint64_t dp_request_hash_outputs(const dp_handle_t *request)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < request->tensor_count; i++) {
        const dp_pipeline_tensor_t *tensor = &request->tensors[i];

        if (tensor->out == NULL) continue;
        hash = dp_kernel_hash(tensor->out,
                              elements_out(request, tensor) * dp_dtype_bytes(tensor->dtype), hash);
    }
    return hash == 0 ? 1 : hash; /* 0 means: not taken */
}

/* ---- The end -------------------------------------------------------------------------------- */

void dp_requests_free(dp_context_t *context)
{
    dp_handle_t *request, *next;

    /* By the list of all that were made: it has handles that the program never gave back, too. */
    for (request = context->requests.made; request != NULL; request = next) {
        next = request->links.next_made;
        free(request->room.list);
        free(request->exchange.counts);
        free(request);
    }
    context->requests.made = context->requests.pool = NULL;
}
