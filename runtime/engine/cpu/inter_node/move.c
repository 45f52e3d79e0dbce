/*
 * move.c - broadcast, allgather and barrier between nodes: data that moves unchanged.
 *
 * Data from another node lands in engine memory (scratch) of the rank that receives it; from
 * there all ranks of the node copy it to their own outputs. Three barriers of the node: all ranks
 * have arrived; everything from other nodes has arrived; all have copied, so the scratch is free.
 * Runs on the thread that runs operations.
 */
#include "runtime/engine/cpu/inter_node/inter_node.h"

#include <stdlib.h>
#include <string.h>

typedef struct move_run {
    dp_cpu_group_t *group;
    dp_engine_op_t *op;
    dp_inter_node_t *inter_node;
    size_t chunk_blocks;
    size_t elem_bytes;
    int sends;        /* this rank sends to its partner on every other node */
    int local;        /* whose input of this node it sends */
    dp_range_t range; /* what of it */
    size_t chunks;
    size_t sent;
    int source_count; /* of between->sources: who sends here */
    int last_missing;
    int has_heard;
    uint64_t wait_begin_ns;
} move_run_t;

/* ---- Sending -------------------------------------------------------------------------------- */

static dp_status_t pack(move_run_t *run, dp_range_t chunk, char *buffer, size_t *bytes)
{
    dp_cpu_group_t *group = run->group;
    dp_segment_t segment;

    *bytes = 0;
    while (dp_layout_next(&group->layout, &chunk, &segment)) {
        const void *in = dp_cpu_input_at(group, run->local, segment.piece, segment.start,
                                         segment.count, run->elem_bytes);

        if (in == NULL) return dp_cpu_bad_offset(group, run->local);
        memcpy(buffer + *bytes, in, segment.count * run->elem_bytes);
        *bytes += segment.count * run->elem_bytes;
    }
    return DP_OK;
}

/* The partner on the i-th other node. */
static int peer_on(const move_run_t *run, int i)
{
    return run->inter_node->peer_of[i < run->group->node ? i : i + 1];
}

/* Sends the next chunk to all other nodes, if the buffer of the chunk DP_CHUNK_WINDOW before it is
 * free: one packed copy serves all of them. */
static dp_status_t send_chunk(move_run_t *run, int *busy)
{
    const int nodes = run->inter_node->others;
    const size_t place = run->sent % DP_CHUNK_WINDOW;
    dp_ucx_link_message_t *messages = &run->inter_node->answered[place * (size_t)nodes];
    char *buffer = run->inter_node->pool->send[place];
    size_t bytes;
    int failed;
    dp_status_t status;

    if (!run->sends || run->sent == run->chunks) return DP_OK;
    if (!dp_inter_node_all_done(messages, nodes, &failed)) return DP_OK;
    if (failed >= 0) return dp_inter_node_lost(run->group, peer_on(run, failed));
    status = pack(run, dp_range_chunk(run->range, run->sent, run->chunk_blocks), buffer, &bytes);
    for (int i = 0; status == DP_OK && i < nodes; i++) {
        const uint64_t tag =
            dp_inter_node_tag(run->group, run->group->rank, DP_KIND_MOVE, run->sent);

        if (dp_ucx_link_send(run->group->lane->link, peer_on(run, i), tag, buffer, bytes,
                             &messages[i]) != DP_OK) {
            return dp_inter_node_lost(run->group, peer_on(run, i));
        }
        run->op->wire_bytes += bytes;
    }
    run->sent++;
    *busy = 1;
    return status;
}

/* ---- Receiving ------------------------------------------------------------------------------ */

static dp_ucx_link_message_t *message_of(const move_run_t *run, int source, size_t chunk)
{
    return &run->inter_node->received[(size_t)source * DP_CHUNK_WINDOW + chunk % DP_CHUNK_WINDOW];
}

/* Counts the chunks that have come from a source, in their order, and keeps DP_CHUNK_WINDOW
 * receives posted. A chunk is received where it belongs, so nothing has to be copied. */
static dp_status_t receive_chunks(move_run_t *run, int index, int *busy)
{
    dp_inter_node_source_t *source = &run->inter_node->sources[index];

    for (; source->delivered < source->posted; source->delivered++) {
        const dp_ucx_link_message_t *message = message_of(run, index, source->delivered);

        if (message->is_pending) break;
        if (message->is_failed) return dp_inter_node_lost(run->group, source->peer);
        *busy = 1;
    }
    for (; source->posted < source->chunks && source->posted < source->delivered + DP_CHUNK_WINDOW;
         source->posted++) {
        const dp_range_t chunk = dp_range_chunk(source->range, source->posted, run->chunk_blocks);
        const dp_range_t before = {source->range.begin, chunk.begin};
        const uint64_t tag =
            dp_inter_node_tag(run->group, source->rank, DP_KIND_MOVE, source->posted);

        if (dp_ucx_link_receive(run->group->lane->link, tag,
                                source->to +
                                    dp_layout_elems(&run->group->layout, before) * run->elem_bytes,
                                dp_layout_elems(&run->group->layout, chunk) * run->elem_bytes,
                                message_of(run, index, source->posted)) != DP_OK) {
            return dp_inter_node_lost(run->group, source->peer);
        }
    }
    return DP_OK;
}

