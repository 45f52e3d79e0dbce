/*
 * line_silence.h - when a neighbour behind a line last gave a sign of life.
 *
 * Pure arithmetic on times and on what the kernel counts for the connection (TCP_INFO); line_peer.c
 * feeds it once per beat, and coordinator/loop/health.c decides what too long a silence is.
 *
 * A beat is a sign of life: the neighbour's coordinator thread wrote it. Without beats there are
 * three cases, which only the counters tell apart:
 *
 *     packets come in | packets are lost on the way | the neighbour
 *     no              | -                           | is gone, or the way to it is cut: since its
 *                     |                             | last packet
 *     yes             | no                          | stands still; its kernel answers for it:
 * since |                             | its last beat yes             | yes | sends, and TCP
 * repeats what was lost before it |                             | hands on anything behind: since
 * its last |                             | packet, but for DP_LINE_PATIENCE timeouts only
 *
 * So a link that loses a third of all packets is not taken for a death, and a frozen process behind
 * a good link is found as soon as one whose machine lost its power.
 */
#ifndef DP_TRANSPORT_LINE_SILENCE_H
#define DP_TRANSPORT_LINE_SILENCE_H

#include "runtime/base/common.h"

#define DP_LINE_PATIENCE 3 /* timeouts for which packets alone are a sign of life */

/* What the kernel counts since the connection was made, and the age of the last packet. */
typedef struct dp_line_counters {
    uint64_t packet_age_ns;
    uint64_t received_bytes; /* handed on in order */
    uint32_t data_packets;   /* that came and carried something, repeated ones too */
    uint32_t out_of_order;   /* that came before one that was lost */
    uint32_t resent;         /* by this side */
} dp_line_counters_t;

typedef struct dp_line_silence {
    uint64_t timeout_ns; /* of the owner: after so long a neighbour is given up; 0: never */
    uint64_t beat_ns;    /* when the last beat came; 0: none yet, the line may still be opening */
    uint64_t loss_ns;    /* when a packet was last seen to have been lost; 0: never */
    dp_line_counters_t last;
} dp_line_silence_t;

void dp_line_silence_init(dp_line_silence_t *silence, uint64_t timeout_ns);
void dp_line_silence_beat(dp_line_silence_t *silence, uint64_t now_ns);
/* Notes the counters of now; returns when the neighbour last gave a sign of life, 0: never. */
uint64_t dp_line_silence_look(dp_line_silence_t *silence, const dp_line_counters_t *counters,
                              uint64_t now_ns);

#endif
