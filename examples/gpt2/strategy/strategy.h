/*
 * strategy.h - how the ranks of a run cooperate, as one table; strategy_<name>.c each.
 *
 * The trainer calls only this. A strategy averages gradients, gives the memory they lie in, and
 * carries the few numbers that ranks share. Functions that can fail return 0 or -1 with the cause.
 */
#ifndef GPT2_STRATEGY_H
#define GPT2_STRATEGY_H

#include <stdint.h>

#include "examples/gpt2/data/checkpoint_manifest.h"
#include "examples/gpt2/base/extra.h"
#include "examples/gpt2/model/loss_scale.h"
#include "examples/gpt2/mesh/mesh.h"
#include "examples/gpt2/model/replica.h"

typedef struct gpt2_strategy gpt2_strategy_t;

/* The parts of the state that ranks divide among themselves, as in --shard. */
typedef enum gpt2_shard {
    GPT2_SHARD_NONE = 0,
    GPT2_SHARD_OPTIMIZER, /* moments */
    GPT2_SHARD_GRADIENTS, /* and gradients */
    GPT2_SHARD_WEIGHTS,   /* and weights */
    GPT2_SHARD_HYBRID     /* all, within a node; nodes hold the same */
} gpt2_shard_t;

/* How gradients are made smaller on their way; compress.h. Zeros: they are not. */
typedef struct gpt2_compress_settings {
    const char *method;     /* "topk" or "powersgd"; NULL or "none": as they are */
    double rate;            /* topk: the part of a matrix that is not sent */
    int rank;               /* powersgd: columns of the factors */
    uint64_t start;         /* steps before this one send gradients as they are */
    uint64_t warmup;        /* topk: that many steps from there on send more */
    int momentum;           /* topk: 1: what is chosen from has a momentum ... */
    double momentum_factor; /* ... of this factor */
    uint64_t seed;          /* powersgd: of the first factors */
} gpt2_compress_settings_t;

typedef struct gpt2_strategy_settings {
    const char *wire; /* "none", "fp16", "bf16", or "default": as configured */
    int accumulate;   /* backward passes per sync */
    int length;       /* tokens of a sequence, at most */
    double clip;      /* largest global norm; 0: no clipping */
    gpt2_shard_t shard;
    const char *halves; /* where it shards: "bf16", "fp16": weights are gathered as such numbers,
                         * and replicas keep fp32 masters of their parts; NULL: in fp32 */
    int prefetch;       /* groups of weights that travel ahead of their use, at most */
    gpt2_compress_settings_t compress;
    gpt2_loss_scale_settings_t scale;
} gpt2_strategy_settings_t;

/* Communication so far, on this rank. */
typedef struct gpt2_traffic {
    uint64_t wait_ns;     /* blocked in the library */
    uint64_t skew_ns;     /* of that, waiting for a rank that was not ready */
    uint64_t transfer_ns; /* data was moving, hidden or not */
    uint64_t wire_bytes;  /* sent to other machines */
} gpt2_traffic_t;

/* Where a rank's time in passes() went, in seconds. */
typedef struct gpt2_waits {
    double bubble; /* waiting for other stages */
    double sums;   /* waiting for sums over the tensor axis */
    double total;
} gpt2_waits_t;

