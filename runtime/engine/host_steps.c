/*
 * host_steps.c - the steps every operation is made of: arriving, meeting, finding the others'
 * memory.
 *
 * What a rank read in shared memory came from another process of the job: it is checked before it
 * is used as an address.
 */
#include "runtime/engine/host_internal.h"

#include <string.h>

/* ---- Failing ----------------------------------------------------------------------------------
 */

dp_status_t dp_host_bad_offset(dp_host_engine_t *engine, int local)
{
    return dp_host_fail(engine, DP_ERR_SYSTEM,
                        "%s %llu: what rank %d published lies outside of its shared memory",
                        dp_collective_name(engine->op->collective),
                        (unsigned long long)engine->op->sequence, engine->local_ranks[local]);
}

/* ---- Arriving ---------------------------------------------------------------------------------
 */

static int is_root(const dp_host_engine_t *engine, const dp_engine_op_t *op)
{
    return op->collective == DP_COLLECTIVE_BROADCAST && op->root == engine->rank;
}

/* Makes room for the pieces of an operation. The board was last used two operations ago. */
static dp_status_t grow_board(dp_host_engine_t *engine, dp_host_board_t *board, size_t count)
{
    const size_t room = DP_MAX(2 * board->room, count);
    void *pieces = NULL;
    void *tallies = NULL;
    dp_status_t status;

    if (count <= board->room) return DP_OK;
    status = dp_arena_alloc(engine->arena, room * sizeof(*board->pieces), &pieces);
    if (status == DP_OK) {
        status = dp_arena_alloc(engine->arena, room * sizeof(*board->tallies), &tallies);
    }
    if (status != DP_OK) {
        dp_arena_free(engine->arena, pieces);
        return dp_host_fail(engine, status, "engine: no shared memory to publish %zu pieces",
                            count);
    }
    dp_arena_free(engine->arena, board->pieces);
    dp_arena_free(engine->arena, board->tallies);
    board->pieces = pieces;
    board->tallies = tallies;
    board->room = room;
    return DP_OK;
}

/* The offset others find memory at; failing when it is not ours to show. */
static dp_status_t publish(dp_host_engine_t *engine, const void *memory, size_t bytes,
                           const char *what, uint64_t *offset)
{
    *offset = 0;
    if (bytes == 0 || engine->local_size == 1) return DP_OK;
    *offset = dp_arena_offset(engine->arena, memory, bytes);
    if (*offset != UINT64_MAX) return DP_OK;
    return dp_host_fail(engine, DP_ERR_INVALID,
                        "%s %llu: rank %d: the %zu bytes of an %s are not engine memory",
                        dp_collective_name(engine->op->collective),
                        (unsigned long long)engine->op->sequence, engine->rank, bytes, what);
}

/* Shows this rank's inputs, and for an allreduce its outputs. */
static dp_status_t publish_pieces(dp_host_engine_t *engine, const dp_engine_op_t *op,
                                  dp_host_board_t *board)
{
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);
    const int shows_in = op->collective != DP_COLLECTIVE_BROADCAST || is_root(engine, op);
    const int shows_out = op->collective == DP_COLLECTIVE_ALLREDUCE;
    dp_status_t status = grow_board(engine, board, op->piece_count);

    for (size_t i = 0; status == DP_OK && i < op->piece_count; i++) {
        const dp_engine_piece_t *piece = &op->pieces[i];
        size_t elems = piece->count;

        if (op->collective == DP_COLLECTIVE_REDUCE_SCATTER && elems != 0) {
            elems += ((size_t)engine->size - 1) * piece->stride;
        }
        if (shows_in) {
            status = publish(engine, piece->in, elems * elem_bytes, "input", &board->pieces[i].in);
        }
        if (status == DP_OK && shows_out) {
            status =
                publish(engine, piece->out, elems * elem_bytes, "output", &board->pieces[i].out);
        }
    }
    return status;
}

