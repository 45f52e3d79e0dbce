/*
 * gradients_stream.c - dp_gradients_sync_on(): a sync that makes a GPU's stream wait, not the
 * program's thread.
 *
 *     program's thread   sync_on ........ returns   optimizer<<<>>>   next forward pass ...
 *     its stream         | wait for averages | decision | optimizer | forward ...
 *     data plane         allreduce ... done ^
 *
 * The optimizer is already queued on the stream when the averages arrive. So the decision (skip
 * this step? which clip coefficient?) is a kernel on that stream, behind the averages, and its
 * result stays in the device's memory. Without a GPU it is dp_gradients_sync(), and the result lies
 * in ordinary memory. Called on the program's threads.
 */
#include "coordinator/api/context/texts.h"
#include "coordinator/api/model/decision.h"
#include "coordinator/api/model/gradients.h"
#include "coordinator/api/operation/stream.h"
#include "coordinator/api/operation/submit.h"

#include "coordinator/api/context/fork.h"

static dp_status_t sync_on_host(dp_gradients_t *gradients)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status;

    dp_decision_publish(gradients->figures, NULL);
    status = dp_gradients_sync(gradients, &found);
    if (status == DP_OK) dp_decision_publish(gradients->figures, &found);
    return status;
}

/* The stream waits for every average; this thread, until all were issued to the device. */
static dp_status_t stream_waits(dp_gradients_t *gradients, void *stream)
{
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < gradients->count; i++) {
        const dp_status_t waited = dp_stream_wait(gradients->parameters[i].handle, stream, -1.0);

        if (status == DP_OK) status = waited;
    }
    return status;
}

/* Gives the handles back; the averages go on. */
static void release_averages(dp_gradients_t *gradients)
{
    for (size_t i = 0; i < gradients->count; i++) {
        dp_parameter_t *parameter = &gradients->parameters[i];

        dp_release(parameter->handle);
        parameter->handle = NULL;
        parameter->readies = 0;
    }
}

/* Queues the decision on the stream, behind the averages that the stream waits for. */
static dp_status_t queue_decision(dp_gradients_t *gradients, dp_stream_t *stream, int is_failed)
{
    const dp_device_ops_t *device = gradients->context->device->ops;
    dp_status_t status =
        device->decide(stream, gradients->figures, gradients->options.clip_norm, is_failed);

    return status == DP_OK ? device->event_record(gradients->decided, stream) : status;
}

/* Loss scales, and one tensor's fp16 scale, follow from the averages of the step before. */
static int needs_last(const dp_gradients_t *gradients)
{
    return gradients->options.initial_loss_scale > 0.0 ||
           dp_submit_needs_last(gradients->group, gradients->options.wire);
}

/* DP_CHECK_DATA: weights are compared before the optimizer behind the decision can write them, so
 * the averages are waited for here. */
static dp_status_t decide_checked(dp_gradients_t *gradients, dp_stream_t *stream)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    const dp_status_t status = dp_gradients_collect(gradients, &found);

    if (status == DP_OK) return queue_decision(gradients, stream, 0);
    (void)queue_decision(gradients, stream, 1);
    (void)dp_gradients_clear_sums(gradients);
    return status;
}

static dp_status_t sync_device(dp_gradients_t *gradients, void *native, dp_stream_t *stream)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status = dp_gradients_finish_deferred(gradients);

    if (status == DP_OK) status = dp_gradients_all_submitted(gradients);
    if (status != DP_OK) { /* averages in flight stay so; another sync may wait for them */
        (void)queue_decision(gradients, stream, 1);
        return status;
    }
    gradients->syncs++;
    status = stream_waits(gradients, native);
    if (status == DP_OK && gradients->check) return decide_checked(gradients, stream);
    /* This thread waits for no more. Handles stay only where the next step needs what
     * this one found. */
    if (status == DP_OK) {
        gradients->is_deferred = needs_last(gradients);
        if (!gradients->is_deferred) release_averages(gradients);
        status = queue_decision(gradients, stream, 0);
        if (status == DP_OK) return DP_OK;
        return dp_context_error(
            gradients->context, status, "gradients: sync %llu: no decision on stream %p: %s",
            (unsigned long long)gradients->syncs, native, dp_status_string(status));
    }
    (void)queue_decision(gradients, stream, 1);
    if (dp_context_has_ended(gradients->context)) {
        release_averages(gradients); /* they end when the streams move on */
        return status;
    }
    (void)dp_gradients_collect(gradients, &found);
    (void)dp_gradients_clear_sums(gradients);
    return status;
}

dp_status_t dp_gradients_sync_on(dp_gradients_t *gradients, void *stream,
                                 dp_device_result_t *result)
{
    dp_stream_t *known;
    dp_status_t status;

    if (gradients == NULL || dp_context_is_forked(gradients->context)) return DP_ERR_INVALID;
    status = dp_stream_begin_sync(gradients->context, "gradients", gradients->figures,
                                  dp_gradients_on_device(gradients), stream, result, &known);
    if (status != DP_OK) return status;
    return known == NULL ? sync_on_host(gradients) : sync_device(gradients, stream, known);
}
