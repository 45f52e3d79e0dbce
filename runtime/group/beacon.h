/*
 * beacon.h - how rank 0 of a job that was not started by dprun tells the others where it serves the
 * rendezvous, and the secret to prove there: a small file on one machine, a value in a launcher's
 * key-value space.
 *
 * The bytes (beacon.c) are pure, so that a fuzzer can feed them; the file (beacon_file.c) is for
 * one user's eyes alone, in a directory that is checked to be so.
 */
#ifndef DP_GROUP_BEACON_H
#define DP_GROUP_BEACON_H

#include "runtime/base/auth.h"
#include "runtime/base/local_socket.h"

#define DP_IDENTITY_MAX 640 /* of a job, with its NUL */
#define DP_BEACON_MAX 1280  /* bytes of the largest */
#define DP_BEACON_ADDRESSES 6
#define DP_BEACON_PATH_MAX 512

/* Identifies a process for ever: pid, start time, boot id. */
typedef struct dp_process {
    uint32_t pid;
    uint64_t start;     /* clock ticks after boot, as in /proc/PID/stat */
    uint64_t pid_space; /* inode of its pid namespace: its pid means nothing in others */
    char boot[40];      /* of the machine, as in /proc/sys/kernel/random/boot_id */
} dp_process_t;

typedef struct dp_beacon {
    uint16_t port; /* 0 where all addresses are local sockets */
    int address_count;
    /* IP addresses, or of a local socket; to be tried in this order */
    char addresses[DP_BEACON_ADDRESSES][DP_LOCAL_ADDRESS_ROOM];
    dp_secret_t secret;
    dp_process_t server;
    char identity[DP_IDENTITY_MAX]; /* of the job; "" where the way to the beacon says it */
} dp_beacon_t;

/* ---- Bytes ---------------------------------------------------------------------------------- */

size_t dp_beacon_write(const dp_beacon_t *beacon, void *data, size_t room); /* 0: no room */
/* *beacon is written on DP_OK only. DP_ERR_SYSTEM: no beacon, or malformed. */
dp_status_t dp_beacon_read(const void *data, size_t bytes, dp_beacon_t *beacon, dp_error_t *error);

/* The same as text of hexadecimal digits, terminated; 0: no room. */
size_t dp_beacon_to_text(const dp_beacon_t *beacon, char *text, size_t room);
dp_status_t dp_beacon_from_text(const char *text, dp_beacon_t *beacon, dp_error_t *error);

/* ---- The file ------------------------------------------------------------------------------- */

void dp_process_self(dp_process_t *process);
/* 1 where this machine knows that the process has ended. */
int dp_process_has_ended(const dp_process_t *process);

/* The file of a job, in $XDG_RUNTIME_DIR/dp or else /tmp/dp-UID. Only a name: nothing is made. */
void dp_beacon_path(const char *identity, char path[DP_BEACON_PATH_MAX]);

/* Puts the file there, whole, readable by this user alone, in a directory that it makes and that
 * must be ours alone; takes the place of one whose process has ended and removes others like it.
 * DP_ERR_BUSY: a living process of the same job identity has put one there. */
dp_status_t dp_beacon_publish(const char *path, const dp_beacon_t *beacon, uint64_t deadline_ns,
                              dp_error_t *error);

/* DP_ERR_PENDING: none is there yet, or a stale one, the text says which; DP_ERR_CONFIG: one that
 * is not ours to believe. */
dp_status_t dp_beacon_look(const char *path, const char *identity, dp_beacon_t *beacon,
                           dp_error_t *error);

/* Removes the file, and the directory if nothing else is in it. */
void dp_beacon_remove(const char *path);

#endif
