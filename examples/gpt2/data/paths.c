/*
 * paths.c - expands names of data files. Main thread of every rank, while a run starts.
 */
#include "examples/gpt2/data/paths.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "examples/gpt2/base/files.h"

static int add_path(gpt2_words_t *paths, const char *path, gpt2_error_t *error)
{
    char **larger = realloc(paths->list, (paths->count + 1) * sizeof(*larger));
    char *copy = strdup(path);

    if (larger != NULL) paths->list = larger;
    if (larger == NULL || copy == NULL) {
        free(copy);
        return gpt2_fail(error, "out of memory for %s", path);
    }
    paths->list[paths->count++] = copy;
    return 0;
}

void gpt2_paths_free(gpt2_words_t *paths)
{
    for (size_t i = 0; i < paths->count; i++)
        free(paths->list[i]);
    free(paths->list);
    *paths = (gpt2_words_t){NULL, 0};
}

/* 1: "val" stands in the name as a word: val.bin, fineweb_val_000000.bin, not interval.bin. */
static int is_for_validation(const char *name)
{
    for (const char *at = name; (at = strstr(at, "val")) != NULL; at++) {
        if ((at == name || !isalnum((unsigned char)at[-1])) && !isalnum((unsigned char)at[3]))
            return 1;
    }
    return 0;
}

static int keep_bin(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && gpt2_path_ends(entry->d_name, ".bin");
}

static int keep_txt(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && gpt2_path_ends(entry->d_name, ".txt");
}

/* By bytes: alphasort() would ask the locale, which may differ between machines. */
static int by_bytes(const struct dirent **left, const struct dirent **right)
{
    return strcmp((*left)->d_name, (*right)->d_name);
}

static int add_folder(const char *folder, int is_validation, gpt2_words_t *paths,
                      gpt2_words_t *validation, gpt2_error_t *error)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, keep_bin, by_bytes);
    int for_validation = 0;
    int code = 0;

    if (count == 0) {
        free(entries);
        count = scandir(folder, &entries, keep_txt, by_bytes);
    }
    if (count < 0) return gpt2_fail(error, "%s: %s", folder, strerror(errno));
    for (int i = 0; i < count; i++)
        for_validation += is_for_validation(entries[i]->d_name);
    if (count == 0) code = gpt2_fail(error, "%s: a folder without *.bin or *.txt", folder);
    if (count > 0 && for_validation == count && !is_validation) {
        code = gpt2_fail(error, "%s: all %d files are for validation, as %s", folder, count,
                         entries[0]->d_name);
    }
    for (int i = 0; i < count; i++) {
        const int is_apart =
            for_validation > 0 && is_for_validation(entries[i]->d_name) != is_validation;
        gpt2_words_t *list = is_apart ? validation : paths;
        char path[GPT2_PATH_MAX];

        if (code == 0) code = gpt2_path_join(path, folder, entries[i]->d_name, error);
        if (code == 0 && list != NULL) code = add_path(list, path, error);
        free(entries[i]);
    }
    free(entries);
    return code;
}

static int add_pattern(const char *pattern, gpt2_words_t *paths, gpt2_error_t *error)
{
    glob_t found = {.gl_pathc = 0};
    const int result =
        glob(pattern, GLOB_ERR, NULL, &found); /* sorted; this program has no locale */
    int code = 0;

    if (result == GLOB_NOMATCH) code = gpt2_fail(error, "%s: no file matches", pattern);
    if (result == GLOB_NOSPACE) code = gpt2_fail(error, "%s: out of memory", pattern);
    if (result == GLOB_ABORTED) code = gpt2_fail(error, "%s: %s", pattern, strerror(errno));
    for (size_t i = 0; code == 0 && i < found.gl_pathc; i++)
        code = add_path(paths, found.gl_pathv[i], error);
    globfree(&found);
    return code;
}

static int add_word(const char *word, int is_validation, gpt2_words_t *paths,
                    gpt2_words_t *validation, gpt2_error_t *error)
{
    struct stat status;

    if (stat(word, &status) == 0) {
        if (S_ISDIR(status.st_mode))
            return add_folder(word, is_validation, paths, validation, error);
        return add_path(paths, word, error);
    }
    if (errno == ENOENT && strpbrk(word, "*?[") != NULL) return add_pattern(word, paths, error);
    return gpt2_fail(error, "%s: %s%s", word, strerror(errno),
                     strchr(word, ',') != NULL ? " (several files are separated by blanks)" : "");
}

int gpt2_paths_expand(const gpt2_words_t *words, int is_validation, gpt2_words_t *paths,
                      gpt2_words_t *validation, gpt2_error_t *error)
{
    *paths = (gpt2_words_t){NULL, 0};
    if (validation != NULL) *validation = (gpt2_words_t){NULL, 0};
    for (size_t i = 0; i < words->count; i++) {
        if (add_word(words->list[i], is_validation, paths, validation, error) == 0) continue;
        gpt2_paths_free(paths);
        if (validation != NULL) gpt2_paths_free(validation);
        return -1;
    }
    return 0;
}
