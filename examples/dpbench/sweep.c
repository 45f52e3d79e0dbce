/*
 * sweep.c - one collective over a range of sizes, with the columns of nccl-tests.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/dpbench/dpbench.h"

#define ROUND_NS 350000000ull /* what one size may take */

static size_t element_bytes(dp_dtype_t dtype)
{
    static const size_t bytes[] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};

    return bytes[dtype];
}

/* Small whole numbers, exact in every type: element i of rank r. */
static int pattern(size_t i, int rank)
{
    return (int)((i * 7 + (size_t)rank * 3) % 4);
}

static void store(dp_dtype_t dtype, void *data, size_t i, int value)
{
    static const uint16_t f16[] = {0x0000, 0x3c00, 0x4000, 0x4200}; /* 0 1 2 3 */
    static const uint16_t bf16[] = {0x0000, 0x3f80, 0x4000, 0x4040};
    float f = (float)value;
    double d = value;
    int64_t w = value;

    switch (dtype) {
    case DP_F32:
        memcpy((float *)data + i, &f, 4);
        break;
    case DP_F64:
        memcpy((double *)data + i, &d, 8);
        break;
    case DP_F16:
        memcpy((uint16_t *)data + i, &f16[value & 3], 2);
        break;
    case DP_BF16:
        memcpy((uint16_t *)data + i, &bf16[value & 3], 2);
        break;
    default:
        memcpy((char *)data + i * element_bytes(dtype), &w, element_bytes(dtype));
        break;
    }
}

/* The part of a result whose value we know without arithmetic of our own: fp32 sums and copies. */
static size_t count_wrong(const bench_t *bench, const void *out, size_t count)
{
    const bench_options_t *o = &bench->options;
    int size = dp_size(bench->dp), rank = dp_rank(bench->dp);
    size_t wrong = 0;

    if (o->dtype != DP_F32 || (o->collective != BENCH_BROADCAST &&
                               o->collective != BENCH_ALLGATHER && o->reduce != DP_SUM))
        return 0;
    for (size_t i = 0; i < count; i++) {
        int expected = 0;
        float found;

        memcpy(&found, (const float *)out + i, sizeof(found));
        switch (o->collective) {
        case BENCH_ALLREDUCE:
            for (int r = 0; r < size; r++)
                expected += pattern(i, r);
            break;
        case BENCH_REDUCE_SCATTER:
            for (int r = 0; r < size; r++)
                expected += pattern((size_t)rank * count + i, r);
            break;
        case BENCH_ALLGATHER:
            expected = pattern(i % (count / (size_t)size), (int)(i / (count / (size_t)size)));
            break;
        default:
            expected = pattern(i, 0);
            break;
        }
        wrong += found != (float)expected;
    }
    return wrong;
}

static void run_once(const bench_t *bench, const char *name, const void *in, void *out,
                     size_t count)
{
    const bench_options_t *o = &bench->options;
    dp_group_t *world = dp_world(bench->dp);
    dp_options_t options = DP_OPTIONS_INIT;
    dp_handle_t *handle = NULL;
    dp_status_t status = DP_OK;

    options.reduce = o->reduce;
    options.wire = o->wire;
    switch (o->collective) {
    case BENCH_ALLREDUCE:
        status = dp_allreduce(world, name, in, out, count, o->dtype, &options, &handle);
        break;
    case BENCH_BROADCAST:
        status = dp_broadcast(world, name, in, out, count, o->dtype, 0, &options, &handle);
        break;
    case BENCH_ALLGATHER:
        status = dp_allgather(world, name, in, out, count, o->dtype, &options, &handle);
        break;
    default:
        status = dp_reduce_scatter(world, name, in, out, count, o->dtype, &options, &handle);
        break;
    }
    bench_must(bench, status, name);
    bench_must(bench, dp_wait(handle, -1.0, NULL), name);
}

static double bus_factor(const bench_t *bench)
{
    double n = dp_size(bench->dp);

    switch (bench->options.collective) {
    case BENCH_ALLREDUCE:
        return 2.0 * (n - 1.0) / n;
    case BENCH_BROADCAST:
        return 1.0;
    default:
        return (n - 1.0) / n;
    }
}

static void print_side(double median_us, double p95_us, size_t bytes, double factor, size_t wrong,
                       int checked)
{
    double bandwidth = (double)bytes / median_us / 1e3;
    char mark[24];

    snprintf(mark, sizeof(mark), checked ? "%zu" : "n/a", wrong);
    printf(" %10.1f %10.1f %8.2f %8.2f %6s", median_us, p95_us, bandwidth, bandwidth * factor,
           mark);
}

