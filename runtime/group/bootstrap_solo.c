/*
 * bootstrap_solo.c - the bootstrap of a world of one: an exchange returns the value that was given.
 * bootstrap.c makes it in dp_init(), where no launcher is found.
 */
#include "runtime/group/bootstrap_internal.h"

#include <stdlib.h>

#include "runtime/base/auth.h"

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

dp_status_t dp_bootstrap_create_solo(dp_bootstrap_t **out, dp_error_t *error)
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
