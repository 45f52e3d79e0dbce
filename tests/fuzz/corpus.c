#include "tests/fuzz/corpus.h"

#include "tests/fuzz/fuzz.h"

#include <ctype.h>

/* One character of a line from *at on, which moves behind it; -1 for an escape that is none. */
static int read_character(const char **at)
{
    char digits[3] = {0};

    if (**at != '\\') return (uint8_t) * (*at)++;
    (*at) += 2;
    switch ((*at)[-1]) {
    case '\\':
        return '\\';
    case 'n':
        return '\n';
    case 'x':
        if (!isxdigit((uint8_t)(*at)[0]) || !isxdigit((uint8_t)(*at)[1])) return -1;
        memcpy(digits, *at, 2);
        (*at) += 2;
        return (int)strtol(digits, NULL, 16);
    default:
        return -1;
    }
}

/* The bytes of a line into data; their number, or -1. */
static long read_line(const char *line, uint8_t *data)
{
    long bytes = 0;

    while (*line != '\0' && *line != '\n') {
        int character = bytes < FUZZ_ROOM ? read_character(&line) : -1;

        if (character < 0) return -1;
        data[bytes++] = (uint8_t)character;
    }
    return bytes;
}

long corpus_read(const char *path, corpus_take_t take, void *context)
{
    uint8_t data[FUZZ_ROOM];
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t room = 0, lines = 0;
    long count = 0;

    if (file == NULL) {
        perror(path);
        return -1;
    }
    while (count >= 0 && getline(&line, &room, file) >= 0) {
        long bytes = line[0] == '#' ? 0 : read_line(line, data);

        lines++;
        if (bytes < 0)
            (void)fprintf(stderr, "%s:%zu: a broken escape, or more than %d bytes\n", path, lines,
                          FUZZ_ROOM);
        if (bytes < 0 || (bytes > 0 && take(context, data, (size_t)bytes) != 0))
            count = -1;
        else
            count += bytes > 0;
    }
    free(line);
    (void)fclose(file);
    return count;
}

void corpus_write(FILE *file, const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        /* A first # would make a comment, and editors strip a last blank. */
        int is_plain =
            isprint(data[i]) && (data[i] != '#' || i > 0) && (data[i] != ' ' || i + 1 < bytes);

        if (data[i] == '\\')
            (void)fputs("\\\\", file);
        else if (data[i] == '\n')
            (void)fputs("\\n", file);
        else
            (void)fprintf(file, is_plain ? "%c" : "\\x%02x", data[i]);
    }
    (void)fputc('\n', file);
}
