/*
 * emulated.c - the emulated engine: real memory and real copies, and a wire that is a pause.
 *
 * The one rank there is gets what it would from ranks that give nothing (zeros of a sum, ones of a
 * product): its own data, moved and scaled as if they had travelled. Packing, fused buffers,
 * streams and order are those of a real job. Everything it says of itself begins with EMULATED.
 *
 * Called through the engine's table, as engine.h says for every engine; DP_EMULATE_RANKS has
 * coordinator/api/context/device.c choose it.
 */
#include "runtime/engine/emulated/emulated.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPIN_NS 60000u /* the end of a pause is polled: a sleep may end late by so much */

typedef struct range {
    struct range *next;
    char *base;
    size_t bytes;
    int is_own;
} range_t;

typedef struct emulated_engine emulated_engine_t;

typedef struct task {
    struct task *next;
    emulated_engine_t *engine;
    dp_engine_op_t *op;
    uint64_t wire_ns;
    dp_error_t truncated;
} task_t;

/* A dp_engine_group_t of this engine: the rank itself. */
typedef struct group {
    struct group *next;
} group_t;

struct emulated_engine {
    dp_engine_t base;
    emulated_engine_t *self; /* for callers that hold it const */
    dp_device_t *device;
    dp_emulated_pace_t pace;
    dp_stream_t *zeroing; /* NULL on the host */
    const char *host;
    int ranks;
    uint64_t bandwidth, latency_ns;
    pthread_mutex_t lock;
    /* guarded by lock */
    range_t *ranges;
    task_t *spare_tasks;
    group_t *groups;
    int transfers;         /* under way on the host: one of each lane at most */
    double wire_ns;        /* a clock that runs slower while there are several */
    uint64_t wire_seen_ns; /* when it was set */
    int is_aborted;
    dp_status_t abort_status;
    char abort_text[DP_ERROR_TEXT_MAX];
};

static emulated_engine_t *emulated_of(dp_engine_t *engine)
{
    return (emulated_engine_t *)(void *)engine;
}

/* ---- The ring ------------------------------------------------------------------------------- */

uint64_t dp_emulated_ns(dp_collective_t collective, int ranks, uint64_t bytes, uint64_t bandwidth,
                        uint64_t latency_ns)
{
    const double n = (double)ranks;
    const double transfer = (double)bytes / (double)bandwidth * 1e9;
    const double latency = (double)latency_ns;

    if (ranks < 2) return 0;
    switch (collective) {
    case DP_COLLECTIVE_ALLREDUCE: /* a reduce_scatter and an allgather of 1/n each */
        return (uint64_t)(2.0 * (n - 1.0) * (latency + transfer / n));
    case DP_COLLECTIVE_BARRIER:
        return (uint64_t)(2.0 * (n - 1.0) * latency);
    case DP_COLLECTIVE_ALLGATHER:
    case DP_COLLECTIVE_ALLGATHERV:
    case DP_COLLECTIVE_REDUCE_SCATTER: /* a row each step */
        return (uint64_t)((n - 1.0) * (latency + transfer));
    case DP_COLLECTIVE_SEND:
        return (uint64_t)(latency + transfer);
    case DP_COLLECTIVE_ALLTOALL:
    case DP_COLLECTIVE_ALLTOALLV: /* all but its own block leaves */
        return (uint64_t)((n - 1.0) * (latency + transfer / n));
    default: /* a pipeline along the ring */
        return (uint64_t)((n - 1.0) * latency + transfer);
    }
}

static uint64_t payload_bytes(const dp_engine_op_t *op)
{
    uint64_t elements = 0;

    for (size_t i = 0; i < op->piece_count; i++)
        elements += op->pieces[i].count;
    if (op->exchange != NULL && op->exchange->send_counts != NULL) {
        elements = op->exchange->send_counts[0];
    }
    return elements * dp_dtype_bytes(op->dtype);
}

/* ---- Operations ----------------------------------------------------------------------------- */

static int is_reduction(const dp_engine_op_t *op)
{
    return op->collective == DP_COLLECTIVE_ALLREDUCE || op->collective == DP_COLLECTIVE_REDUCE ||
           op->collective == DP_COLLECTIVE_REDUCE_SCATTER;
}

