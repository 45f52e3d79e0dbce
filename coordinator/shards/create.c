/*
 * create.c - dp_shards_t is made and destroyed; its questions.
 *
 * dp_shards_create() checks what it was given and compares it with the other ranks; then they
 * allocate, and compare again, so that a rank without memory is reported by all. Called on the
 * program's thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/owned.h"
#include "coordinator/api/context/sized.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/model/decision.h"
#include "coordinator/api/model/lists.h"
#include "coordinator/api/model/tensor_names.h"
#include "coordinator/shards/shards.h"

#define PURPOSE_MAX 16 /* "/gradients" and the like, behind a unit's name */

/* ---- Checks --------------------------------------------------------------------------------- */

static dp_status_t read_shards_options(dp_context_t *context, const dp_shards_options_t *given,
                                       dp_shards_options_t *options)
{
    dp_error_t error;
    dp_status_t status;

    *options = (dp_shards_options_t)DP_SHARDS_OPTIONS_INIT;
    if (given == NULL) return DP_OK;
    status = dp_sized_read("dp_shards_options_t", given, options, sizeof(*options), &error);
    return status == DP_OK ? DP_OK : dp_context_error(context, status, "shards: %s", error.text);
}

static dp_status_t check_rank_groups(dp_context_t *context, const dp_shards_options_t *options)
{
    const dp_group_t *groups[2] = {options->group, options->replicas};

    for (int i = 0; i < 2; i++) {
        if (groups[i] == NULL || groups[i]->context == context) continue;
        return dp_context_error(context, DP_ERR_INVALID,
                                "shards: group %s belongs to another context",
                                dp_group_name(groups[i]));
    }
    if (options->replicas == NULL) return DP_OK;
    if (options->group == NULL || options->group == options->replicas) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "shards: replicas are the ranks %s of other copies, so group and "
                                "replicas must be given and differ",
                                dp_group_name(options->replicas));
    }
    return DP_OK;
}

static dp_status_t check_shards_options(dp_context_t *context, const dp_shards_options_t *options,
                                        dp_decision_t *decision)
{
    dp_error_t error;
    dp_status_t status;

    if ((unsigned)options->stage > DP_SHARD_WEIGHTS) {
        return dp_context_error(context, DP_ERR_INVALID, "shards: no stage has number %d",
                                (int)options->stage);
    }
    if ((unsigned)options->wire > DP_WIRE_BF16) {
        return dp_context_error(context, DP_ERR_INVALID, "shards: no wire type has number %d",
                                (int)options->wire);
    }
    if (options->weights != DP_F32 && options->weights != DP_BF16 && options->weights != DP_F16) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "shards: weights of type %d; they can be DP_F32, DP_BF16, DP_F16",
                                (int)options->weights);
    }
    if (options->accumulation_steps < 1 || options->prefetch < 1) {
        return dp_context_error(context, DP_ERR_INVALID,
                                "shards: accumulation_steps %d and prefetch %d must be at least 1",
                                options->accumulation_steps, options->prefetch);
    }
    status = dp_decision_init(decision, options->clip_norm, options->initial_loss_scale,
                              options->growth_interval, options->hysteresis, &error);
    if (status != DP_OK) return dp_context_error(context, status, "shards: %s", error.text);
    return check_rank_groups(context, options);
}

/* Two units of one name would be DP_ERR_BUSY later; better said here. */
static dp_status_t check_names(dp_context_t *context, const dp_shard_unit_t *units, size_t count)
{
    const char **names = calloc(count, sizeof(*names));
    const char *repeated;
    dp_status_t status = DP_OK;

    if (names == NULL) {
        return dp_context_error(context, DP_ERR_NO_MEMORY, "shards: no memory for %zu units",
                                count);
    }
    for (size_t i = 0; i < count; i++)
        names[i] = units[i].name;
    repeated = dp_tensor_names_find_repeated(names, count);
    if (repeated != NULL) {
        status =
            dp_context_error(context, DP_ERR_INVALID, "shards: two units are called %s", repeated);
    }
    free(names);
    return status;
}

