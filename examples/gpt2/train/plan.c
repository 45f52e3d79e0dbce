/*
 * plan.c - adds up arenas, rows and slots; see plan.h.
 *
 * A sharded arena is cut into groups: each block, the token embedding, and the rest ("root", small,
 * which every rank keeps whole). A rank owns one row of each group. Rows are equal and start at
 * multiples of ROW_FLOATS, so a group is a little larger than its tensors. On one node rows of
 * weights exist once, and all its ranks read them there.
 */
#include "examples/gpt2/train/plan.h"

#include <string.h>

#include "examples/gpt2/model/activations.h"
#if defined(GPT2_WITH_DP)
#include "examples/gpt2/strategy/compress.h"
#endif

#define ROW_FLOATS 4096
#define SLOTS 2 /* blocks whose weights, or gradients, are whole at one time, at least */

typedef struct floats {
    double root;   /* whole on every rank */
    double block;  /* one block, rounded up to equal rows */
    double wte;    /* likewise */
    double groups; /* all blocks and wte */
    double arena;  /* without rows: tensor behind tensor */
} floats_t;

static double round_to_rows(size_t count, int ranks)
{
    size_t row = (count + (size_t)ranks - 1) / (size_t)ranks;

    row = (row + ROW_FLOATS - 1) / ROW_FLOATS * ROW_FLOATS;
    return (double)row * ranks;
}

static floats_t count_floats(const gpt2_layout_t *layout, int sharers)
{
    const gpt2_group_t *groups = layout->groups;
    floats_t floats;

    floats.root = (double)groups[GPT2_GROUP_ROOT].count;
    floats.block = round_to_rows(groups[gpt2_layout_group(0)].count, sharers);
    floats.wte = round_to_rows(groups[GPT2_GROUP_WTE].count, sharers);
    floats.groups = floats.block * layout->shape.layers + floats.wte;
    floats.arena = (double)layout->arena_count;
    return floats;
}

static void plan_memory(const gpt2_plan_input_t *input, const floats_t *floats, gpt2_plan_t *plan)
{
    const int layers = input->layout->shape.layers;
    const double whole = floats->root + floats->groups;
    const double rows = floats->root + floats->groups / input->sharers;
    const int held = input->slots > SLOTS ? input->slots : SLOTS;
    const double slots = floats->wte + floats->block * (layers < held ? layers : held);
    const double twos = floats->wte + floats->block * (layers < SLOTS ? layers : SLOTS);
    double weights = whole;
    double gradients = whole;
    double moments = rows;

    if (input->stage == GPT2_PLAN_NONE) weights = gradients = moments = floats->arena;
    /* With several passes the sums of gradients are kept whole: equal bits, one exchange. */
    if (input->stage >= GPT2_PLAN_GRADIENTS && input->accumulate == 1) gradients = rows + twos;
    if (input->stage >= GPT2_PLAN_WEIGHTS) weights = rows + slots;
    if (input->stage >= GPT2_PLAN_OPTIMIZER && input->sees_rows) weights = rows;
    /* Slots never outgrow what they stand for. */
    if (weights > whole) weights = whole;
    if (gradients > whole) gradients = whole;
    plan->weights = (size_t)(weights * sizeof(float));
    if (input->halves) { /* and what passes have widened */
        plan->weights /= 2;
        plan->weights += (size_t)((rows + floats->root + twos) * sizeof(float));
    }
    plan->gradients = (size_t)(gradients * sizeof(float));
    plan->moments = (size_t)(2.0 * moments * sizeof(float));
    plan->activations = input->activations;
    plan->library = input->library;
    plan->total =
        plan->weights + plan->gradients + plan->moments + plan->activations + plan->library;
}

/* Reducing to rows, or gathering rows, moves (n - 1) / n of the bytes; an all-reduce is both. */
static double part_sent(int ranks)
{
    return (double)(ranks - 1) / ranks;
}

static void plan_wire(const gpt2_plan_input_t *input, const floats_t *floats, gpt2_plan_t *plan)
{
    const double width = input->wire_width;
    const int replicas = input->ranks / input->sharers;
    const double among = part_sent(input->sharers);
    const double across = 2.0 * part_sent(replicas) / input->sharers;
    double gathered = floats->groups;

    plan->sent_gradients = 0.0;
    plan->sent_weights = 0.0;
    plan->sent_streams = 0.0;
    plan->sent_sums = 0.0;
    if (input->is_single || input->ranks == 1) return;
    if (input->is_server) {
        /* libdp reduces between nodes by a reduce-scatter whose rows then travel to the root, so
         * the root too sends the rows that others add up. */
        plan->sent_gradients = part_sent(input->ranks) * floats->arena * width;
        plan->sent_weights = (input->ranks - 1) * floats->arena * sizeof(float);
        return;
    }
    if (input->stage == GPT2_PLAN_NONE) {
        plan->sent_gradients = 2.0 * part_sent(input->ranks) * floats->arena * width;
        return;
    }
    plan->sent_gradients = floats->groups * width * (among + across) +
                           2.0 * part_sent(input->ranks) * floats->root * width;
    /* Backward begins with the block that forward ended with, and the token embedding stays. */
    if (input->stage == GPT2_PLAN_WEIGHTS) {
        const int blocks = input->layout->shape.layers;

        gathered = floats->wte + floats->block * input->accumulate * (2.0 * blocks - 1.0);
    }
    plan->sent_weights = among * gathered * (input->halves ? 2.0 : 4.0);
}

void gpt2_plan_make(const gpt2_plan_input_t *input, gpt2_plan_t *plan)
{
    const floats_t floats = count_floats(input->layout, input->sharers);

    plan_memory(input, &floats, plan);
    plan_wire(input, &floats, plan);
}

