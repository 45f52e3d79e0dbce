/*
 * attention.cu - attention on a GPU against a plain loop in fp64, two ways.
 *
 *   gpt2_attention             on a GPU: small shapes against the loop, large ones against the fp32
 *                              kernels, many runs against each other; prints TFLOP/s beside the
 *                              chip's peak. Exits with 77 where there is no device.
 *   gpt2_attention_simt ORDER  the same kernels by fibers on the CPU, small shapes only
 *
 * Arrays end where their memory does, and what a kernel must not touch holds NaN or a pattern.
 */
#include "examples/gpt2/cuda/attention.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/cuda/attention_tiles.cuh"
#include "kernels/convert.h"

#define MARGIN 64 /* elements behind an array */

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

typedef struct shape {
    int batch, length, heads, size;
} shape_t;

static size_t rows_of(const shape_t *shape)
{
    return (size_t)shape->batch * (size_t)shape->length * (size_t)shape->heads;
}

/* ---- Arrays of either type ------------------------------------------------------------------ */

typedef struct array {
    gpt2_cuda_type_t type;
    size_t count;
    void *device;
} array_t;

/* Filled, margin and all, with a NaN. */
static array_t array_make(gpt2_cuda_type_t type, size_t count)
{
    array_t array = {type, count, NULL};

    MUST(cudaMalloc(&array.device, (count + MARGIN) * gpt2_cuda_type_bytes(type)));
    MUST(cudaMemset(array.device, 0xff, (count + MARGIN) * gpt2_cuda_type_bytes(type)));
    return array;
}

static void array_free(array_t *array)
{
    MUST(cudaFree(array->device));
}

/* Writes `values`, rounded to the type, which they then are here, too. */
static void array_put(const array_t *array, float *values)
{
    uint16_t *rounded = (uint16_t *)malloc(array->count * sizeof(*rounded));

    if (array->type == GPT2_CUDA_F32) {
        MUST(cudaMemcpy(array->device, values, array->count * 4, cudaMemcpyHostToDevice));
    } else {
        for (size_t i = 0; i < array->count; i++) {
            const bool is_fp16 = array->type == GPT2_CUDA_F16;

            rounded[i] =
                is_fp16 ? dp_convert_f32_to_f16(values[i]) : dp_convert_f32_to_bf16(values[i]);
            values[i] =
                is_fp16 ? dp_convert_f16_to_f32(rounded[i]) : dp_convert_bf16_to_f32(rounded[i]);
        }
        MUST(cudaMemcpy(array->device, rounded, array->count * 2, cudaMemcpyHostToDevice));
    }
    free(rounded);
}

