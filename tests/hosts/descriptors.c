/*
 * descriptors.c - a library to preload: tells which file descriptors a program has at its end that
 * it had not when it began. soak.sh loads it into dprun and the agents of its nodes.
 *
 * DESCRIPTORS_OF is the name of the program; others are left alone, as the library is inherited by
 * all that the program starts. DESCRIPTORS_IN is a folder: a program that ends in order, by exit()
 * or the end of main(), leaves a file NAME.PID there, with a line for each descriptor too many. A
 * file without a line shows that the program was looked at. Children that end by _exit() are not.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DESCRIPTORS_MAX 4096

static unsigned char had[DESCRIPTORS_MAX];

/* Whether this program is the one to look at: the last part of what it was started as. */
static int is_watched(void)
{
    const char *name = getenv("DESCRIPTORS_OF");

    return name != NULL && strcmp(program_invocation_short_name, name) == 0;
}

/* Calls use(fd, what it is) for each open descriptor. */
static void list_open(void (*use)(int fd, const char *target, FILE *out), FILE *out)
{
    DIR *folder = opendir("/proc/self/fd");
    const struct dirent *entry;

    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char target[256] = "";
        const int fd = atoi(entry->d_name);

        if (entry->d_name[0] == '.' || fd == dirfd(folder) || fd >= DESCRIPTORS_MAX) continue;
        if (readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1) < 0) continue;
        use(fd, target, out);
    }
    if (folder != NULL) closedir(folder);
}

static void note_open(int fd, const char *target, FILE *out)
{
    (void)target;
    (void)out;
    had[fd] = 1;
}

static void tell_open(int fd, const char *target, FILE *out)
{
    if (!had[fd] && fd != fileno(out)) fprintf(out, "%d %s\n", fd, target);
}

__attribute__((constructor)) static void begin(void)
{
    if (is_watched()) list_open(note_open, NULL);
}

__attribute__((destructor)) static void end(void)
{
    const char *where = getenv("DESCRIPTORS_IN");
    char path[4096];
    FILE *out;

    if (!is_watched() || where == NULL) return;
    snprintf(path, sizeof(path), "%s/%s.%d", where, program_invocation_short_name, (int)getpid());
    out = fopen(path, "we");
    if (out == NULL) return;
    list_open(tell_open, out);
    fclose(out);
}
