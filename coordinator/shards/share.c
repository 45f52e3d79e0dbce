/*
 * share.c - ranks of one node keep one copy of the weights: each looks at the others' rows where
 * they lie.
 *
 *     rank 0's arena     [..row 0..........page..]        rank 0 updates row 0
 *     rank 1's arena     [......row 1......page..]        rank 1 updates row 1
 *     in each of them    [row 0][row 1]                   a view of the unit, to be read only
 *
 * So a gather moves nothing. It is an allgather of one number, a token, that a rank submits once
 * its row is new: a rank that has waited for it sees all rows as they are. The other direction has
 * a token too: a sync is over when all ranks have come to theirs, so no rank writes its row while
 * another one still computes with it.
 *
 * Rows must stay while a neighbour looks at them, also where the neighbour's program destroys its
 * object later. So each rank's page counts the others that look; rows that are looked at when the
 * object goes are left to the context, and freed by a later dp_shards_create() or with the context.
 *
 * Called on the program's thread. It must not know how memory is mapped.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/api/context/owned.h"
#include "coordinator/api/model/lists.h"
#include "coordinator/shards/shards.h"

#define PLACE_ALIGN 4096u /* of memory from dp_alloc() */
#define LIST_WORDS(shards) ((shards)->count + 1)

/* In engine memory, so that tokens travel without a fused buffer. */
typedef struct dp_share_page {
    _Atomic uint32_t viewers; /* other ranks that look at this rank's rows */
    float tokens[];           /* [units + 1][ranks]; the last are the syncs' */
} dp_share_page_t;

/* A rank's rows, which may outlive the object. */
struct dp_shared_rows {
    dp_owned_t owned; /* first; the context's once the object is gone */
    dp_context_t *context;
    dp_share_page_t *page;
    size_t count;
    float *rows[]; /* [count]; NULL: the unit is whole */
};

/* ---- This rank's rows ----------------------------------------------------------------------- */

static size_t row_bytes(const dp_shards_t *shards, const dp_unit_t *unit)
{
    return dp_shards_words(shards, unit->layout.row) * sizeof(float);
}

static int are_of_one_node(const dp_shards_t *shards)
{
    const dp_context_t *context = shards->context;

    for (int i = 0; i < dp_group_size(shards->group); i++) {
        const int rank = dp_group_world_rank(shards->group, i);

        if (context->topology.node[rank] != context->topology.node[context->rank]) return 0;
    }
    return 1;
}

static int can_share(const dp_shards_t *shards)
{
    const dp_context_t *context = shards->context;

    return context->config.shared_weights && shards->options.stage != DP_SHARD_NONE &&
           dp_group_size(shards->group) > 1 && context->engine->ops->views != NULL &&
           !context->device->ops->is_async && context->has_topology && are_of_one_node(shards);
}

static void free_rows(dp_shared_rows_t *shared)
{
    dp_engine_t *engine = shared->context->engine;

    for (size_t i = 0; i < shared->count; i++)
        (void)engine->ops->free(engine, shared->rows[i]);
    (void)engine->ops->free(engine, shared->page);
    free(shared);
}

/* With the context: its memory goes with the engine. */
static void free_left(dp_owned_t *owned)
{
    free(owned);
}

static dp_shared_rows_t *make_rows(const dp_shards_t *shards)
{
    const size_t ranks = (size_t)dp_group_size(shards->group);
    const size_t page_bytes = sizeof(dp_share_page_t) + LIST_WORDS(shards) * ranks * sizeof(float);
    dp_shared_rows_t *shared = calloc(1, sizeof(*shared) + shards->count * sizeof(float *));
    void *memory;

    if (shared == NULL) return NULL;
    shared->owned.free = free_left;
    shared->context = shards->context;
    shared->count = shards->count;
    if (dp_alloc(shards->context, page_bytes, &memory) != DP_OK) goto fail;
    shared->page = memory;
    atomic_store_explicit(&shared->page->viewers, (uint32_t)ranks - 1, memory_order_relaxed);
    for (size_t i = 0; i < shards->count; i++) {
        const dp_unit_t *unit = &shards->units[i];

        if (unit->is_whole) continue;
        if (dp_alloc(shards->context, row_bytes(shards, unit), &memory) != DP_OK) goto fail;
        shared->rows[i] = memory;
    }
    return shared;
fail:
    free_rows(shared);
    return NULL;
}

