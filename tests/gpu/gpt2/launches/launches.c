/*
 * launches.c - every launch and every product of a training step at the sizes of real models, on
 * device.h: the trainer's replica as it is, and libdp's kernels on a model's gradients.
 *
 *   launches [CASE]
 *
 * Each case is a process. It must end, no access may leave its piece of memory, and the last bytes
 * of everything a step writes must have been written: an index that wraps writes elsewhere. Then
 * come launches that are wrong on purpose, each of which must be found.
 */
#include "tests/gpu/gpt2/launches/device.h"

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "examples/gpt2/cuda/plugin.h"
#include "examples/gpt2/cuda/replica.h"
#include "examples/gpt2/base/random.h"
#include "kernels/cuda.h"
#include "tests/gpu/gpt2/launches/planted.h"

#define LENGTH 1024
#define PIECES_MAX 1024

static void fail(const char *what, const char *why)
{
    (void)fprintf(stderr, "launches: %s: %s\n", what, why);
    exit(1);
}

static void must(int code, const char *what)
{
    if (code != 0) fail(what, cudaGetErrorString((cudaError_t)code));
}

/* ---- Pieces of the plan, each between guards ------------------------------------------------ */

typedef struct piece {
    void **field; /* that points to it */
    char name[32];
    char *planned; /* where the plan has it */
    void *memory;
    size_t bytes;
} piece_t;

static piece_t pieces[PIECES_MAX];
static size_t piece_count;

void __real_gpt2_cuda_plan_place(const gpt2_cuda_plan_t *plan, const gpt2_layout_t *layout,
                                 char *memory, gpt2_cuda_state_t *state);
void __wrap_gpt2_cuda_plan_place(const gpt2_cuda_plan_t *plan, const gpt2_layout_t *layout,
                                 char *memory, gpt2_cuda_state_t *state);
void __real_gpt2_cuda_plan_place_pass(const gpt2_cuda_plan_t *plan, char *memory,
                                      gpt2_cuda_activations_t *activations);
void __wrap_gpt2_cuda_plan_place_pass(const gpt2_cuda_plan_t *plan, char *memory,
                                      gpt2_cuda_activations_t *activations);

static void add_piece(void *field, const char *name, int layer)
{
    piece_t *piece = &pieces[piece_count];

    memcpy(&piece->planned, field, sizeof(piece->planned));
    if (piece->planned == NULL) return;
    if (piece_count++ == PIECES_MAX) fail("pieces", "too many");
    piece->field = field;
    if (layer < 0) {
        (void)snprintf(piece->name, sizeof(piece->name), "%s", name);
    } else {
        (void)snprintf(piece->name, sizeof(piece->name), "h.%d %s", layer, name);
    }
}

static int by_place(const void *left, const void *right)
{
    const piece_t *a = left;
    const piece_t *b = right;

    return a->planned < b->planned ? -1 : a->planned > b->planned;
}

/* Gives each of the pieces from `first` on, which fill a block of memory up to its end, memory of
 * its own; two that are one remain one. */
static void move_pieces(size_t first, char *block_end)
{
    char *end;

    qsort(pieces + first, piece_count - first, sizeof(*pieces), by_place);
    for (size_t i = first; i < piece_count; i++) {
        piece_t *piece = &pieces[i];
        size_t next = i + 1;

        if (i > first && piece[-1].planned == piece->planned) {
            piece->memory = piece[-1].memory;
            piece->bytes = piece[-1].bytes;
        } else {
            while (next < piece_count && pieces[next].planned == piece->planned)
                next++;
            end = next < piece_count ? pieces[next].planned : block_end;
            piece->bytes = (size_t)(end - piece->planned);
            piece->memory = launches_reserve(piece->bytes, piece->name);
        }
        memcpy(piece->field, &piece->memory, sizeof(piece->memory));
    }
}

