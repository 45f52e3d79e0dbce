/*
 * unix_peer.c - a neighbour of the UNIX transport and its socket: finding it, watching it, writing
 * what waits for it, and its end.
 *
 * Called by unix.c and unix_connect.c, on the thread that owns the transport. It must not know what
 * messages say or how a connection comes about.
 */
#include "runtime/transport/unix_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

dp_unix_peer_t *dp_unix_find(dp_unix_t *self, int rank)
{
    for (int i = 0; i < self->peer_count; i++) {
        if (self->peers[i].rank == rank) return &self->peers[i];
    }
    return NULL;
}

int dp_unix_watch(dp_unix_t *self, int fd, uint32_t events, dp_unix_source_t source, int place)
{
    struct epoll_event event = {.events = events,
                                .data.u64 = (uint64_t)source << 32 | (uint32_t)place};

    return epoll_ctl(self->inner, EPOLL_CTL_ADD, fd, &event);
}

/* ---- The end of a peer ---------------------------------------------------------------------- */

void dp_unix_drop_queue(dp_unix_peer_t *peer)
{
    while (peer->queue != NULL) {
        dp_unix_outgoing_t *outgoing = peer->queue;

        peer->queue = outgoing->next;
        free(outgoing);
    }
    peer->queue_end = &peer->queue;
}

void dp_unix_close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Messages that were read before stay valid; a loss is reported after them (report_loss()). */
void dp_unix_end_peer(dp_unix_t *self, dp_unix_peer_t *peer, const char *text)
{
    dp_unix_close_fd(&peer->fd);
    dp_unix_close_fd(&peer->process);
    peer->must_connect = 0;
    peer->is_send_closed = 1;
    dp_unix_drop_queue(peer);
    if (peer->is_lost || peer->said_bye) return;
    peer->is_lost = 1;
    peer->text = text;
    self->losses++;
}

/* The text is that of ucx.c: all ranks are told the same cause, whichever of them sees the death
 * first. */
void dp_unix_end_broken(dp_unix_t *self, dp_unix_peer_t *peer)
{
    dp_unix_end_peer(self, peer, "its connection broke");
}

/* ---- Sending -------------------------------------------------------------------------------- */

/* Has epoll report when the socket takes more, but only while something waits: a socket is writable
 * nearly always, and would keep the thread awake. */
static void watch_writable(dp_unix_t *self, dp_unix_peer_t *peer, int wants)
{
    const int place = (int)(peer - self->peers);
    struct epoll_event event = {.events = EPOLLIN | (wants ? EPOLLOUT : 0u),
                                .data.u64 = (uint64_t)DP_UNIX_PEER << 32 | (uint32_t)place};

    if (peer->watches_writable == wants) return;
    if (epoll_ctl(self->inner, EPOLL_CTL_MOD, peer->fd, &event) == 0)
        peer->watches_writable = wants;
}

/* An error of send() is no loss yet: messages that the peer sent before its end may still be in the
 * socket. read_peer() finds the end behind them. */
void dp_unix_flush(dp_unix_t *self, dp_unix_peer_t *peer)
{
    while (peer->fd >= 0 && peer->queue != NULL) {
        dp_unix_outgoing_t *outgoing = peer->queue;
        const ssize_t sent = send(peer->fd, outgoing->data + outgoing->done,
                                  outgoing->bytes - outgoing->done, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && errno == EINTR) continue;
        /* ENOBUFS: the kernel is short of memory for now; tried again like a full socket. */
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) break;
        if (sent < 0) {
            peer->is_send_closed = 1;
            dp_unix_drop_queue(peer);
            break;
        }
        outgoing->done += (size_t)sent;
        if (outgoing->done < outgoing->bytes) continue;
        peer->queue = outgoing->next;
        if (peer->queue == NULL) peer->queue_end = &peer->queue;
        free(outgoing);
    }
    if (peer->fd >= 0) watch_writable(self, peer, peer->queue != NULL);
}
