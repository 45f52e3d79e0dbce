/*
 * bootstrap.c - picks the way to bootstrap by what a launcher left in the environment.
 */
#include "runtime/group/bootstrap.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/group/bootstrap_internal.h"

/* All five of dprun's variables or none: half of them is a launcher that went wrong, and a world
 * of one in its place would train N copies of the model side by side. */
static dp_status_t check_launcher(const dp_config_t *config, int *is_present, dp_error_t *error)
{
    const struct {
        const char *name;
        int value;
    } rows[] = {
        {"DP_RANK", config->rank},
        {"DP_SIZE", config->world_size},
        {"DP_LOCAL_RANK", config->local_rank},
        {"DP_LOCAL_SIZE", config->local_size},
        {"DP_BOOTSTRAP_FD", config->bootstrap_fd},
    };
    const char *given = NULL;
    const char *missing = NULL;

    for (size_t i = 0; i < DP_ARRAY_LEN(rows); i++) {
        if (rows[i].value >= 0) {
            given = rows[i].name;
        } else if (missing == NULL) {
            missing = rows[i].name;
        }
    }
    *is_present = given != NULL;
    if (given != NULL && missing != NULL) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "%s is set but %s is not: the launcher's variables go together; start "
                            "with dprun, or unset them for a world of one",
                            given, missing);
    }
    if (given == NULL) return DP_OK;
    if (config->world_size < 1 || config->rank >= config->world_size) {
        return dp_error_set(error, DP_ERR_CONFIG, "DP_RANK=%d is not below DP_SIZE=%d",
                            config->rank, config->world_size);
    }
    if (config->local_size < 1 || config->local_rank >= config->local_size) {
        return dp_error_set(error, DP_ERR_CONFIG, "DP_LOCAL_RANK=%d is not below DP_LOCAL_SIZE=%d",
                            config->local_rank, config->local_size);
    }
    if (config->local_size > config->world_size) {
        return dp_error_set(error, DP_ERR_CONFIG, "DP_LOCAL_SIZE=%d is above DP_SIZE=%d",
                            config->local_size, config->world_size);
    }
    return DP_OK;
}

dp_status_t dp_bootstrap_create(const dp_config_t *config, dp_bootstrap_t **out, dp_error_t *error)
{
    int is_present = 0;
    dp_status_t status = check_launcher(config, &is_present, error);

    if (status != DP_OK) return status;
    if (is_present) return dp_bootstrap_create_dprun(config, out, error);
    return dp_bootstrap_create_solo(out, error);
}

void dp_bootstrap_destroy(dp_bootstrap_t *bootstrap)
{
    if (bootstrap != NULL) bootstrap->ops->destroy(bootstrap);
}

void dp_bootstrap_name_world(dp_bootstrap_t *bootstrap, const char *prefix, uint64_t random)
{
    bootstrap->tag = random;
    snprintf(bootstrap->job, sizeof(bootstrap->job), "%s-%016" PRIx64, prefix, random);
}

void *dp_bootstrap_copy(const void *value, size_t bytes)
{
    char *copy = bytes < SIZE_MAX ? malloc(bytes + 1) : NULL;

    if (copy == NULL) return NULL;
    if (bytes > 0) memcpy(copy, value, bytes);
    copy[bytes] = '\0';
    return copy;
}

void dp_bootstrap_free_values(void **values, int count)
{
    for (int i = 0; i < count; i++) {
        free(values[i]);
        values[i] = NULL;
    }
}
