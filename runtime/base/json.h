/*
 * json.h - texts of any origin as JSON strings, for the tools that write JSON.
 */
#ifndef DP_BASE_JSON_H
#define DP_BASE_JSON_H

#include <stddef.h>
#include <stdio.h>

/* Length of the valid UTF-8 sequence at text, 1 to 4; 0: not one. */
size_t dp_utf8_length(const char *text);

/* A text as a JSON string with quotes; bytes that are not UTF-8 become U+FFFD. */
void dp_json_string(FILE *file, const char *text);

#endif
