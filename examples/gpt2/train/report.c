/*
 * report.c - formats for people and for the log file. Rank 0's main thread only.
 */
#include "examples/gpt2/train/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/files.h"
#include "examples/gpt2/train/log.h"
#include "examples/gpt2/train/sample.h"

#define LOGS 2

struct gpt2_report {
    const gpt2_trainer_t *trainer; /* borrowed */
    gpt2_log_t *logs[LOGS];        /* by gpt2_log_kind_t; NULL: none */
    double unigram;                /* of the training text; 0 for tokens */
    double bigram;
    double start;     /* of the run in this process */
    double last_time; /* of the previous progress line */
    uint64_t last_step;
    gpt2_phases_t last_phases;
    uint64_t compared;
    uint64_t saved;       /* step of the newest checkpoint; 0: none */
    gpt2_tokens_t prompt; /* of --sample */
};

/* log.csv of --out unless --csv names another, and --log-jsonl. A resumed run goes on in the log it
 * finds. */
static int open_logs(gpt2_report_t *self, gpt2_error_t *error)
{
    const gpt2_options_t *options = self->trainer->options;
    const int is_resumed = self->trainer->resumed_from[0] != '\0';
    const char *paths[LOGS] = {options->csv, options->log_jsonl};
    char csv[GPT2_PATH_MAX];

    if (options->out != NULL && gpt2_make_folders(options->out, error) != 0) return -1;
    if (options->csv == NULL && options->out != NULL) {
        if (gpt2_path_join(csv, options->out, "log.csv", error) != 0) return -1;
        paths[GPT2_LOG_CSV] = csv;
    }
    for (int i = 0; i < LOGS; i++) {
        if (paths[i] != NULL &&
            gpt2_log_open(paths[i], (gpt2_log_kind_t)i, is_resumed, self->trainer->first_step,
                          &self->logs[i], error) != 0) {
            return -1;
        }
    }
    return 0;
}

/* A stored shape wins over the preset's; 1: a preset was named, and that has another one. */
static int is_other_shape(const gpt2_options_t *options, const gpt2_shape_t *stored)
{
    gpt2_shape_t asked;
    gpt2_error_t ignored;

    if (strcmp(options->preset, "tiny") == 0) return 0; /* the default, which nobody has to name */
    if (gpt2_shape_preset(options->preset, &asked, &ignored) != 0) return 0;
    return asked.layers != stored->layers || asked.heads != stored->heads ||
           asked.width != stored->width || asked.context != stored->context;
}

/* Floating-point operations that training on one token takes, as llm.c counts them: 6 for each
 * weight, and in attention 6 for each channel of each earlier position, of which a token has half a
 * sequence in the mean, twice (scores, and the sum of values). */
static double token_operations(const gpt2_trainer_t *trainer)
{
    const gpt2_layout_t *layout = trainer->replica->layout;

    return 6.0 * (double)layout->parameter_count +
           6.0 * layout->shape.layers * layout->shape.width * (double)trainer->options->seq;
}