/* ---- The loop ------------------------------------------------------------------------------- */

static int is_finished(const move_run_t *run, int *failed_peer)
{
    const int nodes = run->inter_node->others;
    int failed;

    *failed_peer = -1;
    for (int i = 0; i < run->source_count; i++) {
        const dp_inter_node_source_t *source = &run->inter_node->sources[i];

        if (source->delivered < source->chunks) return 0;
    }
    if (!run->sends) return 1;
    if (run->sent < run->chunks) return 0;
    if (!dp_inter_node_all_done(run->inter_node->answered, DP_CHUNK_WINDOW * nodes, &failed))
        return 0;
    if (failed >= 0) *failed_peer = peer_on(run, failed % nodes);
    return 1;
}

/* Until every source has sent its first chunk, this rank counts as waiting for others to arrive. */
static void note_heard(move_run_t *run)
{
    for (int i = 0; i < run->source_count; i++) {
        if (run->inter_node->sources[i].delivered > 0 || run->inter_node->sources[i].chunks == 0)
            continue;
        run->last_missing = i;
        return;
    }
    run->has_heard = 1;
    if (run->wait_begin_ns == 0 || run->source_count == 0) return;
    dp_inter_node_note_wait(run->group, run->wait_begin_ns,
                            run->group->ranks[run->inter_node->sources[run->last_missing].rank]);
}

static dp_status_t sleep_or_fail(move_run_t *run)
{
    const dp_ucx_link_t *link = run->group->lane->link;
    int missing = -1;

    for (int i = 0; i < run->source_count; i++) {
        const dp_inter_node_source_t *source = &run->inter_node->sources[i];

        if (source->delivered < source->chunks && missing < 0) {
            missing = dp_ucx_link_rank(link, source->peer);
        }
        if (source->delivered < source->chunks && dp_ucx_link_is_lost(link, source->peer, NULL)) {
            return dp_inter_node_lost(run->group, source->peer);
        }
    }
    for (int i = 0; run->sends && run->sent < run->chunks && i < run->inter_node->others; i++) {
        if (dp_ucx_link_is_lost(link, peer_on(run, i), NULL)) {
            return dp_inter_node_lost(run->group, peer_on(run, i));
        }
        if (missing < 0) missing = dp_ucx_link_rank(link, peer_on(run, i));
    }
    for (int i = 0; run->sends && missing < 0 && i < DP_CHUNK_WINDOW * run->inter_node->others;
         i++) {
        if (run->inter_node->answered[i].is_pending)
            missing = dp_ucx_link_rank(link, peer_on(run, i % run->inter_node->others));
    }
    if (!run->has_heard) dp_inter_node_begin_wait(run->group, &run->wait_begin_ns);
    dp_ucx_link_idle_for(run->group->lane->link, missing);
    return DP_OK;
}

static dp_status_t stream_chunks(move_run_t *run)
{
    int failed_peer;

    while (!is_finished(run, &failed_peer)) {
        int busy = dp_ucx_link_progress(run->group->lane->link) != 0;
        dp_status_t status = dp_inter_node_check_abort(run->group);

        for (int i = 0; status == DP_OK && i < run->source_count; i++) {
            status = receive_chunks(run, i, &busy);
        }
        if (status == DP_OK && !run->has_heard) note_heard(run);
        if (status == DP_OK) status = send_chunk(run, &busy);
        if (status == DP_OK && !busy && !is_finished(run, &failed_peer))
            status = sleep_or_fail(run);
        if (status != DP_OK) return status;
    }
    return failed_peer >= 0 ? dp_inter_node_lost(run->group, failed_peer) : DP_OK;
}

/* ---- Rows of other nodes, and their receivers ----------------------------------------------- */

static void add_source(move_run_t *run, int rank, dp_range_t range, char *to)
{
    run->inter_node->sources[run->source_count++] = (dp_inter_node_source_t){
        .rank = rank,
        .peer = dp_inter_node_peer(run->group, rank),
        .node = run->group->topology->node[rank],
        .range = range,
        .chunks = dp_range_chunks(range, run->chunk_blocks),
        .to = to,
    };
}

/* Copies a packed range from the scratch of a local rank to row `row` of the own outputs. */
static dp_status_t unpack(move_run_t *run, int local, size_t offset, dp_range_t range, size_t row)
{
    dp_cpu_group_t *group = run->group;
    const size_t bytes = dp_layout_elems(&group->layout, range) * run->elem_bytes;
    const char *from =
        dp_cpu_memory_at(group, local, dp_cpu_descriptor(group, local)->scratch + offset, bytes);
    dp_segment_t segment;

    if (from == NULL) return dp_cpu_bad_offset(group, local);
    while (dp_layout_next(&group->layout, &range, &segment)) {
        const dp_engine_piece_t *piece = &run->op->pieces[segment.piece];
        const size_t at = row * piece->stride + segment.start;

        if (piece->out != NULL) {
            memcpy((char *)piece->out + at * run->elem_bytes, from,
                   segment.count * run->elem_bytes);
        }
        from += segment.count * run->elem_bytes;
    }
    return DP_OK;
}

