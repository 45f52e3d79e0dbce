/*
 * station_deaf.c - notices that no packet comes from dprun any more, and tells dprun.
 *
 * Called by station.c, on its only thread. Where packets are lost in one direction alone, dprun
 * still receives this node's: its own are unanswered, which a bad link explains as well, and so it
 * would wait for DP_SILENCE_PATIENCE timeouts. This end knows after DP_REMOTE_DEAF_NS, as dprun
 * sends every 500 ms and each kernel answers the other's probes every second.
 *
 *     nothing of this side is under way       the frame DEAF leaves at once
 *     unconfirmed bytes hold the frame up     a line on standard error, which ssh or srun carry
 *     and there is no ssh or srun (--node)    the connection is reset after DP_REMOTE_SILENCE_NS,
 *                                             or DP_SILENCE_PATIENCE times that on a bad link
 *
 * dprun asks once more before it believes it (fleet_deaf.c). The node's own ranks go on until the
 * lease ends.
 */
#include <stdio.h>

#include "launcher/dprun/remote/station_internal.h"
#include "runtime/network/silence.h"

#define STOOD_STILL_NS UINT64_C(1500000000)

static void say_deaf(dp_station_t *station)
{
    if (!dp_link_is_in_flight(station->link)) {
        dp_link_send(station->link, DP_REMOTE_DEAF, NULL, 0);
    } else if (station->options->has_lifeline) {
        fprintf(stderr, DP_REMOTE_TOKEN_DEAF "%u: no packet of dprun comes to this node\n",
                station->node);
    }
}

dp_station_deaf_t dp_station_deaf_look(dp_station_t *station, uint64_t now_ns, uint64_t *rest_ns)
{
    uint64_t limit_ns = DP_REMOTE_DEAF_NS;
    uint64_t heard_ns;

    *rest_ns = 0;
    if (now_ns - station->deaf_look_ns > STOOD_STILL_NS) station->deaf_awake_ns = now_ns;
    station->deaf_look_ns = now_ns;
    if (station->link == NULL || station->is_paused) return DP_STATION_HEARS;
    heard_ns = dp_max(dp_link_packet_ns(station->link, now_ns), station->deaf_awake_ns);
    if (now_ns >= heard_ns + limit_ns) {
        say_deaf(station); /* at each beat: dprun may not have been able to judge it */
        if (station->options->has_lifeline || !dp_link_is_in_flight(station->link))
            return DP_STATION_HEARS;
        limit_ns = dp_link_is_bad(station->link, now_ns)
                       ? DP_SILENCE_PATIENCE * DP_REMOTE_SILENCE_NS
                       : DP_REMOTE_SILENCE_NS;
    }
    if (now_ns >= heard_ns + limit_ns) return DP_STATION_MUST_RESET;
    *rest_ns = heard_ns + limit_ns - now_ns;
    return DP_STATION_HEARS;
}
