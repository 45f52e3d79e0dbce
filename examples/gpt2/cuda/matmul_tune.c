/*
 * matmul_tune.c - which kernel a plan runs with.
 *
 * cuBLASLt names candidates in the order it guesses; the guess is often off by a tenth, and whether
 * an epilogue is quicker than a kernel of ours differs by shape. So all candidates of all
 * forms run on buffers like the real ones. The data is random: with constants chips draw less
 * power and clock higher, and another kernel may win.
 */
#include "examples/gpt2/cuda/matmul_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/cuda/kernels.h"

#define ROUNDS 3      /* of which the quickest counts: what disturbs only ever slows down */
#define REPEATS 3     /* runs in a round: several hide the cost of the events */
#define WARM_RUNS 200 /* of a training's products: 0.1 to 0.4 s */

/* Buffers to run on, in device memory. */
typedef struct stage {
    gpt2_matmul_operands_t operands;
    void *memory[5];
    cudaStream_t stream;
    cudaEvent_t begin, end;
} stage_t;

static void stage_fini(stage_t *stage)
{
    if (stage->stream != NULL) (void)cudaStreamSynchronize(stage->stream);
    for (int i = 0; i < 5; i++) {
        if (stage->memory[i] != NULL) (void)cudaFree(stage->memory[i]);
    }
    if (stage->begin != NULL) (void)cudaEventDestroy(stage->begin);
    if (stage->end != NULL) (void)cudaEventDestroy(stage->end);
    if (stage->stream != NULL) (void)cudaStreamDestroy(stage->stream);
}

static cudaError_t stage_init(stage_t *stage, const gpt2_matmul_t *plan)
{
    const gpt2_matmul_shape_t *shape = &plan->shape;
    const int is_weight = shape->kind == GPT2_MATMUL_WEIGHT;
    const gpt2_cuda_type_t d_type = is_weight ? GPT2_CUDA_F32 : shape->type;
    const int has_input_bias = shape->kind == GPT2_MATMUL_INPUT_GELU;
    const size_t counts[5] = {plan->a_count, plan->b_count, plan->d_count,
                              has_input_bias ? shape->inputs : shape->outputs, plan->d_count};
    const gpt2_cuda_type_t types[5] = {shape->type, shape->type, d_type,
                                       has_input_bias ? GPT2_CUDA_F32 : d_type, shape->type};
    const int has_gelu =
        shape->kind == GPT2_MATMUL_FORWARD_GELU || shape->kind == GPT2_MATMUL_INPUT_GELU;
    const int is_wanted[5] = {1, 1, 1, shape->bias, has_gelu || (shape->adds && !is_weight)};
    cudaError_t status;

    memset(stage, 0, sizeof(*stage));
    status = cudaStreamCreateWithFlags(&stage->stream, cudaStreamNonBlocking);
    if (status == cudaSuccess) status = cudaEventCreate(&stage->begin);
    if (status == cudaSuccess) status = cudaEventCreate(&stage->end);
    for (int i = 0; status == cudaSuccess && i < 5; i++) {
        if (!is_wanted[i]) continue;
        status = cudaMalloc(&stage->memory[i], counts[i] * gpt2_cuda_type_bytes(types[i]));
        if (status != cudaSuccess) break;
        status = (cudaError_t)gpt2_cuda_fill_random((gpt2_cuda_stream_t)stage->stream, types[i],
                                                    stage->memory[i], (uint64_t)i, counts[i]);
    }
    stage->operands.a = stage->memory[0];
    stage->operands.b = stage->memory[1];
    stage->operands.d = stage->memory[2];
    stage->operands.beside = stage->memory[3];
    stage->operands.before = has_gelu ? stage->memory[4] : NULL;
    if (shape->adds) stage->operands.c = stage->memory[is_weight ? 2 : 4];
    return status;
}

/* Microseconds of one run; infinite where it fails, or where it is hopeless against `best`. */
static float time_choice(const gpt2_matmul_t *plan, const gpt2_matmul_choice_t *choice,
                         const stage_t *stage, float best)
{
    gpt2_cuda_stream_t stream = (gpt2_cuda_stream_t)stage->stream;
    float quickest = INFINITY;
    cudaError_t status = cudaSuccess;

    /* The first run loads the kernel. */
    if (gpt2_matmul_execute(plan, choice, stream, &stage->operands) != cudaSuccess ||
        cudaStreamSynchronize(stage->stream) != cudaSuccess) {
        (void)cudaGetLastError();
        return INFINITY;
    }
    for (int round = 0; round < ROUNDS && quickest > 0.0f; round++) {
        float ms = 0.0f;

        status = cudaEventRecord(stage->begin, stage->stream);
        for (int i = 0; status == cudaSuccess && i < REPEATS; i++) {
            status = (cudaError_t)gpt2_matmul_execute(plan, choice, stream, &stage->operands);
        }
        if (status == cudaSuccess) status = cudaEventRecord(stage->end, stage->stream);
        if (status == cudaSuccess) status = cudaEventSynchronize(stage->end);
        if (status == cudaSuccess) status = cudaEventElapsedTime(&ms, stage->begin, stage->end);
        if (status != cudaSuccess) {
            (void)cudaGetLastError();
            return INFINITY;
        }
        ms *= 1000.0f / REPEATS;
        if (ms < quickest) quickest = ms;
        if (quickest > 2.0f * best) break;
    }
    return quickest;
}

