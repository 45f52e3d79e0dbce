/*
 * engine_bench.c - how close the CPU engine's allreduce comes to what the machine can do.
 *
 * Two processes, fp32 sum in place in engine memory, 4 B to 256 MiB. The baseline, in the same run
 * and in turns with the engine: both tensors mapped by both, each process adds its half of the two
 * and stores the sum to both, spinning flags, no library. `touch` makes every process rewrite its
 * tensor before each timed operation, as a training step does; without it halves never leave the
 * cache of their core and the smaller sizes flatter both ways. `private`: memory of each process's
 * own, and the baseline reads pieces of the other's half and then its result by
 * process_vm_readv(); `refused`: and the engine must not do so. `tally`: the engine takes the
 * figures of the results too, as libdp has it.
 *
 *     engine_bench [nodes=1] [touch] [private] [refused] [tally] [seconds=0.3] [bytes=N,N]
 *                  [wire=none|fp16]
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../unit/engine_world.h"
#include "placement.h"

enum { WAY_ENGINE, WAY_FLOOR, WAY_COUNT };
#define SAMPLES 20000
#define SIZES_MAX 16
#define CMA_PIECE ((size_t)256 * DP_KIB)

typedef struct table {
    placement_t placement;
    _Alignas(128) _Atomic uint32_t flag[2][32]; /* [side][0]: meets of the baseline */
    _Alignas(128) int slice;                    /* operations until the next measurement */
    int keep_going;
    pid_t pid[2];
    uint64_t private[2]; /* addresses of the baseline's private tensors */
    double us[2];
    double cpu_us[2]; /* of the engine's operations in this measurement */
    size_t cpu_count;
    double samples[WAY_COUNT][PLACEMENT_COUNT][SAMPLES];
    size_t counts[WAY_COUNT][PLACEMENT_COUNT];
} table_t;

typedef struct bench {
    table_t *table;
    int touch;
    int is_private;
    int tallies;
    dp_wire_t wire;
    double seconds;
    size_t sizes[SIZES_MAX];
    int size_count;
    /* of one process */
    engine_rank_t *rank;
    uint32_t meets;
    uint32_t rounds;
    float *tensors[2]; /* of the baseline */
    float *own;        /* the engine's */
    float *other;      /* the other side's of the baseline; NULL between nodes: no baseline then */
    float *piece;      /* [CMA_PIECE] of the private baseline */
} bench_t;

/* ---- What the engine may do ----------------------------------------------------------------- */

static int refuses; /* set before there are others */

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                                const struct iovec *remote, unsigned long remotes,
                                unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                                const struct iovec *remote, unsigned long remotes,
                                unsigned long flags);

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                                const struct iovec *remote, unsigned long remotes,
                                unsigned long flags)
{
    if (refuses) {
        errno = EPERM;
        return -1;
    }
    return __real_process_vm_readv(pid, local, locals, remote, remotes, flags);
}

/* ---- The ways ------------------------------------------------------------------------------- */

static void meet(bench_t *bench)
{
    const int side = bench->rank->rank;
    _Atomic uint32_t *other = &bench->table->flag[1 - side][0];

    bench->meets++;
    atomic_store_explicit(&bench->table->flag[side][0], bench->meets, memory_order_release);
    for (int polls = 1;
         (int32_t)(atomic_load_explicit(other, memory_order_acquire) - bench->meets) < 0; polls++) {
        __builtin_ia32_pause();
        if (polls % 4096 == 0) sched_yield(); /* somebody else needs the other's core */
    }
}

typedef float lanes __attribute__((vector_size(64), aligned(4)));

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void
add_both(float *a, float *b, size_t count)
{
    size_t i = 0;

    for (; i + 16 <= count; i += 16) {
        const lanes sum = *(lanes *)(void *)(a + i) + *(lanes *)(void *)(b + i);

        *(lanes *)(void *)(a + i) = sum;
        *(lanes *)(void *)(b + i) = sum;
    }
    for (; i < count; i++) {
        const float sum = a[i] + b[i];

        a[i] = sum;
        b[i] = sum;
    }
}

