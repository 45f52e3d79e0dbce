/*
 * strategy_dp.h - what the strategies on libdp share (strategy_coordinator.c, strategy_sps.c).
 */
#ifndef GPT2_STRATEGY_DP_H
#define GPT2_STRATEGY_DP_H

#include "dp.h"
#include "examples/gpt2/strategy/strategy.h"

/* The first member of each of their objects. */
typedef struct gpt2_dp {
    gpt2_strategy_t base;
    dp_context_t *context;
    uint64_t step; /* the one that has begun */
} gpt2_dp_t;

/* Joins the other ranks and fills in self; leaves them. */
int gpt2_dp_join(gpt2_dp_t *self, const gpt2_strategy_ops_t *ops, dp_order_t order,
                 gpt2_error_t *error);
int gpt2_dp_leave(gpt2_dp_t *self, gpt2_error_t *error);

/* Returns -1 with libdp's text for the status. */
int gpt2_dp_failed(const gpt2_dp_t *self, const char *what, dp_status_t status,
                   gpt2_error_t *error);
/* Waits for an operation that was just submitted, with this status. */
int gpt2_dp_finish(const gpt2_dp_t *self, const char *what, dp_status_t status, dp_handle_t *handle,
                   gpt2_error_t *error);
/* Of the name in the settings. */
dp_wire_t gpt2_dp_wire(const char *name);

/* Entries of gpt2_strategy_ops_t. */
void gpt2_dp_abort(gpt2_strategy_t *base, const char *reason);
void *gpt2_dp_alloc(gpt2_strategy_t *base, size_t bytes);
void gpt2_dp_free(gpt2_strategy_t *base, void *memory);
int gpt2_dp_sum(gpt2_strategy_t *base, double *values, size_t count, gpt2_error_t *error);
int gpt2_dp_equal(gpt2_strategy_t *base, uint64_t value, int *same, gpt2_error_t *error);
int gpt2_dp_broadcast(gpt2_strategy_t *base, int root, void *data, size_t bytes,
                      gpt2_error_t *error);
void gpt2_dp_step_begin(gpt2_strategy_t *base, uint64_t step);
void gpt2_dp_step_end(gpt2_strategy_t *base);
void gpt2_dp_span_begin(gpt2_strategy_t *base, const char *name, void *stream);
void gpt2_dp_span_end(gpt2_strategy_t *base, void *stream);
void gpt2_dp_traffic(gpt2_strategy_t *base, gpt2_traffic_t *out);
const char *gpt2_dp_setting(gpt2_strategy_t *base, const char *name);

#endif
