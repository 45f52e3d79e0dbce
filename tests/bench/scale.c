/*
 * scale.c - what the control plane costs when there are very many ranks.
 *
 * Runs the real state machine, one for each rank, up to 65536 of them in this process, through
 * steps of a training program in virtual time, counts messages and bytes, measures memory, and adds
 * up what each message costs the threads it keeps busy. Beside it stand formulas for others' ways
 * with the same costs. Only the control plane: data planes take no time, and all ranks submit at
 * the same moment. No figure but the memory depends on the machine it runs on.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scale_world.h"

#define SIZES_MAX 16

typedef struct plan {
    scale_options_t options;
    int sizes[SIZES_MAX];
    int size_count;
    int batch;       /* tensors submitted together, as a backward pass makes them */
    uint64_t gap_ns; /* between two batches */
    double memory_gib;
} plan_t;

static const char help[] =
    "usage: scale [options] [RANKS ...]\n"
    "  Simulates the negotiation of many ranks, each a real state machine, with a virtual clock.\n"
    "  (nothing)             8 64 512 4096 16384 65536 ranks: minutes, and some GiB of memory\n"
    "  --per-message-us X    to send or to take one message, one after the other: 1\n"
    "  --per-byte-ns X       more for each byte of it: 0\n"
    "  --latency-us X        of the wire between nodes: 5\n"
    "  --local-latency-us X  within a node: 1\n"
    "  --ranks-per-node N    8\n"
    "  --arity N             children of a rank among nodes and within one: 8\n"
    "  --tensors N           of a step: 148, as GPT-2 has\n"
    "  --batch N             that a backward pass submits at a time: 12\n"
    "  --gap-us X            between two batches: 2000\n"
    "  --memory-gib X        worlds that would take more get fewer tensors: 10.5\n";

/* ---- Formulas ------------------------------------------------------------------------------- */

typedef struct model {
    double messages, root_messages, us;
} model_t;

static double message_us(const plan_t *plan, double bytes)
{
    return ((double)plan->options.message_ns + plan->options.byte_ns * bytes) * 1e-3;
}

/* The time of one wire between nodes, or inside one. */
static double wire_us(const plan_t *plan, int is_local)
{
    return (double)(is_local ? plan->options.local_latency_ns : plan->options.latency_ns) * 1e-3;
}

static int node_count(const plan_t *plan, int size)
{
    return (size + plan->options.ranks_per_node - 1) / plan->options.ranks_per_node;
}

/* Rank 0 hears from all, one after the other, and answers all. up, down: bytes. */
static model_t model_star(const plan_t *plan, int size, double up, double down)
{
    double others = size - 1, wire = wire_us(plan, node_count(plan, size) == 1);

    return (model_t){2 * others * 2 / size, 2 * others,
                     message_us(plan, up) + wire + others * message_us(plan, up) +
                         others * message_us(plan, down) + wire + message_us(plan, down)};
}

/* A bit per tensor, ANDed on the way round the ring, and round again for the answer. */
static model_t model_ring(const plan_t *plan, int size, double bytes)
{
    double hops = 2.0 * (size - 1), nodes = node_count(plan, size);
    double remote = nodes > 1 ? 2 * nodes : 0, local = dp_max(hops - remote, 0);

    return (model_t){2 * hops, 2 * hops,
                     hops * 2 * message_us(plan, bytes) + local * wire_us(plan, 1) +
                         (hops - local) * wire_us(plan, 0)};
}

/* The same by recursive doubling; within a node first. */
static model_t model_doubling(const plan_t *plan, int size, double bytes)
{
    double rounds = ceil(log2(size));
    double local = dp_min(rounds, ceil(log2(plan->options.ranks_per_node)));

    return (model_t){2 * rounds, 2 * rounds,
                     rounds * 2 * message_us(plan, bytes) + local * wire_us(plan, 1) +
                         (rounds - local) * wire_us(plan, 0)};
}

/* ---- Output --------------------------------------------------------------------------------- */

