/*
 * run.c - the training loop: when to log, validate, compare, save and stop.
 *
 * main() calls gpt2_run() on every rank. All ranks take the same decisions from the same options
 * and step numbers, because validating and comparing are collective. Only rank 0 prints and saves.
 */
#include "examples/gpt2/train/run.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "examples/gpt2/data/llmc.h"
#include "examples/gpt2/train/out_folder.h"
#include "examples/gpt2/train/report.h"
#include "examples/gpt2/train/sample.h"
#include "examples/gpt2/train/summary.h"
#include "examples/gpt2/data/safetensors.h"

/* In a row, where no smaller loss scale helps. */
#define SKIPS_WARNED 10
#define SKIPS_MAX 50 /* then the run has diverged */

static int is_due(uint64_t step, int64_t every)
{
    return every > 0 && step % (uint64_t)every == 0;
}

/* Where rank 0 cannot write it, that is reported and the run goes on: the older checkpoints are
 * still there. A rank that could not take part ends the run, as others wait for it. */
static int save_checkpoint(gpt2_trainer_t *trainer, gpt2_report_t *report, int *save_failed,
                           gpt2_error_t *error)
{
    int is_saved;

    if (trainer->options->out == NULL) return 0;
    trainer->strategy->ops->span_begin(trainer->strategy, "checkpoint", NULL);
    if (gpt2_trainer_save(trainer, &is_saved, error) != 0) return -1;
    trainer->strategy->ops->span_end(trainer->strategy, NULL);
    if (report == NULL) return 0;
    *save_failed = !is_saved;
    if (*save_failed) {
        gpt2_report_warn(report, error->text);
    } else {
        gpt2_report_saved(report);
    }
    return 0;
}

static int compare_ranks(gpt2_trainer_t *trainer, gpt2_report_t *report, gpt2_error_t *error)
{
    int same;

    if (gpt2_trainer_compare(trainer, &same, error) != 0) return -1;
    if (!same) {
        return gpt2_fail(error, "step %llu: the replicas' weights differ",
                         (unsigned long long)trainer->progress.step);
    }
    gpt2_report_compared(report);
    return 0;
}

static void warn_skips(const gpt2_trainer_t *trainer, gpt2_report_t *report)
{
    char text[96];

    (void)snprintf(text, sizeof(text), "step %llu: %d steps in a row overflowed at loss scale 1",
                   (unsigned long long)trainer->progress.step, trainer->skips);
    gpt2_report_warn(report, text);
}

static int loop(gpt2_trainer_t *trainer, gpt2_report_t *report, gpt2_summary_t *summary,
                double *validation, int *save_failed, gpt2_error_t *error)
{
    const gpt2_options_t *options = trainer->options;
    uint64_t last = (uint64_t)options->steps;

    while (trainer->progress.step < last) {
        gpt2_step_t step;
        double loss = (double)NAN;
        uint64_t done;
        int evaluate;

        if (gpt2_trainer_step(trainer, &step, error) != 0) return -1;
        done = trainer->progress.step;
        if (trainer->skips == SKIPS_WARNED) warn_skips(trainer, report);
        if (trainer->skips >= SKIPS_MAX) {
            return gpt2_fail(error, "step %llu: %d steps in a row overflowed",
                             (unsigned long long)done, trainer->skips);
        }
        evaluate = is_due(done, options->eval_every) || done == last;
        if (evaluate && gpt2_trainer_validate(trainer, validation, error) != 0) return -1;
        if (evaluate || is_due(done, options->log_every)) {
            if (gpt2_trainer_mean(trainer, &step, &loss, error) != 0) return -1;
            gpt2_report_step(report, &step, loss, evaluate ? *validation : -1.0);
        }
        if (gpt2_summary_step(summary, &step, loss, evaluate ? *validation : -1.0, error) != 0)
            return -1;
        if (trainer->strategy->size > 1 && (is_due(done, options->check) || done == last) &&
            options->check > 0 && compare_ranks(trainer, report, error) != 0) {
            return -1;
        }
        if ((is_due(done, options->checkpoint_every) || done == last) &&
            save_checkpoint(trainer, report, save_failed, error) != 0) {
            return -1;
        }
    }
    return 0;
}

#define OUTPUTS 5 /* flags that name a result */

/* A file that a user named, and by which flag. */
typedef struct named {
    const char *flag;
    const char *path;
} named_t;

/* The results of a run. files [OUTPUTS + 1]; returns how many there are. */
static size_t list_outputs(const gpt2_options_t *options, named_t *files)
{
    const named_t all[] = {{"csv", options->csv},
                           {"log-jsonl", options->log_jsonl},
                           {"summary", options->summary},
                           {"samples", options->samples},
                           {"export", options->export}};
    size_t count = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].path != NULL) files[count++] = all[i];
    return count;
}

