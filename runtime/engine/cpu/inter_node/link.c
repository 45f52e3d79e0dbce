/*
 * link.c - bulk messages between ranks of different nodes, over UCX tags.
 *
 * UCX chooses the transport, RDMA where there is any (DP_UCX_TLS). Endpoints are in PEER error
 * mode, in which it takes only transports that report a peer's end: TCP does so at once, RDMA after
 * seconds, so the control plane tells of deaths and the link is cut. Sleep follows UCX's rule:
 * progress until nothing happens, then arm, and only sleep when arming said so. An endpoint that
 * failed is never used again.
 *
 * UCX 1.13's TCP has four assertions that a peer's end can trip, and they end the process. Three
 * cannot be reached from here:
 *
 *  - "PUT_TX_WAITING_ACK" (tcp_ep.c:939): a put was acknowledged, and before that acknowledgement
 *    was read, a send on the same connection failed, which forgets that one is due. Both a
 *    rendezvous and a flush put. So puts are off, nothing is ever flushed, and endpoints are closed
 *    by force, which cancels rather than flushes. UCX itself flushes only a connection that it
 *    makes for one last message, and sends nothing behind that.
 *  - "CTX_TYPE_TX" (tcp_ep.c:478): creating an endpoint takes over a connection that the peer made,
 *    finds it closed, connects anew, is refused within the call, and schedules the end of what it
 *    then gives out as good. So connecting does not block: a refusal is found later, when the
 *    endpoint is complete, and reaches its error callback.
 *  - "CONN_STATE_CLOSED" (tcp_iface.c:307): of several events read together the first ends an
 *    endpoint that a later one is about, as when both sides connect and one dies. So events are
 *    read one at a time: what ends takes its own events with it.
 *
 * The fourth can, though seldom: "comp->count > 0" (uct_iface.h:884). A large send that is not
 * copied fails within the call, UCP takes it back, and the connection, which still has it, finds
 * the failure once more. Seen in one of 15 ends in the middle of a transfer on a busy machine, and
 * never with UCX_ZCOPY_THRESH=inf, which halves the speed of a fast network, so it is not set.
 *
 * A link that failed or was cut is never touched again: UCX moves bytes only when it is progressed,
 * so memory of messages is the program's again at once, with nothing to wait for. Worker and
 * endpoints stay as they are until the process ends, as closing them would progress connections in
 * any state. Only a link whose peers all said farewell is taken down: its connections are made, and
 * at rest.
 */
#include "runtime/engine/cpu/inter_node/link.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

#include "runtime/base/forked.h"
#include "runtime/base/thread.h"
#include "runtime/group/fabric.h"

#define SLEEP_MS 100
#define FALSE_WAKES 8u          /* that may be news of another thread */
#define REST_NS 1000000u        /* longest a rank then does not look */
#define FAREWELL_NS 1000000000u /* longest an orderly end waits for the peers */
#define CLOSE_NS 500000000u     /* longest a close is waited for */
#define KIND_GREETING 14u
#define KIND_FAREWELL 15u
#define GROUP_BITS 10
#define OP_BITS 12
#define KIND_BITS 4
#define CHUNK_BITS 20
_Static_assert(DP_GROUPS_MAX < 1 << GROUP_BITS, "a tag tells all groups apart");

typedef struct peer {
    int rank;
    ucp_ep_h endpoint;
    int is_lost;
    ucs_status_t why;
} link_peer_t;

struct dp_ucx_link {
    const dp_log_t *log; /* borrowed */
    int rank;
    char devices[256];   /* that UCX may use */
    char transports[96]; /* that UCX chose, to the first peer: "tcp/eth0" */
    uint64_t spin_ns;
    ucp_context_h context;
    ucp_worker_h worker;
    int event_fd; /* UCX's, not closed by us */
    dp_fork_watch_t fork_watch;
    ucp_address_t *address;
    size_t address_bytes;
    link_peer_t **peers; /* [peer_room], each of its own: the error callback points to it */
    int peer_count;
    int peer_room;
    int *record_numbers;            /* [size] of a rank among the peers; -1: not connected */
    dp_ucx_link_message_t *pending; /* list of messages UCX holds */
    dp_activity_t *activity;        /* NULL: nobody watches; borrowed */
    int is_cut;                     /* UCX is not called any more */
    unsigned false_wakes; /* since something moved: the descriptor was ready for nothing */
    dp_ucx_link_t *next;  /* among those abandoned */
};

