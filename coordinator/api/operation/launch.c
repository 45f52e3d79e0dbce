/*
 * launch.c - from the coordinator to the data plane and back: the callbacks of loop and pipeline.
 *
 * A launch becomes items of the pipeline, one for each request. Where this rank has joined a group
 * there is no request: an absent one, from the pool too, carries what the ranks agreed on and no
 * data. dp_on_launch(), _joined(), _fail() and _fatal() run on the thread that owns progress, which
 * is the coordinator's or one in dp_wait(); the others, on threads of the data plane. It must not
 * know how ranks agree or how data moves.
 */
#include "coordinator/api/operation/launch.h"

#include <stdio.h>
#include <stdlib.h>

#include "coordinator/api/context/names.h"
#include "coordinator/api/context/places.h"
#include "coordinator/api/operation/report.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/operation/request.h"
#include "coordinator/api/operation/wait.h"
#include "coordinator/loop/post.h"
#include "runtime/base/thread.h"

/* ---- Launch --------------------------------------------------------------------------------- */

/* NULL: the group is not here. Lock held. */
static dp_group_t *group_of_launch(dp_context_t *context, const dp_output_t *launch)
{
    dp_group_t *group;

    for (size_t i = 0; i < launch->entry_count; i++) {
        const dp_handle_t *request = launch->entries[i].request;

        if (request != NULL) return request->group;
    }
    if (launch->group == DP_GROUP_WORLD) return &context->world;
    for (group = context->groups; group != NULL; group = group->next)
        if (group->about.uid == launch->group) return group;
    return NULL;
}

/* The request of an operation that this rank has not submitted, because it has joined. NULL: no
 * memory. Lock held. */
static dp_handle_t *make_absent_request(dp_group_t *group, const dp_launch_entry_t *entry)
{
    const dp_signature_t *agreed = entry->signature;
    int exchanges = dp_is_exchange(agreed->collective);
    dp_context_t *context = group->context;
    dp_name_state_t *known;
    dp_handle_t *request;
    dp_status_t status =
        dp_names_find_or_add(&group->names, group->about.name, entry->name, context->trace,
                             2 * context->config.queue_depth, &known);

    if (status == DP_OK)
        status = dp_request_acquire(group, known, agreed->part_count, exchanges ? 1 : 0, &request);
    if (status != DP_OK) return NULL;
    request->is_absent = 1;
    request->collective = agreed->collective;
    for (uint32_t i = 0; i < agreed->part_count; i++) {
        request->tensors[i] = (dp_pipeline_tensor_t){.count = (size_t)agreed->parts[i].count,
                                                     .dtype = agreed->parts[i].dtype};
    }
    if (exchanges) request->exchange.counts[0] = 0; /* an allgatherv: this rank's part is empty */
    return request;
}

/* The launch gives the group that it makes the number by which all ranks know it. */
static void fill_new_group(dp_handle_t *request, const dp_output_t *launch,
                           dp_pipeline_item_t *item)
{
    dp_group_t *new_group = request->new_group;

    new_group->about.uid = launch->group;
    new_group->about.group_index = launch->group_index;
    item->members = &new_group->about;
    item->group = &new_group->plane;
}

