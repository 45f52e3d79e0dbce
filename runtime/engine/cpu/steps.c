/*
 * steps.c - the steps every operation of the CPU engine is made of: publish what the others need,
 * the barrier, find the others' memory, add up figures. Called by all files of the engine that run
 * operations, on the thread that runs them.
 *
 * Another process of the job wrote the offsets that a rank reads in shared memory: each is
 * checked against that rank's arena before it is used as an address.
 */
#include "runtime/engine/cpu/cpu_internal.h"

#include <string.h>
#include <time.h>

/* ---- Failing -------------------------------------------------------------------------------- */

/*
 * A rank that is gone may have left because of a failure elsewhere, of which this rank has not
 * heard yet. The coordinators tell it within milliseconds, with one exception: a node's leader that
 * stands still cannot pass on what the ranks below it say.
 *
 *     rank 3 of its node finds the leader silent, and leaves      its connections break here
 *     the leader's neighbour on this side finds it silent later   only then this rank hears why
 *
 * Each side counts DP_PEER_TIMEOUT by itself, and a coordinator that got no core for a while counts
 * anew (dp_health_resume()). cpu.c derives the longest wait from that.
 */
dp_status_t dp_cpu_await_cause(const dp_cpu_group_t *group)
{
    const dp_cpu_engine_t *engine = group->engine;
    const uint64_t until_ns = dp_now_ns() + engine->cause_wait_ns;

    while (dp_now_ns() < until_ns) {
        if (atomic_load_explicit(&engine->is_aborted, memory_order_acquire)) return DP_ERR_ABORTED;
        nanosleep(&(const struct timespec){0, 1000000}, NULL);
    }
    return DP_OK;
}

dp_status_t dp_cpu_bad_offset(dp_cpu_group_t *group, int local)
{
    return dp_cpu_fail(
        group, DP_ERR_SYSTEM, "%s %llu%s: what rank %d published lies outside of its shared memory",
        dp_collective_name(group->op->collective), (unsigned long long)group->op->sequence,
        group->title, dp_cpu_world_rank(group, local));
}

/* ---- Arriving ------------------------------------------------------------------------------- */

static int is_broadcast_root(const dp_cpu_group_t *group, const dp_engine_op_t *op)
{
    return op->collective == DP_COLLECTIVE_BROADCAST && op->root == group->rank;
}

/* Makes room for the pieces of an operation. Freeing the old arrays is safe: this publication was
 * last used two operations ago, and a barrier since has proved that no rank reads it any more. */
static dp_status_t grow_publication(dp_cpu_group_t *group, dp_cpu_publication_t *publication,
                                    size_t count)
{
    const size_t room = dp_max(2 * publication->room, count);
    void *pieces = NULL;
    void *tallies = NULL;
    dp_status_t status;

    if (count <= publication->room) return DP_OK;
    status = dp_arena_alloc(group->engine->arena, room * sizeof(*publication->pieces), &pieces);
    if (status == DP_OK) {
        status =
            dp_arena_alloc(group->engine->arena, room * sizeof(*publication->tallies), &tallies);
    }
    if (status != DP_OK) {
        dp_arena_free(group->engine->arena, pieces);
        return dp_cpu_fail(group, status, "engine: no shared memory to publish %zu pieces", count);
    }
    dp_arena_free(group->engine->arena, publication->grown[0]);
    dp_arena_free(group->engine->arena, publication->grown[1]);
    publication->pieces = publication->grown[0] = pieces;
    publication->tallies = publication->grown[1] = tallies;
    publication->room = room;
    return DP_OK;
}

/* The offset at which the others find memory of this rank; an error where it is not in the arena.
 */
static dp_status_t publish_memory(dp_cpu_group_t *group, const void *memory, size_t bytes,
                                  const char *what, uint64_t *offset)
{
    *offset = 0;
    if (bytes == 0 || group->local_size == 1) return DP_OK;
    *offset = dp_arena_offset(group->engine->arena, memory, bytes);
    if (*offset != UINT64_MAX) return DP_OK;
    return dp_cpu_fail(
        group, DP_ERR_INVALID, "%s %llu%s: rank %d: the %zu bytes of an %s are not engine memory",
        dp_collective_name(group->op->collective), (unsigned long long)group->op->sequence,
        group->title, group->engine->rank, bytes, what);
}

