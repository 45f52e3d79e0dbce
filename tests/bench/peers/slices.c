/*
 * slices.c - the measuring loop: meetings, placement, samples, checks and what is printed.
 *
 * A process is one rank of one run, so its state is a static here. It must not know what the ways
 * are.
 */
#include "tests/bench/peers/slices.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/bench/placement.h"

enum { RANKS_MAX = 64, SAMPLES_MAX = 20000, SIZES_MAX = 16, PARTS_MAX = 256 };
enum { LEAST_SAMPLES = 5, LEAST_SLOW = 3 };
enum { MIXED = PLACEMENT_COUNT, PLACES }; /* where it changed */
#define SLICE_US 10000.0
#define WALL_FACTOR 3.0 /* of the time asked for, before a size ends early */

typedef struct table {
    placement_t placement;
    _Alignas(128) _Atomic uint32_t met[RANKS_MAX][32]; /* [rank][0]: meetings it came to */
    _Alignas(128) int iterations;                      /* of this size; by rank 0 */
    int slice;                                         /* of them between two probes */
    int is_slow; /* one iteration takes as long as all were to take; by rank 0 */
    size_t wrong[RANKS_MAX];
    double start_us[RANKS_MAX][SAMPLES_MAX];
    double end_us[RANKS_MAX][SAMPLES_MAX];
} table_t;

/* This process' part in the run. */
static struct {
    table_t *table;
    int rank, ranks;
    int crowded; /* more ranks than cores: who waits gives its core away at once */
    int probing;
    uint32_t meetings;
    uint32_t probes;
    double samples[PLACES][SAMPLES_MAX];
    size_t counts[PLACES];
    unsigned char place[SAMPLES_MAX];
} self;

typedef struct plan {
    const slices_way_t *way;
    double seconds;
    int touch;
    int loop;
    float *tensor;
    size_t count;
    slices_parts_t parts;
} plan_t;

const char *slices_argument(int argc, char **argv, const char *name, const char *otherwise)
{
    const size_t length = strlen(name);

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=') {
            return argv[i] + length + 1;
        }
    }
    return otherwise;
}

static double now_us(void)
{
    return (double)dp_now_ns() * 1e-3;
}

void slices_meet(void)
{
    const int polls_max = self.crowded ? 16 : 1024;

    self.meetings++;
    atomic_store_explicit(&self.table->met[self.rank][0], self.meetings, memory_order_release);
    for (int r = 0; r < self.ranks; r++) {
        for (int polls = 1;
             (int32_t)(atomic_load_explicit(&self.table->met[r][0], memory_order_acquire) -
                       self.meetings) < 0;
             polls++) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            if (polls % polls_max == 0) sched_yield();
        }
    }
}

/* How far apart ranks 0 and 1 are; the others wait. 0 where that has no meaning. */
static double probe(void)
{
    double ns = 0.0;

    slices_meet();
    if (!self.probing) return 0.0;
    if (self.rank < 2) ns = placement_measure(&self.table->placement, self.rank, &self.probes);
    slices_meet();
    return ns;
}

static unsigned char place_of(double before_ns, double after_ns)
{
    const int place = placement_class(before_ns, after_ns);

    return (unsigned char)(place < 0 ? MIXED : place);
}

/* ---- One size ------------------------------------------------------------------------------- */

/* Small whole numbers, whose sums are exact. */
static float pattern(size_t i, int rank)
{
    return (float)((i * 7 + (size_t)rank * 3) % 4);
}

static int reduce(const plan_t *plan)
{
    return plan->way->reduce(plan->way->user, plan->tensor, plan->count, &plan->parts);
}

/* The first sum, element by element. */
static int check_whole(const plan_t *plan)
{
    for (size_t i = 0; i < plan->count; i++)
        plan->tensor[i] = pattern(i, self.rank);
    slices_meet();
    if (reduce(plan) != 0) return -1;
    for (size_t i = 0; i < plan->count; i++) {
        float expected = 0.0f;

        for (int r = 0; r < self.ranks; r++)
            expected += pattern(i, r);
        self.table->wrong[self.rank] += plan->tensor[i] != expected;
    }
    slices_meet();
    return 0;
}

/* Rewrites the tensor, as a training step would, with this iteration's value. */
static void touch(const plan_t *plan, float value)
{
    for (size_t i = 0; i < plan->count; i++)
        plan->tensor[i] = value;
}

static void check_places(const plan_t *plan, float expected)
{
    const size_t places[] = {0, plan->count / 2, plan->count - 1};

    for (size_t i = 0; i < 3; i++)
        self.table->wrong[self.rank] += plan->tensor[places[i]] != expected;
}

