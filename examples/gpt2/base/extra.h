/*
 * extra.h - state of a run beside weights and moments: a loss scale, residuals of compression.
 *
 * Strategies and replicas list theirs; checkpoints save each as a file of its own and bring it back
 * (checkpoint_extra.h). A run without any has checkpoints without such files.
 */
#ifndef GPT2_EXTRA_H
#define GPT2_EXTRA_H

#include <stddef.h>

#define GPT2_EXTRAS_MAX 16
#define GPT2_EXTRA_NAME_MAX 32 /* with the terminator */

/* The same list, in the same order and with the same sizes, on every rank. */
typedef struct gpt2_extra {
    const char *name; /* lower case, digits, '_'; static */
    void *data;       /* [bytes], host memory: read by a save, written by a resume */
    size_t bytes;
    int per_rank;    /* 1: every rank has its own; 0: rank 0's is saved, and restored on all */
    int is_optional; /* 1: a run resumed from a checkpoint without it begins with what it has */
} gpt2_extra_t;

#endif
