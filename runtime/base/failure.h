/*
 * failure.h - why a job ends, as one rank knows it: typed facts for the program that decides, and a
 * text for the people who read it.
 *
 * A rank fills one in when its world ends and sends it to dprun through the rendezvous
 * (runtime/base/kv.h). dprun finds the cause by the facts alone (launcher/dprun/failure/fate.c) and
 * prints the text, so a text may change at any time. The bytes are pure: they know neither sockets
 * nor threads, so that a fuzzer can feed them anything.
 *
 * Little-endian: u8 version, u8 kind, u8 flags, u32 culprit (all ones: unknown), u64 age_ns,
 * u64 step, u64 operation_ns, text node, text operation, text text. A later version may append
 * fields; a reader skips what it does not know.
 */
#ifndef DP_BASE_FAILURE_H
#define DP_BASE_FAILURE_H

#include "runtime/base/error.h"
#include "runtime/base/wire.h"

#define DP_FAILURE_VERSION 1
#define DP_FAILURE_NODE_MAX 63
#define DP_FAILURE_OPERATION_MAX 191
#define DP_FAILURE_TEXT_MAX (DP_ERROR_TEXT_MAX - 1)
/* The largest of version 1. */
#define DP_FAILURE_BYTES_MAX                                                                       \
    (3 + 4 + 8 + 8 + 8 + 2 + DP_FAILURE_NODE_MAX + 2 + DP_FAILURE_OPERATION_MAX + 2 +              \
     DP_FAILURE_TEXT_MAX)

/* The event that happened to, or because of, the culprit. Values are part of the wire form. */
typedef enum dp_failure_kind {
    DP_FAILURE_OTHER = 0,    /* nothing that the kinds below tell */
    DP_FAILURE_LOST = 1,     /* its connection broke: its process has ended or is about to */
    DP_FAILURE_SILENT = 2,   /* its coordinator gave no sign of life for age_ns */
    DP_FAILURE_STALLED = 3,  /* others waited age_ns for its part of an operation */
    DP_FAILURE_LATE = 4,     /* it did not come to the rendezvous in time */
    DP_FAILURE_ENDED = 5,    /* it ended before all ranks had met */
    DP_FAILURE_ABORTED = 6,  /* it ended the world itself: dp_abort(), or an error of its own */
    DP_FAILURE_MISMATCH = 7, /* its program does something else than others' */
    DP_FAILURE_KINDS = 8
} dp_failure_kind_t;

typedef struct dp_failure {
    dp_failure_kind_t kind;
    int culprit;     /* rank, which may be the reporter itself; -1: unknown */
    int is_seen;     /* the reporter saw it; 0: another rank told the reporter */
    uint64_t age_ns; /* SILENT, STALLED: for how long; 0: unknown */
    int has_step;
    uint64_t step;                      /* that the reporter was in */
    uint64_t operation_ns;              /* since `operation` was submitted */
    char node[DP_FAILURE_NODE_MAX + 1]; /* the culprit's; "": unknown */
    /* The oldest that the reporter had submitted and that was not complete; "": none. */
    char operation[DP_FAILURE_OPERATION_MAX + 1];
    char text[DP_FAILURE_TEXT_MAX + 1]; /* for people alone */
} dp_failure_t;

/* A failure that says nothing yet but a kind, a culprit and a text (cut where it is too long). */
void dp_failure_init(dp_failure_t *failure, dp_failure_kind_t kind, int culprit, const char *text);

/* The kind that a world's last status stands for, where nothing more is known. */
dp_failure_kind_t dp_failure_kind_of(dp_status_t status);

/* 1: the culprit may well be alive; others gave up waiting for it. */
int dp_failure_is_wait(dp_failure_kind_t kind);

/* writer->failed tells that it did not fit. */
void dp_failure_write(dp_writer_t *writer, const dp_failure_t *failure);

/* Reads up to the end of the reader's bytes. DP_ERR_SYSTEM: malformed, *failure is untouched.
 * Control characters become '?', as texts end on a terminal; a kind of a later version becomes
 * OTHER. */
dp_status_t dp_failure_read(dp_reader_t *reader, dp_failure_t *failure);

#endif
