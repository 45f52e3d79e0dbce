/*
 * options.c - parses flags by a table, and completes them from the preset. main() parses them
 * first of all; the trainer completes them when it has opened the data, as a text has another
 * vocabulary than tokens.
 */
#include "examples/gpt2/train/options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/nearest.h"

typedef enum kind { TEXT, WHOLE, REAL, SWITCH } kind_t;

typedef struct row {
    const char *flag;  /* "--steps" */
    const char *value; /* what --help calls its value; NULL for a switch */
    kind_t kind;
    size_t offset;
    double low; /* WHOLE and REAL: the range */
    double high;
    const char *initial; /* NULL: not given */
    const char *help;
} row_t;

#define AT(field) offsetof(gpt2_options_t, field)
#define BIG 1e15

/* clang-format off */
static const row_t ROWS[] = {
    {NULL, "Model", TEXT, 0, 0, 0, NULL, NULL},
    {"--preset", "NAME", TEXT, AT(preset), 0, 0, "tiny", "tiny, quick, small, 124M, 350M, 774M, 1558M [tiny]"},
    {"--layers", "N", WHOLE, AT(layers), 1, 1024, NULL, "blocks [preset]"},
    {"--heads", "N", WHOLE, AT(heads), 1, 1024, NULL, "attention heads per block [preset]"},
    {"--width", "N", WHOLE, AT(width), 1, 65536, NULL, "channels, a multiple of heads [preset]"},
    {"--context", "N", WHOLE, AT(context), 1, 1048576, NULL, "positions [preset]"},
    {"--vocab", "N", WHOLE, AT(vocab), 2, 16777216, NULL, "tokens [256 for text, 50257 for .bin]"},
    {"--init", "FILE", TEXT, AT(init), 0, 0, NULL, "start from llm.c's model file, or HF's .safetensors; its shape wins"},
    {NULL, "Data", TEXT, 0, 0, 0, NULL, NULL},
    {"--data", "FILE", TEXT, AT(data), 0, 0, NULL, "a text, or llm.c tokens (.bin); required to train"},
    {"--val", "FILE", TEXT, AT(val), 0, 0, NULL, "validation data [the last 10 % of --data]"},
    {"--seq", "N", WHOLE, AT(seq), 1, 1048576, NULL, "tokens per sequence, at most the context [preset]"},
    {"--seed", "N", WHOLE, AT(seed), 0, BIG, "1", "of the initial weights, the data's order and samples [1]"},
    {NULL, "Training", TEXT, 0, 0, 0, NULL, NULL},
    {"--batch", "N", WHOLE, AT(batch), 1, 1048576, NULL, "sequences per step over all ranks [preset]"},
    {"--accumulate", "N", WHOLE, AT(accumulate), 1, 1048576, "1", "backward passes per step [1]"},
    {"--steps", "N", WHOLE, AT(steps), 0, BIG, NULL, "steps of the whole run [preset]"},
    {"--lr", "X", REAL, AT(lr), 0, 10, NULL, "highest learning rate [preset]"},
    {"--final-lr", "X", REAL, AT(final_lr), 0, 1, "0.1", "of it, what is left after the cosine [0.1]"},
    {"--warmup", "N", WHOLE, AT(warmup), 0, BIG, NULL, "steps of linear rise [preset]"},
    {"--beta1", "X", REAL, AT(beta1), 0, 0.9999999, "0.9", "AdamW [0.9]"},
    {"--beta2", "X", REAL, AT(beta2), 0, 0.9999999, "0.95", "AdamW [0.95]"},
    {"--decay", "X", REAL, AT(decay), 0, 10, "0.1", "weight decay of matrices [0.1]"},
    {"--clip", "X", REAL, AT(clip), 0, 1e9, "1.0", "largest global gradient norm, 0: none [1.0]"},
    {NULL, "Ranks and threads", TEXT, 0, 0, 0, NULL, NULL},
    {"--strategy", "NAME", TEXT, AT(strategy), 0, 0, NULL, "coordinator (libdp); dps: its launches in program order; sps: one parameter server; single: this process alone"},
    {"--wire", "NAME", TEXT, AT(wire), 0, 0, "default", "gradients between machines: none, fp16, bf16 [as DP_WIRE]"},
    {"--device", "NAME", TEXT, AT(device), 0, 0, "auto", "auto: cuda where there is a GPU; cpu; cuda [auto]"},
    {"--precision", "NAME", TEXT, AT(precision), 0, 0, "bf16", "cuda: bf16 with fp32 weights beside, or fp32 [bf16]"},
    {"--recompute", "NAME", TEXT, AT(recompute), 0, 0, "none", "cuda: none, gelu, gelu+norm: less memory, more work [none]"},
    {"--head-early", "NAME", TEXT, AT(head_early), 0, 0, "auto", "cuda: sends the head's gradient ahead: yes, no; auto: where there are ranks [auto]"},
    {"--tuned", "DIR", TEXT, AT(tuned), 0, 0, NULL, "cuda: keeps the quickest matrix products there [DIR of --out]"},
    {"--threads", "N", WHOLE, AT(threads), 1, 1024, "1", "threads of this rank, cpu [1]"},
    {"--gemm", "NAME", TEXT, AT(gemm), 0, 0, "auto", "matrix products: auto, blas, own, dnnl, dnnl-bf16 [auto]"},
    {"--check", "N", WHOLE, AT(check), 0, BIG, "10", "every N steps compare the replicas' weights, 0: never [10]"},
    {NULL, "Output", TEXT, 0, 0, 0, NULL, NULL},
    {"--out", "DIR", TEXT, AT(out), 0, 0, NULL, "keeps checkpoint/ and log.csv there [none are kept]"},
    {"--csv", "FILE", TEXT, AT(csv), 0, 0, NULL, "the log [DIR/log.csv]"},
    {"--checkpoint-every", "N", WHOLE, AT(checkpoint_every), 0, BIG, "0", "steps; 0: only at the end [0]"},
    {"--resume", "DIR", TEXT, AT(resume), 0, 0, NULL, "a checkpoint's folder, or auto: the newest whole one in --out"},
    {"--export", "FILE", TEXT, AT(export), 0, 0, NULL, "at the end write llm.c's model file, or HF's .safetensors"},
    {"--export-type", "NAME", TEXT, AT(export_type), 0, 0, "fp32", "of its numbers: fp32, bf16 [fp32]"},
    {"--log-every", "N", WHOLE, AT(log_every), 1, BIG, NULL, "steps per progress line [preset]"},
    {"--eval-every", "N", WHOLE, AT(eval_every), 0, BIG, "0", "steps; 0: only at the end [0]"},
    {"--eval-batches", "N", WHOLE, AT(eval_batches), 1, BIG, "8", "validation batches of --batch sequences [8]"},
    {NULL, "Sample", TEXT, 0, 0, 0, NULL, NULL},
    {"--sample", "TEXT", TEXT, AT(sample), 0, 0, NULL, "continue this at the end (token numbers for .bin)"},
    {"--sample-tokens", "N", WHOLE, AT(sample_tokens), 1, 1048576, "200", "how far [200]"},
    {"--temperature", "X", REAL, AT(temperature), 0, 100, "0.8", "0: always the likeliest [0.8]"},
    {"--top-k", "N", WHOLE, AT(top_k), 0, 16777216, "0", "choose among that many, 0: all [0]"},
    {"--help", NULL, SWITCH, AT(help), 0, 0, NULL, "this text"},
};
/* clang-format on */
#define ROW_COUNT (sizeof(ROWS) / sizeof(ROWS[0]))

