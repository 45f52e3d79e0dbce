/*
 * signature.h - what ranks must agree on about an operation: kind, types, shapes, scales, root.
 *
 * Pure functions: they compare two signatures, say in words where these differ, and write and read
 * them as bytes. Called by the negotiator's other files, on the thread that drives it.
 */
#ifndef DP_COORDINATOR_SIGNATURE_H
#define DP_COORDINATOR_SIGNATURE_H

#include "runtime/base/wire.h"
#include "runtime/engine/engine.h"

typedef struct dp_signature_part {
    uint64_t count;
    dp_dtype_t dtype;
} dp_signature_part_t;

typedef struct dp_signature {
    dp_collective_t collective;
    dp_reduce_t reduce;
    dp_wire_t wire; /* resolved */
    int root;       /* a rank of the group; send: the source; -1 where none */
    int peer;       /* send: the destination, a rank of the group; else -1 */
    int is_grouped;
    int count_joined; /* averages divide by the group's size even where ranks have joined */
    double prescale, postscale;
    uint64_t tag;        /* the program's own, as a digest of shapes; 0: none */
    uint32_t part_count; /* 1 unless grouped; a barrier has 0; reduce_scatterv: one per rank */
    const dp_signature_part_t *parts; /* [part_count]; count 0 where ranks need not agree on it */
    uint32_t member_count;            /* group_create only, else 0 */
    const int32_t *members;           /* [member_count] ranks of the world, ascending */
    const char *group_name; /* group_create only, for texts, not compared; NULL: the entry's name */
} dp_signature_t;

int dp_signature_equal(const dp_signature_t *a, const dp_signature_t *b);

/* The first difference in words, as two values: field "count", "768" and "1024"; for grouped lists
 * "count of tensor 3". Texts are cut to room. */
void dp_signature_difference(const dp_signature_t *a, const dp_signature_t *b, char *field,
                             char *value_a, char *value_b, size_t room);

/* Bytes of the operation's tensors, with all ranks' rows where there are some, for DP_FUSION_BYTES.
 * UINT64_MAX where that is too much: ranks may submit any count. */
uint64_t dp_signature_payload(const dp_signature_t *signature, int ranks);

void dp_signature_write(const dp_signature_t *signature, dp_writer_t *writer);
size_t dp_signature_bytes(const dp_signature_t *signature); /* what write() will need */
/* A copy whose lists are malloc()ed with it; free() it. NULL when malformed or out of memory;
 * *status says which. The text of a name is cut to DP_GROUP_NAME_MAX. */
dp_signature_t *dp_signature_read(dp_reader_t *reader, dp_status_t *status);
dp_signature_t *dp_signature_copy(const dp_signature_t *signature);

#endif
