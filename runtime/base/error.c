/*
 * error.c - formats the text of an error, cut where a character ends. Pure; any file calls it
 * where it knows the cause first, on its own thread.
 */
#include "runtime/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Drops the head of a UTF-8 sequence that the room at the end cut in two. */
static void cut_at_character(char *text, size_t bytes)
{
    size_t start = bytes;
    size_t need = 1;

    while (start > 0 && bytes - start < 3 && ((unsigned char)text[start - 1] & 0xc0u) == 0x80u) {
        start--;
    }
    if (start == 0) return;
    start--;
    if (((unsigned char)text[start] & 0xe0u) == 0xc0u) need = 2;
    if (((unsigned char)text[start] & 0xf0u) == 0xe0u) need = 3;
    if (((unsigned char)text[start] & 0xf8u) == 0xf0u) need = 4;
    if (start + need > bytes) text[start] = '\0';
}

dp_status_t dp_error_set(dp_error_t *error, dp_status_t status, const char *format, ...)
{
    /* A scratch buffer, as the arguments may point into the text that is being replaced. */
    char text[DP_ERROR_TEXT_MAX];
    va_list arguments;
    int bytes;

    if (error == NULL) return status;
    va_start(arguments, format);
    bytes = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (bytes < 0) text[0] = '\0';
    if (bytes >= (int)sizeof(text)) cut_at_character(text, sizeof(text) - 1);
    error->status = status;
    memcpy(error->text, text, strlen(text) + 1);
    return status;
}
