/*
 * exchange.c - gather, scatter, alltoall, allgatherv and send over NCCL: blocks from rank to
 * rank whose sizes only the senders know.
 *
 * Every rank writes a manifest: how much it can take, and how much it sends to which rank. All
 * manifests go to all ranks of the operation, on a stream of the engine's own, and the launch
 * thread waits for them. So all ranks compute from the same manifests whether everything fits,
 * before a byte is written. Then the blocks travel as one NCCL group of sends and receives. Waiting
 * in the launch thread is safe: manifests wait only for operations that were issued before.
 *
 *     manifests of an alltoallv of 3 ranks, [rank][word]     blocks of rank 1
 *       capacity  drops  to 0  to 1  to 2                 in:  [to 0][to 1][to 2]
 *       capacity  drops  to 0  to 1  to 2   <- rank 1     out: [from 0][from 1][from 2]
 *       capacity  drops  to 0  to 1  to 2
 */
#include "runtime/engine/nccl/nccl_internal.h"

#include <string.h>

/* Words of a manifest. Counts: one, or one per rank. */
enum { MANIFEST_CAPACITY, MANIFEST_DROPS, MANIFEST_COUNTS };

typedef struct exchange_run {
    dp_nccl_engine_t *engine;
    dp_nccl_issuing_t *issuing;
    const dp_nccl_task_t *task;
    dp_nccl_group_t *group;
    dp_engine_op_t *op;
    cudaStream_t stream;
    size_t elem_bytes;
    size_t manifest_words;
    dp_error_t *error;
} exchange_run_t;

/* ---- Senders and counts --------------------------------------------------------------------- */

static const uint64_t *manifest_of(const exchange_run_t *run, int rank)
{
    return run->issuing->manifests.host + (size_t)rank * run->manifest_words;
}

/* Elements that rank `from` sends to rank `to`. */
static size_t count_of(const exchange_run_t *run, int from, int to)
{
    const uint64_t *counts = manifest_of(run, from) + MANIFEST_COUNTS;

    switch (run->op->collective) {
    case DP_COLLECTIVE_GATHER:
    case DP_COLLECTIVE_GATHERV:
        return to == run->op->root ? counts[0] : 0;
    case DP_COLLECTIVE_SCATTER:
        return from == run->op->root ? counts[0] : 0;
    case DP_COLLECTIVE_SCATTERV:
        return from == run->op->root ? counts[to] : 0;
    case DP_COLLECTIVE_SEND:
        return from == run->op->root && to == run->op->peer ? counts[0] : 0;
    case DP_COLLECTIVE_ALLTOALLV:
        return counts[to];
    default: /* alltoall, allgatherv */
        return counts[0];
    }
}

/* All receivers read one block. */
static int is_shared(const exchange_run_t *run)
{
    return run->op->collective == DP_COLLECTIVE_ALLGATHERV;
}

static int takes_part(const exchange_run_t *run, int rank)
{
    return run->op->collective != DP_COLLECTIVE_SEND || rank == run->op->root ||
           rank == run->op->peer;
}

static size_t total_for(const exchange_run_t *run, int rank)
{
    size_t total = 0;

    for (int from = 0; from < run->group->size; from++) {
        if (takes_part(run, from)) total = dp_add_saturating(total, count_of(run, from, rank));
    }
    return total;
}

/* ---- Manifests ------------------------------------------------------------------------------ */

static void write_manifest(exchange_run_t *run)
{
    const dp_engine_exchange_t *exchange = run->op->exchange;
    const dp_collective_t collective = run->op->collective;
    uint64_t *manifest =
        run->issuing->manifests.host + (size_t)run->group->rank * run->manifest_words;
    const int is_root = run->op->root == run->group->rank;
    const int sends =
        is_root || (collective != DP_COLLECTIVE_SCATTER && collective != DP_COLLECTIVE_SCATTERV &&
                    collective != DP_COLLECTIVE_SEND);

    manifest[MANIFEST_CAPACITY] = exchange->drops ? SIZE_MAX : exchange->capacity;
    manifest[MANIFEST_DROPS] = exchange->drops != 0;
    for (size_t i = MANIFEST_COUNTS; i < run->manifest_words; i++)
        manifest[i] = sends ? exchange->send_counts[i - MANIFEST_COUNTS] : 0;
}

