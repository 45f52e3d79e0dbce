/*
 * station_internal.h - what the parts of a station share: station.c (the link to dprun, its lease),
 * station_dial.c (finds dprun), station_job.c (the agent below, output and input of its ranks),
 * station_files.c (the run directory, at the end). One event loop, one thread; station_dial.c adds
 * one while it looks a name up.
 */
#ifndef DP_LAUNCHER_STATION_INTERNAL_H
#define DP_LAUNCHER_STATION_INTERNAL_H

#include <event2/event.h>

#include "launcher/dprun/cgroup.h"
#include "launcher/dprun/job.h"
#include "launcher/dprun/remote/link.h"
#include "launcher/dprun/remote/station.h"
#include "launcher/dprun/remote/tunnel.h"
#include "launcher/dprun/wish.h"
#include "runtime/network/resolve.h"

#define DP_STATION_SILENCE_MS ((int)(DP_REMOTE_LEASE_NS / 1000000))
#define DP_STATION_DIALS 32

typedef struct dp_station dp_station_t;

/* A pipe from a rank's standard output or error. */
typedef struct dp_station_stream {
    dp_station_t *station;
    int rank; /* the job's */
    int number;
    int fd; /* -1: ended */
    struct event *readable;
    size_t under_way; /* bytes that dprun has not given back */
} dp_station_stream_t;

/* A connection to dprun that may become the link. */
typedef struct dp_station_dial {
    dp_station_t *station;
    int fd; /* -1: none, or it belongs to the link */
    struct event *connected;
    dp_link_t *link;
} dp_station_dial_t;

struct dp_station {
    dp_station_options_t *options;
    uint32_t node;
    struct event_base *base;
    struct event *on_lifeline;
    struct event *on_signal;
    struct event *beat;
    int signals;
    sigset_t old_mask;
    dp_wish_t wish; /* of the signals to this process */
    int is_over;    /* the loop is to end */
    int code;
    /* station_dial.c */
    dp_station_dial_t dials[DP_STATION_DIALS];
    int dial_count;
    struct event *redial;
    dp_resolution_t
        *lookup; /* of dprun's address, where the ticket has its name; NULL: none runs */
    struct event *on_lookup;
    uint64_t dial_deadline_ns;
    dp_link_events_t dial_events;
    int is_turned_away; /* a dprun called this side's proof wrong; dial_error tells which */
    char dial_error[256];
    dp_link_t *link; /* proven; NULL: not yet, or lost */
    int is_paused;   /* dprun said that it would be silent */
    /* whether dprun is heard */
    struct event *deaf_timer;
    int has_reset;          /* the link, for nothing came on it */
    uint64_t deaf_look_ns;  /* the latest look */
    uint64_t deaf_awake_ns; /* this process stood still before */
    /* what is to run */
    dp_remote_start_t start;
    dp_command_t command;
    dp_job_t job;
    int has_start, has_job;
    /* station_job.c */
    int channel; /* to the agent; -1: none */
    pid_t guard;
    struct event *on_channel;
    dp_station_stream_t *streams; /* [local_size * 2] */
    dp_tunnel_t *tunnel;
    int input; /* of the rank that reads; -1: none */
    struct event *on_input;
    uint8_t *piece; /* of input that the pipe has not taken yet */
    size_t piece_bytes, piece_at;
    dp_memory_sight_t before;
    /* station_files.c */
    struct dp_station_files *files;
};

/* ---- station.c ------------------------------------------------------------------------------ */

void dp_station_send(dp_station_t *station, uint8_t type, const void *fields, size_t bytes);
/* Cannot serve: a code and a sentence for dprun's user. */
void dp_station_refuse(dp_station_t *station, int code, const char *text);
/* Ends the loop; whatever runs is killed. */
void dp_station_end(dp_station_t *station, int code);

/* ---- station_dial.c ------------------------------------------------------------------------- */

dp_status_t dp_station_dial(dp_station_t *station, const dp_link_events_t *events);
/* One of the links is proven: the others go. */
void dp_station_dial_done(dp_station_t *station, const dp_link_t *link);
/* A link failed before its proof. */
void dp_station_dial_failed(dp_station_t *station, const dp_link_t *link, const char *why);

/* ---- station_job.c -------------------------------------------------------------------------- */

/* Looks whether the job can run here. *code and error say why not. */
dp_status_t dp_station_prepare(dp_station_t *station, int *code, dp_error_t *error);
void dp_station_about(const dp_station_t *station, dp_remote_about_t *about);
dp_status_t dp_station_go(dp_station_t *station, uint16_t master_port, dp_error_t *error);
void dp_station_order(dp_station_t *station, dp_message_type_t type, int number);
void dp_station_credit(dp_station_t *station, int rank, int stream, size_t bytes);
void dp_station_input(dp_station_t *station, const void *data, size_t bytes);
/* Sees the agent to its end. is_orphan: dprun is lost, so the agent kills what is there. */
void dp_station_stop_job(dp_station_t *station, int is_orphan);

/* ---- station_files.c ------------------------------------------------------------------------ */

void dp_station_send_files(dp_station_t *station);
void dp_station_files_free(dp_station_t *station);

#endif
