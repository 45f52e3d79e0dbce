/*
 * victim.c - a small training loop that DP_INJECT brings to harm, and that tells what it learned.
 *
 *     DP_INJECT=kill:1@30 dprun -np N victim STEPS CHECKPOINT_FOLDER [STORE_FOLDER]
 *
 * With STORE_FOLDER, which is empty, ranks meet by files there, and rank 1 takes a moment to end,
 * as an interpreter does: its survivors' processes end before its own. Each step averages a few
 * tensors; every fifth step each rank saves a checkpoint, and one that cannot be written is told
 * and survived. A file "stop" in rank 0's folder ends all ranks after the same step. A survivor of
 * a failure prints what it learned and when, and exits with 3; with 4 where dp_init() failed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dp.h"

#define TENSORS 3
#define WORK_NS 1000000L
#define SAVE_EVERY 5

#define LEAVE_NS 400000000L

static const size_t counts[TENSORS] = {100000, 50, 4000};
#define STOP_TENSOR 1 /* its first element is not 0 once rank 0 wants to stop */

static void tell(const char *where, dp_status_t status, const char *text)
{
    struct timespec now;
    char line[1024];
    int bytes;

    clock_gettime(CLOCK_MONOTONIC, &now);
    bytes = snprintf(line, sizeof(line), "learned: %s: %s\nlearned at %lld.%09ld in %s\n",
                     dp_status_string(status), text, (long long)now.tv_sec, now.tv_nsec, where);
    if (bytes > 0) (void)!write(STDERR_FILENO, line, (size_t)bytes);
}

/* Writes this rank's part beside the final name, then renames it. */
static void save(dp_context_t *dp, const char *folder, int step, const float *values)
{
    char path[512], temporary[528];
    FILE *file;
    int is_bad;

    dp_span_begin(dp, "checkpoint");
    snprintf(path, sizeof(path), "%s/part.%d", folder, dp_rank(dp));
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    file = fopen(temporary, "wbe");
    is_bad = file == NULL || fwrite(values, sizeof(*values), counts[0], file) != counts[0];
    if (file != NULL) {
        is_bad |= fflush(file) != 0;
        if (is_bad) fprintf(stderr, "checkpoint of step %d: %s\n", step, strerror(errno));
        fclose(file);
    } else {
        fprintf(stderr, "checkpoint of step %d: %s\n", step, strerror(errno));
    }
    if (is_bad) {
        remove(temporary);
    } else {
        rename(temporary, path);
    }
    dp_span_end(dp);
}

static dp_status_t train_step(dp_context_t *dp, float *const values[TENSORS])
{
    static const char *const names[TENSORS] = {"h.0.weight", "h.0.bias", "h.1.weight"};
    const struct timespec work = {0, WORK_NS};
    dp_handle_t *handles[TENSORS] = {NULL};
    dp_options_t options = DP_OPTIONS_INIT;
    dp_status_t status = DP_OK;

    options.reduce = DP_AVERAGE;
    for (int i = 0; i < TENSORS && status == DP_OK; i++) {
        nanosleep(&work, NULL);
        status = dp_allreduce(dp_world(dp), names[i], values[i], values[i], counts[i], DP_F32,
                              &options, &handles[i]);
    }
    for (int i = 0; i < TENSORS; i++) {
        dp_status_t end = handles[i] == NULL ? DP_OK : dp_wait(handles[i], -1.0, NULL);

        if (status == DP_OK) status = end;
    }
    return status;
}

static int wants_to_stop(dp_context_t *dp, const char *folder)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/stop", folder);
    return dp_rank(dp) == 0 && access(path, F_OK) == 0;
}

static dp_status_t train(dp_context_t *dp, int steps, const char *folder)
{
    int is_stopped = 0;

    float *values[TENSORS] = {NULL};
    dp_status_t status = DP_OK;

    for (int i = 0; i < TENSORS && status == DP_OK; i++) {
        void *memory = NULL;

        status = dp_alloc(dp, counts[i] * sizeof(float), &memory);
        values[i] = memory;
    }
    for (int step = 0; step < steps && status == DP_OK && !is_stopped; step++) {
        dp_step_begin(dp, (uint64_t)step);
        values[STOP_TENSOR][0] = wants_to_stop(dp, folder) ? 1.0f : 0.0f;
        status = train_step(dp, values);
        is_stopped = status == DP_OK && values[STOP_TENSOR][0] != 0.0f;
        if (status == DP_OK && step % SAVE_EVERY == SAVE_EVERY - 1)
            save(dp, folder, step, values[0]);
        dp_step_end(dp);
    }
    if (status != DP_OK) tell("a step", status, dp_error_text(dp));
    if (status == DP_ERR_NO_MEMORY) dp_abort(dp, dp_error_text(dp)); /* its own, not the world's */
    for (int i = 0; i < TENSORS; i++)
        dp_free(dp, values[i]);
    return status;
}

/* ---- A store of files ----------------------------------------------------------------------- */

static void key_path(const void *folder, const char *key, char *path, size_t room)
{
    const int used = snprintf(path, room, "%s/", (const char *)folder);

    snprintf(path + used, room - (size_t)used, "%s", key);
    for (char *at = path + used; *at != '\0'; at++)
        if (*at == '/') *at = '_';
}

static int put(void *folder, const char *key, const void *value, size_t bytes)
{
    char path[512], temporary[528];
    FILE *file;
    size_t written;

    key_path(folder, key, path, sizeof(path));
    snprintf(temporary, sizeof(temporary), "%s.%d", path, (int)getpid());
    file = fopen(temporary, "wbe");
    if (file == NULL) return errno;
    written = fwrite(value, 1, bytes, file);
    return fclose(file) != 0 || written != bytes || rename(temporary, path) != 0 ? EIO : 0;
}

static int get(void *folder, const char *key, void *value, size_t room, size_t *bytes,
               double seconds)
{
    const struct timespec pause = {0, 5000000L};
    char path[512];
    FILE *file;

    key_path(folder, key, path, sizeof(path));
    while ((file = fopen(path, "rbe")) == NULL && seconds > 0.0) {
        nanosleep(&pause, NULL);
        seconds -= 0.005;
    }
    if (file == NULL) return ETIMEDOUT;
    *bytes = fread(value, 1, room, file);
    fclose(file);
    return 0;
}

int main(int argc, char **argv)
{
    const struct timespec leave = {0, LEAVE_NS};
    char text[512] = "";
    dp_init_options_t options = DP_INIT_OPTIONS_INIT;
    dp_context_t *dp;
    dp_status_t status;

    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: dprun -np N victim STEPS CHECKPOINT_FOLDER [STORE_FOLDER]\n");
        return 2;
    }
    if (argc == 4) {
        options.store_put = put;
        options.store_get = get;
        options.store_user = argv[3];
        options.store_rank = (int)strtol(getenv("DP_RANK"), NULL, 10);
        options.store_ranks = (int)strtol(getenv("DP_SIZE"), NULL, 10);
    }
    options.error = text;
    options.error_bytes = sizeof(text);
    status = dp_init(&options, &dp);
    if (status != DP_OK) {
        tell("dp_init", status, text);
        return 4;
    }
    status = train(dp, (int)strtol(argv[1], NULL, 10), argv[2]);
    if (status != DP_OK) {
        if (argc == 4 && dp_rank(dp) == 1) nanosleep(&leave, NULL);
        dp_finalize(dp);
        return 3;
    }
    status = dp_finalize(dp);
    if (status != DP_OK) fprintf(stderr, "finalize: %s\n", dp_status_string(status));
    return status == DP_OK ? 0 : 3;
}
