/*
 * log.c - one table of figures, written in either form.
 */
#include "examples/gpt2/train/log.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/gpt2/base/files.h"

struct gpt2_log {
    FILE *file; /* NULL: rows were lost */
    gpt2_log_kind_t kind;
    char path[GPT2_PATH_MAX];
    uint64_t step; /* the last whose row is written */
    gpt2_error_t lost;
};

typedef struct figure {
    const char *name;
    const char *format;
    size_t offset;
} figure_t;

#define AT(field) offsetof(gpt2_record_t, field)

/* In the order of a CSV row; the step comes first, as cut_rows() reads it. */
static const figure_t FIGURES[] = {
    {"step", "%.0f", AT(step)},
    {"loss", "%.9g", AT(loss)},
    {"val_loss", "%.9g", AT(validation)},
    {"lr", "%.6g", AT(learning_rate)},
    {"norm", "%.6g", AT(norm)},
    {"skipped", "%.0f", AT(skipped)},
    {"tokens_per_s", "%.6g", AT(tokens_per_second)},
    {"step_ms", "%.4f", AT(total_ms)},
    {"comm_ms", "%.4f", AT(transfer_ms)},
    {"exposed_ms", "%.4f", AT(exposed_ms)},
    {"skew_ms", "%.4f", AT(skew_ms)},
    {"forward_ms", "%.4f", AT(forward_ms)},
    {"backward_ms", "%.4f", AT(backward_ms)},
    {"optimizer_ms", "%.4f", AT(optimizer_ms)},
    {"other_ms", "%.4f", AT(other_ms)},
    {"weights_ms", "%.4f", AT(weights_ms)},
    {"wire_bytes", "%.0f", AT(wire_bytes)},
    {"clip", "%.9g", AT(clip)},
    {"scale", "%.9g", AT(scale)},
    {"mfu", "%.4f", AT(mfu)},
};
#define FIGURE_COUNT (sizeof(FIGURES) / sizeof(FIGURES[0]))
#define CSV_COUNT (FIGURE_COUNT - 1) /* MFU follows from the others, and there may be none */
#define JSON_BEGIN "{\"step\": "

/* The step of a row; -1: it has none, as a CSV's first line. */
static long long step_of(const char *line)
{
    const size_t begin =
        strncmp(line, JSON_BEGIN, strlen(JSON_BEGIN)) == 0 ? strlen(JSON_BEGIN) : 0;

    return line[begin] >= '0' && line[begin] <= '9' ? strtoll(line + begin, NULL, 10) : -1;
}

/* Cuts the rows after `step` off a log, which a run wrote that got further than its checkpoint, and
 * a last row that is not whole. Rows are in the order of steps. */
static int cut_rows(const char *path, uint64_t step, gpt2_error_t *error)
{
    FILE *file = fopen(path, "r+e");
    char line[1024];
    off_t kept = 0;
    struct stat status;
    int code = 0;

    if (file == NULL && errno == ENOENT) return 0;
    if (file == NULL || fstat(fileno(file), &status) != 0) {
        if (file != NULL) (void)fclose(file);
        return gpt2_fail(error, "%s: cannot be read: %s", path, strerror(errno));
    }
    while (S_ISREG(status.st_mode) && fgets(line, sizeof(line), file) != NULL) {
        if (strchr(line, '\n') == NULL || step_of(line) > (long long)step) break;
        kept += (off_t)strlen(line);
    }
    if (S_ISREG(status.st_mode) && ftruncate(fileno(file), kept) != 0) {
        code = gpt2_fail(error, "%s: cannot be cut to step %llu: %s", path,
                         (unsigned long long)step, strerror(errno));
    }
    (void)fclose(file);
    return code;
}

int gpt2_log_open(const char *path, gpt2_log_kind_t kind, int is_resumed, uint64_t step,
                  gpt2_log_t **out, gpt2_error_t *error)
{
    gpt2_log_t *self;

    if (is_resumed && cut_rows(path, step, error) != 0) return -1;
    self = calloc(1, sizeof(*self));
    if (self == NULL) return gpt2_fail(error, "out of memory for a log");
    self->kind = kind;
    self->step = step;
    (void)snprintf(self->path, sizeof(self->path), "%s", path);
    self->file = fopen(path, is_resumed ? "ae" : "we");
    if (self->file == NULL) {
        free(self);
        return gpt2_fail(error, "%s: cannot be written: %s", path, strerror(errno));
    }
    if (kind == GPT2_LOG_CSV && (!is_resumed || ftell(self->file) == 0)) {
        for (size_t i = 0; i < CSV_COUNT; i++)
            (void)fprintf(self->file, "%s%s", i == 0 ? "" : ",", FIGURES[i].name);
        (void)fputc('\n', self->file);
    }
    *out = self;
    return 0;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* formats are the table's */
static void print_row(gpt2_log_t *self, const gpt2_record_t *record)
{
    const int is_json = self->kind == GPT2_LOG_JSON;

    if (is_json) (void)fputc('{', self->file);
    for (size_t i = 0; i < (is_json ? FIGURE_COUNT : CSV_COUNT); i++) {
        double value;

        memcpy(&value, (const char *)record + FIGURES[i].offset, sizeof(value));
        if (!is_json && i > 0) (void)fputc(',', self->file);
        if (!isfinite(value)) continue; /* JSON has no word for it either */
        if (is_json) (void)fprintf(self->file, "%s\"%s\": ", i == 0 ? "" : ", ", FIGURES[i].name);
        (void)fprintf(self->file, FIGURES[i].format, value);
    }
    (void)fputs(is_json ? "}\n" : "\n", self->file);
}
#pragma GCC diagnostic pop

int gpt2_log_write(gpt2_log_t *self, const gpt2_record_t *record, gpt2_error_t *error)
{
    if (self->file == NULL) return 0;
    print_row(self, record);
    if (fflush(self->file) == 0 && !ferror(self->file)) {
        self->step = (uint64_t)record->step;
        return 0;
    }
    (void)gpt2_fail(&self->lost, "%s: rows after step %llu are lost: %s", self->path,
                    (unsigned long long)self->step, strerror(errno));
    (void)fclose(self->file);
    self->file = NULL;
    return gpt2_fail(error, "%s", self->lost.text);
}

int gpt2_log_close(gpt2_log_t *self, gpt2_error_t *error)
{
    int code = 0;

    if (self == NULL) return 0;
    if (self->file != NULL && fclose(self->file) != 0) { /* where a full disk may show */
        (void)gpt2_fail(&self->lost, "%s: cannot be closed: %s", self->path, strerror(errno));
    }
    if (self->lost.text[0] != '\0') code = gpt2_fail(error, "%s", self->lost.text);
    free(self);
    return code;
}

const char *gpt2_log_path(const gpt2_log_t *self)
{
    return self->file == NULL ? NULL : self->path;
}
