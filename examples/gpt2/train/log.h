/*
 * log.h - the figures of a step as a row of a log file, CSV or JSON lines.
 *
 * report.c calls it, on rank 0's main thread. A run that is resumed goes on in the file it finds,
 * behind its step, so a log has each step once.
 */
#ifndef GPT2_LOG_H
#define GPT2_LOG_H

#include <stdint.h>

#include "examples/gpt2/base/error.h"

typedef struct gpt2_log gpt2_log_t;

typedef enum gpt2_log_kind { GPT2_LOG_CSV, GPT2_LOG_JSON } gpt2_log_kind_t;

/* What a log says of a step, under the names of the table in log.c. NaN: not known. */
typedef struct gpt2_record {
    double step;
    double loss;
    double validation;
    double learning_rate;
    double norm;
    double skipped;
    double tokens_per_second;
    double total_ms; /* of the mean step since the last row, as all that follow */
    double transfer_ms;
    double exposed_ms;
    double skew_ms;
    double forward_ms;
    double backward_ms;
    double optimizer_ms;
    double other_ms;
    double weights_ms;
    double wire_bytes;
    double clip;
    double scale;
    double mfu;
} gpt2_record_t;

/* Creates the file, or where is_resumed cuts it behind `step` and appends. Give it back with
 * gpt2_log_close(). */
int gpt2_log_open(const char *path, gpt2_log_kind_t kind, int is_resumed, uint64_t step,
                  gpt2_log_t **out, gpt2_error_t *error);

/* Writes a row, to its end. -1: it is lost, and no row follows; says so once. */
int gpt2_log_write(gpt2_log_t *log, const gpt2_record_t *record, gpt2_error_t *error);

/* NULL is fine. -1 where rows were lost. */
int gpt2_log_close(gpt2_log_t *log, gpt2_error_t *error);

/* NULL where rows were lost; borrowed. */
const char *gpt2_log_path(const gpt2_log_t *log);

#endif
