/*
 * run.c - what each collective of pieces becomes in calls of NCCL. Called by the launch thread,
 * with the group's issue_lock held.
 *
 * Sums and products are NCCL's own, ring or tree. Types that NCCL lacks (16-bit integers, bool),
 * and operations that it computes otherwise than dp.h promises (in min and max of floats it loses a
 * NaN), are reduced by our kernel: each rank gets a section of everybody's data, reduces it in the
 * order of the ranks, and hands it on; as many bytes travel as in a ring. The method follows from
 * type and reduction alone, so all ranks choose the same. Scales that no cast could apply, and
 * divisors, are a pass of their own.
 */
#include "runtime/engine/nccl/nccl_internal.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda.h"

#define JOINED_GAP 256 /* bytes between pieces that are reduced as well: less than they cost */

typedef struct run {
    dp_nccl_engine_t *engine;
    dp_nccl_issuing_t *issuing;
    dp_nccl_group_t *group;
    const dp_engine_op_t *op;
    cudaStream_t stream;
    size_t elem_bytes;
    ncclDataType_t type;
    ncclRedOp_t reduce;
    dp_error_t *error;
    /* a section that changes hands; bytes */
    const char *give;
    char *take;
    size_t section, row, total; /* from one to the next, of one, of all */
    int root;
} nccl_run_t;

/* ---- Types ---------------------------------------------------------------------------------- */

/* 0: NCCL has none. */
static int find_type(dp_dtype_t dtype, ncclDataType_t *type)
{
    switch (dtype) {
    case DP_U8:
        *type = ncclUint8;
        return 1;
    case DP_I8:
        *type = ncclInt8;
        return 1;
    case DP_U32:
        *type = ncclUint32;
        return 1;
    case DP_I32:
        *type = ncclInt32;
        return 1;
    case DP_U64:
        *type = ncclUint64;
        return 1;
    case DP_I64:
        *type = ncclInt64;
        return 1;
    case DP_F16:
        *type = ncclFloat16;
        return 1;
    case DP_BF16:
        *type = ncclBfloat16;
        return 1;
    case DP_F32:
        *type = ncclFloat32;
        return 1;
    case DP_F64:
        *type = ncclFloat64;
        return 1;
    default:
        return 0;
    }
}

/* 1: NCCL reduces as promised. */
static int find_reduction(nccl_run_t *run)
{
    const dp_reduce_t reduce = run->op->reduce;

    if (!find_type(run->op->dtype, &run->type)) return 0;
    switch (reduce) {
    case DP_SUM:
    case DP_AVERAGE:
        run->reduce = ncclSum;
        return 1;
    case DP_PRODUCT:
        run->reduce = ncclProd;
        return 1;
    case DP_MIN:
        run->reduce = ncclMin;
        return !dp_dtype_is_float(run->op->dtype);
    case DP_MAX:
        run->reduce = ncclMax;
        return !dp_dtype_is_float(run->op->dtype);
    default:
        return 0;
    }
}

/* ---- Memory and passes ---------------------------------------------------------------------- */

/* Scratch memory, freed on the stream behind the operation (release_scratch()). Allocated in stream
 * order, so no call waits for the device. */
static dp_status_t take_scratch(nccl_run_t *run, size_t bytes, void **memory)
{
    dp_status_t status;

    if (run->issuing->scratch.count == run->issuing->scratch.room) {
        const size_t room = 2 * run->issuing->scratch.room + 8;
        void **grown = realloc(run->issuing->scratch.list, room * sizeof(*grown));

        if (grown == NULL) return dp_error_set(run->error, DP_ERR_NO_MEMORY, "no memory");
        run->issuing->scratch.list = grown;
        run->issuing->scratch.room = room;
    }
    bytes = dp_max(bytes, 1);
    status = DP_NCCL_CUDA(
        run->issuing->scratch.pool != NULL
            ? cudaMallocFromPoolAsync(memory, bytes, run->issuing->scratch.pool, run->stream)
            : cudaMallocAsync(memory, bytes, run->stream),
        run->error);
    if (status == DP_OK) run->issuing->scratch.list[run->issuing->scratch.count++] = *memory;
    return status;
}

static void release_scratch(nccl_run_t *run)
{
    while (run->issuing->scratch.count > 0)
        cudaFreeAsync(run->issuing->scratch.list[--run->issuing->scratch.count], run->stream);
}

