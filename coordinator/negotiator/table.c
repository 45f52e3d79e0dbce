/*
 * table.c - the tensor table: names, the ids the root gave them, and a row of state for each.
 *
 * Rows are made at first sight and live as long as their group, so steady state allocates nothing
 * and pointers to rows stay good; the memory of one that goes is kept until the outputs which may
 * point to it were taken. Rules about what a row's state means live in agree.c.
 */
#include "coordinator/negotiator/negotiator_internal.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS 256
#define FIRST_ROWS 64

uint32_t dp_row_group(const dp_row_t *row)
{
    return row->scope != NULL ? row->scope->uid : DP_GROUP_UNBORN;
}

/* FNV-1a: names are short and this is asked once per submission. The ranks of a send are left out,
 * so that all of a name lie in one chain. */
static uint32_t hash_name(uint32_t group, const char *name)
{
    uint32_t hash = 2166136261u ^ group * 0x9e3779b9u;

    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

dp_status_t dp_table_init(dp_table_t *table, int slots)
{
    table->slots = slots;
    table->bit_words = dp_bit_words((size_t)slots);
    table->bucket_count = table->id_bucket_count = FIRST_BUCKETS;
    table->buckets = calloc(table->bucket_count, sizeof(dp_row_t *));
    table->by_id = calloc(table->id_bucket_count, sizeof(dp_row_t *));
    return table->buckets != NULL && table->by_id != NULL ? DP_OK : DP_ERR_NO_MEMORY;
}

static void row_destroy(dp_row_t *row, size_t bit_words)
{
    dp_row_clear(row, bit_words);
    dp_row_forgive(row);
    dp_contest_drop(row);
    free(row->own.signature);
    free(row->signature);
    free(row);
}

void dp_table_fini(dp_table_t *table)
{
    for (size_t i = 0; i < table->row_count; i++)
        row_destroy(table->rows[i], table->bit_words);
    dp_table_free_retired(table);
    free(table->retired);
    free(table->rows);
    free(table->by_id);
    free(table->buckets);
}

/* Grows a list of pointers to rows so that one more fits. */
static dp_status_t reserve(dp_row_t ***rows, size_t count, size_t *room)
{
    size_t wanted = *room > 0 ? *room * 2 : FIRST_ROWS;
    dp_row_t **grown;

    if (count < *room) return DP_OK;
    grown = realloc(*rows, wanted * sizeof(dp_row_t *));
    if (grown == NULL) return DP_ERR_NO_MEMORY;
    *rows = grown;
    *room = wanted;
    return DP_OK;
}

dp_status_t dp_row_array_push(dp_row_array_t *array, dp_row_t *row)
{
    dp_status_t status = reserve(&array->rows, array->count, &array->room);

    if (status == DP_OK) array->rows[array->count++] = row;
    return status;
}

void dp_row_array_remove(dp_row_array_t *array, const dp_row_t *row)
{
    size_t left = 0;

    for (size_t i = 0; i < array->count; i++) {
        if (array->rows[i] != row) array->rows[left++] = array->rows[i];
    }
    array->count = left;
}

/* ---- Names ------------------------------------------------------------------------------ */

static int is_named(const dp_row_t *row, uint32_t hash, uint32_t group, const char *name)
{
    return row->hash == hash && dp_row_group(row) == group && strcmp(row->name, name) == 0;
}

static dp_row_t *find(const dp_table_t *table, const dp_key_t *key, uint32_t hash)
{
    dp_row_t *row = table->buckets[hash & (table->bucket_count - 1)];

    while (row != NULL && (row->root != key->root || row->peer != key->peer ||
                           !is_named(row, hash, key->group, key->name))) {
        row = row->next_in_bucket;
    }
    return row;
}

dp_row_t *dp_table_find(const dp_table_t *table, const dp_key_t *key)
{
    return find(table, key, hash_name(key->group, key->name));
}

dp_row_t *dp_table_next(const dp_table_t *table, uint32_t group, const char *name, dp_row_t *after)
{
    uint32_t hash = hash_name(group, name);
    dp_row_t *row =
        after != NULL ? after->next_in_bucket : table->buckets[hash & (table->bucket_count - 1)];

    while (row != NULL && !is_named(row, hash, group, name))
        row = row->next_in_bucket;
    return row;
}

static void add_to_bucket(dp_table_t *table, dp_row_t *row)
{
    dp_row_t **bucket = &table->buckets[row->hash & (table->bucket_count - 1)];

    row->next_in_bucket = *bucket;
    *bucket = row;
}

/* Keeps chains short. Without memory they grow longer, which is slower but right. */
static void grow_buckets(dp_table_t *table)
{
    dp_row_t **grown;

    if (table->row_count < table->bucket_count) return;
    grown = calloc(table->bucket_count * 4, sizeof(dp_row_t *));
    if (grown == NULL) return;
    free(table->buckets);
    table->buckets = grown;
    table->bucket_count *= 4;
    for (size_t i = 0; i < table->row_count; i++)
        add_to_bucket(table, table->rows[i]);
}

/* A row in one block: behind its bits those of its own slots and a group's ends, then its name. */
static dp_row_t *row_create(const dp_table_t *table, const dp_key_t *key)
{
    size_t words = table->bit_words, name_bytes = strlen(key->name) + 1;
    int has_slots = key->group == DP_GROUP_UNBORN || key->root >= 0;
    size_t ends = key->group == DP_GROUP_UNBORN ? (size_t)table->slots : 0;
    dp_row_t *row;

    if (has_slots) words *= 2;
    row = calloc(1, sizeof(*row) + (words + ends) * sizeof(uint64_t) + name_bytes);
    if (row == NULL) return NULL;
    if (has_slots) row->own_expect = row->heard + table->bit_words;
    if (ends > 0) row->ended = row->heard + words;
    row->name = (char *)(row->heard + words + ends);
    memcpy(row->name, key->name, name_bytes);
    return row;
}

dp_row_t *dp_table_get(dp_table_t *table, const dp_key_t *key, dp_scope_t *scope)
{
    uint32_t hash = hash_name(key->group, key->name);
    dp_row_t *row = find(table, key, hash);

    if (row != NULL) return row;
    if (reserve(&table->rows, table->row_count, &table->row_room) != DP_OK) return NULL;
    row = row_create(table, key);
    if (row == NULL) return NULL;
    row->hash = hash;
    row->id = DP_ID_NONE;
    row->scope = scope;
    row->root = key->root;
    row->peer = key->peer;
    row->closed_by = -1;
    row->refusals_end = &row->refusals;
    dp_row_clear(row, table->bit_words);
    grow_buckets(table);
    add_to_bucket(table, row);
    row->index = table->row_count;
    table->rows[table->row_count++] = row;
    return row;
}

/* ---- Ids -------------------------------------------------------------------------------- */

static dp_row_t **id_bucket(const dp_table_t *table, uint32_t id)
{
    return &table->by_id[id & (table->id_bucket_count - 1)]; /* ids are counted up: well spread */
}

dp_row_t *dp_table_by_id(const dp_table_t *table, uint32_t id)
{
    dp_row_t *row = *id_bucket(table, id);

    while (row != NULL && row->id != id)
        row = row->next_of_id;
    return row;
}

static void add_to_id_bucket(dp_table_t *table, dp_row_t *row)
{
    dp_row_t **bucket = id_bucket(table, row->id);

    row->next_of_id = *bucket;
    *bucket = row;
}

static void grow_ids(dp_table_t *table)
{
    dp_row_t **grown;

    if (table->id_count < table->id_bucket_count) return;
    grown = calloc(table->id_bucket_count * 4, sizeof(dp_row_t *));
    if (grown == NULL) return;
    free(table->by_id);
    table->by_id = grown;
    table->id_bucket_count *= 4;
    for (size_t i = 0; i < table->row_count; i++) {
        if (table->rows[i]->id != DP_ID_NONE) add_to_id_bucket(table, table->rows[i]);
    }
}

void dp_table_assign(dp_table_t *table, dp_row_t *row, uint32_t id)
{
    grow_ids(table);
    row->id = id;
    add_to_id_bucket(table, row);
    table->id_count++;
    table->next_id = id + 1;
}

/* ---- Rows that go ----------------------------------------------------------------------- */

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

dp_status_t dp_table_remove(dp_table_t *table, dp_row_t *row)
{
    dp_row_t **at = &table->buckets[row->hash & (table->bucket_count - 1)];
    dp_status_t status = dp_table_retire(table, row->signature);

    if (status != DP_OK) return status;
    row->signature = NULL; /* retired already, should the row itself find no room */
    status = dp_table_retire(table, row);
    if (status != DP_OK) return status;
    while (*at != row)
        at = &(*at)->next_in_bucket;
    *at = row->next_in_bucket;
    if (row->id != DP_ID_NONE) {
        for (at = id_bucket(table, row->id); *at != row; at = &(*at)->next_of_id)
            continue;
        *at = row->next_of_id;
        table->id_count--;
    }
    table->rows[row->index] = table->rows[--table->row_count];
    table->rows[row->index]->index = row->index;
    dp_row_clear(row, table->bit_words);
    dp_row_forgive(row);
    dp_contest_drop(row);
    return DP_OK;
}

int dp_table_has(const dp_table_t *table, const dp_row_t *row)
{
    return row->index < table->row_count && table->rows[row->index] == row;
}

/* ---- The pending occurrence ------------------------------------------------------------- */

static void conflict_destroy(dp_conflict_t *conflict)
{
    if (conflict == NULL) return;
    free(conflict->signature[0]);
    free(conflict->signature[1]);
    free(conflict);
}

void dp_row_clear(dp_row_t *row, size_t bit_words)
{
    DP_ASSERT(row->stall_list == DP_ROW_UNLISTED);
    conflict_destroy(row->conflict);
    free(row->proposed);
    free(row->list);
    row->conflict = NULL;
    row->proposed = NULL;
    row->list = NULL;
    row->list_count = 0;
    row->request = NULL;
    row->is_pending = row->is_own = row->is_shadow = row->is_complete = row->is_urgent = 0;
    row->is_mismatched = row->is_announced = row->urgent_sent = 0;
    row->said_ready = row->conflict_sent = 0;
    row->wants_partial = row->partial_sent = row->was_warned = 0;
    row->ready = row->absent = 0;
    row->ahead = 0;
    row->absent_rank = -1;
    row->in_place = 1;
    row->absmax = 0;
    row->first_rank = -1;
    row->first_ns = 0;
    memset(row->heard, 0, bit_words * sizeof(uint64_t));
}

dp_status_t dp_row_refuse(dp_row_t *row, dp_status_t status, const char *text)
{
    size_t bytes = strlen(text) + 1;
    dp_refusal_t *refusal = malloc(sizeof(*refusal) + bytes);

    if (refusal == NULL) return DP_ERR_NO_MEMORY;
    refusal->next = NULL;
    refusal->status = status;
    memcpy(refusal->text, text, bytes);
    *row->refusals_end = refusal;
    row->refusals_end = &refusal->next;
    return DP_OK;
}

void dp_row_forgive(dp_row_t *row)
{
    while (row->refusals != NULL) {
        dp_refusal_t *next = row->refusals->next;

        free(row->refusals);
        row->refusals = next;
    }
    row->refusals_end = &row->refusals;
}
