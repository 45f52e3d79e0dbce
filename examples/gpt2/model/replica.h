/*
 * replica.h - one replica of the model and its optimizer on some device, as one table.
 *
 * The trainer and the strategies call only this; replica_cpu.c and cuda/replica.c are behind it.
 * Arenas (weights, gradients) lie in the device's memory in the layout of shape.h, so that a
 * strategy can hand them to libdp as they are. Work may be queued: only borrow(), checksum(),
 * evaluate(), logits() and settle() wait for it. Functions that can fail return 0 or -1 with the
 * cause. It must not know about ranks.
 */
#ifndef GPT2_REPLICA_H
#define GPT2_REPLICA_H

#include <stdint.h>
#include <stdio.h>

#include "examples/gpt2/base/extra.h"
#include "examples/gpt2/model/optimizer.h"

typedef struct gpt2_replica gpt2_replica_t;

typedef struct gpt2_replica_options {
    gpt2_model_options_t model;
    gpt2_optimizer_settings_t optimizer;
    const char *precision; /* "fp32", "bf16" or "fp16"; on the CPU, whose products model.gemm
                            * brings, the type of weights and gradients at level 2 */
    int level;             /* of mixed precision, see precision.h */
    const char *recompute; /* "none", "gelu" or "gelu+norm"; the CPU keeps all */
    const char *cache;     /* a folder for timings of products, on a GPU; NULL: none */
    size_t logits_bytes;   /* at most, on a GPU, of logits that exist together; 0: 2 GiB */
    size_t lookups;        /* on a GPU: how many tokens may occur in a step, where the rows that are
                            * looked up have gradients of their own (see rows); 0: they have not */
} gpt2_replica_options_t;

/* The outcome of a sync; equal on all ranks. */
typedef struct gpt2_sync {
    double norm; /* of all averaged gradients */
    double clip; /* the optimizer multiplies gradients by this, and by *device_clip */
    int skip;    /* 1: an overflow; leave the weights alone */
    /* Not NULL: words of the device, behind the replica's stream, take the place of norm and skip,
     * and a clip of theirs comes on top. */
    const float *device_norm;
    const float *device_clip;
    const uint32_t *device_skip;
} gpt2_sync_t;

/* A step, once it is over on the device. */
typedef struct gpt2_outcome {
    double loss_sum; /* over all passes */
    double norm;
    int skipped;
    /* Seconds by the device's clock; zeros where work is not queued and hooks tell the time. */
    double forward;
    double backward;
    double exposed; /* from the last gradient to the start of the update */
    double optimizer;
} gpt2_outcome_t;

/* Weights and, where asked for, moments in host memory. */
typedef struct gpt2_state {
    gpt2_model_t *model;         /* layout and weights are good, no pass can be made */
    gpt2_optimizer_t *optimizer; /* NULL without moments */
} gpt2_state_t;

/* Products with thin matrices of a device's memory, the twins of powersgd_*() in
 * cpu/compress_kernels.h. Queued; only finish() waits. */
typedef struct gpt2_low_rank_ops {
    /* Before the others: memory for matrices up to these sizes. Called for each. */
    int (*prepare)(gpt2_replica_t *self, size_t rows, size_t columns, size_t rank,
                   gpt2_error_t *error);
    int (*rows)(gpt2_replica_t *self, const gpt2_powersgd_matrix_t *matrix, gpt2_error_t *error);
    int (*columns)(gpt2_replica_t *self, const gpt2_powersgd_matrix_t *matrix, gpt2_error_t *error);
    int (*orthonormal)(gpt2_replica_t *self, float *x, size_t count, size_t rank,
                       gpt2_error_t *error);
    int (*finish)(gpt2_replica_t *self, const gpt2_powersgd_matrix_t *matrix, double *squares,
                  gpt2_error_t *error);
} gpt2_low_rank_ops_t;

/* Threshold dropping in a device's memory: the twins of model/topk_choice.h and of topk_*() in
 * cpu/compress_kernels.h, with their bits. Queued; is_bad() and finish() wait. */
