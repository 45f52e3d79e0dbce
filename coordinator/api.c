/*
 * api.c - the submitting half of dp.h: validates, fills in a pooled request, queues it and wakes
 * the coordinator. Constant time, never waits for another rank.
 */
#include "coordinator/context.h"

#include <string.h>

/* One submission as all collectives see it. */
typedef struct submission {
    dp_collective_t collective;
    const char *name;
    const dp_tensor_t *tensors; /* [count] */
    size_t count;
    int is_grouped;
    int root; /* -1: none */
} submission_t;

static const dp_options_t default_options = DP_OPTIONS_INIT;

static int is_float(dp_dtype_t dtype)
{
    return dtype == DP_F16 || dtype == DP_BF16 || dtype == DP_F32 || dtype == DP_F64;
}

static int is_reduction(dp_collective_t collective)
{
    return collective == DP_COLLECTIVE_ALLREDUCE || collective == DP_COLLECTIVE_REDUCE_SCATTER;
}

/* How many rows of `count` elements in and out hold. */
static size_t rows_in(const dp_context_t *context, dp_collective_t collective)
{
    return collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)context->size : 1;
}

static size_t rows_out(const dp_context_t *context, dp_collective_t collective)
{
    return collective == DP_COLLECTIVE_ALLGATHER ? (size_t)context->size : 1;
}

static dp_status_t check_options(dp_context_t *context, const submission_t *what,
                                 const dp_options_t *options)
{
    if (options->size < sizeof(dp_options_t)) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "tensor %s: options say they have %zu bytes, dp_options_t has %zu; "
                                "use DP_OPTIONS_INIT",
                                what->name, options->size, sizeof(dp_options_t));
    }
    if ((unsigned)options->reduce >= DP_REDUCE_COUNT) {
        return dp_context_error(context, DP_ERR_INVALID, "tensor %s: no reduction has number %d",
                                what->name, (int)options->reduce);
    }
    if ((unsigned)options->wire > DP_WIRE_BF16) {
        return dp_context_error(context, DP_ERR_INVALID, "tensor %s: no wire type has number %d",
                                what->name, (int)options->wire);
    }
    if (options->stream != NULL) {
        return dp_context_error(context, DP_ERR_UNSUPPORTED,
                                "tensor %s: a stream was given, but this context has no device",
                                what->name);
    }
    return DP_OK;
}

static dp_status_t check_tensor(dp_context_t *context, const submission_t *what, size_t index,
                                const dp_options_t *options)
{
    const dp_tensor_t *tensor = &what->tensors[index];
    size_t bytes = dp_dtype_bytes(tensor->dtype);
    size_t rows = DP_MAX(rows_in(context, what->collective), rows_out(context, what->collective));
    int needs_in = what->collective != DP_COLLECTIVE_BROADCAST || what->root == context->rank;

    if (bytes == 0) {
        return dp_context_error(context, DP_ERR_INVALID, "tensor %s: no type has number %d",
                                what->name, (int)tensor->dtype);
    }
    if (tensor->count > SIZE_MAX / 2 / bytes / rows) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "tensor %s: count %zu times %zu rows of %s exceeds memory",
                                what->name, tensor->count, rows, dp_dtype_name(tensor->dtype));
    }
    if (tensor->count != 0 && (tensor->out == NULL || (needs_in && tensor->in == NULL))) {
        return dp_context_error(context, DP_ERR_INVALID, "tensor %s: %s is NULL, count is %zu",
                                what->name, tensor->out == NULL ? "out" : "in", tensor->count);
    }
    if (!is_reduction(what->collective)) return DP_OK;
    if (tensor->dtype == DP_BOOL && options->reduce == DP_AVERAGE) {
        return dp_context_error(context, DP_ERR_INVALID, "tensor %s: bool has no average",
                                what->name);
    }
    if (!is_float(tensor->dtype) && (options->prescale != 1.0 || options->postscale != 1.0)) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "tensor %s: scales %g and %g on type %s; only floats are scaled",
                                what->name, options->prescale, options->postscale,
                                dp_dtype_name(tensor->dtype));
    }
    return DP_OK;
}

/* Whether the memory that this collective wants in the engine's hands is there. */
static int is_in_place(const dp_context_t *context, const submission_t *what)
{
    for (size_t i = 0; i < what->count; i++) {
        const dp_tensor_t *tensor = &what->tensors[i];
        size_t bytes = tensor->count * dp_dtype_bytes(tensor->dtype);
        const dp_engine_ops_t *ops = context->engine->ops;

        if (bytes == 0) continue;
        if (what->collective == DP_COLLECTIVE_BROADCAST && what->root != context->rank) continue;
        if (!ops->owns(context->engine, tensor->in, bytes * rows_in(context, what->collective)))
            return 0;
        if (what->collective == DP_COLLECTIVE_ALLREDUCE && tensor->out != tensor->in &&
            !ops->owns(context->engine, tensor->out, bytes))
            return 0;
    }
    return 1;
}

