/*
 * flow.h - blocks of bytes that travel rank to rank between nodes, all at once, in chunks.
 *
 * Straight from where a block lies to where it goes. The flows of one operation are added first,
 * then moved on now and then while this rank does something else, then waited for.
 */
#ifndef DP_ENGINE_CPU_FLOW_H
#define DP_ENGINE_CPU_FLOW_H

#include "runtime/engine/cpu/inter_node/inter_node.h"

/* One block on its way. */
typedef struct dp_flow {
    int from; /* rank of the group that sends */
    int peer; /* the link's number of the other side */
    int is_send;
    const char *source; /* a send's */
    char *target;       /* a receive's */
    size_t bytes;
    size_t chunks;
    size_t begun;
    size_t ended; /* of those begun, in their order */
} dp_flow_t;

typedef struct dp_flows {
    dp_cpu_group_t *group;
    dp_flow_t *list; /* [room] */
    size_t count;
    size_t room;
    size_t unfinished;
    dp_ucx_link_message_t *messages; /* [room * DP_CHUNK_WINDOW] */
} dp_flows_t;

/* For one operation: at most so many blocks. */
dp_status_t dp_flows_begin(dp_flows_t *flows, dp_cpu_group_t *group, size_t most);
void dp_flows_fini(dp_flows_t *flows); /* after the link */

/* A block for a rank of the group elsewhere, which adds its counterpart. Not empty. */
dp_status_t dp_flows_send(dp_flows_t *flows, int to, const void *source, size_t bytes);
dp_status_t dp_flows_receive(dp_flows_t *flows, int from, void *target, size_t bytes);

/* Moves them on, without waiting. *busy: set when something happened. */
dp_status_t dp_flows_pump(dp_flows_t *flows, int *busy);
/* Until all have arrived, here and there. */
dp_status_t dp_flows_finish(dp_flows_t *flows);

#endif
