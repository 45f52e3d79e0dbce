/*
 * fake_engine.c - an engine for the pipeline's tests.
 *
 * The ranks of a group in a lane, or of a send, meet at a table of their own in the room, so that
 * neither groups nor lanes wait for each other. It must not know how the CPU engine moves anything.
 */
#include "kernels/convert.h"
#include "tests/unit/fake_engine.h"
#include "tests/unit/naive.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ranks_max = 8, tasks_max = 4096 };

/* Where the ranks of a group meet; guarded by the room's lock. */
typedef struct table {
    uint32_t uid;   /* of the group */
    int from, to;   /* of a send, ranks of the world; else -1; of the gather lane -2 */
    int references; /* groups of ranks that use it */
    int count;      /* who comes */
    int compresses; /* what the engines of all of them say */
    int ranks[ranks_max];
    dp_engine_op_t *ops[ranks_max]; /* of the operation under way */
    int arrived, left;
    uint64_t index; /* of the operation under way, from 1 */
    struct table *next;
} table_t;

struct fake_room {
    int ranks;
    pthread_mutex_t lock;
    pthread_cond_t change;
    /* guarded by lock */
    table_t *tables; /* the world's is never removed */
    int is_aborted;
    dp_status_t abort_status;
    char abort_text[DP_ERROR_TEXT_MAX];
    uint64_t fail_index;
    dp_status_t fail_status;
    const char *fail_text;
};

typedef struct fake_engine fake_engine_t;

/* A dp_engine_group_t of this engine. */
typedef struct fake_group {
    table_t *table;
} fake_group_t;

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
    fake_group_t world;
    _Atomic int refuses;
    fake_launch_fn launch; /* NULL: the device's call() */
    _Atomic uint64_t count, compressed, gathers;
    task_t tasks[tasks_max]; /* in turn; more are never in flight */
    _Atomic size_t next_task;
};

static fake_engine_t *fake_of(dp_engine_t *engine)
{
    return (fake_engine_t *)(void *)engine;
}

/* Not malloc(), which tests make fail: this memory is none of the pipeline's. */
static void *scratch(size_t bytes)
{
    void *memory = aligned_alloc(64, dp_align_up(bytes + 1, 64));

    if (memory == NULL) abort();
    return memory;
}

/* ---- Tables --------------------------------------------------------------------------------- */

/* The table of a group in a lane, or of a send between two of its ranks; made when first asked for.
 */
static table_t *find_table(fake_room_t *room, uint32_t uid, int from, int to, const int *ranks,
                           int count)
{
    table_t *table = room->tables;

    while (table != NULL && (table->uid != uid || table->from != from || table->to != to))
        table = table->next;
    if (table != NULL) return table;
    table = scratch(sizeof(*table));
    *table = (table_t){.uid = uid, .from = from, .to = to, .count = count};
    memcpy(table->ranks, ranks, (size_t)count * sizeof(*ranks));
    table->index = 1;
    table->next = room->tables;
    room->tables = table;
    return table;
}

static void remove_tables(fake_room_t *room, uint32_t uid)
{
    table_t **at = &room->tables;

    while (*at != NULL) {
        table_t *table = *at;

        if (table->uid == uid) {
            *at = table->next;
            free(table);
        } else {
            at = &table->next;
        }
    }
}

static int place_of(const table_t *table, int rank)
{
    int place = 0;

    while (place < table->count && table->ranks[place] != rank)
        place++;
    if (place == table->count) abort(); /* a rank that is not in the group */
    return place;
}

fake_room_t *fake_room_create(int ranks)
{
    static const int all[ranks_max] = {0, 1, 2, 3, 4, 5, 6, 7};
    fake_room_t *room = calloc(1, sizeof(*room));

    room->ranks = ranks;
    pthread_mutex_init(&room->lock, NULL);
    pthread_cond_init(&room->change, NULL);
    find_table(room, 0, -1, -1, all, ranks);
    return room;
}

void fake_room_destroy(fake_room_t *room)
{
    while (room->tables != NULL)
        remove_tables(room, room->tables->uid);
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

uint64_t fake_engine_gathers(const dp_engine_t *engine)
{
    return atomic_load(&((const fake_engine_t *)(const void *)engine)->gathers);
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

        scaled = wire == DP_F16 ? dp_convert_f16_to_f32(dp_convert_f32_to_f16(scaled))
                                : dp_convert_bf16_to_f32(dp_convert_f32_to_bf16(scaled));
        row[i] = ldexpf(scaled, -piece->exponent) / (float)piece->prescale;
    }
}

