/*
 * gradients.c - the gradients of a model as one object: made, and destroyed. gradients_sync.c has
 * its steps.
 *
 * dp_gradients_create() compares the ranks' lists of tensors and broadcasts rank 0's weights, by
 * operations that any program could submit. Of the library below dp.h these files use dp_submit()
 * (an average whose figures stay on a device), device memory, streams and checksums (device.c,
 * stream.c), error texts and the log. Called on the program's threads. It must not know how ranks
 * agree or how data moves.
 */
#include "coordinator/api/model/gradients.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/sized.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/model/decision.h"
#include "coordinator/api/model/lists.h"
#include "coordinator/api/model/tensor_names.h"

static dp_status_t check_options(dp_context_t *context, const dp_gradients_options_t *options,
                                 dp_decision_t *decision)
{
    dp_error_t error;
    dp_status_t status;

    if (options->accumulation_steps < 1) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "gradients: accumulation_steps %d is below 1",
                                options->accumulation_steps);
    }
    status = dp_decision_init(decision, options->clip_norm, options->initial_loss_scale,
                              options->growth_interval, options->hysteresis, &error);
    if (status != DP_OK) return dp_context_error(context, status, "gradients: %s", error.text);
    if (options->group != NULL && options->group->context != context) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "gradients: group %s belongs to another context",
                                dp_group_name(options->group));
    }
    return DP_OK;
}

static dp_status_t check_tensors(dp_context_t *context, const dp_gradient_t *tensors, size_t count)
{
    if (tensors == NULL || count == 0) {
        return dp_context_error(context, DP_ERR_INVALID, "gradients: %zu tensors at %p", count,
                                (const void *)tensors);
    }
    for (size_t i = 0; i < count; i++) {
        const dp_gradient_t *tensor = &tensors[i];

        if (tensor->name == NULL || tensor->name[0] == '\0') {
            return dp_context_error(context, DP_ERR_INVALID, "gradients: tensor %zu has no name",
                                    i);
        }
        if (tensor->gradient == NULL && tensor->count != 0) {
            return dp_context_error(context, DP_ERR_INVALID,
                                    "gradients: tensor %s: gradient is NULL, count is %zu",
                                    tensor->name, tensor->count);
        }
        if (!dp_dtype_is_float(tensor->dtype)) {
            return dp_context_error(context, DP_ERR_INVALID,
                                    "gradients: tensor %s: type %d is no floating-point type",
                                    tensor->name, (int)tensor->dtype);
        }
    }
    return DP_OK;
}

/* Two tensors of one name would be DP_ERR_BUSY at the second ready(); better said here. */
static dp_status_t copy_tensors(dp_gradients_t *gradients, const dp_gradient_t *tensors,
                                const char *prefix)
{
    dp_context_t *context = gradients->context;
    const char **names = calloc(gradients->count, sizeof(*names));
    const char *repeated;
    dp_status_t status = DP_OK;

    if (names == NULL) goto no_memory;
    for (size_t i = 0; i < gradients->count; i++) {
        dp_parameter_t *parameter = &gradients->parameters[i];

        parameter->tensor = tensors[i];
        parameter->name = dp_tensor_name_join(prefix, tensors[i].name);
        if (parameter->name == NULL) goto no_memory;
        /* broadcast_weights() adds "/weight" */
        if (strlen(parameter->name) + 8 > DP_NAME_MAX) {
            status = dp_context_error(context, DP_ERR_INVALID,
                                      "gradients: name %.60s... has %zu bytes, at most %d fit",
                                      parameter->name, strlen(parameter->name), DP_NAME_MAX - 8);
        }
        names[i] = parameter->name;
    }
    repeated = dp_tensor_names_find_repeated(names, gradients->count);
    if (status == DP_OK && repeated != NULL) {
        status = dp_context_error(context, DP_ERR_INVALID, "gradients: two tensors are called %s",
                                  repeated);
    }
    free(names);
    return status;
no_memory:
    free(names);
    dp_context_error(context, DP_ERR_NO_MEMORY, "gradients: no memory for %zu tensors",
                     gradients->count);
    return DP_ERR_NO_MEMORY;
}

