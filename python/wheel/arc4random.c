/*
 * arc4random.c - what libevent takes from glibc 2.36, for machines whose C library is older.
 * bundle.py compiles it into libdp-arc4random.so beside the wheel's libevent, where the C library
 * of the building machine has these.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

void arc4random_buf(void *out, size_t bytes);
uint32_t arc4random(void);

void arc4random_buf(void *out, size_t bytes)
{
    unsigned char *at = out;

    while (bytes > 0) {
        const ssize_t got = getrandom(at, bytes, 0);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0) abort(); /* as glibc's: it may not fail */
        at += got;
        bytes -= (size_t)got;
    }
}

uint32_t arc4random(void)
{
    uint32_t number;

    arc4random_buf(&number, sizeof(number));
    return number;
}
