/*
 * arena_share.c - passes the descriptors of a node's ranks around, one each, at the start.
 *
 * Called once by dp_arena_create(), in the thread of dp_init(). It must not know what the
 * descriptors are.
 *
 * A node's first rank, the leader, listens on a local socket (local_socket.h) and publishes its
 * name through the bootstrap. The others connect and send a hello with the job's tag, their rank
 * and their descriptor; once all have come, the leader sends each of them all descriptors. Any
 * process of the node can connect, so the leader has a door (door.h): strangers delay nobody.
 * No file is left behind.
 */
#include "runtime/shm/arena_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/door.h"
#include "runtime/base/limits.h"
#include "runtime/base/local_socket.h"
#include "runtime/base/log.h"

#define HELLO_MAGIC 0x4d535044u  /* "DPSM" */
#define BATCH DP_LOCAL_FILES_MAX /* descriptors in one message */

/* A rank's first message, and the leader's with each batch of descriptors. */
typedef struct hello {
    uint32_t magic;
    uint32_t local_rank; /* of the sender; in an answer: of the first descriptor */
    uint64_t tag;
    uint32_t count; /* descriptors that come with it */
    uint32_t total; /* ranks of the node */
} hello_t;
_Static_assert(sizeof(hello_t) == 24, "sent as it is");

/* One call of dp_arena_share(). */
typedef struct share {
    uint64_t tag;
    int local_rank, local_size;
    int own_fd; /* borrowed */
    uint64_t deadline_ns;
    const dp_log_t *log; /* borrowed */
    int *fds;            /* [local_size] borrowed; -1: has not come */
    int *members;        /* [local_size] the leader's connections; -1: has not come */
    int member_count;
    int lacks_files; /* no descriptor is free for what a member sent */
} share_t;

/* For poll(): rounded up, so that a wait does not end just before the deadline and spin. */
static int left_ms(uint64_t deadline_ns)
{
    const uint64_t now = dp_now_ns();

    if (now >= deadline_ns) return 0;
    return (int)dp_min((deadline_ns - now) / 1000000u + 1, (uint64_t)3600000);
}

static void close_fds(int *fds, int count)
{
    for (int i = 0; i < count; i++) {
        if (fds[i] >= 0) close(fds[i]);
        fds[i] = -1;
    }
}

static dp_status_t no_files(const share_t *share, dp_error_t *error)
{
    char why[256];

    return dp_error_set(error, DP_ERR_SYSTEM, "shared memory of %d ranks: %s", share->local_size,
                        dp_limits_describe(EMFILE, why, sizeof(why)));
}

/* ETOOMANYREFS: the kernel bounds how many descriptors of a user are on their way; others have to
 * receive theirs first. */
static int send_batch(const share_t *share, int fd, int first, const int *fds, int count)
{
    const hello_t hello = {HELLO_MAGIC, (uint32_t)first, share->tag, (uint32_t)count,
                           (uint32_t)share->local_size};

    while (dp_local_send(fd, &hello, sizeof(hello), fds, count) != 0) {
        if ((errno != ETOOMANYREFS && errno != EAGAIN) || dp_now_ns() >= share->deadline_ns)
            return -1;
        poll(NULL, 0, 1);
    }
    return 0;
}

/* ---- The leader ----------------------------------------------------------------------------- */

static int judge_visitor(void *context, dp_door_visitor_t *visitor, char *why)
{
    share_t *share = context;
    hello_t hello;

    memcpy(&hello, visitor->hello, sizeof(hello));
    snprintf(why, DP_DOOR_TEXT, "it is not from this job");
    if (hello.magic != HELLO_MAGIC || hello.tag != share->tag ||
        hello.total != (uint32_t)share->local_size || hello.local_rank == 0 ||
        hello.local_rank >= (uint32_t)share->local_size || share->members[hello.local_rank] >= 0)
        return 0;
    share->lacks_files |= visitor->lacks_files;
    if (visitor->file_count != 1) return 0;
    share->members[hello.local_rank] = visitor->fd;
    share->fds[hello.local_rank] = visitor->files[0];
    share->member_count++;
    return 1;
}

