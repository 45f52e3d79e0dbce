/*
 * secret_file.c - see secret_file.h. Called by dp_init() in the program's thread, and by dprun
 * before it has an event loop.
 *
 * Symbolic links are followed: Kubernetes mounts secrets as links. What counts is whose file stands
 * at their end, and the descriptor that was looked at is the one that is read.
 */
#include "runtime/network/secret_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A secret that Kubernetes mounts for a user other than root is root's, and readable by a group of
 * that user (fsGroup). */
static int is_private(const struct stat *about)
{
    if (about->st_uid == geteuid()) return (about->st_mode & 077) == 0;
    return about->st_uid == 0 && (about->st_mode & 037) == 0;
}

/* Up to `room` bytes. -1: errno. */
static ssize_t read_whole(int fd, uint8_t *data, size_t room)
{
    size_t used = 0;

    while (used < room) {
        const ssize_t bytes = read(fd, data + used, room - used);

        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) return -1;
        if (bytes == 0) break;
        used += (size_t)bytes;
    }
    return (ssize_t)used;
}

dp_status_t dp_secret_file_read(const char *path, const char *purpose, dp_secret_t *secret,
                                dp_error_t *error)
{
    uint8_t data[DP_SECRET_FILE_MAX + 1];
    struct stat about;
    ssize_t bytes = -1;
    int code;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0 || fstat(fd, &about) != 0) {
        dp_error_set(error, DP_ERR_CONFIG, "DP_SECRET_FILE=%.200s: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return DP_ERR_CONFIG;
    }
    if (!S_ISREG(about.st_mode)) {
        close(fd);
        return dp_error_set(error, DP_ERR_CONFIG, "DP_SECRET_FILE=%.200s: not a regular file",
                            path);
    }
    if (!is_private(&about)) {
        close(fd);
        return dp_error_set(error, DP_ERR_CONFIG,
                            "DP_SECRET_FILE=%.200s: mode %o of user %u, expected a file of user %u "
                            "that nobody else can read (chmod 600), or root's with mode 400 or 440",
                            path, (unsigned)about.st_mode & 0777, (unsigned)about.st_uid,
                            (unsigned)geteuid());
    }
    bytes = read_whole(fd, data, sizeof(data));
    code = errno;
    close(fd);
    if (bytes < 0) {
        dp_error_set(error, DP_ERR_CONFIG, "DP_SECRET_FILE=%.200s: %s", path, strerror(code));
    } else if (bytes < DP_SECRET_FILE_MIN || bytes > DP_SECRET_FILE_MAX) {
        dp_error_set(error, DP_ERR_CONFIG, "DP_SECRET_FILE=%.200s: %s%zd bytes, expected %d to %d",
                     path, bytes > DP_SECRET_FILE_MAX ? "at least " : "", bytes, DP_SECRET_FILE_MIN,
                     DP_SECRET_FILE_MAX);
        bytes = -1;
    } else {
        dp_auth_derive(NULL, purpose, data, (size_t)bytes, secret);
    }
    explicit_bzero(data, sizeof(data));
    return bytes < 0 ? DP_ERR_CONFIG : DP_OK;
}
