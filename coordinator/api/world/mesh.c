/*
 * mesh.c - dp_mesh_create(): the world as a box, and this rank's group along each of its axes.
 *
 * The ranks first compare the box, since lists of members that do not fit together would let some
 * wait for others for ever. Then each group is made by dp_group_create(): every rank knows its
 * members without asking. Called on the program's thread.
 */
#include <stdlib.h>
#include <string.h>

#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/world/group.h"

static dp_status_t check_mesh(dp_context_t *context, const int *dims, size_t n,
                              const char *const *names, dp_group_t **groups)
{
    size_t product = 1;

    if (dims == NULL || names == NULL || groups == NULL || n == 0) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "mesh: %zu axes, dims %p, names %p, groups %p", n,
                                (const void *)dims, (const void *)names, (const void *)groups);
    }
    for (size_t i = 0; i < n; i++) {
        if (dims[i] < 1 || names[i] == NULL) {
            return dp_context_error(context, DP_ERR_INVALID, "mesh: axis %zu (%s) has %d ranks", i,
                                    names[i] == NULL ? "without a name" : names[i], dims[i]);
        }
        for (size_t k = 0; k < i; k++) {
            if (strcmp(names[k], names[i]) != 0) continue;
            return dp_context_error(context, DP_ERR_INVALID, "mesh: axes %zu and %zu are both %s",
                                    k, i, names[i]);
        }
        if (__builtin_mul_overflow(product, (size_t)dims[i], &product)) product = SIZE_MAX;
    }
    if (product == (size_t)context->size) return DP_OK;
    return dp_context_error(context, DP_ERR_INVALID,
                            "mesh: the axes' product is %zu, the world has %d ranks", product,
                            context->size);
}

/* Every rank learns the least and the largest extent of each axis, so all fail where they differ.
 */
static dp_status_t compare_dims(dp_context_t *context, const int *dims, size_t n,
                                const char *const *names, double timeout)
{
    dp_options_t options = DP_OPTIONS_INIT;
    int32_t *most = calloc(2 * n, sizeof(*most));
    dp_handle_t *handle;
    dp_status_t status = DP_ERR_NO_MEMORY;

    if (most == NULL) return dp_context_error(context, status, "mesh: no memory");
    options.reduce = DP_MAX;
    options.timeout = timeout;
    for (size_t i = 0; i < n; i++) {
        most[i] = dims[i];
        most[n + i] = -dims[i];
    }
    status = dp_allreduce(&context->world, "dp.mesh", most, most, 2 * n, DP_I32, &options, &handle);
    if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
    for (size_t i = 0; status == DP_OK && i < n; i++) {
        if (most[i] == -most[n + i]) continue;
        status = dp_context_error(
            context, DP_ERR_MISMATCH,
            "mesh: axis %zu (%s) has %d ranks on rank %d, from %d to %d on all ranks", i, names[i],
            dims[i], context->rank, -most[n + i], most[i]);
    }
    free(most);
    return status;
}

dp_status_t dp_mesh_create(dp_context_t *context, const int *dims, size_t n,
                           const char *const *names, const dp_group_options_t *options,
                           dp_group_t **groups)
{
    dp_group_options_t read;
    dp_group_t **made;
    dp_status_t status;
    int *members, stride = 1;

    if (context == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    status = check_mesh(context, dims, n, names, groups);
    if (status == DP_OK) status = dp_group_read_options(context, names[0], options, &read);
    if (status == DP_OK) status = compare_dims(context, dims, n, names, read.timeout);
    if (status != DP_OK) return status;
    members = calloc((size_t)context->size, sizeof(*members));
    made = calloc(n, sizeof(dp_group_t *));
    if (members == NULL || made == NULL) {
        free(members);
        free(made);
        return dp_context_error(context, DP_ERR_NO_MEMORY, "mesh: no memory");
    }
    for (size_t i = n; status == DP_OK && i-- > 0; stride *= dims[i]) {
        const int first = context->rank - context->rank / stride % dims[i] * stride;

        for (int k = 0; k < dims[i]; k++)
            members[k] = first + k * stride;
        status = dp_group_create(context, names[i], members, (size_t)dims[i], &read, &made[i]);
    }
    if (status == DP_OK) memcpy(groups, made, n * sizeof(dp_group_t *));
    free(members);
    free(made);
    return status;
}
