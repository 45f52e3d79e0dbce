/*
 * reduce.c - allreduce, reduce and reduce_scatter between nodes, as overlapping streams of
 * chunks.
 *
 * The shard of a local rank is cut again by nodes; each node's part is owned by the rank's partner
 * there. For two nodes, A and B, and their local rank 0:
 *
 *   rank 0 of node A, owns a                        rank 0 of node B, owns b
 *
 *   sum of A's ranks over b, chunk 0 --PARTIAL-->   + sum of B's ranks over b --> result, chunk 0
 *                            chunk 1 --PARTIAL-->                                 written on B
 *   result written on A's ranks      <--RESULT---   sent back, chunk 0
 *   sum of A's ranks over a +        <--PARTIAL--   sum of B's ranks over a, chunk 0
 *   = result, written on A           ---RESULT-->   written on B's ranks
 *
 * A rank does three things in turn, one chunk at a time: it sums its node's inputs over what other
 * nodes own and sends that (send_partial); it adds the partial sums that have come for its own part
 * and sends the result to the others (combine_chunk); it writes results that have come into its
 * node's outputs (deliver_results). Each stream keeps DP_CHUNK_WINDOW chunks in flight, so summing,
 * the network and writing overlap.
 *
 * The three cannot deadlock: results are always taken, which frees the owners' result buffers, so
 * partial sums are taken, which frees the buffers of the sums that are sent.
 *
 * In a reduce results go only to the nodes of the roots, in a reduce_scatter to nobody: each rank
 * owns its own row. All of it runs on the thread that runs operations.
 */
#include "runtime/engine/cpu/inter_node/inter_node.h"

#include <string.h>

typedef struct reduce_run {
    dp_cpu_group_t *group;
    dp_engine_op_t *op;
    dp_inter_node_t *inter_node;
    dp_numeric_t numeric;
    int gathers; /* the results go to everybody, or to roots */
    size_t chunk_blocks;
    dp_range_t range; /* what this rank owns */
    size_t row;
    size_t chunks;
    dp_inter_node_target_t *targets; /* [target_count] */
    int target_count;
    size_t target_chunks;            /* the largest of the targets' */
    dp_inter_node_source_t *sources; /* [between->others] by node; range: what it owns itself,
                                     posted and delivered: its results */
    size_t next_send;                /* counts chunk by chunk, in each target by target */
    size_t posted;                   /* chunks whose partial sums are awaited */
    size_t combined;                 /* chunks added up */
    uint32_t last_rank;              /* who arrived last on this node */
    int has_heard;                   /* partial sums of the first chunk are all here */
    uint64_t wait_begin_ns;
    int last_missing; /* whose first partial sum came last */
} reduce_run_t;

static size_t chunk_bytes(const reduce_run_t *run, dp_range_t chunk, dp_dtype_t dtype)
{
    return dp_layout_elems(&run->group->layout, chunk) * dp_dtype_bytes(dtype);
}

static dp_ucx_link_message_t *partial_message(const reduce_run_t *run, int source, size_t chunk)
{
    return &run->inter_node->received[(size_t)source * DP_CHUNK_WINDOW + chunk % DP_CHUNK_WINDOW];
}

static char *partial_buffer(const reduce_run_t *run, int source, size_t chunk)
{
    return run->inter_node->partial[(size_t)source * DP_CHUNK_WINDOW + chunk % DP_CHUNK_WINDOW];
}

static dp_ucx_link_message_t *gather_message(const reduce_run_t *run, int source, size_t chunk)
{
    return &run->inter_node->gathered[(size_t)source * DP_CHUNK_WINDOW + chunk % DP_CHUNK_WINDOW];
}

static char *gather_buffer(const reduce_run_t *run, int source, size_t chunk)
{
    return run->inter_node->gather[(size_t)source * DP_CHUNK_WINDOW + chunk % DP_CHUNK_WINDOW];
}

/* 1: results of a chunk go to a node: always, but in a reduce only where a root of it sits. */
static int is_wanted_on(const reduce_run_t *run, int node, dp_range_t chunk)
{
    const dp_cpu_group_t *group = run->group;

    if (run->op->collective != DP_COLLECTIVE_REDUCE) return 1;
    for (size_t i = dp_layout_piece(&group->layout, chunk.begin);
         i <= dp_layout_piece(&group->layout, chunk.end - 1); i++) {
        if (group->topology->node[run->op->pieces[i].root] == node) return 1;
    }
    return 0;
}

