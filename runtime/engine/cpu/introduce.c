/*
 * introduce.c - what the ranks of the world tell each other when the CPU engine starts (a hello
 * each, over the bootstrap), and what follows from it: whether the ranks of this node can read each
 * other's memory, and how this rank reaches those of other nodes in the lanes that are there by
 * then.
 *
 * Called once, by the thread that creates the engine. Hellos are kept, so that two ranks that are
 * not partners connect only when they first send to each other. It must not know about operations.
 */
#include "runtime/engine/cpu/intra_node/pull.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 50000 /* between two looks at what the others of the node have found */

/* Of engine->readers; 0: that rank has not tried yet. */
enum { READER_CANNOT = 1, READER_CAN = 2 };

/* The hello: what a rank tells all others when it starts. */
typedef struct hello {
    dp_pull_probe_t memory;
    uint64_t address_bytes[DP_LANE_COUNT]; /* of the links' addresses, which follow */
} cpu_hello_t;

/* Of the addresses of the lanes before `end`. */
static size_t address_bytes(const cpu_hello_t *hello, int end)
{
    size_t bytes = 0;

    for (int i = 0; i < end; i++)
        bytes += hello->address_bytes[i];
    return bytes;
}

static void write_hello(dp_cpu_engine_t *engine, cpu_hello_t *hello)
{
    memset(hello, 0, sizeof(*hello));
    engine->pull_value = dp_now_ns() * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)(uintptr_t)engine;
    hello->memory = (dp_pull_probe_t){.address = (uintptr_t)&engine->pull_value,
                                      .value = engine->pull_value,
                                      .pid = (int32_t)getpid()};
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        size_t bytes = 0;

        if (engine->lanes[i].link != NULL) dp_ucx_link_address(engine->lanes[i].link, &bytes);
        hello->address_bytes[i] = bytes;
    }
}

/* 1: this rank can read the memory of all others of its node [count]. */
static int can_read(const dp_cpu_engine_t *engine, const int *ranks, int count)
{
    for (int i = 0; i < count; i++) {
        const cpu_hello_t *hello = engine->hellos[ranks[i]].value;

        if (ranks[i] == engine->rank || dp_pull_try(&hello->memory)) continue;
        dp_log_debug(engine->log, "engine cpu: the memory of rank %d cannot be read: %s", ranks[i],
                     strerror(errno));
        return 0;
    }
    return 1;
}

/* Ranks of this node read each other's memory if all of them can, so that all do alike. Elsewhere
 * tensors go through shared memory. */
static dp_status_t agree_on_pull(dp_cpu_engine_t *engine, size_t pull_bytes, uint64_t deadline_ns,
                                 dp_error_t *error)
{
    const dp_topology_t *topology = engine->topology;
    const int node = topology->node[engine->rank];
    const int *ranks = topology->node_ranks + topology->node_begin[node];
    const int count = topology->node_size[node];
    const int can = pull_bytes != 0 && can_read(engine, ranks, count);
    int all_can = can;

    if (count <= 1) return DP_OK;
    engine->pull_bytes = pull_bytes;
    atomic_store(&engine->readers[engine->local_rank], can ? READER_CAN : READER_CANNOT);
    for (int i = 0; i < count; i++) {
        uint32_t found;

        while ((found = atomic_load(&engine->readers[i])) == 0) {
            if (dp_now_ns() >= deadline_ns) {
                return dp_error_set(error, DP_ERR_TIMEOUT,
                                    "engine: rank %d did not say in time whether it can read the "
                                    "memory of the others of its node",
                                    ranks[i]);
            }
            nanosleep(&(const struct timespec){0, LOOK_NS}, NULL);
        }
        all_can &= found == READER_CAN;
    }
    if (!all_can) return DP_OK;
    engine->pids = calloc((size_t)count, sizeof(*engine->pids));
    if (engine->pids == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    for (int i = 0; i < count; i++)
        engine->pids[i] = ((const cpu_hello_t *)engine->hellos[ranks[i]].value)->memory.pid;
    return DP_OK;
}

dp_status_t dp_cpu_connect(const dp_cpu_lane_t *lane, int world_rank, int *peer, dp_error_t *error)
{
    const cpu_hello_t *hello = lane->engine->hellos[world_rank].value;
    const int index = (int)(lane - lane->engine->lanes);
    const char *addresses = (const char *)(hello + 1);
    void **met = __atomic_load_n(&lane->met, __ATOMIC_ACQUIRE);
    const void *address = met == NULL ? NULL : __atomic_load_n(&met[world_rank], __ATOMIC_ACQUIRE);

    /* Pairs with the stores in dp_cpu_lane_meet(). */
    if (address != NULL) return dp_ucx_link_connect(lane->link, world_rank, address, peer, error);
    if (hello->address_bytes[index] == 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "engine: rank %d gave no address", world_rank);
    }
    return dp_ucx_link_connect(lane->link, world_rank, addresses + address_bytes(hello, index),
                               peer, error);
}

/* Sends this rank's hello to all ranks and takes theirs. */
static dp_status_t exchange_hellos(dp_cpu_engine_t *engine, dp_bootstrap_t *bootstrap,
                                   const char *own, size_t own_bytes, uint64_t deadline_ns,
                                   dp_error_t *error)
{
    const size_t size = (size_t)engine->size;
    void **values = calloc(size, sizeof(*values));
    size_t *bytes = calloc(size, sizeof(*bytes));
    dp_status_t status;

    if (values == NULL || bytes == NULL) {
        free(values);
        free(bytes);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    }
    status = bootstrap->ops->exchange(bootstrap, "engine", own, own_bytes, values, bytes,
                                      deadline_ns, error);
    for (int i = 0; status == DP_OK && i < engine->size; i++) {
        const cpu_hello_t *other = values[i];

        if (bytes[i] < sizeof(cpu_hello_t) ||
            address_bytes(other, DP_LANE_COUNT) != bytes[i] - sizeof(cpu_hello_t)) {
            status = dp_error_set(error, DP_ERR_SYSTEM,
                                  "engine: rank %d introduced itself with %zu bytes", i, bytes[i]);
        }
    }
    for (size_t i = 0; i < size; i++)
        engine->hellos[i] = (dp_cpu_hello_t){values[i], bytes[i]};
    free(bytes);
    free(values);
    return status;
}

dp_status_t dp_cpu_say_hello(dp_cpu_engine_t *engine, dp_bootstrap_t *bootstrap,
                             const dp_config_t *config, uint64_t deadline_ns, dp_error_t *error)
{
    const dp_cpu_lane_t *lanes = engine->lanes;
    size_t bytes = sizeof(cpu_hello_t);
    char *own;
    cpu_hello_t hello;
    dp_status_t status;

    write_hello(engine, &hello);
    own = malloc(bytes + address_bytes(&hello, DP_LANE_COUNT));
    if (own == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    memcpy(own, &hello, sizeof(hello));
    for (int i = 0; i < DP_LANE_COUNT; i++) {
        size_t more;

        if (lanes[i].link == NULL) continue;
        memcpy(own + bytes, dp_ucx_link_address(lanes[i].link, &more), hello.address_bytes[i]);
        bytes += more;
    }
    status = exchange_hellos(engine, bootstrap, own, bytes, deadline_ns, error);
    free(own);
    if (status != DP_OK) return status;
    return agree_on_pull(engine, config->pull_bytes, deadline_ns, error);
}
