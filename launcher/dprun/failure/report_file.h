/*
 * report_file.h - `--report FILE`: how the job ended, for a program that reads it after dprun has
 * ended.
 *
 * The file is opened before anything is started, so that a path that cannot be written is refused
 * in time, and is empty until the job has ended. Written in place: it may be a device, a pipe, or a
 * file that a container's runtime has mounted. A torchrun that started dprun names a file of its
 * own (TORCHELASTIC_ERROR_FILE), which is made only by a job that fails: torchrun takes it for a
 * fact. A name that ends in .json gets fields (docs/faults.md), every other the text that dprun
 * itself prints.
 */
#ifndef DP_LAUNCHER_REPORT_FILE_H
#define DP_LAUNCHER_REPORT_FILE_H

#include "launcher/dprun/failure/report.h"
#include "runtime/base/error.h"

/* The job as a whole. */
typedef struct dp_ending {
    const char *outcome; /* "succeeded", "failed", "timeout", "interrupted", ... */
    const char *signal;  /* that interrupted it; NULL: none */
    const char *error;   /* why nothing was started; NULL */
    char *const *argv;   /* the program and its arguments, up to NULL */
    int size;            /* ranks */
    uint64_t elapsed_ns; /* since dprun's start */
    const char *text;    /* what dprun prints at the end; may be "" */
    int exit_code;
} dp_ending_t;

/* Opens it; -1: path is NULL. DP_ERR_CONFIG: it cannot be written. */
dp_status_t dp_report_file_open(const char *path, int *fd, dp_error_t *error);

/* Writes and closes it; fd -1: does nothing. report: NULL where no rank was started. */
dp_status_t dp_report_file_end(const char *path, int fd, const dp_ending_t *ending,
                               const dp_report_t *report, dp_error_t *error);

/* Writes the file that torchrun asks for, if it does and the job has failed. */
void dp_report_file_for_torchrun(const dp_ending_t *ending, const dp_report_t *report);

#endif
