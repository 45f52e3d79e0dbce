/*
 * test_gpt2_lone_error.c - memory runs out on one rank alone: every allocation of its main thread
 * fails once, in the trainer and in libdp, from the first weights to the last checkpoint. All ranks
 * end, and all name that rank, or all go on.
 *
 *     test_gpt2_lone_error RANKS resume|fresh FLAGS...
 *
 * Ranks are threads over loopback, since one world after another is made. A rank that leaves the
 * others waiting is found by DP_STALL_LIMIT, which a right run never reaches.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/api/world/init.h"
#include "coordinator/api/context/context.h"
#include "examples/gpt2/base/files.h"
#include "examples/gpt2/train/run.h"
#include "tests/gpt2/scratch.h"
#include "tests/unit/fail_allocation.h"
#include "tests/threads/threads.h"

enum { RANKS_MAX = 3, LIMIT = 3000 /* far more allocations than a run makes */ };

typedef struct rank {
    pthread_t thread;
    const gpt2_options_t *options;
    dp_config_t *config;
    dp_bootstrap_t *bootstrap;
    long fails; /* the allocation to fail; 0: none */
    int is_met; /* 1: that allocation was reached */
    int code;
    gpt2_error_t error;
} rank_t;

static _Thread_local rank_t *self;

/* gpt2_dp_join() calls it; the linker puts it in the place of dp_init(). */
dp_status_t __wrap_dp_init(const dp_init_options_t *given, dp_context_t **context);

dp_status_t __wrap_dp_init(const dp_init_options_t *given, dp_context_t **context)
{
    dp_error_t error = {DP_OK, ""};

    (void)given;
    return threads_context(self->config, self->bootstrap, context, &error);
}

static void *run_rank(void *argument)
{
    gpt2_strategy_t *strategy = NULL;
    const gpt2_strategy_ops_t *ops;

    self = argument;
    ops = gpt2_strategy_find(self->options->strategy, &self->error);
    self->code = ops->create(&strategy, &self->error);
    if (self->code != 0) return NULL;
    fail_allocation(self->fails);
    self->code = gpt2_run(self->options, strategy, &self->error);
    self->is_met = fail_allocation_reached();
    if (ops->destroy(strategy, self->code == 0 ? &self->error : NULL) != 0) self->code = -1;
    return NULL;
}

/* One world; its nth allocation on rank `lone` fails. Returns 1: it was reached, 0: it was not, -1:
 * the ranks did not end alike. */
static int run_world(const gpt2_options_t *options, int ranks, int lone, long nth)
{
    dp_bootstrap_t *bootstraps[RANKS_MAX];
    rank_t all[RANKS_MAX];
    dp_config_t config;
    char name[32];
    int wrong = 0;

    (void)gpt2_remove_folder(options->out, NULL);
    dp_config_defaults(&config);
    config.log_level = DP_LOG_ERROR;
    config.fusion_bytes = 64 * 1024; /* a world need not fill more when it starts */
    config.stall_limit_ns = 20000000000ull;
    config.peer_timeout_ns = 0;
    if (threads_bootstrap(ranks, bootstraps) != DP_OK) return -1;
    for (int i = 0; i < ranks; i++) {
        all[i] = (rank_t){.options = options,
                          .config = &config,
                          .bootstrap = bootstraps[i],
                          .fails = i == lone ? nth : 0};
        if (pthread_create(&all[i].thread, NULL, run_rank, &all[i]) != 0) return -1;
    }
    for (int i = 0; i < ranks; i++)
        (void)pthread_join(all[i].thread, NULL);
    (void)snprintf(name, sizeof(name), "rank %d", lone);
    for (int i = 0; i < ranks; i++) {
        const char *text = all[i].error.text;
        /* After the last operation libdp's log alone has the reason. */
        const int is_told =
            i == lone || strstr(text, name) != NULL || strstr(text, "dp_finalize") != NULL;

        if (all[i].code == 0 && all[lone].code == 0) continue;
        /* Rank 0 writes samples and exports when the others are done. */
        if (all[i].code == 0 && lone == 0) continue;
        if (all[i].code == 0 || !is_told || strstr(text, "stall") != NULL) wrong = 1;
    }
    for (int i = 0; wrong && i < ranks; i++) {
        (void)fprintf(stderr, "allocation %ld of rank %d of %d: rank %d ends with %d: %s\n", nth,
                      lone, ranks, i, all[i].code, all[i].error.text);
    }
    return wrong ? -1 : all[lone].is_met;
}

static void write_text(void)
{
    char text[2000];

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = "and the lord said\n"[i % 18];
    (void)scratch_write("text", text, sizeof(text));
}

static int try_all(const gpt2_options_t *options, int ranks)
{
    int failed = 0;

    for (int lone = ranks - 1; lone >= 0; lone -= ranks - 1) {
        int found = 1;
        long nth;

        for (nth = 1; nth < LIMIT && found != 0; nth++) {
            found = run_world(options, ranks, lone, nth);
            failed |= found < 0;
        }
        (void)fprintf(stderr, "%ld allocations of rank %d\n", nth - 2, lone);
        if (nth == LIMIT || nth < 20) failed = 1;
    }
    return failed;
}

int main(int argc, char **argv)
{
    static char *const usual[] = {"--layers",
                                  "1",
                                  "--heads",
                                  "1",
                                  "--width",
                                  "8",
                                  "--context",
                                  "8",
                                  "--batch",
                                  "3",
                                  "--seq",
                                  "8",
                                  "--eval-batches",
                                  "1",
                                  "--threads",
                                  "1",
                                  "--steps",
                                  "2",
                                  "--check",
                                  "1",
                                  "--checkpoint-every",
                                  "1",
                                  "--sample",
                                  "a",
                                  "--sample-tokens",
                                  "4"};
    const int ranks = argc > 2 ? atoi(argv[1]) : 0;
    char *all[64] = {argv[0]};
    char folder[512];
    char first[512];
    gpt2_options_t options;
    gpt2_error_t error;
    int count = 1;
    int failed;

    if (ranks < 2 || ranks > RANKS_MAX || argc > 32) return 2;
    (void)scratch_make();
    write_text();
    (void)snprintf(folder, sizeof(folder), "%s", scratch_path("run"));
    (void)snprintf(first, sizeof(first), "%s", scratch_path("run/checkpoint/2"));
    for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]); i++)
        all[count++] = usual[i];
    all[count++] = (char[]){"--data"};
    all[count++] = (char *)(uintptr_t)scratch_path("text");
    all[count++] = (char[]){"--summary"};
    all[count++] = (char *)(uintptr_t)scratch_path("summary");
    all[count++] = (char[]){"--export"};
    all[count++] = (char *)(uintptr_t)scratch_path("model.safetensors");
    all[count++] = (char[]){"--out"};
    all[count++] = folder;
    for (int i = 3; i < argc; i++)
        all[count++] = argv[i];
    if (gpt2_options_parse(count, all, &options, &error) != 0) {
        (void)fprintf(stderr, "%s\n", error.text);
        return 2;
    }
    if (freopen("/dev/null", "w", stdout) == NULL) return 2; /* each run prints its steps */
    if (strcmp(argv[2], "resume") == 0) {
        if (run_world(&options, ranks, 0, 0) != 0) return 1;
        (void)snprintf(folder, sizeof(folder), "%s", scratch_path("more"));
        options.resume = first;
        options.steps = 3;
    }
    failed = try_all(&options, ranks);
    scratch_remove();
    return failed;
}
