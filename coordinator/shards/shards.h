/*
 * shards.h - what the files of dp_shards_*() share: the object, its units, and the memory in which
 * they take turns.
 *
 *     layout.c   rows and pools, pure
 *     create.c   create (checks, compares lists), rows, destroy
 *     memory.c   what each stage allocates; slots
 *     share.c    one copy of the weights for the ranks of a node
 *     gather.c   weights: load, gather, wait, release
 *     reduce.c   gradients: memory for them, ready, and the way of one average
 *     sync.c     waits for all averages, adds up exact figures, decides
 *     stream.c   the sync that leaves its result on a GPU
 *     check.c    checksums of weights, for DP_CHECK_DATA and dp_shards_hash()
 *
 * All of it runs on the program's threads, one at a time per object, so nothing is locked. Which
 * slot a unit gets, and whether a hint is followed, depends on the program's calls alone, never on
 * time: so all ranks submit the same operations in the same order, as DP_ORDER_PROGRAM needs. It
 * must not know how ranks agree or how data moves.
 */
#ifndef DP_SHARDS_SHARDS_H
#define DP_SHARDS_SHARDS_H

#include "coordinator/api/context/context.h"
#include "coordinator/api/context/owned.h"
#include "coordinator/api/model/decision.h"
#include "coordinator/api/operation/submit.h"
#include "coordinator/shards/layout.h"

typedef struct dp_unit dp_unit_t;
typedef struct dp_shared_rows dp_shared_rows_t; /* share.c */

/* Memory for all of one unit. */
typedef struct dp_shard_slot {
    float *memory;    /* [padded] from dp_alloc() */
    dp_unit_t *owner; /* whose weights or gradients are in it, or will be; NULL: nobody's */
    uint64_t used;    /* by the object's clock: when its owner last asked for it */
} dp_shard_slot_t;

/* Units of equal size take turns in these. */
typedef struct dp_shard_pool {
    dp_shard_slot_t *slots; /* [count] */
    size_t count;
} dp_shard_pool_t;

/* One group of parameters (dp_shard_unit_t; "group" is taken by groups of ranks). */
struct dp_unit {
    char *name; /* prefix + the program's name; freed with the object */
    dp_shard_layout_t layout;
    int is_whole;                /* every rank has all of it, in any stage */
    size_t row_first, row_count; /* this rank's elements */

    /* weights */
    float *weights;               /* [padded] all of them, or as many halves; NULL: in slots, or
                                   * a view */
    const float *view;            /* [padded] all ranks' rows, where they lie; NULL: not shared */
    float *token;                 /* [ranks] with a view: what a gather moves in place of rows */
    float *weight_row;            /* [layout.row] this rank's, likewise */
    dp_shard_pool_t *weight_pool; /* NULL: no slots */
    dp_shard_slot_t *weight_slot; /* the one it has; NULL: none */
    int is_stale;                 /* the rows are newer than the gathered weights */
    int is_used;                  /* waited for, and not released */
    dp_handle_t *gather;          /* in flight; NULL: none */

    /* gradients, likewise */
    float *gradients;
    float *gradient_row; /* averages after a sync */
    dp_shard_pool_t *gradient_pool;
    dp_shard_slot_t *gradient_slot;
    int readies;          /* since the last sync */
    dp_handle_t *reduce;  /* over the group's ranks, in flight; NULL: none */
    dp_handle_t *average; /* over replicas, in flight behind it; NULL: none */
    dp_tally_t tally;     /* of the averages, once their operation was waited for */
};

struct dp_shards {
    dp_owned_t owned; /* first: dp_finalize() frees what the program has left */
    dp_context_t *context;
    dp_group_t *group;           /* the ranks that share the rows out */
    dp_group_t *replicas;        /* NULL: none */
    dp_shards_options_t options; /* prefix is NULL: it is part of the names */
    dp_decision_t decision;
    dp_unit_t *units; /* [count] */
    size_t count;
    int ranks;              /* that a row is averaged over: of the group, times replicas */
    char *list_name;        /* of operations of the object as a whole */
    dp_shard_pool_t *pools; /* [pool_count] of weights, then of gradients */
    size_t pool_count;
    dp_shards_memory_t memory;
    dp_shared_rows_t *shared; /* NULL: weights are not shared */
    uint64_t *places;  /* where all ranks' rows lie, see share.c; NULL: they cannot be shared */
    uint64_t *answers; /* [ranks] */
    uint64_t clock;    /* counts requests for slots */
    uint64_t syncs;
    /* Units in the order in which they became ready in this step; those before `averaged` travel
     * between replicas, or have. */
    dp_unit_t **order; /* [count] */
    size_t ready_count, averaged;
    int check; /* DP_CHECK_DATA */
    /* The figures that dp_shards_sync_on() leaves for the optimizer: in the device's memory, or
     * &on_host. On a device also the sums that belong to this rank's rows alone. */
    dp_figures_t *figures, *row_figures;
    dp_figures_t on_host;
    dp_event_t *decided; /* recorded behind the last decision on a device */
    int is_deferred;     /* as in dp_gradients_t */
    dp_tally_t *tallies; /* [size of the group] */
};

/* 4-byte words that `elements` weights take; rows, and the units where weights have 16 bits, have
 * a whole number of them. Weights move by words: nothing is computed on the way. */
static inline size_t dp_shards_words(const dp_shards_t *shards, size_t elements)
{
    return shards->options.weights == DP_F32 ? elements : elements / 2;
}

