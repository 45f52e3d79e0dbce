/*
 * knock.h - whether a machine that lets an ssh wait for it is there at all.
 *
 * A login that takes long may be slow: the other machine is busy, or its sshd is. That its kernel
 * answers a connection at the same port shows that it is there. So while a login lasts dprun knocks
 * every 0.75 s, and where nothing answers again and again:
 *
 *     an answer (the connection stands, or is refused)      the machine is there; the login is slow
 *     none for DP_KNOCK_SILENCE_NS, many tries              it is silent
 *
 * Where 30 % of all packets are lost, one series in 500 finds no answer of a machine that is there,
 * without what the kernel repeats. Which addresses a name has is told by the caller; at which of
 * them and at which port ssh tries, /proc tells. All calls come from dprun's only thread; nothing
 * here blocks.
 */
#ifndef DP_LAUNCHER_KNOCK_H
#define DP_LAUNCHER_KNOCK_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define DP_KNOCK_TARGETS 4
#define DP_KNOCK_TRIES 16
#define DP_KNOCK_SILENCE_NS UINT64_C(2500000000)

typedef struct dp_knock_target {
    struct sockaddr_storage address;
    socklen_t bytes;
} dp_knock_target_t;

typedef struct dp_knock {
    uint64_t sign_ns;  /* the latest answer; at first: when it began */
    uint64_t first_ns; /* the first try since; 0: none */
    uint64_t next_ns;
    int tries; /* since first_ns */
    int fds[DP_KNOCK_TRIES];
} dp_knock_t;

void dp_knock_init(dp_knock_t *knock, uint64_t now_ns);
void dp_knock_fini(dp_knock_t *knock); /* after dp_knock_init() */

/* The machine may have answered while this process stood still: counts from now on. */
void dp_knock_restart(dp_knock_t *knock, uint64_t now_ns);

/* To be called every 100 ms or so. The port stands in the targets; any of them may answer. 1: the
 * machine is silent. */
int dp_knock_is_silent(dp_knock_t *knock, const dp_knock_target_t *targets, int count,
                       uint64_t now_ns);

/* Where an ssh process, or one below it, has a TCP connection or tries to make one. 0: nowhere: it
 * has ended, shares another one's connection, or goes through a proxy of its own. *process: which
 * of them. */
int dp_knock_find_peer(pid_t ssh, dp_knock_target_t *peer, pid_t *process);

/* The other end of the first of these sockets that a table of the kernel (/proc/net/tcp) has. 0: it
 * has none of them. */
int dp_knock_find_in_table(const char *table, const unsigned long *inodes, int count,
                           dp_knock_target_t *peer);

/* The bytes that a process has read so far, whatever from. 0: it is gone, or the kernel does not
 * tell. */
uint64_t dp_knock_bytes_read(pid_t process);

/* 1: the address of the peer is one of the targets, whose ports become the peer's. */
int dp_knock_set_port(dp_knock_target_t *targets, int count, const dp_knock_target_t *peer);

#endif
