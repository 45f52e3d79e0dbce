/*
 * device.h - the device of a context: host memory, or a GPU.
 *
 * init.c has it chosen and made in dp_init(); the files of gradients and shards clear its memory
 * and compute checksums of it, on the program's threads.
 */
#ifndef DP_COORDINATOR_DEVICE_H
#define DP_COORDINATOR_DEVICE_H

#include "coordinator/api/context/context.h"

/* Fills memory of the context's device with zeros, at once. */
dp_status_t dp_context_clear(dp_context_t *context, void *memory, size_t bytes);

/* A checksum of memory of the context's device, or the host's, the same on every rank
 * that has the same bytes. Brings them to the host: for DP_CHECK_DATA. */
dp_status_t dp_context_hash(dp_context_t *context, const void *memory, size_t bytes,
                            uint64_t *hash);
/* dp_kernel_hash_places() of such memory. */
dp_status_t dp_context_hash_places(dp_context_t *context, const float *memory, size_t count,
                                   uint64_t first, uint64_t seed, uint64_t *hash);

/* Chooses the device, which the hello tells the other ranks; later makes it, and the
 * engine on it. */
dp_status_t dp_context_choose_device(dp_context_t *context, dp_error_t *error);
const char *dp_context_device_name(const dp_context_t *context);
dp_status_t dp_context_make_device(dp_context_t *context, dp_error_t *error);

#endif
