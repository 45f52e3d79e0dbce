/*
 * host.c - the CPU as a device: a stream is a FIFO with a worker thread, an event a pair of
 * counters.
 *
 * Called by the data plane's threads. A stream's worker starts with the first work that cannot run
 * inline. A thread that waits polls for spin_ns at most and then sleeps on a futex; the thread that
 * wakes it makes a system call only if it sleeps. It must not know what the work is.
 *
 * The worker's sleep is Dekker's algorithm, all four accesses sequentially consistent:
 *
 *     worker:  is_asleep = 1,  then futex_wait(doorbell == seen)
 *     others:  doorbell + 1,   then reads is_asleep     (ring_doorbell)
 *
 * Either the others see is_asleep, or the futex sees the new doorbell and does not sleep.
 */
#include "runtime/device/device.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/limits.h"
#include "runtime/base/thread.h"

#define SLEEP_NS 1000000000u /* a sleep is checked again after this; wakes do not get lost */
#define POLLS 32             /* between two looks at the clock */
#define STOCK_ITEMS 16       /* of a new stream, so that few in flight allocate nothing */

typedef struct host_device host_device_t;

struct dp_event {
    dp_event_t *self;          /* for callers that hold it const */
    host_device_t *device;     /* borrowed */
    _Atomic uint32_t recorded; /* records so far; one recording thread at a time */
    _Atomic uint32_t reached;  /* 2 x the last record its stream passed, + 1 if a thread sleeps */
};

typedef enum item_kind { ITEM_CALL, ITEM_RECORD, ITEM_WAIT } item_kind_t;

typedef struct item {
    struct item *next;
    item_kind_t kind;
    dp_work_fn fn;
    void *argument;
    dp_event_t *event;
    uint32_t ticket; /* of the event's record */
} item_t;

struct dp_stream {
    host_device_t *device; /* borrowed */
    char name[16];
    pthread_mutex_t lock;
    /* guarded by lock */
    item_t *head, **tail;
    item_t *spare;  /* items to use again: no allocation in steady state */
    int is_running; /* an item is being worked on, by the worker or inline */
    int is_started;
    pthread_t worker;
    dp_stream_t *next; /* guarded by the device's lock */
    /* the worker's sleep */
    _Atomic uint32_t doorbell; /* a futex; one more with every item and the stop */
    _Atomic uint32_t is_asleep;
    _Atomic int is_stopping;
    _Atomic uint64_t final_cpu_ns; /* set when the worker ends */
};

struct host_device {
    dp_device_t base;
    const dp_log_t *log; /* borrowed */
    uint64_t spin_ns;
    pthread_mutex_t lock;
    dp_stream_t *streams;     /* guarded by lock */
    uint64_t finished_cpu_ns; /* guarded by lock; of workers that are gone */
};

static host_device_t *host_of(dp_device_t *device)
{
    return (host_device_t *)(void *)device;
}

/* ---- Events --------------------------------------------------------------------------------- */

/* Whether the stream has not passed the record with this ticket yet. Both wrap, so by difference.
 */
static int is_behind(uint32_t word, uint32_t ticket)
{
    return (int32_t)((word & ~1u) - (ticket << 1)) < 0;
}

static int is_reached(const dp_event_t *event, uint32_t ticket)
{
    /* pairs with the exchange in event_reach(): what the stream did before is seen */
    return !is_behind(atomic_load_explicit(&event->reached, memory_order_acquire), ticket);
}

/* A single access to the event: a waiter that sees the new value may destroy it at once. acq_rel:
 * the waiter sees what the stream did before (release), and the flag is taken with it. */
static void event_reach(dp_event_t *event, uint32_t ticket)
{
    _Atomic uint32_t *word = &event->reached;

    if (atomic_exchange_explicit(word, ticket << 1, memory_order_acq_rel) & 1u) {
        dp_futex_wake(word); /* by address: the event may be gone */
    }
}

/* 1: go on polling, as spin_ns have not passed since *start_ns (0: from now on). */
static int may_spin(uint64_t spin_ns, uint64_t *start_ns, unsigned *polls)
{
    if (spin_ns == 0) return 0;
    dp_spin_pause();
    if (++*polls % POLLS != 0) return 1;
    if (*start_ns == 0) *start_ns = dp_now_ns();
    return dp_now_ns() - *start_ns < spin_ns;
}

