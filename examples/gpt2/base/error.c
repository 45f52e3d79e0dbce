/*
 * error.c - formats an error's text. Long texts are cut. Any thread; each caller brings its own
 * gpt2_error_t.
 */
#include "examples/gpt2/base/error.h"

#include <stdarg.h>
#include <stdio.h>

void gpt2_mask(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

int gpt2_fail(gpt2_error_t *error, const char *format, ...)
{
    va_list arguments;

    if (error == NULL) return -1;
    va_start(arguments, format);
    (void)vsnprintf(error->text, sizeof(error->text), format, arguments);
    va_end(arguments);
    gpt2_mask(error->text);
    return -1;
}
