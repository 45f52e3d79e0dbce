/*
 * request.h - one operation in flight: the request of the coordinator and, for the program, its
 * handle.
 *
 *     dp_request_acquire()   from the pool             program's thread, context's lock held
 *     dp_request_enlist()    live: submitted           program's thread, context's lock held
 *         PENDING            the ranks have not agreed yet
 *         LAUNCHED, QUEUED   agreed, in the data plane   the thread that owns progress
 *         ISSUED             its event is on a stream    launch thread
 *     dp_request_complete()  DONE, waiters wake          launch thread, or a stream's
 *     dp_request_unref()     back to the pool            when the runtime and the program have
 *                                                        both let go
 *
 * Programs see the struct as dp_handle_t. It must not know how ranks agree or how data moves.
 */
#ifndef DP_COORDINATOR_REQUEST_H
#define DP_COORDINATOR_REQUEST_H

#include <stdatomic.h>

#include "coordinator/api/context/context.h"

/* Values only grow during an operation; dp_wait() waits for "at least". */
enum dp_request_state {
    DP_REQUEST_PENDING = 0,  /* submitted */
    DP_REQUEST_LAUNCHED = 1, /* agreed, in the data plane */
    DP_REQUEST_HANDED = 2,   /* likewise; handed to the thread that waits for it, to carry it out */
    DP_REQUEST_ISSUED = 3,   /* its done event is on a stream; only where it has one */
    DP_REQUEST_DONE = 4
};

typedef struct dp_staging dp_staging_t; /* stage.c */

/* An event of the device, pooled. The pool keeps those that their stream has not reached yet. */
typedef struct dp_pooled_event {
    struct dp_pooled_event *next; /* in the pool; guarded by the context's lock */
    dp_event_t *event;
} dp_pooled_event_t;

/* Of an exchange alone (dp_is_exchange()). Written at submission. */
typedef struct dp_request_exchange {
    size_t *counts; /* elements that this rank sends: [count] of [room] */
    size_t count, room;
    size_t capacity;     /* elements that fit into the only tensor's out */
    size_t *recv_counts; /* the program's; NULL: it does not ask */
    dp_output_fn output; /* the program's, gives the only tensor's out; NULL: it is given already */
    void *user;          /* its first argument */
} dp_request_exchange_t;

/* DP_CHECK_DATA watches the memory of an operation. */
typedef struct dp_request_check {
    int is_on;
    uint64_t input_hash, output_hash; /* 0: not taken */
} dp_request_check_t;

/* Lists that a request is in. Guarded by the context's lock. */
typedef struct dp_request_links {
    dp_handle_t *previous, *following; /* live requests by ticket */
    dp_handle_t *next_free;            /* in the pool */
    dp_handle_t *next_made;            /* in the list of all requests */
} dp_request_links_t;

/* Memory for the list of tensors, kept by the pool. request.c */
typedef struct dp_request_room {
    dp_pipeline_tensor_t one;
    dp_pipeline_tensor_t *list; /* [count]; NULL until a request has several */
    size_t count;
} dp_request_room_t;

/* Where streams of the device are concerned; NULL where none is. stream.c; written at submission */
typedef struct dp_request_stream {
    dp_pooled_event_t *ready, *done;
    dp_figures_t *figures; /* the program's, on the device: gets what the tally gets */
} dp_request_stream_t;

/* Threads of the program that wait for it. wait.c */
typedef struct dp_request_waiting {
    _Atomic uint32_t sleepers; /* inside futex wait on the request's state */
    int is_awaited;            /* a sleeping waiter is counted in the loop for it; lock */
    int will_progress;         /* the thread that sleeps carries its launch out; lock */
} dp_request_waiting_t;

/* The outcome of a request. Written before DONE, which releases it. */
typedef struct dp_request_end {
    dp_status_t status;
    dp_result_t result;
    dp_tally_t tally; /* the exact figures behind result */
} dp_request_end_t;