static void print_head(const scale_world_t *world)
{
    int depth = 0;

    for (int r = world->options.size - 1; r > 0; r = world->ranks[r].links.parent)
        depth++;
    printf("\n%d ranks on %d nodes; the root has %d neighbours, the last rank is %d edges below\n",
           world->options.size, world->topology.node_count, world->ranks[0].links.child_count,
           depth);
    printf("%-32s %33s   %6s   %21s   %13s\n", "", "messages of a rank", "before",
           "bytes of a rank", "to the last");
    printf("%-32s %11s%11s%11s   %6s   %10s %10s   %13s\n", "", "mean", "most", "root", "launch",
           "mean", "root", "launch, us");
}

static void print_cost(const char *name, const scale_cost_t *cost)
{
    printf("%-32s %11.2f%11.2f%11.2f   %6u   %10.0f %10.0f   %13.1f\n", name, cost->mean_messages,
           (double)cost->max_messages, (double)cost->root_messages, cost->waited, cost->mean_bytes,
           (double)cost->root_bytes, cost->us);
    fflush(stdout);
}

static void print_model(const char *name, const model_t *model, int times)
{
    printf("%-32s %11.2f%11.2f%11.2f   %6s   %10s %10s   %13.1f\n", name, model->messages * times,
           model->root_messages * times, model->root_messages * times, "", "", "", model->us);
}

static void print_models(const plan_t *plan, int size, const scale_cost_t *negotiated, int batches)
{
    double bits = ceil(plan->options.tensors / 8.0);
    /* The mean bytes of a message of ours: the same would go through a star. */
    double frame = negotiated->mean_bytes / dp_max(negotiated->mean_messages, 1);
    model_t star = model_star(plan, size, frame, frame);
    model_t ring = model_ring(plan, size, bits), doubling = model_doubling(plan, size, bits);

    print_model("  model: star, all at once", &star, 1);
    print_model("  model: star, in batches", &star, batches);
    print_model("  model: ring AND, all at once", &ring, 1);
    print_model("  model: recursive doubling", &doubling, 1);
}

/* A topology: four numbers of each rank, two numbers and a name of each node. */
static double topology_bytes(const dp_topology_t *topology)
{
    return topology->size * 4.0 * sizeof(int) +
           topology->node_count * (2.0 * sizeof(int) + sizeof(char *) + 32);
}

static void print_memory(const scale_world_t *world)
{
    int most;
    double mean = scale_bytes(world, &most);

    printf("  memory, KiB: %.1f a rank on average, rank 0 %.1f, rank %d most: %.1f, the last rank "
           "%.1f; and %.1f of\n  topology in each process, shared here\n",
           mean / 1024, (double)world->ranks[0].allocated / 1024, most,
           (double)world->ranks[most].allocated / 1024,
           (double)world->ranks[world->options.size - 1].allocated / 1024,
           topology_bytes(&world->topology) / 1024);
    fflush(stdout);
}

/* ---- Phases --------------------------------------------------------------------------------- */

static void at_once(scale_world_t *world, const char *name, int first, int count,
                    scale_cost_t *cost)
{
    uint64_t from_ns;

    scale_progress(world, name, 0, 1);
    scale_begin(world);
    from_ns = world->now_ns;
    scale_submit(world, first, count);
    scale_run(world, UINT64_MAX);
    scale_end(world, name, (uint32_t)count, 0, from_ns, cost);
    print_cost(name, cost);
}

/* The latency is the last batch's. */
static void in_batches(scale_world_t *world, const plan_t *plan, const char *name)
{
    int tensors = plan->options.tensors;
    uint64_t from_ns = 0;
    scale_cost_t cost;

    scale_begin(world);
    for (int first = 0; first < tensors; first += plan->batch) {
        scale_progress(world, name, first / plan->batch, (tensors - 1) / plan->batch + 1);
        scale_run(world, world->now_ns + plan->gap_ns);
        from_ns = world->now_ns;
        scale_submit(world, first, dp_min(plan->batch, tensors - first));
    }
    scale_run(world, UINT64_MAX);
    scale_end(world, name, (uint32_t)tensors, 0, from_ns, &cost);
    print_cost(name, &cost);
}

