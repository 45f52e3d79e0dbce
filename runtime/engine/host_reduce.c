/*
 * host_reduce.c - allreduce and reduce_scatter between hosts, as overlapping streams of chunks.
 *
 * A rank that owns a shard sums its host's part of what other hosts will own and sends it there;
 * receives their sums of what it owns itself, adds them up and, in an allreduce, sends the result
 * back to all. Each of the three streams keeps a few chunks in flight, so summing, the network and
 * spreading results overlap. The three cannot wait for each other in a circle: results are always
 * taken, which frees partial sums, which frees sends.
 */
#include "runtime/engine/host_between.h"

#include <string.h>

typedef struct reduce_run {
    dp_host_engine_t *engine;
    dp_engine_op_t *op;
    dp_between_t *between;
    dp_numeric_t numeric;
    int gathers; /* the results go to everybody */
    size_t chunk_blocks;
    dp_range_t range; /* what this rank owns */
    size_t row;
    size_t chunks;
    dp_between_target_t *targets; /* [target_count] */
    int target_count;
    size_t target_chunks;         /* the largest of the targets' */
    dp_between_source_t *sources; /* [between->hosts] by host; range: what it owns itself,
                                     posted and delivered: its results */
    size_t next_send;             /* counts chunk by chunk, in each target by target */
    size_t posted;                /* chunks whose partial sums are awaited */
    size_t combined;              /* chunks added up */
    uint32_t last_rank;           /* who arrived last on this host */
    int has_heard;                /* partial sums of the first chunk are all here */
    uint64_t wait_begin_ns;
    int last_missing; /* whose first partial sum came last */
} reduce_run_t;

static size_t chunk_bytes(const reduce_run_t *run, dp_range_t chunk, dp_dtype_t dtype)
{
    return dp_layout_elems(&run->engine->layout, chunk) * dp_dtype_bytes(dtype);
}

static dp_link_message_t *partial_message(const reduce_run_t *run, int source, size_t chunk)
{
    return &run->between->received[(size_t)source * DP_CHUNK_WINDOW + chunk % DP_CHUNK_WINDOW];
}

static char *partial_buffer(const reduce_run_t *run, int source, size_t chunk)
{
    return run->between->partial[(size_t)source * DP_CHUNK_WINDOW + chunk % DP_CHUNK_WINDOW];
}

static dp_link_message_t *gather_message(const reduce_run_t *run, int source, size_t chunk)
{
    return &run->between->gathered[(size_t)source * DP_CHUNK_WINDOW + chunk % DP_CHUNK_WINDOW];
}

static char *gather_buffer(const reduce_run_t *run, int source, size_t chunk)
{
    return run->between->gather[(size_t)source * DP_CHUNK_WINDOW + chunk % DP_CHUNK_WINDOW];
}

/* ---- Receives
 * --------------------------------------------------------------------------------------- */

static dp_status_t post_partials(reduce_run_t *run)
{
    dp_link_t *link = run->engine->link;

    for (; run->posted < run->chunks && run->posted < run->combined + DP_CHUNK_WINDOW;
         run->posted++) {
        const dp_range_t chunk = dp_range_chunk(run->range, run->posted, run->chunk_blocks);
        const size_t bytes = chunk_bytes(run, chunk, run->numeric.partial) + DP_CHUNK_HEAD;

        for (int i = 0; i < run->between->hosts; i++) {
            const uint64_t tag = dp_link_tag(run->sources[i].rank, run->engine->op_index,
                                             DP_KIND_PARTIAL, run->posted);

            if (dp_link_receive(link, tag, partial_buffer(run, i, run->posted), bytes,
                                partial_message(run, i, run->posted)) != DP_OK) {
                return dp_between_lost(run->engine, run->sources[i].peer);
            }
        }
    }
    return DP_OK;
}

