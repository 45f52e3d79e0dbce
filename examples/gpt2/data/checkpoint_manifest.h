/*
 * checkpoint_manifest.h - the text that makes a folder a checkpoint: what is in it, with checksums.
 */
#ifndef GPT2_CHECKPOINT_MANIFEST_H
#define GPT2_CHECKPOINT_MANIFEST_H

#include <stdint.h>

#include "examples/gpt2/base/extra.h"
#include "examples/gpt2/model/shape.h"

/* The files that every checkpoint has, each with all tensors. */
typedef enum gpt2_arena { GPT2_WEIGHTS = 0, GPT2_MOMENT_M = 1, GPT2_MOMENT_V = 2 } gpt2_arena_t;
#define GPT2_ARENAS 3

/* Decides, besides the seed, which samples come next. Zeros: not known. */
typedef struct gpt2_order {
    uint64_t batch;       /* sequences of a step */
    uint64_t seq;         /* tokens of a sequence */
    uint64_t tokens;      /* of the training data */
    uint64_t fingerprint; /* of these, see gpt2_view_fingerprint() */
} gpt2_order_t;

/* Where a run stands, besides weights and moments. */
typedef struct gpt2_progress {
    uint64_t step;      /* steps done */
    uint64_t sequences; /* consumed, over all ranks */
    uint64_t updates;   /* of the optimizer */
    uint64_t skipped;   /* steps without an update */
    uint64_t seed;      /* of the data's order */
    gpt2_order_t order; /* of the run that saved it */
} gpt2_progress_t;

/* One file of extra state. */
typedef struct gpt2_manifest_extra {
    char name[GPT2_EXTRA_NAME_MAX];
    int rank;  /* whose it is; -1: everybody's */
    int ranks; /* of the run that saved it */
    size_t bytes;
    uint64_t hash;
} gpt2_manifest_extra_t;

typedef struct gpt2_manifest {
    gpt2_shape_t shape;
    gpt2_progress_t progress;
    gpt2_layout_t *layout;         /* of the shape; owned */
    uint64_t *hashes;              /* [GPT2_ARENAS][layout->count] */
    gpt2_manifest_extra_t *extras; /* [extra_count] */
    size_t extra_count;
} gpt2_manifest_t;

/* An empty one for this shape; give it back with gpt2_manifest_destroy(). */
int gpt2_manifest_create(const gpt2_shape_t *shape, gpt2_manifest_t **out, gpt2_error_t *error);
void gpt2_manifest_destroy(gpt2_manifest_t *manifest);

/* Adds a file of extra state. */
int gpt2_manifest_append(gpt2_manifest_t *manifest, const gpt2_manifest_extra_t *extra,
                         gpt2_error_t *error);

/* The file of that name and rank, or NULL. */
const gpt2_manifest_extra_t *gpt2_manifest_find(const gpt2_manifest_t *manifest, const char *name,
                                                int rank);

/* Writes it, durably: the last file of a checkpoint. */
int gpt2_manifest_save(const gpt2_manifest_t *manifest, const char *folder, gpt2_error_t *error);

/* Reads and checks it. */
int gpt2_manifest_load(const char *folder, gpt2_manifest_t **out, gpt2_error_t *error);

/* Reads its first lines only. */
int gpt2_manifest_inspect(const char *folder, gpt2_shape_t *shape, gpt2_progress_t *progress,
                          gpt2_error_t *error);

#endif
