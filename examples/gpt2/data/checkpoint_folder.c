/*
 * checkpoint_folder.c - names of checkpoints, and their exchange.
 *
 * At every moment, also between two system calls of a save, each checkpoint that was whole before
 * has a name by which gpt2_folder_sweep() or gpt2_folder_steps() finds it, until a newer one is on
 * disk.
 */
#include "examples/gpt2/data/checkpoint_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRITING ".writing-"
#define REPLACED ".replaced-"
#define REMOVING ".removing-"

void gpt2_notice(const gpt2_notice_t *notice, const char *format, ...)
{
    char text[GPT2_ERROR_TEXT_MAX];
    va_list list;

    if (notice == NULL) return;
    va_start(list, format);
    (void)vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    gpt2_mask(text);
    notice->say(notice->user, text);
}

/* ---- Names ---------------------------------------------------------------------------------- */

/* 1: the text is a step, in decimal digits and as it would be written. */
static int parse_step(const char *text, uint64_t *step)
{
    size_t digits = strspn(text, "0123456789");

    if (digits == 0 || digits > 18 || text[digits] != '\0') return 0;
    if (text[0] == '0' && digits > 1) return 0;
    *step = strtoull(text, NULL, 10);
    return 1;
}

static int has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* path [GPT2_PATH_MAX] = the folder's entry for this step. */
static int step_path(char *path, const char *folder, const char *prefix, uint64_t step,
                     gpt2_error_t *error)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%s%" PRIu64, prefix, step);
    return gpt2_path_join(path, folder, name, error);
}

static int by_step_descending(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left;
    const uint64_t b = *(const uint64_t *)right;

    return a < b ? 1 : a > b ? -1 : 0;
}

int gpt2_folder_steps(const char *folder, uint64_t **steps, size_t *count, gpt2_error_t *error)
{
    uint64_t *list = NULL;
    size_t room = 0;
    size_t used = 0;
    struct dirent *entry;
    DIR *listing = opendir(folder);

    *steps = NULL;
    *count = 0;
    if (listing == NULL) {
        if (errno == ENOENT) return 0;
        return gpt2_fail(error, "%s: %s", folder, strerror(errno));
    }
    while ((entry = readdir(listing)) != NULL) {
        uint64_t step;

        if (!parse_step(entry->d_name, &step)) continue;
        if (used == room) {
            uint64_t *larger = realloc(list, (2 * room + 8) * sizeof(*list));

            if (larger == NULL) {
                free(list);
                (void)closedir(listing);
                return gpt2_fail(error, "out of memory for the checkpoints of %s", folder);
            }
            list = larger;
            room = 2 * room + 8;
        }
        list[used++] = step;
    }
    (void)closedir(listing);
    if (used > 0) qsort(list, used, sizeof(*list), by_step_descending);
    *steps = list;
    *count = used;
    return 0;
}

/* ---- What a killed save left ---------------------------------------------------------------- */

/* The name of one leftover, or "": there is none (any more). */
static int find_leftover(const char *folder, char *name, size_t room, gpt2_error_t *error)
{
    struct dirent *entry;
    DIR *listing = opendir(folder);

    name[0] = '\0';
    if (listing == NULL) {
        if (errno == ENOENT) return 0;
        return gpt2_fail(error, "%s: %s", folder, strerror(errno));
    }
    while (name[0] == '\0' && (entry = readdir(listing)) != NULL) {
        if (has_prefix(entry->d_name, WRITING) || has_prefix(entry->d_name, REPLACED) ||
            has_prefix(entry->d_name, REMOVING)) {
            (void)snprintf(name, room, "%s", entry->d_name);
        }
    }
    (void)closedir(listing);
    return 0;
}

/* Undoes a save that was killed between its two renames, on a file system that cannot exchange
 * names: then the replaced checkpoint is the only one of this step. Returns 1 if it was renamed
 * back. */
static int restore(const char *folder, const char *name, gpt2_error_t *error)
{
    char path[GPT2_PATH_MAX];
    char final[GPT2_PATH_MAX];
    uint64_t step;

    if (!has_prefix(name, REPLACED) || !parse_step(name + strlen(REPLACED), &step)) return 0;
    if (gpt2_path_join(path, folder, name, error) != 0) return -1;
    if (step_path(final, folder, "", step, error) != 0) return -1;
    if (renameat2(AT_FDCWD, path, AT_FDCWD, final, RENAME_NOREPLACE) == 0) return 1;
    if (errno == EEXIST) return 0;
    /* For file systems without RENAME_NOREPLACE: a plain rename fails on a folder with files. */
    if (rename(path, final) == 0) return 1;
    if (errno == EEXIST || errno == ENOTEMPTY) return 0;
    return gpt2_fail(error, "%s: cannot be renamed to %s: %s", path, final, strerror(errno));
}

