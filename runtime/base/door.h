/*
 * door.h - a listening socket that admits only peers of the job: accepts connections, reads one
 * hello of fixed size from each, and hands those that prove the secret to the door's owner.
 *
 *     listeners --accept--> visitor --hello is whole--> judge() --> the owner's, or refused
 *                              |                                           |
 *                              +-- too late, closed, one of too many ------+--> closed, counted
 *
 * Anybody may connect, so the same rules hold at every door:
 * - Nothing but the hello is read, and other users of a local socket are hung up on before that.
 * - A bounded number of visitors is held: DP_DOOR_EXTRA more than are expected. Beyond that the
 *   oldest goes of the origin that has the most, so a flood drops its own connections. A peer
 *   of the job connects again.
 * - A hello has DP_DOOR_PATIENCE_S.
 * - One turn accepts a few connections only. Where no descriptor is free, a visitor goes, or the
 *   door pauses.
 * - Refusals are counted, and the first DP_DOOR_LINES reported: a port scan must not fill a log.
 *
 * A door has no thread, and no call blocks. Its one descriptor is readable when dp_door_turn() has
 * something to do; the owner watches it in a loop of any kind. All calls come from one thread.
 */
#ifndef DP_BASE_DOOR_H
#define DP_BASE_DOOR_H

#include <sys/socket.h>

#include "runtime/base/auth.h"

#define DP_DOOR_EXTRA 64
#define DP_DOOR_PATIENCE_S 5
#define DP_DOOR_LINES 20
#define DP_DOOR_BACKLOG 1024
#define DP_DOOR_LISTENERS 20
#define DP_DOOR_SOURCES 256 /* origins are counted by hash: equal ones share their fate */
#define DP_DOOR_HELLO_MAX 96
#define DP_DOOR_GREETING_MAX 40
#define DP_DOOR_FILES_MAX 2
#define DP_DOOR_TEXT 512

typedef struct dp_door dp_door_t;

/* A connection whose hello is whole. */
typedef struct dp_door_visitor {
    int fd; /* non-blocking */
    uint8_t hello[DP_DOOR_HELLO_MAX];
    uint8_t challenge[DP_CHALLENGE_BYTES]; /* of the greeting */
    int files[DP_DOOR_FILES_MAX];          /* descriptors that came with the hello */
    int file_count;
    int lacks_files; /* more came than a hello may bring, or than were free here */
    char from[64];   /* "10.0.0.7:4711", "[fe80::1]:4711", "process 12 of user 1000" */
    /* the door's own */
    size_t bytes; /* of the hello so far */
    uint8_t source;
    uint64_t number;
    uint64_t until_ns;
} dp_door_visitor_t;

typedef struct dp_door_owner {
    size_t hello_bytes; /* 0: a connection is judged as it comes */
    int files;          /* descriptors that a hello may bring */
    /* Writes what a visitor is sent first; NULL: nothing. */
    void (*greet)(const uint8_t *challenge, uint8_t *greeting);
    size_t greeting_bytes;
    /* 1: the visitor is the owner's, with fd and files. 0: refused; why: [DP_DOOR_TEXT], for
     * people. It may send an answer either way, and may close the door, but not destroy it. */
    int (*judge)(void *context, dp_door_visitor_t *visitor, char *why);
    /* A refusal that is to be reported. NULL: none is. */
    void (*refused)(void *context, const char *from, const char *why);
    const char *busy; /* DP_PROOF_BYTES for a visitor that makes room for others; NULL: nothing */
    void *context;
} dp_door_owner_t;

/* A TCP socket that listens there, non-blocking, *port being its port; -1 with errno. only_6: a
 * socket of version 6 takes no connection of version 4. */
int dp_door_bind(const struct sockaddr *address, socklen_t bytes, int only_6, uint16_t *port);
/* Likewise at every address of both versions. *bound is the port; 0: any that is free. */
int dp_door_bind_everywhere(uint16_t port, uint16_t *bound);

/* expected: connections that may be about to prove themselves at one time. DP_ERR_NO_MEMORY,
 * DP_ERR_SYSTEM. */
dp_status_t dp_door_create(const dp_door_owner_t *owner, int expected, dp_door_t **out,
                           dp_error_t *error);
/* Accepts at a listener, too, which is taken, also on an error. 0, or -1 with errno. */
int dp_door_listen(dp_door_t *door, int listener);
/* Takes a connected socket, non-blocking, as if it had been accepted; at a closed door it is
 * closed. source: 0 to DP_DOOR_SOURCES - 1. */
void dp_door_adopt(dp_door_t *door, int fd, const char *from, int source);

int dp_door_fd(const dp_door_t *door);
void dp_door_turn(dp_door_t *door);

/* Sends an answer to a visitor, if its socket takes it at once: a stranger that does not read must
 * not be waited for. 0, or -1. */
int dp_door_answer(const dp_door_visitor_t *visitor, const void *data, size_t bytes);
/* Counts and reports one more refusal, of a connection that is the owner's. */
void dp_door_refuse(dp_door_t *door, const char *from, const char *why);
int dp_door_refused(const dp_door_t *door);
/* 1: there were too many visitors at one time. */
int dp_door_had_flood(const dp_door_t *door);

/* Closes listeners and visitors; again is fine. The counters stay. */
void dp_door_close(dp_door_t *door);
void dp_door_destroy(dp_door_t *door); /* NULL is fine */

#endif