static dp_status_t post_results(reduce_run_t *run)
{
    dp_link_t *link = run->engine->link;

    for (int i = 0; run->gathers && i < run->between->hosts; i++) {
        dp_between_source_t *source = &run->sources[i];

        for (; source->posted < source->chunks &&
               source->posted < source->delivered + DP_CHUNK_WINDOW;
             source->posted++) {
            const dp_range_t chunk =
                dp_range_chunk(source->range, source->posted, run->chunk_blocks);
            const uint64_t tag =
                dp_link_tag(source->rank, run->engine->op_index, DP_KIND_RESULT, source->posted);

            if (dp_link_receive(link, tag, gather_buffer(run, i, source->posted),
                                chunk_bytes(run, chunk, run->numeric.result),
                                gather_message(run, i, source->posted)) != DP_OK) {
                return dp_between_lost(run->engine, source->peer);
            }
        }
    }
    return DP_OK;
}

/* ---- Steps; each does one chunk at most, *busy says whether it did
 * ----------------------------------- */

static dp_status_t send_partial(reduce_run_t *run, int *busy)
{
    const size_t total = run->target_chunks * (size_t)run->target_count;
    const dp_chunk_head_t head = {run->engine->op_index, run->last_rank, 0};
    const dp_between_target_t *target;
    dp_link_message_t *message;
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
    message = &run->between->sent[run->next_send % DP_CHUNK_WINDOW];
    if (message->is_pending) return DP_OK;
    if (message->is_failed) return dp_between_lost(run->engine, target->peer);
    buffer = run->between->send[run->next_send % DP_CHUNK_WINDOW];
    range = dp_range_chunk(target->range, chunk, run->chunk_blocks);
    memcpy(buffer, &head, sizeof(head));
    status =
        dp_partial_make(run->engine, &run->numeric, range, target->row, buffer + DP_CHUNK_HEAD);
    if (status != DP_OK) return status;
    bytes = chunk_bytes(run, range, run->numeric.partial) + DP_CHUNK_HEAD;
    if (dp_link_send(run->engine->link, target->peer,
                     dp_link_tag(run->engine->rank, run->engine->op_index, DP_KIND_PARTIAL, chunk),
                     buffer, bytes, message) != DP_OK) {
        return dp_between_lost(run->engine, target->peer);
    }
    run->op->wire_bytes += bytes;
    run->next_send++;
    *busy = 1;
    return DP_OK;
}

/* Sends a result to every other host. */
static dp_status_t send_result(reduce_run_t *run, size_t chunk, const char *buffer, size_t bytes)
{
    dp_link_message_t *messages =
        &run->between->answered[chunk % DP_CHUNK_WINDOW * (size_t)run->between->hosts];

    for (int i = 0; i < run->between->hosts; i++) {
        const int peer = run->sources[i].peer;

        if (dp_link_send(
                run->engine->link, peer,
                dp_link_tag(run->engine->rank, run->engine->op_index, DP_KIND_RESULT, chunk),
                buffer, bytes, &messages[i]) != DP_OK) {
            return dp_between_lost(run->engine, peer);
        }
        run->op->wire_bytes += bytes;
    }
    return DP_OK;
}

/* 1: the partial sums of the next chunk have come from all hosts. */
static int have_partials(const reduce_run_t *run, int *failed)
{
    *failed = -1;
    for (int i = 0; i < run->between->hosts; i++) {
        const dp_link_message_t *message = partial_message(run, i, run->combined);

        if (message->is_pending) return 0;
        if (message->is_failed && *failed < 0) *failed = i;
    }
    return 1;
}

/* Checks what came, and points at the hosts' partial sums in their order. */
static dp_status_t line_up(reduce_run_t *run)
{
    const size_t chunk = run->combined;

    for (int i = 0; i < run->between->hosts; i++) {
        const dp_between_source_t *source = &run->sources[i];
        const char *buffer = partial_buffer(run, i, chunk);
        dp_chunk_head_t head;

        memcpy(&head, buffer, sizeof(head));
        if (head.op != run->engine->op_index) {
            return dp_host_fail(run->engine, DP_ERR_MISMATCH,
                                "%s %llu: rank %d sent a part of operation %llu, expected %llu",
                                dp_collective_name(run->op->collective),
                                (unsigned long long)run->op->sequence, source->rank,
                                (unsigned long long)head.op,
                                (unsigned long long)run->engine->op_index);
        }
        run->between->partials[source->host] = buffer + DP_CHUNK_HEAD;
    }
    run->between->partials[run->engine->host] = run->between->own;
    return DP_OK;
}

