/*
 * fail_call.h - makes the nth system call of the calling thread fail, for tests of error paths.
 *
 * A test that uses it links fail_call.c and
 * -Wl,--wrap=mmap,--wrap=madvise,--wrap=fallocate,--wrap=open,--wrap=read,--wrap=mincore. Only
 * calls from our own objects are wrapped, never those inside libraries.
 */
#ifndef DP_TESTS_FAIL_CALL_H
#define DP_TESTS_FAIL_CALL_H

/* The nth call from now on fails, n = 1, 2, 3, ...; 0: none. This thread only. With leaves_hole a
 * mmap(MAP_FIXED) that fails has unmapped its range, as the kernel may. */
void fail_call(long nth, int leaves_hole);

/* 1 when the call to fail has been reached; turns failing off. */
int fail_call_reached(void);

/* The name of that call, e.g. "mmap". */
const char *fail_call_name(void);

#endif
