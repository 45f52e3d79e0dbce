/*
 * cuda_runtime.h - what a test can ask of the CUDA runtime's double.
 *
 * The double has the runtime's calls over host memory: a stream is a thread with a queue, an event
 * a pair of counters, a launch a piece of work that runs the kernel by fibers. It is stricter than
 * a device: copies from pinned memory happen as late as they may.
 */
#ifndef DP_TESTS_CUDA_DOUBLE_H
#define DP_TESTS_CUDA_DOUBLE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

void cuda_double_reset(void);            /* one device, no faults, calling thread without context */
void cuda_double_set_devices(int count); /* 0: calls answer cudaErrorNoDevice */
/* The nth call of this name from now on fails with a cudaError_t; "launch" is any kernel's, NULL
 * any call that can fail. 0: none. */
void cuda_double_fail(const char *call, int nth, int error);
/* From now on the devices do nothing and every call answers this, as after a fault of a kernel. */
void cuda_double_break(int error);
/* Streams rest for random times between pieces of work; 0: not. */
void cuda_double_set_jitter(unsigned seed);
size_t cuda_double_live(void);  /* allocations, streams and events that were not given back */
size_t cuda_double_calls(void); /* that could have failed, since the reset */

#ifdef __cplusplus
}
#endif
#endif