int gpt2_folder_sweep(const char *folder, const gpt2_notice_t *notice, gpt2_error_t *error)
{
    char name[256];
    char path[GPT2_PATH_MAX];
    int is_synced = 0;

    for (;;) {
        int restored;

        if (find_leftover(folder, name, sizeof(name), error) != 0) return -1;
        if (name[0] == '\0') return 0;
        /* The save was killed before it knew that the new names are on disk. */
        if (!is_synced && gpt2_folder_sync(folder, error) != 0) return -1;
        is_synced = 1;
        restored = restore(folder, name, error);
        if (restored < 0) return -1;
        if (restored > 0) {
            gpt2_notice(notice, "%s/%s: a save was killed while it took this name away; restored",
                        folder, name);
            if (gpt2_folder_sync(folder, error) != 0) return -1;
            continue;
        }
        if (gpt2_path_join(path, folder, name, error) != 0) return -1;
        if (gpt2_remove_folder(path, error) != 0) return -1;
        gpt2_notice(notice, "%s: left by a save that was killed; removed", path);
    }
}

/* ---- A new one ------------------------------------------------------------------------------ */

int gpt2_folder_begin(const char *folder, uint64_t step, char *path, gpt2_error_t *error)
{
    if (step_path(path, folder, WRITING, step, error) != 0) return -1;
    return gpt2_make_folders(path, error);
}

/* Afterwards the new checkpoint has the name; the old one, if any, is called .writing-N or
 * .replaced-N. */
static int swap(const char *written, const char *final, const char *replaced)
{
    if (renameat2(AT_FDCWD, written, AT_FDCWD, final, RENAME_EXCHANGE) == 0) return 0;
    /* There is no old checkpoint, or the file system cannot exchange names. */
    if (rename(final, replaced) != 0 && errno != ENOENT) return -1;
    if (rename(written, final) != 0) {
        const int cause = errno;

        (void)rename(replaced, final);
        errno = cause;
        return -1;
    }
    return 0;
}

int gpt2_folder_commit(const char *folder, uint64_t step, gpt2_error_t *error)
{
    char written[GPT2_PATH_MAX];
    char final[GPT2_PATH_MAX];
    char replaced[GPT2_PATH_MAX];

    if (step_path(written, folder, WRITING, step, error) != 0) return -1;
    if (step_path(final, folder, "", step, error) != 0) return -1;
    if (step_path(replaced, folder, REPLACED, step, error) != 0) return -1;
    if (swap(written, final, replaced) != 0) {
        gpt2_fail(error, "%s: cannot be renamed to %s: %s", written, final, strerror(errno));
        (void)gpt2_remove_folder(written, NULL);
        return -1;
    }
    if (gpt2_folder_sync(folder, error) != 0) return -1;
    /* If a folder cannot be removed, the next sweep tries again and reports it. */
    (void)gpt2_remove_folder(written, NULL);
    (void)gpt2_remove_folder(replaced, NULL);
    return 0;
}

int gpt2_folder_remove(const char *folder, uint64_t step, gpt2_error_t *error)
{
    char path[GPT2_PATH_MAX];
    char inside[GPT2_PATH_MAX];
    char removing[GPT2_PATH_MAX];

    if (step_path(path, folder, "", step, error) != 0) return -1;
    if (step_path(removing, folder, REMOVING, step, error) != 0) return -1;
    if (gpt2_path_join(inside, path, "manifest.txt", error) != 0) return -1;
    if (access(inside, F_OK) != 0) {
        return gpt2_fail(error, "%s: not a checkpoint (no manifest.txt), and not removed", path);
    }
    if (rename(path, removing) != 0) {
        return gpt2_fail(error, "%s: cannot be removed: %s", path, strerror(errno));
    }
    return gpt2_remove_folder(removing, error);
}

void gpt2_folder_prune(const char *folder, size_t kept, uint64_t saved)
{
    uint64_t *steps;
    size_t count;

    if (gpt2_folder_steps(folder, &steps, &count, NULL) != 0) return;
    for (size_t i = kept; i < count; i++) {
        /* The run may have been resumed from an earlier step, so newer checkpoints exist. */
        if (steps[i] != saved) (void)gpt2_folder_remove(folder, steps[i], NULL);
    }
    free(steps);
}