static void print_head(gpt2_report_t *self)
{
    const gpt2_trainer_t *trainer = self->trainer;
    const gpt2_options_t *options = trainer->options;
    const gpt2_replica_t *replica = trainer->replica;
    const gpt2_shape_t *shape = &replica->layout->shape;
    const gpt2_corpus_t *corpus = &trainer->corpus;
    double parameters = (double)replica->layout->parameter_count;
    char device[160];
    char files[GPT2_PATH_MAX + 64];

    replica->ops->describe(replica, device, sizeof(device));
    (void)printf(
        "model   %.*f%s parameters: %d layers, width %d, %d heads, context %d, vocabulary %d\n", 1,
        parameters >= 1e6 ? parameters / 1e6 : parameters / 1e3, parameters >= 1e6 ? "M" : "k",
        shape->layers, shape->width, shape->heads, shape->context, shape->vocab);
    (void)printf("batch   %lld sequences of %lld tokens over %d rank%s (%s), %s\n",
                 (long long)options->batch, (long long)options->seq, trainer->strategy->size,
                 trainer->strategy->size == 1 ? "" : "s", trainer->strategy->ops->name, device);
    if (trainer->strategy->ops->describe != NULL) {
        char text[200];

        trainer->strategy->ops->describe(trainer->strategy, text, sizeof(text));
        if (text[0] != '\0') (void)printf("wire    %s\n", text);
    }
    if (replica->ops->print_plan != NULL) replica->ops->print_plan(replica, stdout);
    if (gpt2_data_files(corpus->data) > 1) {
        (void)snprintf(files, sizeof(files), "%zu files from %s on", gpt2_data_files(corpus->data),
                       gpt2_data_name(corpus->data));
    } else {
        (void)snprintf(files, sizeof(files), "%s", gpt2_data_name(corpus->data));
    }
    (void)printf(
        "data    %s: %llu training tokens, %llu validation tokens, %llu sequences per epoch\n",
        files, (unsigned long long)corpus->training.count,
        (unsigned long long)corpus->validation.count,
        (unsigned long long)gpt2_view_sequences(&corpus->training, (int)options->seq));
    if (options->peak > 0.0) {
        (void)printf(
            "mfu     of the %g TFLOP/s that --peak gives each rank; %.1f MFLOP per token\n",
            options->peak, 1e-6 * token_operations(trainer));
    }
    if (self->bigram > 0.0) {
        (void)printf("to beat bigram %.3f nats/byte (unigram %.3f)\n", self->bigram, self->unigram);
    }
    if (trainer->resumed_from[0] != '\0') {
        (void)printf("resumed %s: step %llu", trainer->resumed_from,
                     (unsigned long long)trainer->first_step);
        if (is_other_shape(options, shape)) {
            (void)printf(", in its shape, not that of --preset %s", options->preset);
        }
        (void)printf("\n");
    }
    (void)fflush(stdout);
}

int gpt2_report_create(const gpt2_trainer_t *trainer, gpt2_report_t **out, gpt2_error_t *error)
{
    gpt2_report_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a report");
    self->trainer = trainer;
    /* A prompt that cannot be used is found before the run, not behind it. */
    if (gpt2_sample_read(trainer, &self->prompt, error) != 0 || open_logs(self, error) != 0) {
        gpt2_report_destroy(self);
        return -1;
    }
    if (gpt2_data_is_text(trainer->corpus.data) &&
        gpt2_view_entropy(&trainer->corpus.training, &self->unigram, &self->bigram, error) != 0) {
        gpt2_report_destroy(self);
        return -1;
    }
    self->start = self->last_time = gpt2_now();
    self->last_step = trainer->first_step;
    print_head(self);
    *out = self;
    return 0;
}

void gpt2_report_destroy(gpt2_report_t *self)
{
    if (self == NULL) return;
    for (int i = 0; i < LOGS; i++)
        (void)gpt2_log_close(self->logs[i], NULL);
    free(self->prompt.list);
    free(self);
}

/* "2m05s" */
static void format_duration(char *out, size_t bytes, double seconds)
{
    long whole = (long)(seconds + 0.5);

    if (whole >= 3600) {
        (void)snprintf(out, bytes, "%ldh%02ldm", whole / 3600, whole / 60 % 60);
    } else if (whole >= 60) {
        (void)snprintf(out, bytes, "%ldm%02lds", whole / 60, whole % 60);
    } else {
        (void)snprintf(out, bytes, "%lds", whole);
    }
}

/* "9.8k" */
static void format_rate(char *out, size_t bytes, double rate)
{
    if (rate >= 1e6) {
        (void)snprintf(out, bytes, "%.2fM", rate / 1e6);
    } else if (rate >= 1e4) {
        (void)snprintf(out, bytes, "%.1fk", rate / 1e3);
    } else {
        (void)snprintf(out, bytes, "%.0f", rate);
    }
}