/* Once for a set, by any kernel that works. An idle GPU's clock is far below that of a training,
 * and takes a tenth of a second to come up: the candidates that are timed first would look slow. */
static void warm_up(const gpt2_matmul_t *plan, const gpt2_matmul_choice_t *choice,
                    const stage_t *stage)
{
    int runs = 0;

    while (runs < WARM_RUNS && gpt2_matmul_execute(plan, choice, (gpt2_cuda_stream_t)stage->stream,
                                                   &stage->operands) == cudaSuccess)
        runs++;
    plan->set->is_warm = cudaStreamSynchronize(stage->stream) == cudaSuccess && runs == WARM_RUNS;
    if (!plan->set->is_warm) (void)cudaGetLastError(); /* time_choice() finds it again */
}

/* Candidates of one form; returns how many. */
static int list_candidates(const gpt2_matmul_t *plan, int form,
                           cublasLtMatmulHeuristicResult_t results[GPT2_MATMUL_CANDIDATES],
                           cublasStatus_t *why)
{
    int count = 0, kept = 0;

    *why = CUBLAS_STATUS_NOT_SUPPORTED;
    if (plan->operations[form] == NULL) return 0;
    memset(results, 0, GPT2_MATMUL_CANDIDATES * sizeof(*results));
    *why = cublasLtMatmulAlgoGetHeuristic(plan->set->handle, plan->operations[form], plan->a,
                                          plan->b, plan->d, plan->d, plan->set->preference,
                                          GPT2_MATMUL_CANDIDATES, results, &count);
    if (*why != CUBLAS_STATUS_SUCCESS) return 0;
    for (int i = 0; i < count; i++) {
        if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
        if (results[i].workspaceSize > plan->set->options.workspace_bytes) continue;
        results[kept++] = results[i];
    }
    if (kept == 0) *why = CUBLAS_STATUS_NOT_SUPPORTED;
    return kept;
}

static gpt2_matmul_choice_t choice_of(const cublasLtMatmulHeuristicResult_t *result, int form,
                                      int kernel, int candidates)
{
    gpt2_matmul_choice_t choice;

    memset(&choice, 0, sizeof(choice));
    choice.algo = result->algo;
    choice.workspace_bytes = result->workspaceSize;
    choice.form = form;
    choice.kernel = kernel;
    choice.candidates = candidates;
    return choice;
}

int gpt2_matmul_tune(const gpt2_matmul_t *plan, gpt2_matmul_choice_t *out, int *is_timed,
                     gpt2_error_t *error)
{
    const gpt2_matmul_shape_t *shape = &plan->shape;
    cublasLtMatmulHeuristicResult_t results[GPT2_MATMUL_CANDIDATES];
    gpt2_matmul_choice_t first, best;
    float quickest = INFINITY;
    cublasStatus_t why = CUBLAS_STATUS_SUCCESS;
    cudaError_t status = cudaSuccess;
    stage_t stage;
    int total = 0;

    memset(&best, 0, sizeof(best));
    memset(&first, 0, sizeof(first));
    if (plan->set->options.tune) status = stage_init(&stage, plan);
    for (int form = GPT2_MATMUL_FORMS - 1; form >= 0; form--) {
        const int count = list_candidates(plan, form, results, &why);

        for (int i = 0; i < count; i++) {
            gpt2_matmul_choice_t choice = choice_of(&results[i], form, i + 1, count);

            if (total++ == 0) first = choice;
            if (!plan->set->options.tune || status != cudaSuccess) break;
            if (!plan->set->is_warm) warm_up(plan, &choice, &stage);
            choice.microseconds = time_choice(plan, &choice, &stage, quickest);
            if (choice.microseconds >= quickest) continue;
            quickest = choice.microseconds;
            best = choice;
        }
    }
    if (plan->set->options.tune) stage_fini(&stage);
    *is_timed = isfinite(quickest);
    *out = *is_timed ? best : first;
    if (plan->set->options.tune && status != cudaSuccess) {
        (void)cudaGetLastError();
        gpt2_matmul_notice(plan->set,
                           "no memory to time kernels of %zu x %zu x %zu, took the first: %s",
                           shape->rows, shape->inputs, shape->outputs, cudaGetErrorString(status));
    }
    if (total == 0) {
        return gpt2_fail(error, "cuBLASLt has no kernel for a product of %zu x %zu x %zu: %s",
                         shape->rows, shape->inputs, shape->outputs, cublasLtGetStatusName(why));
    }
    if (plan->set->options.tune && status == cudaSuccess && !*is_timed) {
        return gpt2_fail(error,
                         "none of cuBLASLt's %d kernels for a product of %zu x %zu x %zu runs",
                         total, shape->rows, shape->inputs, shape->outputs);
    }
    return 0;
}
