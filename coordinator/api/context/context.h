/*
 * context.h - one rank of a world: everything that a dp_context_t owns, and its groups.
 *
 * Types alone; the functions are in the headers of their files. The rooms of coordinator/api stand
 * on each other, from the bottom up:
 *
 *     context/     what a rank is: this struct, its texts, names, device, owned objects
 *     operation/   what it does: an operation from dp_submit() to its result
 *     world/       how it begins and ends, its groups, memory and questions
 *     model/       gradients of a model as one object (coordinator/shards: of a sharded one)
 *
 * Three sorts of threads come here: the program's (any number, in functions of dp.h), the one that
 * owns progress (callbacks of the loop) and those of the data plane (callbacks of the pipeline).
 * Fields say which lock or thread they belong to; those that say nothing are written before the
 * context is handed out. operation/request.h has the fields of one operation.
 */
#ifndef DP_COORDINATOR_CONTEXT_H
#define DP_COORDINATOR_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "coordinator/api/context/completions.h"
#include "coordinator/api/context/names.h"
#include "coordinator/loop/loop.h"
#include "coordinator/program/program.h"
#include "fusion/pipeline.h"
#include "runtime/base/forked.h"
#include "runtime/base/config_value.h"
#include "runtime/device/plugin.h"
#include "runtime/network/interface.h"

typedef struct dp_staging dp_staging_t;           /* operation/stage.c */
typedef struct dp_pooled_event dp_pooled_event_t; /* operation/stream.c */

/* Ranks that work together. Lives until the context is destroyed, also after dp_group_destroy(). */
struct dp_group {
    dp_context_t *context;
    dp_group_t *next; /* the context's; guarded by its lock */
    char name[DP_GROUP_NAME_MAX + 1];
    int rank, size;   /* this rank in it */
    int *members;     /* [size] ranks of the world; NULL: all */
    int *ascending;   /* [size] the same, sorted; NULL: members is. places.h */
    dp_order_t order; /* of its operations; not DEFAULT */
    /* set by the launch of its creation, before dp_group_create() returns it */
    dp_engine_members_t about;
    dp_pipeline_group_t plane;
    /* guarded by the context's lock */
    dp_names_t names;
    dp_name_state_t *join_state, *end_state; /* of dp_join() and dp_group_destroy(); in no table,
                                                  so that no tensor's name collides */
    size_t live_count;                       /* operations not over */
    size_t request_count;                    /* requests and handles that know a state of names */
    _Atomic uint64_t submitted_ns; /* of an ordered group: when its last operation that travels
                                      alone was submitted; for waits_soon */
    _Atomic int waits_soon;        /* and the program waited for it at once; a hint, any thread */
    unsigned unnamed; /* of an ordered group: operations without a name since its last launch */
    int is_joined;    /* dp_join() was called and is not over */
    int is_closed;    /* dp_group_destroy() was called: nothing more is submitted */
    int is_ended;     /* and is over */
    dp_program_group_t ordered; /* guarded by the program's lock; of an ordered group */
};

/* 1: launches come in the program's order; world/order.c has made it so. */
static inline int dp_group_is_ordered(const dp_group_t *group)
{
    return group->plane.own_lane != DP_LANE_MAIN;
}

/* Whether a lane of the data plane moves, see watch.c; the owner of progress only (loop.h). */
typedef struct dp_watch_lane {
    uint64_t moves;    /* the engine's count of what it did, when last looked at */
    uint64_t since_ns; /* since when that has not changed */
    uint64_t warn_ns;  /* how long it may stay unchanged before a warning */
    int awaits;        /* as dp_engine_ops_t.moves() says */
} dp_watch_lane_t;

typedef struct dp_watch {
    uint64_t next_ns;                         /* when to look again */
    dp_watch_lane_t lanes[DP_LANE_COUNT + 1]; /* the last: DP_LANE_DIRECT */
} dp_watch_t;

/* Signs that this rank itself saw of the rank that ends the world; the owner of progress only. */
typedef struct dp_seen {
    dp_failure_kind_t kind; /* OTHER: nothing */
    int rank;
    uint64_t age_ns;
} dp_seen_t;

#define DP_TEXT_MAX_KEPT 256 /* error texts kept for dp_error_text(); then the last repeats */

/* Texts in the program's hands: they stay until dp_finalize(). texts.c, query.c and launch.c;
 * guarded by the context's lock. */
typedef struct dp_texts {
    char *kept[DP_TEXT_MAX_KEPT]; /* [count]; owned */
    size_t count;
    char *settings;   /* answers of dp_setting(), packed */
    const char *last; /* stored atomically under the lock; dp_error_text() reads without it */
} dp_texts_t;

