/*
 * device.h - a device that runs no more than some blocks of every launch, on memory that is there
 * in name only: for launches of real sizes on a machine without a GPU.
 *
 * Allocations are address space between guards of 64 GiB; pages come where something is written.
 * A launch that sm_90 would refuse is refused. Its first, last and some other blocks run by fibers
 * (tests/gpu/double/simt.h) with shuffles and mma that exchange nothing: numbers are nonsense, but
 * addresses are those of the kernel. An access outside of all pieces ends the program with the
 * kernel, the block and the nearest piece. cuBLASLt's products check where their operands begin and
 * end. Everything happens when it is called.
 *
 * device.cc gives memory, copies and cuBLASLt; streams and events are those of dp_cuda_double.
 */
#ifndef DP_TESTS_LAUNCHES_DEVICE_H
#define DP_TESTS_LAUNCHES_DEVICE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 77: this machine gives no such address space. Calls go to this device from now on. */
int launches_start(void);

/* A piece of memory between guards, multiples of 256 bytes, aligned to that. Never given back. */
void *launches_reserve(size_t bytes, const char *name);

/* A part of a piece: products that begin in it must end in it. The name is borrowed. */
void launches_name(const void *from, size_t bytes, const char *name);

/* Marks the last 16 bytes of a piece, and whether they are still as they were marked. */
void launches_mark(void *piece, size_t bytes);
int launches_is_marked(const void *piece, size_t bytes);

/* A block by its number in x that runs too, of grids of `grid` blocks. */
void launches_also(unsigned grid, unsigned block);

/* cuBLASLt has epilogues (1, as in the beginning) or not. */
void launches_set_fusion(int is_there);

/* Since the start. */
typedef struct launches_counts {
    size_t launches;
    size_t blocks; /* that ran */
    size_t products;
    size_t bytes; /* reserved */
} launches_counts_t;
launches_counts_t launches_counts(void);

#ifdef __cplusplus
}
#endif
#endif
