/*
 * options.h - the command line of the trainer, one row of a table per flag.
 */
#ifndef GPT2_OPTIONS_H
#define GPT2_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include "examples/gpt2/base/error.h"
#include "examples/gpt2/model/shape.h"

/* Numbers that were not given are negative until gpt2_options_complete(). */
typedef struct gpt2_options {
    int help;
    /* model */
    char *preset;
    int64_t layers;
    int64_t heads;
    int64_t width;
    int64_t context;
    int64_t vocab;
    /* data */
    char *data;
    char *val;
    int64_t seq;
    int64_t seed;
    /* training */
    int64_t batch; /* global */
    int64_t accumulate;
    int64_t steps;
    double lr;
    double final_lr;
    int64_t warmup;
    double beta1;
    double beta2;
    double decay;
    double clip;
    /* cooperation */
    char *device;
    char *precision;
    char *recompute;
    char *head_early;
    char *tuned;
    char *strategy;
    char *wire;
    int64_t threads;
    char *gemm;
    int64_t check;
    /* output */
    char *out;
    char *csv;
    char *resume;
    char *init;
    char *export;
    char *export_type;
    int64_t log_every;
    int64_t eval_every;
    int64_t eval_batches;
    int64_t checkpoint_every;
    /* sampling */
    char *sample;
    int64_t sample_tokens;
    double temperature;
    int64_t top_k;
} gpt2_options_t;

/* Reads the command line; texts are borrowed from it. An unknown flag, a missing or bad value:
 * -1 with the flag, the value and what would be right. */
int gpt2_options_parse(int argc, char **argv, gpt2_options_t *options, gpt2_error_t *error);

/* Fills in from the preset what was not given, refuses options that contradict each other, and
 * computes the model's shape. is_text: the data file is a text, not tokens. */
int gpt2_options_complete(gpt2_options_t *options, int is_text, gpt2_shape_t *shape,
                          gpt2_error_t *error);

void gpt2_options_help(FILE *out);

#endif
