/*
 * fail_allocation.c - makes the nth allocation of the calling thread fail.
 */
#include "tests/unit/fail_allocation.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

/* The linker sees a shared library's calls as well, and wants to see what they might be bound to.
 */
#pragma GCC visibility push(default)
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes) __attribute__((weak));
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);
#pragma GCC visibility pop

static _Thread_local long countdown; /* a thread's own, so a server beside the test is spared */
static _Thread_local int is_reached, goes_on;

void fail_allocation(long nth)
{
    countdown = nth;
    is_reached = goes_on = 0;
}

void fail_allocations_from(long nth)
{
    fail_allocation(nth);
    goes_on = 1;
}

int fail_allocation_reached(void)
{
    countdown = 0;
    return is_reached;
}

static int fails_now(void)
{
    if (countdown == 0 || --countdown > 0) return 0;
    is_reached = 1;
    if (goes_on) countdown = 1;
    errno = ENOMEM;
    return 1;
}

void *__wrap_malloc(size_t bytes)
{
    return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(memory, bytes);
}

/* Only where a test is linked with --wrap=aligned_alloc as well. */
void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails_now() ? NULL : __real_aligned_alloc(alignment, bytes);
}

char *__wrap_strdup(const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = fails_now() ? NULL : __real_malloc(bytes);

    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}
