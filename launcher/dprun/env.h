/*
 * env.h - the environment a rank is started with: a growing list of NAME=VALUE strings.
 *
 * job.c fills it in, spawn.c hands it to exec(). It must not know what the variables mean.
 */
#ifndef DP_LAUNCHER_ENV_H
#define DP_LAUNCHER_ENV_H

#include <stddef.h>

typedef struct dp_env {
    char **entries; /* NULL-terminated, each owned; fit for execve() */
    size_t count;
    size_t room;
} dp_env_t;

/* A copy of entries (NULL: empty). -1 when memory is out; then env is empty. */
int dp_env_init(dp_env_t *env, char *const *entries);
void dp_env_fini(dp_env_t *env);

/* Replaces or adds. -1 when memory is out; env stays as it was. */
int dp_env_set(dp_env_t *env, const char *name, const char *value);

/* Adds only what is not there yet, even if empty: what a user set stays. 1 when added. */
int dp_env_default(dp_env_t *env, const char *name, const char *value);

/* The value, borrowed until the next change, or NULL. */
const char *dp_env_get(const dp_env_t *env, const char *name);

#endif