/* Elements between integers' sum and average. */
static int64_t divisor_of(const nccl_run_t *run)
{
    if (run->op->reduce != DP_AVERAGE || dp_dtype_is_float(run->op->dtype)) return 1;
    return run->op->divisor != 0 ? run->op->divisor : run->group->size;
}

/* out = postscale * (in_0 op in_1 op ...) / divisor, as many at a time as the kernel takes.
 * Between, the result is in `partial`: out may be an input that is still to come. */
static dp_status_t combine_inputs(nccl_run_t *run, const void *const *in, int in_count,
                                  void *partial, void *out, size_t count, double postscale)
{
    const void *batch[DP_CUDA_REDUCE_MAX];
    int done = 0;

    if (count == 0) return DP_OK;
    while (done < in_count) {
        const int first = done == 0 ? 0 : 1;
        const int room = DP_CUDA_REDUCE_MAX - first;
        const int more = dp_min(room, in_count - done);
        const int is_last = done + more == in_count;
        void *to = is_last ? out : partial;
        const dp_reduce_args_t args = {.dtype = run->op->dtype,
                                       .reduce = run->op->reduce,
                                       .in = batch,
                                       .in_count = first + more,
                                       .out = &to,
                                       .out_count = 1,
                                       .count = count,
                                       .prescale = 1.0,
                                       .postscale = is_last ? postscale : 1.0,
                                       .divisor = is_last ? divisor_of(run) : 1};
        dp_status_t status;

        if (first != 0) batch[0] = partial;
        memcpy(batch + first, in + done, (size_t)more * sizeof(*in));
        status = DP_NCCL_CUDA(dp_cuda_reduce(&args, run->stream), run->error);
        if (status != DP_OK) return status;
        done += more;
    }
    return DP_OK;
}

/* to = scale * from; divides integers where `ends`. */
static dp_status_t scale_elements(nccl_run_t *run, const void *from, void *to, size_t count,
                                  double factor, int ends)
{
    const dp_reduce_args_t args = {.dtype = run->op->dtype,
                                   .reduce = DP_SUM,
                                   .in = &from,
                                   .in_count = 1,
                                   .out = &to,
                                   .out_count = 1,
                                   .count = count,
                                   .prescale = 1.0,
                                   .postscale = dp_dtype_is_float(run->op->dtype) ? factor : 1.0,
                                   .divisor = ends ? divisor_of(run) : 1};

    if (count == 0 || (args.postscale == 1.0 && args.divisor == 1 && from == to)) return DP_OK;
    return DP_NCCL_CUDA(dp_cuda_reduce(&args, run->stream), run->error);
}

/* Rows of `count` elements that a piece's input has: a reduce_scatter brings one for each rank. */
static size_t rows_of(const nccl_run_t *run)
{
    return run->op->collective == DP_COLLECTIVE_REDUCE_SCATTER ? (size_t)run->group->size : 1;
}

/* Where a piece is read: as it lies, or scaled elsewhere, row behind row. */
static dp_status_t prepare_source(nccl_run_t *run, const dp_engine_piece_t *piece,
                                  const void **source, size_t *stride)
{
    const char *in = piece->in;
    const size_t row_bytes = piece->count * run->elem_bytes;
    void *to = NULL;
    dp_status_t status = DP_OK;

    *source = piece->in;
    *stride = piece->stride;
    if (piece->prescale == 1.0 || !dp_dtype_is_float(run->op->dtype)) {
        return DP_OK;
    }
    status = take_scratch(run, rows_of(run) * row_bytes, &to);
    *source = to;
    *stride = piece->count;
    for (size_t row = 0; status == DP_OK && row < rows_of(run); row++) {
        status = scale_elements(run, in + row * piece->stride * run->elem_bytes,
                                (char *)to + row * row_bytes, piece->count, piece->prescale, 0);
    }
    return status;
}

/* ---- NCCL's reductions ---------------------------------------------------------------------- */

/* out may be unwanted, but NCCL writes it. */
static dp_status_t output_of(nccl_run_t *run, const dp_engine_piece_t *piece, size_t count,
                             void **out)
{
    *out = piece->out;
    return piece->out != NULL ? DP_OK : take_scratch(run, count * run->elem_bytes, out);
}

/* ncclReduceScatter() takes rows that lie one behind the other. Where those of a piece lie apart,
 * each is a reduce of its own to the rank that gets it. */
