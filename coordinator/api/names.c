/*
 * names.c - the states of a group's names: a hash table that grows with a model's names.
 *
 * Called with the context's lock held, on the program's threads and, for absent requests, in a
 * launch.
 */
#include "coordinator/api/names.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_HEADS 64 /* a small group has few names; a large model some thousand */

static uint64_t name_hash(const char *name)
{
    uint64_t hash = 1469598103934665603ull; /* FNV-1a */

    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 1099511628211ull;
    return hash;
}

dp_name_state_t *dp_name_state_create(const char *group_name, const char *name, dp_trace_t *trace)
{
    size_t front = group_name[0] == '\0' ? 0 : strlen(group_name) + 1;
    size_t bytes = strlen(name) + 1;
    dp_name_state_t *state = calloc(1, sizeof(*state) + front + bytes);

    if (state == NULL) return NULL;
    if (front > 0) {
        memcpy(state->label, group_name, front - 1);
        state->label[front - 1] = '/';
    }
    memcpy(state->label + front, name, bytes);
    state->name = state->label + front;
    state->last_absmax = -1.0f;
    state->trace_name = dp_trace_name(trace, state->label);
    return state;
}

void dp_name_state_destroy(dp_name_state_t *state)
{
    if (state == NULL) return;
    free(state->parts);
    free(state);
}

dp_signature_part_t *dp_name_state_parts(dp_name_state_t *state, size_t count)
{
    if (count <= 1) return &state->part;
    if (state->part_room < count) {
        dp_signature_part_t *room = realloc(state->parts, count * sizeof(*state->parts));

        if (room == NULL) return NULL;
        state->parts = room;
        state->part_room = count;
    }
    return state->parts;
}

/* Without memory the table stays as it is: longer chains are slower, not wrong. */
static void grow_table(dp_names_t *names)
{
    size_t count = names->head_count == 0 ? FIRST_HEADS : names->head_count * 4;
    dp_name_state_t **heads = calloc(count, sizeof(dp_name_state_t *));

    if (heads == NULL) return;
    for (size_t i = 0; i < names->head_count; i++) {
        dp_name_state_t *state, *next;

        for (state = names->heads[i]; state != NULL; state = next) {
            dp_name_state_t **head = &heads[state->hash & (count - 1)];

            next = state->next;
            state->next = *head;
            *head = state;
        }
    }
    free(names->heads);
    names->heads = heads;
    names->head_count = count;
}

dp_status_t dp_names_find_or_add(dp_names_t *names, const char *group_name, const char *name,
                                 dp_trace_t *trace, dp_name_state_t **out)
{
    uint64_t hash = name_hash(name);
    dp_name_state_t *state, **head;

    if (names->head_count > 0) {
        for (state = names->heads[hash & (names->head_count - 1)]; state != NULL;
             state = state->next) {
            if (state->hash != hash || strcmp(state->name, name) != 0) continue;
            *out = state;
            return DP_OK;
        }
    }
    /* Up to two states a list on average; then four times as many lists. */
    if (names->count >= names->head_count * 2) grow_table(names);
    if (names->head_count == 0) return DP_ERR_NO_MEMORY;
    state = dp_name_state_create(group_name, name, trace);
    if (state == NULL) return DP_ERR_NO_MEMORY;
    state->hash = hash;
    head = &names->heads[hash & (names->head_count - 1)];
    state->next = *head;
    *head = state;
    names->count++;
    *out = state;
    return DP_OK;
}

void dp_names_fini(dp_names_t *names)
{
    for (size_t i = 0; i < names->head_count; i++) {
        dp_name_state_t *state, *next;

        for (state = names->heads[i]; state != NULL; state = next) {
            next = state->next;
            dp_name_state_destroy(state);
        }
    }
    free(names->heads);
    *names = (dp_names_t){0};
}