/* Row `row` of a piece reduced over all ranks, into a buffer. */
static void reduce_row(const table_t *table, size_t p, size_t row, void *result, dp_tally_t *tally)
{
    const dp_engine_op_t *op = table->ops[0];
    const dp_engine_piece_t *piece = &op->pieces[p];
    size_t bytes = dp_dtype_bytes(op->dtype);
    void *in[ranks_max];
    void *out[1] = {result};
    dp_reduce_args_t args = {.dtype = op->dtype,
                             .reduce = op->reduce,
                             .in = (const void *const *)in,
                             .in_count = table->count,
                             .out = out,
                             .out_count = 1,
                             .count = piece->count,
                             .prescale = piece->prescale,
                             .postscale = piece->postscale,
                             .tally = tally};

    if (op->reduce == DP_AVERAGE && !dp_dtype_is_float(op->dtype)) {
        args.divisor = op->divisor != 0 ? op->divisor : table->count;
    }
    for (int rank = 0; rank < table->count; rank++) {
        const dp_engine_piece_t *own = &table->ops[rank]->pieces[p];

        in[rank] = scratch(own->count * bytes);
        memcpy(in[rank], (const char *)own->in + row * own->stride * bytes, own->count * bytes);
        if (op->wire != DP_WIRE_NONE) round_wire(op, piece, in[rank]);
    }
    dp_naive_reduce(&args);
    for (int rank = 0; rank < table->count; rank++)
        free(in[rank]);
}

/* Copies, unless there is no byte to move or no target. */
static void copy(void *to, const void *from, size_t bytes)
{
    if (to != NULL && bytes != 0) memmove(to, from, bytes);
}

/* Refuses rows that lie apart in a packed operation: an engine that does not cast reduces whole
 * rows. */
static void check_rows(const dp_engine_op_t *op, size_t p, int rank)
{
    const dp_engine_piece_t *piece = &op->pieces[p];
    const size_t row = (size_t)rank * piece->stride * dp_dtype_bytes(op->dtype);

    if (piece->stride == piece->count && !op->is_packed) return;
    if (op->is_packed && piece->stride == op->pieces[0].stride &&
        piece->out == (const char *)piece->in + row)
        return;
    fprintf(stderr, "piece %zu of a reduce_scatter is not a part of this rank's row\n", p);
    abort();
}

static void compute_piece(const table_t *table, size_t p)
{
    const dp_engine_op_t *op = table->ops[0];
    const dp_engine_piece_t *piece = &op->pieces[p];
    size_t bytes = piece->count * dp_dtype_bytes(op->dtype);
    size_t rows = op->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)table->count : 1;
    unsigned char *result = scratch(rows * bytes);
    dp_tally_t tally;

    dp_tally_init(&tally);
    if (op->collective == DP_COLLECTIVE_ALLREDUCE || op->collective == DP_COLLECTIVE_REDUCE ||
        op->collective == DP_COLLECTIVE_REDUCE_SCATTER) {
        for (size_t row = 0; row < rows; row++) {
            reduce_row(table, p, row, result + row * bytes, piece->tally != NULL ? &tally : NULL);
        }
    }
    for (int rank = 0; rank < table->count; rank++) {
        dp_engine_piece_t *own = &table->ops[rank]->pieces[p];

        if (own->tally != NULL) dp_tally_merge(own->tally, &tally);
        switch (op->collective) {
        case DP_COLLECTIVE_REDUCE:
            if (own->root != rank) break;
            copy(own->out, result, bytes);
            break;
        case DP_COLLECTIVE_ALLREDUCE:
            copy(own->out, result, bytes);
            break;
        case DP_COLLECTIVE_REDUCE_SCATTER:
            if (!table->compresses) check_rows(table->ops[rank], p, rank);
            copy(own->out, result + (size_t)rank * bytes, bytes);
            break;
        case DP_COLLECTIVE_BROADCAST:
            copy(own->out, table->ops[op->root]->pieces[p].in, bytes);
            break;
        case DP_COLLECTIVE_ALLGATHER:
            for (int from = 0; own->out != NULL && from < table->count; from++) {
                copy((char *)own->out + (size_t)from * own->stride * dp_dtype_bytes(op->dtype),
                     table->ops[from]->pieces[p].in, bytes);
            }
            break;
        default:
            break;
        }
    }
    free(result);
}