/* Links that cannot be taken down stay reachable from here, so that leak checkers do not report
 * them. */
static _Atomic(dp_ucx_link_t *) abandoned;

#if defined(__SANITIZE_ADDRESS__)
/* Leak checkers do not look into UCX's own mappings, through which it reaches what it allocates. */
__attribute__((visibility("default"))) /* the sanitizer's run time looks for it */
const char *
__lsan_default_suppressions(void); /* NOLINT(bugprone-reserved-identifier) */

const char *__lsan_default_suppressions(void) /* NOLINT(bugprone-reserved-identifier) */
{
    return "leak:libucp.so\nleak:libuct.so\nleak:libucs.so\n";
}
#endif

static uint64_t low(uint64_t value, int bits)
{
    return value & ((UINT64_C(1) << bits) - 1);
}

uint64_t dp_ucx_link_tag(const dp_ucx_link_tag_t *tag)
{
    uint64_t value = (uint64_t)tag->from_rank;

    value = value << GROUP_BITS | low(tag->group, GROUP_BITS);
    value = value << OP_BITS | low(tag->op, OP_BITS);
    value = value << KIND_BITS | low(tag->kind, KIND_BITS);
    return value << CHUNK_BITS | low(tag->chunk, CHUNK_BITS);
}

/* Of the bytes that are swapped with each peer at the start and at the end. */
static uint64_t own_tag(int from_rank, unsigned kind)
{
    const dp_ucx_link_tag_t tag = {.from_rank = from_rank, .kind = kind};

    return dp_ucx_link_tag(&tag);
}

/* ---- Life ----------------------------------------------------------------------------------- */

/* Shared memory is for ranks of one node, which do not meet here: UCX notices a death behind it
 * late or never. Memory of GPUs does not come here either. */
#define ANY_NETWORK "^sm,self,cuda,rocm"

/* UCX listens on each device it is given. */
static void find_devices(const dp_config_t *config, char *text, size_t room)
{
    if (config->ucx_devices[0] != '\0') {
        snprintf(text, room, "%s", config->ucx_devices);
    } else if (strcmp(config->ucx_tls, "tcp") == 0) {
        snprintf(text, room, "%s", config->net_interface);
    } else {
        (void)dp_fabric_devices("/sys", config->net_interface, text, room);
    }
}

/* Settings that hold for any transport; those of TCP are not looked at by others. */
static ucs_status_t modify_config(const dp_config_t *config, const char *tls, const char *devices,
                                  ucp_config_t *ucx)
{
    ucs_status_t code = ucp_config_modify(ucx, "TLS", tls);

    if (code == UCS_OK && devices[0] != '\0') code = ucp_config_modify(ucx, "NET_DEVICES", devices);
    if (config->ucx_tls[0] == '\0' || strstr(tls, "tcp") != NULL) { /* see above */
        if (code == UCS_OK) code = ucp_config_modify(ucx, "PUT_ENABLE", "n");
        if (code == UCS_OK) code = ucp_config_modify(ucx, "CONN_NB", "y");
        if (code == UCS_OK) code = ucp_config_modify(ucx, "MAX_POLL", "1");
        if (code == UCS_OK && config->net_version == 6)
            code = ucp_config_modify(ucx, "AF_PRIO", "inet6");
    }
    /* A message asks nobody before it is sent: its receive is posted, at most a window of them is
     * under way, and the two answers cost a thin link 3 % of its time. Over RDMA it also keeps the
     * promise of dp_ucx_link_cut(): a network card that was asked to fetch a message writes into
     * the program's memory whenever that arrives; one that was not writes into UCX's own. */
    if (code == UCS_OK && dp_environment("UCX_RNDV_THRESH") == NULL)
        code = ucp_config_modify(ucx, "RNDV_THRESH", "inf");
    return code;
}

