/*
 * line_silence.c - see line_silence.h. Pure; called by line_peer.c.
 */
#include "runtime/transport/line_silence.h"

#include <string.h>

void dp_line_silence_init(dp_line_silence_t *silence, uint64_t timeout_ns)
{
    memset(silence, 0, sizeof(*silence));
    silence->timeout_ns = timeout_ns;
}

void dp_line_silence_beat(dp_line_silence_t *silence, uint64_t now_ns)
{
    silence->beat_ns = now_ns;
}

/* Whether a packet was lost since the last look, in either direction. */
static int shows_loss(const dp_line_counters_t *last, const dp_line_counters_t *now)
{
    const int came_again =
        now->data_packets != last->data_packets && now->received_bytes == last->received_bytes;

    return now->resent != last->resent || now->out_of_order != last->out_of_order || came_again;
}

uint64_t dp_line_silence_look(dp_line_silence_t *silence, const dp_line_counters_t *counters,
                              uint64_t now_ns)
{
    const uint64_t packet_ns =
        now_ns > counters->packet_age_ns ? now_ns - counters->packet_age_ns : 0;
    int is_lossy;

    if (shows_loss(&silence->last, counters)) silence->loss_ns = now_ns;
    silence->last = *counters;
    if (silence->beat_ns == 0) return 0;
    is_lossy = silence->loss_ns != 0 && now_ns - silence->loss_ns < silence->timeout_ns &&
               now_ns - silence->beat_ns < DP_LINE_PATIENCE * silence->timeout_ns;
    return is_lossy ? dp_max(silence->beat_ns, packet_ns) : silence->beat_ns;
}
