/*
 * input_file.c - see input_file.h. It must not know what a file holds, but for the lines of
 * /proc/self/cgroup.
 */
#include "runtime/base/input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

FILE *dp_input_file_open(const char *path, const char **why)
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

int dp_input_file_read(const char *path, char *text, size_t room)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes;

    text[0] = '\0';
    if (fd < 0) return 0;
    do {
        bytes = read(fd, text, room - 1);
    } while (bytes < 0 && errno == EINTR);
    close(fd);
    if (bytes <= 0) return 0;
    text[bytes] = '\0';
    return 1;
}

int dp_input_file_read_line(const char *path, char *text, size_t room)
{
    const int found = dp_input_file_read(path, text, room);

    text[strcspn(text, "\n")] = '\0';
    return found;
}

int dp_input_file_read_cgroup(const char *file, const char *controller, char *group, size_t room)
{
    char text[4096];
    char *rest = text;
    char *line;

    if (!dp_input_file_read(file, text, sizeof(text))) return 0;
    while ((line = strsep(&rest, "\n")) != NULL) { /* "4:cpu,cpuacct:/a/b" */
        char *names = strchr(line, ':');
        char *path = names == NULL ? NULL : strchr(names + 1, ':');

        if (path == NULL) continue;
        *path++ = '\0';
        names++;
        for (char *name; (name = strsep(&names, ",")) != NULL;) {
            if (strcmp(name, controller) != 0) continue;
            snprintf(group, room, "%s", path);
            return 1;
        }
    }
    return 0;
}
