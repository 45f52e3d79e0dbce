/*
 * cuda_kernels.cu - the CUDA kernels against their host twins, two ways.
 *
 *   cuda_kernels         on a GPU; measures them beside a plain device copy; exits with 77 where
 *                        there is none; with an argument it measures nothing (for a sanitizer)
 *   cuda_kernels_simt N  the same kernels by fibers on the CPU, in an order given by N; memory is
 *                        fenced by pages that fault
 */
#include "kernels/cuda_cast.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern "C" {
#include "kernels/variant.h"
#include "tests/unit/kernel_data.h"
}

#define PAGE ((size_t)4096)
#define ROOM (8 * PAGE) /* of a fenced tensor */

#ifdef DP_SIMT
#define IS_SIMULATED 1
#else
#define IS_SIMULATED 0
#endif

static int failures;

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                        \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

#define MUST(call)                                                                                 \
    do {                                                                                           \
        const int must_status = (int)(call);                                                       \
        if (must_status != 0) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                          \
                    cudaGetErrorString((cudaError_t)must_status));                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static size_t element_bytes(dp_dtype_t dtype)
{
    static const size_t bytes[DP_DTYPE_COUNT] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1};

    return bytes[dtype];
}

static int is_float(dp_dtype_t dtype)
{
    return dtype == DP_F16 || dtype == DP_BF16 || dtype == DP_F32 || dtype == DP_F64;
}

/* ---- Fenced memory -------------------------------------------------------------------------- */

typedef struct fence {
    unsigned char *map;
} fence_t;

static fence_t fence_make(void)
{
    fence_t fence;
    void *map = mmap(NULL, ROOM + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED || mprotect((char *)map + PAGE, ROOM, PROT_READ | PROT_WRITE) != 0) {
        perror("mmap");
        exit(1);
    }
    fence.map = (unsigned char *)map;
    return fence;
}

/* `bytes` that begin right behind the first fence plus `offset`, or end right before the last one
 * less `offset`. */
static unsigned char *fence_place(const fence_t *fence, size_t bytes, size_t offset, int at_end)
{
    return at_end ? fence->map + PAGE + ROOM - bytes - offset : fence->map + PAGE + offset;
}

/* ---- The cast, simulated or for real -------------------------------------------------------- */

typedef struct cast_case {
    dp_dtype_t from, to;
    bool is_copy;
    const unsigned char *in;
    unsigned char *out;
    size_t count;
    float scale;
    dp_cuda_tally_t tally;
} cast_case_t;

/* Simulated, the kernel works right on the fenced memory. */
static void run_cast_case(cast_case_t *it)
{
    const size_t in_bytes = it->count * element_bytes(it->from);
    const size_t out_bytes = it->count * element_bytes(it->to);
    unsigned char *in, *out;
    dp_cuda_tally_t *tally;
    dp_cuda_piece_t piece;

    if (IS_SIMULATED) {
        piece =
            dp_cuda_piece_t{it->in, it->out, it->count, it->scale, it->is_copy ? NULL : &it->tally};
        MUST(dp_cuda_cast(it->from, it->to, &piece, 1, NULL, NULL));
        MUST(cudaDeviceSynchronize());
        return;
    }
    MUST(cudaMalloc((void **)&in, in_bytes + 64));
    MUST(cudaMalloc((void **)&out, out_bytes + 64));
    MUST(cudaMalloc((void **)&tally, sizeof(*tally)));
    MUST(cudaMemset(tally, 0, sizeof(*tally)));
    piece = dp_cuda_piece_t{in + misalignment(it->in), out + misalignment(it->out), it->count,
                            it->scale, it->is_copy ? NULL : tally};
    MUST(cudaMemcpy((void *)(uintptr_t)piece.from, it->in, in_bytes, cudaMemcpyHostToDevice));
    MUST(dp_cuda_cast(it->from, it->to, &piece, 1, NULL, NULL));
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(it->out, piece.to, out_bytes, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(&it->tally, tally, sizeof(*tally), cudaMemcpyDeviceToHost));
    MUST(cudaFree(in));
    MUST(cudaFree(out));
    MUST(cudaFree(tally));
}