static void fill_pipeline_item(dp_handle_t *request, const dp_output_t *launch,
                               const dp_launch_entry_t *entry, uint64_t now,
                               dp_pipeline_item_t *item)
{
    /* A rank's own signature equals the agreed one; else its request would have failed. */
    const dp_signature_t *agreed =
        request->is_absent ? entry->signature : &request->name_state->signature;

    *item = (dp_pipeline_item_t){
        .request = request,
        .name = request->name_state->label,
        .collective = agreed->collective,
        .reduce = agreed->reduce,
        .wire = agreed->wire,
        .last_absmax = entry->last_absmax,
        .root = request->is_absent ? agreed->root : request->root,
        .peer = request->is_absent ? agreed->peer : request->peer,
        .is_absent = request->is_absent,
        .contributors = request->contributors,
        .count_joined = agreed->count_joined,
        .prescale = agreed->prescale,
        .postscale = agreed->postscale,
        .in_place = entry->in_place,
        .tensors = request->tensors,
        .tensor_count = request->tensor_count,
        .send_counts = request->exchange.count > 0 ? request->exchange.counts : NULL,
        .recv_counts = request->exchange.recv_counts,
        .capacity = request->exchange.capacity,
        .output = request->exchange.output,
        .user = request->exchange.user,
        .ready = request->stream.ready == NULL ? NULL : request->stream.ready->event,
        .done = request->stream.done == NULL ? NULL : request->stream.done->event,
        .figures = request->stream.figures,
        .input_hash = request->check.input_hash,
        .submit_ns = request->is_absent ? now : request->submit_ns};
    if (agreed->collective == DP_COLLECTIVE_GROUP_CREATE) fill_new_group(request, launch, item);
    if (agreed->collective == DP_COLLECTIVE_GROUP_DESTROY) item->group = &request->group->plane;
}

/* Gives every item its request; nothing is marked as launched before all have one. Lock held. */
static dp_status_t assign_requests(dp_context_t *context, const dp_output_t *launch,
                                   dp_pipeline_item_t *items)
{
    dp_group_t *group = group_of_launch(context, launch);

    if (group == NULL) return DP_ERR_ABORTED;
    for (size_t i = 0; i < launch->entry_count; i++) {
        const dp_launch_entry_t *entry = &launch->entries[i];
        dp_handle_t *request = entry->request;

        if (request == NULL) request = make_absent_request(group, entry);
        if (request == NULL) {
            while (i-- > 0)
                if (launch->entries[i].request == NULL) dp_request_discard(items[i].request);
            return DP_ERR_NO_MEMORY;
        }
        request->contributors = group->size - (int)entry->absent;
        items[i].request = request;
    }
    return DP_OK;
}

/* Fills in the items and marks their requests as launched. Returns one whose thread sleeps until it
 * may carry the launch out; NULL: none. Lock held. */
static dp_handle_t *fill_launch(const dp_context_t *context, const dp_output_t *launch,
                                dp_trace_track_t *track, dp_pipeline_launch_t *out)
{
    dp_handle_t *waiter = NULL;
    dp_handle_t *first = out->items[0].request;
    uint64_t now = dp_now_ns();

    if (first->group != &context->world && first->group != &context->forming)
        out->group = &first->group->plane;
    if (first->program_op.group != NULL) {
        out->lane = first->group->plane.own_lane;
        out->is_awaited_soon =
            atomic_load_explicit(&first->group->waits_soon, memory_order_relaxed);
        first->group->unnamed = 0;
    }
    for (size_t i = 0; i < launch->entry_count; i++) {
        dp_pipeline_item_t *item = &out->items[i];
        dp_handle_t *request = item->request;

        fill_pipeline_item(request, launch, &launch->entries[i], now, item);
        dp_trace_record(track,
                        (dp_trace_record_t){.kind = DP_TRACE_AGREE,
                                            .start_ns = item->submit_ns,
                                            .duration_ns = now - item->submit_ns,
                                            .bucket = launch->sequence,
                                            .id = request->is_absent ? 0 : request->ticket + 1,
                                            .bytes = request->bytes,
                                            .name = request->name_state->trace_name});
        if (request->is_absent) continue;
        if (request->waiting.will_progress) waiter = request;
        request->lane = dp_request_lane(request);
        dp_request_leave(request);
        request->agree_skew_ns = dp_context_lane_skew(context, request->lane, now);
        atomic_store(&request->agree_ns, now);
        atomic_store(&request->state, DP_REQUEST_LAUNCHED);
    }
    return waiter;
}

/* Wakes the thread that waits for the request, which then carries the launch out itself. That saves
 * a wake-up, as the launch thread would have to wake it in the end. The exchange fails if the
 * waiting thread was awake and has carried the launch out already. The thread may also have left at
 * its deadline (block() in wait.c): it counts itself out, then reads the state; this function
 * stores the state, then reads the count. All four are sequentially consistent, so at least one of
 * the two sees the other and wakes the launch thread. */
