/*
 * env.c - the environment a rank is started with.
 *
 * Called by job.c, in dprun and in the station of another node, and by the agent, which sets what
 * is a rank's own; each has one thread. A list searched from front to back: some hundred entries,
 * touched a dozen times per rank.
 */
#include "launcher/dprun/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char **entry_of(const dp_env_t *env, const char *name)
{
    size_t bytes = strlen(name);

    for (size_t i = 0; i < env->count; i++) {
        if (strncmp(env->entries[i], name, bytes) == 0 && env->entries[i][bytes] == '=') {
            return &env->entries[i];
        }
    }
    return NULL;
}

/* Takes entry, also when it fails. */
static int append_entry(dp_env_t *env, char *entry)
{
    if (entry == NULL) return -1;
    if (env->count + 2 > env->room) {
        size_t room = env->room == 0 ? 64 : env->room * 2;
        char **entries = realloc(env->entries, room * sizeof(*entries));

        if (entries == NULL) {
            free(entry);
            return -1;
        }
        env->entries = entries;
        env->room = room;
    }
    env->entries[env->count++] = entry;
    env->entries[env->count] = NULL;
    return 0;
}

int dp_env_init(dp_env_t *env, char *const *entries)
{
    memset(env, 0, sizeof(*env));
    for (; entries != NULL && *entries != NULL; entries++) {
        if (append_entry(env, strdup(*entries)) != 0) {
            dp_env_fini(env);
            return -1;
        }
    }
    return 0;
}

void dp_env_fini(dp_env_t *env)
{
    for (size_t i = 0; i < env->count; i++) {
        free(env->entries[i]);
    }
    free(env->entries);
    memset(env, 0, sizeof(*env));
}

int dp_env_set(dp_env_t *env, const char *name, const char *value)
{
    char **found = entry_of(env, name);
    char *entry = NULL;

    if (asprintf(&entry, "%s=%s", name, value) < 0) return -1;
    if (found == NULL) return append_entry(env, entry);
    free(*found);
    *found = entry;
    return 0;
}

int dp_env_default(dp_env_t *env, const char *name, const char *value)
{
    if (entry_of(env, name) != NULL) return 0;
    return dp_env_set(env, name, value) == 0 ? 1 : -1;
}

const char *dp_env_get(const dp_env_t *env, const char *name)
{
    char **found = entry_of(env, name);

    return found == NULL ? NULL : *found + strlen(name) + 1;
}