/* No result may replace --init's file, or another result. */
static int check_outputs(const gpt2_options_t *options, gpt2_error_t *error)
{
    named_t files[OUTPUTS + 1];
    size_t count = list_outputs(options, files);
    const size_t outputs = count;

    if (options->init != NULL) files[count++] = (named_t){"init", options->init};
    for (size_t i = 0; i < outputs; i++) {
        for (size_t j = i + 1; j < count; j++) {
            if (!gpt2_file_is_same(files[i].path, files[j].path)) continue;
            return gpt2_fail(error, "--%s %s is the file of --%s", files[i].flag, files[i].path,
                             files[j].flag);
        }
    }
    return 0;
}

/* Nor a file of the data. */
static int check_data_kept(const gpt2_trainer_t *trainer, gpt2_error_t *error)
{
    const gpt2_corpus_t *corpus = &trainer->corpus;
    named_t files[OUTPUTS + 1];
    const size_t count = list_outputs(trainer->options, files);

    for (size_t i = 0; i < count; i++) {
        if (!gpt2_data_has(corpus->data, files[i].path) &&
            (corpus->val_data == NULL || !gpt2_data_has(corpus->val_data, files[i].path)))
            continue;
        return gpt2_fail(error, "--%s %s is a file of the data", files[i].flag, files[i].path);
    }
    return 0;
}

/* Uses the trained weights on rank 0; the others help to bring them together. */
static int use_weights(gpt2_trainer_t *trainer, gpt2_report_t *report, gpt2_error_t *error)
{
    const gpt2_options_t *options = trainer->options;
    const gpt2_model_t *model;
    int code = 0;

    if (options->sample == NULL && options->export == NULL) return 0;
    if (gpt2_trainer_borrow(trainer, &model, error) != 0) return -1;
    if (model != NULL && options->sample != NULL) {
        code = gpt2_report_sample(report, model, error);
    }
    if (code == 0 && model != NULL && options->export != NULL) {
        const int as_bf16 = strcmp(options->export_type, "bf16") == 0;

        code = gpt2_safetensors_is(options->export)
                   ? gpt2_safetensors_save(options->export, model, as_bf16, error)
                   : gpt2_llmc_save(options->export, model, as_bf16, error);
    }
    if (gpt2_trainer_give_back(trainer, code == 0 ? error : NULL) != 0) return -1;
    return code;
}

static int finish_run(gpt2_trainer_t *trainer, gpt2_report_t *report, double validation,
                      gpt2_error_t *error)
{
    gpt2_waits_t waits;

    if (use_weights(trainer, report, error) != 0) return -1;
    if (gpt2_trainer_waits(trainer, &waits, error) != 0) return -1;
    return gpt2_report_end(report, validation, &waits, error);
}

/* Lines of text (NULL: none), each a warning. */
static void say_notes(const char *text)
{
    while (text != NULL && *text != '\0') {
        const int length = (int)strcspn(text, "\n");

        (void)fprintf(stderr, "gpt2: warning: %.*s\n", length, text);
        text += length + (text[length] == '\n' ? 1 : 0);
    }
}

/* The shape that a run without --init or --resume would have. Without data the preset says
 * whether it would be a text. */
static int plan_layout(gpt2_options_t *options, gpt2_layout_t **layout, gpt2_error_t *error)
{
    static const char *const texts[] = {"tiny", "quick", "small"};
    gpt2_vocabulary_t *vocabulary = NULL;
    gpt2_corpus_t corpus;
    gpt2_shape_t shape;
    int is_text = 0;
    int code = 0;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        is_text = is_text || strcmp(options->preset, texts[i]) == 0;
    if (options->data.count > 0) {
        code = gpt2_corpus_open(&options->data, &options->val, options->raw_tokens, &corpus, error);
        if (code == 0) is_text = gpt2_data_is_text(corpus.data);
        gpt2_corpus_close(&corpus);
    }
    if (code == 0)
        code = gpt2_tokenizer_open(options, options->data.count > 0 && is_text, &vocabulary, error);
    gpt2_vocabulary_close(vocabulary);
    if (code == 0) code = gpt2_options_complete(options, is_text, &shape, error);
    return code == 0 ? gpt2_layout_create(&shape, layout, error) : -1;
}

