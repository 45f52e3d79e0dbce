/*
 * fork.h - a context in a child that its process forked: every call of dp.h refuses it there, on
 * the thread that makes the call.
 */
#ifndef DP_COORDINATOR_FORK_H
#define DP_COORDINATOR_FORK_H

#include "coordinator/api/context/context.h"

/* 1: this process only has a copy of the context. Its locks may be held by threads that are not
 * here, so nothing behind it is touched. */
static inline int dp_context_is_forked(const dp_context_t *context)
{
    return context->fork.generation != dp_fork_generation();
}

/* The text of dp_error_text() in such a child. Static. */
const char *dp_fork_text(void);

/* Registers the context before anything of it exists; its connections, when they are made; and
 * unregisters both before they are taken down. */
void dp_context_fork_begin(dp_context_t *context);
void dp_context_fork_watch(dp_context_t *context);
void dp_context_fork_end(dp_context_t *context);

/* Fails in such a child, for dp_init(). */
dp_status_t dp_fork_check_init(dp_error_t *error);

#endif