/* ---- Receives ------------------------------------------------------------------------------- */

static dp_status_t post_partials(reduce_run_t *run)
{
    dp_ucx_link_t *link = run->group->lane->link;

    for (; run->posted < run->chunks && run->posted < run->combined + DP_CHUNK_WINDOW;
         run->posted++) {
        const dp_range_t chunk = dp_range_chunk(run->range, run->posted, run->chunk_blocks);
        const size_t bytes = chunk_bytes(run, chunk, run->numeric.partial) + DP_CHUNK_HEAD;

        for (int i = 0; i < run->inter_node->others; i++) {
            const uint64_t tag =
                dp_inter_node_tag(run->group, run->sources[i].rank, DP_KIND_PARTIAL, run->posted);

            if (dp_ucx_link_receive(link, tag, partial_buffer(run, i, run->posted), bytes,
                                    partial_message(run, i, run->posted)) != DP_OK) {
                return dp_inter_node_lost(run->group, run->sources[i].peer);
            }
        }
    }
    return DP_OK;
}

static dp_status_t post_results(reduce_run_t *run)
{
    dp_ucx_link_t *link = run->group->lane->link;

    for (int i = 0; run->gathers && i < run->inter_node->others; i++) {
        dp_inter_node_source_t *source = &run->sources[i];

        for (; source->posted < source->chunks &&
               source->posted < source->delivered + DP_CHUNK_WINDOW;
             source->posted++) {
            const dp_range_t chunk =
                dp_range_chunk(source->range, source->posted, run->chunk_blocks);
            const uint64_t tag =
                dp_inter_node_tag(run->group, source->rank, DP_KIND_RESULT, source->posted);

            if (!is_wanted_on(run, run->group->node, chunk)) continue;
            if (dp_ucx_link_receive(link, tag, gather_buffer(run, i, source->posted),
                                    chunk_bytes(run, chunk, run->numeric.result),
                                    gather_message(run, i, source->posted)) != DP_OK) {
                return dp_inter_node_lost(run->group, source->peer);
            }
        }
    }
    return DP_OK;
}

/* ---- Steps; each does one chunk at most, *busy says whether it did -------------------------- */

static dp_status_t send_partial(reduce_run_t *run, int *busy)
{
    const size_t total = run->target_chunks * (size_t)run->target_count;
    const dp_chunk_head_t head = {run->group->op_index, run->last_rank, (uint32_t)run->op->digest};
    const dp_inter_node_target_t *target;
    dp_ucx_link_message_t *message;
    dp_range_t range;
    size_t chunk;
    size_t bytes;
    char *buffer;
    dp_status_t status;

    for (;; run->next_send++) { /* targets may have a chunk less than the largest */
        if (run->next_send == total) return DP_OK;
        target = &run->targets[run->next_send % (size_t)run->target_count];
        chunk = run->next_send / (size_t)run->target_count;
        if (chunk < target->chunks) break;
    }
    message = &run->inter_node->sent[run->next_send % DP_CHUNK_WINDOW];
    if (message->is_pending) return DP_OK;
    if (message->is_failed) return dp_inter_node_lost(run->group, target->peer);
    buffer = run->inter_node->pool->send[run->next_send % DP_CHUNK_WINDOW];
    range = dp_range_chunk(target->range, chunk, run->chunk_blocks);
    memcpy(buffer, &head, sizeof(head));
    status = dp_partial_make(run->group, &run->numeric, range, target->row, buffer + DP_CHUNK_HEAD);
    if (status != DP_OK) return status;
    bytes = chunk_bytes(run, range, run->numeric.partial) + DP_CHUNK_HEAD;
    if (dp_ucx_link_send(run->group->lane->link, target->peer,
                         dp_inter_node_tag(run->group, run->group->rank, DP_KIND_PARTIAL, chunk),
                         buffer, bytes, message) != DP_OK) {
        return dp_inter_node_lost(run->group, target->peer);
    }
    run->op->wire_bytes += bytes;
    run->next_send++;
    *busy = 1;
    return DP_OK;
}