/* All requests, in flight and not. request.c; guarded by the context's lock. */
typedef struct dp_requests {
    dp_handle_t *live_first, *live_last; /* submitted and not over, by ticket */
    size_t live_count;
    uint64_t next_ticket;
    dp_handle_t *pool; /* to be used again */
    dp_handle_t *made; /* every one there is */
} dp_requests_t;

/* stream_span.c; guarded by the context's lock */
typedef struct dp_stream_span dp_stream_span_t;
typedef struct dp_stream_spans {
    dp_stream_span_t *first, *last; /* ended; those recorded are used again, oldest first */
    dp_stream_span_t *open;         /* of all streams, the latest first */
    dp_stream_span_t *lost;         /* without an end */
    dp_trace_track_t *track;        /* one thread of the device writes it */
} dp_stream_spans_t;

/* stream.c; guarded by the context's lock */
typedef struct dp_streams {
    dp_stream_t **list; /* [count]: those a program may name */
    size_t count;
    dp_pooled_event_t *events_first, *events_last; /* pool, oldest first */
    dp_stream_spans_t spans;
} dp_streams_t;

/* How the program's threads wait for operations. wait.c and request.c. */
typedef struct dp_waiting {
    uint64_t progress_ns;               /* how long a thread polls while it makes progress */
    uint64_t spin_ns;                   /* how long it polls otherwise, before it sleeps */
    _Atomic uint64_t progressed_ticket; /* 1 + ticket of the last operation that a thread made
                                           progress for; the next submission looks at it */
    _Atomic uint32_t completions;       /* a futex: moves with every completion */
    _Atomic uint32_t sleepers;          /* threads that sleep on it */
} dp_waiting_t;

/* For dp_stats_get(). Any thread adds, in any order with all else. */
typedef struct dp_counts {
    _Atomic uint64_t submitted, completed, failed, bytes_reduced, wait_ns, skew_ns;
} dp_counts_t;

/* The program's steps, as it marks them. query.c; any thread. */
typedef struct dp_steps {
    dp_window_t window;       /* of the timeline asked for; its steps' records are kept */
    _Atomic uint64_t current; /* for progress texts */
    _Atomic int are_declared; /* dp_step_begin() was called */
    _Atomic int is_open;      /* between dp_step_begin() and dp_step_end() */
    _Atomic uint64_t began_ns;
    _Atomic uint64_t told_ns; /* when the recorder's header got the statistics */
} dp_steps_t;

/* fork.c: the process that made the context, and what a child of it gives up. */
typedef struct dp_context_fork {
    unsigned generation;
    dp_fork_watch_t watch;
} dp_context_fork_t;

struct dp_context {
    dp_config_t config;
    dp_config_t loop_config; /* the same, but for how long the coordinator thread polls */
    dp_log_t log;
    dp_group_t world;
    dp_group_t forming; /* its "tensors" are the groups that are being made */
    int rank, size;
    dp_topology_t topology;
    int has_topology;
    int is_one_network; /* every rank is at 127.0.0.1 */
    dp_ip_t network_ip; /* this node's, which the others reach (network.c); version 0: on one
                           network there is no search for it */
    int cores_each; /* cores that each rank of this machine has for itself; 0: they take turns; 2:
                       or more (core_share.h) */

    /* from the wire up, in order of creation */
    dp_bootstrap_t *bootstrap;
    dp_trace_t *trace;
    dp_transport_t *transport;
    const dp_plugin_t *plugin; /* NULL: the host is the device */
    dp_device_t *device;
    dp_engine_t *engine;
    dp_pipeline_t *pipeline;
    dp_program_t *program; /* launches of the ordered groups */
    dp_loop_t *loop;

    /* of one file each; the structs say which, and which thread may use a field */
    dp_trace_track_t *agree_track; /* the owner of progress only */
    dp_watch_t watch;
    dp_seen_t seen;
    dp_waiting_t waiting;
    dp_counts_t counts;
    dp_steps_t steps;
    dp_context_fork_t fork;
    dp_completions_t completions; /* has a lock of its own */

    dp_context_t *next_owner; /* owned.c: guarded by its lock */
    int is_owner;

    pthread_mutex_t lock;
    /* guarded by lock */
    dp_group_t *groups;            /* beside the world, destroyed ones too */
    int lane_users[DP_LANE_COUNT]; /* world/order.c: ordered groups in each lane */
    struct dp_owned *owned;        /* objects that the program has not given back */
    dp_requests_t requests;
    dp_texts_t texts;
    dp_streams_t streams;
    dp_staging_t *stages;        /* pool of pinned memory */
    dp_status_t fatal;           /* DP_OK while the world stands */
    dp_status_t unowned_failure; /* first failure without a handle, for dp_wait_all() */
};

#endif