static dp_status_t check_units(dp_context_t *context, const dp_shard_unit_t *units, size_t count,
                               size_t prefix_bytes, dp_dtype_t weights)
{
    if (units == NULL || count == 0) {
        return dp_context_error(context, DP_ERR_INVALID, "shards: %zu units at %p", count,
                                (const void *)units);
    }
    for (size_t i = 0; i < count; i++) {
        const dp_shard_unit_t *given = &units[i];

        if (given->name == NULL || given->name[0] == '\0')
            return dp_context_error(context, DP_ERR_INVALID, "shards: unit %zu has no name", i);
        if (strlen(given->name) + prefix_bytes + PURPOSE_MAX > DP_NAME_MAX) {
            return dp_context_error(context, DP_ERR_INVALID,
                                    "shards: name %.60s... has %zu bytes with its prefix, at most "
                                    "%d fit",
                                    given->name, strlen(given->name) + prefix_bytes,
                                    DP_NAME_MAX - PURPOSE_MAX);
        }
        if (given->count == 0) {
            return dp_context_error(context, DP_ERR_INVALID, "shards: unit %s has no elements",
                                    given->name);
        }
        if (weights != DP_F32 && given->count % 2 != 0) {
            return dp_context_error(context, DP_ERR_INVALID,
                                    "shards: unit %s has %zu elements; with weights of 16 bits "
                                    "it must be an even number",
                                    given->name, given->count);
        }
    }
    return check_names(context, units, count);
}

/* ---- Comparing with the other ranks --------------------------------------------------------- */

/* others: size of the other group of ranks; place: what all ranks of this one must be in it. */
static uint64_t hash_options(const dp_shards_options_t *options, int others, int place)
{
    const uint64_t whole[9] = {(uint64_t)others,
                               (uint64_t)place,
                               (uint64_t)options->stage,
                               (uint64_t)options->wire,
                               (uint64_t)options->accumulation_steps,
                               (uint64_t)options->growth_interval,
                               (uint64_t)options->hysteresis,
                               (uint64_t)options->prefetch,
                               (uint64_t)options->weights};
    const double scales[2] = {options->clip_norm, options->initial_loss_scale};

    return dp_kernel_hash(scales, sizeof(scales), dp_kernel_hash(whole, sizeof(whole), 2));
}

static uint64_t hash_unit(const dp_unit_t *unit, int is_whole)
{
    const uint64_t kind[2] = {unit->layout.count, (uint64_t)is_whole};

    DP_ASSERT(unit->name != NULL); /* fill_unit() has made it */
    return dp_kernel_hash(kind, sizeof(kind), dp_kernel_hash(unit->name, strlen(unit->name), 3));
}

static dp_status_t tell_difference(const dp_shards_t *shards, dp_status_t status,
                                   const dp_list_difference_t *difference)
{
    dp_context_t *context = shards->context;
    const dp_unit_t *unit;

    if (difference->rank < 0) return status; /* an operation has failed, and said why */
    if (difference->has_failed) {
        return dp_context_error(context, status, "shards: rank %d could not make its part: %s",
                                difference->rank, dp_status_string(status));
    }
    if (difference->place == SIZE_MAX) {
        return dp_context_error(
            context, status, "shards: rank %d lists %zu units, rank %d lists %zu", difference->rank,
            difference->count - 1, dp_rank(context), shards->count);
    }
    if (difference->place == 0) {
        return dp_context_error(context, status,
                                "shards: rank %d has other options, or another row, than rank %d, "
                                "which has stage %d, accumulation_steps %d, prefetch %d, row %d of "
                                "%d",
                                difference->rank, dp_rank(context), (int)shards->options.stage,
                                shards->options.accumulation_steps, shards->options.prefetch,
                                dp_group_rank(shards->group), dp_group_size(shards->group));
    }
    unit = &shards->units[difference->place - 1];
    return dp_context_error(context, status,
                            "shards: unit %zu is %s, %zu elements%s, on rank %d; rank %d lists "
                            "another",
                            difference->place - 1, unit->name, unit->layout.count,
                            unit->is_whole ? ", whole" : "", dp_rank(context), difference->rank);
}