/* Where the row's value lies in the struct: a row's kind fixes its type (char *, int64_t, double or
 * int), and every field of gpt2_options_t has a row. */
static void *option_field(gpt2_options_t *options, const row_t *row)
{
    return (char *)options + row->offset;
}

static int assign(gpt2_options_t *options, const row_t *row, char *text, gpt2_error_t *error)
{
    char *end = text;
    double value;

    if (row->kind == TEXT) {
        *(char **)option_field(options, row) = text;
        return 0;
    }
    errno = 0;
    value = row->kind == REAL ? strtod(text, &end) : (double)strtoll(text, &end, 10);
    if (end == text || *end != '\0') {
        return gpt2_fail(error, "%s %s: not a %s", row->flag, text,
                         row->kind == REAL ? "number" : "whole number");
    }
    /* Written so that NaN is outside too. */
    if (!(errno == 0 && value >= row->low && value <= row->high)) {
        return gpt2_fail(error, "%s %s: out of range %.10g to %.10g", row->flag, text, row->low,
                         row->high);
    }
    if (row->kind == REAL) {
        *(double *)option_field(options, row) = value;
    } else {
        *(int64_t *)option_field(options, row) = (int64_t)value;
    }
    return 0;
}

static void assign_initial(gpt2_options_t *options)
{
    memset(options, 0, sizeof(*options));
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const row_t *row = &ROWS[i];

        if (row->flag == NULL || row->kind == SWITCH) continue;
        if (row->kind == TEXT) {
            /* The options' texts are never written to. */
            if (row->initial != NULL) *(const char **)option_field(options, row) = row->initial;
        } else if (row->kind == REAL) {
            *(double *)option_field(options, row) =
                row->initial == NULL ? -1.0 : strtod(row->initial, NULL);
        } else {
            *(int64_t *)option_field(options, row) =
                row->initial == NULL ? -1 : strtoll(row->initial, NULL, 10);
        }
    }
}

