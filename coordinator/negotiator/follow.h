/*
 * follow.h - items from the parent, and the entry that an item speaks of.
 */
#ifndef DP_COORDINATOR_FOLLOW_H
#define DP_COORDINATOR_FOLLOW_H

#include "coordinator/negotiator/table.h"

#define DP_POSITION_MAX (UINT64_MAX / 2) /* so that counting on from any position cannot wrap */

/* One item from the parent, read from bytes at `begin` of the reader on. */
void dp_follow(dp_negotiator_t *n, int from, dp_item_t *item, dp_reader_t *reader, size_t begin);
/* The entry an item speaks of, or its key; NULL: a fatal error was raised. */
dp_entry_t *dp_item_entry(dp_negotiator_t *n, int from, const dp_item_t *item);
/* Can this signature be one of the entry's? */
int dp_entry_fits(const dp_negotiator_t *n, const dp_entry_t *entry,
                  const dp_signature_t *signature);

#endif
