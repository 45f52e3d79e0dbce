/*
 * hello.c - what the ranks of a world tell each other first: version, node, device, settings.
 *
 * A node is what shares memory: ranks with one kernel, one network and one user, never one host
 * name, which is for people. Pretended nodes have a number behind both. Ranks that may be on one
 * node try to reach the node's first rank by a UNIX socket; one that cannot is a node of its own.
 * Called by init.c in dp_init(), on the program's thread. It must not know how values are
 * exchanged.
 */
#include "coordinator/api/world/hello.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/api/context/device.h"
#include "runtime/base/wire.h"
#include "runtime/group/core_share.h"
#include "runtime/group/node_identity.h"
#include "runtime/transport/peer_socket.h"

#define NAME_ROOM 320
#define POLLING_THREADS 2 /* a rank has so many at most; see choose_spin_times() in init.c */

/* The hello of one rank. */
typedef struct rank_hello {
    char version[64];
    char host[NAME_ROOM];                  /* its host name, for people */
    char node[DP_NODE_IDENTITY_TEXT + 16]; /* equal: perhaps on one node */
    char kernel[DP_NODE_IDENTITY_TEXT];
    char network[DP_NODE_IDENTITY_TEXT];
    char device[16];
    dp_core_share_t cores;
    dp_peer_socket_address_t listen_address;
} rank_hello_t;

struct dp_hello {
    dp_context_t *context; /* borrowed */
    dp_peer_socket_address_t listen_address;
    int listener;        /* -1: none could be made, so no other rank reaches this one */
    rank_hello_t *ranks; /* [size] */
};

/* ---- What this rank says -------------------------------------------------------------------- */

/* The pretended node that this rank is on; -1: nodes are real. */
static int pretended_node(const dp_context_t *context)
{
    const int nodes = dp_min(context->config.pretend_nodes, context->size);

    if (context->config.pretend_nodes <= 1) return -1;
    return (int)((int64_t)context->rank * nodes / context->size);
}

static void write_names(const dp_context_t *context, const dp_node_identity_t *machine,
                        dp_writer_t *writer)
{
    const int pretended = pretended_node(context);
    char host[256] = "localhost";
    char suffix[16] = "";
    char name[NAME_ROOM];

    gethostname(host, sizeof(host) - 1);
    if (pretended >= 0) snprintf(suffix, sizeof(suffix), ".%d", pretended);
    snprintf(name, sizeof(name), "%s%s", host, suffix);
    dp_write_text(writer, name);
    snprintf(name, sizeof(name), "%s%s", machine->node, suffix);
    dp_write_text(writer, name);
    dp_write_text(writer, machine->kernel);
    dp_write_text(writer, machine->network);
}

size_t dp_hello_write(const dp_hello_t *hello, uint8_t data[DP_HELLO_ROOM])
{
    const dp_context_t *context = hello->context;
    uint8_t listen_address[DP_PEER_SOCKET_ADDRESS];
    dp_node_identity_t machine;
    dp_core_share_t cores;
    dp_writer_t writer;

    dp_node_identity_read(&machine);
    dp_core_share_read(&cores);
    dp_writer_init(&writer, data, DP_HELLO_ROOM);
    dp_write_text(&writer, dp_version());
    write_names(context, &machine, &writer);
    dp_write_text(&writer, dp_context_device_name(context));
    dp_core_share_write(&cores, &writer);
    dp_peer_socket_address_write(&hello->listen_address, listen_address);
    dp_write_bytes(&writer, listen_address, sizeof(listen_address));
    dp_config_write_plan(&context->config, &writer);
    return writer.failed ? 0 : writer.bytes;
}

/* ---- What the others say -------------------------------------------------------------------- */

/* Leaves the reader at the plan. */
static void read_rank_hello(dp_reader_t *reader, rank_hello_t *peer)
{
    const void *listen_address;

    dp_read_text(reader, peer->version, sizeof(peer->version));
    dp_read_text(reader, peer->host, sizeof(peer->host));
    dp_read_text(reader, peer->node, sizeof(peer->node));
    dp_read_text(reader, peer->kernel, sizeof(peer->kernel));
    dp_read_text(reader, peer->network, sizeof(peer->network));
    dp_read_text(reader, peer->device, sizeof(peer->device));
    dp_core_share_from(&peer->cores, reader);
    listen_address = dp_read_bytes(reader, DP_PEER_SOCKET_ADDRESS);
    if (listen_address != NULL) dp_peer_socket_address_read(&peer->listen_address, listen_address);
}

static dp_status_t check_rank_hello(const dp_context_t *context, int rank, const rank_hello_t *peer,
                                    const dp_reader_t *reader, dp_error_t *error)
{
    const char *own = dp_context_device_name(context);

    /* Another version may write the rest in another way, so this comes before reader->failed. */
    if (peer->version[0] != '\0' && strcmp(peer->version, dp_version()) != 0) {
        return dp_error_set(error, DP_ERR_MISMATCH, "rank %d (%s) runs libdp %s, rank %d runs %s",
                            rank, peer->host, peer->version, context->rank, dp_version());
    }
    if (reader->failed) {
        return dp_error_set(error, DP_ERR_SYSTEM, "rank %d sent a hello that makes no sense", rank);
    }
    if (strcmp(peer->device, own) == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_MISMATCH,
                        "rank %d (%s) uses the device %s, rank %d uses %s; DP_DEVICE chooses, "
                        "dprun --check says what there is",
                        rank, peer->host, peer->device, context->rank, own);
}

/* ---- What follows from it ------------------------------------------------------------------- */

