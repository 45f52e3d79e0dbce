/*
 * window.c - parses FILE[:steps=A-B]. Pure; dp_init() calls it on every rank, and dprun.
 */
#include "runtime/base/window.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STEPS ":steps="

/* A number in plain digits; *text moves behind it. */
static int read_number(const char **text, uint64_t *number)
{
    char *end;

    if (!isdigit((unsigned char)**text)) return 0;
    errno = 0;
    *number = strtoull(*text, &end, 10);
    *text = end;
    return errno == 0;
}

dp_status_t dp_window_parse(const char *text, dp_window_t *window, dp_error_t *error)
{
    const char *steps = strstr(text, STEPS);

    *window = (dp_window_t){.file_bytes = steps == NULL ? strlen(text) : (size_t)(steps - text)};
    if (window->file_bytes == 0) {
        return dp_error_set(error, DP_ERR_CONFIG, "timeline %s: must be FILE[:steps=A-B]", text);
    }
    if (steps == NULL) return DP_OK;
    steps += strlen(STEPS);
    if (!read_number(&steps, &window->first) || *steps++ != '-' ||
        !read_number(&steps, &window->last) || *steps != '\0' || window->first > window->last) {
        return dp_error_set(error, DP_ERR_CONFIG,
                            "timeline %s: steps must be A-B, two numbers with A <= B", text);
    }
    window->has_steps = 1;
    return DP_OK;
}