static double scale_of(const dp_engine_op_t *op, const dp_engine_piece_t *piece)
{
    return is_reduction(op) && dp_dtype_is_float(op->dtype) ? piece->prescale * piece->postscale
                                                            : 1.0;
}

/* to = scale * from, or a copy. Equal types, so casts of integers are copies too. */
static dp_cast_piece_t cast_of(const dp_engine_op_t *op, const dp_engine_piece_t *piece)
{
    return (dp_cast_piece_t){
        .from = piece->in, .to = piece->out, .count = piece->count, .scale = scale_of(op, piece)};
}

static int moves(const dp_engine_op_t *op, const dp_engine_piece_t *piece)
{
    if (piece->count == 0 || piece->out == NULL || piece->in == NULL) return 0;
    return piece->in != piece->out || scale_of(op, piece) != 1.0;
}

/* Its own block of an exchange: 1 when there is one to copy. */
static int own_block(const dp_engine_op_t *op, dp_error_t *truncated, const char *host)
{
    dp_engine_exchange_t *exchange = op->exchange;
    const size_t count = exchange->send_counts != NULL ? exchange->send_counts[0] : 0;

    exchange->received = count;
    if (exchange->recv_counts != NULL) exchange->recv_counts[0] = count;
    if (exchange->drops) return 0;
    if (count > exchange->capacity) {
        dp_error_set(truncated, DP_ERR_TRUNCATED, "rank 0 (%s) can take %zu elements, %zu come",
                     host, exchange->capacity, count);
        return 0;
    }
    if (exchange->output != NULL) exchange->out = exchange->output(exchange->user, count);
    if (exchange->out == NULL && count > 0) {
        dp_error_set(truncated, DP_ERR_NO_MEMORY,
                     "rank 0 (%s): the program gave no memory for %zu elements", host, count);
        return 0;
    }
    return count != 0 && exchange->in != exchange->out;
}

static void end_task(task_t *task)
{
    emulated_engine_t *engine = task->engine;
    dp_engine_op_t *op = task->op;

    pthread_mutex_lock(&engine->lock);
    op->status = DP_OK;
    op->text[0] = '\0';
    if (engine->is_aborted) {
        op->status = engine->abort_status;
        memcpy(op->text, engine->abort_text, sizeof(op->text));
    } else if (task->truncated.status != DP_OK) {
        op->status = task->truncated.status;
        memcpy(op->text, task->truncated.text, sizeof(op->text));
    }
    task->next = engine->spare_tasks;
    engine->spare_tasks = task;
    pthread_mutex_unlock(&engine->lock);
}

/* ---- The wire, on the host ------------------------------------------------------------------ */

/* Transfers of the lanes share it: each one's clock runs at half speed while there are two. lock is
 * held. */
static void advance_wire(emulated_engine_t *engine)
{
    const uint64_t now_ns = dp_now_ns();

    if (engine->transfers > 0)
        engine->wire_ns += (double)(now_ns - engine->wire_seen_ns) / engine->transfers;
    engine->wire_seen_ns = now_ns;
}

/* The clock of the wire, from which a transfer counts. */
static double begin_transfer(emulated_engine_t *engine)
{
    double start_ns;

    pthread_mutex_lock(&engine->lock);
    advance_wire(engine);
    engine->transfers++;
    start_ns = engine->wire_ns;
    pthread_mutex_unlock(&engine->lock);
    return start_ns;
}

/* Waits until the wire's clock says end_ns: sleeps, then polls. An abort ends it within a slice. */
static void end_transfer(emulated_engine_t *engine, double end_ns)
{
    for (;;) {
        struct timespec pause = {0, 0};
        double left_ns;
        int transfers;

        pthread_mutex_lock(&engine->lock);
        advance_wire(engine);
        transfers = engine->transfers;
        left_ns = engine->is_aborted ? 0.0 : (end_ns - engine->wire_ns) * transfers;
        if (left_ns <= 0.0) engine->transfers--;
        pthread_mutex_unlock(&engine->lock);
        if (left_ns <= 0.0) return;
        if (left_ns <= SPIN_NS) continue;
        /* Shorter where the other one may end meanwhile. */
        pause.tv_nsec = (long)dp_min(left_ns - SPIN_NS, transfers > 1 ? 1e6 : 1e7);
        nanosleep(&pause, NULL);
    }
}

