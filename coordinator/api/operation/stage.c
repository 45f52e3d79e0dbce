/*
 * stage.c - tensors in plain host memory on a context that works on a GPU.
 *
 * The data plane knows one kind of memory per context, and a GPU's kernels cannot read host memory
 * that is not pinned. So such a tensor travels through pinned memory, kept in a pool: copied in by
 * dp_submit() on the program's thread, and out before the request is DONE, on the thread that
 * completes it. Meant for the small tensors that programs and libdp itself agree on; one tensor at
 * a time, and not with a stream.
 */
#include "coordinator/api/operation/stage.h"
#include "coordinator/api/operation/arguments.h"
#include "coordinator/api/operation/submit.h"

#include <stdlib.h>
#include <string.h>

struct dp_staging {
    dp_staging_t *next; /* in the pool */
    unsigned char *memory;
    size_t room;
    void *out; /* the caller's; NULL: nothing comes back */
    const unsigned char *from;
    size_t out_bytes;
};

/* One of the pool that is large enough, else a new one. */
static dp_staging_t *acquire_staging(dp_context_t *context, size_t room)
{
    dp_staging_t **link, *stage;
    void *memory;

    pthread_mutex_lock(&context->lock);
    for (link = &context->stages; *link != NULL && (*link)->room < room;)
        link = &(*link)->next;
    stage = *link;
    if (stage != NULL) *link = stage->next;
    pthread_mutex_unlock(&context->lock);
    if (stage != NULL) return stage;
    stage = calloc(1, sizeof(*stage));
    if (stage == NULL) return NULL;
    if (context->device->ops->pinned_alloc(context->device, room, &memory) != DP_OK) {
        free(stage);
        return NULL;
    }
    stage->memory = memory;
    stage->room = room;
    return stage;
}

/* 1: a pointer in plain host memory; -1: in that of another GPU. */
static int is_foreign(const dp_context_t *context, const void *memory)
{
    switch (context->device->ops->kind(context->device, memory)) {
    case DP_MEMORY_HOST:
        return 1;
    case DP_MEMORY_OTHER_DEVICE:
        return -1;
    case DP_MEMORY_DEVICE:
        break;
    }
    return 0;
}

/* Whether in and out are foreign, see is_foreign(); refuses what cannot be staged. */
static dp_status_t find_foreign(dp_group_t *group, const dp_submit_t *what, int *in, int *out)
{
    const dp_device_ops_t *device = group->context->device->ops;

    *in = *out = 0;
    for (size_t i = 0; i < what->count; i++) {
        const dp_tensor_t *tensor = &what->tensors[i];
        dp_extent_t extent;

        (void)dp_extent_of(group, what, tensor, &extent); /* checked before */
        if (extent.has_in && extent.in_count > 0) *in = is_foreign(group->context, tensor->in);
        if (extent.has_out && extent.out_count > 0) *out = is_foreign(group->context, tensor->out);
        if (*in < 0 || *out < 0) {
            return dp_submit_error(group, what, DP_ERR_UNSUPPORTED,
                                   "its data is in the memory of another GPU, the context works on "
                                   "%s",
                                   device->describe(group->context->device));
        }
        if (*in + *out == 0) continue;
        if (what->count == 1 && what->options->stream == NULL) return DP_OK;
        return dp_submit_error(group, what, DP_ERR_UNSUPPORTED,
                               "data in plain host memory, in a group of tensors or with a stream, "
                               "cannot reach %s: pin it, or use its memory",
                               device->describe(group->context->device));
    }
    return DP_OK;
}

dp_status_t dp_staging_begin(dp_group_t *group, dp_submit_t *what, dp_tensor_t *staged,
                             dp_staging_t **out)
{
    const dp_tensor_t *tensor = &what->tensors[0];
    dp_extent_t extent;
    dp_staging_t *stage;
    size_t bytes, in_bytes, out_bytes;
    int from_host, to_host;
    dp_status_t status = find_foreign(group, what, &from_host, &to_host);

    *out = NULL;
    if (status != DP_OK || from_host + to_host == 0) return status;
    (void)dp_extent_of(group, what, tensor, &extent);
    bytes = dp_dtype_bytes(tensor->dtype);
    in_bytes = from_host ? extent.in_count * bytes : 0;
    out_bytes = to_host ? extent.out_count * bytes : 0;
    stage = acquire_staging(group->context, dp_align_up(in_bytes, 256) + out_bytes);
    if (stage == NULL) {
        return dp_submit_error(group, what, DP_ERR_NO_MEMORY,
                               "no pinned memory for %zu bytes on the host", in_bytes + out_bytes);
    }
    *staged = *tensor;
    stage->out = NULL;
    if (from_host) {
        memcpy(stage->memory, tensor->in, in_bytes);
        staged->in = stage->memory;
    }
    if (to_host) { /* copied in too, so that elements which no rank writes stay as they are */
        stage->from = stage->memory + dp_align_up(in_bytes, 256);
        stage->out = tensor->out;
        stage->out_bytes = out_bytes;
        staged->out = stage->memory + dp_align_up(in_bytes, 256);
        memcpy(staged->out, tensor->out, out_bytes);
    }
    what->tensors = staged;
    *out = stage;
    return DP_OK;
}

void dp_staging_end(dp_context_t *context, dp_staging_t *stage, int is_good)
{
    if (stage == NULL) return;
    if (is_good && stage->out != NULL) memcpy(stage->out, stage->from, stage->out_bytes);
    pthread_mutex_lock(&context->lock);
    stage->next = context->stages;
    context->stages = stage;
    pthread_mutex_unlock(&context->lock);
}

void dp_stagings_free(dp_context_t *context)
{
    while (context->stages != NULL) {
        dp_staging_t *stage = context->stages;

        context->stages = stage->next;
        context->device->ops->pinned_free(context->device, stage->memory);
        free(stage);
    }
}