/* 1: the others write to this rank's output. */
static int is_written(const dp_cpu_group_t *group, const dp_engine_op_t *op, size_t piece)
{
    if (op->collective == DP_COLLECTIVE_ALLREDUCE) return 1;
    return op->collective == DP_COLLECTIVE_REDUCE && op->pieces[piece].root == group->rank;
}

/* Of this rank's input of a piece that the others read. */
static size_t input_bytes(const dp_cpu_group_t *group, const dp_engine_op_t *op, size_t piece)
{
    size_t elems = op->pieces[piece].count;

    if (op->collective == DP_COLLECTIVE_BROADCAST && !is_broadcast_root(group, op)) return 0;
    if (op->collective == DP_COLLECTIVE_REDUCE_SCATTER && elems != 0)
        elems += ((size_t)group->size - 1) * op->pieces[piece].stride;
    return elems * dp_dtype_bytes(op->dtype);
}

static int is_outside(const dp_cpu_group_t *group, const void *memory, size_t bytes)
{
    return bytes != 0 && dp_arena_offset(group->engine->arena, memory, bytes) == UINT64_MAX;
}

/* 1: what the others are to read lies outside of the arena, and the operation can handle that. */
static int has_private_memory(const dp_cpu_group_t *group, const dp_engine_op_t *op)
{
    if (group->engine->pull_bytes == 0 || group->node_count > 1 ||
        !dp_cpu_takes_private(group->engine, op->collective))
        return 0;
    for (size_t i = 0; i < op->piece_count; i++) {
        const size_t bytes = input_bytes(group, op, i);

        if (is_outside(group, op->pieces[i].in, bytes)) return 1;
        if (op->collective == DP_COLLECTIVE_ALLREDUCE &&
            is_outside(group, op->pieces[i].out, bytes))
            return 1;
    }
    return 0;
}

/* Publishes offsets of this rank's inputs, and of its outputs where the others write them; or, of
 * private memory, addresses. */
static dp_status_t publish_pieces(dp_cpu_group_t *group, const dp_engine_op_t *op, int hides,
                                  dp_cpu_publication_t *publication)
{
    dp_status_t status = grow_publication(group, publication, op->piece_count);

    for (size_t i = 0; status == DP_OK && i < op->piece_count; i++) {
        const dp_engine_piece_t *piece = &op->pieces[i];
        const size_t bytes = input_bytes(group, op, i);

        if (hides) {
            publication->pieces[i] =
                (dp_control_piece_t){.in = (uintptr_t)piece->in, .out = (uintptr_t)piece->out};
            continue;
        }
        status = publish_memory(group, piece->in, bytes, "input", &publication->pieces[i].in);
        publication->pieces[i].out = DP_CONTROL_NONE;
        if (status == DP_OK && is_written(group, op, i) && piece->out != NULL) {
            status =
                publish_memory(group, piece->out, bytes, "output", &publication->pieces[i].out);
        }
    }
    return status;
}

/* Publishes a copy of the inputs of a small operation. */
static void publish_eager(dp_cpu_group_t *group, const dp_engine_op_t *op, char *eager)
{
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);

    if (op->collective == DP_COLLECTIVE_BROADCAST && !is_broadcast_root(group, op)) return;
    for (size_t i = 0; i < op->piece_count; i++) {
        const size_t bytes = op->pieces[i].count * elem_bytes;

        if (bytes == 0) continue;
        memcpy(eager, op->pieces[i].in, bytes);
        eager += bytes;
    }
}

/* All ranks must be at the same operation, of the same sizes. A difference means that they were
 * given different orders, or in program order that the programs differ. */