static dp_status_t find_nodes(dp_hello_t *hello, dp_error_t *error)
{
    dp_context_t *context = hello->context;
    const size_t size = (size_t)context->size;
    const char **keys = calloc(size, sizeof(*keys));
    const char **names = calloc(size, sizeof(*names));
    dp_status_t status = DP_ERR_NO_MEMORY;

    for (size_t i = 0; keys != NULL && names != NULL && i < size; i++) {
        keys[i] = hello->ranks[i].node;
        names[i] = hello->ranks[i].host;
    }
    if (context->has_topology) dp_topology_fini(&context->topology);
    context->has_topology = 0;
    if (keys != NULL && names != NULL)
        status = dp_topology_init_keys(&context->topology, keys, names, context->size);
    context->has_topology = status == DP_OK;
    free(names);
    free(keys);
    return status == DP_OK ? DP_OK : dp_error_set(error, status, "no memory for the topology");
}

/* One network: every rank is at 127.0.0.1, on pretended nodes too. */
static void find_networks(dp_context_t *context, const rank_hello_t *all)
{
    context->is_one_network = 1;
    for (int rank = 1; rank < context->size; rank++) {
        if (strcmp(all[rank].network, all[0].network) != 0) context->is_one_network = 0;
    }
}

/* Ranks on pretended nodes share the cores of their kernel, too. */
static dp_status_t count_cores(dp_context_t *context, const rank_hello_t *all, dp_error_t *error)
{
    const dp_core_share_t **shares =
        malloc((size_t)context->size * sizeof(const dp_core_share_t *));
    int count = 0;

    if (shares == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for %d ranks", context->size);
    }
    for (int rank = 0; rank < context->size; rank++) {
        if (strcmp(all[rank].kernel, all[context->rank].kernel) == 0)
            shares[count++] = &all[rank].cores;
    }
    context->cores_each = dp_core_share_each(shares, count, POLLING_THREADS);
    free(shares);
    dp_log_debug(&context->log, "ranks on this machine %d, cores for each %d%s", count,
                 context->cores_each,
                 context->cores_each >= POLLING_THREADS ? " or more"
                 : context->cores_each == 0             ? ": they take turns"
                                                        : "");
    return DP_OK;
}

/* ---- Steps ---------------------------------------------------------------------------------- */

dp_status_t dp_hello_create(dp_context_t *context, dp_hello_t **out, dp_error_t *error)
{
    dp_hello_t *hello = calloc(1, sizeof(*hello));

    if (hello != NULL) hello->ranks = calloc((size_t)context->size, sizeof(*hello->ranks));
    if (hello == NULL || hello->ranks == NULL) {
        free(hello);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for %d nodes", context->size);
    }
    hello->context = context;
    hello->listener = -1;
    if (context->size > 1) {
        dp_peer_socket_address_make(&hello->listen_address);
        if (dp_local_listen(hello->listen_address.name, &hello->listener, NULL) != DP_OK)
            hello->listen_address.name[0] = '\0';
    }
    *out = hello;
    return DP_OK;
}

void dp_hello_destroy(dp_hello_t *hello)
{
    if (hello == NULL) return;
    if (hello->listener >= 0) close(hello->listener);
    free(hello->ranks);
    free(hello);
}

dp_status_t dp_hello_read(dp_hello_t *hello, void **values, const size_t *bytes, dp_error_t *error)
{
    dp_context_t *context = hello->context;
    dp_status_t status = DP_OK;

    for (int rank = 0; status == DP_OK && rank < context->size; rank++) {
        rank_hello_t *peer = &hello->ranks[rank];
        dp_reader_t reader;

        dp_reader_init(&reader, values[rank], bytes[rank]);
        read_rank_hello(&reader, peer);
        status = check_rank_hello(context, rank, peer, &reader, error);
        if (status != DP_OK || rank != 0) continue;
        dp_config_read_plan(&context->config, &reader);
        if (reader.failed) {
            status = dp_error_set(error, DP_ERR_SYSTEM, "rank 0 sent a hello that makes no sense");
        }
    }
    return status == DP_OK ? find_nodes(hello, error) : status;
}

int dp_hello_must_try(const dp_hello_t *hello)
{
    return hello->context->topology.node_count < hello->context->size;
}

int dp_hello_try(const dp_hello_t *hello)
{
    const dp_context_t *context = hello->context;
    const dp_topology_t *topology = &context->topology;
    const int first = dp_topology_leader(topology, topology->node[context->rank]);
    int fd;

    if (first == context->rank) return 1;
    fd = dp_local_try_connect(hello->ranks[first].listen_address.name);
    if (fd >= 0) close(fd);
    if (fd >= 0 || errno == EAGAIN) return 1; /* it listens, and its queue is full */
    dp_log_info(&context->log,
                "rank %d is on this machine, and cannot be reached by a UNIX socket: %s", first,
                strerror(errno));
    return 0;
}

dp_status_t dp_hello_settle(dp_hello_t *hello, void **values, const size_t *bytes,
                            dp_error_t *error)
{
    dp_context_t *context = hello->context;
    dp_status_t status = DP_OK;
    int apart = 0;

    for (int rank = 0; values != NULL && rank < context->size; rank++) {
        rank_hello_t *peer = &hello->ranks[rank];

        if (bytes[rank] == 1 && *(const uint8_t *)values[rank] == 1) continue;
        snprintf(peer->node, sizeof(peer->node), "rank %d", rank);
        apart++;
    }
    if (apart > 0) status = find_nodes(hello, error);
    if (status == DP_OK) find_networks(context, hello->ranks);
    if (status == DP_OK) status = count_cores(context, hello->ranks, error);
    return status;
}
