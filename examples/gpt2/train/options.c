/*
 * options.c - the table of the trainer's flags, and what completes them from the preset. main()
 * parses them first of all; the trainer completes them when it has opened the data, as a text has
 * another vocabulary than tokens.
 */
#include "examples/gpt2/train/options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/nearest.h"

/* Short, for the table. */
#define TEXT GPT2_FLAG_TEXT
#define WORDS GPT2_FLAG_WORDS
#define WHOLE GPT2_FLAG_WHOLE
#define REAL GPT2_FLAG_REAL
#define SWITCH GPT2_FLAG_SWITCH

#define AT(field) offsetof(gpt2_options_t, field)
#define BIG 1e15

/* clang-format off */
static const gpt2_flag_t ROWS[] = {
    {NULL, "Model", TEXT, 0, 0, 0, NULL, NULL},
    {"--preset", "NAME", TEXT, AT(preset), 0, 0, "tiny", "tiny, quick, small, 124M, 350M, 774M, 1558M [tiny]"},
    {"--layers", "N", WHOLE, AT(layers), 1, 1024, NULL, "blocks [preset]"},
    {"--heads", "N", WHOLE, AT(heads), 1, 1024, NULL, "attention heads per block [preset]"},
    {"--width", "N", WHOLE, AT(width), 1, 65536, NULL, "channels, a multiple of heads [preset]"},
    {"--context", "N", WHOLE, AT(context), 1, 1048576, NULL, "positions [preset]"},
    {"--vocab", "N", WHOLE, AT(vocab), 2, 16777216, NULL, "tokens [256 for text, 50257 for .bin]"},
    {"--init", "FILE", TEXT, AT(init), 0, 0, NULL, "start from llm.c's model file, or HF's .safetensors; its shape wins"},
    {NULL, "Data", TEXT, 0, 0, 0, NULL, NULL},
    {"--data", "FILE ...", WORDS, AT(data), 0, 0, NULL, "texts, or llm.c tokens (.bin): files, 'train_*.bin', a folder; required to train"},
    {"--val", "FILE ...", WORDS, AT(val), 0, 0, NULL, "validation data [*val* of a folder, or the last 10 % of --data]"},
    {"--raw-tokens", NULL, SWITCH, AT(raw_tokens), 0, 0, NULL, "files without a header hold 16-bit tokens, as nanoGPT writes them"},
    {"--tokenizer", "DIR", WORDS, AT(tokenizer), 0, 0, NULL, "GPT-2's vocab.json and merges.txt: --sample in words, --vocab from there"},
    {"--seq", "N", WHOLE, AT(seq), 1, 1048576, NULL, "tokens per sequence, at most the context [preset]"},
    {"--seed", "N", WHOLE, AT(seed), 0, BIG, NULL, "of the initial weights, the data's order and samples [1]"},
    {NULL, "Training", TEXT, 0, 0, 0, NULL, NULL},
    {"--batch", "N", WHOLE, AT(batch), 1, 1048576, NULL, "sequences per step over all ranks [preset]"},
    {"--accumulate", "N", WHOLE, AT(accumulate), 1, 1048576, "1", "backward passes per step [1]"},
    {"--steps", "N", WHOLE, AT(steps), 0, BIG, NULL, "steps of the whole run [preset]"},
    {"--lr", "X", REAL, AT(lr), 0, 10, NULL, "highest learning rate [preset]"},
    {"--final-lr", "X", REAL, AT(final_lr), 0, 1, "0.1", "of it, what is left after the cosine [0.1]"},
    {"--warmup", "N", WHOLE, AT(warmup), 0, BIG, NULL, "steps of linear rise [preset]"},
    {"--optimizer", "NAME", TEXT, AT(optimizer), 0, 0, "adamw", "adamw; lamb: a rate of its own for each matrix [adamw]"},
    {"--beta1", "X", REAL, AT(beta1), 0, 0.9999999, "0.9", "of the first moments [0.9]"},
    {"--beta2", "X", REAL, AT(beta2), 0, 0.9999999, "0.95", "of the second moments [0.95]"},
    {"--decay", "X", REAL, AT(decay), 0, 10, "0.1", "weight decay of matrices [0.1]"},
    {"--clip", "X", REAL, AT(clip), 0, 1e9, "1.0", "largest global gradient norm, 0: none [1.0]"},
    {"--lamb-phi-max", "X", REAL, AT(lamb_phi_max), 0, 1e9, "0", "lamb: the largest norm of a tensor's weights that counts, 0: any [0]"},
    {"--lamb-bias-correction", "NAME", TEXT, AT(lamb_bias_correction), 0, 0, "yes", "lamb: of the moments: yes, no [yes]"},
    {"--lamb-exclude", "NAME", TEXT, AT(lamb_exclude), 0, 0, "1d", "lamb: what has neither decay nor a rate of its own: 1d, none [1d]"},
    {NULL, "Ranks and threads", TEXT, 0, 0, 0, NULL, NULL},
    {"--strategy", "NAME", TEXT, AT(strategy), 0, 0, NULL, "coordinator (libdp); dps: its launches in program order; sps: one parameter server; single: this process alone"},
    {"--dp", "N", WHOLE, AT(dp), 1, 1048576, NULL, "copies of the model, each with a part of the batch [ranks / --tp / --pp]"},
    {"--tp", "N", WHOLE, AT(tp), 1, 1024, NULL, "ranks that divide heads, MLP and vocabulary of a copy among them [1]"},
    {"--pp", "N", WHOLE, AT(pp), 1, 256, NULL, "stages of a pipeline; its micro-batches are --accumulate's [ranks / --dp]"},
    {"--stages", "N,N,...", TEXT, AT(stages), 0, 0, NULL, "blocks of each stage [cut by cost]"},
    {"--schedule", "NAME", TEXT, AT(schedule), 0, 0, "1f1b", "of a pipeline: 1f1b; gpipe: all forwards, then all backwards [1f1b]"},
    {"--shard", "NAME", TEXT, AT(shard), 0, 0, "none", "what ranks share out: none, optimizer, gradients, weights (each with those before), hybrid: weights within a node [none]"},
    {"--shard-prefetch", "N", WHOLE, AT(shard_prefetch), 1, 64, "2", "layers whose weights travel ahead of use, at most [2]"},
    {"--wire", "NAME", TEXT, AT(wire), 0, 0, "default", "gradients between machines: none, fp16, bf16 [as DP_WIRE]"},
    {"--compress", "NAME", TEXT, AT(compress), 0, 0, "none", "gradients: none; topk: the largest elements travel; powersgd: thin factors [none]"},
    {"--compress-rate", "X", REAL, AT(compress_rate), 0, 0.9999999, "0.99", "topk: the part of a matrix that is not sent [0.99]"},
    {"--compress-rank", "N", WHOLE, AT(compress_rank), 1, 64, "16", "powersgd: columns of the factors [16]"},
    {"--compress-start", "N", WHOLE, AT(compress_start), 0, BIG, "0", "steps before it send gradients as they are [0]"},
    {"--compress-warmup", "N", WHOLE, AT(compress_warmup), 0, BIG, "0", "topk: so many steps send 25, 6.25, 1.6, 0.4 % in turn, if that is more [0]"},
    {"--compress-momentum", "NAME", TEXT, AT(compress_momentum), 0, 0, "no", "topk: what is chosen from has a momentum of --beta1: yes, no [no]"},
    {"--device", "NAME", TEXT, AT(device), 0, 0, "auto", "auto: cuda where there is a GPU; cpu; cuda [auto]"},
    {"--precision", "NAME", TEXT, AT(precision), 0, 0, "auto", "matrix products in fp32, bf16 or fp16 [cuda: bf16; cpu: fp32]"},
    {"--amp", "NAME", TEXT, AT(amp), 0, 0, "auto", "O0: all fp32; O1: products in 16 bits; O2: weights and gradients too [as --precision]"},
    {"--loss-scale", "X", TEXT, AT(loss_scale), 0, 0, "auto", "where the dynamic loss scale begins, none, or auto: 65536 with fp16 [auto]"},
    {"--loss-scale-growth", "N", WHOLE, AT(loss_scale_growth), 1, 1e9, "2000", "good steps in a row that double it [2000]"},
    {"--loss-scale-hysteresis", "N", WHOLE, AT(loss_scale_hysteresis), 1, 1e6, "1", "the overflow in a row that halves it, and each behind it [1]"},
    {"--recompute", "NAME", TEXT, AT(recompute), 0, 0, "none", "cuda: none, gelu, gelu+norm: less memory, more work [none]"},
    {"--head-early", "NAME", TEXT, AT(head_early), 0, 0, "auto", "cuda: sends the head's gradient ahead: yes, no; auto: where there are ranks [auto]"},
    {"--tuned", "DIR", TEXT, AT(tuned), 0, 0, NULL, "cuda: keeps the quickest matrix products there [DIR of --out]"},
    {"--threads", "N", WHOLE, AT(threads), 1, 1024, "1", "threads of this rank, cpu [1]"},
    {"--gemm", "NAME", TEXT, AT(gemm), 0, 0, "auto", "matrix products: auto, blas, own, dnnl, dnnl-bf16; split:N: own, with the sums of --tp N [auto]"},
    {"--check", "N", WHOLE, AT(check), 0, BIG, "10", "every N steps compare the replicas' weights, 0: never [10]"},
    {NULL, "Output", TEXT, 0, 0, 0, NULL, NULL},
    {"--out", "DIR", TEXT, AT(out), 0, 0, NULL, "keeps checkpoint/ and log.csv there, of one run [none are kept]"},
    {"--overwrite", NULL, SWITCH, AT(overwrite), 0, 0, NULL, "removes the run that --out holds, once this one can start"},
    {"--csv", "FILE", TEXT, AT(csv), 0, 0, NULL, "the log [DIR/log.csv]"},
    {"--log-jsonl", "FILE", TEXT, AT(log_jsonl), 0, 0, NULL, "the log as JSON, an object per line"},
    {"--peak", "X", REAL, AT(peak), 1e-6, 1e6, NULL, "TFLOP/s that a rank's device can do, for MFU in lines and logs [no MFU]"},
    {"--summary", "FILE", TEXT, AT(summary), 0, 0, NULL, "the run's figures as JSON, step by step"},
    {"--samples", "FILE", TEXT, AT(samples), 0, 0, NULL, "where each training sequence begins in the data, 64 bits each, in the order of the run"},
    {"--plan", NULL, SWITCH, AT(plan), 0, 0, NULL, "say what memory and bytes on the wire the run will take, and train nothing"},
    {"--plan-ranks", "N", WHOLE, AT(plan_ranks), 1, 1048576, NULL, "on so many ranks [this run's]"},
    {"--checkpoint-every", "N", WHOLE, AT(checkpoint_every), 0, BIG, "0", "steps; 0: only at the end [0]"},
    {"--resume", "DIR", TEXT, AT(resume), 0, 0, NULL, "a checkpoint's folder, or auto: the newest whole one in --out"},
    {"--export", "FILE", TEXT, AT(export), 0, 0, NULL, "at the end write llm.c's model file, or HF's .safetensors"},
    {"--export-type", "NAME", TEXT, AT(export_type), 0, 0, "fp32", "of its numbers: fp32, bf16 [fp32]"},
    {"--log-every", "N", WHOLE, AT(log_every), 1, BIG, NULL, "steps per progress line [preset]"},
    {"--eval-every", "N", WHOLE, AT(eval_every), 0, BIG, "0", "steps; 0: only at the end [0]"},
    {"--eval-batches", "N", WHOLE, AT(eval_batches), 1, BIG, "8", "validation batches of --batch sequences [8]"},
    {NULL, "Sample", TEXT, 0, 0, 0, NULL, NULL},
    {"--sample", "TEXT", TEXT, AT(sample), 0, 0, NULL, "continue this at the end; for .bin words with --tokenizer, else token numbers"},
    {"--sample-tokens", "N", WHOLE, AT(sample_tokens), 1, 1048576, "200", "how far [200]"},
    {"--temperature", "X", REAL, AT(temperature), 0, 100, "0.8", "0: always the likeliest [0.8]"},
    {"--top-k", "N", WHOLE, AT(top_k), 0, 16777216, "0", "choose among that many, 0: all [0]"},
    {NULL, "Instead of training", TEXT, 0, 0, 0, NULL, NULL},
    {"--help", NULL, SWITCH, AT(help), 0, 0, NULL, "this text"},
    {"--version", NULL, SWITCH, AT(version), 0, 0, NULL, "the version"},
};
/* clang-format on */
_Static_assert(sizeof(ROWS) / sizeof(ROWS[0]) <= GPT2_FLAGS_MAX, "rows of a table");