/* Sends a result to every other node that wants it. */
static dp_status_t send_result(reduce_run_t *run, size_t chunk, const char *buffer, size_t bytes)
{
    const dp_range_t range = dp_range_chunk(run->range, chunk, run->chunk_blocks);
    dp_ucx_link_message_t *messages =
        &run->inter_node->answered[chunk % DP_CHUNK_WINDOW * (size_t)run->inter_node->others];

    for (int i = 0; i < run->inter_node->others; i++) {
        const int peer = run->sources[i].peer;

        if (!is_wanted_on(run, run->sources[i].node, range)) continue;
        if (dp_ucx_link_send(run->group->lane->link, peer,
                             dp_inter_node_tag(run->group, run->group->rank, DP_KIND_RESULT, chunk),
                             buffer, bytes, &messages[i]) != DP_OK) {
            return dp_inter_node_lost(run->group, peer);
        }
        run->op->wire_bytes += bytes;
    }
    return DP_OK;
}

/* 1: the partial sums of the next chunk have come from all nodes. */
static int have_partials(const reduce_run_t *run, int *failed)
{
    *failed = -1;
    for (int i = 0; i < run->inter_node->others; i++) {
        const dp_ucx_link_message_t *message = partial_message(run, i, run->combined);

        if (message->is_pending) return 0;
        if (message->is_failed && *failed < 0) *failed = i;
    }
    return 1;
}

/* Checks the heads of the partial sums of the next chunk, and points run->inter_node->partials at
 * them in ascending order of the nodes: the order in which they are added. */
static dp_status_t collect_partials(reduce_run_t *run)
{
    const size_t chunk = run->combined;

    for (int i = 0; i < run->inter_node->others; i++) {
        const dp_inter_node_source_t *source = &run->sources[i];
        const char *buffer = partial_buffer(run, i, chunk);
        dp_chunk_head_t head;

        memcpy(&head, buffer, sizeof(head));
        if (head.op != run->group->op_index) {
            return dp_cpu_fail(run->group, DP_ERR_MISMATCH,
                               "%s %llu%s: rank %d sent a part of operation %llu, expected %llu",
                               dp_collective_name(run->op->collective),
                               (unsigned long long)run->op->sequence, run->group->title,
                               run->group->ranks[source->rank], (unsigned long long)head.op,
                               (unsigned long long)run->group->op_index);
        }
        if (head.digest != (uint32_t)run->op->digest) {
            const int self = run->group->engine->rank, other = run->group->ranks[source->rank];

            return dp_cpu_fail(run->group, DP_ERR_MISMATCH,
                               "%s %llu%s: rank %d and rank %d brought different tensors",
                               dp_collective_name(run->op->collective),
                               (unsigned long long)run->op->sequence, run->group->title,
                               dp_min(self, other), dp_max(self, other));
        }
        run->inter_node->partials[source->node] = buffer + DP_CHUNK_HEAD;
    }
    run->inter_node->partials[run->group->node] = run->inter_node->pool->own;
    return DP_OK;
}

static dp_status_t combine_chunk(reduce_run_t *run, int *busy)
{
    const size_t place = run->combined % DP_CHUNK_WINDOW;
    dp_ucx_link_message_t *answers =
        &run->inter_node->answered[place * (size_t)run->inter_node->others];
    char *result = run->inter_node->pool->result[place];
    dp_range_t chunk;
    dp_status_t status;
    int failed;

    if (run->combined == run->chunks || run->posted == run->combined) return DP_OK;
    if (!have_partials(run, &failed)) return DP_OK;
    if (failed >= 0) return dp_inter_node_lost(run->group, run->sources[failed].peer);
    if (!dp_inter_node_all_done(answers, run->inter_node->others, &failed)) return DP_OK;
    if (failed >= 0) return dp_inter_node_lost(run->group, run->sources[failed].peer);
    chunk = dp_range_chunk(run->range, run->combined, run->chunk_blocks);
    status = collect_partials(run);
    if (status == DP_OK) {
        status =
            dp_partial_make(run->group, &run->numeric, chunk, run->row, run->inter_node->pool->own);
    }
    if (status != DP_OK) return status;
    *busy = 1;
    if (run->gathers) {
        dp_partial_combine(run->group, &run->numeric, chunk, run->inter_node->partials, result);
        status =
            send_result(run, run->combined, result, chunk_bytes(run, chunk, run->numeric.result));
        if (status == DP_OK) {
            status = dp_partial_deliver(run->group, &run->numeric, chunk, result, 1);
        }
    } else {
        dp_partial_finish(run->group, &run->numeric, chunk, run->inter_node->partials);
    }
    run->combined++;
    return status;
}

