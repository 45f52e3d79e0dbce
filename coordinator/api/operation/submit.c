/*
 * submit.c - dp_submit(): fills in a pooled request, queues it, and wakes the coordinator.
 *
 * All functions of dp.h that submit end here, on the program's threads. It takes constant time but
 * for the list of tensors, allocates nothing once a name and a depth of queue were seen, and never
 * waits for another rank. It must not know how ranks agree.
 */
#include "coordinator/api/operation/submit.h"

#include <stdio.h>

#include "coordinator/api/context/completions.h"
#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/names.h"
#include "coordinator/api/context/places.h"
#include "coordinator/api/context/sized.h"
#include "coordinator/api/operation/arguments.h"
#include "coordinator/api/operation/direct.h"
#include "coordinator/api/operation/request.h"
#include "coordinator/api/operation/stage.h"
#include "coordinator/api/operation/stream.h"
#include "coordinator/loop/progress.h"
#include "fusion/plan.h"
#include "runtime/base/inject.h"

static const dp_options_t default_options = DP_OPTIONS_INIT;

/* Makes what->options this library's version: NULL becomes the defaults, options of another version
 * are copied to room. */
static dp_status_t read_operation_options(const dp_group_t *group, dp_submit_t *what,
                                          dp_options_t *room)
{
    dp_error_t error;
    dp_status_t status;

    if (what->options == NULL) what->options = &default_options;
    if (what->options->size == sizeof(*room)) return DP_OK;
    *room = default_options;
    status = dp_sized_read("dp_options_t", what->options, room, sizeof(*room), &error);
    what->options = room;
    return status == DP_OK ? DP_OK : dp_submit_error(group, what, status, "%s", error.text);
}

/* ---- The signature -------------------------------------------------------------------------- */

/* The wire type in force: compression is for fp32 sums. */
static dp_wire_t resolve_wire(const dp_context_t *context, const dp_submit_t *what)
{
    const dp_options_t *options = what->options;
    dp_wire_t wire = options->wire == DP_WIRE_DEFAULT ? context->config.wire : options->wire;

    if (!dp_collective_reduces(what->collective) || wire == DP_WIRE_DEFAULT) return DP_WIRE_NONE;
    if (options->reduce != DP_SUM && options->reduce != DP_AVERAGE) return DP_WIRE_NONE;
    /* A grouped operation is compressed as a whole or not at all. */
    for (size_t i = 0; i < what->count; i++)
        if (what->tensors[i].dtype != DP_F32) return DP_WIRE_NONE;
    return wire;
}

static int has_agreed_count(dp_collective_t collective)
{
    return !dp_is_exchange(collective) || collective == DP_COLLECTIVE_GATHER ||
           collective == DP_COLLECTIVE_SCATTER || collective == DP_COLLECTIVE_ALLTOALL;
}

static size_t part_count_of(const dp_group_t *group, const dp_submit_t *what)
{
    return what->collective == DP_COLLECTIVE_REDUCE_SCATTERV ? (size_t)group->size : what->count;
}

/* Writes what the ranks must agree on into the state of its name. The coordinator reads it there
 * until the request is launched; a name whose request is pending is DP_ERR_BUSY, so it stays until
 * then.
 */
static dp_status_t fill_signature(const dp_group_t *group, dp_name_state_t *name_state,
                                  const dp_submit_t *what)
{
    const dp_options_t *options = what->options;
    int reduces = dp_collective_reduces(what->collective);
    size_t part_count = part_count_of(group, what);
    /* The negotiator knows the two ranks of a message by their places. */
    int is_message = what->collective == DP_COLLECTIVE_SEND;
    dp_signature_part_t *parts = dp_name_state_parts(name_state, part_count);

    if (parts == NULL) return DP_ERR_NO_MEMORY;
    name_state->signature = (dp_signature_t){
        .collective = what->collective,
        .reduce = reduces ? options->reduce : DP_SUM,
        .wire = resolve_wire(group->context, what),
        .root = is_message ? dp_group_place(group, what->root) : what->root,
        .peer = is_message ? dp_group_place(group, what->peer) : what->peer,
        .is_grouped = what->is_grouped,
        .count_joined = reduces && options->reduce == DP_AVERAGE && options->count_joined != 0,
        .prescale = reduces ? options->prescale : 1.0,
        .postscale = reduces ? options->postscale : 1.0,
        .tag = options->tag,
        .part_count = (uint32_t)part_count,
        .parts = parts};
    for (size_t i = 0; i < part_count; i++) {
        const dp_tensor_t *tensor = &what->tensors[what->counts != NULL ? 0 : i];
        size_t count = what->counts != NULL ? what->counts[i] : tensor->count;

        parts[i] =
            (dp_signature_part_t){has_agreed_count(what->collective) ? count : 0, tensor->dtype};
    }
    if (what->new_group != NULL) {
        name_state->signature.member_count = (uint32_t)what->new_group->size;
        name_state->signature.members = what->new_group->ascending != NULL
                                            ? what->new_group->ascending
                                            : what->new_group->members;
        name_state->signature.tag = (uint64_t)what->new_group->order;
        name_state->signature.group_name = what->new_group->name;
    }
    return DP_OK;
}

