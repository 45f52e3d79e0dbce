/*
 * replica.h - a replica on a GPU, seen from inside: what replica.c, transfer.c, supply.c,
 * forward.c, backward.c, optimize.c and step.c share.
 *
 * Everything a step does is queued on one stream. The host learns what became of a step one step
 * later, through events and pinned words, so that it never waits for the device inside one.
 */
#ifndef GPT2_CUDA_REPLICA_H
#define GPT2_CUDA_REPLICA_H

#include <cuda_runtime_api.h>

#include "examples/gpt2/cuda/matmul.h"
#include "examples/gpt2/cuda/plan.h"
#include "examples/gpt2/model/replica.h"

#define GPT2_CUDA_IN_FLIGHT 2 /* steps or passes: one on the device, one queued */

/* Small numbers in device memory. */
typedef struct gpt2_cuda_words {
    double loss;       /* of the step so far */
    double evaluation; /* of one batch */
    double squares;    /* of all gradients */
    uint64_t checksum;
    float clip;
    float norm;
    uint32_t skip;
} gpt2_cuda_words_t;

/* How a step ended, in pinned memory. */
typedef struct gpt2_cuda_ending {
    double loss;
    float norm;
    uint32_t skip;
} gpt2_cuda_ending_t;

/* The moments of a step that are timed. */
typedef enum gpt2_cuda_mark {
    GPT2_MARK_BEGIN,    /* of the step */
    GPT2_MARK_PASS,     /* its last pass begins */
    GPT2_MARK_HEAD,     /* the blocks of that pass are through */
    GPT2_MARK_BACKWARD, /* its gradients are complete */
    GPT2_MARK_UPDATE,   /* the averages are there */
    GPT2_MARK_END,
    GPT2_MARKS
} gpt2_cuda_mark_t;

/* Plans of the model's matrix products. */
typedef struct gpt2_cuda_products {
    const gpt2_matmul_t *qkv, *qkv_input, *qkv_weight;
    const gpt2_matmul_t *proj, *proj_input, *proj_weight;
    const gpt2_matmul_t *fc, *fc_input, *fc_weight;
    const gpt2_matmul_t *fcproj, *fcproj_input, *fcproj_weight;
    const gpt2_matmul_t *head, *head_input, *head_weight;
} gpt2_cuda_products_t;

typedef struct gpt2_cuda_replica {
    gpt2_replica_t base;
    gpt2_layout_t *layout; /* owned */
    gpt2_cuda_type_t type;
    gpt2_cuda_plan_t plan;
    gpt2_allocator_t allocator; /* of the gradients; alloc NULL: their own */
    gpt2_matmuls_t *matmuls;
    gpt2_cuda_products_t products;
    gpt2_cuda_state_t state;
    gpt2_cuda_activations_t pass;
    char *state_memory;
    char *pass_memory;
    /* supply.c: where the groups lie, [groups]: weights as products read them, in full as the
     * optimizer has them, their vectors in fp32, gradients; and of 1-D tensors, at level 2, the
     * place in state.vectors [layout->count]. */
    void **low_at;
    const float **full_at;
    float **vectors_at;
    float **gradients_at;
    size_t *vector_places;
    const gpt2_supply_t *supply; /* NULL: arenas */
    uint8_t *is_at_hand;         /* [groups] 1: asked for, and made ready for the kernels */
    int is_stopped;              /* 1: the supply has stopped a pass, and says why */
    gpt2_part_t *parts;          /* [groups] what this replica updates, where it is supplied */
    char *part_memory;           /* their moments and masters */
    gpt2_cuda_words_t *words;    /* device */
    double *sum_scratch;         /* device */
    void *low_rank_scratch;      /* device; low_rank.c */
    size_t low_rank_bytes;
    void *sparse_scratch;   /* device; sparse.c */
    double *sparse_squares; /* pinned, of each part of a tensor */
    size_t sparse_count;    /* elements of the largest tensor that both are for */
    cudaStream_t stream;
    char (*block_names)[24]; /* [layers]: "backward h.3" */
    char gpu[128];
    size_t free_bytes; /* of the device, when all was allocated */
    char notice[256];  /* about the products' cache; "": none */

    /* Pinned, in turn: a batch on its way up. */
    char *upload[GPT2_CUDA_IN_FLIGHT];
    cudaEvent_t uploaded[GPT2_CUDA_IN_FLIGHT];
    uint64_t uploads;
    int32_t *token_counts; /* [vocab] scratch of the embedding's plan */

    /* Where rows of lookups lie apart. */
    int32_t *announced;  /* [GPT2_CUDA_IN_FLIGHT][lookups], pinned: tokens, in turn as steps are */
    int32_t *token_rows; /* [vocab] 1 + the row of a token; 0: it was not announced */
    int32_t *looked_up;  /* [rows] scratch: the rows of a pass's tokens */

    /* In turn: a step. */
    gpt2_cuda_ending_t *endings; /* [GPT2_CUDA_IN_FLIGHT], pinned */
    cudaEvent_t marks[GPT2_CUDA_IN_FLIGHT][GPT2_MARKS];
    gpt2_sync_t syncs[GPT2_CUDA_IN_FLIGHT];
    uint64_t steps; /* ended by update() */

    /* Borrowed. */
    gpt2_model_t *model;
    gpt2_optimizer_t *optimizer;
    size_t length; /* tokens of a sequence */
} gpt2_cuda_replica_t;

