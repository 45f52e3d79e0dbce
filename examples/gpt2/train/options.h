/*
 * options.h - the command line of the trainer, one row of a table per flag.
 */
#ifndef GPT2_OPTIONS_H
#define GPT2_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include "examples/gpt2/base/flags.h"
#include "examples/gpt2/model/precision.h"
#include "examples/gpt2/model/shape.h"
#include "examples/gpt2/strategy/strategy.h"

/* Numbers that were not given are negative until gpt2_options_complete(). */
typedef struct gpt2_options {
    int help;
    int version;
    char repeated[GPT2_REPEATED_MAX]; /* of gpt2_flags_parse() */
    /* model */
    char *preset;
    int64_t layers;
    int64_t heads;
    int64_t width;
    int64_t context;
    int64_t vocab;
    /* data */
    gpt2_words_t data; /* lists of the command line */
    gpt2_words_t val;
    int raw_tokens;
    gpt2_words_t tokenizer; /* its folder or files */
    int64_t seq;
    int64_t seed;
    int seed_is_default; /* 1: it was not given */
    /* training */
    int64_t batch; /* global */
    int64_t accumulate;
    int64_t steps;
    double lr;
    double final_lr;
    int64_t warmup;
    char *optimizer;
    double beta1;
    double beta2;
    double decay;
    double clip;
    double lamb_phi_max;
    char *lamb_bias_correction;
    char *lamb_exclude;
    /* cooperation */
    char *device;
    char *precision;
    char *amp;
    char *loss_scale;
    int64_t loss_scale_growth;
    int64_t loss_scale_hysteresis;
    char *recompute;
    char *head_early;
    char *tuned;
    char *strategy;
    int64_t dp; /* places along the axes of the mesh; negative: not given */
    int64_t tp;
    int64_t pp;
    char *stages;
    char *schedule;
    char *shard;
    int64_t shard_prefetch;
    char *wire;
    char *compress;
    double compress_rate;
    int64_t compress_rank;
    int64_t compress_start;
    int64_t compress_warmup;
    char *compress_momentum;
    int64_t threads;
    char *gemm;
    int64_t check;
    /* output */
    char *out;
    int overwrite;
    char *csv;
    char *log_jsonl;
    double peak; /* TFLOP/s of a rank; negative: not given */
    char *summary;
    char *samples;
    int plan;
    int64_t plan_ranks;
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

/* Reads the command line; texts and lists are borrowed from it, and so is argv, whose words may be
 * changed. An unknown flag, a missing or bad value:
 * -1 with the flag, the value and what would be right. */
int gpt2_options_parse(int argc, char **argv, gpt2_options_t *options, gpt2_error_t *error);

/* Fills in from the preset what was not given, refuses options that contradict each other, and
 * computes the model's shape. is_text: the data file is a text, not tokens. */
int gpt2_options_complete(gpt2_options_t *options, int is_text, gpt2_shape_t *shape,
                          gpt2_error_t *error);

/* The mesh of completed options, for a rank of `world`. Refuses what its axes cannot be combined
 * with. */
int gpt2_options_mesh(const gpt2_options_t *options, const gpt2_shape_t *shape, int world, int rank,
                      gpt2_mesh_t *mesh, gpt2_error_t *error);

/* The pieces of --gemm split:N; 0: products are not split. */
int gpt2_options_pieces(const gpt2_options_t *options);

/* The sharding that --shard asks for, once the options are complete. */
gpt2_shard_t gpt2_options_shard(const gpt2_options_t *options);

/* The optimizer that completed options ask for. */
gpt2_optimizer_settings_t gpt2_options_optimizer(const gpt2_options_t *options);

/* How completed options want gradients compressed. */
gpt2_compress_settings_t gpt2_options_compress(const gpt2_options_t *options);

/* Translates --precision, --amp and --loss-scale for a device, "cpu" or "cuda". */
int gpt2_options_precision(const gpt2_options_t *options, const char *device,
                           gpt2_precision_plan_t *plan, gpt2_error_t *error);

/* The wire of gradients, as in --wire: at level 2 their own type, unless --wire says otherwise. */
const char *gpt2_options_wire(const gpt2_options_t *options, const gpt2_precision_plan_t *plan);

void gpt2_options_help(FILE *out);

#endif