/* 1: figures are in a device's memory. */
static inline int dp_shards_on_device(const dp_shards_t *shards)
{
    return shards->figures != &shards->on_host;
}

/* ---- The files of this folder, from the lowest to the highest; each calls only those above it  */

/* unit.c: an error whose text begins with the unit's name. */
dp_status_t dp_unit_error(const dp_shards_t *shards, const dp_unit_t *unit, dp_status_t status,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));
/* unit.c: DP_ERR_NO_MEMORY, with a text. */
dp_status_t dp_shards_no_memory(const dp_shards_t *shards);
/* unit.c: DP_OK, and *unit is unit g. */
dp_status_t dp_shards_unit(const dp_shards_t *shards, size_t g, dp_unit_t **unit);
/* unit.c: an operation on fp32 elements of a unit, named after it. */
dp_status_t dp_unit_submit(const dp_shards_t *shards, const dp_unit_t *unit, dp_group_t *group,
                           dp_collective_t collective, const char *purpose, const float *in,
                           float *out, size_t count, const dp_options_t *options,
                           dp_figures_t *figures, dp_handle_t **handle);
/* unit.c: waits for an operation and clears *handle. With a stream of a device only the stream
 * waits. NULL in *handle is fine. */
dp_status_t dp_unit_wait(dp_handle_t **handle, void *stream);
/* unit.c: the memory into which a gather writes; NULL: none yet, or the weights are shared. */
float *dp_unit_gather_target(const dp_unit_t *unit);
/* unit.c: all weights of a unit, [padded]; NULL: not all of them are in one place. */
const float *dp_unit_all_weights(const dp_unit_t *unit);
/* unit.c: all gradients of a unit, [padded]; NULL: there is no memory for them in this step. */
float *dp_unit_all_gradients(const dp_unit_t *unit);

/* memory.c: allocates by stage. On failure what is there is freed by dp_shards_memory_fini(). */
dp_status_t dp_shards_memory_init(dp_shards_t *shards);
void dp_shards_memory_fini(dp_shards_t *shards);
/* memory.c: a slot of a unit's pool that can be taken: a free one, else the one least recently
 * asked for of those whose owner may_give. NULL: none. */
dp_shard_slot_t *dp_shards_find_slot(const dp_shard_pool_t *pool,
                                     int (*may_give)(const dp_unit_t *owner));

/* figures.c: memory for figures, on the device where there is one. */
dp_status_t dp_shards_create_figures(dp_shards_t *shards);
void dp_shards_free_figures(dp_shards_t *shards);
/* figures.c: the device's sums begin anew. Nothing may be in flight. */
dp_status_t dp_shards_clear_sums(dp_shards_t *shards);

/* share.c: before ranks meet: decides whether they can share weights, and frees what earlier
 * objects had to leave. */
dp_status_t dp_shards_plan_sharing(dp_shards_t *shards);
/* share.c: collective: the ranks look at each other's rows, or none does. Before the other memory.
 */
dp_status_t dp_shards_share(dp_shards_t *shards);
/* share.c: looks no longer, and frees this rank's rows as soon as no other rank looks. */
void dp_shards_unshare(dp_shards_t *shards);
/* share.c: with shared weights, *met is over when all ranks have come to their sync. */
dp_status_t dp_shards_meet(const dp_shards_t *shards, dp_handle_t **met);

/* gather.c: no gather is in flight afterwards. */
dp_status_t dp_shards_finish_gathers(dp_shards_t *shards);

/* reduce.c: the reduction of a unit whose gradients are complete begins. */
dp_status_t dp_shards_reduce(dp_shards_t *shards, dp_unit_t *unit, void *stream);
/* reduce.c: with replicas: units whose sum is there go on between them. Waits for sums until
 * `lead` units are left whose sums may still be on their way. */
dp_status_t dp_shards_advance(dp_shards_t *shards, size_t lead, void *stream);
/* reduce.c: with replicas: every unit that is ready goes on between them. */
dp_status_t dp_shards_average_all(dp_shards_t *shards, void *stream);
/* reduce.c: waits until a unit's gradients have left the memory that its reduction reads. On a
 * device the stream waits, and the operation's handle stays for the sync. */
dp_status_t dp_shards_vacate(dp_shards_t *shards, dp_unit_t *unit, void *stream);
/* reduce.c: waits for the average of a unit, whose figures are in its tally afterwards. */
dp_status_t dp_shards_finish_reduce(dp_shards_t *shards, dp_unit_t *unit);
/* reduce.c: the unit's gradient memory may be given out anew. */
void dp_unit_end_step(dp_unit_t *unit);

/* check.c: DP_CHECK_DATA: compares the weights that several ranks have. */
dp_status_t dp_shards_compare_weights(dp_shards_t *shards);

/* sync.c: DP_OK: every unit's reduction is in flight. Else an error that names one that is not
 * ready. */
dp_status_t dp_shards_all_ready(dp_shards_t *shards);
/* sync.c: waits for all that is in flight and says what it came to. */
dp_status_t dp_shards_collect(dp_shards_t *shards, dp_gradients_result_t *found);
/* sync.c: the units may become ready again; their gathered weights are out of date. */
void dp_shards_end_step(dp_shards_t *shards);
void dp_shards_make_stale(dp_shards_t *shards);
/* sync.c: the end of a sync that was deferred, if there is one. */
dp_status_t dp_shards_finish_deferred(dp_shards_t *shards);

/* Above them: ready.c, stream.c and create.c, which are called by programs alone. */

#endif
