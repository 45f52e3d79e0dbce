/*
 * trainer.h - one rank's run: data, model, optimizer and strategy put together, step by step.
 *
 * It prints nothing; run.c decides when to do what and report.c tells people.
 */
#ifndef GPT2_TRAINER_H
#define GPT2_TRAINER_H

#include "examples/gpt2/base/clock.h"
#include "examples/gpt2/data/checkpoint.h"
#include "examples/gpt2/data/view.h"
#include "examples/gpt2/model/device.h"
#include "examples/gpt2/model/precision.h"
#include "examples/gpt2/tokens/vocabulary.h"
#include "examples/gpt2/train/options.h"
#include "examples/gpt2/train/phases.h"

typedef struct gpt2_step {
    double loss_sum; /* of this rank; known when settled */
    double tokens;   /* of this rank */
    double learning_rate;
    int is_settled; /* 1: the rest is known; see gpt2_trainer_settle() */
    double norm;
    double clip;  /* gradients were multiplied by this */
    double scale; /* of the loss */
    int skipped;
} gpt2_step_t;

typedef struct gpt2_trainer {
    const gpt2_options_t *options; /* borrowed */
    gpt2_strategy_t *strategy;     /* borrowed */
    gpt2_corpus_t corpus;
    gpt2_vocabulary_t *vocabulary; /* of --tokenizer; NULL: none */
    gpt2_replica_t *replica;
    gpt2_shard_t shard;   /* what ranks share out; GPT2_SHARD_NONE: every rank has all */
    int is_divided;       /* 1: no rank has all of the state: it is sharded, or in stages */
    gpt2_model_t *whole;  /* of gpt2_trainer_borrow(), where they do; else NULL */
    int is_pending;       /* 1: the last step is not settled */
    gpt2_outcome_t found; /* the last one settled */
    int skips;            /* since the last update, steps that no smaller loss scale could mend */
    gpt2_precision_plan_t precision;
    double loss_scale;        /* of the last step settled */
    gpt2_progress_t progress; /* updates and skipped: of settled steps */
    uint64_t first_step;      /* of this process: > 0 after a resume */
    char resumed_from[GPT2_PATH_MAX];
    char *notes;      /* warnings about the start, one per line, each with its newline; or NULL */
    int32_t *inputs;  /* [micro batch][seq]; of a pipeline [micro-batches] of that */
    int32_t *targets; /* likewise */
    gpt2_batch_t *batches; /* [micro-batches] of a pipeline; else NULL */
    uint8_t *occurs;  /* [vocab] 1: in this step's global batch; NULL: rows are not reduced apart */
    int32_t *tokens;  /* [vocab] those, in order */
    uint64_t samples; /* sum over this rank's training sequences of a hash of number and tokens */
    gpt2_phases_t phases;
    uint64_t wire_bytes; /* sent until the end of the last step, if has_stepped */
    int has_stepped;
    gpt2_error_t *error; /* of the call in progress, for hooks */
    int depth;           /* of open spans */
    double span_start;
    gpt2_traffic_t span_traffic; /* at that time */
    double *span_sum;            /* what the open span's time is added to */
} gpt2_trainer_t;

/* Opens the data, agrees on the shape with the other ranks, makes the model, and restores or
 * initializes it, equally on all ranks. Give it back with gpt2_trainer_destroy(). */
int gpt2_trainer_create(const gpt2_options_t *options, gpt2_strategy_t *strategy,
                        gpt2_trainer_t **out, gpt2_error_t *error);
void gpt2_trainer_destroy(gpt2_trainer_t *trainer);

/* One step on the next global batch. On an asynchronous device the call returns when the work is
 * queued; gpt2_trainer_settle() or the next step waits for it and reads its results. */
int gpt2_trainer_step(gpt2_trainer_t *trainer, gpt2_step_t *step, gpt2_error_t *error);

/* Waits until the last step has completed and fills in its results. Fails if its loss is not
 * finite. */
int gpt2_trainer_settle(gpt2_trainer_t *trainer, gpt2_step_t *step, gpt2_error_t *error);

/* The last step's mean loss over all ranks; settles it. Collective. */
int gpt2_trainer_mean(gpt2_trainer_t *trainer, gpt2_step_t *step, double *loss,
                      gpt2_error_t *error);

/* Mean loss over --eval-batches of validation. Collective. */
int gpt2_trainer_validate(gpt2_trainer_t *trainer, double *loss, gpt2_error_t *error);

/* Of the time from the beginning of a step to the end of its last pass, the parts in which ranks
 * ran no pass, and in which passes waited for sums over the tensor axis; 0 where copies of the
 * model are not divided. Collective. */
int gpt2_trainer_waits(gpt2_trainer_t *trainer, gpt2_waits_t *parts, gpt2_error_t *error);

/* Of the weights' bits. Collective. */
int gpt2_trainer_hash(gpt2_trainer_t *trainer, uint64_t *hash, gpt2_error_t *error);

/* *same = 1 where all replicas have the same bits. Collective. */
int gpt2_trainer_compare(gpt2_trainer_t *trainer, int *same, gpt2_error_t *error);

/* Saves to <out>/checkpoint. Every rank calls it; rank 0 writes, the others take part where it
 * needs them. *is_saved = 0, on rank 0: it could not, the cause is in error, and the run can go on.
 * Returns -1 where this rank has not taken part to the end: others may wait for it, so the caller
 * must end the run. */
int gpt2_trainer_save(gpt2_trainer_t *trainer, int *is_saved, gpt2_error_t *error);

/* *model = all weights in host memory, on rank 0 (elsewhere NULL), until give_back(). Collective
 * where ranks share them out, and then it takes memory for all of them. */
int gpt2_trainer_borrow(gpt2_trainer_t *trainer, const gpt2_model_t **model, gpt2_error_t *error);
int gpt2_trainer_give_back(gpt2_trainer_t *trainer, gpt2_error_t *error);

#endif
