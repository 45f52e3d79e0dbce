/*
 * moments.c - malloc() and the like out of one piece of memory, which can be copied and put back.
 *
 * Linked with --wrap, so that whatever a world and its negotiators hold lies here, at addresses
 * that do not change. Pieces come in few sizes, each with a list of what was freed; the lists lie
 * in the piece, too, and go back with it. What is freed is filled with rubbish and used again as
 * late as possible, so that whoever reads it does not find what was there, and whoever writes to it
 * is found out.
 */
#include "moments.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *__real_calloc(size_t count, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
char *__wrap_strdup(const char *text);
void __wrap_free(void *memory);

#define ROOM ((size_t)64 << 20)
#define GRAIN 64 /* small sizes are multiples of it, large ones powers of two */
#define SMALL 64 /* sizes that are */
#define SIZES 96
#define RUBBISH 0xd7

/* In front of what is handed out, which is thereby aligned like malloc()'s. */
typedef struct piece {
    struct piece *next; /* freed */
    size_t size;        /* see bytes_of() */
} piece_t;

static struct arena {
    size_t used;                               /* of room */
    piece_t *freed[SIZES], *freed_last[SIZES]; /* oldest first */
    _Alignas(64) char room[ROOM];
} arena = {.used = 0};

struct moment {
    size_t room, bytes;
    _Alignas(64) char arena[];
};

/* Bytes of a piece of this size, its beginning included. */
static size_t bytes_of(size_t size)
{
    return size < SMALL ? (size + 1) * GRAIN : (size_t)SMALL * GRAIN << (size - SMALL + 1);
}

static void check_rubbish(const piece_t *piece)
{
    const unsigned char *at = (const unsigned char *)(piece + 1);
    const size_t bytes = bytes_of(piece->size) - sizeof(*piece);

    if (at[0] == RUBBISH && memcmp(at, at + 1, bytes - 1) == 0) return;
    fprintf(stderr, "memory was written to after it was freed\n");
    abort();
}

void *__wrap_malloc(size_t bytes)
{
    size_t size = (bytes + sizeof(piece_t) - 1) / GRAIN;
    piece_t *piece;

    if (bytes > ROOM) return NULL;
    if (size >= SMALL) size = SMALL;
    while (bytes_of(size) < bytes + sizeof(piece_t))
        size++;
    piece = arena.freed[size];
    if (piece != NULL) {
        arena.freed[size] = piece->next;
        if (piece->next == NULL) arena.freed_last[size] = NULL;
        check_rubbish(piece);
        return piece + 1;
    }
    if (bytes_of(size) > ROOM - arena.used) return NULL;
    piece = (piece_t *)(void *)(arena.room + arena.used);
    arena.used += bytes_of(size);
    piece->size = size;
    return piece + 1;
}

void __wrap_free(void *memory)
{
    piece_t *piece;

    if (memory == NULL) return;
    piece = (piece_t *)memory - 1;
    memset(memory, RUBBISH, bytes_of(piece->size) - sizeof(*piece));
    piece->next = NULL;
    *(arena.freed[piece->size] != NULL ? &arena.freed_last[piece->size]->next
                                       : &arena.freed[piece->size]) = piece;
    arena.freed_last[piece->size] = piece;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    void *memory = bytes > 0 && count > ROOM / bytes ? NULL : __wrap_malloc(count * bytes);

    if (memory != NULL) memset(memory, 0, count * bytes);
    return memory;
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    void *moved;
    size_t room;

    if (memory == NULL) return __wrap_malloc(bytes);
    room = bytes_of(((const piece_t *)memory - 1)->size) - sizeof(piece_t);
    if (bytes <= room) return memory;
    moved = __wrap_malloc(bytes);
    if (moved == NULL) return NULL;
    memcpy(moved, memory, room);
    __wrap_free(memory);
    return moved;
}

char *__wrap_strdup(const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = __wrap_malloc(bytes);

    if (copy != NULL) memcpy(copy, text, bytes);
    return copy;
}

moment_t *moment_keep(moment_t *old)
{
    const size_t bytes = offsetof(struct arena, room) + arena.used;
    moment_t *moment = old;

    if (moment == NULL || moment->room < bytes) {
        __real_free(old);
        moment = __real_calloc(1, sizeof(*moment) + 2 * bytes);
        if (moment == NULL) {
            fprintf(stderr, "no memory for a moment of %zu bytes\n", bytes);
            exit(2);
        }
        moment->room = 2 * bytes;
    }
    moment->bytes = bytes;
    memcpy(moment->arena, &arena, bytes);
    return moment;
}

void moment_return(const moment_t *moment)
{
    memcpy(&arena, moment->arena, moment->bytes);
}

void moment_forget(moment_t *moment)
{
    __real_free(moment);
}

void *lasting_allocate(size_t count, size_t bytes)
{
    return __real_calloc(count, bytes);
}

void lasting_free(void *memory)
{
    __real_free(memory);
}
