/*
 * group_view.c - groups as this rank sees them, and which subtrees take part in what.
 *
 * All groups negotiate on the one tree. Of a group a rank needs to know only where the members lie:
 * at itself, or below which child. The tree is known everywhere, so one table from rank to child,
 * made once, answers that for every group. Rules about what members do live elsewhere. Called by
 * the negotiator's other files, on the thread that drives it.
 */
#include "coordinator/negotiator/group_view.h"

#include "coordinator/negotiator/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Branches ------------------------------------------------------------------------------- */

/* Parents have lower numbers than their children, so one pass upwards finds all. */
static dp_status_t map_ranks(dp_negotiator_t *n, int arity)
{
    int child = 0;

    if (n->child_count == 0) return DP_OK;
    if (arity < 1 || n->child_count >= INT16_MAX) return DP_ERR_INVALID;
    n->child_of = malloc((size_t)n->size * sizeof(*n->child_of));
    if (n->child_of == NULL) return DP_ERR_NO_MEMORY;
    for (int rank = 0; rank < n->size; rank++) {
        int parent = rank > n->rank ? dp_tree_parent(n->topology, arity, rank) : -1;

        n->child_of[rank] = -1;
        if (parent == n->rank) n->child_of[rank] = (int16_t)child++;
        if (parent > n->rank) n->child_of[rank] = n->child_of[parent];
    }
    n->child_of[n->rank] = (int16_t)dp_own_branch(n);
    return child == n->child_count ? DP_OK : DP_ERR_INVALID;
}

int dp_branch_of(const dp_negotiator_t *n, int rank)
{
    if (rank < 0 || rank >= n->size) return -1;
    if (n->child_of != NULL) return n->child_of[rank];
    return rank == n->rank ? dp_own_branch(n) : -1;
}

uint32_t dp_branches_of_list(const dp_negotiator_t *n, const int32_t *list, uint32_t count,
                             uint64_t *branches)
{
    uint32_t found = 0;

    memset(branches, 0, n->table.bit_words * sizeof(*branches));
    for (uint32_t i = 0; i < count; i++) {
        int branch = dp_branch_of(n, list[i]);

        if (branch < 0 || dp_bit_get(branches, branch)) continue;
        dp_bit_set(branches, branch);
        found++;
    }
    return found;
}

/* ---- Groups --------------------------------------------------------------------------------- */

int dp_group_view_rank(const dp_group_view_t *view, int index)
{
    if (index < 0 || (uint32_t)index >= view->member_count) return -1;
    return view->members != NULL ? view->members[index] : index;
}

int dp_group_view_index(const dp_group_view_t *view, int rank)
{
    int low = 0, high = (int)view->member_count - 1;

    if (view->members == NULL) return rank >= 0 && rank <= high ? rank : -1;
    while (low <= high) {
        int middle = low + (high - low) / 2;

        if (view->members[middle] == rank) return middle;
        if (view->members[middle] < rank) low = middle + 1;
        if (view->members[middle] > rank) high = middle - 1;
    }
    return -1;
}

/*
 * A view is one block:
 *
 *   dp_group_view_t | expect | joined | below | joined_below | joined_rank | members
 *                     bits     bits     [branches] each                      unless it is the world
 */
static dp_group_view_t *view_allocate(const dp_negotiator_t *n, const int32_t *members,
                                      uint32_t count)
{
    size_t words = n->table.bit_words + dp_bit_words(count);
    size_t branches = (size_t)n->table.branches, listed = members != NULL ? count : 0;
    dp_group_view_t *view = calloc(1, sizeof(*view) + words * sizeof(uint64_t) +
                                          (3 * branches + listed) * sizeof(uint32_t));

    if (view == NULL) return NULL;
    view->expect = (uint64_t *)(void *)(view + 1);
    view->joined = view->expect + n->table.bit_words;
    view->below = (uint32_t *)(void *)(view->expect + words);
    view->joined_below = view->below + branches;
    view->joined_rank = (int *)(void *)(view->joined_below + branches);
    if (listed > 0) {
        int32_t *copy = (int32_t *)(view->joined_rank + branches);

        memcpy(copy, members, listed * sizeof(*copy));
        view->members = copy;
    }
    return view;
}

/* Counts members per branch: this rank needs to know no more of where they are. */
static dp_group_view_t *view_create(const dp_negotiator_t *n, uint32_t uid, const char *name,
                                    const int32_t *members, uint32_t count)
{
    dp_group_view_t *view = view_allocate(n, members, count);

    if (view == NULL) return NULL;
    view->uid = uid;
    view->member_count = count;
    view->own = -1;
    snprintf(view->name, sizeof(view->name), "%.*s", DP_GROUP_NAME_MAX, name);
    for (uint32_t i = 0; i < count; i++) {
        int rank = members != NULL ? members[i] : (int)i;
        int branch = dp_branch_of(n, rank);

        if (rank == n->rank) view->own = (int)i;
        if (branch < 0) continue;
        dp_bit_set(view->expect, branch);
        if (view->below[branch]++ == 0) view->expected++;
    }
    for (int branch = 0; branch < n->table.branches; branch++)
        view->joined_rank[branch] = -1;
    view->last_joined = view->closed_rank = -1;
    return view;
}

/* The last element is the newest: uids are counted up. */
dp_group_view_t *dp_group_view_make(dp_negotiator_t *n, uint32_t uid, uint32_t group_index,
                                    const char *name, const int32_t *members, uint32_t count)
{
    dp_group_view_t *view;

    if (n->groups.count == n->groups.room) {
        size_t room = n->groups.room > 0 ? n->groups.room * 2 : 8;
        dp_group_view_t **grown = realloc(n->groups.views, room * sizeof(dp_group_view_t *));

        if (grown == NULL) return NULL;
        n->groups.views = grown;
        n->groups.room = room;
    }
    view = view_create(n, uid, name, members, count);
    if (view == NULL) return NULL;
    view->group_index = group_index;
    n->groups.views[n->groups.count++] = view;
    n->groups.last_uid = uid;
    return view;
}

dp_group_view_t *dp_group_view_find(const dp_negotiator_t *n, uint32_t uid)
{
    size_t low = 0, high = n->groups.count;

    if (uid == DP_GROUP_WORLD) return n->world;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (n->groups.views[middle]->uid == uid) return n->groups.views[middle];
        if (n->groups.views[middle]->uid < uid) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

dp_status_t dp_group_views_init(dp_negotiator_t *n, int arity)
{
    dp_status_t status = map_ranks(n, arity);

    if (status != DP_OK) return status;
    n->world = view_create(n, DP_GROUP_WORLD, "", NULL, (uint32_t)n->size);
    n->targets = calloc(n->table.bit_words, sizeof(*n->targets));
    return n->world != NULL && n->targets != NULL ? DP_OK : DP_ERR_NO_MEMORY;
}

void dp_group_views_fini(dp_negotiator_t *n)
{
    for (size_t i = 0; i < n->groups.count; i++)
        free(n->groups.views[i]);
    free(n->groups.views);
    free(n->world);
    free(n->child_of);
    free(n->targets);
}

void dp_group_view_remove(dp_negotiator_t *n, dp_group_view_t *view)
{
    size_t left = 0;

    for (size_t i = 0; i < n->groups.count; i++) {
        if (n->groups.views[i] != view) n->groups.views[left++] = n->groups.views[i];
    }
    n->groups.count = left;
    free(view);
}