static const row_t *find_flag(const char *flag, size_t length)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (ROWS[i].flag == NULL || strlen(ROWS[i].flag) != length) continue;
        if (strncmp(ROWS[i].flag, flag, length) == 0) return &ROWS[i];
    }
    return NULL;
}

static int unknown(const char *flag, gpt2_error_t *error)
{
    const char *names[ROW_COUNT];
    size_t count = 0;

    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (ROWS[i].flag != NULL) names[count++] = ROWS[i].flag;
    }
    return gpt2_fail(error, "%s: no such flag, did you mean %s? --help lists all", flag,
                     gpt2_nearest(flag, names, count));
}

int gpt2_options_parse(int argc, char **argv, gpt2_options_t *options, gpt2_error_t *error)
{
    assign_initial(options);
    for (int i = 1; i < argc; i++) {
        char *equals = strchr(argv[i], '=');
        size_t length = equals == NULL ? strlen(argv[i]) : (size_t)(equals - argv[i]);
        const row_t *row = find_flag(argv[i], length);
        char *value = equals == NULL ? NULL : equals + 1;

        if (row == NULL) return unknown(argv[i], error);
        if (row->kind == SWITCH) {
            if (value != NULL) return gpt2_fail(error, "%s takes no value", row->flag);
            *(int *)option_field(options, row) = 1;
            continue;
        }
        if (value == NULL) {
            if (i + 1 >= argc)
                return gpt2_fail(error, "%s needs a value: %s", row->flag, row->help);
            value = argv[++i];
        }
        if (assign(options, row, value, error) != 0) return -1;
    }
    return 0;
}

void gpt2_options_help(FILE *out)
{
    (void)fprintf(out, "usage: gpt2 --data FILE [options], alone or under dprun\n"
                       "Trains a GPT-2 on a text or on tokens; all ranks see one global batch.\n");
    for (size_t i = 0; i < ROW_COUNT; i++) {
        char left[64];

        if (ROWS[i].flag == NULL) {
            (void)fprintf(out, "\n%s\n", ROWS[i].value);
            continue;
        }
        (void)snprintf(left, sizeof(left), "%s %s", ROWS[i].flag,
                       ROWS[i].value == NULL ? "" : ROWS[i].value);
        (void)fprintf(out, "  %-22s %s\n", left, ROWS[i].help);
    }
    (void)fprintf(out, "\nexample: dprun -np 2 gpt2 --preset quick --data kjv.txt --out run "
                       "--sample \"And the LORD\"\n");
}

/* Training settings that fit a preset, found by trying. */
typedef struct recipe {
    const char *preset;
    int batch;
    int seq;
    int steps;
    double lr;
    int warmup;
    int log_every;
} recipe_t;

