/*
 * context.h - one rank of a world: everything a dp_context_t owns, its groups and its requests.
 *
 * Shared by the files of the front door: context.c, group.c, submit.c, launch.c, request.c, wait.c,
 * stream.c, query.c. gradients.c uses only dp_context_error() of it.
 */
#ifndef DP_COORDINATOR_CONTEXT_H
#define DP_COORDINATOR_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "coordinator/loop/loop.h"
#include "coordinator/api/names.h"
#include "coordinator/program/program.h"
#include "coordinator/tuner/tune.h"
#include "fusion/pipeline.h"
#include "runtime/base/forked.h"
#include "runtime/base/window.h"
#include "runtime/device/plugin.h"

/* Ranks that work together. Lives until the context is destroyed, also after dp_group_destroy(). */
struct dp_group {
    dp_context_t *context;
    dp_group_t *next; /* the context's; guarded by its lock */
    char name[DP_GROUP_NAME_MAX + 1];
    int rank, size; /* this rank in it */
    int *members;   /* [size] ranks of the world, ascending; NULL: all */
    /* set by the launch of its creation, before anybody has the group */
    dp_engine_members_t about;
    dp_pipeline_group_t plane;
    /* guarded by the context's lock */
    dp_names_t names;
    dp_tensor_entry_t *join_entry, *end_entry; /* of dp_join() and dp_group_destroy(); in no table,
                                                  so that no tensor's name collides */
    size_t live_count;                         /* operations not over */
    size_t request_count;       /* requests and handles that know an entry of names */
    int is_joined;              /* dp_join() was called and is not over */
    int is_closed;              /* dp_group_destroy() was called: nothing more is submitted */
    int is_ended;               /* and is over */
    dp_program_bucket_t bucket; /* guarded by the program's lock */
};

enum dp_request_state {
    DP_REQUEST_PENDING = 0,  /* submitted */
    DP_REQUEST_LAUNCHED = 1, /* agreed, in the data plane */
    DP_REQUEST_QUEUED = 2,   /* likewise, for the thread that waits for it to carry it out */
    DP_REQUEST_ISSUED = 3,   /* its done event is on a stream; only where it has one */
    DP_REQUEST_DONE = 4
};

/* A pooled event of the device. One that is not reached yet is not used again. */
typedef struct dp_stage dp_stage_t; /* stage.c */

typedef struct dp_mark {
    struct dp_mark *next; /* in the pool; guarded by lock */
    dp_event_t *event;
} dp_mark_t;

/* One operation in flight: the request and, for the program, its handle. Pooled. One that is_absent
 * stands for the operation of a group that this rank has joined; no program ever sees it. */
