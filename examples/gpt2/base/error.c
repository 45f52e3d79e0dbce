/*
 * error.c - formats an error's text. Long texts are cut. Any thread; each caller brings its own
 * gpt2_error_t.
 */
#include "examples/gpt2/base/error.h"

#include <stdarg.h>
#include <stdio.h>

int gpt2_fail(gpt2_error_t *error, const char *format, ...)
{
    va_list arguments;

    if (error == NULL) return -1;
    va_start(arguments, format);
    (void)vsnprintf(error->text, sizeof(error->text), format, arguments);
    va_end(arguments);
    return -1;
}