static dp_status_t compare_descriptors(dp_cpu_group_t *group, const dp_engine_op_t *op)
{
    const dp_control_descriptor_t *own = dp_cpu_descriptor(group, group->local_rank);

    for (int i = 0; i < group->local_size; i++) {
        const dp_control_descriptor_t *other = dp_cpu_descriptor(group, i);

        if (other->op == own->op && other->kind == own->kind &&
            other->elem_count == own->elem_count && other->piece_count == own->piece_count &&
            other->digest == own->digest) {
            continue;
        }
        if (other->digest != own->digest) {
            return dp_cpu_fail(
                group, DP_ERR_MISMATCH, "%s %llu%s: rank %d and rank %d brought different tensors",
                dp_collective_name(op->collective), (unsigned long long)op->sequence, group->title,
                dp_min(group->engine->rank, dp_cpu_world_rank(group, i)),
                dp_max(group->engine->rank, dp_cpu_world_rank(group, i)));
        }
        return dp_cpu_fail(
            group, DP_ERR_MISMATCH,
            "%s %llu%s: rank %d has %llu elements in %llu pieces, rank %d has %llu in %llu "
            "(kind %x and %x)",
            dp_collective_name(op->collective), (unsigned long long)op->sequence, group->title,
            group->engine->rank, (unsigned long long)own->elem_count,
            (unsigned long long)own->piece_count, dp_cpu_world_rank(group, i),
            (unsigned long long)other->elem_count, (unsigned long long)other->piece_count,
            own->kind, other->kind);
    }
    return DP_OK;
}

void dp_cpu_note_wait(dp_cpu_group_t *group, uint64_t begin_ns, uint64_t end_ns, int last)
{
    dp_engine_op_t *op = group->op;

    dp_activity_wait_begin(&group->lane->activity, begin_ns);
    dp_activity_wait_end(&group->lane->activity, end_ns);
    op->wait_ns += end_ns - begin_ns;
    op->last_rank = last;
    dp_trace_record(group->lane->track, (dp_trace_record_t){.kind = DP_TRACE_WAIT_RANK,
                                                            .start_ns = begin_ns,
                                                            .duration_ns = end_ns - begin_ns,
                                                            .bucket = op->sequence,
                                                            .aux = (uint32_t)last});
}

static void note_arrival(dp_cpu_group_t *group)
{
    uint64_t latest_ns = 0;
    int last = -1;

    if (group->waited.begin_ns == 0) return;
    for (int i = 0; i < group->local_size; i++) {
        const uint64_t arrive_ns = dp_cpu_descriptor(group, i)->arrive_ns;

        if (i == group->local_rank || arrive_ns < latest_ns) continue;
        latest_ns = arrive_ns;
        last = dp_cpu_world_rank(group, i);
    }
    dp_cpu_note_wait(group, group->waited.begin_ns, group->waited.end_ns, last);
}

/*
 * The descriptor is written with plain stores: the barrier behind it publishes them. It may be
 * overwritten although it was read two operations ago, because a barrier has passed since (see
 * control.h).
 */
static dp_status_t publish_buffers(dp_cpu_group_t *group, const dp_engine_op_t *op, int is_eager)
{
    dp_cpu_publication_t *publication = dp_cpu_publication(group);
    dp_control_descriptor_t *descriptor = dp_cpu_descriptor(group, group->local_rank);
    const int hides = !is_eager && has_private_memory(group, op);
    dp_status_t status = DP_OK;

    if (is_eager) {
        publish_eager(group, op, publication->eager);
    } else {
        status = publish_pieces(group, op, hides, publication);
        if (status != DP_OK) return status;
    }
    *descriptor = (dp_control_descriptor_t){
        .op = group->op_index,
        .elem_count = group->layout.elem_count,
        .piece_count = op->piece_count,
        .digest = op->digest,
        .kind = (uint32_t)op->collective | (uint32_t)op->dtype << 8 | (uint32_t)op->reduce << 16 |
                (uint32_t)op->wire << 24,
        .has_private_memory = (uint8_t)hides,
        .use_staging = op->collective == DP_COLLECTIVE_ALLREDUCE &&
                       (group->engine->pids == NULL ||
                        dp_method_choose(&group->lane->methods, dp_cpu_input_bytes(group, op)) ==
                            DP_METHOD_STAGING),
        .arrive_ns = dp_now_ns(),
        .pieces = dp_arena_offset(group->engine->arena, publication->pieces, 0),
        .tallies = dp_arena_offset(group->engine->arena, publication->tallies, 0),
        .eager = dp_arena_offset(group->engine->arena, publication->eager, 0),
        .manifest = dp_arena_offset(group->engine->arena, publication->manifest, 0),
    };
    for (size_t i = 0; i < op->piece_count; i++)
        descriptor->wants_tally |= op->pieces[i].tally != NULL;
    return DP_OK;
}

