/*
 * bootstrap_values.c - what the ways to bootstrap have in common: the name of a world, and copies
 * of values that ranks exchange. Called by the other files of this name, on any thread.
 */
#include "runtime/group/bootstrap.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/group/bootstrap_internal.h"

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
