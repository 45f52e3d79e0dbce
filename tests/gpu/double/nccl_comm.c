/*
 * nccl_comm.c - the communicators of NCCL's double: made, asked, ended, broken.
 *
 * Calls that NCCL does not allow in the state a communicator is in end the program with words.
 */
#include "tests/gpu/double/nccl_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Operations of a communicator run one after the other, whatever streams they are on. */
static void follow(ncclComm_t comm, cudaStream_t stream)
{
    cudaEvent_t event;
    int back = 0;

    cudaGetDevice(&back); /* NCCL has threads of its own for this */
    cudaSetDevice(comm->device);
    if (comm->stream != NULL && comm->stream != stream) {
        if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess ||
            cudaEventRecord(event, comm->stream) != cudaSuccess ||
            cudaStreamWaitEvent(stream, event, 0) != cudaSuccess) {
            nccl_double_wrong("a launch failed");
        }
        cudaEventDestroy(event);
    }
    comm->stream = stream;
    cudaSetDevice(back);
}

ncclResult_t nccl_comm_launch(ncclComm_t comm)
{
    work_t *work = comm->pending;
    cudaStream_t stream = work->operations[0].stream;

    comm->pending = NULL;
    comm->running++;
    nccl_room_unlock(comm->room);
    follow(comm, stream);
    if (cudaLaunchHostFunc(stream, nccl_work_run, work) != cudaSuccess) {
        nccl_double_wrong("a launch failed");
    }
    nccl_room_lock(comm->room);
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    *id = nccl_room_make()->id;
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    ncclComm_t comm = calloc(1, sizeof(*comm));
    const char *host = getenv("NCCL_HOSTID");
    room_t *room;

    if (comm == NULL) nccl_double_wrong("no memory");
    if (cudaMalloc(&comm->memory, 4096) != cudaSuccess) {
        free(comm);
        return ncclUnhandledCudaError;
    }
    if (size > ranks_max || rank < 0 || rank >= size || config->blocking != 0) {
        nccl_double_wrong("a bad init");
    }
    comm->map = nccl_room_find(&id);
    comm->room = room = comm->map->room;
    comm->rank = rank;
    comm->size = size;
    comm->looks_left = looks;
    comm->never_ready = nccl_double_value(NCCL_FAULT_INIT) != 0;
    if (nccl_double_strikes(NCCL_FAULT_INIT_ERROR)) comm->error = ncclSystemError;
    nccl_room_lock(room);
    if (room->joined > 0 && room->size != size) {
        nccl_double_wrong("ranks disagree about the size of a communicator");
    }
    room->size = size;
    room->joined++;
    room->ranks[rank].pid = (int)getpid();
    cudaGetDevice(&comm->device);
    room->ranks[rank].device = comm->device;
    snprintf(room->ranks[rank].host, sizeof(room->ranks[rank].host), "%s",
             host != NULL ? host : "");
    nccl_room_wake(room);
    nccl_room_unlock(room);
    pthread_mutex_lock(&nccl_double.lock);
    comm->next = nccl_double.comms;
    nccl_double.comms = comm;
    pthread_mutex_unlock(&nccl_double.lock);
    *out = comm;
    return ncclInProgress;
}

/* Two processes on one GPU of one host, where the version and the environment do not allow it;
 * threads of a test may do as they like. Locked. */
static int has_twins(const room_t *room)
{
    int version;

    if (getenv("NCCL_MULTI_RANK_GPU_ENABLE") != NULL && ncclGetVersion(&version) == ncclSuccess &&
        version >= 23000)
        return 0;
    for (int i = 1; i < room->size; i++) {
        for (int k = 0; k < i; k++) {
            if (room->ranks[i].pid != room->ranks[k].pid &&
                room->ranks[i].device == room->ranks[k].device &&
                strcmp(room->ranks[i].host, room->ranks[k].host) == 0) {
                return 1;
            }
        }
    }
    return 0;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    nccl_room_lock(comm->room);
    *state = ncclInProgress;
    if (comm->error != ncclSuccess && comm->pending == NULL) {
        *state = comm->error;
    } else if (comm->looks_left > 0) {
        comm->looks_left--;
    } else if (comm->is_late) {
        *state = ncclInProgress;
    } else if (comm->pending != NULL) {
        if (!comm->is_connected || comm->room->connected == comm->size) {
            *state = nccl_comm_launch(comm);
        }
    } else if (comm->is_ready || (comm->room->joined == comm->size && !comm->never_ready)) {
        comm->is_ready = !has_twins(comm->room);
        *state = comm->is_ready ? ncclSuccess : ncclInvalidUsage;
    }
    nccl_room_unlock(comm->room);
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle)
{
    ncclResult_t result = ncclSuccess;

    (void)bytes;
    nccl_room_lock(comm->room);
    if (!comm->is_ready || comm->pending != NULL || comm->is_finalized) {
        nccl_double_wrong("a registration out of its time");
    }
    if (nccl_double_value(NCCL_FAULT_REGISTER) != 0) {
        result = ncclSystemError;
    } else {
        comm->registered++;
        *handle = memory;
    }
    nccl_room_unlock(comm->room);
    return result;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    nccl_room_lock(comm->room);
    if (handle == NULL || comm->registered-- == 0)
        nccl_double_wrong("a registration that is not there");
    nccl_room_unlock(comm->room);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    nccl_room_lock(comm->room);
    if (comm->is_finalized || comm->pending != NULL) {
        nccl_double_wrong("a finalize out of its time");
    }
    comm->is_finalized = 1;
    comm->looks_left = looks;
    nccl_room_unlock(comm->room);
    return ncclInProgress;
}

/* The room is locked, and may be gone afterwards. What NCCL has allocated goes first, whoever is at
 * work on the device. */
static void free_comm(ncclComm_t comm)
{
    room_t *room = comm->room;
    ncclComm_t *at = &nccl_double.comms;
    int is_over;

    nccl_room_unlock(room);
    cudaFree(comm->memory);
    nccl_room_lock(room);
    while (comm->running > 0)
        nccl_room_wait(room);
    if (comm->pending != NULL) {
        free(comm->pending->operations);
        free(comm->pending);
        room->is_broken = 1;
    }
    room->left++;
    is_over = room->joined == room->size || room->is_broken;
    nccl_room_unlock(room);
    pthread_mutex_lock(&nccl_double.lock);
    while (*at != comm)
        at = &(*at)->next;
    *at = comm->next;
    pthread_mutex_unlock(&nccl_double.lock);
    nccl_room_leave(comm->map, is_over);
    free(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    nccl_room_lock(comm->room);
    if (!comm->is_finalized || comm->running > 0) nccl_double_wrong("a destroy out of its time");
    if (comm->registered != 0) nccl_double_wrong("a communicator ends with registrations");
    free_comm(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    nccl_room_lock(comm->room);
    while (nccl_double_value(NCCL_FAULT_ABORT) != 0)
        nccl_room_wait(comm->room);
    comm->is_aborted = 1;
    comm->room->is_broken = 1;
    nccl_double_count(&nccl_double.aborted);
    nccl_room_wake(comm->room);
    free_comm(comm);
    return ncclSuccess;
}
