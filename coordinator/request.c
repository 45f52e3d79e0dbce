/*
 * request.c - the life of a request: taken from the pool, handed to the coordinator, launched,
 * completed, and given back when both the runtime and the program are done with it.
 *
 * Memory is taken from the system when a name or a depth of queue is seen for the first time;
 * afterwards submitting allocates nothing.
 */
#include "coordinator/context.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/futex.h"

static uint64_t name_hash(const char *name)
{
    uint64_t hash = 1469598103934665603ull; /* FNV-1a */

    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 1099511628211ull;
    return hash;
}

static dp_tensor_entry_t *entry_find(dp_context_t *context, const char *name)
{
    uint64_t hash = name_hash(name);
    dp_tensor_entry_t **chain = &context->names[hash & (DP_NAME_BUCKETS - 1)];
    dp_tensor_entry_t *entry;
    size_t bytes;

    for (entry = *chain; entry != NULL; entry = entry->next)
        if (entry->hash == hash && strcmp(entry->name, name) == 0) return entry;
    bytes = strlen(name) + 1;
    entry = calloc(1, sizeof(*entry) + bytes);
    if (entry == NULL) return NULL;
    memcpy(entry->name, name, bytes);
    entry->hash = hash;
    entry->last_absmax = -1.0f;
    entry->trace_name = dp_trace_name(context->trace, name);
    entry->next = *chain;
    *chain = entry;
    return entry;
}

/* Room for the tensors of a grouped operation, in the request and in the entry. */
static dp_status_t reserve_group(dp_handle_t *request, size_t tensor_count)
{
    dp_tensor_entry_t *entry = request->entry;

    if (request->tensor_room < tensor_count) {
        void *room =
            realloc(request->group_tensors, tensor_count * sizeof(*request->group_tensors));

        if (room == NULL) return DP_ERR_NO_MEMORY;
        request->group_tensors = room;
        request->tensor_room = tensor_count;
    }
    if (entry->part_room < tensor_count) {
        void *room = realloc(entry->parts, tensor_count * sizeof(*entry->parts));

        if (room == NULL) return DP_ERR_NO_MEMORY;
        entry->parts = room;
        entry->part_room = (uint32_t)tensor_count;
    }
    return DP_OK;
}

dp_status_t dp_request_take(dp_context_t *context, const char *name, size_t tensor_count,
                            dp_handle_t **out)
{
    dp_tensor_entry_t *entry;
    dp_handle_t *request;
    dp_status_t status;

    if (context->fatal != DP_OK) return context->fatal;
    if (context->live_count >= context->config.queue_depth) return DP_ERR_AGAIN;
    entry = entry_find(context, name);
    if (entry == NULL) return DP_ERR_NO_MEMORY;
    if (entry->pending != NULL) return DP_ERR_BUSY;
    request = context->pool;
    if (request != NULL) {
        context->pool = request->next_free;
    } else {
        request = calloc(1, sizeof(*request));
        if (request == NULL) return DP_ERR_NO_MEMORY;
        request->context = context;
        request->next_made = context->made;
        context->made = request;
    }
    request->entry = entry;
    if (tensor_count > 1) {
        status = reserve_group(request, tensor_count);
        if (status != DP_OK) {
            dp_request_discard(request);
            return status;
        }
    }
    request->tensors = tensor_count > 1 ? request->group_tensors : &request->tensor;
    request->tensor_count = tensor_count;
    entry->signature.parts = tensor_count > 1 ? entry->parts : &entry->part;
    entry->signature.part_count = (uint32_t)tensor_count;
    *out = request;
    return DP_OK;
}

void dp_request_discard(dp_handle_t *request)
{
    request->next_free = request->context->pool;
    request->context->pool = request;
}

static void live_remove(dp_handle_t *request)
{
    dp_context_t *context = request->context;

    if (request->previous != NULL) {
        request->previous->following = request->following;
    } else {
        context->live_first = request->following;
    }
    if (request->following != NULL) {
        request->following->previous = request->previous;
    } else {
        context->live_last = request->previous;
    }
    request->previous = request->following = NULL;
    context->live_count--;
}

