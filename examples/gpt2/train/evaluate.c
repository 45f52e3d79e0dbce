/*
 * evaluate.c - how well a model answers the questions of HellaSwag and LAMBADA.
 *
 * Every rank has the whole model on its CPU and takes each size-th example, in turn; at the end the
 * ranks add up what they found. Called by main(), main thread.
 */
#include "examples/gpt2/train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/clock.h"
#include "examples/gpt2/data/llmc.h"
#include "examples/gpt2/data/safetensors.h"
#include "examples/gpt2/strategy/strategy.h"
#include "examples/gpt2/tokens/examples.h"

#define EXIT_USAGE 2
#define PROGRESS_SECONDS 5.0

typedef struct settings {
    char *init;
    gpt2_words_t tokenizer;
    char *hellaswag;
    char *lambada;
    int64_t limit;
    int64_t threads;
    char *strategy;
    int help;
} settings_t;

#define AT(field) offsetof(settings_t, field)

/* clang-format off */
static const gpt2_flag_t ROWS[] = {
    {NULL, "Options", GPT2_FLAG_TEXT, 0, 0, 0, NULL, NULL},
    {"--init", "FILE", GPT2_FLAG_TEXT, AT(init), 0, 0, NULL, "the model: llm.c's file, or HF's .safetensors"},
    {"--tokenizer", "DIR", GPT2_FLAG_WORDS, AT(tokenizer), 0, 0, NULL, "vocab.json and merges.txt, or encoder.json and vocab.bpe: their folder, or both"},
    {"--hellaswag", "FILE", GPT2_FLAG_TEXT, AT(hellaswag), 0, 0, NULL, "hellaswag_val.jsonl: how often the likeliest ending is the right one"},
    {"--lambada", "FILE", GPT2_FLAG_TEXT, AT(lambada), 0, 0, NULL, "lambada_test.jsonl: how often the last word is found, and its perplexity"},
    {"--limit", "N", GPT2_FLAG_WHOLE, AT(limit), 1, 1e9, NULL, "the first N examples of each [all]"},
    {"--threads", "N", GPT2_FLAG_WHOLE, AT(threads), 1, 1024, "1", "threads of this rank [1]"},
    {"--strategy", "NAME", GPT2_FLAG_TEXT, AT(strategy), 0, 0, NULL, "single: this process alone, without libdp [as gpt2]"},
    {"--help", NULL, GPT2_FLAG_SWITCH, AT(help), 0, 0, NULL, "this text"},
};
/* clang-format on */

static const gpt2_flags_t FLAGS = {
    .rows = ROWS,
    .count = sizeof(ROWS) / sizeof(ROWS[0]),
    .usage = "usage: gpt2 eval --init MODEL --tokenizer DIR [--hellaswag FILE] [--lambada FILE]\n"
             "Asks a model the questions of HellaSwag and LAMBADA, on CPUs; ranks share them.\n",
    .example = "example: dprun -np 2 gpt2 eval --init model.safetensors --tokenizer gpt2 "
               "--hellaswag hellaswag_val.jsonl\n",
    .stray = "the model: --init FILE",
};

/* Figures that ranks add up. */
typedef struct tally {
    double examples;
    double right;      /* by the sum of a choice's losses; LAMBADA: every token was the likeliest */
    double right_mean; /* by the mean, as llm.c's HellaSwag is counted */
    double loss;       /* of the right choices, in nats */
} tally_t;
#define TALLY_COUNT (sizeof(tally_t) / sizeof(double))

typedef struct job {
    const settings_t *settings;
    gpt2_strategy_t *strategy;
    gpt2_vocabulary_t *vocabulary;
    gpt2_encoder_t *encoder;
    gpt2_model_t *model;
    int32_t *targets; /* [context]; passes want some */
    float *logits;    /* [context][vocab] */
} job_t;

