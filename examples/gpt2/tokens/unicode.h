/*
 * unicode.h - of what class a character is: the classes that GPT-2's pattern asks for. Pure.
 */
#ifndef GPT2_UNICODE_H
#define GPT2_UNICODE_H

#include <stddef.h>
#include <stdint.h>

typedef enum gpt2_char_class {
    GPT2_CHAR_OTHER,
    GPT2_CHAR_LETTER, /* general category L */
    GPT2_CHAR_NUMBER, /* general category N */
    GPT2_CHAR_SPACE   /* White_Space */
} gpt2_char_class_t;

gpt2_char_class_t gpt2_char_class(uint32_t code);

/* The class of the character that text [bytes] begins with; bytes > 0. *length: its bytes. A byte
 * that begins no valid UTF-8 is a character of its own, of class OTHER. */
gpt2_char_class_t gpt2_char_at(const unsigned char *text, size_t bytes, size_t *length);

#endif