/* Copies the inputs of a small operation to where the others look for them. */
static void publish_eager(dp_host_engine_t *engine, const dp_engine_op_t *op, char *eager)
{
    const size_t elem_bytes = dp_dtype_bytes(op->dtype);

    if (op->collective == DP_COLLECTIVE_BROADCAST && !is_root(engine, op)) return;
    for (size_t i = 0; i < op->piece_count; i++) {
        const size_t bytes = op->pieces[i].count * elem_bytes;

        if (bytes == 0) continue;
        memcpy(eager, op->pieces[i].in, bytes);
        eager += bytes;
    }
}

/* Everybody must be at the same operation; a difference is an error of who gave the order. */
static dp_status_t compare_slots(dp_host_engine_t *engine, const dp_engine_op_t *op)
{
    const dp_control_slot_t *own = dp_host_slot(engine, engine->local_rank);

    for (int i = 0; i < engine->local_size; i++) {
        const dp_control_slot_t *other = dp_host_slot(engine, i);

        if (other->op == own->op && other->kind == own->kind &&
            other->elem_count == own->elem_count && other->piece_count == own->piece_count) {
            continue;
        }
        return dp_host_fail(
            engine, DP_ERR_MISMATCH,
            "%s %llu: rank %d has %llu elements in %llu pieces, rank %d has %llu in %llu "
            "(kind %x and %x)",
            dp_collective_name(op->collective), (unsigned long long)op->sequence, engine->rank,
            (unsigned long long)own->elem_count, (unsigned long long)own->piece_count,
            engine->local_ranks[i], (unsigned long long)other->elem_count,
            (unsigned long long)other->piece_count, own->kind, other->kind);
    }
    return DP_OK;
}

static void note_wait(dp_host_engine_t *engine, dp_engine_op_t *op, const dp_meet_t *meet)
{
    uint64_t latest_ns = 0;

    if (meet->wait_ns == 0) return;
    for (int i = 0; i < engine->local_size; i++) {
        const uint64_t arrive_ns = dp_host_slot(engine, i)->arrive_ns;

        if (i == engine->local_rank || arrive_ns < latest_ns) continue;
        latest_ns = arrive_ns;
        op->last_rank = engine->local_ranks[i];
    }
    op->wait_ns += meet->wait_ns;
    dp_trace_record(engine->lane, (dp_trace_record_t){.kind = DP_TRACE_WAIT_RANK,
                                                      .start_ns = meet->wait_begin_ns,
                                                      .duration_ns = meet->wait_ns,
                                                      .bucket = op->sequence,
                                                      .aux = (uint32_t)op->last_rank});
}

dp_status_t dp_host_arrive(dp_host_engine_t *engine, dp_engine_op_t *op, int is_eager)
{
    dp_host_board_t *board = &engine->boards[dp_host_parity(engine)];
    dp_control_slot_t *slot = dp_host_slot(engine, engine->local_rank);
    dp_meet_t meet;
    dp_status_t status = DP_OK;

    if (is_eager) {
        publish_eager(engine, op, board->eager);
    } else {
        status = publish_pieces(engine, op, board);
        if (status != DP_OK) return status;
    }
    *slot = (dp_control_slot_t){
        .op = engine->op_index,
        .elem_count = engine->layout.elem_count,
        .piece_count = op->piece_count,
        .kind = (uint32_t)op->collective | (uint32_t)op->dtype << 8 | (uint32_t)op->reduce << 16 |
                (uint32_t)op->wire << 24,
        .arrive_ns = dp_now_ns(),
        .pieces = dp_arena_offset(engine->arena, board->pieces, 0),
        .tallies = dp_arena_offset(engine->arena, board->tallies, 0),
        .eager = dp_arena_offset(engine->arena, board->eager, 0),
    };
    for (size_t i = 0; i < op->piece_count; i++)
        slot->wants_tally |= op->pieces[i].tally != NULL;
    status = dp_control_meet(&engine->control, &meet);
    if (status != DP_OK) return status;
    note_wait(engine, op, &meet);
    return compare_slots(engine, op);
}

