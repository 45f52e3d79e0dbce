/*
 * floor.c - libdp's allreduce beside the least that two ranks on one machine have to do for it.
 *
 * Two ranks under dprun, fp32 sum in place. Four ways take turns, so that what else the machine
 * does, and where its cores sit, hits all of them alike:
 *
 *     arena     libdp, memory of dp_alloc()
 *     ordinary  libdp, memory of aligned_alloc()
 *     direct    the floor of the first: both tensors mapped by both, each rank adds its half of the
 *               two and stores the sum to both
 *     cma       the floor of the second: private tensors, each rank reads the other's part of its
 *               half with process_vm_readv() in pieces that stay in its cache, adds, and reads the
 *               other half's result
 *
 * The floors meet by polling. Time is that of the slower rank. A slice of some operations counts as
 * near, between or far when the distance of the two cores was so before and after it; see
 * placement.h.
 *
 *     dprun -np 2 build/floor [touch] [seconds=1] [bytes=N,N,...] [gradients]
 *
 * touch: every rank rewrites its tensor before each operation, untimed, as a training step does.
 * gradients: the 148 gradients of GPT-2 124M instead of sizes, the floors one tensor after another.
 * Prints `row WHAT PLACE arena ordinary direct cma arena/direct ordinary/cma`, medians in us.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "dp.h"
#include "tests/bench/apart.h"
#include "tests/bench/direct_loop.h"
#include "tests/bench/placement.h"

enum { ARENA, ORDINARY, DIRECT, CMA, WAYS };
#define SAMPLES 20000
#define TENSORS_MAX 160
#define SLICE_NS 10000000u
#define SLICE_MAX 500
#define CMA_PIECE ((size_t)256 * DP_KIB)

/* In memory of both ranks. */
typedef struct table {
    placement_t placement;
    _Alignas(128) _Atomic uint32_t flag[2][32]; /* [side][0] */
    _Alignas(128) int pid[2];
    uint64_t tensor[2]; /* addresses of the private tensors */
    int slice;          /* operations of this slice */
    int goes_on;
    double each_us[WAYS]; /* of the last slice */
    double us[2];
    double samples[WAYS][PLACEMENT_COUNT][SAMPLES];
    size_t counts[WAYS][PLACEMENT_COUNT];
} table_t;

typedef struct bench {
    dp_context_t *dp;
    int side;
    int touch;
    double seconds;
    table_t *table;
    uint32_t meets, rounds;
    float *tensors[WAYS]; /* this rank's */
    float *other;         /* the other rank's of the direct floor */
    float *piece;         /* of the cma floor */
    size_t counts[TENSORS_MAX];
    int tensor_count; /* of one operation */
    size_t total;     /* their elements */
} bench_t;

static void must(const bench_t *bench, dp_status_t status, const char *what)
{
    if (status == DP_OK) return;
    fprintf(stderr, "floor: %s: %s: %s\n", what, dp_status_string(status),
            bench->dp == NULL ? "" : dp_error_text(bench->dp));
    exit(1);
}

static void meet(bench_t *bench)
{
    _Atomic uint32_t *other = &bench->table->flag[1 - bench->side][0];

    bench->meets++;
    atomic_store_explicit(&bench->table->flag[bench->side][0], bench->meets, memory_order_release);
    for (int polls = 1;
         (int32_t)(atomic_load_explicit(other, memory_order_acquire) - bench->meets) < 0; polls++) {
        __builtin_ia32_pause();
        if (polls % 4096 == 0) sched_yield(); /* somebody else needs the other's core */
    }
}

/* ---- The ways ------------------------------------------------------------------------------- */

WIDE static void add(float *restrict own, const float *restrict piece, size_t count)
{
    for (size_t i = 0; i < count; i++)
        own[i] += piece[i];
}

static void run_direct(bench_t *bench, size_t at, size_t count)
{
    const size_t half = count / 2;
    const size_t begin = bench->side == 0 ? 0 : half;
    const size_t end = bench->side == 0 ? half : count;

    meet(bench);
    add_to_both(bench->tensors[DIRECT] + at + begin, bench->other + at + begin, end - begin);
    meet(bench);
}