/* Collective. made: how far this rank has come. */
static dp_status_t compare_shards(dp_shards_t *shards, const dp_shard_unit_t *units,
                                  dp_status_t made)
{
    dp_group_t *const among[2] = {shards->group, shards->replicas};
    const int size = dp_group_size(shards->group);
    const int other_size[2] = {shards->ranks / size, size};
    const int place[2] = {0, dp_group_rank(shards->group)}; /* replicas have the same row */
    uint64_t *own = calloc(shards->count + 1, sizeof(*own));
    dp_list_difference_t difference;
    dp_status_t status = made, found;

    if (own == NULL && status == DP_OK) status = dp_shards_no_memory(shards);
    for (size_t i = 0; own != NULL && status == DP_OK && i < shards->count; i++)
        own[i + 1] = hash_unit(&shards->units[i], units[i].is_whole != 0);
    /* Both comparisons take place whatever comes of the first: ranks of other copies wait in the
     * second, and are told there. */
    for (int i = 0; i < 2; i++) {
        if (among[i] == NULL) continue;
        if (own != NULL) own[0] = hash_options(&shards->options, other_size[i], place[i]);
        found = dp_lists_compare(among[i], shards->list_name, own, shards->count + 1, status,
                                 shards->options.timeout, &difference);
        if (status == DP_OK && found != DP_OK) status = tell_difference(shards, found, &difference);
    }
    free(own);
    return status;
}

/* ---- Life ----------------------------------------------------------------------------------- */

/* Frees what is not the context's; half-built is fine. */
static void free_object(dp_owned_t *owned)
{
    dp_shards_t *shards = (dp_shards_t *)(void *)owned;

    dp_shards_free_figures(shards);
    dp_shards_unshare(shards);
    for (size_t i = 0; shards->units != NULL && i < shards->count; i++)
        free(shards->units[i].name);
    for (size_t i = 0; shards->pools != NULL && i < shards->pool_count; i++)
        free(shards->pools[i].slots);
    free(shards->units);
    free(shards->pools);
    free(shards->order);
    free(shards->tallies);
    free(shards->places);
    free(shards->answers);
    free(shards->list_name);
    free(shards);
}

static void free_shards(dp_shards_t *shards)
{
    for (size_t i = 0; shards->units != NULL && i < shards->count; i++) {
        dp_unit_t *unit = &shards->units[i];

        (void)dp_unit_wait(&unit->gather, NULL);
        (void)dp_unit_wait(&unit->reduce, NULL);
        (void)dp_unit_wait(&unit->average, NULL);
    }
    if (shards->units != NULL) dp_shards_memory_fini(shards);
    free_object(&shards->owned);
}

static dp_status_t fill_unit(dp_shards_t *shards, dp_unit_t *unit, const dp_shard_unit_t *given,
                             const char *prefix)
{
    const int size = dp_group_size(shards->group);
    const int is_whole = given->is_whole != 0 || shards->options.stage == DP_SHARD_NONE;

    unit->name = dp_tensor_name_join(prefix, given->name);
    if (unit->name == NULL) return dp_shards_no_memory(shards);
    unit->is_whole = is_whole;
    if (!dp_shard_layout_make(given->count, is_whole ? 1 : size, &unit->layout)) {
        return dp_context_error(shards->context, DP_ERR_INVALID,
                                "shards: unit %s: %zu elements exceed memory", given->name,
                                given->count);
    }
    dp_shard_layout_row(&unit->layout, is_whole ? 0 : dp_group_rank(shards->group),
                        &unit->row_first, &unit->row_count);
    unit->is_stale = !is_whole;
    dp_tally_init(&unit->tally);
    return DP_OK;
}

/* All that this rank does by itself, but for memory. */
static dp_status_t make_shards(dp_shards_t *shards, const dp_shard_unit_t *units,
                               const char *prefix)
{
    dp_status_t status = DP_OK;

    shards->units = calloc(shards->count, sizeof(*shards->units));
    shards->order = calloc(shards->count, sizeof(void *));
    shards->tallies = calloc((size_t)dp_group_size(shards->group), sizeof(*shards->tallies));
    if (shards->units == NULL || shards->order == NULL || shards->tallies == NULL)
        return dp_shards_no_memory(shards);
    for (size_t i = 0; status == DP_OK && i < shards->count; i++)
        status = fill_unit(shards, &shards->units[i], &units[i], prefix);
    if (status == DP_OK) status = dp_shards_create_figures(shards);
    return status == DP_OK ? dp_shards_plan_sharing(shards) : status;
}

