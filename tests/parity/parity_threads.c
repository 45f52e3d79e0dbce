/*
 * parity_threads.c - runs the cases on N ranks that are threads of this process, over loopback.
 *
 *     parity_threads CASE|all RANKS NODES
 */
#include <pthread.h>
#include <stdlib.h>

#include "coordinator/api/world/init.h"
#include "coordinator/api/context/context.h"
#include "tests/parity/parity.h"
#include "tests/threads/threads.h"

typedef struct rank {
    const char *name; /* of the case */
    const dp_config_t *config;
    dp_bootstrap_t *bootstrap;
    pthread_t thread;
    int index;
    int failed;
} rank_t;

static void *run(void *argument)
{
    rank_t *rank = argument;
    dp_error_t error = {DP_OK, ""};
    dp_context_t *dp;
    dp_status_t status = threads_context(rank->config, rank->bootstrap, &dp, &error);

    rank->failed = 1;
    if (status != DP_OK) {
        fprintf(stderr, "create: %s: %s\n", dp_status_string(status), error.text);
        return NULL;
    }
    rank->failed = parity_run(dp, rank->name);
    if (rank->failed) dp_abort(dp, "a case failed");
    if (dp_finalize(dp) != DP_OK && rank->failed == 0) rank->failed = 1;
    if (!parity_left_registrations_are_intact(rank->index)) {
        fprintf(stderr, "rank %d: what was left registered has other contents\n", rank->index);
        rank->failed = 1;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    dp_bootstrap_t *bootstraps[PARITY_RANKS_MAX];
    rank_t all[PARITY_RANKS_MAX];
    dp_config_t config;
    int failed = 0;
    int ranks = argc == 4 ? atoi(argv[2]) : 0;

    if (ranks < 1 || ranks > PARITY_RANKS_MAX) {
        fprintf(stderr, "usage: parity_threads CASE|all RANKS NODES\n");
        return 2;
    }
    dp_config_defaults(&config);
    config.pretend_nodes = atoi(argv[3]);
    config.log_level = DP_LOG_ERROR;
    /* sanitizers make a thread as slow as a swapped-out one */
    config.peer_timeout_ns = 30000000000ull;
    if (threads_bootstrap(ranks, bootstraps) != DP_OK) return 1;
    for (int i = 0; i < ranks; i++) {
        all[i] =
            (rank_t){.name = argv[1], .config = &config, .bootstrap = bootstraps[i], .index = i};
        if (pthread_create(&all[i].thread, NULL, run, &all[i]) != 0) return 1;
    }
    for (int i = 0; i < ranks; i++) {
        pthread_join(all[i].thread, NULL);
        failed |= all[i].failed;
    }
    return failed;
}
