/*
 * group.h - the groups of a context, at its beginning and end.
 */
#ifndef DP_COORDINATOR_GROUP_H
#define DP_COORDINATOR_GROUP_H

#include "coordinator/api/context/context.h"

void dp_group_init_world(dp_context_t *context);
void dp_groups_free(dp_context_t *context); /* after the requests */

#endif