/* What the logs say of this step; spent: since the last row, in so many steps. */
static void write_logs(gpt2_report_t *self, const gpt2_step_t *step, double loss, double validation,
                       const gpt2_phases_t *spent, double steps, double rate, double mfu)
{
    const double ms = 1e3 / steps;
    const gpt2_record_t record = {
        .step = (double)self->trainer->progress.step,
        .loss = loss,
        .validation = validation < 0.0 ? (double)NAN : validation,
        .learning_rate = step->learning_rate,
        .norm = step->norm,
        .skipped = (double)self->trainer->progress.skipped,
        .tokens_per_second = rate,
        .total_ms = ms * spent->total,
        .transfer_ms = ms * spent->transfer,
        .exposed_ms = ms * spent->exposed,
        .skew_ms = ms * spent->skew,
        .forward_ms = ms * spent->forward,
        .backward_ms = ms * spent->backward,
        .optimizer_ms = ms * spent->optimizer,
        .other_ms = ms * spent->other,
        .weights_ms = ms * spent->weights,
        .wire_bytes = spent->wire / steps,
        .clip = step->clip,
        .scale = step->scale,
        .mfu = mfu,
    };

    for (int i = 0; i < LOGS; i++) {
        gpt2_error_t lost;

        if (self->logs[i] != NULL && gpt2_log_write(self->logs[i], &record, &lost) != 0)
            gpt2_report_warn(self, lost.text);
    }
}

void gpt2_report_step(gpt2_report_t *self, const gpt2_step_t *step, double loss, double validation)
{
    const gpt2_trainer_t *trainer;
    gpt2_phases_t spent; /* since the last line */
    double now = gpt2_now();
    double steps;
    double rate;
    double left;
    char eta[32];
    char speed[32];
    char val[48] = "";
    char used[32] = "";
    char scale[48] = "";
    double mfu = (double)NAN;

    if (self == NULL) return;
    trainer = self->trainer;
    spent = gpt2_phases_between(&self->last_phases, &trainer->phases);
    /* Rates are over the steps since the last line; the time left follows from the whole run, which
     * validation and checkpoints slow down too. */
    steps = (double)(trainer->progress.step - self->last_step);
    rate = steps * (double)trainer->options->batch * (double)trainer->options->seq / spent.total;
    left = (now - self->start) / (double)(trainer->progress.step - trainer->first_step) *
           (double)((uint64_t)trainer->options->steps - trainer->progress.step);
    format_duration(eta, sizeof(eta), left);
    format_rate(speed, sizeof(speed), rate);
    if (trainer->options->peak > 0.0) {
        mfu = rate * token_operations(trainer) /
              (1e12 * trainer->options->peak * trainer->strategy->size);
        (void)snprintf(used, sizeof(used), "  mfu %.1f %%", 100.0 * mfu);
    }
    if (validation >= 0.0) (void)snprintf(val, sizeof(val), "val %.4f  ", validation);
    if (trainer->precision.scale.initial > 0.0) {
        (void)snprintf(scale, sizeof(scale), "  scale %.0f, skipped %llu", step->scale,
                       (unsigned long long)trainer->progress.skipped);
    }
    (void)printf(
        "step %6llu/%lld  loss %.4f  %snorm %.3g  lr %.3g  %s tok/s%s  comm %.1f ms, exposed "
        "%.1f  eta %s%s%s\n",
        (unsigned long long)trainer->progress.step, (long long)trainer->options->steps, loss, val,
        step->norm, step->learning_rate, speed, used, 1e3 * spent.transfer / steps,
        1e3 * spent.exposed / steps, eta, scale, step->skipped ? "  (overflow: skipped)" : "");
    (void)fflush(stdout);
    write_logs(self, step, loss, validation, &spent, steps, rate, mfu);
    self->last_phases = trainer->phases;
    self->last_step = trainer->progress.step;
    self->last_time = now;
}

void gpt2_report_compared(gpt2_report_t *self)
{
    if (self != NULL) self->compared++;
}

void gpt2_report_warn(gpt2_report_t *self, const char *text)
{
    if (self != NULL) (void)fprintf(stderr, "gpt2: warning: %s\n", text);
}

void gpt2_report_saved(gpt2_report_t *self)
{
    if (self != NULL) self->saved = self->trainer->progress.step;
}

int gpt2_report_sample(gpt2_report_t *self, const gpt2_model_t *model, gpt2_error_t *error)
{
    return self == NULL ? 0 : gpt2_sample_print(self->trainer, model, &self->prompt, error);
}

