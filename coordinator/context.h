/*
 * context.h - one rank of a world: everything a dp_context_t owns, and its requests.
 *
 * Shared by the files of the front door (context.c, api.c, request.c, wait.c). gradients.c uses
 * only dp_context_error() of it.
 */
#ifndef DP_COORDINATOR_CONTEXT_H
#define DP_COORDINATOR_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "coordinator/loop.h"
#include "fusion/pipeline.h"
#include "runtime/base/window.h"

struct dp_group {
    dp_context_t *context;
};

/* A name that was used at least once; lives as long as the context. */
typedef struct dp_tensor_entry {
    struct dp_tensor_entry *next; /* in its hash chain */
    uint64_t hash;
    dp_handle_t *pending;       /* submitted and not yet launched; guarded by the context's lock */
    dp_signature_t signature;   /* of the latest submission */
    dp_signature_part_t part;   /* its only part, unless grouped */
    dp_signature_part_t *parts; /* grouped: [part_room], owned */
    uint32_t part_room;
    float last_absmax; /* raw sum of the last reduction; negative: unknown */
    uint32_t trace_name;
    char name[]; /* terminated */
} dp_tensor_entry_t;

enum dp_request_state {
    DP_REQUEST_PENDING = 0,  /* submitted */
    DP_REQUEST_LAUNCHED = 1, /* agreed, in the data plane */
    DP_REQUEST_DONE = 2
};

/* One operation in flight: the request and, for the program, its handle. Pooled. */
struct dp_handle {
    dp_context_t *context;
    dp_tensor_entry_t *entry;
    dp_handle_t *previous, *following; /* live requests by ticket; guarded by lock */
    dp_handle_t *next_free;            /* in the pool; guarded by lock */
    dp_handle_t *next_made;            /* all that were ever made; guarded by lock */
    dp_loop_node_t node;
    uint64_t ticket;               /* order of submission */
    int is_awaited;                /* dp_loop_expect() is in force for it; guarded by lock */
    _Atomic uint32_t state;        /* enum dp_request_state; a futex; DONE releases what is below */
    _Atomic uint32_t sleepers;     /* threads inside futex wait on state */
    _Atomic int references;        /* the runtime's, and the program's while it has the handle */
    _Atomic int has_owner;         /* the program still holds the handle */
    dp_pipeline_tensor_t tensor;   /* the only one, unless grouped */
    dp_pipeline_tensor_t *tensors; /* &tensor, or [tensor_room] owned */
    dp_pipeline_tensor_t *group_tensors;
    size_t tensor_count, tensor_room;
    uint64_t bytes;                   /* payload, for the statistics */
    uint64_t input_hash, output_hash; /* DP_CHECK; 0: not taken */
    uint64_t submit_ns;
    _Atomic uint64_t agree_ns; /* 0: not yet */
    /* written before DONE */
    dp_status_t status;
    dp_result_t result;
};

#define DP_NAME_BUCKETS 4096 /* a power of two; a large model has some thousand names */
#define DP_TEXT_MAX_KEPT 256 /* error texts kept for dp_error_text(); then the last repeats */

struct dp_context {
    dp_config_t config;
    dp_log_t log;
    dp_group_t world;
    int rank, size;
    dp_topology_t topology;
    int has_topology;

    /* from the wire up, in order of creation */
    dp_bootstrap_t *bootstrap;
    dp_trace_t *trace;
    dp_transport_t *transport;
    dp_device_t *device;
    dp_engine_t *engine;
    dp_pipeline_t *pipeline;
    dp_loop_t *loop;
    dp_window_t window;          /* of the timeline asked for; its steps' records are kept */
    dp_trace_lane_t *agree_lane; /* coordinator thread only */
    uint64_t wait_spin_ns;       /* how long a waiter polls before it sleeps */

    pthread_mutex_t lock;
    /* guarded by lock */
    dp_tensor_entry_t *names[DP_NAME_BUCKETS];
    dp_handle_t *live_first, *live_last; /* by ticket */
    dp_handle_t *pool, *made;
    uint64_t next_ticket;
    size_t live_count;
    dp_status_t fatal;           /* DP_OK while the world stands */
    dp_status_t unowned_failure; /* first failure nobody holds a handle for */
    char *texts[DP_TEXT_MAX_KEPT];
    size_t text_count;
    char *settings; /* answers of dp_setting(), packed */
    const char *last_text;

    _Atomic uint32_t completions; /* a futex: moves with every completion */
    _Atomic uint32_t completion_sleepers;
    /* statistics */
    _Atomic uint64_t submitted, completed, failed, bytes_reduced, wait_ns, skew_ns;
    _Atomic uint64_t step; /* current, for progress texts */
};

/* Keeps a copy of text (until finalize) as the context's last error; returns the kept copy. */
const char *dp_context_text(dp_context_t *context, const char *text);

/* dp_context_text() with a format; returns status. */
dp_status_t dp_context_error(dp_context_t *context, dp_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Builds a context on a bootstrap (taken, also on failure): what dp_init() does after reading the
 * environment, and what tests call for ranks in threads, with the loopback transport. */
dp_status_t dp_context_create(const dp_config_t *config, dp_bootstrap_t *bootstrap,
                              int use_loopback, dp_context_t **out, dp_error_t *error);

/* request.c: the life of a request. */
dp_status_t dp_request_take(dp_context_t *context, const char *name, size_t tensor_count,
                            dp_handle_t **out); /* lock held */
void dp_request_discard(dp_handle_t *request);  /* lock held; never submitted */
void dp_request_complete(dp_handle_t *request, dp_status_t status, const dp_result_t *result);
void dp_request_unref(dp_handle_t *request);
void dp_request_await(dp_handle_t *request); /* a thread is about to sleep for it */
void dp_requests_free(dp_context_t *context);
/* Callbacks of the loop and the pipeline. */
void dp_on_launch(void *user, uint64_t sequence, const dp_launch_entry_t *entries, size_t count);
void dp_on_fail(void *user, void *request, dp_status_t status, const char *text);
void dp_on_fatal(void *user, dp_status_t status, int culprit, const char *text);
void dp_on_done(void *user, const dp_pipeline_done_t *done);
void dp_on_launch_done(void *user, uint64_t sequence);

#endif
