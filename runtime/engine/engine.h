/*
 * engine.h - collectives, enqueued on a device stream and completed in stream order.
 *
 * Every rank of the world enqueues the same operations in the same order (the coordinator's doing).
 * An engine owns the memory it can reduce in: slots and dp_alloc() come from it.
 */
#ifndef DP_ENGINE_H
#define DP_ENGINE_H

#include "kernels/kernels.h"
#include "runtime/base/config.h"
#include "runtime/device/device.h"
#include "runtime/group/bootstrap.h"
#include "runtime/group/topology.h"
#include "runtime/trace/trace.h"

typedef struct dp_engine dp_engine_t;

typedef enum dp_collective {
    DP_COLLECTIVE_ALLREDUCE = 0,
    DP_COLLECTIVE_BROADCAST = 1,
    DP_COLLECTIVE_ALLGATHER = 2,
    DP_COLLECTIVE_REDUCE_SCATTER = 3,
    DP_COLLECTIVE_BARRIER = 4,
    DP_COLLECTIVE_COUNT = 5
} dp_collective_t;

const char *dp_collective_name(dp_collective_t collective); /* "allreduce" */

/*
 * One tensor, or a part of one, inside an operation. Parts start at a multiple of DP_TALLY_BLOCK
 * elements from the tensor's start.
 *                 in                                     out
 * allreduce       [count] engine memory                  [count] engine memory, may equal in
 * broadcast       [count] engine memory (root only)      [count] any memory
 * allgather       [count] engine memory                  row r at out + r * stride elements, any
 * reduce_scatter  row r at in + r * stride, engine mem.  [count] any memory
 */
typedef struct dp_engine_piece {
    const void *in;
    void *out;
    size_t count;
    size_t stride; /* elements between rows */
    double prescale;
    double postscale;  /* 1/ranks already folded in for the average of floats */
    int exponent;      /* compressed wires: elements travel times 2^exponent */
    dp_tally_t *tally; /* float sums of allreduce and reduce_scatter: of the whole result (all
                          rows), equal on all ranks; added to; NULL: not wanted */
} dp_engine_piece_t;

typedef struct dp_engine_op {
    dp_collective_t collective;
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    dp_wire_t wire;    /* NONE, FP16 or BF16; the latter only with DP_F32 sums and averages */
    int root;          /* broadcast: a rank of the world */
    uint64_t sequence; /* 1, 2, 3, ... in the global order, for errors and the timeline */
    dp_engine_piece_t *pieces; /* [piece_count], borrowed until completion */
    size_t piece_count;
    /* set at completion */
    dp_status_t status;
    char text[DP_ERROR_TEXT_MAX]; /* why it failed */
    uint64_t begin_ns, end_ns;    /* when it ran */
    uint64_t wait_ns;             /* of that, waiting for other ranks to arrive */
    int last_rank;                /* who arrived last; -1: nobody was waited for */
    uint64_t wire_bytes;          /* sent to other machines by this rank */
} dp_engine_op_t;

typedef struct dp_engine_ops {
    const char *name; /* "host" */
    int compresses;   /* 1: handles op.wire itself; 0: slots hold the wire type, pack casts */
    /* Zeroed, 4096-aligned. Any thread. */
    dp_status_t (*alloc)(dp_engine_t *self, size_t bytes, void **memory);
    dp_status_t (*free)(dp_engine_t *self, void *memory);
    /* 1 when the memory can be used in place. Any thread. */
    int (*owns)(const dp_engine_t *self, const void *memory, size_t bytes);
    /* Enqueues; op is borrowed until the stream has passed it. Data-plane thread only. */
    dp_status_t (*enqueue)(dp_engine_t *self, dp_stream_t *stream, dp_work_size_t size,
                           dp_engine_op_t *op);
    /* Makes running and later operations fail with this, soon. Any thread, any number of times. */
    void (*abort)(dp_engine_t *self, dp_status_t status, const char *text);
    /* After abort or after all operations are done. */
    void (*destroy)(dp_engine_t *self);
} dp_engine_ops_t;

struct dp_engine {
    const dp_engine_ops_t *ops;
};

/* Collective. Shared memory inside a host, UCX between hosts. All arguments are borrowed until
 * destroy; trace may be NULL. */
dp_status_t dp_engine_host_create(dp_bootstrap_t *bootstrap, const dp_topology_t *topology,
                                  dp_device_t *device, const dp_config_t *config,
                                  const dp_log_t *log, dp_trace_t *trace, dp_engine_t **out,
                                  dp_error_t *error);
void dp_engine_destroy(dp_engine_t *engine); /* NULL is fine */

#endif