static ncclResult_t reduce_piece(nccl_run_t *run, const dp_engine_piece_t *piece,
                                 const void *source, size_t stride, void *out)
{
    const char *in = source;
    ncclComm_t comm = run->group->comm;
    ncclResult_t result = ncclSuccess;

    switch (run->op->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
        return ncclAllReduce(in, out, piece->count, run->type, run->reduce, comm, run->stream);
    case DP_COLLECTIVE_REDUCE:
        return ncclReduce(in, out, piece->count, run->type, run->reduce, piece->root, comm,
                          run->stream);
    default:
        break;
    }
    if (stride == piece->count) {
        return ncclReduceScatter(in, out, piece->count, run->type, run->reduce, comm, run->stream);
    }
    for (int row = 0; result == ncclSuccess && row < run->group->size; row++) {
        result = ncclReduce(in + (size_t)row * stride * run->elem_bytes, out, piece->count,
                            run->type, run->reduce, row, comm, run->stream);
    }
    return result;
}

/* Joins piece i and those behind it in a fused buffer into one call, as NCCL makes a ring per call.
 * Of a reduce_scatter the whole rows. Returns the last one joined. */
static size_t join_pieces(const nccl_run_t *run, size_t i, dp_engine_piece_t *joined)
{
    const dp_engine_piece_t *pieces = run->op->pieces;
    const char *begin = joined->in;

    if (run->op->is_packed && run->op->collective == DP_COLLECTIVE_REDUCE_SCATTER) {
        joined->count = joined->stride;
        return run->op->piece_count - 1;
    }
    if (!run->op->is_packed || joined->in != joined->out ||
        run->issuing->pieces.sources[i] != joined->in) {
        return i;
    }
    for (size_t next = i + 1; next < run->op->piece_count; next++) {
        const size_t gone = (size_t)((const char *)pieces[next].in - begin);

        if (pieces[next].count == 0) continue;
        if (pieces[next].in != pieces[next].out ||
            run->issuing->pieces.sources[next] != pieces[next].in ||
            (uintptr_t)pieces[next].in < (uintptr_t)begin + joined->count * run->elem_bytes ||
            gone > joined->count * run->elem_bytes + JOINED_GAP) {
            break;
        }
        joined->count = gone / run->elem_bytes + pieces[next].count;
        i = next;
    }
    return i;
}

/* Between ncclGroupStart() and ncclGroupEnd() NCCL only collects calls; the end launches them
 * together, as one kernel where it can. */
static ncclResult_t reduce_pieces(nccl_run_t *run)
{
    ncclResult_t result = ncclGroupStart();
    ncclResult_t end;

    if (result != ncclSuccess) return result;
    for (size_t i = 0; result == ncclSuccess && i < run->op->piece_count; i++) {
        dp_engine_piece_t piece = run->op->pieces[i];
        const size_t first = i;

        if (piece.count == 0) continue;
        i = join_pieces(run, i, &piece);
        result =
            reduce_piece(run, &piece, run->issuing->pieces.sources[first],
                         run->issuing->pieces.strides[first], run->issuing->pieces.outputs[first]);
    }
    end = ncclGroupEnd();
    return result != ncclSuccess ? result : end;
}

/* Does this rank get a result? */
static int ends_here(const nccl_run_t *run, const dp_engine_piece_t *piece)
{
    return run->op->collective != DP_COLLECTIVE_REDUCE || piece->root == run->group->rank;
}

/* Three passes, all in stream order: scale what a prescale asks for into scratch, one group of
 * NCCL's reductions, scale and divide the results where they lie. */
static dp_status_t run_reduction(nccl_run_t *run)
{
    const dp_engine_op_t *op = run->op;
    dp_status_t status = DP_OK;

    for (size_t i = 0; status == DP_OK && i < op->piece_count; i++) {
        const dp_engine_piece_t *piece = &op->pieces[i];

        if (piece->count == 0) continue;
        run->issuing->pieces.outputs[i] = NULL;
        status = prepare_source(run, piece, &run->issuing->pieces.sources[i],
                                &run->issuing->pieces.strides[i]);
        if (status == DP_OK && ends_here(run, piece)) {
            status = output_of(run, piece, piece->count, &run->issuing->pieces.outputs[i]);
        }
    }
    if (status == DP_OK) {
        status = DP_NCCL_CALL(run->group, reduce_pieces(run), run->error);
    }
    for (size_t i = 0; status == DP_OK && i < op->piece_count; i++) {
        const dp_engine_piece_t *piece = &op->pieces[i];

        if (piece->count == 0 || piece->out == NULL || !ends_here(run, piece)) continue;
        status = scale_elements(run, piece->out, piece->out, piece->count, piece->postscale, 1);
    }
    return status;
}

