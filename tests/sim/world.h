/*
 * world.h - a world of negotiators without machines: edges are queues, requests are counted.
 *
 * Both the simulator, which lets seeded random delays decide what happens next, and the explorer,
 * which tries everything, drive one. It checks what must hold at every moment: one order on all
 * ranks, each request handed back exactly once, nobody launches before all have submitted. A
 * violation is told to the owner's callback, which knows how to replay it.
 */
#ifndef DP_TESTS_SIM_WORLD_H
#define DP_TESTS_SIM_WORLD_H

#include "coordinator/negotiator.h"

#define WORLD_TEXT_MAX 512

/* One submission of one rank: request pointers point here. */
typedef struct world_request {
    int rank, tensor;
    int occurrence; /* of the pending submission, 0, 1, 2, ... */
    int is_pending;
} world_request_t;

/* A message under way; is_loss: the other end is gone, nothing follows. */
typedef struct world_message {
    struct world_message *next;
    uint64_t deliver_ns;
    int is_loss;
    size_t bytes;
    uint8_t data[];
} world_message_t;

typedef struct world_edge {
    int from, to;
    world_message_t *first, **last;
    uint64_t last_ns; /* when the newest message arrives: nothing overtakes it */
    uint64_t sent;    /* messages */
} world_edge_t;

typedef struct world_rank {
    dp_negotiator_t *negotiator;
    dp_tree_node_t node;
    int is_dead, is_finished, is_fatal;
    dp_status_t fatal_status;
    int fatal_culprit;
    char fatal_text[WORLD_TEXT_MAX];
    uint64_t launches; /* sequences seen */
    int pending;       /* requests not handed back */
    int failures;      /* requests that failed */
    int warnings;
    char last_failure[WORLD_TEXT_MAX], last_warning[WORLD_TEXT_MAX];
    dp_status_t last_failure_status;
    world_request_t *requests; /* [tensors] */
    int *submitted;            /* [tensors] times */
} world_rank_t;

/* How an occurrence ended, first as seen by any rank, then checked on all others. */
typedef struct world_outcome {
    int is_known;
    dp_status_t status;
    uint64_t sequence; /* where it was launched */
    float absmax;
    int in_place;
} world_outcome_t;

typedef struct world_options {
    int size, tensors, occurrences; /* at most this many of each tensor */
    int arity, hosts;
    uint64_t hold_ns, stall_warn_ns, stall_limit_ns;
    size_t fusion_bytes;
    void *user;
    /* Must not return. */
    void (*violated)(void *user, const char *text);
    /* A message was queued: says when it arrives (may be NULL: 0). */
    uint64_t (*delay)(void *user, world_edge_t *edge);
    /* This rank was told to launch (may be NULL). */
    void (*launched)(void *user, int rank, uint64_t sequence);
} world_options_t;

typedef struct world {
    world_options_t options;
    dp_topology_t topology;
    world_rank_t *ranks;
    world_edge_t *edges; /* two per rank but 0: up, down */
    int edge_count;
    world_outcome_t *outcomes; /* [tensors][occurrences] */
    uint64_t messages, bytes;
    size_t under_way;
} world_t;

void world_init(world_t *world, const world_options_t *options);
void world_fini(world_t *world);

/* A signature: a sum of count floats. */
void world_signature(dp_signature_t *signature, dp_signature_part_t *part, uint64_t count);

/* The name of a tensor. */
const char *world_name(int tensor, char name[32]);

/* Submits the next occurrence; the world's checks count it. */
void world_submit(world_t *world, int rank, int tensor, uint64_t count, int is_urgent, float absmax,
                  uint64_t now_ns);
/* Takes all outputs of a rank: sends go into the edges. */
void world_drain(world_t *world, int rank);
/* Hands the oldest message of an edge to its receiver, without taking its outputs. */
void world_deliver(world_t *world, int edge, uint64_t now_ns);
/* The rank is gone: what it sent and keep says goes on, then its neighbours see the loss. */
void world_kill(world_t *world, int rank, size_t keep);
int world_is_deaf(const world_t *world, int rank); /* dead, or its world is over */

void world_violation(world_t *world, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