static dp_status_t deliver_results(reduce_run_t *run, int *busy)
{
    for (int i = 0; run->gathers && i < run->inter_node->others; i++) {
        dp_inter_node_source_t *source = &run->sources[i];
        const dp_ucx_link_message_t *message = gather_message(run, i, source->delivered);
        dp_range_t chunk;
        dp_status_t status;

        if (source->delivered == source->posted || message->is_pending) continue;
        if (message->is_failed) return dp_inter_node_lost(run->group, source->peer);
        chunk = dp_range_chunk(source->range, source->delivered, run->chunk_blocks);
        if (is_wanted_on(run, run->group->node, chunk)) {
            status = dp_partial_deliver(run->group, &run->numeric, chunk,
                                        gather_buffer(run, i, source->delivered),
                                        run->op->collective == DP_COLLECTIVE_ALLREDUCE);
            if (status != DP_OK) return status;
        }
        source->delivered++;
        *busy = 1;
    }
    return DP_OK;
}

/* ---- The loop ------------------------------------------------------------------------------- */

/* 1: everything is sent, taken and written. Then *failed_peer is the peer to which a message could
 * not be sent, or -1. */
static int is_finished(const reduce_run_t *run, int *failed_peer)
{
    const dp_inter_node_t *inter_node = run->inter_node;
    int failed;

    *failed_peer = -1;
    if (run->next_send < run->target_chunks * (size_t)run->target_count) return 0;
    if (run->combined < run->chunks) return 0;
    for (int i = 0; run->gathers && i < inter_node->others; i++) {
        if (run->sources[i].delivered < run->sources[i].chunks) return 0;
    }
    if (!dp_inter_node_all_done(inter_node->sent, DP_CHUNK_WINDOW, &failed)) return 0;
    if (failed >= 0) *failed_peer = run->targets[0].peer;
    if (!dp_inter_node_all_done(inter_node->answered, DP_CHUNK_WINDOW * inter_node->others,
                                &failed))
        return 0;
    if (failed >= 0) *failed_peer = run->sources[failed % inter_node->others].peer;
    return 1;
}

/* 1: nothing shows yet that a source has come: its first partial sum is missing, or, where this
 * rank owns nothing and gets none, its first result. */
static int is_missing(const reduce_run_t *run, int source)
{
    if (run->chunks != 0) return partial_message(run, source, 0)->is_pending;
    return run->sources[source].posted != 0 && run->sources[source].delivered == 0 &&
           gather_message(run, source, 0)->is_pending;
}

/* Until something has come from each source, this rank counts as waiting for other ranks. */
static void note_heard(reduce_run_t *run)
{
    dp_chunk_head_t head = {0};
    int last;

    for (int i = 0; i < run->inter_node->others; i++) {
        if (!is_missing(run, i)) continue;
        run->last_missing = i;
        return;
    }
    run->has_heard = 1;
    if (run->wait_begin_ns == 0) return;
    last = dp_ucx_link_rank(run->group->lane->link, run->sources[run->last_missing].peer);
    if (run->chunks != 0) {
        memcpy(&head, partial_buffer(run, run->last_missing, 0), sizeof(head));
        if (head.last_rank < (uint32_t)run->group->engine->size) last = (int)head.last_rank;
    }
    dp_inter_node_note_wait(run->group, run->wait_begin_ns, last);
}

/* The rank of the world that this rank waits for first: for its partial sum, its result, or until
 * it takes what it is sent. */
static int awaited(const reduce_run_t *run)
{
    const dp_ucx_link_t *link = run->group->lane->link;

    for (int i = 0; i < run->inter_node->others && run->posted > run->combined; i++) {
        if (partial_message(run, i, run->combined)->is_pending) {
            return dp_ucx_link_rank(link, run->sources[i].peer);
        }
    }
    for (int i = 0; run->gathers && i < run->inter_node->others; i++) {
        if (run->sources[i].delivered < run->sources[i].chunks) {
            return dp_ucx_link_rank(link, run->sources[i].peer);
        }
    }
    return run->target_count > 0 ? dp_ucx_link_rank(link, run->targets[0].peer) : -1;
}

