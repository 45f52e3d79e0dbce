/*
 * arguments.c - checks what a function of dp.h was given, and says what is wrong with it.
 *
 * An extent says for each collective which elements this rank reads and writes; the checks of
 * counts, pointers and overlaps follow from it. Called by submit.c and stage.c on the program's
 * thread, without the lock. Pure but for the text of the error: it must not know about requests.
 */
#include "coordinator/api/operation/arguments.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/api/context/texts.h"
#include "coordinator/api/operation/submit.h"

dp_status_t dp_submit_error(const dp_group_t *group, const dp_submit_t *what, dp_status_t status,
                            const char *format, ...)
{
    char reason[DP_ERROR_TEXT_MAX];
    va_list list;

    va_start(list, format);
    vsnprintf(reason, sizeof(reason), format, list);
    va_end(list);
    if (what->new_group != NULL || what->collective == DP_COLLECTIVE_GROUP_DESTROY) {
        return dp_context_error(group->context, status, "group %s: %s",
                                what->new_group != NULL ? what->new_group->name : group->name,
                                reason);
    }
    if (group == &group->context->world) {
        return dp_context_error(group->context, status, "tensor %s: %s",
                                what->name == NULL ? "NULL" : what->name, reason);
    }
    return dp_context_error(group->context, status, "tensor %s of group %s: %s",
                            what->name == NULL ? "NULL" : what->name, group->name, reason);
}

/* ---- Extents -------------------------------------------------------------------------------- */

/* The sum of counts[0..until). 0: it is beyond SIZE_MAX. */
static int add_up(const size_t *counts, int until, size_t *sum)
{
    *sum = 0;
    for (int i = 0; i < until; i++)
        if (__builtin_add_overflow(*sum, counts[i], sum)) return 0;
    return 1;
}

/**
 * How many elements this rank reads and writes. n: size of the group; c: the tensor's count; sum:
 * of the counts given.
 *
 *     collective             in             out              in and out may share memory
 *     allreduce              c              c                in == out
 *     broadcast              c, root        c                in == out on the root
 *     reduce                 c              c, root          in == out on the root
 *     allgather, gather      c              n*c, all | root  in is this rank's row of out
 *     reduce_scatter         n*c            c                out is this rank's row of in
 *     scatter                n*c, root      c                likewise on the root
 *     alltoall               n*c            n*c              no
 *     allgatherv, gatherv    c              capacity         no
 *     scatterv               sum, root      capacity         no
 *     alltoallv              sum            capacity         no
 *     reduce_scatterv        sum            own count        out is this rank's part of in
 *     send                   c, sender      capacity, recv.  no: they are on two ranks
 */
