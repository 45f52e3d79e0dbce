/*
 * unicode.c - classes by binary search in generated tables, and by a short way for ASCII.
 */
#include "examples/gpt2/tokens/unicode.h"

#include "examples/gpt2/base/utf8.h"
#include "examples/gpt2/tokens/unicode_tables.h"

static int is_in(const uint32_t (*ranges)[2], size_t count, uint32_t code)
{
    size_t low = 0;
    size_t high = count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (code > ranges[middle][1]) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && code >= ranges[low][0];
}

static int is_space(uint32_t code)
{
    switch (code) {
    case 0x20:
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
        return 1;
    default:
        return (code >= 0x9 && code <= 0xD) || (code >= 0x2000 && code <= 0x200A);
    }
}

gpt2_char_class_t gpt2_char_class(uint32_t code)
{
    if (is_space(code)) return GPT2_CHAR_SPACE;
    if (code < 0x80) {
        if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') return GPT2_CHAR_LETTER;
        return code >= '0' && code <= '9' ? GPT2_CHAR_NUMBER : GPT2_CHAR_OTHER;
    }
    if (is_in(LETTERS, sizeof(LETTERS) / sizeof(LETTERS[0]), code)) return GPT2_CHAR_LETTER;
    if (is_in(NUMBERS, sizeof(NUMBERS) / sizeof(NUMBERS[0]), code)) return GPT2_CHAR_NUMBER;
    return GPT2_CHAR_OTHER;
}

gpt2_char_class_t gpt2_char_at(const unsigned char *text, size_t bytes, size_t *length)
{
    uint32_t code;

    *length = gpt2_utf8_get(text, bytes, &code);
    if (*length > 0) return gpt2_char_class(code);
    *length = 1;
    return GPT2_CHAR_OTHER;
}
