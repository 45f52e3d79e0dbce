/*
 * cuda_call.c - how the device's files call CUDA: errors, the device that is current in a thread,
 * waiting for an event.
 *
 * Called by all other files of the device, on any thread; calls none of them. It must not know what
 * is enqueued on a stream.
 */
#include "runtime/device/cuda_internal.h"

#include <string.h>

#include "runtime/base/thread.h"

#define POLLS 16 /* between two looks at the clock; a query costs about as much as one */

/* ---- Errors --------------------------------------------------------------------------------- */

/* After these the process gets nothing more out of the device: CUDA documents for each that the
 * process must end, or that the device or CUDA itself is gone. All others refuse one call. */
static int is_final(int code)
{
    switch (code) {
    case cudaErrorCudartUnloading:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case 226: /* cudaErrorContained, of CUDA 13 */
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 721: /* cudaErrorTensorMemoryLeak, of CUDA 13 */
    case cudaErrorMpsClientTerminated:
    case cudaErrorUnknown:
        return 1;
    default:
        return 0;
    }
}

dp_status_t dp_cuda_result(cuda_device_t *device, int code, const char *call)
{
    const int length = (int)strcspn(call, "(");
    int is_first = 0;

    if (code == cudaSuccess) return DP_OK;
    (void)cudaGetLastError(); /* told below; the program's next question is not answered with it */
    if (is_final(code)) {
        pthread_mutex_lock(&device->lock);
        is_first = device->failure.status == DP_OK;
        if (is_first) {
            dp_error_set(&device->failure, DP_ERR_SYSTEM, "GPU %d failed: %.*s: %s: %s",
                         device->ordinal, length, call, cudaGetErrorName((cudaError_t)code),
                         cudaGetErrorString((cudaError_t)code));
        }
        pthread_mutex_unlock(&device->lock);
        /* The program has left main() without dp_finalize(): CUDA is gone, perhaps the skip flag's
         * memory too; nothing to report. */
        if (code == cudaErrorCudartUnloading) {
            atomic_store_explicit(&device->is_unloaded, 1, memory_order_relaxed);
            return DP_ERR_SYSTEM;
        }
        if (is_first) device->base.ops->abort(&device->base);
    }
    if (is_first || !is_final(code)) {
        dp_log_error(device->log, "GPU %d: %.*s: %s: %s", device->ordinal, length, call,
                     cudaGetErrorName((cudaError_t)code), cudaGetErrorString((cudaError_t)code));
    }
    return code == cudaErrorMemoryAllocation ? DP_ERR_NO_MEMORY : DP_ERR_SYSTEM;
}

/* ---- The calling thread's device ------------------------------------------------------------ */

static void *driver_entry(const char *name)
{
    enum cudaDriverEntryPointQueryResult result;
    void *function = NULL;

    if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result) !=
        cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return result == cudaDriverEntryPointSuccess ? function : NULL;
}

cuda_driver_t dp_cuda_find_driver(void)
{
    cuda_driver_t driver = {NULL, NULL};
    void *current = driver_entry("cuCtxGetCurrent");
    void *state = driver_entry("cuDevicePrimaryCtxGetState");

    memcpy(&driver.get_current, &current, sizeof(current));
    memcpy(&driver.get_state, &state, sizeof(state));
    return driver;
}

/* 1: the calling thread works with a device already. One that does not says that it is on device 0,
 * and its next call would make a context there. */
int dp_cuda_has_context(const cuda_driver_t *driver)
{
    CUcontext context = NULL;

    if (driver->get_current == NULL) return 0;
    return driver->get_current(&context) == CUDA_SUCCESS && context != NULL;
}

/* 1: going back to this device makes no context there that was not. */
static int is_in_use(const cuda_driver_t *driver, int ordinal)
{
    unsigned flags = 0;
    int is_active = 0;

    if (driver->get_state == NULL) return 0;
    return driver->get_state((CUdevice)ordinal, &flags, &is_active) == CUDA_SUCCESS && is_active;
}

/* A thread of ours goes on while the program captures a graph: the thread's work is no part of it.
 */
static dp_status_t ignore_captures(cuda_device_t *device)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

    return DP_CUDA(device, cudaThreadExchangeStreamCaptureMode(&mode));
}

int dp_cuda_is_capturing(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;

    if (cudaStreamIsCapturing(stream, &state) == cudaSuccess)
        return state != cudaStreamCaptureStatusNone;
    (void)cudaGetLastError(); /* the program does not meet this answer */
    return 1;
}

dp_status_t dp_cuda_arrive(cuda_device_t *device)
{
    if (dp_cuda_has_context(&device->driver)) return DP_OK;
    return DP_CUDA(device, cudaSetDevice(device->ordinal));
}

/* Without a context the thread is new here. */
dp_status_t dp_cuda_enter(cuda_device_t *device)
{
    int now = -1;
    dp_status_t status;

    if (dp_cuda_has_context(&device->driver)) {
        status = DP_CUDA(device, cudaGetDevice(&now));
        if (status != DP_OK || now == device->ordinal) return status;
    } else {
        status = ignore_captures(device);
        if (status != DP_OK) return status;
    }
    return DP_CUDA(device, cudaSetDevice(device->ordinal));
}

dp_status_t dp_cuda_visit(cuda_device_t *device, int *back)
{
    int now = device->ordinal;
    dp_status_t status = dp_cuda_arrive(device);

    *back = -1;
    if (status == DP_OK) status = DP_CUDA(device, cudaGetDevice(&now));
    if (status != DP_OK || now == device->ordinal) return status;
    if (is_in_use(&device->driver, now)) *back = now;
    return DP_CUDA(device, cudaSetDevice(device->ordinal));
}

void dp_cuda_leave(cuda_device_t *device, int back)
{
    if (back >= 0) (void)DP_CUDA(device, cudaSetDevice(back));
}

/* ---- Waiting -------------------------------------------------------------------------------- */

/* CUDA notes this answer as the thread's last error, like any other that is not success; the
 * program would take it for that of a launch of its own. */
cudaError_t dp_cuda_query(cudaEvent_t event)
{
    const cudaError_t code = cudaEventQuery(event);

    if (code == cudaErrorNotReady) (void)cudaGetLastError();
    return code;
}

cudaError_t dp_cuda_await(const cuda_device_t *device, cudaEvent_t event)
{
    const uint64_t start_ns = device->spin_ns > 0 ? dp_now_ns() : 0;
    cudaError_t code = dp_cuda_query(event);
    unsigned polls = 0;

    while (code == cudaErrorNotReady && device->spin_ns > 0) {
        dp_spin_pause();
        code = dp_cuda_query(event);
        if (++polls % POLLS == 0 && dp_now_ns() - start_ns >= device->spin_ns) break;
    }
    return code == cudaErrorNotReady ? cudaEventSynchronize(event) : code;
}