/* On the host, all of an operation. */
static void run_on_host(void *argument)
{
    task_t *task = argument;
    dp_engine_op_t *op = task->op;
    double start_ns;

    op->begin_ns = dp_now_ns(); /* first: a thread that loses its core here was not faster */
    start_ns = begin_transfer(task->engine);
    for (size_t i = 0; i < op->piece_count; i++) {
        const dp_cast_piece_t piece = cast_of(op, &op->pieces[i]);
        const dp_cast_args_t args = {
            .from = op->dtype, .to = op->dtype, .pieces = &piece, .piece_count = 1};

        if (moves(op, &op->pieces[i])) dp_kernel_cast(&args);
    }
    if (op->exchange != NULL && own_block(op, &task->truncated, task->engine->host)) {
        memmove(op->exchange->out, op->exchange->in,
                op->exchange->received * dp_dtype_bytes(op->dtype));
    }
    end_transfer(task->engine, start_ns + (double)task->wire_ns);
    op->end_ns = dp_now_ns();
    end_task(task);
}

static void finish_on_device(void *argument)
{
    task_t *task = argument;

    if (task->op->end_ns == 0) task->op->end_ns = dp_now_ns();
    if (task->op->begin_ns == 0) task->op->begin_ns = task->op->end_ns;
    end_task(task);
}

static dp_status_t issue_on_device(task_t *task, dp_stream_t *stream)
{
    const dp_device_ops_t *device = task->engine->device->ops;
    dp_engine_op_t *op = task->op;
    dp_status_t status = device->stamp(stream, &op->begin_ns);

    for (size_t i = 0; status == DP_OK && i < op->piece_count; i++) {
        const dp_cast_piece_t piece = cast_of(op, &op->pieces[i]);
        const dp_cast_args_t args = {
            .from = op->dtype, .to = op->dtype, .pieces = &piece, .piece_count = 1};

        if (moves(op, &op->pieces[i])) status = device->cast(stream, &args, NULL);
    }
    if (status == DP_OK && op->exchange != NULL &&
        own_block(op, &task->truncated, task->engine->host)) {
        status = device->copy(stream, op->exchange->out, op->exchange->in,
                              op->exchange->received * dp_dtype_bytes(op->dtype));
    }
    if (status == DP_OK && task->wire_ns != 0)
        status = task->engine->pace(stream, task->wire_ns, task->engine->device);
    if (status == DP_OK) status = device->stamp(stream, &op->end_ns);
    return status;
}

static void emulated_abort(dp_engine_t *self, dp_status_t status, const char *text)
{
    emulated_engine_t *engine = emulated_of(self);

    if (engine->device->ops->is_async) engine->device->ops->abort(engine->device);
    pthread_mutex_lock(&engine->lock);
    if (!engine->is_aborted) {
        engine->is_aborted = 1;
        engine->abort_status = status;
        snprintf(engine->abort_text, sizeof(engine->abort_text), "%s", text);
    }
    pthread_mutex_unlock(&engine->lock);
}

static dp_status_t emulated_enqueue(dp_engine_t *self, dp_stream_t *stream, dp_work_size_t size,
                                    dp_engine_op_t *op)
{
    emulated_engine_t *engine = emulated_of(self);
    const dp_device_ops_t *device = engine->device->ops;
    task_t *task;
    dp_status_t status;
    int is_aborted;

    pthread_mutex_lock(&engine->lock);
    task = engine->spare_tasks;
    if (task != NULL) engine->spare_tasks = task->next;
    is_aborted = engine->is_aborted;
    pthread_mutex_unlock(&engine->lock);
    if (task == NULL) task = malloc(sizeof(*task));
    if (task == NULL) return DP_ERR_NO_MEMORY;
    *task = (task_t){.engine = engine, .op = op};
    task->wire_ns = dp_emulated_ns(op->collective, engine->ranks, payload_bytes(op),
                                   engine->bandwidth, engine->latency_ns);
    op->begin_ns = op->end_ns = op->wait_ns = op->wire_bytes = 0;
    op->last_rank = -1;
    if (!device->is_async) {
        /* A pause is no work for the launch thread. */
        status = device->call(stream, DP_WORK_LARGE, run_on_host, task);
        if (status != DP_OK) free(task);
        return status;
    }
    status = is_aborted ? DP_OK : issue_on_device(task, stream);
    if (status != DP_OK) emulated_abort(self, status, "EMULATED wire: the device refuses work");
    status = device->call(stream, size, finish_on_device, task);
    if (status != DP_OK) free(task);
    return status;
}

