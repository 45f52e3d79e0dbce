/*
 * nccl.c - NCCL over host memory and the CUDA runtime's double, for tests without a GPU: what tests
 * ask for, and the calls that move data.
 *
 * A group of calls becomes one piece of work on its stream. A group is in progress for a few looks
 * before it is issued, as a non-blocking communicator may be: whoever does not wait for that finds
 * its stream empty.
 */
#include "tests/gpu/double/nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/common.h"
#include "tests/gpu/double/cuda_runtime.h"

/* The header declares them without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

nccl_double_t nccl_double = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The calls between ncclGroupStart() and ncclGroupEnd(). */
static _Thread_local struct {
    int depth;
    ncclComm_t comm;
    operation_t *operations;
    size_t count;
} group;

_Noreturn void nccl_double_wrong(const char *what)
{
    fprintf(stderr, "nccl double: %s\n", what);
    abort();
}

int nccl_double_strikes(nccl_fault_t fault)
{
    int strikes;

    pthread_mutex_lock(&nccl_double.lock);
    strikes = nccl_double.faults[fault] > 0 && --nccl_double.faults[fault] == 0;
    pthread_mutex_unlock(&nccl_double.lock);
    return strikes;
}

int nccl_double_value(nccl_fault_t fault)
{
    int value;

    pthread_mutex_lock(&nccl_double.lock);
    value = nccl_double.faults[fault];
    pthread_mutex_unlock(&nccl_double.lock);
    return value;
}

void nccl_double_count(size_t *counter)
{
    pthread_mutex_lock(&nccl_double.lock);
    ++*counter;
    pthread_mutex_unlock(&nccl_double.lock);
}

/* ---- For tests ------------------------------------------------------------------------------ */

void nccl_double_reset(void)
{
    pthread_mutex_lock(&nccl_double.lock);
    memset(nccl_double.faults, 0, sizeof(nccl_double.faults));
    nccl_double.aborted = nccl_double.operations = 0;
    nccl_room_drop_unused();
    pthread_mutex_unlock(&nccl_double.lock);
}

void nccl_double_fault(nccl_fault_t fault, int value)
{
    pthread_mutex_lock(&nccl_double.lock);
    nccl_double.faults[fault] = value;
    pthread_mutex_unlock(&nccl_double.lock);
}

size_t nccl_double_live(void)
{
    size_t live;

    pthread_mutex_lock(&nccl_double.lock);
    live = nccl_double.memory;
    for (const map_t *at = nccl_double.maps; at != NULL; at = at->next)
        live += at->was_joined != 0;
    for (ncclComm_t at = nccl_double.comms; at != NULL; at = at->next)
        live++;
    pthread_mutex_unlock(&nccl_double.lock);
    return live;
}

static size_t read_counter(const size_t *counter)
{
    size_t value;

    pthread_mutex_lock(&nccl_double.lock);
    value = *counter;
    pthread_mutex_unlock(&nccl_double.lock);
    return value;
}

size_t nccl_double_operations(void)
{
    return read_counter(&nccl_double.operations);
}

size_t nccl_double_aborted(void)
{
    return read_counter(&nccl_double.aborted);
}

/* ---- Memory, versions, words ---------------------------------------------------------------- */

ncclResult_t ncclMemAlloc(void **memory, size_t bytes)
{
    if (cudaMalloc(memory, bytes) != cudaSuccess) return ncclUnhandledCudaError;
    nccl_double_count(&nccl_double.memory);
    return ncclSuccess;
}

/* Unlike cudaFree() it waits for nobody. */
ncclResult_t ncclMemFree(void *memory)
{
    if (!cuda_double_unmap(memory)) return ncclInvalidArgument;
    pthread_mutex_lock(&nccl_double.lock);
    nccl_double.memory--;
    pthread_mutex_unlock(&nccl_double.lock);
    return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version)
{
    const int wanted = nccl_double_value(NCCL_FAULT_VERSION);
    const char *text = getenv("DP_TEST_NCCL_VERSION"); /* for processes */

    *version = wanted != 0 ? wanted : text != NULL ? atoi(text) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[ncclNumResults] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "in progress"};

    return (unsigned)result < ncclNumResults ? texts[result] : "unknown";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}

/* ---- Calls ---------------------------------------------------------------------------------- */

static void settle_meetings(ncclComm_t comm, operation_t *operations, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        operation_t *operation = &operations[i];
        const int peer = operation->root;

        if (operation->kind == SEND) {
            operation->meeting =
                nccl_room_meeting(comm->room, 1, comm->rank, peer, comm->sent[peer]++);
        } else if (operation->kind == RECV) {
            operation->meeting =
                nccl_room_meeting(comm->room, 1, peer, comm->rank, comm->received[peer]++);
        } else {
            operation->meeting = nccl_room_meeting(comm->room, 0, 0, 0, comm->collectives++);
        }
    }
}

