/*
 * stage.h - on a GPU's context, carries a tensor in ordinary host memory through pinned memory.
 *
 * submit.c begins it on the program's thread; request.c ends it on the thread that completes the
 * operation.
 */
#ifndef DP_COORDINATOR_STAGE_H
#define DP_COORDINATOR_STAGE_H

#include "coordinator/api/operation/submit.h"

/* Puts pinned memory in the place of what->tensors where they are in plain host memory;
 * *staged is what what->tensors then points to. *out is NULL where nothing had to be done. */
dp_status_t dp_staging_begin(dp_group_t *group, dp_submit_t *what, dp_tensor_t *staged,
                             dp_staging_t **out);

/* The end of a dp_staging_begin() (submit.h). is_good: copies the result out. NULL is
 * fine. */
void dp_staging_end(dp_context_t *context, dp_staging_t *stage, int is_good);
void dp_stagings_free(dp_context_t *context);

#endif
