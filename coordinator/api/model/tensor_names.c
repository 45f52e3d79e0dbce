/*
 * tensor_names.c - joins the names of an object's tensors with its prefix, and finds one that
 * occurs twice, which would be DP_ERR_BUSY only once both are submitted.
 */
#include "coordinator/api/model/tensor_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *dp_tensor_name_join(const char *prefix, const char *name)
{
    const size_t bytes = strlen(prefix) + strlen(name) + 1;
    char *joined = malloc(bytes);

    if (joined != NULL) snprintf(joined, bytes, "%s%s", prefix, name);
    return joined;
}

static int compare_names(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;

    return strcmp(*x, *y);
}

const char *dp_tensor_names_find_repeated(const char **names, size_t count)
{
    qsort(names, count, sizeof(*names), compare_names);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) return names[i];
    }
    return NULL;
}
