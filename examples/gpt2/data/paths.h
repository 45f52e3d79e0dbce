/*
 * paths.h - which files the words behind --data and --val mean: names, patterns and folders.
 *
 * It must not know what the files hold.
 */
#ifndef GPT2_PATHS_H
#define GPT2_PATHS_H

#include "examples/gpt2/base/flags.h"

/*
 * Expands words, in their order. A name that is there is taken as it is. A pattern (* ? [) means
 * the files that match it. A folder means its files *.bin, or where it has none its files *.txt;
 * those with the word "val" in their name, as in fineweb_val_000000.bin, are for validation, and
 * the others for training. Patterns and folders are in the order of the names' bytes, on every
 * machine. is_validation: a folder's files for validation are wanted, or all where none is.
 *
 * paths: give it back with gpt2_paths_free(). validation (NULL: not asked for): those that folders
 * have beside their files for training.
 */
int gpt2_paths_expand(const gpt2_words_t *words, int is_validation, gpt2_words_t *paths,
                      gpt2_words_t *validation, gpt2_error_t *error);
void gpt2_paths_free(gpt2_words_t *paths);

#endif