/* ---- Exchanges ------------------------------------------------------------------------------ */

/* The elements that `from` sends to `to`, places at the table, and where they begin in its input.
 */
static size_t block_of(const table_t *table, int from, int to, size_t *start)
{
    const dp_engine_op_t *op = table->ops[from];
    const size_t *counts = op->exchange->send_counts;
    size_t before = 0;
    int sender = op->root;
    int receiver = op->root;

    *start = 0;
    switch (op->collective) {
    case DP_COLLECTIVE_GATHER:
    case DP_COLLECTIVE_GATHERV:
        return to == receiver ? counts[0] : 0;
    case DP_COLLECTIVE_ALLGATHERV:
        return counts[0];
    case DP_COLLECTIVE_SEND: /* two at the table, in ascending order */
        return table->ranks[from] == table->from && from != to ? counts[0] : 0;
    case DP_COLLECTIVE_SCATTER:
    case DP_COLLECTIVE_SCATTERV:
        if (from != sender) return 0;
        break;
    default:
        break;
    }
    for (int i = 0; i < to; i++)
        before += counts[i];
    *start = before;
    return counts[to];
}

static size_t count_received(const table_t *table, int to)
{
    size_t total = 0;
    size_t start;

    for (int from = 0; from < table->count; from++)
        total += block_of(table, from, to, &start);
    return total;
}

static void exchange_for(const table_t *table, int to)
{
    dp_engine_op_t *op = table->ops[to];
    dp_engine_exchange_t *own = op->exchange;
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);
    size_t at = 0;

    own->received = count_received(table, to);
    if (own->recv_counts != NULL && op->collective == DP_COLLECTIVE_SEND) {
        own->recv_counts[op->root] = own->received;
    }
    for (int from = 0; from < table->count; from++) {
        size_t start;
        const size_t count = block_of(table, from, to, &start);

        if (own->recv_counts != NULL && op->collective != DP_COLLECTIVE_SEND) {
            own->recv_counts[from] = count;
        }
        if (op->status == DP_OK && !own->drops) {
            copy((char *)own->out + at * elem_bytes,
                 (const char *)table->ops[from]->exchange->in + start * elem_bytes,
                 count * elem_bytes);
        }
        at += count;
    }
}

static void compute_exchange(const table_t *table)
{
    int short_place = -1;

    for (int i = table->count - 1; i >= 0; i--) {
        const dp_engine_exchange_t *own = table->ops[i]->exchange;

        if (!own->drops && count_received(table, i) > own->capacity) short_place = i;
    }
    for (int i = 0; short_place >= 0 && i < table->count; i++) {
        table->ops[i]->status = DP_ERR_TRUNCATED;
        snprintf(table->ops[i]->text, sizeof(table->ops[i]->text),
                 "rank %d can take %zu elements, %zu come", table->ranks[short_place],
                 table->ops[short_place]->exchange->capacity, count_received(table, short_place));
    }
    for (int i = 0; i < table->count; i++)
        exchange_for(table, i);
}

/* ---- Running -------------------------------------------------------------------------------- */

static void finish_op(const fake_room_t *room, const table_t *table)
{
    const int fails = table->uid == 0 && table->from == -1 && table->index == room->fail_index;

    for (int i = 0; i < table->count; i++) {
        dp_engine_op_t *op = table->ops[i];

        op->status = DP_OK;
        op->text[0] = '\0';
        if (fails) {
            op->status = room->fail_status;
            snprintf(op->text, sizeof(op->text), "%s", room->fail_text);
        }
    }
    if (fails) return;
    for (size_t p = 0; p < table->ops[0]->piece_count; p++)
        compute_piece(table, p);
    if (table->ops[0]->exchange != NULL) compute_exchange(table);
}

/* Where the ranks of an operation meet. */
static table_t *table_of(fake_engine_t *fake, const dp_engine_op_t *op)
{
    const fake_group_t *group =
        op->group == NULL ? &fake->world : (const fake_group_t *)(const void *)op->group;
    int ranks[2];

    if (op->lane == DP_LANE_GATHER) {
        return find_table(fake->room, group->table->uid, -2, -2, group->table->ranks,
                          group->table->count);
    }
    if (op->collective != DP_COLLECTIVE_SEND) return group->table;
    ranks[0] = group->table->ranks[dp_min(op->root, op->peer)];
    ranks[1] = group->table->ranks[dp_max(op->root, op->peer)];
    return find_table(fake->room, group->table->uid, group->table->ranks[op->root],
                      group->table->ranks[op->peer], ranks, 2);
}