static dp_status_t read_config(dp_ucx_link_t *link, const dp_config_t *config, ucp_config_t **out,
                               dp_error_t *error)
{
    const char *tls = config->ucx_tls[0] != '\0' ? config->ucx_tls : ANY_NETWORK;
    ucp_config_t *ucx;
    ucs_status_t code = ucp_config_read(NULL, NULL, &ucx);

    if (code != UCS_OK) {
        return dp_error_set(error, DP_ERR_SYSTEM, "ucx: configuration: %s",
                            ucs_status_string(code));
    }
    find_devices(config, link->devices, sizeof(link->devices));
    code = modify_config(config, tls, link->devices, ucx);
    if (code != UCS_OK) {
        ucp_config_release(ucx);
        return dp_error_set(error, DP_ERR_CONFIG, "ucx: DP_UCX_TLS '%s', devices '%s': %s",
                            config->ucx_tls, link->devices, ucs_status_string(code));
    }
    *out = ucx;
    return DP_OK;
}

static ucs_status_t create_worker(dp_ucx_link_t *link, const ucp_config_t *ucx)
{
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP,
        .name = "dp-engine",
    };
    /* Serialized: the launch thread and a stream's worker take turns. */
    const ucp_worker_params_t worker = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucs_status_t code = ucp_init(&params, ucx, &link->context);

    if (code != UCS_OK) {
        link->context = NULL;
        return code;
    }
    code = ucp_worker_create(link->context, &worker, &link->worker);
    if (code != UCS_OK) {
        link->worker = NULL;
        return code;
    }
    code = ucp_worker_get_efd(link->worker, &link->event_fd);
    if (code != UCS_OK) return code;
    dp_fork_watch(&link->fork_watch, link->event_fd);
    code = ucp_worker_get_address(link->worker, &link->address, &link->address_bytes);
    if (code != UCS_OK) link->address = NULL;
    return code;
}

void dp_ucx_link_set_spin(dp_ucx_link_t *link, uint64_t spin_ns)
{
    link->spin_ns = spin_ns;
}

dp_status_t dp_ucx_link_create(const dp_config_t *config, int rank, int size, const dp_log_t *log,
                               dp_ucx_link_t **out, dp_error_t *error)
{
    dp_ucx_link_t *link = calloc(1, sizeof(*link));
    ucp_config_t *ucx = NULL;
    ucs_status_t code;
    dp_status_t status;

    if (link == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    link->log = log;
    link->rank = rank;
    link->record_numbers = malloc((size_t)size * sizeof(*link->record_numbers));
    if (link->record_numbers == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
        goto fail;
    }
    for (int i = 0; i < size; i++)
        link->record_numbers[i] = -1;
    status = read_config(link, config, &ucx, error);
    if (status != DP_OK) goto fail;
    code = create_worker(link, ucx);
    ucp_config_release(ucx);
    if (code != UCS_OK) {
        status = dp_error_set(error, DP_ERR_SYSTEM,
                              "ucx: no worker with DP_UCX_TLS '%s', devices '%s': %s",
                              config->ucx_tls, link->devices, ucs_status_string(code));
        goto fail;
    }
    *out = link;
    return DP_OK;
fail:
    dp_ucx_link_destroy(link, 0);
    return status;
}

const void *dp_ucx_link_address(const dp_ucx_link_t *link, size_t *bytes)
{
    *bytes = link->address_bytes;
    return link->address;
}

/* Called by UCX inside ucp_worker_progress(): records the failure and calls nothing. */
static void on_error(void *argument, ucp_ep_h endpoint, ucs_status_t code)
{
    link_peer_t *peer = argument;

    (void)endpoint;
    peer->is_lost = 1;
    peer->why = code;
}

/* Lists which transports and devices UCX has chosen. It tells people alone, a lane in each line:
 * "#  lane[0]: 2:tcp/eth0.0 md[1] ...". */
static void read_transports(dp_ucx_link_t *link, ucp_ep_h endpoint)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    char *rest;

    if (stream == NULL) return;
    ucp_ep_print_info(endpoint, stream);
    if (fclose(stream) != 0) return;
    rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char name[48];
        const char *lane = strstr(line, "lane[");
        const size_t used = strlen(link->transports);

        if (lane == NULL || sscanf(lane, "lane[%*d]: %*d:%47s", name) != 1) continue;
        if (strrchr(name, '.') != NULL) *strrchr(name, '.') = '\0'; /* the path's number */
        if (strstr(link->transports, name) != NULL) continue;
        snprintf(link->transports + used, sizeof(link->transports) - used, "%s%s",
                 used > 0 ? ", " : "", name);
    }
    free(text);
}