/* ---- The request ---------------------------------------------------------------------------- */

/* How many counts this rank sends along with its data. */
static size_t count_count_of(const dp_group_t *group, const dp_submit_t *what)
{
    switch (what->collective) {
    case DP_COLLECTIVE_ALLTOALL:
    case DP_COLLECTIVE_ALLTOALLV:
        return (size_t)group->size;
    case DP_COLLECTIVE_SCATTER:
    case DP_COLLECTIVE_SCATTERV:
        return what->root == group->rank ? (size_t)group->size : 0;
    case DP_COLLECTIVE_GATHER:
    case DP_COLLECTIVE_GATHERV:
    case DP_COLLECTIVE_ALLGATHERV:
        return 1;
    case DP_COLLECTIVE_SEND:
        return what->root == group->rank ? 1 : 0;
    default:
        return 0;
    }
}

/* A reduce_scatterv is one reduction for each rank, of its part of in, to its out. */
static void fill_parts(dp_handle_t *request, const dp_submit_t *what)
{
    const dp_tensor_t *tensor = &what->tensors[0];
    const char *in = tensor->in;

    for (int rank = 0; rank < request->group->size; rank++) {
        request->tensors[rank] =
            (dp_pipeline_tensor_t){.in = in,
                                   .out = rank == request->group->rank ? tensor->out : NULL,
                                   .count = what->counts[rank],
                                   .dtype = tensor->dtype};
        if (in != NULL) in += what->counts[rank] * dp_dtype_bytes(tensor->dtype);
    }
}

static void fill_exchange(dp_handle_t *request, const dp_submit_t *what, const dp_extent_t *extent)
{
    for (size_t i = 0; i < request->exchange.count; i++) {
        request->exchange.counts[i] =
            what->counts != NULL ? what->counts[i] : what->tensors[0].count;
    }
    request->exchange.capacity = extent->has_out ? extent->out_count : 0;
    request->exchange.recv_counts = extent->has_out ? what->recv_counts : NULL;
    if (what->options->output == NULL || !extent->has_out) return;
    request->exchange.capacity = SIZE_MAX; /* the program makes room for what comes */
    request->exchange.output = what->options->output;
    request->exchange.user = what->options->user;
}

static void fill_request(dp_handle_t *request, const dp_submit_t *what)
{
    request->collective = what->collective;
    request->root = what->root;
    request->peer = what->peer;
    request->new_group = what->new_group;
    request->stream.figures = what->figures;
    for (size_t i = 0; i < what->count; i++) {
        const dp_tensor_t *tensor = &what->tensors[i];
        size_t bytes = dp_dtype_bytes(tensor->dtype);
        dp_extent_t extent;

        (void)dp_extent_of(request->group, what, tensor, &extent); /* checked before */
        if (what->collective == DP_COLLECTIVE_REDUCE_SCATTERV) {
            fill_parts(request, what);
        } else {
            request->tensors[i] = (dp_pipeline_tensor_t){.in = extent.has_in ? tensor->in : NULL,
                                                         .out = extent.has_out ? tensor->out : NULL,
                                                         .count = tensor->count,
                                                         .dtype = tensor->dtype};
        }
        if (dp_is_exchange(what->collective)) fill_exchange(request, what, &extent);
        if (extent.has_in) {
            request->bytes += extent.in_count * bytes;
        } else if (!dp_is_exchange(what->collective)) {
            request->bytes += extent.out_count * bytes; /* an exchange's is known on arrival */
        }
    }
}

/* 1: the engine takes this tensor where it lies, whatever memory that is. Equal on all ranks. */
static int is_pulled(const dp_group_t *group, const dp_submit_t *what, size_t bytes)
{
    const dp_engine_t *engine = group->context->engine;

    return engine->ops->pulls != NULL &&
           engine->ops->pulls(engine, what->collective, group->members, group->size, bytes);
}