/* One pass over the rows of the plan. Rows behind the batch's are sequences of token 0 whose
 * losses do not count, so that every shape is known when the plans are made. */
typedef struct gpt2_cuda_pass {
    gpt2_cuda_replica_t *self;
    const gpt2_hooks_t *hooks;
    size_t rows;    /* of the plan; 0: the pass has no sequences */
    size_t counted; /* of these, the batch's */
    size_t width;
    int training;
    int accumulate;
    float weight;
    const int32_t *inputs; /* device */
    const int32_t *targets;
    const void *embed_plan;
    int code; /* the first call that failed ... */
    const char *what;
    int stopped; /* 1: a hook, or the supply, did */
} gpt2_cuda_pass_t;

/* 0, or -1 with "what: the runtime's words". */
int gpt2_cuda_check(int code, const char *what, gpt2_error_t *error);
/* Remembers the first call of a pass that failed. The work queued behind it computes nonsense,
 * which is never used. */
void gpt2_cuda_note(gpt2_cuda_pass_t *pass, const char *what, int code);

/* A weight as matrix products read it, in full as the optimizer has it, and a gradient. */
const void *gpt2_cuda_weight(const gpt2_cuda_replica_t *self, size_t index);
const float *gpt2_cuda_full_weight(const gpt2_cuda_replica_t *self, size_t index);
float *gpt2_cuda_gradient(const gpt2_cuda_replica_t *self, size_t index);
size_t gpt2_cuda_block_index(const gpt2_cuda_replica_t *self, int layer, gpt2_block_tensor_t which);
/* Element `at` of an array of the replica's type. */
void *gpt2_cuda_at(const gpt2_cuda_replica_t *self, void *array, size_t at);

void gpt2_cuda_span_begin(const gpt2_cuda_pass_t *pass, const char *name);
void gpt2_cuda_span_end(const gpt2_cuda_pass_t *pass);

/* supply.c: the tables of places, and what they say of arenas; of a supplied replica what it
 * updates, and how its passes get groups and give them back. fetch: -1: the pass is over. */
int gpt2_cuda_places_create(gpt2_cuda_replica_t *self);
int gpt2_cuda_places_fill(gpt2_cuda_replica_t *self, gpt2_error_t *error);
void gpt2_cuda_places_destroy(gpt2_cuda_replica_t *self);
int gpt2_cuda_supply(gpt2_replica_t *base, const gpt2_supply_t *supply, const gpt2_part_t *parts,
                     gpt2_error_t *error);
int gpt2_cuda_copy(gpt2_replica_t *base, void *to, const void *from, size_t bytes,
                   gpt2_error_t *error);
