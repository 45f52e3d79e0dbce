/*
 * error.c - formats the text of an error, cut where a character ends, for a terminal. Pure; any
 * file calls it where it knows the cause first, on its own thread.
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

/* How many bytes the character has that begins here; 0: none does, or it controls a terminal. */
static size_t shown_bytes(const unsigned char *at)
{
    size_t length = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;

    if (at[0] < 0x20 || at[0] == 0x7f || at[0] > 0xf4) return 0;
    if (at[0] == 0xc2 && at[1] < 0xa0) return 0; /* U+0080 to U+009F */
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0u) != 0x80u) return 0;
    return length;
}

void dp_text_mask(char *text)
{
    unsigned char *at = (unsigned char *)text;

    while (*at != '\0') {
        const size_t shown = shown_bytes(at);

        if (shown == 0) *at = '?';
        at += dp_max(shown, (size_t)1);
    }
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
    dp_text_mask(text);
    error->status = status;
    memcpy(error->text, text, strlen(text) + 1);
    return status;
}
