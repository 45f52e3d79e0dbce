/*
 * fake_engine.c - an engine for the pipeline's tests.
 */
#include "tests/unit/fake_engine.h"
#include "kernels/naive.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ranks_max = 8, tasks_max = 4096 };

struct fake_room {
    int ranks;
    pthread_mutex_t lock;
    pthread_cond_t change;
    /* guarded by lock */
    dp_engine_op_t *ops[ranks_max]; /* of the operation under way */
    int arrived, left;
    uint64_t index; /* of the operation under way, from 1 */
    int is_aborted;
    dp_status_t abort_status;
    char abort_text[DP_ERROR_TEXT_MAX];
    uint64_t fail_index;
    dp_status_t fail_status;
    const char *fail_text;
};

typedef struct fake_engine fake_engine_t;

typedef struct task {
    fake_engine_t *engine;
    dp_engine_op_t *op;
} task_t;

struct fake_engine {
    dp_engine_t base;
    dp_engine_ops_t ops;
    fake_room_t *room;
    dp_device_t *device;
    int rank;
    _Atomic int refuses;
    _Atomic uint64_t count, compressed;
    task_t tasks[tasks_max]; /* in turn; more are never in flight */
    size_t next_task;
};

static fake_engine_t *fake_of(dp_engine_t *engine)
{
    return (fake_engine_t *)(void *)engine;
}

fake_room_t *fake_room_create(int ranks)
{
    fake_room_t *room = calloc(1, sizeof(*room));

    room->ranks = ranks;
    room->index = 1;
    pthread_mutex_init(&room->lock, NULL);
    pthread_cond_init(&room->change, NULL);
    return room;
}

void fake_room_destroy(fake_room_t *room)
{
    pthread_mutex_destroy(&room->lock);
    pthread_cond_destroy(&room->change);
    free(room);
}

void fake_room_fail(fake_room_t *room, uint64_t index, dp_status_t status, const char *text)
{
    room->fail_index = index;
    room->fail_status = status;
    room->fail_text = text;
}

void fake_engine_refuse(dp_engine_t *engine)
{
    atomic_store(&fake_of(engine)->refuses, 1);
}

uint64_t fake_engine_count(const dp_engine_t *engine, uint64_t *compressed)
{
    const fake_engine_t *fake = (const fake_engine_t *)(const void *)engine;

    if (compressed != NULL) *compressed = atomic_load(&fake->compressed);
    return atomic_load(&fake->count);
}

/* ---- The arithmetic ------------------------------------------------------------------------- */

/* An fp32 row as it comes out of the wire. */
static void round_wire(const dp_engine_op_t *op, const dp_engine_piece_t *piece, float *row)
{
    dp_dtype_t wire = op->wire == DP_WIRE_FP16 ? DP_F16 : DP_BF16;

    for (size_t i = 0; i < piece->count; i++) {
        float scaled = ldexpf(row[i] * (float)piece->prescale, piece->exponent);

        scaled = wire == DP_F16 ? dp_f16_to_f32(dp_f32_to_f16(scaled))
                                : dp_bf16_to_f32(dp_f32_to_bf16(scaled));
        row[i] = ldexpf(scaled, -piece->exponent) / (float)piece->prescale;
    }
}

/* Row `row` of a piece reduced over all ranks, into a buffer. */
static void reduce_row(fake_room_t *room, size_t p, size_t row, void *result, dp_tally_t *tally)
{
    const dp_engine_op_t *op = room->ops[0];
    const dp_engine_piece_t *piece = &op->pieces[p];
    size_t bytes = dp_dtype_bytes(op->dtype);
    void *in[ranks_max];
    void *out[1] = {result};
    int is_float = op->dtype >= DP_F16 && op->dtype <= DP_F64;
    dp_reduce_args_t args = {.dtype = op->dtype,
                             .reduce = op->reduce,
                             .in = (const void *const *)in,
                             .in_count = room->ranks,
                             .out = out,
                             .out_count = 1,
                             .count = piece->count,
                             .prescale = piece->prescale,
                             .postscale = piece->postscale,
                             .tally = tally};

    if (op->reduce == DP_AVERAGE && !is_float) args.divisor = room->ranks;
    for (int rank = 0; rank < room->ranks; rank++) {
        const dp_engine_piece_t *own = &room->ops[rank]->pieces[p];

        in[rank] = malloc(own->count * bytes + 1);
        memcpy(in[rank], (const char *)own->in + row * own->stride * bytes, own->count * bytes);
        if (op->wire != DP_WIRE_NONE) round_wire(op, piece, in[rank]);
    }
    dp_naive_reduce(&args);
    for (int rank = 0; rank < room->ranks; rank++)
        free(in[rank]);
}

