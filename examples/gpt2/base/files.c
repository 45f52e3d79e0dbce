/*
 * files.c - durable writes, and their error texts; opening what is read.
 *
 * A file counts as written only after fsync() of it and of its folder. Called on the main thread by
 * all that reads or writes files; it knows no file's format.
 */
#include "examples/gpt2/base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int gpt2_path_join(char *out, const char *folder, const char *name, gpt2_error_t *error)
{
    int length = snprintf(out, GPT2_PATH_MAX, "%s/%s", folder, name);

    if (length >= 0 && length < GPT2_PATH_MAX) return 0;
    return gpt2_fail(error, "%.100s.../%s: the path is longer than %d bytes", folder, name,
                     GPT2_PATH_MAX - 1);
}

int gpt2_path_ends(const char *path, const char *suffix)
{
    const size_t length = strlen(path);
    const size_t tail = strlen(suffix);

    return length > tail && strcmp(path + length - tail, suffix) == 0;
}

/* Makes the entry of a new folder durable; path has no slash at its end. */
static int sync_parent(const char *path, gpt2_error_t *error)
{
    char parent[GPT2_PATH_MAX];
    const char *slash = strrchr(path, '/');

    if (slash == NULL) return gpt2_folder_sync(".", error);
    if (slash == path) return gpt2_folder_sync("/", error);
    (void)snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path), path);
    if (access(parent, R_OK) != 0) return 0; /* not ours to open, however writable */
    return gpt2_folder_sync(parent, error);
}

int gpt2_make_folders(const char *path, gpt2_error_t *error)
{
    char partial[GPT2_PATH_MAX];
    size_t length = strlen(path);
    struct stat status;

    if (length >= sizeof(partial)) return gpt2_fail(error, "%.100s...: path too long", path);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(partial, path, i);
        partial[i] = '\0';
        if (mkdir(partial, 0777) == 0) {
            if (sync_parent(partial, error) != 0) return -1;
        } else if (errno != EEXIST) {
            return gpt2_fail(error, "%s: cannot be created: %s", partial, strerror(errno));
        }
    }
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) return 0;
    return gpt2_fail(error, "%s: exists and is not a folder", path);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status;
    (void)kind;
    (void)walk;
    return remove(path);
}

int gpt2_remove_folder(const char *path, gpt2_error_t *error)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return 0;
    return gpt2_fail(error, "%s: cannot be removed: %s", path, strerror(errno));
}

int gpt2_file_create(const char *path, FILE **out, gpt2_error_t *error)
{
    *out = fopen(path, "wbe");
    if (*out != NULL) return 0;
    return gpt2_fail(error, "%s: cannot be written: %s", path, strerror(errno));
}

int gpt2_file_write(FILE *file, const char *path, const void *data, size_t bytes,
                    gpt2_error_t *error)
{
    size_t done = fwrite(data, 1, bytes, file);

    if (done == bytes) return 0;
    return gpt2_fail(error, "%s: wrote %zu of %zu bytes: %s", path, done, bytes, strerror(errno));
}

int gpt2_file_commit(FILE *file, const char *path, gpt2_error_t *error)
{
    int code = 0;

    /* EINVAL: a device or a FIFO, which cannot be synced. */
    if (fflush(file) != 0 || ferror(file) || (fsync(fileno(file)) != 0 && errno != EINVAL)) {
        code = gpt2_fail(error, "%s: cannot be written out: %s", path, strerror(errno));
    }
    if (fclose(file) != 0 && code == 0) {
        code = gpt2_fail(error, "%s: cannot be closed: %s", path, strerror(errno));
    }
    return code;
}

/* This program's standard output or error, where that is this file: one under the same name would
 * be another, and one opened anew would have a position of its own. Otherwise -1. */
static int standard_stream(const struct stat *status)
{
    struct stat stream;

    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fstat(fd, &stream) == 0 && stream.st_dev == status->st_dev &&
            stream.st_ino == status->st_ino) {
            return fd;
        }
    }
    return -1;
}

/* The new file beside output->path; mode: of the older one. */
static int open_part(gpt2_output_t *output, const struct stat *older)
{
    const mode_t mode = older == NULL ? 0666 : older->st_mode & 0777;
    int fd;

    if (older != NULL && access(output->path, W_OK) != 0) return -1;
    if ((size_t)snprintf(output->part, sizeof(output->part), "%s.%ld.part", output->path,
                         (long)getpid()) >= sizeof(output->part)) {
        output->part[0] = '\0';
        errno = ENAMETOOLONG;
        return -1;
    }
    (void)unlink(output->part); /* of an earlier process of this number */
    fd = open(output->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd >= 0 && older != NULL) (void)fchmod(fd, mode); /* whatever the umask is */
    return fd;
}

