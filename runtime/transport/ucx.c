/*
 * ucx.c - the transport that carries control messages between nodes: UCX active messages over TCP
 * endpoints.
 *
 * Called through the ops table by the thread that owns the transport; only wake() is for others. It
 * must not know about nodes or about the transports above it.
 *
 * A message travels as one or more frames (frame.h), each a header-only eager active message. That
 * is UCX's path of least latency, and UCX keeps the order of frames per endpoint. UCX's callbacks
 * run inside ucp_worker_progress(), where most of UCX must not be called. So they only set fields,
 * and handle_notes() does outside of them what a lost peer or a goodbye asks for.
 *
 * Both sides agree on closing: BYE says that nothing more will come, ACK that the BYE and so all
 * messages before it have arrived. Only then are sockets closed by force. So no reset can overtake
 * data, and an orderly end does not look like a death.
 */
#include "runtime/transport/transport.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/transport/frame.h"
#include "runtime/transport/ucx_process.h"
#include "runtime/transport/ucx_worker.h"

#define AM_ID 1
#define CLOSE_STEP_MS 5                /* longest sleep in close(), should an event be missed */
#define TEARDOWN_NS (200ull * 1000000) /* for sockets to be taken down once all was agreed */

/* Memory for one frame on its way out, or for one message on its way in. */
typedef struct buffer {
    struct buffer *next;        /* in the pool or the inbox */
    struct buffer *next_pooled; /* all pooled buffers, wherever they are now */
    struct ucx_peer *peer;      /* that it is sent to */
    int is_pooled;              /* else its size is its message's: freed after use */
    int from;
    size_t bytes;
    uint8_t data[];
} buffer_t;

typedef struct ucx_peer {
    struct ucx *owner;
    int rank;
    ucp_ep_h ep;            /* NULL once closed */
    dp_assembly_t assembly; /* of the message that arrives */
    buffer_t *partial;
    size_t sending;  /* frames whose buffers UCX still uses */
    int has_failed;  /* set in callbacks; never send to it again */
    int is_reported; /* the loss was reported, or will not be */
    int said_bye;
    int owes_ack; /* for its BYE; sent outside of callbacks */
    int got_ack;
    char text[160]; /* how the loss was seen */
} ucx_peer_t;

typedef struct ucx {
    dp_transport_t base;
    int rank;
    uint64_t tag;
    dp_log_t log;
    dp_ucx_worker_t ucx;
    ucx_peer_t *peers;
    int peer_count;
    buffer_t *pool;
    buffer_t *all_pooled;
    buffer_t *inbox;
    buffer_t **inbox_tail;
    buffer_t *current; /* returned by the last poll(): valid until the next one */
    int has_notes;     /* callbacks set fields that handle_notes() must look at */
    int closing;       /* endpoints whose on_closed() is still to come */
    int is_closed;
    uint64_t refused;
} ucx_t;

/* ---- Buffers -------------------------------------------------------------------------------- */

/* Frames and short messages come from a pool that only grows, so the steady state allocates
 * nothing. Longer messages are allocated and freed. */
static buffer_t *buffer_get(ucx_t *self, size_t bytes)
{
    const size_t pooled_bytes = DP_FRAME_HEADER + DP_FRAME_PAYLOAD;
    buffer_t *buffer = self->pool;

    if (bytes > pooled_bytes) {
        buffer = malloc(sizeof(*buffer) + bytes);
        if (buffer == NULL) return NULL;
        buffer->is_pooled = 0;
    } else if (buffer != NULL) {
        self->pool = buffer->next;
    } else {
        buffer = malloc(sizeof(*buffer) + pooled_bytes);
        if (buffer == NULL) return NULL;
        buffer->is_pooled = 1;
        buffer->next_pooled = self->all_pooled;
        self->all_pooled = buffer;
    }
    buffer->next = NULL;
    buffer->peer = NULL;
    buffer->bytes = bytes;
    return buffer;
}

static void buffer_put(ucx_t *self, buffer_t *buffer)
{
    if (buffer == NULL) return;
    if (!buffer->is_pooled) {
        free(buffer);
        return;
    }
    buffer->next = self->pool;
    self->pool = buffer;
}

/* ---- Peers ---------------------------------------------------------------------------------- */

static ucx_peer_t *find_peer(ucx_t *self, int rank)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].rank == rank) return &self->peers[i];
    }
    return NULL;
}

/* Marks a peer as lost; the loss is reported later. Safe inside callbacks. */
static void note_failure(ucx_peer_t *peer, const char *what, const char *why)
{
    if (peer->has_failed) return;
    peer->has_failed = 1;
    peer->owner->has_notes = 1;
    snprintf(peer->text, sizeof(peer->text), "%s (%s)", what, why);
}

