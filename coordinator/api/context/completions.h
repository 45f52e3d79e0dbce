/*
 * completions.h - the cookies of operations that are over, for programs that wait for many at once.
 *
 * Used by submit.c and request.c; dp.h has the calls of the program. The lock is its own and is
 * taken last, so it may be taken under the context's.
 */
#ifndef DP_COORDINATOR_COMPLETIONS_H
#define DP_COORDINATOR_COMPLETIONS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "dp.h"
#include "runtime/base/forked.h"

typedef struct dp_completions {
    pthread_mutex_t lock;
    /* guarded by lock */
    uint64_t *ring;      /* [room]: count cookies from first on, oldest first */
    size_t first, count; /* over, and not read by the program */
    size_t room;         /* count + expected at least */
    size_t expected;     /* submitted with a cookie and not over */
    int fd;              /* an eventfd; -1: the program has not asked for it */
    dp_fork_watch_t fork_watch;
} dp_completions_t;

void dp_completions_init(dp_completions_t *completions);
void dp_completions_fini(dp_completions_t *completions);

/* Makes room for the cookie of one more operation. */
dp_status_t dp_completions_reserve(dp_completions_t *completions);
/* Its operation is over. Any thread. */
void dp_completions_push(dp_completions_t *completions, uint64_t cookie);

#endif