/* The values as floats, to be freed; checks the margin. */
static float *array_get(const array_t *array)
{
    const size_t bytes = gpt2_cuda_type_bytes(array->type), all = array->count + MARGIN;
    unsigned char *raw = (unsigned char *)malloc(all * bytes);
    float *values = (float *)malloc((array->count + 1) * sizeof(float));

    MUST(cudaMemcpy(raw, array->device, all * bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < array->count; i++) {
        uint16_t half;

        if (bytes == 4) {
            memcpy(&values[i], raw + 4 * i, 4);
        } else {
            memcpy(&half, raw + 2 * i, 2);
            values[i] = array->type == GPT2_CUDA_F16 ? dp_convert_f16_to_f32(half)
                                                     : dp_convert_bf16_to_f32(half);
        }
    }
    for (size_t i = array->count * bytes; i < all * bytes; i++) {
        EXPECT(raw[i] == 0xff, "an array of %zu was written behind its end", array->count);
        if (raw[i] != 0xff) break;
    }
    free(raw);
    return values;
}

/* ---- The plain loop ------------------------------------------------------------------------- */

typedef struct truth {
    double *out, *lse, *dqkv;
} truth_t;

static double dot_of(const float *a, const float *b, int size)
{
    double sum = 0.0;

    for (int i = 0; i < size; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static void add_to(double *to, double by, const float *from, int size)
{
    for (int i = 0; i < size; i++)
        to[i] += by * (double)from[i];
}

/* One query of one head: its out, lse, and what it adds to the gradients. */
static void true_row(const shape_t *shape, const float *qkv, const float *dout, truth_t *truth,
                     int batch, int head, int query, double *weights)
{
    const int size = shape->size;
    const size_t wide = (size_t)shape->heads * (size_t)size, length = (size_t)shape->length;
    const size_t first = (size_t)batch * length * 3 * wide + (size_t)head * (size_t)size;
    const size_t at = ((size_t)batch * length + (size_t)query) * wide + (size_t)(head * size);
    const double scale = 1.0 / sqrt((double)size);
    const float *q = qkv + first + (size_t)query * 3 * wide, *d = dout + at;
    double *dq = truth->dqkv + first + (size_t)query * 3 * wide, most = -INFINITY, sum = 0.0, dot;

    for (int key = 0; key <= query; key++) {
        weights[key] = scale * dot_of(q, qkv + first + ((size_t)key * 3 + 1) * wide, size);
        if (weights[key] > most) most = weights[key];
    }
    for (int key = 0; key <= query; key++)
        sum += exp(weights[key] - most);
    truth->lse[((size_t)batch * (size_t)shape->heads + (size_t)head) * length + (size_t)query] =
        most + log(sum);
    for (int key = 0; key <= query; key++) {
        weights[key] = exp(weights[key] - most) / sum;
        add_to(truth->out + at, weights[key], qkv + first + ((size_t)key * 3 + 2) * wide, size);
    }
    dot = 0.0;
    for (int i = 0; i < size; i++)
        dot += truth->out[at + (size_t)i] * (double)d[i];
    for (int key = 0; key <= query; key++) {
        const size_t k = first + ((size_t)key * 3 + 1) * wide, v = k + wide;
        const double ds = scale * weights[key] * (dot_of(d, qkv + v, size) - dot);

        add_to(truth->dqkv + v, weights[key], d, size);
        add_to(truth->dqkv + k, ds, q, size);
        add_to(dq, ds, qkv + k, size);
    }
}

static truth_t truth_make(const shape_t *shape, const float *qkv, const float *dout)
{
    const size_t rows = rows_of(shape), size = (size_t)shape->size;
    double *weights = (double *)malloc((size_t)shape->length * sizeof(double));
    truth_t truth;

    truth.out = (double *)calloc(rows * size, sizeof(double));
    truth.lse = (double *)calloc(rows, sizeof(double));
    truth.dqkv = (double *)calloc(rows * size * 3, sizeof(double));
    for (int batch = 0; batch < shape->batch; batch++) {
        for (int head = 0; head < shape->heads; head++) {
            for (int query = 0; query < shape->length; query++)
                true_row(shape, qkv, dout, &truth, batch, head, query, weights);
        }
    }
    free(weights);
    return truth;
}

static void truth_free(truth_t *truth)
{
    free(truth->out);
    free(truth->lse);
    free(truth->dqkv);
}

/* ---- A case --------------------------------------------------------------------------------- */

typedef struct run {
    shape_t shape;
    gpt2_cuda_type_t type;
    array_t qkv, out, dout, lse, dqkv, dbias, scratch;
} run_t;

static run_t run_make(const shape_t *shape, gpt2_cuda_type_t type)
{
    const size_t rows = rows_of(shape), count = rows * (size_t)shape->size;
    run_t run;

    run.shape = *shape;
    run.type = type;
    run.qkv = array_make(type, 3 * count);
    run.out = array_make(type, count);
    run.dout = array_make(type, count);
    run.lse = array_make(GPT2_CUDA_F32, rows);
    run.dqkv = array_make(type, 3 * count);
    run.dbias = array_make(GPT2_CUDA_F32, 3 * (size_t)shape->heads * (size_t)shape->size);
    run.scratch =
        array_make(GPT2_CUDA_F32, gpt2_attention_scratch_bytes(type, shape->batch, shape->length,
                                                               shape->heads, shape->size) /
                                      4);
    return run;
}

static void run_free(run_t *run)
{
    array_free(&run->qkv);
    array_free(&run->out);
    array_free(&run->dout);
    array_free(&run->lse);
    array_free(&run->dqkv);
    array_free(&run->dbias);
    array_free(&run->scratch);
}

static int run_forward(const run_t *run)
{
    const shape_t *s = &run->shape;

    return gpt2_attention_forward(NULL, run->type, run->qkv.device, run->out.device,
                                  (float *)run->lse.device, s->batch, s->length, s->heads, s->size);
}

static int run_backward_adding(const run_t *run, int accumulate)
{
    const shape_t *s = &run->shape;

    return gpt2_attention_backward(
        NULL, run->type, run->qkv.device, run->out.device, run->dout.device,
        (const float *)run->lse.device, run->dqkv.device, (float *)run->dbias.device, accumulate,
        (float *)run->scratch.device, s->batch, s->length, s->heads, s->size);
}

static int run_backward(const run_t *run)
{
    return run_backward_adding(run, 0);
}

/* About normal, by the sum of four. */
static float random_value(uint64_t *state)
{
    float sum = 0.0f;

    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7320508f;
}

/* Random queries and keys with scores of deviation `spread`, random values and gradients. */
static void run_fill(run_t *run, float spread, uint64_t seed, float **qkv, float **dout)
{
    const size_t wide = (size_t)run->shape.heads * (size_t)run->shape.size;
    const size_t count = run->out.count;
    uint64_t state = seed;

    *qkv = (float *)malloc(3 * count * sizeof(float));
    *dout = (float *)malloc(count * sizeof(float));
    for (size_t i = 0; i < 3 * count; i++)
        (*qkv)[i] = random_value(&state) * (i / wide % 3 == 2 ? 1.0f : sqrtf(spread));
    for (size_t i = 0; i < count; i++)
        (*dout)[i] = random_value(&state);
    array_put(&run->qkv, *qkv);
    array_put(&run->dout, *dout);
}

/* Relative L2 distance; of part `which` of 3 packed ones of `wide`, or, with wide 0, of all. A NaN
 * is far away. */
static double distance(const float *got, const double *want, size_t count, size_t wide, int which)
{
    double away = 0.0, all = DBL_MIN;

    for (size_t i = 0; i < count; i++) {
        const double off = (double)got[i] - want[i];

        if (wide != 0 && i / wide % 3 != (size_t)which) continue;
        if (isnan(off)) return INFINITY;
        away += off * off;
        all += want[i] * want[i];
    }
    return sqrt(away / all);
}

static void check_part(const run_t *run, const char *what, double is, double limit)
{
    const shape_t *s = &run->shape;

    EXPECT(is <= limit, "%s of %s [%d][%d][%d][%d]: %.2e away, allowed are %.0e", what,
           gpt2_cuda_type_name(run->type), s->batch, s->length, s->heads, s->size, is, limit);
}

/* The gradient of the projection's bias beside the sums of dqkv's rows, which are rounded by
 * `limit` each. It was `before` where it is added to. That of keys is 0 but for rounding: a softmax
 * does not change where all scores grow. */
static void check_bias(const run_t *run, const float *dqkv, float before, double limit)
{
    float *dbias = array_get(&run->dbias);

    for (size_t i = 0; i < run->dbias.count; i++) {
        double sum = (double)before, most = fabs((double)before);

        for (size_t row = i; row < run->dqkv.count; row += run->dbias.count) {
            sum += (double)dqkv[row];
            most += fabs((double)dqkv[row]);
        }
        EXPECT(fabs((double)dbias[i] - sum) <= limit * most,
               "[%d][%d][%d][%d] type %d: the bias' gradient %zu is %g, its rows are %g",
               run->shape.batch, run->shape.length, run->shape.heads, run->shape.size,
               (int)run->type, i, (double)dbias[i], sum);
    }
    free(dbias);
}

/* Probabilities and sums are rounded to bf16, 2^-9 relative each, at most: 2e-2 leaves room for
 * gradients where terms cancel. fp16 has three bits more. In fp32 sums of some hundred terms are
 * good to 1e-6. lse is fp32 in both, of exact products. */
static void check_case(gpt2_cuda_type_t type, shape_t shape, float spread)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    const double limit = type == GPT2_CUDA_BF16 ? 2e-2 : type == GPT2_CUDA_F16 ? 3e-3 : 1e-5;
    const size_t wide = (size_t)shape.heads * (size_t)shape.size;
    const int adds = shape.length % 2;
    run_t run = run_make(&shape, type);
    float *before = (float *)malloc(run.dbias.count * sizeof(float));
    float *qkv, *dout, *out, *lse, *dqkv;
    truth_t truth;
    gpt2_error_t error = {};

    if (gpt2_attention_prepare(type, shape.size, &error) != 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    run_fill(&run, spread, (uint64_t)(shape.length * 131 + shape.size), &qkv, &dout);
    for (size_t i = 0; i < run.dbias.count; i++)
        before[i] = 3.0f;
    if (adds) array_put(&run.dbias, before);
    MUST(run_forward(&run));
    MUST(run_backward_adding(&run, adds));
    MUST(cudaDeviceSynchronize());
    truth = truth_make(&shape, qkv, dout);
    out = array_get(&run.out);
    lse = array_get(&run.lse);
    dqkv = array_get(&run.dqkv);
    free(array_get(&run.scratch));
    check_part(&run, "out", distance(out, truth.out, run.out.count, 0, 0), limit);
    check_part(&run, "lse", distance(lse, truth.lse, run.lse.count, 0, 0), 1e-5);
    /* A single key takes all: no gradient passes through its score, but rounding. */
    for (int i = shape.length > 1 ? 0 : 2; i < 3; i++) {
        check_part(&run, names[i], distance(dqkv, truth.dqkv, run.dqkv.count, wide, i), limit);
    }
    check_bias(&run, dqkv, adds ? 3.0f : 0.0f, type == GPT2_CUDA_BF16 ? 0x1p-8 : 0x1p-10);
    free(before);
    free(qkv);
    free(dout);
    free(out);
    free(lse);
    free(dqkv);
    truth_free(&truth);
    run_free(&run);
}

/* Lengths at and around tiles of 64 and 128, all sizes, scores so far apart that maxima grow late
 * and rows are nearly one-hot. */
static void check_small_shapes(void)
{
    static const shape_t tensor_cores[] = {{1, 1, 1, 64},   {2, 17, 3, 64}, {1, 64, 1, 64},
                                           {1, 130, 2, 64}, {1, 65, 1, 32}, {1, 66, 1, 16},
                                           {1, 33, 2, 48},  {1, 70, 1, 80}, {1, 65, 1, 96},
                                           {1, 40, 1, 112}, {1, 67, 1, 128}};
    static const shape_t plain[] = {
        {1, 1, 1, 64}, {2, 37, 2, 64}, {1, 70, 1, 80}, {1, 33, 1, 16}, {1, 34, 1, 128}};

    for (size_t i = 0; i < sizeof(tensor_cores) / sizeof(tensor_cores[0]); i++)
        check_case(GPT2_CUDA_BF16, tensor_cores[i], i % 2 == 0 ? 1.0f : 6.0f);
    for (size_t i = 1; i < sizeof(tensor_cores) / sizeof(tensor_cores[0]); i += 2)
        check_case(GPT2_CUDA_F16, tensor_cores[i], i % 4 == 1 ? 1.0f : 6.0f);
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        check_case(GPT2_CUDA_F32, plain[i], i % 2 == 0 ? 1.0f : 6.0f);
}

/* out [blocks]: what each block would work on, as tile * pairs + pair; -1 if batch and head are not
 * the pair's. */
__global__ void tasks_kernel(int *out, attention_grid_t grid, int heads)
{
    const attention_task_t task = attention_task(grid, heads);

    out[blockIdx.x] = task.pair == (size_t)task.batch * (size_t)heads + task.head
                          ? (int)(task.tile * grid.pairs + (unsigned)task.pair)
                          : -1;
}

/* Every tile of every head is one block's, and among the blocks of a head long tiles come first;
 * also where heads go in several groups, the last one smaller. */
static void check_tasks(void)
{
    static const shape_t shapes[] = {
        {1, 1, 1, 64}, {3, 1024, 50, 64}, {7, 100, 47, 64}, {1, 4000, 11, 128}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        attention_t it = {};
        attention_grid_t grid;
        size_t blocks;
        int *device, *tasks, *next;

        it.batch = shapes[i].batch;
        it.length = shapes[i].length;
        it.heads = shapes[i].heads;
        it.size = shapes[i].size;
        grid = attention_grid(&it, 128);
        blocks = (size_t)grid.tiles * grid.pairs;
        tasks = (int *)malloc(blocks * sizeof(int));
        next = (int *)calloc(grid.pairs, sizeof(int));
        MUST(cudaMalloc((void **)&device, blocks * sizeof(int)));
        MUST(LAUNCH(tasks_kernel, (unsigned)blocks, 1, 0, NULL, device, grid, it.heads));
        MUST(cudaDeviceSynchronize());
        MUST(cudaMemcpy(tasks, device, blocks * sizeof(int), cudaMemcpyDeviceToHost));
        for (size_t block = 0; block < blocks; block++) {
            const int tile = tasks[block] / (int)grid.pairs;
            const int pair = tasks[block] % (int)grid.pairs;

            EXPECT(pair >= 0 && next[pair] == tile, "block %zu of %zu: tile %d of pair %d", block,
                   blocks, tile, pair);
            if (pair >= 0) next[pair]++;
        }
        for (unsigned pair = 0; pair < grid.pairs; pair++)
            EXPECT(next[pair] == (int)grid.tiles, "pair %u has %d tiles", pair, next[pair]);
        MUST(cudaFree(device));
        free(tasks);
        free(next);
    }
}

/* Calls that the interface refuses. */
static void check_refusals(void)
{
    gpt2_error_t error = {};
    float nothing = 0.0f;

    EXPECT(gpt2_attention_prepare(GPT2_CUDA_BF16, 72, &error) == -1 && error.text[0] != '\0',
           "heads of 72 were taken");
    EXPECT(gpt2_attention_prepare(GPT2_CUDA_F32, 144, NULL) == -1, "heads of 144 were taken");
    EXPECT(gpt2_attention_forward(NULL, GPT2_CUDA_BF16, &nothing, &nothing, &nothing, 1, 1, 1,
                                  24) == (int)cudaErrorInvalidValue,
           "forward took heads of 24");
    EXPECT(gpt2_attention_forward(NULL, GPT2_CUDA_BF16, &nothing, &nothing, &nothing, 1, 0, 1,
                                  64) == (int)cudaErrorInvalidValue,
           "forward took no positions");
    EXPECT(gpt2_attention_backward(NULL, GPT2_CUDA_F32, &nothing, &nothing, &nothing, &nothing,
                                   &nothing, &nothing, 0, &nothing, 0, 1, 1,
                                   64) == (int)cudaErrorInvalidValue,
           "backward took no sequences");
}

/* The same bits whatever the order of threads, and from run to run. */
static void check_repeats(shape_t shape, int times)
{
    run_t run = run_make(&shape, GPT2_CUDA_BF16);
    float *qkv, *dout, *first[4] = {NULL, NULL, NULL, NULL};

    run_fill(&run, 2.0f, 7, &qkv, &dout);
    for (int i = 0; i < times; i++) {
        const array_t *arrays[4] = {&run.out, &run.lse, &run.dqkv, &run.dbias};

#ifdef DP_SIMT
        simt_order += (unsigned)(i > 0);
#endif
        MUST(run_forward(&run));
        MUST(run_backward(&run));
        MUST(cudaDeviceSynchronize());
        for (int k = 0; k < 4; k++) {
            float *got = array_get(arrays[k]);

            if (i == 0) {
                first[k] = got;
                continue;
            }
            EXPECT(memcmp(got, first[k], arrays[k]->count * sizeof(float)) == 0,
                   "run %d of [%d][%d][%d][%d] gave other bits in array %d", i, shape.batch,
                   shape.length, shape.heads, shape.size, k);
            free(got);
        }
    }
    for (int k = 0; k < 4; k++)
        free(first[k]);
    free(qkv);
    free(dout);
    run_free(&run);
}

#ifndef DP_SIMT
/* ---- On the device only --------------------------------------------------------------------- */

static double *as_doubles(const array_t *array)
{
    float *values = array_get(array);
    double *wide = (double *)malloc(array->count * sizeof(double));

    for (size_t i = 0; i < array->count; i++)
        wide[i] = (double)values[i];
    free(values);
    return wide;
}

/* Real lengths: tensor cores against the fp32 kernels, from the same rounded numbers. */
static void check_large(shape_t shape)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    const size_t wide = (size_t)shape.heads * (size_t)shape.size;
    run_t bf16 = run_make(&shape, GPT2_CUDA_BF16), fp32 = run_make(&shape, GPT2_CUDA_F32);
    float *qkv, *dout, *out, *dqkv;
    double *true_out, *true_dqkv;

    MUST(gpt2_attention_prepare(GPT2_CUDA_BF16, shape.size, NULL));
    run_fill(&bf16, 2.0f, 11, &qkv, &dout);
    array_put(&fp32.qkv, qkv);
    array_put(&fp32.dout, dout);
    MUST(run_forward(&bf16));
    MUST(run_backward(&bf16));
    MUST(run_forward(&fp32));
    MUST(run_backward(&fp32));
    MUST(cudaDeviceSynchronize());
    out = array_get(&bf16.out);
    dqkv = array_get(&bf16.dqkv);
    true_out = as_doubles(&fp32.out);
    true_dqkv = as_doubles(&fp32.dqkv);
    check_part(&bf16, "out", distance(out, true_out, bf16.out.count, 0, 0), 2e-2);
    for (int i = 0; i < 3; i++) {
        check_part(&bf16, names[i], distance(dqkv, true_dqkv, bf16.dqkv.count, wide, i), 2e-2);
    }
    check_bias(&bf16, dqkv, 0.0f, 0x1p-8);
    free(qkv);
    free(dout);
    free(out);
    free(dqkv);
    free(true_out);
    free(true_dqkv);
    run_free(&bf16);
    run_free(&fp32);
}

/* Milliseconds of a call, the median of some. */
static double measure(int (*call)(const run_t *), const run_t *run)
{
    enum { RUNS = 11, REPEATS = 5 };
    double times[RUNS];
    cudaEvent_t begin, end;

    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int i = 0; i < RUNS; i++) {
        float ms;
        int at = i;

        MUST(cudaEventRecord(begin, NULL));
        for (int k = 0; k < REPEATS; k++)
            MUST(call(run));
        MUST(cudaEventRecord(end, NULL));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        for (; at > 0 && times[at - 1] > (double)ms / REPEATS; at--)
            times[at] = times[at - 1];
        times[at] = (double)ms / REPEATS;
    }
    MUST(cudaEventDestroy(begin));
    MUST(cudaEventDestroy(end));
    return times[RUNS / 2];
}

/* Dense bf16, TFLOP/s, of this chip at its highest clock; 0: not known. */
static double peak_of_chip(void)
{
    int multiprocessors, khz, major;
    double per_clock;

    MUST(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    MUST(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
    MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    per_clock = major == 8 ? 2048.0 : major == 9 ? 4096.0 : major == 10 ? 8192.0 : 0.0;
    return per_clock * multiprocessors * khz * 1e-9;
}

/* Products count causal, the backward pass as five: what it repeats is its own affair. */
static void report_speed(void)
{
    static const shape_t shapes[] = {{64, 1024, 12, 64}, {16, 1024, 12, 64}, {4, 1024, 12, 64},
                                     {16, 2048, 16, 64}, {4, 8192, 12, 64},  {16, 1024, 25, 64},
                                     {32, 1024, 12, 32}, {32, 1024, 12, 80}, {16, 1024, 12, 128}};
    const double peak = peak_of_chip();

    printf("bf16 peak %.0f TFLOP/s\n%-22s %10s %10s %5s %10s %10s %5s\n", peak, "shape",
           "forward ms", "TFLOP/s", "", "backward", "TFLOP/s", "");
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const shape_t *s = &shapes[i];
        const double half = (double)s->length * (s->length + 1) / 2;
        const double product = 2.0 * s->batch * s->heads * half * s->size * 1e-9;
        run_t run = run_make(s, GPT2_CUDA_BF16);
        float *qkv, *dout;
        double forward, backward;

        MUST(gpt2_attention_prepare(GPT2_CUDA_BF16, s->size, NULL));
        run_fill(&run, 1.0f, 3, &qkv, &dout);
        forward = measure(run_forward, &run);
        backward = measure(run_backward, &run);
        printf("[%2d][%4d][%2d][%3d]     %10.3f %10.0f %4.0f%% %10.3f %10.0f %4.0f%%\n", s->batch,
               s->length, s->heads, s->size, forward, 2 * product / forward,
               peak > 0 ? 200 * product / forward / peak : 0.0, backward, 5 * product / backward,
               peak > 0 ? 500 * product / backward / peak : 0.0);
        free(qkv);
        free(dout);
        run_free(&run);
    }
}

static void check_device(void)
{
    static const shape_t shapes[] = {{2, 1024, 12, 64}, {3, 1000, 5, 64},  {1, 2049, 3, 64},
                                     {1, 1023, 3, 32},  {1, 1025, 3, 80},  {2, 777, 3, 96},
                                     {1, 1024, 3, 128}, {1, 600, 400, 64}, {70, 200, 12, 64}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check_large(shapes[i]);
    check_repeats(shape_t{8, 1024, 12, 64}, 20);
    check_repeats(shape_t{2, 500, 7, 128}, 10);
    report_speed();
}
#endif

int main(int argc, char **argv)
{
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
#endif
    check_small_shapes();
    check_tasks();
    check_refusals();
    check_repeats(shape_t{1, 70, 1, 64}, 2);
#ifdef DP_SIMT
    EXPECT(simt_bank_conflicts() == 0, "%llu bank conflicts", simt_bank_conflicts());
#else
    if (argc == 1) check_device(); /* a sanitizer is given an argument, and small shapes alone */
#endif
    printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
