/*
 * forker.c - ranks that fork, as data loaders do: children that live on without exec().
 *
 *     dprun -np 3 forker calls                what a child may call, while its rank works on
 *     dprun -np 3 forker killed FOLDER        a rank with a child is killed: when do others know?
 *     dprun -np 3 forker spawned FOLDER       the same with another program that it started
 *     dprun -np 3 forker finalize             a child outlives its rank's world
 *
 * Prints "as it must be" on each rank that saw it.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dp.h"

#define COUNT 5000
#define CHILDREN 4
/* A death told by a closed connection takes a millisecond; a timeout 400 s. */
#define SOON_S 100.0
#define CHILD_LIFE_S 600 /* a child that nobody ends */

static float values[COUNT];

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int wrong(const char *what)
{
    fprintf(stderr, "wrong: %s\n", what);
    return 1;
}

/* ---- In the child --------------------------------------------------------------------------- */

/* Uses the parent's objects in a child. 0: all is as dp.h says. */
static int misuse(dp_context_t *dp, dp_gradients_t *gradients, dp_shards_t *shards,
                  dp_handle_t *handle, void *memory)
{
    dp_shards_memory_t bytes = DP_SHARDS_MEMORY_INIT;
    dp_loss_scale_t scale = DP_LOSS_SCALE_INIT;
    dp_shard_row_t row = DP_SHARD_ROW_INIT;
    const void *weights;
    float *full;
    uint64_t hash;
    dp_stats_t stats = DP_STATS_INIT;
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    const int rank = dp_rank(dp);
    const double begin = now();
    dp_context_t *other = NULL;
    dp_group_t *group = NULL;
    void *more = NULL;
    char text[512] = "";

#define REFUSED(call)                                                                              \
    if ((call) != DP_ERR_INVALID) return wrong(#call)
    REFUSED(dp_allreduce(dp_world(dp), "child", values, values, COUNT, DP_F32, NULL, NULL));
    if (strstr(dp_error_text(dp), "fork()") == NULL) return wrong(dp_error_text(dp));
    REFUSED(dp_barrier(dp_world(dp), "child", NULL, NULL));
    REFUSED(dp_wait(handle, -1.0, NULL));
    REFUSED(dp_test(handle));
    REFUSED(dp_stream_wait(handle, NULL, -1.0));
    REFUSED(dp_wait_all(dp, -1.0));
    REFUSED(dp_alloc(dp, 4096, &more));
    REFUSED(dp_free(dp, memory));
    REFUSED(dp_register(dp, memory, 4096));
    REFUSED(dp_deregister(dp, memory));
    REFUSED(dp_group_create(dp, "child", &rank, 1, NULL, &group));
    REFUSED(dp_group_split(dp_world(dp), "child", 0, 0, NULL, &group));
    REFUSED(dp_group_destroy(dp_world(dp)));
    REFUSED(dp_gradients_ready(gradients, 0, NULL));
    REFUSED(dp_gradients_sync(gradients, NULL));
    REFUSED(dp_gradients_sync_on(gradients, NULL, NULL));
    REFUSED(dp_gradients_create(dp, NULL, 0, NULL, &gradients));
    REFUSED(dp_gradients_loss_scale_get(gradients, &scale));
    REFUSED(dp_shards_create(dp, NULL, 0, NULL, &shards));
    REFUSED(dp_shards_row(shards, 0, &row));
    REFUSED(dp_shards_load(shards, 0, NULL));
    REFUSED(dp_shards_gather(shards, 0, NULL));
    REFUSED(dp_shards_wait(shards, 0, NULL, &weights));
    REFUSED(dp_shards_release(shards, 0));
    REFUSED(dp_shards_changed(shards, 0));
    REFUSED(dp_shards_gradients(shards, 0, NULL, &full));
    REFUSED(dp_shards_ready(shards, 0, NULL));
    REFUSED(dp_shards_sync(shards, NULL));
    REFUSED(dp_shards_sync_on(shards, NULL, NULL));
    REFUSED(dp_shards_memory_get(shards, &bytes));
    REFUSED(dp_shards_loss_scale_get(shards, &scale));
    REFUSED(dp_shards_loss_scale_set(shards, &scale));
    REFUSED(dp_shards_hash(shards, &hash));
    REFUSED(dp_stats_get(dp, &stats));
    options.error = text;
    options.error_bytes = sizeof(text);
    REFUSED(dp_init(&options, &other));
    if (strstr(text, "fork()") == NULL) return wrong(text);
#undef REFUSED
    if (dp_setting(dp, "FUSION_BYTES") != NULL) return wrong("dp_setting");
    dp_release(handle);
    dp_gradients_destroy(gradients);
    dp_shards_destroy(shards);
    dp_step_begin(dp, 1);
    dp_span_begin(dp, "child");
    dp_span_end(dp);
    dp_step_end(dp);
    dp_abort(dp, "a child's wish");
    if (dp_rank(dp) != rank || dp_size(dp) < 1) return wrong("dp_rank");
    if (dp_finalize(dp) != DP_ERR_INVALID) return wrong("dp_finalize");
    if (strstr(dp_error_text(dp), "fork()") == NULL) return wrong("dp_error_text");
    return now() - begin < SOON_S ? 0 : wrong("a call that takes its time");
}

/* ---- In the rank ---------------------------------------------------------------------------- */

static dp_status_t work(dp_context_t *dp, int rounds)
{
    dp_status_t status = DP_OK;

    for (int i = 0; i < rounds && status == DP_OK; i++) {
        dp_handle_t *handle;

        for (int k = 0; k < COUNT; k++)
            values[k] = (float)dp_rank(dp);
        status = dp_allreduce(dp_world(dp), "work", values, values, COUNT, DP_F32, NULL, &handle);
        if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
        if (status == DP_OK && values[COUNT - 1] != 3.0f) status = DP_ERR_CHECK; /* 0 + 1 + 2 */
    }
    return status;
}

static int failed(dp_context_t *dp, const char *what, dp_status_t status)
{
    fprintf(stderr, "wrong: %s: %s: %s\n", what, dp_status_string(status), dp_error_text(dp));
    dp_abort(dp, what);
    dp_finalize(dp);
    return 1;
}

/* Children end as Python's do and as C's do, with all that runs at an exit. */
static pid_t fork_misuser(dp_context_t *dp, dp_gradients_t *gradients, dp_shards_t *shards,
                          dp_handle_t *handle, void *memory, int leaves_plainly)
{
    const pid_t child = fork();
    int code;

    if (child != 0) return child;
    alarm(CHILD_LIFE_S);
    code = misuse(dp, gradients, shards, handle, memory);
#if defined(__SANITIZE_ADDRESS__)
    /* Its look for leaks would miss what only the rank's threads point to. */
    leaves_plainly = 0;
#endif
    if (leaves_plainly) exit(code);
    _exit(code);
}

static int await_children(void)
{
    int wrongs = 0;
    int status;

    while (wait(&status) > 0)
        wrongs += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    return wrongs;
}

static int try_calls(dp_context_t *dp)
{
    float weight[16] = {0}, gradient[16] = {0};
    const dp_gradient_t list = {"w", weight, gradient, 16, DP_F32};
    const dp_shard_unit_t group = {.name = "s", .count = 5000};
    dp_gradients_t *gradients = NULL;
    dp_shards_t *shards = NULL;
    dp_handle_t *handle = NULL;
    const void *weights;
    void *memory = NULL;
    dp_status_t status;

    status = dp_gradients_create(dp, &list, 1, NULL, &gradients);
    if (status == DP_OK) status = dp_alloc(dp, 4096, &memory);
    if (status == DP_OK) status = dp_shards_create(dp, &group, 1, NULL, &shards);
    /* In flight at every fork: the other ranks submit it at the end. */
    if (status == DP_OK) {
        status = dp_allreduce(dp_world(dp), "last", gradient, gradient, 16, DP_F32, NULL, &handle);
    }
    for (int i = 0; i < CHILDREN && status == DP_OK; i++) {
        if (fork_misuser(dp, gradients, shards, handle, memory, i % 2) < 0) return wrong("fork");
        status = work(dp, 20);
    }
    if (status != DP_OK) return failed(dp, "work beside children", status);
    if (await_children() != 0) return failed(dp, "a child", DP_ERR_CHECK);
    status = work(dp, 20);
    if (status == DP_OK) status = dp_wait(handle, -1.0, NULL);
    if (status == DP_OK) status = dp_gradients_ready(gradients, 0, NULL);
    if (status == DP_OK) status = dp_gradients_sync(gradients, NULL);
    if (status == DP_OK) status = dp_shards_wait(shards, 0, NULL, &weights);
    if (status != DP_OK) return failed(dp, "work after children", status);
    dp_gradients_destroy(gradients);
    dp_free(dp, memory);
    status = dp_finalize(dp);
    if (status != DP_OK) return wrong("dp_finalize");
    puts("as it must be");
    return 0;
}

/* A child that does nothing but hold what it inherited. */
static void fork_sleeper(void)
{
    const pid_t child = fork();

    if (child != 0) return;
    alarm(CHILD_LIFE_S);
    for (;;)
        pause();
}

/* Another program, started as system() does: no handler of fork() runs, so it inherits whatever was
 * opened without close-on-exec. */
static void spawn_sleeper(void)
{
    char *const arguments[] = {"sleep", "30", NULL};
    pid_t child;

    if (posix_spawnp(&child, "sleep", NULL, NULL, arguments, environ) != 0) abort();
}

static void leave_time(const char *folder, const char *name)
{
    const double time = now();
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "wbe");
    if (file == NULL || fwrite(&time, sizeof(time), 1, file) != 1 || fclose(file) != 0) abort();
}

