/*
 * gradients.c - the gradients of a model as one object: broadcast, ready, sync.
 *
 * Written against dp.h alone, as a program could write it (plus a place to leave error texts, which
 * context a group belongs to, the checksum, and whether this is a forked child), but for the
 * figures that stay on a device. "Synchronise, clip, step" is the one obvious path through it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/api/fork.h"
#include "coordinator/api/submit.h"

#define LOSS_SCALE_MAX 16777216.0 /* 2^24: fp32 gradients times more lose nothing but range */

/* One parameter tensor and where it stands in this step. */
typedef struct slot {
    dp_gradient_t tensor;
    char *name;          /* prefix + the caller's name; owned */
    int readies;         /* since the last sync */
    dp_handle_t *handle; /* its average in flight; NULL: none */
} slot_t;

struct dp_gradients {
    dp_context_t *context;
    dp_group_t *group;
    dp_gradients_options_t options; /* prefix not kept */
    slot_t *slots;
    size_t count;
    char *list_name;               /* of our own small operations */
    uint64_t *hashes, *all_hashes; /* [count], [size of the group][count] */
    double loss_scale;
    int good_steps;
    uint64_t syncs;
    int check; /* DP_CHECK */
    /* what dp_gradients_sync_on() leaves: in the device's memory, or &own on a host */
    dp_figures_t *figures;
    dp_figures_t own;
    dp_event_t *decided; /* behind the last decision on a device */
    int is_unsettled;    /* it left the handles for the next ready(), which must know their end */
};

static const dp_gradients_options_t default_options = DP_GRADIENTS_OPTIONS_INIT;

static char *join(const char *prefix, const char *name)
{
    size_t bytes = strlen(prefix) + strlen(name) + 1;
    char *joined = malloc(bytes);

    if (joined != NULL) snprintf(joined, bytes, "%s%s", prefix, name);
    return joined;
}

static int by_name(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return strcmp(*x, *y);
}

static dp_status_t check_arguments(dp_context_t *context, const dp_gradient_t *tensors,
                                   size_t count, const dp_gradients_options_t *options)
{
    if (tensors == NULL || count == 0) {
        return dp_context_error(context, DP_ERR_INVALID, "gradients: %zu tensors at %p", count,
                                (const void *)tensors);
    }
    if (options->size < sizeof(dp_gradients_options_t)) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "gradients: options say they have %zu bytes, the type has %zu; use "
                                "DP_GRADIENTS_OPTIONS_INIT",
                                options->size, sizeof(dp_gradients_options_t));
    }
    if (options->accumulation < 1) {
        return dp_context_error(context, DP_ERR_INVALID, "gradients: accumulation %d is below 1",
                                options->accumulation);
    }
    if (!(options->clip_norm >= 0.0) || !(options->loss_scale >= 0.0) ||
        isinf(options->loss_scale)) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "gradients: clip_norm %g and loss_scale %g must not be negative",
                                options->clip_norm, options->loss_scale);
    }
    if (options->loss_scale > 0.0 && options->loss_scale_grow < 1) {
        return dp_context_error(context, DP_ERR_INVALID, "gradients: loss_scale_grow %d is below 1",
                                options->loss_scale_grow);
    }
    if (options->group != NULL && options->group->context != context) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "gradients: group %s belongs to another context",
                                dp_group_name(options->group));
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
        if (tensor->dtype != DP_F16 && tensor->dtype != DP_BF16 && tensor->dtype != DP_F32 &&
            tensor->dtype != DP_F64) {
            return dp_context_error(context, DP_ERR_INVALID,
                                    "gradients: tensor %s: type %d is no floating-point type",
                                    tensor->name, (int)tensor->dtype);
        }
    }
    return DP_OK;
}