typedef struct gpt2_strategy_ops {
    const char *name;
    int takes_rows;   /* 1: a replica's rows may lie apart */
    int can_shard;    /* 1: settings.shard may ask for it, and the entries for it are there */
    int can_compress; /* 1: settings.compress may ask for it */
    int can_stage;    /* 1: mesh.is_staged may ask for it, and the entries for it are there */
    /* Joins the other ranks and fills in rank and size. */
    int (*create)(gpt2_strategy_t **out, gpt2_error_t *error);
    /* Leaves the other ranks and frees self, also where it returns -1. */
    int (*destroy)(gpt2_strategy_t *self, gpt2_error_t *error);
    /* Tells the other ranks why this one gives up. */
    void (*abort)(gpt2_strategy_t *self, const char *reason);

    /* Memory for gradients: zeroed, on the device; NULL where there is none left. Both entries
     * NULL: the replica brings its own. */
    void *(*alloc)(gpt2_strategy_t *self, size_t bytes);
    void (*free)(gpt2_strategy_t *self, void *memory);

    /* Registers the replica's gradients and makes all weights equal to rank 0's; where it shards,
     * supplies the replica instead, with weights of zero. Called once. */
    int (*attach)(gpt2_strategy_t *self, gpt2_replica_t *replica,
                  const gpt2_strategy_settings_t *settings, gpt2_error_t *error);
    /* Gradients first .. first+count-1 of the layout, or the rows, are complete; called in every
     * backward pass. */
    int (*ready)(gpt2_strategy_t *self, size_t first, size_t count, gpt2_error_t *error);
    /* After the last pass: makes every gradient the sum over passes and ranks, divided by
     * divisor and the loss scale (which sync->clip may include instead), on the ranks that update.
     * Blocks until then, or makes the replica's stream wait. */
    int (*sync)(gpt2_strategy_t *self, gpt2_sync_t *sync, gpt2_error_t *error);
    /* With a loss scale, when the last step is over on the device: moves self->scale on. skipped:
     * as the step's outcome has it. Every rank gets the same. */
    int (*move_scale)(gpt2_strategy_t *self, int skipped, gpt2_error_t *error);
    /* self->scale was set to that of a checkpoint. NULL: nothing else has to know. */
    int (*set_scale)(gpt2_strategy_t *self, gpt2_error_t *error);

    /* Where copies of the model are divided into stages and slices. passes(): the passes of a step
     * over batches [mesh.micros], in the order of the schedule; weight and hooks as in the
     * replica's train(). evaluate(): one pass forward; *loss_sum is 0 but on the last stage, on the
     * first place of its tensor axis. */
    int (*passes)(gpt2_strategy_t *self, const gpt2_batch_t *batches, float weight,
                  const gpt2_hooks_t *hooks, gpt2_error_t *error);
    int (*evaluate)(gpt2_strategy_t *self, const gpt2_batch_t *batch, double *loss_sum,
                    gpt2_error_t *error);
    void (*waits)(gpt2_strategy_t *self, gpt2_waits_t *waits);

    /* After an update: sends the weights from the rank that updated to all others. NULL: every
     * rank updates its own, and there is nothing to send. */
    int (*publish)(gpt2_strategy_t *self, gpt2_error_t *error);

    /* Where it shards, or copies are divided; collective. */
    /* *data [the group's count] = all of a group, on rank 0; elsewhere it is left alone. Good until
     * the next call for this arena, or end_collect(). */
    int (*collect)(gpt2_strategy_t *self, gpt2_arena_t arena, size_t group, const float **data,
                   gpt2_error_t *error);
    void (*end_collect)(gpt2_strategy_t *self);
    /* Every rank's part of rank 0's data [the group's count]; elsewhere data is not read. */
    int (*distribute)(gpt2_strategy_t *self, gpt2_arena_t arena, size_t group, const float *data,
                      gpt2_error_t *error);
    /* *hash = of all weights, each counted once; as the replica's checksum() where it has all. */
    int (*hash)(gpt2_strategy_t *self, uint64_t *hash, gpt2_error_t *error);
    /* *same = 1 where the weights that several ranks hold have the same bits. */
    int (*compare)(gpt2_strategy_t *self, int *same, gpt2_error_t *error);

    /* Lists what a checkpoint must have beside weights and moments; returns how many there are,
     * at most room. NULL: nothing. */
    size_t (*extra)(gpt2_strategy_t *self, gpt2_extra_t *list, size_t room);
    /* Before a checkpoint is written (is_loaded 0): brings what extra() lists into the memory that
     * it names; after one was read (1): takes it from there. NULL: it lies there. */
    int (*move_extra)(gpt2_strategy_t *self, int is_loaded, gpt2_error_t *error);

    /* values [count] = their sums over all ranks. */
    int (*sum)(gpt2_strategy_t *self, double *values, size_t count, gpt2_error_t *error);
    /* *same = 1 where every rank has this value. */
    int (*equal)(gpt2_strategy_t *self, uint64_t value, int *same, gpt2_error_t *error);
    /* data [bytes] becomes the root's; host memory, or the device's. */
    int (*broadcast)(gpt2_strategy_t *self, int root, void *data, size_t bytes,
                     gpt2_error_t *error);

    /* Marks for the timeline. */
    void (*step_begin)(gpt2_strategy_t *self, uint64_t step);
    void (*step_end)(gpt2_strategy_t *self);
    /* stream: the replica's, where work of its device is queued between the two; else NULL. */
    void (*span_begin)(gpt2_strategy_t *self, const char *name, void *stream);
    void (*span_end)(gpt2_strategy_t *self, void *stream);
    void (*traffic)(gpt2_strategy_t *self, gpt2_traffic_t *traffic);
    /* For people: how gradients travel, in a line; "": nothing to say. NULL: likewise. */
    void (*describe)(gpt2_strategy_t *self, char *text, size_t room);
    /* A setting in force, e.g. "TIMELINE"; NULL or "" where there is none. */
    const char *(*setting)(gpt2_strategy_t *self, const char *name);
} gpt2_strategy_ops_t;

/* The first member of every strategy's object. */
struct gpt2_strategy {
    const gpt2_strategy_ops_t *ops;
    int rank;
    int size;
    int node_size;    /* ranks of this node */
    gpt2_mesh_t mesh; /* the places of the ranks; set before attach */
    double divisor; /* set by attach: sync divides the sums by it, so losses are weighted with it */
    int is_follower; /* 1: the weights come by publish(), this rank does not update them */
    /* Of the next step's loss; 1 without loss scaling. Set by attach. */
    gpt2_loss_scale_t scale;
};

extern const gpt2_strategy_ops_t gpt2_strategy_single;
#if defined(GPT2_WITH_DP)
extern const gpt2_strategy_ops_t gpt2_strategy_coordinator;
extern const gpt2_strategy_ops_t gpt2_strategy_dps;
extern const gpt2_strategy_ops_t gpt2_strategy_sps;
#endif

/* The strategy of that name, or NULL with the error; NULL name: the first, the default. */
const gpt2_strategy_ops_t *gpt2_strategy_find(const char *name, gpt2_error_t *error);

/* Bytes of the fused buffers that libdp has from the start, by its settings in force; 0 without
 * libdp. */
size_t gpt2_strategy_library(gpt2_strategy_t *strategy);

/* 1: by its settings, libdp lets ranks of a node read each other's sharded weights. */
int gpt2_strategy_sees_rows(gpt2_strategy_t *strategy);

/* Refuses to compress gradients by this method where the strategy cannot. */
int gpt2_strategy_check_compress(const gpt2_strategy_t *strategy, const char *method,
                                 gpt2_error_t *error);

#endif