static void say_goodbye(scale_world_t *world)
{
    static const char name[] = "all say goodbye";
    scale_cost_t cost;
    uint64_t from_ns;

    scale_begin(world);
    from_ns = world->now_ns;
    for (int r = 0; r < world->options.size; r++) {
        dp_negotiator_finalize(world->ranks[r].negotiator, from_ns);
        scale_wake(world, r);
    }
    scale_run(world, UINT64_MAX);
    scale_end(world, name, 0, 1, from_ns, &cost);
    print_cost(name, &cost);
}

/* A rank's memory and time in a world, by which the next one is judged. */
typedef struct taken {
    int size, tensors;
    double empty, full; /* bytes without tensors, and with them */
} taken_t;

/* Bytes in use would fill this much more: what grew has left holes. */
#define HOLES 1.2

/* How much a larger world would take here. Half a byte of a rank for each rank more: it keeps bits
 * of all, and those with children the way to each. */
static double wanted_gib(const taken_t *taken, int size, int tensors)
{
    double each = taken->empty + (taken->full - taken->empty) * tensors / taken->tensors +
                  0.5 * dp_max(size - taken->size, 0);

    return HOLES * each * size / (1 << 30);
}

/* How many tensors there is room for, in whole batches. */
static int fitting(const plan_t *plan, const taken_t *taken, int size)
{
    int tensors = plan->options.tensors;

    while (tensors > 0 && wanted_gib(taken, size, tensors) > plan->memory_gib)
        tensors = (tensors - 1) / plan->batch * plan->batch;
    return tensors;
}

/* A small world that says nothing, for what a rank takes. */
static void measure(const plan_t *plan, taken_t *taken)
{
    scale_options_t options = plan->options;
    scale_world_t world;
    int most;

    options.size = taken->size = 8;
    taken->tensors = options.tensors;
    scale_world_init(&world, &options);
    taken->empty = scale_bytes(&world, &most);
    scale_begin(&world);
    scale_submit(&world, 0, options.tensors);
    scale_run(&world, UINT64_MAX);
    taken->full = scale_bytes(&world, &most);
    scale_world_fini(&world);
}

static void run_size(const plan_t *plan, int size, taken_t *taken)
{
    scale_options_t options = plan->options;
    int tensors = options.tensors, batches = (tensors + plan->batch - 1) / plan->batch;
    scale_cost_t cost, negotiated;
    scale_world_t world;
    int most;

    options.size = taken->size = size;
    taken->tensors = tensors;
    scale_world_init(&world, &options);
    taken->empty = scale_bytes(&world, &most);
    print_head(&world);
    at_once(&world, "first step, all at once", 0, tensors, &cost);
    at_once(&world, "negotiated, all at once", 0, tensors, &negotiated);
    at_once(&world, "barrier", tensors, 1, &cost);
    in_batches(&world, plan, "negotiated, in batches");
    print_models(plan, size, &negotiated, batches);
    print_memory(&world);
    taken->full = scale_bytes(&world, &most);
    say_goodbye(&world);
    scale_world_fini(&world);
}

/* ---- Options -------------------------------------------------------------------------------- */

static double number(const char *name, const char *text, double least, double most)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= least && value <= most))
        scale_die("%s: '%s' is no number from %g to %g; --help", name, text, least, most);
    return value;
}

enum {
    OPTION_MESSAGE = 256,
    OPTION_BYTE,
    OPTION_LATENCY,
    OPTION_LOCAL,
    OPTION_NODE,
    OPTION_ARITY,
    OPTION_TENSORS,
    OPTION_BATCH,
    OPTION_GAP,
    OPTION_MEMORY,
    OPTION_HELP
};

