/*
 * out_folder.c - one folder, one run. Two runs in one folder would share a log, and --resume auto
 * would go on with whichever has the higher step. Rank 0's main thread, while a run starts.
 */
#include "examples/gpt2/train/out_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/gpt2/data/checkpoint_folder.h"

/* The files of an older run in a folder. */
typedef struct held {
    char checkpoints[GPT2_PATH_MAX]; /* their folder */
    char log[GPT2_PATH_MAX];
    uint64_t *steps; /* [count], highest first */
    size_t count;
    int has_log;
} held_t;

static int look(const char *folder, held_t *held, gpt2_error_t *error)
{
    struct stat status;

    memset(held, 0, sizeof(*held));
    if (gpt2_path_join(held->checkpoints, folder, "checkpoint", error) != 0) return -1;
    if (gpt2_path_join(held->log, folder, "log.csv", error) != 0) return -1;
    held->has_log = stat(held->log, &status) == 0 && status.st_size > 0;
    return gpt2_folder_steps(held->checkpoints, &held->steps, &held->count, error);
}

/* 1: --resume names a checkpoint of this folder; *step is its number. */
static int resumes_own(const gpt2_options_t *options, const held_t *held, uint64_t *step)
{
    for (size_t i = 0; options->resume != NULL && i < held->count; i++) {
        char path[GPT2_PATH_MAX];
        struct stat own;
        struct stat named;

        (void)snprintf(path, sizeof(path), "%.*s/%" PRIu64, GPT2_PATH_MAX - 32, held->checkpoints,
                       held->steps[i]);
        if (stat(path, &own) != 0 || stat(options->resume, &named) != 0) continue;
        if (own.st_ino != named.st_ino || own.st_dev != named.st_dev) continue;
        *step = held->steps[i];
        return 1;
    }
    return 0;
}

static int refuse(const char *folder, const held_t *held, gpt2_error_t *error)
{
    char what[128] = "log.csv";

    if (held->count > 0) {
        (void)snprintf(what, sizeof(what), "checkpoint%s %" PRIu64 "%s%s",
                       held->count > 1 ? "s" : "", held->steps[0],
                       held->count > 1 ? " and older" : "", held->has_log ? ", log.csv" : "");
    }
    return gpt2_fail(
        error,
        "--out %s holds a run already (%s): --resume auto goes on with it, --overwrite "
        "removes it, or name another folder",
        folder, what);
}

static int check_held(const gpt2_options_t *options, const held_t *held, gpt2_error_t *error)
{
    uint64_t step;

    if (held->count == 0 && !held->has_log) return 0;
    if (options->overwrite) return 0;
    if (options->resume != NULL && strcmp(options->resume, "auto") == 0) return 0;
    if (!resumes_own(options, held, &step)) return refuse(options->out, held, error);
    if (held->steps[0] == step) return 0;
    return gpt2_fail(error,
                     "--out %s holds checkpoint %" PRIu64
                     ", which is newer than %s and would count "
                     "as this run's newest: --overwrite removes it, or name another folder",
                     options->out, held->steps[0], options->resume);
}

/* Keeps two runs from writing into one folder at a time. */
static int lock_folder(const char *folder, int *fd, gpt2_error_t *error)
{
    char path[GPT2_PATH_MAX];

    if (gpt2_make_folders(folder, error) != 0) return -1;
    if (gpt2_path_join(path, folder, ".lock", error) != 0) return -1;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return gpt2_fail(error, "%s: %s", path, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return 0;
    return gpt2_fail(error, "%s: another run is writing there", folder);
}

int gpt2_out_folder_open(const gpt2_options_t *options, int *fd, gpt2_error_t *error)
{
    held_t held;
    int code;

    if (lock_folder(options->out, fd, error) != 0) return -1;
    code = look(options->out, &held, error);
    if (code == 0) code = check_held(options, &held, error);
    free(held.steps);
    return code;
}

int gpt2_out_folder_clear(const gpt2_options_t *options, gpt2_error_t *error)
{
    uint64_t from = 0; /* of a resume; what is newer goes */
    held_t held;
    int is_own = 0;
    int code;

    if (!options->overwrite) return 0;
    code = look(options->out, &held, error);
    if (code == 0) is_own = resumes_own(options, &held, &from);
    for (size_t i = 0; code == 0 && i < held.count; i++) {
        if (!is_own || held.steps[i] > from)
            code = gpt2_folder_remove(held.checkpoints, held.steps[i], error);
    }
    if (code == 0 && !is_own && held.has_log && unlink(held.log) != 0)
        code = gpt2_fail(error, "%s: cannot be removed: %s", held.log, strerror(errno));
    free(held.steps);
    return code;
}
