/*
 * group_view.c - groups as this node sees them, and which subtrees take part in what.
 *
 * All groups negotiate on the one tree. A node needs of a group only where its members lie: at
 * itself or below which child. The tree is known everywhere, so one table from rank to child, made
 * once, answers that for every group. Rules about what members do live elsewhere.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Slots ------------------------------------------------------------------------------ */

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
    n->child_of[n->rank] = (int16_t)dp_own_slot(n);
    return child == n->child_count ? DP_OK : DP_ERR_INVALID;
}

int dp_slot_of(const dp_negotiator_t *n, int rank)
{
    if (rank < 0 || rank >= n->size) return -1;
    if (n->child_of != NULL) return n->child_of[rank];
    return rank == n->rank ? dp_own_slot(n) : -1;
}

uint32_t dp_slots_of_list(const dp_negotiator_t *n, const int32_t *list, uint32_t count,
                          uint64_t *slots)
{
    uint32_t found = 0;

    memset(slots, 0, n->table.bit_words * sizeof(*slots));
    for (uint32_t i = 0; i < count; i++) {
        int slot = dp_slot_of(n, list[i]);

        if (slot < 0 || dp_bit_get(slots, slot)) continue;
        dp_bit_set(slots, slot);
        found++;
    }
    return found;
}

/* ---- Groups ----------------------------------------------------------------------------- */

int dp_scope_rank(const dp_scope_t *scope, int index)
{
    if (index < 0 || (uint32_t)index >= scope->member_count) return -1;
    return scope->members != NULL ? scope->members[index] : index;
}

int dp_scope_index(const dp_scope_t *scope, int rank)
{
    int low = 0, high = (int)scope->member_count - 1;

    if (scope->members == NULL) return rank >= 0 && rank <= high ? rank : -1;
    while (low <= high) {
        int middle = low + (high - low) / 2;

        if (scope->members[middle] == rank) return middle;
        if (scope->members[middle] < rank) low = middle + 1;
        if (scope->members[middle] > rank) high = middle - 1;
    }
    return -1;
}

/* One block: the scope, its bits, its counts, its members. */
static dp_scope_t *allocate(const dp_negotiator_t *n, const int32_t *members, uint32_t count)
{
    size_t words = n->table.bit_words + dp_bit_words(count);
    size_t slots = (size_t)n->table.slots, listed = members != NULL ? count : 0;
    dp_scope_t *scope = calloc(1, sizeof(*scope) + words * sizeof(uint64_t) +
                                      (3 * slots + listed) * sizeof(uint32_t));

    if (scope == NULL) return NULL;
    scope->expect = (uint64_t *)(void *)(scope + 1);
    scope->joined = scope->expect + n->table.bit_words;
    scope->below = (uint32_t *)(void *)(scope->expect + words);
    scope->joined_below = scope->below + slots;
    scope->joined_rank = (int *)(void *)(scope->joined_below + slots);
    if (listed > 0) {
        int32_t *copy = (int32_t *)(scope->joined_rank + slots);

        memcpy(copy, members, listed * sizeof(*copy));
        scope->members = copy;
    }
    return scope;
}

static dp_scope_t *create(const dp_negotiator_t *n, uint32_t uid, const char *name,
                          const int32_t *members, uint32_t count)
{
    dp_scope_t *scope = allocate(n, members, count);

    if (scope == NULL) return NULL;
    scope->uid = uid;
    scope->member_count = count;
    scope->own = -1;
    snprintf(scope->name, sizeof(scope->name), "%.*s", DP_GROUP_NAME_MAX, name);
    for (uint32_t i = 0; i < count; i++) {
        int rank = members != NULL ? members[i] : (int)i;
        int slot = dp_slot_of(n, rank);

        if (rank == n->rank) scope->own = (int)i;
        if (slot < 0) continue;
        dp_bit_set(scope->expect, slot);
        if (scope->below[slot]++ == 0) scope->expected++;
    }
    for (int slot = 0; slot < n->table.slots; slot++)
        scope->joined_rank[slot] = -1;
    scope->last_joined = scope->closed_rank = -1;
    return scope;
}

/* The last element is the newest: uids are counted up. */
dp_scope_t *dp_scope_make(dp_negotiator_t *n, uint32_t uid, uint32_t slot_number, const char *name,
                          const int32_t *members, uint32_t count)
{
    dp_scope_t *scope;

    if (n->group_count == n->group_room) {
        size_t room = n->group_room > 0 ? n->group_room * 2 : 8;
        dp_scope_t **grown = realloc(n->groups, room * sizeof(dp_scope_t *));

        if (grown == NULL) return NULL;
        n->groups = grown;
        n->group_room = room;
    }
    scope = create(n, uid, name, members, count);
    if (scope == NULL) return NULL;
    scope->slot_number = slot_number;
    n->groups[n->group_count++] = scope;
    n->last_uid = uid;
    return scope;
}