static void report_refusal(void *context, const char *from, const char *why)
{
    const share_t *share = context;

    dp_log_warn(share->log, "shared memory: dropped a connection from %s: %s", from, why);
}

/* Lets ranks in until all of the node have come. */
static dp_status_t collect_members(share_t *share, dp_door_t *door, dp_error_t *error)
{
    while (share->member_count < share->local_size - 1) {
        struct pollfd polled = {dp_door_fd(door), POLLIN, 0};

        if (poll(&polled, 1, left_ms(share->deadline_ns)) == 0 &&
            dp_now_ns() >= share->deadline_ns) {
            return dp_error_set(error, DP_ERR_TIMEOUT,
                                "shared memory: %d of %d ranks of this node came in time",
                                share->member_count + 1, share->local_size);
        }
        dp_door_turn(door);
        if (share->lacks_files) return no_files(share, error);
    }
    return DP_OK;
}

/* Sends all descriptors to each member. fds[0] is this rank's meanwhile. */
static dp_status_t answer_members(share_t *share, dp_error_t *error)
{
    dp_status_t status = DP_OK;
    char why[256];

    share->fds[0] = share->own_fd;
    for (int i = 1; status == DP_OK && i < share->local_size; i++) {
        int first = 0;

        while (first < share->local_size &&
               send_batch(share, share->members[i], first, share->fds + first,
                          dp_min(BATCH, share->local_size - first)) == 0)
            first += BATCH;
        if (first >= share->local_size) continue;
        status =
            dp_error_set(error, DP_ERR_SYSTEM, "shared memory: cannot answer local rank %d: %s", i,
                         dp_limits_describe(errno, why, sizeof(why)));
    }
    share->fds[0] = -1;
    return status;
}

/* The leader's door, open before its name is published. */
static dp_status_t open_door(share_t *share, char name[DP_LOCAL_ADDRESS_ROOM], dp_door_t **door,
                             dp_error_t *error)
{
    const dp_door_owner_t owner = {.hello_bytes = sizeof(hello_t),
                                   .files = 1,
                                   .judge = judge_visitor,
                                   .refused = report_refusal,
                                   .context = share};
    int listener;
    dp_status_t status;

    share->members = malloc((size_t)share->local_size * sizeof(*share->members));
    if (share->members == NULL)
        return dp_error_set(error, DP_ERR_NO_MEMORY, "shared memory: no memory");
    for (int i = 0; i < share->local_size; i++)
        share->members[i] = -1;
    status = dp_door_create(&owner, share->local_size - 1, door, error);
    if (status == DP_OK) status = dp_local_listen(name, &listener, error);
    if (status != DP_OK || dp_door_listen(*door, listener) == 0) return status;
    return dp_error_set(error, DP_ERR_SYSTEM, "shared memory: no UNIX socket: %s", strerror(errno));
}

/* ---- The others ----------------------------------------------------------------------------- */

/* Receives the descriptors in batches, in local rank order: each batch says where it begins. */
static dp_status_t receive_all_fds(share_t *share, int fd, dp_error_t *error)
{
    int have = 0;

    while (have < share->local_size) {
        struct pollfd polled = {fd, POLLIN, 0};
        int came[BATCH];
        int count;
        hello_t hello;
        ssize_t got;

        if (poll(&polled, 1, left_ms(share->deadline_ns)) <= 0 &&
            dp_now_ns() >= share->deadline_ns) {
            return dp_error_set(error, DP_ERR_TIMEOUT,
                                "shared memory: local rank 0 sent %d of %d descriptors in time",
                                have, share->local_size);
        }
        got = dp_local_receive(fd, &hello, sizeof(hello), came, BATCH, &count);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) continue;
        if (count < 0) return no_files(share, error);
        if (got != (ssize_t)sizeof(hello) || hello.magic != HELLO_MAGIC ||
            hello.tag != share->tag || hello.local_rank != (uint32_t)have ||
            hello.count != (uint32_t)count || count < 1 || count > share->local_size - have ||
            hello.total != (uint32_t)share->local_size) {
            close_fds(came, count);
            return dp_error_set(error, DP_ERR_SYSTEM,
                                "shared memory: local rank 0 closed the connection after %d of "
                                "%d descriptors",
                                have, share->local_size);
        }
        memcpy(share->fds + have, came, sizeof(int) * (size_t)count);
        have += count;
    }
    close(share->fds[share->local_rank]); /* a copy of this rank's own */
    share->fds[share->local_rank] = -1;
    return DP_OK;
}

