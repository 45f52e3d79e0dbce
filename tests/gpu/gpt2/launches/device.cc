/*
 * device.cc - memory in name only, the calls of the runtime that touch it, and cuBLASLt's.
 *
 * The program's own functions come before those of the shared dp_cuda_double, so that what is
 * defined here replaces what is there.
 */
#include "tests/gpu/gpt2/launches/device.h"

#include <cublasLt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <vector>

#include "tests/gpu/double/simt.h"

#define GUARD_BYTES ((size_t)64 << 30)
#define GRAIN 256                        /* of allocations, as cudaMalloc()'s */
#define COPIED_WHOLE ((size_t)16 << 20)  /* larger copies and fills touch their ends alone */
#define DEVICE_BYTES ((size_t)141 << 30) /* of an H200 */
#define MARK 0xa5                        /* of no type a number that kernels come to here */
#define MARK_BYTES 16

typedef struct range {
    const char *name;
    uintptr_t begin, end;
} range_t;

static std::vector<range_t> pieces;        /* guards around each */
static std::map<uintptr_t, range_t> parts; /* by where they begin */
static std::map<unsigned, std::vector<unsigned>> also;
static launches_counts_t counts;
static size_t page;
static int has_fusion = 1;

/* ---- Memory -----------------------------------------------------------------------------------
 */

static size_t rounded(size_t bytes, size_t grain)
{
    return (bytes + grain - 1) / grain * grain;
}

static void *reserve(size_t bytes, const char *name)
{
    const size_t whole = rounded(bytes == 0 ? 1 : bytes, GRAIN), pages = rounded(whole, page);
    char *all = (char *)mmap(NULL, pages + 2 * GUARD_BYTES, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *begin;

    if (all == MAP_FAILED) return NULL;
    if (mprotect(all + GUARD_BYTES, pages, PROT_READ | PROT_WRITE) != 0) {
        (void)munmap(all, pages + 2 * GUARD_BYTES);
        return NULL;
    }
    begin = all + GUARD_BYTES + (pages - whole); /* ends where the guard begins */
    pieces.push_back(range_t{name, (uintptr_t)begin, (uintptr_t)begin + whole});
    counts.bytes += whole;
    return begin;
}

extern "C" void *launches_reserve(size_t bytes, const char *name)
{
    void *piece = reserve(bytes, name);

    if (piece != NULL) return piece;
    fprintf(stderr, "launches: no address space for %s: %zu bytes\n", name, bytes);
    exit(77);
}

extern "C" void launches_name(const void *from, size_t bytes, const char *name)
{
    parts[(uintptr_t)from] = range_t{name, (uintptr_t)from, (uintptr_t)from + bytes};
}

extern "C" void launches_mark(void *piece, size_t bytes)
{
    memset((char *)piece + bytes - MARK_BYTES, MARK, MARK_BYTES);
}

extern "C" int launches_is_marked(const void *piece, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)piece + bytes - MARK_BYTES;

    for (size_t i = 0; i < MARK_BYTES; i++) {
        if (at[i] != MARK) return 0;
    }
    return 1;
}

/* The smallest range that holds an address, or NULL. */
static const range_t *range_of(uintptr_t at)
{
    auto part = parts.upper_bound(at);

    if (part != parts.begin()) {
        --part;
        if (at < part->second.end) return &part->second;
    }
    for (const range_t &piece : pieces) {
        if (at >= piece.begin && at < piece.end) return &piece;
    }
    return NULL;
}

/* An access outside all pieces was meant for the nearest one. */
static void on_fault(int, siginfo_t *info, void *)
{
    const uintptr_t at = (uintptr_t)info->si_addr;
    const range_t *nearest = NULL;
    uintptr_t least = UINTPTR_MAX;
    char text[512];
    int length;

    for (const range_t &piece : pieces) {
        const uintptr_t off = at < piece.begin ? piece.begin - at : at - piece.end;

        if (off >= least) continue;
        least = off;
        nearest = &piece;
    }
    length = snprintf(
        text, sizeof(text),
        "launches: %s:%d: %s, block (%u,%u,%u), thread (%u,%u,%u): address %#zx is no memory, %zu "
        "bytes %s %s\n",
        simt_running.file == NULL ? "host" : simt_running.file, simt_running.line,
        simt_running.name == NULL ? "" : simt_running.name, blockIdx.x, blockIdx.y, blockIdx.z,
        threadIdx.x, threadIdx.y, threadIdx.z, (size_t)at, (size_t)least,
        nearest != NULL && at < nearest->begin ? "before" : "behind",
        nearest == NULL ? "nothing" : nearest->name);
    if (write(STDERR_FILENO, text, (size_t)length) < 0) _exit(4);
    _exit(3);
}

