/*
 * link.h - the connection between dprun and the station of a node (station.h): frames over TCP.
 *
 * Both ends prove that they know the job's secret before anything else is read (the handshake of
 * runtime/base/kv.h, with a key of its own), then every frame is sealed (seal.h):
 *
 *   server -> station  hello: challenge        station -> server  hello: proof, number of the node
 *   server -> station  welcome: proof          both               24 bytes: the stream's header
 *                      (or DP_KV_WRONG_PROOF and a close)
 *   then frames: u32 bytes (of what follows), sealed (u8 type, fields)
 *
 * All calls come from the thread of the event loop that it is given.
 */
#ifndef DP_LAUNCHER_LINK_H
#define DP_LAUNCHER_LINK_H

#include <event2/event.h>

#include "runtime/base/door.h"
#include "runtime/base/wire.h"

#define DP_LINK_FRAME_MAX ((size_t)1 << 20) /* type and fields */

typedef struct dp_link dp_link_t;

typedef struct dp_link_events {
    /* At the server: a station of this number has proven itself, and frames may be sent; -1 refuses
     * it, and the link is gone. At the station: the server has. The link may not be closed within.
     */
    int (*proven)(void *context, dp_link_t *link, uint32_t node);
    /* A frame. The link may be closed within. */
    void (*frame)(void *context, dp_link_t *link, uint8_t type, dp_reader_t *fields);
    /* It is of no more use and is freed after this call. why: for people. */
    void (*closed)(void *context, dp_link_t *link, const char *why);
    void *context;
} dp_link_events_t;

/* The judge of dprun's door (door.h), at which the handshake of kv.h is spoken: a station that
 * proves that it knows the secret becomes a link, which events->proven() is told of. silence_ms:
 * after so long without a sign of life the owner gives the other end up. */
int dp_link_create_server(struct event_base *base, dp_door_visitor_t *visitor,
                          const dp_secret_t *secret, int silence_ms, const dp_link_events_t *events,
                          char *why);
/* Takes a connected, non-blocking socket, also on an error. NULL: no memory. */
dp_link_t *dp_link_create_station(struct event_base *base, int fd, const dp_secret_t *secret,
                                  uint32_t node, int silence_ms, const dp_link_events_t *events);

/* Frees it without a callback. NULL is fine. */
void dp_link_close(dp_link_t *link);
/* The end that dp_link_close() tells the other side overtakes all that was sent and not
 * acknowledged. */
void dp_link_give_up(dp_link_t *link);

/* Queues a frame. One larger than DP_LINK_FRAME_MAX ends the link. */
void dp_link_send(dp_link_t *link, uint8_t type, const void *fields, size_t bytes);

/* Bytes that have not left for the kernel yet. */
size_t dp_link_queued(const dp_link_t *link);

/* Hands the kernel what it takes at once, without the event loop. */
void dp_link_flush(dp_link_t *link);

/* When the other end last gave a sign of life, not after now_ns (dp_now_ns()): its latest frame, or
 * its latest packet where packets are lost on the way (silence.h). For the owner to ask once per
 * beat. */
uint64_t dp_link_heard_ns(dp_link_t *link, uint64_t now_ns);
/* The owner had no core for so long, which is no silence of the other end. */
void dp_link_stood_still(dp_link_t *link, uint64_t for_ns);
/* When its latest frame came, whatever packets came since. */
uint64_t dp_link_frame_ns(const dp_link_t *link);

/* When its latest packet came, of whatever kind. */
uint64_t dp_link_packet_ns(dp_link_t *link, uint64_t now_ns);
/* When the other end's kernel was last seen to have confirmed more of this side's bytes. As of the
 * owner's latest look: dp_link_heard_ns(), dp_link_packet_ns(). */
uint64_t dp_link_confirmed_ns(const dp_link_t *link);
/* 1: it has lost packets several times of late, and frames came again: it is bad, not cut. */
int dp_link_is_bad(const dp_link_t *link, uint64_t now_ns);
/* 1: at a station, whose proof the server called wrong. */
int dp_link_is_turned_away(const dp_link_t *link);
/* At a station: the server's numeric address; "": it has none. */
const char *dp_link_peer(const dp_link_t *link);

#endif
