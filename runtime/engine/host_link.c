/*
 * host_link.c - bulk messages between ranks of different hosts, over UCX tags.
 *
 * Endpoints are in PEER error mode over TCP: only these see a death at once. Sleep follows UCX's
 * rule: progress until nothing happens, then arm, and only sleep when arming said so. An endpoint
 * that failed is never used again, and closed from outside its error callback.
 */
#include "runtime/engine/host_link.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "runtime/base/futex.h"

#define SLEEP_MS 100
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
} peer_t;

struct dp_link {
    const dp_log_t *log; /* borrowed */
    int rank;
    uint64_t spin_ns;
    ucp_context_h context;
    ucp_worker_h worker;
    int event_fd; /* UCX's, not closed by us */
    ucp_address_t *address;
    size_t address_bytes;
    peer_t **peers; /* [peer_room], each of its own: the error callback points to it */
    int peer_count;
    int peer_room;
    int *numbers;               /* [size] of a rank among the peers; -1: not connected */
    dp_link_message_t *pending; /* list of messages UCX holds */
    dp_pulse_t *pulse;          /* NULL: nobody watches; borrowed */
};

static uint64_t low(uint64_t value, int bits)
{
    return value & ((UINT64_C(1) << bits) - 1);
}

uint64_t dp_link_tag(const dp_link_tag_t *tag)
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
    const dp_link_tag_t tag = {.from_rank = from_rank, .kind = kind};

    return dp_link_tag(&tag);
}

/* ---- Life -------------------------------------------------------------------------------------
 */

static dp_status_t read_config(const dp_config_t *config, ucp_config_t **out, dp_error_t *error)
{
    ucp_config_t *ucx;
    ucs_status_t code = ucp_config_read(NULL, NULL, &ucx);

    if (code != UCS_OK) {
        return dp_error_set(error, DP_ERR_SYSTEM, "ucx: configuration: %s",
                            ucs_status_string(code));
    }
    code = ucp_config_modify(ucx, "TLS", config->ucx_tls);
    if (code == UCS_OK && config->ucx_devices[0] != '\0') {
        code = ucp_config_modify(ucx, "NET_DEVICES", config->ucx_devices);
    }
    if (code != UCS_OK) {
        ucp_config_release(ucx);
        return dp_error_set(error, DP_ERR_CONFIG, "ucx: DP_UCX_TLS '%s' or DP_UCX_DEVICES '%s': %s",
                            config->ucx_tls, config->ucx_devices, ucs_status_string(code));
    }
    *out = ucx;
    return DP_OK;
}

static ucs_status_t create_worker(dp_link_t *link, const ucp_config_t *ucx)
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
    code = ucp_worker_get_address(link->worker, &link->address, &link->address_bytes);
    if (code != UCS_OK) link->address = NULL;
    return code;
}

void dp_link_set_spin(dp_link_t *link, uint64_t spin_ns)
{
    link->spin_ns = spin_ns;
}

dp_status_t dp_link_create(const dp_config_t *config, int rank, int size, const dp_log_t *log,
                           dp_link_t **out, dp_error_t *error)
{
    dp_link_t *link = calloc(1, sizeof(*link));
    ucp_config_t *ucx = NULL;
    ucs_status_t code;
    dp_status_t status;

    if (link == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    link->log = log;
    link->rank = rank;
    link->numbers = malloc((size_t)size * sizeof(*link->numbers));
    if (link->numbers == NULL) {
        status = dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
        goto fail;
    }
    for (int i = 0; i < size; i++)
        link->numbers[i] = -1;
    status = read_config(config, &ucx, error);
    if (status != DP_OK) goto fail;
    code = create_worker(link, ucx);
    ucp_config_release(ucx);
    if (code != UCS_OK) {
        status = dp_error_set(error, DP_ERR_SYSTEM,
                              "ucx: no worker with DP_UCX_TLS '%s', DP_UCX_DEVICES '%s': %s",
                              config->ucx_tls, config->ucx_devices, ucs_status_string(code));
        goto fail;
    }
    *out = link;
    return DP_OK;
fail:
    dp_link_destroy(link, 0);
    return status;
}

const void *dp_link_address(const dp_link_t *link, size_t *bytes)
{
    *bytes = link->address_bytes;
    return link->address;
}

/* Called by UCX inside progress: only notes what happened. */
static void on_error(void *argument, ucp_ep_h endpoint, ucs_status_t code)
{
    peer_t *peer = argument;

    (void)endpoint;
    peer->is_lost = 1;
    peer->why = code;
}

static dp_status_t grow_peers(dp_link_t *link)
{
    const int room = DP_MAX(2 * link->peer_room, 16);
    peer_t **peers;

    if (link->peer_count < link->peer_room) return DP_OK;
    peers = realloc(link->peers, (size_t)room * sizeof(peer_t *));
    if (peers == NULL) return DP_ERR_NO_MEMORY;
    link->peers = peers;
    link->peer_room = room;
    return DP_OK;
}

dp_status_t dp_link_connect(dp_link_t *link, int rank, const void *address, int *peer,
                            dp_error_t *error)
{
    peer_t *added;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
    };
    ucs_status_t code;

    *peer = link->numbers[rank];
    if (*peer >= 0) return DP_OK;
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
        return dp_error_set(error, DP_ERR_SYSTEM, "ucx: rank %d cannot reach rank %d: %s",
                            link->rank, rank, ucs_status_string(code));
    }
    added->rank = rank;
    *peer = link->numbers[rank] = link->peer_count;
    link->peers[link->peer_count++] = added;
    return DP_OK;
}