static float *own_of(const bench_t *bench, int way)
{
    return way == WAY_ENGINE ? bench->own : bench->tensors[bench->rank->rank];
}

static void direct(bench_t *bench, size_t count)
{
    float *own = own_of(bench, WAY_FLOOR);
    const size_t half = count / 2;
    const size_t begin = bench->rank->rank == 0 ? 0 : half;
    const size_t elems = bench->rank->rank == 0 ? half : count - half;

    meet(bench);
    add_both(own + begin, bench->other + begin, elems);
    meet(bench);
}

static void fetch(const bench_t *bench, float *to, size_t at, size_t count)
{
    const int other = 1 - bench->rank->rank;
    const struct iovec local = {to, count * sizeof(float)};
    const struct iovec remote = {
        (void *)(uintptr_t)(bench->table->private[other] + at * sizeof(float)), local.iov_len};

    if (count == 0 || __real_process_vm_readv(bench->table->pid[other], &local, 1, &remote, 1, 0) ==
                          (ssize_t)local.iov_len) {
        return;
    }
    perror("process_vm_readv");
    abort();
}

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void
add_piece(float *restrict own, const float *restrict piece, size_t count)
{
    for (size_t i = 0; i < count; i++)
        own[i] += piece[i];
}

static void read_and_add(bench_t *bench, size_t count)
{
    float *own = own_of(bench, WAY_FLOOR);
    const size_t half = count / 2;
    const size_t begin = bench->rank->rank == 0 ? 0 : half;
    const size_t end = bench->rank->rank == 0 ? half : count;
    const size_t step = CMA_PIECE / sizeof(float);

    meet(bench);
    for (size_t i = begin; i < end; i += step) {
        const size_t n = dp_min(end - i, step);

        fetch(bench, bench->piece, i, n);
        add_piece(own + i, bench->piece, n);
    }
    meet(bench);
    if (begin == 0) {
        fetch(bench, own + half, half, count - half);
    } else {
        fetch(bench, own, 0, half);
    }
    meet(bench);
}

static void engine(bench_t *bench, size_t count)
{
    dp_engine_piece_t piece = {
        .in = bench->own, .out = bench->own, .count = count, .prescale = 1.0, .postscale = 1.0};
    dp_tally_t tally;
    dp_engine_op_t op = {.collective = DP_COLLECTIVE_ALLREDUCE,
                         .dtype = DP_F32,
                         .wire = bench->wire,
                         .pieces = &piece,
                         .piece_count = 1};

    dp_tally_init(&tally);
    if (bench->tallies) piece.tally = &tally;
    op.sequence = ++bench->rank->sequence;
    if (bench->rank->engine->ops->enqueue(bench->rank->engine, bench->rank->stream, DP_WORK_SMALL,
                                          &op) != DP_OK ||
        op.status != DP_OK) {
        fprintf(stderr, "rank %d: %s\n", bench->rank->rank, op.text);
        abort();
    }
}

static double cpu_us(void)
{
    struct timespec used;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e6 + (double)used.tv_nsec / 1e3;
}

/* One timed operation; the time is that of the slower side. */
static double once(bench_t *bench, int way, size_t count)
{
    uint64_t start_ns;
    double us;

    for (size_t i = 0; bench->touch && i < count; i++) {
        own_of(bench, way)[i] = 0.0f;
        __asm__ volatile("" ::: "memory"); /* plain stores, no memset() past the cache */
    }
    meet(bench);
    start_ns = dp_now_ns();
    if (way == WAY_ENGINE) {
        engine(bench, count);
    } else if (bench->is_private) {
        read_and_add(bench, count);
    } else {
        direct(bench, count);
    }
    us = (double)(dp_now_ns() - start_ns) / 1e3;
    bench->table->us[bench->rank->rank] = us;
    meet(bench);
    us = dp_max(bench->table->us[0], bench->table->us[1]);
    meet(bench);
    return us;
}

