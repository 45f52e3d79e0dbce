/*
 * out_folder.h - the folder that --out names holds one run. run.c calls this on rank 0: open()
 * before a run is put together, clear() when it can start.
 */
#ifndef GPT2_OUT_FOLDER_H
#define GPT2_OUT_FOLDER_H

#include "examples/gpt2/train/options.h"

/* Makes the folder, locks other runs out, and refuses one that holds a run which this one does not
 * go on with, unless --overwrite is given. The caller closes *fd, which releases the lock. */
int gpt2_out_folder_open(const gpt2_options_t *options, int *fd, gpt2_error_t *error);

/* --overwrite: removes the log and the checkpoints of the run that the folder holds; where this run
 * goes on from one of them, only those that are newer. Touches nothing that the trainer did not
 * make. */
int gpt2_out_folder_clear(const gpt2_options_t *options, gpt2_error_t *error);

#endif