/* Memory by stage, in which ranks may share. Collective; only ranks with equal lists come here. */
static dp_status_t make_memory(dp_shards_t *shards, const dp_shard_unit_t *units)
{
    const dp_status_t status = dp_shards_share(shards);

    if (status != DP_OK) return status;
    return compare_shards(shards, units, dp_shards_memory_init(shards));
}

static int is_checking(const dp_context_t *context)
{
    const char *check = dp_setting(context, "CHECK_DATA");

    return check != NULL && strcmp(check, "1") == 0;
}

dp_status_t dp_shards_create(dp_context_t *context, const dp_shard_unit_t *units, size_t count,
                             const dp_shards_options_t *given, dp_shards_t **out)
{
    dp_shards_options_t options;
    dp_decision_t decision;
    dp_shards_t *shards;
    const char *prefix;
    dp_status_t status;

    if (context == NULL || out == NULL || dp_context_is_forked(context)) return DP_ERR_INVALID;
    status = read_shards_options(context, given, &options);
    prefix = status == DP_OK && options.prefix != NULL ? options.prefix : "";
    if (status == DP_OK) status = check_shards_options(context, &options, &decision);
    if (status == DP_OK)
        status = check_units(context, units, count, strlen(prefix), options.weights);
    if (status != DP_OK) return status;
    shards = calloc(1, sizeof(*shards));
    if (shards == NULL) return dp_context_error(context, DP_ERR_NO_MEMORY, "shards: no memory");
    shards->owned.free = free_object;
    shards->context = context;
    shards->group = options.group == NULL ? dp_world(context) : options.group;
    shards->replicas = options.replicas;
    shards->options = options;
    shards->options.prefix = NULL;
    shards->decision = decision;
    shards->count = count;
    shards->ranks = dp_group_size(shards->group) *
                    (options.replicas == NULL ? 1 : dp_group_size(options.replicas));
    shards->figures = &shards->on_host;
    shards->check = is_checking(context);
    shards->list_name = dp_tensor_name_join(prefix, "dp.shards");
    if (shards->list_name == NULL) {
        free_object(&shards->owned);
        return dp_context_error(context, DP_ERR_NO_MEMORY, "shards: no memory");
    }
    status = compare_shards(shards, units, make_shards(shards, units, prefix));
    if (status == DP_OK) status = make_memory(shards, units);
    if (status != DP_OK) {
        free_shards(shards);
        return status;
    }
    dp_context_own(context, &shards->owned);
    *out = shards;
    return DP_OK;
}

void dp_shards_destroy(dp_shards_t *shards)
{
    if (shards == NULL || !dp_context_disown(&shards->owned)) return;
    free_shards(shards);
}

/* ---- Questions ------------------------------------------------------------------------------ */

dp_status_t dp_shards_row(const dp_shards_t *shards, size_t g, dp_shard_row_t *row)
{
    dp_shard_row_t found = DP_SHARD_ROW_INIT;
    dp_error_t error;
    dp_unit_t *unit = NULL;
    dp_status_t status = dp_shards_unit(shards, g, &unit);

    if (unit == NULL) return status;
    if (row == NULL) return dp_unit_error(shards, unit, DP_ERR_INVALID, "row is NULL");
    status = dp_sized_check("dp_shard_row_t", row->size, &error);
    if (status != DP_OK) return dp_unit_error(shards, unit, status, "%s", error.text);
    found.weights = unit->weight_row;
    found.gradients = unit->gradient_row;
    found.first = unit->row_first;
    found.count = unit->row_count;
    dp_sized_write(row, &found, sizeof(found));
    return DP_OK;
}

dp_status_t dp_shards_memory_get(const dp_shards_t *shards, dp_shards_memory_t *memory)
{
    dp_error_t error;
    dp_status_t status;

    if (shards == NULL || dp_context_is_forked(shards->context)) return DP_ERR_INVALID;
    if (memory == NULL)
        return dp_context_error(shards->context, DP_ERR_INVALID, "shards: memory is NULL");
    status = dp_sized_check("dp_shards_memory_t", memory->size, &error);
    if (status != DP_OK) return dp_context_error(shards->context, status, "shards: %s", error.text);
    dp_sized_write(memory, &shards->memory, sizeof(shards->memory));
    return DP_OK;
}
