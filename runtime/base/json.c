/*
 * json.c - see json.h.
 */
#include "runtime/base/json.h"

#include <stdint.h>

size_t dp_utf8_length(const char *text)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t length = at[0] < 0x80                    ? 1
                    : at[0] >= 0xc2 && at[0] < 0xe0 ? 2
                    : at[0] >= 0xe0 && at[0] < 0xf0 ? 3
                    : at[0] >= 0xf0 && at[0] < 0xf5 ? 4
                                                    : 0;

    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    /* overlong forms, surrogates, beyond the last code point */
    if (length == 3 && ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f)))
        return 0;
    if (length == 4 && ((at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f)))
        return 0;
    return length;
}

void dp_json_string(FILE *file, const char *text)
{
    fputc('"', file);
    while (*text != '\0') {
        size_t length = dp_utf8_length(text);
        unsigned char c = (unsigned char)*text;

        if (length == 0) {
            fputs("\\ufffd", file);
        } else if (c == '"' || c == '\\') {
            fprintf(file, "\\%c", c);
        } else if (c < 0x20 || c == 0x7f || c == '<') { /* '<': the text may end up inside a page */
            fprintf(file, "\\u%04x", c);
        } else {
            fwrite(text, 1, length, file);
        }
        text += length > 0 ? length : 1;
    }
    fputc('"', file);
}