void __wrap_gpt2_cuda_plan_place(const gpt2_cuda_plan_t *plan, const gpt2_layout_t *layout,
                                 char *memory, gpt2_cuda_state_t *state)
{
    const size_t first = piece_count;

    __real_gpt2_cuda_plan_place(plan, layout, memory, state);
    add_piece(&state->weights, "weights", -1);
    add_piece(&state->m, "m", -1);
    add_piece(&state->v, "v", -1);
    add_piece(&state->gradients, "gradients", -1);
    add_piece(&state->low, "low weights", -1);
    if (plan->options.lookups > 0) add_piece(&state->tokens, "announced tokens", -1);
    add_piece(&state->decays, "decays", -1);
    move_pieces(first, memory + plan->state_bytes);
}

void __wrap_gpt2_cuda_plan_place_pass(const gpt2_cuda_plan_t *plan, char *memory,
                                      gpt2_cuda_activations_t *all)
{
    const size_t first = piece_count;

    __real_gpt2_cuda_plan_place_pass(plan, memory, all);
    for (int i = 0; i < plan->options.shape.layers; i++) {
        gpt2_cuda_block_t *block = &all->blocks[i];

        add_piece(&block->input, "input", i);
        add_piece(&block->ln1, "ln1", i);
        add_piece(&block->ln1_mean, "ln1 mean", i);
        add_piece(&block->ln1_rstd, "ln1 rstd", i);
        add_piece(&block->qkv, "qkv", i);
        add_piece(&block->attention, "attention", i);
        add_piece(&block->lse, "lse", i);
        add_piece(&block->middle, "middle", i);
        add_piece(&block->ln2, "ln2", i);
        add_piece(&block->ln2_mean, "ln2 mean", i);
        add_piece(&block->ln2_rstd, "ln2 rstd", i);
        add_piece(&block->fc, "fc", i);
        add_piece(&block->gelu, "gelu", i);
    }
    add_piece(&all->output, "output", -1);
    add_piece(&all->lnf, "lnf", -1);
    add_piece(&all->lnf_mean, "lnf mean", -1);
    add_piece(&all->lnf_rstd, "lnf rstd", -1);
    add_piece(&all->logits, "logits", -1);
    add_piece(&all->losses, "losses", -1);
    add_piece(&all->d_stream, "d_stream", -1);
    add_piece(&all->stream_sums, "stream_sums", -1);
    add_piece(&all->d_normed, "d_normed", -1);
    add_piece(&all->d_attention, "d_attention", -1);
    add_piece(&all->d_qkv, "d_qkv", -1);
    add_piece(&all->d_fc, "d_fc", -1);
    add_piece(&all->scratch, "scratch", -1);
    add_piece(&all->batch, "batch", -1);
    move_pieces(first, memory + plan->activation_bytes);
}

/* ---- A step --------------------------------------------------------------------------------- */

typedef struct step {
    const char *name;
    const char *preset;
    const char *precision;
    const char *recompute;
    size_t lookups; /* 0: the embedding's gradient goes as a whole */
    int batch;
    int fusion; /* of cuBLASLt */
    int layers; /* 0: all of the model's, and the step is one pass; else it accumulates a second
                 * one, and an evaluation follows */
} step_t;

/* Is every byte of it written in a step? Not scratch, and the batch's end is rounding. */
static int is_result(const piece_t *piece)
{
    return strcmp(piece->name, "scratch") != 0 && strcmp(piece->name, "batch") != 0 &&
           strcmp(piece->name, "decays") != 0 && strcmp(piece->name, "announced tokens") != 0;
}

/* Products may not leave their tensor. */
static void name_tensors(const gpt2_cuda_replica_t *self)
{
    const gpt2_layout_t *layout = self->layout;

    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];

        launches_name(gpt2_cuda_weight(self, i), tensor->count * gpt2_cuda_type_bytes(self->type),
                      tensor->name);
        launches_name(gpt2_cuda_gradient(self, i), tensor->count * sizeof(float), tensor->name);
    }
}

