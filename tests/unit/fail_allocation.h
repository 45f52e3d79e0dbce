/*
 * fail_allocation.h - makes the nth allocation of the calling thread fail, for tests of error
 * paths.
 *
 * A test that uses it links fail_allocation.c and -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,
 * --wrap=strdup (and aligned_alloc where it is used). Only calls from our own objects are wrapped,
 * never those inside libraries.
 */
#ifndef DP_TESTS_FAIL_ALLOCATION_H
#define DP_TESTS_FAIL_ALLOCATION_H

/* The nth allocation from now on fails, n = 1, 2, 3, ...; 0: none. This thread only. */
void fail_allocation(long nth);

/* Likewise, and all that follow it. */
void fail_allocations_from(long nth);

/* 1 when the allocation to fail has been reached; turns failing off. */
int fail_allocation_reached(void);

#endif