static int is_nan(dp_dtype_t dtype, const unsigned char *at)
{
    uint16_t half;
    float single;
    double twice;

    memcpy(&half, at, 2);
    if (dtype == DP_F16) return (half & 0x7fffu) > 0x7c00u;
    if (dtype == DP_BF16) return (half & 0x7fffu) > 0x7f80u;
    if (dtype == DP_F32) return memcpy(&single, at, 4), isnan(single);
    if (dtype == DP_F64) return memcpy(&twice, at, 8), isnan(twice);
    return 0;
}

/* The same bits, or both a NaN. */
static int are_equal(dp_dtype_t dtype, const unsigned char *a, const unsigned char *b, size_t count)
{
    const size_t bytes = element_bytes(dtype);

    for (size_t i = 0; i < count; i++) {
        if (memcmp(a + i * bytes, b + i * bytes, bytes) == 0) continue;
        if (!is_nan(dtype, a + i * bytes) || !is_nan(dtype, b + i * bytes)) return 0;
    }
    return 1;
}

static void check_cast(dp_dtype_t from, dp_dtype_t to, fence_t *in_fence, fence_t *out_fence,
                       uint64_t *state)
{
    static unsigned char expected[ROOM];
    static unsigned char aligned[ROOM + 64];
    const size_t room =
        ROOM / 2 /
        (element_bytes(from) > element_bytes(to) ? element_bytes(from) : element_bytes(to));
    const int at_end = (int)(kernel_random(state) % 2);
    const size_t from_skip = kernel_random(state) % 16 / element_bytes(from) * element_bytes(from);
    const size_t to_skip = kernel_random(state) % 16 / element_bytes(to) * element_bytes(to);
    cast_case_t it = {};
    dp_cast_piece_t piece = {};
    dp_cast_args_t args = {};
    dp_tally_t host, device, other;
    size_t out_bytes;

    it.from = from;
    it.to = to;
    it.count =
        kernel_random(state) % 3 == 0 ? kernel_random(state) % 40 : kernel_random(state) % room;
    it.scale = is_float(from) && kernel_random(state) % 2 ? 0.37f : 1.0f;
    it.is_copy = !is_float(from);
    if (from == to && it.scale == 1.0f && kernel_random(state) % 2) it.is_copy = true;
    it.in = fence_place(in_fence, it.count * element_bytes(from), from_skip, at_end);
    it.out = fence_place(out_fence, it.count * element_bytes(to), to_skip, at_end);
    out_bytes = it.count * element_bytes(to);
    kernel_fill(from, (void *)(uintptr_t)it.in, it.count, state, (int)(kernel_random(state) % 2));
    memset(out_fence->map + PAGE, 0xa5, ROOM);

    dp_tally_init(&host);
    piece = dp_cast_piece_t{it.in, expected, it.count, it.scale, is_float(to) ? &host : NULL};
    args.from = from;
    args.to = to;
    args.pieces = &piece;
    args.piece_count = 1;
    dp_kernel_cast(&args);
    run_cast_case(&it);
    EXPECT(are_equal(to, it.out, expected, it.count), "cast %d to %d of %zu, skips %zu and %zu",
           (int)from, (int)to, it.count, from_skip, to_skip);
    for (unsigned char *at = out_fence->map + PAGE; at < out_fence->map + PAGE + ROOM; at++) {
        if (at >= it.out && at < it.out + out_bytes) continue;
        if (*at == 0xa5) continue;
        EXPECT(0, "cast %d to %d of %zu wrote outside", (int)from, (int)to, it.count);
        break;
    }
    if (it.is_copy) return;

    dp_tally_init(&device);
    dp_cuda_tally_read(&it.tally, &device);
    EXPECT(device.nonfinite == host.nonfinite && device.absmax == host.absmax,
           "cast %d to %d: %llu not finite (host %llu), largest %g (host %g)", (int)from, (int)to,
           (unsigned long long)device.nonfinite, (unsigned long long)host.nonfinite, device.absmax,
           host.absmax);
    EXPECT(dp_tally_sum_squares(&device) == dp_tally_sum_squares(&host) ||
               fabs(dp_tally_sum_squares(&device) / dp_tally_sum_squares(&host) - 1.0) < 1e-13,
           "cast %d to %d: sum of squares %.17g, host %.17g", (int)from, (int)to,
           dp_tally_sum_squares(&device), dp_tally_sum_squares(&host));

    /* The figures of the same numbers at another alignment: equal to the last bit. */
    memset(&it.tally, 0, sizeof(it.tally));
    it.out = aligned + (16 - misalignment(aligned)) % 16;
    run_cast_case(&it);
    dp_tally_init(&other);
    dp_cuda_tally_read(&it.tally, &other);
    EXPECT(memcmp(&other, &device, sizeof(other)) == 0,
           "cast %d to %d: figures depend on alignment", (int)from, (int)to);
}