static void check_marks(const gpt2_cuda_replica_t *self)
{
    const gpt2_layout_t *layout = self->layout;
    int missing = 0;

    for (size_t i = 0; i < piece_count; i++) {
        if (!is_result(&pieces[i]) || !launches_is_marked(pieces[i].memory, pieces[i].bytes))
            continue;
        (void)fprintf(stderr, "launches: the end of %s was not written\n", pieces[i].name);
        missing++;
    }
    for (size_t i = 0; i < layout->count; i++) {
        if (!launches_is_marked(gpt2_cuda_gradient(self, i),
                                layout->tensors[i].count * sizeof(float))) {
            continue;
        }
        (void)fprintf(stderr, "launches: the end of the gradient of %s was not written\n",
                      layout->tensors[i].name);
        missing++;
    }
    if (missing > 0) exit(1);
}

static void set_marks(const gpt2_cuda_replica_t *self)
{
    const gpt2_layout_t *layout = self->layout;

    for (size_t i = 0; i < piece_count; i++) {
        if (is_result(&pieces[i])) launches_mark(pieces[i].memory, pieces[i].bytes);
    }
    for (size_t i = 0; i < layout->count; i++) {
        launches_mark(gpt2_cuda_gradient(self, i), layout->tensors[i].count * sizeof(float));
    }
}

/* The block that has the last query of the last head. bf16: see attention_grid(); a group of heads
 * has 16 MiB of keys and values, which are 64 heads of 64 channels; a tile is 128 queries. fp32:
 * see row_of_warp(); a block has 4 rows, the last of all heads first. */
static void want_last_query(unsigned pairs)
{
    const unsigned tiles = LENGTH / 128;
    const unsigned here = pairs % 64 == 0 ? 64 : pairs % 64;

    launches_also(tiles * pairs, tiles * pairs - 1 - here * (tiles - 1));
    launches_also(LENGTH / 4 * pairs, (pairs - 1) / 4);
}

static void one_step(gpt2_replica_t *replica, int batch, const int32_t *tokens, const step_t *step)
{
    const size_t rows = (size_t)batch * LENGTH;
    const gpt2_batch_t all = {tokens, tokens + rows, batch, LENGTH};
    const gpt2_batch_t some = {tokens, tokens + rows, batch / 2 + 1, LENGTH};
    const gpt2_sync_t plain = {.clip = 1.0};
    gpt2_error_t error = {""};
    gpt2_outcome_t outcome;
    gpt2_sync_t sync = {.clip = 1.0};
    uint64_t checksum;
    double loss;
    int code = 0;

    if (step->lookups > 0) {
        int32_t *announced = malloc(step->lookups * sizeof(*announced));

        for (size_t i = 0; i < step->lookups; i++)
            announced[i] = (int32_t)i;
        code = replica->ops->announce(replica, announced, step->lookups, &error);
        free(announced);
    }
    if (code == 0) code = replica->ops->train(replica, &all, 1.0f, 0, NULL, &error);
    if (code == 0 && step->layers > 0) {
        code = replica->ops->train(replica, &some, 1.0f, 1, NULL, &error);
    }
    if (code == 0) {
        code = step->lookups > 0 ? replica->ops->join(replica, 1.0, &sync, &error)
                                 : replica->ops->norm(replica, 1.0, 1.0, &sync, &error);
    }
    /* The norm's result is nonsense, and would skip the update. */
    if (code == 0) code = replica->ops->update(replica, 1e-3, &plain, &error);
    if (code == 0) code = replica->ops->settle(replica, &outcome, &error);
    if (code == 0) check_marks((gpt2_cuda_replica_t *)replica);
    if (code == 0) code = replica->ops->refresh(replica, &error);
    if (code == 0 && step->layers > 0) {
        code = replica->ops->evaluate(replica, &some, &loss, &error);
    }
    if (code == 0) code = replica->ops->checksum(replica, &checksum, &error);
    if (code != 0) fail(step->name, error.text);
}