static double read_time(const char *folder, const char *name)
{
    double time = -1e9;
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "rbe");
    if (file == NULL || fread(&time, sizeof(time), 1, file) != 1) time = -1e9;
    if (file != NULL) fclose(file);
    return time;
}

static int be_killed(dp_context_t *dp, const char *folder, void (*start_sleeper)(void))
{
    const int rank = dp_rank(dp);
    dp_status_t status = work(dp, 10);
    double took;

    if (status != DP_OK) return failed(dp, "work", status);
    if (rank == 1) {
        start_sleeper();
        status = work(dp, 10);
        if (status != DP_OK) return failed(dp, "work beside a child", status);
        leave_time(folder, "killed");
        raise(SIGKILL);
    }
    status = work(dp, 1000000);
    took = now() - read_time(folder, "killed");
    if (status != DP_ERR_PEER_LOST) return failed(dp, "a rank was killed", status);
    /* before it leaves: dprun ends a rank a moment after it has reported the failure */
    printf("rank %d learned after %.4f s: %s\n", rank, took,
           took < SOON_S ? "as it must be" : "late");
    dp_finalize(dp);
    return 3;
}

static int outlive(dp_context_t *dp)
{
    dp_status_t status = work(dp, 10);
    double begin, took;
    const int rank = dp_rank(dp);

    if (rank == 1) fork_sleeper();
    if (status == DP_OK) status = work(dp, 10);
    if (status != DP_OK) return failed(dp, "work beside a child", status);
    begin = now();
    status = dp_finalize(dp);
    took = now() - begin;
    if (status != DP_OK) return wrong(dp_status_string(status));
    printf("rank %d left after %.4f s: %s\n", rank, took, took < SOON_S ? "as it must be" : "late");
    return took < SOON_S ? 0 : 1;
}

int main(int argc, char **argv)
{
    dp_context_t *dp;

    if (argc < 2) return 2;
    setvbuf(stdout, NULL, _IONBF, 0); /* nothing for children to write again */
    if (dp_init(NULL, &dp) != DP_OK) return 1;
    if (strcmp(argv[1], "calls") == 0) return try_calls(dp);
    if (strcmp(argv[1], "killed") == 0 && argc == 3) return be_killed(dp, argv[2], fork_sleeper);
    if (strcmp(argv[1], "spawned") == 0 && argc == 3) return be_killed(dp, argv[2], spawn_sleeper);
    if (strcmp(argv[1], "finalize") == 0) return outlive(dp);
    return 2;
}
