/*
 * driver.h - whether this node can run CUDA, asked of the driver itself.
 */
#ifndef DP_BASE_DRIVER_H
#define DP_BASE_DRIVER_H

#include <stddef.h>

/* The file that a function or variable was loaded from, as the linker found it; "?" where nobody
 * knows. function points at the pointer to it. */
const char *dp_library_path(const void *function);

/* Counts the GPUs that the driver offers this process; makes no context. text gets the driver's
 * version and their number, or, where the answer is 0, why. */
int dp_driver_find(char *text, size_t room);

/* 1: this process has loaded CUDA already, by itself or by what it is linked with. */
int dp_driver_is_loaded(void);

#endif
