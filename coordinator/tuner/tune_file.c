/*
 * tune_file.c - what the tuner found, kept for later runs: a line for each world and program.
 *
 *     dp-tune 1
 *     2 ranks, 1 hosts, engine host, program 5d0c..: 16777216 3 0 200000, 0.0812 of 0.0883 s #1f..
 *
 * The number behind # is the checksum of what stands before it.
 *
 * Readers need no lock, as a file is replaced by a rename. A writer keeps the lines of other jobs,
 * several of which may end at one time. So from reading to the rename it holds a lock on a file
 * beside, PATH.lock, which stays.
 */
#include "coordinator/tuner/tune_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"

#define HEADER "dp-tune 1"
#define LINE_MAX_BYTES 256
#define LINES_MAX 256  /* then the oldest go */
#define LOCK_TRIES 100 /* 10 ms apart; who holds it writes a few lines */

typedef struct line {
    char text[LINE_MAX_BYTES];
} line_t;

/* Without the values: how a line of this key begins. */
static void format_key(const dp_tune_key_t *key, char *text, size_t room)
{
    snprintf(text, room, "%d ranks, %d hosts, engine %.15s, program %016" PRIx64 ": ", key->size,
             key->hosts, key->engine, key->program);
}

static uint64_t checksum(const char *text, size_t bytes)
{
    return dp_kernel_hash(text, bytes, 1);
}

/* 1: the line's checksum is right; its text ends before the checksum from then on. */
static int is_whole(char *text)
{
    char *mark = strrchr(text, '#'), *end;
    uint64_t given;

    if (mark == NULL || strlen(mark + 1) != 16) return 0;
    given = strtoull(mark + 1, &end, 16);
    if (*end != '\0' || given != checksum(text, (size_t)(mark - text))) return 0;
    *mark = '\0';
    return 1;
}

/* The next line without its end; 0: there is none. *is_bad: it is longer than lines are. */
static int next_line(FILE *file, char *text, int *is_bad)
{
    size_t bytes;

    *is_bad = 0;
    if (fgets(text, LINE_MAX_BYTES, file) == NULL) return 0;
    bytes = strlen(text);
    if (bytes > 0 && text[bytes - 1] == '\n') {
        text[bytes - 1] = '\0';
        return 1;
    }
    *is_bad = 1;
    for (int c = fgetc(file); c != EOF && c != '\n';)
        c = fgetc(file);
    return 1;
}

static int parse_values(const char *text, uint64_t values[DP_KNOBS])
{
    for (int knob = 0; knob < DP_KNOBS; knob++) {
        char *end;

        if (*text < '0' || *text > '9') return 0;
        errno = 0;
        values[knob] = strtoull(text, &end, 10);
        if (errno != 0 || (*end != ' ' && *end != ',')) return 0;
        text = end + (*end == ' ');
    }
    return 1;
}

static dp_status_t open_file(const char *path, FILE **out, dp_error_t *error)
{
    char text[LINE_MAX_BYTES];
    int is_bad;
    FILE *file = fopen(path, "re");

    if (file == NULL) {
        if (errno == ENOENT) return DP_ERR_AGAIN;
        return dp_error_set(error, DP_ERR_SYSTEM, "DP_TUNE=%.200s: %s", path, strerror(errno));
    }
    if (!next_line(file, text, &is_bad) || is_bad || strcmp(text, HEADER) != 0) {
        fclose(file);
        return dp_error_set(error, DP_ERR_CONFIG, "DP_TUNE=%.200s does not begin with '%s'", path,
                            HEADER);
    }
    *out = file;
    return DP_OK;
}

dp_status_t dp_tune_file_read(const char *path, const dp_tune_key_t *key, uint64_t values[DP_KNOBS],
                              dp_error_t *error)
{
    char text[LINE_MAX_BYTES], wanted[LINE_MAX_BYTES];
    dp_status_t status;
    FILE *file = NULL;
    int is_bad;

    format_key(key, wanted, sizeof(wanted));
    status = open_file(path, &file, error);
    if (file == NULL) return status;
    status = DP_ERR_AGAIN;
    for (int number = 2; next_line(file, text, &is_bad); number++) {
        if (is_bad || !is_whole(text)) {
            status = dp_error_set(error, DP_ERR_CONFIG, "DP_TUNE=%.200s: line %d is damaged", path,
                                  number);
            break;
        }
        if (strncmp(text, wanted, strlen(wanted)) != 0) continue;
        if (parse_values(text + strlen(wanted), values)) {
            status = DP_OK;
        } else {
            status = dp_error_set(error, DP_ERR_CONFIG, "DP_TUNE=%.200s: line %d makes no sense",
                                  path, number);
        }
        break;
    }
    fclose(file);
    return status;
}

