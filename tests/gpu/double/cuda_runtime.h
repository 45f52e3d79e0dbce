/*
 * cuda_runtime.h - what a test can ask of the CUDA runtime's double.
 *
 * The double has the runtime's calls over host memory: a stream is a thread with a queue, an event
 * a pair of counters, a launch a piece of work that runs the kernel by fibers. It is stricter than
 * a device: copies from pinned memory happen as late as they may. And it is as unkind as one may
 * be: freeing waits for the whole device, and nobody asks it anything meanwhile; streams share
 * CUDA_DEVICE_MAX_CONNECTIONS queues (8); a call in a thread without a device makes a context on
 * device 0.
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
/* A query of an event looks after this time, as on a host whose cores are taken. */
void cuda_double_slow_queries(long us);
/* The devices' clock, which events record, stands at this many milliseconds; 0: it is the host's.
 */
void cuda_double_set_clock(double ms);
/* Like cuMemUnmap(): the memory is gone at once, and whoever reads it finds other bytes. 0: it is
 * not memory of cudaMalloc(). */
int cuda_double_unmap(void *memory);
/* A stream of the program's is being captured into a graph, as cudaStreamCaptureModeGlobal does it;
 * NULL: none. */
void cuda_double_capture(void *stream);
int cuda_double_has_context(int device); /* somebody has made one */
int cuda_double_is_freeing(int device);  /* somebody waits for it, to free memory */
size_t cuda_double_live(void);  /* allocations, streams and events that were not given back */
size_t cuda_double_calls(void); /* that could have failed, since the reset */

#ifdef __cplusplus
}
#endif
#endif
