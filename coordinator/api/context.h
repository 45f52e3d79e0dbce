/*
 * context.h - one rank of a world: everything that a dp_context_t owns, and its groups.
 *
 * Every file of coordinator/api works on it. Three sorts of threads come here: the program's (any
 * number, in functions of dp.h), the one that owns progress (callbacks of the loop) and those of
 * the data plane (callbacks of the pipeline). Fields say which lock or thread they belong to; those
 * that say nothing are written before the context is handed out. request.h has the fields
 * of one operation.
 */
#ifndef DP_COORDINATOR_CONTEXT_H
#define DP_COORDINATOR_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "coordinator/api/completions.h"
#include "coordinator/loop/loop.h"
#include "coordinator/api/request.h"
#include "coordinator/program/program.h"
#include "fusion/pipeline.h"
#include "runtime/base/forked.h"
#include "runtime/base/window.h"
#include "runtime/device/plugin.h"
#include "runtime/network/interface.h"

/* Ranks that work together. Lives until the context is destroyed, also after dp_group_destroy(). */
struct dp_group {
    dp_context_t *context;
    dp_group_t *next; /* the context's; guarded by its lock */
    char name[DP_GROUP_NAME_MAX + 1];
    int rank, size; /* this rank in it */
    int *members;   /* [size] ranks of the world, ascending; NULL: all */
    /* set by the launch of its creation, before dp_group_create() returns it */
    dp_engine_members_t about;
    dp_pipeline_group_t plane;
    /* guarded by the context's lock */
    dp_names_t names;
    dp_name_state_t *join_state, *end_state; /* of dp_join() and dp_group_destroy(); in no table,
                                                  so that no tensor's name collides */
    size_t live_count;                       /* operations not over */
    size_t request_count;                    /* requests and handles that know a state of names */
    int is_joined;                           /* dp_join() was called and is not over */
    int is_closed;              /* dp_group_destroy() was called: nothing more is submitted */
    int is_ended;               /* and is over */
    dp_program_bucket_t bucket; /* guarded by the program's lock */
};

/* Launches by the cached schedule that must not be reported as over yet, see late.c. */
typedef struct dp_late {
    uint64_t from, until; /* their sequences: from < sequence <= until; guarded by lock */
    dp_handle_t *parked;  /* those that are done here; guarded by lock */
} dp_late_t;

/* Whether a lane of the data plane moves, see watch.c; the owner of progress only (loop.h). */
typedef struct dp_watch_lane {
    uint64_t moves;    /* the engine's count of what it did, when last looked at */
    uint64_t since_ns; /* since when that has not changed */
    uint64_t warn_ns;  /* how long it may stay unchanged before a warning */
    int awaits;        /* as dp_engine_ops_t.moves() says */
} dp_watch_lane_t;

typedef struct dp_watch {
    uint64_t next_ns; /* when to look again */
    dp_watch_lane_t lanes[DP_LANE_COUNT];
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
    dp_asked_t all_asked;               /* of dp_wait_all() */
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
    _Atomic int are_declared; /* dp_step_begin() was called, so a sync does not begin a round */
    _Atomic int is_open;      /* between dp_step_begin() and dp_step_end() */
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
    dp_program_t *program; /* NULL: the ranks agree on every launch */
    dp_loop_t *loop;

    /* of one file each; the structs say which, and who may touch what */
    dp_trace_track_t *agree_track; /* the owner of progress only */
    dp_watch_t watch;
    dp_seen_t seen;
    dp_late_t late;
    dp_waiting_t waiting;
    dp_counts_t counts;
    dp_steps_t steps;
    dp_context_fork_t fork;
    dp_completions_t completions; /* has a lock of its own */

    pthread_mutex_t lock;
    /* guarded by lock */
    dp_group_t *groups;     /* beside the world, destroyed ones too */
    struct dp_owned *owned; /* objects that the program has not given back */
    dp_requests_t requests;
    dp_texts_t texts;
    dp_streams_t streams;
    dp_staging_t *stages;        /* pool of pinned memory */
    dp_status_t fatal;           /* DP_OK while the world stands */
    dp_status_t unowned_failure; /* first failure without a handle, for dp_wait_all() */
};