static dp_status_t combine(reduce_run_t *run, int *busy)
{
    const size_t slot = run->combined % DP_CHUNK_WINDOW;
    dp_link_message_t *answers = &run->between->answered[slot * (size_t)run->between->hosts];
    char *result = run->between->result[slot];
    dp_range_t chunk;
    dp_status_t status;
    int failed;

    if (run->combined == run->chunks || run->posted == run->combined) return DP_OK;
    if (!have_partials(run, &failed)) return DP_OK;
    if (failed >= 0) return dp_between_lost(run->engine, run->sources[failed].peer);
    if (!dp_between_are_at_rest(answers, run->between->hosts, &failed)) return DP_OK;
    if (failed >= 0) return dp_between_lost(run->engine, run->sources[failed].peer);
    chunk = dp_range_chunk(run->range, run->combined, run->chunk_blocks);
    status = line_up(run);
    if (status == DP_OK) {
        status = dp_partial_make(run->engine, &run->numeric, chunk, run->row, run->between->own);
    }
    if (status != DP_OK) return status;
    *busy = 1;
    if (run->gathers) {
        dp_partial_combine(run->engine, &run->numeric, chunk, run->between->partials, result);
        status =
            send_result(run, run->combined, result, chunk_bytes(run, chunk, run->numeric.result));
        if (status == DP_OK) {
            status = dp_partial_deliver(run->engine, &run->numeric, chunk, result);
        }
    } else {
        dp_partial_finish(run->engine, &run->numeric, chunk, run->between->partials);
    }
    run->combined++;
    return status;
}

static dp_status_t deliver(reduce_run_t *run, int *busy)
{
    for (int i = 0; run->gathers && i < run->between->hosts; i++) {
        dp_between_source_t *source = &run->sources[i];
        const dp_link_message_t *message = gather_message(run, i, source->delivered);
        dp_range_t chunk;
        dp_status_t status;

        if (source->delivered == source->posted || message->is_pending) continue;
        if (message->is_failed) return dp_between_lost(run->engine, source->peer);
        chunk = dp_range_chunk(source->range, source->delivered, run->chunk_blocks);
        status = dp_partial_deliver(run->engine, &run->numeric, chunk,
                                    gather_buffer(run, i, source->delivered));
        if (status != DP_OK) return status;
        source->delivered++;
        *busy = 1;
    }
    return DP_OK;
}

/* ---- The loop
 * ----------------------------------------------------------------------------------------- */

/* 1: all is sent, taken and written; then *failed_peer is who did not get a message, or -1. */
static int is_finished(const reduce_run_t *run, int *failed_peer)
{
    const dp_between_t *between = run->between;
    int failed;

    *failed_peer = -1;
    if (run->next_send < run->target_chunks * (size_t)run->target_count) return 0;
    if (run->combined < run->chunks) return 0;
    for (int i = 0; run->gathers && i < between->hosts; i++) {
        if (run->sources[i].delivered < run->sources[i].chunks) return 0;
    }
    if (!dp_between_are_at_rest(between->sent, DP_CHUNK_WINDOW, &failed)) return 0;
    if (failed >= 0) *failed_peer = run->targets[0].peer;
    if (!dp_between_are_at_rest(between->answered, DP_CHUNK_WINDOW * between->hosts, &failed))
        return 0;
    if (failed >= 0) *failed_peer = run->sources[failed % between->hosts].peer;
    return 1;
}

/* Until the first partial sums are here this rank waits for others to arrive. */
static void note_heard(reduce_run_t *run)
{
    dp_chunk_head_t head;

    for (int i = 0; i < run->between->hosts; i++) {
        if (!partial_message(run, i, 0)->is_pending) continue;
        run->last_missing = i;
        return;
    }
    run->has_heard = 1;
    memcpy(&head, partial_buffer(run, run->last_missing, 0), sizeof(head));
    if (run->wait_begin_ns == 0 || head.last_rank >= (uint32_t)run->engine->size) return;
    dp_between_note_wait(run->engine, run->wait_begin_ns, (int)head.last_rank);
}