/* A first collective: the ranks of the communicator find each other now. Locked. */
static void connect(ncclComm_t comm, const work_t *work)
{
    const kind_t kind = work->operations[0].kind;

    if (comm->is_connected || kind == SEND || kind == RECV) return;
    comm->is_connected = 1;
    comm->room->connected++;
    nccl_room_wake(comm->room);
}

ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    work_t *work;
    ncclComm_t comm = group.comm;
    ncclResult_t result = ncclInProgress;

    if (--group.depth > 0 || group.count == 0) return ncclSuccess;
    work = calloc(1, sizeof(*work));
    if (work == NULL) nccl_double_wrong("no memory");
    *work = (work_t){.comm = comm, .operations = group.operations, .count = group.count};
    group.comm = NULL;
    group.operations = NULL;
    group.count = 0;
    nccl_room_lock(comm->room);
    if (comm->pending != NULL) nccl_double_wrong("a group while another is in progress");
    work->never_ends = nccl_double_strikes(NCCL_FAULT_HANG);
    if (nccl_double_strikes(NCCL_FAULT_ASYNC)) {
        work->never_ends = 1;
        comm->error = ncclRemoteError;
    }
    if (nccl_double_strikes(NCCL_FAULT_CALL)) {
        free(work->operations);
        free(work);
        result = ncclInvalidArgument;
    } else {
        settle_meetings(comm, work->operations, work->count);
        comm->pending = work;
        comm->looks_left = looks;
        connect(comm, work);
        if (nccl_double_strikes(NCCL_FAULT_LATE)) {
            comm->is_late = 1;
            (void)nccl_comm_launch(comm);
        }
    }
    nccl_room_unlock(comm->room);
    return result;
}

static ncclResult_t call(ncclComm_t comm, operation_t operation)
{
    ncclGroupStart();
    nccl_room_lock(comm->room);
    if (!comm->is_ready || comm->is_finalized) {
        nccl_double_wrong("a call out of its time");
    }
    nccl_room_unlock(comm->room);
    if (group.comm != NULL && group.comm != comm) nccl_double_wrong("two communicators in a group");
    if (group.operations == NULL) {
        group.operations = calloc(operations_max, sizeof(*group.operations));
        if (group.operations == NULL) nccl_double_wrong("no memory");
    }
    if (group.count == operations_max) nccl_double_wrong("too many calls in a group");
    if (group.count > 0 && group.operations[0].stream != operation.stream)
        nccl_double_wrong("two streams");
    nccl_double_count(&nccl_double.operations);
    group.comm = comm;
    group.operations[group.count++] = operation;
    return ncclGroupEnd();
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduce, ncclComm_t comm, cudaStream_t stream)
{
    return call(comm, (operation_t){.kind = ALL_REDUCE,
                                    .in = in,
                                    .out = out,
                                    .count = count,
                                    .type = type,
                                    .reduce = reduce,
                                    .root = 0,
                                    .stream = stream});
}

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                        ncclRedOp_t reduce, int root, ncclComm_t comm, cudaStream_t stream)
{
    return call(comm, (operation_t){.kind = REDUCE,
                                    .in = in,
                                    .out = out,
                                    .count = count,
                                    .type = type,
                                    .reduce = reduce,
                                    .root = root,
                                    .stream = stream});
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduce, ncclComm_t comm, cudaStream_t stream)
{
    return call(comm, (operation_t){.kind = REDUCE_SCATTER,
                                    .in = in,
                                    .out = out,
                                    .count = count,
                                    .type = type,
                                    .reduce = reduce,
                                    .root = 0,
                                    .stream = stream});
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call(comm, (operation_t){.kind = ALL_GATHER,
                                    .in = in,
                                    .out = out,
                                    .count = count,
                                    .type = type,
                                    .reduce = ncclSum,
                                    .root = 0,
                                    .stream = stream});
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call(comm, (operation_t){.kind = BROADCAST,
                                    .in = in,
                                    .out = out,
                                    .count = count,
                                    .type = type,
                                    .reduce = ncclSum,
                                    .root = root,
                                    .stream = stream});
}

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call(comm, (operation_t){.kind = SEND,
                                    .in = in,
                                    .out = NULL,
                                    .count = count,
                                    .type = type,
                                    .reduce = ncclSum,
                                    .root = peer,
                                    .stream = stream});
}

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call(comm, (operation_t){.kind = RECV,
                                    .in = NULL,
                                    .out = out,
                                    .count = count,
                                    .type = type,
                                    .reduce = ncclSum,
                                    .root = peer,
                                    .stream = stream});
}