/* Sleeps until a message moves. Fails when a partner that is still needed has gone. */
static dp_status_t sleep_or_fail(reduce_run_t *run)
{
    const dp_ucx_link_t *link = run->group->lane->link;
    const int has_sent = run->next_send == run->target_chunks * (size_t)run->target_count;

    for (int i = 0; i < run->inter_node->others; i++) {
        const dp_inter_node_source_t *source = &run->sources[i];

        /* A partner that has sent everything may leave while our last sends to others are pending.
         */
        if (has_sent && run->combined == run->chunks && source->delivered == source->chunks) {
            continue;
        }
        if (dp_ucx_link_is_lost(link, source->peer, NULL)) {
            return dp_inter_node_lost(run->group, source->peer);
        }
    }
    for (int i = 0; !has_sent && i < run->target_count; i++) {
        if (dp_ucx_link_is_lost(link, run->targets[i].peer, NULL)) {
            return dp_inter_node_lost(run->group, run->targets[i].peer);
        }
    }
    if (!run->has_heard && (run->chunks != 0 || run->gathers))
        dp_inter_node_begin_wait(run->group, &run->wait_begin_ns);
    dp_ucx_link_idle_for(run->group->lane->link, awaited(run));
    return DP_OK;
}

static dp_status_t stream_chunks(reduce_run_t *run)
{
    int failed_peer;

    while (!is_finished(run, &failed_peer)) {
        int busy = dp_ucx_link_progress(run->group->lane->link) != 0;
        dp_status_t status = dp_inter_node_check_abort(run->group);

        if (status == DP_OK) status = post_partials(run);
        if (status == DP_OK) status = post_results(run);
        if (status == DP_OK) status = send_partial(run, &busy);
        if (status == DP_OK && !run->has_heard) note_heard(run);
        if (status == DP_OK) status = combine_chunk(run, &busy);
        if (status == DP_OK) status = deliver_results(run, &busy);
        if (status == DP_OK && !busy && !is_finished(run, &failed_peer))
            status = sleep_or_fail(run);
        if (status != DP_OK) return status;
    }
    return failed_peer >= 0 ? dp_inter_node_lost(run->group, failed_peer) : DP_OK;
}

/* ---- Owners of shards ----------------------------------------------------------------------- */

static void add_target(reduce_run_t *run, int rank, dp_range_t range, size_t row)
{
    dp_inter_node_target_t *target = &run->targets[run->target_count++];

    *target = (dp_inter_node_target_t){
        .rank = rank,
        .peer = dp_inter_node_peer(run->group, rank),
        .range = range,
        .row = row,
        .chunks = dp_range_chunks(range, run->chunk_blocks),
    };
    run->target_chunks = dp_max(run->target_chunks, target->chunks);
}

/* An allreduce: each owner's shard is cut again by nodes. */
static void plan_allreduce(reduce_run_t *run)
{
    const dp_cpu_group_t *group = run->group;
    const dp_range_t shard =
        dp_range_part(dp_layout_all(&group->layout), group->local_rank, run->inter_node->owners);

    run->range = dp_range_part(shard, group->node, group->node_count);
    for (int i = 0; i < run->inter_node->others; i++) {
        dp_inter_node_source_t *source = &run->sources[i];

        source->range = dp_range_part(shard, source->node, group->node_count);
        source->chunks = dp_range_chunks(source->range, run->chunk_blocks);
    }
    for (int i = 1; i < group->node_count; i++) { /* not everybody to the same one first */
        const int node = (group->node + i) % group->node_count;

        add_target(run, dp_inter_node_partner(group, node),
                   dp_range_part(shard, node, group->node_count), 0);
    }
}

/* A reduce_scatter: every rank owns its row, and serves the ranks elsewhere it is the partner of.
 */
static void plan_reduce_scatter(reduce_run_t *run)
{
    const dp_cpu_group_t *group = run->group;
    const dp_topology_t *topology = group->topology;

    run->range = dp_layout_all(&group->layout);
    run->row = (size_t)group->rank;
    for (int i = 1; i < group->size; i++) {
        const int rank = (group->rank + i) % group->size;

        if (topology->node[rank] == group->node) continue;
        if (topology->local_rank[rank] % group->local_size != group->local_rank) continue;
        add_target(run, rank, run->range, (size_t)rank);
    }
}

