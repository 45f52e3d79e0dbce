/*
 * receive.h - frames from neighbours, and the items in them. receive.c alone writes
 * n->child_position.
 */
#ifndef DP_COORDINATOR_RECEIVE_H
#define DP_COORDINATOR_RECEIVE_H

#include "coordinator/negotiator/negotiator.h"

dp_status_t dp_receive(dp_negotiator_t *n, int from, const void *data, size_t bytes);

#endif
