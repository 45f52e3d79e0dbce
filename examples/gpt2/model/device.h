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

/* The plug-in's entry: its table. size: of gpt2_replica_t, gpt2_replica_ops_t and
 * gpt2_replica_options_t together; NULL where its own are not the same. */
typedef const gpt2_device_t *(*gpt2_cuda_entry_t)(size_t size);
#define GPT2_CUDA_ABI                                                                              \
    (sizeof(gpt2_replica_t) + sizeof(gpt2_replica_ops_t) + sizeof(gpt2_replica_options_t))

/* wanted: "cpu", "cuda" (an error that says why where there is none) or "auto": cuda where a device
 * is found. Opens the driver and the plug-in; they stay open, and libdp then takes the GPU too. */
int gpt2_device_find(const char *wanted, const gpt2_device_t **out, gpt2_error_t *error);

/* The CUDA device: 0. With the reason: 1 there is none, -1 there is one that cannot be used;
 * device_cuda.c. */
int gpt2_cuda_open(const gpt2_device_t **out, gpt2_error_t *error);

#endif
