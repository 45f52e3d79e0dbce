/*
 * summary.c - collects a run's figures in memory and writes them at its end. Main thread of every
 * rank, outside of what is timed. It must not print.
 */
#include "examples/gpt2/train/summary.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT 1     /* of the file; a reader refuses others */
#define WARM_STEPS 2 /* left out of the medians */
#define RANK_FIGURES 6

/* One step. */
typedef struct record {
    uint64_t step;
    double seconds; /* since the first one began */
    gpt2_phases_t spent;
    double loss; /* NAN: not asked for */
    double validation;
    gpt2_step_t step_result;
} record_t;

struct gpt2_summary {
    gpt2_trainer_t *trainer; /* borrowed */
    gpt2_usage_t before;     /* the trainer was made */
    gpt2_usage_t at_start;   /* of the first step */
    uint64_t initial;        /* hash of the weights */
    double begin;
    gpt2_phases_t last;
    record_t *records;
    size_t count;
    size_t room;
};

int gpt2_summary_create(gpt2_trainer_t *trainer, const gpt2_usage_t *before, gpt2_summary_t **out,
                        gpt2_error_t *error)
{
    gpt2_summary_t *self = calloc(1, sizeof(*self));

    if (self == NULL) return gpt2_fail(error, "out of memory for a summary");
    self->trainer = trainer;
    self->before = *before;
    if (gpt2_trainer_hash(trainer, &self->initial, error) != 0) {
        free(self);
        return -1;
    }
    self->last = trainer->phases;
    self->at_start = gpt2_usage_now();
    self->begin = gpt2_now();
    *out = self;
    return 0;
}

void gpt2_summary_destroy(gpt2_summary_t *self)
{
    if (self == NULL) return;
    free(self->records);
    free(self);
}