static dp_status_t take_tensors(dp_gradients_t *gradients, const dp_gradient_t *tensors,
                                const char *prefix)
{
    dp_context_t *context = gradients->context;
    const char **sorted = calloc(gradients->count, sizeof(*sorted));
    dp_status_t status = DP_OK;

    if (sorted == NULL) goto no_memory;
    for (size_t i = 0; i < gradients->count; i++) {
        slot_t *slot = &gradients->slots[i];

        slot->tensor = tensors[i];
        slot->name = join(prefix, tensors[i].name);
        if (slot->name == NULL) goto no_memory;
        /* "/weight" is added for the broadcast */
        if (strlen(slot->name) + 8 > DP_NAME_MAX) {
            status = dp_context_error(context, DP_ERR_INVALID,
                                      "gradients: name %.60s... has %zu bytes, at most %d fit",
                                      slot->name, strlen(slot->name), DP_NAME_MAX - 8);
        }
        sorted[i] = slot->name;
    }
    qsort(sorted, gradients->count, sizeof(*sorted), by_name);
    for (size_t i = 1; status == DP_OK && i < gradients->count; i++) {
        if (strcmp(sorted[i - 1], sorted[i]) == 0) {
            status = dp_context_error(context, DP_ERR_INVALID,
                                      "gradients: two tensors are called %s", sorted[i]);
        }
    }
    free(sorted);
    return status;
no_memory:
    free(sorted);
    dp_context_error(context, DP_ERR_NO_MEMORY, "gradients: no memory for %zu tensors",
                     gradients->count);
    return DP_ERR_NO_MEMORY;
}

/* Every rank's values under one name, waited for. */
static dp_status_t gather(dp_gradients_t *gradients, const uint64_t *own, uint64_t *all,
                          size_t count)
{
    dp_handle_t *handle;
    dp_status_t status = dp_allgather(gradients->group, gradients->list_name, own, all, count,
                                      DP_U64, NULL, &handle);

    return status == DP_OK ? dp_wait(handle, -1.0, NULL) : status;
}

/* The ranks must list the same tensors, or some would wait for ever for what others never send. */
static dp_status_t compare_lists(dp_gradients_t *gradients)
{
    dp_context_t *context = gradients->context;
    dp_group_t *group = gradients->group;
    int size = dp_group_size(group);
    uint64_t own = gradients->count;
    dp_status_t status = gather(gradients, &own, gradients->all_hashes, 1);

    if (status != DP_OK) return status;
    for (int rank = 0; rank < size; rank++) {
        if (gradients->all_hashes[rank] != own) {
            return dp_context_error(context, DP_ERR_MISMATCH,
                                    "gradients: rank %d lists %llu tensors, rank %d lists %zu",
                                    dp_group_world_rank(group, rank),
                                    (unsigned long long)gradients->all_hashes[rank],
                                    dp_rank(context), gradients->count);
        }
    }
    for (size_t i = 0; i < gradients->count; i++) {
        const slot_t *slot = &gradients->slots[i];
        uint64_t kind[3] = {slot->tensor.count, (uint64_t)slot->tensor.dtype,
                            slot->tensor.weight != NULL};

        gradients->hashes[i] =
            dp_kernel_hash(kind, sizeof(kind), dp_kernel_hash(slot->name, strlen(slot->name), 1));
    }
    status = gather(gradients, gradients->hashes, gradients->all_hashes, gradients->count);
    if (status != DP_OK) return status;
    for (int rank = 0; rank < size; rank++) {
        for (size_t i = 0; i < gradients->count; i++) {
            if (gradients->all_hashes[(size_t)rank * gradients->count + i] !=
                gradients->hashes[i]) {
                return dp_context_error(
                    context, DP_ERR_MISMATCH,
                    "gradients: tensor %zu is %s, %zu of %s%s on rank %d; rank %d lists another", i,
                    gradients->slots[i].name, gradients->slots[i].tensor.count,
                    dp_dtype_name(gradients->slots[i].tensor.dtype),
                    gradients->slots[i].tensor.weight == NULL ? " without a weight" : "",
                    dp_rank(context), dp_group_world_rank(group, rank));
            }
        }
    }
    return DP_OK;
}

static dp_status_t broadcast_weights(dp_gradients_t *gradients)
{
    dp_status_t status = DP_OK, waited;

    for (size_t i = 0; status == DP_OK && i < gradients->count; i++) {
        slot_t *slot = &gradients->slots[i];
        char name[DP_NAME_MAX + 1];

        if (slot->tensor.weight == NULL) continue;
        snprintf(name, sizeof(name), "%s/weight", slot->name);
        status = dp_broadcast(gradients->group, name, slot->tensor.weight, slot->tensor.weight,
                              slot->tensor.count, slot->tensor.dtype, 0, NULL, &slot->handle);
    }
    for (size_t i = 0; i < gradients->count; i++) {
        slot_t *slot = &gradients->slots[i];

        if (slot->handle == NULL) continue;
        waited = dp_wait(slot->handle, -1.0, NULL);
        slot->handle = NULL;
        if (status == DP_OK) status = waited;
    }
    return status;
}