static void plan(reduce_run_t *run)
{
    const dp_cpu_group_t *group = run->group;
    const size_t widest =
        dp_max(dp_dtype_bytes(run->numeric.partial), dp_dtype_bytes(run->numeric.result));
    uint64_t latest_ns = 0;
    int count = 0;

    run->chunk_blocks = DP_CHUNK_BYTES / (DP_TALLY_BLOCK * widest);
    for (int node = 0; node < group->node_count; node++) {
        if (node == group->node) continue;
        run->sources[count++] = (dp_inter_node_source_t){
            .rank = dp_inter_node_partner(group, node),
            .peer = run->inter_node->peer_of[node],
            .node = node,
        };
    }
    for (int i = 0; i < group->local_size; i++) {
        const uint64_t arrive_ns = dp_cpu_descriptor(group, i)->arrive_ns;

        if (arrive_ns < latest_ns) continue;
        latest_ns = arrive_ns;
        run->last_rank = (uint32_t)dp_cpu_world_rank(group, i);
    }
    if (run->gathers) {
        plan_allreduce(run);
    } else {
        plan_reduce_scatter(run);
    }
    run->chunks = dp_range_chunks(run->range, run->chunk_blocks);
}

/* Gives every rank the figures of all rows, each of which the owner of the row has found. */
static dp_status_t spread_tallies(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const dp_range_t all = dp_layout_all(&group->layout);
    const size_t bytes = op->piece_count * sizeof(dp_tally_t);
    dp_inter_node_t *inter_node = group->inter_node;
    dp_tally_t *own = dp_cpu_publication(group)->tallies;
    const char *others = NULL;
    dp_status_t status = DP_OK;

    if (group->local_rank == 0 && bytes != 0) {
        for (int k = 1; k < group->local_size; k++) {
            const dp_tally_t *theirs =
                dp_cpu_memory_at(group, k, dp_cpu_descriptor(group, k)->tallies, bytes);

            if (theirs == NULL) return dp_cpu_bad_offset(group, k);
            for (size_t i = 0; i < op->piece_count; i++)
                dp_tally_merge(&own[i], &theirs[i]);
        }
        status = dp_inter_node_leader_allgather(group, DP_KIND_TALLY, own, bytes, 0, &others);
        for (int h = 0; status == DP_OK && h < inter_node->others; h++) {
            for (size_t i = 0; i < op->piece_count; i++) {
                dp_tally_t tally;

                memcpy(&tally, others + (size_t)h * bytes + i * sizeof(tally), sizeof(tally));
                dp_tally_merge(&own[i], &tally);
            }
        }
        if (status != DP_OK) return status;
    }
    status = dp_cpu_node_barrier(group);
    return status == DP_OK ? dp_cpu_add_tallies(group, op, 0, all) : status;
}

dp_status_t dp_inter_node_reduce(dp_cpu_group_t *group, dp_engine_op_t *op)
{
    const dp_range_t all = dp_layout_all(&group->layout);
    dp_inter_node_t *inter_node = group->inter_node;
    reduce_run_t run = {.group = group,
                        .op = op,
                        .inter_node = inter_node,
                        .targets = inter_node->targets,
                        .sources = inter_node->sources};
    int owners = group->local_size;
    dp_status_t status = DP_OK;

    run.gathers = op->collective != DP_COLLECTIVE_REDUCE_SCATTER;
    run.numeric = dp_numeric_choose(group, op);
    if (run.gathers) owners = inter_node->owners;
    if (run.numeric.wants_tally) {
        const int is_shared = op->collective == DP_COLLECTIVE_ALLREDUCE;

        if (!is_shared) dp_cpu_clear_tallies(group, all);
        if (is_shared && group->local_rank < owners) {
            dp_cpu_clear_tallies(group, dp_range_part(all, group->local_rank, owners));
        }
    }
    if (group->local_rank < owners) {
        plan(&run);
        status = stream_chunks(&run);
    }
    if (status == DP_OK) status = dp_cpu_node_barrier(group);
    if (status != DP_OK || !run.numeric.wants_tally) return status;
    if (op->collective != DP_COLLECTIVE_ALLREDUCE) return spread_tallies(group, op);
    for (int k = 0; status == DP_OK && k < owners; k++) {
        status = dp_cpu_add_tallies(group, op, k, dp_range_part(all, k, owners));
    }
    return status;
}
