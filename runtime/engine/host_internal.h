/*
 * host_internal.h - what the files of the host engine share: the engine and one running operation.
 */
#ifndef DP_ENGINE_HOST_INTERNAL_H
#define DP_ENGINE_HOST_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/engine/engine.h"
#include "runtime/engine/host_control.h"
#include "runtime/engine/host_layout.h"
#include "runtime/engine/host_link.h"
#include "runtime/shm/arena.h"

/* Up to this many bytes of input an operation inside a host takes one meet instead of two: every
 * rank publishes its input and computes all of the result. Then n ranks read n inputs each. */
#define DP_EAGER_BYTES ((size_t)4 * DP_KIB)
#define DP_EAGER_TOTAL ((size_t)32 * DP_KIB)

typedef struct dp_host_engine dp_host_engine_t;
typedef struct dp_between dp_between_t;

/* An operation handed to a stream. */
typedef struct dp_host_task {
    dp_host_engine_t *engine;
    dp_engine_op_t *op;
    struct dp_host_task *next;
} dp_host_task_t;

/* This rank's memory that the others read, for operations with even and odd numbers in turn. */
typedef struct dp_host_board {
    dp_control_piece_t *pieces; /* [room] */
    dp_tally_t *tallies;        /* [room] */
    size_t room;
    char *eager; /* [DP_EAGER_BYTES] */
} dp_host_board_t;

struct dp_host_engine {
    dp_engine_t base;
    const dp_topology_t *topology; /* borrowed */
    dp_device_t *device;           /* borrowed */
    const dp_log_t *log;           /* borrowed */
    dp_trace_lane_t *lane;         /* NULL: not recorded */
    int rank, size;
    int host, host_count;
    int local_rank, local_size;
    const int *local_ranks; /* [local_size] world ranks of this host, borrowed */
    dp_arena_t *arena;
    dp_link_t *link;       /* NULL inside one host */
    dp_between_t *between; /* buffers for traffic between hosts; NULL likewise */

    _Atomic int is_aborted; /* set after the two below; pairs with acquire loads */
    pthread_mutex_t abort_lock;
    dp_status_t abort_status; /* guarded by abort_lock */
    char abort_text[DP_ERROR_TEXT_MAX];

    pthread_mutex_t task_lock;
    dp_host_task_t *tasks; /* guarded by task_lock; for using again */

    /* guarded by run_lock: one operation at a time */
    pthread_mutex_t run_lock;
    uint64_t op_index; /* 1, 2, 3, ...: equal on all ranks */
    dp_control_t control;
    dp_layout_t layout;
    dp_host_board_t boards[2];
    const void **ins;   /* [max(local_size, host_count)] pointers for the kernels */
    void **outs;        /* likewise */
    dp_engine_op_t *op; /* the running one */
    dp_error_t failure; /* why it fails */
};

/* Inside the host. Both meet the others first and return when this rank's result is complete. */
dp_status_t dp_host_local_run(dp_host_engine_t *engine, dp_engine_op_t *op);

/* Between hosts. */
dp_status_t dp_host_between_run(dp_host_engine_t *engine, dp_engine_op_t *op);
dp_status_t dp_between_create(dp_host_engine_t *engine, dp_between_t **out, dp_error_t *error);
void dp_between_find_partners(dp_host_engine_t *engine); /* once the link is connected */
void dp_between_destroy(dp_between_t *between);          /* after the link; NULL is fine */

/* ---- Steps both are made of (host.c) ----------------------------------------------------------
 */

/* Tells the others about op and waits until all of the host have come to it. */
dp_status_t dp_host_arrive(dp_host_engine_t *engine, dp_engine_op_t *op, int is_eager);
/* Waits until all of the host have come as far. */
dp_status_t dp_host_meet(dp_host_engine_t *engine);

static inline int dp_host_parity(const dp_host_engine_t *engine)
{
    return (int)(engine->op_index & 1);
}

static inline dp_control_slot_t *dp_host_slot(const dp_host_engine_t *engine, int local)
{
    return &engine->control.ranks[local].slots[dp_host_parity(engine)];
}

/* 1 when some rank of this host wants the figures of op, which are taken for float sums only. */
int dp_host_wants_tally(const dp_host_engine_t *engine, const dp_engine_op_t *op);

/* Where element `element` of a piece's input or output lies in local rank `local`; NULL: not in its
 * arena. */
const void *dp_host_in(const dp_host_engine_t *engine, int local, size_t piece, size_t element,
                       size_t count, size_t elem_bytes);
void *dp_host_out(const dp_host_engine_t *engine, int local, size_t piece, size_t element,
                  size_t count, size_t elem_bytes);

/* Clears this rank's published figures of the pieces that a range touches. */
void dp_host_clear_tallies(dp_host_engine_t *engine, dp_range_t range);
/* Where to add those of a piece; NULL when `wanted` is 0. */
dp_tally_t *dp_host_tally(dp_host_engine_t *engine, size_t piece, int wanted);
/* Adds what local rank `local` published about a range to op's tallies. */
dp_status_t dp_host_add_tallies(dp_host_engine_t *engine, dp_engine_op_t *op, int local,
                                dp_range_t range);

/* What integers are divided by after the sum; 0: nothing. */
int64_t dp_host_divisor(const dp_host_engine_t *engine, const dp_engine_op_t *op);

/* Copies the input of a rank of this host to row `row` of op's outputs. */
dp_status_t dp_host_copy_row(dp_host_engine_t *engine, dp_engine_op_t *op, int local, size_t row);

/* Notes why the running operation fails; is the status. */
#define dp_host_fail(engine, status, ...) dp_error_set(&(engine)->failure, status, __VA_ARGS__)
/* For an offset outside of the arena of a local rank. */
dp_status_t dp_host_bad_offset(dp_host_engine_t *engine, int local);

#endif
