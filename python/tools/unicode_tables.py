#!/usr/bin/env python3
"""unicode_tables.py - writes unicode_tables.h: which characters are letters and which are numbers.

    python3 python/tools/unicode_tables.py > examples/gpt2/tokens/unicode_tables.h

The source is the Unicode character database as the Python package unicodedata2 has it (the version
stands in the file); tiktoken and Hugging Face's tokenizers have tables of their own, which differ
only in characters that were added since. Run it again to take a newer version.
"""
import unicodedata2


def ranges(kind):
    """[first, last] of the characters whose general category begins with `kind`."""
    found = []
    for code in range(0x110000):
        if unicodedata2.category(chr(code))[0] != kind:
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, what, kind):
    rows = [f"{{0x{first:X}, 0x{last:X}}}," for first, last in ranges(kind)]
    print(f"\n/* {what} */\nstatic const uint32_t {name}[][2] = {{")
    line = "   "
    for row in rows:
        if len(line) + 1 + len(row) > 100:
            print(line)
            line = "   "
        line += " " + row
    print(line + "\n};")


print(f"""/*
 * unicode_tables.h - letters and numbers of Unicode {unicodedata2.unidata_version}, first and last of each run.
 *
 * Made by python/tools/unicode_tables.py; included by unicode.c alone.
 */
#ifndef GPT2_UNICODE_TABLES_H
#define GPT2_UNICODE_TABLES_H

#include <stdint.h>

/* clang-format off */""")
table("LETTERS", "General category L.", "L")
table("NUMBERS", "General category N.", "N")
print("/* clang-format on */\n\n#endif")
