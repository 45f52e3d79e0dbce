/*
 * run_dir.c - makes, counts and removes a job's run directory.
 */
#include "launcher/run_dir.h"

#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/config.h"

static int is_usable(const char *path)
{
    struct stat info;

    return path != NULL && path[0] == '/' && stat(path, &info) == 0 && S_ISDIR(info.st_mode) &&
           access(path, W_OK | X_OK) == 0;
}

const char *dp_run_dir_parent(void)
{
    const char *path = dp_environment("XDG_RUNTIME_DIR");

    if (is_usable(path)) return path;
    path = dp_environment("TMPDIR");
    if (is_usable(path)) return path;
    return "/tmp";
}

dp_status_t dp_run_dir_create(char *path, size_t room, dp_error_t *error)
{
    int printed = snprintf(path, room, "%s/dprun-XXXXXX", dp_run_dir_parent());

    if (printed < 0 || (size_t)printed >= room || mkdtemp(path) == NULL) {
        return dp_error_set(error, DP_ERR_SYSTEM, "run directory in %s: %s", dp_run_dir_parent(),
                            (size_t)printed >= room ? "the path is too long" : strerror(errno));
    }
    return DP_OK;
}

typedef void (*visit_fn)(const FTSENT *entry, void *context);

static void walk(const char *path, visit_fn visit, void *context)
{
    char copy[4096];
    char *roots[] = {copy, NULL};
    FTS *tree;

    snprintf(copy, sizeof(copy), "%s", path);
    tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
    if (tree == NULL) return;
    for (FTSENT *entry; (entry = fts_read(tree)) != NULL;) {
        visit(entry, context);
    }
    fts_close(tree);
}

static void count_file(const FTSENT *entry, void *context)
{
    size_t *files = context;

    if (entry->fts_info != FTS_D && entry->fts_info != FTS_DP && entry->fts_info != FTS_DNR &&
        entry->fts_info != FTS_NS) {
        (*files)++;
    }
}

size_t dp_run_dir_files(const char *path)
{
    size_t files = 0;

    walk(path, count_file, &files);
    return files;
}

static void remove_entry(const FTSENT *entry, void *context)
{
    (void)context;
    if (entry->fts_info == FTS_D) return; /* again as FTS_DP, once it is empty */
    if (entry->fts_info == FTS_DP) {
        rmdir(entry->fts_accpath);
    } else {
        unlink(entry->fts_accpath);
    }
}

int dp_run_dir_remove(const char *path)
{
    struct stat info;

    walk(path, remove_entry, NULL);
    return stat(path, &info) != 0 && errno == ENOENT ? 0 : -1;
}
