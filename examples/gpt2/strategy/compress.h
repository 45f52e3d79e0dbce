/*
 * compress.h - gradients that travel compressed: what strategy_coordinator.c calls in place of
 * libdp's dp_gradients, and what its methods (topk.c, powersgd.c) fill in.
 *
 * A method takes some of the matrices; all other tensors, and all of them in steps before
 * settings.start, are averaged as they are. Main thread only. The gradients after a step, its norm,
 * and whether it is skipped are the same bits on all ranks.
 */
#ifndef GPT2_COMPRESS_H
#define GPT2_COMPRESS_H

#include "examples/gpt2/strategy/strategy_dp.h"

typedef struct gpt2_compress gpt2_compress_t;

/* One way to compress; a file and a line in compress.c. Entries return 0, or -1 with the cause. */
typedef struct gpt2_compress_method {
    const char *name; /* as in --compress */
    /* 1: this tensor is compressed. Pure. */
    int (*takes)(const gpt2_compress_settings_t *settings, const gpt2_tensor_t *tensor);
    /* Bytes that a rank sends for it in a step, in the long run. Pure. */
    double (*bytes)(const gpt2_compress_settings_t *settings, const gpt2_tensor_t *tensor,
                    int ranks);
    /* Memory for the tensors that takes() wants. destroy() takes what create() left half made. */
    int (*create)(gpt2_compress_t *self, gpt2_error_t *error);
    void (*destroy)(gpt2_compress_t *self);
    /* A tensor's gradient is complete: sends its first message. */
    int (*begin)(gpt2_compress_t *self, size_t index, gpt2_error_t *error);
    /* Takes the answer and sends a second message. NULL: there is only one. */
    int (*middle)(gpt2_compress_t *self, size_t index, gpt2_error_t *error);
    /* Takes the last answer. *bad = 1 where some rank had an Inf or a NaN. */
    int (*end)(gpt2_compress_t *self, size_t index, int *bad, gpt2_error_t *error);
    /* Called if the whole step was finite: replaces the gradient by what the ranks agreed on, and
     * keeps the rest for later. *squares = the sum of squares of the former. */
    int (*finish)(gpt2_compress_t *self, size_t index, double *squares, gpt2_error_t *error);
    /* Lists what a checkpoint needs beside the residuals: entries of list, at most room; returns
     * how many. NULL: nothing. */
    size_t (*extra)(gpt2_compress_t *self, gpt2_extra_t *list, size_t room);
} gpt2_compress_method_t;

extern const gpt2_compress_method_t gpt2_compress_topk;
extern const gpt2_compress_method_t gpt2_compress_powersgd;

/* Floats that a rank keeps from step to step, laid out as the model is. */
typedef struct gpt2_compress_arena {
    float *at;     /* in the replica's memory; NULL: there is none */
    float *mirror; /* on their way to or from a checkpoint, where `at` is a GPU's; else NULL */
} gpt2_compress_arena_t;

struct gpt2_compress {
    gpt2_dp_t *dp;           /* borrowed */
    gpt2_replica_t *replica; /* borrowed */
    gpt2_strategy_settings_t settings;
    const gpt2_compress_method_t *method;
    const gpt2_compress_kernels_t *kernels;
    gpt2_compress_arena_t residual; /* what has not been sent */
    gpt2_compress_arena_t momentum; /* of --compress-momentum */
    uint8_t *takes;                 /* [layout->count] 1: the method's */
    int *readies;                   /* [layout->count] since the last sync */
    dp_handle_t **handles;          /* [layout->count] in flight */
    int is_dense;                   /* 1: this step compresses nothing */
    int is_on_host; /* 1: the replica's memory is; kept, as the replica ends first */
    void *state;    /* the method's */
};

/* The method of that name; NULL: "none". The options have checked the name. */
const gpt2_compress_method_t *gpt2_compress_find(const char *name);

/* Bytes that a rank sends in a step, compressed and as it is, with fp32 on the wire. Pure. */
void gpt2_compress_bytes(const gpt2_compress_settings_t *settings, const gpt2_layout_t *layout,
                         int ranks, double *compressed, double *dense);

/* Bytes of what a rank keeps for later steps: residuals, and momentum. Pure. */
size_t gpt2_compress_memory(const gpt2_compress_settings_t *settings, const gpt2_layout_t *layout);

/* Makes all weights equal to rank 0's. Collective. Give it back with gpt2_compress_destroy(). */
int gpt2_compress_create(gpt2_dp_t *dp, gpt2_replica_t *replica,
                         const gpt2_strategy_settings_t *settings, gpt2_compress_t **out,
                         gpt2_error_t *error);
void gpt2_compress_destroy(gpt2_compress_t *self);

/* As the entries of gpt2_strategy_ops_t. */
int gpt2_compress_ready(gpt2_compress_t *self, size_t first, size_t count, gpt2_error_t *error);
int gpt2_compress_sync(gpt2_compress_t *self, gpt2_sync_t *out, gpt2_error_t *error);
size_t gpt2_compress_extra(gpt2_compress_t *self, gpt2_extra_t *list, size_t room);
int gpt2_compress_move_extra(gpt2_compress_t *self, int is_loaded, gpt2_error_t *error);
/* "topk, 10.2 MB sent per rank and step instead of 498.0 MB" */
void gpt2_compress_describe(const gpt2_compress_t *self, char *text, size_t room);

/* For methods: copies between host memory and the replica's, and waits. */
int gpt2_compress_copy(gpt2_compress_t *self, void *to, const void *from, size_t bytes,
                       gpt2_error_t *error);

/* For methods: gradients are multiplied by it, 1 / the loss scale; residuals are without one. */
double gpt2_compress_unscale(const gpt2_compress_t *self);

/* For methods: submits the reduction of x [count] to its average, in place. scale: of the result
 * beside. */
int gpt2_compress_average(gpt2_compress_t *self, size_t index, const char *suffix, float *x,
                          size_t count, double scale, gpt2_error_t *error);
/* Waits for what was submitted for a tensor; result may be NULL. */
int gpt2_compress_wait(gpt2_compress_t *self, size_t index, dp_result_t *result,
                       gpt2_error_t *error);

#endif