static void run_task(void *argument)
{
    task_t *task = argument;
    dp_engine_op_t *op = task->op;
    fake_room_t *room = task->engine->room;
    table_t *table;
    uint64_t index;

    op->begin_ns = dp_now_ns();
    pthread_mutex_lock(&room->lock);
    table = table_of(task->engine, op);
    while (table->left > 0 && !room->is_aborted)
        pthread_cond_wait(&room->change, &room->lock);
    index = table->index;
    if (!room->is_aborted) {
        table->ops[place_of(table, task->engine->rank)] = op;
        table->compresses = task->engine->ops.compresses;
        if (++table->arrived == table->count) {
            finish_op(room, table);
            table->arrived = 0;
            table->left = table->count;
            table->index++;
            pthread_cond_broadcast(&room->change);
        }
        while (table->index == index && !room->is_aborted) {
            pthread_cond_wait(&room->change, &room->lock);
        }
    }
    /* As an engine must: before the stream behind a failed operation moves on. */
    if ((table->index == index || op->status != DP_OK) && task->engine->device->ops->is_async) {
        task->engine->device->ops->abort(task->engine->device);
    }
    if (table->index != index) {
        if (--table->left == 0) pthread_cond_broadcast(&room->change);
    } else {
        op->status = room->abort_status;
        snprintf(op->text, sizeof(op->text), "engine: %.400s", room->abort_text);
    }
    pthread_mutex_unlock(&room->lock);
    op->end_ns = dp_now_ns();
    op->wire_bytes = 10;
    op->last_rank = -1;
    atomic_fetch_add(&task->engine->count, 1);
    if (op->wire != DP_WIRE_NONE) atomic_fetch_add(&task->engine->compressed, 1);
    if (op->lane == DP_LANE_GATHER) atomic_fetch_add(&task->engine->gathers, 1);
}

/* ---- Groups --------------------------------------------------------------------------------- */

static dp_status_t fake_group_create(dp_engine_t *self, const dp_engine_members_t *members,
                                     dp_engine_group_t **group, dp_error_t *error)
{
    fake_engine_t *fake = fake_of(self);
    fake_group_t *made = calloc(1, sizeof(*made));

    if (made == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    pthread_mutex_lock(&fake->room->lock);
    made->table = find_table(fake->room, members->uid, -1, -1, members->ranks, members->count);
    made->table->references++;
    pthread_mutex_unlock(&fake->room->lock);
    *group = (dp_engine_group_t *)(void *)made;
    return DP_OK;
}

static void fake_group_destroy(dp_engine_t *self, dp_engine_group_t *group)
{
    fake_engine_t *fake = fake_of(self);
    fake_group_t *gone = (fake_group_t *)(void *)group;

    if (gone == NULL) return;
    pthread_mutex_lock(&fake->room->lock);
    if (--gone->table->references == 0) remove_tables(fake->room, gone->table->uid);
    pthread_mutex_unlock(&fake->room->lock);
    free(gone);
}

/* ---- The table of functions ----------------------------------------------------------------- */

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
    task_t *task;

    if (atomic_load(&fake->refuses)) return DP_ERR_SYSTEM;
    task = &fake->tasks[atomic_fetch_add(&fake->next_task, 1) % tasks_max];
    *task = (task_t){fake, op};
    if (fake->launch != NULL) return fake->launch(stream, run_task, task);
    return fake->device->ops->call(stream, size, run_task, task);
}

void fake_engine_set_launch(dp_engine_t *engine, fake_launch_fn launch)
{
    fake_of(engine)->launch = launch;
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
                                  .group_create = fake_group_create,
                                  .group_destroy = fake_group_destroy,
                                  .enqueue = fake_enqueue,
                                  .abort = fake_abort,
                                  .destroy = fake_destroy};
    fake->base.ops = &fake->ops;
    fake->room = room;
    fake->device = device;
    fake->rank = rank;
    pthread_mutex_lock(&room->lock);
    fake->world.table = find_table(room, 0, -1, -1, &rank, 1); /* it is there */
    pthread_mutex_unlock(&room->lock);
    return &fake->base;
}
