/*
 * nodes.h - which machines a job runs on and how their stations come up, from the command line and
 * the environment. dprun.c asks once, before anything is started.
 */
#ifndef DP_LAUNCHER_NODES_H
#define DP_LAUNCHER_NODES_H

#include <limits.h>
#include <stdio.h>

#include "launcher/dprun/options.h"
#include "launcher/dprun/remote/hosts.h"
#include "runtime/base/auth.h"

typedef enum dp_nodes_way {
    DP_NODES_NONE, /* this machine alone, without a station */
    DP_NODES_SSH,  /* -H, --hostfile */
    DP_NODES_SRUN, /* inside a Slurm allocation */
    DP_NODES_JOIN  /* --node: something else starts a dprun on each machine */
} dp_nodes_way_t;

typedef struct dp_nodes {
    dp_nodes_way_t way;
    dp_hosts_t hosts;
    char program[PATH_MAX];   /* of dprun */
    char directory[PATH_MAX]; /* where the ranks start */
    char *names;              /* DP_NODES_SRUN: "a,b", of those that are used; NULL: all; owned */
    char **variables;         /* [variable_count] NAME=VALUE for the ranks, owned */
    size_t variable_count;
    /* DP_NODES_JOIN */
    int node;       /* this one; 0 leads */
    char meet[256]; /* the name of node 0, as the others reach it */
    uint16_t port;
    dp_secret_t secret;
} dp_nodes_t;

/* Fills in nodes, and command->size where -np leaves it open. way stays DP_NODES_NONE where nothing
 * speaks of other machines. */
dp_status_t dp_nodes_plan(dp_nodes_t *nodes, dp_command_t *command, dp_error_t *error);
void dp_nodes_fini(dp_nodes_t *nodes);

/* Whether something besides -np tells how many ranks there are. */
int dp_nodes_are_asked(const dp_command_t *command);

/* All nodes but the first, under --node: serves the leader's job. Returns the exit code. */
int dp_nodes_follow(dp_nodes_t *nodes, const dp_command_t *command);

#endif