static void run_step(const step_t *step)
{
    gpt2_replica_options_t options = {
        .model = {.batch = step->batch, .length = LENGTH, .threads = 1, .training = 1},
        .optimizer = {1e-3, 1.0, 0, 100, 0.9, 0.95, 1e-8, 0.1},
        .precision = step->precision,
        .recompute = step->recompute,
        .lookups = step->lookups};
    const size_t count = 2 * (size_t)step->batch * LENGTH;
    int32_t *tokens = malloc(count * sizeof(*tokens));
    gpt2_error_t error = {""};
    gpt2_replica_t *replica;
    int32_t vocab;

    if (gpt2_shape_preset(step->preset, &options.model.shape, &error) != 0)
        fail(step->name, error.text);
    if (step->layers > 0) options.model.shape.layers = step->layers;
    launches_set_fusion(step->fusion);
    want_last_query((unsigned)(step->batch * options.model.shape.heads));
    if (gpt2_replica_cuda_create(&options, &replica, &error) != 0) fail(step->name, error.text);
    vocab = step->lookups > 0 ? (int32_t)step->lookups : options.model.shape.vocab;
    for (size_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(gpt2_random_bits(3, 5, i) % (uint64_t)vocab);
    tokens[count / 2 - 1] = tokens[count - 1] = vocab - 1;
    name_tensors((gpt2_cuda_replica_t *)replica);
    set_marks((gpt2_cuda_replica_t *)replica);
    one_step(replica, step->batch, tokens, step);
    replica->ops->destroy(replica);
    free(tokens);
}

/* ---- libdp's kernels on the gradients of 1558M ---------------------------------------------- */

#define GRADIENTS ((size_t)1557686400) /* more than 2^30, and their bytes more than 2^32 */
#define TENSORS 580

static void cast_gradients(void *from, void *to, dp_cuda_tally_t *tally)
{
    const size_t bytes = dp_cuda_table_bytes(TENSORS);
    const dp_cuda_table_t table = {launches_reserve(bytes, "table, host"),
                                   launches_reserve(bytes, "table"), bytes};
    dp_cuda_piece_t piece = {from, to, GRADIENTS, 0.5, tally};
    dp_cuda_piece_t many[TENSORS];

    must(dp_cuda_cast(DP_F32, DP_F16, &piece, 1, NULL, NULL), "one cast");
    must(dp_cuda_naive_cast(DP_F32, DP_BF16, &piece, NULL), "plain cast");
    piece = (dp_cuda_piece_t){(char *)from + 4, (char *)to + 2, GRADIENTS - 1, 1.0, NULL};
    must(dp_cuda_cast(DP_F32, DP_BF16, &piece, 1, NULL, NULL), "one cast, not aligned");
    for (size_t i = 0; i < TENSORS; i++) {
        const size_t at = GRADIENTS / TENSORS * i;
        const size_t count = i + 1 < TENSORS ? GRADIENTS / TENSORS : GRADIENTS - at;

        many[i] = (dp_cuda_piece_t){(char *)from + 4 * at, (char *)to + 2 * at, count, 1.0, tally};
    }
    launches_mark(to, GRADIENTS * 2);
    must(dp_cuda_cast(DP_F32, DP_F16, many, TENSORS, &table, NULL), "a cast of many");
    if (launches_is_marked(to, GRADIENTS * 2)) fail("a cast of many", "its end was not written");
    must(dp_cuda_cast(DP_F16, DP_F32, &(dp_cuda_piece_t){to, from, GRADIENTS, 1.0, tally}, 1, NULL,
                      NULL),
         "one cast back");
}

static void run_libdp(void)
{
    void *a = launches_reserve(GRADIENTS * 4, "gradients");
    void *b = launches_reserve(GRADIENTS * 4, "others");
    void *half = launches_reserve(GRADIENTS * 2, "halves");
    dp_cuda_tally_t *tally = launches_reserve(sizeof(*tally), "tally");
    const void *in[2] = {a, b};
    void *out[1] = {a};
    const dp_reduce_args_t args = {.in = in,
                                   .in_count = 2,
                                   .out = out,
                                   .out_count = 1,
                                   .count = GRADIENTS,
                                   .dtype = DP_F32,
                                   .reduce = DP_SUM,
                                   .prescale = 1.0,
                                   .postscale = 1.0,
                                   .divisor = 1};

    must(dp_cuda_kernels_preload(), "loading");
    launches_mark(half, GRADIENTS * 2);
    cast_gradients(a, half, tally);
    must(dp_cuda_reduce(&args, NULL), "a reduction");
    must(dp_cuda_fill_identity(DP_F32, DP_SUM, b, GRADIENTS, NULL), "a fill");
}

/* ---- What is wrong on purpose --------------------------------------------------------------- */

#define WIDE ((size_t)65536) /* bytes of a row: 49152 of them are 3 GiB, 81920 are 5 GiB */

static void run_rows(int (*plant)(uint8_t *, size_t, size_t), size_t rows)
{
    const size_t bytes = rows * WIDE;
    uint8_t *to = launches_reserve(bytes, "rows");

    launches_mark(to, bytes);
    must(plant(to, rows, WIDE), "a launch");
    if (launches_is_marked(to, bytes)) fail("rows", "their end was not written");
}

static void run_right_index(void)
{
    run_rows(planted_right_index, 81920);
}

static void run_int_index(void)
{
    run_rows(planted_int_index, 49152);
}

static void run_unsigned_index(void)
{
    run_rows(planted_unsigned_index, 81920);
}

static void run_row_too_many(void)
{
    run_rows(planted_row_too_many, 49153);
}

static void run_grid(void)
{
    must(planted_grid(), "a launch");
}

static void run_shared_allowed(void)
{
    must(planted_shared(1), "a launch");
}

static void run_shared(void)
{
    must(planted_shared(0), "a launch");
}

/* A product whose result begins a row too late in its tensor. */
static void run_product(void)
{
    const gpt2_matmul_shape_t shape = {GPT2_MATMUL_WEIGHT, GPT2_CUDA_BF16, 65536, 768, 3072, 0, 0};
    const gpt2_matmul_options_t options = GPT2_MATMUL_OPTIONS_INIT;
    float *arena = launches_reserve((size_t)1 << 30, "arena");
    void *d_out = launches_reserve((size_t)65536 * 3072 * 2, "d_out");
    void *in = launches_reserve((size_t)65536 * 768 * 2, "in");
    const gpt2_matmul_t *plan;
    gpt2_matmuls_t *set;
    gpt2_error_t error;

    launches_name(arena, (size_t)3072 * 768 * 4, "h.0.mlp.fc.weight");
    if (gpt2_matmuls_create(&options, &set, &error) != 0 ||
        gpt2_matmuls_plan(set, &shape, &plan, &error) != 0) {
        fail("a product", error.text);
    }
    must(gpt2_matmul_weight(plan, NULL, arena, 0, d_out, in), "the right product");
    must(gpt2_matmul_weight(plan, NULL, arena + 768, 0, d_out, in), "a product");
}

/* ---- Cases ---------------------------------------------------------------------------------- */

static const step_t STEPS[] = {
    {"124M, 64 sequences", "124M", "bf16", "none", 0, 64, 1, 0},
    {"124M, 64 sequences in fp16", "124M", "fp16", "none", 0, 64, 1, 3},
    {"124M, rows of lookups apart, nothing fused", "124M", "bf16", "none", 50257, 64, 0, 2},
    {"124M, fp32", "124M", "fp32", "none", 0, 64, 1, 1},
    {"350M, 64 sequences", "350M", "bf16", "gelu", 0, 64, 1, 4},
    {"774M, 32 sequences", "774M", "bf16", "none", 0, 32, 0, 4},
    {"1558M, 32 sequences", "1558M", "bf16", "none", 0, 32, 1, 0},
    {"1558M, 64 sequences, recomputing", "1558M", "bf16", "gelu+norm", 0, 64, 0, 2},
};
#define STEP_COUNT (sizeof(STEPS) / sizeof(STEPS[0]))

static const struct {
    const char *name;
    void (*run)(void);
    const char *found; /* what stderr must have; NULL: nothing is wrong */
} OTHERS[] = {
    {"libdp's kernels, 1558M", run_libdp, NULL},
    {"planted: the right index", run_right_index, NULL},
    {"planted: an index in an int", run_int_index, "before rows"},
    {"planted: an index in an unsigned", run_unsigned_index, "end was not written"},
    {"planted: a row too many", run_row_too_many, "behind rows"},
    {"planted: a grid of 65536 along y", run_grid, "grid.y 65536, at most 65535"},
    {"planted: 64 KiB allowed", run_shared_allowed, NULL},
    {"planted: 64 KiB not allowed", run_shared, "shared memory 65536, at most 49152"},
    {"planted: a product that leaves its tensor", run_product, "ends behind h.0.mlp.fc.weight"},
};
#define OTHER_COUNT (sizeof(OTHERS) / sizeof(OTHERS[0]))

static const char *name_of(size_t number)
{
    return number < STEP_COUNT ? STEPS[number].name : OTHERS[number - STEP_COUNT].name;
}

static void run_here(size_t number)
{
    launches_counts_t counts;

    if (launches_start() != 0) exit(77);
    if (number < STEP_COUNT) {
        run_step(&STEPS[number]);
    } else {
        OTHERS[number - STEP_COUNT].run();
    }
    counts = launches_counts();
    (void)printf("%zu launches, %zu blocks of them ran, %zu products, %zu GiB", counts.launches,
                 counts.blocks, counts.products, counts.bytes >> 30);
    exit(0);
}

static double seconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* 0, 1 or 77. */
static int run_apart(size_t number)
{
    const char *wanted = number < STEP_COUNT ? NULL : OTHERS[number - STEP_COUNT].found;
    const double begin = seconds();
    char text[4096];
    size_t length = 0;
    ssize_t got;
    int pipes[2];
    int status;
    int code;
    pid_t child;

    if (pipe(pipes) != 0) return 1;
    (void)fflush(stdout);
    child = fork();
    if (child < 0) return 1;
    if (child == 0) {
        (void)dup2(pipes[1], STDOUT_FILENO);
        (void)dup2(pipes[1], STDERR_FILENO);
        (void)close(pipes[0]);
        (void)close(pipes[1]);
        run_here(number);
    }
    (void)close(pipes[1]);
    while (length + 1 < sizeof(text) &&
           (got = read(pipes[0], text + length, sizeof(text) - 1 - length)) > 0) {
        length += (size_t)got;
    }
    text[length] = '\0';
    (void)close(pipes[0]);
    if (waitpid(child, &status, 0) != child) return 1;
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (wanted != NULL) code = code != 0 && code != 77 && strstr(text, wanted) != NULL ? 0 : 1;
    (void)printf("%-44s %-7s %5.1f s  %s\n", name_of(number),
                 code == 0    ? "passed"
                 : code == 77 ? "skipped"
                              : "FAILED",
                 seconds() - begin, text);
    return code == 0 || code == 77 ? code : 1;
}

int main(int argc, char **argv)
{
    int failed = 0;
    int skipped = 0;

    for (size_t i = 0; i < STEP_COUNT + OTHER_COUNT; i++) {
        if (argc > 1 && strstr(name_of(i), argv[1]) == NULL) continue;
        const int code = run_apart(i);

        failed += code == 1;
        skipped += code == 77;
    }
    if (skipped > 0) (void)printf("skipped: no address space of hundreds of GiB\n");
    return failed > 0 ? 1 : skipped > 0 ? 77 : 0;
}