/* The ranks must list the same tensors, or some would wait for ever for tensors that others never
 * submit. */
static dp_status_t compare_lists(dp_gradients_t *gradients)
{
    dp_context_t *context = gradients->context;
    dp_list_difference_t difference;
    const dp_parameter_t *parameter;
    dp_status_t status;

    for (size_t i = 0; i < gradients->count; i++) {
        uint64_t kind[3];

        parameter = &gradients->parameters[i];
        kind[0] = parameter->tensor.count;
        kind[1] = (uint64_t)parameter->tensor.dtype;
        kind[2] = parameter->tensor.weight != NULL;
        gradients->hashes[i] = dp_kernel_hash(
            kind, sizeof(kind), dp_kernel_hash(parameter->name, strlen(parameter->name), 1));
    }
    status = dp_lists_compare(gradients->group, gradients->list_name, gradients->hashes,
                              gradients->count, DP_OK, gradients->options.timeout, &difference);
    if (status == DP_OK || difference.rank < 0) return status;
    if (difference.place == SIZE_MAX) {
        return dp_context_error(
            context, status, "gradients: rank %d lists %zu tensors, rank %d lists %zu",
            difference.rank, difference.count, dp_rank(context), gradients->count);
    }
    parameter = &gradients->parameters[difference.place];
    return dp_context_error(
        context, status,
        "gradients: tensor %zu is %s, %zu of %s%s on rank %d; rank %d lists another",
        difference.place, parameter->name, parameter->tensor.count,
        dp_dtype_name(parameter->tensor.dtype),
        parameter->tensor.weight == NULL ? " without a weight" : "", dp_rank(context),
        difference.rank);
}

/* All are submitted before the first is waited for, so that small ones travel fused. */
static dp_status_t broadcast_weights(dp_gradients_t *gradients)
{
    dp_status_t status = DP_OK, waited;

    for (size_t i = 0; status == DP_OK && i < gradients->count; i++) {
        dp_parameter_t *parameter = &gradients->parameters[i];
        char name[DP_NAME_MAX + 1];

        if (parameter->tensor.weight == NULL) continue;
        snprintf(name, sizeof(name), "%s/weight", parameter->name);
        status = dp_broadcast(gradients->group, name, parameter->tensor.weight,
                              parameter->tensor.weight, parameter->tensor.count,
                              parameter->tensor.dtype, 0, NULL, &parameter->handle);
    }
    for (size_t i = 0; i < gradients->count; i++) {
        dp_parameter_t *parameter = &gradients->parameters[i];

        if (parameter->handle == NULL) continue;
        waited = dp_wait(parameter->handle, -1.0, NULL);
        parameter->handle = NULL;
        if (status == DP_OK) status = waited;
    }
    return status;
}

/* dp_gradients_sync_on() leaves its result here, where kernels can read it. */
static dp_status_t create_figures(dp_gradients_t *gradients)
{
    dp_device_t *device = gradients->context->device;
    void *memory;
    dp_status_t status;

    gradients->figures = &gradients->on_host;
    if (!device->ops->is_async) return DP_OK;
    status = device->ops->alloc(device, sizeof(dp_figures_t), &memory);
    if (status != DP_OK) {
        return dp_context_error(gradients->context, status, "gradients: no %zu bytes on %s",
                                sizeof(dp_figures_t), device->ops->describe(device));
    }
    gradients->figures = memory;
    status = device->ops->event_create(device, &gradients->decided);
    return status == DP_OK ? DP_OK
                           : dp_context_error(gradients->context, status, "gradients: no event");
}

/* A stream of the program may still write or read them. */
static void free_figures(dp_gradients_t *gradients)
{
    dp_device_t *device = gradients->context->device;

    if (gradients->figures == NULL || !dp_gradients_on_device(gradients)) return;
    if (gradients->decided != NULL) {
        (void)device->ops->event_wait(gradients->decided);
        device->ops->event_destroy(gradients->decided);
    }
    device->ops->free(device, gradients->figures);
}

