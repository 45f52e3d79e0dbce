/*
 * lane.c - what a lane of the CPU engine has beside its groups: buffers, a link to other nodes, and
 * the addresses of the other ranks' links.
 *
 * The main lane is made with the engine, the gather lane's buffers with its first group, an ordered
 * lane as a whole when the first group takes it (dp_cpu_lane_open(), on the program's thread). The
 * ranks of that group then tell each other their links' addresses (dp_cpu_lane_meet()). It must
 * not know about operations.
 */
#include "runtime/engine/cpu/inter_node/inter_node.h"
#include "runtime/engine/cpu/intra_node/pull.h"

#include <stdlib.h>
#include <string.h>

static const char *const tracks[DP_LANE_COUNT] = {"engine",           "gather engine",
                                                  "ordered engine",   "ordered engine 2",
                                                  "ordered engine 3", "ordered engine 4"};

dp_status_t dp_cpu_lane_prepare(dp_cpu_lane_t *lane, dp_error_t *error)
{
    dp_cpu_engine_t *engine = lane->engine;
    dp_status_t status = DP_OK;

    if (lane->dropped != NULL) return DP_OK;
    lane->track =
        dp_trace_track(engine->trace, tracks[lane - engine->lanes], DP_TRACE_TRACK_STREAM);
    if (lane->link != NULL) {
        status =
            dp_inter_node_pool_create(engine->topology, lane->control.count, &lane->pool, error);
    }
    if (status == DP_OK)
        status = dp_exchange_pool_create(engine->size, &lane->exchange_pool, error);
    if (status != DP_OK) return status;
    lane->pulled = aligned_alloc(4096, dp_pull_buffer_bytes(lane->control.count));
    lane->dropped = calloc(DP_TALLY_BLOCK, sizeof(double));
    return lane->dropped == NULL || lane->pulled == NULL
               ? dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory")
               : DP_OK;
}

dp_status_t dp_cpu_lane_link(dp_cpu_lane_t *lane, dp_error_t *error)
{
    dp_cpu_engine_t *engine = lane->engine;
    dp_ucx_link_t *link = NULL;
    const dp_status_t status =
        dp_ucx_link_create(engine->config, engine->rank, engine->size, engine->log, &link, error);

    if (status != DP_OK) return status;
    dp_ucx_link_watch(link, &lane->activity);
    /* An abort looks at the link from any thread: wake_lanes() in cpu.c. */
    __atomic_store_n(&lane->link, link, __ATOMIC_RELEASE);
    return DP_OK;
}

/* ---- Ordered lanes -------------------------------------------------------------------------- */

dp_status_t dp_cpu_lane_open(dp_engine_t *self, dp_lane_t index, const void **address,
                             size_t *bytes, dp_error_t *error)
{
    dp_cpu_engine_t *engine = (dp_cpu_engine_t *)(void *)self;
    dp_cpu_lane_t *lane = &engine->lanes[index];
    dp_status_t status = DP_OK;

    *address = NULL;
    *bytes = 0;
    if (engine->topology->node_count > 1 && lane->link == NULL) {
        status = dp_cpu_lane_link(lane, error);
        if (status == DP_OK) dp_ucx_link_set_spin(lane->link, lane->control.spin_ns);
    }
    if (status == DP_OK) status = dp_cpu_lane_prepare(lane, error);
    if (status == DP_OK && lane->link != NULL) *address = dp_ucx_link_address(lane->link, bytes);
    return status;
}

/* A rank's link of a lane is made once, so the first address stays. */
dp_status_t dp_cpu_lane_meet(dp_engine_t *self, dp_lane_t index, int rank, const void *address,
                             size_t bytes)
{
    dp_cpu_engine_t *engine = (dp_cpu_engine_t *)(void *)self;
    dp_cpu_lane_t *lane = &engine->lanes[index];
    void *copy;

    if (bytes == 0) return DP_OK;
    if (lane->met == NULL) {
        void **met = calloc((size_t)engine->size, sizeof(*met));

        if (met == NULL) return DP_ERR_NO_MEMORY;
        __atomic_store_n(&lane->met, met, __ATOMIC_RELEASE);
    }
    if (lane->met[rank] != NULL) return DP_OK;
    copy = malloc(bytes);
    if (copy == NULL) return DP_ERR_NO_MEMORY;
    memcpy(copy, address, bytes);
    /* Pairs with the load in dp_cpu_connect(): another group's operation may run in this lane. */
    __atomic_store_n(&lane->met[rank], copy, __ATOMIC_RELEASE);
    return DP_OK;
}

void dp_cpu_lane_fini(dp_cpu_lane_t *lane)
{
    dp_inter_node_pool_destroy(lane->pool);
    dp_exchange_pool_destroy(lane->exchange_pool);
    dp_host_staging_destroy(lane->staging);
    free(lane->pulled);
    for (int i = 0; lane->met != NULL && i < lane->engine->size; i++)
        free(lane->met[i]);
    free(lane->met);
    free(lane->dropped);
    pthread_mutex_destroy(&lane->run_lock);
}
