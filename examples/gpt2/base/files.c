/*
 * files.c - durable writes and their error texts.
 *
 * A file counts as written only after fsync() of it and of its folder. Called on the main thread by
 * checkpoints, exports and the cache of matrix products; it knows no file's format.
 */
#include "examples/gpt2/base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
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

    if (fflush(file) != 0 || fsync(fileno(file)) != 0) {
        code = gpt2_fail(error, "%s: cannot be written out: %s", path, strerror(errno));
    }
    if (fclose(file) != 0 && code == 0) {
        code = gpt2_fail(error, "%s: cannot be closed: %s", path, strerror(errno));
    }
    return code;
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

int gpt2_file_read(FILE *file, const char *path, void *data, size_t bytes, gpt2_error_t *error)
{
    long at = ftell(file);
    size_t done = fread(data, 1, bytes, file);

    if (done == bytes) return 0;
    if (ferror(file)) return gpt2_fail(error, "%s: cannot be read: %s", path, strerror(errno));
    return gpt2_fail(error, "%s: truncated: %zu of %zu bytes at offset %ld", path, done, bytes, at);
}