dp_status_t dp_cpu_arrive(dp_cpu_group_t *group, dp_engine_op_t *op, int is_eager)
{
    dp_status_t status;

    if (!group->is_arriving) {
        status = publish_buffers(group, op, is_eager);
        if (status != DP_OK) return status;
        group->waited = (dp_barrier_wait_t){.is_arrival = 1};
        dp_control_enter(&group->control);
    }
    status = dp_control_await(&group->control,
                              is_eager && op->give_up_ns != 0 ? op->give_up_ns : UINT64_MAX,
                              &group->waited);
    group->is_arriving = status == DP_ERR_PENDING;
    if (status != DP_OK) return status;
    note_arrival(group);
    return compare_descriptors(group, op);
}

/*
 * Between nodes some ranks of a node exchange messages and the others wait for them here. While the
 * first ones wait for another node to come, so do the others:
 *
 *     rank 0   | waits for rank 2, on another node | exchanges |
 *     rank 1   | barrier: skew                     | wire      |
 *                                           heard_ns of rank 0
 *
 * Behind a barrier operation nothing that the others published may be read: their group may end.
 */
static dp_status_t meet_between_nodes(dp_cpu_group_t *group)
{
    dp_barrier_wait_t waited = {0};
    const dp_control_descriptor_t *latest = dp_cpu_descriptor(group, group->local_rank);
    dp_status_t status;

    dp_control_enter(&group->control);
    status = dp_control_await(&group->control, UINT64_MAX, &waited);
    if (status != DP_OK || waited.begin_ns == 0) return status;
    for (int i = 0; i < group->local_size; i++) {
        const dp_control_descriptor_t *other = dp_cpu_descriptor(group, i);

        if (other->heard_ns > latest->heard_ns) latest = other;
    }
    if (latest->heard_ns > waited.begin_ns) {
        dp_cpu_note_wait(group, waited.begin_ns, dp_min(latest->heard_ns, waited.end_ns),
                         latest->heard_from);
    }
    return DP_OK;
}

dp_status_t dp_cpu_node_barrier(dp_cpu_group_t *group)
{
    return group->node_count > 1 && group->op->collective != DP_COLLECTIVE_BARRIER
               ? meet_between_nodes(group)
               : dp_control_barrier(&group->control);
}

/* ---- The others' memory --------------------------------------------------------------------- */

const dp_control_piece_t *dp_cpu_published_piece(const dp_cpu_group_t *group, int local,
                                                 size_t piece)
{
    const uint64_t offset =
        dp_cpu_descriptor(group, local)->pieces + piece * sizeof(dp_control_piece_t);

    return dp_cpu_memory_at(group, local, offset, sizeof(dp_control_piece_t));
}

/* Of this rank the address itself, which need not be in the arena; of others what they published,
 * checked by dp_cpu_memory_at(). */
const void *dp_cpu_input_at(const dp_cpu_group_t *group, int local, size_t piece, size_t element,
                            size_t count, size_t elem_bytes)
{
    const dp_control_piece_t *published;

    if (local == group->local_rank) {
        return (const char *)group->op->pieces[piece].in + element * elem_bytes;
    }
    published = dp_cpu_published_piece(group, local, piece);
    if (published == NULL) return NULL;
    return dp_cpu_memory_at(group, local, published->in + element * elem_bytes, count * elem_bytes);
}

