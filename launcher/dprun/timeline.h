/*
 * timeline.h - --timeline FILE[:steps=A-B]: has dptrace merge the ranks' recorders at the end.
 * Called by dprun.c.
 */
#ifndef DP_LAUNCHER_TIMELINE_H
#define DP_LAUNCHER_TIMELINE_H

#include <limits.h>

#include "runtime/base/error.h"

typedef struct dp_timeline_request {
    char file[PATH_MAX];
    char steps[64]; /* "A-B", or "" for all */
} dp_timeline_request_t;

/* text is not empty. Errors quote it. */
dp_status_t dp_timeline_request_parse(const char *text, dp_timeline_request_t *timeline,
                                      dp_error_t *error);

/* Whether the file could be written, before a long job finds out. */
dp_status_t dp_timeline_request_check(const dp_timeline_request_t *timeline, dp_error_t *error);

/* The dptrace beside this program. */
void dp_timeline_request_tool(char *path, size_t room);

/* Runs it and waits. */
dp_status_t dp_timeline_request_merge(const dp_timeline_request_t *timeline, const char *run_dir,
                                      dp_error_t *error);

#endif
