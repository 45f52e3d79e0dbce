/*
 * error.h - a status with the text that explains it, carried by value from where the cause is
 * known.
 *
 * Functions that can fail for a reason worth telling take a dp_error_t *; the first to know the
 * cause fills it in, callers pass the status on.
 */
#ifndef DP_BASE_ERROR_H
#define DP_BASE_ERROR_H

#include "runtime/base/common.h"

#define DP_ERROR_TEXT_MAX 512

typedef struct dp_error {
    dp_status_t status;
    char text[DP_ERROR_TEXT_MAX];
} dp_error_t;

/* Fills in error (NULL is fine: then only the status is passed on) and returns status. Long texts
 * are cut, at a character border; control characters become '?'. */
dp_status_t dp_error_set(dp_error_t *error, dp_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Replaces control characters, U+0080 to U+009F among them, and bytes that are no UTF-8 by '?':
 * names of tensors, files and hosts may hold anything, and texts end on a terminal. */
void dp_text_mask(char *text);

#endif