static void event_await(dp_event_t *event, uint32_t ticket)
{
    uint64_t start_ns = 0;
    unsigned polls = 0;

    for (;;) {
        uint32_t seen = atomic_load_explicit(&event->reached, memory_order_acquire);

        if (!is_behind(seen, ticket)) return;
        if (may_spin(event->device->spin_ns, &start_ns, &polls)) continue;
        if (!atomic_compare_exchange_strong(&event->reached, &seen, seen | 1u)) continue;
        dp_futex_wait(&event->reached, seen | 1u, SLEEP_NS);
    }
}

static dp_status_t host_event_create(dp_device_t *self, dp_event_t **out)
{
    dp_event_t *event = calloc(1, sizeof(*event));

    if (event == NULL) return DP_ERR_NO_MEMORY;
    event->self = event;
    event->device = host_of(self);
    *out = event;
    return DP_OK;
}

static void host_event_destroy(dp_event_t *event)
{
    free(event);
}

static int host_event_done(const dp_event_t *event)
{
    return is_reached(event, atomic_load_explicit(&event->recorded, memory_order_acquire));
}

static dp_status_t host_event_wait(const dp_event_t *event)
{
    event_await(event->self, atomic_load_explicit(&event->recorded, memory_order_acquire));
    return DP_OK;
}

/* ---- Streams -------------------------------------------------------------------------------- */

static void run_item(const item_t *item)
{
    switch (item->kind) {
    case ITEM_CALL:
        item->fn(item->argument);
        break;
    case ITEM_RECORD:
        event_reach(item->event, item->ticket);
        break;
    case ITEM_WAIT:
        event_await(item->event, item->ticket);
        break;
    }
}

/* Called without the lock, so that the worker does not wake only to wait for it. */
static void ring_doorbell(dp_stream_t *stream)
{
    atomic_fetch_add_explicit(&stream->doorbell, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&stream->is_asleep, memory_order_seq_cst) != 0) {
        dp_futex_wake(&stream->doorbell);
    }
}

/* The next item, which the caller must run and end; NULL: none, or another thread runs one. */
static item_t *begin_item(dp_stream_t *stream)
{
    item_t *item = NULL;

    pthread_mutex_lock(&stream->lock);
    if (!stream->is_running && stream->head != NULL) {
        item = stream->head;
        stream->head = item->next;
        if (stream->head == NULL) stream->tail = &stream->head;
        stream->is_running = 1;
    }
    pthread_mutex_unlock(&stream->lock);
    return item;
}

static void end_item(dp_stream_t *stream, item_t *item)
{
    pthread_mutex_lock(&stream->lock);
    item->next = stream->spare;
    stream->spare = item;
    stream->is_running = 0;
    pthread_mutex_unlock(&stream->lock);
}

static int has_work(dp_stream_t *stream)
{
    int has;

    pthread_mutex_lock(&stream->lock);
    has = stream->head != NULL || stream->is_running;
    pthread_mutex_unlock(&stream->lock);
    return has;
}

