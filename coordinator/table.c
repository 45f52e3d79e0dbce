/*
 * table.c - the tensor table: names, the ids the root gave them, and a row of state for each.
 *
 * Rows are made at first sight and live as long as the negotiator, so steady state allocates
 * nothing and pointers to rows stay good. Rules about what a row's state means live in agree.c.
 */
#include "coordinator/negotiator_internal.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS 256
#define FIRST_ROWS 64

/* FNV-1a: names are short and this is asked once per submission. */
static uint32_t hash_name(const char *name)
{
    uint32_t hash = 2166136261u;

    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

dp_status_t dp_table_init(dp_table_t *table, int bits)
{
    table->bit_words = ((size_t)bits + 63) / 64;
    table->bucket_count = FIRST_BUCKETS;
    table->buckets = calloc(table->bucket_count, sizeof(dp_row_t *));
    return table->buckets != NULL ? DP_OK : DP_ERR_NO_MEMORY;
}

static void row_destroy(dp_row_t *row, size_t bit_words)
{
    dp_row_clear(row, bit_words);
    while (row->refusals != NULL) {
        dp_refusal_t *next = row->refusals->next;

        free(row->refusals);
        row->refusals = next;
    }
    free(row->signature);
    free(row);
}

void dp_table_fini(dp_table_t *table)
{
    for (size_t i = 0; i < table->row_count; i++)
        row_destroy(table->rows[i], table->bit_words);
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

static dp_row_t *find(const dp_table_t *table, const char *name, uint32_t hash)
{
    dp_row_t *row = table->buckets[hash & (table->bucket_count - 1)];

    while (row != NULL && (row->hash != hash || strcmp(row->name, name) != 0)) {
        row = row->next_in_bucket;
    }
    return row;
}

dp_row_t *dp_table_find(const dp_table_t *table, const char *name)
{
    return find(table, name, hash_name(name));
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

dp_row_t *dp_table_get(dp_table_t *table, const char *name)
{
    uint32_t hash = hash_name(name);
    dp_row_t *row = find(table, name, hash);
    size_t bits = table->bit_words * sizeof(uint64_t);
    size_t bytes = strlen(name) + 1;

    if (row != NULL) return row;
    if (reserve(&table->rows, table->row_count, &table->row_room) != DP_OK) return NULL;
    row = calloc(1, sizeof(*row) + bits + bytes);
    if (row == NULL) return NULL;
    row->hash = hash;
    row->id = DP_ID_NONE;
    row->closed_by = -1;
    row->refusals_end = &row->refusals;
    row->name = (char *)row->heard + bits;
    memcpy(row->name, name, bytes);
    dp_row_clear(row, table->bit_words);
    grow_buckets(table);
    add_to_bucket(table, row);
    table->rows[table->row_count++] = row;
    return row;
}

dp_row_t *dp_table_by_id(const dp_table_t *table, uint32_t id)
{
    return id < table->id_count ? table->by_id[id] : NULL;
}

dp_status_t dp_table_assign(dp_table_t *table, dp_row_t *row)
{
    dp_status_t status = reserve(&table->by_id, table->id_count, &table->id_room);

    if (status != DP_OK) return status;
    row->id = (uint32_t)table->id_count;
    table->by_id[table->id_count++] = row;
    return DP_OK;
}

static void conflict_destroy(dp_conflict_t *conflict)
{
    if (conflict == NULL) return;
    free(conflict->signature[0]);
    free(conflict->signature[1]);
    free(conflict);
}

void dp_row_clear(dp_row_t *row, size_t bit_words)
{
    DP_ASSERT(row->list == DP_ROW_UNLISTED);
    conflict_destroy(row->conflict);
    free(row->proposed);
    row->conflict = NULL;
    row->proposed = NULL;
    row->request = NULL;
    row->is_pending = row->is_own = row->is_complete = row->is_urgent = 0;
    row->is_mismatched = row->is_announced = row->urgent_sent = 0;
    row->wants_partial = row->partial_sent = row->was_warned = 0;
    row->ready = 0;
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
