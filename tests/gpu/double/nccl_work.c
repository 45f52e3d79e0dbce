/*
 * nccl_work.c - a group of operations, once its stream has come to it.
 *
 * It puts copies of its inputs into the room, waits until the others' are there, computes, and
 * waits until all have done so: so ranks leave together, as those of a ring do. Sums are taken in
 * the order of the ranks, by the plain kernels.
 */
#include "tests/gpu/double/nccl_internal.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/naive.h"
#include "runtime/base/common.h"

/* ---- What an operation gives ---------------------------------------------------------------- */

static dp_dtype_t dtype_of(ncclDataType_t type)
{
    static const dp_dtype_t dtypes[] = {
        [ncclInt8] = DP_I8,      [ncclUint8] = DP_U8,    [ncclInt32] = DP_I32,
        [ncclUint32] = DP_U32,   [ncclInt64] = DP_I64,   [ncclUint64] = DP_U64,
        [ncclFloat16] = DP_F16,  [ncclFloat32] = DP_F32, [ncclFloat64] = DP_F64,
        [ncclBfloat16] = DP_BF16};

    if ((unsigned)type >= DP_ARRAY_LEN(dtypes)) nccl_double_wrong("a type it does not know");
    return dtypes[type];
}

static dp_reduce_t reduce_of(const operation_t *operation)
{
    const dp_dtype_t dtype = dtype_of(operation->type);
    const int is_float = dp_dtype_is_float(dtype);

    switch (operation->reduce) {
    case ncclSum:
        return DP_SUM;
    case ncclProd:
        return DP_PRODUCT;
    case ncclMin:
    case ncclMax:
        if (is_float) nccl_double_wrong("min and max of floats lose a NaN");
        return operation->reduce == ncclMin ? DP_MIN : DP_MAX;
    default:
        nccl_double_wrong("a reduction that averages");
    }
}

size_t nccl_operation_bytes(const operation_t *operation)
{
    return operation->count * dp_dtype_bytes(dtype_of(operation->type));
}

static const unsigned char *input_of(const ncclComm_t comm, const operation_t *operation, int place)
{
    return comm->map->heap + operation->meeting->posts[place].data;
}

/* Elements [count] from `at` of everybody's input. */
static void sum_up(const ncclComm_t comm, operation_t *operation, size_t at)
{
    const meeting_t *meeting = operation->meeting;
    const dp_dtype_t dtype = dtype_of(operation->type);
    const void *in[ranks_max];
    void *out = operation->result;
    const dp_reduce_args_t args = {.dtype = dtype,
                                   .reduce = reduce_of(operation),
                                   .in = in,
                                   .in_count = meeting->need,
                                   .out = &out,
                                   .out_count = 1,
                                   .count = operation->count,
                                   .prescale = 1.0,
                                   .postscale = 1.0};

    for (int i = 0; i < meeting->need; i++)
        in[i] = input_of(comm, operation, i) + at * dp_dtype_bytes(dtype);
    if (operation->count != 0) dp_naive_reduce(&args);
}

static void check_alike(const operation_t *operation)
{
    const meeting_t *meeting = operation->meeting;

    for (int i = 0; i < meeting->need; i++) {
        const post_t *other = &meeting->posts[i];

        if (other->count * dp_dtype_bytes(dtype_of(other->type)) !=
            nccl_operation_bytes(operation)) {
            nccl_double_wrong("ranks disagree about a size");
        }
        if (meeting->is_pair) continue;
        if (other->kind != operation->kind || other->type != operation->type ||
            other->reduce != operation->reduce || other->root != operation->root) {
            nccl_double_wrong("ranks disagree about an operation");
        }
    }
}

/* Into memory of its own: it goes out once all have come as far. */
static void compute(const ncclComm_t comm, operation_t *operation)
{
    const size_t bytes = nccl_operation_bytes(operation);
    size_t result = bytes;

    check_alike(operation);
    if (operation->kind == SEND) return;
    if (operation->kind == REDUCE && operation->root != comm->rank) return;
    if (operation->kind == ALL_GATHER) result = bytes * (size_t)comm->size;
    operation->result = malloc(result + 1);
    if (operation->result == NULL) nccl_double_wrong("no memory");
    operation->result_bytes = result;
    switch (operation->kind) {
    case ALL_REDUCE:
    case REDUCE:
        sum_up(comm, operation, 0);
        break;
    case REDUCE_SCATTER:
        sum_up(comm, operation, (size_t)comm->rank * operation->count);
        break;
    case ALL_GATHER:
        for (int i = 0; i < comm->size; i++) {
            memcpy(operation->result + (size_t)i * bytes, input_of(comm, operation, i), bytes);
        }
        break;
    case BROADCAST:
        memcpy(operation->result, input_of(comm, operation, operation->root), bytes);
        break;
    default:
        memcpy(operation->result, input_of(comm, operation, 0), bytes);
        break;
    }
}

