/*
 * group.c - groups of ranks: created, split, destroyed.
 *
 * Creating and destroying a group are operations of the one order like any other; the functions
 * here submit them and wait, on the program's thread. A group that is being created is a "tensor"
 * of the pseudo group context->forming, by which the ranks agree on it. It must not know how they
 * do, or what the engine makes of it.
 */
#include "coordinator/api/world/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/names.h"
#include "coordinator/api/context/sized.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/operation/submit.h"
#include "coordinator/api/operation/wait.h"
#include "coordinator/api/world/order.h"

void dp_group_init_world(dp_context_t *context)
{
    context->world = (dp_group_t){.context = context,
                                  .name = "world",
                                  .rank = context->rank,
                                  .size = context->size,
                                  .order = DP_ORDER_NEGOTIATED,
                                  .about = {.uid = DP_GROUP_WORLD, .name = ""},
                                  .plane = {.rank = context->rank, .size = context->size}};
    context->forming = context->world;
    context->forming.about.uid = DP_GROUP_UNBORN;
}

static void group_fini(dp_group_t *group)
{
    dp_names_fini(&group->names);
    dp_program_group_fini(&group->ordered);
    dp_name_state_destroy(group->join_state);
    dp_name_state_destroy(group->end_state);
    free(group->members);
    free(group->ascending);
}

void dp_groups_free(dp_context_t *context)
{
    dp_group_t *group, *next;

    for (group = context->groups; group != NULL; group = next) {
        next = group->next;
        group_fini(group);
        free(group);
    }
    context->groups = NULL;
    group_fini(&context->forming);
    group_fini(&context->world);
}

/* ---- Creating ------------------------------------------------------------------------------- */

static int compare_ranks(const void *a, const void *b)
{
    const int *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static dp_status_t check_group_name(dp_context_t *context, const char *call, const char *name)
{
    size_t length = name == NULL ? 0 : strnlen(name, DP_GROUP_NAME_MAX + 1);

    if (length > 0 && length <= DP_GROUP_NAME_MAX) return DP_OK;
    return dp_context_error(
        context, DP_ERR_INVALID, "%s: a name of 1 to %d bytes is needed, this is %s", call,
        DP_GROUP_NAME_MAX, name == NULL ? "NULL" : (length == 0 ? "empty" : "longer"));
}

/* Sorts members[count], too. */
static dp_status_t check_group_ranks(dp_context_t *context, const char *name, int *members,
                                     size_t count)
{
    qsort(members, count, sizeof(*members), compare_ranks);
    for (size_t i = 0; i < count; i++) {
        if (members[i] < 0 || members[i] >= context->size) {
            return dp_context_error(context, DP_ERR_INVALID,
                                    "group %s: rank %d, the world has ranks 0 to %d", name,
                                    members[i], context->size - 1);
        }
        if (i > 0 && members[i] == members[i - 1]) {
            return dp_context_error(context, DP_ERR_INVALID, "group %s: rank %d is listed twice",
                                    name, members[i]);
        }
    }
    return DP_OK;
}

/* Makes options this library's version, with no default left in it. */
dp_status_t dp_group_read_options(dp_context_t *context, const char *name,
                                  const dp_group_options_t *given, dp_group_options_t *out)
{
    dp_error_t error;
    dp_status_t status = DP_OK;

    *out = (dp_group_options_t)DP_GROUP_OPTIONS_INIT;
    if (given != NULL)
        status = dp_sized_read("dp_group_options_t", given, out, sizeof(*out), &error);
    if (status != DP_OK) return dp_context_error(context, status, "group %s: %s", name, error.text);
    if ((unsigned)out->order > DP_ORDER_PROGRAM) {
        return dp_context_error(context, DP_ERR_INVALID, "group %s: there is no order %d", name,
                                (int)out->order);
    }
    if (!(out->timeout >= 0.0)) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "group %s: timeout is %g s, at least 0 is needed", name,
                                out->timeout);
    }
    if (out->order == DP_ORDER_DEFAULT) out->order = context->world.order;
    return DP_OK;
}

/* Submits the creation and waits for it. */
static dp_status_t submit_creation(dp_context_t *context, dp_group_t *group, double timeout)
{
    dp_options_t options = DP_OPTIONS_INIT;
    const int lowest = group->ascending != NULL ? group->ascending[0] : group->members[0];
    char entry[DP_GROUP_NAME_MAX + 32];
    dp_handle_t *handle;
    dp_status_t status;

    /* Groups that are created at the same time may share a name where they are disjoint: the lowest
     * rank of each tells them apart. */
    options.timeout = timeout;
    snprintf(entry, sizeof(entry), "%s (from rank %d)", group->name, lowest);
    status = dp_submit(&context->forming,
                       &(dp_submit_t){.collective = DP_COLLECTIVE_GROUP_CREATE,
                                      .name = entry,
                                      .root = -1,
                                      .peer = -1,
                                      .options = &options,
                                      .new_group = group},
                       &handle);
    return status == DP_OK ? dp_wait(handle, -1.0, NULL) : status;
}

