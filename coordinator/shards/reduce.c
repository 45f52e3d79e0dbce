/*
 * reduce.c - the gradients of dp_shards_t on their way: memory for them, ready, and the operations
 * that make averages of them.
 *
 *     one copy    reduce-scatter of the average over the group; of a whole group an allreduce
 *     replicas    reduce-scatter of the sum over the group (or allreduce), then an allreduce of the
 *                 row over the replicas
 *
 * With replicas the sum goes node by node where a group is a node, in the order in which an
 * allreduce of all ranks adds, and is divided once at the end: so the bits are the same. The second
 * operation needs the result of the first. In DP_ORDER_PROGRAM all ranks must submit it at the same
 * place, so ready() waits for the group that was ready two calls before; else it looks which ones
 * are done. Called on the program's thread.
 */
#include "coordinator/shards/shards.h"

#include "coordinator/api/fork.h"

#define REDUCE_LEAD 2 /* groups that may travel before ready() waits for one */

/* ---- Operations ----------------------------------------------------------------------------- */

static float *all_gradients(const dp_span_t *span)
{
    return span->gradients != NULL       ? span->gradients
           : span->gradient_slot != NULL ? span->gradient_slot->memory
                                         : NULL;
}

static int is_ready(const dp_shards_t *shards, const dp_span_t *span)
{
    return span->readies == shards->options.accumulation_steps;
}

/* The figures of what a rank gets stay on a device: of rows, or of what every rank has whole. */
static dp_figures_t *figures_of(const dp_shards_t *shards, const dp_span_t *span)
{
    if (!dp_shards_on_device(shards)) return NULL;
    return span->is_whole ? shards->figures : shards->row_figures;
}

static dp_status_t submit_reduce(dp_shards_t *shards, dp_span_t *span, void *stream)
{
    const int is_last = shards->replicas == NULL; /* its result is the average */
    dp_options_t options = DP_OPTIONS_INIT;
    const float *in = all_gradients(span);

    options.reduce = is_last ? DP_AVERAGE : DP_SUM;
    options.wire = shards->options.wire;
    options.stream = stream;
    options.launch_now = !span->is_whole; /* small ones travel together */
    if (is_last) {
        options.postscale =
            dp_decision_postscale(&shards->decision, shards->options.accumulation_steps);
    }
    return dp_span_submit(shards, span, shards->group,
                          span->is_whole ? DP_COLLECTIVE_ALLREDUCE : DP_COLLECTIVE_REDUCE_SCATTER,
                          "gradients", in, span->gradient_row,
                          span->is_whole ? span->layout.count : span->layout.row, &options,
                          is_last ? figures_of(shards, span) : NULL, &span->reduce);
}

/* Behind the sum over the group, which has been waited for: the average over the replicas. */
static dp_status_t submit_average(dp_shards_t *shards, dp_span_t *span, void *stream)
{
    dp_options_t options = DP_OPTIONS_INIT;

    options.wire = shards->options.wire;
    options.stream = stream;
    options.launch_now = !span->is_whole; /* small ones travel together */
    /* As the data plane divides an average over all ranks, to the bit. */
    options.postscale =
        dp_decision_postscale(&shards->decision, shards->options.accumulation_steps) /
        (double)shards->ranks;
    return dp_span_submit(shards, span, shards->replicas, DP_COLLECTIVE_ALLREDUCE, "gradients",
                          span->gradient_row, span->gradient_row,
                          span->is_whole ? span->layout.count : span->layout.row, &options,
                          figures_of(shards, span), &span->average);
}

/* The next group goes on between replicas. */
static dp_status_t advance(dp_shards_t *shards, void *stream)
{
    dp_span_t *span = shards->order[shards->averaged];
    dp_status_t status = dp_span_wait(&span->reduce, stream);

    if (status == DP_OK) status = submit_average(shards, span, stream);
    if (status == DP_OK) shards->averaged++;
    return status;
}

/* lead: groups that may still be on their way within this copy. */
static dp_status_t advance_all(dp_shards_t *shards, size_t lead, void *stream)
{
    dp_status_t status = DP_OK;

    while (status == DP_OK && shards->averaged + lead < shards->ready_count)
        status = advance(shards, stream);
    return status;
}

/* Those that are done already, where each rank may go on at its own time. */
static dp_status_t advance_done(dp_shards_t *shards, void *stream)
{
    dp_status_t status = DP_OK;

    while (status == DP_OK && shards->averaged < shards->ready_count &&
           dp_test(shards->order[shards->averaged]->reduce) != DP_ERR_PENDING)
        status = advance(shards, stream);
    return status;
}

/* ---- The end of an average ------------------------------------------------------------------ */

