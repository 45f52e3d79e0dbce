/*
 * dpbench.c - measures collectives through the whole of libdp, from the submission on.
 *
 *     dprun -np 2 build/dpbench                       columns of nccl-tests over sizes
 *     dprun -np 2 build/dpbench --latency             4 bytes, hot and after idling; idle CPU
 *     dprun -np 2 build/dpbench --gradients gpt2-124m the 148 gradients of GPT-2 124M
 *
 * The command line. A program like a user's: it sees dp.h and nothing else of the library, and one
 * thread of each rank runs it. Every rank measures; rank 0 prints the slowest rank's times, because
 * a step of a training loop waits for the slowest.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/dpbench/dpbench.h"

static const char *const dtype_names[] = {"u8",  "i8",  "u16", "i16",  "i32", "u32",
                                          "i64", "u64", "f16", "bf16", "f32", "f64"};
static const char *const reduce_names[] = {"sum", "average", "min", "max", "product"};
static const char *const memory_names[] = {"arena", "ordinary", "registered"};
static const char *const wire_names[] = {"default", "none", "fp16", "bf16"};

/* ---- Options -------------------------------------------------------------------------------- */

static const char help_text[] =
    "usage: dprun -np N dpbench [options]\n"
    "\n"
    "Measures collectives through the whole of libdp. Time is that of the slowest rank, from its\n"
    "submission to the end of its wait; ranks start together.\n"
    "\n"
    "  --latency              4-byte allreduce in a loop and after idling, and the CPU idling "
    "costs\n"
    "  --gradients gpt2-124m  the 148 gradients of GPT-2 124M, submitted one by one, then awaited\n"
    "  --collective NAME      allreduce (default), reduce, reduce_scatter(v), broadcast,\n"
    "                         allgather(v), gather(v), scatter(v), alltoall(v), sendrecv;\n"
    "                         --op NAME is the same. v: counts are learned on the way, here equal\n"
    "  --dtype NAME           u8 ... f16 bf16 f32 (default) f64\n"
    "  --reduce NAME          sum (default), average, min, max, product\n"
    "  --wire NAME            none, fp16, bf16: fp32 between nodes; default: DP_WIRE\n"
    "  -b, --min BYTES        smallest size (4); sizes take K, M, G\n"
    "  -e, --max BYTES        largest size (64M)\n"
    "  -f, --factor N         between sizes (4)\n"
    "  -n, --iterations N     per size; default: about a third of a second's worth\n"
    "  -w, --warmup N         before the clock runs (3)\n"
    "  --memory NAME          arena (default): of dp_alloc; ordinary: of malloc; registered:\n"
    "                         of malloc, and given to dp_register\n"
    "  --no-check             do not verify results\n"
    "  -h, --help             this text\n"
    "  -V, --version          the version\n"
    "\n"
    "Sizes are those of the whole tensor: of all ranks' rows together where there are rows.\n"
    "busbw as in nccl-tests: algbw times 2(n-1)/n for allreduce, 1 for broadcast, reduce and\n"
    "sendrecv, (n-1)/n for all that have rows.\n";

/* The place in names[], which are in the order of the enumeration that the caller casts to. A gap
 * is NULL. Ends the program for any other text. */
static int find_name(const char *option, const char *text, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (names[i] != NULL && strcmp(names[i], text) == 0) return (int)i;
    fprintf(stderr, "dpbench: --%s %s: not one of", option, text);
    for (size_t i = 0; i < count; i++)
        fprintf(stderr, " %s", names[i]);
    fprintf(stderr, "\n");
    exit(2);
}

static bench_collective_t find_collective(const char *text)
{
    const char *names[BENCH_COLLECTIVE_COUNT];

    for (int i = 0; i < BENCH_COLLECTIVE_COUNT; i++)
        names[i] = bench_operation((bench_collective_t)i)->name;
    return (bench_collective_t)find_name("collective", text, names, BENCH_COLLECTIVE_COUNT);
}

/* A number with K, M or G behind it. strtoull() takes a minus sign and wraps, so it is looked for.
 */
static size_t parse_number(const char *option, const char *text, size_t least, size_t most)
{
    char *end;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = *end == 'K' || *end == 'k'   ? 10
                : *end == 'M' || *end == 'm' ? 20
                : *end == 'G'                ? 30
                                             : 0;

    if (shift != 0) end++;
    if (end == text || *end != '\0' || text[0] == '-' || value > (SIZE_MAX >> shift) ||
        (value << shift) < least || (value << shift) > most) {
        fprintf(stderr, "dpbench: %s %s: a number from %zu to %zu is needed\n", option, text, least,
                most);
        exit(2);
    }
    return (size_t)(value << shift);
}