/* ---- Memory --------------------------------------------------------------------------------- */

static dp_status_t zero(emulated_engine_t *engine, void *memory, size_t bytes)
{
    const dp_device_ops_t *device = engine->device->ops;
    dp_event_t *event;
    dp_status_t status;

    if (!device->is_async) {
        memset(memory, 0, bytes);
        return DP_OK;
    }
    status = device->event_create(engine->device, &event);
    if (status != DP_OK) return status;
    status = device->fill(engine->zeroing, DP_U8, DP_SUM, memory, bytes);
    if (status == DP_OK) status = device->event_record(event, engine->zeroing);
    if (status == DP_OK) status = device->event_wait(event);
    device->event_destroy(event);
    return status;
}

static dp_status_t add_range(emulated_engine_t *engine, void *memory, size_t bytes, int is_own)
{
    range_t *range = malloc(sizeof(*range));

    if (range == NULL) return DP_ERR_NO_MEMORY;
    *range = (range_t){.base = memory, .bytes = bytes, .is_own = is_own};
    pthread_mutex_lock(&engine->lock);
    range->next = engine->ranges;
    engine->ranges = range;
    pthread_mutex_unlock(&engine->lock);
    return DP_OK;
}

static dp_status_t emulated_alloc(dp_engine_t *self, size_t bytes, void **memory)
{
    emulated_engine_t *engine = emulated_of(self);
    const size_t room = dp_align_up(dp_max(bytes, 1), 4096);
    void *base = NULL;
    dp_status_t status;

    if (bytes > SIZE_MAX - 4096) return DP_ERR_NO_MEMORY;
    status = engine->device->ops->alloc(engine->device, room, &base);
    if (status != DP_OK) return status;
    status = zero(engine, base, room);
    if (status == DP_OK) status = add_range(engine, base, room, 1);
    if (status != DP_OK) {
        engine->device->ops->free(engine->device, base);
        return status;
    }
    *memory = base;
    return DP_OK;
}

static dp_status_t remove_range(emulated_engine_t *engine, const void *memory, int is_own)
{
    range_t **at = &engine->ranges;
    range_t *found;

    pthread_mutex_lock(&engine->lock);
    while (*at != NULL && ((*at)->base != memory || (*at)->is_own != is_own))
        at = &(*at)->next;
    found = *at;
    if (found != NULL) *at = found->next;
    pthread_mutex_unlock(&engine->lock);
    if (found == NULL) return DP_ERR_INVALID;
    if (is_own) engine->device->ops->free(engine->device, found->base);
    free(found);
    return DP_OK;
}

static dp_status_t emulated_free(dp_engine_t *self, void *memory)
{
    return memory == NULL ? DP_OK : remove_range(emulated_of(self), memory, 1);
}

static int emulated_owns(const dp_engine_t *self, const void *memory, size_t bytes)
{
    emulated_engine_t *engine = ((const emulated_engine_t *)(const void *)self)->self;
    const char *at = memory;
    int owns = 0;

    pthread_mutex_lock(&engine->lock);
    for (const range_t *range = engine->ranges; range != NULL && !owns; range = range->next) {
        owns = at >= range->base && bytes <= range->bytes &&
               (size_t)(at - range->base) <= range->bytes - bytes;
    }
    pthread_mutex_unlock(&engine->lock);
    return owns;
}

static dp_status_t emulated_adopt(dp_engine_t *self, void *memory, size_t bytes, dp_error_t *error)
{
    dp_status_t status = DP_ERR_INVALID;

    if (memory != NULL && bytes != 0) status = add_range(emulated_of(self), memory, bytes, 0);
    if (status == DP_OK) return DP_OK;
    return dp_error_set(error, status, "EMULATED wire: %zu bytes at %p cannot be registered", bytes,
                        memory);
}

static dp_status_t emulated_disown(dp_engine_t *self, void *memory)
{
    return remove_range(emulated_of(self), memory, 0);
}

/* ---- Life ----------------------------------------------------------------------------------- */

