/*
 * maps.h - what kind of memory lies at an address, as /proc/self/maps tells.
 */
#ifndef DP_SHM_MAPS_H
#define DP_SHM_MAPS_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/base/error.h"

/* DP_OK when [memory, memory + bytes) is private anonymous memory that can be read and written
 * throughout, and no stack that the system or this thread knows of. DP_ERR_UNSUPPORTED with words
 * otherwise; DP_ERR_SYSTEM when nothing can be learned. */
dp_status_t dp_maps_check(const void *memory, size_t bytes, dp_error_t *error);

/* DP_OK when there are bytes [offset, offset + bytes) of the file with this inode, shared;
 * otherwise as above. */
dp_status_t dp_maps_check_file(const void *memory, size_t bytes, uint64_t inode, uint64_t offset,
                               dp_error_t *error);

#endif