struct dp_handle {
    dp_context_t *context;
    dp_group_t *group;
    dp_group_t *born; /* the group that a group_create makes */
    dp_tensor_entry_t *entry;
    dp_handle_t *previous, *following; /* live requests by ticket; guarded by lock */
    dp_handle_t *next_free; /* in the pool; guarded by lock; or suspended, see program.c */
    dp_handle_t *next_made; /* all that were ever made; guarded by lock */
    dp_loop_node_t node;
    uint64_t ticket;   /* order of submission */
    int is_awaited;    /* dp_loop_count_sleeping_waiter() is in force for it; guarded by lock */
    int will_progress; /* who sleeps on state carries its launch out; likewise */
    _Atomic uint32_t state;        /* enum dp_request_state; a futex; DONE releases what is below */
    _Atomic uint32_t sleepers;     /* threads inside futex wait on state */
    _Atomic int references;        /* the runtime's, and the program's while it has the handle */
    _Atomic int has_owner;         /* the program still holds the handle */
    int is_absent;                 /* see above */
    dp_collective_t collective;    /* entry->signature may be a later submission's by now */
    dp_pipeline_tensor_t tensor;   /* the only one, unless there are several */
    dp_pipeline_tensor_t *tensors; /* &tensor, or [tensor_room] owned */
    dp_pipeline_tensor_t *tensor_list;
    size_t tensor_count, tensor_room;
    size_t *counts; /* what this rank sends: [count_count] of [count_room], owned */
    size_t count_count, count_room;
    size_t capacity;         /* elements that fit into the only tensor's out, of an exchange */
    size_t *recv_counts;     /* the caller's */
    dp_stage_t *stage;       /* of a tensor in host memory, on another device; NULL */
    dp_mark_t *ready, *done; /* NULL where no stream is concerned */
    uint64_t bytes;          /* payload, for the statistics */
    dp_figures_t *figures;   /* the caller's, on the device: get what the tally gets; NULL */
    int is_checked;          /* DP_CHECK watches its memory */
    uint64_t input_hash, output_hash; /* of it; 0: not taken */
    uint64_t submit_ns;
    _Atomic uint64_t agree_ns; /* 0: not yet */
    int contributors;          /* known from the launch on */
    /* launched by a locked schedule; from `sequence` on guarded by lock, see late.c */
    int by_schedule, averages;
    uint64_t sequence;
    uint32_t launch_id;
    int is_settled, settled_absent;
    dp_status_t settled_status;
    const char *settled_text;
    dp_pipeline_done_t parked;
    dp_handle_t *next_parked;
    void *stand_in; /* engine memory for a request that is not there, or whose own is no such; owned
                     */
    dp_pipeline_tensor_t *lent; /* [tensor_count] its own meanwhile; owned */
    /* written before DONE */
    dp_status_t status;
    dp_result_t result;
};

/* Launches by a locked schedule that are not over before all ranks agree on them. */
typedef struct dp_late {
    uint64_t from, until; /* sequences: after the one, up to the other; guarded by lock */
    dp_handle_t *parked;  /* done here; guarded by lock */
} dp_late_t;

/* Whether the data plane moves; coordinator thread only. */
typedef struct dp_watch {
    uint64_t next_ns;  /* when to look again */
    uint64_t moves;    /* what the engine had counted, */
    uint64_t since_ns; /* unchanged since */
    uint64_t warn_ns;  /* how long that may last before it is said */
} dp_watch_t;

/* What this rank itself saw of the rank that ends the world; coordinator thread only. */
typedef struct dp_seen {
    dp_failure_kind_t kind; /* OTHER: nothing */
    int rank;
    uint64_t age_ns;
} dp_seen_t;

#define DP_TEXT_MAX_KEPT 256 /* error texts kept for dp_error_text(); then the last repeats */

struct dp_context {
    dp_config_t config;
    dp_log_t log;
    dp_group_t world;
    dp_group_t unborn; /* where the names of groups to be made live */
    int rank, size;
    dp_topology_t topology;
    int has_topology;
    int kernel_ranks; /* ranks that share this machine's cores */

    /* from the wire up, in order of creation */
    dp_bootstrap_t *bootstrap;
    dp_trace_t *trace;
    dp_transport_t *transport;
    const dp_plugin_t *plugin; /* NULL: the host is the device */
    dp_device_t *device;
    dp_engine_t *engine;
    dp_pipeline_t *pipeline;
    dp_program_t *program; /* NULL: the ranks agree on every launch */
    dp_tune_t *tune;       /* NULL: settings stay */
    dp_loop_t *loop;
    dp_window_t window;             /* of the timeline asked for; its steps' records are kept */
    dp_trace_lane_t *agree_lane;    /* coordinator thread only */
    uint64_t drive_ns;              /* how long a waiter polls doing the coordinator's work */
    _Atomic uint64_t driven_ticket; /* 1 + that of the last operation it did it for */
    uint64_t wait_spin_ns;          /* how long a waiter polls before it sleeps */
    dp_watch_t watch;
    dp_seen_t seen;
    dp_late_t late;
    unsigned fork_generation; /* of the process that made it; see fork.h */
    dp_fork_watch_t fork_watch;