/* 1: all memory that this collective wants to be the engine's is. */
static int is_in_place(const dp_group_t *group, const dp_submit_t *what)
{
    dp_engine_t *engine = group->context->engine;
    const int is_alike = !dp_group_is_ordered(group) || dp_program_is_even(what->collective);
    int wants_out = what->collective == DP_COLLECTIVE_ALLREDUCE ||
                    what->collective == DP_COLLECTIVE_REDUCE ||
                    what->collective == DP_COLLECTIVE_REDUCE_SCATTERV;

    if (dp_is_exchange(what->collective)) return 0; /* it works on any memory */
    for (size_t i = 0; i < what->count; i++) {
        const dp_tensor_t *tensor = &what->tensors[i];
        size_t bytes = dp_dtype_bytes(tensor->dtype);
        dp_extent_t extent;

        (void)dp_extent_of(group, what, tensor, &extent);
        if (is_pulled(group, what, extent.in_count * bytes)) continue;
        if (!is_alike) return 0;
        if (extent.has_in && extent.in_count > 0 &&
            !engine->ops->owns(engine, tensor->in, extent.in_count * bytes))
            return 0;
        if (wants_out && extent.has_out && extent.out_count > 0 && tensor->out != tensor->in &&
            !engine->ops->owns(engine, tensor->out, extent.out_count * bytes))
            return 0;
    }
    return 1;
}

/* DP_CHECK_DATA takes a checksum of the input. Not with a stream: the data is not there yet. Not on
 * a device: its memory is out of reach. */
static void record_input_hash(dp_handle_t *request, const dp_submit_t *what)
{
    const dp_pipeline_item_t item = {.collective = what->collective,
                                     .root = what->root,
                                     .peer = what->peer,
                                     .tensors = request->tensors,
                                     .tensor_count = request->tensor_count,
                                     .send_counts = request->exchange.counts};

    request->check.is_on = 1;
    request->check.input_hash =
        dp_pipeline_input_hash(&item, request->group->rank, request->group->size);
}

/* ---- Queueing ------------------------------------------------------------------------------- */

/* The name that its state is kept under: each pair of ranks has its own for a point-to-point
 * message. */
static const char *entry_name(const dp_submit_t *what, char *room, size_t bytes)
{
    if (what->collective != DP_COLLECTIVE_SEND) return what->name;
    snprintf(room, bytes, "%s (%d>%d)", what->name == NULL ? "message" : what->name, what->root,
             what->peer);
    return room;
}

/* A join and the end of a group are entries outside the table of names: a program may have tensors
 * called "join". */
static dp_status_t find_name_state(dp_group_t *group, const dp_submit_t *what, const char *name,
                                   dp_name_state_t **out)
{
    dp_name_state_t **single = what->collective == DP_COLLECTIVE_JOIN ? &group->join_state
                               : what->collective == DP_COLLECTIVE_GROUP_DESTROY ? &group->end_state
                                                                                 : NULL;

    if (single == NULL) {
        return dp_names_find_or_add(&group->names, group->about.name, name, group->context->trace,
                                    2 * group->context->config.queue_depth, out);
    }
    if (*single == NULL)
        *single = dp_name_state_create(group->about.name, name, group->context->trace);
    *out = *single;
    return *single == NULL ? DP_ERR_NO_MEMORY : DP_OK;
}

/* Why nothing can be submitted now, whatever it is; DP_OK: it can. The limit counts operations that
 * are not over, launched ones too: it bounds the memory of requests. Lock held. */
static dp_status_t admit_submission(const dp_group_t *group, const dp_submit_t *what)
{
    const dp_context_t *context = group->context;

    if (context->fatal != DP_OK) return context->fatal;
    /* A closed group takes only the operation that destroys it, see dp_group_destroy(). */
    if (group->is_ended) return DP_ERR_INVALID;
    if (group->is_closed && what->collective != DP_COLLECTIVE_GROUP_DESTROY) return DP_ERR_INVALID;
    if (group->is_joined) return DP_ERR_ORDER;
    return context->requests.live_count >= context->config.queue_depth ? DP_ERR_FULL : DP_OK;
}

/* fp16 is scaled by the largest magnitude of the last sum. In an ordered group the ranks do not
 * exchange what they know of it, so they know the same only when that sum is over. */
int dp_submit_needs_last(const dp_group_t *group, dp_wire_t wire)
{
    if (wire == DP_WIRE_DEFAULT) wire = group->context->config.wire;
    return dp_group_is_ordered(group) && wire == DP_WIRE_FP16;
}

static int is_busy(const dp_group_t *group, const dp_name_state_t *name_state,
                   const dp_submit_t *what)
{
    if (name_state->pending != NULL) return 1;
    return name_state->live_count > 0 &&
           dp_submit_needs_last(group, resolve_wire(group->context, what));
}

