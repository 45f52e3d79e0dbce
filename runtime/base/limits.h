/*
 * limits.h - what the kernel lets this process have: open files, address space, file size.
 */
#ifndef DP_BASE_LIMITS_H
#define DP_BASE_LIMITS_H

#include "runtime/base/error.h"

/* Raises the soft limit on open files to the hard one, to 65536 at most: a larger one serves
 * nobody, and makes programs slow that close every possible descriptor. */
void dp_limits_raise_files(void);

/* DP_ERR_SYSTEM, with both numbers, where fewer than `need` may be open. */
dp_status_t dp_limits_check_files(int need, const char *for_what, dp_error_t *error);

/* Explains why a call that passes descriptors on failed, in words that lead to the limit. */
const char *dp_limits_describe(int code, char *text, size_t room);

/* The limit on address space (ulimit -v), and what of it is unused; SIZE_MAX both: none. */
size_t dp_limits_address_space(size_t *left);

/* The largest file that this process may make, memory files included (ulimit -f); SIZE_MAX: no
 * limit. A file that grows past it brings SIGXFSZ, which ends most programs. */
size_t dp_limits_file_bytes(void);

/* The limits on memory that there are, for behind a text: ": ulimit -v ... is ...", or "". */
const char *dp_limits_describe_memory(char *text, size_t room);

/* Why no thread or process was started, from the error number of the call. */
const char *dp_limits_describe_start(int code);

#endif