static void hand_to_waiter(dp_context_t *context, dp_handle_t *waiter, dp_lane_t lane)
{
    uint32_t state = DP_REQUEST_LAUNCHED;

    if (!atomic_compare_exchange_strong(&waiter->state, &state, DP_REQUEST_HANDED)) return;
    if (atomic_load(&waiter->waiting.sleepers) != 0) {
        dp_futex_wake(&waiter->state);
    } else {
        dp_pipeline_wake(context->pipeline, lane);
    }
}

void dp_launch(dp_context_t *context, const dp_output_t *launch, uint64_t digest,
               dp_trace_track_t *track)
{
    dp_pipeline_launch_t *out = NULL;
    dp_handle_t *waiter = NULL;
    int waiter_lane = DP_PIPELINE_NO_PROGRESS; /* it may be over, and its handle gone, once it is
                                                  submitted */
    dp_status_t status = dp_pipeline_launch_take(context->pipeline, launch->entry_count, &out);

    if (status == DP_OK) {
        out->sequence = launch->sequence;
        out->digest = digest;
        pthread_mutex_lock(&context->lock);
        status = assign_requests(context, launch, out->items);
        if (status == DP_OK) waiter = fill_launch(context, launch, track, out);
        pthread_mutex_unlock(&context->lock);
    }
    if (status != DP_OK) {
        /* Every other rank launches this, so a rank that cannot must end the world: the others
         * would wait for it in the data plane. */
        if (out != NULL) dp_pipeline_launch_give(context->pipeline, out);
        dp_loop_abort(context->loop, status,
                      status == DP_ERR_NO_MEMORY ? "no memory for a launch"
                                                 : "a launch came for a group that is not here");
        return;
    }
    /* A lane's launch thread is awake where it has work, and takes this launch too. */
    if (waiter != NULL && !dp_pipeline_is_busy(context->pipeline, waiter->lane))
        waiter_lane = (int)waiter->lane;
    dp_pipeline_submit(context->pipeline, out, waiter_lane);
    if (waiter_lane != DP_PIPELINE_NO_PROGRESS)
        hand_to_waiter(context, waiter, (dp_lane_t)waiter_lane);
}

void dp_on_launch(void *user, const dp_output_t *launch)
{
    dp_context_t *context = user;

    dp_launch(context, launch, 0, context->agree_track);
}

/* ---- Other answers of the coordinator ------------------------------------------------------- */

/* A failed or joined request. Lock held. */
static void leave_coordinator(dp_handle_t *request)
{
    dp_request_leave(request);
    if (request->collective == DP_COLLECTIVE_JOIN) request->group->is_joined = 0;
}

void dp_on_joined(void *user, void *request, int last_rank)
{
    dp_context_t *context = user;
    dp_result_t result = DP_RESULT_INIT;

    pthread_mutex_lock(&context->lock);
    leave_coordinator(request);
    pthread_mutex_unlock(&context->lock);
    result.last_rank = dp_group_rank_at(((dp_handle_t *)request)->group, last_rank);
    dp_request_complete(request, DP_OK, &result);
}

void dp_on_fail(void *user, void *request, dp_status_t status, const char *text)
{
    dp_context_t *context = user;

    pthread_mutex_lock(&context->lock);
    leave_coordinator(request);
    pthread_mutex_unlock(&context->lock);
    dp_request_fail(request, status, dp_context_text(context, text));
}