/* ---- Reductions by sections ----------------------------------------------------------------- */

/*
 * An allreduce of three ranks; each rank's data has sections 0, 1, 2:
 *
 *              rank 0     rank 1     rank 2
 *     give     0 1 2      0 1 2      0 1 2        its own data, where it lies
 *   swap_sections()
 *     take     . 0 0      1 . 1      2 2 .        the others' copies of its section; `.` is unused
 *   combine_received()
 *     out      0 - -      - 1 -      - - 2        reduced in the order of the ranks
 *   share_sections()
 *     out      0 1 2      0 1 2      0 1 2
 *
 * A reduce_scatter ends after the second step, and its sections are rows. All offsets are bytes.
 */

static size_t section_begin(const nccl_run_t *run, int rank)
{
    return dp_min((size_t)rank * run->section, run->total);
}

static size_t section_bytes(const nccl_run_t *run, int rank)
{
    return dp_min(run->row, run->total - section_begin(run, rank));
}

/* Each rank sends section i of its data to rank i, and receives its own section of all the others'
 * data, one behind the other in run->take. Its own part stays where it lies. */
static ncclResult_t swap_sections(nccl_run_t *run)
{
    const int self = run->group->rank;
    ncclComm_t comm = run->group->comm;
    ncclResult_t result = ncclGroupStart();
    ncclResult_t end;

    if (result != ncclSuccess) return result;
    for (int i = 0; result == ncclSuccess && i < run->group->size; i++) {
        const size_t theirs = section_bytes(run, i);
        const size_t mine = section_bytes(run, self);

        if (i == self) continue;
        if (theirs != 0) {
            result = ncclSend(run->give + section_begin(run, i), theirs, ncclUint8, i, comm,
                              run->stream);
        }
        if (result == ncclSuccess && mine != 0) {
            result = ncclRecv(run->take + (size_t)i * mine, mine, ncclUint8, i, comm, run->stream);
        }
    }
    end = ncclGroupEnd();
    return result != ncclSuccess ? result : end;
}

/* Each rank sends its reduced section to all others. */
static ncclResult_t share_sections(nccl_run_t *run)
{
    const int self = run->group->rank;
    ncclComm_t comm = run->group->comm;
    ncclResult_t result = ncclGroupStart();
    ncclResult_t end;

    if (result != ncclSuccess) return result;
    for (int i = 0; result == ncclSuccess && i < run->group->size; i++) {
        const size_t theirs = section_bytes(run, i);
        const size_t mine = section_bytes(run, self);

        if (i == self) continue;
        if (mine != 0) {
            result = ncclSend(run->take + section_begin(run, self), mine, ncclUint8, i, comm,
                              run->stream);
        }
        if (result == ncclSuccess && theirs != 0) {
            result = ncclRecv(run->take + section_begin(run, i), theirs, ncclUint8, i, comm,
                              run->stream);
        }
    }
    end = ncclGroupEnd();
    return result != ncclSuccess ? result : end;
}

/* Which part of a piece each rank reduces: an equal share, or its row. */
static void cut_sections(nccl_run_t *run, const dp_engine_piece_t *piece, size_t stride)
{
    const size_t size = (size_t)run->group->size;

    if (run->op->collective == DP_COLLECTIVE_ALLREDUCE) {
        run->section = run->row = (piece->count + size - 1) / size * run->elem_bytes;
        run->total = piece->count * run->elem_bytes;
    } else {
        run->section = stride * run->elem_bytes;
        run->row = piece->count * run->elem_bytes;
        run->total = size * run->section;
    }
}

/* All of a piece comes to its root. */
static ncclResult_t gather_piece(nccl_run_t *run)
{
    const int self = run->group->rank;
    ncclComm_t comm = run->group->comm;
    ncclResult_t result = ncclGroupStart();
    ncclResult_t end;

    if (result != ncclSuccess) return result;
    if (self != run->root) {
        result = ncclSend(run->give, run->total, ncclUint8, run->root, comm, run->stream);
    }
    for (int i = 0; self == run->root && result == ncclSuccess && i < run->group->size; i++) {
        if (i == self) continue;
        result = ncclRecv(run->take + (size_t)i * run->total, run->total, ncclUint8, i, comm,
                          run->stream);
    }
    end = ncclGroupEnd();
    return result != ncclSuccess ? result : end;
}

