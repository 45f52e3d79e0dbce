/*
 * cases_operation.c - one operation of any kind, in any group, compared with a plain loop.
 *
 * Element i of what rank r gives is a small whole number that follows from i and r alone, so every
 * rank knows what it must find without asking.
 */
#include <stdlib.h>

#include "runtime/base/common.h"
#include "kernels/kernels.h"
#include "tests/ranks/cases_internal.h"

enum { GUARD = 64, GUARD_BYTE = 0x5a }; /* behind out: must stay as it was */

static const char *const kind_names[CASE_KINDS] = {
    [CASE_ALLREDUCE] = "allreduce",
    [CASE_REDUCE] = "reduce",
    [CASE_REDUCE_SCATTER] = "reduce_scatter",
    [CASE_REDUCE_SCATTERV] = "reduce_scatterv",
    [CASE_BROADCAST] = "broadcast",
    [CASE_ALLGATHER] = "allgather",
    [CASE_GATHER] = "gather",
    [CASE_SCATTER] = "scatter",
    [CASE_ALLTOALL] = "alltoall",
    [CASE_ALLGATHERV] = "allgatherv",
    [CASE_GATHERV] = "gatherv",
    [CASE_SCATTERV] = "scatterv",
    [CASE_ALLTOALLV] = "alltoallv",
};

const char *case_kind_name(int kind)
{
    return kind_names[kind];
}

int case_kind_reduces(int kind)
{
    return kind <= CASE_REDUCE_SCATTERV;
}

/* ---- Sizes ---------------------------------------------------------------------------------- */

/* A part of uneven operations: every third is empty. */
static size_t uneven(const case_op_t *op, int which)
{
    return (which + op->step) % 3 == 1 ? 0 : op->count + (size_t)which;
}

/* The elements that rank s has for rank r: in a reduction, those that r keeps. */
static size_t block(const case_op_t *op, int s, int r)
{
    switch (op->kind) {
    case CASE_REDUCE:
    case CASE_GATHER:
        return r == op->root ? op->count : 0;
    case CASE_BROADCAST:
    case CASE_SCATTER:
        return s == op->root ? op->count : 0;
    case CASE_ALLGATHERV:
        return uneven(op, s);
    case CASE_GATHERV:
        return r == op->root ? uneven(op, s) : 0;
    case CASE_SCATTERV:
        return s == op->root ? uneven(op, r) : 0;
    case CASE_ALLTOALLV:
        return uneven(op, s + 2 * r);
    case CASE_REDUCE_SCATTERV:
        return uneven(op, r);
    default:
        return op->count;
    }
}

/* Every rank gets another part of what one rank has. */
static int is_parted(int kind)
{
    return kind == CASE_REDUCE_SCATTER || kind == CASE_REDUCE_SCATTERV || kind == CASE_SCATTER ||
           kind == CASE_SCATTERV || kind == CASE_ALLTOALL || kind == CASE_ALLTOALLV;
}

/* Every rank finds a part of each rank's. */
static int is_collected(int kind)
{
    return kind == CASE_ALLGATHER || kind == CASE_GATHER || kind == CASE_ALLGATHERV ||
           kind == CASE_GATHERV || kind == CASE_ALLTOALL || kind == CASE_ALLTOALLV;
}

/* Where r's part begins in what s gives. */
static size_t offset_in(const case_op_t *op, int s, int r)
{
    size_t offset = 0;

    for (int q = 0; q < r && is_parted(op->kind); q++)
        offset += block(op, s, q);
    return offset;
}

static size_t count_in(const case_op_t *op, int rank)
{
    int ranks = dp_group_size(op->group);

    switch (op->kind) {
    case CASE_REDUCE:
    case CASE_GATHER:
        return op->count;
    case CASE_GATHERV:
        return uneven(op, rank);
    default:
        return is_parted(op->kind) ? offset_in(op, rank, ranks) : block(op, rank, 0);
    }
}

static size_t count_out(const case_op_t *op, int rank)
{
    size_t sum = 0;

    switch (op->kind) {
    case CASE_BROADCAST:
    case CASE_SCATTER:
    case CASE_SCATTERV:
        return block(op, op->root, rank);
    default:
        for (int s = 0; s < dp_group_size(op->group) && is_collected(op->kind); s++)
            sum += block(op, s, rank);
        return is_collected(op->kind) ? sum : block(op, 0, rank);
    }
}