/* --samples: where every training sequence of the run begins, in its order. */
static int write_samples(const gpt2_options_t *options, const gpt2_view_t *training, uint64_t seed,
                         gpt2_error_t *error)
{
    const uint64_t count = (uint64_t)(options->steps * options->batch);
    gpt2_output_t output;
    int code = 0;

    if (gpt2_output_open(&output, options->samples, error) != 0) return -1;
    for (uint64_t i = 0; i < count && code == 0; i++) {
        const uint64_t at = gpt2_view_position(training, seed, (int)options->seq, i);

        code = gpt2_file_write(output.file, options->samples, &at, sizeof(at), error);
    }
    return gpt2_output_close(&output, code, error);
}

/* The same for --plan, which has no trainer. */
static int plan_samples(const gpt2_options_t *options, gpt2_error_t *error)
{
    gpt2_corpus_t corpus;
    int code;

    if (options->data.count == 0) return gpt2_fail(error, "--samples needs --data");
    code = gpt2_corpus_open(&options->data, &options->val, options->raw_tokens, &corpus, error);
    if (code == 0)
        code = gpt2_view_check(&corpus.training, "the training part", (int)options->seq, error);
    if (code == 0) code = write_samples(options, &corpus.training, (uint64_t)options->seed, error);
    gpt2_corpus_close(&corpus);
    return code;
}

/* --plan: rank 0 says what the run would take. */
static int print_plan(const gpt2_options_t *options, gpt2_strategy_t *strategy, gpt2_error_t *error)
{
    const int ranks = options->plan_ranks > 0 ? (int)options->plan_ranks : strategy->size;
    /* Ranks that are only thought of are on one node. */
    const gpt2_plan_place_t place = {.ranks = ranks,
                                     .node = options->plan_ranks > 0 ? ranks : strategy->node_size,
                                     .sees_rows = gpt2_strategy_sees_rows(strategy),
                                     .library = gpt2_strategy_library(strategy)};
    gpt2_options_t completed = *options;
    gpt2_layout_t *layout = NULL;
    gpt2_plan_t plan;
    int code;

    if (strategy->rank != 0) return 0;
    if (plan_layout(&completed, &layout, error) != 0) return -1;
    code = gpt2_plan_options(&completed, layout, &place, &plan, error);
    if (code == 0) gpt2_plan_print(&plan, &completed, layout, ranks, stdout);
    if (code == 0) code = gpt2_plan_print_stages(&completed, layout, &place, stdout, error);
    if (code == 0 && options->summary != NULL)
        code = gpt2_summary_write_plan(options->summary, &completed, layout, ranks, &plan, error);
    if (code == 0 && options->samples != NULL) code = plan_samples(&completed, error);
    gpt2_layout_destroy(layout);
    return code;
}

int gpt2_run(const gpt2_options_t *options, gpt2_strategy_t *strategy, gpt2_error_t *error)
{
    const gpt2_usage_t before = gpt2_usage_now();
    gpt2_trainer_t *trainer = NULL;
    gpt2_report_t *report = NULL;
    gpt2_summary_t *summary = NULL;
    double validation = -1.0;
    int save_failed = 0;
    int lock = -1;
    int code = 0;

    if (strategy->rank == 0) say_notes(options->repeated);
    if (strategy->rank == 0) code = check_outputs(options, error);
    if (code == 0 && options->plan) return print_plan(options, strategy, error);
    if (code == 0 && strategy->rank == 0 && options->out != NULL)
        code = gpt2_out_folder_open(options, &lock, error);
    if (code == 0) code = gpt2_trainer_create(options, strategy, &trainer, error);
    if (code == 0 && strategy->rank == 0) code = check_data_kept(trainer, error);
    if (code == 0 && strategy->rank == 0) code = gpt2_out_folder_clear(options, error);
    if (code == 0 && strategy->rank == 0) code = gpt2_report_create(trainer, &report, error);
    if (code == 0 && strategy->rank == 0) say_notes(trainer->notes);
    if (code == 0 && strategy->rank == 0 && options->samples != NULL) {
        code = write_samples(trainer->options, &trainer->corpus.training, trainer->progress.seed,
                             error);
    }
    if (code == 0 && options->summary != NULL)
        code = gpt2_summary_create(trainer, &before, &summary, error);
    if (code == 0) code = loop(trainer, report, summary, &validation, &save_failed, error);
    if (code == 0 && validation < 0.0) code = gpt2_trainer_validate(trainer, &validation, error);
    if (code == 0) code = gpt2_summary_end(summary, validation, error);
    if (code == 0) code = finish_run(trainer, report, validation, error);
    if (code == 0 && save_failed) code = gpt2_fail(error, "the last checkpoint was not saved");
    if (code != 0 && strategy->size > 1) strategy->ops->abort(strategy, error->text);
    gpt2_summary_destroy(summary);
    gpt2_report_destroy(report);
    gpt2_trainer_destroy(trainer);
    if (lock >= 0) (void)close(lock);
    return code;
}