/* Nothing to do: sleeps, unless a partner that is still needed has gone. */
static dp_status_t rest(reduce_run_t *run)
{
    const dp_link_t *link = run->engine->link;
    const int has_sent = run->next_send == run->target_chunks * (size_t)run->target_count;

    for (int i = 0; i < run->between->hosts; i++) {
        const dp_between_source_t *source = &run->sources[i];

        /* One that gave us everything may leave while our last sends to others are on their way. */
        if (has_sent && run->combined == run->chunks && source->delivered == source->chunks) {
            continue;
        }
        if (dp_link_is_lost(link, source->peer, NULL)) {
            return dp_between_lost(run->engine, source->peer);
        }
    }
    for (int i = 0; !has_sent && i < run->target_count; i++) {
        if (dp_link_is_lost(link, run->targets[i].peer, NULL)) {
            return dp_between_lost(run->engine, run->targets[i].peer);
        }
    }
    if (!run->has_heard && run->chunks != 0 && run->wait_begin_ns == 0) {
        run->wait_begin_ns = dp_now_ns();
    }
    dp_link_idle(run->engine->link);
    return DP_OK;
}

static dp_status_t stream_chunks(reduce_run_t *run)
{
    int failed_peer;

    while (!is_finished(run, &failed_peer)) {
        int busy = dp_link_progress(run->engine->link) != 0;
        dp_status_t status = dp_between_check(run->engine);

        if (status == DP_OK) status = post_partials(run);
        if (status == DP_OK) status = post_results(run);
        if (status == DP_OK) status = send_partial(run, &busy);
        if (status == DP_OK && !run->has_heard && run->posted > 0) note_heard(run);
        if (status == DP_OK) status = combine(run, &busy);
        if (status == DP_OK) status = deliver(run, &busy);
        if (status == DP_OK && !busy && !is_finished(run, &failed_peer)) status = rest(run);
        if (status != DP_OK) return status;
    }
    return failed_peer >= 0 ? dp_between_lost(run->engine, failed_peer) : DP_OK;
}

/* ---- Who owns what
 * ------------------------------------------------------------------------------------ */

static void add_target(reduce_run_t *run, int rank, dp_range_t range, size_t row)
{
    dp_between_target_t *target = &run->targets[run->target_count++];

    *target = (dp_between_target_t){
        .rank = rank,
        .peer = dp_link_find(run->engine->link, rank),
        .range = range,
        .row = row,
        .chunks = dp_range_chunks(range, run->chunk_blocks),
    };
    run->target_chunks = DP_MAX(run->target_chunks, target->chunks);
}

/* An allreduce: each owner's shard is cut again by hosts. */
static void plan_allreduce(reduce_run_t *run)
{
    const dp_host_engine_t *engine = run->engine;
    const dp_range_t shard =
        dp_range_part(dp_layout_all(&engine->layout), engine->local_rank, run->between->owners);

    run->range = dp_range_part(shard, engine->host, engine->host_count);
    for (int i = 0; i < run->between->hosts; i++) {
        dp_between_source_t *source = &run->sources[i];

        source->range = dp_range_part(shard, source->host, engine->host_count);
        source->chunks = dp_range_chunks(source->range, run->chunk_blocks);
    }
    for (int i = 1; i < engine->host_count; i++) { /* not everybody to the same one first */
        const int host = (engine->host + i) % engine->host_count;

        add_target(run, dp_link_rank(engine->link, run->between->peer_of[host]),
                   dp_range_part(shard, host, engine->host_count), 0);
    }
}

/* A reduce_scatter: every rank owns its row, and serves the ranks elsewhere it is the partner of.
 */
static void plan_reduce_scatter(reduce_run_t *run)
{
    const dp_host_engine_t *engine = run->engine;
    const dp_topology_t *topology = engine->topology;

    run->range = dp_layout_all(&engine->layout);
    run->row = (size_t)engine->rank;
    for (int i = 1; i < engine->size; i++) {
        const int rank = (engine->rank + i) % engine->size;

        if (topology->host[rank] == engine->host) continue;
        if (topology->local_rank[rank] % engine->local_size != engine->local_rank) continue;
        add_target(run, rank, run->range, (size_t)rank);
    }
}