/* The state of an operation without a name. The n-th in a bucket has the n-th such state: the ranks
 * of an ordered group launch at the same places of their programs. Lock held. */
static dp_status_t find_unnamed_state(dp_group_t *group, const dp_submit_t *what,
                                      dp_name_state_t **out)
{
    char name[24];
    dp_status_t status;

    do {
        snprintf(name, sizeof(name), "#%u", group->unnamed++);
        status = find_name_state(group, what, name, out);
    } while (status == DP_OK && (*out)->pending != NULL);
    return status;
}

/* Makes the request; it is live afterwards. Lock held. */
static dp_status_t create_request(dp_group_t *group, const dp_submit_t *what, const char *name,
                                  int has_owner, dp_handle_t **out)
{
    dp_context_t *context = group->context;
    size_t tensor_count = part_count_of(group, what);
    dp_stream_t *stream = NULL;
    dp_name_state_t *name_state;
    dp_handle_t *request;
    dp_status_t status = admit_submission(group, what);

    if (status == DP_OK && what->options->stream != NULL) {
        stream = dp_stream_find(context, what->options->stream);
        if (stream == NULL) status = DP_ERR_UNSUPPORTED;
    }
    if (status == DP_OK) {
        status = name == NULL ? find_unnamed_state(group, what, &name_state)
                              : find_name_state(group, what, name, &name_state);
    }
    if (status == DP_OK && is_busy(group, name_state, what)) status = DP_ERR_BUSY;
    if (status != DP_OK) return status; /* the name's state stays */
    status =
        dp_request_acquire(group, name_state, tensor_count, count_count_of(group, what), &request);
    if (status != DP_OK) return status;
    status = fill_signature(group, name_state, what);
    /* Any operation may be waited for on a stream, once the context knows one. */
    if (status == DP_OK &&
        (stream != NULL || context->streams.count > 0 || context->device->ops->is_async))
        status = dp_stream_attach(request, stream);
    if (status == DP_OK && what->options->cookie != 0) {
        status = dp_completions_reserve(&context->completions);
        if (status == DP_OK) request->cookie = what->options->cookie;
    }
    if (status != DP_OK) {
        dp_request_discard(request);
        return status;
    }
    fill_request(request, what);
    dp_request_enlist(request, has_owner);
    if (what->collective == DP_COLLECTIVE_JOIN) group->is_joined = 1;
    *out = request;
    return DP_OK;
}

/* Says why a submission was refused. in_flight: operations at that moment. */
static dp_status_t refuse_submission(dp_group_t *group, const dp_submit_t *what, dp_status_t status,
                                     size_t in_flight)
{
    dp_context_t *context = group->context;

    switch (status) {
    case DP_ERR_BUSY:
        return dp_submit_error(group, what, status, "submitted again before its last use was %s",
                               dp_group_is_ordered(group) ? "over" : "launched");
    case DP_ERR_FULL:
        return dp_submit_error(group, what, status,
                               "%zu operations are in flight, DP_QUEUE_DEPTH allows %zu", in_flight,
                               context->config.queue_depth);
    case DP_ERR_NO_MEMORY:
        return dp_submit_error(group, what, status, "no memory for a request");
    case DP_ERR_INVALID:
        return dp_submit_error(group, what, status, "the group was destroyed");
    case DP_ERR_ORDER:
        return dp_submit_error(group, what, status,
                               "rank %d has joined the group, and not all of its ranks have yet",
                               group->rank);
    case DP_ERR_UNSUPPORTED:
        return dp_submit_error(group, what, status,
                               "the stream %p is none of a device of this context",
                               what->options->stream);
    default:
        return dp_submit_error(group, what, status, "%s", dp_status_string(status));
    }
}

/* Before the lock: checks the operation, and stages its tensor where the device cannot read it. */
static dp_status_t prepare_operation(dp_group_t *group, dp_submit_t *what, dp_options_t *options,
                                     dp_tensor_t *staged, dp_staging_t **stage)
{
    const dp_context_t *context = group->context;
    dp_status_t status = read_operation_options(group, what, options);

    if (status == DP_OK) status = dp_submit_check(group, what);
    if (status != DP_OK) return status;
    if (dp_group_is_ordered(group) && dp_program_kind(what->collective) == DP_PROGRAM_REFUSED) {
        return dp_submit_error(group, what, DP_ERR_UNSUPPORTED,
                               "order=program: a %s has no place in an order that all ranks share",
                               dp_collective_name(what->collective));
    }
    if (dp_is_direct(group, what->collective)) status = dp_direct_check(group, what);
    if (status != DP_OK || !context->device->ops->is_async) return status;
    return dp_staging_begin(group, what, staged, stage);
}