/* ---- Broadcast ------------------------------------------------------------------------------ */

/* On the root's node each owner sends a shard of the root's input, so that all of the node's ranks
 * share the work of the network; on the other nodes the owners receive. */
static dp_status_t broadcast(move_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    const dp_topology_t *topology = group->topology;
    const dp_range_t all = dp_layout_all(&group->layout);
    const int root_node = topology->node[run->op->root];
    const int owners = run->inter_node->owners;
    dp_status_t status = DP_OK;

    if (group->local_rank < owners) {
        run->range = dp_range_part(all, group->local_rank, owners);
        run->chunks = dp_range_chunks(run->range, run->chunk_blocks);
        run->sends = group->node == root_node;
        run->local = topology->local_rank[run->op->root];
        if (!run->sends) {
            const size_t elems = dp_layout_elems(&group->layout, run->range);
            const int root_partner = dp_inter_node_partner(group, root_node);
            char *scratch;

            status = dp_inter_node_scratch(group, elems * run->elem_bytes, &scratch);
            if (status == DP_OK) add_source(run, root_partner, run->range, scratch);
        }
        if (status == DP_OK) status = stream_chunks(run);
    }
    if (status == DP_OK) status = dp_cpu_node_barrier(group);
    if (status == DP_OK && group->node == root_node) {
        status = dp_cpu_copy_row(group, run->op, topology->local_rank[run->op->root], 0);
    }
    for (int k = 0; status == DP_OK && group->node != root_node && k < owners; k++) {
        status = unpack(run, k, 0, dp_range_part(all, k, owners), 0);
    }
    return status;
}

/* ---- Allgather ------------------------------------------------------------------------------ */

/* Bytes between rows in a scratch. */
static size_t row_bytes(const move_run_t *run)
{
    return dp_align_up(run->group->layout.elem_count * run->elem_bytes, 64);
}

/* Which local rank of this node receives the row of a rank of another node: its partner here. */
static int server_of(const dp_cpu_group_t *group, int rank)
{
    return group->topology->local_rank[rank] % group->local_size;
}

static dp_status_t allgather(move_run_t *run)
{
    dp_cpu_group_t *group = run->group;
    const dp_topology_t *topology = group->topology;
    const dp_range_t all = dp_layout_all(&group->layout);
    size_t served = 0;
    char *scratch;
    dp_status_t status;

    for (int rank = 0; rank < group->size; rank++) {
        served +=
            topology->node[rank] != group->node && server_of(group, rank) == group->local_rank;
    }
    run->range = all;
    run->chunks = dp_range_chunks(all, run->chunk_blocks);
    run->sends = 1;
    run->local = group->local_rank;
    status = dp_inter_node_scratch(group, served * row_bytes(run), &scratch);
    for (int rank = 0; status == DP_OK && rank < group->size; rank++) {
        if (topology->node[rank] == group->node) continue;
        if (server_of(group, rank) != group->local_rank) continue;
        add_source(run, rank, all,
                   scratch == NULL ? NULL : scratch + (size_t)run->source_count * row_bytes(run));
    }
    if (status == DP_OK) status = stream_chunks(run);
    for (int k = 0; status == DP_OK && k < group->local_size; k++) {
        status = dp_cpu_copy_row(group, run->op, k, (size_t)group->local_ranks[k]);
    }
    if (status == DP_OK) status = dp_cpu_node_barrier(group);
    for (int server = 0; status == DP_OK && server < group->local_size; server++) {
        size_t place = 0;

        for (int rank = 0; status == DP_OK && rank < group->size; rank++) {
            if (topology->node[rank] == group->node) continue;
            if (server_of(group, rank) != server) continue;
            status = unpack(run, server, place++ * row_bytes(run), all, (size_t)rank);
        }
    }
    return status;
}

/* ---- All three ------------------------------------------------------------------------------ */

dp_status_t dp_inter_node_move(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const size_t elem_bytes = dp_max(dp_dtype_bytes(op->dtype), (size_t)1);
    const char *received;
    move_run_t run = {.group = group,
                      .op = op,
                      .inter_node = group->inter_node,
                      .elem_bytes = elem_bytes,
                      .chunk_blocks = DP_CHUNK_BYTES / (DP_TALLY_BLOCK * elem_bytes)};
    dp_status_t status = DP_OK;

    if (op->collective == DP_COLLECTIVE_BARRIER) {
        if (group->local_rank == 0) {
            uint64_t *token = &group->inter_node->pool->token;

            *token = op->sequence;
            status = dp_inter_node_leader_allgather(group, DP_KIND_TOKEN, token, sizeof(*token), 0,
                                                    &received);
        }
        return status == DP_OK ? dp_cpu_node_barrier(group) : status;
    }
    status = op->collective == DP_COLLECTIVE_BROADCAST ? broadcast(&run) : allgather(&run);
    if (status == DP_OK) status = dp_cpu_node_barrier(group);
    if (status == DP_OK) dp_inter_node_scratch_release(group);
    return status;
}
