/*
 * sweep.c - one collective over a range of sizes, with the columns of nccl-tests.
 *
 * dpbench.c calls it where no other benchmark is asked for. Each size is run once with known
 * values, which are checked, then some times for warmth, then as often as fits into a third of a
 * second, each time behind a barrier: what is measured is the operation and not how far ranks have
 * drifted apart.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/dpbench/dpbench.h"

#define ROUND_NS 350000000ull /* what one size may take */

/* dp.h has no such function: a program knows what it allocates. In the order of dp_dtype_t. */
static size_t element_bytes(dp_dtype_t dtype)
{
    static const size_t bytes[] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};

    return bytes[dtype];
}

/* value: 0 to 3 (bench_pattern()), which every type holds exactly; the 16-bit floats by their bits.
 */
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

/* fp32 sums and copies, whose results are known exactly. */
static int can_check(const bench_t *bench)
{
    const bench_options_t *o = &bench->options;

    return o->check && o->dtype == DP_F32 &&
           (o->reduce == DP_SUM || !bench_operation(o->collective)->reduces);
}

static size_t count_wrong(const bench_t *bench, const void *out, size_t count, size_t row)
{
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++) {
        float found;

        memcpy(&found, (const float *)out + i, sizeof(found));
        wrong += found != (float)bench_expected(bench, i, row);
    }
    return wrong;
}

/* One half of a line: out of place, or in place. "n/a": the values were not checked. */
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
    const bench_operation_t *operation = bench_operation(o->collective);
    int size = dp_size(bench->dp), rank = dp_rank(bench->dp);
    size_t element = element_bytes(o->dtype), total = bytes / element;
    size_t count = operation->rows_in || operation->rows_out ? total / (size_t)size : total;
    size_t in_count = operation->rows_in ? total : count;
    size_t out_count = operation->rows_out ? total : count;
    char *in = bench_alloc(bench, total * element), *out = bench_alloc(bench, total * element);
    char *from = in, *to = in_place ? in : out;
    int iterations = o->iterations == 0 ? 5 : o->iterations;
    double *times, first = 0.0;
    uint64_t begin;
    size_t wrong;
    char name[64];

    if (operation->out_on_root && rank != 0) out_count = 0;
    for (int r = 0; r < size; r++)
        bench->counts[r] = count;
    /* In place, a rank's own row lies where it belongs among all rows, as MPI and NCCL have it. */
    if (in_place && operation->rows_out) from = in + (size_t)rank * count * element;
    if (in_place && operation->rows_in) to = in + (size_t)rank * count * element;
    snprintf(name, sizeof(name), "bench.%zu.%d", bytes, in_place);
    for (size_t i = 0; i < in_count; i++)
        store(o->dtype, from, i, bench_pattern(i, rank));
    bench_run_once(bench, name, from, to, count);
    wrong = can_check(bench) ? count_wrong(bench, to, out_count, count) : 0;
    /* A sum of sums would overflow in time; zeros do not, and are as fast on a CPU. */
    memset(from, 0, in_count * element);
    for (int i = 0; i < o->warmup; i++) {
        bench_barrier(bench);
        begin = bench_now_ns();
        bench_run_once(bench, name, from, to, count);
        first = (double)(bench_now_ns() - begin);
    }
    bench_max(bench, &first, 1);
    /* From the slowest rank's last warm-up, so all ranks make the same number of iterations. The
     * 100 us are for the barrier. */
    if (o->iterations == 0 && first > 0.0) {
        double fit = (double)ROUND_NS / (first + 100000.0);

        iterations = fit < 5.0 ? 5 : fit > 2000.0 ? 2000 : (int)fit;
    }
    times = calloc((size_t)iterations, sizeof(*times));
    if (times == NULL) exit(1);
    for (int i = 0; i < iterations; i++) {
        bench_barrier(bench);
        begin = bench_now_ns();
        bench_run_once(bench, name, from, to, count);
        times[i] = (double)(bench_now_ns() - begin) / 1e3;
    }
    bench_max(bench, times, (size_t)iterations);
    if (rank == 0) {
        double p95 = bench_quantile(times, (size_t)iterations, 0.95);

        print_side(bench_quantile(times, (size_t)iterations, 0.5), p95, bytes,
                   bench_bus_factor(o->collective, size), wrong, can_check(bench));
        fflush(stdout);
    }
    free(times);
    bench_free(bench, in);
    bench_free(bench, out);
}

void bench_sweep(bench_t *bench)
{
    const bench_options_t *o = &bench->options;
    const bench_operation_t *operation = bench_operation(o->collective);
    size_t element = element_bytes(o->dtype), size = (size_t)dp_size(bench->dp);
    size_t unit = operation->rows_in || operation->rows_out ? element * size : element;
    int is_root = dp_rank(bench->dp) == 0;

    if (o->collective == BENCH_SENDRECV && size < 2) {
        fprintf(stderr, "dpbench: sendrecv needs two ranks\n");
        exit(2);
    }
    bench->counts = calloc(size, sizeof(*bench->counts));
    if (bench->counts == NULL) exit(1);
    if (is_root) {
        printf("# %s\n#%42s %41s\n", operation->name, "out of place",
               operation->shares ? "in place" : "");
        printf("#%11s %8s", "bytes", "count");
        for (int i = 0; i < 1 + operation->shares; i++)
            printf(" %10s %10s %8s %8s %6s", "median us", "p95 us", "algbw", "busbw", "wrong");
        printf("   (bandwidths in GB/s)\n");
    }
    for (size_t bytes = o->min_bytes; bytes <= o->max_bytes; bytes *= o->factor) {
        size_t whole = bytes / unit * unit; /* whole rows of whole elements */

        if (whole == 0) continue;
        if (is_root) printf("%12zu %8zu", whole, whole / element);
        measure(bench, whole, 0);
        if (operation->shares) measure(bench, whole, 1);
        if (is_root) printf("\n");
    }
    free(bench->counts);
}
