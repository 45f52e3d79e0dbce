/*
 * pmi.h - a process of an MPI launcher (Slurm's srun, MPICH's mpiexec) asks it to pass one value
 * from rank 0 to all: PMI-1 or PMI-2 on the socket that PMI_FD names.
 *
 * Only what that takes: hello, put, fence, get, farewell. A process that speaks PMI itself (through
 * an MPI library) must not use this too: there is one socket and one conversation on it.
 */
#ifndef DP_GROUP_PMI_H
#define DP_GROUP_PMI_H

#include "runtime/group/pmi_wire.h"

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

#endif
