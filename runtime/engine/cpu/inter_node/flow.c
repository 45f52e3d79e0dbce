/*
 * flow.c - blocks of bytes that travel rank to rank between nodes, all at once, in chunks.
 *
 * Each flow keeps DP_CHUNK_WINDOW chunks in flight. All flows are served in turn, receives as well
 * as sends, so two ranks that send to each other cannot deadlock. Used by exchange.c and copy.c of
 * exchange/, on the thread that runs operations. It must not know what the blocks are.
 */
#include "runtime/engine/cpu/inter_node/flow.h"

#include <stdlib.h>

dp_status_t dp_flows_begin(dp_flows_t *flows, dp_cpu_group_t *group, size_t most)
{
    flows->group = group;
    flows->count = 0;
    flows->unfinished = 0;
    if (most > flows->room) {
        dp_flow_t *list = calloc(most, sizeof(*list));
        dp_ucx_link_message_t *messages = calloc(most * DP_CHUNK_WINDOW, sizeof(*messages));

        if (list == NULL || messages == NULL) {
            free(list);
            free(messages);
            return dp_cpu_fail(group, DP_ERR_NO_MEMORY, "engine: no memory for %zu blocks", most);
        }
        dp_flows_fini(flows); /* all at rest: the operation before is over */
        flows->group = group;
        flows->list = list;
        flows->messages = messages;
        flows->room = most;
    }
    return DP_OK;
}

void dp_flows_fini(dp_flows_t *flows)
{
    free(flows->list);
    free(flows->messages);
    *flows = (dp_flows_t){0};
}

static dp_status_t add_flow(dp_flows_t *flows, int other, dp_flow_t flow)
{
    dp_cpu_group_t *group = flows->group;

    DP_ASSERT(flows->count < flows->room && flow.bytes != 0);
    flow.chunks = (flow.bytes - 1) / DP_CHUNK_BYTES + 1;
    if (dp_cpu_connect(group->lane, group->ranks[other], &flow.peer, &group->failure) != DP_OK) {
        return group->failure.status;
    }
    flows->list[flows->count++] = flow;
    flows->unfinished++;
    return DP_OK;
}

dp_status_t dp_flows_send(dp_flows_t *flows, int to, const void *source, size_t bytes)
{
    return add_flow(
        flows, to,
        (dp_flow_t){.from = flows->group->rank, .is_send = 1, .source = source, .bytes = bytes});
}

dp_status_t dp_flows_receive(dp_flows_t *flows, int from, void *target, size_t bytes)
{
    return add_flow(flows, from, (dp_flow_t){.from = from, .target = target, .bytes = bytes});
}

/* ---- Moving --------------------------------------------------------------------------------- */

/* A flow has DP_CHUNK_WINDOW messages, which its chunks use in turn: pump_flow() begins a chunk
 * only when the one that had its message before has ended. */
static dp_ucx_link_message_t *message_of(const dp_flows_t *flows, const dp_flow_t *flow,
                                         size_t chunk)
{
    const size_t index = (size_t)(flow - flows->list);

    return &flows->messages[index * DP_CHUNK_WINDOW + chunk % DP_CHUNK_WINDOW];
}

static dp_status_t begin_chunk(dp_flows_t *flows, dp_flow_t *flow)
{
    dp_cpu_group_t *group = flows->group;
    dp_ucx_link_t *link = group->lane->link;
    dp_ucx_link_message_t *message = message_of(flows, flow, flow->begun);
    const uint64_t tag = dp_inter_node_tag(group, flow->from, DP_KIND_BLOCK, flow->begun);
    const size_t at = flow->begun * DP_CHUNK_BYTES;
    const size_t bytes = dp_min(flow->bytes - at, DP_CHUNK_BYTES);
    dp_status_t status;

    if (flow->is_send) {
        status = dp_ucx_link_send(link, flow->peer, tag, flow->source + at, bytes, message);
        group->op->wire_bytes += bytes;
    } else {
        status = dp_ucx_link_receive(link, tag, flow->target + at, bytes, message);
    }
    flow->begun++;
    return status == DP_OK ? DP_OK : dp_inter_node_lost(group, flow->peer);
}

/* Chunks end in order here: one that arrives before an earlier one is counted behind it. So `ended`
 * says which messages are free. */
static dp_status_t pump_flow(dp_flows_t *flows, dp_flow_t *flow, int *busy)
{
    for (; flow->ended < flow->begun; flow->ended++) {
        const dp_ucx_link_message_t *message = message_of(flows, flow, flow->ended);

        if (message->is_pending) break;
        if (message->is_failed) return dp_inter_node_lost(flows->group, flow->peer);
        *busy = 1;
    }
    if (flow->ended == flow->chunks) flows->unfinished--;
    while (flow->begun < flow->chunks && flow->begun < flow->ended + DP_CHUNK_WINDOW) {
        const dp_status_t status = begin_chunk(flows, flow);

        if (status != DP_OK) return status;
        *busy = 1;
    }
    return DP_OK;
}

dp_status_t dp_flows_pump(dp_flows_t *flows, int *busy)
{
    dp_status_t status;

    if (flows->unfinished == 0) return DP_OK;
    status = dp_inter_node_check_abort(flows->group);
    if (dp_ucx_link_progress(flows->group->lane->link) != 0) *busy = 1;
    for (size_t i = 0; status == DP_OK && i < flows->count; i++) {
        if (flows->list[i].ended == flows->list[i].chunks) continue;
        status = pump_flow(flows, &flows->list[i], busy);
    }
    return status;
}

/* Sleeps until a message comes, unless a peer that is still needed has gone. */
static dp_status_t sleep_for_flows(dp_flows_t *flows)
{
    dp_ucx_link_t *link = flows->group->lane->link;
    int missing = -1;

    for (size_t i = 0; i < flows->count; i++) {
        const dp_flow_t *flow = &flows->list[i];

        if (flow->ended < flow->chunks && missing < 0) missing = dp_ucx_link_rank(link, flow->peer);
        if (flow->ended < flow->chunks && dp_ucx_link_is_lost(link, flow->peer, NULL)) {
            return dp_inter_node_lost(flows->group, flow->peer);
        }
    }
    dp_ucx_link_idle_for(link, missing);
    return DP_OK;
}

dp_status_t dp_flows_finish(dp_flows_t *flows)
{
    dp_status_t status = DP_OK;

    while (status == DP_OK && flows->unfinished > 0) {
        int busy = 0;

        status = dp_flows_pump(flows, &busy);
        if (status == DP_OK && !busy && flows->unfinished > 0) status = sleep_for_flows(flows);
    }
    return status;
}