static uint64_t limit_ns(double seconds)
{
    return seconds > 1e9 ? 0 : (uint64_t)(seconds * 1e9);
}

/* Describes a new request to the coordinator and the timeline. Lock held. */
static void describe_request(dp_handle_t *request, const dp_submit_t *what,
                             dp_trace_record_t *record)
{
    const dp_context_t *context = request->context;

    request->submit_ns = record->start_ns;
    record->id = request->ticket + 1;
    record->bytes = request->bytes;
    record->aux =
        request->stream.ready != NULL && context->device->ops->is_async ? DP_TRACE_ON_STREAM : 0;
    record->name = request->name_state->trace_name;
    if (context->config.check && what->options->stream == NULL && !context->device->ops->is_async)
        record_input_hash(request, what);
    request->node.submission = (dp_submission_t){.group = request->group->about.uid,
                                                 .name = request->name_state->name,
                                                 .signature = &request->name_state->signature,
                                                 .in_place = is_in_place(request->group, what),
                                                 .last_absmax = request->name_state->last_absmax,
                                                 .priority = what->options->priority,
                                                 .is_urgent = what->options->launch_now,
                                                 .timeout_ns = limit_ns(what->options->timeout),
                                                 .request = request};
    if (dp_group_is_ordered(request->group) &&
        dp_program_kind(what->collective) == DP_PROGRAM_ORDERED)
        request->program_op.group = &request->group->ordered;
    if (dp_is_direct(request->group, what->collective)) dp_direct_describe(request, what);
}

dp_status_t dp_submit(dp_group_t *group, const dp_submit_t *given, dp_handle_t **handle)
{
    char room[DP_ENTRY_NAME_MAX + 1];
    dp_submit_t what = *given;
    dp_options_t options;
    dp_context_t *context;
    dp_handle_t *request = NULL;
    dp_staging_t *stage = NULL;
    dp_tensor_t staged;
    dp_loop_node_t *node;
    dp_status_t status, fatal;
    size_t in_flight;
    int waits_at_once = 0;
    dp_trace_record_t record = {.kind = DP_TRACE_SUBMIT};

    if (group == NULL || dp_context_is_forked(group->context)) return DP_ERR_INVALID;
    status = prepare_operation(group, &what, &options, &staged, &stage);
    if (status != DP_OK) return status;
    context = group->context;
    record.start_ns = dp_now_ns();
    pthread_mutex_lock(&context->lock);
    fatal = context->fatal;
    status = create_request(group, &what, entry_name(&what, room, sizeof(room)), handle != NULL,
                            &request);
    if (status == DP_OK) {
        request->stage = stage;
        describe_request(request, &what, &record);
        /* This thread waited for the operation before this one and made the coordinator's rounds
         * meanwhile. It probably will again, at once; then the coordinator need not be woken. */
        waits_at_once = request->ticket > 0 && handle != NULL && request->cookie == 0 &&
                        atomic_load(&context->waiting.progressed_ticket) == request->ticket;
    }
    in_flight = context->requests.live_count;
    pthread_mutex_unlock(&context->lock);
    if (status != DP_OK) dp_staging_end(context, stage, 0);
    if (fatal != DP_OK) return fatal; /* the world had ended, and its text stays */
    if (status != DP_OK) return refuse_submission(group, &what, status, in_flight);

    atomic_fetch_add_explicit(&context->counts.submitted, 1, memory_order_relaxed);
    dp_trace_span(dp_trace_thread_track(context->trace), record);
    /* Before the coordinator has it: the request may be over before the next call returns. */
    if (handle != NULL) *handle = request;
    node = &request->node;
    dp_inject_enter(context->config.injector, DP_INJECT_FIRST);
    if (request->is_direct) {
        dp_direct_submit(request);
    } else if (request->program_op.group != NULL) {
        dp_program_submit(context->program, &request->program_op);
        if (dp_plan_is_alone(what.collective))
            atomic_store_explicit(&group->submitted_ns, dp_now_ns(), memory_order_relaxed);
    } else {
        /* A barrier ends the bucket: its waiters count on what was submitted before it. */
        if (dp_group_is_ordered(group)) dp_program_wait_all(context->program, &group->ordered);
        if (what.options->more_follow) {
            dp_loop_queue(context->loop, node);
        } else {
            dp_loop_submit(context->loop, node, waits_at_once);
        }
    }
    return DP_OK;
}