/* inputs[size]: what came, this rank's own where it lies. */
static dp_status_t combine_received(nccl_run_t *run, const dp_engine_piece_t *piece,
                                    const char *own, size_t bytes, void *out)
{
    const void **inputs = run->issuing->pieces.inputs;

    for (int i = 0; i < run->group->size; i++)
        inputs[i] = i == run->group->rank ? own : run->take + (size_t)i * bytes;
    /* The first one's place is read before it is written. */
    return combine_inputs(run, inputs, run->group->size, run->take, out, bytes / run->elem_bytes,
                          piece->postscale);
}

static dp_status_t reduce_to_root(nccl_run_t *run, const dp_engine_piece_t *piece,
                                  const void *source)
{
    void *memory = NULL;
    dp_status_t status = DP_OK;

    run->root = piece->root;
    run->total = piece->count * run->elem_bytes;
    run->give = source;
    if (run->root == run->group->rank) {
        status = take_scratch(run, run->total * (size_t)run->group->size, &memory);
    }
    run->take = memory;
    if (status == DP_OK) status = DP_NCCL_CALL(run->group, gather_piece(run), run->error);
    if (status != DP_OK || run->root != run->group->rank || piece->out == NULL) return status;
    return combine_received(run, piece, source, run->total, piece->out);
}

/* A rank that wants no result (out is NULL) still gives its sections: the others wait for them. */
static dp_status_t reduce_sections(nccl_run_t *run, const dp_engine_piece_t *piece,
                                   const void *source, size_t stride)
{
    const int self = run->group->rank;
    const int is_shared = run->op->collective == DP_COLLECTIVE_ALLREDUCE;
    void *memory = NULL;
    char *out = piece->out;
    size_t mine;
    dp_status_t status;

    cut_sections(run, piece, stride);
    mine = section_bytes(run, self);
    run->give = source;
    status = take_scratch(run, mine * (size_t)run->group->size, &memory);
    run->take = memory;
    if (status == DP_OK) status = DP_NCCL_CALL(run->group, swap_sections(run), run->error);
    if (status != DP_OK || out == NULL) return status;
    if (is_shared) out += section_begin(run, self);
    /* Sends of this rank's own data and the write to out are on one stream, so an allreduce in
     * place overwrites its input only when all of it has gone. */
    status = combine_received(run, piece, run->give + section_begin(run, self), mine, out);
    if (status != DP_OK || !is_shared) return status;
    run->take = piece->out;
    return DP_NCCL_CALL(run->group, share_sections(run), run->error);
}

static dp_status_t run_by_sections(nccl_run_t *run)
{
    dp_status_t status = DP_OK;

    for (size_t i = 0; status == DP_OK && i < run->op->piece_count; i++) {
        const dp_engine_piece_t *piece = &run->op->pieces[i];
        const void *source;
        size_t stride;

        if (piece->count == 0) continue;
        status = prepare_source(run, piece, &source, &stride);
        if (status != DP_OK) break;
        status = run->op->collective == DP_COLLECTIVE_REDUCE
                     ? reduce_to_root(run, piece, source)
                     : reduce_sections(run, piece, source, stride);
    }
    return status;
}

/* ---- Moves ---------------------------------------------------------------------------------- */

/* As bytes: no arithmetic is done, and so every type can travel. ncclAllGather() writes rows one
 * behind the other; rows that lie a stride apart are a broadcast each. */
static ncclResult_t gather_rows(nccl_run_t *run, const dp_engine_piece_t *piece, char *out,
                                size_t stride)
{
    const size_t bytes = piece->count * run->elem_bytes;
    ncclComm_t comm = run->group->comm;
    ncclResult_t result = ncclSuccess;

    if (stride == piece->count) {
        return ncclAllGather(piece->in, out, bytes, ncclUint8, comm, run->stream);
    }
    for (int row = 0; result == ncclSuccess && row < run->group->size; row++) {
        char *to = out + (size_t)row * stride * run->elem_bytes;

        result = ncclBroadcast(row == run->group->rank ? piece->in : to, to, bytes, ncclUint8, row,
                               comm, run->stream);
    }
    return result;
}

