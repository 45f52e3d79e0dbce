/*
 * scratch.c - makes, fills and removes the folder of a fuzz target.
 */
#include "tests/fuzz/scratch.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64];

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void remove_folder(void)
{
    (void)nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

const char *scratch_folder(void)
{
    if (folder[0] != '\0') return folder;
    (void)snprintf(folder, sizeof(folder), "fuzz-scratch-XXXXXX");
    if (mkdtemp(folder) == NULL || atexit(remove_folder) != 0) abort();
    return folder;
}

const char *scratch_path(const char *name)
{
    static char paths[4][128];
    static unsigned next;
    char *path = paths[next++ % 4];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", scratch_folder(), name);
    return path;
}

const char *scratch_write(const char *name, const void *data, size_t bytes)
{
    const char *path = scratch_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes || close(fd) != 0) abort();
    return path;
}