static void check_casts(uint64_t *state)
{
    static const dp_dtype_t pairs[][2] = {{DP_F32, DP_F32},   {DP_F32, DP_F16}, {DP_F32, DP_BF16},
                                          {DP_F16, DP_F32},   {DP_F16, DP_F16}, {DP_BF16, DP_F32},
                                          {DP_BF16, DP_BF16}, {DP_F64, DP_F64}, {DP_U8, DP_U8},
                                          {DP_I16, DP_I16},   {DP_I32, DP_I32}, {DP_U64, DP_U64},
                                          {DP_BOOL, DP_BOOL}, {DP_I64, DP_I64}};
    fence_t in = fence_make(), out = fence_make();

    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
            check_cast(pairs[i][0], pairs[i][1], &in, &out, state);
    }
    munmap(in.map, ROOM + 2 * PAGE);
    munmap(out.map, ROOM + 2 * PAGE);
}

#ifdef DP_SIMT
/* ---- The tally ------------------------------------------------------------------------------ */

static void check_tally(uint64_t *state)
{
    for (int round = 0; round < 2000; round++) {
        dp_cuda_tally_t limbs = {};
        dp_tally_t host, device;
        const int spread = round % 2 ? 40 : 700;

        dp_tally_init(&host);
        dp_tally_init(&device);
        for (int i = 0; i < 50; i++) {
            const int exponent = (int)(kernel_random(state) % (unsigned)spread) - spread / 2 - 20;
            partial_t partial = {
                ldexp(1.0 + (double)(kernel_random(state) >> 12) * 0x1p-52, exponent),
                (double)(kernel_random(state) % 1000), (unsigned)(kernel_random(state) % 3)};

            if (round % 7 == 0 && i == 20) partial.sum_squares = 0.0;
            tally_add(&limbs, &partial);
            dp_tally_add_block(&host, partial.sum_squares, partial.absmax, partial.nonfinite);
        }
        dp_cuda_tally_read(&limbs, &device);
        EXPECT(memcmp(&host, &device, sizeof(host)) == 0, "tally of round %d: %g, host %g", round,
               dp_tally_sum_squares(&device), dp_tally_sum_squares(&host));
        if (failures > 5) return;
    }
}
#endif

/* ---- Reductions ----------------------------------------------------------------------------- */

static void reduce_on_device(const dp_reduce_args_t *args)
{
    const size_t bytes = args->count * element_bytes(args->dtype);
    const void *in[DP_CUDA_REDUCE_MAX];
    void *out;
    dp_reduce_args_t moved = *args;

    for (int i = 0; i < args->in_count; i++) {
        void *copy;

        MUST(cudaMalloc(&copy, bytes + 1));
        MUST(cudaMemcpy(copy, args->in[i], bytes, cudaMemcpyHostToDevice));
        in[i] = copy;
    }
    MUST(cudaMalloc(&out, bytes + 1));
    moved.in = in;
    moved.out = &out;
    MUST(dp_cuda_reduce(&moved, NULL));
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(args->out[0], out, bytes, cudaMemcpyDeviceToHost));
    MUST(cudaFree(out));
    for (int i = 0; i < args->in_count; i++)
        MUST(cudaFree((void *)(uintptr_t)in[i]));
}

