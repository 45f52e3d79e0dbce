/*
 * direct.c - a send or receive in an ordered group. The engine matches the n-th send of a rank to
 * another with the n-th receive there, so nothing is agreed on, launched or put in an order that
 * other ranks share.
 *
 * submit.c and wait.c call it on the program's threads; on_done() comes from any thread that makes
 * the engine's progress. It must not know how messages move.
 */
#include "coordinator/api/operation/direct.h"

#include <stdio.h>

#include "coordinator/api/context/names.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/operation/arguments.h"
#include "coordinator/loop/post.h"

int dp_is_direct(const dp_group_t *group, dp_collective_t collective)
{
    return dp_group_is_ordered(group) && dp_program_kind(collective) == DP_PROGRAM_DIRECT;
}

static dp_engine_group_t *engine_group(const dp_group_t *group)
{
    return group == &group->context->world ? NULL : group->plane.engine;
}

dp_status_t dp_direct_check(const dp_group_t *group, const dp_submit_t *what)
{
    const dp_context_t *context = group->context;
    const dp_engine_direct_t *direct = context->engine->ops->direct;
    const int other = what->root == group->rank ? what->peer : what->root;

    if (direct == NULL || context->device->ops->is_async) {
        return dp_submit_error(group, what, DP_ERR_UNSUPPORTED,
                               "order=program: the engine %s cannot send between two ranks",
                               context->engine->ops->name);
    }
    if (direct->reaches(context->engine, engine_group(group), other)) return DP_OK;
    return dp_submit_error(group, what, DP_ERR_UNSUPPORTED,
                           "order=program: rank %d and rank %d are on different nodes", group->rank,
                           other);
}

/* ---- The end -------------------------------------------------------------------------------- */

/* A failure of this message alone. */
static int is_harmless(const dp_engine_message_t *message)
{
    return message->text[0] != '\0' &&
           (message->status == DP_ERR_MISMATCH || message->status == DP_ERR_TRUNCATED ||
            message->status == DP_ERR_LEFT);
}

static void fail_message(dp_handle_t *request, const dp_engine_message_t *message)
{
    dp_context_t *context = request->context;
    const int is_world = request->group == &context->world;
    char text[DP_ERROR_TEXT_MAX + DP_ENTRY_NAME_MAX + DP_GROUP_NAME_MAX + 32];
    const char *kept;

    if (message->text[0] != '\0') {
        snprintf(text, sizeof(text), "tensor %s%s%s: %s", request->name_state->name,
                 is_world ? "" : " of group ", is_world ? "" : request->group->name, message->text);
    } else {
        snprintf(text, sizeof(text), "%s", message->abort_text);
    }
    kept = dp_context_text(context, text);
    if (!is_harmless(message)) dp_loop_abort(context->loop, message->status, kept);
    dp_request_fail(request, message->status, kept);
}

/* DP_CHECK_DATA: the program must not write what it sends before that is over. */
static int is_input_changed(const dp_handle_t *request)
{
    const dp_pipeline_tensor_t *tensor = &request->tensors[0];

    return request->check.input_hash != 0 &&
           request->check.input_hash !=
               dp_kernel_hash(tensor->in, request->message.count * dp_dtype_bytes(tensor->dtype),
                              0);
}

static void on_done(dp_engine_message_t *message)
{
    dp_handle_t *request = message->owner;
    dp_pipeline_done_t done = {.raw_absmax = -1.0f, .count = message->received};

    if (message->status != DP_OK) {
        fail_message(request, message);
        return;
    }
    if (is_input_changed(request)) {
        dp_request_fail(request, DP_ERR_CHECK, dp_status_string(DP_ERR_CHECK));
        return;
    }
    dp_tally_init(&done.tally);
    dp_request_succeed(request, &done);
}

/* ---- The beginning -------------------------------------------------------------------------- */

void dp_direct_describe(dp_handle_t *request, const dp_submit_t *what)
{
    const dp_tensor_t *tensor = &what->tensors[0];
    const int is_send = what->root == request->group->rank;

    request->is_direct = 1;
    request->message = (dp_engine_message_t){
        .is_send = is_send,
        .other = is_send ? what->peer : what->root,
        .in = tensor->in,
        .out = tensor->out,
        .count = is_send ? tensor->count : request->exchange.capacity,
        .dtype = tensor->dtype,
        .tag = what->options->tag,
        .name = what->name == NULL ? "" : request->name_state->name,
        .output = is_send ? NULL : request->exchange.output,
        .user = request->exchange.user,
        .done = on_done,
        .owner = request,
    };
    dp_request_leave(request); /* its name is free at once */
    request->lane = DP_LANE_DIRECT;
    request->agree_skew_ns = 0;
    atomic_store(&request->agree_ns, request->submit_ns);
    atomic_store(&request->state, DP_REQUEST_LAUNCHED);
}

void dp_direct_submit(dp_handle_t *request)
{
    dp_context_t *context = request->context;
    dp_engine_t *engine = context->engine;
    const dp_status_t status =
        engine->ops->direct->post(engine, engine_group(request->group), &request->message);

    if (status == DP_OK) return;
    request->message.status = status;
    snprintf(request->message.text, sizeof(request->message.text), "%s", dp_status_string(status));
    fail_message(request, &request->message);
}

int dp_direct_wait(dp_handle_t *request, uint32_t wanted, uint64_t deadline_ns)
{
    dp_engine_t *engine = request->context->engine;

    engine->ops->direct->wait(engine, &request->state, wanted, deadline_ns);
    return atomic_load_explicit(&request->state, memory_order_acquire) >= wanted;
}

void dp_direct_look(dp_context_t *context)
{
    context->engine->ops->direct->progress(context->engine);
}
