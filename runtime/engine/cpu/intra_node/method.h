/*
 * method.h - which of two ways large tensors of ordinary memory take inside a node: measured.
 *
 * Reading the others' memory (intra_node/pull.c) costs system calls and two passes over cold
 * memory; handing pieces over (intra_node/stage.c) costs one of them and a way through the caches
 * of two cores. Which is faster depends on where the cores sit and on who else uses the memory, so
 * one rank of a group times both and says which, and now and then tries the other again. Both give
 * the same bits. Pure: it must not know of clocks or ranks.
 */
#ifndef DP_ENGINE_CPU_METHOD_H
#define DP_ENGINE_CPU_METHOD_H

#include <stddef.h>
#include <stdint.h>

/* Below this pulling is as good near, and better far. */
#define DP_METHOD_LEAST_BYTES ((size_t)4 << 20)
#define DP_METHOD_SIZE_CLASSES 3

typedef enum dp_method { DP_METHOD_PULL, DP_METHOD_STAGING, DP_METHOD_COUNT } dp_method_t;

/* Zeros at the start. */
typedef struct dp_method_stats {
    struct {
        double cost[DP_METHOD_COUNT];  /* ns per byte, of late */
        uint64_t count;                /* operations that were noted */
    } classes[DP_METHOD_SIZE_CLASSES]; /* by size */
} dp_method_stats_t;

/* For the next operation of this size. */
dp_method_t dp_method_choose(const dp_method_stats_t *methods, size_t bytes);
/* What one took that went this way. */
void dp_method_record(dp_method_stats_t *methods, dp_method_t method, size_t bytes, uint64_t ns);

#endif