/* Takes back a group whose creation failed. */
static void drop_failed_group(dp_group_t *group)
{
    dp_context_t *context = group->context;
    dp_group_t **link;

    pthread_mutex_lock(&context->lock);
    for (link = &context->groups; *link != group;)
        link = &(*link)->next;
    *link = group->next;
    pthread_mutex_unlock(&context->lock);
    group_fini(group);
    free(group);
}

/* members: taken, and checked; ascending: likewise, NULL where members is. The group is in the
 * context's list before it is submitted, so that dp_finalize() frees it however its creation ends.
 */
static dp_status_t create_group(dp_context_t *context, const char *name,
                                const dp_group_options_t *options, int *members, int *ascending,
                                size_t count, dp_group_t **out)
{
    dp_group_t *group = calloc(1, sizeof(*group));
    dp_status_t status;

    if (group == NULL) {
        free(members);
        free(ascending);
        return dp_context_error(context, DP_ERR_NO_MEMORY, "group %s: no memory", name);
    }
    group->context = context;
    group->order = options->order;
    group->ascending = ascending;
    group->members = members;
    group->size = (int)count;
    for (int i = 0; i < group->size; i++)
        if (members[i] == context->rank) group->rank = i;
    snprintf(group->name, sizeof(group->name), "%s", name);
    group->about = (dp_engine_members_t){
        .ranks = members, .count = group->size, .name = group->name, .uid = DP_GROUP_UNBORN};
    group->plane = (dp_pipeline_group_t){.rank = group->rank, .size = group->size};
    pthread_mutex_lock(&context->lock);
    group->next = context->groups;
    context->groups = group;
    pthread_mutex_unlock(&context->lock);
    status = submit_creation(context, group, options->timeout);
    if (status == DP_OK && options->order == DP_ORDER_PROGRAM) status = dp_order_group(group);
    if (status == DP_OK) {
        *out = group;
    } else if (group->about.uid == DP_GROUP_UNBORN) {
        drop_failed_group(group); /* it was never launched, so no other rank has it */
    }
    return status;
}

dp_status_t dp_group_create(dp_context_t *context, const char *name, const int *ranks, size_t count,
                            const dp_group_options_t *options, dp_group_t **group)
{
    dp_group_options_t read;
    dp_status_t status;
    int *members;

    if (context == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    status = check_group_name(context, "dp_group_create", name);
    if (status != DP_OK) return status;
    if (group == NULL || ranks == NULL || count == 0 || count > (size_t)context->size) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "group %s: %s%zu ranks at %p, 1 to %d are possible", name,
                                group == NULL ? "the result's place is NULL; " : "", count,
                                (const void *)ranks, context->size);
    }
    status = dp_group_read_options(context, name, options, &read);
    if (status != DP_OK) return status;
    members = calloc(count, sizeof(*members));
    if (members == NULL)
        return dp_context_error(context, DP_ERR_NO_MEMORY, "group %s: no memory", name);
    memcpy(members, ranks, count * sizeof(*members));
    status = check_group_ranks(context, name, members, count);
    if (status != DP_OK ||
        bsearch(&context->rank, members, count, sizeof(*members), compare_ranks) == NULL) {
        free(members);
        if (status == DP_OK) *group = NULL;
        return status;
    }
    return create_group(context, name, &read, members, NULL, count, group);
}

/* ---- Splitting ------------------------------------------------------------------------------ */

/* The row of a rank in the allgather of a split. */
typedef struct dp_split {
    int64_t color; /* + 1; 0: none, so that a rank that has joined the parent, whose row is zeros,
                      comes into no group */
    int64_t key;
} dp_split_t;

static dp_status_t gather_splits(dp_group_t *parent, const char *name, dp_split_t own,
                                 double timeout, dp_split_t *all)
{
    dp_options_t options = DP_OPTIONS_INIT;
    char tensor[DP_GROUP_NAME_MAX + 16];
    dp_handle_t *handle;
    dp_status_t status;

    snprintf(tensor, sizeof(tensor), "split %s", name);
    options.timeout = timeout;
    status = dp_allgather(parent, tensor, &own, all, 2, DP_I64, &options, &handle);
    return status == DP_OK ? dp_wait(handle, -1.0, NULL) : status;
}

/* A rank of the parent that has this rank's color. */
typedef struct dp_split_member {
    int64_t key;
    int rank; /* of the parent */
} dp_split_member_t;

