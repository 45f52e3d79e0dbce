/*
 * ranks_threads.c - runs a case on N ranks that are threads of this process, over loopback.
 *
 *     ranks_threads CASE|all RANKS NODES [FUSION_BYTES]
 *
 * Fused buffers hold what the cases fuse (but `large`, which has its own size). Buffers of the
 * default size would be most of the work here: every case makes them anew, of real pages.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/api/world/init.h"
#include "coordinator/api/context/context.h"
#include "tests/ranks/cases.h"
#include "tests/ranks/cases_internal.h"
#include "tests/threads/threads.h"

/* Cases that need what only lives inside a process. */
static const rank_case_t own_cases[] = {
    {"queue", case_queue, 1, DP_OK, 0},
    {"run_ahead", case_run_ahead, 1, DP_OK, 0},
    {"streams_cross", case_streams_cross, 1, DP_OK, 0},
    {"stream_rules", case_stream_rules, 1, DP_OK, 0},
};
static const int own_case_count = sizeof(own_cases) / sizeof(own_cases[0]);

typedef struct rank {
    const rank_case_t *what;
    const dp_config_t *config;
    dp_bootstrap_t *bootstrap;
    pthread_t thread;
    int failed;
} rank_t;

static void *run(void *argument)
{
    rank_t *rank = argument;
    dp_error_t error = {DP_OK, ""};
    dp_context_t *dp;
    dp_status_t status = threads_context(rank->config, rank->bootstrap, &dp, &error);

    if (status != DP_OK) {
        fprintf(stderr, "%s: create: %s: %s\n", rank->what->name, dp_status_string(status),
                error.text);
        rank->failed = 1;
        return NULL;
    }
    rank->failed = rank->what->run(dp);
    status = dp_finalize(dp);
    if (status != rank->what->finalize) {
        fprintf(stderr, "%s: dp_finalize: %s\n", rank->what->name, dp_status_string(status));
        rank->failed = 1;
    }
    return NULL;
}

static int run_case(const rank_case_t *what, int ranks, const dp_config_t *base)
{
    dp_bootstrap_t *bootstraps[64];
    rank_t all[64];
    dp_config_t config = *base;
    int failed = 0;

    config.check = what->check;
    if (what->run == case_queue) config.queue_depth = QUEUE_CASE_DEPTH;
    if (what->run == case_priority) {
        config.hold_ns = 1000000000;
        config.fusion_bytes = 64 * DP_MIB;
    }
    config.order = strncmp(what->name, PROGRAM_PREFIX, strlen(PROGRAM_PREFIX)) == 0
                       ? DP_CONFIG_ORDER_PROGRAM
                       : DP_CONFIG_ORDER_NEGOTIATED;
    if (threads_bootstrap(ranks, bootstraps) != DP_OK) return 1;
    for (int i = 0; i < ranks; i++) {
        all[i] = (rank_t){.what = what, .config = &config, .bootstrap = bootstraps[i]};
        if (pthread_create(&all[i].thread, NULL, run, &all[i]) != 0) return 1;
    }
    for (int i = 0; i < ranks; i++) {
        pthread_join(all[i].thread, NULL);
        failed |= all[i].failed;
    }
    printf("%-16s %d ranks, %d nodes: %s\n", what->name, ranks, config.pretend_nodes,
           failed ? "FAILED" : "ok");
    fflush(stdout);
    return failed;
}

int main(int argc, char **argv)
{
    dp_config_t config;
    int failed = 0, found = 0, ranks, run_all;

    if (argc < 4) {
        fprintf(stderr, "usage: ranks_threads CASE|all RANKS NODES [FUSION_BYTES]\n");
        return 2;
    }
    ranks = atoi(argv[2]);
    run_all = strcmp(argv[1], "all") == 0;
    if (ranks < 1 || ranks > 64) return 2;
    dp_config_defaults(&config);
    config.pretend_nodes = atoi(argv[3]);
    config.log_level = DP_LOG_ERROR;
    /* sanitizers make a thread as slow as a swapped-out one */
    config.peer_timeout_ns = 30000000000ull;
    config.fusion_bytes = argc > 4 ? (size_t)atoll(argv[4]) : DP_MIB;
    for (int i = 0; i < rank_case_count + own_case_count; i++) {
        const rank_case_t *what =
            i < rank_case_count ? &rank_cases[i] : &own_cases[i - rank_case_count];

        if (!run_all && strcmp(argv[1], what->name) != 0) continue;
        if (run_all && strcmp(what->name, "large") == 0) continue; /* has a test of its own */
        if (ranks < what->least_ranks) continue;
        found++;
        failed |= run_case(what, ranks, &config);
    }
    if (found == 0) {
        fprintf(stderr, "ranks_threads: no case %s for %d ranks\n", argv[1], ranks);
        return 2;
    }
    return failed;
}