/* Connects to the leader, sends this rank's descriptor and receives all. */
static dp_status_t join_leader(share_t *share, const char *name, dp_error_t *error)
{
    dp_error_t cause = {DP_OK, ""};
    dp_status_t status;
    char why[256];
    int fd;

    if (dp_local_connect(name, share->deadline_ns, &fd, &cause) != DP_OK) {
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "shared memory: local rank %d cannot reach local rank 0: %s",
                            share->local_rank, cause.text);
    }
    if (send_batch(share, fd, share->local_rank, &share->own_fd, 1) == 0) {
        status = receive_all_fds(share, fd, error);
    } else {
        status = dp_error_set(error, DP_ERR_SYSTEM,
                              "shared memory: local rank %d cannot send its descriptor: %s",
                              share->local_rank, dp_limits_describe(errno, why, sizeof(why)));
    }
    close(fd);
    return status;
}

/* The leader's name as it came. NULL: it makes no sense. */
static const char *check_name(const void *value, size_t bytes)
{
    const char *name = value;

    if (bytes != DP_LOCAL_ADDRESS_ROOM || name[bytes - 1] != '\0') return NULL;
    return dp_local_is_address(name) ? name : NULL;
}

dp_status_t dp_arena_share(dp_bootstrap_t *bootstrap, const dp_topology_t *topology, int own_fd,
                           uint64_t deadline_ns, const dp_log_t *log, int *fds, dp_error_t *error)
{
    const int rank = bootstrap->rank;
    const int node = topology->node[rank];
    const int leader = dp_topology_leader(topology, node);
    share_t share = {.tag = bootstrap->tag,
                     .local_rank = topology->local_rank[rank],
                     .local_size = topology->node_size[node],
                     .own_fd = own_fd,
                     .deadline_ns = deadline_ns,
                     .log = log,
                     .fds = fds};
    const int leads = share.local_rank == 0 && share.local_size > 1;
    char name[DP_LOCAL_ADDRESS_ROOM] = "";
    void **values = calloc((size_t)bootstrap->size, sizeof(*values));
    size_t *bytes = calloc((size_t)bootstrap->size, sizeof(*bytes));
    dp_door_t *door = NULL;
    dp_status_t status = DP_OK;

    /* Ranks alone on their node take part in the exchange as well: it is a collective of the world.
     */
    for (int i = 0; i < share.local_size; i++)
        fds[i] = -1;
    if (values == NULL || bytes == NULL) {
        free(values);
        free(bytes);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "shared memory: no memory");
    }
    if (leads) status = open_door(&share, name, &door, error);
    if (status == DP_OK) {
        status = bootstrap->ops->exchange(bootstrap, "arena", name, sizeof(name), values, bytes,
                                          deadline_ns, error);
    }
    if (status == DP_OK && leads) {
        status = collect_members(&share, door, error);
        if (status == DP_OK) status = answer_members(&share, error);
    } else if (status == DP_OK && share.local_size > 1) {
        const char *found = check_name(values[leader], bytes[leader]);

        status = found != NULL ? join_leader(&share, found, error)
                               : dp_error_set(error, DP_ERR_SYSTEM,
                                              "shared memory: rank %d gave a name that makes no "
                                              "sense (%zu bytes)",
                                              leader, bytes[leader]);
    }
    if (status != DP_OK) close_fds(fds, share.local_size);
    if (share.members != NULL) close_fds(share.members, share.local_size);
    free(share.members);
    dp_door_destroy(door);
    for (int i = 0; i < bootstrap->size; i++)
        free(values[i]);
    free(bytes);
    free(values);
    return status;
}
