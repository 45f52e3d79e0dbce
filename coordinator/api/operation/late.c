/*
 * late.c - launches by the cached schedule that not every rank could follow: when they are over,
 * and what stands in for a request that is not there.
 *
 *     scheduled launch -> data plane done --------------------------------> DONE   nobody left it
 *                               | while the ranks find out how far each came
 *                               +-> parked --> not behind the last common round --> DONE
 *                                        \---> the ranks settle it -> DONE, or it fails
 *
 * A rank launches by the schedule without asking. So the data plane may finish an operation here
 * before it is known that another rank left the schedule and gave no data of its own. While a
 * schedule ends no such operation is reported as over: it is *parked*. Afterwards those are
 * reported that all ranks launched, and the others when the ranks have settled them: with data that
 * came late, as an average of fewer ranks, or as a failure.
 *
 * dp_on_schedule() runs on the thread that owns progress, the rest on threads of the data plane
 * and, for dp_late_fill() and dp_late_lend(), in a launch. It must not know how the ranks agree.
 */
#include "coordinator/api/operation/late.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/api/context/device.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/operation/request.h"
#include "fusion/identity.h"

#define STAND_IN_ALIGNMENT 256 /* of parts in memory of the engine */

/* ---- When it is over ------------------------------------------------------------------------ */

/* 1: it stays parked. 0: it may be reported; how it was settled does not change any more. Lock
 * held. */
static int is_parked_yet(const dp_late_t *late, dp_handle_t *request)
{
    int is_parked = request->late.by_schedule && !request->late.is_settled &&
                    request->late.sequence > late->from && request->late.sequence <= late->until;

    if (!is_parked && !request->late.is_settled) request->late.by_schedule = 0;
    return is_parked;
}

/* The average was taken over all ranks; makes it that of the ranks that have not joined. */
static void average_again(dp_handle_t *request, dp_pipeline_done_t *done)
{
    int size = request->group->size;
    double factor = (double)size / (double)(size - request->late.settled_absent);

    request->contributors = size - request->late.settled_absent;
    if (!request->late.averages) return;
    memset(&done->tally, 0, sizeof(done->tally));
    for (size_t i = 0; i < request->tensor_count; i++) {
        const dp_pipeline_tensor_t *tensor = &request->tensors[i];
        dp_cast_piece_t piece = {tensor->out, tensor->out, tensor->count, factor, &done->tally};
        dp_cast_args_t args = {tensor->dtype, tensor->dtype, &piece, 1, 0};

        if (tensor->out != NULL && tensor->count > 0) dp_kernel_cast(&args);
    }
}

/* A request that was settled, or need not be. 1: it has ended here. 0: report done. */
static int apply_settlement(dp_handle_t *request, dp_pipeline_done_t *done)
{
    if (!request->late.is_settled) return 0;
    if (request->late.settled_status == DP_OK && request->late.settled_absent > 0 &&
        request->late.averages && request->context->device->ops->is_async) {
        dp_request_fail(request, DP_ERR_ORDER,
                        dp_context_text(request->context,
                                        "an average was taken over all ranks, and some joined "
                                        "instead; the cached schedule had launched it before"));
        return 1;
    }
    if (request->late.settled_status != DP_OK) {
        dp_request_fail(request, request->late.settled_status, request->late.settled_text);
        return 1;
    }
    if (request->late.settled_absent > 0) average_again(request, done);
    return 0;
}

int dp_late_keeps(dp_handle_t *request, dp_pipeline_done_t *done)
{
    dp_context_t *context = request->context;
    dp_late_t *late = &context->late;
    int parks;

    if (!request->late.by_schedule) return 0;
    pthread_mutex_lock(&context->lock);
    parks = context->fatal == DP_OK && is_parked_yet(late, request);
    if (parks) {
        request->late.parked = *done;
        request->late.next_parked = late->parked;
        late->parked = request;
    }
    pthread_mutex_unlock(&context->lock);
    return parks || apply_settlement(request, done);
}