static dp_status_t make_figures(dp_gradients_t *gradients)
{
    dp_device_t *device = gradients->context->device;
    void *memory;
    dp_status_t status;

    gradients->figures = &gradients->own;
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

static int is_on_device(const dp_gradients_t *gradients)
{
    return gradients->figures != &gradients->own;
}

/* A stream of the program's may still be on its way to them. */
static void free_figures(dp_gradients_t *gradients)
{
    dp_device_t *device = gradients->context->device;

    if (gradients->figures == NULL || !is_on_device(gradients)) return;
    if (gradients->decided != NULL) {
        (void)device->ops->event_wait(gradients->decided);
        device->ops->event_destroy(gradients->decided);
    }
    device->ops->free(device, gradients->figures);
}

/* Waits for what is in flight. */
static void free_gradients(dp_gradients_t *gradients)
{
    for (size_t i = 0; gradients->slots != NULL && i < gradients->count; i++) {
        if (gradients->slots[i].handle != NULL) dp_wait(gradients->slots[i].handle, -1.0, NULL);
        free(gradients->slots[i].name);
    }
    free(gradients->slots);
    free(gradients->hashes);
    free(gradients->all_hashes);
    free(gradients->list_name);
    free_figures(gradients);
    free(gradients);
}

dp_status_t dp_gradients_create(dp_context_t *context, const dp_gradient_t *tensors, size_t count,
                                const dp_gradients_options_t *options, dp_gradients_t **out)
{
    dp_gradients_t *gradients;
    const char *check;
    const char *prefix;
    dp_status_t status;

    if (context == NULL || out == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    if (options == NULL) options = &default_options;
    status = check_arguments(context, tensors, count, options);
    if (status != DP_OK) return status;
    prefix = options->prefix == NULL ? "" : options->prefix;
    gradients = calloc(1, sizeof(*gradients));
    if (gradients == NULL)
        return dp_context_error(context, DP_ERR_NO_MEMORY, "gradients: no memory");
    gradients->context = context;
    gradients->group = options->group == NULL ? dp_world(context) : options->group;
    gradients->options = *options;
    gradients->options.prefix = NULL;
    gradients->count = count;
    gradients->loss_scale = options->loss_scale > 0.0 ? options->loss_scale : 1.0;
    check = dp_setting(context, "CHECK");
    gradients->check = check != NULL && strcmp(check, "1") == 0;
    gradients->slots = calloc(count, sizeof(*gradients->slots));
    gradients->hashes = calloc(count, sizeof(uint64_t));
    gradients->all_hashes =
        calloc(count * (size_t)dp_group_size(gradients->group), sizeof(uint64_t));
    gradients->list_name = join(prefix, "dp.gradients");
    status = DP_ERR_NO_MEMORY;
    if (gradients->slots == NULL || gradients->hashes == NULL || gradients->all_hashes == NULL ||
        gradients->list_name == NULL) {
        dp_context_error(context, status, "gradients: no memory for %zu tensors", count);
        goto fail;
    }
    status = make_figures(gradients);
    if (status == DP_OK) status = take_tensors(gradients, tensors, prefix);
    if (status != DP_OK) goto fail;
    status = compare_lists(gradients);
    if (status != DP_OK) goto fail;
    status = broadcast_weights(gradients);
    if (status != DP_OK) goto fail;
    *out = gradients;
    return DP_OK;
fail:
    free_gradients(gradients);
    return status;
}

/* ---- On their way --------------------------------------------------------------------------- */

/* dp_allreduce(): average over ranks and readies, freed of the loss scale. */
static dp_status_t submit(dp_gradients_t *gradients, slot_t *slot, void *stream)
{
    dp_options_t options = DP_OPTIONS_INIT;
    const dp_tensor_t tensor = {slot->tensor.gradient, slot->tensor.gradient, slot->tensor.count,
                                slot->tensor.dtype};
    const dp_submit_t what = {.collective = DP_COLLECTIVE_ALLREDUCE,
                              .name = slot->name,
                              .tensors = &tensor,
                              .count = 1,
                              .root = -1,
                              .peer = -1,
                              .options = &options,
                              .figures = is_on_device(gradients) ? gradients->figures : NULL};

    options.reduce = DP_AVERAGE;
    options.wire = gradients->options.wire;
    options.postscale = 1.0 / (gradients->options.accumulation * gradients->loss_scale);
    options.stream = stream;
    return dp_submit(gradients->group, &what, &slot->handle);
}

static dp_status_t settle(dp_gradients_t *gradients);

dp_status_t dp_gradients_ready(dp_gradients_t *gradients, size_t index, void *stream)
{
    slot_t *slot;
    dp_status_t status;

    if (gradients == NULL || dp_context_is_forked(gradients->context)) return DP_ERR_INVALID;
    if (index >= gradients->count) {
        return dp_context_error(gradients->context, DP_ERR_INVALID,
                                "gradients: index %zu, there are %zu tensors", index,
                                gradients->count);
    }
    status = settle(gradients);
    if (status != DP_OK) return status;
    slot = &gradients->slots[index];
    if (slot->readies == gradients->options.accumulation) {
        return dp_context_error(gradients->context, DP_ERR_ORDER,
                                "gradients: tensor %s: ready for the %d. time before a sync, "
                                "accumulation is %d",
                                slot->name, slot->readies + 1, gradients->options.accumulation);
    }
    if (slot->readies + 1 == gradients->options.accumulation) {
        status = submit(gradients, slot, stream);
        if (status != DP_OK) return status;
    }
    slot->readies++;
    return DP_OK;
}

/* What is missing before a sync: an error that names it, or zeros on its behalf. */
static dp_status_t complete_readies(dp_gradients_t *gradients)
{
    size_t unready = 0, first = 0;

    for (size_t i = gradients->count; i > 0; i--) {
        if (gradients->slots[i - 1].handle != NULL) continue;
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
            (unsigned long long)gradients->syncs + 1, gradients->slots[first].name,
            unready > 1 ? " and others are" : " is", gradients->slots[first].readies,
            gradients->options.accumulation, unready);
    }
    for (size_t i = 0; i < gradients->count; i++) {
        slot_t *slot = &gradients->slots[i];
        dp_status_t status;

        if (slot->handle != NULL) continue;
        if (slot->readies == 0 && slot->tensor.count != 0) {
            status = dp_context_clear(gradients->group->context, slot->tensor.gradient,
                                      slot->tensor.count * dp_dtype_bytes(slot->tensor.dtype));
            if (status != DP_OK) return status;
        }
        status = submit(gradients, slot, NULL);
        if (status != DP_OK) return status;
    }
    return DP_OK;
}

/* DP_CHECK: replicas that drifted apart are found at the next sync, by name. */
static dp_status_t compare_weights(dp_gradients_t *gradients)
{
    dp_context_t *context = gradients->context;
    size_t count = gradients->count;
    dp_status_t status;

    for (size_t i = 0; i < count; i++) {
        const dp_gradient_t *tensor = &gradients->slots[i].tensor;

        gradients->hashes[i] = 0;
        if (tensor->weight == NULL) continue;
        status =
            dp_context_hash(context, tensor->weight, tensor->count * dp_dtype_bytes(tensor->dtype),
                            &gradients->hashes[i]);
        if (status != DP_OK) {
            return dp_context_error(context, status, "sync %llu: the weights of %s: no checksum",
                                    (unsigned long long)gradients->syncs, gradients->slots[i].name);
        }
    }
    status = gather(gradients, gradients->hashes, gradients->all_hashes, count);
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
                    gradients->slots[i].name, (unsigned long long)gradients->syncs,
                    (unsigned long long)root, dp_group_world_rank(gradients->group, 0),
                    (unsigned long long)other, dp_group_world_rank(gradients->group, rank));
            }
        }
    }
    return DP_OK;
}