int gpt2_summary_step(gpt2_summary_t *self, const gpt2_step_t *step, double loss, double validation,
                      gpt2_error_t *error)
{
    if (self == NULL) return 0;
    if (self->count == self->room) {
        const size_t room = self->room == 0 ? 256 : 2 * self->room;
        record_t *records = realloc(self->records, room * sizeof(*records));

        if (records == NULL) return gpt2_fail(error, "out of memory for %zu steps", room);
        self->records = records;
        self->room = room;
    }
    self->records[self->count++] =
        (record_t){.step = self->trainer->progress.step,
                   .seconds = gpt2_now() - self->begin,
                   .spent = gpt2_phases_between(&self->last, &self->trainer->phases),
                   .loss = loss,
                   .validation = validation,
                   .step_result = *step};
    self->last = self->trainer->phases;
    return 0;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void put_text(FILE *file, const char *name, const char *text)
{
    (void)fprintf(file, "\"%s\": \"", name);
    for (; text != NULL && *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') (void)fputc('\\', file);
        if ((unsigned char)*text < ' ') {
            (void)fprintf(file, "\\u%04x", (unsigned)(unsigned char)*text);
        } else {
            (void)fputc(*text, file);
        }
    }
    (void)fputs("\", ", file);
}

/* JSON has no infinities and no NaN. */
static void put_number(FILE *file, double value)
{
    if (isfinite(value)) {
        (void)fprintf(file, "%.17g", value); /* a reader compares bits */
    } else {
        (void)fputs("null", file);
    }
}

static void put_whole(FILE *file, const char *name, int64_t value)
{
    (void)fprintf(file, "\"%s\": %lld, ", name, (long long)value);
}

static void put_real(FILE *file, const char *name, double value)
{
    (void)fprintf(file, "\"%s\": ", name);
    put_number(file, value);
    (void)fputs(", ", file);
}

static void put_options(FILE *file, const gpt2_options_t *options, const gpt2_layout_t *layout,
                        const char *strategy, int ranks)
{
    const gpt2_shape_t *shape = &layout->shape;
    char data[GPT2_PATH_MAX + 32];

    (void)fprintf(file, "{\"format\": %d,\n\"configuration\": {", FORMAT);
    put_text(file, "preset", options->preset);
    put_whole(file, "layers", shape->layers);
    put_whole(file, "heads", shape->heads);
    put_whole(file, "width", shape->width);
    put_whole(file, "context", shape->context);
    put_whole(file, "vocab", shape->vocab);
    gpt2_words_describe(&options->data, data, sizeof(data));
    put_text(file, "data", data[0] == '\0' ? NULL : data);
    put_text(file, "init", options->init);
    put_whole(file, "seed", options->seed);
    put_whole(file, "batch", options->batch);
    put_whole(file, "seq", options->seq);
    put_whole(file, "accumulate", options->accumulate);
    put_whole(file, "run_steps", options->steps);
    put_real(file, "lr", options->lr);
    put_real(file, "final_lr", options->final_lr);
    put_whole(file, "warmup", options->warmup);
    put_real(file, "beta1", options->beta1);
    put_real(file, "beta2", options->beta2);
    put_real(file, "decay", options->decay);
    put_real(file, "clip", options->clip);
    put_text(file, "strategy", strategy);
    put_text(file, "wire", options->wire);
    put_text(file, "precision", options->precision);
    put_text(file, "amp", options->amp);
    put_text(file, "loss_scale", options->loss_scale);
    put_whole(file, "threads", options->threads);
    put_whole(file, "parameters", (int64_t)layout->parameter_count);
    (void)fprintf(file, "\"ranks\": %d},\n", ranks);
}

static void put_plan(FILE *file, const gpt2_plan_t *plan)
{
    (void)fputs("\"plan\": {", file);
    put_whole(file, "weights", (int64_t)plan->weights);
    put_whole(file, "gradients", (int64_t)plan->gradients);
    put_whole(file, "moments", (int64_t)plan->moments);
    put_whole(file, "activations", (int64_t)plan->activations);
    put_whole(file, "library", (int64_t)plan->library);
    put_real(file, "sent_gradients", plan->sent_gradients);
    put_real(file, "sent_weights", plan->sent_weights);
    put_real(file, "sent_streams", plan->sent_streams);
    put_real(file, "sent_sums", plan->sent_sums);
    (void)fprintf(file, "\"total\": %zu}", plan->total);
}

/* text is freed. */
static int write_file(const char *path, char *text, size_t bytes, gpt2_error_t *error)
{
    gpt2_output_t output;
    int code = gpt2_output_open(&output, path, error);

    if (code == 0) {
        code = gpt2_file_write(output.file, path, text, bytes, error);
        code = gpt2_output_close(&output, code, error);
    }
    free(text);
    return code;
}

int gpt2_summary_write_plan(const char *path, const gpt2_options_t *options,
                            const gpt2_layout_t *layout, int ranks, const gpt2_plan_t *plan,
                            gpt2_error_t *error)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    if (file == NULL) return gpt2_fail(error, "out of memory for a summary");
    put_options(file, options, layout, options->strategy, ranks);
    put_plan(file, plan);
    (void)fputs("}\n", file);
    if (fclose(file) != 0) {
        free(text);
        return gpt2_fail(error, "out of memory for a summary");
    }
    return write_file(path, text, bytes, error);
}

/* ---- Figures of all ranks ------------------------------------------------------------------- */

/* A figure of every rank: [RANK_FIGURES][size], in this order. */
static const char *const FIGURES[RANK_FIGURES] = {"memory_before",   "memory_pss",  "memory_own",
                                                  "memory_peak_rss", "cpu_seconds", "wire_bytes"};

/* Sums with zeros of the other ranks are exact. The samples' hash is summed modulo 2^64, in halves,
 * which doubles hold exactly. */
static int ask_all(gpt2_summary_t *self, double *figures, uint64_t *samples, gpt2_error_t *error)
{
    gpt2_strategy_t *strategy = self->trainer->strategy;
    const size_t size = (size_t)strategy->size;
    const size_t rank = (size_t)strategy->rank;
    const gpt2_usage_t now = gpt2_usage_now();
    const double own[RANK_FIGURES] = {self->before.pss,
                                      now.pss,
                                      now.own,
                                      now.peak_rss,
                                      now.cpu_seconds - self->at_start.cpu_seconds,
                                      self->trainer->phases.wire};
    double halves[2] = {(double)(self->trainer->samples & 0xffffffffu),
                        (double)(self->trainer->samples >> 32)};

    for (size_t i = 0; i < RANK_FIGURES; i++)
        figures[i * size + rank] = own[i];
    if (strategy->ops->sum(strategy, figures, RANK_FIGURES * size, error) != 0) return -1;
    if (strategy->ops->sum(strategy, halves, 2, error) != 0) return -1;
    *samples = (uint64_t)halves[0] + ((uint64_t)halves[1] << 32);
    return 0;
}

