/*
 * run_dir.c - makes, counts, removes and prunes run directories.
 *
 * Called by dprun.c at both ends of a job, by station_job.c on another node, and by agent.c or
 * guard.c where dprun was killed. A running dprun holds a file lock on its directory, and so does
 * its agent: a directory that nobody has locked is of a run that is over.
 */
#include "launcher/dprun/run_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/config.h"

#define PREFIX "dprun-"
#define ASKED_FOR ".keep" /* in a directory that was kept because a user said so */
#define OF_NODE ".node"   /* in that of a station that dprun started on another machine */
#define FRESH_SECONDS 10  /* its dprun may be about to lock it */

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
    int printed = snprintf(path, room, "%s/" PREFIX "XXXXXX", dp_run_dir_parent());

    if (printed < 0 || (size_t)printed >= room || mkdtemp(path) == NULL) {
        return dp_error_set(error, DP_ERR_SYSTEM,
                            "run directory in %s: %s (TMPDIR=/another/folder puts it elsewhere)",
                            dp_run_dir_parent(),
                            (size_t)printed >= room ? "the path is too long" : strerror(errno));
    }
    return DP_OK;
}

int dp_run_dir_lock(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void make_mark(const char *path, const char *name)
{
    char mark[4200];
    int fd;

    snprintf(mark, sizeof(mark), "%.4100s/%s", path, name);
    fd = open(mark, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) close(fd);
}

static int has_mark(const char *path, const char *name)
{
    char mark[4300];

    snprintf(mark, sizeof(mark), "%.4200s/%s", path, name);
    return access(mark, F_OK) == 0;
}

void dp_run_dir_ask_for(const char *path)
{
    make_mark(path, ASKED_FOR);
}

void dp_run_dir_mark_as_node(const char *path)
{
    make_mark(path, OF_NODE);
}

/* ---- Pruning -------------------------------------------------------------------------------- */

typedef struct old_run {
    char path[4096];
    struct timespec changed;
} old_run_t;

static int is_newer(const void *a, const void *b)
{
    const struct timespec *x = &((const old_run_t *)a)->changed;
    const struct timespec *y = &((const old_run_t *)b)->changed;

    if (x->tv_sec != y->tv_sec) return x->tv_sec < y->tv_sec ? 1 : -1;
    return x->tv_nsec < y->tv_nsec ? 1 : x->tv_nsec > y->tv_nsec ? -1 : 0;
}

/* Whether a directory belongs to a finished run of this user, and no --keep-run-dir asked for it.
 */
static int is_over(const char *path, struct timespec *changed)
{
    struct stat info;
    int fd;

    if (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return 0;
    if ((info.st_mode & 077) != 0 || time(NULL) - info.st_mtime < FRESH_SECONDS) return 0;
    if (has_mark(path, ASKED_FOR)) return 0;
    fd = dp_run_dir_lock(path);
    if (fd < 0) return 0;
    close(fd);
    *changed = info.st_mtim;
    return 1;
}

void dp_run_dir_prune(int keep)
{
    const char *parent = dp_run_dir_parent();
    DIR *entries = opendir(parent);
    old_run_t *runs = NULL;
    size_t count = 0;

    if (entries == NULL) return;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        old_run_t run;
        old_run_t *more;

        if (strncmp(entry->d_name, PREFIX, sizeof(PREFIX) - 1) != 0) continue;
        if (strlen(entry->d_name) != sizeof(PREFIX) - 1 + 6) continue;
        snprintf(run.path, sizeof(run.path), "%.3900s/%s", parent, entry->d_name);
        if (!is_over(run.path, &run.changed)) continue;
        if (has_mark(run.path, OF_NODE)) {
            dp_run_dir_remove(run.path);
            continue;
        }
        more = realloc(runs, (count + 1) * sizeof(*runs));
        if (more == NULL) break; /* the next start sees the rest */
        runs = more;
        runs[count++] = run;
    }
    closedir(entries);
    if (runs != NULL) qsort(runs, count, sizeof(*runs), is_newer);
    for (size_t i = (size_t)keep; runs != NULL && i < count; i++)
        dp_run_dir_remove(runs[i].path);
    free(runs);
}

void dp_run_dir_sweep(void)
{
    dp_run_dir_prune(INT_MAX);
}

/* ---- Contents ------------------------------------------------------------------------------- */

typedef void (*visit_fn)(const FTSENT *entry, void *context);

static void walk_tree(const char *path, visit_fn visit, void *context)
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

typedef struct content {
    size_t files;
    uint64_t bytes; /* that they take */
} content_t;

static void count_file(const FTSENT *entry, void *context)
{
    content_t *content = context;

    if (entry->fts_info != FTS_D && entry->fts_info != FTS_DP && entry->fts_info != FTS_DNR &&
        entry->fts_info != FTS_NS) {
        content->files++;
        content->bytes += (uint64_t)entry->fts_statp->st_blocks * 512;
    }
}

size_t dp_run_dir_files(const char *path, uint64_t *bytes)
{
    content_t content = {0, 0};

    walk_tree(path, count_file, &content);
    if (bytes != NULL) *bytes = content.bytes;
    return content.files;
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

    walk_tree(path, remove_entry, NULL);
    return stat(path, &info) != 0 && errno == ENOENT ? 0 : -1;
}
