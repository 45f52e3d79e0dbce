/*
 * fleet.h - all stations of a job, as dprun's supervisor sees them: one on each node.
 *
 * It brings them up, starts the ranks when all nodes can, relays orders and what comes back, and
 * tells which node is lost. Ranks are the job's, times are on this machine's clock. All calls and
 * callbacks are of dprun's only thread.
 */
#ifndef DP_LAUNCHER_FLEET_H
#define DP_LAUNCHER_FLEET_H

#include <event2/event.h>
#include <signal.h>

#include "launcher/dprun/cgroup.h"
#include "launcher/dprun/channel.h"
#include "launcher/dprun/remote/nodes.h"
#include "runtime/base/kv.h"

typedef struct dp_fleet dp_fleet_t;

typedef struct dp_fleet_loss {
    uint64_t at_ns;      /* when the node was still there, as far as is known */
    int kernel_answered; /* it was silent, but its kernel still confirmed what this side sent */
    const char *why;     /* stays as long as the fleet */
} dp_fleet_loss_t;

typedef struct dp_fleet_events {
    void (*message)(void *context, dp_message_t *message); /* of a node; all but ALL_GONE */
    void (*output)(void *context, int rank, int stream, const char *data,
                   size_t bytes);                                       /* 0: end */
    void (*lost)(void *context, int node, const dp_fleet_loss_t *loss); /* with all its ranks */
    void (*refused)(void *context, int exit_code); /* nothing was started; lines have told why */
    void (*gone)(void *context, int left);         /* no rank is left on any node */
    /* A node was told to end by a signal; is_again: for the second time. */
    void (*signalled)(void *context, const char *node, int number, int is_again);
    void (*memory)(void *context, const dp_memory_sight_t *before, const dp_memory_sight_t *after);
    void (*say)(void *context, const char *line);
    /* A new connection to the rendezvous: non-blocking, for the caller to close. -1: none. May be
     * NULL. */
    int (*tunnel)(void *context, int node);
    void *context;
} dp_fleet_events_t;

typedef struct dp_fleet_start {
    const dp_nodes_t *nodes;      /* borrowed */
    const dp_command_t *command;  /* borrowed */
    const dp_kv_ticket_t *ticket; /* of the rendezvous, without its address; for the call */
    int input_fd;                 /* for the rank that reads; -1: nobody; taken */
    sigset_t signals;             /* mask of the processes it starts */
    dp_fleet_events_t events;
} dp_fleet_start_t;

dp_status_t dp_fleet_create(struct event_base *base, const dp_fleet_start_t *start,
                            dp_fleet_t **out, dp_error_t *error);
void dp_fleet_destroy(dp_fleet_t *fleet); /* NULL is fine */

/* SIGNAL or KILL to all ranks. Before they are started it ends the start. */
void dp_fleet_order(dp_fleet_t *fleet, dp_message_type_t type, int number);

/* SIGKILL was ordered long ago: the nodes that have not ended their ranks are lost. */
void dp_fleet_abandon(dp_fleet_t *fleet);

/* A rank reported this one, of another node, as the culprit: its node is lost once it has sent no
 * frame for DP_REMOTE_SILENCE_NS, however many packets still come from there. */
void dp_fleet_suspect(dp_fleet_t *fleet, int reporter, int culprit);

/* dprun is about to be stopped: the stations' leases wait. */
void dp_fleet_pause(dp_fleet_t *fleet);

/* The stream's bytes were used up: the station may send as many again. */
void dp_fleet_credit(dp_fleet_t *fleet, int rank, int stream, size_t bytes);

/* All ranks have met: no more connections to the rendezvous. */
void dp_fleet_met(dp_fleet_t *fleet);

/* Copies the files of the nodes' run directories into run_dir, and the clocks; runs the event loop
 * meanwhile. */
void dp_fleet_fetch(dp_fleet_t *fleet, const char *run_dir);

/* Lets the stations go, and waits a moment for the processes that brought them up. */
void dp_fleet_dismiss(dp_fleet_t *fleet, int exit_code);

/* ---- What is known of a node ---------------------------------------------------------------- */

typedef struct dp_fleet_node_view {
    const char *name; /* borrowed, like the next ones */
    const char *host; /* as the machine calls itself; "": not known */
    int first_rank, ranks;
    int64_t clock_ns;        /* what its clock is ahead of this one's */
    uint64_t clock_error_ns; /* UINT64_MAX: never measured */
} dp_fleet_node_view_t;

int dp_fleet_node_count(const dp_fleet_t *fleet);
void dp_fleet_node(const dp_fleet_t *fleet, int node, dp_fleet_node_view_t *view);

#endif
