/*
 * fail_call.c - makes the nth system call of the calling thread fail.
 */
#include "tests/unit/fail_call.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>

void *__real_mmap(void *at, size_t bytes, int access, int flags, int fd, off_t offset);
int __real_madvise(void *at, size_t bytes, int advice);
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __real_open(const char *path, int flags, ...);
ssize_t __real_read(int fd, void *buffer, size_t bytes);
int __real_mincore(void *at, size_t bytes, unsigned char *pages);
void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int fd, off_t offset);
int __wrap_madvise(void *at, size_t bytes, int advice);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_read(int fd, void *buffer, size_t bytes);
int __wrap_mincore(void *at, size_t bytes, unsigned char *pages);

static _Thread_local long countdown;
static _Thread_local int is_reached;
static _Thread_local int hole;
static _Thread_local const char *failed_name;

void fail_call(long nth, int leaves_hole)
{
    countdown = nth;
    hole = leaves_hole;
    is_reached = 0;
    failed_name = "";
}

int fail_call_reached(void)
{
    countdown = 0;
    return is_reached;
}

const char *fail_call_name(void)
{
    return failed_name;
}

static int fails_now(const char *name)
{
    if (countdown == 0 || --countdown > 0) return 0;
    is_reached = 1;
    failed_name = name;
    errno = ENOMEM;
    return 1;
}

void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int fd, off_t offset)
{
    if (!fails_now("mmap")) return __real_mmap(at, bytes, access, flags, fd, offset);
    if (hole && (flags & MAP_FIXED) != 0) munmap(at, bytes);
    errno = ENOMEM;
    return MAP_FAILED;
}

int __wrap_madvise(void *at, size_t bytes, int advice)
{
    return fails_now("madvise") ? -1 : __real_madvise(at, bytes, advice);
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    return fails_now("fallocate") ? -1 : __real_fallocate(fd, mode, offset, bytes);
}

int __wrap_open(const char *path, int flags, ...)
{
    return fails_now("open") ? -1 : __real_open(path, flags); /* nothing here creates files */
}

ssize_t __wrap_read(int fd, void *buffer, size_t bytes)
{
    return fails_now("read") ? -1 : __real_read(fd, buffer, bytes);
}

int __wrap_mincore(void *at, size_t bytes, unsigned char *pages)
{
    return fails_now("mincore") ? -1 : __real_mincore(at, bytes, pages);
}