/* ---- Which blocks run -------------------------------------------------------------------------
 */

static bool is_end(unsigned index, unsigned count)
{
    return index == 0 || index + 1 == count;
}

/* The ends of all dimensions, and one in the middle of x and of three (sums that are folded). */
static bool wants(const simt_index &block)
{
    bool is_wanted = (is_end(block.y, gridDim.y) || gridDim.y == 3) && is_end(block.z, gridDim.z);

    if (is_wanted && !is_end(block.x, gridDim.x)) {
        const auto found = also.find(gridDim.x);

        is_wanted = block.x == gridDim.x / 2;
        if (found != also.end()) {
            for (unsigned x : found->second)
                is_wanted |= x == block.x;
        }
    }
    counts.blocks += is_wanted;
    counts.launches += block.x == 0 && block.y == 0 && block.z == 0;
    return is_wanted;
}

extern "C" void launches_also(unsigned grid, unsigned block)
{
    also[grid].push_back(block);
}

extern "C" launches_counts_t launches_counts(void)
{
    return counts;
}

extern "C" int launches_start(void)
{
    struct sigaction action = {};
    void *stack = malloc(1 << 16);
    const stack_t own = {stack, 0, 1 << 16}; /* fibers' are short, and may be what is left */

    page = (size_t)sysconf(_SC_PAGESIZE);
    if (stack == NULL || sigaltstack(&own, NULL) != 0) return 77;
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (sigaction(SIGSEGV, &action, NULL) != 0 || sigaction(SIGBUS, &action, NULL) != 0) return 77;
    simt_enqueue = NULL; /* at once, in this thread */
    simt_wants = wants;
    return reserve(DEVICE_BYTES, "a trial") == NULL ? 77 : 0;
}

/* Threads exchange data by barriers alone. */
void simt_exchange(unsigned, const void *give, void *take, size_t bytes, unsigned)
{
    memcpy(take, give, bytes);
}

void simt_exchange_all(const void *give, void *take, size_t bytes)
{
    for (size_t lane = 0; lane < 32; lane++)
        memcpy((char *)take + lane * bytes, give, bytes);
}

void simt_warp_barrier(unsigned)
{
}

void simt_mma_bf16(float (&)[4], const uint32_t (&)[4], uint32_t, uint32_t)
{
}

void simt_mma_fp16(float (&)[4], const uint32_t (&)[4], uint32_t, uint32_t)
{
}

void simt_ldmatrix(uint32_t (&out)[4], const void *row, bool)
{
    simt_check_shared(row, 16);
    memset(out, 0, sizeof(out));
}

/* ---- The runtime ------------------------------------------------------------------------------
 */

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    if (bytes == 0 || bytes > DEVICE_BYTES) return cudaErrorMemoryAllocation;
    *memory = reserve(bytes, "an allocation");
    return *memory == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return cudaMalloc(memory, bytes);
}

/* The guards stay, so that what uses it afterwards is found out. */
cudaError_t cudaFree(void *memory)
{
    for (range_t &piece : pieces) {
        if (piece.begin != (uintptr_t)memory) continue;
        const uintptr_t first = piece.begin / page * page;

        if (mmap((void *)first, piece.end - first, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
            return cudaErrorInvalidValue;
        }
        piece.name = "what was given back";
        return cudaSuccess;
    }
    return memory == NULL ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaFreeHost(void *memory)
{
    return cudaFree(memory);
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    *unused = *total = DEVICE_BYTES;
    return cudaSuccess;
}

static void touch(const void *at)
{
    (void)*(const volatile unsigned char *)at;
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes <= COPIED_WHOLE) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t at : {(size_t)0, bytes - MARK_BYTES})
        memmove((char *)to + at, (const char *)from + at, MARK_BYTES);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind,
                            cudaStream_t)
{
    copy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind)
{
    copy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t)
{
    if (bytes <= COPIED_WHOLE) {
        memset(to, value, bytes);
    } else {
        memset(to, value, MARK_BYTES);
        memset((char *)to + bytes - MARK_BYTES, value, MARK_BYTES);
    }
    return cudaSuccess;
}

/* ---- cuBLASLt ---------------------------------------------------------------------------------
 *
 * Structures of the header are opaque words; these keep what a product needs to know where its
 * operands end.
 */

typedef struct layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
} layout_t;

typedef struct operation {
    uint32_t epilogue;
    const void *bias;
    void *before;
    int64_t before_ld;
} operation_t;

static size_t bytes_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static size_t extent_of(const layout_t *layout)
{
    return ((size_t)(layout->columns - 1) * (size_t)layout->ld + layout->rows) *
           bytes_of(layout->type);
}

