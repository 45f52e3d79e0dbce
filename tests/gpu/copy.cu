/*
 * copy.cu - the first program of a visit to a GPU: does anything run at all, and how fast is a
 * copy?
 *
 *     gpu_copy [MIB]
 *
 * Fills memory with a kernel, copies it by cudaMemcpy, by a kernel, to the host and back, in odd
 * sizes too, and compares every byte. Then it measures each way; other programs' bandwidths are
 * read beside these. Needs cudart alone: neither libdp nor any kernel of ours. Compiled once for a
 * GPU and once for the double, where a rate says nothing. Exits with 77 where there is no GPU.
 */
#include <cuda_runtime.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda_launch.cuh"

enum { THREADS = 256, RUNS = 7 };

#ifdef DP_SIMT
static const unsigned default_mib = 1, repeats = 1;
#else
static const unsigned default_mib = 1024, repeats = 5;
#endif

static int failures;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        const cudaError_t must_status = (call);                                                    \
        if (must_status != cudaSuccess) {                                                          \
            fprintf(stderr, "gpu_copy:%d: %s: %s (%d)\n", __LINE__, #call,                         \
                    cudaGetErrorString(must_status), (int)must_status);                            \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- Kernels -------------------------------------------------------------------------------- */

/* The value that word i must have: no two neighbours alike, and not 0, which slow and broken copies
 * share. */
static __host__ __device__ uint32_t word_of(size_t i)
{
    return (uint32_t)(i * 2654435761u) ^ (uint32_t)(i >> 7) ^ 0x9e3779b9u;
}

static __global__ void fill(uint32_t *out, size_t count)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        out[i] = word_of(i);
}

static __global__ void copy(uint4 *to, const uint4 *from, size_t count)
{
    const size_t step = (size_t)gridDim.x * blockDim.x;

    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = from[i];
}

/* ---- The ways a copy can go ----------------------------------------------------------------- */

typedef struct way {
    const char *name;
    void *to;
    const void *from;
    enum cudaMemcpyKind kind;
    int by_kernel;
    double traffic; /* bytes of memory moved per byte copied: read and written, or over the link */
} way_t;

static unsigned blocks; /* enough to fill the GPU */

static void run_way(const way_t *way, size_t bytes)
{
    if (way->by_kernel) {
        MUST(DP_LAUNCH(copy, blocks, THREADS, 0, NULL, (uint4 *)way->to, (const uint4 *)way->from,
                       bytes / sizeof(uint4)));
    } else {
        MUST(cudaMemcpyAsync(way->to, way->from, bytes, way->kind, NULL));
    }
}

/* GB/s: the median of some runs. */
static double measure(const way_t *way, size_t bytes)
{
    double times[RUNS];
    cudaEvent_t begin, end;

    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int i = 0; i < RUNS; i++) {
        float ms;

        MUST(cudaEventRecord(begin, NULL));
        for (unsigned k = 0; k < repeats; k++)
            run_way(way, bytes);
        MUST(cudaEventRecord(end, NULL));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        times[i] = ms > 0.0f ? ms : 1e-3;
        for (int k = i; k > 0 && times[k - 1] > times[k]; k--) {
            const double swap = times[k];

            times[k] = times[k - 1];
            times[k - 1] = swap;
        }
    }
    MUST(cudaEventDestroy(begin));
    MUST(cudaEventDestroy(end));
    return way->traffic * (double)bytes * repeats / (times[RUNS / 2] * 1e6);
}

/* host [bytes] must be the pattern; what lies behind it must be untouched. */
static void compare(const char *what, const unsigned char *host, size_t bytes, size_t room)
{
    for (size_t i = 0; i < bytes; i++) {
        const uint32_t word = word_of(i / 4);

        if (host[i] == ((const unsigned char *)&word)[i % 4]) continue;
        fprintf(stderr, "gpu_copy: %s of %zu bytes: byte %zu is wrong\n", what, bytes, i);
        failures++;
        return;
    }
    for (size_t i = bytes; i < room; i++) {
        if (host[i] == 0xa5) continue;
        fprintf(stderr, "gpu_copy: %s of %zu bytes: byte %zu, behind its end, was written\n", what,
                bytes, i);
        failures++;
        return;
    }
}

