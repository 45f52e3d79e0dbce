/*
 * table.c - the tensor table: names, the ids the root gave them, and an entry of state for each.
 *
 * Entries are made at first sight and live as long as their group, so steady state allocates
 * nothing and pointers to entries stay good; the memory of one that goes is kept until the outputs
 * which may point to it were taken. Rules about what an entry's state means live in agree.c.
 *
 * Called by the negotiator's other files, on the thread that drives it.
 */
#include "coordinator/negotiator/table.h"

#include "coordinator/negotiator/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_HEADS 256
#define NAMES_KEPT 4096 /* more than most models have, and a few megabytes */
#define FIRST_ENTRIES 64

uint32_t dp_entry_group(const dp_entry_t *entry)
{
    return entry->view != NULL ? entry->view->uid : DP_GROUP_UNBORN;
}

/* FNV-1a: names are short and this is asked once per submission. The ranks of a send are left out,
 * so that all of a name lie in one list. */
static uint32_t hash_name(uint32_t group, const char *name)
{
    uint32_t hash = 2166136261u ^ group * 0x9e3779b9u;

    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

dp_status_t dp_table_init(dp_table_t *table, int branches, size_t names_kept)
{
    table->names_kept = names_kept > 0 ? names_kept : NAMES_KEPT;
    table->branches = branches;
    table->bit_words = dp_bit_words((size_t)branches);
    table->head_count = table->id_head_count = FIRST_HEADS;
    table->heads = calloc(table->head_count, sizeof(dp_entry_t *));
    table->by_id = calloc(table->id_head_count, sizeof(dp_entry_t *));
    return table->heads != NULL && table->by_id != NULL ? DP_OK : DP_ERR_NO_MEMORY;
}

void dp_contest_destroy(dp_contest_t *contest)
{
    if (contest == NULL) return;
    free(contest->signature[0]);
    free(contest->signature[1]);
    free(contest->list);
    free(contest);
}

void dp_contest_drop(dp_entry_t *entry)
{
    while (entry->making.contests != NULL) {
        dp_contest_t *next = entry->making.contests->next;

        dp_contest_destroy(entry->making.contests);
        entry->making.contests = next;
    }
}

static void entry_destroy(dp_entry_t *entry, size_t bit_words)
{
    dp_entry_clear(entry, bit_words);
    dp_entry_forgive(entry);
    dp_contest_drop(entry);
    free(entry->own.signature);
    free(entry->signature);
    free(entry);
}

void dp_table_fini(dp_table_t *table)
{
    for (size_t i = 0; i < table->entry_count; i++)
        entry_destroy(table->entries[i], table->bit_words);
    dp_table_free_retired(table);
    free(table->retired);
    free(table->entries);
    free(table->by_id);
    free(table->passing);
    free(table->heads);
}

/* Grows a list of pointers to entries so that one more fits. */
static dp_status_t reserve_entries(dp_entry_t ***entries, size_t count, size_t *room)
{
    size_t wanted = *room > 0 ? *room * 2 : FIRST_ENTRIES;
    dp_entry_t **grown;

    if (count < *room) return DP_OK;
    grown = realloc(*entries, wanted * sizeof(dp_entry_t *));
    if (grown == NULL) return DP_ERR_NO_MEMORY;
    *entries = grown;
    *room = wanted;
    return DP_OK;
}

dp_status_t dp_entry_array_push(dp_entry_array_t *array, dp_entry_t *entry)
{
    dp_status_t status = reserve_entries(&array->entries, array->count, &array->room);

    if (status == DP_OK) array->entries[array->count++] = entry;
    return status;
}

void dp_entry_array_remove(dp_entry_array_t *array, const dp_entry_t *entry)
{
    size_t left = 0;

    for (size_t i = 0; i < array->count; i++) {
        if (array->entries[i] != entry) array->entries[left++] = array->entries[i];
    }
    array->count = left;
}

/* ---- Names ---------------------------------------------------------------------------------- */

static int is_named(const dp_entry_t *entry, uint32_t hash, uint32_t group, const char *name)
{
    return entry->hash == hash && dp_entry_group(entry) == group && strcmp(entry->name, name) == 0;
}

static dp_entry_t *find_entry(const dp_table_t *table, const dp_key_t *key, uint32_t hash)
{
    dp_entry_t *entry = table->heads[hash & (table->head_count - 1)];

    while (entry != NULL && (entry->root != key->root || entry->peer != key->peer ||
                             !is_named(entry, hash, key->group, key->name))) {
        entry = entry->next_by_hash;
    }
    return entry;
}

dp_entry_t *dp_table_find(const dp_table_t *table, const dp_key_t *key)
{
    return find_entry(table, key, hash_name(key->group, key->name));
}

dp_entry_t *dp_table_next(const dp_table_t *table, uint32_t group, const char *name,
                          dp_entry_t *after)
{
    uint32_t hash = hash_name(group, name);
    dp_entry_t *entry =
        after != NULL ? after->next_by_hash : table->heads[hash & (table->head_count - 1)];

    while (entry != NULL && !is_named(entry, hash, group, name))
        entry = entry->next_by_hash;
    return entry;
}

static void add_to_hash_list(dp_table_t *table, dp_entry_t *entry)
{
    dp_entry_t **head = &table->heads[entry->hash & (table->head_count - 1)];

    entry->next_by_hash = *head;
    *head = entry;
}

/* Keeps the hash lists short. Without memory they grow longer, which is slower but right. */
static void grow_heads(dp_table_t *table)
{
    dp_entry_t **grown;

    if (table->entry_count < table->head_count) return;
    grown = calloc(table->head_count * 4, sizeof(dp_entry_t *));
    if (grown == NULL) return;
    free(table->heads);
    table->heads = grown;
    table->head_count *= 4;
    for (size_t i = 0; i < table->entry_count; i++)
        add_to_hash_list(table, table->entries[i]);
}

/*
 * An entry is one block, so that a pointer to it stays good and is all that has to be kept:
 *
 *   dp_entry_t | heard | own_expect | ended_for | name
 *                bits    bits: of a   [branches]: of a group to be made
 *                        send too
 */
static dp_entry_t *entry_create(const dp_table_t *table, const dp_key_t *key)
{
    size_t words = table->bit_words, name_bytes = strlen(key->name) + 1;
    int has_branches = key->group == DP_GROUP_UNBORN || key->root >= 0;
    size_t ends = key->group == DP_GROUP_UNBORN ? (size_t)table->branches : 0;
    dp_entry_t *entry;

    if (has_branches) words *= 2;
    entry = calloc(1, sizeof(*entry) + (words + ends) * sizeof(uint64_t) + name_bytes);
    if (entry == NULL) return NULL;
    if (has_branches) entry->own_expect = entry->heard + table->bit_words;
    if (ends > 0) entry->making.ended_for = entry->heard + words;
    entry->name = (char *)(entry->heard + words + ends);
    memcpy(entry->name, key->name, name_bytes);
    return entry;
}

dp_entry_t *dp_table_get(dp_table_t *table, const dp_key_t *key, dp_group_view_t *view)
{
    uint32_t hash = hash_name(key->group, key->name);
    dp_entry_t *entry = find_entry(table, key, hash);

    if (entry != NULL) return entry;
    if (reserve_entries(&table->entries, table->entry_count, &table->entry_room) != DP_OK)
        return NULL;
    entry = entry_create(table, key);
    if (entry == NULL) return NULL;
    entry->hash = hash;
    entry->id = DP_ID_NONE;
    entry->view = view;
    entry->root = key->root;
    entry->peer = key->peer;
    entry->leave.closed_by = -1;
    entry->ended.refusals_end = &entry->ended.refusals;
    dp_entry_clear(entry, table->bit_words);
    grow_heads(table);
    add_to_hash_list(table, entry);
    entry->index = table->entry_count;
    table->entries[table->entry_count++] = entry;
    return entry;
}

/* ---- Ids ------------------------------------------------------------------------------------ */

static dp_entry_t **id_head(const dp_table_t *table, uint32_t id)
{
    return &table->by_id[id & (table->id_head_count - 1)]; /* ids are counted up: well spread */
}

dp_entry_t *dp_table_by_id(const dp_table_t *table, uint32_t id)
{
    dp_entry_t *entry = *id_head(table, id);

    while (entry != NULL && entry->id != id)
        entry = entry->next_of_id;
    return entry;
}

static void add_to_id_list(dp_table_t *table, dp_entry_t *entry)
{
    dp_entry_t **head = id_head(table, entry->id);

    entry->next_of_id = *head;
    *head = entry;
}

static void grow_ids(dp_table_t *table)
{
    dp_entry_t **grown;

    if (table->id_count < table->id_head_count) return;
    grown = calloc(table->id_head_count * 4, sizeof(dp_entry_t *));
    if (grown == NULL) return;
    free(table->by_id);
    table->by_id = grown;
    table->id_head_count *= 4;
    for (size_t i = 0; i < table->entry_count; i++) {
        if (table->entries[i]->id != DP_ID_NONE) add_to_id_list(table, table->entries[i]);
    }
}

static void end_passing(dp_table_t *table, dp_entry_t *entry)
{
    if (entry->passing > 0) table->passing[entry->passing - 1] = NULL;
    entry->passing = 0;
}

int dp_table_earns_id(const dp_table_t *table, const dp_entry_t *entry)
{
    return entry->passing > 0 || table->id_count + 1 < table->names_kept;
}

dp_status_t dp_table_pass(dp_table_t *table, dp_entry_t *entry, dp_entry_t **oldest)
{
    *oldest = NULL;
    if (table->passing == NULL) table->passing = calloc(table->names_kept, sizeof(dp_entry_t *));
    if (table->passing == NULL) return DP_ERR_NO_MEMORY;
    end_passing(table, entry);
    *oldest = table->passing[table->passing_next];
    if (*oldest != NULL) end_passing(table, *oldest);
    table->passing[table->passing_next] = entry;
    table->passing_next = (table->passing_next + 1) % table->names_kept;
    entry->passing = table->passing_next > 0 ? table->passing_next : table->names_kept;
    return DP_OK;
}

void dp_table_assign(dp_table_t *table, dp_entry_t *entry, uint32_t id)
{
    end_passing(table, entry);
    grow_ids(table);
    entry->id = id;
    add_to_id_list(table, entry);
    table->id_count++;
    table->next_id = id + 1;
}

/* ---- Entries that go ------------------------------------------------------------------------ */

dp_status_t dp_table_retire(dp_table_t *table, void *memory)
{
    if (memory == NULL) return DP_OK;
    if (table->retired_count == table->retired_room) {
        size_t room = table->retired_room > 0 ? table->retired_room * 2 : 16;
        void **grown = realloc(table->retired, room * sizeof(*grown));

        if (grown == NULL) return DP_ERR_NO_MEMORY;
        table->retired = grown;
        table->retired_room = room;
    }
    table->retired[table->retired_count++] = memory;
    return DP_OK;
}

void dp_table_free_retired(dp_table_t *table)
{
    while (table->retired_count > 0)
        free(table->retired[--table->retired_count]);
}

dp_status_t dp_table_remove(dp_table_t *table, dp_entry_t *entry)
{
    dp_entry_t **at = &table->heads[entry->hash & (table->head_count - 1)];
    dp_status_t status = dp_table_retire(table, entry->signature);

    if (status != DP_OK) return status;
    entry->signature = NULL; /* retired already, should the entry itself find no room */
    status = dp_table_retire(table, entry);
    if (status != DP_OK) return status;
    end_passing(table, entry);
    while (*at != entry)
        at = &(*at)->next_by_hash;
    *at = entry->next_by_hash;
    if (entry->id != DP_ID_NONE) {
        for (at = id_head(table, entry->id); *at != entry; at = &(*at)->next_of_id)
            continue;
        *at = entry->next_of_id;
        table->id_count--;
    }
    table->entries[entry->index] = table->entries[--table->entry_count];
    table->entries[entry->index]->index = entry->index;
    dp_entry_clear(entry, table->bit_words);
    dp_entry_forgive(entry);
    dp_contest_drop(entry);
    return DP_OK;
}

int dp_table_has(const dp_table_t *table, const dp_entry_t *entry)
{
    return entry->index < table->entry_count && table->entries[entry->index] == entry;
}

/* ---- The pending occurrence ----------------------------------------------------------------- */

static void conflict_destroy(dp_conflict_t *conflict)
{
    if (conflict == NULL) return;
    free(conflict->signature[0]);
    free(conflict->signature[1]);
    free(conflict);
}

void dp_entry_clear(dp_entry_t *entry, size_t bit_words)
{
    int has_news = entry->sent.has_news; /* the list of news holds it whatever happens */

    DP_ASSERT(entry->stall.list == DP_ENTRY_UNLISTED);
    conflict_destroy(entry->arrived.conflict);
    free(entry->arrived.proposed);
    free(entry->making.list);
    entry->is_pending = 0;
    entry->part = (dp_part_t){0};
    entry->arrived = (dp_arrived_t){.absent_rank = -1, .in_place = 1, .first_rank = -1};
    entry->sent = (dp_sent_t){.has_news = has_news};
    entry->stall.first_ns = 0;
    entry->stall.was_warned = 0;
    entry->stall.is_expired = 0;
    entry->making.list = NULL;
    entry->making.list_count = 0;
    memset(entry->heard, 0, bit_words * sizeof(uint64_t));
}

const dp_signature_t *dp_entry_signature(const dp_entry_t *entry)
{
    return entry->arrived.proposed != NULL ? entry->arrived.proposed : entry->signature;
}

dp_status_t dp_entry_refuse(dp_entry_t *entry, dp_status_t status, const char *text)
{
    size_t bytes = strlen(text) + 1;
    dp_refusal_t *refusal = malloc(sizeof(*refusal) + bytes);

    if (refusal == NULL) return DP_ERR_NO_MEMORY;
    refusal->next = NULL;
    refusal->status = status;
    memcpy(refusal->text, text, bytes);
    *entry->ended.refusals_end = refusal;
    entry->ended.refusals_end = &refusal->next;
    return DP_OK;
}

dp_refusal_t *dp_entry_take_refusal(dp_entry_t *entry)
{
    dp_refusal_t *refusal = entry->ended.refusals;

    entry->ended.refusals = refusal->next;
    if (entry->ended.refusals == NULL) entry->ended.refusals_end = &entry->ended.refusals;
    return refusal;
}

void dp_entry_forgive(dp_entry_t *entry)
{
    while (entry->ended.refusals != NULL) {
        dp_refusal_t *next = entry->ended.refusals->next;

        free(entry->ended.refusals);
        entry->ended.refusals = next;
    }
    entry->ended.refusals_end = &entry->ended.refusals;
}

/* ---- Ranks that take part in a tensor ------------------------------------------------------- */

dp_entry_t *dp_entry_get(dp_negotiator_t *n, const dp_key_t *key, dp_group_view_t *view)
{
    dp_entry_t *entry = dp_table_get(&n->table, key, view);
    int32_t pair[2];

    if (entry == NULL || entry->expect != NULL) return entry;
    entry->expect = entry->own_expect;
    if (entry->root >= 0) {
        pair[0] = dp_group_view_rank(view, entry->root);
        pair[1] = dp_group_view_rank(view, entry->peer);
        entry->expected = dp_branches_of_list(n, pair, 2, entry->own_expect);
    } else if (view != NULL) {
        entry->expect = view->expect;
        entry->expected = view->expected;
    }
    return entry;
}

dp_status_t dp_entry_set_list(dp_negotiator_t *n, dp_entry_t *entry, const int32_t *list,
                              uint32_t count)
{
    int32_t *copy = malloc(count * sizeof(*copy));

    if (copy == NULL) return DP_ERR_NO_MEMORY;
    memcpy(copy, list, count * sizeof(*copy));
    free(entry->making.list);
    entry->making.list = copy;
    entry->making.list_count = count;
    entry->expected = dp_branches_of_list(n, list, count, entry->own_expect);
    return DP_OK;
}

uint32_t dp_entry_ranks(const dp_entry_t *entry)
{
    if (entry->view == NULL) return entry->making.list_count;
    return entry->root >= 0 ? 2 : entry->view->member_count;
}

uint32_t dp_entry_below(const dp_negotiator_t *n, const dp_entry_t *entry, int branch)
{
    uint32_t count = 0;

    if (entry->view != NULL && entry->root < 0) return entry->view->below[branch];
    if (entry->view != NULL) {
        count += dp_branch_of(n, dp_group_view_rank(entry->view, entry->root)) == branch;
        count += dp_branch_of(n, dp_group_view_rank(entry->view, entry->peer)) == branch;
        return count;
    }
    for (uint32_t i = 0; i < entry->making.list_count; i++)
        count += dp_branch_of(n, entry->making.list[i]) == branch;
    return count;
}

int dp_entry_takes_part(const dp_negotiator_t *n, const dp_entry_t *entry)
{
    return dp_bit_get(entry->expect, dp_own_branch(n));
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

int dp_item_is_of_the_past(const dp_negotiator_t *n, const dp_item_t *item)
{
    if (item->id != DP_ID_NONE) {
        return item->id < n->table.next_id && dp_table_by_id(&n->table, item->id) == NULL;
    }
    return item->group <= n->groups.last_uid && dp_group_view_find(n, item->group) == NULL;
}

/* ---- In words ------------------------------------------------------------------------------- */

const char *dp_entry_text_of(const dp_entry_t *entry, const dp_signature_t *signature,
                             char text[DP_ENTRY_TEXT_MAX])
{
    if (entry->view == NULL) {
        int has_name =
            signature != NULL && signature->group_name != NULL && signature->group_name[0] != '\0';

        snprintf(text, DP_ENTRY_TEXT_MAX, "group %s",
                 has_name ? signature->group_name : entry->name);
    } else if (entry->view->uid != DP_GROUP_WORLD) {
        snprintf(text, DP_ENTRY_TEXT_MAX, "tensor %s of group %s", entry->name, entry->view->name);
    } else {
        snprintf(text, DP_ENTRY_TEXT_MAX, "tensor %s", entry->name);
    }
    return text;
}

const char *dp_entry_text(const dp_entry_t *entry, char text[DP_ENTRY_TEXT_MAX])
{
    return dp_entry_text_of(entry, dp_entry_signature(entry), text);
}