/* The wire in force: compression is for fp32 sums that cross machines. */
static dp_wire_t resolve_wire(const dp_context_t *context, const submission_t *what,
                              const dp_options_t *options)
{
    dp_wire_t wire = options->wire == DP_WIRE_DEFAULT ? context->config.wire : options->wire;

    if (!is_reduction(what->collective) || wire == DP_WIRE_DEFAULT) return DP_WIRE_NONE;
    if (options->reduce != DP_SUM && options->reduce != DP_AVERAGE) return DP_WIRE_NONE;
    for (size_t i = 0; i < what->count; i++)
        if (what->tensors[i].dtype != DP_F32) return DP_WIRE_NONE;
    return wire;
}

static void fill_signature(const dp_context_t *context, dp_tensor_entry_t *entry,
                           const submission_t *what, const dp_options_t *options)
{
    dp_signature_t *signature = &entry->signature;
    int reduces = is_reduction(what->collective);
    dp_signature_part_t *parts = what->count > 1 ? entry->parts : &entry->part;

    signature->collective = what->collective;
    signature->reduce = reduces ? options->reduce : DP_SUM;
    signature->wire = resolve_wire(context, what, options);
    signature->root = what->root;
    signature->is_grouped = what->is_grouped;
    signature->prescale = reduces ? options->prescale : 1.0;
    signature->postscale = reduces ? options->postscale : 1.0;
    for (size_t i = 0; i < what->count; i++)
        parts[i] = (dp_signature_part_t){what->tensors[i].count, what->tensors[i].dtype};
}

static uint64_t hash_inputs(const dp_context_t *context, const submission_t *what)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < what->count; i++) {
        const dp_tensor_t *tensor = &what->tensors[i];
        size_t bytes = tensor->count * dp_dtype_bytes(tensor->dtype);

        if (tensor->in != NULL)
            hash = dp_kernel_hash(tensor->in, bytes * rows_in(context, what->collective), hash);
    }
    return hash == 0 ? 1 : hash; /* 0 says that there is none */
}

/* Under the lock: the request enters the list of live ones. */
static void enlist(dp_handle_t *request, int has_owner)
{
    dp_context_t *context = request->context;

    atomic_store(&request->references, has_owner ? 2 : 1);
    atomic_store(&request->has_owner, has_owner);
    atomic_store(&request->state, DP_REQUEST_PENDING);
    atomic_store(&request->agree_ns, 0);
    request->output_hash = 0;
    request->is_awaited = 0;
    request->ticket = context->next_ticket++;
    request->previous = context->live_last;
    request->following = NULL;
    if (context->live_last != NULL) {
        context->live_last->following = request;
    } else {
        context->live_first = request;
    }
    context->live_last = request;
    context->live_count++;
    request->entry->pending = request;
}

static dp_status_t refuse(dp_context_t *context, const submission_t *what, dp_status_t status)
{
    switch (status) {
    case DP_ERR_BUSY:
        return dp_context_error(context, status,
                                "tensor %s: submitted again before its last use was launched",
                                what->name);
    case DP_ERR_AGAIN:
        return dp_context_error(context, status,
                                "tensor %s: %zu operations are in flight, "
                                "DP_QUEUE_DEPTH allows %zu",
                                what->name, context->live_count, context->config.queue_depth);
    case DP_ERR_NO_MEMORY:
        return dp_context_error(context, status, "tensor %s: no memory for a request", what->name);
    default:
        return status; /* the world had ended; its text stands */
    }
}