/* The next loss scale: halved by an overflow, doubled after enough good steps. The same everywhere
 * because what it depends on is. */
static void move_loss_scale(dp_gradients_t *gradients, int overflow)
{
    if (gradients->options.loss_scale <= 0.0) return;
    if (overflow) {
        gradients->loss_scale = dp_max(1.0, gradients->loss_scale / 2.0);
        gradients->good_steps = 0;
    } else if (++gradients->good_steps >= gradients->options.loss_scale_grow) {
        gradients->loss_scale = dp_min(LOSS_SCALE_MAX, gradients->loss_scale * 2.0);
        gradients->good_steps = 0;
    }
}

/* Waits for all averages and says what they came to. */
static dp_status_t collect(dp_gradients_t *gradients, dp_gradients_result_t *found)
{
    const slot_t *first_bad = NULL;
    dp_status_t status = DP_OK, waited;
    double squares = 0.0;

    for (size_t i = 0; i < gradients->count; i++) {
        slot_t *slot = &gradients->slots[i];
        dp_result_t one = DP_RESULT_INIT;

        waited = dp_wait(slot->handle, -1.0, &one);
        slot->handle = NULL;
        slot->readies = 0;
        if (status == DP_OK) status = waited;
        squares += one.sum_squares;
        if (one.nonfinite > 0 && found->nonfinite == 0) first_bad = slot;
        found->nonfinite += one.nonfinite;
    }
    dp_context_round(gradients->context);
    if (status == DP_OK && gradients->check) status = compare_weights(gradients);
    if (status != DP_OK) return status;
    found->skip = found->nonfinite > 0;
    if (first_bad != NULL && dp_group_rank(gradients->group) == 0) {
        dp_log_info(&gradients->context->log,
                    "sync %llu: %llu elements are Inf or NaN, the first in %s; the step is skipped",
                    (unsigned long long)gradients->syncs, (unsigned long long)found->nonfinite,
                    first_bad->name);
    }
    found->norm = found->skip ? (double)INFINITY : sqrt(squares);
    if (gradients->options.clip_norm > 0.0 && found->norm > gradients->options.clip_norm)
        found->clip = gradients->options.clip_norm / found->norm; /* 0 after an overflow */
    move_loss_scale(gradients, found->skip);
    found->loss_scale = gradients->loss_scale;
    return DP_OK;
}