/* from [room] on the device holds the pattern. */
static void check(const unsigned char *from, unsigned char *to, unsigned char *pinned, size_t bytes,
                  size_t room)
{
    const way_t kernel = {"", to, from, cudaMemcpyDeviceToDevice, 1, 0.0};

    MUST(cudaMemset(to, 0xa5, room));
    MUST(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, NULL));
    MUST(cudaMemcpy(pinned, to, room, cudaMemcpyDeviceToHost));
    compare("a copy on the device", pinned, bytes, room);
    MUST(cudaMemset(to, 0xa5, room));
    run_way(&kernel, bytes);
    MUST(cudaMemcpy(pinned, to, room, cudaMemcpyDeviceToHost));
    compare("a copy by a kernel", pinned, bytes / 16 * 16, room);
    MUST(cudaMemset(to, 0xa5, room));
    MUST(cudaMemcpy(pinned, from, bytes, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(to, pinned, bytes, cudaMemcpyHostToDevice));
    MUST(cudaMemcpy(pinned, to, room, cudaMemcpyDeviceToHost));
    compare("a copy to the host and back", pinned, bytes, room);
}

/* --------------------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    const size_t bytes = (size_t)(argc > 1 ? strtoul(argv[1], NULL, 10) : default_mib) << 20;
    const size_t room = (size_t)1 << 16; /* of a check */
    const size_t odd[] = {1, 3, 16, 17, 4096, 65521};
    unsigned char *from, *to, *pinned, *plain;
    int devices = 0, runtime = 0, driver = 0;
    cudaDeviceProp properties;
    size_t unused, total;
    cudaError_t status;

    if (bytes < room) {
        fprintf(stderr, "usage: gpu_copy [MIB]\n");
        return 2;
    }
    status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device: %s\n", cudaGetErrorString(status));
        return 77;
    }
    MUST(cudaGetDeviceProperties(&properties, 0));
    MUST(cudaRuntimeGetVersion(&runtime));
    MUST(cudaDriverGetVersion(&driver));
    MUST(cudaMemGetInfo(&unused, &total));
    printf("%s, %d.%d, %d multiprocessors, %zu of %zu MiB free, runtime %d, driver for %d\n",
           properties.name, properties.major, properties.minor, properties.multiProcessorCount,
           unused >> 20, total >> 20, runtime, driver);
    blocks = 16 * (unsigned)properties.multiProcessorCount;

    MUST(cudaMalloc((void **)&from, bytes));
    MUST(cudaMalloc((void **)&to, bytes));
    MUST(cudaMallocHost((void **)&pinned, bytes));
    plain = (unsigned char *)malloc(bytes);
    if (plain == NULL) return 1;
    memset(plain, 0x5a, bytes);
    memset(pinned, 0x5a, bytes);
    MUST(DP_LAUNCH(fill, blocks, THREADS, 0, NULL, (uint32_t *)from, bytes / 4));
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
        check(from, to, pinned, odd[i], room);

    const way_t ways[] = {
        {"device to device", to, from, cudaMemcpyDeviceToDevice, 0, 2.0},
        {"by a kernel", to, from, cudaMemcpyDeviceToDevice, 1, 2.0},
        {"device to pinned", pinned, from, cudaMemcpyDeviceToHost, 0, 1.0},
        {"pinned to device", to, pinned, cudaMemcpyHostToDevice, 0, 1.0},
        {"device to pageable", plain, from, cudaMemcpyDeviceToHost, 0, 1.0},
        {"pageable to device", to, plain, cudaMemcpyHostToDevice, 0, 1.0},
    };
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        printf("copy %-20s %8zu MiB %10.1f GB/s\n", ways[i].name, bytes >> 20,
               measure(&ways[i], bytes));

    /* All of what the measured copies left, too: the last went from from to plain and on to to. */
    MUST(cudaMemcpy(pinned, to, bytes, cudaMemcpyDeviceToHost));
    compare("all of it", pinned, bytes, bytes);
    MUST(cudaFree(from));
    MUST(cudaFree(to));
    MUST(cudaFreeHost(pinned));
    free(plain);
    printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