/* CPU time of the worker so far. After its end only final_cpu_ns tells. */
static uint64_t worker_cpu_ns(dp_stream_t *stream)
{
    const uint64_t final_ns = atomic_load_explicit(&stream->final_cpu_ns, memory_order_acquire);
    struct timespec used;
    clockid_t clock;

    if (final_ns != 0 || pthread_getcpuclockid(stream->worker, &clock) != 0) return final_ns;
    if (clock_gettime(clock, &used) != 0) return 0;
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static void *worker_main(void *argument)
{
    dp_stream_t *stream = argument;

    pthread_setname_np(pthread_self(), stream->name);
    for (;;) {
        const uint32_t seen = atomic_load_explicit(&stream->doorbell, memory_order_seq_cst);
        item_t *item = begin_item(stream);
        uint64_t start_ns = 0;
        unsigned polls = 0;

        if (item != NULL) {
            run_item(item);
            end_item(stream, item);
            continue;
        }
        if (atomic_load_explicit(&stream->is_stopping, memory_order_acquire) && !has_work(stream)) {
            break;
        }
        while (atomic_load_explicit(&stream->doorbell, memory_order_relaxed) == seen &&
               may_spin(stream->device->spin_ns, &start_ns, &polls)) {
        }
        atomic_store_explicit(&stream->is_asleep, 1, memory_order_seq_cst);
        dp_futex_wait(&stream->doorbell, seen, SLEEP_NS); /* not if it rang since */
        atomic_store_explicit(&stream->is_asleep, 0, memory_order_seq_cst);
    }
    atomic_store_explicit(&stream->final_cpu_ns, worker_cpu_ns(stream), memory_order_release);
    return NULL;
}

/* On any thread, also the program's. */
static dp_status_t start_worker(dp_stream_t *stream)
{
    const int code = dp_thread_start(&stream->worker, worker_main, stream);

    if (code != 0) {
        dp_log_error(stream->device->log, "stream %s: no thread: %s", stream->name,
                     dp_limits_describe_start(code));
        return DP_ERR_SYSTEM;
    }
    stream->is_started = 1;
    return DP_OK;
}

/* Appends a copy of the item, and starts the worker if there is none. The caller holds the lock; it
 * is released here. */
static dp_status_t append_and_unlock(dp_stream_t *stream, const item_t *model)
{
    dp_status_t status = stream->is_started ? DP_OK : start_worker(stream);
    item_t *item = stream->spare;

    if (status == DP_OK) {
        if (item != NULL) {
            stream->spare = item->next;
        } else {
            item = malloc(sizeof(*item));
            if (item == NULL) status = DP_ERR_NO_MEMORY;
        }
    }
    if (status == DP_OK) {
        *item = *model;
        item->next = NULL;
        *stream->tail = item;
        stream->tail = &item->next;
    }
    pthread_mutex_unlock(&stream->lock);
    if (status == DP_OK) ring_doorbell(stream);
    return status;
}

static int is_idle(const dp_stream_t *stream)
{
    return stream->head == NULL && !stream->is_running;
}

static dp_status_t host_call(dp_stream_t *stream, dp_work_size_t size, dp_work_fn fn,
                             void *argument)
{
    const item_t item = {.kind = ITEM_CALL, .fn = fn, .argument = argument};
    int has_waiting;

    pthread_mutex_lock(&stream->lock);
    if (size != DP_WORK_SMALL || !is_idle(stream)) return append_and_unlock(stream, &item);
    stream->is_running = 1; /* others queue behind us */
    pthread_mutex_unlock(&stream->lock);
    fn(argument);
    pthread_mutex_lock(&stream->lock);
    stream->is_running = 0;
    has_waiting = stream->head != NULL;
    pthread_mutex_unlock(&stream->lock);
    if (has_waiting) ring_doorbell(stream);
    return DP_OK;
}

static dp_status_t host_event_record(dp_event_t *event, dp_stream_t *stream)
{
    const uint32_t ticket = atomic_load_explicit(&event->recorded, memory_order_relaxed) + 1;
    const item_t item = {.kind = ITEM_RECORD, .event = event, .ticket = ticket};
    dp_status_t status;

    pthread_mutex_lock(&stream->lock);
    if (is_idle(stream)) {
        pthread_mutex_unlock(&stream->lock);
        atomic_store_explicit(&event->recorded, ticket, memory_order_release);
        event_reach(event, ticket);
        return DP_OK;
    }
    /* Before the item can be worked on: a wait on this event must mean this record. */
    atomic_store_explicit(&event->recorded, ticket, memory_order_release);
    status = append_and_unlock(stream, &item);
    if (status != DP_OK) {
        atomic_store_explicit(&event->recorded, ticket - 1, memory_order_release);
    }
    return status;
}

static dp_status_t host_stream_wait(dp_stream_t *stream, dp_event_t *event)
{
    const uint32_t ticket = atomic_load_explicit(&event->recorded, memory_order_acquire);
    const item_t item = {.kind = ITEM_WAIT, .event = event, .ticket = ticket};

    if (is_reached(event, ticket)) return DP_OK;
    pthread_mutex_lock(&stream->lock);
    return append_and_unlock(stream, &item);
}

static void host_stream_destroy(dp_stream_t *stream)
{
    host_device_t *device;
    dp_stream_t **link;

    if (stream == NULL) return;
    device = stream->device;
    if (stream->is_started) {
        atomic_store_explicit(&stream->is_stopping, 1, memory_order_release);
        ring_doorbell(stream);
        pthread_join(stream->worker, NULL);
    }
    pthread_mutex_lock(&device->lock);
    for (link = &device->streams; *link != stream;)
        link = &(*link)->next;
    *link = stream->next;
    device->finished_cpu_ns += atomic_load_explicit(&stream->final_cpu_ns, memory_order_relaxed);
    pthread_mutex_unlock(&device->lock);
    while (stream->spare != NULL) {
        item_t *item = stream->spare;

        stream->spare = item->next;
        free(item);
    }
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

/* Items that are given back late, as their thread was stopped behind the work, are not missed. */
static int stock(dp_stream_t *stream)
{
    for (int i = 0; i < STOCK_ITEMS; i++) {
        item_t *item = malloc(sizeof(*item));

        if (item == NULL) return 0;
        item->next = stream->spare;
        stream->spare = item;
    }
    return 1;
}

static dp_status_t host_stream_create(dp_device_t *self, const char *name, dp_stream_t **out)
{
    host_device_t *device = host_of(self);
    dp_stream_t *stream = calloc(1, sizeof(*stream));

    if (stream == NULL) return DP_ERR_NO_MEMORY;
    stream->device = device;
    stream->tail = &stream->head;
    snprintf(stream->name, sizeof(stream->name), "dp %.12s", name);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_mutex_lock(&device->lock);
    stream->next = device->streams;
    device->streams = stream;
    pthread_mutex_unlock(&device->lock);
    if (!stock(stream)) {
        host_stream_destroy(stream);
        return DP_ERR_NO_MEMORY;
    }
    *out = stream;
    return DP_OK;
}

/* ---- Device --------------------------------------------------------------------------------- */

static dp_status_t host_alloc(dp_device_t *self, size_t bytes, void **memory)
{
    void *data = NULL;

    (void)self;
    if (posix_memalign(&data, 4096, dp_max(bytes, (size_t)1)) != 0) return DP_ERR_NO_MEMORY;
    memset(data, 0, bytes);
    *memory = data;
    return DP_OK;
}

static void host_free(dp_device_t *self, void *memory)
{
    (void)self;
    free(memory);
}

static uint64_t host_cpu_ns(const dp_device_t *self)
{
    const host_device_t *device = (const host_device_t *)(const void *)self;
    pthread_mutex_t *lock = &((host_device_t *)(uintptr_t)device)->lock; /* no part of the value */
    uint64_t sum;

    pthread_mutex_lock(lock);
    sum = device->finished_cpu_ns;
    for (dp_stream_t *stream = device->streams; stream != NULL; stream = stream->next) {
        pthread_mutex_lock(&stream->lock);
        if (stream->is_started) sum += worker_cpu_ns(stream);
        pthread_mutex_unlock(&stream->lock);
    }
    pthread_mutex_unlock(lock);
    return sum;
}

static void host_destroy(dp_device_t *self)
{
    host_device_t *device = host_of(self);

    DP_ASSERT(device->streams == NULL);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static const dp_device_ops_t host_ops = {
    .name = "host",
    .alloc = host_alloc,
    .free = host_free,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_done = host_event_done,
    .event_wait = host_event_wait,
    .stream_wait = host_stream_wait,
    .call = host_call,
    .cpu_ns = host_cpu_ns,
    .destroy = host_destroy,
};

dp_status_t dp_device_host_create(uint64_t spin_ns, const dp_log_t *log, dp_device_t **out)
{
    host_device_t *device = calloc(1, sizeof(*device));

    if (device == NULL) return DP_ERR_NO_MEMORY;
    device->base.ops = &host_ops;
    device->log = log;
    device->spin_ns = spin_ns;
    pthread_mutex_init(&device->lock, NULL);
    *out = &device->base;
    return DP_OK;
}

void dp_device_destroy(dp_device_t *device)
{
    if (device != NULL) device->ops->destroy(device);
}
