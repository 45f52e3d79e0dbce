/*
 * places.h - a rank of a group, and its place among the group's ranks of the world in their order.
 *
 * The program and the engine number a group's ranks as dp_group_split() was asked to; the
 * negotiator numbers them by rank of the world. Where the two differ, a message's ranks and the
 * rank that joined last are translated here. Any thread.
 */
#ifndef DP_COORDINATOR_PLACES_H
#define DP_COORDINATOR_PLACES_H

#include "coordinator/api/context/context.h"

int dp_group_place(const dp_group_t *group, int rank);    /* -1: no such rank */
int dp_group_rank_at(const dp_group_t *group, int place); /* likewise */

#endif