/* Iterations that fit the time, and those of a slice; all ranks get rank 0's. */
static int choose_lengths(const plan_t *plan)
{
    const double wanted = plan->seconds * 1e6;
    double begin, each = 0.0;

    touch(plan, 0.0f);
    for (int i = 0; i < 3; i++) {
        /* As it will be measured: libdp's fp16 goes by the magnitudes of the last sum. */
        if (plan->touch) touch(plan, (float)(self.rank + 1));
        slices_meet();
        begin = now_us();
        if (reduce(plan) != 0) return -1;
        each = now_us() - begin;
        if (self.rank == 0) self.table->is_slow = each > wanted;
        slices_meet();
        if (self.table->is_slow) break;
    }
    slices_meet();
    if (self.rank == 0) {
        const int least = self.table->is_slow ? LEAST_SLOW : LEAST_SAMPLES;
        const double fit = wanted / (each + 1.0), slice = SLICE_US / (each + 1.0);

        self.table->iterations = fit < least ? least : fit > SAMPLES_MAX ? SAMPLES_MAX : (int)fit;
        self.table->slice = slice < 1.0 ? 1 : (int)slice;
    }
    slices_meet();
    return 0;
}

static int run_one(const plan_t *plan, int i)
{
    const int sum = self.ranks * (self.ranks + 1) / 2; /* of what they touch it with */
    const float whole = (float)sum;

    if (plan->touch) touch(plan, (float)(self.rank + 1));
    slices_meet();
    self.table->start_us[self.rank][i] = now_us();
    if (reduce(plan) != 0) return -1;
    self.table->end_us[self.rank][i] = now_us();
    check_places(plan, plan->touch ? whole : 0.0f);
    return 0;
}

/* A slice without meetings; its mean is one sample, kept under the number of its first one. */
static int run_loop(const plan_t *plan, int first, int count)
{
    slices_meet();
    self.table->start_us[self.rank][first] = now_us();
    for (int i = 0; i < count; i++) {
        if (reduce(plan) != 0) return -1;
    }
    self.table->end_us[self.rank][first] = now_us();
    check_places(plan, 0.0f);
    slices_meet();
    return 0;
}

/*
 * Where ranks share cores, an iteration, or the meeting before it, can take a thousand times what
 * the first ones took. Rank 0 then ends the size. All read that behind the meeting of the probe,
 * and come to another one before rank 0 writes again.
 */
static void end_if_late(const plan_t *plan, int done, double begin_us)
{
    if (self.rank != 0 || done < LEAST_SAMPLES) return;
    if (now_us() - begin_us > WALL_FACTOR * plan->seconds * 1e6) self.table->iterations = done;
}

static int run_slices(const plan_t *plan)
{
    const int slice = self.table->slice;
    const double begin_us = now_us();
    double before = probe();

    for (int first = 0; first < self.table->iterations; first += slice) {
        const int count = dp_min(slice, self.table->iterations - first);
        double after;

        if (plan->loop && run_loop(plan, first, count) != 0) return -1;
        for (int i = first; !plan->loop && i < first + count; i++) {
            if (run_one(plan, i) != 0) return -1;
        }
        end_if_late(plan, first + count, begin_us);
        after = probe();
        for (int i = first; i < first + count; i++)
            self.place[i] = place_of(before, after);
        before = after;
    }
    slices_meet();
    return 0;
}

/* ---- Figures -------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

/* From the last rank's start to the last rank's end. */
static double sample_us(int i)
{
    double start = 0.0, end = 0.0;

    for (int r = 0; r < self.ranks; r++) {
        start = dp_max(start, self.table->start_us[r][i]);
        end = dp_max(end, self.table->end_us[r][i]);
    }
    return end - start;
}

static void print_figures(const plan_t *plan)
{
    const int iterations = self.table->iterations, slice = self.table->slice;
    size_t wrong = 0;

    for (int r = 0; r < self.ranks; r++)
        wrong += self.table->wrong[r];
    memset(self.counts, 0, sizeof(self.counts));
    for (int i = 0; i < iterations; i += plan->loop ? slice : 1) {
        const int of = plan->loop ? dp_min(slice, iterations - i) : 1;
        const int place = self.probing ? self.place[i] : MIXED;

        self.samples[place][self.counts[place]++] = sample_us(i) / of;
    }
    for (int p = 0; p < PLACES; p++) {
        double *samples = self.samples[p];
        const size_t n = self.counts[p];

        if (n == 0) continue;
        qsort(samples, n, sizeof(*samples), ascending);
        printf("{\"way\": \"%s\", \"bytes\": %zu, \"place\": \"%s\", \"samples\": %zu, "
               "\"min_us\": %.3f, \"median_us\": %.3f, \"p99_us\": %.3f, \"wrong\": %zu}\n",
               plan->way->name, plan->count * sizeof(float),
               p == MIXED ? "mixed" : placement_name(p), n, samples[0], samples[n / 2],
               samples[(size_t)((double)(n - 1) * 0.99 + 0.5)], wrong);
    }
    fflush(stdout);
}