/* own[LIST_WORDS]: the page's place, UINT64_MAX where this rank has no rows; then each row's. */
static void list_places(const dp_shards_t *shards, uint64_t *own)
{
    const dp_shared_rows_t *shared = shards->shared;
    const dp_engine_t *engine = shards->context->engine;

    own[0] = UINT64_MAX;
    if (shared == NULL) return;
    own[0] = engine->ops->views->place_of(engine, shared->page, sizeof(*shared->page));
    for (size_t i = 0; i < shards->count; i++) {
        own[i + 1] = 0;
        if (shared->rows[i] == NULL) continue;
        own[i + 1] = engine->ops->views->place_of(engine, shared->rows[i],
                                                  row_bytes(shards, &shards->units[i]));
        if (own[i + 1] == UINT64_MAX) own[0] = UINT64_MAX;
    }
}

/* ---- The others' rows ----------------------------------------------------------------------- */

/* Entry `word` of a rank's list. */
static dp_engine_place_t place_at(const dp_shards_t *shards, int rank, size_t word)
{
    const uint64_t *all = shards->places + LIST_WORDS(shards);

    return (dp_engine_place_t){dp_group_world_rank(shards->group, rank),
                               all[(size_t)rank * LIST_WORDS(shards) + word]};
}

/* A rank's page; NULL: it has none. The place that it claims is checked. */
static dp_share_page_t *find_page(const dp_shards_t *shards, int rank)
{
    const dp_engine_t *engine = shards->context->engine;
    const dp_engine_place_t at = place_at(shards, rank, 0);

    if (at.place % PLACE_ALIGN != 0) return NULL;
    return engine->ops->views->address_of(engine, at, sizeof(dp_share_page_t));
}

static dp_status_t show_group(dp_shards_t *shards, size_t g, dp_engine_place_t *places,
                              dp_error_t *error)
{
    dp_engine_t *engine = shards->context->engine;
    const int size = dp_group_size(shards->group);
    dp_unit_t *unit = &shards->units[g];
    const void *view;
    dp_status_t status;

    for (int rank = 0; rank < size; rank++)
        places[rank] = place_at(shards, rank, g + 1);
    status = engine->ops->views->view_create(engine, places, size, row_bytes(shards, unit), &view,
                                             error);
    if (status == DP_OK) unit->view = view;
    return status;
}

/* Makes the views of all units. *error: why there are none. */
static dp_status_t show_rows(dp_shards_t *shards, dp_error_t *error)
{
    const int size = dp_group_size(shards->group);
    dp_engine_place_t *places;
    dp_status_t status = DP_OK;

    for (int rank = 0; rank < size; rank++) {
        if (find_page(shards, rank) != NULL) continue;
        return dp_error_set(error, DP_ERR_NO_MEMORY, "rank %d has no memory for its rows",
                            dp_group_world_rank(shards->group, rank));
    }
    places = calloc((size_t)size, sizeof(*places));
    if (places == NULL) return dp_error_set(error, DP_ERR_NO_MEMORY, "no memory for views");
    for (size_t g = 0; status == DP_OK && g < shards->count; g++) {
        if (!shards->units[g].is_whole) status = show_group(shards, g, places, error);
    }
    free(places);
    return status;
}

static void hide_rows(dp_shards_t *shards)
{
    dp_engine_t *engine = shards->context->engine;

    for (size_t g = 0; g < shards->count; g++) {
        dp_unit_t *unit = &shards->units[g];

        if (unit->view == NULL) continue;
        engine->ops->views->view_destroy(
            engine, unit->view, dp_shards_words(shards, unit->layout.padded) * sizeof(float));
        unit->view = NULL;
    }
}

/* ---- Beginning and end ---------------------------------------------------------------------- */

/* Rows of earlier objects that nobody looks at any more. */
static void free_left_rows(dp_context_t *context)
{
    dp_owned_t **place, *owned, *found = NULL;

    pthread_mutex_lock(&context->lock);
    for (place = &context->owned; (owned = *place) != NULL;) {
        const dp_shared_rows_t *shared = (const dp_shared_rows_t *)(const void *)owned;

        /* acquire: pairs with the last viewer's release in dp_shards_unshare() */
        if (owned->free == free_left &&
            atomic_load_explicit(&shared->page->viewers, memory_order_acquire) == 0) {
            *place = owned->next;
            owned->next = found;
            found = owned;
        } else {
            place = &owned->next;
        }
    }
    pthread_mutex_unlock(&context->lock);
    while (found != NULL) {
        owned = found;
        found = owned->next;
        free_rows((dp_shared_rows_t *)(void *)owned);
    }
}

