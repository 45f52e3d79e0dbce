/*
 * plugin.h - what libdp-cuda.so offers libdp: the CUDA device, the NCCL engine, and their names.
 *
 * libdp never links CUDA. Where a driver is found it opens the library beside it and asks for one
 * table. Both are built from one tree: the structs they exchange are not stable, so version and
 * build must match exactly.
 */
#ifndef DP_DEVICE_PLUGIN_H
#define DP_DEVICE_PLUGIN_H

#include "runtime/device/device.h"

#define DP_PLUGIN_VERSION 2u /* grows with this file and with every ops table behind it */
#define DP_PLUGIN_FILE "libdp-cuda.so"
#define DP_PLUGIN_ENTRY "dp_cuda_plugin"

struct dp_bootstrap;
struct dp_config;
struct dp_engine;
struct dp_topology;
struct dp_trace;

typedef struct dp_device_options {
    int local_rank;   /* picks the device of a program that has not picked one */
    int local_size;   /* ranks of this machine */
    uint64_t spin_ns; /* longest a thread polls before it sleeps */
} dp_device_options_t;

typedef struct dp_plugin {
    uint32_t version;  /* DP_PLUGIN_VERSION */
    const char *build; /* dp_version() of the tree it comes from */
    /*
     * The device of the calling thread's current CUDA context where there is one; else number
     * local_rank modulo their count, which becomes current in this thread. log is borrowed until
     * destroy.
     */
    dp_status_t (*device_create)(const dp_device_options_t *options, const dp_log_t *log,
                                 dp_device_t **out, dp_error_t *error);
    /* As dp_engine_cpu_create(), on such a device; NULL: built without NCCL. */
    dp_status_t (*engine_create)(struct dp_bootstrap *bootstrap, const struct dp_topology *topology,
                                 dp_device_t *device, const struct dp_config *config,
                                 const dp_log_t *log, struct dp_trace *trace,
                                 struct dp_engine **out, dp_error_t *error);
    /* The versions it runs with, from which files, and those it was built with: "CUDA 13.0 (/...),
     * NCCL 2.28.9
     * (/...), built with 2.28.9". */
    void (*describe)(char *text, size_t room);
} dp_plugin_t;

/* The table, as long as the library is loaded; NULL: it is of another version. */
typedef const dp_plugin_t *(*dp_plugin_entry_t)(uint32_t version);

/* libdp's side: finds a driver, opens the library of the same build. text gets what was found, or
 * why it is of no use: DP_ERR_UNSUPPORTED no driver, no GPU or no plug-in, DP_ERR_MISMATCH one of
 * another build. */
dp_status_t dp_plugin_open(const dp_plugin_t **out, const char *build, char *text, size_t room);

#endif
