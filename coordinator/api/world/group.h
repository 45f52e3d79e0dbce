/*
 * group.h - the groups of a context: the world is made and all groups are freed here; dp.h declares
 * what programs call.
 *
 * Called by init.c and mesh.c, on the program's thread.
 */
#ifndef DP_COORDINATOR_GROUP_H
#define DP_COORDINATOR_GROUP_H

#include "coordinator/api/context/context.h"

void dp_group_init_world(dp_context_t *context);
/* The options of a call that makes a group, with no default left in them; name: for texts. */
dp_status_t dp_group_read_options(dp_context_t *context, const char *name,
                                  const dp_group_options_t *given, dp_group_options_t *out);
void dp_groups_free(dp_context_t *context); /* after the requests */

#endif