/* A send and its receive concern two ranks; the others have no part in it and are not waited for.
 */
static ncclResult_t swap_manifests(exchange_run_t *run)
{
    const int self = run->group->rank;
    const int other = run->op->root == self ? run->op->peer : run->op->root;
    uint64_t *manifests = run->issuing->manifests.device;
    ncclComm_t comm = run->group->comm;
    ncclResult_t result;
    ncclResult_t end;

    if (run->op->collective != DP_COLLECTIVE_SEND) {
        return ncclAllGather(manifests + (size_t)self * run->manifest_words, manifests,
                             run->manifest_words, ncclUint64, comm, run->issuing->side);
    }
    result = ncclGroupStart();
    if (result != ncclSuccess) return result;
    result = ncclSend(manifests + (size_t)self * run->manifest_words, run->manifest_words,
                      ncclUint64, other, comm, run->issuing->side);
    if (result == ncclSuccess) {
        result = ncclRecv(manifests + (size_t)other * run->manifest_words, run->manifest_words,
                          ncclUint64, other, comm, run->issuing->side);
    }
    end = ncclGroupEnd();
    return result != ncclSuccess ? result : end;
}

/* Both are allocated before the old ones go, so a failure leaves the engine's as they were. */
static dp_status_t reserve_manifests(exchange_run_t *run)
{
    const size_t words = run->manifest_words * (size_t)run->group->size;
    void *manifests = NULL;
    void *device_manifests = NULL;
    dp_status_t status;

    if (words <= run->issuing->manifests.words) return DP_OK;
    status = DP_NCCL_CUDA(cudaMallocHost(&manifests, words * sizeof(uint64_t)), run->error);
    if (status == DP_OK) {
        status = DP_NCCL_CUDA(cudaMalloc(&device_manifests, words * sizeof(uint64_t)), run->error);
    }
    if (status != DP_OK) {
        if (manifests != NULL) cudaFreeHost(manifests);
        return status;
    }
    /* Operations that used them are over: they were waited for. More ranks than make_memory()
     * counts with are the only ones that free memory here. */
    cudaFreeHost(run->issuing->manifests.host);
    cudaFree(run->issuing->manifests.device);
    run->issuing->manifests.host = manifests;
    run->issuing->manifests.device = device_manifests;
    run->issuing->manifests.words = words;
    return DP_OK;
}

static dp_status_t learn_manifests(exchange_run_t *run)
{
    dp_nccl_engine_t *engine = run->engine;
    const size_t manifest_bytes = run->manifest_words * sizeof(uint64_t);
    const size_t at = (size_t)run->group->rank * run->manifest_words;
    dp_status_t status = reserve_manifests(run);

    if (status != DP_OK) return status;
    write_manifest(run);
    status = DP_NCCL_CUDA(cudaMemcpyAsync(run->issuing->manifests.device + at,
                                          run->issuing->manifests.host + at, manifest_bytes,
                                          cudaMemcpyHostToDevice, run->issuing->side),
                          run->error);
    if (status == DP_OK) status = DP_NCCL_CALL(run->group, swap_manifests(run), run->error);
    if (status == DP_OK) {
        status = DP_NCCL_CUDA(cudaMemcpyAsync(run->issuing->manifests.host,
                                              run->issuing->manifests.device,
                                              manifest_bytes * (size_t)run->group->size,
                                              cudaMemcpyDeviceToHost, run->issuing->side),
                              run->error);
    }
    if (status == DP_OK) {
        status = DP_NCCL_CUDA(cudaEventRecord(run->issuing->manifests.came, run->issuing->side),
                              run->error);
    }
    if (status != DP_OK) return status;
    return dp_nccl_await_event(engine, run->issuing->manifests.came, engine->limits.operation_ns,
                               run->task, run->error);
}

/* ---- Blocks --------------------------------------------------------------------------------- */

/* The lowest rank that cannot take what comes, in words that are the same everywhere. */
static void check_room(const exchange_run_t *run, dp_error_t *truncated)
{
    const dp_topology_t *topology = run->engine->topology;

    for (int rank = 0; rank < run->group->size; rank++) {
        const size_t total = takes_part(run, rank) ? total_for(run, rank) : 0;
        const int who = run->group->ranks[rank];

        if (total == 0 || total <= manifest_of(run, rank)[MANIFEST_CAPACITY]) continue;
        dp_error_set(truncated, DP_ERR_TRUNCATED, "rank %d (%s) can take %llu elements, %zu come%s",
                     who, topology->host_name[topology->node[who]],
                     (unsigned long long)manifest_of(run, rank)[MANIFEST_CAPACITY], total,
                     run->group->title);
        return;
    }
}

