/*
 * cuda_completion.c - threads that run functions once a stream has reached them: tallies, stamps,
 * calls. Items are pushed by threads of the data plane.
 *
 * A thread takes items in the order they were pushed and waits for each one's event, whatever
 * stream it is on, so a function sees everything that was pushed before it. That order is the order
 * of the launches, in which streams advance anyway. Streams of the gather lane advance by
 * themselves, so their items go to a second thread. Stamps of the program's streams go to a third:
 * the program queues far ahead of the launches, which may not wait for its marks. drain() does not
 * wait for these either. cudaLaunchHostFunc() would be simpler, but it holds up the stream and
 * forbids CUDA calls.
 *
 * A stamp counts from a base: a moment known by the device's and the host's clock. The base is
 * renewed each second, because CUDA returns times as float milliseconds, whose precision falls.
 */
#include "runtime/device/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/thread.h"

#define BASE_LIFE_NS 1000000000u
#define BASE_TRIES 8
#define BASE_PRECISION_NS 30000u /* of the first try; each later one may have twice the error */
#define BASE_PATIENCE_NS 200000u /* a hundred times what an idle stream takes */

/* ---- Items ---------------------------------------------------------------------------------- */

static dp_status_t item_make(cuda_device_t *device, int is_timed, cuda_item_t **out)
{
    cuda_item_t *item = calloc(1, sizeof(*item));
    unsigned flags = cudaEventBlockingSync | (is_timed ? 0 : cudaEventDisableTiming);
    dp_status_t status;

    if (item == NULL) return DP_ERR_NO_MEMORY;
    status = DP_CUDA(device, cudaEventCreateWithFlags(&item->reached, flags));
    if (status != DP_OK) {
        free(item);
        return status;
    }
    *out = item;
    return DP_OK;
}

dp_status_t dp_cuda_item_alloc(cuda_device_t *device, int is_timed, cuda_item_t **out)
{
    cuda_item_t **pool = is_timed ? &device->spare_timed : &device->spare;
    cuda_item_t *item;

    pthread_mutex_lock(&device->lock);
    item = *pool;
    if (item != NULL) *pool = item->next;
    pthread_mutex_unlock(&device->lock);
    if (item == NULL) return item_make(device, is_timed, out);
    *out = item;
    return DP_OK;
}

static void give_back_locked(cuda_device_t *device, cuda_item_t *item)
{
    cuda_item_t **pool = item->kind == ITEM_STAMP ? &device->spare_timed : &device->spare;

    item->next = *pool;
    *pool = item;
}

void dp_cuda_item_free(cuda_device_t *device, cuda_item_t *item)
{
    pthread_mutex_lock(&device->lock);
    give_back_locked(device, item);
    pthread_mutex_unlock(&device->lock);
}

dp_status_t dp_cuda_item_push(dp_stream_t *stream, cuda_item_t *item)
{
    cuda_device_t *device = stream->device;
    dp_status_t status = DP_CUDA(device, cudaEventRecord(item->reached, stream->native));

    if (status != DP_OK) return status;
    item->stream = stream;
    item->next = NULL;
    pthread_mutex_lock(&device->lock);
    *stream->completion->tail = item;
    stream->completion->tail = &item->next;
    stream->pending++;
    if (!stream->is_adopted) device->pending++;
    pthread_cond_broadcast(&device->change);
    pthread_mutex_unlock(&device->lock);
    return DP_OK;
}

dp_status_t dp_cuda_call(dp_stream_t *stream, dp_work_size_t size, dp_work_fn fn, void *argument)
{
    cuda_item_t *item;
    dp_status_t status;

    (void)size;
    status = dp_cuda_enter(stream->device);
    if (status == DP_OK) status = dp_cuda_item_alloc(stream->device, 0, &item);
    if (status != DP_OK) return status;
    item->kind = ITEM_CALL;
    item->fn = fn;
    item->argument = argument;
    status = dp_cuda_item_push(stream, item);
    if (status != DP_OK) dp_cuda_item_free(stream->device, item);
    return status;
}

/* ---- Stamps --------------------------------------------------------------------------------- */

/* When the new base was reached: between begin_ns and end_ns by the host's clock. Within those
 * bounds the device's own time since the old base decides, so stamps that count from either base
 * are in the order in which they were reached, however late a busy host saw the event. */
static uint64_t moment_of(const cuda_base_t *base, const cuda_base_t *old, uint64_t begin_ns,
                          uint64_t end_ns)
{
    uint64_t ns = begin_ns + (end_ns - begin_ns) / 2;
    float ms = 0.0f;

    if (old == NULL || old->ns == 0) return ns;
    if (cudaEventElapsedTime(&ms, old->event, base->event) != cudaSuccess) {
        (void)cudaGetLastError();
        return ns;
    }
    ns = old->ns + (uint64_t)(int64_t)((double)ms * 1e6);
    return dp_min(dp_max(ns, begin_ns), end_ns);
}