static int open_model(job_t *self, gpt2_error_t *error)
{
    const char *path = self->settings->init;
    const int is_safetensors = gpt2_safetensors_is(path);
    gpt2_model_options_t options = {.batch = 1, .threads = (int)self->settings->threads};
    gpt2_shape_t *shape = &options.shape;
    const size_t count = gpt2_vocabulary_count(self->vocabulary);

    if ((is_safetensors ? gpt2_safetensors_inspect(path, shape, error)
                        : gpt2_llmc_inspect(path, shape, error)) != 0) {
        return -1;
    }
    if (count > (size_t)shape->vocab) {
        return gpt2_fail(error, "%s has a vocabulary of %d, but --tokenizer %s has %zu tokens",
                         path, shape->vocab, self->settings->tokenizer.list[0], count);
    }
    options.length = shape->context;
    if (gpt2_model_create(&options, &self->model, error) != 0) return -1;
    self->targets = calloc((size_t)shape->context, sizeof(*self->targets));
    self->logits = malloc((size_t)shape->context * (size_t)shape->vocab * sizeof(*self->logits));
    if (self->targets == NULL || self->logits == NULL)
        return gpt2_fail(error, "out of memory for the logits of %d tokens", shape->context);
    return is_safetensors ? gpt2_safetensors_load(path, self->model, error)
                          : gpt2_llmc_load(path, self->model, error);
}

/* The loss of one token, in nats. *is_best: none is likelier. */
static double token_loss(const float *logits, size_t vocab, int32_t token, int *is_best)
{
    float most = logits[0];
    double sum = 0.0;

    for (size_t i = 1; i < vocab; i++)
        most = logits[i] > most ? logits[i] : most;
    for (size_t i = 0; i < vocab; i++)
        sum += exp((double)(logits[i] - most));
    *is_best = logits[token] >= most;
    return log(sum) - (double)(logits[token] - most);
}

/* *loss = the sum over the tokens that are asked for. A context too long for the model loses its
 * beginning. */
static int score_choice(job_t *self, const gpt2_choice_t *choice, double *loss, int *is_best,
                        gpt2_error_t *error)
{
    const gpt2_shape_t *shape = &self->model->layout->shape;
    const size_t room = (size_t)shape->context;
    const size_t given = choice->tokens.count - 1; /* the last one is only asked for */
    const size_t start = given > room ? given - room : 0;
    const gpt2_batch_t batch = {choice->tokens.list + start, self->targets, 1,
                                (int)(given - start)};

    if (choice->from <= start) {
        return gpt2_fail(error, "an ending of %zu tokens does not fit the model's %d positions",
                         choice->tokens.count - choice->from, shape->context);
    }
    gpt2_model_forward(self->model, &batch, NULL);
    gpt2_model_logits(self->model, &batch, self->logits);
    *loss = 0.0;
    *is_best = 1;
    for (size_t i = choice->from; i < choice->tokens.count; i++) {
        int is_likeliest;

        *loss += token_loss(self->logits + (i - 1 - start) * (size_t)shape->vocab,
                            (size_t)shape->vocab, choice->tokens.list[i], &is_likeliest);
        *is_best &= is_likeliest;
    }
    return 0;
}

static int score_example(job_t *self, const gpt2_example_t *example, tally_t *tally,
                         gpt2_error_t *error)
{
    double least[2] = {HUGE_VAL, HUGE_VAL}; /* sum, mean */
    size_t chosen[2] = {0, 0};

    for (size_t i = 0; i < example->count; i++) {
        const gpt2_choice_t *choice = &example->choices[i];
        const double asked = (double)(choice->tokens.count - choice->from);
        double loss = 0.0;
        int is_best = 0;

        if (score_choice(self, choice, &loss, &is_best, error) != 0) return -1;
        if (loss < least[0]) chosen[0] = i;
        if (loss / asked < least[1]) chosen[1] = i;
        least[0] = fmin(least[0], loss);
        least[1] = fmin(least[1], loss / asked);
        if (i == example->label) tally->loss += loss;
        /* LAMBADA has one choice and asks whether the model would have made it. */
        if (example->count == 1 && !is_best) chosen[0] = chosen[1] = 1;
    }
    tally->examples += 1.0;
    tally->right += chosen[0] == example->label ? 1.0 : 0.0;
    tally->right_mean += chosen[1] == example->label ? 1.0 : 0.0;
    return 0;
}

static int score_file(job_t *self, const char *path, gpt2_suite_t suite, tally_t *tally,
                      gpt2_error_t *error)
{
    const uint64_t size = (uint64_t)self->strategy->size;
    const int64_t limit = self->settings->limit;
    double shown = gpt2_now();
    gpt2_examples_t *examples;
    const gpt2_example_t *example;
    int code = 0;

    if (gpt2_examples_open(path, suite, self->encoder, &examples, error) != 0) return -1;
    for (uint64_t i = 0; limit < 0 || i < (uint64_t)limit; i++) {
        code = gpt2_examples_next(examples, &example, error);
        if (code != 0 || example == NULL) break;
        if (i % size != (uint64_t)self->strategy->rank) continue;
        code = score_example(self, example, tally, error);
        if (code != 0) break;
        if (self->strategy->rank == 0 && gpt2_now() - shown > PROGRESS_SECONDS) {
            shown = gpt2_now();
            (void)fprintf(stderr, "gpt2: %s: %llu examples\n", path, (unsigned long long)i + 1);
        }
    }
    gpt2_examples_close(examples);
    return code;
}

