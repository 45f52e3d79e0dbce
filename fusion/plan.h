/*
 * plan.h - decides which ready tensors share one fused transfer.
 *
 * Pure arithmetic: what one LAUNCH lists goes in, buckets of pieces come out, equal on every rank
 * because the input is. It must not know about threads, devices, sockets or configuration.
 */
#ifndef DP_FUSION_PLAN_H
#define DP_FUSION_PLAN_H

#include "runtime/engine/engine.h"

/* One tensor that every rank has submitted, in the global order. */
typedef struct dp_plan_entry {
    dp_collective_t collective;
    dp_dtype_t dtype;
    dp_reduce_t reduce;
    dp_wire_t wire; /* resolved: never DEFAULT */
    int root;
    size_t count; /* as in dp.h: of one row for allgather and reduce_scatter */
    int in_place; /* on every rank the memory that must be the engine's is */
    int divisor;  /* what the average of integers is divided by; else 0 */
} dp_plan_entry_t;

typedef struct dp_plan_limits {
    size_t buffer_bytes; /* room of one fused buffer */
    size_t alignment;    /* of pieces in a fused buffer, bytes */
    int ranks;           /* of the group */
    int casts;           /* 1: fused buffers hold the wire's type, as the engine cannot compress */
} dp_plan_limits_t;

/* A part of an entry. */
typedef struct dp_plan_piece {
    size_t entry;         /* index into the entries */
    size_t first;         /* element (of a row) where the part begins; multiple of DP_TALLY_BLOCK */
    size_t count;         /* elements (of a row) */
    size_t buffer_offset; /* bytes into each row of the fused buffer; 0 when in place */
} dp_plan_piece_t;

/*
 * Pieces that travel as one engine operation. Their fused buffer has one row, or, for a
 * reduce_scatter, one for each rank, so that the bytes for a rank lie together:
 *
 *     rank 0's row          rank 1's row
 *     piece 0 | piece 1 |   piece 0 | piece 1 |   ...        a row begins every row_bytes
 */
typedef struct dp_plan_bucket {
    dp_collective_t collective;
    dp_dtype_t dtype, buffer_dtype; /* of the tensors; of the elements in the fused buffer */
    dp_reduce_t reduce;
    dp_wire_t wire;
    int root; /* of a reduce: of its first entry; the others may have another */
    int in_place;
    int divisor;
    size_t piece_begin; /* into the plan's pieces */
    size_t piece_count;
    size_t payload_bytes;
    size_t row_bytes, buffer_bytes; /* of one row and of all; 0 when in place */
} dp_plan_bucket_t;

typedef struct dp_plan {
    dp_plan_bucket_t *buckets; /* [bucket_count], in launch order */
    size_t bucket_count;
    dp_plan_piece_t *pieces; /* [piece_count], by bucket */
    size_t piece_count;
    size_t bucket_room, piece_room; /* capacities, reused by the next plan */
    unsigned char *taken;           /* [entry_room] scratch: entries that have their bucket */
    size_t entry_room;
} dp_plan_t;

/*
 * Fills plan (zero-initialised before its first use; memory is reused). Neighbours in the order
 * that agree in collective, dtype, reduction, wire, root (reduce: any), divisor and in_place share
 * a bucket while they fit a fused buffer; entries that differ may be looked past (an order that is
 * a pure function of the entries). In-place pieces need no fused buffer and share a bucket up to
 * buffer_bytes of payload. An entry too large for a fused buffer is cut into parts unless in place.
 * Empty entries get no piece. A tensor that travels alone, empty or not, gets a bucket with one
 * piece and no fused buffer; its count, which ranks need not agree on, decides nothing.
 *
 * @return DP_OK
 *         DP_ERR_INVALID    a buffer is too small for DP_TALLY_BLOCK elements of an entry, or an
 *                           entry's bytes do not fit size_t; the plan is empty
 *         DP_ERR_NO_MEMORY  likewise
 */
dp_status_t dp_plan_make(dp_plan_t *plan, const dp_plan_entry_t *entries, size_t count,
                         const dp_plan_limits_t *limits);
void dp_plan_fini(dp_plan_t *plan);

/* 1 for exchanges, and for what makes and ends groups: nothing shares a bucket with them. */
int dp_plan_is_alone(dp_collective_t collective);

/* The smallest fused buffer every entry of a world this large can be cut to. */
size_t dp_plan_least_buffer_bytes(int ranks);

/*
 * The wire for a tensor whose previous raw sum (before postscale) had this largest magnitude, and
 * the power-of-two scale under which it travels, which costs no rounding: negative or NaN: never
 * seen, Inf: it overflowed. Then, and for 0, fp16 travels uncompressed once. bf16 has the range of
 * fp32 and always travels with exponent 0.
 */
dp_wire_t dp_plan_wire(dp_wire_t wanted, float last_absmax, int *exponent);

#endif
