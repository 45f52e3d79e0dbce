/*
 * formats.h - the files dptrace writes, and the one it reads back: Perfetto's protobuf. One file
 * each; they share nothing but the timeline.
 */
#ifndef DP_DPTRACE_FORMATS_H
#define DP_DPTRACE_FORMATS_H

#include <stdio.h>

#include "launcher/dptrace/timeline.h"

/* Reads a merged file that dp_perfetto_write() wrote. Not finished. */
dp_status_t dp_perfetto_parse(const uint8_t *data, size_t bytes, const char *what,
                              dp_timeline_t *timeline, dp_error_t *error);

/* Writers report only DP_ERR_NO_MEMORY; the caller looks at ferror(). */
dp_status_t dp_perfetto_write(const dp_timeline_t *timeline, FILE *file);
dp_status_t dp_chrome_write(const dp_timeline_t *timeline, FILE *file);

/* A result on its way to its path. */
typedef struct dp_whole_file {
    FILE *file;
    const char *path; /* borrowed; "-": standard output */
    char *target;     /* the file behind the path, where it is a link */
    char *temporary;  /* has the content until it is whole; NULL: the path itself has it */
} dp_whole_file_t;

/* Opens a file beside `path`, for dp_file_close() to put in its place when all went well. A device,
 * a pipe, or the file of this program's standard output is written through. `input`, the recording
 * that is read, and the files in it where it is a folder, are refused. */
dp_status_t dp_file_open(const char *path, const char *input, dp_whole_file_t *output,
                         dp_error_t *error);
dp_status_t dp_file_close(dp_whole_file_t *output, dp_status_t status, dp_error_t *error);

#endif