/* What the next step is scaled by, all of it or one tensor's fp16, follows from the averages. */
static int needs_last(const dp_gradients_t *gradients)
{
    return gradients->options.loss_scale > 0.0 ||
           dp_submit_needs_last(gradients->context, gradients->options.wire);
}

/* The end of a sync that was not waited for. */
static dp_status_t settle(dp_gradients_t *gradients)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;

    if (!gradients->is_unsettled) return DP_OK;
    gradients->is_unsettled = 0;
    return collect(gradients, &found);
}

/* Nothing is in flight: the device's sums of a step that nobody decided on begin anew. */
static dp_status_t clear_sums(dp_gradients_t *gradients)
{
    if (!is_on_device(gradients)) return DP_OK;
    return dp_context_clear(gradients->context, gradients->figures->sums,
                            sizeof(gradients->figures->sums));
}

dp_status_t dp_gradients_sync(dp_gradients_t *gradients, dp_gradients_result_t *result)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status, cleared;

    if (gradients == NULL || dp_context_is_forked(gradients->context)) return DP_ERR_INVALID;
    if (result != NULL && result->size < sizeof(*result)) {
        return dp_context_error(gradients->context, DP_ERR_INVALID,
                                "gradients: the result says it has %zu bytes, the type has %zu; "
                                "use DP_GRADIENTS_RESULT_INIT",
                                result->size, sizeof(*result));
    }
    status = settle(gradients);
    if (status == DP_OK) status = complete_readies(gradients);
    if (status != DP_OK) return status;
    gradients->syncs++;
    status = collect(gradients, &found);
    cleared = clear_sums(gradients);
    if (status == DP_OK) status = cleared;
    if (status != DP_OK) return status;
    if (result != NULL) *result = found;
    return DP_OK;
}

/* ---- On a stream ---------------------------------------------------------------------------- */

/* A program's other threads may look at the words. */
static void set_skip(dp_figures_t *figures, uint32_t skip)
{
    __atomic_store_n(&figures->skip, skip, __ATOMIC_SEQ_CST);
}

static dp_status_t sync_host(dp_gradients_t *gradients)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_figures_t *figures = gradients->figures;
    dp_status_t status;

    set_skip(figures, 1);
    status = dp_gradients_sync(gradients, &found);
    if (status != DP_OK) return status;
    figures->clip = (float)found.clip;
    figures->norm = (float)found.norm;
    set_skip(figures, found.skip != 0);
    return DP_OK;
}

