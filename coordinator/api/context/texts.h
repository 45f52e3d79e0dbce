/*
 * texts.h - texts of errors that stay with a context until dp_finalize().
 *
 * Any file of coordinator/api and coordinator/shards, on any thread, without the context's lock.
 */
#ifndef DP_COORDINATOR_TEXTS_H
#define DP_COORDINATOR_TEXTS_H

#include "coordinator/api/context/context.h"

/* Keeps a copy of text (until finalize) as the context's last error; returns the kept
 * copy. */
const char *dp_context_text(dp_context_t *context, const char *text);

/* dp_context_text() with a format; returns status. */
dp_status_t dp_context_error(dp_context_t *context, dp_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* 1: the world has ended. */
int dp_context_has_ended(dp_context_t *context);

#endif