static void fetch(const bench_t *bench, float *to, size_t at, size_t count)
{
    const size_t bytes = count * sizeof(float);
    const uint64_t from = bench->table->tensor[1 - bench->side] + at * sizeof(float);
    const struct iovec local = {to, bytes};
    const struct iovec remote = {(void *)(uintptr_t)from, bytes};

    if (bytes == 0) return;
    if (process_vm_readv(bench->table->pid[1 - bench->side], &local, 1, &remote, 1, 0) !=
        (ssize_t)bytes) {
        perror("floor: process_vm_readv");
        exit(1);
    }
}

static void run_cma(bench_t *bench, size_t at, size_t count)
{
    const size_t half = count / 2;
    const size_t begin = bench->side == 0 ? 0 : half;
    const size_t end = bench->side == 0 ? half : count;
    const size_t other = bench->side == 0 ? half : 0;
    const size_t step = CMA_PIECE / sizeof(float);

    meet(bench);
    for (size_t i = begin; i < end; i += step) {
        const size_t n = dp_min(end - i, step);

        fetch(bench, bench->piece, at + i, n);
        add(bench->tensors[CMA] + at + i, bench->piece, n);
    }
    meet(bench);
    fetch(bench, bench->tensors[CMA] + at + other, at + other, count - (end - begin));
    meet(bench);
}

static void run_libdp(bench_t *bench, int way)
{
    dp_handle_t *handles[TENSORS_MAX];
    size_t at = 0;

    for (int t = 0; t < bench->tensor_count; t++) {
        float *tensor = bench->tensors[way] + at;
        char name[40];

        snprintf(name, sizeof(name), "floor.%d.%d.%zu", way, t, bench->counts[t]);
        must(bench,
             dp_allreduce(dp_world(bench->dp), name, tensor, tensor, bench->counts[t], DP_F32, NULL,
                          &handles[t]),
             name);
        at += bench->counts[t];
    }
    for (int t = 0; t < bench->tensor_count; t++)
        must(bench, dp_wait(handles[t], -1.0, NULL), "wait");
}

static void run(bench_t *bench, int way)
{
    size_t at = 0;

    if (way == ARENA || way == ORDINARY) {
        run_libdp(bench, way);
        return;
    }
    for (int t = 0; t < bench->tensor_count; t++) {
        if (way == DIRECT) run_direct(bench, at, bench->counts[t]);
        if (way == CMA) run_cma(bench, at, bench->counts[t]);
        at += bench->counts[t];
    }
}

/* ---- Measuring ------------------------------------------------------------------------------ */

/* One operation, in us of the slower rank. */
static double once(bench_t *bench, int way)
{
    uint64_t start_ns;

    for (size_t i = 0; bench->touch && i < bench->total; i++)
        bench->tensors[way][i] = 1.0f;
    meet(bench);
    start_ns = dp_now_ns();
    run(bench, way);
    bench->table->us[bench->side] = (double)(dp_now_ns() - start_ns) / 1e3;
    meet(bench);
    return dp_max(bench->table->us[0], bench->table->us[1]);
}

static void check(bench_t *bench, int way)
{
    const int touch = bench->touch;
    float *tensor = bench->tensors[way];

    for (size_t i = 0; i < bench->total; i++)
        tensor[i] = (float)(bench->side + 1 + (int)(i % 7));
    bench->touch = 0;
    once(bench, way);
    bench->touch = touch;
    for (size_t i = 0; i < bench->total; i++) {
        if (tensor[i] == 3.0f + 2.0f * (float)(i % 7)) continue;
        fprintf(stderr, "floor: rank %d, way %d: element %zu is %g\n", bench->side, way, i,
                (double)tensor[i]);
        exit(1);
    }
    memset(tensor, 0, bench->total * sizeof(float));
    once(bench, way);
}

