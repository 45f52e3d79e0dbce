/*
 * names.c - the tensor entries of a group: a hash table that grows with a model's names.
 *
 * Called with the context's lock held, on the program's threads and, for absent requests, in a
 * launch.
 */
#include "coordinator/api/names.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BUCKETS 64 /* a small group has few names; a large model some thousand */

static uint64_t name_hash(const char *name)
{
    uint64_t hash = 1469598103934665603ull; /* FNV-1a */

    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 1099511628211ull;
    return hash;
}

dp_tensor_entry_t *dp_entry_create(const char *group_name, const char *name, dp_trace_t *trace)
{
    size_t front = group_name[0] == '\0' ? 0 : strlen(group_name) + 1;
    size_t bytes = strlen(name) + 1;
    dp_tensor_entry_t *entry = calloc(1, sizeof(*entry) + front + bytes);

    if (entry == NULL) return NULL;
    if (front > 0) {
        memcpy(entry->label, group_name, front - 1);
        entry->label[front - 1] = '/';
    }
    memcpy(entry->label + front, name, bytes);
    entry->name = entry->label + front;
    entry->last_absmax = -1.0f;
    entry->trace_name = dp_trace_name(trace, entry->label);
    return entry;
}

void dp_entry_destroy(dp_tensor_entry_t *entry)
{
    if (entry == NULL) return;
    free(entry->parts);
    free(entry);
}

dp_signature_part_t *dp_entry_parts(dp_tensor_entry_t *entry, size_t count)
{
    if (count <= 1) return &entry->part;
    if (entry->part_room < count) {
        dp_signature_part_t *room = realloc(entry->parts, count * sizeof(*entry->parts));

        if (room == NULL) return NULL;
        entry->parts = room;
        entry->part_room = count;
    }
    return entry->parts;
}

/* Without memory the table stays as it is: longer chains are slower, not wrong. */
static void grow_table(dp_names_t *names)
{
    size_t count = names->bucket_count == 0 ? FIRST_BUCKETS : names->bucket_count * 4;
    dp_tensor_entry_t **buckets = calloc(count, sizeof(dp_tensor_entry_t *));

    if (buckets == NULL) return;
    for (size_t i = 0; i < names->bucket_count; i++) {
        dp_tensor_entry_t *entry, *next;

        for (entry = names->buckets[i]; entry != NULL; entry = next) {
            dp_tensor_entry_t **chain = &buckets[entry->hash & (count - 1)];

            next = entry->next;
            entry->next = *chain;
            *chain = entry;
        }
    }
    free(names->buckets);
    names->buckets = buckets;
    names->bucket_count = count;
}

dp_status_t dp_names_find_or_add(dp_names_t *names, const char *group_name, const char *name,
                                 dp_trace_t *trace, dp_tensor_entry_t **out)
{
    uint64_t hash = name_hash(name);
    dp_tensor_entry_t *entry, **chain;

    if (names->bucket_count > 0) {
        for (entry = names->buckets[hash & (names->bucket_count - 1)]; entry != NULL;
             entry = entry->next) {
            if (entry->hash != hash || strcmp(entry->name, name) != 0) continue;
            *out = entry;
            return DP_OK;
        }
    }
    /* Up to two entries a chain on average; four times as many chains then. */
    if (names->count >= names->bucket_count * 2) grow_table(names);
    if (names->bucket_count == 0) return DP_ERR_NO_MEMORY;
    entry = dp_entry_create(group_name, name, trace);
    if (entry == NULL) return DP_ERR_NO_MEMORY;
    entry->hash = hash;
    chain = &names->buckets[hash & (names->bucket_count - 1)];
    entry->next = *chain;
    *chain = entry;
    names->count++;
    *out = entry;
    return DP_OK;
}

void dp_names_fini(dp_names_t *names)
{
    for (size_t i = 0; i < names->bucket_count; i++) {
        dp_tensor_entry_t *entry, *next;

        for (entry = names->buckets[i]; entry != NULL; entry = next) {
            next = entry->next;
            dp_entry_destroy(entry);
        }
    }
    free(names->buckets);
    *names = (dp_names_t){0};
}