static dp_status_t grow_peers(dp_ucx_link_t *link)
{
    const int room = dp_max(2 * link->peer_room, 16);
    link_peer_t **peers;

    if (link->peer_count < link->peer_room) return DP_OK;
    peers = realloc(link->peers, (size_t)room * sizeof(link_peer_t *));
    if (peers == NULL) return DP_ERR_NO_MEMORY;
    link->peers = peers;
    link->peer_room = room;
    return DP_OK;
}

dp_status_t dp_ucx_link_connect(dp_ucx_link_t *link, int rank, const void *address, int *peer,
                                dp_error_t *error)
{
    link_peer_t *added;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
    };
    ucs_status_t code;

    *peer = link->record_numbers[rank];
    if (*peer >= 0) return DP_OK;
    if (link->is_cut) {
        return dp_error_set(error, DP_ERR_PEER_LOST, "ucx: rank %d has ended its connections",
                            link->rank);
    }
    added = calloc(1, sizeof(*added));
    if (added == NULL || grow_peers(link) != DP_OK) {
        free(added);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    }
    params.err_handler.cb = on_error;
    params.err_handler.arg = added;
    code = ucp_ep_create(link->worker, &params, &added->endpoint);
    if (code != UCS_OK) {
        free(added);
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "ucx: rank %d cannot reach rank %d by its devices '%s': %s", link->rank,
                            rank, link->devices, ucs_status_string(code));
    }
    if (link->peer_count == 0) read_transports(link, added->endpoint);
    added->rank = rank;
    *peer = link->record_numbers[rank] = link->peer_count;
    link->peers[link->peer_count++] = added;
    return DP_OK;
}

int dp_ucx_link_find(const dp_ucx_link_t *link, int rank)
{
    return link->record_numbers[rank];
}

int dp_ucx_link_rank(const dp_ucx_link_t *link, int peer)
{
    return link->peers[peer]->rank;
}

int dp_ucx_link_is_lost(const dp_ucx_link_t *link, int peer, const char **why)
{
    if (!link->peers[peer]->is_lost && !link->is_cut) return 0;
    if (why != NULL && link->peers[peer]->is_lost) {
        *why = ucs_status_string(link->peers[peer]->why);
    }
    return 1;
}

/* ---- Messages ------------------------------------------------------------------------------- */

static void begin(dp_ucx_link_t *link, dp_ucx_link_message_t *message, size_t bytes)
{
    *message = (dp_ucx_link_message_t){.is_pending = 1, .bytes = bytes, .link = link};
    message->next = link->pending;
    if (link->pending != NULL) link->pending->previous = message;
    link->pending = message;
}

static void end(dp_ucx_link_message_t *message, int is_failed)
{
    if (message->previous != NULL) {
        message->previous->next = message->next;
    } else {
        message->link->pending = message->next;
    }
    if (message->next != NULL) message->next->previous = message->previous;
    message->next = message->previous = NULL;
    message->request = NULL;
    message->is_failed = is_failed;
    message->is_pending = 0;
}

static void on_sent(void *request, ucs_status_t code, void *argument)
{
    end(argument, code != UCS_OK);
    ucp_request_free(request);
}

static void on_received(void *request, ucs_status_t code, const ucp_tag_recv_info_t *info,
                        void *argument)
{
    dp_ucx_link_message_t *message = argument;

    end(message, code != UCS_OK || info->length != message->bytes);
    ucp_request_free(request);
}

static dp_status_t started(dp_ucx_link_t *link, dp_ucx_link_message_t *message,
                           ucs_status_ptr_t request, size_t bytes, const char *what)
{
    if (request == NULL) {
        end(message, bytes != message->bytes);
    } else if (UCS_PTR_IS_ERR(request)) {
        dp_log_debug(link->log, "ucx: %s of %zu bytes failed: %s", what, message->bytes,
                     ucs_status_string(UCS_PTR_STATUS(request)));
        end(message, 1);
    } else {
        message->request = request;
    }
    return message->is_failed ? DP_ERR_PEER_LOST : DP_OK;
}

