/*
 * maps.c - reads /proc/self/maps, a line per mapping in ascending order, without allocating:
 *
 *     7f1c2a000000-7f1c2a021000 rw-p 00000000 00:00 0          [heap]
 *     begin        end          perm offset   dev   inode      name
 *
 * Called by arena_adopt.c in the program's thread. The heap of malloc() is accepted, whether it
 * grew by brk() or by mmap(): its whole pages inside an allocation are the program's. A thread's
 * stack looks like any anonymous memory, so only the caller's own and the main thread's are
 * recognised.
 */
#include "runtime/shm/maps.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAPS "/proc/self/maps"

typedef struct reader {
    int fd;
    size_t begin, end; /* what is left in buffer */
    char buffer[4096];
} reader_t;

typedef struct mapping {
    uintptr_t begin, end;
    char access[5]; /* "rw-p" */
    uint64_t offset, inode;
    const char *name; /* in the line */
} mapping_t;

/* 1 and the next byte; 0 at the end; -1 with errno. */
static int next_byte(reader_t *reader, char *byte)
{
    if (reader->begin == reader->end) {
        ssize_t bytes;

        do {
            bytes = read(reader->fd, reader->buffer, sizeof(reader->buffer));
        } while (bytes < 0 && errno == EINTR);
        if (bytes <= 0) return (int)bytes;
        reader->begin = 0;
        reader->end = (size_t)bytes;
    }
    *byte = reader->buffer[reader->begin++];
    return 1;
}

/* 1 and the next line; 0 and -1 likewise. Cut to what fits: only the end of a long name is lost. */
static int next_line(reader_t *reader, char *line, size_t room)
{
    size_t length = 0;
    char byte = '\0';
    int code;

    while ((code = next_byte(reader, &byte)) == 1 && byte != '\n') {
        if (length + 1 < room) line[length++] = byte;
    }
    line[length] = '\0';
    return code == 0 && length != 0 ? 1 : code;
}

/* 0: the line has another form. */
static int parse_mapping(char *line, mapping_t *out)
{
    char *at;

    out->begin = (uintptr_t)strtoull(line, &at, 16);
    if (*at != '-') return 0;
    out->end = (uintptr_t)strtoull(at + 1, &at, 16);
    if (*at != ' ' || strlen(at) < 6) return 0;
    memcpy(out->access, at + 1, 4);
    out->access[4] = '\0';
    out->offset = strtoull(at + 5, &at, 16);
    at += strspn(at, " ");
    at += strcspn(at, " "); /* the device */
    out->inode = strtoull(at, &at, 10);
    out->name = at + strspn(at, " ");
    return 1;
}

/* The mapping that is expected at an address. */
typedef struct wanted {
    const char *name;
    uintptr_t begin, end;
    uint64_t inode;  /* 0: private anonymous memory */
    uint64_t offset; /* in the file, at begin */
} wanted_t;

/* Why this mapping is not what is wanted at `at`; NULL: it is. */
static const char *objection(const mapping_t *mapping, const wanted_t *wanted, uintptr_t at)
{
    if (wanted->inode != 0) {
        return strcmp(mapping->access, "rw-s") == 0 && mapping->inode == wanted->inode &&
                       mapping->offset + (at - mapping->begin) ==
                           wanted->offset + (at - wanted->begin)
                   ? NULL
                   : "something else";
    }
    if (mapping->access[3] != 'p') return "shared memory";
    if (strcmp(mapping->access, "rw-p") != 0) return "not simply readable and writable";
    if (mapping->inode != 0) return "mapped from a file";
    if (*mapping->name == '\0' || strcmp(mapping->name, "[heap]") == 0 ||
        strncmp(mapping->name, "[anon:", 6) == 0) {
        return NULL;
    }
    return strncmp(mapping->name, "[stack", 6) == 0 ? "a stack" : "no ordinary memory";
}

static dp_status_t check_mappings(reader_t *reader, const wanted_t *wanted, dp_error_t *error)
{
    uintptr_t at = wanted->begin; /* all below it is as wanted */
    char line[256];
    int code;

    while (at < wanted->end && (code = next_line(reader, line, sizeof(line))) != 0) {
        mapping_t mapping;
        const char *why;

        if (code < 0 || !parse_mapping(line, &mapping)) {
            return dp_error_set(error, DP_ERR_SYSTEM, "cannot read %s: %s", MAPS,
                                code < 0 ? strerror(errno) : line);
        }
        if (mapping.end <= at) continue;
        if (mapping.begin > at) break;
        why = objection(&mapping, wanted, at);
        if (why != NULL) {
            return dp_error_set(
                error, DP_ERR_UNSUPPORTED, "0x%" PRIxPTR " is %s (%s%s%s), %s is needed", at, why,
                mapping.access, *mapping.name == '\0' ? "" : " ", mapping.name, wanted->name);
        }
        at = mapping.end;
    }
    if (at >= wanted->end) return DP_OK;
    return dp_error_set(error, DP_ERR_UNSUPPORTED, "there is no memory at 0x%" PRIxPTR, at);
}

static dp_status_t read_and_check(const wanted_t *wanted, dp_error_t *error)
{
    reader_t reader = {.fd = open(MAPS, O_RDONLY | O_CLOEXEC)};
    dp_status_t status;

    if (reader.fd < 0) {
        return dp_error_set(error, DP_ERR_SYSTEM, "cannot open %s: %s", MAPS, strerror(errno));
    }
    status = check_mappings(&reader, wanted, error);
    close(reader.fd);
    return status;
}

/* 1 when the calling thread's stack shares a byte with [begin, end). */
static int is_own_stack(uintptr_t begin, uintptr_t end)
{
    pthread_attr_t attributes;
    size_t bytes = 0;
    void *lowest = NULL;

    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return 0;
    if (pthread_attr_getstack(&attributes, &lowest, &bytes) != 0) bytes = 0;
    pthread_attr_destroy(&attributes);
    return (uintptr_t)lowest < end && begin < (uintptr_t)lowest + bytes;
}

dp_status_t dp_maps_check(const void *memory, size_t bytes, dp_error_t *error)
{
    const uintptr_t begin = (uintptr_t)memory;
    const wanted_t wanted = {"private anonymous memory", begin, begin + bytes, 0, 0};

    if (is_own_stack(begin, begin + bytes)) {
        return dp_error_set(error, DP_ERR_UNSUPPORTED, "it is the stack of the calling thread");
    }
    return read_and_check(&wanted, error);
}

dp_status_t dp_maps_check_file(const void *memory, size_t bytes, uint64_t inode, uint64_t offset,
                               dp_error_t *error)
{
    const uintptr_t begin = (uintptr_t)memory;
    const wanted_t wanted = {"the file", begin, begin + bytes, inode, offset};

    return read_and_check(&wanted, error);
}
