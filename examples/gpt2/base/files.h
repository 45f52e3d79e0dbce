/*
 * files.h - writing files so that they are whole or absent, reading only what is a regular file,
 * and the few path helpers for it.
 */
#ifndef GPT2_FILES_H
#define GPT2_FILES_H

#include <stddef.h>
#include <stdio.h>

#include "examples/gpt2/base/error.h"

#define GPT2_PATH_MAX 4096

/* out [GPT2_PATH_MAX] = folder "/" name. Refuses a path that does not fit. */
int gpt2_path_join(char *out, const char *folder, const char *name, gpt2_error_t *error);

/* 1: the path ends in the suffix and has more in front of it. */
int gpt2_path_ends(const char *path, const char *suffix);

/* Creates a folder and its parents, durably; existing ones are fine. */
int gpt2_make_folders(const char *path, gpt2_error_t *error);

/* Removes a folder with all that is in it, or a file. A missing path is no error. */
int gpt2_remove_folder(const char *path, gpt2_error_t *error);

/* Creates (or empties) a file for writing, in a folder that gets its name when it is whole. */
int gpt2_file_create(const char *path, FILE **out, gpt2_error_t *error);

/* A result of the run on its way to the path that a user gave. */
typedef struct gpt2_output {
    FILE *file;
    char path[GPT2_PATH_MAX]; /* the file behind the user's path */
    char part[GPT2_PATH_MAX]; /* has the content until it is whole; "": path itself has it */
} gpt2_output_t;

/* Where path is a regular file, or nothing yet, a file beside it is written, and an older one stays
 * until then. A device, a FIFO, or the file that this program's standard output goes to is written
 * through, and never replaced. */
int gpt2_output_open(gpt2_output_t *output, const char *path, gpt2_error_t *error);

/* code 0: makes the content durable and gives it its name. Otherwise, and where that fails, what
 * was written is removed. Returns -1 where either is so. */
int gpt2_output_close(gpt2_output_t *output, int code, gpt2_error_t *error);

/* 1: both paths lead to one regular file, or would. */
int gpt2_file_is_same(const char *path, const char *other);

/* Writes all bytes, or fails naming the file and the cause. */
int gpt2_file_write(FILE *file, const char *path, const void *data, size_t bytes,
                    gpt2_error_t *error);

/* Flushes, makes the content durable and closes, also on failure. */
int gpt2_file_commit(FILE *file, const char *path, gpt2_error_t *error);

/* Makes a folder's entries durable. */
int gpt2_folder_sync(const char *path, gpt2_error_t *error);

/* Opens a regular file for reading; *bytes: its size, unless NULL. A FIFO or a device, where
 * reading might never end, a socket and a folder are refused. */
int gpt2_file_open(const char *path, FILE **out, size_t *bytes, gpt2_error_t *error);

/* A small regular file as a whole: *data [*bytes], with a zero behind it; free() it. Refuses more
 * than `most` bytes. */
int gpt2_file_whole(const char *path, size_t most, char **data, size_t *bytes, gpt2_error_t *error);

/* Reads exactly bytes from a file's current position; a short file fails with both numbers. */
int gpt2_file_read(FILE *file, const char *path, void *data, size_t bytes, gpt2_error_t *error);

#endif