static void check_reduces(uint64_t *state)
{
    static unsigned char in[4][2000 * 8], expected[2000 * 8], out[2000 * 8];

    for (int round = 0; round < 2; round++) {
        for (int d = 0; d < DP_DTYPE_COUNT; d++) {
            for (int r = 0; r < DP_REDUCE_COUNT; r++) {
                const dp_dtype_t dtype = (dp_dtype_t)d;
                const void *ins[4] = {in[0], in[1], in[2], in[3]};
                void *to = expected;
                dp_reduce_args_t args = {};

                args.dtype = dtype;
                args.reduce = (dp_reduce_t)r;
                args.in = ins;
                args.in_count = 1 + (int)(kernel_random(state) % 4);
                args.out = &to;
                args.out_count = 1;
                args.count = kernel_random(state) % 2000;
                args.prescale = is_float(dtype) ? 0.5 : 1.0;
                args.postscale = is_float(dtype) ? 1.0 / 3.0 : 1.0;
                args.divisor = r == DP_AVERAGE && !is_float(dtype) && dtype != DP_BOOL ? 3 : 0;
                for (int i = 0; i < 4; i++)
                    kernel_fill(dtype, in[i], args.count, state, round % 2);
                dp_kernel_reduce(&args);
                to = out;
                reduce_on_device(&args);
                EXPECT(are_equal(dtype, out, expected, args.count),
                       "reduction %d of type %d, %d inputs of %zu", r, d, args.in_count,
                       args.count);
            }
        }
    }
}

/* ---- On the device only --------------------------------------------------------------------- */

static void check_many_pieces(uint64_t *state)
{
    const size_t counts = IS_SIMULATED ? 40 : 300, room = IS_SIMULATED ? 6000 : 20000;
    float *in, *out;
    dp_cuda_table_t table;
    dp_cuda_piece_t *pieces = (dp_cuda_piece_t *)calloc(counts, sizeof(*pieces));
    float *host = (float *)malloc(counts * room * sizeof(float));
    float *back = (float *)malloc(counts * room * sizeof(float));

    kernel_fill(DP_F32, host, counts * room, state, 1);
    MUST(cudaMalloc((void **)&in, counts * room * sizeof(float)));
    MUST(cudaMalloc((void **)&out, counts * room * sizeof(float)));
    MUST(cudaMemcpy(in, host, counts * room * sizeof(float), cudaMemcpyHostToDevice));
    MUST(cudaMemset(out, 0, counts * room * sizeof(float)));
    table.bytes = dp_cuda_table_bytes(counts);
    MUST(cudaMallocHost(&table.host, table.bytes));
    MUST(cudaMalloc(&table.device, table.bytes));
    for (size_t i = 0; i < counts; i++) {
        pieces[i] = dp_cuda_piece_t{in + i * room, out + i * room,
                                    i % 11 == 0 ? 0 : kernel_random(state) % room, 2.0f, NULL};
    }
    MUST(dp_cuda_cast(DP_F32, DP_F32, pieces, counts, &table, NULL));
    MUST(cudaDeviceSynchronize());
    MUST(cudaMemcpy(back, out, counts * room * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < counts; i++) {
        for (size_t k = 0; k < room; k++) {
            const float want = k < pieces[i].count ? 2.0f * host[i * room + k] : 0.0f;

            if (back[i * room + k] == want) continue;
            EXPECT(0, "piece %zu element %zu: %g, expected %g", i, k, back[i * room + k], want);
            i = counts - 1;
            break;
        }
    }
    MUST(cudaFree(in));
    MUST(cudaFree(out));
    MUST(cudaFree(table.device));
    MUST(cudaFreeHost(table.host));
    free(pieces);
    free(host);
    free(back);
}

#ifndef DP_SIMT
/* GB/s of memory traffic, the median of some runs. */
static double measure(int (*run)(void *), void *user, double bytes)
{
    double times[15];
    cudaEvent_t begin, end;
    const int runs = 15, repeats = 10;

    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int i = 0; i < runs; i++) {
        float ms;

        MUST(cudaEventRecord(begin, NULL));
        for (int k = 0; k < repeats; k++)
            MUST(run(user));
        MUST(cudaEventRecord(end, NULL));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        times[i] = ms;
        for (int k = i; k > 0 && times[k - 1] > times[k]; k--) {
            const double swap = times[k];

            times[k] = times[k - 1];
            times[k - 1] = swap;
        }
    }
    MUST(cudaEventDestroy(begin));
    MUST(cudaEventDestroy(end));
    return bytes * repeats / (times[runs / 2] * 1e6);
}