static void put_ranks(FILE *file, const double *figures, size_t size)
{
    (void)fputs("\"ranks\": {", file);
    for (size_t i = 0; i < RANK_FIGURES; i++) {
        (void)fprintf(file, "%s\"%s\": [", i == 0 ? "" : ", ", FIGURES[i]);
        for (size_t r = 0; r < size; r++) {
            if (r > 0) (void)fputs(", ", file);
            put_number(file, figures[i * size + r]);
        }
        (void)fputc(']', file);
    }
    (void)fputs("},\n", file);
}

/* ---- Steps ---------------------------------------------------------------------------------- */

typedef enum column {
    STEP,
    SECONDS,
    MS,
    FORWARD,
    BACKWARD,
    OPTIMIZER,
    EXPOSED,
    EXPOSED_WEIGHTS,
    SKEW,
    OTHER,
    TRANSFER,
    WIRE,
    LOSS,
    VALIDATION,
    RATE,
    NORM,
    CLIP,
    SCALE,
    SKIPPED,
    COLUMNS
} column_t;

static const char *const NAMES[COLUMNS] = {
    "step",        "seconds",      "ms",          "forward_ms",
    "backward_ms", "optimizer_ms", "exposed_ms",  "exposed_weights_ms",
    "skew_ms",     "other_ms",     "transfer_ms", "wire_bytes",
    "loss",        "val_loss",     "lr",          "norm",
    "clip",        "scale",        "skipped"};

static double cell(const record_t *record, column_t column)
{
    const gpt2_phases_t *spent = &record->spent;
    const gpt2_step_t *step = &record->step_result;
    const double unknown = step->is_settled ? 0.0 : (double)NAN;

    switch (column) {
    case STEP:
        return (double)record->step;
    case SECONDS:
        return record->seconds;
    case MS:
        return 1e3 * spent->total;
    case FORWARD:
        return 1e3 * spent->forward;
    case BACKWARD:
        return 1e3 * spent->backward;
    case OPTIMIZER:
        return 1e3 * spent->optimizer;
    case EXPOSED:
        return 1e3 * spent->exposed;
    case EXPOSED_WEIGHTS:
        return 1e3 * spent->weights;
    case SKEW:
        return 1e3 * spent->skew;
    case OTHER:
        return 1e3 * spent->other;
    case TRANSFER:
        return 1e3 * spent->transfer;
    case WIRE:
        return spent->wire;
    case LOSS:
        return record->loss;
    case VALIDATION:
        return record->validation < 0.0 ? (double)NAN : record->validation;
    case RATE:
        return step->learning_rate;
    case NORM:
        return step->norm + unknown;
    case CLIP:
        return step->clip + unknown;
    case SCALE:
        return step->scale + unknown;
    case SKIPPED:
        return step->skipped + unknown;
    case COLUMNS:
        break;
    }
    return (double)NAN;
}

static void put_steps(FILE *file, const gpt2_summary_t *self)
{
    (void)fputs("\"steps\": {", file);
    for (column_t column = 0; column < COLUMNS; column++) {
        (void)fprintf(file, "%s\"%s\": [", column == 0 ? "\n" : ",\n", NAMES[column]);
        for (size_t i = 0; i < self->count; i++) {
            if (i > 0) (void)fputs(", ", file);
            put_number(file, cell(&self->records[i], column));
        }
        (void)fputc(']', file);
    }
    (void)fputs("}}\n", file);
}

static int by_value(const void *a, const void *b)
{
    const double left = *(const double *)a;
    const double right = *(const double *)b;

    return (left > right) - (left < right);
}