/* Likewise for a broken connection. One text for all ways to see it, whatever UCX calls it: several
 * ranks may see the same death first, and all of them must report the same cause. */
static void note_break(ucx_peer_t *peer, ucs_status_t status)
{
    if (peer->has_failed) return;
    dp_log_debug(&peer->owner->log, "the connection to rank %d broke: %s", peer->rank,
                 ucs_status_string(status));
    peer->has_failed = 1;
    peer->owner->has_notes = 1;
    snprintf(peer->text, sizeof(peer->text), "its connection broke");
}

static void on_peer_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep; /* close_endpoint() closes it, outside of callbacks */
    note_break(arg, status);
}

static void on_closed(void *request, ucs_status_t status, void *user)
{
    ucx_t *self = user;

    (void)status;
    self->closing--;
    ucp_request_free(request);
}

/* Must not run inside a callback of UCX. */
static void close_endpoint(ucx_peer_t *peer)
{
    ucx_t *self = peer->owner;
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_closed,
        .user_data = self,
    };
    ucs_status_ptr_t request;

    if (peer->ep == NULL) return;
    self->closing++;
    request = ucp_ep_close_nbx(peer->ep, &param);
    peer->ep = NULL;
    if (!UCS_PTR_IS_PTR(request)) self->closing--; /* closed at once: no on_closed() */
}

/* ---- Sending -------------------------------------------------------------------------------- */

static void on_sent(void *request, ucs_status_t status, void *user)
{
    buffer_t *buffer = user;
    ucx_peer_t *peer = buffer->peer;

    peer->sending--;
    if (status != UCS_OK) note_break(peer, status);
    buffer_put(peer->owner, buffer);
    ucp_request_free(request);
}

/* Sends one frame. The buffer must live until on_sent(), or is given back at once if UCX has copied
 * it. A failed connection is noted and no error: the loss is reported by poll(). */
static dp_status_t send_frame(ucx_peer_t *peer, dp_frame_kind_t kind, size_t total, size_t offset,
                              const void *payload, size_t bytes)
{
    ucx_t *self = peer->owner;
    const dp_control_frame_t frame = {self->tag, (uint32_t)self->rank, (uint32_t)kind,
                                      (uint32_t)total, (uint32_t)offset};
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_AM_SEND_FLAG_EAGER, /* rendezvous leaks in UCX 1.13, and costs a round trip */
        .cb.send = on_sent,
    };
    buffer_t *buffer;
    ucs_status_ptr_t request;

    if (peer->has_failed || peer->ep == NULL) return DP_OK;
    buffer = buffer_get(self, DP_FRAME_HEADER + bytes);
    if (buffer == NULL) return DP_ERR_NO_MEMORY;
    dp_frame_write(&frame, buffer->data);
    if (bytes > 0) memcpy(buffer->data + DP_FRAME_HEADER, payload, bytes);
    buffer->peer = peer;
    param.user_data = buffer;
    request =
        ucp_am_send_nbx(peer->ep, AM_ID, buffer->data, DP_FRAME_HEADER + bytes, NULL, 0, &param);
    if (UCS_PTR_IS_PTR(request)) {
        peer->sending++; /* on_sent() gives the buffer back */
        return DP_OK;
    }
    buffer_put(self, buffer);
    if (UCS_PTR_IS_ERR(request)) note_break(peer, UCS_PTR_STATUS(request));
    return DP_OK;
}

static dp_status_t ucx_send(dp_transport_t *base, int rank, const void *data, size_t bytes)
{
    ucx_t *self = (ucx_t *)base;
    ucx_peer_t *peer = find_peer(self, rank);
    size_t offset = 0;
    dp_status_t status;

    if (peer == NULL || bytes > DP_FRAME_TOTAL_MAX) return DP_ERR_INVALID;
    if (self->is_closed) return DP_OK;
    do {
        const size_t part = dp_min(bytes - offset, (size_t)DP_FRAME_PAYLOAD);

        status =
            send_frame(peer, DP_FRAME_DATA, bytes, offset, (const uint8_t *)data + offset, part);
        offset += part;
    } while (status == DP_OK && offset < bytes);
    /* A part is out and cannot be taken back, and the receiver would wait for the rest for ever. */
    if (status != DP_OK && offset > DP_FRAME_PAYLOAD) {
        note_failure(peer, "half a message was sent to it", "out of memory");
    }
    return status;
}