static dp_status_t submit(dp_group_t *group, const submission_t *what, const dp_options_t *options,
                          dp_handle_t **handle)
{
    dp_context_t *context;
    dp_handle_t *request = NULL;
    dp_loop_node_t *node;
    dp_status_t status;
    dp_trace_lane_t *lane;
    uint64_t begin_ns = dp_now_ns();
    size_t length;

    if (group == NULL) return DP_ERR_INVALID;
    context = group->context;
    if (options == NULL) options = &default_options;
    length = what->name == NULL ? 0 : strnlen(what->name, DP_NAME_MAX + 1);
    if (length == 0 || length > DP_NAME_MAX) {
        return dp_context_error(
            context, DP_ERR_INVALID, "%s: its name is %s; it needs 1 to %d bytes",
            dp_collective_name(what->collective),
            what->name == NULL ? "NULL" : (length == 0 ? "empty" : "too long"), DP_NAME_MAX);
    }
    status = check_options(context, what, options);
    for (size_t i = 0; status == DP_OK && i < what->count; i++)
        status = check_tensor(context, what, i, options);
    if (status != DP_OK) return status;

    pthread_mutex_lock(&context->lock);
    status = dp_request_take(context, what->name, what->count, &request);
    if (status == DP_OK) {
        fill_signature(context, request->entry, what, options);
        request->bytes = 0;
        for (size_t i = 0; i < what->count; i++) {
            const dp_tensor_t *tensor = &what->tensors[i];

            request->tensors[i] =
                (dp_pipeline_tensor_t){tensor->in, tensor->out, tensor->count, tensor->dtype};
            request->bytes += tensor->count * dp_dtype_bytes(tensor->dtype);
        }
        request->submit_ns = begin_ns;
        request->input_hash = context->config.check ? hash_inputs(context, what) : 0;
        node = &request->node;
        node->submission = (dp_submission_t){.name = request->entry->name,
                                             .signature = &request->entry->signature,
                                             .in_place = is_in_place(context, what),
                                             .last_absmax = request->entry->last_absmax,
                                             .is_urgent = 0,
                                             .request = request};
        enlist(request, handle != NULL);
    }
    pthread_mutex_unlock(&context->lock);
    if (status != DP_OK) return refuse(context, what, status);

    atomic_fetch_add_explicit(&context->submitted, 1, memory_order_relaxed);
    lane = dp_trace_thread_lane(context->trace);
    dp_trace_span(lane, (dp_trace_record_t){.kind = DP_TRACE_SUBMIT,
                                            .start_ns = begin_ns,
                                            .id = request->ticket + 1,
                                            .bytes = request->bytes,
                                            .name = request->entry->trace_name});
    if (handle != NULL) *handle = request;
    dp_loop_submit(context->loop, &node, 1);
    return DP_OK;
}

dp_status_t dp_allreduce(dp_group_t *group, const char *name, const void *in, void *out,
                         size_t count, dp_dtype_t dtype, const dp_options_t *options,
                         dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, count, dtype};
    submission_t what = {DP_COLLECTIVE_ALLREDUCE, name, &tensor, 1, 0, -1};

    return submit(group, &what, options, handle);
}

dp_status_t dp_grouped_allreduce(dp_group_t *group, const char *name, const dp_tensor_t *tensors,
                                 size_t count, const dp_options_t *options, dp_handle_t **handle)
{
    submission_t what = {DP_COLLECTIVE_ALLREDUCE, name, tensors, count, 1, -1};

    if (group == NULL) return DP_ERR_INVALID;
    if (tensors == NULL || count == 0 || count > DP_GROUPED_MAX) {
        return dp_context_error(
            group->context, DP_ERR_INVALID, "group %s: %zu tensors%s; 1 to %d are possible",
            name == NULL ? "NULL" : name, count, tensors == NULL ? " at NULL" : "", DP_GROUPED_MAX);
    }
    return submit(group, &what, options, handle);
}

dp_status_t dp_broadcast(dp_group_t *group, const char *name, const void *in, void *out,
                         size_t count, dp_dtype_t dtype, int root, const dp_options_t *options,
                         dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, count, dtype};
    submission_t what = {DP_COLLECTIVE_BROADCAST, name, &tensor, 1, 0, root};

    if (group == NULL) return DP_ERR_INVALID;
    if (root < 0 || root >= group->context->size) {
        return dp_context_error(group->context, DP_ERR_INVALID,
                                "tensor %s: root %d, the group has ranks 0 to %d",
                                name == NULL ? "NULL" : name, root, group->context->size - 1);
    }
    return submit(group, &what, options, handle);
}

dp_status_t dp_allgather(dp_group_t *group, const char *name, const void *in, void *out,
                         size_t count, dp_dtype_t dtype, const dp_options_t *options,
                         dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, count, dtype};
    submission_t what = {DP_COLLECTIVE_ALLGATHER, name, &tensor, 1, 0, -1};

    return submit(group, &what, options, handle);
}

dp_status_t dp_reduce_scatter(dp_group_t *group, const char *name, const void *in, void *out,
                              size_t count, dp_dtype_t dtype, const dp_options_t *options,
                              dp_handle_t **handle)
{
    dp_tensor_t tensor = {in, out, count, dtype};
    submission_t what = {DP_COLLECTIVE_REDUCE_SCATTER, name, &tensor, 1, 0, -1};

    return submit(group, &what, options, handle);
}

dp_status_t dp_barrier(dp_group_t *group, const char *name, dp_handle_t **handle)
{
    submission_t what = {DP_COLLECTIVE_BARRIER, name, NULL, 0, 0, -1};

    return submit(group, &what, NULL, handle);
}
