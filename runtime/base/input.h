/*
 * input.h - opens files that users name: settings, hosts, a recording.
 */
#ifndef DP_BASE_INPUT_H
#define DP_BASE_INPUT_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a regular file, or a pipe that has a writer, as bash's <(...) is one. Opening waits for
 * nobody. A device, where reading may never end, a socket and a folder are refused. NULL: *why, for
 * people. Any thread. */
static inline FILE *dp_input_open(const char *path, const char **why)
{
    struct stat status;
    FILE *file = NULL;
    /* O_NONBLOCK: open() does not wait for a pipe's writer. Reading does, while there is one. */
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    const int is_open = fd >= 0 && fstat(fd, &status) == 0;

    if (is_open && !S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode)) {
        *why = S_ISDIR(status.st_mode) ? strerror(EISDIR) : "not a regular file";
    } else if (!is_open || fcntl(fd, F_SETFL, 0) != 0 || (file = fdopen(fd, "rb")) == NULL) {
        *why = strerror(errno);
    }
    if (fd >= 0 && file == NULL) close(fd);
    return file;
}

#endif
