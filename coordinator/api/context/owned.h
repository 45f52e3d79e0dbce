/*
 * owned.h - objects that a program may leave to dp_finalize().
 *
 * Called by the functions that make and destroy such objects, on the program's threads.
 */
#ifndef DP_COORDINATOR_OWNED_H
#define DP_COORDINATOR_OWNED_H

#include "coordinator/api/context/context.h"

/*
 * An object that a program makes on a context and may leave to dp_finalize(). free() is called
 * there once no operation is in flight, while the device still stands; memory from dp_alloc() goes
 * with the context.
 */
typedef struct dp_owned {
    struct dp_owned *next; /* the context's; guarded by its lock */
    void (*free)(struct dp_owned *self);
} dp_owned_t;
void dp_context_own(dp_context_t *context, dp_owned_t *object);
/* 1: the object was some context's and is the caller's now. 0: it is gone already, with its context
 * or before, or this process is a rank's forked child; nothing was read through the pointer. */
int dp_context_disown(const dp_owned_t *object);
void dp_context_free_owned(dp_context_t *context);

#endif
