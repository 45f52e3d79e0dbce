/*
 * files.h - writing files so that they are whole or absent, and the few path helpers for it.
 */
#ifndef GPT2_FILES_H
#define GPT2_FILES_H

#include <stddef.h>
#include <stdio.h>

#include "examples/gpt2/base/error.h"

#define GPT2_PATH_MAX 4096

/* out [GPT2_PATH_MAX] = folder "/" name. Refuses a path that does not fit. */
int gpt2_path_join(char *out, const char *folder, const char *name, gpt2_error_t *error);

/* Creates a folder and its parents, durably; existing ones are fine. */
int gpt2_make_folders(const char *path, gpt2_error_t *error);

/* Removes a folder with all that is in it, or a file. What is missing is fine. */
int gpt2_remove_folder(const char *path, gpt2_error_t *error);

/* Creates (or empties) a file for writing. */
int gpt2_file_create(const char *path, FILE **out, gpt2_error_t *error);

/* Writes all bytes, or fails naming the file and the cause. */
int gpt2_file_write(FILE *file, const char *path, const void *data, size_t bytes,
                    gpt2_error_t *error);

/* Flushes, makes the content durable and closes, also on failure. */
int gpt2_file_commit(FILE *file, const char *path, gpt2_error_t *error);

/* Makes a folder's entries durable. */
int gpt2_folder_sync(const char *path, gpt2_error_t *error);

/* Reads exactly bytes from a file's current position; a short file fails with both numbers. */
int gpt2_file_read(FILE *file, const char *path, void *data, size_t bytes, gpt2_error_t *error);

#endif
