/*
 * checkpoint_extra.h - files of a checkpoint beside the three arenas: NAME.bin where all ranks have
 * the same, NAME.RANK.bin where each has its own. Read and written in pieces, in order.
 */
#ifndef GPT2_CHECKPOINT_EXTRA_H
#define GPT2_CHECKPOINT_EXTRA_H

#include <stdint.h>
#include <stdio.h>

#include "examples/gpt2/base/files.h"
#include "examples/gpt2/data/checkpoint_manifest.h"

#define GPT2_EXTRA_PIECE ((size_t)1 << 20) /* bytes; all pieces of a file but the last */

/* A file being read or written. */
typedef struct gpt2_extra_file {
    char path[GPT2_PATH_MAX];
    FILE *file;                  /* NULL: not open */
    gpt2_manifest_extra_t entry; /* with the bytes and the checksum so far */
} gpt2_extra_file_t;

/* Creates the file; rank -1: everybody's. */
int gpt2_extra_create(gpt2_extra_file_t *self, const char *folder, const char *name, int rank,
                      int ranks, gpt2_error_t *error);
/* Appends a piece. */
int gpt2_extra_write(gpt2_extra_file_t *self, const void *data, size_t bytes, gpt2_error_t *error);
/* Makes it durable and closes it; self->entry is then what the manifest has to say. */
int gpt2_extra_commit(gpt2_extra_file_t *self, gpt2_error_t *error);

/* Opens what a manifest lists; a file of another length is refused. */
int gpt2_extra_open(gpt2_extra_file_t *self, const char *folder,
                    const gpt2_manifest_extra_t *listed, gpt2_error_t *error);
/* Reads the next piece. */
int gpt2_extra_read(gpt2_extra_file_t *self, void *data, size_t bytes, gpt2_error_t *error);
/* After the last piece: compares the checksum with the manifest's. Closes the file in any case. */
int gpt2_extra_finish(gpt2_extra_file_t *self, const gpt2_manifest_extra_t *listed,
                      gpt2_error_t *error);
/* Closes it without a look; for failures. */
void gpt2_extra_close(gpt2_extra_file_t *self);

/* Whether a checkpoint's files serve this extra in a run of `ranks` ranks: 1, or 0 where there are
 * none and the extra is optional; else -1 with the reason. folder: for the text. */
int gpt2_extra_check(const gpt2_manifest_t *manifest, const char *folder, const gpt2_extra_t *extra,
                     int ranks, gpt2_error_t *error);

/* Reads a listed file whole and compares its checksum; buffer [GPT2_EXTRA_PIECE]. */
int gpt2_extra_verify(const char *folder, const gpt2_manifest_extra_t *listed, void *buffer,
                      gpt2_error_t *error);

#endif
