/*
 * sized.h - structs of dp.h with a `size`, given by a program that may be of another version.
 *
 * dp.h has the rules. The functions of dp.h call this on the program's thread, before they read
 * options and before they write results. It must not know any type: sizes go in, bytes are copied.
 */
#ifndef DP_COORDINATOR_SIZED_H
#define DP_COORDINATOR_SIZED_H

#include <stddef.h>

#include "runtime/base/error.h"

/* Whether `size` can be a version of the type called `type`. DP_ERR_INVALID with a text: no. */
dp_status_t dp_sized_check(const char *type, size_t size, dp_error_t *error);

/*
 * Reads options. into: [own] bytes, the defaults; the fields that the program has are written over
 * them, but for `size`, which stays own. DP_ERR_INVALID with a text: a size that cannot be (into is
 * as before), or fields set that this library does not know (into has the others).
 */
dp_status_t dp_sized_read(const char *type, const void *given, void *into, size_t own,
                          dp_error_t *error);

/* Writes a result of [own] bytes to the program's, up to the size that it says, which stays. The
 * size was checked before. */
void dp_sized_write(void *given, const void *result, size_t own);

#endif