struct dp_handle {
    dp_handle_t *self; /* for calls that hold it const */
    dp_context_t *context;
    dp_group_t *group;
    dp_group_t *new_group; /* the group that a group_create makes */
    dp_name_state_t *name_state;
    dp_loop_node_t node;        /* in the coordinator's queue of submissions */
    dp_program_op_t program_op; /* its group: NULL: the ranks agree on it */
    int is_direct; /* neither: a message of an ordered group, see direct.c; written at submission */
    dp_engine_message_t message; /* of such a one */
    uint64_t ticket;             /* order of submission */

    dp_request_links_t links;

    /* what it does; written at submission */
    dp_collective_t collective;    /* name_state->signature may be a later submission's by now */
    int is_absent;                 /* stands for the operation of a group that this rank has joined;
                                      no program ever sees it */
    int root, peer;                /* ranks of the group, as in dp_submit_t */
    dp_pipeline_tensor_t *tensors; /* [tensor_count]: &room.one, or room.list */
    size_t tensor_count;
    dp_request_room_t room;
    dp_request_exchange_t exchange;
    dp_staging_t *stage; /* of a tensor in host memory on a GPU's context; NULL */
    dp_request_stream_t stream;
    uint64_t bytes;  /* payload, for the statistics */
    uint64_t cookie; /* the program's, to be pushed when it is over; 0: none */
    dp_request_check_t check;
    uint64_t submit_ns;

    /* how far it has come */
    _Atomic uint32_t state; /* enum dp_request_state; a futex; DONE releases `end` */
    dp_request_waiting_t waiting;
    _Atomic int references;    /* the runtime's, and the program's while it has the handle */
    _Atomic int has_owner;     /* the program still holds the handle */
    _Atomic uint64_t agree_ns; /* 0: not yet */
    uint64_t agree_skew_ns;    /* of its lane (dp_engine_ops_t.skew_ns()) then; written before */
    dp_lane_t lane;            /* that its launch travels in; written before LAUNCHED */
    int contributors;          /* known from the launch on */
    dp_request_end_t end;
};

/* Blocks travel between single ranks, and how many elements may be known on arrival only. */
static inline int dp_is_exchange(dp_collective_t collective)
{
    return (collective >= DP_COLLECTIVE_GATHER && collective <= DP_COLLECTIVE_ALLTOALLV) ||
           collective == DP_COLLECTIVE_SEND;
}

/* The lane in which it travels; before its launch a guess. */
dp_lane_t dp_request_lane(const dp_handle_t *request);

/* The functions that follow are request.c's. "Lock held" is the context's lock. */

/* A request with room for so many tensors and counts, all its fields as new. Lock held. */
dp_status_t dp_request_acquire(dp_group_t *group, dp_name_state_t *name_state, size_t tensor_count,
                               size_t count_count, dp_handle_t **out);
/* Back to the pool; it was never submitted, or is over. Lock held. */
void dp_request_discard(dp_handle_t *request);
/* It is live from here on. Lock held. */
void dp_request_enlist(dp_handle_t *request, int has_owner);
/* The coordinator is done with it: launched, failed or joined. Lock held. */
void dp_request_leave(dp_handle_t *request);
void dp_request_complete(dp_handle_t *request, dp_status_t status, const dp_result_t *result);
/* The data plane has done it; says what came of it. */
void dp_request_succeed(dp_handle_t *request, const dp_pipeline_done_t *done);
void dp_request_fail(dp_handle_t *request, dp_status_t status, const char *text);
void dp_request_unref(dp_handle_t *request);
/* The calling thread is about to sleep for it; will_progress: until it may carry its launch out. */
void dp_request_await(dp_handle_t *request, int will_progress);
/* DP_CHECK_DATA: the checksum of what was written to its out. Never 0. */
uint64_t dp_request_hash_outputs(const dp_handle_t *request);
void dp_requests_free(dp_context_t *context);

#endif