static void plan(reduce_run_t *run)
{
    const dp_host_engine_t *engine = run->engine;
    const size_t widest =
        DP_MAX(dp_dtype_bytes(run->numeric.partial), dp_dtype_bytes(run->numeric.result));
    uint64_t latest_ns = 0;
    int count = 0;

    run->chunk_blocks = DP_CHUNK_BYTES / (DP_TALLY_BLOCK * widest);
    for (int host = 0; host < engine->host_count; host++) {
        if (host == engine->host) continue;
        run->sources[count++] = (dp_between_source_t){
            .rank = dp_link_rank(engine->link, run->between->peer_of[host]),
            .peer = run->between->peer_of[host],
            .host = host,
        };
    }
    for (int i = 0; i < engine->local_size; i++) {
        const uint64_t arrive_ns = dp_host_slot(engine, i)->arrive_ns;

        if (arrive_ns < latest_ns) continue;
        latest_ns = arrive_ns;
        run->last_rank = (uint32_t)engine->local_ranks[i];
    }
    if (run->gathers) {
        plan_allreduce(run);
    } else {
        plan_reduce_scatter(run);
    }
    run->chunks = dp_range_chunks(run->range, run->chunk_blocks);
}

/* The figures of all rows, found by ranks everywhere, to everybody. */
static dp_status_t spread_tallies(dp_host_engine_t *engine, dp_engine_op_t *op)
{
    const dp_range_t all = dp_layout_all(&engine->layout);
    const size_t bytes = op->piece_count * sizeof(dp_tally_t);
    dp_between_t *between = engine->between;
    dp_tally_t *own = engine->boards[dp_host_parity(engine)].tallies;
    const char *others = NULL;
    dp_status_t status = DP_OK;

    if (engine->local_rank == 0 && bytes != 0) {
        for (int k = 1; k < engine->local_size; k++) {
            const dp_tally_t *theirs =
                dp_arena_at(engine->arena, k, dp_host_slot(engine, k)->tallies, bytes);

            if (theirs == NULL) return dp_host_bad_offset(engine, k);
            for (size_t i = 0; i < op->piece_count; i++)
                dp_tally_merge(&own[i], &theirs[i]);
        }
        status = dp_between_swap(engine, DP_KIND_TALLY, own, bytes, &others);
        for (int h = 0; status == DP_OK && h < between->hosts; h++) {
            for (size_t i = 0; i < op->piece_count; i++) {
                dp_tally_t tally;

                memcpy(&tally, others + (size_t)h * bytes + i * sizeof(tally), sizeof(tally));
                dp_tally_merge(&own[i], &tally);
            }
        }
        if (status != DP_OK) return status;
    }
    status = dp_host_meet(engine);
    return status == DP_OK ? dp_host_add_tallies(engine, op, 0, all) : status;
}

dp_status_t dp_between_reduce(dp_host_engine_t *engine, dp_engine_op_t *op)
{
    const dp_range_t all = dp_layout_all(&engine->layout);
    dp_between_t *between = engine->between;
    reduce_run_t run = {.engine = engine,
                        .op = op,
                        .between = between,
                        .targets = between->targets,
                        .sources = between->sources};
    int owners = engine->local_size;
    dp_status_t status = DP_OK;

    run.gathers = op->collective == DP_COLLECTIVE_ALLREDUCE;
    run.numeric = dp_numeric_choose(engine, op);
    if (run.gathers) owners = between->owners;
    if (engine->local_rank < owners) {
        plan(&run);
        if (run.numeric.wants_tally) {
            dp_host_clear_tallies(
                engine, run.gathers ? dp_range_part(all, engine->local_rank, owners) : all);
        }
        status = stream_chunks(&run);
    }
    if (status == DP_OK) status = dp_host_meet(engine);
    if (status != DP_OK || !run.numeric.wants_tally) return status;
    if (!run.gathers) return spread_tallies(engine, op);
    for (int k = 0; status == DP_OK && k < owners; k++) {
        status = dp_host_add_tallies(engine, op, k, dp_range_part(all, k, owners));
    }
    return status;
}
