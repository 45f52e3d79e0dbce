/*
 * protocol.h - what dprun and the stations of its nodes tell each other over a link.h.
 *
 * A station is `dprun --station`, one per node. On its node it does for its ranks what dprun does
 * on one machine: it has an agent below it (agent.c), and relays.
 *
 *   ticket   before the link: through ssh's or srun's standard input, or from --meet and a file
 *   START    what to run; the station looks whether it can: ABOUT, or REFUSED
 *   GO       all nodes can: the ranks start
 *   MESSAGE  of the agent (channel.h), with the job's rank; ORDER: to the agent
 *   PING     every 500 ms; the station answers PONG at once: signs of life, and their clocks
 *   OUTPUT   of a rank; at most DP_REMOTE_CREDIT bytes of a stream are under way, CREDIT gives back
 *   TUNNEL_* a rank's connection to the rendezvous, byte for byte. Their handshake is between the
 *            rank and dprun; the station sees no more than a network would.
 *   FETCH    the files of the run directory: FILE pieces, then FILES_DONE
 *   BYE      the job is over: the station removes its run directory and ends
 *
 * Ranks in frames are the job's. All integers little-endian (wire.h).
 */
#ifndef DP_LAUNCHER_PROTOCOL_H
#define DP_LAUNCHER_PROTOCOL_H

#include "launcher/dprun/channel.h"
#include "runtime/base/kv.h"

#define DP_REMOTE_VERSION 4
#define DP_REMOTE_CREDIT ((size_t)256 << 10)
#define DP_REMOTE_PIECE ((size_t)64 << 10) /* largest piece of output, input or a file */
#define DP_REMOTE_BEAT_NS UINT64_C(500000000)
#define DP_REMOTE_LEASE_NS UINT64_C(10000000000)    /* dprun silent: a station ends its ranks */
#define DP_REMOTE_SILENCE_NS UINT64_C(2500000000)   /* a station silent: its node is lost */
#define DP_REMOTE_UNREACHED_NS UINT64_C(1800000000) /* confirms nothing: dprun did not reach it */
#define DP_REMOTE_ADDRESSES 16
#define DP_REMOTE_ADDRESS_MAX 256
#define DP_REMOTE_ASK_SLURM 0xffffffffu /* number of a node that SLURM_NODEID tells */

enum dp_remote_frame {
    /* dprun to station */
    DP_REMOTE_START = 1,
    DP_REMOTE_GO,          /* u16 MASTER_PORT */
    DP_REMOTE_ORDER,       /* u8 dp_message_type_t, u32 number */
    DP_REMOTE_PING,        /* u64 dprun's clock */
    DP_REMOTE_PAUSE,       /* dprun is about to be stopped: no lease until it is heard again */
    DP_REMOTE_CREDIT_BACK, /* u32 rank, u8 stream, u32 bytes */
    DP_REMOTE_INPUT,       /* bytes for the rank that reads; none: the end */
    DP_REMOTE_MET,         /* all ranks have met: no more tunnels */
    DP_REMOTE_FETCH,
    DP_REMOTE_BYE, /* u32 exit code of the job */
    /* station to dprun */
    DP_REMOTE_ABOUT,       /* dp_remote_about_t */
    DP_REMOTE_REFUSED,     /* u32 exit code, text */
    DP_REMOTE_MESSAGE,     /* a dp_message_t without descriptors (channel.h) */
    DP_REMOTE_PONG,        /* u64 as in PING, u64 the station's clock */
    DP_REMOTE_OUTPUT,      /* u32 rank, u8 stream, bytes; none: the stream has ended */
    DP_REMOTE_INPUT_TAKEN, /* the rank has taken the latest INPUT; u8 1: it reads no more */
    DP_REMOTE_FILE,        /* text name, bytes: the next piece of it; none: it begins */
    DP_REMOTE_FILES_DONE,
    DP_REMOTE_SIGNALLED, /* u32: a signal to the station */
    DP_REMOTE_MEMORY, /* 8 x u64: dp_memory_sight_t before and after, ahead of a failed rank's end
                       */
    /* both */
    DP_REMOTE_TUNNEL_OPEN = 64, /* u32 number; by the station */
    DP_REMOTE_TUNNEL_DATA,      /* u32 number, bytes */
    DP_REMOTE_TUNNEL_CLOSE      /* u32 number */
};

/* A station that no address of dprun answers says so on standard error, which ssh carries: this
 * token, ": ", a text for people, on one line. dprun decides by the token and shows the text. */
#define DP_REMOTE_UNREACHED "@dprun unreached"

/* How a station finds dprun. */
typedef struct dp_remote_ticket {
    uint32_t node;
    uint16_t port;
    dp_secret_t secret;
    int address_count;
    char addresses[DP_REMOTE_ADDRESSES][DP_REMOTE_ADDRESS_MAX]; /* numeric, or one name */
} dp_remote_ticket_t;

#define DP_REMOTE_TICKET_MAX 2048 /* a pipe takes it at once */
/* The ticket behind its magic and length. 0: no room. */
size_t dp_remote_ticket_write(const dp_remote_ticket_t *ticket, void *data, size_t room);
/* Reads a ticket from a descriptor that stays open behind it; waits until deadline_ns. */
dp_status_t dp_remote_ticket_read(int fd, uint64_t deadline_ns, dp_remote_ticket_t *ticket,
                                  dp_error_t *error);

/* The part of the job that a node is to run. Strings and lists are owned once it was read. */
typedef struct dp_remote_start {
    char version[32]; /* of dprun */
    int node, node_count;
    int first_rank, local_size, size;
    int stdin_rank; /* of the job; -1: none */
    int binds_cores, shares_gpu;
    int is_check;         /* ABOUT has the version of UCX */
    char node_name[256];  /* as the user wrote it */
    char first_host[256]; /* that of node 0, for MASTER_ADDR */
    char directory[1024]; /* "": where the station is */
    char metrics[1024];   /* --metrics; "": none */
    char job[64];         /* of the rendezvous' ticket, with its secret */
    dp_secret_t secret;
    int argc;
    char **argv; /* [argc] and a NULL */
    int variable_count;
    char **variables; /* [variable_count] NAME=VALUE */
} dp_remote_start_t;

/* Returned, free() it; *bytes. NULL: no memory. */
uint8_t *dp_remote_start_write(const dp_remote_start_t *start, size_t *bytes);
int dp_remote_start_read(dp_reader_t *fields, dp_remote_start_t *start); /* -1: malformed */
void dp_remote_start_fini(dp_remote_start_t *start);

/* A station's description of its node. */
typedef struct dp_remote_about {
    char version[32];
    char host[256];
    char boot[64]; /* of the kernel: equal on one machine */
    int cores, cores_in_machine;
    uint64_t memory_bytes, shm_free_bytes, run_free_bytes;
    uint64_t open_files;
    uint16_t free_port;  /* for MASTER_PORT */
    char ucx[32];        /* its version, for --check; "": it cannot be loaded */
    char addresses[512]; /* "eth0 10.0.0.1, docker0 172.17.0.1" */
} dp_remote_about_t;

void dp_remote_about_write(dp_writer_t *writer, const dp_remote_about_t *about);
int dp_remote_about_read(dp_reader_t *fields, dp_remote_about_t *about); /* -1: malformed */

#endif
