/*
 * emulated.h - an engine without other ranks, whose wire takes as long as theirs would: to study
 * how much of it a program hides. Never to be taken for a measurement of a network.
 */
#ifndef DP_ENGINE_EMULATED_H
#define DP_ENGINE_EMULATED_H

#include "runtime/engine/engine.h"

/* Keeps a device's stream busy for a time. */
typedef dp_status_t (*dp_emulated_pace_t)(dp_stream_t *stream, uint64_t ns, dp_device_t *device);

/* In a world of one, with the config's emulate_ranks, _bandwidth and _latency_ns. pace: of an
 * asynchronous device; NULL on the host. The rest as dp_engine_cpu_create(). */
dp_status_t dp_engine_emulated_create(dp_bootstrap_t *bootstrap, dp_device_t *device,
                                      const dp_config_t *config, const dp_log_t *log,
                                      dp_trace_t *trace, dp_emulated_pace_t pace, dp_engine_t **out,
                                      dp_error_t *error);

/*
 * How long a ring of `ranks` takes for `bytes` of one of them, as engines see them: of an
 * allreduce, reduce, broadcast or exchange what the rank gives, of an allgather and a
 * reduce_scatter one row.
 */
uint64_t dp_emulated_ns(dp_collective_t collective, int ranks, uint64_t bytes, uint64_t bandwidth,
                        uint64_t latency_ns);

#endif
