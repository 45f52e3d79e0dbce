/*
 * fake_gpu.c - libdp for test_stream_wait.py: operations with a stream, on a context without a GPU.
 *
 * Loaded as LIBDP_PATH, it stands before libdp and hands all calls on. A stream is dropped
 * from the options, as the context has none. The test says how far operations have come: not
 * issued, issued and on the way, over, or failed on the way; and reads which streams waited.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dp.h"

enum { UNISSUED, ISSUED, OVER, FAILED };

/* Of the test, which has one thread at a time in here that changes them. */
_Atomic int fake_state = OVER;
_Atomic int fake_waits;          /* of streams */
void *_Atomic fake_stream;       /* that waited last */
void *_Atomic fake_ready_stream; /* of the last submission */

static void *next(const char *name)
{
    void *libdp = dlopen(getenv("FAKE_LIBDP"), RTLD_LAZY);
    void *found = libdp == NULL ? NULL : dlsym(libdp, name);

    if (found == NULL) abort();
    return found;
}

static dp_status_t late(double seconds)
{
    if (seconds != 0.0)
        usleep(seconds < 0.0 || seconds > 0.01 ? 10000 : (useconds_t)(seconds * 1e6));
    return DP_ERR_PENDING;
}

dp_status_t dp_allreduce(dp_group_t *group, const char *name, const void *in, void *out,
                         size_t count, dp_dtype_t dtype, const dp_options_t *options,
                         dp_handle_t **handle)
{
    dp_status_t (*call)(dp_group_t *, const char *, const void *, void *, size_t, dp_dtype_t,
                        const dp_options_t *, dp_handle_t **) = next("dp_allreduce");
    dp_options_t given = *options;

    fake_ready_stream = given.stream;
    given.stream = NULL;
    return call(group, name, in, out, count, dtype, &given, handle);
}

dp_status_t dp_stream_wait(dp_handle_t *handle, void *stream, double seconds)
{
    dp_status_t (*call)(dp_handle_t *, void *, double) = next("dp_stream_wait");
    dp_status_t status;

    if (fake_state == UNISSUED) return late(seconds);
    status = call(handle, NULL, seconds);
    if (status != DP_OK) return status;
    fake_stream = stream;
    fake_waits++;
    return DP_OK;
}

dp_status_t dp_wait(dp_handle_t *handle, double seconds, dp_result_t *result)
{
    dp_status_t (*call)(dp_handle_t *, double, dp_result_t *) = next("dp_wait");
    dp_status_t status;

    if (fake_state < OVER) return late(seconds);
    status = call(handle, seconds, result);
    if (status != DP_OK || fake_state != FAILED) return status;
    if (result != NULL) result->text = "rank 1: the link broke under tensor t";
    return DP_ERR_SYSTEM;
}
