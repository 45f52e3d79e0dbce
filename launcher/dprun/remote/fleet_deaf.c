/*
 * fleet_deaf.c - a node says that nothing reaches it, though its own packets still come; see
 * station_deaf.c, and fleet.h.
 *
 * Called by fleet.c and fleet_start.c, on dprun's only thread. The node may be wrong: this machine
 * stood still, or the link is a bad one and many packets in a row were lost. So dprun sends it more
 * signs of life, and believes it if nothing of what this side sends is confirmed for DOUBT_NS;
 * where the link has lost packets before and gone on, it does not believe it at all.
 */
#include <stdlib.h>
#include <string.h>

#include "launcher/dprun/remote/fleet_internal.h"

#define DOUBT_NS UINT64_C(500000000)

static int has_just_stood_still(const dp_fleet_t *fleet, uint64_t now_ns)
{
    return now_ns < fleet->awake_ns + DP_REMOTE_DEAF_NS ||
           now_ns > fleet->beat_ns + DP_FLEET_STOOD_STILL_NS;
}

void dp_fleet_node_deaf(dp_fleet_node_t *node)
{
    const uint64_t now_ns = dp_now_ns();

    if (node->link == NULL || node->deaf_ns != 0 || has_just_stood_still(node->fleet, now_ns) ||
        dp_link_is_bad(node->link, now_ns))
        return;
    node->deaf_ns = now_ns;
    node->deaf_acked_bytes = dp_link_acked_bytes(node->link);
}

int dp_fleet_is_deaf(dp_fleet_node_t *node, uint64_t now_ns)
{
    if (node->link == NULL || node->deaf_ns == 0) return 0;
    if (dp_link_acked_bytes(node->link) > node->deaf_acked_bytes ||
        node->fleet->awake_ns > node->deaf_ns)
        node->deaf_ns = 0;
    return node->deaf_ns != 0 && now_ns >= node->deaf_ns + DOUBT_NS;
}

void dp_fleet_hear_shell(dp_fleet_t *fleet, const dp_fleet_node_t *only, const char *words)
{
    const size_t bytes = strlen(DP_REMOTE_TOKEN_DEAF);

    for (const char *at = strstr(words, DP_REMOTE_TOKEN_DEAF); at != NULL;
         at = strstr(at + bytes, DP_REMOTE_TOKEN_DEAF)) {
        char *end;
        const unsigned long index = strtoul(at + bytes, &end, 10);

        if (*end != ':' || index >= (unsigned long)fleet->count) continue;
        if (only == NULL || only == &fleet->list[index]) dp_fleet_node_deaf(&fleet->list[index]);
    }
}
