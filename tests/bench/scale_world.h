/*
 * scale_world.h - very many ranks of the negotiator over a network whose every message costs time.
 *
 * Where tests/sim/world.h is made to find mistakes, this one is made for size: no random delays, no
 * misfortunes, one word of state where that one keeps tables. What a message costs is charged, in
 * virtual time, to the one thread of the rank that sends it and to that of the rank that takes it,
 * so a rank that hears from many is late.
 */
#ifndef DP_TESTS_SCALE_WORLD_H
#define DP_TESTS_SCALE_WORLD_H

#include "coordinator/negotiator/negotiator.h"

typedef struct scale_options {
    int size, ranks_per_node, arity;
    int tensors;
    uint64_t message_ns; /* to send one or to take one: what else waits meanwhile */
    uint64_t latency_ns; /* of the wire between nodes */
    uint64_t local_latency_ns;
    double byte_ns; /* each byte of a message adds to message_ns, on both sides */
} scale_options_t;

/* A frame, which many ranks may have sent alike. */
typedef struct scale_frame {
    uint32_t users;
    size_t bytes;
    uint8_t data[];
} scale_frame_t;

typedef struct scale_message {
    struct scale_message *next;
    int from;
    scale_frame_t *frame;
} scale_message_t;

typedef struct scale_rank {
    dp_negotiator_t *negotiator;
    dp_tree_links_t links;
    scale_message_t *first, **last; /* arrived, not taken yet */
    uint64_t busy_ns;               /* its thread is at work until then */
    int will_run;
    int64_t allocated; /* bytes its negotiator holds, with what malloc adds to them */
    /* Since scale_begin(): */
    uint32_t sent, received;
    uint64_t bytes;           /* both ways */
    uint32_t received_before; /* the last submission */
    uint32_t waited;          /* messages received between a submission and its launches, at most */
    uint32_t launched;        /* tensors */
    uint32_t noted;           /* goodbyes */
    uint64_t order;           /* a digest of the launches, their places and their tensors */
} scale_rank_t;

typedef struct scale_event {
    uint64_t at_ns, number;
    int rank;
    scale_message_t *message; /* NULL: the rank goes to work */
} scale_event_t;

typedef struct scale_world {
    scale_options_t options;
    dp_topology_t topology; /* one for all; a real rank has its own */
    scale_rank_t *ranks;
    uint8_t *requests; /* [tensors + 1]: a request is an address here, its value is not used */
    scale_event_t *heap;
    size_t heap_count, heap_room;
    scale_frame_t *newest; /* the last that was sent; NULL: none yet */
    uint64_t now_ns, event_number;
    /* Since scale_begin(): */
    uint64_t last_ns; /* when the last rank got what it waited for */

    uint64_t said_ns; /* by the real clock: the last line of progress */
} scale_world_t;

/* The cost of a phase. Messages and bytes count both where they are sent and where received. */
typedef struct scale_cost {
    double mean_messages, mean_bytes;
    uint64_t max_messages, root_messages, root_bytes;
    uint32_t received_before; /* the last submission */
    uint32_t waited; /* the most that a rank received between a submission and its launches */
    double us;       /* from the last submission to the last rank's launch */
} scale_cost_t;

/* Ends the program with the text on stderr. */
void scale_die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
/* A line on stderr, if some seconds have passed since the last one. */
void scale_progress(scale_world_t *world, const char *what, int done, int of);

void scale_world_init(scale_world_t *world, const scale_options_t *options);
void scale_world_fini(scale_world_t *world);

/* Everything counted begins anew. Nothing may be under way. */
void scale_begin(scale_world_t *world);
/* All ranks submit these tensors now; index `tensors`: a barrier. */
void scale_submit(scale_world_t *world, int first, int count);
void scale_wake(scale_world_t *world, int rank); /* an input was given: its outputs are due */
void scale_run(scale_world_t *world, uint64_t until_ns); /* UINT64_MAX: till nothing is under way */
/* Checks that every rank has launched so many tensors, in one order, and noted so many events. */
void scale_end(scale_world_t *world, const char *phase, uint32_t launched, uint32_t noted,
               uint64_t from_ns, scale_cost_t *cost);

/* The mean bytes of a negotiator, and the rank whose negotiator holds most. */
double scale_bytes(const scale_world_t *world, int *most);

#endif
