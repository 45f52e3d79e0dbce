/*
 * method.c - compares the two methods of method.h.
 *
 * The first operations of a size try each method twice, and the second trial counts: the first one
 * touches fresh memory. From then on the cheaper method is used, and the other one is tried again
 * every PERIOD_CLOSE operations, or every PERIOD_CLEAR if it was clearly worse.
 *
 * steps.c asks before an operation and shared.c tells the time after it, on the thread that runs
 * the operation. Only the first rank of a group on its node tells times, and its choice alone
 * counts.
 */
#include "runtime/engine/cpu/intra_node/method.h"

#define TRIES 2          /* of each method at the start */
#define PERIOD_CLOSE 32  /* operations from one trial of the other method to the next */
#define PERIOD_CLEAR 512 /* where it was worse by CLEAR */
#define CLEAR 1.25
#define WEIGHT 0.25 /* of the newest figure */

static size_t class_of(size_t bytes)
{
    size_t at = 0;

    for (size_t scaled = bytes / 4; scaled >= DP_METHOD_LEAST_BYTES; scaled /= 4)
        at++;
    return at < DP_METHOD_SIZE_CLASSES ? at : DP_METHOD_SIZE_CLASSES - 1;
}

dp_method_t dp_method_choose(const dp_method_stats_t *methods, size_t bytes)
{
    const size_t class = class_of(bytes);
    const double *cost = methods->classes[class].cost;
    const uint64_t count = methods->classes[class].count;
    const dp_method_t better =
        cost[DP_METHOD_STAGING] < cost[DP_METHOD_PULL] ? DP_METHOD_STAGING : DP_METHOD_PULL;
    const dp_method_t other = better == DP_METHOD_PULL ? DP_METHOD_STAGING : DP_METHOD_PULL;
    const uint64_t period = cost[other] > CLEAR * cost[better] ? PERIOD_CLEAR : PERIOD_CLOSE;

    if (bytes < DP_METHOD_LEAST_BYTES) return DP_METHOD_PULL;
    if (count < TRIES) return DP_METHOD_PULL;
    if (count < (uint64_t)2 * TRIES) return DP_METHOD_STAGING;
    return count % period == period - 1 ? other : better;
}

void dp_method_record(dp_method_stats_t *methods, dp_method_t method, size_t bytes, uint64_t ns)
{
    const size_t class = class_of(bytes);
    double *cost = &methods->classes[class].cost[method];
    const double now = (double)ns / (double)bytes;

    if (bytes < DP_METHOD_LEAST_BYTES) return;
    *cost =
        methods->classes[class].count < (uint64_t)2 * TRIES ? now : *cost + WEIGHT * (now - *cost);
    methods->classes[class].count++;
}
