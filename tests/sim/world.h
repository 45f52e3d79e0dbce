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

#include "coordinator/negotiator/negotiator.h"

#define WORLD_TEXT_MAX 512
#define WORLD_MEMBERS_MAX 300

/* A set of ranks that work together: group 0 is the world. A group is made and ended by tensors of
 * its own, any number of times. */
typedef struct world_group {
    int count;
    int32_t ranks[WORLD_MEMBERS_MAX]; /* [count] of the world, ascending */
} world_group_t;

typedef struct world_tensor {
    int group;
    dp_collective_t collective;
    int root, peer; /* ranks of the group */
    int name;       /* unique in the group */
} world_tensor_t;

/* One submission of one rank: request pointers point here. */
typedef struct world_request {
    int rank, tensor; /* tensor: -1: a join */
    int group;
    int occurrence; /* of the pending submission, 0, 1, 2, ... */
    int is_pending;
} world_request_t;

/* A launch in which a rank that has joined gives the identity. */
typedef struct world_identity {
    int tensor;
    uint64_t place;
} world_identity_t;

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
    dp_tree_links_t links;
    int is_dead, is_finished, is_fatal;
    dp_status_t fatal_status;
    int fatal_culprit;
    char fatal_text[WORLD_TEXT_MAX];
    uint64_t launches; /* sequences seen */
    uint64_t *order;   /* [order_count] launches, as they were told */
    size_t order_count, order_room;
    int pending;  /* requests not handed back */
    int failures; /* requests that failed */
    int warnings;
    char last_failure[WORLD_TEXT_MAX], last_warning[WORLD_TEXT_MAX];
    dp_status_t last_failure_status;
    world_request_t *requests;      /* [tensors] */
    int *submitted;                 /* [tensors] times, or skipped */
    float *magnitudes;              /* [tensors][occurrences] as they were submitted */
    uint8_t *in_place;              /* [tensors][occurrences] likewise: data that may stay there */
    int32_t *priorities;            /* [tensors][occurrences] likewise */
    int32_t priority;               /* of what it submits from now on */
    uint8_t *skipped;               /* [tensors][occurrences] this rank had joined */
    world_request_t *joins;         /* [groups] */
    int *alive;                     /* [groups] made, as this rank knows */
    uint32_t *uids, *group_indices; /* [groups] since then */
    int *pending_in;                /* [groups] requests not handed back */
    world_identity_t *identities;
    size_t identity_count, identity_room;
} world_rank_t;

/* How an occurrence ended, first as seen by any rank, then checked on all others. */
typedef struct world_outcome {
    int is_known;  /* its status is */
    int is_placed; /* what follows is */
    dp_status_t status;
    uint64_t sequence; /* where it was launched */
    float absmax;
    int in_place;
    uint32_t group; /* number it was launched in */
    uint32_t group_index;
} world_outcome_t;

typedef struct world_options {
    int size, tensors, occurrences; /* at most this many of each tensor */
    int arity, nodes;
    int group_count;             /* 0: only the world */
    const world_group_t *groups; /* [group_count]; the first is not read */
    const world_tensor_t *kinds; /* [tensors]; NULL: reductions over the world */
    uint64_t hold_ns, stall_warn_ns, stall_limit_ns, finalize_limit_ns;
    uint64_t timeout_ns; /* of each submission; 0: none */
    size_t fusion_bytes;
    size_t names_kept;
    int checks_priorities; /* nothing but flushes orders launches: no joins */
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
    world_outcome_t *joined;   /* [groups][occurrences]: in sequence the last rank */
    uint64_t messages, bytes;
    size_t under_way;
    int is_parting;       /* a rank has finalized, so the root may launch before a flush */
    uint64_t overtakings; /* launches behind ones of a higher priority, at one moment */
} world_t;

void world_init(world_t *world, const world_options_t *options);
void world_fini(world_t *world);

/* A signature: a sum of count floats. */
void world_signature(dp_signature_t *signature, dp_signature_part_t *part, uint64_t count);

/* The name of a tensor. */
const char *world_name(int tensor, char name[32]);

world_tensor_t world_kind(const world_t *world, int tensor);
int world_has_member(const world_t *world, int group, int rank);
int world_takes_part(const world_t *world, int tensor, int rank);
/* Are the ranks of this tensor below the lower end of an edge, or at it? How many of them. */
int world_below(const world_t *world, int edge, int tensor);

/* Joins a group; this rank's occurrences of its tensors up to `until` are left to the others. */
void world_join(world_t *world, int rank, int group, int until, uint64_t now_ns);
/* Checks that hold once all is over and no rank died: ranks that had joined were told of every
 * launch. */
void world_check_identities(world_t *world);

/* Ranks whose data planes carry out one launch after the other, each when all who were told of it
 * have come to it, get to the end of what they were told so far. */
/* How many ranks hang below the lower end of an edge, and that end itself. */
uint64_t world_ranks_below(const world_t *world, int edge);
void world_check_order(world_t *world);

/* Submits the next occurrence; the world's checks count it. */
void world_submit(world_t *world, int rank, int tensor, uint64_t count, int is_urgent, float absmax,
                  uint64_t now_ns);
/* Takes all outputs of a rank: sends go into the edges. */
void world_drain(world_t *world, int rank);
/* Hands the oldest message of an edge to its receiver, without taking its outputs. */
void world_deliver(world_t *world, int edge, uint64_t now_ns);
/* Takes all outputs and delivers all messages, until nothing is under way. */
void world_settle(world_t *world, uint64_t now_ns);
/* The rank is gone: what it sent and keep says goes on, then its neighbours see the loss. */
void world_kill(world_t *world, int rank, size_t keep);
int world_is_deaf(const world_t *world, int rank); /* dead, or its world is over */

void world_violation(world_t *world, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
