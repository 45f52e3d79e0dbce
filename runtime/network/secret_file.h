/*
 * secret_file.h - the file of a job's secret (DP_SECRET_FILE), for ranks that dprun did not start
 * and for dprun --node. One reader, so that both accept and refuse the same files.
 */
#ifndef DP_NETWORK_SECRET_FILE_H
#define DP_NETWORK_SECRET_FILE_H

#include "runtime/base/auth.h"

#define DP_SECRET_FILE_MIN 32
#define DP_SECRET_FILE_MAX 4096

/* Derives a secret for `purpose` from the whole file. It must be a regular file of this user that
 * nobody else can read or write, or root's, which its group may read; of DP_SECRET_FILE_MIN to
 * DP_SECRET_FILE_MAX bytes. Never waits. DP_ERR_CONFIG: error says which of these does not hold. */
dp_status_t dp_secret_file_read(const char *path, const char *purpose, dp_secret_t *secret,
                                dp_error_t *error);

#endif