int gpt2_cuda_draw(gpt2_replica_t *base, uint64_t seed, gpt2_error_t *error);
int gpt2_cuda_fetch(gpt2_cuda_pass_t *pass, size_t group, gpt2_phase_t phase);
void gpt2_cuda_return(gpt2_cuda_pass_t *pass, size_t group, gpt2_phase_t phase);
/* The end of a pass without backward. */
void gpt2_cuda_return_head(gpt2_cuda_pass_t *pass);
/* A pass without sequences: its calls, and gradients of zero. */
void gpt2_cuda_walk(gpt2_cuda_pass_t *pass);
/* -1 with the supply's reason where it has stopped a pass. */
int gpt2_cuda_check_supply(const gpt2_cuda_replica_t *self, gpt2_error_t *error);
/* Level 2, with arenas: the 16-bit weights were written; their vectors in fp32 follow. */
int gpt2_cuda_widen_arena(const gpt2_cuda_replica_t *self);

/* transfer.c */
int gpt2_cuda_host_threads(void);
int gpt2_cuda_borrow(gpt2_replica_t *base, int moments, gpt2_state_t *state, gpt2_error_t *error);
int gpt2_cuda_give_back(gpt2_replica_t *base, int changed, gpt2_error_t *error);
int gpt2_cuda_refresh(gpt2_replica_t *base, gpt2_error_t *error);
int gpt2_cuda_checksum(gpt2_replica_t *base, uint64_t *value, gpt2_error_t *error);
int gpt2_cuda_logits(gpt2_replica_t *base, const gpt2_batch_t *batch, float *logits,
                     gpt2_error_t *error);
/* Queues a batch on its way up and fills in the pass. Waits where both buffers are in flight. */
int gpt2_cuda_send_batch(gpt2_cuda_replica_t *self, const gpt2_batch_t *batch,
                         gpt2_cuda_pass_t *pass, gpt2_error_t *error);

/* forward.c: the blocks up to the final norm; the head with its loss into *loss (device), with
 * training its gradients too; the logits of part `part` of the head. */
void gpt2_cuda_forward(gpt2_cuda_pass_t *pass);
void gpt2_cuda_head(gpt2_cuda_pass_t *pass, double *loss);
void gpt2_cuda_head_logits(gpt2_cuda_pass_t *pass, size_t part);

/* backward.c: everything behind the head; hands gradients over, which notes in the pass that a hook
 * ends it. */
void gpt2_cuda_backward(gpt2_cuda_pass_t *pass);
void gpt2_cuda_hand_over(gpt2_cuda_pass_t *pass, size_t first, size_t count);

/* optimize.c: the tables that the optimizer has in the device's memory, beside the moments; fills
 * them in; queues an update, where clip is known on the host, or 1 and sync has it. */
size_t gpt2_cuda_optimizer_bytes(const gpt2_optimizer_settings_t *settings,
                                 const gpt2_layout_t *layout);
int gpt2_cuda_optimizer_fill(gpt2_cuda_replica_t *self, gpt2_error_t *error);
int gpt2_cuda_optimize(gpt2_cuda_replica_t *self, double learning_rate, double clip,
                       const gpt2_sync_t *sync);

/* low_rank.c */
extern const gpt2_low_rank_ops_t gpt2_cuda_low_rank;

/* sparse.c */
extern const gpt2_sparse_ops_t gpt2_cuda_sparse;
void gpt2_cuda_sparse_free(gpt2_cuda_replica_t *self);

/* step.c */
int gpt2_cuda_train(gpt2_replica_t *base, const gpt2_batch_t *batch, float weight, int accumulate,
                    const gpt2_hooks_t *hooks, gpt2_error_t *error);
int gpt2_cuda_evaluate(gpt2_replica_t *base, const gpt2_batch_t *batch, double *loss_sum,
                       gpt2_error_t *error);
int gpt2_cuda_norm(gpt2_replica_t *base, double clip, double by, gpt2_sync_t *sync,
                   gpt2_error_t *error);
int gpt2_cuda_announce(gpt2_replica_t *base, const int32_t *tokens, size_t count,
                       gpt2_error_t *error);
int gpt2_cuda_join(gpt2_replica_t *base, double clip, gpt2_sync_t *sync, gpt2_error_t *error);
int gpt2_cuda_update(gpt2_replica_t *base, double learning_rate, const gpt2_sync_t *sync,
                     gpt2_error_t *error);
int gpt2_cuda_settle(gpt2_replica_t *base, gpt2_outcome_t *outcome, gpt2_error_t *error);

#endif