/* One suite on all ranks. */
static int run_suite(job_t *self, const char *path, gpt2_suite_t suite, gpt2_error_t *error)
{
    tally_t tally = {0.0, 0.0, 0.0, 0.0};
    double sums[TALLY_COUNT];
    const double start = gpt2_now();

    if (path == NULL) return 0;
    if (score_file(self, path, suite, &tally, error) != 0) return -1;
    memcpy(sums, &tally, sizeof(sums));
    if (self->strategy->ops->sum(self->strategy, sums, TALLY_COUNT, error) != 0) return -1;
    memcpy(&tally, sums, sizeof(sums));
    if (tally.examples == 0.0) return gpt2_fail(error, "%s: no example in it", path);
    if (self->strategy->rank != 0) return 0;
    if (suite == GPT2_HELLASWAG) {
        (void)printf("hellaswag  acc_norm %.4f  acc %.4f  loss %.4f",
                     tally.right_mean / tally.examples, tally.right / tally.examples,
                     tally.loss / tally.examples);
    } else {
        (void)printf("lambada  acc %.4f  perplexity %.4f", tally.right / tally.examples,
                     exp(tally.loss / tally.examples));
    }
    (void)printf("  of %.0f examples in %.1f s\n", tally.examples, gpt2_now() - start);
    return 0;
}

static int run_job(job_t *self, gpt2_error_t *error)
{
    const settings_t *settings = self->settings;

    if (gpt2_vocabulary_open(&settings->tokenizer, &self->vocabulary, error) != 0) return -1;
    if (gpt2_encoder_create(self->vocabulary, &self->encoder, error) != 0) return -1;
    if (open_model(self, error) != 0) return -1;
    if (run_suite(self, settings->hellaswag, GPT2_HELLASWAG, error) != 0) return -1;
    return run_suite(self, settings->lambada, GPT2_LAMBADA, error);
}

static int check_settings(const settings_t *settings, gpt2_error_t *error)
{
    if (settings->init == NULL) return gpt2_fail(error, "--init is missing: the model's file");
    if (settings->tokenizer.count == 0) {
        return gpt2_fail(error, "--tokenizer is missing: the folder of GPT-2's vocab.json and "
                                "merges.txt");
    }
    if (settings->hellaswag != NULL || settings->lambada != NULL) return 0;
    return gpt2_fail(error, "nothing to ask: --hellaswag FILE, --lambada FILE");
}

int gpt2_evaluate(int argc, char **argv)
{
    gpt2_error_t error = {""};
    char repeated[GPT2_REPEATED_MAX];
    settings_t settings = {.init = NULL};
    job_t job = {.settings = &settings};
    const gpt2_strategy_ops_t *ops = NULL;
    int code;

    if (gpt2_flags_parse(&FLAGS, argc, argv, &settings, repeated, &error) != 0 ||
        (!settings.help && (check_settings(&settings, &error) != 0 ||
                            (ops = gpt2_strategy_find(settings.strategy, &error)) == NULL))) {
        (void)fprintf(stderr, "gpt2 eval: %s\n", error.text);
        return EXIT_USAGE;
    }
    if (settings.help) {
        gpt2_flags_help(&FLAGS, stdout);
        return 0;
    }
    if (ops->create(&job.strategy, &error) != 0) {
        (void)fprintf(stderr, "gpt2 eval: %s\n", error.text);
        return 1;
    }
    code = run_job(&job, &error);
    if (code != 0)
        (void)fprintf(stderr, "gpt2 eval: rank %d: %s\n", job.strategy->rank, error.text);
    if (code != 0 && job.strategy->size > 1) ops->abort(job.strategy, error.text);
    gpt2_model_destroy(job.model);
    gpt2_encoder_destroy(job.encoder);
    gpt2_vocabulary_close(job.vocabulary);
    free(job.targets);
    free(job.logits);
    if (ops->destroy(job.strategy, &error) != 0 && code == 0) {
        (void)fprintf(stderr, "gpt2 eval: %s\n", error.text);
        code = -1;
    }
    return code == 0 ? 0 : 1;
}