/* ---- Meeting -------------------------------------------------------------------------------- */

static int place_of(const ncclComm_t comm, const operation_t *operation)
{
    if (!operation->meeting->is_pair) return comm->rank;
    return operation->kind == SEND ? 0 : 1;
}

/* The bytes of its input that the others may read. */
static size_t given_bytes(const ncclComm_t comm, const operation_t *operation)
{
    switch (operation->kind) {
    case RECV:
        return 0;
    case BROADCAST:
        return operation->root == comm->rank ? nccl_operation_bytes(operation) : 0;
    case REDUCE_SCATTER:
        return (size_t)comm->size * nccl_operation_bytes(operation);
    default:
        return nccl_operation_bytes(operation);
    }
}

/* Which operations belong together was settled when they were called. Locked, but for the copy. */
static void post(const ncclComm_t comm, const operation_t *operation)
{
    post_t *to = &operation->meeting->posts[place_of(comm, operation)];
    const size_t bytes = given_bytes(comm, operation);

    if (to->is_there) nccl_double_wrong("an operation was called twice");
    *to = (post_t){.is_there = 1,
                   .kind = operation->kind,
                   .type = operation->type,
                   .reduce = operation->reduce,
                   .root = operation->root,
                   .count = operation->count,
                   .data = nccl_room_take_bytes(comm->room, bytes)};
    nccl_room_unlock(comm->room);
    if (bytes != 0) memcpy(comm->map->heap + to->data, operation->in, bytes);
    nccl_room_lock(comm->room);
}

static int is_over(const ncclComm_t comm)
{
    return comm->is_aborted;
}

/* 1: done; 0: the communicator was stopped on the way. */
static int run_operations(work_t *work)
{
    const ncclComm_t comm = work->comm;
    room_t *room = comm->room;

    for (size_t i = 0; i < work->count; i++)
        post(comm, &work->operations[i]);
    for (size_t i = 0; i < work->count; i++)
        work->operations[i].meeting->arrived++;
    nccl_room_wake(room);
    for (size_t i = 0; i < work->count; i++) {
        meeting_t *meeting = work->operations[i].meeting;

        while (!is_over(comm) &&
               (meeting->arrived < meeting->need || room->is_broken || work->never_ends))
            nccl_room_wait(room);
        if (is_over(comm)) return 0;
        nccl_room_unlock(room);
        compute(comm, &work->operations[i]);
        nccl_room_lock(room);
        meeting->read++;
        nccl_room_wake(room);
    }
    for (size_t i = 0; i < work->count; i++) {
        const meeting_t *meeting = work->operations[i].meeting;

        while (!is_over(comm) && meeting->read < meeting->need)
            nccl_room_wait(room);
        if (meeting->read < meeting->need) return 0;
    }
    return 1;
}

static void leave(work_t *work, int is_done)
{
    map_t *map = work->comm->map;

    if (!is_done) map->room->is_broken = 1;
    for (size_t i = 0; i < work->count && is_done; i++) {
        meeting_t *meeting = work->operations[i].meeting;

        if (++meeting->left == meeting->need) nccl_room_end_meeting(map, meeting);
    }
}

void nccl_work_run(void *argument)
{
    work_t *work = argument;
    ncclComm_t comm = work->comm;
    room_t *room = comm->room;
    int is_done;

    nccl_room_lock(room);
    is_done = run_operations(work);
    leave(work, is_done);
    nccl_room_unlock(room);
    for (size_t i = 0; i < work->count; i++) {
        operation_t *operation = &work->operations[i];

        if (is_done && operation->result != NULL && operation->result_bytes != 0) {
            memcpy(operation->out, operation->result, operation->result_bytes);
        }
        free(operation->result);
    }
    free(work->operations);
    free(work);
    nccl_room_lock(room);
    comm->running--; /* it may be freed from here on */
    nccl_room_wake(room);
    nccl_room_unlock(room);
}