dp_status_t dp_extent_of(const dp_group_t *group, const dp_submit_t *what,
                         const dp_tensor_t *tensor, dp_extent_t *out)
{
    int is_root = what->root == group->rank;
    size_t count = tensor->count, all, before = 0, own = 0, given = 0;

    if (__builtin_mul_overflow(count, (size_t)group->size, &all)) return DP_ERR_INVALID;
    if (what->counts != NULL &&
        (!add_up(what->counts, group->size, &given) || !add_up(what->counts, group->rank, &before)))
        return DP_ERR_INVALID;
    if (what->counts != NULL) own = what->counts[group->rank];
    *out = (dp_extent_t){.in_count = count, .out_count = count, .has_in = 1, .has_out = 1};
    switch (what->collective) {
    case DP_COLLECTIVE_ALLREDUCE:
        out->may_share = 1;
        break;
    case DP_COLLECTIVE_BROADCAST:
        out->has_in = out->may_share = is_root;
        break;
    case DP_COLLECTIVE_REDUCE:
        out->has_out = out->may_share = is_root;
        break;
    case DP_COLLECTIVE_ALLGATHER:
    case DP_COLLECTIVE_GATHER:
        out->has_out = what->collective == DP_COLLECTIVE_ALLGATHER || is_root;
        out->out_count = all;
        out->may_share = 1;
        out->out_shift = count * (size_t)group->rank;
        break;
    case DP_COLLECTIVE_REDUCE_SCATTER:
    case DP_COLLECTIVE_SCATTER:
        out->has_in = what->collective == DP_COLLECTIVE_REDUCE_SCATTER || is_root;
        out->in_count = all;
        out->may_share = 1;
        out->in_shift = count * (size_t)group->rank;
        break;
    case DP_COLLECTIVE_ALLTOALL:
        out->in_count = out->out_count = all;
        break;
    case DP_COLLECTIVE_ALLGATHERV:
    case DP_COLLECTIVE_GATHERV:
        out->has_out = what->collective == DP_COLLECTIVE_ALLGATHERV || is_root;
        out->out_count = what->capacity;
        break;
    case DP_COLLECTIVE_SCATTERV:
        out->has_in = is_root;
        out->in_count = given;
        out->out_count = what->capacity;
        break;
    case DP_COLLECTIVE_ALLTOALLV:
        out->in_count = given;
        out->out_count = what->capacity;
        break;
    case DP_COLLECTIVE_REDUCE_SCATTERV:
        out->in_count = given;
        out->out_count = own;
        out->may_share = 1;
        out->in_shift = before;
        break;
    case DP_COLLECTIVE_SEND:
        out->has_in = is_root;
        out->has_out = !is_root;
        out->out_count = what->capacity;
        break;
    default:
        break;
    }
    return DP_OK;
}

/* 1: this rank's in and out overlap in a way that the collective does not allow. */
static int is_overlapping(const dp_tensor_t *tensor, const dp_extent_t *extent, size_t bytes)
{
    uintptr_t in = (uintptr_t)tensor->in, out = (uintptr_t)tensor->out;

    if (!extent->has_in || !extent->has_out || extent->in_count == 0 || extent->out_count == 0)
        return 0;
    /* The shared place: in at its row or part, out at its own. */
    if (extent->may_share && in + extent->in_shift * bytes == out + extent->out_shift * bytes)
        return 0;
    return in <= out ? out - in < extent->in_count * bytes : in - out < extent->out_count * bytes;
}

/* ---- Checks --------------------------------------------------------------------------------- */

static dp_status_t check_name(dp_group_t *group, const dp_submit_t *what)
{
    size_t length = what->name == NULL ? 0 : strnlen(what->name, DP_NAME_MAX + 1);

    const dp_program_kind_t kind = dp_program_kind(what->collective);

    if (what->name == NULL && dp_group_is_ordered(group) &&
        (kind == DP_PROGRAM_ORDERED || kind == DP_PROGRAM_DIRECT))
        return DP_OK;
    if (length > 0 && length <= DP_NAME_MAX) return DP_OK;
    return dp_context_error(group->context, DP_ERR_INVALID,
                            "%s: a name of 1 to %d bytes is needed, this is %s",
                            dp_collective_name(what->collective), DP_NAME_MAX,
                            what->name == NULL ? "NULL" : (length == 0 ? "empty" : "longer"));
}

static dp_status_t check_options(dp_group_t *group, const dp_submit_t *what)
{
    const dp_options_t *options = what->options;

    if ((unsigned)options->reduce >= DP_REDUCE_COUNT) {
        return dp_submit_error(group, what, DP_ERR_INVALID, "no reduction has number %d",
                               (int)options->reduce);
    }
    if ((unsigned)options->wire > DP_WIRE_BF16) {
        return dp_submit_error(group, what, DP_ERR_INVALID, "no wire type has number %d",
                               (int)options->wire);
    }
    if (options->launch_now != 0 && options->launch_now != 1) {
        return dp_submit_error(group, what, DP_ERR_INVALID, "launch_now is %d, it is 0 or 1",
                               options->launch_now);
    }
    if (options->more_follow != 0 && options->more_follow != 1) {
        return dp_submit_error(group, what, DP_ERR_INVALID, "more_follow is %d, it is 0 or 1",
                               options->more_follow);
    }
    if (!(options->timeout >= 0.0)) {
        return dp_submit_error(group, what, DP_ERR_INVALID, "timeout is %g s, at least 0 is needed",
                               options->timeout);
    }
    if (options->timeout > 0.0 && dp_group_is_ordered(group) &&
        dp_program_kind(what->collective) != DP_PROGRAM_AGREED) {
        return dp_submit_error(group, what, DP_ERR_UNSUPPORTED,
                               "order=program: ranks do not ask each other, so a timeout of %g s "
                               "cannot end it; DP_STALL_LIMIT ends the world",
                               options->timeout);
    }
    return DP_OK;
}