dp_status_t dp_host_meet(dp_host_engine_t *engine)
{
    return dp_control_meet(&engine->control, NULL);
}

/* ---- The others' memory ------------------------------------------------------------------------
 */

static const dp_control_piece_t *piece_of(const dp_host_engine_t *engine, int local, size_t piece)
{
    const uint64_t offset =
        dp_host_slot(engine, local)->pieces + piece * sizeof(dp_control_piece_t);

    return dp_arena_at(engine->arena, local, offset, sizeof(dp_control_piece_t));
}

const void *dp_host_in(const dp_host_engine_t *engine, int local, size_t piece, size_t element,
                       size_t count, size_t elem_bytes)
{
    const dp_control_piece_t *published;

    if (local == engine->local_rank) {
        return (const char *)engine->op->pieces[piece].in + element * elem_bytes;
    }
    published = piece_of(engine, local, piece);
    if (published == NULL) return NULL;
    return dp_arena_at(engine->arena, local, published->in + element * elem_bytes,
                       count * elem_bytes);
}

void *dp_host_out(const dp_host_engine_t *engine, int local, size_t piece, size_t element,
                  size_t count, size_t elem_bytes)
{
    const dp_control_piece_t *published;

    if (local == engine->local_rank) {
        return (char *)engine->op->pieces[piece].out + element * elem_bytes;
    }
    published = piece_of(engine, local, piece);
    if (published == NULL) return NULL;
    return dp_arena_at(engine->arena, local, published->out + element * elem_bytes,
                       count * elem_bytes);
}

/* ---- Figures ----------------------------------------------------------------------------------
 */

static int is_float(dp_dtype_t dtype)
{
    return dtype == DP_F16 || dtype == DP_BF16 || dtype == DP_F32 || dtype == DP_F64;
}

int64_t dp_host_divisor(const dp_host_engine_t *engine, const dp_engine_op_t *op)
{
    return op->reduce == DP_AVERAGE && !is_float(op->dtype) ? engine->size : 0;
}

int dp_host_wants_tally(const dp_host_engine_t *engine, const dp_engine_op_t *op)
{
    if (!is_float(op->dtype) || (op->reduce != DP_SUM && op->reduce != DP_AVERAGE)) return 0;
    for (int i = 0; i < engine->local_size; i++) {
        if (dp_host_slot(engine, i)->wants_tally) return 1;
    }
    return 0;
}

void dp_host_clear_tallies(dp_host_engine_t *engine, dp_range_t range)
{
    dp_tally_t *tallies = engine->boards[dp_host_parity(engine)].tallies;

    if (range.begin >= range.end) return;
    for (size_t i = dp_layout_piece(&engine->layout, range.begin);
         i <= dp_layout_piece(&engine->layout, range.end - 1); i++) {
        dp_tally_init(&tallies[i]);
    }
}

dp_tally_t *dp_host_tally(dp_host_engine_t *engine, size_t piece, int wanted)
{
    return wanted ? &engine->boards[dp_host_parity(engine)].tallies[piece] : NULL;
}

dp_status_t dp_host_add_tallies(dp_host_engine_t *engine, dp_engine_op_t *op, int local,
                                dp_range_t range)
{
    const uint64_t offset = dp_host_slot(engine, local)->tallies;
    const dp_tally_t *tallies =
        dp_arena_at(engine->arena, local, offset, op->piece_count * sizeof(*tallies));

    if (range.begin >= range.end) return DP_OK;
    if (tallies == NULL) return dp_host_bad_offset(engine, local);
    for (size_t i = dp_layout_piece(&engine->layout, range.begin);
         i <= dp_layout_piece(&engine->layout, range.end - 1); i++) {
        if (op->pieces[i].tally != NULL) dp_tally_merge(op->pieces[i].tally, &tallies[i]);
    }
    return DP_OK;
}