static void run_slice(bench_t *bench, int way)
{
    table_t *table = bench->table;
    const double before_ns = placement_measure(&table->placement, bench->side, &bench->rounds);
    double us[SLICE_MAX];
    double sum_us = 0.0;
    int slice;
    int place;

    if (bench->side == 0) {
        const double each_us = dp_max(table->each_us[way], 1.0);

        table->slice = (int)dp_min(dp_max(SLICE_NS / 1e3 / each_us, 1.0), (double)SLICE_MAX);
    }
    meet(bench);
    slice = table->slice;
    for (int i = 0; i < slice; i++)
        sum_us += us[i] = once(bench, way);
    place = placement_class(before_ns,
                            placement_measure(&table->placement, bench->side, &bench->rounds));
    if (bench->side == 1) return;
    table->each_us[way] = sum_us / slice;
    for (int i = 0; place >= 0 && i < slice && table->counts[way][place] < SAMPLES; i++)
        table->samples[way][place][table->counts[way][place]++] = us[i];
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(table_t *table, const char *what)
{
    for (int place = 0; place < PLACEMENT_COUNT; place++) {
        double median[WAYS] = {0};

        for (int way = 0; way < WAYS; way++) {
            const size_t count = table->counts[way][place];

            if (count < 3) continue;
            qsort(table->samples[way][place], count, sizeof(double), ascending);
            median[way] = table->samples[way][place][count / 2];
        }
        if (median[ARENA] * median[ORDINARY] * median[DIRECT] * median[CMA] == 0.0) continue;
        printf("row %-10s %-8s %11.2f %11.2f %11.2f %11.2f %6.2f %6.2f\n", what,
               placement_name(place), median[ARENA], median[ORDINARY], median[DIRECT], median[CMA],
               median[ARENA] / median[DIRECT], median[ORDINARY] / median[CMA]);
        fflush(stdout);
    }
}

static void measure(bench_t *bench, const char *what)
{
    table_t *table = bench->table;
    const uint64_t start_ns = dp_now_ns();

    memset(table->counts, 0, sizeof(table->counts));
    for (int way = 0; way < WAYS; way++) {
        check(bench, way);
        if (bench->side == 0) table->each_us[way] = dp_max(table->us[0], table->us[1]);
    }
    for (int turn = 0;; turn++) {
        if (bench->side == 0) {
            const double seconds = (double)(dp_now_ns() - start_ns) / 1e9;

            table->goes_on = turn < 3 || (seconds < bench->seconds && turn < 10000);
        }
        meet(bench);
        if (!table->goes_on) break;
        for (int way = 0; way < WAYS; way++)
            run_slice(bench, way);
    }
    if (bench->side == 0) report(table, what);
    meet(bench);
}

/* ---- Setting up ----------------------------------------------------------------------------- */

static void swap(const bench_t *bench, const char *name, void *values, size_t bytes)
{
    dp_handle_t *handle;

    must(bench,
         dp_broadcast(dp_world(bench->dp), name, values, values, bytes, DP_U8, 0, NULL, &handle),
         name);
    must(bench, dp_wait(handle, -1.0, NULL), name);
}

/* Memory of rank 0 that both map. */
static void *map_shared(const bench_t *bench, const char *name, size_t bytes)
{
    int where[2] = {getpid(), -1};
    char path[64];
    void *memory;
    int fd = -1;

    if (bench->side == 0) {
        fd = where[1] = memfd_create("floor", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) perror("floor: memfd_create");
    }
    swap(bench, name, where, sizeof(where));
    if (bench->side == 1) {
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", where[0], where[1]);
        fd = open(path, O_RDWR | O_CLOEXEC);
    }
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        perror("floor: mapping shared memory");
        exit(1);
    }
    swap(bench, name, where, sizeof(where)); /* both have it */
    close(fd);
    return memory;
}