/* Percentiles of the steps after the first few, or of all where there are no more. */
static int put_percentiles(FILE *file, const gpt2_summary_t *self, gpt2_error_t *error)
{
    static const struct {
        const char *name;
        double part;
    } POINTS[] = {{"p5", 0.05}, {"median", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"max", 1.0}};
    const size_t warm = self->count > WARM_STEPS ? WARM_STEPS : 0;
    const size_t count = self->count - warm;
    const gpt2_options_t *options = self->trainer->options;
    double *sorted;

    if (count == 0) return 0;
    sorted = malloc(count * sizeof(*sorted));
    if (sorted == NULL) return gpt2_fail(error, "out of memory for %zu steps", count);
    for (size_t i = 0; i < count; i++)
        sorted[i] = cell(&self->records[warm + i], MS);
    qsort(sorted, count, sizeof(*sorted), by_value);
    (void)fprintf(file, "\"step_ms\": {\"left_out\": %zu", warm);
    for (size_t i = 0; i < sizeof(POINTS) / sizeof(POINTS[0]); i++) {
        (void)fprintf(file, ", \"%s\": ", POINTS[i].name);
        put_number(file, sorted[(size_t)(POINTS[i].part * (double)(count - 1) + 0.5)]);
    }
    (void)fputs("},\n\"tokens_per_s\": ", file);
    put_number(file, 1e3 * (double)(options->batch * options->seq) / sorted[count / 2]);
    (void)fputs(",\n", file);
    free(sorted);
    return 0;
}

static int write_run(const gpt2_summary_t *self, const double *figures, uint64_t final,
                     uint64_t samples, double validation, gpt2_error_t *error)
{
    const gpt2_trainer_t *trainer = self->trainer;
    gpt2_strategy_t *strategy = trainer->strategy;
    const gpt2_layout_t *layout = trainer->replica->layout;
    const gpt2_plan_place_t place = {.ranks = strategy->size,
                                     .node = strategy->node_size,
                                     .sees_rows = gpt2_strategy_sees_rows(strategy),
                                     .library = gpt2_strategy_library(strategy)};
    gpt2_plan_t plan;
    char device[160];
    char *text = NULL;
    size_t bytes = 0;
    FILE *file;
    int code;

    if (gpt2_plan_options(trainer->options, layout, &place, &plan, error) != 0) return -1;
    file = open_memstream(&text, &bytes);
    if (file == NULL) return gpt2_fail(error, "out of memory for a summary");
    put_options(file, trainer->options, layout, strategy->ops->name, strategy->size);
    put_plan(file, &plan);
    (void)fputs(",\n", file);
    trainer->replica->ops->describe(trainer->replica, device, sizeof(device));
    put_text(file, "device", device);
    (void)fprintf(file,
                  "\n\"hashes\": {\"initial\": \"%016llx\", \"final\": \"%016llx\", "
                  "\"samples\": \"%016llx\"},\n",
                  (unsigned long long)self->initial, (unsigned long long) final,
                  (unsigned long long)samples);
    put_whole(file, "sequences_per_epoch",
              (int64_t)gpt2_view_sequences(&trainer->corpus.training, (int)trainer->options->seq));
    put_whole(file, "skipped", (int64_t)trainer->progress.skipped);
    put_real(file, "seconds", self->count == 0 ? 0.0 : self->records[self->count - 1].seconds);
    put_real(file, "val_loss", validation < 0.0 ? (double)NAN : validation);
    (void)fputc('\n', file);
    code = put_percentiles(file, self, error);
    put_ranks(file, figures, (size_t)strategy->size);
    put_steps(file, self);
    if (fclose(file) != 0 && code == 0) code = gpt2_fail(error, "out of memory for a summary");
    if (code == 0) return write_file(trainer->options->summary, text, bytes, error);
    free(text);
    return code;
}

int gpt2_summary_end(gpt2_summary_t *self, double validation, gpt2_error_t *error)
{
    double *figures;
    uint64_t final;
    uint64_t samples;
    int code;

    if (self == NULL) return 0;
    figures = calloc(RANK_FIGURES * (size_t)self->trainer->strategy->size, sizeof(*figures));
    if (figures == NULL) return gpt2_fail(error, "out of memory for a summary");
    code = gpt2_trainer_hash(self->trainer, &final, error);
    if (code == 0) code = ask_all(self, figures, &samples, error);
    if (code == 0 && self->trainer->strategy->rank == 0)
        code = write_run(self, figures, final, samples, validation, error);
    free(figures);
    return code;
}
