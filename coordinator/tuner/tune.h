/*
 * tune.h - tunes DP_FUSION_HOLD of a running job (DP_TUNE=on): rank 0 measures its steps and tells
 * its coordinator how long to hold launches back. dp_step_end() calls it, on any thread.
 */
#ifndef DP_COORDINATOR_TUNE_H
#define DP_COORDINATOR_TUNE_H

#include "coordinator/tuner/tuner.h"
#include "runtime/base/common.h"
#include "runtime/base/log.h"

typedef struct dp_tune dp_tune_t;

typedef struct dp_tune_options {
    uint64_t hold_ns;    /* configured: the search begins there */
    const dp_log_t *log; /* borrowed */
    /* This hold is to be in force from here on. Called in dp_tune_step(). */
    void (*set_hold)(void *user, uint64_t hold_ns);
    void *user;
} dp_tune_options_t;

/* On rank 0, if it has DP_TUNE=on. DP_ERR_NO_MEMORY. */
dp_status_t dp_tune_create(const dp_tune_options_t *options, dp_tune_t **out);
void dp_tune_destroy(dp_tune_t *tune); /* NULL is fine */

/* A step of the program is over; bytes_reduced: since the context was made. */
void dp_tune_step(dp_tune_t *tune, uint64_t bytes_reduced);

/* 1: the search is over; *hold_ns holds from now on. */
int dp_tune_is_finished(dp_tune_t *tune, uint64_t *hold_ns);

#endif