static int can_share(const case_op_t *op)
{
    switch (op->kind) {
    case CASE_ALLTOALL:
    case CASE_ALLGATHERV:
    case CASE_GATHERV:
    case CASE_SCATTERV:
    case CASE_ALLTOALLV:
        return 0;
    case CASE_REDUCE:
    case CASE_GATHER:
    case CASE_SCATTER:
        return dp_group_rank(op->group) == op->root;
    default:
        return 1;
    }
}

/* ---- Begin ---------------------------------------------------------------------------------- */

static int prepare(dp_context_t *dp, case_op_t *op)
{
    int rank = dp_group_rank(op->group), ranks = dp_group_size(op->group);
    size_t element = dp_dtype_bytes(op->dtype), given = count_in(op, rank);
    size_t most;

    op->out_count = count_out(op, rank);
    most = dp_max(given, op->out_count) * element + op->shift + GUARD;
    op->in_base = case_allocate(dp, most, op->in_arena);
    op->out_base = case_allocate(dp, most, op->in_arena);
    EXPECT(dp, op->in_base != NULL && op->out_base != NULL, "no memory for %zu bytes", most);
    op->in = op->in_base + op->shift;
    op->out = op->out_base + op->shift;
    memset(op->out + op->out_count * element, GUARD_BYTE, GUARD);
    if (op->in_place && can_share(op)) {
        if (is_collected(op->kind)) {
            op->in = op->out + (size_t)rank * op->count * element;
        } else {
            op->out = op->in + offset_in(op, rank, rank) * element;
            op->in_place = 2; /* in's bytes follow: no guard to look at */
        }
    }
    case_fill(op->dtype, op->reduce, rank, 0, given, op->in);
    for (int r = 0; r < ranks; r++)
        op->send[r] = op->kind == CASE_REDUCE_SCATTERV ? block(op, 0, r) : block(op, rank, r);
    return 0;
}

int case_op_begin(dp_context_t *dp, case_op_t *op, const char *name)
{
    dp_group_t *group = op->group;
    dp_options_t options = DP_OPTIONS_INIT;
    int rank = dp_group_rank(group), is_root = rank == op->root;
    dp_status_t status = DP_ERR_INVALID;
    const void *in;
    void *out;
    size_t room;

    if (prepare(dp, op) != 0) return 1;
    room = op->out_count + (size_t)(op->step % 2); /* exact, or one more than needed */
    options.reduce = op->reduce;
    in = op->in;
    out = op->out;
    switch (op->kind) {
    case CASE_ALLREDUCE:
        status = dp_allreduce(group, name, in, out, op->count, op->dtype, &options, &op->handle);
        break;
    case CASE_REDUCE:
        status = dp_reduce(group, name, in, is_root ? out : NULL, op->count, op->dtype, op->root,
                           &options, &op->handle);
        break;
    case CASE_REDUCE_SCATTER:
        status =
            dp_reduce_scatter(group, name, in, out, op->count, op->dtype, &options, &op->handle);
        break;
    case CASE_REDUCE_SCATTERV:
        status =
            dp_reduce_scatterv(group, name, in, out, op->send, op->dtype, &options, &op->handle);
        break;
    case CASE_BROADCAST:
        status = dp_broadcast(group, name, is_root ? in : NULL, out, op->count, op->dtype, op->root,
                              NULL, &op->handle);
        break;
    case CASE_ALLGATHER:
        status = dp_allgather(group, name, in, out, op->count, op->dtype, NULL, &op->handle);
        break;
    case CASE_GATHER:
        status = dp_gather(group, name, in, is_root ? out : NULL, op->count, op->dtype, op->root,
                           NULL, &op->handle);
        break;
    case CASE_SCATTER:
        status = dp_scatter(group, name, is_root ? in : NULL, out, op->count, op->dtype, op->root,
                            NULL, &op->handle);
        break;
    case CASE_ALLTOALL:
        status = dp_alltoall(group, name, in, out, op->count, op->dtype, NULL, &op->handle);
        break;
    case CASE_ALLGATHERV:
        status = dp_allgatherv(group, name, in, count_in(op, rank), out, room, op->received,
                               op->dtype, NULL, &op->handle);
        break;
    case CASE_GATHERV:
        status = dp_gatherv(group, name, in, count_in(op, rank), is_root ? out : NULL,
                            is_root ? room : 0, is_root ? op->received : NULL, op->dtype, op->root,
                            NULL, &op->handle);
        break;
    case CASE_SCATTERV:
        status = dp_scatterv(group, name, is_root ? in : NULL, is_root ? op->send : NULL, out, room,
                             op->dtype, op->root, NULL, &op->handle);
        break;
    case CASE_ALLTOALLV:
        status = dp_alltoallv(group, name, in, op->send, out, room, op->received, op->dtype, NULL,
                              &op->handle);
        break;
    default:
        break;
    }
    EXPECT_STATUS(dp, status, DP_OK);
    return 0;
}