/* The lines that stay: whole ones of other keys. */
static size_t keep_lines(const char *path, const char *own, line_t *lines)
{
    char text[LINE_MAX_BYTES];
    size_t count = 0;
    FILE *file = NULL;
    int is_bad;

    (void)open_file(path, &file, NULL);
    if (file == NULL) return 0;
    while (next_line(file, text, &is_bad)) {
        char whole[LINE_MAX_BYTES];

        memcpy(whole, text, sizeof(whole));
        if (is_bad || !is_whole(whole) || strncmp(whole, own, strlen(own)) == 0) continue;
        if (count == LINES_MAX - 1) {
            memmove(lines, lines + 1, (count - 1) * sizeof(*lines));
            count--;
        }
        memcpy(lines[count++].text, text, sizeof(text));
    }
    fclose(file);
    return count;
}

static int write_all(const char *path, const line_t *lines, size_t count, const char *own)
{
    FILE *file = fopen(path, "we");
    int is_good;

    if (file == NULL) return 0;
    is_good = fprintf(file, "%s\n", HEADER) > 0;
    for (size_t i = 0; i < count && is_good; i++)
        is_good = fprintf(file, "%s\n", lines[i].text) > 0;
    if (is_good) is_good = fprintf(file, "%s\n", own) > 0;
    if (is_good) is_good = fflush(file) == 0 && fsync(fileno(file)) == 0;
    return fclose(file) == 0 && is_good;
}

/* The lock, an open file; -1 with errno. Waits for it, but not for ever: whoever holds it may be
 * stopped. */
static int lock_file(const char *path)
{
    const struct timespec pause = {0, 10000000};
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

    for (int i = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        const int cause = errno;

        if ((cause == EWOULDBLOCK || cause == EINTR) && i < LOCK_TRIES) {
            (void)nanosleep(&pause, NULL);
            continue;
        }
        close(fd);
        errno = cause;
        return -1;
    }
    return fd;
}

/* The line of a key, with its values. */
static void format_line(const dp_tune_key_t *key, const uint64_t values[DP_KNOBS], double home_s,
                        double best_s, char *text, size_t room)
{
    size_t used;

    format_key(key, text, room);
    used = strlen(text);
    for (int knob = 0; knob < DP_KNOBS; knob++) {
        used += (size_t)snprintf(text + used, room - used, "%s%" PRIu64, knob > 0 ? " " : "",
                                 values[knob]);
    }
    used += (size_t)snprintf(text + used, room - used, ", %.6f of %.6f s ", best_s, home_s);
    snprintf(text + used, room - used, "#%016" PRIx64, checksum(text, used));
}

dp_status_t dp_tune_file_write(const char *path, const dp_tune_key_t *key,
                               const uint64_t values[DP_KNOBS], double home_s, double best_s,
                               dp_error_t *error)
{
    line_t *lines = calloc(LINES_MAX, sizeof(*lines));
    const size_t room = strlen(path) + 32;
    char *beside = malloc(room); /* the lock, then the new file */
    char key_text[LINE_MAX_BYTES], own[LINE_MAX_BYTES];
    dp_status_t status = DP_OK;
    int lock;

    if (lines == NULL || beside == NULL) {
        free(lines);
        free(beside);
        return dp_error_set(error, DP_ERR_NO_MEMORY, "DP_TUNE=%.200s: no memory", path);
    }
    format_key(key, key_text, sizeof(key_text));
    format_line(key, values, home_s, best_s, own, sizeof(own));
    snprintf(beside, room, "%s.lock", path);
    lock = lock_file(beside);
    if (lock < 0) {
        status = dp_error_set(
            error, DP_ERR_SYSTEM, "DP_TUNE=%.200s cannot be written: its lock, %.200s: %s", path,
            beside, errno == EWOULDBLOCK ? "held by another process" : strerror(errno));
    } else {
        const size_t count = keep_lines(path, key_text, lines);

        snprintf(beside, room, "%s.%ld", path, (long)getpid());
        if (!write_all(beside, lines, count, own) || rename(beside, path) != 0) {
            status = dp_error_set(error, DP_ERR_SYSTEM, "DP_TUNE=%.200s cannot be written: %s",
                                  path, strerror(errno));
            (void)remove(beside);
        }
        close(lock);
    }
    free(beside);
    free(lines);
    return status;
}