static int measure(plan_t *plan)
{
    self.table->wrong[self.rank] = 0;
    if (check_whole(plan) != 0 || choose_lengths(plan) != 0 || run_slices(plan) != 0) {
        fprintf(stderr, "%s: rank %d: %zu bytes: the operation failed\n", plan->way->name,
                self.rank, plan->count * sizeof(float));
        return -1;
    }
    if (self.rank == 0) print_figures(plan);
    slices_meet();
    return 0;
}

/* ---- The run -------------------------------------------------------------------------------- */

/* GPT-2 124M from the final norm back to the embeddings: 148 tensors. */
static slices_parts_t gpt2_parts(void)
{
    enum { LAYERS = 12, TENSORS = 12 * LAYERS + 4 };
    static const size_t width = 768;
    static size_t counts[TENSORS];
    const size_t block[12] = {4 * width * width, width, 4 * width * width, 4 * width, width, width,
                              width * width,     width, 3 * width * width, 3 * width, width, width};

    counts[0] = counts[1] = width;
    for (size_t i = 0; i < (size_t)LAYERS * 12; i++)
        counts[2 + i] = block[i % 12];
    counts[TENSORS - 2] = 1024 * width;
    counts[TENSORS - 1] = 50257 * width;
    return (slices_parts_t){TENSORS, counts};
}

/* Of 1 MiB each; none: not a number of them that there is room for. */
static slices_parts_t equal_parts(const char *number)
{
    static size_t counts[PARTS_MAX];
    const unsigned long many = strtoul(number, NULL, 10);

    for (size_t i = 0; i < PARTS_MAX; i++)
        counts[i] = DP_MIB / sizeof(float);
    return (slices_parts_t){many <= PARTS_MAX ? many : 0, counts};
}

static int open_table(const char *path)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *memory = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, sizeof(table_t)) == 0) {
        memory = mmap(NULL, sizeof(table_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (fd >= 0) close(fd);
    if (memory == MAP_FAILED) {
        perror(path);
        return -1;
    }
    self.table = memory;
    return 0;
}

static int parse_sizes(const char *text, size_t *counts)
{
    int n = 0;

    while (*text != '\0' && n < SIZES_MAX) {
        char *end;
        const unsigned long long bytes = strtoull(text, &end, 10);

        if (end == text || (*end != '\0' && *end != ',') || bytes < sizeof(float)) return -1;
        counts[n++] = (size_t)bytes / sizeof(float);
        text = *end == ',' ? end + 1 : end;
    }
    return *text == '\0' ? n : -1;
}

int slices_run(const slices_way_t *way, int rank, int ranks, int argc, char **argv)
{
    const char *path = slices_argument(argc, argv, "table", NULL);
    const char *set = slices_argument(argc, argv, "set", "");
    size_t counts[SIZES_MAX] = {0}, most = 0;
    slices_parts_t parts = {0, NULL};
    plan_t plan = {.way = way};
    int n;

    if (set[0] != '\0') {
        parts = strcmp(set, "gpt2") == 0 ? gpt2_parts() : equal_parts(set);
        for (size_t i = 0; i < parts.count; i++)
            counts[0] += parts.counts[i];
        n = parts.count > 0;
    } else {
        n = parse_sizes(slices_argument(argc, argv, "sizes", "4"), counts);
    }
    if (path == NULL || n < 1 || ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks) {
        fprintf(stderr, "%s: needs table=FILE, sizes=BYTES,... or set=, and 1 to %d ranks\n",
                way->name, RANKS_MAX);
        return 1;
    }
    if (open_table(path) != 0) return 1;
    self.rank = rank;
    self.ranks = ranks;
    self.crowded = ranks > sysconf(_SC_NPROCESSORS_ONLN);
    self.probing =
        ranks > 1 && !self.crowded && strcmp(slices_argument(argc, argv, "probe", "1"), "1") == 0;
    plan.seconds = strtod(slices_argument(argc, argv, "seconds", "0.3"), NULL);
    plan.loop = atoi(slices_argument(argc, argv, "loop", "0"));
    plan.touch = !plan.loop && atoi(slices_argument(argc, argv, "touch", "1"));
    for (int i = 0; i < n; i++)
        most = dp_max(most, counts[i]);
    plan.tensor = way->memory(way->user, most * sizeof(float));
    if (plan.tensor == NULL) {
        fprintf(stderr, "%s: rank %d: no memory for %zu bytes\n", way->name, rank,
                most * sizeof(float));
        return 1;
    }
    for (int i = 0; i < n; i++) {
        plan.count = counts[i];
        plan.parts = parts.count > 0 ? parts : (slices_parts_t){1, &counts[i]};
        if (measure(&plan) != 0) return 1;
    }
    return 0;
}
