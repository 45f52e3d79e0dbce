/*
 * checkpoint_folder.h - the names in a folder of checkpoints: which is a checkpoint, which is what
 * a killed save left, and how a new checkpoint gets its name.
 *
 *     12            a checkpoint; from the moment it has this name it is whole and on disk
 *     .writing-12   begun, or the one that the new 12 has taken the name of
 *     .replaced-12  the old 12, where the file system cannot exchange two names
 *     .removing-4   a checkpoint no longer kept
 *
 * It must not know what a checkpoint holds. One process at a time works on a folder (run.c locks
 * it).
 */
#ifndef GPT2_CHECKPOINT_FOLDER_H
#define GPT2_CHECKPOINT_FOLDER_H

#include <stdint.h>

#include "examples/gpt2/base/files.h"

/* Receives a line for people about something that is not a failure. */
typedef struct gpt2_notice {
    void (*say)(void *user, const char *text);
    void *user;
} gpt2_notice_t;

/* Formats a line and says it; notice may be NULL. */
void gpt2_notice(const gpt2_notice_t *notice, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* *steps [*count] = the checkpoints' steps, highest first; give it back with free(). A folder that
 * is not there has none. */
int gpt2_folder_steps(const char *folder, uint64_t **steps, size_t *count, gpt2_error_t *error);

/* Removes what killed saves left, and gives a replaced checkpoint its name again where the new one
 * did not get it. Says what it found. */
int gpt2_folder_sweep(const char *folder, const gpt2_notice_t *notice, gpt2_error_t *error);

/* Makes the folder in which a checkpoint is written; path [GPT2_PATH_MAX]. */
int gpt2_folder_begin(const char *folder, uint64_t step, char *path, gpt2_error_t *error);

/* Gives what was written the name of its step, in one system call where the file system can. A
 * checkpoint of this name goes when the new one is on disk; both are there until then. */
int gpt2_folder_commit(const char *folder, uint64_t step, gpt2_error_t *error);

/* Removes one checkpoint: its name goes first, so that half of one never has a checkpoint's name. A
 * folder without a manifest is not a checkpoint and is refused. */
int gpt2_folder_remove(const char *folder, uint64_t step, gpt2_error_t *error);

/* Removes all but the newest `kept` checkpoints and that of `saved`, which was just made. */
void gpt2_folder_prune(const char *folder, size_t kept, uint64_t saved);

#endif
