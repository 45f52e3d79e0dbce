/*
 * scratch.h - a temporary folder for a test, and small files in it.
 */
#ifndef GPT2_TEST_SCRATCH_H
#define GPT2_TEST_SCRATCH_H

#include <stddef.h>

/* Makes a folder below TMPDIR or /tmp; its path stays valid until scratch_remove(). */
const char *scratch_make(void);

/* Removes it with all that is in it. */
void scratch_remove(void);

/* The path of a name in it; one of eight rotating buffers. */
const char *scratch_path(const char *name);

/* Writes a file in it and returns its path. */
const char *scratch_write(const char *name, const void *data, size_t bytes);

#endif