static int compare_split_members(const void *a, const void *b)
{
    const dp_split_member_t *x = a, *y = b;

    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Writes the ranks of the world in the order of the new group, and sorted where that differs:
 * ascending[0] is -1 else. Returns how many. */
static size_t list_members(const dp_group_t *parent, const dp_split_t *all, int64_t color,
                           dp_split_member_t *found, int *members, int *ascending)
{
    size_t count = 0;

    for (int rank = 0; color > 0 && rank < parent->size; rank++) {
        if (all[rank].color == color) found[count++] = (dp_split_member_t){all[rank].key, rank};
    }
    qsort(found, count, sizeof(*found), compare_split_members);
    for (size_t i = 0; i < count; i++)
        members[i] = ascending[i] = dp_group_world_rank(parent, found[i].rank);
    qsort(ascending, count, sizeof(*ascending), compare_ranks);
    if (count > 0 && memcmp(members, ascending, count * sizeof(*members)) == 0) ascending[0] = -1;
    return count;
}

static dp_status_t split_group(dp_group_t *parent, const char *name, dp_split_t own,
                               const dp_group_options_t *options, dp_group_t **group)
{
    const size_t size = (size_t)parent->size;
    dp_split_t *all = calloc(size, sizeof(*all));
    dp_split_member_t *found = calloc(size, sizeof(*found));
    int *members = calloc(size, sizeof(*members)), *ascending = calloc(size, sizeof(*ascending));
    dp_status_t status = DP_ERR_NO_MEMORY;
    size_t count = 0;

    if (all != NULL && found != NULL && members != NULL && ascending != NULL) {
        status = gather_splits(parent, name, own, options->timeout, all);
        if (status == DP_OK)
            count = list_members(parent, all, own.color, found, members, ascending);
    } else {
        dp_context_error(parent->context, status, "group %s: no memory", name);
    }
    free(all);
    free(found);
    if (count > 0) {
        if (ascending[0] < 0) {
            free(ascending);
            ascending = NULL;
        }
        return create_group(parent->context, name, options, members, ascending, count, group);
    }
    free(members);
    free(ascending);
    if (status == DP_OK) *group = NULL;
    return status;
}

dp_status_t dp_group_split(dp_group_t *parent, const char *name, int color, int key,
                           const dp_group_options_t *options, dp_group_t **group)
{
    const dp_split_t own = {.color = color < 0 ? 0 : (int64_t)color + 1, .key = key};
    dp_group_options_t read;
    dp_context_t *context;
    dp_status_t status;

    if (parent == NULL || dp_context_is_forked(parent->context)) return DP_ERR_INVALID;
    context = parent->context;
    status = check_group_name(context, "dp_group_split", name);
    if (status != DP_OK) return status;
    if (group == NULL) {
        return dp_context_error(context, DP_ERR_INVALID, "group %s: the result's place is NULL",
                                name);
    }
    status = dp_group_read_options(context, name, options, &read);
    if (status != DP_OK) return status;
    return split_group(parent, name, own, &read, group);
}

/* ---- Destroying ----------------------------------------------------------------------------- */

/* From here on submissions to the group are refused. */
static dp_status_t close_to_submissions(dp_group_t *group)
{
    dp_context_t *context = group->context;
    int was_closed;

    pthread_mutex_lock(&context->lock);
    was_closed = group->is_closed;
    group->is_closed = 1;
    pthread_mutex_unlock(&context->lock);
    if (!was_closed) return DP_OK;
    return dp_context_error(context, DP_ERR_INVALID, "group %s: destroyed twice", group->name);
}

dp_status_t dp_group_destroy(dp_group_t *group)
{
    dp_context_t *context;
    dp_handle_t *handle;
    dp_status_t status;

    if (group == NULL) return DP_OK;
    context = group->context;
    if (dp_context_is_forked(context)) return DP_ERR_INVALID;
    if (group == &context->world) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "dp_group_destroy: the world lives as long as the context");
    }
    status = close_to_submissions(group);
    if (status != DP_OK) return status;
    /* The ranks agree on the end only when each has drained, so no operation meets a group that is
     * gone. */
    dp_group_drain(group);
    status = dp_submit(
        group,
        &(dp_submit_t){
            .collective = DP_COLLECTIVE_GROUP_DESTROY, .name = "destroy", .root = -1, .peer = -1},
        &handle);
    if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
    if (status == DP_OK) dp_order_end(group);
    pthread_mutex_lock(&context->lock);
    if (status == DP_OK) {
        group->is_ended = 1;
        if (group->request_count == 0) dp_names_fini(&group->names);
    } else {
        group->is_closed = 0; /* it may be destroyed once more */
    }
    pthread_mutex_unlock(&context->lock);
    return status;
}