static void set_option(plan_t *plan, int option, const char *name, const char *text)
{
    double us = 1e3;

    if (option == OPTION_MESSAGE)
        plan->options.message_ns = (uint64_t)(us * number(name, text, 0, 1e6));
    if (option == OPTION_BYTE) plan->options.byte_ns = number(name, text, 0, 1e6);
    if (option == OPTION_LATENCY)
        plan->options.latency_ns = (uint64_t)(us * number(name, text, 0, 1e6));
    if (option == OPTION_LOCAL)
        plan->options.local_latency_ns = (uint64_t)(us * number(name, text, 0, 1e6));
    if (option == OPTION_NODE) plan->options.ranks_per_node = (int)number(name, text, 1, 1e6);
    if (option == OPTION_ARITY) plan->options.arity = (int)number(name, text, 1, 1e4);
    if (option == OPTION_TENSORS) plan->options.tensors = (int)number(name, text, 1, 1e4);
    if (option == OPTION_BATCH) plan->batch = (int)number(name, text, 1, 1e4);
    if (option == OPTION_GAP) plan->gap_ns = (uint64_t)(us * number(name, text, 0, 1e6));
    if (option == OPTION_MEMORY) plan->memory_gib = number(name, text, 0, 1e6);
}

static void read_options(plan_t *plan, int argc, char **argv)
{
    static const struct option table[] = {
        {"per-message-us", required_argument, NULL, OPTION_MESSAGE},
        {"per-byte-ns", required_argument, NULL, OPTION_BYTE},
        {"latency-us", required_argument, NULL, OPTION_LATENCY},
        {"local-latency-us", required_argument, NULL, OPTION_LOCAL},
        {"ranks-per-node", required_argument, NULL, OPTION_NODE},
        {"arity", required_argument, NULL, OPTION_ARITY},
        {"tensors", required_argument, NULL, OPTION_TENSORS},
        {"batch", required_argument, NULL, OPTION_BATCH},
        {"gap-us", required_argument, NULL, OPTION_GAP},
        {"memory-gib", required_argument, NULL, OPTION_MEMORY},
        {"help", no_argument, NULL, OPTION_HELP},
        {NULL, 0, NULL, 0},
    };
    int option, index = 0;

    while ((option = getopt_long(argc, argv, "h", table, &index)) != -1) {
        if (option == OPTION_HELP || option == 'h') {
            fputs(help, stdout);
            exit(0);
        }
        if (option == '?') exit(2);
        set_option(plan, option, table[index].name, optarg);
    }
    if (optind == argc) return;
    plan->size_count = 0;
    for (; optind < argc; optind++) {
        if (plan->size_count == SIZES_MAX) scale_die("more than %d worlds", SIZES_MAX);
        plan->sizes[plan->size_count++] = (int)number("RANKS", argv[optind], 2, 1 << 20);
    }
}

int main(int argc, char **argv)
{
    plan_t plan = {.options = {.ranks_per_node = 8,
                               .arity = 8,
                               .tensors = 148,
                               .message_ns = 1000,
                               .latency_ns = 5000,
                               .local_latency_ns = 1000},
                   .sizes = {8, 64, 512, 4096, 16384, 65536},
                   .size_count = 6,
                   .batch = 12,
                   .gap_ns = 2000000,
                   .memory_gib = 10.5};
    taken_t taken = {0};

    read_options(&plan, argc, argv);
    measure(&plan, &taken);
    printf(
        "# every rank a real state machine, virtual time; %d tensors a step, batches of %d every "
        "%g us; arity %d,\n# %d ranks a node; a message costs %g us + %g ns a byte at either "
        "end, the wire %g us, %g within a node\n",
        plan.options.tensors, plan.batch, (double)plan.gap_ns * 1e-3, plan.options.arity,
        plan.options.ranks_per_node, (double)plan.options.message_ns * 1e-3, plan.options.byte_ns,
        (double)plan.options.latency_ns * 1e-3, (double)plan.options.local_latency_ns * 1e-3);
    for (int i = 0; i < plan.size_count; i++) {
        int size = plan.sizes[i];
        int tensors = fitting(&plan, &taken, size);
        plan_t fits = plan;

        fits.options.tensors = tensors;
        if (tensors < plan.options.tensors) {
            printf("\n%d tensors instead of %d, as those of %d ranks would take %.3g GiB here: "
                   "--memory-gib\n",
                   tensors, plan.options.tensors, size,
                   wanted_gib(&taken, size, plan.options.tensors));
        }
        if (tensors > 0) run_size(&fits, size, &taken);
    }
    return 0;
}