/* Records an event on the idle clock stream and polls until it is reached. old: the base in use,
 * or NULL. The stream may share a queue of the hardware with one that waits for the program, so the
 * wait is bounded: a base that is not reached soon is tried again later. */
static dp_status_t mark_base(cuda_device_t *device, cuda_base_t *base, const cuda_base_t *old,
                             uint64_t patience_ns)
{
    for (int i = 0; i < BASE_TRIES; i++) {
        const uint64_t begin_ns = dp_now_ns();
        dp_status_t status = DP_CUDA(device, cudaEventRecord(base->event, device->clock));
        cudaError_t code = cudaErrorNotReady;
        uint64_t wait_ns = 0;

        while (status == DP_OK && code == cudaErrorNotReady && wait_ns <= patience_ns) {
            code = dp_cuda_query(base->event);
            wait_ns = dp_now_ns() - begin_ns;
        }
        base->ns = 0;
        if (status != DP_OK || code == cudaErrorNotReady) return status;
        status = DP_CUDA(device, code);
        if (status != DP_OK) return status;
        base->ns = moment_of(base, old, begin_ns, begin_ns + wait_ns);
        if (wait_ns < (uint64_t)BASE_PRECISION_NS << i) break; /* the event holds the last record */
    }
    return DP_OK;
}

dp_status_t dp_cuda_clock_start(cuda_device_t *device)
{
    return mark_base(device, &device->bases[0], NULL, 5000 * (uint64_t)BASE_PATIENCE_NS);
}

/* Chooses the base of a new stamp. Of two bases one is in use; the other is renewed each second,
 * once no stamp counts from it any more. Until that succeeds the old one stays in use. */
static dp_status_t choose_base(cuda_device_t *device, unsigned *index)
{
    const unsigned other = 1 - device->base_now;
    const uint64_t now_ns = dp_now_ns();
    const uint64_t since_ns = dp_max(device->bases[device->base_now].ns, device->base_tried_ns);
    dp_status_t status = DP_OK;
    int is_free;

    pthread_mutex_lock(&device->lock);
    is_free = device->bases[other].users == 0;
    pthread_mutex_unlock(&device->lock);
    if (is_free && now_ns - since_ns > BASE_LIFE_NS) {
        device->base_tried_ns = now_ns;
        status = mark_base(device, &device->bases[other], &device->bases[device->base_now],
                           BASE_PATIENCE_NS);
        if (device->bases[other].ns != 0) device->base_now = other;
    }
    *index = device->base_now;
    pthread_mutex_lock(&device->lock);
    if (status == DP_OK) device->bases[*index].users++;
    pthread_mutex_unlock(&device->lock);
    return status;
}

static dp_status_t push_stamp(dp_stream_t *stream, uint64_t *ns)
{
    cuda_device_t *device = stream->device;
    cuda_item_t *item;
    dp_status_t status = dp_cuda_enter(device);

    if (status == DP_OK) status = dp_cuda_item_alloc(device, 1, &item);
    if (status != DP_OK) return status;
    item->kind = ITEM_STAMP;
    item->ns = ns;
    pthread_mutex_lock(&device->base_lock);
    status = choose_base(device, &item->base);
    pthread_mutex_unlock(&device->base_lock);
    if (status == DP_OK) {
        status = dp_cuda_item_push(stream, item);
        if (status == DP_OK) return DP_OK;
        pthread_mutex_lock(&device->lock);
        device->bases[item->base].users--;
        pthread_mutex_unlock(&device->lock);
    }
    dp_cuda_item_free(device, item);
    return status;
}

/* A thread of the program may be capturing a graph on another stream: a query of ours would break
 * that off, unless the thread says that its calls are none of the graph's business. */
dp_status_t dp_cuda_stamp(dp_stream_t *stream, uint64_t *ns)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    dp_status_t status;

    if (!stream->is_adopted) return push_stamp(stream, ns);
    if (dp_cuda_is_capturing(stream->native)) return DP_ERR_UNSUPPORTED;
    status = DP_CUDA(stream->device, cudaThreadExchangeStreamCaptureMode(&mode));
    if (status != DP_OK) return status;
    status = push_stamp(stream, ns);
    (void)DP_CUDA(stream->device, cudaThreadExchangeStreamCaptureMode(&mode));
    return status;
}

static void deliver_stamp(cuda_device_t *device, const cuda_item_t *item)
{
    const cuda_base_t *base = &device->bases[item->base];
    float ms = 0.0f;

    if (base->ns != 0 && cudaEventElapsedTime(&ms, base->event, item->reached) == cudaSuccess) {
        *item->ns = base->ns + (uint64_t)(int64_t)((double)ms * 1e6);
    } else {
        (void)cudaGetLastError();
    }
    pthread_mutex_lock(&device->lock);
    device->bases[item->base].users--;
    pthread_mutex_unlock(&device->lock);
}

