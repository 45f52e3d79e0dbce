/*
 * bootstrap.c - picks the way to bootstrap by what a launcher left in the environment. Called by
 * dp_init(), in the program's thread.
 */
#include "runtime/group/bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/auth.h"
#include "runtime/base/input_file.h"
#include "runtime/base/limits.h"
#include "runtime/group/bootstrap_internal.h"

/* Of a rank: its program's and ours; while ranks of a machine introduce themselves to the first one
 * of them, two for each. */
#define FILES_OWN 32
#define FILES_PER_RANK 2
#define LEVELS_MAX 64 /* of processes, from this one up */

static dp_status_t look_at_limits(const dp_starter_t *starter, dp_error_t *error)
{
    const int here = starter->local_size > 0 ? starter->local_size : 1;
    char text[64];

    dp_limits_raise_files();
    snprintf(text, sizeof(text), "%d rank%s on one machine", here, here == 1 ? "" : "s");
    return dp_limits_check_files(FILES_OWN + FILES_PER_RANK * here, text, error);
}

static const char *from_environment(void *context, const char *name)
{
    (void)context;
    return dp_environment(name);
}

/* The parent of a process, and its name. 0: not known. */
static int parent_of(int pid, char *name, size_t room)
{
    char path[64], text[256];
    const char *open_mark, *close_mark;
    int parent = 0;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    dp_input_file_read(path, text, sizeof(text));
    open_mark = strchr(text, '(');
    close_mark = strrchr(text, ')');
    if (open_mark == NULL || close_mark == NULL || close_mark < open_mark) return 0;
    snprintf(name, room, "%.*s", (int)(close_mark - open_mark - 1), open_mark + 1);
    return sscanf(close_mark + 1, " %*c %d", &parent) == 1 ? parent : 0;
}

/* No launcher's variables are there, but an agent of dprun is above: something has cleared the
 * environment, and each rank would be a world of one without a word. */
static void warn_of_lost_environment(const dp_log_t *log)
{
    char name[32] = "";
    int pid = (int)getpid();

    for (int depth = 0; depth < LEVELS_MAX && pid > 1; depth++) {
        pid = parent_of(pid, name, sizeof(name));
        if (strcmp(name, "dprun-agent") != 0) continue;
        dp_log_warn(log, "this process runs below dprun, but DP_RANK and DP_SIZE are not in its "
                         "environment: it is a world of one. Something between them cleared it "
                         "(env -i, sudo, a container); DP_RANK=0 DP_SIZE=1 says that it is meant");
        return;
    }
}

/* ---- A world of one: an exchange returns the value that was given ---------------------------- */

static dp_status_t solo_exchange(dp_bootstrap_t *self, const char *name, const void *value,
                                 size_t value_bytes, void **values, size_t *bytes,
                                 uint64_t deadline_ns, dp_error_t *error)
{
    void *copy = dp_bootstrap_copy(value, value_bytes);

    (void)self;
    (void)deadline_ns; /* nobody to wait for */
    if (copy == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "exchange '%s': no memory for %zu bytes", name,
                            value_bytes);
    }
    values[0] = copy;
    bytes[0] = value_bytes;
    return DP_OK;
}

static void solo_report(dp_bootstrap_t *self, const dp_failure_t *failure)
{
    (void)self;
    (void)failure; /* no launcher reads it */
}

static void solo_destroy(dp_bootstrap_t *self)
{
    free(self);
}

static const dp_bootstrap_ops_t solo_ops = {"solo", solo_exchange, solo_report, NULL, solo_destroy};

static dp_status_t create_solo(dp_bootstrap_t **out, dp_error_t *error)
{
    dp_bootstrap_t *solo = calloc(1, sizeof(*solo));
    uint64_t random;

    if (solo == NULL) {
        return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for a world of one");
    }
    solo->ops = &solo_ops;
    solo->size = 1;
    solo->local_size = 1;
    dp_random(&random, sizeof(random));
    dp_bootstrap_name_world(solo, "solo", random);
    *out = solo;
    return DP_OK;
}

/* ---- The choice ------------------------------------------------------------------------------ */

dp_status_t dp_bootstrap_create(const dp_config_t *config, dp_bootstrap_t **out, dp_error_t *error)
{
    dp_starter_t starter;
    dp_log_t log;
    dp_status_t status = dp_starter_find(config, from_environment, NULL, &starter, error);

    if (status == DP_OK && starter.size > 1) status = look_at_limits(&starter, error);
    if (status != DP_OK) return status;
    if (starter.kind != DP_STARTER_DPRUN && starter.size > 1) {
        return dp_bootstrap_create_elsewhere(config, &starter, NULL, out, error);
    }
    dp_log_init(&log, (dp_log_level_t)config->log_level, starter.rank);
    if (starter.warning[0] != '\0') dp_log_warn(&log, "%s", starter.warning);
    if (starter.kind == DP_STARTER_NONE) warn_of_lost_environment(&log);
    if (starter.kind == DP_STARTER_DPRUN) return dp_bootstrap_create_dprun(config, out, error);
    return create_solo(out, error);
}

dp_status_t dp_bootstrap_create_by_store(const dp_config_t *config,
                                         const dp_bootstrap_store_t *store, dp_bootstrap_t **out,
                                         dp_error_t *error)
{
    const dp_starter_t starter = {.kind = DP_STARTER_STORE,
                                  .name = "store",
                                  .rank = store->rank,
                                  .size = store->size,
                                  .local_rank = -1,
                                  .local_size = -1};
    dp_status_t status;

    if (store->put == NULL || store->get == NULL || store->size < 1 || store->rank < 0 ||
        store->rank >= store->size) {
        return dp_error_set(error, DP_ERR_INVALID,
                            "dp_init: rank %d of %d with %s: a store has both of put and get, and "
                            "a rank below the number of ranks",
                            store->rank, store->size,
                            store->put == NULL   ? "no store_put"
                            : store->get == NULL ? "no store_get"
                                                 : "a store");
    }
    if (store->size == 1) return create_solo(out, error);
    status = look_at_limits(&starter, error);
    if (status != DP_OK) return status;
    return dp_bootstrap_create_elsewhere(config, &starter, store, out, error);
}

void dp_bootstrap_destroy(dp_bootstrap_t *bootstrap)
{
    if (bootstrap != NULL) bootstrap->ops->destroy(bootstrap);
}