/* Reports the parked requests that are over by now; with a failure, ends all of them with it. */
static void release_parked(dp_context_t *context, dp_status_t status, const char *text)
{
    dp_handle_t **at, *free_now = NULL;

    pthread_mutex_lock(&context->lock);
    for (at = &context->late.parked; *at != NULL;) {
        dp_handle_t *request = *at;

        if (status == DP_OK && is_parked_yet(&context->late, request)) {
            at = &request->late.next_parked;
            continue;
        }
        *at = request->late.next_parked;
        request->late.next_parked = free_now;
        free_now = request;
    }
    pthread_mutex_unlock(&context->lock);
    while (free_now != NULL) {
        dp_handle_t *request = free_now;

        free_now = request->late.next_parked;
        if (status != DP_OK) {
            dp_request_fail(request, status, text);
        } else if (!apply_settlement(request, &request->late.parked)) {
            dp_request_succeed(request, &request->late.parked);
        }
    }
}

void dp_late_fail(dp_context_t *context, dp_status_t status, const char *text)
{
    release_parked(context, status, text);
}

static void set_parking(dp_context_t *context, uint64_t from, uint64_t until)
{
    pthread_mutex_lock(&context->lock);
    context->late.from = from;
    context->late.until = until;
    pthread_mutex_unlock(&context->lock);
    release_parked(context, DP_OK, NULL);
}

static void settle_request(dp_context_t *context, const dp_output_t *out)
{
    const char *text = out->status == DP_OK ? "" : dp_context_text(context, out->text);
    dp_handle_t *request;

    pthread_mutex_lock(&context->lock);
    for (request = context->requests.live_first; request != NULL;
         request = request->links.following) {
        if (!request->late.by_schedule || request->late.is_settled ||
            request->late.sequence != out->sequence || request->late.launch_id != out->id)
            continue;
        request->late.settled_status = out->status;
        request->late.settled_text = text;
        request->late.settled_absent = (int)out->absent;
        request->late.is_settled = 1;
        break;
    }
    pthread_mutex_unlock(&context->lock);
    release_parked(context, DP_OK, NULL);
}

void dp_on_schedule(void *user, const dp_output_t *out)
{
    dp_context_t *context = user;

    switch (out->kind) {
    case DP_OUTPUT_SCHEDULE_PAUSED:
        set_parking(context, 0, UINT64_MAX);
        break;
    case DP_OUTPUT_SCHEDULE_ENDED:
        set_parking(context, out->sequence, out->until);
        break;
    case DP_OUTPUT_SETTLED:
        settle_request(context, out);
        break;
    default:
        break;
    }
}

/* ---- What stands in ------------------------------------------------------------------------- */

/* Contents that no program can take for a result: quiet NaN, or zeros of a type that has none. */
static void fill_void(void *to, size_t count, dp_dtype_t dtype)
{
    float f32 = NAN;
    double f64 = NAN;
    uint16_t f16 = 0x7e00, bf16 = 0x7fc0;
    const void *one = dtype == DP_F16    ? (const void *)&f16
                      : dtype == DP_BF16 ? (const void *)&bf16
                      : dtype == DP_F32  ? (const void *)&f32
                                         : (const void *)&f64;
    size_t bytes = dp_dtype_bytes(dtype);

    memset(to, 0, count * bytes);
    if (!dp_dtype_is_float(dtype)) return;
    for (size_t i = 0; i < count; i++)
        memcpy((char *)to + i * bytes, one, bytes);
}

/* How many elements one part of an operation needs in `in`, and in `out` behind it. Of an allgather
 * other ranks read `in` alone: its rows go to the program's memory, and nowhere if the rank has
 * joined. */
static void part_extent(const dp_handle_t *request, const dp_signature_t *agreed, uint32_t part,
                        size_t *in, size_t *out)
{
    size_t count = (size_t)agreed->parts[part].count;

    *in = *out = count;
    if (agreed->collective == DP_COLLECTIVE_ALLGATHER) *out = 0;
    if (agreed->collective == DP_COLLECTIVE_REDUCE_SCATTER) *in *= (size_t)request->group->size;
    if (agreed->collective == DP_COLLECTIVE_REDUCE_SCATTERV && (int)part != request->group->rank)
        *out = 0;
}