dp_status_t dp_cpu_output_at(dp_cpu_group_t *group, int local, size_t piece, size_t element,
                             size_t count, size_t elem_bytes, void **out)
{
    const dp_control_piece_t *published;
    char *own;

    *out = NULL;
    if (local == group->local_rank) {
        own = group->op->pieces[piece].out;
        if (own != NULL) *out = own + element * elem_bytes;
        return DP_OK;
    }
    published = dp_cpu_published_piece(group, local, piece);
    if (published == NULL) return dp_cpu_bad_offset(group, local);
    if (published->out == DP_CONTROL_NONE) return DP_OK;
    *out =
        dp_cpu_memory_at(group, local, published->out + element * elem_bytes, count * elem_bytes);
    return *out != NULL ? DP_OK : dp_cpu_bad_offset(group, local);
}

/* ---- Figures -------------------------------------------------------------------------------- */

int64_t dp_cpu_divisor(const dp_cpu_group_t *group, const dp_engine_op_t *op)
{
    if (op->reduce != DP_AVERAGE || dp_dtype_is_float(op->dtype)) return 0;
    return op->divisor != 0 ? op->divisor : group->size;
}

int dp_cpu_has_figures(const dp_engine_op_t *op)
{
    return dp_dtype_is_float(op->dtype) && (op->reduce == DP_SUM || op->reduce == DP_AVERAGE);
}

int dp_cpu_wants_tally(const dp_cpu_group_t *group, const dp_engine_op_t *op)
{
    if (!dp_cpu_has_figures(op)) return 0;
    for (int i = 0; i < group->local_size; i++) {
        if (dp_cpu_descriptor(group, i)->wants_tally) return 1;
    }
    return 0;
}

/* Block by block into one buffer that stays in the cache; the figures of a block are the same as
 * where its results are kept. */
void dp_cpu_tally_only(dp_cpu_group_t *group, const dp_reduce_args_t *args)
{
    const size_t step = DP_TALLY_BLOCK * dp_dtype_bytes(args->dtype);
    void *dropped = group->lane->dropped;
    dp_reduce_args_t block = *args;

    block.in = group->ins;
    block.out = &dropped;
    block.out_count = 1;
    block.streaming = 0;
    for (size_t at = 0; at < args->count; at += DP_TALLY_BLOCK) {
        block.count = dp_min(args->count - at, (size_t)DP_TALLY_BLOCK);
        dp_kernel_reduce(&block);
        for (int k = 0; k < args->in_count; k++)
            group->ins[k] = (const char *)group->ins[k] + step;
    }
}

/* A rank publishes figures only of the pieces that its range touches, so only these are cleared:
 * nobody reads the others. */
void dp_cpu_clear_tallies(dp_cpu_group_t *group, dp_range_t range)
{
    dp_tally_t *tallies = dp_cpu_publication(group)->tallies;

    if (range.begin >= range.end) return;
    for (size_t i = dp_layout_piece(&group->layout, range.begin);
         i <= dp_layout_piece(&group->layout, range.end - 1); i++) {
        dp_tally_init(&tallies[i]);
    }
}

dp_tally_t *dp_cpu_tally(dp_cpu_group_t *group, size_t piece, int wanted)
{
    return wanted ? &dp_cpu_publication(group)->tallies[piece] : NULL;
}

/* All ranks add the same figures in the same order. The sums are exact (kernels/tally.c), so the
 * order would not matter either. */
dp_status_t dp_cpu_add_tallies(dp_cpu_group_t *group, dp_engine_op_t *op, int local,
                               dp_range_t range)
{
    const uint64_t offset = dp_cpu_descriptor(group, local)->tallies;
    const dp_tally_t *tallies =
        dp_cpu_memory_at(group, local, offset, op->piece_count * sizeof(*tallies));

    if (range.begin >= range.end) return DP_OK;
    if (tallies == NULL) return dp_cpu_bad_offset(group, local);
    for (size_t i = dp_layout_piece(&group->layout, range.begin);
         i <= dp_layout_piece(&group->layout, range.end - 1); i++) {
        if (op->pieces[i].tally != NULL) dp_tally_merge(op->pieces[i].tally, &tallies[i]);
    }
    return DP_OK;
}