static dp_status_t emulated_group_create(dp_engine_t *self, const dp_engine_members_t *members,
                                         dp_engine_group_t **group, dp_error_t *error)
{
    emulated_engine_t *engine = emulated_of(self);
    group_t *made = calloc(1, sizeof(*made));

    if (made == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "EMULATED wire: no memory for group '%s'",
                            members->name);
    }
    pthread_mutex_lock(&engine->lock);
    made->next = engine->groups;
    engine->groups = made;
    pthread_mutex_unlock(&engine->lock);
    *group = (dp_engine_group_t *)(void *)made;
    return DP_OK;
}

static void emulated_group_destroy(dp_engine_t *self, dp_engine_group_t *group)
{
    emulated_engine_t *engine = emulated_of(self);
    group_t *ended = (group_t *)(void *)group;
    group_t **at = &engine->groups;

    if (group == NULL) return;
    pthread_mutex_lock(&engine->lock);
    while (*at != ended)
        at = &(*at)->next;
    *at = ended->next;
    pthread_mutex_unlock(&engine->lock);
    free(ended);
}

static void emulated_destroy(dp_engine_t *self)
{
    emulated_engine_t *engine = emulated_of(self);

    if (engine == NULL) return;
    while (engine->ranges != NULL)
        remove_range(engine, engine->ranges->base, engine->ranges->is_own);
    while (engine->groups != NULL)
        emulated_group_destroy(self, (dp_engine_group_t *)(void *)engine->groups);
    while (engine->spare_tasks != NULL) {
        task_t *task = engine->spare_tasks;

        engine->spare_tasks = task->next;
        free(task);
    }
    if (engine->zeroing != NULL) engine->device->ops->stream_destroy(engine->zeroing);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

static const dp_engine_ops_t emulated_ops = {
    .name = "EMULATED",
    .compresses = 0,
    .alloc = emulated_alloc,
    .free = emulated_free,
    .owns = emulated_owns,
    .adopt = emulated_adopt,
    .disown = emulated_disown,
    .group_create = emulated_group_create,
    .group_destroy = emulated_group_destroy,
    .enqueue = emulated_enqueue,
    .abort = emulated_abort,
    .destroy = emulated_destroy,
};

dp_status_t dp_engine_emulated_create(dp_bootstrap_t *bootstrap, dp_device_t *device,
                                      const dp_config_t *config, const dp_log_t *log,
                                      dp_trace_t *trace, dp_emulated_pace_t pace, dp_engine_t **out,
                                      dp_error_t *error)
{
    emulated_engine_t *engine;
    dp_trace_track_t *track;
    char text[96];
    dp_status_t status = DP_OK;

    if (bootstrap->size != 1) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "DP_EMULATE_RANKS is %d, but an EMULATED wire is for a world of one "
                            "and this one has %d ranks",
                            config->emulate_ranks, bootstrap->size);
    }
    engine = calloc(1, sizeof(*engine));
    if (engine == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "EMULATED wire: no memory");
    engine->base.ops = &emulated_ops;
    engine->self = engine;
    engine->device = device;
    engine->pace = pace;
    engine->host = "EMULATED";
    engine->ranks = config->emulate_ranks;
    engine->bandwidth = config->emulate_bandwidth;
    engine->latency_ns = config->emulate_latency_ns;
    pthread_mutex_init(&engine->lock, NULL);
    if (device->ops->is_async) {
        status = device->ops->stream_create(device, "zeroing", &engine->zeroing);
    }
    if (status != DP_OK) {
        emulated_destroy(&engine->base);
        return dp_error_set(error, status, "EMULATED wire: no stream");
    }
    snprintf(text, sizeof(text), "EMULATED wire of %d ranks, %.3g GB/s, %.3g us a step",
             engine->ranks, (double)engine->bandwidth / 1e9, (double)engine->latency_ns / 1e3);
    track = dp_trace_track(trace, "EMULATED wire", DP_TRACE_TRACK_STREAM);
    if (track != NULL) { /* a track of that name, beside all the figures */
        dp_trace_counter(track, dp_trace_name(trace, text), (uint64_t)engine->ranks);
    }
    dp_log_warn(log, "%s: no figure of this run is a network's", text);
    *out = &engine->base;
    return DP_OK;
}
