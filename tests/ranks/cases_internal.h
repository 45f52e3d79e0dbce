/*
 * cases_internal.h - how the cases check: a failed one prints rank, place and both sides.
 */
#ifndef DP_TESTS_CASES_INTERNAL_H
#define DP_TESTS_CASES_INTERNAL_H

#include <stdio.h>
#include <string.h>

#include "dp.h"

#define EXPECT(dp, condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: rank %d of %d: %s: ", __FILE__, __LINE__, dp_rank(dp),         \
                    dp_size(dp), #condition);                                                      \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* A call answers this status. */
#define EXPECT_STATUS(dp, call, wanted)                                                            \
    do {                                                                                           \
        dp_status_t found_ = (call);                                                               \
        dp_status_t wanted_ = (wanted);                                                            \
        EXPECT(dp, found_ == wanted_, "%s answered %s, wanted %s; %s", #call,                      \
               dp_status_string(found_), dp_status_string(wanted_), dp_error_text(dp));            \
    } while (0)

#define EXPECT_TEXT(dp, text, part)                                                                \
    EXPECT(dp, strstr((text), (part)) != NULL, "\"%s\" lacks \"%s\"", (text), (part))

/* ---- cases_values.c ------------------------------------------------------------------------- */

/* Elements `first` and on of rank r: small whole numbers, so that every order of adding gives the
 * same. */
void case_fill(dp_dtype_t dtype, dp_reduce_t reduce, int rank, size_t first, size_t count,
               void *data);
/* Elements `first` and on of the reduction over this many ranks, as the type holds them. */
void case_reference(dp_dtype_t dtype, dp_reduce_t reduce, int ranks, size_t first, size_t count,
                    void *data);
/* From dp_alloc() or the C library, zeroed; NULL: no memory. */
char *case_allocate(dp_context_t *dp, size_t bytes, int in_arena);
void case_give_back(dp_context_t *dp, char *memory, int in_arena);

/* ---- cases_operation.c ---------------------------------------------------------------------- */

enum {
    CASE_ALLREDUCE,
    CASE_REDUCE,
    CASE_REDUCE_SCATTER,
    CASE_REDUCE_SCATTERV,
    CASE_BROADCAST,
    CASE_ALLGATHER,
    CASE_GATHER,
    CASE_SCATTER,
    CASE_ALLTOALL,
    CASE_ALLGATHERV,
    CASE_GATHERV,
    CASE_SCATTERV,
    CASE_ALLTOALLV,
    CASE_KINDS
};

/* One operation of any kind: filled in by the case, submitted by begin, awaited and compared with a
 * plain loop by end. */
typedef struct case_op {
    int kind;
    dp_group_t *group;
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    size_t count; /* of one row; where parts differ, about as many */
    int step;     /* moves the sizes of parts that differ, some of which are empty */
    int in_place; /* where the operation can */
    int in_arena;
    size_t shift; /* bytes between the allocation and the tensor: unaligned */
    int root;
    /* of begin and end */
    char *in_base, *out_base; /* allocations */
    char *in, *out;
    size_t out_count;
    size_t send[64], received[64];
    dp_handle_t *handle;
} case_op_t;

const char *case_kind_name(int kind);
int case_kind_reduces(int kind);
int case_op_begin(dp_context_t *dp, case_op_t *op, const char *name); /* 0: all held */
int case_op_end(dp_context_t *dp, case_op_t *op);

/* Every kind, type, reduction and size in a group; short: some of them. */
int case_collectives_in(dp_context_t *dp, dp_group_t *group, const char *prefix, int is_short);

/* Sums one value over the group and waits. 0: all held. */
int case_sum(dp_context_t *dp, dp_group_t *group, const char *name, double value, double wanted);

/* ---- cases_lanes.c -------------------------------------------------------------------------- */

int case_lanes(dp_context_t *dp);
int case_order_mixed(dp_context_t *dp);
int case_order_grid(dp_context_t *dp);
int case_order_apart(dp_context_t *dp);
int case_order_many(dp_context_t *dp);
int case_order_gradients(dp_context_t *dp);
int case_order_refused(dp_context_t *dp);
int case_order_swapped(dp_context_t *dp);
int case_order_busy(dp_context_t *dp);

/* ---- cases_direct.c ------------------------------------------------------------------------- */

int case_direct(dp_context_t *dp);
int case_direct_patterns(dp_context_t *dp);
int case_direct_failures(dp_context_t *dp);
int case_direct_left(dp_context_t *dp);
int case_direct_abort(dp_context_t *dp);

/* ---- The cases ------------------------------------------------------------------------------ */

