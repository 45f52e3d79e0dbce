/*
 * reduce.c - the operations that make averages of the gradients of dp_shards_t.
 *
 *     one copy    reduce-scatter of the average over the group; of a whole group an allreduce
 *     replicas    reduce-scatter of the sum over the group (or allreduce), then an allreduce of the
 *                 row over the replicas
 *
 * With replicas the sum goes node by node where a group is a node, in the order in which an
 * allreduce of all ranks adds, and is divided once at the end: so the bits are the same. The second
 * operation needs the result of the first, and all ranks submit it at the same place in every step:
 * ready() waits for the unit that was ready two calls before. DP_ORDER_PROGRAM asks for that.
 * Called on the program's thread.
 */
#include "coordinator/api/model/decision.h"
#include "coordinator/api/operation/wait.h"
#include "coordinator/shards/shards.h"

/* ---- Operations ----------------------------------------------------------------------------- */

/* The figures of what a rank gets stay on a device: of rows, or of what every rank has whole. */
static dp_figures_t *figures_of(const dp_shards_t *shards, const dp_unit_t *unit)
{
    if (!dp_shards_on_device(shards)) return NULL;
    return unit->is_whole ? shards->figures : shards->row_figures;
}

dp_status_t dp_shards_reduce(dp_shards_t *shards, dp_unit_t *unit, void *stream)
{
    const int is_last = shards->replicas == NULL; /* its result is the average */
    dp_options_t options = DP_OPTIONS_INIT;
    const float *in = dp_unit_all_gradients(unit);

    options.reduce = is_last ? DP_AVERAGE : DP_SUM;
    options.wire = shards->options.wire;
    options.stream = stream;
    options.launch_now = !unit->is_whole; /* small ones travel together */
    if (is_last) {
        options.postscale =
            dp_decision_postscale(&shards->decision, shards->options.accumulation_steps);
    }
    return dp_unit_submit(shards, unit, shards->group,
                          unit->is_whole ? DP_COLLECTIVE_ALLREDUCE : DP_COLLECTIVE_REDUCE_SCATTER,
                          "gradients", in, unit->gradient_row,
                          unit->is_whole ? unit->layout.count : unit->layout.row, &options,
                          is_last ? figures_of(shards, unit) : NULL, &unit->reduce);
}

/* Behind the sum over the group, which has been waited for: the average over the replicas. */
static dp_status_t submit_average(dp_shards_t *shards, dp_unit_t *unit, void *stream)
{
    dp_options_t options = DP_OPTIONS_INIT;

    options.wire = shards->options.wire;
    options.stream = stream;
    options.launch_now = !unit->is_whole; /* small ones travel together */
    /* As the data plane divides an average over all ranks, to the bit. */
    options.postscale =
        dp_decision_postscale(&shards->decision, shards->options.accumulation_steps) /
        (double)shards->ranks;
    return dp_unit_submit(shards, unit, shards->replicas, DP_COLLECTIVE_ALLREDUCE, "gradients",
                          unit->gradient_row, unit->gradient_row,
                          unit->is_whole ? unit->layout.count : unit->layout.row, &options,
                          figures_of(shards, unit), &unit->average);
}

/* The next unit goes on between replicas. */
static dp_status_t begin_next_replica_sum(dp_shards_t *shards, void *stream)
{
    dp_unit_t *unit = shards->order[shards->averaged];
    dp_status_t status = dp_unit_wait(&unit->reduce, stream);

    if (status == DP_OK) status = submit_average(shards, unit, stream);
    if (status == DP_OK) shards->averaged++;
    return status;
}

/* lead: units that may still be on their way within this copy. */
dp_status_t dp_shards_advance(dp_shards_t *shards, size_t lead, void *stream)
{
    dp_status_t status = DP_OK;

    while (status == DP_OK && shards->averaged + lead < shards->ready_count)
        status = begin_next_replica_sum(shards, stream);
    return status;
}

/* ---- The end of an average ------------------------------------------------------------------ */

/* Waits for an operation, whose figures go to the unit's tally. */
static dp_status_t wait_for_figures(dp_unit_t *unit, dp_handle_t **handle)
{
    dp_handle_t *waited = *handle;

    *handle = NULL;
    return waited == NULL ? DP_OK : dp_wait_tally(waited, &unit->tally);
}

dp_status_t dp_shards_finish_reduce(dp_shards_t *shards, dp_unit_t *unit)
{
    return wait_for_figures(unit, shards->replicas == NULL ? &unit->reduce : &unit->average);
}

dp_status_t dp_shards_average_all(dp_shards_t *shards, void *stream)
{
    return shards->replicas == NULL ? DP_OK : dp_shards_advance(shards, 0, stream);
}

/* Waits until a unit's gradients have left the memory that its reduction reads. On a device the
 * stream waits, and the operation's handle stays for the sync. */
dp_status_t dp_shards_vacate(dp_shards_t *shards, dp_unit_t *unit, void *stream)
{
    if (shards->replicas != NULL && unit->reduce != NULL) {
        /* It may not overtake earlier ones. */
        while (unit->reduce != NULL) {
            const dp_status_t status = begin_next_replica_sum(shards, stream);

            if (status != DP_OK) return status;
        }
        return DP_OK;
    }
    if (unit->reduce == NULL) return DP_OK;
    return stream != NULL ? dp_stream_wait(unit->reduce, stream, -1.0)
                          : dp_shards_finish_reduce(shards, unit);
}

void dp_unit_end_step(dp_unit_t *unit)
{
    unit->readies = 0;
    if (unit->gradient_slot == NULL) return;
    unit->gradient_slot->owner = NULL;
    unit->gradient_slot = NULL;
}