/* ---- Receiving ------------------------------------------------------------------------------ */

static void refuse_frame(ucx_t *self, int from, const char *reason)
{
    self->refused++;
    if ((self->refused & (self->refused - 1)) != 0) return; /* no flood of lines */
    dp_log_warn(&self->log, "dropped %llu control frames, the last from rank %d: %s",
                (unsigned long long)self->refused, from, reason);
}

/* Copies the payload into its message, and a whole message into the inbox. */
static const char *accept_data(ucx_peer_t *peer, const dp_control_frame_t *frame,
                               const uint8_t *payload, size_t bytes)
{
    ucx_t *self = peer->owner;
    const char *reason = NULL;
    buffer_t *buffer;

    if (peer->has_failed)
        return NULL; /* a message is missing: its loss is reported, nothing behind it is */
    reason = dp_assembly_add(&peer->assembly, frame, bytes);
    if (reason != NULL) {
        buffer_put(self, peer->partial);
        peer->partial = NULL;
        return reason;
    }
    if (frame->offset == 0) peer->partial = buffer_get(self, frame->total);
    buffer = peer->partial;
    if (buffer == NULL) {
        /* The ranks would launch in different orders if this message were merely skipped. */
        note_failure(peer, "a message from it was lost", "out of memory");
        return "out of memory";
    }
    if (bytes > 0) memcpy(buffer->data + frame->offset, payload, bytes);
    if (peer->assembly.is_open) return NULL;
    peer->partial = NULL;
    buffer->from = peer->rank;
    *self->inbox_tail = buffer;
    self->inbox_tail = &buffer->next;
    return NULL;
}

/* UCX's callback for each frame. Everything in it is checked: any program that reaches the listener
 * may send one, and only the tag tells a rank of this job. */
static ucs_status_t on_frame(void *arg, const void *header, size_t header_length, void *data,
                             size_t length, const ucp_am_recv_param_t *param)
{
    ucx_t *self = arg;
    dp_control_frame_t frame = {.from = UINT32_MAX};
    const char *reason = NULL;
    ucx_peer_t *peer = NULL;
    size_t payload = 0;

    (void)data;
    (void)param;
    if (length != 0) reason = "a frame with a body beside its header";
    if (reason == NULL) reason = dp_frame_read(header, header_length, self->tag, &frame, &payload);
    if (reason == NULL) {
        peer = find_peer(self, (int)frame.from);
        if (peer == NULL) reason = "no neighbour";
    }
    if (reason == NULL && frame.kind == DP_FRAME_DATA) {
        reason = accept_data(peer, &frame, (const uint8_t *)header + DP_FRAME_HEADER, payload);
    } else if (reason == NULL && frame.kind == DP_FRAME_BYE) {
        peer->said_bye = 1;
        peer->owes_ack = 1;
        self->has_notes = 1;
    } else if (reason == NULL) {
        peer->got_ack = 1;
    }
    if (reason != NULL) refuse_frame(self, (int)frame.from, reason);
    return UCS_OK; /* the payload was copied: UCX may reuse its memory */
}

/* Answers goodbyes and ends lost peers, as callbacks noted. 1: *out is the loss of a peer. */
static int handle_notes(ucx_t *self, dp_transport_event_t *out)
{
    self->has_notes = 0;
    for (int i = 0; i < self->peer_count; i++) {
        ucx_peer_t *peer = &self->peers[i];

        if (peer->owes_ack) {
            peer->owes_ack = 0;
            if (send_frame(peer, DP_FRAME_ACK, 0, 0, NULL, 0) != DP_OK) {
                note_failure(peer, "its goodbye went unanswered", "out of memory");
            }
        }
        if (!peer->has_failed) continue;
        close_endpoint(peer);
        if (peer->is_reported) continue;
        peer->is_reported = 1;
        if (peer->said_bye || out == NULL) continue; /* it left in order */
        self->has_notes = 1;                         /* there may be more of them */
        *out = (dp_transport_event_t){
            .kind = DP_TRANSPORT_PEER_LOST, .rank = peer->rank, .text = peer->text};
        return 1;
    }
    return 0;
}