dp_status_t dp_ucx_link_send(dp_ucx_link_t *link, int peer, uint64_t tag, const void *data,
                             size_t bytes, dp_ucx_link_message_t *message)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_sent,
        .user_data = message,
    };

    begin(link, message, bytes);
    if (link->is_cut || link->peers[peer]->is_lost) {
        end(message, 1);
        return DP_ERR_PEER_LOST;
    }
    return started(link, message,
                   ucp_tag_send_nbx(link->peers[peer]->endpoint, data, bytes, tag, &param), bytes,
                   "sending");
}

dp_status_t dp_ucx_link_receive(dp_ucx_link_t *link, uint64_t tag, void *data, size_t bytes,
                                dp_ucx_link_message_t *message)
{
    ucp_tag_recv_info_t info = {.length = bytes};
    ucs_status_ptr_t request;
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_RECV_INFO,
        .cb.recv = on_received,
        .user_data = message,
        .recv_info.tag_info = &info,
    };

    begin(link, message, bytes);
    if (link->is_cut) {
        end(message, 1);
        return DP_ERR_PEER_LOST;
    }
    request = ucp_tag_recv_nbx(link->worker, data, bytes, tag, UINT64_MAX, &param);
    return started(link, message, request, info.length, "receiving");
}

/* ---- Progress ------------------------------------------------------------------------------- */

int dp_ucx_link_progress(dp_ucx_link_t *link)
{
    const int moved = link->is_cut ? 0 : (int)ucp_worker_progress(link->worker);

    if (moved != 0) link->false_wakes = 0;
    if (moved != 0 && link->activity != NULL) dp_activity_moved(link->activity);
    return moved;
}

void dp_ucx_link_watch(dp_ucx_link_t *link, dp_activity_t *activity)
{
    link->activity = activity;
}

/* A connection that the peer has not accepted yet, as it is not in the engine, keeps UCX's
 * descriptor ready, so poll() returns at once. After FALSE_WAKES such returns, sleep a moment. */
static void rest(dp_ucx_link_t *link)
{
    link->false_wakes++;
    if (link->false_wakes <= FALSE_WAKES) return;
    nanosleep(&(const struct timespec){0, (long)dp_min(link->false_wakes * 10000u, REST_NS)}, NULL);
}

/* A short poll, then sleep, until something happened. */
static void idle(dp_ucx_link_t *link)
{
    struct pollfd polled = {link->event_fd, POLLIN, 0};
    uint64_t start_ns = link->spin_ns == 0 ? 0 : dp_now_ns();

    if (link->is_cut) return;
    while (link->spin_ns != 0 && dp_now_ns() - start_ns < link->spin_ns) {
        if (dp_ucx_link_progress(link) != 0) return;
        (void)sched_yield(); /* the rank that is to send may share this core */
    }
    if (dp_ucx_link_progress(link) != 0) return;
    if (ucp_worker_arm(link->worker) != UCS_OK) return;
    if (poll(&polled, 1, SLEEP_MS) > 0 && dp_ucx_link_progress(link) == 0) rest(link);
}

void dp_ucx_link_idle_for(dp_ucx_link_t *link, int rank)
{
    if (link->activity != NULL) dp_activity_awaits(link->activity, rank);
    idle(link);
}

void dp_ucx_link_wake(dp_ucx_link_t *link)
{
    ucp_worker_signal(link->worker);
}

void dp_ucx_link_cut(dp_ucx_link_t *link)
{
    link->is_cut = 1;
    while (link->pending != NULL)
        end(link->pending, 1);
}

/* ---- Greeting and farewell ------------------------------------------------------------------ */

/* A byte to a peer, and one from it. */
typedef struct greeting {
    dp_ucx_link_message_t in, out;
    char received;
} greeting_t;

/* Sends a byte to every peer and takes theirs. 1: all done before the deadline. Otherwise the link
 * is cut. */
