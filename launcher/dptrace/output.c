/*
 * output.c - files appear whole or not at all: written beside their place, then renamed.
 *
 * Used by main.c around each writer, so that a full disk or Ctrl-C leaves an older file in place;
 * all that writes JSON has its strings from here.
 */
#include "launcher/dptrace/formats.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/dptrace/proto.h"

static int is_same(const struct stat *left, const struct stat *right)
{
    return left->st_dev == right->st_dev && left->st_ino == right->st_ino;
}

/* This program's standard output or error, where that is this file: one under the same name would
 * be another, and one opened anew would have a position of its own. Otherwise -1. */
static int standard_stream(const struct stat *info)
{
    struct stat stream;

    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &stream) == 0 && is_same(&stream, info)) return fd;
    return -1;
}

/* 1: info is of the input, or of a recorder or the clocks in that folder. */
static int is_of_input(const char *input, const struct stat *info)
{
    struct stat other;
    struct dirent *entry;
    int found = stat(input, &other) == 0 && is_same(&other, info);
    DIR *folder = found ? NULL : opendir(input);

    while (folder != NULL && !found && (entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, "trace.", 6) != 0 && strcmp(entry->d_name, "clocks") != 0)
            continue;
        found = fstatat(dirfd(folder), entry->d_name, &other, 0) == 0 && is_same(&other, info);
    }
    if (folder != NULL) closedir(folder);
    return found;
}

/* The new file; older: that which it replaces, or NULL. -1: errno. */
static int open_temporary(dp_whole_file_t *output, const struct stat *older)
{
    const mode_t mode = older == NULL ? 0666 : older->st_mode & 0777;
    int fd;

    if (older != NULL && access(output->path, W_OK) != 0) return -1;
    output->target = older == NULL ? strdup(output->path) : realpath(output->path, NULL);
    if (output->target == NULL ||
        asprintf(&output->temporary, "%s.%d.part", output->target, (int)getpid()) < 0) {
        output->temporary = NULL;
        return -1;
    }
    unlink(output->temporary); /* of an earlier process of this number */
    fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd >= 0 && older != NULL) (void)fchmod(fd, mode); /* whatever the umask is */
    return fd;
}

dp_status_t dp_file_open(const char *path, const char *input, dp_whole_file_t *output,
                         dp_error_t *error)
{
    struct stat info;
    int is_there, stream, fd;

    memset(output, 0, sizeof(*output));
    output->path = path;
    if (strcmp(path, "-") == 0) {
        output->file = stdout;
        return DP_OK;
    }
    is_there = stat(path, &info) == 0;
    stream = is_there ? standard_stream(&info) : -1;
    if (is_there && S_ISREG(info.st_mode) && is_of_input(input, &info)) {
        return dp_error_set(error, DP_ERR_INVALID, "%s: is read for this, and not overwritten",
                            path);
    }
    if (stream >= 0) {
        fd = fcntl(stream, F_DUPFD_CLOEXEC, 0);
    } else if (is_there && !S_ISREG(info.st_mode)) {
        fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        fd = open_temporary(output, is_there ? &info : NULL);
    }
    if (fd >= 0) output->file = fdopen(fd, "wb");
    if (output->file != NULL) return DP_OK;
    dp_error_set(error, DP_ERR_SYSTEM, "%s: cannot write: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    if (fd >= 0 && output->temporary != NULL) unlink(output->temporary);
    free(output->target);
    free(output->temporary);
    memset(output, 0, sizeof(*output));
    return DP_ERR_SYSTEM;
}

/* Takes the writer's status and returns the first failure of all: the writer's, the stream's, that
 * of close(), which is where a full disk may show, or the rename's. Only after all of these is the
 * file in its place. */
dp_status_t dp_file_close(dp_whole_file_t *output, dp_status_t status, dp_error_t *error)
{
    int bad = fflush(output->file) != 0 || ferror(output->file);
    int code = errno;

    if (output->file != stdout && fclose(output->file) != 0 && !bad) {
        bad = 1;
        code = errno;
    }
    if (status == DP_ERR_NO_MEMORY) dp_error_set(error, status, "%s: no memory", output->path);
    if (status == DP_OK && !bad && output->temporary != NULL &&
        rename(output->temporary, output->target) != 0) {
        bad = 1;
        code = errno;
    }
    if (status == DP_OK && bad) {
        status = dp_error_set(error, DP_ERR_SYSTEM, "%s: cannot write: %s", output->path,
                              strerror(code));
    }
    if (status != DP_OK && output->temporary != NULL) unlink(output->temporary);
    free(output->target);
    free(output->temporary);
    output->target = output->temporary = NULL;
    return status;
}
