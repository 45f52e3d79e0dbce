/*
 * sized.c - reads options and writes results of programs that know a smaller or a larger type.
 *
 *     program's  | size | field | field |                 the library's defaults fill the rest
 *     library's  | size | field | field | field |
 *
 *     program's  | size | field | field | field | more |  more must be zero
 *     library's  | size | field | field | field |
 *
 * Results go the other way: both have the front, and nothing behind it is written. Called on the
 * program's thread; it must not know any type of dp.h.
 */
#include "coordinator/api/context/sized.h"

#include <string.h>

#define SIZE_MOST 4096 /* no version's type is larger, so a larger size was never initialised */

dp_status_t dp_sized_check(const char *type, size_t size, dp_error_t *error)
{
    /* Every type of dp.h begins with a size_t and is aligned like it, so its sizeof is a multiple
     * of sizeof(size_t). That finds most structs that were not initialised. */
    if (size >= sizeof(size_t) && size <= SIZE_MOST && size % sizeof(size_t) == 0) return DP_OK;
    return dp_error_set(error, DP_ERR_INVALID,
                        "%s says it has %zu bytes, which no version has; initialise it with its "
                        "_INIT macro",
                        type, size);
}

dp_status_t dp_sized_read(const char *type, const void *given, void *into, size_t own,
                          dp_error_t *error)
{
    const unsigned char *bytes = given;
    size_t size;
    dp_status_t status;

    memcpy(&size, given, sizeof(size));
    status = dp_sized_check(type, size, error);
    if (status != DP_OK) return status;
    memcpy((unsigned char *)into + sizeof(size), bytes + sizeof(size),
           (size < own ? size : own) - sizeof(size));
    for (size_t i = own; i < size; i++) {
        if (bytes[i] == 0) continue;
        return dp_error_set(error, DP_ERR_INVALID,
                            "%s has %zu bytes where this library, %d.%d.%d, has %zu, and byte %zu "
                            "is not zero: an option this version does not know",
                            type, size, DP_VERSION_MAJOR, DP_VERSION_MINOR, DP_VERSION_PATCH, own,
                            i);
    }
    return DP_OK;
}

void dp_sized_write(void *given, const void *result, size_t own)
{
    size_t size;

    memcpy(&size, given, sizeof(size));
    memcpy((unsigned char *)given + sizeof(size), (const unsigned char *)result + sizeof(size),
           (size < own ? size : own) - sizeof(size));
}
