/*
 * wish.c - see wish.h. Called by supervise.c in dprun and by station.c on a node.
 */
#include "launcher/dprun/wish.h"

#include <signal.h>

dp_wish_kind_t dp_wish_hear(dp_wish_t *wish, int number, uint64_t now_ns)
{
    const dp_wish_t before = *wish;

    if (before.number != 0 && (number == SIGHUP || now_ns < before.first_ns + DP_WISH_NS))
        return DP_WISH_SAME;
    wish->number = number;
    wish->first_ns = now_ns;
    if (before.number == 0) return DP_WISH_FIRST;
    return before.number == SIGHUP ? DP_WISH_SAME : DP_WISH_AGAIN;
}