typedef struct speed {
    dp_dtype_t from, to;
    dp_cuda_piece_t piece;
    size_t bytes;
} speed_t;

static int run_cast(void *user)
{
    const speed_t *speed = (const speed_t *)user;

    return dp_cuda_cast(speed->from, speed->to, &speed->piece, 1, NULL, NULL);
}

static int run_copy(void *user)
{
    const speed_t *speed = (const speed_t *)user;

    return cudaMemcpyAsync(speed->piece.to, speed->piece.from, speed->bytes,
                           cudaMemcpyDeviceToDevice, NULL);
}

static void report_speed(void)
{
    unsigned char *in, *out;
    dp_cuda_tally_t *tally;
    const size_t most = (size_t)512 << 20;

    MUST(cudaMalloc((void **)&in, most + 64));
    MUST(cudaMalloc((void **)&out, most + 64));
    MUST(cudaMalloc((void **)&tally, sizeof(*tally)));
    MUST(cudaMemset(in, 0, most));
    MUST(cudaMemset(tally, 0, sizeof(*tally)));
    printf("%8s %10s %12s %12s %14s %14s %16s\n", "MiB fp32", "copy GB/s", "f32>f16", "f16>f32",
           "f32>f32", "f16>f32 tally", "same, misaligned");
    for (size_t bytes = (size_t)4 << 20; bytes <= most; bytes *= 2) {
        const size_t count = bytes / 4;
        speed_t speed = {DP_F32, DP_F16, {in, out, count, 1.5f, NULL}, bytes};
        double copy = measure(run_copy, &speed, 2.0 * (double)bytes), rate[5];

        rate[0] = measure(run_cast, &speed, 1.5 * (double)bytes);
        speed.from = DP_F16;
        speed.to = DP_F32;
        rate[1] = measure(run_cast, &speed, 1.5 * (double)bytes);
        speed.piece.tally = tally;
        rate[3] = measure(run_cast, &speed, 1.5 * (double)bytes);
        speed.piece.from = in + 2;
        speed.piece.to = out + 4;
        rate[4] = measure(run_cast, &speed, 1.5 * (double)bytes);
        speed.piece = dp_cuda_piece_t{in, out, count, 1.5f, NULL};
        speed.from = DP_F32;
        rate[2] = measure(run_cast, &speed, 2.0 * (double)bytes);
        printf("%8zu %10.0f", bytes >> 20, copy);
        for (int i = 0; i < 5; i++)
            printf(" %8.0f %3.0f%%", rate[i], 100.0 * rate[i] / copy);
        printf("\n");
    }
    MUST(cudaFree(in));
    MUST(cudaFree(out));
    MUST(cudaFree(tally));
}

#endif

int main(int argc, char **argv)
{
    uint64_t state = 0x243f6a8885a308d3u;
    int devices = 0;

    if (argc > 2) {
        fprintf(stderr, "usage: %s [order of the simulated threads]\n", argv[0]);
        return 2;
    }
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device\n");
        return 77;
    }
#ifdef DP_SIMT
    simt_order = argc == 2 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    check_tally(&state);
#endif
    MUST(dp_cuda_kernels_preload());
    check_casts(&state);
    check_reduces(&state);
    check_many_pieces(&state);
#ifndef DP_SIMT
    if (argc == 1) report_speed();
#endif
    printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
