/*
 * unit.c - a unit of dp_shards_t by itself: its errors, its operations under its name, and where
 * its weights and gradients lie.
 *
 * The lowest file of this folder: it calls none of the others. Called on the program's thread.
 */
#include <stdarg.h>
#include <stdio.h>

#include "coordinator/api/context/fork.h"
#include "coordinator/api/context/texts.h"
#include "coordinator/api/operation/submit.h"
#include "coordinator/shards/shards.h"

/* ---- Names and errors ----------------------------------------------------------------------- */

dp_status_t dp_unit_error(const dp_shards_t *shards, const dp_unit_t *unit, dp_status_t status,
                          const char *format, ...)
{
    char reason[DP_ERROR_TEXT_MAX];
    va_list list;

    va_start(list, format);
    vsnprintf(reason, sizeof(reason), format, list);
    va_end(list);
    return dp_context_error(shards->context, status, "shards: unit %s: %s", unit->name, reason);
}

dp_status_t dp_shards_no_memory(const dp_shards_t *shards)
{
    return dp_context_error(shards->context, DP_ERR_NO_MEMORY, "shards: no memory for %zu units",
                            shards->count);
}

dp_status_t dp_shards_unit(const dp_shards_t *shards, size_t g, dp_unit_t **unit)
{
    if (shards == NULL || dp_context_is_forked(shards->context)) return DP_ERR_INVALID;
    if (g >= shards->count) {
        return dp_context_error(shards->context, DP_ERR_INVALID, "shards: unit %zu, there are %zu",
                                g, shards->count);
    }
    *unit = &shards->units[g];
    return DP_OK;
}

dp_status_t dp_unit_submit(const dp_shards_t *shards, const dp_unit_t *unit, dp_group_t *group,
                           dp_collective_t collective, const char *purpose, const float *in,
                           float *out, size_t count, const dp_options_t *options,
                           dp_figures_t *figures, dp_handle_t **handle)
{
    const int has_root =
        collective == DP_COLLECTIVE_BROADCAST || collective == DP_COLLECTIVE_SCATTER;
    const dp_tensor_t tensor = {in, out, count, DP_F32};
    char name[DP_NAME_MAX + 1];

    (void)shards;
    snprintf(name, sizeof(name), "%s/%s", unit->name, purpose);
    return dp_submit(group,
                     &(dp_submit_t){.collective = collective,
                                    .name = name,
                                    .tensors = &tensor,
                                    .count = 1,
                                    .root = has_root ? 0 : -1,
                                    .peer = -1,
                                    .options = options,
                                    .figures = figures},
                     handle);
}

dp_status_t dp_unit_wait(dp_handle_t **handle, void *stream)
{
    dp_handle_t *waited = *handle;
    dp_status_t status;

    if (waited == NULL) return DP_OK;
    *handle = NULL;
    if (stream == NULL) return dp_wait(waited, -1.0, NULL);
    status = dp_stream_wait(waited, stream, -1.0);
    dp_release(waited);
    return status;
}

/* ---- Memory --------------------------------------------------------------------------------- */

float *dp_unit_gather_target(const dp_unit_t *unit)
{
    return unit->weights != NULL       ? unit->weights
           : unit->weight_slot != NULL ? unit->weight_slot->memory
                                       : NULL;
}

const float *dp_unit_all_weights(const dp_unit_t *unit)
{
    return unit->view != NULL ? unit->view : dp_unit_gather_target(unit);
}

float *dp_unit_all_gradients(const dp_unit_t *unit)
{
    return unit->gradients != NULL       ? unit->gradients
           : unit->gradient_slot != NULL ? unit->gradient_slot->memory
                                         : NULL;
}