    pthread_mutex_t lock;
    /* guarded by lock */
    dp_group_t *groups;                  /* beside the world, destroyed ones too */
    dp_handle_t *live_first, *live_last; /* by ticket */
    dp_handle_t *pool, *made;
    dp_stage_t *stages;                  /* the pool of pinned memory */
    dp_mark_t *marks_first, *marks_last; /* the pool of events, oldest first */
    dp_stream_t **streams;               /* [stream_count]: those a program may name */
    size_t stream_count;
    uint64_t next_ticket;
    size_t live_count;
    dp_status_t fatal;           /* DP_OK while the world stands */
    dp_status_t unowned_failure; /* first failure nobody holds a handle for */
    char *texts[DP_TEXT_MAX_KEPT];
    size_t text_count;
    char *settings;        /* answers of dp_setting(), packed */
    const char *last_text; /* written under lock, by atomic stores; dp_error_text() has none */

    _Atomic uint32_t completions; /* a futex: moves with every completion */
    _Atomic uint32_t completion_sleepers;
    /* statistics */
    _Atomic uint64_t submitted, completed, failed, bytes_reduced, wait_ns, skew_ns;
    _Atomic uint64_t step;      /* current, for progress texts */
    _Atomic int declares_steps; /* dp_step_begin() was called: gradients declare no rounds */
};

/* Keeps a copy of text (until finalize) as the context's last error; returns the kept copy. */
const char *dp_context_text(dp_context_t *context, const char *text);

