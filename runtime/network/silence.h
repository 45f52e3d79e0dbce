/*
 * silence.h - when the other end of a TCP connection last gave a sign of life.
 *
 * Arithmetic on times and on what the kernel counts for the connection (TCP_INFO). The owner feeds
 * it once per beat and decides what too long a silence is: line_peer.c for the lines between ranks,
 * dprun's link.c for those to the nodes.
 *
 * A beat, or any frame, is a sign of life: the other end's thread wrote it. Without beats there are
 * three cases, which only the counters tell apart:
 *
 *     no packets come in              it is gone, or the way to it is cut: since its last packet
 *     they do, and none was lost      it stands still, its kernel answers for it: since its last
 *                                     beat
 *     they do, and some were lost     it sends, and TCP repeats what was lost before it hands on
 *                                     anything behind: since its last packet, but for
 *                                     DP_SILENCE_PATIENCE timeouts only
 *
 * So a link that loses a third of all packets is not taken for a death, and a frozen process behind
 * a good link is found as soon as one whose machine lost its power.
 *
 * Such a link may also carry nothing at all for longer than the timeout, by chance. Once it is
 * known to be bad, silence on it counts for a DP_SILENCE_PATIENCE-th only, so a machine that dies
 * behind it is found after DP_SILENCE_PATIENCE timeouts.
 */
#ifndef DP_NETWORK_SILENCE_H
#define DP_NETWORK_SILENCE_H

#include "runtime/base/common.h"

#define DP_SILENCE_PATIENCE 3 /* timeouts for which packets alone are a sign of life */
#define DP_SILENCE_LOSSES 3
#define DP_SILENCE_BAD_NS UINT64_C(30000000000) /* so many losses within this time */

/* The kernel's counts since the connection was made, and the age of the last packet. */
typedef struct dp_silence_counters {
    uint64_t packet_age_ns;
    uint64_t received_bytes; /* handed on in order */
    uint64_t acked_bytes;    /* sent by this side, and the other end has them */
    uint32_t packets;        /* that came, those too that the kernel threw away at once */
    uint32_t data_packets;   /* that came and carried something, repeated ones too */
    uint32_t out_of_order;   /* that came before one that was lost */
    uint32_t resent;         /* by this side */
} dp_silence_counters_t;

typedef struct dp_silence {
    uint64_t timeout_ns; /* of the owner: after so long it is given up; 0: never */
    uint64_t beat_ns;    /* when the last beat came; 0: none yet, the line may still be opening */
    uint64_t stood_ns;   /* for how long this side has stood still since then */
    uint64_t loss_ns;    /* when a packet was last seen to have been lost; 0: never */
    uint64_t look_ns;    /* of the last look; 0: none yet */
    uint64_t packet_ns;  /* when a packet last came, or a look before that */
    uint64_t acked_ns;   /* when the other end was last seen to have confirmed more */
    dp_silence_counters_t last;
    uint64_t survived_ns[DP_SILENCE_LOSSES]; /* when a beat followed a loss, the latest first */
} dp_silence_t;

/* Reads them of a connected socket. 0: the kernel does not tell. */
int dp_silence_read_counters(int fd, dp_silence_counters_t *out);

/* Has the kernel repeat what was lost at even intervals and at least once a second, as far as it
 * can (the latter since Linux 6.15). Else the pause doubles each time, and is soon longer than the
 * silence that is a death. */
void dp_silence_repeat_often(int fd);

void dp_silence_init(dp_silence_t *silence, uint64_t timeout_ns);
void dp_silence_beat(dp_silence_t *silence, uint64_t now_ns);
/* This process stood still for for_ns. That time is not the peer's silence: its beats may be
 * unread, and it may have stood still, too. */
void dp_silence_stood_still(dp_silence_t *silence, uint64_t for_ns);
/* Notes the counters of now; returns when the other end last gave a sign of life, 0: never. On a
 * bad link the time returned is later, so that the caller's limit is reached only after
 * DP_SILENCE_PATIENCE times that silence. */
uint64_t dp_silence_look(dp_silence_t *silence, const dp_silence_counters_t *counters,
                         uint64_t now_ns);

/* 1: packets were lost DP_SILENCE_LOSSES times within DP_SILENCE_BAD_NS, and a beat came after each
 * of them. A link that is cut for good has lost packets once, and no beat follows. */
int dp_silence_is_bad(const dp_silence_t *silence, uint64_t now_ns);

#endif
