/*
 * silence.c - see silence.h. Called by line_peer.c on the thread that owns a rank's transport, and
 * by dprun's link.c.
 */
#include "runtime/network/silence.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* headers before Linux 6.15 */
#endif

int dp_silence_read_counters(int fd, dp_silence_counters_t *out)
{
    struct tcp_info info;
    socklen_t bytes = sizeof(info);

    memset(&info, 0, sizeof(info)); /* an older kernel fills in less */
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
    *out = (dp_silence_counters_t){
        .packet_age_ns = 1000000ull * dp_min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv),
        .received_bytes = info.tcpi_bytes_received,
        .acked_bytes = info.tcpi_bytes_acked,
        .packets = info.tcpi_segs_in,
        .data_packets = info.tcpi_data_segs_in,
        .out_of_order = info.tcpi_rcv_ooopack,
        .resent = info.tcpi_total_retrans,
    };
    return 1;
}

void dp_silence_repeat_often(int fd)
{
    const int on = 1;
    const int most_ms = 1000; /* the least that the kernel takes */

    (void)setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &most_ms, sizeof(most_ms));
}

void dp_silence_init(dp_silence_t *silence, uint64_t timeout_ns)
{
    memset(silence, 0, sizeof(*silence));
    silence->timeout_ns = timeout_ns;
}

void dp_silence_beat(dp_silence_t *silence, uint64_t now_ns)
{
    if (silence->loss_ns > silence->survived_ns[0]) {
        memmove(&silence->survived_ns[1], &silence->survived_ns[0],
                (DP_SILENCE_LOSSES - 1) * sizeof(silence->survived_ns[0]));
        silence->survived_ns[0] = now_ns;
    }
    silence->beat_ns = now_ns;
    silence->stood_ns = 0;
}

void dp_silence_stood_still(dp_silence_t *silence, uint64_t for_ns)
{
    silence->stood_ns += for_ns;
}

int dp_silence_is_bad(const dp_silence_t *silence, uint64_t now_ns)
{
    const uint64_t first_ns = silence->survived_ns[DP_SILENCE_LOSSES - 1];

    return first_ns != 0 && now_ns - first_ns < DP_SILENCE_BAD_NS;
}

/* Whether a packet was lost since the last look, in either direction. */
static int shows_loss(const dp_silence_counters_t *last, const dp_silence_counters_t *now)
{
    const int came_again =
        now->data_packets != last->data_packets && now->received_bytes == last->received_bytes;

    return now->resent != last->resent || now->out_of_order != last->out_of_order || came_again;
}

/* The kernel tells the age of the last packet that was of use to it. One that repeats what has come
 * already, as its confirmation was lost, is only counted. */
static void note_packets(dp_silence_t *silence, const dp_silence_counters_t *counters,
                         uint64_t now_ns)
{
    const uint64_t useful_ns =
        now_ns > counters->packet_age_ns ? now_ns - counters->packet_age_ns : 0;

    silence->packet_ns = dp_max(silence->packet_ns, useful_ns);
    if (counters->packets != silence->last.packets)
        silence->packet_ns = dp_max(silence->packet_ns, silence->look_ns);
    if (counters->acked_bytes != silence->last.acked_bytes) silence->acked_ns = now_ns;
    silence->look_ns = now_ns;
}

uint64_t dp_silence_look(dp_silence_t *silence, const dp_silence_counters_t *counters,
                         uint64_t now_ns)
{
    uint64_t sign_ns;
    int is_lossy;

    note_packets(silence, counters, now_ns);
    if (shows_loss(&silence->last, counters)) silence->loss_ns = now_ns;
    silence->last = *counters;
    if (silence->beat_ns == 0) return 0;
    is_lossy = silence->loss_ns != 0 && now_ns - silence->loss_ns < silence->timeout_ns &&
               now_ns - silence->beat_ns < DP_SILENCE_PATIENCE * silence->timeout_ns;
    sign_ns = is_lossy ? dp_max(silence->beat_ns, silence->packet_ns) : silence->beat_ns;
    sign_ns = dp_min(sign_ns + silence->stood_ns, now_ns);
    if (dp_silence_is_bad(silence, now_ns) && sign_ns < now_ns)
        sign_ns = now_ns - (now_ns - sign_ns) / DP_SILENCE_PATIENCE;
    return sign_ns;
}
