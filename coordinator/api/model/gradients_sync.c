/*
 * gradients_sync.c - one step of dp_gradients_t: tensors become ready, and a sync waits for all.
 *
 * "Synchronise, clip, step" is the one path through it: dp_gradients_ready() submits an average,
 * dp_gradients_sync() waits for all of them, finds overflows and the norm, and moves the loss
 * scale. All of that is computed from averages, which are bit-equal on all ranks, so every rank
 * decides the same without a message. Called on the program's threads. It must not know how data
 * moves.
 */
#include "coordinator/api/context/device.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/model/decision.h"
#include "coordinator/api/model/gradients.h"
#include "coordinator/api/operation/submit.h"
#include "coordinator/api/operation/wait.h"

#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/sized.h"
#include "coordinator/api/model/lists.h"

/* ---- Ready ---------------------------------------------------------------------------------- */

/* As dp_allreduce() would: the average over ranks and accumulation steps, divided by the loss
 * scale. Its figures (sum of squares, non-finite elements) are added up on the device where
 * gradients are on one, so that dp_gradients_sync_on() need not wait. */
static dp_status_t submit_average(dp_gradients_t *gradients, dp_parameter_t *parameter,
                                  void *stream)
{
    dp_options_t options = DP_OPTIONS_INIT;
    const dp_tensor_t tensor = {parameter->tensor.gradient, parameter->tensor.gradient,
                                parameter->tensor.count, parameter->tensor.dtype};
    const dp_submit_t what = {.collective = DP_COLLECTIVE_ALLREDUCE,
                              .name = parameter->name,
                              .tensors = &tensor,
                              .count = 1,
                              .root = -1,
                              .peer = -1,
                              .options = &options,
                              .figures =
                                  dp_gradients_on_device(gradients) ? gradients->figures : NULL};

    options.reduce = DP_AVERAGE;
    options.wire = gradients->options.wire;
    options.postscale =
        dp_decision_postscale(&gradients->decision, gradients->options.accumulation_steps);
    options.stream = stream;
    return dp_submit(gradients->group, &what, &parameter->handle);
}

dp_status_t dp_gradients_ready(dp_gradients_t *gradients, size_t index, void *stream)
{
    dp_parameter_t *parameter;
    dp_status_t status;

    if (gradients == NULL || dp_context_is_forked(gradients->context)) return DP_ERR_INVALID;
    if (index >= gradients->count) {
        return dp_context_error(gradients->context, DP_ERR_INVALID,
                                "gradients: index %zu, there are %zu tensors", index,
                                gradients->count);
    }
    /* The loss scale of this step depends on the averages of the last. */
    status = dp_gradients_finish_deferred(gradients);
    if (status != DP_OK) return status;
    parameter = &gradients->parameters[index];
    if (parameter->readies == gradients->options.accumulation_steps) {
        return dp_context_error(gradients->context, DP_ERR_ORDER,
                                "gradients: tensor %s: ready for the %d. time before a sync, "
                                "accumulation_steps is %d",
                                parameter->name, parameter->readies + 1,
                                gradients->options.accumulation_steps);
    }
    if (parameter->readies + 1 == gradients->options.accumulation_steps) {
        status = submit_average(gradients, parameter, stream);
        if (status != DP_OK) return status;
    }
    parameter->readies++;
    return DP_OK;
}