/* dp_context_text() with a format; returns status. */
dp_status_t dp_context_error(dp_context_t *context, dp_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* device.c: fills memory of the context's device with zeros, at once. */
dp_status_t dp_context_clear(dp_context_t *context, void *memory, size_t bytes);

/* device.c: a checksum of memory of the context's device, or the host's, the same on every rank
 * that has the same bytes. Brings them to the host: for DP_CHECK. */
dp_status_t dp_context_hash(dp_context_t *context, const void *memory, size_t bytes,
                            uint64_t *hash);

/* device.c: which device this rank uses, said to the others in the hello; later made, with the
 * engine on it. */
dp_status_t dp_context_choose_device(dp_context_t *context, dp_error_t *error);
const char *dp_context_device_name(const dp_context_t *context);
dp_status_t dp_context_make_device(dp_context_t *context, dp_error_t *error);

/*
 * stage.c: a tensor in plain host memory, on a context whose device is not the host, goes through
 * pinned memory: copied in at submission and out before the request is DONE. For the small things
 * that programs and libdp itself agree on; one tensor at a time, and not with a stream. What goes
 * in is in submit.h.
 */
void dp_stage_out(dp_context_t *context, dp_stage_t *stage, int is_good); /* NULL is fine */
void dp_stages_free(dp_context_t *context);

/* Builds a context on a bootstrap (taken, also on failure): what dp_init() does after reading the
 * environment, and what tests call for ranks in threads, with the loopback transport. */
dp_status_t dp_context_create(const dp_config_t *config, dp_bootstrap_t *bootstrap,
                              int use_loopback, dp_context_t **out, dp_error_t *error);

/* Blocks travel between single ranks, and how many elements may be known on arrival only. */
static inline int dp_is_exchange(dp_collective_t collective)
{
    return (collective >= DP_COLLECTIVE_GATHER && collective <= DP_COLLECTIVE_ALLTOALLV) ||
           collective == DP_COLLECTIVE_SEND;
}

/* request.c: the life of a request. */
dp_status_t dp_request_take(dp_group_t *group, dp_tensor_entry_t *entry, size_t tensor_count,
                            size_t count_count, dp_handle_t **out); /* lock held */
void dp_request_discard(dp_handle_t *request);                      /* lock held; never submitted */
void dp_request_enlist(dp_handle_t *request, int has_owner);        /* lock held; it is live now */
void dp_request_leave(dp_handle_t *request); /* lock held; it is the coordinator's no more */
void dp_request_complete(dp_handle_t *request, dp_status_t status, const dp_result_t *result);
void dp_request_fail(dp_handle_t *request, dp_status_t status, const char *text);
void dp_request_unref(dp_handle_t *request);
/* A thread is about to sleep for it; will_progress: until it may carry its launch out. */
void dp_request_await(dp_handle_t *request, int will_progress);
/* DP_CHECK: the checksum of what was written to its out. Never 0. */
uint64_t dp_request_hash_outputs(const dp_handle_t *request);
void dp_requests_free(dp_context_t *context);

/* launch.c: hands a launch to the data plane, on which its agreement is marked in the lane. digest:
 * for the engine to compare; 0: nothing to compare. */
void dp_launch(dp_context_t *context, const dp_output_t *launch, uint64_t digest,
               dp_trace_lane_t *lane);
/* launch.c: callbacks of the loop and the pipeline. */
void dp_on_launch(void *user, const dp_output_t *launch);
void dp_on_joined(void *user, void *request, int last_rank);
void dp_on_fail(void *user, void *request, dp_status_t status, const char *text);
void dp_on_fatal(void *user, dp_status_t status, int culprit, const char *text);
void dp_on_done(void *user, const dp_pipeline_done_t *done);
void dp_done(dp_handle_t *request, const dp_pipeline_done_t *done); /* it is over, and well */
/* late.c */
void dp_on_schedule(void *user, const dp_output_t *out);
/* Is it not over yet, or ended otherwise? Else done may be changed. */
int dp_late_keeps(dp_handle_t *request, dp_pipeline_done_t *done);
void dp_late_fail(dp_context_t *context, dp_status_t status, const char *text); /* all parked */
/* Memory and contents for a request that stands in for one that failed or was joined instead. */
dp_status_t dp_late_fill(dp_handle_t *request, const dp_launch_entry_t *entry);
/* Engine memory for a request that others reduce in place, and whose own is not the engine's. */
dp_status_t dp_late_lend(dp_handle_t *request, const dp_signature_t *agreed);
void dp_late_free(dp_handle_t *request); /* its own gets the result, if it was lent some */
void dp_on_launch_done(void *user, uint64_t sequence);
/* report.c: what the launcher is told when the world ends. */
void dp_context_saw(dp_context_t *context, dp_failure_kind_t kind, int rank, uint64_t age_ns);
void dp_on_loss(void *user, int rank, uint64_t silent_ns);
void dp_context_report(dp_context_t *context, dp_status_t status, int culprit, const char *text);
/* watch.c: the loop asks now and then. */
dp_status_t dp_on_watch(void *user, uint64_t now_ns, int *culprit, char *text, size_t room);
void dp_on_issued(void *user, void *request);

/* group.c */
void dp_group_init_world(dp_context_t *context);
void dp_groups_free(dp_context_t *context); /* after the requests */

/* query.c: a round of the program is over, unless it declares steps itself. */
void dp_context_round(dp_context_t *context);

/* wait.c: until no operation of the group is under way. */
void dp_group_drain(dp_group_t *group);

/*
 * stream.c. A stream of this context's device that dp_options_t may name, for tests of that path
 * where a program has none of its own; given back with the context.
 */
dp_status_t dp_context_stream_create(dp_context_t *context, dp_stream_t **out);
/* The device's stream behind a program's; NULL: there is none. Lock held. */
dp_stream_t *dp_stream_find(dp_context_t *context, const void *stream);
/* Gives a request the events it needs, and records its ready event on the stream; NULL: it has no
 * stream of its own, but others may wait for it. Lock held. */
dp_status_t dp_stream_attach(dp_handle_t *request, dp_stream_t *stream);
void dp_stream_detach(dp_handle_t *request); /* lock held; the events return to the pool */
void dp_streams_free(dp_context_t *context);

#endif