static dp_status_t check_ranks(dp_group_t *group, const dp_submit_t *what)
{
    int needs_root =
        what->collective == DP_COLLECTIVE_BROADCAST || what->collective == DP_COLLECTIVE_REDUCE ||
        what->collective == DP_COLLECTIVE_GATHER || what->collective == DP_COLLECTIVE_SCATTER ||
        what->collective == DP_COLLECTIVE_GATHERV || what->collective == DP_COLLECTIVE_SCATTERV;

    if (needs_root && (what->root < 0 || what->root >= group->size)) {
        return dp_submit_error(group, what, DP_ERR_INVALID, "root %d, the group has ranks 0 to %d",
                               what->root, group->size - 1);
    }
    if (what->collective == DP_COLLECTIVE_SEND) {
        int other = what->root == group->rank ? what->peer : what->root;

        if (other < 0 || other >= group->size || other == group->rank) {
            return dp_submit_error(
                group, what, DP_ERR_INVALID,
                "rank %d cannot %s rank %d, the group has ranks 0 to %d", group->rank,
                what->root == group->rank ? "send to" : "receive from", other, group->size - 1);
        }
    }
    return DP_OK;
}

static dp_status_t check_counts(dp_group_t *group, const dp_submit_t *what)
{
    int needs_counts = what->collective == DP_COLLECTIVE_ALLTOALLV ||
                       what->collective == DP_COLLECTIVE_REDUCE_SCATTERV ||
                       (what->collective == DP_COLLECTIVE_SCATTERV && what->root == group->rank);

    if (what->is_grouped && (what->tensors == NULL || what->count == 0)) {
        return dp_submit_error(group, what, DP_ERR_INVALID,
                               "%zu tensors at %p; 1 to %d are "
                               "possible",
                               what->count, (const void *)what->tensors, DP_GROUPED_MAX);
    }
    if (what->count > DP_GROUPED_MAX) {
        return dp_submit_error(group, what, DP_ERR_INVALID, "%zu tensors; 1 to %d are possible",
                               what->count, DP_GROUPED_MAX);
    }
    if (needs_counts && what->counts == NULL)
        return dp_submit_error(group, what, DP_ERR_INVALID, "the counts are NULL");
    if (what->collective == DP_COLLECTIVE_REDUCE_SCATTERV && group->size > DP_GROUPED_MAX) {
        return dp_submit_error(group, what, DP_ERR_UNSUPPORTED,
                               "the group has %d ranks, parts for %d are possible", group->size,
                               DP_GROUPED_MAX);
    }
    return DP_OK;
}

/* "tensor 3 of the list: " for the texts below; "" where there is no list. */
static const char *place(const dp_submit_t *what, size_t index, char *text, size_t room)
{
    text[0] = '\0';
    if (what->is_grouped) snprintf(text, room, "tensor %zu of the list: ", index);
    return text;
}