/* texts.c: keeps a copy of text (until finalize) as the context's last error; returns the kept
 * copy. */
const char *dp_context_text(dp_context_t *context, const char *text);

/* texts.c: dp_context_text() with a format; returns status. */
dp_status_t dp_context_error(dp_context_t *context, dp_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* query.c: 1: the world has ended. */
int dp_context_has_ended(dp_context_t *context);

/*
 * An object that a program makes on a context and may leave to dp_finalize(). free() is called
 * there once no operation is in flight, while the device still stands; memory from dp_alloc() goes
 * with the context.
 */
typedef struct dp_owned {
    struct dp_owned *next; /* the context's; guarded by its lock */
    void (*free)(struct dp_owned *self);
} dp_owned_t;
/* owned.c */
void dp_context_own(dp_context_t *context, dp_owned_t *object);
void dp_context_disown(dp_context_t *context, dp_owned_t *object);
void dp_context_free_owned(dp_context_t *context);

/* exchange.c: collective: every rank gives one value under a name and gets all of them,
 * values[size]. Give them back with dp_context_free_values(), after a failure too. */
dp_status_t dp_context_exchange(dp_context_t *context, const char *name, const void *value,
                                size_t value_bytes, void ***values, size_t **bytes,
                                uint64_t deadline_ns, dp_error_t *error);
void dp_context_free_values(dp_context_t *context, void **values, size_t *bytes);

/* network.c: finds the interface that leads to the other nodes, and writes it into the settings.
 * Collective. */
dp_status_t dp_context_find_network(dp_context_t *context, uint64_t deadline_ns, dp_error_t *error);

/* device.c: fills memory of the context's device with zeros, at once. */
dp_status_t dp_context_clear(dp_context_t *context, void *memory, size_t bytes);

/* device.c: a checksum of memory of the context's device, or the host's, the same on every rank
 * that has the same bytes. Brings them to the host: for DP_CHECK. */
dp_status_t dp_context_hash(dp_context_t *context, const void *memory, size_t bytes,
                            uint64_t *hash);
/* device.c: dp_kernel_hash_places() of such memory. */
dp_status_t dp_context_hash_places(dp_context_t *context, const float *memory, size_t count,
                                   uint64_t first, uint64_t seed, uint64_t *hash);

/* device.c: chooses the device, which the hello tells the other ranks; later makes it, and the
 * engine on it. */
dp_status_t dp_context_choose_device(dp_context_t *context, dp_error_t *error);
const char *dp_context_device_name(const dp_context_t *context);
dp_status_t dp_context_make_device(dp_context_t *context, dp_error_t *error);

/* stage.c: the end of a dp_staging_begin() (submit.h). is_good: copies the result out. NULL is
 * fine. */
void dp_staging_end(dp_context_t *context, dp_staging_t *stage, int is_good);
void dp_stagings_free(dp_context_t *context);

/* Builds a context on a bootstrap (taken, also on failure): what dp_init() does after reading the
 * environment, and what tests call for ranks in threads, with the loopback transport. */
dp_status_t dp_context_create(const dp_config_t *config, dp_bootstrap_t *bootstrap,
                              int use_loopback, dp_context_t **out, dp_error_t *error);

/* launch.c: hands a launch to the data plane, and marks its agreement in the timeline's lane.
 * digest: the engines of the ranks compare it; 0: nothing to compare. */
void dp_launch(dp_context_t *context, const dp_output_t *launch, uint64_t digest,
               dp_trace_track_t *track);
/* wait.c: for how long operations of a lane have waited for ranks to come, up to now_ns; 0 where
 * the engine does not know. */
uint64_t dp_context_lane_skew(const dp_context_t *context, dp_lane_t lane, uint64_t now_ns);
/* launch.c: callbacks of the loop and the pipeline. */
void dp_on_launch(void *user, const dp_output_t *launch);
void dp_on_joined(void *user, void *request, int last_rank);
void dp_on_fail(void *user, void *request, dp_status_t status, const char *text);
void dp_on_fatal(void *user, dp_status_t status, int culprit, const char *text);
void dp_on_done(void *user, const dp_pipeline_done_t *done);
/* late.c */
void dp_on_schedule(void *user, const dp_output_t *out);
/* 1: it is parked, or has failed here. 0: report done, which may have been changed. */
int dp_late_keeps(dp_handle_t *request, dp_pipeline_done_t *done);
void dp_late_fail(dp_context_t *context, dp_status_t status, const char *text); /* all parked */
/* Memory and contents for an absent request: this rank joined, or its own request failed. */
dp_status_t dp_late_fill(dp_handle_t *request, const dp_launch_entry_t *entry);
/* Engine memory for a request that the other ranks reduce in place, where its own is ordinary. */
dp_status_t dp_late_lend(dp_handle_t *request, const dp_signature_t *agreed);
void dp_late_free(dp_handle_t *request); /* copies the result to its own memory */
void dp_on_launch_done(void *user, uint64_t sequence);
/* report.c: tells the launcher why the world ended. */
void dp_context_saw(dp_context_t *context, dp_failure_kind_t kind, int rank, uint64_t age_ns);
void dp_on_loss(void *user, int rank, uint64_t silent_ns);
void dp_on_running(void *user);
void dp_context_report(dp_context_t *context, dp_status_t status, int culprit, const char *text);
/* watch.c: called by the loop in each round, on the thread that owns progress. */
dp_status_t dp_on_watch(void *user, uint64_t now_ns, int *culprit, char *text, size_t room);
void dp_on_issued(void *user, void *request);

/* group.c */
void dp_group_init_world(dp_context_t *context);
void dp_groups_free(dp_context_t *context); /* after the requests */

/* query.c: a sync is over, which ends a round unless the program marks steps itself. */
void dp_context_round(dp_context_t *context);

/* wait.c: dp_wait() for ever. The exact figures of the result are merged into tally on DP_OK; from
 * an engine that does not compress they are those of what came to this rank. */
dp_status_t dp_wait_tally(dp_handle_t *handle, dp_tally_t *tally);

/* wait.c: blocks until no operation of the group is live. */
void dp_group_drain(dp_group_t *group);

/*
 * stream.c. A stream of this context's device that dp_options_t may name, for tests of that path
 * where a program has none of its own; given back with the context.
 */
dp_status_t dp_context_stream_create(dp_context_t *context, dp_stream_t **out);
/* The device's stream behind a program's; NULL: there is none. Lock held. */
dp_stream_t *dp_stream_find(dp_context_t *context, const void *stream);
/* The common beginning of dp_gradients_sync_on() and dp_shards_sync_on(): writes where the result
 * will lie (result NULL: not wanted), and finds the stream. Figures on the host need none: *out is
 * NULL then. what: goes before the text of an error. Any thread. */
dp_status_t dp_stream_begin_sync(dp_context_t *context, const char *what, dp_figures_t *figures,
                                 int is_on_device, void *native, dp_device_result_t *result,
                                 dp_stream_t **out);
/* Gives a request the events it needs, and records its ready event on the stream; NULL: it has no
 * stream of its own, but others may wait for it. Lock held. */
dp_status_t dp_stream_attach(dp_handle_t *request, dp_stream_t *stream);
void dp_stream_detach(dp_handle_t *request); /* lock held; the events return to the pool */
void dp_streams_free(dp_context_t *context);

/* ---- stream_span.c -------------------------------------------------------------------------- */

/* Where the program marks its work on this stream: marks the beginning of a wait for an operation
 * there, behind which the device computes nothing. NULL: nothing to mark. Lock not held. */
dp_stream_span_t *dp_stream_span_wait(dp_context_t *context, dp_stream_t *stream, uint32_t name);
void dp_stream_span_waited(dp_context_t *context, dp_stream_span_t *span); /* NULL is fine */
/* Once the streams are gone, and with them all that wrote to spans. */
void dp_stream_spans_free(dp_stream_spans_t *spans);

#endif
