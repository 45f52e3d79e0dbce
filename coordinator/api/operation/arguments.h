/*
 * arguments.h - checks of what a function of dp.h was given.
 *
 * Called by submit.c and stage.c, on the program's thread, without the lock.
 */
#ifndef DP_COORDINATOR_ARGUMENTS_H
#define DP_COORDINATOR_ARGUMENTS_H

#include "coordinator/api/operation/submit.h"

/* The elements that this rank reads and writes in one tensor. */
typedef struct dp_extent {
    size_t in_count, out_count;
    int has_in, has_out;        /* 0: the pointer is not used here */
    int may_share;              /* in + in_shift may equal out + out_shift; else no overlap */
    size_t in_shift, out_shift; /* elements */
} dp_extent_t;

/* Fails for sums beyond SIZE_MAX: DP_ERR_INVALID. */
dp_status_t dp_extent_of(const dp_group_t *group, const dp_submit_t *what,
                         const dp_tensor_t *tensor, dp_extent_t *out);

/* An error that says what is wrong. options are not NULL, and of this version. */
dp_status_t dp_submit_check(dp_group_t *group, const dp_submit_t *what);

/* dp_context_error() that begins with the tensor and, where it is not the world, its group. */
dp_status_t dp_submit_error(const dp_group_t *group, const dp_submit_t *what, dp_status_t status,
                            const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