static dp_status_t ucx_poll(dp_transport_t *base, dp_transport_event_t *out)
{
    ucx_t *self = (ucx_t *)base;

    buffer_put(self, self->current);
    self->current = NULL;
    for (;;) {
        buffer_t *buffer = self->inbox;

        if (buffer != NULL) {
            self->inbox = buffer->next;
            if (self->inbox == NULL) self->inbox_tail = &self->inbox;
            self->current = buffer;
            *out = (dp_transport_event_t){.kind = DP_TRANSPORT_MESSAGE,
                                          .rank = buffer->from,
                                          .data = buffer->data,
                                          .bytes = buffer->bytes};
            return DP_OK;
        }
        /* Only now, as the inbox is empty: messages of a dead peer are delivered before its loss.
         */
        if (self->has_notes && handle_notes(self, out)) return DP_OK;
        if (ucp_worker_progress(self->ucx.worker) == 0 && self->inbox == NULL && !self->has_notes) {
            return DP_ERR_PENDING;
        }
    }
}

/* Its endpoint stays as it is until close(), which waits for no goodbye of it. */
static void ucx_give_up(dp_transport_t *base, int rank)
{
    ucx_peer_t *peer = find_peer((ucx_t *)base, rank);

    if (peer == NULL) return;
    peer->has_failed = 1;
    peer->is_reported = 1;
}

/* ---- Sleeping ------------------------------------------------------------------------------- */

static int ucx_fd(const dp_transport_t *base)
{
    return ((const ucx_t *)base)->ucx.fd;
}

static dp_status_t ucx_arm(dp_transport_t *base)
{
    ucx_t *self = (ucx_t *)base;
    ucs_status_t status;

    if (self->inbox != NULL || self->has_notes) return DP_ERR_PENDING;
    status = ucp_worker_arm(self->ucx.worker);
    if (status == UCS_OK) return DP_OK;
    if (status == UCS_ERR_BUSY) return DP_ERR_PENDING;
    dp_log_error(&self->log, "ucp_worker_arm failed: %s", ucs_status_string(status));
    return DP_ERR_SYSTEM;
}

/* Has no work: the worker's epoll is level-triggered over TCP sockets, so unread data makes its
 * descriptor readable even if another thread polled meanwhile. */
static dp_status_t ucx_rearm(dp_transport_t *base)
{
    (void)base;
    return DP_OK;
}

static void ucx_wake(dp_transport_t *base)
{
    (void)ucp_worker_signal(((ucx_t *)base)->ucx.worker);
}

/* ---- Opening and closing -------------------------------------------------------------------- */

static dp_status_t ucx_address(dp_transport_t *base, void *data, size_t room, size_t *bytes)
{
    ucx_t *self = (ucx_t *)base;
    ucp_address_t *address;
    size_t length;
    ucs_status_t status = ucp_worker_get_address(self->ucx.worker, &address, &length);
    const int fits = status == UCS_OK && length <= room;

    if (status != UCS_OK) {
        dp_log_error(&self->log, "ucp_worker_get_address failed: %s", ucs_status_string(status));
        return DP_ERR_SYSTEM;
    }
    if (fits) {
        memcpy(data, address, length);
        *bytes = length;
    } else {
        dp_log_error(&self->log,
                     "the UCX address has %zu bytes, there is room for %zu; "
                     "DP_UCX_DEVICES can name fewer devices",
                     length, room);
    }
    ucp_worker_release_address(self->ucx.worker, address);
    return fits ? DP_OK : DP_ERR_SYSTEM;
}

/* 1: every peer that lives has sent BYE and ACK, and has ours. */
static int peers_are_done(const ucx_t *self)
{
    for (int i = 0; i < self->peer_count; i++) {
        const ucx_peer_t *peer = &self->peers[i];

        if (peer->has_failed || peer->ep == NULL) continue;
        if (!peer->got_ack || !peer->said_bye || peer->owes_ack || peer->sending > 0) return 0;
    }
    return 1;
}

/* Sends BYE to all and polls until all have exchanged BYE and ACK, or the deadline. Messages
 * that arrive are dropped. */
static void say_goodbyes(ucx_t *self, uint64_t deadline_ns)
{
    for (int i = 0; i < self->peer_count; i++) {
        (void)send_frame(&self->peers[i], DP_FRAME_BYE, 0, 0, NULL, 0);
    }
    for (;;) {
        struct pollfd wait = {.fd = self->ucx.fd, .events = POLLIN};
        dp_transport_event_t event;

        while (ucx_poll(&self->base, &event) == DP_OK) {
        }
        if (peers_are_done(self) || dp_now_ns() >= deadline_ns) return;
        if (ucx_arm(&self->base) == DP_OK) (void)poll(&wait, 1, CLOSE_STEP_MS);
    }
}

/* Takes all connections down by force, after goodbyes or in destroy(). Losses from here on are not
 * reported. */