/* ---- End ------------------------------------------------------------------------------------ */

/* The expected content of out. */
static char *make_expected(const case_op_t *op)
{
    int rank = dp_group_rank(op->group), ranks = dp_group_size(op->group);
    size_t element = dp_dtype_bytes(op->dtype), at = 0;
    char *wanted = malloc(op->out_count * element + 1);

    if (wanted == NULL) return NULL;
    if (case_kind_reduces(op->kind)) {
        case_reference(op->dtype, op->reduce, ranks, offset_in(op, rank, rank), op->out_count,
                       wanted);
    } else if (is_collected(op->kind)) {
        for (int s = 0; at < op->out_count; at += block(op, s, rank), s++)
            case_fill(op->dtype, op->reduce, s, offset_in(op, s, rank), block(op, s, rank),
                      wanted + at * element);
    } else {
        case_fill(op->dtype, op->reduce, op->root, offset_in(op, op->root, rank), op->out_count,
                  wanted);
    }
    return wanted;
}

static int check_values(dp_context_t *dp, const case_op_t *op)
{
    size_t bytes = op->out_count * dp_dtype_bytes(op->dtype), at = 0;
    char *wanted = make_expected(op);
    unsigned char found = 0, missed = 0;

    EXPECT(dp, wanted != NULL, "no memory for %zu bytes", bytes);
    if (memcmp(op->out, wanted, bytes) == 0) {
        at = bytes;
    } else {
        while (op->out[at] == wanted[at])
            at++;
        found = (unsigned char)op->out[at];
        missed = (unsigned char)wanted[at];
    }
    free(wanted);
    EXPECT(dp, at == bytes,
           "%s of %s in group %s, reduction %d, count %zu, %s place, %s memory: byte %zu is %02x, "
           "wanted %02x",
           kind_names[op->kind], dp_dtype_name(op->dtype), dp_group_name(op->group),
           (int)op->reduce, op->count, op->in_place ? "in" : "out of",
           op->in_arena ? "dp_alloc" : "ordinary", at, found, missed);
    return 0;
}

static int check_counts(dp_context_t *dp, const case_op_t *op)
{
    int rank = dp_group_rank(op->group);
    int is_known = op->kind == CASE_ALLGATHERV || op->kind == CASE_ALLTOALLV ||
                   (op->kind == CASE_GATHERV && rank == op->root);

    for (int s = 0; s < dp_group_size(op->group) && is_known; s++)
        EXPECT(dp, op->received[s] == block(op, s, rank), "%s: %zu came from rank %d, wanted %zu",
               kind_names[op->kind], op->received[s], s, block(op, s, rank));
    return 0;
}

int case_op_end(dp_context_t *dp, case_op_t *op)
{
    size_t element = dp_dtype_bytes(op->dtype);
    dp_result_t result = DP_RESULT_INIT;

    EXPECT_STATUS(dp, dp_wait(op->handle, 60.0, &result), DP_OK);
    EXPECT(dp, result.count == op->out_count, "%s: %zu elements written, wanted %zu",
           kind_names[op->kind], result.count, op->out_count);
    EXPECT(dp, result.contributors == dp_group_size(op->group), "%s: %d contributors",
           kind_names[op->kind], result.contributors);
    EXPECT(dp, result.last_rank == -1, "%d", result.last_rank);
    if (check_values(dp, op) != 0) return 1;
    for (size_t i = 0; i < GUARD && op->in_place != 2; i++)
        EXPECT(dp, op->out[op->out_count * element + i] == GUARD_BYTE,
               "%s: byte %zu behind the result was written", kind_names[op->kind], i);
    if (check_counts(dp, op) != 0) return 1;
    case_give_back(dp, op->in_base, op->in_arena);
    case_give_back(dp, op->out_base, op->in_arena);
    return 0;
}

int case_sum(dp_context_t *dp, dp_group_t *group, const char *name, double value, double wanted)
{
    dp_handle_t *handle;

    EXPECT_STATUS(dp, dp_allreduce(group, name, &value, &value, 1, DP_F64, NULL, &handle), DP_OK);
    EXPECT_STATUS(dp, dp_wait(handle, 60.0, NULL), DP_OK);
    EXPECT(dp, value == wanted, "%s: %g, wanted %g", name, value, wanted);
    return 0;
}