static void compute_piece(fake_room_t *room, size_t p)
{
    const dp_engine_op_t *op = room->ops[0];
    const dp_engine_piece_t *piece = &op->pieces[p];
    size_t bytes = piece->count * dp_dtype_bytes(op->dtype);
    size_t rows = op->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)room->ranks : 1;
    unsigned char *result = malloc(rows * bytes + 1);
    dp_tally_t tally;

    dp_tally_init(&tally);
    if (op->collective == DP_COLLECTIVE_ALLREDUCE ||
        op->collective == DP_COLLECTIVE_REDUCE_SCATTER) {
        for (size_t row = 0; row < rows; row++) {
            reduce_row(room, p, row, result + row * bytes, piece->tally != NULL ? &tally : NULL);
        }
    }
    for (int rank = 0; rank < room->ranks; rank++) {
        dp_engine_piece_t *own = &room->ops[rank]->pieces[p];

        if (own->tally != NULL) dp_tally_merge(own->tally, &tally);
        switch (op->collective) {
        case DP_COLLECTIVE_ALLREDUCE:
            memcpy(own->out, result, bytes);
            break;
        case DP_COLLECTIVE_REDUCE_SCATTER:
            memcpy(own->out, result + (size_t)rank * bytes, bytes);
            break;
        case DP_COLLECTIVE_BROADCAST:
            memmove(own->out, room->ops[op->root]->pieces[p].in, bytes);
            break;
        case DP_COLLECTIVE_ALLGATHER:
            for (int from = 0; from < room->ranks; from++) {
                memmove((char *)own->out + (size_t)from * own->stride * dp_dtype_bytes(op->dtype),
                        room->ops[from]->pieces[p].in, bytes);
            }
            break;
        default:
            break;
        }
    }
    free(result);
}

/* ---- Running -------------------------------------------------------------------------------- */

static void finish_op(fake_room_t *room)
{
    for (int rank = 0; rank < room->ranks; rank++) {
        dp_engine_op_t *op = room->ops[rank];

        op->status = DP_OK;
        if (room->index == room->fail_index) {
            op->status = room->fail_status;
            snprintf(op->text, sizeof(op->text), "%s", room->fail_text);
        }
    }
    if (room->index == room->fail_index) return;
    for (size_t p = 0; p < room->ops[0]->piece_count; p++)
        compute_piece(room, p);
}

static void run_task(void *argument)
{
    task_t *task = argument;
    dp_engine_op_t *op = task->op;
    fake_room_t *room = task->engine->room;
    uint64_t index;

    op->begin_ns = dp_now_ns();
    pthread_mutex_lock(&room->lock);
    while (room->left > 0 && !room->is_aborted)
        pthread_cond_wait(&room->change, &room->lock);
    index = room->index;
    if (!room->is_aborted) {
        room->ops[task->engine->rank] = op;
        if (++room->arrived == room->ranks) {
            finish_op(room);
            room->arrived = 0;
            room->left = room->ranks;
            room->index++;
            pthread_cond_broadcast(&room->change);
        }
        while (room->index == index && !room->is_aborted) {
            pthread_cond_wait(&room->change, &room->lock);
        }
    }
    if (room->index != index) {
        if (--room->left == 0) pthread_cond_broadcast(&room->change);
    } else {
        op->status = room->abort_status;
        snprintf(op->text, sizeof(op->text), "engine: %.400s", room->abort_text);
    }
    pthread_mutex_unlock(&room->lock);
    op->end_ns = dp_now_ns();
    op->wire_bytes = 10;
    atomic_fetch_add(&task->engine->count, 1);
    if (op->wire != DP_WIRE_NONE) atomic_fetch_add(&task->engine->compressed, 1);
}

static dp_status_t fake_alloc(dp_engine_t *self, size_t bytes, void **memory)
{
    void *data = malloc(bytes + 1);

    (void)self;
    if (data == NULL) return DP_ERR_NO_MEMORY;
    memset(data, 0, bytes);
    *memory = data;
    return DP_OK;
}

static dp_status_t fake_free(dp_engine_t *self, void *memory)
{
    (void)self;
    free(memory);
    return DP_OK;
}

static int fake_owns(const dp_engine_t *self, const void *memory, size_t bytes)
{
    (void)self;
    (void)memory;
    (void)bytes;
    return 1;
}

static dp_status_t fake_enqueue(dp_engine_t *self, dp_stream_t *stream, dp_work_size_t size,
                                dp_engine_op_t *op)
{
    fake_engine_t *fake = fake_of(self);
    task_t *task = &fake->tasks[fake->next_task];

    if (atomic_load(&fake->refuses)) return DP_ERR_SYSTEM;
    fake->next_task = (fake->next_task + 1) % tasks_max;
    *task = (task_t){fake, op};
    return fake->device->ops->call(stream, size, run_task, task);
}

static void fake_abort(dp_engine_t *self, dp_status_t status, const char *text)
{
    fake_room_t *room = fake_of(self)->room;

    pthread_mutex_lock(&room->lock);
    if (!room->is_aborted) {
        room->is_aborted = 1;
        room->abort_status = status;
        snprintf(room->abort_text, sizeof(room->abort_text), "%s", text);
        pthread_cond_broadcast(&room->change);
    }
    pthread_mutex_unlock(&room->lock);
}

static void fake_destroy(dp_engine_t *self)
{
    free(fake_of(self));
}

dp_engine_t *fake_engine_create(fake_room_t *room, dp_device_t *device, int rank, int compresses)
{
    fake_engine_t *fake = calloc(1, sizeof(*fake));

    fake->ops = (dp_engine_ops_t){.name = "fake",
                                  .compresses = compresses,
                                  .alloc = fake_alloc,
                                  .free = fake_free,
                                  .owns = fake_owns,
                                  .enqueue = fake_enqueue,
                                  .abort = fake_abort,
                                  .destroy = fake_destroy};
    fake->base.ops = &fake->ops;
    fake->room = room;
    fake->device = device;
    fake->rank = rank;
    return &fake->base;
}
