/*
 * wish.h - tells a user's second request to end from more signals of the first one.
 *
 * One request often comes as several signals: bash and the kernel each send SIGHUP when a terminal
 * closes, `timeout` signals its child and then its process group, a batch system signals steps and
 * jobs. Only a second request may cut the ranks' grace.
 *
 * Pure. dprun keeps one of these for its own signals (supervise.c), a station one for those
 * of its node (remote/station.c), each on its only thread.
 */
#ifndef DP_LAUNCHER_WISH_H
#define DP_LAUNCHER_WISH_H

#include <stdint.h>

#define DP_WISH_NS UINT64_C(500000000) /* signals of one request lie closer together */

/* All zero: nobody has asked yet. */
typedef struct dp_wish {
    int number;        /* the request's first signal */
    uint64_t first_ns; /* when it came */
} dp_wish_t;

typedef enum dp_wish_kind {
    DP_WISH_FIRST, /* end */
    DP_WISH_SAME,  /* belongs to the request before */
    DP_WISH_AGAIN  /* a second request: at once, please */
} dp_wish_kind_t;

/* A signal has come. SIGHUP is never a second request, as a terminal closes once; and the SIGTERM
 * of a logout may follow it late, so the first signal after a SIGHUP is none either. */
dp_wish_kind_t dp_wish_hear(dp_wish_t *wish, int number, uint64_t now_ns);

#endif