/* One size, out of place or in place: times of the slowest rank, us. */
static void measure(const bench_t *bench, size_t bytes, int in_place)
{
    const bench_options_t *o = &bench->options;
    int size = dp_size(bench->dp), rank = dp_rank(bench->dp);
    size_t element = element_bytes(o->dtype), total = bytes / element;
    size_t count = o->collective == BENCH_ALLGATHER || o->collective == BENCH_REDUCE_SCATTER
                       ? total / (size_t)size
                       : total;
    size_t in_count = o->collective == BENCH_ALLGATHER ? count : total;
    size_t out_count = o->collective == BENCH_REDUCE_SCATTER ? count : total;
    char *in = bench_alloc(bench, total * element), *out = bench_alloc(bench, total * element);
    char *from = in, *to = in_place ? in : out;
    int iterations = o->iterations == 0 ? 5 : o->iterations;
    double *times, first = 0.0;
    uint64_t begin;
    size_t wrong;
    char name[64];

    if (o->collective == BENCH_ALLGATHER) out_count = count * (size_t)size;
    if (in_place && o->collective == BENCH_ALLGATHER) from = in + (size_t)rank * count * element;
    if (in_place && o->collective == BENCH_REDUCE_SCATTER) to = in + (size_t)rank * count * element;
    snprintf(name, sizeof(name), "bench.%zu.%d", bytes, in_place);
    for (size_t i = 0; i < in_count; i++)
        store(o->dtype, from, i, pattern(i, rank));
    run_once(bench, name, from, to, count);
    wrong = o->check ? count_wrong(bench, to, out_count) : 0;
    /* A sum of sums would overflow in time; zeros do not, and are as fast on a CPU. */
    memset(from, 0, in_count * element);
    for (int i = 0; i < o->warmup; i++) {
        bench_barrier(bench);
        begin = bench_now_ns();
        run_once(bench, name, from, to, count);
        first = (double)(bench_now_ns() - begin);
    }
    bench_max(bench, &first, 1);
    if (o->iterations == 0 && first > 0.0) {
        double fit = (double)ROUND_NS / (first + 100000.0);

        iterations = fit < 5.0 ? 5 : fit > 2000.0 ? 2000 : (int)fit;
    }
    times = calloc((size_t)iterations, sizeof(*times));
    if (times == NULL) exit(1);
    for (int i = 0; i < iterations; i++) {
        bench_barrier(bench);
        begin = bench_now_ns();
        run_once(bench, name, from, to, count);
        times[i] = (double)(bench_now_ns() - begin) / 1e3;
    }
    bench_max(bench, times, (size_t)iterations);
    if (rank == 0) {
        double p95 = bench_quantile(times, (size_t)iterations, 0.95);

        print_side(bench_quantile(times, (size_t)iterations, 0.5), p95, bytes, bus_factor(bench),
                   wrong,
                   o->check && o->dtype == DP_F32 &&
                       (o->reduce == DP_SUM || o->collective == BENCH_BROADCAST ||
                        o->collective == BENCH_ALLGATHER));
        fflush(stdout);
    }
    free(times);
    bench_free(bench, in);
    bench_free(bench, out);
}

void bench_sweep(const bench_t *bench)
{
    const bench_options_t *o = &bench->options;
    size_t element = element_bytes(o->dtype);
    int is_root = dp_rank(bench->dp) == 0;

    if (is_root) {
        printf("#%42s %41s\n", "out of place", "in place");
        printf("#%11s %8s", "bytes", "count");
        for (int i = 0; i < 2; i++)
            printf(" %10s %10s %8s %8s %6s", "median us", "p95 us", "algbw", "busbw", "wrong");
        printf("   (bandwidths in GB/s)\n");
    }
    for (size_t bytes = o->min_bytes; bytes <= o->max_bytes; bytes *= o->factor) {
        size_t whole =
            bytes / (element * (size_t)dp_size(bench->dp)) * element * (size_t)dp_size(bench->dp);

        if (o->collective == BENCH_ALLREDUCE || o->collective == BENCH_BROADCAST)
            whole = bytes / element * element;
        if (whole == 0) continue;
        if (is_root) printf("%12zu %8zu", whole, whole / element);
        measure(bench, whole, 0);
        measure(bench, whole, 1);
        if (is_root) printf("\n");
    }
}