/* Percentages with one digit that sum to 100.0: the last part takes the rounding. */
static void print_phases(const gpt2_phases_t *phases)
{
    const struct {
        const char *name;
        double seconds;
    } parts[] = {{"forward", phases->forward},     {"backward", phases->backward},
                 {"optimizer", phases->optimizer}, {"exposed", phases->exposed},
                 {"skew", phases->skew},           {"other", phases->other}};
    long left = 1000;

    (void)printf("step    %.1f ms:", 1e3 * phases->total / (double)phases->steps);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        long share = (long)(1000.0 * parts[i].seconds / phases->total + 0.5);

        if (share > left || i + 1 == sizeof(parts) / sizeof(parts[0])) share = left;
        left -= share;
        (void)printf("  %s %ld.%ld%%", parts[i].name, share / 10, share % 10);
    }
    (void)printf("\n");
}

/* The last line: paths that a user opens next. */
static void print_files(const gpt2_report_t *self)
{
    const gpt2_options_t *options = self->trainer->options;
    gpt2_strategy_t *strategy = self->trainer->strategy;
    const char *timeline = strategy->ops->setting(strategy, "TIMELINE");
    int has_any = self->saved != 0 || (timeline != NULL && *timeline != '\0');
    const char *logs[LOGS];

    for (int i = 0; i < LOGS; i++) {
        logs[i] = self->logs[i] == NULL ? NULL : gpt2_log_path(self->logs[i]);
        has_any |= logs[i] != NULL;
    }
    if (!has_any) return;
    (void)printf("files  ");
    if (self->saved != 0) {
        (void)printf(" %s/checkpoint/%llu", options->out, (unsigned long long)self->saved);
    }
    for (int i = 0; i < LOGS; i++)
        if (logs[i] != NULL) (void)printf(" %s", logs[i]);
    if (timeline != NULL && *timeline != '\0') {
        const char *steps = strstr(timeline, ":steps=");

        (void)printf(" %.*s", (int)(steps == NULL ? strlen(timeline) : (size_t)(steps - timeline)),
                     timeline);
    }
    (void)printf("\n");
}

int gpt2_report_end(gpt2_report_t *self, double validation, const gpt2_waits_t *waits,
                    gpt2_error_t *error)
{
    const gpt2_trainer_t *trainer;
    const gpt2_mesh_t *mesh;
    int code = 0;

    if (self == NULL) return 0;
    trainer = self->trainer;
    if (trainer->strategy->size > 1) {
        if (self->compared > 0) {
            (void)printf("replicas bit-equal %llu/%llu", (unsigned long long)self->compared,
                         (unsigned long long)self->compared);
        }
        (void)printf("%soverflows skipped %llu\n", self->compared > 0 ? ", " : "replicas ",
                     (unsigned long long)trainer->progress.skipped);
    }
    if (self->bigram > 0.0) {
        (void)printf("learned val loss %.4f %s bigram %.4f (unigram %.4f)\n", validation,
                     validation < self->bigram ? "<" : "is not below", self->bigram, self->unigram);
    } else {
        (void)printf("learned val loss %.4f\n", validation);
    }
    if (trainer->phases.steps > 0) print_phases(&trainer->phases);
    mesh = &trainer->strategy->mesh;
    if (mesh->is_staged && mesh->stages.count > 1) {
        (void)printf("bubble  %.1f %% of the stages' time without a pass, %.1f %% by (K - 1) / "
                     "(M + K - 1) where they cost alike\n",
                     100.0 * waits->bubble,
                     100.0 * gpt2_schedule_bubble(mesh->stages.count, mesh->micros));
    }
    if (mesh->size[GPT2_AXIS_TENSOR] > 1) {
        (void)printf("tensor  %.1f %% of the ranks' time waiting for sums over --tp %d\n",
                     100.0 * waits->sums, mesh->size[GPT2_AXIS_TENSOR]);
    }
    print_files(self);
    (void)fflush(stdout);
    for (int i = 0; i < LOGS; i++) {
        if (gpt2_log_close(self->logs[i], error) != 0) code = -1;
        self->logs[i] = NULL;
    }
    return code;
}
