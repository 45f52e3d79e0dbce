/*
 * corpus.h - reads and writes the inputs that a fuzz target keeps: corpus/TARGET.txt, one a line.
 *
 * A line is the input as printf '%b' takes it: printable characters stand for themselves, a
 * backslash is \\, a line feed \n, any other byte \xHH. So an editor, grep and a diff show what an
 * input is. A line that begins with # is a comment on the input below it; run.sh keeps these
 * inputs.
 *
 * Called by fuzz_driver.c and fuzz_files.c, in programs of one thread. It must not know any target.
 */
#ifndef DP_TESTS_FUZZ_CORPUS_H
#define DP_TESTS_FUZZ_CORPUS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Takes one input, borrowed for the call; returns 0, or -1 to end the reading. */
typedef int (*corpus_take_t)(void *context, const uint8_t *data, size_t bytes);

/* Hands over every input of a file. Returns their number; -1 with a line on stderr for a file that
 * cannot be read, a broken line, an input above FUZZ_ROOM, or where take() ended it. */
long corpus_read(const char *path, corpus_take_t take, void *context);

/* Writes one input as a line. */
void corpus_write(FILE *file, const uint8_t *data, size_t bytes);

#endif
