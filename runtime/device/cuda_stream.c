/*
 * cuda_stream.c - streams and events of a CUDA device.
 *
 * Ours do not synchronise with the legacy default stream and go before the program's kernels, so
 * that a reduction is not held up by the backward pass it overlaps. Events do not time. It must not
 * know what runs on a stream.
 */
#include "runtime/device/cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/device/cuda_sight.h"

/* ---- Events --------------------------------------------------------------------------------- */

dp_status_t dp_cuda_event_create(dp_device_t *self, dp_event_t **out)
{
    cuda_device_t *device = dp_cuda_of(self);
    dp_event_t *event = calloc(1, sizeof(*event));
    dp_status_t status;

    if (event == NULL) return DP_ERR_NO_MEMORY;
    event->device = device;
    status = dp_cuda_enter(device);
    if (status == DP_OK) {
        status =
            DP_CUDA(device, cudaEventCreateWithFlags(&event->native, cudaEventDisableTiming |
                                                                         cudaEventBlockingSync));
    }
    if (status != DP_OK) {
        free(event);
        return status;
    }
    *out = event;
    return DP_OK;
}

void dp_cuda_event_destroy(dp_event_t *event)
{
    if (event == NULL) return;
    (void)DP_CUDA(event->device, cudaEventDestroy(event->native));
    free(event);
}

dp_status_t dp_cuda_event_record(dp_event_t *event, dp_stream_t *stream)
{
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    dp_status_t status = DP_OK;
    int back = -1;

    /* The default stream of a program is that of the calling thread's device. */
    if (stream->is_adopted) status = dp_cuda_visit(stream->device, &back);
    /* An event of a graph would make a part of it of every stream of ours that waits for it. */
    if (status == DP_OK && stream->is_adopted) {
        status = DP_CUDA(stream->device, cudaStreamIsCapturing(stream->native, &state));
    }
    if (status == DP_OK && state != cudaStreamCaptureStatusNone) {
        dp_log_error(stream->device->log, "GPU %d: a stream that captures a graph",
                     stream->device->ordinal);
        status = DP_ERR_UNSUPPORTED;
    }
    if (status == DP_OK) {
        status = DP_CUDA(stream->device, cudaEventRecord(event->native, stream->native));
    }
    dp_cuda_leave(stream->device, back);
    return status;
}

/* A device that has failed does nothing more: nobody needs to wait for it. */
int dp_cuda_event_done(const dp_event_t *event)
{
    return dp_cuda_query(event->native) != cudaErrorNotReady;
}

dp_status_t dp_cuda_event_wait(const dp_event_t *event)
{
    return DP_CUDA(event->device, dp_cuda_await(event->device, event->native));
}

/* ---- Streams -------------------------------------------------------------------------------- */

dp_status_t dp_cuda_stream_create(dp_device_t *self, const char *name, dp_stream_t **out)
{
    cuda_device_t *device = dp_cuda_of(self);
    dp_stream_t *stream = calloc(1, sizeof(*stream));
    dp_status_t status;

    if (stream == NULL) return DP_ERR_NO_MEMORY;
    stream->device = device;
    stream->completion = &device->completions[0];
    snprintf(stream->name, sizeof(stream->name), "dp %.12s", name);
    status = dp_cuda_enter(device);
    if (status == DP_OK) {
        status = DP_CUDA(device, cudaStreamCreateWithPriority(
                                     &stream->native, cudaStreamNonBlocking, device->priority));
    }
    if (status == DP_OK) status = dp_cuda_batches_init(stream);
    if (status != DP_OK) {
        dp_cuda_stream_destroy(stream);
        return status;
    }
    dp_cuda_name_stream(stream->native, stream->name);
    *out = stream;
    return DP_OK;
}

dp_status_t dp_cuda_stream_adopt(dp_device_t *self, void *native, dp_stream_t **out)
{
    cuda_device_t *device = dp_cuda_of(self);
    int ordinal = -1, back;
    dp_stream_t *stream;
    cudaError_t code;

    if (dp_cuda_visit(device, &back) != DP_OK) return DP_ERR_UNSUPPORTED;
    code = cudaStreamGetDevice((cudaStream_t)native, &ordinal);
    if (code != cudaSuccess) (void)cudaGetLastError(); /* the program does not meet this answer */
    dp_cuda_leave(device, back);
    if (code != cudaSuccess || ordinal != device->ordinal) return DP_ERR_UNSUPPORTED;
    stream = calloc(1, sizeof(*stream));
    if (stream == NULL) return DP_ERR_NO_MEMORY;
    stream->device = device;
    stream->completion = &device->completions[0];
    stream->native = (cudaStream_t)native;
    stream->is_adopted = 1;
    *out = stream;
    return DP_OK;
}

void *dp_cuda_stream_native(const dp_stream_t *stream)
{
    return (void *)stream->native;
}

void dp_cuda_stream_destroy(dp_stream_t *stream)
{
    cuda_device_t *device;

    if (stream == NULL) return;
    device = stream->device;
    pthread_mutex_lock(&device->lock);
    while (stream->pending > 0)
        pthread_cond_wait(&device->change, &device->lock);
    pthread_mutex_unlock(&device->lock);
    if (!stream->is_adopted && stream->native != NULL) {
        (void)cudaStreamSynchronize(stream->native); /* what failed was told where it was met */
        (void)DP_CUDA(device, cudaStreamDestroy(stream->native));
    }
    dp_cuda_batches_fini(stream);
    free(stream);
}

dp_status_t dp_cuda_stream_wait(dp_stream_t *stream, dp_event_t *event)
{
    dp_status_t status = DP_OK;
    int back = -1;

    if (stream->is_adopted) status = dp_cuda_visit(stream->device, &back); /* as for a record */
    if (status == DP_OK) {
        status = DP_CUDA(stream->device, cudaStreamWaitEvent(stream->native, event->native, 0));
    }
    dp_cuda_leave(stream->device, back);
    return status;
}