int gpt2_plan_micro_batch(const gpt2_options_t *options, int ranks)
{
    const int64_t local = (options->batch + ranks - 1) / ranks;

    return (int)((local + options->accumulate - 1) / options->accumulate);
}

/* Compressed gradients: other bytes on the wire, and residuals beside the gradients. */
static void plan_compression(const gpt2_options_t *options, const gpt2_layout_t *layout, int ranks,
                             gpt2_plan_t *plan)
{
#if defined(GPT2_WITH_DP)
    const gpt2_compress_settings_t settings = gpt2_options_compress(options);
    const size_t kept = gpt2_compress_memory(&settings, layout);
    double dense;

    if (kept == 0) return;
    gpt2_compress_bytes(&settings, layout, ranks, &plan->sent_gradients, &dense);
    plan->gradients += kept;
    plan->total += kept;
#else
    (void)options;
    (void)layout;
    (void)ranks;
    (void)plan;
#endif
}

int gpt2_plan_options(const gpt2_options_t *options, const gpt2_layout_t *layout,
                      const gpt2_plan_place_t *place, gpt2_plan_t *plan, gpt2_error_t *error)
{
    static const gpt2_plan_stage_t stages[] = {[GPT2_SHARD_NONE] = GPT2_PLAN_NONE,
                                               [GPT2_SHARD_OPTIMIZER] = GPT2_PLAN_OPTIMIZER,
                                               [GPT2_SHARD_GRADIENTS] = GPT2_PLAN_GRADIENTS,
                                               [GPT2_SHARD_WEIGHTS] = GPT2_PLAN_WEIGHTS,
                                               [GPT2_SHARD_HYBRID] = GPT2_PLAN_WEIGHTS};
    const gpt2_shard_t shard = gpt2_options_shard(options);
    const int ranks = place->ranks;
    const int node = place->node;
    const int divides = shard == GPT2_SHARD_HYBRID && node > 0 && ranks % node == 0;
    const int sharers = divides ? node : ranks;
    const gpt2_model_options_t model = {.shape = layout->shape,
                                        .batch = gpt2_plan_micro_batch(options, ranks),
                                        .length = (int)options->seq,
                                        .threads = (int)options->threads,
                                        .training = 1};
    const char *strategy = options->strategy == NULL ? "" : options->strategy;
    gpt2_plan_input_t input = {.layout = layout,
                               .stage = stages[shard],
                               .ranks = ranks,
                               .sharers = sharers,
                               .accumulate = (int)options->accumulate,
                               .slots = (int)options->shard_prefetch,
                               .sees_rows = place->sees_rows && sharers <= node,
                               .is_single = strcmp(strategy, "single") == 0,
                               .is_server = strcmp(strategy, "sps") == 0,
                               .wire_width = 4.0,
                               .library = place->library};
    gpt2_precision_plan_t precision;
    gpt2_mesh_t mesh;
    const char *wire;

    if (gpt2_options_mesh(options, &layout->shape, ranks, 0, &mesh, error) != 0) return -1;
    if (mesh.is_staged) return gpt2_plan_dearest_stage(options, layout, place, plan, error);
    if (gpt2_options_precision(options, "cpu", &precision, error) != 0) return -1;
    wire = gpt2_options_wire(options, &precision);
    if (strcmp(wire, "fp16") == 0 || strcmp(wire, "bf16") == 0) input.wire_width = 2.0;
    if (gpt2_activations_create(&model, NULL, &input.activations, error) != 0) return -1;
    input.halves = precision.level == 2 && shard != GPT2_SHARD_NONE;
    gpt2_plan_make(&input, plan);
    if (precision.level == 2 && !input.halves) { /* the masters, and what passes read */
        plan->total += plan->weights;
        plan->weights *= 2;
    }
    plan_compression(options, layout, ranks, plan);
    return 0;
}

static double mib(size_t bytes)
{
    return (double)bytes / 1048576.0;
}

void gpt2_plan_print(const gpt2_plan_t *plan, const gpt2_options_t *options,
                     const gpt2_layout_t *layout, int ranks, FILE *out)
{
    const double sent =
        plan->sent_gradients + plan->sent_weights + plan->sent_streams + plan->sent_sums;

    (void)fprintf(out,
                  "plan    %.1fM parameters, %d rank%s, %d sequence%s of %lld tokens per pass\n",
                  (double)layout->parameter_count / 1e6, ranks, ranks == 1 ? "" : "s",
                  gpt2_plan_micro_batch(options, ranks),
                  gpt2_plan_micro_batch(options, ranks) == 1 ? "" : "s", (long long)options->seq);
    (void)fprintf(out,
                  "memory  %.1f MiB per rank: weights %.1f, gradients %.1f, moments %.1f, "
                  "activations %.1f, library %.1f\n",
                  mib(plan->total), mib(plan->weights), mib(plan->gradients), mib(plan->moments),
                  mib(plan->activations), mib(plan->library));
    (void)fprintf(out,
                  "wire    %.1f MB per rank and step, between nodes of one rank: gradients %.1f, "
                  "weights %.1f",
                  sent / 1e6, plan->sent_gradients / 1e6, plan->sent_weights / 1e6);
    if (plan->sent_streams > 0.0)
        (void)fprintf(out, ", between stages %.1f", plan->sent_streams / 1e6);
    if (plan->sent_sums > 0.0)
        (void)fprintf(out, ", along the tensor axis %.1f", plan->sent_sums / 1e6);
    (void)fprintf(out, "\n");
}
