/*
 * channel.h - what dprun and its agent tell each other.
 *
 * Small messages over a SOCK_SEQPACKET pair. Its closing is a message too: when dprun is gone, for
 * whatever reason, the agent ends the job. channel.c names the callers.
 */
#ifndef DP_LAUNCHER_CHANNEL_H
#define DP_LAUNCHER_CHANNEL_H

#include <stdint.h>

#include "runtime/base/error.h"
#include "runtime/base/wire.h"

typedef enum dp_message_type {
    /* agent -> dprun */
    DP_MESSAGE_STARTED = 1, /* rank, pid; with two descriptors: its stdout, its stderr */
    DP_MESSAGE_NOT_STARTED, /* rank, status: errno of the exec or fork that failed */
    DP_MESSAGE_ENDED,       /* rank, pid, status: as from wait(), peak_kib */
    DP_MESSAGE_STOPPED,     /* rank, status: the signal */
    DP_MESSAGE_CONTINUED,   /* rank */
    DP_MESSAGE_STRAY,       /* pid and text: a process whose rank had ended was still there */
    DP_MESSAGE_ALL_GONE,    /* status: processes that could not be killed (0) */
    DP_MESSAGE_FOREIGN,     /* rank, text: the MPI library it has loaded; status 1: the last look */
    /* dprun -> agent */
    DP_MESSAGE_SIGNAL, /* status: the signal for every rank still there */
    DP_MESSAGE_KILL,   /* whole trees, now */
    DP_MESSAGE_BYE     /* dprun takes care of the run directory */
} dp_message_type_t;

#define DP_MESSAGE_FDS 2

typedef struct dp_message {
    dp_message_type_t type;
    int rank; /* -1: none */
    int pid;
    int status;
    uint64_t time_ns;  /* dp_now_ns() of the event */
    uint64_t peak_kib; /* largest resident size */
    char text[64];
    int fds[DP_MESSAGE_FDS]; /* -1: none. Received ones are the receiver's to close */
} dp_message_t;

void dp_message_init(dp_message_t *message, dp_message_type_t type, int rank);

/* A message without descriptors as bytes, which pass a channel, and a link to another node. */
void dp_message_write(dp_writer_t *writer, const dp_message_t *message);
/* Leaves the descriptors as they are. -1: malformed, or what happened to a rank without a rank.
 * Which ranks there are the caller knows. */
int dp_message_read(dp_reader_t *fields, dp_message_t *message);

/* fds[0] is for the side with an event loop: non-blocking. fds[1], the agent's, waits. */
dp_status_t dp_channel_open(int fds[2], dp_error_t *error);

/* Waits for room, unless the descriptor is non-blocking. 0, or -1: the other side is gone, or has
 * not read some hundred messages and this one is lost. Descriptors stay the caller's. */
int dp_channel_send(int fd, const dp_message_t *message);

/* 1: a message; 0: none now (the descriptor may be non-blocking); -1: the other side is gone or
 * sent something that is no message. */
int dp_channel_receive(int fd, dp_message_t *message);

#endif