/* Engine memory for all parts of an operation. */
static dp_status_t allocate_stand_in(dp_handle_t *request, const dp_signature_t *agreed)
{
    dp_context_t *context = request->context;
    size_t bytes = 0, in, out;
    dp_status_t status;

    for (uint32_t i = 0; i < agreed->part_count; i++) {
        part_extent(request, agreed, i, &in, &out);
        bytes +=
            dp_align_up((in + out) * dp_dtype_bytes(agreed->parts[i].dtype), STAND_IN_ALIGNMENT);
    }
    status = context->engine->ops->alloc(context->engine, bytes, &request->late.stand_in);
    if (status == DP_OK && context->device->ops->is_async)
        status = dp_context_clear(context, request->late.stand_in, bytes);
    return status;
}

dp_status_t dp_late_lend(dp_handle_t *request, const dp_signature_t *agreed)
{
    dp_status_t status;
    size_t in, out;
    char *at;

    /* Data that a stream has yet to produce cannot be copied now. */
    if (request->stream.ready != NULL || request->context->device->ops->is_async)
        return DP_ERR_UNSUPPORTED;
    request->late.lent = malloc(request->tensor_count * sizeof(*request->late.lent));
    if (request->late.lent == NULL) return DP_ERR_NO_MEMORY;
    memcpy(request->late.lent, request->tensors,
           request->tensor_count * sizeof(*request->late.lent));
    status = allocate_stand_in(request, agreed);
    if (status != DP_OK) return status;
    at = request->late.stand_in;
    for (uint32_t i = 0; i < agreed->part_count; i++) {
        dp_pipeline_tensor_t *tensor = &request->tensors[i];
        size_t bytes = dp_dtype_bytes(tensor->dtype);

        part_extent(request, agreed, i, &in, &out);
        memcpy(at, tensor->in, in * bytes);
        tensor->in = at;
        if (agreed->collective == DP_COLLECTIVE_ALLREDUCE) {
            tensor->out = at;
        } else if (out > 0 && tensor->out != NULL) {
            tensor->out = at + in * bytes;
        }
        at += dp_align_up((in + out) * bytes, STAND_IN_ALIGNMENT);
    }
    return DP_OK;
}

/* Fills in the identity of a reduction, or the zero row of an allgather. */
static void fill_identity(void *to, size_t count, const dp_signature_t *agreed, dp_dtype_t dtype)
{
    if (agreed->collective == DP_COLLECTIVE_ALLGATHER) {
        memset(to, 0, count * dp_dtype_bytes(dtype));
    } else {
        dp_identity_fill(to, count, dtype, agreed->reduce, agreed->prescale);
    }
}

dp_status_t dp_late_fill(dp_handle_t *request, const dp_launch_entry_t *entry)
{
    const dp_signature_t *agreed = entry->signature;
    dp_context_t *context = request->context;
    dp_status_t status = allocate_stand_in(request, agreed);
    size_t in, out;
    char *at;

    if (status != DP_OK) return status;
    at = request->late.stand_in;
    for (uint32_t i = 0; i < agreed->part_count; i++) {
        dp_dtype_t dtype = agreed->parts[i].dtype;
        dp_pipeline_tensor_t *tensor = &request->tensors[i];

        part_extent(request, agreed, i, &in, &out);
        tensor->in = at;
        tensor->out = out > 0 ? at + in * dp_dtype_bytes(dtype) : NULL;
        if (agreed->collective == DP_COLLECTIVE_ALLREDUCE) tensor->out = at;
        if (!context->device->ops->is_async && entry->is_void) fill_void(at, in, dtype);
        if (!context->device->ops->is_async && !entry->is_void)
            fill_identity(at, in, agreed, dtype);
        at += dp_align_up((in + out) * dp_dtype_bytes(dtype), STAND_IN_ALIGNMENT);
    }
    return DP_OK;
}

void dp_late_free(dp_handle_t *request)
{
    dp_context_t *context = request->context;

    for (size_t i = 0; request->late.lent != NULL && i < request->tensor_count; i++) {
        const dp_pipeline_tensor_t *own = &request->late.lent[i], *used = &request->tensors[i];

        if (own->out != NULL && used->out != NULL && used->out != own->out)
            memcpy(own->out, used->out, own->count * dp_dtype_bytes(own->dtype));
        request->tensors[i] = *own;
    }
    free(request->late.lent);
    request->late.lent = NULL;
    if (request->late.stand_in != NULL)
        (void)context->engine->ops->free(context->engine, request->late.stand_in);
    request->late.stand_in = NULL;
}