dp_status_t dp_shards_plan_sharing(dp_shards_t *shards)
{
    const size_t size = (size_t)dp_group_size(shards->group);

    free_left_rows(shards->context);
    shards->answers = calloc((size_t)shards->ranks, sizeof(*shards->answers));
    if (shards->answers == NULL) return dp_shards_no_memory(shards);
    if (!can_share(shards)) return DP_OK;
    shards->places = calloc((size + 1) * LIST_WORDS(shards), sizeof(*shards->places));
    return shards->places == NULL ? dp_shards_no_memory(shards) : DP_OK;
}

/* *can becomes what it is on all ranks of a unit together. */
static dp_status_t agree(const dp_shards_t *shards, dp_group_t *group, int *can)
{
    const uint64_t own = *can != 0;
    const dp_status_t status =
        dp_lists_allgather(group, shards->list_name, &own, shards->answers, 1);

    for (int rank = 0; status == DP_OK && rank < dp_group_size(group); rank++)
        *can = *can && shards->answers[rank] == 1;
    return status;
}

/* Rows and views. *can: all ranks of this copy have made theirs. */
static dp_status_t try_sharing(dp_shards_t *shards, int *can, dp_error_t *error)
{
    dp_status_t status;

    shards->shared = make_rows(shards);
    list_places(shards, shards->places);
    status = dp_lists_allgather(shards->group, shards->list_name, shards->places,
                                shards->places + LIST_WORDS(shards), LIST_WORDS(shards));
    if (status != DP_OK) return status;
    *can = show_rows(shards, error) == DP_OK;
    return agree(shards, shards->group, can);
}

/* The views are what this object works with. */
static void begin_sharing(dp_shards_t *shards)
{
    for (size_t i = 0; i < shards->count; i++) {
        dp_unit_t *unit = &shards->units[i];
        const size_t bytes = row_bytes(shards, unit);

        if (unit->is_whole) continue;
        unit->weight_row = shards->shared->rows[i];
        unit->token = shards->shared->page->tokens + i * (size_t)dp_group_size(shards->group);
        shards->memory.weights += bytes;
        shards->memory.mapped_weights +=
            dp_shards_words(shards, unit->layout.padded) * sizeof(float) - bytes;
    }
}

dp_status_t dp_shards_share(dp_shards_t *shards)
{
    dp_error_t error = {DP_OK, "another rank cannot show its rows"};
    dp_status_t status = DP_OK;
    int can = 0;

    if (shards->places != NULL) status = try_sharing(shards, &can, &error);
    /* All copies alike: they load their weights together. */
    if (status == DP_OK && shards->replicas != NULL) status = agree(shards, shards->replicas, &can);
    if (status == DP_OK && can) {
        begin_sharing(shards);
        return DP_OK;
    }
    hide_rows(shards);
    if (shards->shared != NULL) free_rows(shards->shared);
    shards->shared = NULL;
    if (status == DP_OK && shards->places != NULL) {
        dp_log_info(&shards->context->log, "shards: weights are copied within the node: %s",
                    error.text);
    }
    return status;
}

void dp_shards_unshare(dp_shards_t *shards)
{
    dp_shared_rows_t *shared = shards->shared;

    if (shared == NULL) return;
    hide_rows(shards);
    for (int rank = 0; rank < dp_group_size(shards->group); rank++) {
        dp_share_page_t *page = find_page(shards, rank);

        /* release: the views are gone before the owner, which acquires this, frees the rows */
        if (rank != dp_group_rank(shards->group) && page != NULL)
            atomic_fetch_sub_explicit(&page->viewers, 1, memory_order_release);
    }
    shards->shared = NULL;
    if (atomic_load_explicit(&shared->page->viewers, memory_order_acquire) == 0) {
        free_rows(shared);
    } else {
        dp_context_own(shared->context, &shared->owned);
    }
}

/* ---- The token of a sync -------------------------------------------------------------------- */

dp_status_t dp_shards_meet(const dp_shards_t *shards, dp_handle_t **met)
{
    const size_t size = (size_t)dp_group_size(shards->group);
    dp_options_t options = DP_OPTIONS_INIT;
    char name[DP_NAME_MAX + 1];
    float *tokens;

    *met = NULL;
    if (shards->shared == NULL) return DP_OK;
    tokens = shards->shared->page->tokens + shards->count * size;
    options.launch_now = 1;
    snprintf(name, sizeof(name), "%s.sync", shards->list_name);
    return dp_allgather(shards->group, name, tokens + dp_group_rank(shards->group), tokens, 1,
                        DP_F32, &options, met);
}