static void free_gradients(dp_gradients_t *gradients)
{
    for (size_t i = 0; gradients->parameters != NULL && i < gradients->count; i++)
        free(gradients->parameters[i].name);
    free(gradients->parameters);
    free(gradients->hashes);
    free(gradients->all_hashes);
    free(gradients->list_name);
    free_figures(gradients);
    free(gradients);
}

/* From dp_finalize(): nothing is in flight, and handles go with the context. */
static void free_owned(dp_owned_t *owned)
{
    free_gradients((dp_gradients_t *)(void *)owned);
}

/* The program's options over the defaults. */
static dp_status_t read_gradients_options(dp_context_t *context,
                                          const dp_gradients_options_t *given,
                                          dp_gradients_options_t *options)
{
    dp_error_t error;
    dp_status_t status;

    *options = (dp_gradients_options_t)DP_GRADIENTS_OPTIONS_INIT;
    if (given == NULL) return DP_OK;
    status = dp_sized_read("dp_gradients_options_t", given, options, sizeof(*options), &error);
    return status == DP_OK ? DP_OK : dp_context_error(context, status, "gradients: %s", error.text);
}

dp_status_t dp_gradients_create(dp_context_t *context, const dp_gradient_t *tensors, size_t count,
                                const dp_gradients_options_t *given, dp_gradients_t **out)
{
    dp_gradients_options_t options;
    dp_gradients_t *gradients;
    dp_decision_t decision;
    const char *check;
    const char *prefix;
    dp_status_t status;

    if (context == NULL || out == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    status = read_gradients_options(context, given, &options);
    if (status == DP_OK) status = check_tensors(context, tensors, count);
    if (status == DP_OK) status = check_options(context, &options, &decision);
    if (status != DP_OK) return status;
    prefix = options.prefix == NULL ? "" : options.prefix;
    gradients = calloc(1, sizeof(*gradients));
    if (gradients == NULL)
        return dp_context_error(context, DP_ERR_NO_MEMORY, "gradients: no memory");
    gradients->context = context;
    gradients->group = options.group == NULL ? dp_world(context) : options.group;
    gradients->options = options;
    gradients->options.prefix = NULL;
    gradients->count = count;
    gradients->decision = decision;
    check = dp_setting(context, "CHECK_DATA");
    gradients->check = check != NULL && strcmp(check, "1") == 0;
    gradients->parameters = calloc(count, sizeof(*gradients->parameters));
    gradients->hashes = calloc(count, sizeof(uint64_t));
    gradients->all_hashes =
        calloc(count * (size_t)dp_group_size(gradients->group), sizeof(uint64_t));
    gradients->list_name = dp_tensor_name_join(prefix, "dp.gradients");
    status = DP_ERR_NO_MEMORY;
    if (gradients->parameters == NULL || gradients->hashes == NULL ||
        gradients->all_hashes == NULL || gradients->list_name == NULL) {
        dp_context_error(context, status, "gradients: no memory for %zu tensors", count);
        goto fail;
    }
    status = create_figures(gradients);
    if (status == DP_OK) status = copy_tensors(gradients, tensors, prefix);
    if (status != DP_OK) goto fail;
    status = compare_lists(gradients);
    if (status != DP_OK) goto fail;
    status = broadcast_weights(gradients);
    if (status != DP_OK) goto fail;
    gradients->owned.free = free_owned;
    dp_context_own(context, &gradients->owned);
    *out = gradients;
    return DP_OK;
fail:
    free_gradients(gradients);
    return status;
}

void dp_gradients_destroy(dp_gradients_t *gradients)
{
    if (gradients == NULL || !dp_context_disown(&gradients->owned)) return;
    for (size_t i = 0; i < gradients->count; i++) {
        if (gradients->parameters[i].handle != NULL)
            dp_wait(gradients->parameters[i].handle, -1.0, NULL);
    }
    free_gradients(gradients);
}