/* A tensor that was not ready is an error that names it or, with zero_unready, counts as zeros. */
dp_status_t dp_gradients_all_submitted(dp_gradients_t *gradients)
{
    size_t unready = 0, first = 0;

    /* Backwards, so that `first` ends as the first of the list. */
    for (size_t i = gradients->count; i > 0; i--) {
        if (gradients->parameters[i - 1].handle != NULL) continue;
        unready++;
        first = i - 1;
    }
    if (unready == 0) return DP_OK;
    if (unready == gradients->count) {
        return dp_context_error(gradients->context, DP_ERR_ORDER,
                                "gradients: sync %llu without a single tensor ready; was there a "
                                "sync before it?",
                                (unsigned long long)gradients->syncs + 1);
    }
    if (!gradients->options.zero_unready) {
        return dp_context_error(
            gradients->context, DP_ERR_ORDER,
            "gradients: sync %llu: tensor %s%s not ready (%d of %d), %zu in "
            "all; set zero_unready if that is meant",
            (unsigned long long)gradients->syncs + 1, gradients->parameters[first].name,
            unready > 1 ? " and others are" : " is", gradients->parameters[first].readies,
            gradients->options.accumulation_steps, unready);
    }
    for (size_t i = 0; i < gradients->count; i++) {
        dp_parameter_t *parameter = &gradients->parameters[i];
        dp_status_t status;

        if (parameter->handle != NULL) continue;
        if (parameter->readies == 0 && parameter->tensor.count != 0) {
            status =
                dp_context_clear(gradients->group->context, parameter->tensor.gradient,
                                 parameter->tensor.count * dp_dtype_bytes(parameter->tensor.dtype));
            if (status != DP_OK) return status;
        }
        status = submit_average(gradients, parameter, NULL);
        if (status != DP_OK) return status;
    }
    return DP_OK;
}

/* ---- Sync ----------------------------------------------------------------------------------- */

/* DP_CHECK_DATA: replicas that drifted apart are found at the next sync, by name. */
static dp_status_t compare_weights(dp_gradients_t *gradients)
{
    dp_context_t *context = gradients->context;
    size_t count = gradients->count;
    dp_status_t status;

    for (size_t i = 0; i < count; i++) {
        const dp_gradient_t *tensor = &gradients->parameters[i].tensor;

        gradients->hashes[i] = 0;
        if (tensor->weight == NULL) continue;
        status =
            dp_context_hash(context, tensor->weight, tensor->count * dp_dtype_bytes(tensor->dtype),
                            &gradients->hashes[i]);
        if (status != DP_OK) {
            return dp_context_error(context, status, "sync %llu: the weights of %s: no checksum",
                                    (unsigned long long)gradients->syncs,
                                    gradients->parameters[i].name);
        }
    }
    status = dp_lists_allgather(gradients->group, gradients->list_name, gradients->hashes,
                                gradients->all_hashes, count);
    if (status != DP_OK) return status;
    for (int rank = 1; rank < dp_group_size(gradients->group); rank++) {
        for (size_t i = 0; i < count; i++) {
            uint64_t root = gradients->all_hashes[i];
            uint64_t other = gradients->all_hashes[(size_t)rank * count + i];

            if (root != other) {
                return dp_context_error(
                    context, DP_ERR_CHECK,
                    "weights of %s differ at sync %llu: checksum %016llx on "
                    "rank %d, %016llx on rank %d",
                    gradients->parameters[i].name, (unsigned long long)gradients->syncs,
                    (unsigned long long)root, dp_group_world_rank(gradients->group, 0),
                    (unsigned long long)other, dp_group_world_rank(gradients->group, rank));
            }
        }
    }
    return DP_OK;
}

dp_status_t dp_gradients_collect(dp_gradients_t *gradients, dp_gradients_result_t *found)
{
    const dp_parameter_t *first_bad = NULL;
    dp_status_t status = DP_OK, waited;
    dp_tally_t total;

    /* Exact sums are merged, not doubles: so the norm does not depend on how the elements are
     * divided into tensors and groups. */
    dp_tally_init(&total);
    for (size_t i = 0; i < gradients->count; i++) {
        dp_parameter_t *parameter = &gradients->parameters[i];
        const uint64_t nonfinite = total.nonfinite;

        /* All are waited for, also after a failure: none may be in flight afterwards. */
        waited = dp_wait_tally(parameter->handle, &total);
        parameter->handle = NULL;
        parameter->readies = 0;
        if (status == DP_OK) status = waited;
        if (nonfinite == 0 && total.nonfinite > 0) first_bad = parameter;
    }
    if (status == DP_OK && gradients->check) status = compare_weights(gradients);
    if (status != DP_OK) return status;
    dp_decision_make(&gradients->decision, &total, found);
    if (first_bad != NULL && dp_group_rank(gradients->group) == 0) {
        dp_log_info(&gradients->context->log,
                    "sync %llu: %llu elements are Inf or NaN, the first in %s; the step is skipped",
                    (unsigned long long)gradients->syncs, (unsigned long long)found->nonfinite,
                    first_bad->name);
    }
    return DP_OK;
}

