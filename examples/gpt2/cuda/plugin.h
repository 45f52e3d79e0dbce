/*
 * plugin.h - the GPU as a device of the trainer: see examples/gpt2/model/device.h.
 */
#ifndef GPT2_CUDA_PLUGIN_H
#define GPT2_CUDA_PLUGIN_H

#include "examples/gpt2/model/device.h"

/* A replica on the current device. Give it back with ops->destroy(). */
int gpt2_replica_cuda_create(const gpt2_replica_options_t *options, gpt2_replica_t **out,
                             gpt2_error_t *error);

#endif