/* Also where it does not fit: the program learns how much room it needs. */
static void report_counts(const exchange_run_t *run)
{
    dp_engine_exchange_t *exchange = run->op->exchange;

    exchange->received = 0;
    for (int from = 0; from < run->group->size; from++) {
        const size_t count = takes_part(run, from) ? count_of(run, from, run->group->rank) : 0;

        exchange->received = dp_add_saturating(exchange->received, count);
        if (exchange->recv_counts != NULL) exchange->recv_counts[from] = count;
    }
}

/* Blocks between two ranks; what a receiver drops is not sent. The own one is left to copy_own().
 */
static ncclResult_t move_blocks(exchange_run_t *run)
{
    const dp_engine_exchange_t *exchange = run->op->exchange;
    const int self = run->group->rank;
    const char *in = exchange->in;
    char *out = exchange->out;
    ncclResult_t result = ncclGroupStart();
    ncclResult_t end;

    if (result != ncclSuccess) return result;
    for (int i = 0; result == ncclSuccess && i < run->group->size; i++) {
        size_t give = 0;
        size_t come = 0;

        if (takes_part(run, i) && takes_part(run, self)) {
            give = count_of(run, self, i) * run->elem_bytes;
            come = count_of(run, i, self) * run->elem_bytes;
        }
        if (i != self && give != 0 && !manifest_of(run, i)[MANIFEST_DROPS]) {
            result = ncclSend(in, give, ncclUint8, i, run->group->comm, run->stream);
        }
        if (i != self && come != 0 && !exchange->drops && result == ncclSuccess) {
            result = ncclRecv(out, come, ncclUint8, i, run->group->comm, run->stream);
        }
        if (!is_shared(run) && in != NULL) in += give;
        if (out != NULL) out += come;
    }
    end = ncclGroupEnd();
    return result != ncclSuccess ? result : end;
}

/* The block from this rank to itself: NCCL would accept it as a send and a receive, but a copy
 * costs less, and often nothing at all, where in and out are the same. */
static dp_status_t copy_own(exchange_run_t *run)
{
    const dp_engine_exchange_t *exchange = run->op->exchange;
    const int self = run->group->rank;
    const size_t bytes = count_of(run, self, self) * run->elem_bytes;
    const char *in = exchange->in;
    char *out = exchange->out;

    if (bytes == 0 || exchange->drops) return DP_OK;
    for (int i = 0; i < self; i++) {
        if (!is_shared(run)) in += count_of(run, self, i) * run->elem_bytes;
        out += count_of(run, i, self) * run->elem_bytes;
    }
    if (in == out) return DP_OK;
    return DP_NCCL_CUDA(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, run->stream),
                        run->error);
}

dp_status_t dp_nccl_issue_exchange(dp_nccl_task_t *task, cudaStream_t stream, dp_error_t *error)
{
    dp_nccl_group_t *group = task->group;
    const dp_collective_t collective = task->op->collective;
    const int is_alike =
        collective != DP_COLLECTIVE_SCATTERV && collective != DP_COLLECTIVE_ALLTOALLV;
    exchange_run_t run = {.engine = task->engine,
                          .issuing = dp_nccl_issuing_of(task->engine, task->op->lane),
                          .task = task,
                          .group = group,
                          .op = task->op,
                          .stream = stream,
                          .elem_bytes = dp_dtype_bytes(task->op->dtype),
                          /* one count where all blocks of a rank are alike */
                          .manifest_words = MANIFEST_COUNTS + (is_alike ? 1 : (size_t)group->size),
                          .error = error};
    dp_status_t status = learn_manifests(&run);

    if (status != DP_OK) return status;
    report_counts(&run);
    check_room(&run, &task->truncated);
    if (task->truncated.status != DP_OK) return DP_OK; /* on every rank: nothing is written */
    status = DP_NCCL_CALL(group, move_blocks(&run), error);
    return status == DP_OK && takes_part(&run, group->rank) ? copy_own(&run) : status;
}
