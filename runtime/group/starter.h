/*
 * starter.h - which launcher started this process, and as which rank of which job: read from the
 * variables that launchers leave in the environment.
 *
 * Pure but for the look-up it is given, so that plain tables can test every combination. Families
 * in order of precedence, the innermost launcher of a nest first: dprun, plain variables, torchrun,
 * Open MPI, PMI, a Slurm step without PMI. docs/launch.md is the page for people.
 */
#ifndef DP_GROUP_STARTER_H
#define DP_GROUP_STARTER_H

#include "runtime/base/config.h"
#include "runtime/group/beacon.h"

typedef enum dp_starter_kind {
    DP_STARTER_NONE, /* a world of one */
    DP_STARTER_DPRUN,
    DP_STARTER_PLAIN,
    DP_STARTER_TORCHRUN,
    DP_STARTER_OPENMPI,
    DP_STARTER_PMI,
    DP_STARTER_SLURM,
    DP_STARTER_STORE /* the program says it itself, and no variable is read */
} dp_starter_kind_t;

typedef struct dp_starter {
    dp_starter_kind_t kind;
    const char *name;      /* "torchrun"; for texts */
    const char *rank_name; /* "RANK", "WORLD_SIZE": the variables that say so */
    const char *size_name;
    int rank;
    int size;
    int local_rank; /* -1: not said, likewise below */
    int local_size;
    int is_one_node;                /* 1: known to be; 0: not known to be */
    char identity[DP_IDENTITY_MAX]; /* the same on all ranks of the job, another in other jobs */
    char host[256];                 /* where rank 0 is; "": not said */
    int port;                       /* where rank 0 is to listen; 0: not said */
    int is_port_asked;              /* by DP_RENDEZVOUS or DP_RENDEZVOUS_PORT, not derived */
    int pmi_fd;
    char pmi_job[128];  /* "": not said */
    char warning[1024]; /* what contradicts, and what is used; "": nothing */
} dp_starter_t;

/* The value of a variable, or NULL. Borrowed until the next call. */
typedef const char *(*dp_lookup_t)(void *context, const char *name);

/* DP_ERR_CONFIG: half of a family, or numbers that cannot be. DP_ variables come from config. */
dp_status_t dp_starter_find(const dp_config_t *config, dp_lookup_t lookup, void *context,
                            dp_starter_t *starter, dp_error_t *error);

#endif
