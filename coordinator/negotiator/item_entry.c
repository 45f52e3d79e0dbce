/*
 * item_entry.c - the tensor entry that an item of a frame speaks of, and whether a signature can be
 * one of it.
 *
 * Called by receive.c and follow.c, on the thread that drives the negotiator. An item that names
 * what cannot be is a fatal error, whose text names its sender.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <inttypes.h>

/* The group of an item's key; *view stays NULL for those to be made. 0: there is none. */
static int view_of_item(dp_negotiator_t *n, int from, const dp_item_t *item, dp_group_view_t **view)
{
    *view = NULL;
    if (item->group == DP_GROUP_UNBORN && item->root < 0) return 1;
    *view = dp_group_view_find(n, item->group);
    if (*view == NULL) {
        dp_fatal_protocol(n, from, "no group has number %" PRIu32 " here", item->group);
    } else if (item->root >= 0 && (dp_group_view_rank(*view, item->root) < 0 ||
                                   dp_group_view_rank(*view, item->peer) < 0)) {
        dp_fatal_protocol(n, from, "a send from rank %d to %d in a group of %" PRIu32, item->root,
                          item->peer, (*view)->member_count);
    }
    return !n->is_fatal;
}

dp_entry_t *dp_item_key_entry(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_key_t key = {item->group, item->root, item->peer, item->name};
    dp_group_view_t *view;
    dp_entry_t *entry;

    if (!view_of_item(n, from, item, &view)) return NULL;
    entry = dp_entry_get(n, &key, view);
    if (entry == NULL) dp_fatal_memory(n);
    return entry;
}

dp_entry_t *dp_item_entry(dp_negotiator_t *n, int from, const dp_item_t *item)
{
    dp_entry_t *entry;

    if (item->id == DP_ID_NONE) return dp_item_key_entry(n, from, item);
    entry = dp_table_by_id(&n->table, item->id);
    if (entry == NULL) dp_fatal_protocol(n, from, "no tensor has id %" PRIu32, item->id);
    return entry;
}

int dp_entry_fits(const dp_negotiator_t *n, const dp_entry_t *entry,
                  const dp_signature_t *signature)
{
    if (entry->view == NULL) {
        return signature->collective == DP_COLLECTIVE_GROUP_CREATE &&
               signature->members[signature->member_count - 1] < n->size;
    }
    switch (signature->collective) {
    case DP_COLLECTIVE_GROUP_CREATE:
    case DP_COLLECTIVE_JOIN:
        return 0;
    case DP_COLLECTIVE_GROUP_DESTROY:
        return entry->view->uid != DP_GROUP_WORLD && entry->root < 0;
    case DP_COLLECTIVE_SEND:
        return entry->root >= 0 && signature->root == entry->root && signature->peer == entry->peer;
    default:
        return entry->root < 0;
    }
}