int dp_link_find(const dp_link_t *link, int rank)
{
    return link->numbers[rank];
}

int dp_link_rank(const dp_link_t *link, int peer)
{
    return link->peers[peer]->rank;
}

int dp_link_is_lost(const dp_link_t *link, int peer, const char **why)
{
    if (!link->peers[peer]->is_lost) return 0;
    if (why != NULL) *why = ucs_status_string(link->peers[peer]->why);
    return 1;
}

/* ---- Messages ---------------------------------------------------------------------------------
 */

static void begin(dp_link_t *link, dp_link_message_t *message, size_t bytes)
{
    *message = (dp_link_message_t){.is_pending = 1, .bytes = bytes, .link = link};
    message->next = link->pending;
    if (link->pending != NULL) link->pending->previous = message;
    link->pending = message;
}

static void end(dp_link_message_t *message, int is_failed)
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
    dp_link_message_t *message = argument;

    end(message, code != UCS_OK || info->length != message->bytes);
    ucp_request_free(request);
}

static dp_status_t started(dp_link_t *link, dp_link_message_t *message, ucs_status_ptr_t request,
                           size_t bytes, const char *what)
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

dp_status_t dp_link_send(dp_link_t *link, int peer, uint64_t tag, const void *data, size_t bytes,
                         dp_link_message_t *message)
{
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_sent,
        .user_data = message,
    };

    begin(link, message, bytes);
    if (link->peers[peer]->is_lost) {
        end(message, 1);
        return DP_ERR_PEER_LOST;
    }
    return started(link, message,
                   ucp_tag_send_nbx(link->peers[peer]->endpoint, data, bytes, tag, &param), bytes,
                   "sending");
}

dp_status_t dp_link_receive(dp_link_t *link, uint64_t tag, void *data, size_t bytes,
                            dp_link_message_t *message)
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
    request = ucp_tag_recv_nbx(link->worker, data, bytes, tag, UINT64_MAX, &param);
    return started(link, message, request, info.length, "receiving");
}

/* ---- Progress ---------------------------------------------------------------------------------
 */

int dp_link_progress(dp_link_t *link)
{
    const int moved = (int)ucp_worker_progress(link->worker);

    if (moved != 0 && link->pulse != NULL) dp_pulse_move(link->pulse);
    return moved;
}

void dp_link_watch(dp_link_t *link, dp_pulse_t *pulse)
{
    link->pulse = pulse;
}

void dp_link_idle_for(dp_link_t *link, int rank)
{
    if (link->pulse != NULL) dp_pulse_await(link->pulse, rank);
    dp_link_idle(link);
}

void dp_link_idle(dp_link_t *link)
{
    struct pollfd polled = {link->event_fd, POLLIN, 0};
    uint64_t start_ns = link->spin_ns == 0 ? 0 : dp_now_ns();

    while (link->spin_ns != 0 && dp_now_ns() - start_ns < link->spin_ns) {
        if (dp_link_progress(link) != 0) return;
        dp_spin_pause();
    }
    if (dp_link_progress(link) != 0) return;
    if (ucp_worker_arm(link->worker) == UCS_OK) poll(&polled, 1, SLEEP_MS);
}

void dp_link_wake(dp_link_t *link)
{
    ucp_worker_signal(link->worker);
}

