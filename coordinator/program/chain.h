/*
 * chain.h - what a rank has submitted to an ordered group as a chain of digests, and the first
 * entry in which two histories differ.
 *
 * The ranks agree on nothing in an ordered group, so their programs must submit the same things to
 * it in the same order. Each entry's digest covers all entries before it: if two ranks have one
 * digest at one position, their programs were equal up to there.
 *
 *     position     1          2          3          4
 *     entry        act.0      act.1      a wait     act.2
 *     digest       d1=h(e1,0) d2=h(e2,d1) ...       d4 covers entries 1 to 4
 *
 * The latest DP_CHAIN_KEPT entries are kept, to say in words what differs. Called by program.c,
 * under its lock. Pure: it must not know how its bytes reach other ranks, or when.
 */
#ifndef DP_COORDINATOR_CHAIN_H
#define DP_COORDINATOR_CHAIN_H

#include "coordinator/negotiator/signature.h"

#define DP_CHAIN_KEPT 1024                           /* entries a rank can still compare */
#define DP_CHAIN_HISTORY_MAX 256                     /* entries of a history that is sent */
#define DP_CHAIN_WHAT_MAX 200                        /* bytes of an entry in words, terminated */
#define DP_CHAIN_HEARTBEAT_BYTES ((size_t)8 + 8 + 1) /* position, digest, is it the last */
#define DP_CHAIN_HISTORY_BYTES (12 + (size_t)DP_CHAIN_HISTORY_MAX * (8 + 2 + DP_CHAIN_WHAT_MAX))

/* Other properties of a submission that all ranks must share, as they decide how it is launched. */
typedef struct dp_chain_manner {
    int in_place;
    int launches_now; /* it ends its bucket */
    float absmax;     /* where it decides how fp32 travels; else 0 */
} dp_chain_manner_t;

/* One submission to the group, or, without a name, a wait that ended a bucket. */
typedef struct dp_chain_link {
    uint64_t digest;  /* of this and all before it */
    const char *name; /* borrowed: as long as the chain */
    dp_collective_t collective;
    dp_reduce_t reduce;
    dp_dtype_t dtype; /* of the first part */
    dp_wire_t wire;
    int root;
    uint32_t part_count;
    uint64_t count; /* elements of all parts */
    double prescale, postscale;
    uint64_t tag;
    dp_chain_manner_t manner;
} dp_chain_link_t;

typedef struct dp_chain {
    dp_chain_link_t *links; /* [DP_CHAIN_KEPT], position p at p % DP_CHAIN_KEPT */
    uint64_t position;      /* of the last entry, from 1 on */
    int is_final;           /* the program has finalized: no entry will follow */
} dp_chain_t;

dp_status_t dp_chain_init(dp_chain_t *chain); /* DP_ERR_NO_MEMORY */
void dp_chain_fini(dp_chain_t *chain);        /* zeroed: fine */

/* A digest of one submission: equal on all ranks that submit the same. */
uint64_t dp_chain_hash(const char *name, const dp_signature_t *signature,
                       const dp_chain_manner_t *manner);

/* Appends a submission whose hash is given; the name is borrowed. */
void dp_chain_add(dp_chain_t *chain, uint64_t hash, const char *name,
                  const dp_signature_t *signature, const dp_chain_manner_t *manner);
void dp_chain_add_wait(dp_chain_t *chain);

/* The last entry's position and digest, DP_CHAIN_HEARTBEAT_BYTES. */
void dp_chain_write_heartbeat(const dp_chain_t *chain, dp_writer_t *writer);

typedef enum dp_chain_verdict {
    DP_CHAIN_ALIKE,   /* as far as can be seen from here */
    DP_CHAIN_DIFFERS, /* the programs differ at or before the heartbeat's position */
    DP_CHAIN_LACKS,   /* the sender has finalized, and this rank has gone on */
    DP_CHAIN_BAD      /* the bytes make no sense */
} dp_chain_verdict_t;

/* The meaning of another rank's heartbeat. If LACKS, what [DP_CHAIN_WHAT_MAX] and *position say
 * which is the first entry that the sender does not have. */
dp_chain_verdict_t dp_chain_check_heartbeat(const dp_chain_t *chain, dp_reader_t *reader,
                                            char *what, uint64_t *position);

/* The latest entries in words, at most DP_CHAIN_HISTORY_BYTES. */
void dp_chain_write_history(const dp_chain_t *chain, dp_writer_t *writer);

/* Finds the first entry that differs from another rank's history; own and other [DP_CHAIN_WHAT_MAX]
 * say what it is here and there. */
dp_chain_verdict_t dp_chain_compare_history(const dp_chain_t *chain, dp_reader_t *reader,
                                            uint64_t *position, char *own, char *other);

#endif
