/*
 * own_end.c - the end of what this rank has submitted of a tensor, and the list of entries whose
 * next occurrence own.c looks at.
 *
 * Called by agree.c wherever an occurrence ends, on the thread that drives the negotiator. It must
 * not know why it ends.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <stdlib.h>

/* This rank's submission of the tensor was handed back. */
void dp_own_end(dp_negotiator_t *n, dp_entry_t *entry)
{
    entry->own.is_there = 0;
    free(entry->own.signature);
    entry->own.signature = NULL;
    n->own.pending--;
    if (entry->view == NULL) return;
    entry->view->own_pending--;
    if (entry->view->ending == entry) entry->view->ending = NULL;
}

void dp_own_queue(dp_negotiator_t *n, dp_entry_t *entry)
{
    if (entry->is_queued || !entry->own.is_there) return;
    if (dp_entry_array_push(&n->own.queue, entry) != DP_OK) {
        dp_fatal_memory(n);
        return;
    }
    entry->is_queued = 1;
}
