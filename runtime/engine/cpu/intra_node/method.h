/*
 * method.h - chooses between the two methods for large tensors of ordinary memory inside a node, by
 * measuring both.
 *
 * Reading the others' memory (pull.c) costs system calls and two passes over cold memory. Staging
 * pieces in shared memory (stage.c) costs one pass, and the caches of two cores. Which is faster
 * depends on where the cores sit and on what else uses the memory. So the first rank of a group
 * times both, says in its descriptor which one is used, and tries the other one again now and then.
 * Both give the same bits. Pure: it must not know of clocks or ranks.
 */
#ifndef DP_ENGINE_CPU_METHOD_H
#define DP_ENGINE_CPU_METHOD_H

#include <stddef.h>
#include <stdint.h>

#define DP_METHOD_LEAST_BYTES ((size_t)128 << 10) /* below this: pulling */
#define DP_METHOD_SIZE_CLASSES 6                  /* each four times as large as the one before */

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
/* Records how long an operation took by a method. */
void dp_method_record(dp_method_stats_t *methods, dp_method_t method, size_t bytes, uint64_t ns);

#endif