int case_collectives(dp_context_t *dp);
int case_fused(dp_context_t *dp);
int case_grouped(dp_context_t *dp);
int case_scales(dp_context_t *dp);
int case_wire(dp_context_t *dp);
int case_bit_equal(dp_context_t *dp);
int case_large(dp_context_t *dp);

int case_handles(dp_context_t *dp);
int case_misuse(dp_context_t *dp);
int case_arguments(dp_context_t *dp);
int case_mismatch(dp_context_t *dp);
int case_left(dp_context_t *dp);
int case_left_crosswise(dp_context_t *dp);
int case_abort(dp_context_t *dp);
int case_threads(dp_context_t *dp);

int case_group_places(dp_context_t *dp);
int case_group_arguments(dp_context_t *dp);
int case_groups(dp_context_t *dp);
int case_group_collectives(dp_context_t *dp);
int case_group_churn(dp_context_t *dp);
int case_group_limit(dp_context_t *dp);
int case_group_split(dp_context_t *dp);
int case_group_keys(dp_context_t *dp);
int case_group_mesh(dp_context_t *dp);
int case_group_mismatch(dp_context_t *dp);
int case_group_left(dp_context_t *dp);

int case_group_threads(dp_context_t *dp);
int case_group_gradients(dp_context_t *dp);
int case_group_abort(dp_context_t *dp);
int case_group_outsiders(dp_context_t *dp);

int case_lists(dp_context_t *dp);
int case_changing(dp_context_t *dp);
int case_watched(dp_context_t *dp);

int case_tags(dp_context_t *dp);
int case_program_tags(dp_context_t *dp);
int case_completions(dp_context_t *dp);
int case_deadlines(dp_context_t *dp);
int case_deadlines_kept(dp_context_t *dp);
int case_time_limits(dp_context_t *dp);
int case_outputs(dp_context_t *dp);
int case_outputs_arguments(dp_context_t *dp);
int case_outputs_none(dp_context_t *dp);

int case_pairs(dp_context_t *dp);
int case_pair_names(dp_context_t *dp);
int case_pair_mismatch(dp_context_t *dp);
int case_truncated(dp_context_t *dp);
int case_bad_counts(dp_context_t *dp);

int case_join(dp_context_t *dp);
int case_join_identities(dp_context_t *dp);
int case_join_left(dp_context_t *dp);
int case_join_pending(dp_context_t *dp);

int case_program_rounds(dp_context_t *dp);
int case_program_waits(dp_context_t *dp);
int case_program_now(dp_context_t *dp);
int case_program_refused(dp_context_t *dp);
int case_program_swapped(dp_context_t *dp);
int case_program_sizes(dp_context_t *dp);
int case_program_memory(dp_context_t *dp);
int case_program_cuts(dp_context_t *dp);
int case_program_now_differs(dp_context_t *dp);
int case_program_early(dp_context_t *dp);
int case_priority(dp_context_t *dp);
int case_rows_in_groups(dp_context_t *dp);

#define QUEUE_CASE_DEPTH 4 /* operations that case_queue() runs with */
int case_queue(dp_context_t *dp);
int case_run_ahead(dp_context_t *dp);
int case_streams_cross(dp_context_t *dp);
int case_stream_rules(dp_context_t *dp);

int case_gradients(dp_context_t *dp);
int case_gradients_order(dp_context_t *dp);
int case_gradients_on(dp_context_t *dp);
int case_gradients_lists(dp_context_t *dp);
int case_overflow(dp_context_t *dp);
int case_check(dp_context_t *dp);
int case_check_weights(dp_context_t *dp);

int case_shards(dp_context_t *dp);
int case_shards_halves(dp_context_t *dp);
int case_shards_hybrid(dp_context_t *dp);
int case_shards_wire(dp_context_t *dp);
int case_shards_changed(dp_context_t *dp);
int case_shards_overflow(dp_context_t *dp);
int case_shards_order(dp_context_t *dp);
int case_shards_arguments(dp_context_t *dp);
int case_shards_lists(dp_context_t *dp);
int case_shards_check(dp_context_t *dp);
int case_shards_check_copies(dp_context_t *dp);
int case_shards_prefetch(dp_context_t *dp);
int case_reduce_figures(dp_context_t *dp);
int case_joined_figures(dp_context_t *dp);
int case_names(dp_context_t *dp);
/* Element i of data = value. */
void case_store(dp_dtype_t dtype, void *data, size_t i, double value);
int case_shards_left(dp_context_t *dp);

/* ---- cases_shards_shared.c ------------------------------------------------------------------ */

int case_shards_seen(dp_context_t *dp);
int case_shards_kept(dp_context_t *dp);
int case_shards_outlived(dp_context_t *dp);

#endif
