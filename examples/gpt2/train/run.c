/*
 * run.c - the training loop: when to log, validate, compare, save and stop.
 *
 * main() calls gpt2_run() on every rank. All ranks take the same decisions from the same options
 * and step numbers, because validating and comparing are collective. Only rank 0 prints and saves.
 */
#include "examples/gpt2/train/run.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "examples/gpt2/data/llmc.h"
#include "examples/gpt2/train/report.h"
#include "examples/gpt2/data/safetensors.h"

#define SKIPS_MAX 50 /* in a row; then the run has diverged */

/* Keeps two runs from writing into one folder. The caller closes *fd, which releases the lock. */
static int lock_folder(const char *folder, int *fd, gpt2_error_t *error)
{
    char path[GPT2_PATH_MAX];

    if (gpt2_make_folders(folder, error) != 0) return -1;
    if (gpt2_path_join(path, folder, ".lock", error) != 0) return -1;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return gpt2_fail(error, "%s: %s", path, strerror(errno));
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return 0;
    return gpt2_fail(error, "%s: another run is writing there", folder);
}

static int is_due(uint64_t step, int64_t every)
{
    return every > 0 && step % (uint64_t)every == 0;
}

/* A failed save is reported and the run goes on: the older checkpoints are still there. */
static void save_checkpoint(gpt2_trainer_t *trainer, gpt2_report_t *report, int *save_failed)
{
    gpt2_error_t error;

    if (trainer->strategy->rank != 0 || trainer->options->out == NULL) return;
    trainer->strategy->ops->span_begin(trainer->strategy, "checkpoint");
    *save_failed = gpt2_trainer_save(trainer, &error) != 0;
    trainer->strategy->ops->span_end(trainer->strategy);
    if (*save_failed) {
        gpt2_report_warn(report, error.text);
    } else {
        gpt2_report_saved(report);
    }
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

static int loop(gpt2_trainer_t *trainer, gpt2_report_t *report, double *validation,
                int *save_failed, gpt2_error_t *error)
{
    const gpt2_options_t *options = trainer->options;
    uint64_t last = (uint64_t)options->steps;

    while (trainer->progress.step < last) {
        gpt2_step_t step;
        uint64_t done;
        int evaluate;

        if (gpt2_trainer_step(trainer, &step, error) != 0) return -1;
        done = trainer->progress.step;
        if (trainer->skips >= SKIPS_MAX) {
            return gpt2_fail(error, "step %llu: %d steps in a row overflowed",
                             (unsigned long long)done, trainer->skips);
        }
        evaluate = is_due(done, options->eval_every) || done == last;
        if (evaluate && gpt2_trainer_validate(trainer, validation, error) != 0) return -1;
        if (evaluate || is_due(done, options->log_every)) {
            double loss;

            if (gpt2_trainer_mean(trainer, &step, &loss, error) != 0) return -1;
            gpt2_report_step(report, &step, loss, evaluate ? *validation : -1.0);
        }
        if (trainer->strategy->size > 1 && (is_due(done, options->check) || done == last) &&
            options->check > 0 && compare_ranks(trainer, report, error) != 0) {
            return -1;
        }
        if (is_due(done, options->checkpoint_every) || done == last) {
            save_checkpoint(trainer, report, save_failed);
        }
    }
    return 0;
}

static int finish_run(gpt2_trainer_t *trainer, gpt2_report_t *report, double validation,
                      gpt2_error_t *error)
{
    const gpt2_options_t *options = trainer->options;
    gpt2_replica_t *replica = trainer->replica;
    gpt2_state_t state;

    if (trainer->strategy->rank != 0) return 0;
    if (options->sample != NULL || options->export != NULL) {
        int code = replica->ops->borrow(replica, 0, &state, error);

        if (code == 0 && options->sample != NULL) {
            code = gpt2_report_sample(report, state.model, options->sample, error);
        }
        if (code == 0 && options->export != NULL) {
            const int as_bf16 = strcmp(options->export_type, "bf16") == 0;

            code = gpt2_safetensors_is(options->export)
                       ? gpt2_safetensors_save(options->export, state.model, as_bf16, error)
                       : gpt2_llmc_save(options->export, state.model, as_bf16, error);
        }
        if (code != 0 || replica->ops->give_back(replica, 0, error) != 0) return -1;
    }
    gpt2_report_end(report, validation);
    return 0;
}

/* Prints what the trainer noticed while it looked for a checkpoint, one warning per line. */
static void say_notes(const gpt2_trainer_t *trainer, gpt2_report_t *report)
{
    char *next = trainer->notes;

    while (next != NULL && *next != '\0') {
        char *line = next;

        next = strchr(line, '\n');
        if (next != NULL) *next++ = '\0';
        gpt2_report_warn(report, line);
    }
}

int gpt2_run(const gpt2_options_t *options, gpt2_strategy_t *strategy, gpt2_error_t *error)
{
    gpt2_trainer_t *trainer = NULL;
    gpt2_report_t *report = NULL;
    double validation = -1.0;
    int save_failed = 0;
    int lock = -1;
    int code = 0;

    if (strategy->rank == 0 && options->out != NULL) code = lock_folder(options->out, &lock, error);
    if (code == 0) code = gpt2_trainer_create(options, strategy, &trainer, error);
    if (code == 0 && strategy->rank == 0) code = gpt2_report_create(trainer, &report, error);
    if (code == 0 && strategy->rank == 0) say_notes(trainer, report);
    if (code == 0) code = loop(trainer, report, &validation, &save_failed, error);
    if (code == 0 && validation < 0.0) code = gpt2_trainer_validate(trainer, &validation, error);
    if (code == 0) code = finish_run(trainer, report, validation, error);
    if (code == 0 && save_failed) code = gpt2_fail(error, "the last checkpoint was not saved");
    if (code != 0 && strategy->size > 1) strategy->ops->abort(strategy, error->text);
    gpt2_report_destroy(report);
    gpt2_trainer_destroy(trainer);
    if (lock >= 0) (void)close(lock);
    return code;
}