/* 0: the operand is memory from end to end, inside of the range that it begins in. */
static int is_outside(const char *name, const void *at, size_t bytes)
{
    const uintptr_t begin = (uintptr_t)at;
    const range_t *range = range_of(begin);

    if (range != NULL && begin + bytes <= range->end && begin % 16 == 0) {
        touch(at);
        touch((const char *)at + bytes - 1);
        return 0;
    }
    fprintf(stderr, "launches: a product's %s, %zu bytes at %#zx, %s %s\n", name, bytes,
            (size_t)begin,
            range == NULL                ? "is no memory"
            : begin + bytes > range->end ? "ends behind"
                                         : "is not aligned in",
            range == NULL ? "" : range->name);
    return 1;
}

/* The last bytes are no longer as they were marked. */
static void write_end(void *at, size_t bytes)
{
    const size_t some = bytes < MARK_BYTES ? bytes : MARK_BYTES;

    memset((char *)at + bytes - some, 0x3c, some);
}

extern "C" cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = (cublasLtHandle_t)malloc(1);
    return *handle == NULL ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" size_t cublasLtGetVersion(void)
{
    return 130000;
}

extern "C" const char *cublasLtGetStatusName(cublasStatus_t)
{
    return "refused, see above";
}

extern "C" cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = (cublasLtMatmulPreference_t)calloc(1, sizeof(**preference));
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                               cublasLtMatmulPreferenceAttributes_t,
                                                               const void *, size_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t,
                                                   cudaDataType_t)
{
    *out = (cublasLtMatmulDesc_t)calloc(1, sizeof(operation_t));
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation)
{
    free(operation);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque,
                                                         cublasLtMatmulDescAttributes_t attribute,
                                                         const void *value, size_t bytes)
{
    operation_t *operation = (operation_t *)(void *)opaque;

    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        memcpy(&operation->epilogue, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        memcpy(&operation->bias, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        memcpy(&operation->before, value, bytes);
        break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        memcpy(&operation->before_ld, value, bytes);
        break;
    default:
        break;
    }
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                                     uint64_t rows, uint64_t columns, int64_t ld)
{
    layout_t *layout = (layout_t *)malloc(sizeof(*layout));

    *layout = layout_t{type, rows, columns, ld};
    *out = (cublasLtMatrixLayout_t)(void *)layout;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t opaque, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
    cublasLtMatmulHeuristicResult_t *out, int *count)
{
    const operation_t *operation = (const operation_t *)(void *)opaque;

    if (operation->epilogue != CUBLASLT_EPILOGUE_DEFAULT && !has_fusion) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    memset(out, 0, sizeof(*out));
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                                  cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                  cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                  const cublasLtMatmulAlgo_t *,
                                                  cublasLtMatmulHeuristicResult_t *result)
{
    memset(result, 0, sizeof(*result));
    return CUBLAS_STATUS_SUCCESS;
}

/* Checks the memory beside the product, and the part of it that is written. 0: all is memory. */
static int check_epilogue(const operation_t *operation, const layout_t *d)
{
    layout_t before = *d;
    const size_t bias = d->rows * bytes_of(d->type);

    before.ld = operation->before_ld;
    switch (operation->epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
        return 0;
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
        if (is_outside("input of GELU", operation->before, extent_of(&before))) return 1;
        if (is_outside("bias gradient", operation->bias, bias)) return 1;
        write_end((void *)(uintptr_t)operation->bias, bias);
        return 0;
    case CUBLASLT_EPILOGUE_BIAS:
        return is_outside("bias", operation->bias, bias);
    case CUBLASLT_EPILOGUE_DGELU:
        return is_outside("input of GELU", operation->before, extent_of(&before));
    default: /* GELU_AUX, GELU_AUX_BIAS */
        if (operation->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS &&
            is_outside("bias", operation->bias, bias)) {
            return 1;
        }
        if (is_outside("input of GELU", operation->before, extent_of(&before))) return 1;
        write_end(operation->before, extent_of(&before));
        return 0;
    }
}

extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                         const void *, const void *a,
                                         cublasLtMatrixLayout_t a_layout, const void *b,
                                         cublasLtMatrixLayout_t b_layout, const void *,
                                         const void *, cublasLtMatrixLayout_t, void *d,
                                         cublasLtMatrixLayout_t d_layout,
                                         const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t)
{
    const layout_t *of_d = (const layout_t *)(void *)d_layout;

    if (is_outside("a", a, extent_of((const layout_t *)(void *)a_layout)) ||
        is_outside("b", b, extent_of((const layout_t *)(void *)b_layout)) ||
        is_outside("result", d, extent_of(of_d)) ||
        check_epilogue((const operation_t *)(void *)operation, of_d)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    write_end(d, extent_of(of_d));
    counts.products++;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" void launches_set_fusion(int is_there)
{
    has_fusion = is_there;
}