/* The stream waits for every average, the thread until they were issued. */
static dp_status_t wait_on(dp_gradients_t *gradients, void *stream)
{
    dp_status_t status = DP_OK;

    for (size_t i = 0; i < gradients->count; i++) {
        const dp_status_t waited = dp_stream_wait(gradients->slots[i].handle, stream);

        if (status == DP_OK) status = waited;
    }
    return status;
}

/* The averages go on without their handles. */
static void let_go(dp_gradients_t *gradients)
{
    for (size_t i = 0; i < gradients->count; i++) {
        slot_t *slot = &gradients->slots[i];

        dp_release(slot->handle);
        slot->handle = NULL;
        slot->readies = 0;
    }
}

/* On the stream, behind the averages that it waits for. */
static dp_status_t decide(dp_gradients_t *gradients, dp_stream_t *stream, int is_failed)
{
    const dp_device_ops_t *device = gradients->context->device->ops;
    dp_status_t status =
        device->decide(stream, gradients->figures, gradients->options.clip_norm, is_failed);

    return status == DP_OK ? device->event_record(gradients->decided, stream) : status;
}

static int is_over(dp_context_t *context)
{
    dp_status_t fatal;

    pthread_mutex_lock(&context->lock);
    fatal = context->fatal;
    pthread_mutex_unlock(&context->lock);
    return fatal != DP_OK;
}

/* DP_CHECK: the optimizer behind the decision would write what is compared, so the averages, and
 * all before them, must be over. */
static dp_status_t decide_checked(dp_gradients_t *gradients, dp_stream_t *stream)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    const dp_status_t status = collect(gradients, &found);

    if (status == DP_OK) return decide(gradients, stream, 0);
    (void)decide(gradients, stream, 1);
    (void)clear_sums(gradients);
    return status;
}

static dp_status_t sync_device(dp_gradients_t *gradients, void *native, dp_stream_t *stream)
{
    dp_gradients_result_t found = DP_GRADIENTS_RESULT_INIT;
    dp_status_t status = settle(gradients);

    if (status == DP_OK) status = complete_readies(gradients);
    if (status != DP_OK) { /* what was ready stays in flight, and may be waited for again */
        (void)decide(gradients, stream, 1);
        return status;
    }
    gradients->syncs++;
    status = wait_on(gradients, native);
    if (status == DP_OK && gradients->check) return decide_checked(gradients, stream);
    if (status == DP_OK) {
        gradients->is_unsettled = needs_last(gradients);
        if (!gradients->is_unsettled) let_go(gradients);
        status = decide(gradients, stream, 0);
        if (status == DP_OK) return DP_OK;
        return dp_context_error(
            gradients->context, status, "gradients: sync %llu: no decision on stream %p: %s",
            (unsigned long long)gradients->syncs, native, dp_status_string(status));
    }
    (void)decide(gradients, stream, 1);
    if (is_over(gradients->context)) {
        let_go(gradients); /* what is left of them ends when the streams move */
        return status;
    }
    (void)collect(gradients, &found);
    (void)clear_sums(gradients);
    return status;
}

dp_status_t dp_gradients_sync_on(dp_gradients_t *gradients, void *stream,
                                 dp_device_result_t *result)
{
    dp_context_t *context;
    dp_stream_t *known;

    if (gradients == NULL || dp_context_is_forked(gradients->context)) return DP_ERR_INVALID;
    context = gradients->context;
    if (result != NULL && result->size < sizeof(*result)) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "gradients: the result says it has %zu bytes, the type has %zu; "
                                "use DP_DEVICE_RESULT_INIT",
                                result->size, sizeof(*result));
    }
    if (result != NULL) {
        result->skip = &gradients->figures->skip;
        result->clip = &gradients->figures->clip;
        result->norm = &gradients->figures->norm;
    }
    if (!is_on_device(gradients)) return sync_host(gradients);
    pthread_mutex_lock(&context->lock);
    known = stream == NULL ? NULL : dp_stream_find(context, stream);
    pthread_mutex_unlock(&context->lock);
    if (known == NULL) {
        return dp_context_error(context, DP_ERR_UNSUPPORTED,
                                "gradients: the stream %p is none of %s", stream,
                                context->device->ops->describe(context->device));
    }
    return sync_device(gradients, stream, known);
}

void dp_gradients_destroy(dp_gradients_t *gradients)
{
    if (gradients == NULL || dp_context_is_forked(gradients->context)) return;
    free_gradients(gradients);
}
