/*
 * tune_file.h - what the tuner found, kept for later runs: a line for each world and program.
 *
 * A small text file with a version and a checksum per line, replaced as a whole. It must not know
 * how the values came about or what they do.
 */
#ifndef DP_COORDINATOR_TUNE_FILE_H
#define DP_COORDINATOR_TUNE_FILE_H

#include "coordinator/tuner/tuner.h"
#include "runtime/base/error.h"

/* Settings are good for the world and the program they were found in. */
typedef struct dp_tune_key {
    int size, hosts;
    char engine[16];
    uint64_t program; /* digest of what a step launches */
} dp_tune_key_t;

/* DP_OK: found; DP_ERR_AGAIN: nothing is known; else with a text that names the file: it cannot be
 * read, or a line of it is damaged or of another version. */
dp_status_t dp_tune_file_read(const char *path, const dp_tune_key_t *key, uint64_t values[DP_KNOBS],
                              dp_error_t *error);

/* Adds a line, or replaces the one of this key. Lines that cannot be read are dropped. Nobody ever
 * sees half a file, and processes that write at one time keep each other's lines: path.lock, which
 * stays, is locked meanwhile, and waited for a second. */
dp_status_t dp_tune_file_write(const char *path, const dp_tune_key_t *key,
                               const uint64_t values[DP_KNOBS], double home_s, double best_s,
                               dp_error_t *error);

#endif