static int swap_bytes(dp_ucx_link_t *link, unsigned kind, uint64_t deadline_ns, int *missing)
{
    static const char byte;
    const int peers = link->peer_count;
    greeting_t *greetings = calloc((size_t)peers + 1, sizeof(*greetings));
    int done = 0;
    int is_whole = greetings != NULL;

    *missing = -1;
    for (int i = 0; greetings != NULL && i < peers; i++) {
        const int rank = link->peers[i]->rank;

        dp_ucx_link_receive(link, own_tag(rank, kind), &greetings[i].received, 1, &greetings[i].in);
        dp_ucx_link_send(link, i, own_tag(link->rank, kind), &byte, 1, &greetings[i].out);
    }
    while (greetings != NULL && done < peers) {
        const greeting_t *at = &greetings[done];

        const int is_over = !at->in.is_pending && !at->out.is_pending;

        /* A peer that said farewell and closed at once: its connection is marked lost, but nothing
         * is missing. */
        if (is_over && !at->in.is_failed && !at->out.is_failed) {
            done++;
        } else if (at->in.is_failed || at->out.is_failed || link->peers[done]->is_lost ||
                   dp_now_ns() >= deadline_ns) {
            *missing = link->peers[done]->rank;
            is_whole = 0;
            if (kind == KIND_GREETING || dp_now_ns() >= deadline_ns) break;
            done++; /* has left already; the others may not */
        } else {
            idle(link);
        }
    }
    if (!is_whole) dp_ucx_link_cut(link);
    free(greetings);
    return is_whole;
}

dp_status_t dp_ucx_link_greet(dp_ucx_link_t *link, uint64_t deadline_ns, dp_error_t *error)
{
    int missing;

    if (swap_bytes(link, KIND_GREETING, deadline_ns, &missing)) {
        if (link->rank == 0)
            dp_log_info(link->log, "data between nodes: UCX uses %s", link->transports);
        return DP_OK;
    }
    if (missing < 0) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    if (dp_now_ns() >= deadline_ns) {
        return dp_error_set(error, DP_ERR_TIMEOUT,
                            "ucx: rank %d did not hear from rank %d in time, over %s", link->rank,
                            missing, link->transports);
    }
    return dp_error_set(error, DP_ERR_PEER_LOST,
                        "ucx: rank %d lost the connection to rank %d while starting, over %s",
                        link->rank, missing, link->transports);
}

/* ---- The end -------------------------------------------------------------------------------- */

/* 1: closed. 0: UCX still holds it. */
static int close_endpoint(dp_ucx_link_t *link, link_peer_t *peer)
{
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    const uint64_t until_ns = dp_now_ns() + CLOSE_NS;
    ucs_status_ptr_t request = ucp_ep_close_nbx(peer->endpoint, &force);
    int is_closed;

    if (request == NULL || UCS_PTR_IS_ERR(request)) return 1;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && dp_now_ns() < until_ns)
        ucp_worker_progress(link->worker);
    is_closed = ucp_request_check_status(request) != UCS_INPROGRESS;
    ucp_request_free(request);
    return is_closed;
}

/* 1: nothing of the link is left in UCX. */
static int take_down(dp_ucx_link_t *link, int orderly)
{
    const uint64_t deadline_ns = dp_now_ns() + FAREWELL_NS;
    int is_closed = 1;
    int missing;

    /* With no peer there are only connections that others made, and nobody ever looked at them. */
    if (link->peer_count > 0) {
        if (!orderly || link->is_cut) return 0;
        if (!swap_bytes(link, KIND_FAREWELL, deadline_ns, &missing)) return 0;
        for (int i = 0; i < link->peer_count && is_closed; i++)
            is_closed = close_endpoint(link, link->peers[i]);
        if (!is_closed) return 0;
    }
    if (link->address != NULL) ucp_worker_release_address(link->worker, link->address);
    dp_fork_forget(&link->fork_watch);
    if (link->worker != NULL) ucp_worker_destroy(link->worker);
    if (link->context != NULL) ucp_cleanup(link->context);
    return 1;
}

void dp_ucx_link_destroy(dp_ucx_link_t *link, int orderly)
{
    if (link == NULL) return;
    if (!take_down(link, orderly)) {
        dp_ucx_link_cut(link);
        link->next = atomic_load_explicit(&abandoned, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&abandoned, &link->next, link,
                                                      memory_order_release, memory_order_relaxed))
            continue;
        return;
    }
    for (int i = 0; i < link->peer_count; i++)
        free(link->peers[i]);
    free(link->peers);
    free(link->record_numbers);
    free(link);
}
