/*
 * cuda_work.c - casts, fills and copies as work of a CUDA stream.
 *
 * A cast of many pieces travels with a table, and its tallies come back, through memory that each
 * stream has for a fixed number of batches: nothing is allocated on the way, which could hold up
 * the device while a collective runs. A batch is free again when the completion thread has read it.
 */
#include "runtime/device/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/device/cuda_sight.h"

#define TALLY_BYTES (CUDA_BATCH * sizeof(dp_cuda_tally_t))

/* The tallies come first, then the table, both on the host and on the device. */
static size_t batch_bytes(void)
{
    return dp_align_up(TALLY_BYTES, 256) + dp_align_up(dp_cuda_table_bytes(CUDA_BATCH), 256);
}

dp_status_t dp_cuda_batches_init(dp_stream_t *stream)
{
    cuda_device_t *device = stream->device;
    const size_t bytes = batch_bytes();
    void *host = NULL, *memory = NULL;
    dp_status_t status = DP_ERR_NO_MEMORY;

    stream->batches = calloc(CUDA_RING, sizeof(*stream->batches));
    if (stream->batches != NULL)
        status = DP_CUDA(device, cudaHostAlloc(&host, CUDA_RING * bytes, cudaHostAllocDefault));
    if (status == DP_OK) status = DP_CUDA(device, cudaMalloc(&memory, CUDA_RING * bytes));
    stream->host = host; /* also what exists of it: fini gives it back */
    stream->memory = memory;
    for (size_t i = 0; i < CUDA_RING && status == DP_OK; i++) {
        stream->batches[i].host = stream->host + i * bytes;
        stream->batches[i].memory = stream->memory + i * bytes;
    }
    return status;
}

void dp_cuda_batches_fini(dp_stream_t *stream)
{
    if (stream->host != NULL) (void)DP_CUDA(stream->device, cudaFreeHost(stream->host));
    if (stream->memory != NULL) (void)DP_CUDA(stream->device, cudaFree(stream->memory));
    free(stream->batches);
}

static cuda_batch_t *take_batch(dp_stream_t *stream)
{
    cuda_device_t *device = stream->device;
    cuda_batch_t *batch = &stream->batches[stream->next_batch];

    stream->next_batch = (stream->next_batch + 1) % CUDA_RING;
    pthread_mutex_lock(&device->lock);
    while (batch->is_busy)
        pthread_cond_wait(&device->change, &device->lock);
    batch->is_busy = 1;
    pthread_mutex_unlock(&device->lock);
    batch->tally_count = 0;
    return batch;
}

static void drop_batch(cuda_device_t *device, cuda_batch_t *batch)
{
    pthread_mutex_lock(&device->lock);
    batch->is_busy = 0;
    pthread_mutex_unlock(&device->lock);
}

/* The pieces as the kernels take them; those with a tally get one of the batch. */
static void fill_pieces(dp_cuda_piece_t *pieces, const dp_cast_piece_t *from, size_t count,
                        cuda_batch_t *batch)
{
    for (size_t i = 0; i < count; i++) {
        pieces[i] = (dp_cuda_piece_t){
            .from = from[i].from, .to = from[i].to, .count = from[i].count, .scale = from[i].scale};
        if (from[i].tally == NULL || from[i].count == 0) continue;
        pieces[i].tally = (dp_cuda_tally_t *)(void *)batch->memory + batch->tally_count;
        batch->targets[batch->tally_count++] = from[i].tally;
    }
}

/* With memory of its own, which the item frees behind it. */
static dp_status_t cast_with_batch(dp_stream_t *stream, const dp_cast_args_t *args,
                                   const dp_cast_piece_t *from, size_t count, dp_figures_t *figures)
{
    cuda_device_t *device = stream->device;
    dp_cuda_piece_t pieces[CUDA_BATCH];
    cuda_batch_t *batch;
    cuda_item_t *item;
    dp_cuda_table_t table;
    size_t bytes;
    dp_status_t status = dp_cuda_item_alloc(device, 0, &item);

    if (status != DP_OK) return status;
    batch = take_batch(stream);
    item->kind = ITEM_TALLIES;
    item->batch = batch;
    table = (dp_cuda_table_t){.host = batch->host + dp_align_up(TALLY_BYTES, 256),
                              .device = batch->memory + dp_align_up(TALLY_BYTES, 256),
                              .bytes = dp_cuda_table_bytes(CUDA_BATCH)};
    fill_pieces(pieces, from, count, batch);
    bytes = batch->tally_count * sizeof(dp_cuda_tally_t);
    if (bytes > 0) {
        status = DP_CUDA(device, cudaMemsetAsync(batch->memory, 0, bytes, stream->native));
    }
    if (status == DP_OK) {
        status = DP_CUDA(device,
                         dp_cuda_cast(args->from, args->to, pieces, count, &table, stream->native));
    }
    if (status == DP_OK && bytes > 0 && figures != NULL) {
        status = DP_CUDA(device, dp_cuda_figures_add(figures,
                                                     (const dp_cuda_tally_t *)(void *)batch->memory,
                                                     batch->tally_count, stream->native));
    }
    if (status == DP_OK && bytes > 0) {
        status = DP_CUDA(device, cudaMemcpyAsync(batch->host, batch->memory, bytes,
                                                 cudaMemcpyDeviceToHost, stream->native));
    }
    if (status == DP_OK) status = dp_cuda_item_push(stream, item);
    if (status == DP_OK) return DP_OK;
    /* Part of it may be on its way, and the caller ends the data plane. */
    (void)cudaStreamSynchronize(stream->native);
    drop_batch(device, batch);
    dp_cuda_item_free(device, item);
    return status;
}

static int has_tally(const dp_cast_piece_t *pieces, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (pieces[i].tally != NULL && pieces[i].count > 0) return 1;
    }
    return 0;
}

dp_status_t dp_cuda_work_cast(dp_stream_t *stream, const dp_cast_args_t *args,
                              dp_figures_t *figures)
{
    cuda_device_t *device = stream->device;
    dp_status_t status = dp_cuda_enter(device);

    dp_cuda_range_begin(stream->name);
    for (size_t at = 0; at < args->piece_count && status == DP_OK; at += CUDA_BATCH) {
        const dp_cast_piece_t *from = &args->pieces[at];
        const size_t count = dp_min(args->piece_count - at, (size_t)CUDA_BATCH);
        dp_cuda_piece_t pieces[DP_CUDA_PIECES_INLINE];

        if (count > DP_CUDA_PIECES_INLINE || has_tally(from, count)) {
            status = cast_with_batch(stream, args, from, count, figures);
            continue;
        }
        fill_pieces(pieces, from, count, NULL);
        status = DP_CUDA(device,
                         dp_cuda_cast(args->from, args->to, pieces, count, NULL, stream->native));
    }
    dp_cuda_range_end();
    return status;
}

dp_status_t dp_cuda_work_fill(dp_stream_t *stream, dp_dtype_t dtype, dp_reduce_t reduce, void *to,
                              size_t count)
{
    dp_status_t status = dp_cuda_enter(stream->device);

    if (status != DP_OK || count == 0) return status;
    return DP_CUDA(stream->device, dp_cuda_fill_identity(dtype, reduce, to, count, stream->native));
}

dp_status_t dp_cuda_work_copy(dp_stream_t *stream, void *to, const void *from, size_t bytes)
{
    dp_status_t status = dp_cuda_enter(stream->device);

    if (status != DP_OK || bytes == 0) return status;
    return DP_CUDA(stream->device,
                   cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream->native));
}
