/*
 * names.c - the states of a group's names: a hash table that grows with a model's names.
 *
 * Called with the context's lock held, on the program's threads and, for absent requests, in a
 * launch.
 */
#include "coordinator/api/context/names.h"

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

static void list_remove(dp_names_t *names, dp_name_state_t *state)
{
    if (state->older != NULL) {
        state->older->newer = state->newer;
    } else {
        names->oldest = state->newer;
    }
    if (state->newer != NULL) {
        state->newer->older = state->older;
    } else {
        names->newest = state->older;
    }
}

static void list_append(dp_names_t *names, dp_name_state_t *state)
{
    state->older = names->newest;
    state->newer = NULL;
    if (names->newest != NULL) {
        names->newest->newer = state;
    } else {
        names->oldest = state;
    }
    names->newest = state;
}

/* One that is still in use stays, and the next submission looks again. */
static void forget_oldest(dp_names_t *names)
{
    dp_name_state_t *state = names->oldest;
    dp_name_state_t **at = &names->heads[state->hash & (names->head_count - 1)];

    if (state->users > 0) return;
    while (*at != state)
        at = &(*at)->next;
    *at = state->next;
    list_remove(names, state);
    names->count--;
    dp_name_state_destroy(state);
}

static dp_name_state_t *find_state(const dp_names_t *names, uint64_t hash, const char *name)
{
    dp_name_state_t *state = NULL;

    if (names->head_count > 0) state = names->heads[hash & (names->head_count - 1)];
    while (state != NULL && (state->hash != hash || strcmp(state->name, name) != 0))
        state = state->next;
    return state;
}

dp_status_t dp_names_find_or_add(dp_names_t *names, const char *group_name, const char *name,
                                 dp_trace_t *trace, size_t limit, dp_name_state_t **out)
{
    const uint64_t hash = name_hash(name);
    dp_name_state_t *state = find_state(names, hash, name), **head;

    if (state != NULL) {
        list_remove(names, state);
        list_append(names, state);
        *out = state;
        return DP_OK;
    }
    if (names->count >= limit) forget_oldest(names);
    /* Up to two states a list on average; then four times as many lists. */
    if (names->count >= names->head_count * 2) grow_table(names);
    if (names->head_count == 0) return DP_ERR_NO_MEMORY;
    state = dp_name_state_create(group_name, name, trace);
    if (state == NULL) return DP_ERR_NO_MEMORY;
    state->hash = hash;
    head = &names->heads[hash & (names->head_count - 1)];
    state->next = *head;
    *head = state;
    list_append(names, state);
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
