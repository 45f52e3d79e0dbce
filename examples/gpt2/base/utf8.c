/*
 * utf8.c - one character at a time, checked as RFC 3629 wants it.
 */
#include "examples/gpt2/base/utf8.h"

size_t gpt2_utf8_get(const unsigned char *text, size_t bytes, uint32_t *code)
{
    /* By length: the smallest code point that needs so many bytes. */
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char first = text[0];
    size_t length;

    if (first < 0x80) {
        *code = first;
        return 1;
    }
    if (first < 0xC0 || first >= 0xF8) return 0;
    length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (bytes < length) return 0;
    *code = first & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
        *code = *code << 6 | (text[i] & 0x3Fu);
    }
    if (*code < smallest[length] || *code > 0x10FFFF) return 0;
    return *code >= 0xD800 && *code <= 0xDFFF ? 0 : length; /* halves of a UTF-16 pair */
}

size_t gpt2_utf8_put(unsigned char *text, uint32_t code)
{
    const size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char marks[] = {0, 0, 0xC0, 0xE0, 0xF0};

    for (size_t i = length; i-- > 1; code >>= 6)
        text[i] = (unsigned char)(0x80 | (code & 0x3F));
    text[0] = (unsigned char)(marks[length] | code);
    return length;
}