static ncclResult_t move_piece(nccl_run_t *run, const dp_engine_piece_t *piece, void *out)
{
    /* NCCL reads the send buffer on the root alone; elsewhere piece->in may be NULL. */
    const void *in = run->op->root == run->group->rank ? piece->in : out;

    if (run->op->collective == DP_COLLECTIVE_ALLGATHER) {
        return gather_rows(run, piece, out, piece->stride);
    }
    return ncclBroadcast(in, out, piece->count * run->elem_bytes, ncclUint8, run->op->root,
                         run->group->comm, run->stream);
}

static ncclResult_t move_pieces(nccl_run_t *run)
{
    ncclResult_t result = ncclGroupStart();
    ncclResult_t end;

    if (result != ncclSuccess) return result;
    for (size_t i = 0; result == ncclSuccess && i < run->op->piece_count; i++) {
        const dp_engine_piece_t *piece = &run->op->pieces[i];

        if (piece->count != 0) result = move_piece(run, piece, run->issuing->pieces.outputs[i]);
    }
    end = ncclGroupEnd();
    return result != ncclSuccess ? result : end;
}

static dp_status_t run_moves(nccl_run_t *run)
{
    const int gathers = run->op->collective == DP_COLLECTIVE_ALLGATHER;
    dp_status_t status = DP_OK;

    for (size_t i = 0; status == DP_OK && i < run->op->piece_count; i++) {
        const dp_engine_piece_t *piece = &run->op->pieces[i];
        const size_t rows = gathers ? (size_t)run->group->size * piece->stride : piece->count;

        if (piece->count != 0)
            status = output_of(run, piece, rows, &run->issuing->pieces.outputs[i]);
    }
    return status == DP_OK ? DP_NCCL_CALL(run->group, move_pieces(run), run->error) : status;
}

/* ---- All ------------------------------------------------------------------------------------ */

/* The arrays are the launch thread's and used again with each operation, so a steady state
 * allocates nothing. Their old contents are of no use: they are freed and not copied. */
static dp_status_t reserve_pieces(dp_nccl_issuing_t *issuing, size_t pieces, dp_error_t *error)
{
    const size_t room = dp_max(2 * issuing->pieces.room, pieces);

    if (pieces <= issuing->pieces.room) return DP_OK;
    free(issuing->pieces.sources);
    free(issuing->pieces.outputs);
    free(issuing->pieces.strides);
    issuing->pieces.sources = calloc(room, sizeof(*issuing->pieces.sources));
    issuing->pieces.outputs = calloc(room, sizeof(*issuing->pieces.outputs));
    issuing->pieces.strides = calloc(room, sizeof(*issuing->pieces.strides));
    issuing->pieces.room = room;
    if (issuing->pieces.sources != NULL && issuing->pieces.outputs != NULL &&
        issuing->pieces.strides != NULL)
        return DP_OK;
    issuing->pieces.room = 0;
    return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for %zu pieces", pieces);
}

dp_status_t dp_nccl_issue(dp_nccl_task_t *task, cudaStream_t stream, dp_error_t *error)
{
    dp_nccl_engine_t *engine = task->engine;
    nccl_run_t run = {.engine = engine,
                      .issuing = dp_nccl_issuing_of(engine, task->op->lane),
                      .group = task->group,
                      .op = task->op,
                      .stream = stream,
                      .elem_bytes = dp_dtype_bytes(task->op->dtype),
                      .error = error};
    dp_status_t status = reserve_pieces(run.issuing, task->op->piece_count, error);

    if (status != DP_OK) return status;
    switch (task->op->collective) {
    case DP_COLLECTIVE_BARRIER:
        return DP_NCCL_CALL(run.group,
                            ncclAllReduce(run.issuing->barrier, run.issuing->barrier, 1, ncclUint8,
                                          ncclSum, run.group->comm, stream),
                            error);
    case DP_COLLECTIVE_BROADCAST:
    case DP_COLLECTIVE_ALLGATHER:
        status = run_moves(&run);
        break;
    case DP_COLLECTIVE_ALLREDUCE:
    case DP_COLLECTIVE_REDUCE:
    case DP_COLLECTIVE_REDUCE_SCATTER:
        status = find_reduction(&run) ? run_reduction(&run) : run_by_sections(&run);
        break;
    default:
        status = dp_error_set(error, DP_ERR_UNSUPPORTED, "not an operation of pieces");
        break;
    }
    release_scratch(&run);
    return status;
}