/* Sends a byte to every peer and takes theirs. 1: all done before the deadline. */
static int swap_byte(dp_link_t *link, unsigned kind, uint64_t deadline_ns, int *missing)
{
    const size_t peers = (size_t)link->peer_count;
    dp_link_message_t *messages = calloc(2 * peers + 1, sizeof(*messages));
    char *bytes = calloc(peers + 1, 1);
    int is_done = messages != NULL && bytes != NULL;

    *missing = -1;
    for (size_t i = 0; is_done && i < peers; i++) {
        const int rank = link->peers[i]->rank;

        dp_link_receive(link, own_tag(rank, kind), bytes + i, 1, &messages[2 * i]);
        dp_link_send(link, (int)i, own_tag(link->rank, kind), bytes + peers, 1,
                     &messages[2 * i + 1]);
    }
    for (size_t i = 0; is_done && i < 2 * peers;) {
        if (messages[i].is_failed || link->peers[i / 2]->is_lost || dp_now_ns() >= deadline_ns) {
            *missing = link->peers[i / 2]->rank;
            if (kind == KIND_GREETING) {
                is_done = 0;
            } else if (dp_now_ns() < deadline_ns) {
                i++; /* this one has left already; the others may not */
                continue;
            }
            break;
        }
        if (messages[i].is_pending) {
            dp_link_idle(link);
        } else {
            i++;
        }
    }
    /* What is pending must not outlive its memory. */
    for (size_t i = 0; messages != NULL && i < 2 * peers; i++) {
        if (messages[i].is_pending) ucp_request_cancel(link->worker, messages[i].request);
    }
    for (size_t i = 0; messages != NULL && i < 2 * peers; i++) {
        const uint64_t until_ns = dp_now_ns() + CLOSE_NS;

        while (messages[i].is_pending && dp_now_ns() < until_ns)
            dp_link_progress(link);
        if (messages[i].is_pending) return is_done; /* UCX keeps it: leak it rather than crash */
    }
    free(bytes);
    free(messages);
    return is_done;
}

dp_status_t dp_link_greet(dp_link_t *link, uint64_t deadline_ns, dp_error_t *error)
{
    int missing;

    if (swap_byte(link, KIND_GREETING, deadline_ns, &missing)) return DP_OK;
    if (missing < 0) return dp_error_set(error, DP_ERR_NO_MEMORY, "engine: no memory");
    if (dp_now_ns() >= deadline_ns) {
        return dp_error_set(error, DP_ERR_TIMEOUT, "ucx: rank %d did not hear from rank %d in time",
                            link->rank, missing);
    }
    return dp_error_set(error, DP_ERR_PEER_LOST,
                        "ucx: rank %d lost the connection to rank %d while starting", link->rank,
                        missing);
}

static void close_endpoint(dp_link_t *link, peer_t *peer)
{
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    const uint64_t until_ns = dp_now_ns() + CLOSE_NS;
    ucs_status_ptr_t request;

    if (peer->endpoint == NULL) return;
    request = ucp_ep_close_nbx(peer->endpoint, &force);
    peer->endpoint = NULL;
    if (!peer->is_lost) peer->why = UCS_ERR_CANCELED;
    peer->is_lost = 1;
    if (request == NULL || UCS_PTR_IS_ERR(request)) return;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && dp_now_ns() < until_ns)
        ucp_worker_progress(link->worker);
    ucp_request_free(request);
}

/* Lets connections that are being made come about, as far as possible: UCX 1.13 stops the process
 * when it closes one in the middle of its handshake. 1: all is quiet. */
static int settle(dp_link_t *link)
{
    const ucp_request_param_t param = {.op_attr_mask = 0};
    const uint64_t until_ns = dp_now_ns() + CLOSE_NS;
    ucs_status_ptr_t request = ucp_worker_flush_nbx(link->worker, &param);
    int is_quiet;

    if (request == NULL || UCS_PTR_IS_ERR(request)) return 1;
    while (ucp_request_check_status(request) == UCS_INPROGRESS && dp_now_ns() < until_ns) {
        if (ucp_worker_progress(link->worker) == 0) sched_yield();
    }
    is_quiet = ucp_request_check_status(request) != UCS_INPROGRESS;
    ucp_request_free(request);
    return is_quiet;
}

int dp_link_cut(dp_link_t *link)
{
    const uint64_t until_ns = dp_now_ns() + (uint64_t)2 * CLOSE_NS;
    dp_link_message_t *next;

    for (dp_link_message_t *at = link->pending; at != NULL; at = next) {
        next = at->next; /* a cancelled receive completes at once and leaves the list */
        if (at->request != NULL) ucp_request_cancel(link->worker, at->request);
    }
    if (!settle(link)) return 0;
    for (int i = 0; i < link->peer_count; i++)
        close_endpoint(link, link->peers[i]);
    while (link->pending != NULL && dp_now_ns() < until_ns)
        dp_link_progress(link);
    return link->pending == NULL;
}

void dp_link_destroy(dp_link_t *link, int orderly)
{
    const uint64_t now = dp_now_ns();
    int missing;

    if (link == NULL) return;
    if (link->worker != NULL) {
        if (orderly) swap_byte(link, KIND_FAREWELL, now + FAREWELL_NS, &missing);
        /* Twice: a peer may have begun to connect while endpoints were closed. What comes after the
         * last look stays unread. A worker that does not settle is leaked rather than ended. */
        if (!dp_link_cut(link) || !settle(link)) return;
    }
    if (link->worker != NULL) {
        if (link->address != NULL) ucp_worker_release_address(link->worker, link->address);
        ucp_worker_destroy(link->worker);
    }
    if (link->context != NULL) ucp_cleanup(link->context);
    for (int i = 0; i < link->peer_count; i++)
        free(link->peers[i]);
    free(link->peers);
    free(link->numbers);
    free(link);
}