static void check(bench_t *bench, int way, size_t count)
{
    const int touch = bench->touch;
    float *own = own_of(bench, way);

    for (size_t i = 0; i < count; i++)
        own[i] = (float)(bench->rank->rank + 1 + (int)(i % 7));
    bench->touch = 0;
    once(bench, way, count);
    bench->touch = touch;
    for (size_t i = 0; i < count; i++) {
        if (own[i] != 3.0f + 2.0f * (float)(i % 7)) {
            fprintf(stderr, "rank %d: wrong at %zu: %g\n", bench->rank->rank, i, (double)own[i]);
            abort();
        }
    }
    memset(own, 0, count * sizeof(float));
    meet(bench);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(table_t *table, size_t bytes, int ways)
{
    for (int place = 0; place < PLACEMENT_COUNT; place++) {
        double median[WAY_COUNT] = {0};

        for (int way = 0; way < ways; way++) {
            const size_t count = table->counts[way][place];

            if (count < 3) continue;
            qsort(table->samples[way][place], count, sizeof(double), compare);
            median[way] = table->samples[way][place][count / 2];
        }
        if (median[WAY_ENGINE] == 0.0) continue;
        printf("%10zu %-8s %6zu %12.2f %8.2f", bytes, placement_name(place),
               table->counts[WAY_ENGINE][place], median[WAY_ENGINE],
               (double)bytes / median[WAY_ENGINE] / 1e3);
        if (median[WAY_FLOOR] != 0.0) {
            printf(" %12.2f %8.2f %6.2f", median[WAY_FLOOR],
                   (double)bytes / median[WAY_FLOOR] / 1e3, median[WAY_ENGINE] / median[WAY_FLOOR]);
        }
        printf(" %10.2f\n", (table->cpu_us[0] + table->cpu_us[1]) / (double)table->cpu_count);
        fflush(stdout);
    }
}

static void measure(bench_t *bench, size_t bytes)
{
    const size_t count = bytes / sizeof(float);
    const int side = bench->rank->rank;
    const int ways = bench->other != NULL ? WAY_COUNT : 1;
    table_t *table = bench->table;
    const uint64_t start_ns = dp_now_ns();
    double before_ns;
    double each_us;

    for (int way = 0; way < ways; way++)
        check(bench, way, count);
    each_us = once(bench, WAY_ENGINE, count);
    table->cpu_us[side] = 0.0;
    if (side == 0) {
        memset(table->counts, 0, sizeof(table->counts));
        table->cpu_count = 0;
        table->slice = (int)dp_max(1.0, dp_min(1000.0, 5000.0 / (each_us + 0.2)));
    }
    meet(bench);
    before_ns = placement_measure(&table->placement, side, &bench->rounds);
    for (int turn = 0;; turn++) {
        const int way = turn % ways;
        double us[1000] = {0};
        double after_ns;
        int place;

        table->cpu_us[side] -= way == WAY_ENGINE ? cpu_us() : 0.0;
        for (int i = 0; i < table->slice; i++)
            us[i] = once(bench, way, count);
        table->cpu_us[side] += way == WAY_ENGINE ? cpu_us() : 0.0;
        after_ns = placement_measure(&table->placement, side, &bench->rounds);
        place = placement_class(before_ns, after_ns);
        before_ns = after_ns;
        for (int i = 0; side == 0 && place >= 0 && i < table->slice; i++) {
            size_t *filled = &table->counts[way][place];

            if (*filled < SAMPLES) table->samples[way][place][(*filled)++] = us[i];
        }
        if (side == 0) {
            const double spent = (double)(dp_now_ns() - start_ns) / 1e9;

            if (way == WAY_ENGINE) table->cpu_count += (size_t)table->slice;
            table->keep_going = spent < ways * bench->seconds || turn < 5 * ways;
        }
        meet(bench);
        if (!table->keep_going) break;
        meet(bench);
    }
    meet(bench);
    if (side == 0) report(table, bytes, ways);
}

/* Memory of this process alone. */
static float *private_memory(size_t bytes)
{
    float *memory = aligned_alloc(4096, bytes);

    if (memory == NULL) {
        fprintf(stderr, "engine_bench: no memory for %zu bytes\n", bytes);
        abort();
    }
    memset(memory, 0, bytes);
    return memory;
}

static void body(engine_rank_t *rank, void *user)
{
    bench_t bench = *(bench_t *)user;
    size_t most = 4096;
    cpu_set_t core;

    bench.rank = rank;
    CPU_ZERO(&core);
    CPU_SET(rank->rank, &core);
    sched_setaffinity(0, sizeof(core), &core);
    for (int i = 0; i < bench.size_count; i++)
        most = dp_max(most, dp_align_up(bench.sizes[i], 4096));
    bench.own = bench.is_private ? private_memory(most) : engine_memory(rank, most);
    if (bench.own == NULL) return;
    if (bench.is_private) {
        bench.tensors[rank->rank] = private_memory(most);
        bench.piece = private_memory(CMA_PIECE);
        bench.table->pid[rank->rank] = getpid();
        bench.table->private[rank->rank] = (uintptr_t)bench.tensors[rank->rank];
    }
    if (rank->topology.node_count == 1) bench.other = bench.tensors[1 - rank->rank];
    meet(&bench);
    if (rank->rank == 0) {
        printf("%10s %-8s %6s %12s %8s %12s %8s %6s %10s\n", "bytes", "", "count", "engine us",
               "GB/s", bench.is_private ? "cma us" : "direct us", "GB/s", "ratio", "cpu us");
        fflush(stdout);
    }
    for (int i = 0; i < bench.size_count; i++)
        measure(&bench, bench.sizes[i]);
}

/* "N,N,..." instead of the sizes by default. */
static int read_sizes(bench_t *bench, const char *text)
{
    char *next;

    for (bench->size_count = 0; bench->size_count < SIZES_MAX; text = next + 1) {
        const size_t bytes = (size_t)strtoull(text, &next, 10);

        if (bytes < sizeof(float) || bytes > (size_t)256 * DP_MIB) return 0;
        bench->sizes[bench->size_count++] = bytes / sizeof(float) * sizeof(float);
        if (*next != ',') return *next == '\0';
    }
    return 0;
}

int main(int argc, char **argv)
{
    engine_world_t world = ENGINE_WORLD(2, 1);
    bench_t bench = {.seconds = 0.3, .wire = DP_WIRE_NONE};

    read_sizes(&bench, "4,1024,16384,65536,262144,1048576,16777216,67108864,268435456");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "touch") == 0) bench.touch = 1;
        if (strcmp(argv[i], "private") == 0) bench.is_private = 1;
        if (strcmp(argv[i], "refused") == 0) refuses = 1;
        if (strcmp(argv[i], "tally") == 0) bench.tallies = 1;
        if (strncmp(argv[i], "bytes=", 6) == 0 && !read_sizes(&bench, argv[i] + 6)) {
            fprintf(stderr, "engine_bench: sizes are 4 to 268435456, at most %d\n", SIZES_MAX);
            return 2;
        }
        if (strncmp(argv[i], "nodes=", 6) == 0) world.nodes = atoi(argv[i] + 6);
        if (strncmp(argv[i], "seconds=", 8) == 0) bench.seconds = atof(argv[i] + 8);
        if (strcmp(argv[i], "wire=fp16") == 0) bench.wire = DP_WIRE_FP16;
    }
    if (bench.is_private && world.nodes != 1) {
        fprintf(stderr, "engine_bench: private memory is for one node\n");
        return 2;
    }
    world.arena_bytes = DP_GIB;
    world.spin_ns = 20000;
    for (int i = 0; i < 2; i++) {
        bench.tensors[i] = mmap(NULL, (size_t)256 * DP_MIB, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (bench.tensors[i] == MAP_FAILED) return 1;
    }
    bench.table =
        mmap(NULL, sizeof(table_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (bench.table == MAP_FAILED) return 1;
    return engine_world_processes(&world, body, &bench) != 0;
}