/* Waits for an operation, whose figures go to the group's tally. */
static dp_status_t collect(dp_span_t *span, dp_handle_t **handle)
{
    dp_handle_t *waited = *handle;

    *handle = NULL;
    return waited == NULL ? DP_OK : dp_wait_tally(waited, &span->tally);
}

dp_status_t dp_shards_finish_reduce(dp_shards_t *shards, dp_span_t *span)
{
    return collect(span, shards->replicas == NULL ? &span->reduce : &span->average);
}

dp_status_t dp_shards_average_all(dp_shards_t *shards, void *stream)
{
    return shards->replicas == NULL ? DP_OK : advance_all(shards, 0, stream);
}

/* Waits until a group's gradients have left the memory that its reduction reads. On a device the
 * stream waits, and the operation's handle stays for the sync. */
static dp_status_t vacate(dp_shards_t *shards, dp_span_t *span, void *stream)
{
    if (shards->replicas != NULL && span->reduce != NULL) {
        /* It may not overtake earlier ones. */
        while (span->reduce != NULL) {
            const dp_status_t status = advance(shards, stream);

            if (status != DP_OK) return status;
        }
        return DP_OK;
    }
    if (span->reduce == NULL) return DP_OK;
    return stream != NULL ? dp_stream_wait(span->reduce, stream)
                          : dp_shards_finish_reduce(shards, span);
}

/* ---- Memory --------------------------------------------------------------------------------- */

/* The program has given this owner's gradients away. (Slots exist with one pass per step alone.) */
static int has_left(const dp_span_t *owner)
{
    return owner->readies > 0;
}

static void take_gradient_slot(dp_shards_t *shards, dp_shard_slot_t *slot, dp_span_t *span)
{
    if (slot->owner != NULL) slot->owner->gradient_slot = NULL;
    slot->owner = span;
    slot->used = ++shards->clock;
    span->gradient_slot = slot;
}

dp_status_t dp_shards_gradients(dp_shards_t *shards, size_t g, void *stream, float **gradients)
{
    dp_shard_slot_t *slot;
    dp_span_t *span;
    dp_status_t status = dp_shards_span(shards, g, &span);

    if (status != DP_OK) return status;
    if (gradients == NULL) {
        return dp_span_error(shards, span, DP_ERR_INVALID,
                             "dp_shards_gradients: gradients is NULL");
    }
    status = dp_shards_finish_deferred(shards);
    if (status != DP_OK) return status;
    if (is_ready(shards, span)) {
        return dp_span_error(shards, span, DP_ERR_ORDER,
                             "its gradients are ready; there is no memory for them before a sync");
    }
    if (span->gradient_pool != NULL && span->gradient_slot == NULL) {
        slot = dp_shards_find_slot(span->gradient_pool, has_left);
        if (slot == NULL) {
            return dp_span_error(shards, span, DP_ERR_ORDER,
                                 "all %zu slots for gradients of %zu elements are given out, the "
                                 "first to %s; call dp_shards_ready() for one of them",
                                 span->gradient_pool->count, span->layout.count,
                                 span->gradient_pool->slots[0].owner->name);
        }
        if (slot->owner != NULL) status = vacate(shards, slot->owner, stream);
        if (status != DP_OK) return status;
        take_gradient_slot(shards, slot, span);
    }
    *gradients = all_gradients(span);
    return DP_OK;
}

void dp_span_end_step(dp_span_t *span)
{
    span->readies = 0;
    if (span->gradient_slot == NULL) return;
    span->gradient_slot->owner = NULL;
    span->gradient_slot = NULL;
}

/* ---- Ready ---------------------------------------------------------------------------------- */

dp_status_t dp_shards_ready(dp_shards_t *shards, size_t g, void *stream)
{
    dp_span_t *span;
    dp_status_t status = dp_shards_span(shards, g, &span);

    if (status == DP_OK) status = dp_shards_finish_deferred(shards);
    if (status != DP_OK) return status;
    if (is_ready(shards, span)) {
        return dp_span_error(shards, span, DP_ERR_ORDER,
                             "ready for the %d. time before a sync, accumulation_steps is %d",
                             span->readies + 1, shards->options.accumulation_steps);
    }
    if (all_gradients(span) == NULL) {
        return dp_span_error(shards, span, DP_ERR_ORDER,
                             "ready without memory from dp_shards_gradients() in this step");
    }
    if (span->readies + 1 == shards->options.accumulation_steps) {
        status = submit_reduce(shards, span, stream);
        if (status != DP_OK) return status;
        shards->order[shards->ready_count++] = span;
    }
    span->readies++;
    if (shards->replicas == NULL) return DP_OK;
    return shards->context->program != NULL ? advance_all(shards, REDUCE_LEAD, stream)
                                            : advance_done(shards, stream);
}