/* out is asked for when the counts are known: on the host, and where there are counts. */
static dp_status_t check_output(dp_group_t *group, const dp_submit_t *what)
{
    const int has_capacity =
        what->collective == DP_COLLECTIVE_ALLGATHERV || what->collective == DP_COLLECTIVE_GATHERV ||
        what->collective == DP_COLLECTIVE_SCATTERV || what->collective == DP_COLLECTIVE_ALLTOALLV ||
        what->collective == DP_COLLECTIVE_SEND;

    if (!has_capacity) {
        return dp_submit_error(group, what, DP_ERR_INVALID,
                               "options.output is set, and out of this operation has a known size");
    }
    if (what->tensors[0].out != NULL || what->capacity != 0) {
        return dp_submit_error(group, what, DP_ERR_INVALID,
                               "options.output is set, and out (%p, capacity %zu) too",
                               what->tensors[0].out, what->capacity);
    }
    if (!group->context->device->ops->is_async) return DP_OK;
    return dp_submit_error(group, what, DP_ERR_UNSUPPORTED,
                           "options.output on a context with a GPU: exchange the counts first");
}

static dp_status_t check_tensor(dp_group_t *group, const dp_submit_t *what, size_t index)
{
    const dp_tensor_t *tensor = &what->tensors[index];
    const dp_options_t *options = what->options;
    size_t bytes = dp_dtype_bytes(tensor->dtype), most;
    dp_extent_t extent;
    char at[64];

    place(what, index, at, sizeof(at));
    if (bytes == 0) {
        return dp_submit_error(group, what, DP_ERR_INVALID, "%sno type has number %d", at,
                               (int)tensor->dtype);
    }
    /* Half of the address space: sums of two sizes, and their alignment, cannot overflow later. */
    most = SIZE_MAX / 2 / bytes;
    if (dp_extent_of(group, what, tensor, &extent) != DP_OK || extent.in_count > most ||
        extent.out_count > most) {
        return dp_submit_error(group, what, DP_ERR_INVALID,
                               "%sthe counts for %d ranks (first %zu), or the capacity %zu, in %s "
                               "exceed memory",
                               at, group->size,
                               what->counts != NULL ? what->counts[0] : tensor->count,
                               what->capacity, dp_dtype_name(tensor->dtype));
    }
    if (extent.has_in && extent.in_count != 0 && tensor->in == NULL) {
        return dp_submit_error(group, what, DP_ERR_INVALID, "%sin is NULL, count is %zu", at,
                               extent.in_count);
    }
    if (options->output != NULL) {
        dp_status_t status = check_output(group, what);

        if (status != DP_OK) return status;
    }
    if (extent.has_out && extent.out_count != 0 && tensor->out == NULL) {
        return dp_submit_error(group, what, DP_ERR_INVALID, "%sout is NULL, count is %zu", at,
                               extent.out_count);
    }
    if (is_overlapping(tensor, &extent, bytes)) {
        return dp_submit_error(group, what, DP_ERR_INVALID,
                               "%sin (%zu elements at %p) and out (%zu at %p) overlap%s", at,
                               extent.in_count, tensor->in, extent.out_count, tensor->out,
                               extent.may_share ? ", and not as the operation allows" : "");
    }
    if (!dp_collective_reduces(what->collective)) return DP_OK;
    if (tensor->dtype == DP_BOOL && options->reduce == DP_AVERAGE)
        return dp_submit_error(group, what, DP_ERR_INVALID, "%sbool has no average", at);
    if (!dp_dtype_is_float(tensor->dtype) &&
        (options->prescale != 1.0 || options->postscale != 1.0)) {
        return dp_submit_error(group, what, DP_ERR_INVALID,
                               "%sscales %g and %g on type %s; only floats are scaled", at,
                               options->prescale, options->postscale, dp_dtype_name(tensor->dtype));
    }
    return DP_OK;
}

dp_status_t dp_submit_check(dp_group_t *group, const dp_submit_t *what)
{
    dp_status_t status = check_name(group, what);

    if (status == DP_OK) status = check_options(group, what);
    if (status == DP_OK) status = check_ranks(group, what);
    if (status == DP_OK) status = check_counts(group, what);
    for (size_t i = 0; status == DP_OK && i < what->count; i++)
        status = check_tensor(group, what, i);
    return status;
}
