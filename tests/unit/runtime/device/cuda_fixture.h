/*
 * cuda_fixture.h - what the tests of the CUDA device over the double of the runtime share: a device
 * with three streams, and gates that hold a stream up.
 */
#ifndef DP_TESTS_CUDA_FIXTURE_H
#define DP_TESTS_CUDA_FIXTURE_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <unistd.h>

#include "runtime/device/cuda.h"
#include "tests/gpu/double/cuda_runtime.h"
#include "tests/unit/cases.h"

enum { streams_max = 3 };

typedef struct fixture {
    dp_log_t log;
    dp_device_t *device;
    const dp_device_ops_t *ops;
    dp_stream_t *stream[streams_max];
    void *memory;
} fixture_t;

/* fd: where the log goes, settled before the device's thread starts; -1: nowhere. */
static inline dp_status_t make_logged(fixture_t *f, int local_rank, int fd, dp_error_t *error)
{
    const dp_device_options_t options = {.local_rank = local_rank, .local_size = 1, .spin_ns = 0};

    dp_log_init(&f->log, DP_LOG_ERROR, 0);
    f->log.fd = fd;
    return dp_device_cuda_create(&options, &f->log, &f->device, error);
}

static inline dp_status_t make(fixture_t *f, int local_rank, dp_error_t *error)
{
    return make_logged(f, local_rank, STDERR_FILENO, error);
}

static inline void open_device(fixture_t *f, int fd)
{
    dp_error_t error = {DP_OK, ""};

    assert_int_equal(make_logged(f, 0, fd, &error), DP_OK);
    f->ops = f->device->ops;
    for (int i = 0; i < streams_max; i++)
        assert_int_equal(f->ops->stream_create(f->device, "test", &f->stream[i]), DP_OK);
}

static inline void begin_logged(fixture_t *f, int fd)
{
    cuda_double_reset();
    open_device(f, fd);
}

static inline void begin(fixture_t *f)
{
    begin_logged(f, STDERR_FILENO);
}

/* The failures are meant. */
static inline void begin_quiet(fixture_t *f)
{
    begin_logged(f, -1);
}

static inline void end(fixture_t *f)
{
    for (int i = 0; i < streams_max; i++)
        f->ops->stream_destroy(f->stream[i]);
    dp_device_destroy(f->device);
    cuda_double_set_jitter(0);
    assert_int_equal(cuda_double_live(), 0);
}

/* Work in a stream that others wait for: holds it up until opened. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int is_open;
} gate_t;

static inline void gate_init(gate_t *gate)
{
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->change, NULL);
    gate->is_open = 0;
}

static inline void CUDART_CB gate_pass(void *argument)
{
    gate_t *gate = argument;

    pthread_mutex_lock(&gate->lock);
    while (!gate->is_open)
        pthread_cond_wait(&gate->change, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

static inline void gate_open(gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->is_open = 1;
    pthread_cond_broadcast(&gate->change);
    pthread_mutex_unlock(&gate->lock);
}

static inline void hold(fixture_t *f, int stream, gate_t *gate)
{
    gate_init(gate);
    assert_int_equal(cudaLaunchHostFunc(f->ops->stream_native(f->stream[stream]), gate_pass, gate),
                     cudaSuccess);
}

typedef struct list {
    int at[64];
    size_t count;
} list_t;

typedef struct note {
    list_t *list;
    int value;
} note_t;

static inline void append(void *argument)
{
    const note_t *note = argument;

    note->list->at[note->list->count++] = note->value;
}

#endif