void dp_request_unref(dp_handle_t *request)
{
    dp_context_t *context = request->context;

    if (atomic_fetch_sub_explicit(&request->references, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_lock(&context->lock);
    dp_request_discard(request);
    pthread_mutex_unlock(&context->lock);
}

/* The end of a request; the runtime's reference goes with it. */
void dp_request_complete(dp_handle_t *request, dp_status_t status, const dp_result_t *result)
{
    dp_context_t *context = request->context;

    request->status = status;
    request->result = *result;
    atomic_fetch_add_explicit(&context->completed, 1, memory_order_relaxed);
    if (status != DP_OK) atomic_fetch_add_explicit(&context->failed, 1, memory_order_relaxed);
    if (status == DP_OK)
        atomic_fetch_add_explicit(&context->bytes_reduced, request->bytes, memory_order_relaxed);

    pthread_mutex_lock(&context->lock);
    live_remove(request);
    if (status != DP_OK && context->unowned_failure == DP_OK && !atomic_load(&request->has_owner))
        context->unowned_failure = status;
    pthread_mutex_unlock(&context->lock);

    /* sequentially consistent: a waiter counts itself, then looks at the state; we change the
     * state, then look at the count */
    atomic_store(&request->state, DP_REQUEST_DONE);
    if (atomic_load(&request->sleepers) != 0) dp_futex_wake(&request->state);
    atomic_fetch_add(&context->completions, 1);
    if (atomic_load(&context->completion_sleepers) != 0) dp_futex_wake(&context->completions);
    dp_request_unref(request);
}

static void fail_request(dp_handle_t *request, dp_status_t status, const char *text)
{
    dp_result_t result = DP_RESULT_INIT;

    result.text = text;
    dp_request_complete(request, status, &result);
}

void dp_request_await(dp_handle_t *request)
{
    dp_context_t *context = request->context;

    pthread_mutex_lock(&context->lock);
    if (request->entry->pending == request && !request->is_awaited) {
        request->is_awaited = 1;
        dp_loop_expect(context->loop, 1);
    }
    pthread_mutex_unlock(&context->lock);
}

/* Under the lock: launched or failed, the request is the coordinator's no more. */
static void leave_coordinator(dp_handle_t *request)
{
    request->entry->pending = NULL;
    if (!request->is_awaited) return;
    request->is_awaited = 0;
    dp_loop_expect(request->context->loop, -1);
}

void dp_on_launch(void *user, uint64_t sequence, const dp_launch_entry_t *entries, size_t count)
{
    dp_context_t *context = user;
    dp_pipeline_launch_t *launch = malloc(sizeof(*launch));
    dp_pipeline_item_t *items = calloc(count, sizeof(*items));
    uint64_t now = dp_now_ns();

    if (launch == NULL || items == NULL) {
        /* Every other rank launches this: one that cannot must end the world, not stay behind. */
        free(launch);
        free(items);
        dp_loop_abort(context->loop, DP_ERR_NO_MEMORY, "no memory for a launch");
        return;
    }
    pthread_mutex_lock(&context->lock);
    for (size_t i = 0; i < count; i++) {
        dp_handle_t *request = entries[i].request;
        const dp_signature_t *signature = &request->entry->signature;

        items[i] = (dp_pipeline_item_t){.request = request,
                                        .name = request->entry->name,
                                        .id = entries[i].id,
                                        .collective = signature->collective,
                                        .reduce = signature->reduce,
                                        .wire = signature->wire,
                                        .last_absmax = entries[i].last_absmax,
                                        .root = signature->root,
                                        .prescale = signature->prescale,
                                        .postscale = signature->postscale,
                                        .in_place = entries[i].in_place,
                                        .tensors = request->tensors,
                                        .tensor_count = request->tensor_count,
                                        .input_hash = request->input_hash,
                                        .submit_ns = request->submit_ns,
                                        .agree_ns = now};
        dp_trace_record(context->agree_lane,
                        (dp_trace_record_t){.kind = DP_TRACE_AGREE,
                                            .start_ns = request->submit_ns,
                                            .duration_ns = now - request->submit_ns,
                                            .bucket = sequence,
                                            .id = request->ticket + 1,
                                            .bytes = request->bytes,
                                            .name = request->entry->trace_name});
        leave_coordinator(request);
        atomic_store(&request->agree_ns, now);
        atomic_store(&request->state, DP_REQUEST_LAUNCHED);
    }
    pthread_mutex_unlock(&context->lock);
    launch->sequence = sequence;
    launch->items = items;
    launch->item_count = count;
    if (dp_pipeline_submit(context->pipeline, launch) != DP_OK)
        dp_loop_abort(context->loop, DP_ERR_NO_MEMORY, "the data plane took no launch");
}

void dp_on_fail(void *user, void *request, dp_status_t status, const char *text)
{
    dp_context_t *context = user;
    dp_handle_t *failed = request;

    pthread_mutex_lock(&context->lock);
    leave_coordinator(failed);
    pthread_mutex_unlock(&context->lock);
    fail_request(failed, status, dp_context_text(context, text));
}

/* Requests the loop forgot end here; launched ones through the pipeline. */
void dp_on_fatal(void *user, dp_status_t status, int culprit, const char *text)
{
    dp_context_t *context = user;
    const char *kept = dp_context_text(context, text);

    dp_trace_instant(context->agree_lane,
                     (dp_trace_record_t){.kind = DP_TRACE_FAULT,
                                         .name = dp_trace_name(context->trace, kept),
                                         .aux = (uint32_t)(culprit + 1) & DP_TRACE_AUX_MAX});
    dp_log_error(&context->log, "%s", kept);
    context->bootstrap->ops->note(context->bootstrap, kept);
    pthread_mutex_lock(&context->lock);
    context->fatal = status;
    context->last_text = kept;
    pthread_mutex_unlock(&context->lock);
    context->engine->ops->abort(context->engine, status, kept);
    dp_pipeline_abort(context->pipeline, status, kept);
    for (;;) {
        dp_handle_t *request;

        pthread_mutex_lock(&context->lock);
        for (request = context->live_first; request != NULL; request = request->following)
            if (request->entry->pending == request) break;
        if (request != NULL) leave_coordinator(request);
        pthread_mutex_unlock(&context->lock);
        if (request == NULL) break;
        fail_request(request, status, kept);
    }
}

void dp_on_done(void *user, const dp_pipeline_done_t *done)
{
    dp_context_t *context = user;
    dp_handle_t *request = done->request;
    dp_result_t result = DP_RESULT_INIT;

    if (done->status != DP_OK) {
        const char *text = dp_context_text(context, done->text);

        /* The ranks no longer agree on what was reduced; only a failed check leaves that intact. */
        if (done->status != DP_ERR_CHECK) dp_loop_abort(context->loop, done->status, text);
        fail_request(request, done->status, text);
        return;
    }
    result.nonfinite = done->tally.nonfinite;
    result.sum_squares = dp_tally_sum_squares(&done->tally);
    result.absmax = done->tally.absmax;
    pthread_mutex_lock(&context->lock);
    request->entry->last_absmax = done->raw_absmax;
    pthread_mutex_unlock(&context->lock);
    if (request->input_hash != 0) {
        request->output_hash = 0;
        for (size_t i = 0; i < request->tensor_count; i++) {
            const dp_pipeline_tensor_t *tensor = &request->tensors[i];
            size_t rows = request->entry->signature.collective == DP_COLLECTIVE_ALLGATHER
                              ? (size_t)context->size
                              : 1;

            request->output_hash =
                dp_kernel_hash(tensor->out, tensor->count * rows * dp_dtype_bytes(tensor->dtype),
                               request->output_hash);
        }
    }
    dp_request_complete(request, DP_OK, &result);
}

void dp_on_launch_done(void *user, uint64_t sequence)
{
    dp_context_t *context = user;

    /* Only the root holds launches back, so only it needs to know. */
    if (context->rank == 0) dp_loop_launched(context->loop, sequence);
}

void dp_requests_free(dp_context_t *context)
{
    dp_handle_t *request, *next;

    /* All ever made, so that handles the program never gave back are freed too. */
    for (request = context->made; request != NULL; request = next) {
        next = request->next_made;
        free(request->group_tensors);
        free(request);
    }
    context->made = context->pool = NULL;
    for (size_t i = 0; i < DP_NAME_BUCKETS; i++) {
        dp_tensor_entry_t *entry, *following;

        for (entry = context->names[i]; entry != NULL; entry = following) {
            following = entry->next;
            free(entry->parts);
            free(entry);
        }
        context->names[i] = NULL;
    }
}