static const gpt2_flags_t FLAGS = {
    .rows = ROWS,
    .count = sizeof(ROWS) / sizeof(ROWS[0]),
    .usage = "usage: gpt2 --data FILE ... [options], alone or under dprun\n"
             "       gpt2 tokenize FILE ... --tokenizer DIR -o OUT.bin\n"
             "       gpt2 eval --init MODEL --tokenizer DIR --hellaswag FILE --lambada FILE\n"
             "Trains a GPT-2 on a text or on tokens; all ranks see one global batch.\n",
    .example = "example: dprun -np 2 gpt2 --preset quick --data kjv.txt --out run "
               "--sample \"And the LORD\"\n",
    .stray = "files to train on: --data FILE ...",
};

int gpt2_options_parse(int argc, char **argv, gpt2_options_t *options, gpt2_error_t *error)
{
    memset(options, 0, sizeof(*options));
    return gpt2_flags_parse(&FLAGS, argc, argv, options, options->repeated, error);
}

void gpt2_options_help(FILE *out)
{
    gpt2_flags_help(&FLAGS, out);
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

/* In the order of gpt2_shard_t. */
static const char *const SHARDS[] = {"none", "optimizer", "gradients", "weights", "hybrid"};
#define SHARD_COUNT (sizeof(SHARDS) / sizeof(SHARDS[0]))

gpt2_shard_t gpt2_options_shard(const gpt2_options_t *options)
{
    size_t i = 0;

    while (i + 1 < SHARD_COUNT && strcmp(options->shard, SHARDS[i]) != 0)
        i++;
    return (gpt2_shard_t)i;
}

static int check_shard(const gpt2_options_t *options, gpt2_error_t *error)
{
    const gpt2_strategy_ops_t *strategy;

    if (check_word("--shard", options->shard, SHARDS, SHARD_COUNT, error) != 0) return -1;
    if (gpt2_options_shard(options) == GPT2_SHARD_NONE) return 0;
    strategy = gpt2_strategy_find(options->strategy, error);
    if (strategy == NULL) return -1;
    if (strategy->can_shard && strcmp(options->compress, "none") == 0) return 0;
    if (strategy->can_shard) {
        return gpt2_fail(error,
                         "--shard %s: --compress %s needs all gradients and weights on every rank",
                         options->shard, options->compress);
    }
    return gpt2_fail(
        error, "--shard %s: --strategy %s cannot share the state out; coordinator and dps can",
        options->shard, strategy->name);
}

/* The optimizer, and flags that only LAMB has. */
static int check_optimizer(const gpt2_options_t *options, gpt2_error_t *error)
{
    static const char *const answers[] = {"yes", "no"};
    static const char *const excluded[] = {"1d", "none"};
    const gpt2_optimizer_kind_t *kind = gpt2_optimizer_find(options->optimizer, error);
    const char *flag = NULL;

    if (kind == NULL) return -1;
    if (check_word("--lamb-bias-correction", options->lamb_bias_correction, answers, 2, error) != 0)
        return -1;
    if (check_word("--lamb-exclude", options->lamb_exclude, excluded, 2, error) != 0) return -1;
    if (kind == &gpt2_optimizer_lamb) return 0;
    if (options->lamb_phi_max > 0.0) flag = "--lamb-phi-max";
    if (strcmp(options->lamb_bias_correction, "yes") != 0) flag = "--lamb-bias-correction";
    if (strcmp(options->lamb_exclude, "1d") != 0) flag = "--lamb-exclude";
    if (flag == NULL) return 0;
    return gpt2_fail(error, "%s needs --optimizer lamb, this is %s", flag, options->optimizer);
}

static int check_compress(const gpt2_options_t *options, gpt2_error_t *error)
{
    static const char *const methods[] = {"none", "topk", "powersgd"};
    static const char *const answers[] = {"no", "yes"};
    const int is_topk = strcmp(options->compress, "topk") == 0;

    if (check_word("--compress", options->compress, methods, 3, error) != 0) return -1;
    if (check_word("--compress-momentum", options->compress_momentum, answers, 2, error) != 0)
        return -1;
    if (!is_topk && strcmp(options->compress_momentum, "yes") == 0) {
        return gpt2_fail(error, "--compress-momentum yes needs --compress topk, this is %s",
                         options->compress);
    }
    if (!is_topk && options->compress_warmup > 0) {
        return gpt2_fail(error, "--compress-warmup %lld needs --compress topk, this is %s",
                         (long long)options->compress_warmup, options->compress);
    }
    return 0;
}

#define SPLIT "split:"

int gpt2_options_pieces(const gpt2_options_t *options)
{
    if (strncmp(options->gemm, SPLIT, strlen(SPLIT)) != 0) return 0;
    return (int)strtol(options->gemm + strlen(SPLIT), NULL, 10);
}

static int check_gemm(const gpt2_options_t *options, gpt2_error_t *error)
{
    static const char *const gemms[] = {"auto", "blas", "own", "dnnl", "dnnl-bf16", "split:2"};
    char *end;
    long pieces;

    if (strncmp(options->gemm, SPLIT, strlen(SPLIT)) != 0)
        return check_word("--gemm", options->gemm, gemms, 6, error);
    pieces = strtol(options->gemm + strlen(SPLIT), &end, 10);
    if (pieces >= 2 && pieces <= 1024 && *end == '\0') {
        if (strcmp(options->device, "cuda") != 0) return 0;
        return gpt2_fail(error, "--gemm %s needs --device cpu, this is cuda", options->gemm);
    }
    return gpt2_fail(error, "--gemm %s: not a number of pieces from 2 to 1024", options->gemm);
}

/* Options that copies which are divided cannot be combined with yet. */
static int check_staged(const gpt2_options_t *options, gpt2_error_t *error)
{
    const char *flag = options->tp > 0 && options->pp <= 0 ? "--tp" : "--pp";
    const gpt2_strategy_ops_t *strategy = gpt2_strategy_find(options->strategy, error);
    gpt2_precision_plan_t precision;
    const char *with = NULL;

    if (strategy == NULL || gpt2_options_precision(options, "cpu", &precision, error) != 0)
        return -1;
    if (!strategy->can_stage) {
        return gpt2_fail(error, "%s needs --strategy coordinator or dps, this is %s", flag,
                         strategy->name);
    }
    if (strcmp(options->shard, "none") != 0) with = "--shard";
    if (strcmp(options->compress, "none") != 0) with = "--compress";
    if (strcmp(options->optimizer, "adamw") != 0) with = "--optimizer lamb";
    if (precision.level == 2) with = "--amp O2";
    if (precision.scale.initial > 0.0) with = "a loss scale";
    if (strcmp(options->device, "cuda") == 0) with = "--device cuda";
    if (with == NULL) return 0;
    return gpt2_fail(error, "%s does not go with %s yet", flag, with);
}

int gpt2_options_mesh(const gpt2_options_t *options, const gpt2_shape_t *shape, int world, int rank,
                      gpt2_mesh_t *mesh, gpt2_error_t *error)
{
    static const char *const schedules[] = {"1f1b", "gpipe"};
    const int given[GPT2_AXES] = {
        [GPT2_AXIS_TENSOR] = options->tp > 0 ? (int)options->tp : 0,
        [GPT2_AXIS_DATA] = options->dp > 0 ? (int)options->dp : 0,
        [GPT2_AXIS_PIPELINE] = options->pp > 0 ? (int)options->pp : 0,
    };
    const int pieces = gpt2_options_pieces(options);

    if (check_word("--schedule", options->schedule, schedules, 2, error) != 0) return -1;
    if (gpt2_mesh_make(given, world, rank, mesh, error) != 0) return -1;
    if (gpt2_parts_check(shape, "--tp ", mesh->size[GPT2_AXIS_TENSOR], error) != 0) return -1;
    if (gpt2_parts_check(shape, "--gemm " SPLIT, pieces, error) != 0) return -1;
    if (pieces > 0 && mesh->size[GPT2_AXIS_TENSOR] > 1)
        return gpt2_fail(error, "--gemm %s takes the place of --tp", options->gemm);
    mesh->micros = (int)options->accumulate;
    mesh->schedule =
        strcmp(options->schedule, "gpipe") == 0 ? GPT2_SCHEDULE_GPIPE : GPT2_SCHEDULE_1F1B;
    if (!mesh->is_staged && options->stages != NULL)
        return gpt2_fail(error, "--stages %s needs --pp", options->stages);
    if (gpt2_stages_cut(shape, (int)options->seq, mesh->size[GPT2_AXIS_PIPELINE], options->stages,
                        &mesh->stages, error) != 0) {
        return -1;
    }
    return mesh->is_staged ? check_staged(options, error) : 0;
}

int gpt2_options_precision(const gpt2_options_t *options, const char *device,
                           gpt2_precision_plan_t *plan, gpt2_error_t *error)
{
    const gpt2_precision_words_t words = {.precision = options->precision,
                                          .level = options->amp,
                                          .loss_scale = options->loss_scale,
                                          .growth = (int)options->loss_scale_growth,
                                          .hysteresis = (int)options->loss_scale_hysteresis};

    return gpt2_precision_choose(&words, device, plan, error);
}

const char *gpt2_options_wire(const gpt2_options_t *options, const gpt2_precision_plan_t *plan)
{
    if (plan->level < 2 || strcmp(options->wire, "default") != 0) return options->wire;
    return gpt2_precision_name(plan->precision);
}

/* Refuses what mixed precision excludes. A device of "auto" may turn out to be a GPU, which refuses
 * more. */
static int check_precision(const gpt2_options_t *options, gpt2_error_t *error)
{
    const char *device = strcmp(options->device, "cuda") == 0 ? "cuda" : "cpu";
    gpt2_precision_plan_t plan;

    if (gpt2_options_precision(options, device, &plan, error) != 0) return -1;
    if (plan.precision == GPT2_FP16 && strcmp(options->gemm, "dnnl-bf16") == 0) {
        return gpt2_fail(error, "--gemm dnnl-bf16 multiplies bf16, but --precision is fp16");
    }
    return 0;
}

gpt2_optimizer_settings_t gpt2_options_optimizer(const gpt2_options_t *options)
{
    gpt2_error_t ignored; /* the name was found before */
    const gpt2_optimizer_kind_t *kind = gpt2_optimizer_find(options->optimizer, &ignored);

    return (gpt2_optimizer_settings_t){
        .learning_rate = options->lr,
        .final_rate = options->final_lr,
        .warmup = (uint64_t)options->warmup,
        .steps = (uint64_t)options->steps,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .epsilon = kind->epsilon,
        .decay = options->decay,
        .kind = kind,
        .phi_max = options->lamb_phi_max,
        .without_correction = strcmp(options->lamb_bias_correction, "no") == 0,
        .adapts_all = strcmp(options->lamb_exclude, "none") == 0,
    };
}

gpt2_compress_settings_t gpt2_options_compress(const gpt2_options_t *options)
{
    return (gpt2_compress_settings_t){
        .method = options->compress,
        .rate = options->compress_rate,
        .rank = (int)options->compress_rank,
        .start = (uint64_t)options->compress_start,
        .warmup = (uint64_t)options->compress_warmup,
        .momentum = strcmp(options->compress_momentum, "yes") == 0,
        .momentum_factor = options->beta1,
        .seed = (uint64_t)options->seed,
    };
}

int gpt2_options_complete(gpt2_options_t *options, int is_text, gpt2_shape_t *shape,
                          gpt2_error_t *error)
{
    static const char *const wires[] = {"default", "none", "fp16", "bf16"};
    static const char *const exports[] = {"bf16", "fp32"};
    static const char *const recomputes[] = {"none", "gelu", "gelu+norm"};
    static const char *const earlies[] = {"auto", "yes", "no"};

    if (gpt2_shape_preset(options->preset, shape, error) != 0) return -1;
    if (options->seed < 0) options->seed_is_default = 1;
    if (options->seed < 0) options->seed = 1;
    if (check_word("--wire", options->wire, wires, 4, error) != 0) return -1;
    if (check_gemm(options, error) != 0) return -1;
    if (check_word("--export-type", options->export_type, exports, 2, error) != 0) return -1;
    if (check_word("--recompute", options->recompute, recomputes, 3, error) != 0) return -1;
    if (check_word("--head-early", options->head_early, earlies, 3, error) != 0) return -1;
    if (check_shard(options, error) != 0) return -1;
    if (check_optimizer(options, error) != 0) return -1;
    if (check_compress(options, error) != 0) return -1;
    if (check_precision(options, error) != 0) return -1;
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
    if (options->overwrite && options->out == NULL) {
        return gpt2_fail(error, "--overwrite removes the run that --out holds, which is missing");
    }
    if (options->overwrite && options->resume != NULL && strcmp(options->resume, "auto") == 0) {
        return gpt2_fail(error, "--overwrite removes the run that --resume auto goes on with");
    }
    return gpt2_shape_check(shape, error);
}
