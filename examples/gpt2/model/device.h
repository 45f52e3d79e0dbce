/*
 * device.h - the devices a replica can live on, and which one this machine has.
 */
#ifndef GPT2_DEVICE_H
#define GPT2_DEVICE_H

#include "examples/gpt2/model/replica.h"

#define GPT2_CUDA_PLUGIN "libgpt2-cuda.so"
#define GPT2_CUDA_ENTRY "gpt2_cuda_device"

typedef struct gpt2_device {
    const char *name; /* as in --device */
    /* A replica on the device that is current in the calling thread. */
    int (*create)(const gpt2_replica_options_t *options, gpt2_replica_t **out, gpt2_error_t *error);
} gpt2_device_t;

/* The plug-in's entry returns its table, or NULL where it was built with other structs: size is
 * GPT2_CUDA_ABI of the program, which the plug-in compares with its own. */
typedef const gpt2_device_t *(*gpt2_cuda_entry_t)(size_t size);
#define GPT2_CUDA_ABI                                                                              \
    (sizeof(gpt2_replica_t) + sizeof(gpt2_replica_ops_t) + sizeof(gpt2_replica_options_t))

/* wanted: "cpu", "cuda" (an error that says why where there is none) or "auto": cuda where a device
 * is found. Opens the driver and the plug-in; they stay open, and libdp then takes the GPU too. */
int gpt2_device_find(const char *wanted, const gpt2_device_t **out, gpt2_error_t *error);

/* Opens the CUDA device and returns 0. Else the reason is in error: 1 means there is no GPU, -1
 * there is one that cannot be used. */
int gpt2_cuda_open(const gpt2_device_t **out, gpt2_error_t *error);

#endif