int gpt2_output_open(gpt2_output_t *output, const char *path, gpt2_error_t *error)
{
    struct stat status;
    const int is_there = stat(path, &status) == 0;
    const int stream = is_there ? standard_stream(&status) : -1;
    int fd;

    output->file = NULL;
    output->part[0] = '\0';
    /* A link stays one: the file behind it is replaced. */
    if (!is_there || realpath(path, output->path) == NULL)
        (void)snprintf(output->path, sizeof(output->path), "%s", path);
    if (stream >= 0) {
        fd = fcntl(stream, F_DUPFD_CLOEXEC, 0);
    } else if (is_there && !S_ISREG(status.st_mode)) {
        fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        fd = open_part(output, is_there ? &status : NULL);
    }
    if (fd >= 0) output->file = fdopen(fd, "wb");
    if (output->file != NULL) return 0;
    (void)gpt2_fail(error, "%s: cannot be written: %s", path, strerror(errno));
    if (fd >= 0) (void)close(fd);
    if (fd >= 0 && output->part[0] != '\0') (void)unlink(output->part);
    return -1;
}

int gpt2_output_close(gpt2_output_t *output, int code, gpt2_error_t *error)
{
    const char *written = output->part[0] == '\0' ? output->path : output->part;

    if (code != 0) {
        (void)fclose(output->file);
    } else {
        code = gpt2_file_commit(output->file, output->path, error);
    }
    output->file = NULL;
    if (written == output->path) return code;
    if (code == 0 && rename(written, output->path) != 0)
        code = gpt2_fail(error, "%s: cannot be written: %s", output->path, strerror(errno));
    if (code == 0) return sync_parent(output->path, error);
    (void)unlink(written);
    return code;
}

int gpt2_file_is_same(const char *path, const char *other)
{
    struct stat left;
    struct stat right;

    if (stat(path, &left) != 0) return strcmp(path, other) == 0;
    return S_ISREG(left.st_mode) && stat(other, &right) == 0 && left.st_dev == right.st_dev &&
           left.st_ino == right.st_ino;
}

int gpt2_folder_sync(const char *path, gpt2_error_t *error)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int code = 0;

    /* Some file systems cannot sync a folder and return EINVAL; nothing better is possible
     * there. */
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL)) {
        code = gpt2_fail(error, "%s: cannot be written out: %s", path, strerror(errno));
    }
    if (fd >= 0) (void)close(fd);
    return code;
}

int gpt2_file_open(const char *path, FILE **out, size_t *bytes, gpt2_error_t *error)
{
    /* O_NONBLOCK: not to wait for the other end of a FIFO. It means nothing to a regular file. */
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat status;
    const int is_open = fd >= 0 && fstat(fd, &status) == 0;

    *out = NULL;
    if (is_open && !S_ISREG(status.st_mode)) {
        (void)gpt2_fail(error, "%s: not a regular file", path);
    } else if (!is_open || (*out = fdopen(fd, "rb")) == NULL) {
        (void)gpt2_fail(error, "%s: %s", path, strerror(errno));
    } else {
        if (bytes != NULL) *bytes = (size_t)status.st_size;
        return 0;
    }
    if (fd >= 0) (void)close(fd);
    return -1;
}

int gpt2_file_read(FILE *file, const char *path, void *data, size_t bytes, gpt2_error_t *error)
{
    long at = ftell(file);
    size_t done = fread(data, 1, bytes, file);

    if (done == bytes) return 0;
    if (ferror(file)) return gpt2_fail(error, "%s: cannot be read: %s", path, strerror(errno));
    return gpt2_fail(error, "%s: truncated: %zu of %zu bytes at offset %ld", path, done, bytes, at);
}

int gpt2_file_whole(const char *path, size_t most, char **data, size_t *bytes, gpt2_error_t *error)
{
    FILE *file;
    int code;

    *data = NULL;
    if (gpt2_file_open(path, &file, bytes, error) != 0) return -1;
    if (*bytes > most) {
        code = gpt2_fail(error, "%s: %zu bytes, expected at most %zu", path, *bytes, most);
    } else if ((*data = calloc(1, *bytes + 1)) == NULL) {
        code = gpt2_fail(error, "%s: out of memory for %zu bytes", path, *bytes);
    } else {
        code = gpt2_file_read(file, path, *data, *bytes, error);
    }
    (void)fclose(file);
    if (code == 0) return 0;
    free(*data);
    *data = NULL;
    return -1;
}
