/*
 * strategy.h - how the ranks of a run cooperate, as one table; strategy_<name>.c each.
 *
 * The trainer calls only this. A strategy averages gradients, gives the memory they lie in, and
 * carries the few numbers that ranks share. Functions that can fail return 0 or -1 with the cause.
 */
#ifndef GPT2_STRATEGY_H
#define GPT2_STRATEGY_H

#include <stdint.h>

#include "examples/gpt2/model/replica.h"

typedef struct gpt2_strategy gpt2_strategy_t;

typedef struct gpt2_strategy_settings {
    const char *wire; /* "none", "fp16", "bf16", or "default": as configured */
    int accumulate;   /* backward passes per sync */
    double clip;      /* largest global norm; 0: no clipping */
} gpt2_strategy_settings_t;

/* Communication so far, on this rank. */
typedef struct gpt2_traffic {
    uint64_t wait_ns;     /* blocked in the library */
    uint64_t skew_ns;     /* of that, waiting for a rank that was not ready */
    uint64_t transfer_ns; /* data was moving, hidden or not */
    uint64_t wire_bytes;  /* sent to other machines */
} gpt2_traffic_t;

typedef struct gpt2_strategy_ops {
    const char *name;
    int takes_rows; /* 1: a replica's rows may lie apart */
    /* Joins the other ranks and fills in rank and size. */
    int (*create)(gpt2_strategy_t **out, gpt2_error_t *error);
    /* Leaves the other ranks and frees self, also where it returns -1. */
    int (*destroy)(gpt2_strategy_t *self, gpt2_error_t *error);
    /* Tells the other ranks why this one gives up. */
    void (*abort)(gpt2_strategy_t *self, const char *reason);

    /* Memory for gradients: zeroed, on the device; NULL where there is none left. Both entries
     * NULL: the replica brings its own. */
    void *(*alloc)(gpt2_strategy_t *self, size_t bytes);
    void (*free)(gpt2_strategy_t *self, void *memory);

    /* Registers the replica's gradients and makes all weights equal to rank 0's. Called once. */
    int (*attach)(gpt2_strategy_t *self, gpt2_replica_t *replica,
                  const gpt2_strategy_settings_t *settings, gpt2_error_t *error);
    /* Gradients first .. first+count-1 of the layout, or the rows, are complete; called in every
     * backward pass. */
    int (*ready)(gpt2_strategy_t *self, size_t first, size_t count, gpt2_error_t *error);
    /* After the last pass: makes every gradient the sum over passes and ranks, divided by
     * divisor, on the ranks that update. Blocks until then, or makes the replica's stream wait. */
    int (*sync)(gpt2_strategy_t *self, gpt2_sync_t *sync, gpt2_error_t *error);

    /* After an update: sends the weights from the rank that updated to all others. NULL: every
     * rank updates its own, and there is nothing to send. */
    int (*publish)(gpt2_strategy_t *self, gpt2_error_t *error);

    /* values [count] = their sums over all ranks. */
    int (*sum)(gpt2_strategy_t *self, double *values, size_t count, gpt2_error_t *error);
    /* *same = 1 where every rank has this value. */
    int (*equal)(gpt2_strategy_t *self, uint64_t value, int *same, gpt2_error_t *error);
    /* data [bytes] becomes rank 0's; host memory, or the device's. */
    int (*broadcast)(gpt2_strategy_t *self, void *data, size_t bytes, gpt2_error_t *error);

    /* Marks for the timeline. */
    void (*step_begin)(gpt2_strategy_t *self, uint64_t step);
    void (*step_end)(gpt2_strategy_t *self);
    void (*span_begin)(gpt2_strategy_t *self, const char *name);
    void (*span_end)(gpt2_strategy_t *self);
    void (*traffic)(gpt2_strategy_t *self, gpt2_traffic_t *traffic);
    /* A setting in force, e.g. "TIMELINE"; NULL or "" where there is none. */
    const char *(*setting)(gpt2_strategy_t *self, const char *name);
} gpt2_strategy_ops_t;

/* What every strategy's object begins with. */
struct gpt2_strategy {
    const gpt2_strategy_ops_t *ops;
    int rank;
    int size;
    double divisor; /* set by attach: sync divides the sums by it, so losses are weighted with it */
    int is_follower; /* 1: the weights come by publish(), this rank does not update them */
};

extern const gpt2_strategy_ops_t gpt2_strategy_single;
#if defined(GPT2_WITH_DP)
extern const gpt2_strategy_ops_t gpt2_strategy_coordinator;
extern const gpt2_strategy_ops_t gpt2_strategy_dps;
extern const gpt2_strategy_ops_t gpt2_strategy_sps;
#endif

/* The strategy of that name, or NULL with the error; NULL name: the first, the default. */
const gpt2_strategy_ops_t *gpt2_strategy_find(const char *name, gpt2_error_t *error);

#endif
