/*
 * other_flags.c - a table of the flags that people bring from other launchers; see other_flags.h.
 * Called by options.c.
 */
#include "launcher/dprun/other_flags.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/common.h"

#define NEEDS_NONE "dprun needs no such flag: leave it out"
#define STARTS_NONE_AGAIN                                                                          \
    "dprun starts no rank again after a failure: run it again from a checkpoint"

/* Without dashes, words joined by -. */
static const char *const table[][2] = {
    {"nproc-per-node", "torchrun's: write -np N"},
    {"num-proc", "write -np N"},
    {"ntasks", "write -np N"},
    {"nnodes", "write -H a:4,b:4, or --node R/N for a dprun on each machine"},
    {"nodes", "write -H a:4,b:4, or leave it out in a Slurm allocation"},
    {"N", "write -H a:4,b:4: N ranks on each of those machines"},
    {"npernode", "write -H a:4,b:4: N ranks on each of those machines"},
    {"ppn", "write -H a:4,b:4: N ranks on each of those machines"},
    {"ntasks-per-node", "write -H a:4,b:4: N ranks on each of those machines"},
    {"map-by", "ranks fill the machines of -H in order, and --bind core gives each its cores"},
    {"node-rank", "write --node R/N --meet HOST:PORT"},
    {"master-addr", "write --meet HOST:PORT with --node R/N"},
    {"master-port", "write --meet HOST:PORT with --node R/N"},
    {"rdzv-endpoint", "write --meet HOST:PORT with --node R/N"},
    {"rdzv-backend", NEEDS_NONE},
    {"rdzv-id", NEEDS_NONE},
    {"standalone", NEEDS_NONE},
    {"no-python", NEEDS_NONE},
    {"module", "name the interpreter: dprun -np N python -m MODULE"},
    {"m", "name the interpreter: dprun -np N python -m MODULE"},
    {"max-restarts", STARTS_NONE_AGAIN},
    {"min-np", STARTS_NONE_AGAIN},
    {"max-np", STARTS_NONE_AGAIN},
    {"host-discovery-script", STARTS_NONE_AGAIN},
    {"tee", "output of all ranks comes here, and --output-dir DIR saves it, too"},
    {"redirects", "output of all ranks comes here, and --output-dir DIR saves it, too"},
    {"log-dir", "write --output-dir DIR"},
    {"output-filename", "write --output-dir DIR"},
    {"f", "write --hostfile FILE"},
    {"wd", "write --wdir DIR"},
    {"chdir", "write --wdir DIR"},
    {"D", "write --wdir DIR"},
    {"genv", "write -x NAME=VALUE"},
    {"bind-to", "write --bind core or --bind none"},
    {"bind-to-core", "write --bind core"},
    {"cpu-bind", "write --bind core or --bind none"},
    {"report-bindings", "write --dry-run, which prints the cores of each rank"},
    {"display-map", "write --dry-run, which prints where each rank runs"},
    {"tag-output", "each line has its rank: leave it out"},
    {"label", "each line has its rank: leave it out"},
    {"l", "each line has its rank: leave it out"},
    {"timestamp-output", "write --timestamps"},
    {"oversubscribe", "dprun starts more ranks than cores where -np says so: leave it out"},
    {"allow-run-as-root", NEEDS_NONE},
    {"mca", "dprun uses no MPI: leave it out"},
    {"gloo", "dprun uses no gloo: leave it out"},
    {"mpi", "dprun uses no MPI: leave it out"},
    {"kill-on-bad-exit", "dprun always does so: leave it out"},
    {"check-build", "write --check"},
    {"network-interfaces", "write --net-interface NAME"},
    {"ssh-port", "write --ssh \"ssh -p N\""},
    {"p", "write --ssh \"ssh -p N\""},
    {"ssh-identity-file", "write --ssh \"ssh -i FILE\""},
    {"fusion-threshold-mb", "write --fusion-bytes 64M"},
    {"cycle-time-ms", "write --fusion-hold 200us"},
    {"timeline-filename", "write --timeline FILE"},
    {"log-level", "write --log debug"},
    {"verbose", "write --log debug"},
    {"v", "write --log debug"},
    {"stall-check-warning-time-seconds", "write --stall-warn 60s"},
    {"stall-check-shutdown-time-seconds", "write --stall-limit 60s"},
    {"no-stall-check", "write --stall-warn 0 --stall-limit 0"},
};

const char *dp_other_flag(const char *name)
{
    char plain[64];

    snprintf(plain, sizeof(plain), "%s", name + strspn(name, "-"));
    for (char *c = plain; *c != '\0'; c++)
        if (*c == '_') *c = '-';
    for (size_t i = 0; i < DP_ARRAY_LEN(table); i++)
        if (strcmp(table[i][0], plain) == 0) return table[i][1];
    return NULL;
}