dp_scope_t *dp_scope_find(const dp_negotiator_t *n, uint32_t uid)
{
    size_t low = 0, high = n->group_count;

    if (uid == DP_GROUP_WORLD) return n->world;
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (n->groups[middle]->uid == uid) return n->groups[middle];
        if (n->groups[middle]->uid < uid) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

void dp_scope_drop(dp_negotiator_t *n, dp_scope_t *scope)
{
    size_t left = 0;

    dp_resume_drop(n);                                /* its rows may be of the plan */
    for (size_t i = n->table.row_count; i > 0; i--) { /* the last one takes the place of one gone */
        dp_row_t *row = n->table.rows[i - 1];

        if (row->scope != scope) continue;
        dp_stall_forget(n, row);
        dp_leave_forget(n, row);
        dp_row_array_remove(&n->news, row);
        dp_row_array_remove(&n->restarts, row);
        if (dp_table_remove(&n->table, row) == DP_OK) continue;
        dp_fatal_memory(n);
        return;
    }
    for (size_t i = 0; i < n->group_count; i++) {
        if (n->groups[i] != scope) n->groups[left++] = n->groups[i];
    }
    n->group_count = left;
    if (n->keep_scope == scope) n->keep_scope = NULL;
    free(scope);
}

dp_status_t dp_scopes_init(dp_negotiator_t *n, int arity)
{
    dp_status_t status = map_ranks(n, arity);

    if (status != DP_OK) return status;
    n->world = create(n, DP_GROUP_WORLD, "", NULL, (uint32_t)n->size);
    n->targets = calloc(n->table.bit_words, sizeof(*n->targets));
    n->mask = calloc(n->table.bit_words, sizeof(*n->mask));
    return n->world != NULL && n->targets != NULL && n->mask != NULL ? DP_OK : DP_ERR_NO_MEMORY;
}

void dp_scopes_fini(dp_negotiator_t *n)
{
    for (size_t i = 0; i < n->group_count; i++)
        free(n->groups[i]);
    free(n->groups);
    free(n->world);
    free(n->child_of);
    free(n->targets);
    free(n->mask);
}

/* ---- Who takes part in a tensor --------------------------------------------------------- */

dp_row_t *dp_row_get(dp_negotiator_t *n, const dp_key_t *key, dp_scope_t *scope)
{
    dp_row_t *row = dp_table_get(&n->table, key, scope);
    int32_t pair[2];

    if (row == NULL || row->expect != NULL) return row;
    row->expect = row->own_expect;
    if (row->root >= 0) {
        pair[0] = dp_scope_rank(scope, row->root);
        pair[1] = dp_scope_rank(scope, row->peer);
        row->expected = dp_slots_of_list(n, pair, 2, row->own_expect);
    } else if (scope != NULL) {
        row->expect = scope->expect;
        row->expected = scope->expected;
    }
    return row;
}

dp_status_t dp_row_set_list(dp_negotiator_t *n, dp_row_t *row, const int32_t *list, uint32_t count)
{
    int32_t *copy = malloc(count * sizeof(*copy));

    if (copy == NULL) return DP_ERR_NO_MEMORY;
    memcpy(copy, list, count * sizeof(*copy));
    free(row->list);
    row->list = copy;
    row->list_count = count;
    row->expected = dp_slots_of_list(n, list, count, row->own_expect);
    return DP_OK;
}

uint32_t dp_row_ranks(const dp_row_t *row)
{
    if (row->scope == NULL) return row->list_count;
    return row->root >= 0 ? 2 : row->scope->member_count;
}

uint32_t dp_row_below(const dp_negotiator_t *n, const dp_row_t *row, int slot)
{
    uint32_t count = 0;

    if (row->scope != NULL && row->root < 0) return row->scope->below[slot];
    if (row->scope != NULL) {
        count += dp_slot_of(n, dp_scope_rank(row->scope, row->root)) == slot;
        count += dp_slot_of(n, dp_scope_rank(row->scope, row->peer)) == slot;
        return count;
    }
    for (uint32_t i = 0; i < row->list_count; i++)
        count += dp_slot_of(n, row->list[i]) == slot;
    return count;
}

int dp_row_takes_part(const dp_negotiator_t *n, const dp_row_t *row)
{
    return dp_bit_get(row->expect, dp_own_slot(n));
}

const char *dp_row_text_of(const dp_row_t *row, const dp_signature_t *signature,
                           char text[DP_ROW_TEXT_MAX])
{
    if (row->scope == NULL) {
        int has_name =
            signature != NULL && signature->group_name != NULL && signature->group_name[0] != '\0';

        snprintf(text, DP_ROW_TEXT_MAX, "group %s", has_name ? signature->group_name : row->name);
    } else if (row->scope->uid != DP_GROUP_WORLD) {
        snprintf(text, DP_ROW_TEXT_MAX, "tensor %s of group %s", row->name, row->scope->name);
    } else {
        snprintf(text, DP_ROW_TEXT_MAX, "tensor %s", row->name);
    }
    return text;
}

const char *dp_row_text(const dp_row_t *row, char text[DP_ROW_TEXT_MAX])
{
    return dp_row_text_of(row, dp_row_signature(row), text);
}