/* clang-format off */
static const recipe_t RECIPES[] = {
    {"tiny", 8, 64, 100, 3e-3, 10, 10},
    {"quick", 16, 64, 3000, 5e-3, 100, 100},
    {"small", 32, 256, 2000, 1e-3, 100, 20},
    {"124M", 32, 1024, 20000, 6e-4, 700, 20},
    {"350M", 32, 1024, 20000, 3e-4, 700, 20},
    {"774M", 32, 1024, 20000, 2.5e-4, 700, 20},
    {"1558M", 32, 1024, 20000, 2e-4, 700, 20},
};
/* clang-format on */

/* Fills in only what is still negative, so a flag always wins over the preset. */
static void from_recipe(gpt2_options_t *options, int context)
{
    const recipe_t *recipe = &RECIPES[0];

    for (size_t i = 0; i < sizeof(RECIPES) / sizeof(RECIPES[0]); i++) {
        if (strcmp(RECIPES[i].preset, options->preset) == 0) recipe = &RECIPES[i];
    }
    if (options->batch < 0) options->batch = recipe->batch;
    if (options->seq < 0) {
        options->seq = recipe->seq < context ? recipe->seq : context;
    }
    if (options->steps < 0) options->steps = recipe->steps;
    if (options->lr < 0.0) options->lr = recipe->lr;
    if (options->warmup < 0) {
        options->warmup =
            recipe->warmup < options->steps / 10 ? recipe->warmup : options->steps / 10;
    }
    if (options->log_every < 0) options->log_every = recipe->log_every;
}

static int check_word(const char *flag, const char *word, const char *const *words, size_t count,
                      gpt2_error_t *error)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(word, words[i]) == 0) return 0;
    }
    return gpt2_fail(error, "%s %s: no such choice, did you mean %s?", flag, word,
                     gpt2_nearest(word, words, count));
}

int gpt2_options_complete(gpt2_options_t *options, int is_text, gpt2_shape_t *shape,
                          gpt2_error_t *error)
{
    static const char *const wires[] = {"default", "none", "fp16", "bf16"};
    static const char *const gemms[] = {"auto", "blas", "own", "dnnl", "dnnl-bf16"};
    static const char *const precisions[] = {"bf16", "fp32"};
    static const char *const recomputes[] = {"none", "gelu", "gelu+norm"};
    static const char *const earlies[] = {"auto", "yes", "no"};

    if (gpt2_shape_preset(options->preset, shape, error) != 0) return -1;
    if (check_word("--wire", options->wire, wires, 4, error) != 0) return -1;
    if (check_word("--gemm", options->gemm, gemms, 5, error) != 0) return -1;
    if (check_word("--precision", options->precision, precisions, 2, error) != 0) return -1;
    if (check_word("--export-type", options->export_type, precisions, 2, error) != 0) return -1;
    if (check_word("--recompute", options->recompute, recomputes, 3, error) != 0) return -1;
    if (check_word("--head-early", options->head_early, earlies, 3, error) != 0) return -1;
    if (options->layers > 0) shape->layers = (int)options->layers;
    if (options->heads > 0) shape->heads = (int)options->heads;
    if (options->width > 0) shape->width = (int)options->width;
    if (options->context > 0) shape->context = (int)options->context;
    shape->vocab = options->vocab > 0 ? (int)options->vocab : is_text ? 256 : 50257;
    /* Rounded up as llm.c does, so that rows of logits start on a border of 128. */
    shape->vocab_padded = is_text ? shape->vocab : (shape->vocab + 127) / 128 * 128;
    from_recipe(options, shape->context);
    if (options->seq > shape->context) {
        return gpt2_fail(error, "--seq %lld is above the context of %d positions",
                         (long long)options->seq, shape->context);
    }
    if (options->accumulate > options->batch) {
        return gpt2_fail(error, "--accumulate %lld is above the --batch of %lld sequences",
                         (long long)options->accumulate, (long long)options->batch);
    }
    if (options->resume != NULL && strcmp(options->resume, "auto") == 0 && options->out == NULL) {
        return gpt2_fail(error, "--resume auto looks for checkpoints in --out, which is missing");
    }
    return gpt2_shape_check(shape, error);
}