typedef struct gpt2_sparse_ops {
    /* Before the others: memory for tensors up to this size. Called for each. */
    int (*prepare)(gpt2_replica_t *self, size_t count, gpt2_error_t *error);
    /* Makes this rank's message; head is its beginning. */
    int (*choose)(gpt2_replica_t *self, const gpt2_topk_values_t *values,
                  const gpt2_topk_quota_t *quota, const gpt2_topk_list_t *list, uint32_t *head,
                  gpt2_error_t *error);
    /* *bad = 1 where a message says that its rank has an Inf or a NaN. heads: rank 0's message. */
    int (*is_bad)(gpt2_replica_t *self, const uint32_t *heads, size_t stride, int ranks, int *bad,
                  gpt2_error_t *error);
    /* Keeps what was not sent; gradient = by * the sum of all messages, *squares of that. */
    int (*finish)(gpt2_replica_t *self, const gpt2_topk_values_t *values, float *gradient,
                  const gpt2_topk_messages_t *messages, float by, double *squares,
                  gpt2_error_t *error);
} gpt2_sparse_ops_t;

/* The passes of a replica whose model is one stage of a pipeline. A pass has a slot from its
 * forward to the end of its backward. */
typedef struct gpt2_stage_ops {
    int (*forward)(gpt2_replica_t *self, const gpt2_batch_t *batch, int slot,
                   const gpt2_edges_t *edges, const gpt2_hooks_t *hooks, gpt2_error_t *error);
    /* As train(): weight and accumulate. With the head its loss is added to the outcome's. */
    int (*backward)(gpt2_replica_t *self, const gpt2_batch_t *batch, int slot,
                    const gpt2_edges_t *edges, float weight, int accumulate,
                    const gpt2_hooks_t *hooks, gpt2_error_t *error);
    /* Behind a forward, on the stage that has the head: as evaluate(). */
    int (*loss)(gpt2_replica_t *self, const gpt2_batch_t *batch, double *loss_sum,
                gpt2_error_t *error);
    /* Behind a step's last backward, where one stage has both uses of wte: see
     * gpt2_model_join_lookups(). */
    void (*join_lookups)(gpt2_replica_t *self);
    /* See gpt2_model_reduce_by(). */
    void (*reduce_by)(gpt2_replica_t *self, const gpt2_reducer_t *reducer);
} gpt2_stage_ops_t;

