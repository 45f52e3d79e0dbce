/*
 * fleet_internal.h - what the parts of a fleet share: fleet.c (frames of running stations, signs of
 * life, loss), fleet_start.c (until all nodes run, and the end), fleet_door.c (the port at which
 * nodes connect), fleet_input.c (standard input), fleet_files.c (run directories and clocks).
 * check_nodes.c reads the nodes. All on dprun's only thread.
 */
#ifndef DP_LAUNCHER_FLEET_INTERNAL_H
#define DP_LAUNCHER_FLEET_INTERNAL_H

#include <stdio.h>

#include "launcher/dprun/remote/fleet.h"
#include "launcher/dprun/remote/link.h"
#include "launcher/dprun/remote/protocol.h"
#include "launcher/dprun/remote/shell.h"
#include "launcher/dprun/remote/tunnel.h"
#include "runtime/base/door.h"

#define DP_FLEET_CLOCK_POINTS 1024
#define DP_FLEET_STOOD_STILL_NS UINT64_C(1500000000) /* between two beats */
#define DP_FLEET_LISTENERS (DP_REMOTE_ADDRESSES + 1) /* and loopback */

/*
 *   WAITING -> STARTING -> JOINED -> READY -> RUNNING -> GONE
 *                 |  ssh     | START   | ABOUT    | GO
 *                 `----------+---------+----------+--> LOST (started or not)
 */
typedef enum dp_fleet_stage {
    DP_FLEET_WAITING,  /* for its turn */
    DP_FLEET_STARTING, /* its shell is at work */
    DP_FLEET_JOINED,   /* linked, and told what to run */
    DP_FLEET_READY,    /* it can */
    DP_FLEET_RUNNING,
    DP_FLEET_GONE, /* none of its ranks is left */
    DP_FLEET_LOST
} dp_fleet_stage_t;

/* One measurement: the node's clock was `offset` ahead of ours at `at_ns` of its own. */
typedef struct dp_fleet_clock_point {
    uint64_t at_ns;
    int64_t offset_ns;
    uint64_t error_ns;
} dp_fleet_clock_point_t;

typedef struct dp_fleet_node {
    dp_fleet_t *fleet;
    int index;
    const dp_host_t *host; /* borrowed */
    char name[256];
    dp_fleet_stage_t stage;
    /* start */
    dp_shell_t *shell; /* its own; NULL: srun's is common, or others start it */
    struct event *retry;
    int tries;
    int is_plain; /* its ssh wants no choice of a key exchange */
    int is_here;  /* this machine */
    uint64_t started_ns;
    /* link */
    dp_link_t *link;
    dp_remote_about_t about;
    dp_tunnel_t *tunnel;
    int left;
    int is_told; /* to end, by a signal to its station */
    char why[400];
    uint64_t silent_ns;  /* since when nothing was heard, of a node lost for that; 0 */
    int is_suspected;    /* a rank on another node gave one of its ranks up */
    int kernel_answered; /* of a silent one: it still confirmed what this side sent */
    int has_files;       /* they have all come */
    /* clock */
    int bursts; /* quick rounds still to come */
    uint64_t window_ns;
    dp_fleet_clock_point_t best;    /* of this window */
    dp_fleet_clock_point_t *points; /* [point_count] of finished windows */
    int point_count;
} dp_fleet_node_t;

struct dp_fleet {
    struct event_base *base; /* borrowed */
    const dp_nodes_t *nodes;
    const dp_command_t *command;
    dp_fleet_events_t events;
    dp_kv_ticket_t ticket; /* of the rendezvous */
    dp_secret_t secret;    /* of the links */
    sigset_t signals;
    dp_fleet_node_t *list; /* [count] */
    dp_shell_t *srun;
    int count;
    /* the door */
    dp_door_t *door; /* NULL: closed */
    struct event *on_door;
    uint16_t port;
    int is_everywhere; /* no address of this machine is left out */
    int has_loopback;
    char addresses[DP_REMOTE_ADDRESSES][DP_REMOTE_ADDRESS_MAX]; /* for other machines */
    int address_count;
    /* start */
    uint64_t start_ns;
    uint64_t told_ns; /* the latest line about progress */
    int has_joined;   /* a station has, even if it is lost by now */
    int is_running;   /* GO was sent */
    int is_over;      /* all gone, or the start was given up: told */
    int is_leaving;   /* BYE was sent: ends are expected */
    int exit_code;    /* of a start that failed */
    int input_fd;     /* -1: none, or at its end */
    unsigned beats;
    struct event *abort_timer;
    struct event *beat;
    uint64_t beat_ns; /* when it came last */
    /* Silence counts from here at the earliest: this process stood still before. */
    uint64_t awake_ns;
    size_t *unreturned; /* [size * 2] output bytes used up and not given back yet */
    struct event *on_input;
    /* files */
    const char *run_dir;
    int file_count; /* that have come */
};

/* ---- fleet.c -------------------------------------------------------------------------------- */

void dp_fleet_say(dp_fleet_t *fleet, const char *format, ...) __attribute__((format(printf, 2, 3)));
dp_fleet_node_t *dp_fleet_node_of_rank(dp_fleet_t *fleet, int rank); /* NULL: of none */
void dp_fleet_node_send(dp_fleet_node_t *node, uint8_t type, const void *fields, size_t bytes);
/* Its station is gone, or cannot serve; before the ranks have started as well. why: "": told. */
void dp_fleet_node_lose(dp_fleet_node_t *node, int exit_code, const char *why);
/* Links of stations that have proven themselves. */
extern const dp_link_events_t dp_fleet_link_events;
/* Signs of life from now on. -1: no memory. */
int dp_fleet_beat_start(dp_fleet_t *fleet);
/* A round of clocks and signs of life. */
void dp_fleet_ping(dp_fleet_node_t *node);

/* ---- fleet_start.c -------------------------------------------------------------------------- */

/* The link became this node's. */
void dp_fleet_node_joined(dp_fleet_node_t *node);
/* A node is ready or lost: starts the ranks if it was the last one. */
void dp_fleet_check_start(dp_fleet_t *fleet);
void dp_fleet_give_up(dp_fleet_t *fleet);
void dp_fleet_watch_start(dp_fleet_t *fleet, uint64_t now_ns);

/* ---- fleet_door.c --------------------------------------------------------------------------- */

dp_status_t dp_fleet_open_door(dp_fleet_t *fleet, dp_error_t *error);
/* Listens on the addresses that were left out, unless the user named an interface. How many. */
int dp_fleet_widen_door(dp_fleet_t *fleet);
void dp_fleet_close_door(dp_fleet_t *fleet);
void dp_fleet_write_ticket(const dp_fleet_t *fleet, uint32_t node, int is_here,
                           dp_remote_ticket_t *ticket);

/* ---- fleet_input.c -------------------------------------------------------------------------- */

void dp_fleet_input_start(dp_fleet_t *fleet);
void dp_fleet_input_taken(dp_fleet_t *fleet, int is_closed);
void dp_fleet_input_close(dp_fleet_t *fleet);

/* ---- fleet_files.c -------------------------------------------------------------------------- */

void dp_fleet_file(dp_fleet_node_t *node, dp_reader_t *fields);
void dp_fleet_clock(dp_fleet_node_t *node, uint64_t sent_ns, uint64_t theirs_ns);

#endif