static void close_endpoints(ucx_t *self)
{
    const uint64_t deadline_ns = dp_now_ns() + TEARDOWN_NS;

    for (int i = 0; i < self->peer_count; i++) {
        self->peers[i].is_reported = 1;
        close_endpoint(&self->peers[i]);
    }
    while (self->closing > 0 && dp_now_ns() < deadline_ns) {
        (void)ucp_worker_progress(self->ucx.worker);
    }
}

static void ucx_close(dp_transport_t *base, uint64_t deadline_ns)
{
    ucx_t *self = (ucx_t *)base;

    if (self->is_closed) return;
    say_goodbyes(self, deadline_ns);
    self->is_closed = 1;
    close_endpoints(self);
}

static void ucx_destroy(dp_transport_t *base)
{
    ucx_t *self = (ucx_t *)base;

    if (self->ucx.worker != NULL) close_endpoints(self);
    dp_ucx_worker_close(&self->ucx); /* after this no callback can come */
    buffer_put(self, self->current);
    while (self->inbox != NULL) {
        buffer_t *buffer = self->inbox;

        self->inbox = buffer->next;
        buffer_put(self, buffer);
    }
    for (int i = 0; i < self->peer_count; i++)
        buffer_put(self, self->peers[i].partial);
    while (self->all_pooled != NULL) {
        buffer_t *buffer = self->all_pooled;

        self->all_pooled = buffer->next_pooled;
        free(buffer);
    }
    free(self->peers);
    free(self);
}

static dp_status_t ucx_connect(dp_transport_t *base, const int *ranks, const void *const *addresses,
                               const size_t *bytes, int count, dp_error_t *error)
{
    ucx_t *self = (ucx_t *)base;

    if (self->peers != NULL || self->is_closed) {
        return dp_error_set(error, DP_ERR_INVALID, "rank %d: connected twice", self->rank);
    }
    if (count == 0) return DP_OK;
    self->peers = calloc((size_t)count, sizeof(*self->peers));
    if (self->peers == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory for %d neighbours",
                            self->rank, count);
    }
    for (int i = 0; i < count; i++) {
        ucx_peer_t *peer = &self->peers[self->peer_count];
        const ucp_ep_params_t params = {
            .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER,
            .address = addresses[i],
            .err_mode = UCP_ERR_HANDLING_MODE_PEER,
            .err_handler = {.cb = on_peer_error, .arg = peer},
        };
        ucs_status_t status = UCS_ERR_INVALID_ADDR;

        *peer = (ucx_peer_t){.owner = self, .rank = ranks[i]};
        if (bytes[i] > 0) status = ucp_ep_create(self->ucx.worker, &params, &peer->ep);
        if (status != UCS_OK) {
            close_endpoints(self);
            free(self->peers);
            self->peers = NULL;
            self->peer_count = 0;
            return dp_error_set(error, DP_ERR_SYSTEM, "rank %d: no UCX connection to rank %d: %s",
                                self->rank, ranks[i], ucs_status_string(status));
        }
        self->peer_count++;
    }
    return DP_OK;
}

dp_status_t dp_transport_ucx_create(int rank, uint64_t tag, const dp_config_t *config,
                                    const dp_log_t *log, dp_transport_t **out, dp_error_t *error)
{
    static const dp_transport_ops_t ops = {
        .name = "ucx",
        .address = ucx_address,
        .connect = ucx_connect,
        .send = ucx_send,
        .poll = ucx_poll,
        .give_up = ucx_give_up,
        .fd = ucx_fd,
        .arm = ucx_arm,
        .rearm = ucx_rearm,
        .wake = ucx_wake,
        .close = ucx_close,
        .destroy = ucx_destroy,
    };
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = AM_ID,
        .cb = on_frame,
    };
    ucx_t *self = calloc(1, sizeof(*self));
    dp_status_t status;
    ucs_status_t ucx_status;

    if (self == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d: no memory", rank);
    self->base.ops = &ops;
    self->rank = rank;
    self->tag = tag;
    self->inbox_tail = &self->inbox;
    dp_log_init(&self->log, DP_LOG_WARN, rank);
    if (log != NULL) self->log = *log;
    dp_ucx_process_prepare();
    status = dp_ucx_worker_open(&self->ucx, rank, config, error);
    if (status != DP_OK) goto fail;
    handler.arg = self;
    ucx_status = ucp_worker_set_am_recv_handler(self->ucx.worker, &handler);
    if (ucx_status != UCS_OK) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "rank %d: UCX takes no active messages: %s",
                              rank, ucs_status_string(ucx_status));
        goto fail;
    }
    *out = &self->base;
    return DP_OK;
fail:
    ucx_destroy(&self->base);
    return status;
}
