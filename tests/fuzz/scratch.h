/*
 * scratch.h - a folder of a fuzz target's own, for parsers that open their files by name.
 *
 * Made where the program runs and removed when it exits; what a crash leaves lies there too, and
 * not among the machine's temporary files.
 */
#ifndef DP_TESTS_FUZZ_SCRATCH_H
#define DP_TESTS_FUZZ_SCRATCH_H

#include <stddef.h>

/* The folder; made by the first call. */
const char *scratch_folder(void);

/* The path of a name in it; one of four rotating buffers. */
const char *scratch_path(const char *name);

/* Writes a file in it, over what was there, and returns its path. */
const char *scratch_write(const char *name, const void *data, size_t bytes);

#endif
