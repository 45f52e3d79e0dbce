/*
 * order.h - a group becomes ordered (DP_ORDER_PROGRAM): its ranks choose a lane of the data plane,
 * and its launches come in the program's order from then on.
 *
 * Called by group.c and init.c on the program's threads. It owns dp_context_t.lane_users and
 * dp_group_t.ordered. It must not know what is launched.
 */
#ifndef DP_COORDINATOR_ORDER_H
#define DP_COORDINATOR_ORDER_H

#include "coordinator/api/context/context.h"

/* The world, before any operation; its lane is the first ordered one on every rank. */
dp_status_t dp_order_world(dp_context_t *context, dp_error_t *error);

/* A new group, before any operation of the program. Collective. A rank that fails ends the world,
 * as the others would wait for it. */
dp_status_t dp_order_group(dp_group_t *group);

/* The group has ended. Nothing if it is not ordered. */
void dp_order_end(dp_group_t *group);

#endif
