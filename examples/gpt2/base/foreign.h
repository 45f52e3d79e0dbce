/*
 * foreign.h - recognises files that stand where another kind was expected.
 *
 * Readers of data, models and checkpoints ask before they say that a file's magic is wrong. It
 * knows other programs' first bytes, and no format of ours.
 */
#ifndef GPT2_FOREIGN_H
#define GPT2_FOREIGN_H

#include <stdio.h>

#include "examples/gpt2/base/error.h"

#define GPT2_FOREIGN_BYTES 64 /* as many of a file's first ones are enough */

/* Names the kind of file that begins so, and what to do with it: "a git-lfs pointer: ..."; NULL:
 * not known.
 */
const char *gpt2_foreign(const void *begin, size_t bytes);

/* Refuses an open file that is known to be another kind. Reads from the start; the file's position
 * is the start afterwards. */
int gpt2_foreign_refuse(FILE *file, const char *path, gpt2_error_t *error);

#endif