/* The world ends. Requests that were not launched end here, launched ones through the pipeline. */
void dp_on_fatal(void *user, dp_status_t status, int culprit, const char *text)
{
    dp_context_t *context = user;
    const char *kept = dp_context_text(context, text);

    dp_trace_instant(context->agree_track,
                     (dp_trace_record_t){.kind = DP_TRACE_FAULT,
                                         .name = dp_trace_name(context->trace, kept),
                                         .aux = (uint32_t)(culprit + 1) & DP_TRACE_AUX_MAX});
    dp_log_error(&context->log, "%s", kept);
    dp_context_report(context, status, culprit, kept);
    pthread_mutex_lock(&context->lock);
    context->fatal = status;
    __atomic_store_n(&context->texts.last, kept, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&context->lock);
    context->engine->ops->abort(context->engine, status, kept);
    dp_pipeline_abort(context->pipeline, status, kept);
    dp_program_stop(context->program, status, kept);
    for (;;) {
        dp_handle_t *request;

        pthread_mutex_lock(&context->lock);
        for (request = context->requests.live_first; request != NULL;
             request = request->links.following)
            if (request->name_state->pending == request) break;
        if (request != NULL) leave_coordinator(request);
        pthread_mutex_unlock(&context->lock);
        if (request == NULL) break;
        dp_request_fail(request, status, kept);
    }
}

/* ---- The data plane's answers --------------------------------------------------------------- */

/* A failure that concerns one operation alone: the ranks still agree on everything else. */
static int is_harmless(dp_status_t status)
{
    return status == DP_ERR_CHECK || status == DP_ERR_TRUNCATED;
}

/* The engine does not know what the tensor is called. */
static const char *keep_text(const dp_handle_t *request, const dp_pipeline_done_t *done)
{
    dp_context_t *context = request->context;
    char text[DP_ERROR_TEXT_MAX + DP_ENTRY_NAME_MAX + DP_GROUP_NAME_MAX + 32];
    int is_world = request->group == &context->world;

    if (done->status != DP_ERR_TRUNCATED) return dp_context_text(context, done->text);
    snprintf(text, sizeof(text), "tensor %s%s%s: %s", request->name_state->name,
             is_world ? "" : " of group ", is_world ? "" : request->group->name, done->text);
    return dp_context_text(context, text);
}

/* In program order an engine may find a difference that another rank has already described; its
 * text says more. */
static const char *why_over(const dp_handle_t *request, const dp_pipeline_done_t *done)
{
    dp_context_t *context = request->context;
    const char *text = NULL;

    pthread_mutex_lock(&context->lock);
    if (done->status == DP_ERR_MISMATCH && context->fatal == done->status)
        text = context->texts.last;
    pthread_mutex_unlock(&context->lock);
    return text != NULL ? text : keep_text(request, done);
}

static void absent_done(dp_handle_t *request)
{
    dp_context_t *context = request->context;

    pthread_mutex_lock(&context->lock);
    dp_request_discard(request);
    pthread_mutex_unlock(&context->lock);
}

void dp_on_done(void *user, const dp_pipeline_done_t *done)
{
    dp_context_t *context = user;
    dp_handle_t *request = done->request;
    const char *text = "";

    if (done->status != DP_OK) {
        if (request->program_op.group != NULL && done->status == DP_ERR_MISMATCH &&
            dp_program_suspend(context->program, &request->program_op, done->status, done->text))
            return;
        text =
            request->program_op.group == NULL ? keep_text(request, done) : why_over(request, done);
        if (!is_harmless(done->status)) dp_loop_abort(context->loop, done->status, text);
    }
    if (request->is_absent) {
        absent_done(request);
        return;
    }
    if (done->status != DP_OK) {
        dp_request_fail(request, done->status, text);
        return;
    }
    dp_request_succeed(request, done);
}

void dp_on_launch_done(void *user, uint64_t sequence)
{
    dp_context_t *context = user;

    /* Only the root holds launches back until earlier ones are done, so only it needs to know. */
    if (context->rank == 0) dp_loop_launch_done(context->loop, sequence);
}

void dp_on_issued(void *user, void *issued)
{
    dp_handle_t *request = issued;
    uint32_t state = DP_REQUEST_LAUNCHED;

    (void)user;
    /* As in dp_request_complete(): the state first, then the sleepers. */
    if (!atomic_compare_exchange_strong(&request->state, &state, DP_REQUEST_ISSUED)) {
        if (state != DP_REQUEST_HANDED ||
            !atomic_compare_exchange_strong(&request->state, &state, DP_REQUEST_ISSUED))
            return;
    }
    if (atomic_load(&request->waiting.sleepers) != 0) dp_futex_wake(&request->state);
}
