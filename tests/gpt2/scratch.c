/*
 * scratch.c - one temporary folder per test program.
 */
#include "tests/gpt2/scratch.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[256];

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status;
    (void)kind;
    (void)walk;
    return remove(path);
}

const char *scratch_make(void)
{
    const char *base = getenv("TMPDIR");

    (void)snprintf(folder, sizeof(folder), "%s/gpt2-test-XXXXXX", base == NULL ? "/tmp" : base);
    if (mkdtemp(folder) == NULL) abort();
    return folder;
}

void scratch_remove(void)
{
    if (folder[0] != '\0') (void)nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    folder[0] = '\0';
}

const char *scratch_path(const char *name)
{
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

const char *scratch_write(const char *name, const void *data, size_t bytes)
{
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "wb");

    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) abort();
    return path;
}
