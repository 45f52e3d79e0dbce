/*
 * pmi.h - a process of an MPI launcher (Slurm's srun, MPICH's mpiexec) asks it to pass one value
 * from rank 0 to all: PMI-1 or PMI-2 on the socket that PMI_FD names.
 *
 * Only what that takes: hello, put, fence, get, farewell. A process that speaks PMI itself (through
 * an MPI library) must not use this too: there is one socket and one conversation on it.
 */
#ifndef DP_GROUP_PMI_H
#define DP_GROUP_PMI_H

#include "runtime/base/error.h"

#define DP_PMI_MESSAGE_MAX 4096 /* what is accepted; ours are below 1.3 KiB */
#define DP_PMI_LENGTH_BYTES 6

typedef struct dp_pmi {
    int fd;          /* borrowed: the launcher made it, and closes its end after the farewell */
    int version;     /* 1 or 2; 0: not agreed on yet */
    char space[256]; /* PMI-1: the job's key-value space */
    char job[128];   /* PMI-2: the job's id, "" unknown */
    uint64_t deadline_ns;
    char input[DP_PMI_MESSAGE_MAX];
    size_t input_bytes;
} dp_pmi_t;

/* Says hello. job: PMI_JOBID, or NULL: with it PMI-2 is tried before PMI-1, without it after. rank
 * and size are compared with what the launcher says. Every wait ends at the deadline. */
dp_status_t dp_pmi_open(dp_pmi_t *pmi, int fd, const char *job, int rank, int size,
                        uint64_t deadline_ns, dp_error_t *error);
dp_status_t dp_pmi_put(dp_pmi_t *pmi, const char *key, const char *value, dp_error_t *error);
dp_status_t dp_pmi_fence(dp_pmi_t *pmi, dp_error_t *error); /* until all ranks are in it */
dp_status_t dp_pmi_get(dp_pmi_t *pmi, const char *key, char *value, size_t room, dp_error_t *error);
dp_status_t dp_pmi_close(dp_pmi_t *pmi, dp_error_t *error);

/*
 * The words of both protocols. PMI-1: lines "cmd=NAME key=value key=value\n". PMI-2: after one such
 * line, messages of six digits that count the bytes which follow, "cmd=NAME;key=value;key=value;",
 * a semicolon in a value doubled. Pure, so that a fuzzer can feed it. Described in MPICH's doc/wiki
 * and Flux RFC 13.
 */

/* Finds a key of a message without its end (the newline of PMI-1): 1, value terminated; 0: it is
 * not there; -1: longer than room, or the message is malformed up to there. */
int dp_pmi_find(int version, const char *message, size_t bytes, const char *key, char *value,
                size_t room);

/* A message that answers `command` ("cmd" is that) and says success (rc is 0 or not there). The
 * error tells what the launcher said instead. */
dp_status_t dp_pmi_check(int version, const char *message, size_t bytes, const char *command,
                         dp_error_t *error);

/* The six digits in front of a PMI-2 message, blanks before or after them; 0: no such number, or
 * one above DP_PMI_MESSAGE_MAX. */
size_t dp_pmi_length(const char digits[DP_PMI_LENGTH_BYTES]);

#endif