static void set_up(bench_t *bench, size_t most)
{
    const size_t whole = dp_align_up(most, 2 * DP_MIB), distance = whole + APART;
    char *shared;
    void *arena;

    bench->table = map_shared(bench, "floor.table", sizeof(*bench->table));
    _Static_assert(APART % (2 * DP_MIB) != 0, "see apart.h");
    shared = map_shared(bench, "floor.tensors", distance + whole);
    must(bench, dp_alloc(bench->dp, whole, &arena), "dp_alloc");
    bench->tensors[ARENA] = arena;
    bench->tensors[ORDINARY] = aligned_alloc(4096, whole);
    bench->tensors[CMA] = aligned_alloc(4096, whole);
    bench->tensors[DIRECT] = (float *)(void *)(shared + (size_t)bench->side * distance);
    bench->other = (float *)(void *)(shared + (size_t)(1 - bench->side) * distance);
    bench->piece = aligned_alloc(4096, CMA_PIECE);
    if (bench->tensors[ORDINARY] == NULL || bench->tensors[CMA] == NULL || bench->piece == NULL) {
        fprintf(stderr, "floor: no memory for %zu bytes\n", whole);
        exit(1);
    }
    for (int way = 0; way < WAYS; way++)
        memset(bench->tensors[way], 0, whole);
    memset(bench->piece, 0, CMA_PIECE);
    bench->table->pid[bench->side] = getpid();
    bench->table->tensor[bench->side] = (uintptr_t)bench->tensors[CMA];
    meet(bench);
}

/* In the order in which backward finishes them. */
static void fill_gradients(bench_t *bench)
{
    const size_t width = 768;
    const size_t block[] = {4 * width * width, width, 4 * width * width, 4 * width, width, width,
                            width * width,     width, 3 * width * width, 3 * width, width, width};

    bench->counts[bench->tensor_count++] = width;
    bench->counts[bench->tensor_count++] = width;
    for (int layer = 0; layer < 12; layer++) {
        for (size_t i = 0; i < DP_ARRAY_LEN(block); i++)
            bench->counts[bench->tensor_count++] = block[i];
    }
    bench->counts[bench->tensor_count++] = 1024 * width;
    bench->counts[bench->tensor_count++] = 50257 * width;
    for (int t = 0; t < bench->tensor_count; t++)
        bench->total += bench->counts[t];
}

int main(int argc, char **argv)
{
    char sizes[256] = "4,1024,16384,65536,262144,1048576,16777216,67108864,268435456";
    bench_t bench = {.seconds = 1.0};
    int gradients = 0;
    size_t most = 0;
    char *next;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "touch") == 0) bench.touch = 1;
        if (strcmp(argv[i], "gradients") == 0) gradients = 1;
        if (strncmp(argv[i], "seconds=", 8) == 0) bench.seconds = atof(argv[i] + 8);
        if (strncmp(argv[i], "bytes=", 6) == 0) snprintf(sizes, sizeof(sizes), "%s", argv[i] + 6);
    }
    must(&bench, dp_init(NULL, &bench.dp), "dp_init");
    bench.side = dp_rank(bench.dp);
    if (dp_size(bench.dp) != 2) {
        fprintf(stderr, "floor: %d ranks, needs 2\n", dp_size(bench.dp));
        return 2;
    }
    if (gradients) fill_gradients(&bench);
    most = bench.total * sizeof(float);
    for (const char *at = gradients ? NULL : sizes; at != NULL && *at != '\0';) {
        most = dp_max(most, (size_t)strtoull(at, &next, 10));
        at = *next == ',' ? next + 1 : NULL;
    }
    set_up(&bench, most);
    if (bench.side == 0) {
        printf("#   %-10s %-8s %11s %11s %11s %11s %6s %6s\n", gradients ? "tensors" : "bytes", "",
               "arena us", "ordinary", "direct", "cma", "ar/dir", "or/cma");
    }
    if (gradients) measure(&bench, "gpt2-124m");
    for (const char *at = gradients ? NULL : sizes; at != NULL && *at != '\0';) {
        char what[24];

        bench.total = dp_max((size_t)strtoull(at, &next, 10) / sizeof(float), (size_t)1);
        bench.counts[0] = bench.total;
        bench.tensor_count = 1;
        snprintf(what, sizeof(what), "%zu", bench.counts[0] * sizeof(float));
        measure(&bench, what);
        at = *next == ',' ? next + 1 : NULL;
    }
    must(&bench, dp_finalize(bench.dp), "dp_finalize");
    return 0;
}