static bench_options_t parse(int argc, char **argv)
{
    enum { LATENCY = 256, GRADIENTS, COLLECTIVE, DTYPE, REDUCE, WIRE, MEMORY, NO_CHECK };
    static const struct option table[] = {{"latency", no_argument, NULL, LATENCY},
                                          {"gradients", required_argument, NULL, GRADIENTS},
                                          {"collective", required_argument, NULL, COLLECTIVE},
                                          {"op", required_argument, NULL, COLLECTIVE},
                                          {"dtype", required_argument, NULL, DTYPE},
                                          {"reduce", required_argument, NULL, REDUCE},
                                          {"wire", required_argument, NULL, WIRE},
                                          {"min", required_argument, NULL, 'b'},
                                          {"max", required_argument, NULL, 'e'},
                                          {"factor", required_argument, NULL, 'f'},
                                          {"iterations", required_argument, NULL, 'n'},
                                          {"warmup", required_argument, NULL, 'w'},
                                          {"memory", required_argument, NULL, MEMORY},
                                          {"no-check", no_argument, NULL, NO_CHECK},
                                          {"help", no_argument, NULL, 'h'},
                                          {"version", no_argument, NULL, 'V'},
                                          {NULL, 0, NULL, 0}};
    bench_options_t o = {.dtype = DP_F32,
                         .reduce = DP_SUM,
                         .min_bytes = 4,
                         .max_bytes = (size_t)64 << 20,
                         .factor = 4,
                         .warmup = 3,
                         .check = 1};
    const char *given[NO_CHECK + 1] = {NULL};
    int at, c;

    while ((c = getopt_long(argc, argv, "b:e:f:n:w:hV", table, NULL)) != -1) {
        const char *value = optarg == NULL ? "" : optarg; /* "": it takes none */

        for (at = 0; table[at].name != NULL && table[at].val != c;)
            at++;
        /* As for dprun and compilers the last one counts. */
        if (given[c] != NULL && strcmp(given[c], value) != 0) {
            fprintf(stderr, "dpbench: --%s is given twice, %s and %s: the last one counts\n",
                    table[at].name, given[c], value);
        }
        given[c] = value;
        switch (c) {
        case LATENCY:
            o.kind = BENCH_LATENCY;
            break;
        case GRADIENTS: {
            static const char *const sets[] = {"gpt2-124m"};

            find_name("gradients", value, sets, 1);
            o.kind = BENCH_GRADIENTS;
            break;
        }
        case COLLECTIVE:
            o.collective = find_collective(value);
            break;
        case DTYPE:
            o.dtype = (dp_dtype_t)find_name("dtype", value, dtype_names, DP_F64 + 1);
            break;
        case REDUCE:
            o.reduce = (dp_reduce_t)find_name("reduce", value, reduce_names, DP_REDUCE_COUNT);
            break;
        case WIRE:
            o.wire = (dp_wire_t)find_name("wire", value, wire_names, DP_WIRE_BF16 + 1);
            break;
        case 'b':
            o.min_bytes = parse_number("--min", value, 1, SIZE_MAX >> 4);
            break;
        case 'e':
            o.max_bytes = parse_number("--max", value, 1, SIZE_MAX >> 4);
            break;
        case 'f':
            o.factor = parse_number("--factor", value, 2, 1024);
            break;
        case 'n':
            o.iterations = (int)parse_number("--iterations", value, 1, 1000000);
            break;
        case 'w':
            o.warmup = (int)parse_number("--warmup", value, 0, 1000000);
            break;
        case MEMORY:
            o.memory = (bench_memory_t)find_name("memory", value, memory_names, BENCH_MEMORY_COUNT);
            break;
        case NO_CHECK:
            o.check = 0;
            break;
        case 'h':
            fputs(help_text, stdout);
            exit(0);
        case 'V':
            printf("dpbench %d.%d.%d\n", DP_VERSION_MAJOR, DP_VERSION_MINOR, DP_VERSION_PATCH);
            exit(0);
        default:
            fprintf(stderr, "dpbench: see --help\n");
            exit(2);
        }
    }
    if (optind < argc) {
        fprintf(stderr, "dpbench: %s: no such argument; see --help\n", argv[optind]);
        exit(2);
    }
    if (o.min_bytes > o.max_bytes) {
        fprintf(stderr, "dpbench: --min %zu is above --max %zu\n", o.min_bytes, o.max_bytes);
        exit(2);
    }
    return o;
}

int main(int argc, char **argv)
{
    bench_t bench = {.options = parse(argc, argv)};

    if (dp_init(NULL, &bench.dp) != DP_OK) return 1;
    if (dp_rank(bench.dp) == 0) {
        printf("# libdp %s; ranks %d on %d nodes; %s memory\n", dp_build_info(), dp_size(bench.dp),
               dp_node_count(bench.dp), memory_names[bench.options.memory]);
    }
    switch (bench.options.kind) {
    case BENCH_SWEEP:
        bench_sweep(&bench);
        break;
    case BENCH_LATENCY:
        bench_latency(&bench);
        break;
    case BENCH_GRADIENTS:
        bench_gradients(&bench);
        break;
    }
    if (fflush(stdout) != 0 || ferror(stdout)) { /* figures on a full disk */
        fprintf(stderr, "dpbench: standard output: cannot be written\n");
        dp_abort(bench.dp, "standard output cannot be written");
    }
    return dp_finalize(bench.dp) == DP_OK ? 0 : 1;
}