/* ---- The thread ----------------------------------------------------------------------------- */

static void deliver_tallies(cuda_device_t *device, cuda_batch_t *batch, int is_good)
{
    const dp_cuda_tally_t *tallies = (const dp_cuda_tally_t *)(const void *)batch->host;

    for (size_t i = 0; i < batch->tally_count && is_good; i++)
        dp_cuda_tally_read(&tallies[i], batch->targets[i]);
    pthread_mutex_lock(&device->lock);
    batch->is_busy = 0;
    pthread_mutex_unlock(&device->lock);
}

static void run_item(cuda_device_t *device, cuda_item_t *item)
{
    const int is_good = DP_CUDA(device, dp_cuda_await(device, item->reached)) == DP_OK;

    switch (item->kind) {
    case ITEM_CALL:
        item->fn(item->argument);
        break;
    case ITEM_TALLIES:
        deliver_tallies(device, item->batch, is_good);
        break;
    case ITEM_STAMP:
        deliver_stamp(device, item);
        break;
    }
}

static uint64_t thread_cpu_ns(void)
{
    struct timespec used;

    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used) != 0) return 0;
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static void *worker_main(void *argument)
{
    cuda_completion_t *completion = argument;
    cuda_device_t *device = completion->device;

    pthread_setname_np(pthread_self(), "dp completion");
    (void)dp_cuda_enter(device); /* what fails here fails again with the first item */
    pthread_mutex_lock(&device->lock);
    for (;;) {
        cuda_item_t *item = completion->head;
        dp_stream_t *stream;

        if (item == NULL && device->is_stopping) break;
        if (item == NULL) {
            pthread_cond_wait(&device->change, &device->lock);
            continue;
        }
        completion->head = item->next;
        if (completion->head == NULL) completion->tail = &completion->head;
        pthread_mutex_unlock(&device->lock);
        stream = item->stream;
        run_item(device, item);
        atomic_store_explicit(&completion->final_cpu_ns, thread_cpu_ns(), memory_order_relaxed);
        pthread_mutex_lock(&device->lock);
        give_back_locked(device, item);
        if (!stream->is_adopted) device->pending--;
        stream->pending--;
        pthread_cond_broadcast(&device->change);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

void dp_cuda_completion_drain(dp_device_t *self)
{
    cuda_device_t *device = dp_cuda_of(self);

    pthread_mutex_lock(&device->lock);
    while (device->pending > 0)
        pthread_cond_wait(&device->change, &device->lock);
    pthread_mutex_unlock(&device->lock);
}

uint64_t dp_cuda_completion_cpu_ns(cuda_device_t *device)
{
    uint64_t sum_ns = 0;

    for (int i = 0; i < CUDA_COMPLETIONS; i++) {
        sum_ns += atomic_load_explicit(&device->completions[i].final_cpu_ns, memory_order_relaxed);
    }
    return sum_ns;
}

void dp_cuda_completion_init(cuda_device_t *device)
{
    for (int i = 0; i < CUDA_COMPLETIONS; i++) {
        device->completions[i].device = device;
        device->completions[i].tail = &device->completions[i].head;
    }
}

dp_status_t dp_cuda_completion_start(cuda_completion_t *completion)
{
    const cuda_device_t *device = completion->device;
    const int code = dp_thread_start(&completion->worker, worker_main, completion);

    if (code != 0) {
        dp_log_error(device->log, "completion thread: no thread: %s", strerror(code));
        return DP_ERR_SYSTEM;
    }
    completion->is_started = 1;
    return DP_OK;
}

dp_status_t dp_cuda_stream_branch(dp_stream_t *stream)
{
    cuda_completion_t *own = &stream->device->completions[stream->is_adopted ? 2 : 1];
    dp_status_t status = own->is_started ? DP_OK : dp_cuda_completion_start(own);

    if (status == DP_OK) stream->completion = own;
    return status;
}

static void free_items(cuda_item_t *item)
{
    while (item != NULL) {
        cuda_item_t *next = item->next;

        (void)cudaEventDestroy(item->reached);
        free(item);
        item = next;
    }
}

void dp_cuda_completion_stop(cuda_device_t *device)
{
    pthread_mutex_lock(&device->lock);
    device->is_stopping = 1;
    pthread_cond_broadcast(&device->change);
    pthread_mutex_unlock(&device->lock);
    for (int i = 0; i < CUDA_COMPLETIONS; i++)
        if (device->completions[i].is_started) pthread_join(device->completions[i].worker, NULL);
    free_items(device->spare);
    free_items(device->spare_timed);
}