dp_status_t dp_gradients_finish_deferred(dp_gradients_t *gradients)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;

    if (!gradients->is_deferred) return DP_OK;
    gradients->is_deferred = 0;
    return dp_gradients_collect(gradients, &found);
}

dp_status_t dp_gradients_clear_sums(dp_gradients_t *gradients)
{
    if (!dp_gradients_on_device(gradients)) return DP_OK;
    return dp_context_clear(gradients->context, gradients->figures->sums,
                            sizeof(gradients->figures->sums));
}

dp_status_t dp_gradients_sync(dp_gradients_t *gradients, dp_gradients_result_t *result)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status, cleared;

    if (gradients == NULL || dp_context_is_forked(gradients->context)) return DP_ERR_INVALID;
    if (result != NULL) {
        dp_error_t error;

        status = dp_sized_check("dp_gradients_result_t", result->size, &error);
        if (status != DP_OK)
            return dp_context_error(gradients->context, status, "gradients: %s", error.text);
    }
    status = dp_gradients_finish_deferred(gradients);
    if (status == DP_OK) status = dp_gradients_all_submitted(gradients);
    if (status != DP_OK) return status;
    gradients->syncs++;
    status = dp_gradients_collect(gradients, &found);
    cleared = dp_gradients_clear_sums(gradients);
    if (status == DP_OK) status = cleared;
    if (status != DP_OK) return status;
    if (result != NULL) dp_sized_write(result, &found, sizeof(found));
    return DP_OK;
}

/* ---- The loss scale in a checkpoint --------------------------------------------------------- */

static int is_in_flight(const dp_gradients_t *gradients)
{
    for (size_t i = 0; i < gradients->count; i++) {
        if (gradients->parameters[i].readies > 0 || gradients->parameters[i].handle != NULL)
            return 1;
    }
    return 0;
}

/* Common to get and set. DP_OK: the state may be read and written. */
static dp_status_t open_loss_scale(dp_gradients_t *gradients, const dp_loss_scale_t *state)
{
    dp_error_t error;
    dp_status_t status;

    if (gradients == NULL || dp_context_is_forked(gradients->context)) return DP_ERR_INVALID;
    if (state == NULL)
        return dp_context_error(gradients->context, DP_ERR_INVALID, "gradients: state is NULL");
    status = dp_sized_check("dp_loss_scale_t", state->size, &error);
    if (status != DP_OK)
        return dp_context_error(gradients->context, status, "gradients: %s", error.text);
    status = dp_gradients_finish_deferred(gradients);
    if (status != DP_OK || !is_in_flight(gradients)) return status;
    return dp_context_error(gradients->context, DP_ERR_ORDER,
                            "gradients: the loss scale's state between a ready and its sync");
}

dp_status_t dp_gradients_loss_scale_get(dp_gradients_t *gradients, dp_loss_scale_t *state)
{
    const dp_status_t status = open_loss_scale(gradients, state);
    dp_loss_scale_t found;

    if (status != DP_OK) return status;
    found = dp_decision_get(&gradients->decision);
    dp_sized_write(state, &found, sizeof(found));
    return DP_OK;
}

dp_status_t dp_gradients_loss_scale_set(dp_gradients_t *gradients, const dp_loss_scale_t *given)
{
    dp_loss_scale_t state = DP_LOSS_SCALE_INIT;
    dp_error_t error;
    dp_status_t status = open_loss_scale(gradients, given);

    if (status != DP_OK) return status;
    status = dp_sized_read("dp_loss_scale_t", given, &state, sizeof(state), &error);
    if (status == DP_OK) status = dp_decision_set(&gradients->decision, &state, &error);
    return status == DP_OK
               ? DP_OK
               : dp_context_error(gradients->context, status, "gradients: %s", error.text);
}
