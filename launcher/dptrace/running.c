/*
 * running.c - see running.h. Looks at folders and at /proc, and changes nothing.
 */
#include "launcher/dptrace/running.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/config.h"

#define PREFIX "dprun-"

static int is_run_dir(const char *path)
{
    const char *name = strrchr(path, '/');
    struct stat info;

    return name != NULL && strncmp(name + 1, PREFIX, strlen(PREFIX)) == 0 &&
           stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int dp_running_is_on(const char *run_dir)
{
    int fd = open(run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int is_on;

    if (fd < 0) return 0;
    /* Shared, so that another dptrace that looks at this moment does not count as a job. */
    is_on = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return is_on;
}

/* ---- By process ----------------------------------------------------------------------------- */

/* dprun has the directory open. */
static int find_open_dir(long pid, char *path, size_t room)
{
    char folder[64];
    struct dirent *entry;
    int is_found = 0;
    DIR *list;

    snprintf(folder, sizeof(folder), "/proc/%ld/fd", pid);
    list = opendir(folder);
    while (list != NULL && !is_found && (entry = readdir(list)) != NULL) {
        char link[PATH_MAX];
        ssize_t length = readlinkat(dirfd(list), entry->d_name, link, sizeof(link) - 1);

        if (length <= 0) continue;
        link[length] = '\0';
        is_found = is_run_dir(link) && (size_t)length < room;
        if (is_found) memcpy(path, link, (size_t)length + 1);
    }
    if (list != NULL) closedir(list);
    return is_found;
}

/* A rank has its recorder mapped. */
static int find_mapped_dir(long pid, char *path, size_t room)
{
    char name[64];
    char *line = NULL;
    size_t line_room = 0;
    int is_found = 0;
    FILE *maps;

    snprintf(name, sizeof(name), "/proc/%ld/maps", pid);
    maps = fopen(name, "re");
    while (maps != NULL && !is_found && getline(&line, &line_room, maps) > 0) {
        char *start = strchr(line, '/');
        char *end = start == NULL ? NULL : strstr(start, "/trace.");

        if (end == NULL) continue;
        *end = '\0';
        is_found = is_run_dir(start) && strlen(start) < room;
        if (is_found) memcpy(path, start, strlen(start) + 1);
    }
    free(line);
    if (maps != NULL) fclose(maps);
    return is_found;
}

/* ---- The only one --------------------------------------------------------------------------- */

typedef struct found {
    char first[PATH_MAX];
    char names[512]; /* of all, for the error */
    size_t count;
} found_t;

static void look_into(const char *parent, found_t *found)
{
    DIR *list = opendir(parent);
    struct dirent *entry;

    while (list != NULL && (entry = readdir(list)) != NULL) {
        char path[PATH_MAX];
        struct stat info;

        if (snprintf(path, sizeof(path), "%s/%s", parent, entry->d_name) >= (int)sizeof(path) ||
            !is_run_dir(path) || stat(path, &info) != 0 || info.st_uid != getuid() ||
            !dp_running_is_on(path)) {
            continue;
        }
        if (found->count++ == 0) memcpy(found->first, path, sizeof(path));
        snprintf(found->names + strlen(found->names), sizeof(found->names) - strlen(found->names),
                 " %s", path);
    }
    if (list != NULL) closedir(list);
}

static dp_status_t find_only(char *path, size_t room, dp_error_t *error)
{
    const char *const parents[] = {dp_environment("XDG_RUNTIME_DIR"), dp_environment("TMPDIR"),
                                   "/tmp"};
    found_t found = {.first = ""};

    for (size_t i = 0; i < DP_ARRAY_LEN(parents); i++) {
        int is_known = parents[i] == NULL;

        for (size_t k = 0; k < i && !is_known; k++)
            is_known = parents[k] != NULL && strcmp(parents[k], parents[i]) == 0;
        if (!is_known) look_into(parents[i], &found);
    }
    if (found.count == 0)
        return dp_error_set(error, DP_ERR_INVALID, "no job of yours runs on this machine");
    if (found.count > 1) {
        return dp_error_set(error, DP_ERR_INVALID, "%zu jobs run here, give one of:%s", found.count,
                            found.names);
    }
    snprintf(path, room, "%s", found.first);
    return DP_OK;
}

dp_status_t dp_running_find(const char *what, char *path, size_t room, dp_error_t *error)
{
    char *end;
    long pid;
    struct stat info;

    if (what == NULL) return find_only(path, room, error);
    if (stat(what, &info) == 0 && S_ISDIR(info.st_mode)) {
        snprintf(path, room, "%s", what);
        return DP_OK;
    }
    errno = 0;
    pid = strtol(what, &end, 10);
    if (errno != 0 || *end != '\0' || pid <= 0) {
        return dp_error_set(error, DP_ERR_INVALID, "%s: neither a run directory nor a process",
                            what);
    }
    if (find_open_dir(pid, path, room) || find_mapped_dir(pid, path, room)) return DP_OK;
    if (kill((pid_t)pid, 0) != 0)
        return dp_error_set(error, DP_ERR_INVALID, "process %ld: %s", pid, strerror(errno));
    return dp_error_set(error, DP_ERR_INVALID,
                        "process %ld is neither a dprun nor a rank that has joined its job", pid);
}
