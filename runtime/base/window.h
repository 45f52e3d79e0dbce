/*
 * window.h - the steps a timeline shows, as in --timeline FILE:steps=A-B.
 *
 * Pure. dprun reads the file's name from it, every rank which of its records to keep.
 */
#ifndef DP_BASE_WINDOW_H
#define DP_BASE_WINDOW_H

#include "runtime/base/error.h"

typedef struct dp_window {
    size_t file_bytes; /* of the text: the file's name */
    int has_steps;     /* 0: all of them */
    uint64_t first, last;
} dp_window_t;

/* FILE[:steps=A-B], A <= B. Errors quote the text. */
dp_status_t dp_window_parse(const char *text, dp_window_t *window, dp_error_t *error);

#endif