typedef struct gpt2_replica_ops {
    const char *name; /* as in --device */
    int is_async;     /* 1: train(), norm() and update() only queue */
    void (*destroy)(gpt2_replica_t *self);
    /* For people: how it computes, in some words; and its memory, as lines (NULL: nothing). */
    void (*describe)(const gpt2_replica_t *self, char *text, size_t room);
    void (*print_plan)(const gpt2_replica_t *self, FILE *out);

    /* For a replica that was created with model.is_supplied, before its first pass: where passes
     * get weights and gradients (borrowed until destroy), and what of each group is updated here
     * [groups]. Where parts have halves, the supply's weights are such numbers too, and the masters
     * are this replica's. borrow(), checksum() and norm() are not for such a replica. NULL: no
     * replica of this kind can be supplied. */
    int (*supply)(gpt2_replica_t *self, const gpt2_supply_t *supply, const gpt2_part_t *parts,
                  gpt2_error_t *error);
    /* bytes between host memory and memory of this replica's device, in either direction, behind
     * what is queued; waits. NULL: the device's memory is the host's. */
    int (*copy)(gpt2_replica_t *self, void *to, const void *from, size_t bytes,
                gpt2_error_t *error);

    /* NULL: those of kernels.h work on the memory. */
    const gpt2_low_rank_ops_t *low_rank;
    const gpt2_sparse_ops_t *sparse;

    /* NULL: no replica of this kind can be a stage. */
    const gpt2_stage_ops_t *stage;

    /* Draws the initial weights of its parts; as gpt2_model_init_weights(). NULL: it cannot. */
    int (*draw)(gpt2_replica_t *self, uint64_t seed, gpt2_error_t *error);
    /* As gpt2_strategy_ops_t.extra; NULL: nothing. */
    size_t (*extra)(gpt2_replica_t *self, gpt2_extra_t *list, size_t room);

    /* Weights (and moments) in host memory, until give_back(), which with changed != 0 makes them
     * the replica's. On the CPU they are the replica's own. */
    int (*borrow)(gpt2_replica_t *self, int moments, gpt2_state_t *state, gpt2_error_t *error);
    int (*give_back)(gpt2_replica_t *self, int changed, gpt2_error_t *error);
    /* After the arena of weights, or the parts', were written where they lie: by a broadcast, by
     * draw(), from a checkpoint. */
    int (*refresh)(gpt2_replica_t *self, gpt2_error_t *error);
    /* Of the weights' bits: equal replicas have equal ones on one kind of device. */
    int (*checksum)(gpt2_replica_t *self, uint64_t *value, gpt2_error_t *error);

    /* Forward and backward of a batch with loss sum_i weight * loss_i: writes (accumulate 0, a
     * step's first pass) or adds to the gradients. hooks as in model.h. The batch is copied. */
    int (*train)(gpt2_replica_t *self, const gpt2_batch_t *batch, float weight, int accumulate,
                 const gpt2_hooks_t *hooks, gpt2_error_t *error);
    /* The sum of the losses of all tokens, in nats. */
    int (*evaluate)(gpt2_replica_t *self, const gpt2_batch_t *batch, double *loss_sum,
                    gpt2_error_t *error);
    /* [count * length][vocab], in host memory. */
    int (*logits)(gpt2_replica_t *self, const gpt2_batch_t *batch, float *logits,
                  gpt2_error_t *error);

    /* Computes the figures of a sync without other ranks: the norm, and what follows from it. clip:
     * largest norm; 0: no clipping. by: 1 / loss scale; the gradients stay as they are, and
     * sync->clip includes it. */
    int (*norm)(gpt2_replica_t *self, double clip, double by, gpt2_sync_t *sync,
                gpt2_error_t *error);
    /* Where rows lie apart. announce(), before the first pass of a step: the tokens [count] that
     * occur in it on any rank, each once, in an order that all ranks share. join(), behind a sync
     * that left device_skip: adds the rows to wte's gradient, and works norm, clip and skip out
     * anew; what was to be skipped still is. NULL: no replica of this kind has rows. */
    int (*announce)(gpt2_replica_t *self, const int32_t *tokens, size_t count, gpt2_error_t *error);
    int (*join)(gpt2_replica_t *self, double clip, gpt2_sync_t *sync, gpt2_error_t *error);
    /* Ends a step with an AdamW update, unless sync says to skip it. */
    int (*update)(gpt2_replica_t *self, double learning_rate, const gpt2_sync_t *sync,
                  gpt2_error_t *error);
    /* Returns the outcome of the step that update() ended; once after each, before the next
     * update(). Counts the update. */
    int (*settle)(gpt2_replica_t *self, gpt2_outcome_t *outcome, gpt2_error_t *error);
} gpt2_replica_ops_t;

/* The first member of every replica's object. */
struct gpt2_replica {
    const gpt2_replica_ops_t *ops;
    const gpt2_layout_t *layout;
    float *weights;           /* arena, fp32, device memory; NULL where they are supplied */
    float *gradients;         /* arena, fp32, device memory; likewise */
    const gpt2_part_t *parts; /* [groups] what update() updates here: on the CPU, and of a supplied
                               * replica */
    /* NULL, or [row_count][width], device memory: what lookups add to wte's gradient, a row for
     * each token announced. wte's gradient is then the head's alone and handed over before all
     * others; the rows are handed over behind them, as number layout->count. */
    float *rows;
    size_t row_count; /* of this step */
    float *m;         /* arena, first moments, device memory */
    float *v;         /* arena, second moments, device memory */
    void *stream;     /* what the work is queued on; NULL on the CPU */
    int room;         /* sequences per pass, at most */
    int is_follower;  /* 1: the weights come from another rank, update() only counts */
    uint64_t updates; /* of the optimizer; skipped steps do not count */
    gpt2_optimizer_settings_t settings;
};

/* Give it back with ops->destroy(). */
int gpt2_replica_cpu_create(const gpt2_replica_options_t *options, gpt2_replica_t **out,
                            gpt2_error_t *error);

#endif
