/*
 * matmul.c - matrix products of linear layers through cuBLASLt.
 *
 * cuBLASLt thinks in columns. A row-major matrix [r][c] is, unchanged in memory, a column-major one
 * of c rows and r columns with leading dimension c: its transpose. So what follows computes the
 * transposes, with the operands in reverse order (i inputs, o outputs, n rows of the batch):
 *
 *             row-major here              column-major there, D = op(A) op(B)
 *     FORWARD out [n][o] = in W^T         D (o x n) = W^T (stored i x o, T) * in (i x n)
 *     INPUT   d_in [n][i] = d_out W       D (i x n) = W (i x o) * d_out (o x n)
 *     WEIGHT  dW [o][i] = d_out^T in      D (i x o) = in (i x n) * d_out^T (stored o x n, T)
 *
 * A bias then lies along D's rows (epilogue BIAS). The gradient of the bias of the layer below is a
 * sum of D over n, behind GELU's derivative (DGELU_BGRAD).
 */
#include "examples/gpt2/cuda/matmul_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/cuda/kernels.h"

#define ALIGNMENT 16 /* bytes, that pointers are promised to have */

static const char *const KIND_NAMES[] = {"forward", "forward gelu", "input", "input gelu",
                                         "weight"};

void gpt2_matmul_notice(const gpt2_matmuls_t *set, const char *format, ...)
{
    char text[GPT2_ERROR_TEXT_MAX];
    va_list arguments;

    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): of clang 14, with some headers */
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (set->options.notice != NULL) set->options.notice(set->options.user, text);
}

int gpt2_matmul_shapes_equal(const gpt2_matmul_shape_t *a, const gpt2_matmul_shape_t *b)
{
    return a->kind == b->kind && a->type == b->type && a->rows == b->rows &&
           a->inputs == b->inputs && a->outputs == b->outputs && a->bias == b->bias &&
           a->adds == b->adds;
}

static const char *shape_text(const gpt2_matmul_shape_t *shape, char text[GPT2_MATMUL_TEXT_MAX])
{
    (void)snprintf(text, GPT2_MATMUL_TEXT_MAX, "%s %zux%zux%zu%s%s %s", KIND_NAMES[shape->kind],
                   shape->rows, shape->inputs, shape->outputs, shape->bias ? " bias" : "",
                   shape->adds ? " added" : "", gpt2_cuda_type_name(shape->type));
    return text;
}

/* ---- The set -------------------------------------------------------------------------------- */

static int set_preference(cublasLtMatmulPreference_t preference, uint64_t workspace_bytes)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t alignment = ALIGNMENT;
    cublasStatus_t status =
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_bytes, sizeof(workspace_bytes));

    for (size_t i = 0; status == CUBLAS_STATUS_SUCCESS && i < 4; i++) {
        status = cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &alignment,
                                                      sizeof(alignment));
    }
    return (int)status;
}

int gpt2_matmuls_create(const gpt2_matmul_options_t *options, gpt2_matmuls_t **out,
                        gpt2_error_t *error)
{
    static const gpt2_matmul_options_t defaults = GPT2_MATMUL_OPTIONS_INIT;
    gpt2_matmuls_t *set = calloc(1, sizeof(*set));
    cublasStatus_t status;
    cudaError_t code;

    if (set == NULL) return gpt2_fail(error, "out of memory for a set of matrix products");
    set->options = options == NULL ? defaults : *options;
    status = cublasLtCreate(&set->handle);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatmulPreferenceCreate(&set->preference);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status =
            (cublasStatus_t)set_preference(set->preference, (uint64_t)set->options.workspace_bytes);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        (void)gpt2_fail(error, "cuBLASLt cannot start: %s", cublasLtGetStatusName(status));
        goto fail;
    }
    if (set->options.workspace_bytes > 0) {
        code = cudaMalloc(&set->workspace, set->options.workspace_bytes);
        if (code != cudaSuccess) {
            (void)gpt2_fail(error, "no %zu bytes of device memory for cuBLASLt's workspace: %s",
                            set->options.workspace_bytes, cudaGetErrorString(code));
            goto fail;
        }
    }
    if (gpt2_matmul_cache_open(set, error) != 0) goto fail;
    *out = set;
    return 0;
fail:
    gpt2_matmuls_destroy(set);
    return -1;
}

static void plan_destroy(gpt2_matmul_t *plan)
{
    for (int i = 0; i < GPT2_MATMUL_FORMS; i++) {
        if (plan->operations[i] != NULL) (void)cublasLtMatmulDescDestroy(plan->operations[i]);
    }
    if (plan->a != NULL) (void)cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b != NULL) (void)cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->d != NULL) (void)cublasLtMatrixLayoutDestroy(plan->d);
    free(plan);
}

void gpt2_matmuls_destroy(gpt2_matmuls_t *set)
{
    if (set == NULL) return;
    while (set->plans != NULL) {
        gpt2_matmul_t *plan = set->plans;

        set->plans = plan->next;
        plan_destroy(plan);
    }
    if (set->preference != NULL) (void)cublasLtMatmulPreferenceDestroy(set->preference);
    if (set->handle != NULL) (void)cublasLtDestroy(set->handle);
    if (set->workspace != NULL) (void)cudaFree(set->workspace);
    if (set->scratch != NULL) (void)cudaFree(set->scratch);
    gpt2_matmul_cache_close(&set->cache);
    free(set);
}

size_t gpt2_matmuls_bytes(const gpt2_matmuls_t *set)
{
    return set->options.workspace_bytes + set->scratch_bytes;
}

/* ---- Plans ---------------------------------------------------------------------------------- */

/* The epilogue of a form; CUBLASLT_EPILOGUE_DEFAULT: there is no such form. */
static cublasLtEpilogue_t epilogue_of(const gpt2_matmul_shape_t *shape, int form)
{
    if (form == 2) {
        /* cuBLASLt writes the bias' gradient in the type of D. It is a sum over all rows: fp16 may
         * not have room for it. */
        return shape->kind == GPT2_MATMUL_INPUT_GELU && shape->bias && shape->type == GPT2_CUDA_BF16
                   ? CUBLASLT_EPILOGUE_DGELU_BGRAD
                   : CUBLASLT_EPILOGUE_DEFAULT;
    }
    switch (shape->kind) {
    case GPT2_MATMUL_FORWARD:
        return shape->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case GPT2_MATMUL_FORWARD_GELU:
        return shape->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case GPT2_MATMUL_INPUT_GELU:
        return CUBLASLT_EPILOGUE_DGELU;
    case GPT2_MATMUL_INPUT:
    case GPT2_MATMUL_WEIGHT:
        break;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

static int has_gelu(const gpt2_matmul_shape_t *shape)
{
    return shape->kind == GPT2_MATMUL_FORWARD_GELU || shape->kind == GPT2_MATMUL_INPUT_GELU;
}

static int has_bias(cublasLtEpilogue_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

/* The operation with or without its epilogue. */
static cublasStatus_t operation_create(const gpt2_matmul_t *plan, cublasLtEpilogue_t epilogue,
                                       int64_t before_ld, cublasLtMatmulDesc_t *out)
{
    const gpt2_matmul_kind_t kind = plan->shape.kind;
    const int is_forward = kind == GPT2_MATMUL_FORWARD || kind == GPT2_MATMUL_FORWARD_GELU;
    const int32_t transpose_a = is_forward ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t transpose_b = kind == GPT2_MATMUL_WEIGHT ? CUBLAS_OP_T : CUBLAS_OP_N;
    const uint32_t what = (uint32_t)epilogue;
    /* How well these are aligned is what the search goes by. */
    const void *aligned = (const void *)(uintptr_t)ALIGNMENT;
    cublasStatus_t status = cublasLtMatmulDescCreate(out, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (status != CUBLAS_STATUS_SUCCESS) return status;
    status = cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a,
                                            sizeof(transpose_a));
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_TRANSB, &transpose_b,
                                                sizeof(transpose_b));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_EPILOGUE, &what,
                                                sizeof(what));
    }
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) return status;
    if (status == CUBLAS_STATUS_SUCCESS && has_bias(epilogue)) {
        status = cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned,
                                                sizeof(aligned));
    }
    if (status == CUBLAS_STATUS_SUCCESS && has_gelu(&plan->shape)) {
        status = cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                                &aligned, sizeof(aligned));
    }
    if (status == CUBLAS_STATUS_SUCCESS && has_gelu(&plan->shape)) {
        status = cublasLtMatmulDescSetAttribute(*out, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
                                                &before_ld, sizeof(before_ld));
    }
    return status;
}

/* Layouts and operations, as in the table above. */
static int plan_describe(gpt2_matmul_t *plan, gpt2_error_t *error)
{
    const gpt2_matmul_shape_t *shape = &plan->shape;
    const uint64_t rows = shape->rows, inputs = shape->inputs, outputs = shape->outputs;
    static const cudaDataType_t types[] = {
        [GPT2_CUDA_F32] = CUDA_R_32F, [GPT2_CUDA_BF16] = CUDA_R_16BF, [GPT2_CUDA_F16] = CUDA_R_16F};
    const cudaDataType_t type = types[shape->type];
    const int is_weight = shape->kind == GPT2_MATMUL_WEIGHT;
    const int is_forward =
        shape->kind == GPT2_MATMUL_FORWARD || shape->kind == GPT2_MATMUL_FORWARD_GELU;
    const uint64_t a_columns = is_weight ? rows : outputs;
    const uint64_t b_rows = is_forward ? inputs : outputs;
    const uint64_t d_rows = is_forward ? outputs : inputs, d_columns = is_weight ? outputs : rows;
    int forms = GPT2_MATMUL_FORMS;
    cublasStatus_t status;
    char text[GPT2_MATMUL_TEXT_MAX];

    plan->a_count = inputs * a_columns;
    plan->b_count = b_rows * rows;
    plan->d_count = d_rows * d_columns;
    status = cublasLtMatrixLayoutCreate(&plan->a, type, inputs, a_columns, (int64_t)inputs);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatrixLayoutCreate(&plan->b, type, b_rows, rows, (int64_t)b_rows);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatrixLayoutCreate(&plan->d, is_weight ? CUDA_R_32F : type, d_rows,
                                            d_columns, (int64_t)d_rows);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = operation_create(plan, CUBLASLT_EPILOGUE_DEFAULT, 0, &plan->operations[0]);
    }
    /* cuBLASLt wants rows of what GELU takes to be a multiple of 8 elements. How exact its GELU is
     * it does not say, and fp32 is there to compare with. */
    if (has_gelu(shape) && (d_rows % 8 != 0 || shape->type == GPT2_CUDA_F32)) {
        forms = 1;
    }
    if (!plan->set->options.fuse) forms = 1;
    for (int form = 1; status == CUBLAS_STATUS_SUCCESS && form < forms; form++) {
        const cublasLtEpilogue_t epilogue = epilogue_of(shape, form);

        if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) continue;
        status = operation_create(plan, epilogue, (int64_t)d_rows, &plan->operations[form]);
    }
    if (status == CUBLAS_STATUS_SUCCESS) return 0;
    return gpt2_fail(error, "cuBLASLt cannot describe %s: %s", shape_text(shape, text),
                     cublasLtGetStatusName(status));
}

/* Room for what the plan's own kernels need. */
static int grow_scratch(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape, gpt2_error_t *error)
{
    const size_t sums = gpt2_cuda_column_sum_scratch_bytes(shape->rows, shape->inputs);
    const size_t two =
        2 * shape->inputs * sizeof(float); /* a gradient as cuBLASLt writes it, and in fp32 */
    const size_t bytes = sums > two ? sums : two;
    cudaError_t status;
    void *grown;

    if (shape->kind != GPT2_MATMUL_INPUT_GELU || !shape->bias || bytes <= set->scratch_bytes)
        return 0;
    status = cudaMalloc(&grown, bytes);
    if (status != cudaSuccess) {
        return gpt2_fail(error, "no %zu bytes of device memory for sums of biases: %s", bytes,
                         cudaGetErrorString(status));
    }
    if (set->scratch != NULL) (void)cudaFree(set->scratch); /* waits for what uses it */
    set->scratch = grown;
    set->scratch_bytes = bytes;
    return 0;
}

/* 1: the remembered choice runs here. */
static int is_choice_usable(const gpt2_matmul_t *plan, const gpt2_matmul_choice_t *choice)
{
    cublasLtMatmulHeuristicResult_t result;

    if (plan->operations[choice->form] == NULL) return 0;
    if (choice->workspace_bytes > plan->set->options.workspace_bytes) return 0;
    memset(&result, 0, sizeof(result));
    return cublasLtMatmulAlgoCheck(plan->set->handle, plan->operations[choice->form], plan->a,
                                   plan->b, plan->d, plan->d, &choice->algo,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= choice->workspace_bytes;
}

static int plan_choose(gpt2_matmul_t *plan, gpt2_error_t *error)
{
    gpt2_matmuls_t *set = plan->set;
    const gpt2_matmul_choice_t *known =
        set->options.tune ? gpt2_matmul_cache_find(set, &plan->shape) : NULL;
    char text[GPT2_MATMUL_TEXT_MAX];
    int is_timed;

    if (known != NULL && is_choice_usable(plan, known)) {
        plan->choice = *known;
        return 0;
    }
    if (known != NULL) {
        gpt2_matmul_notice(set, "%s: cuBLASLt no longer takes the remembered kernel for %s",
                           set->cache.path, shape_text(&plan->shape, text));
    }
    if (gpt2_matmul_tune(plan, &plan->choice, &is_timed, error) != 0) return -1;
    if (is_timed) gpt2_matmul_cache_add(set, &plan->shape, &plan->choice);
    return 0;
}

int gpt2_matmuls_plan(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape,
                      const gpt2_matmul_t **out, gpt2_error_t *error)
{
    gpt2_matmul_shape_t own = *shape;
    gpt2_matmul_t *plan;
    char text[GPT2_MATMUL_TEXT_MAX];

    own.bias = shape->bias && shape->kind != GPT2_MATMUL_INPUT && shape->kind != GPT2_MATMUL_WEIGHT;
    own.adds = (shape->kind == GPT2_MATMUL_FORWARD || shape->kind == GPT2_MATMUL_WEIGHT) &&
               shape->adds != 0;
    for (plan = set->plans; plan != NULL; plan = plan->next) {
        if (!gpt2_matmul_shapes_equal(&plan->shape, &own)) continue;
        *out = plan;
        return 0;
    }
    if (shape->rows == 0 || shape->inputs == 0 || shape->outputs == 0) {
        return gpt2_fail(error, "no product to plan: %s", shape_text(shape, text));
    }
    plan = calloc(1, sizeof(*plan));
    if (plan == NULL) {
        return gpt2_fail(error, "out of memory for the plan of %s", shape_text(shape, text));
    }
    plan->set = set;
    plan->shape = own;
    if (grow_scratch(set, &own, error) != 0 || plan_describe(plan, error) != 0 ||
        plan_choose(plan, error) != 0) {
        plan_destroy(plan);
        return -1;
    }
    plan->next = set->plans;
    set->plans = plan;
    *out = plan;
    return 0;
}

int gpt2_matmul_is_fused(const gpt2_matmul_t *plan)
{
    return plan->choice.form > 0;
}

const char *gpt2_matmul_describe(const gpt2_matmul_t *plan, char text[GPT2_MATMUL_TEXT_MAX])
{
    const gpt2_matmul_choice_t *choice = &plan->choice;
    size_t length;

    length = strlen(shape_text(&plan->shape, text));
    (void)snprintf(text + length, GPT2_MATMUL_TEXT_MAX - length, ": kernel %d of %d%s",
                   choice->kernel, choice->candidates,
                   epilogue_of(&plan->shape, 1) == CUBLASLT_EPILOGUE_DEFAULT ? ""
                   : choice->form == 0                                       ? ", not fused"
                   : choice->form == 1                                       ? ", fused"
                                                                             : ", all fused");
    length = strlen(text);
    if (choice->microseconds > 0.0f) {
        (void)snprintf(text + length, GPT2_MATMUL_TEXT_MAX - length, ", %.1f us",
                       (double)choice->microseconds);
    }
    return text;
}

/* ---- Running -------------------------------------------------------------------------------- */

/* One call of cuBLASLt. Only here do pointers meet the operation. */
static int product(const gpt2_matmul_t *plan, const gpt2_matmul_choice_t *choice,
                   gpt2_cuda_stream_t stream, const gpt2_matmul_operands_t *operands, void *d)
{
    const gpt2_matmuls_t *set = plan->set;
    const void *c = operands->c != NULL ? operands->c : d;
    const float alpha = 1.0f, beta = operands->c != NULL ? 1.0f : 0.0f;
    cublasLtMatmulDesc_t operation = plan->operations[choice->form];
    const cublasLtEpilogue_t epilogue =
        choice->form == 0 ? CUBLASLT_EPILOGUE_DEFAULT : epilogue_of(&plan->shape, choice->form);
    const void *beside = operands->beside, *before = operands->before;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    if (epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) beside = set->scratch; /* in the type of D */
    if (has_bias(epilogue)) {
        status = cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                &beside, sizeof(beside));
    }
    if (status == CUBLAS_STATUS_SUCCESS && choice->form > 0 && has_gelu(&plan->shape)) {
        status = cublasLtMatmulDescSetAttribute(
            operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &before, sizeof(before));
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = cublasLtMatmul(set->handle, operation, &alpha, operands->a, plan->a, operands->b,
                                plan->b, &beta, c, plan->d, d, plan->d, &choice->algo,
                                set->workspace, choice->workspace_bytes, (cudaStream_t)stream);
    }
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

/* The bias' gradient of the layer below, from where the epilogue left it or from d itself. */
static int finish_input_bias(const gpt2_matmul_t *plan, const gpt2_matmul_choice_t *choice,
                             gpt2_cuda_stream_t stream, const gpt2_matmul_operands_t *operands)
{
    const gpt2_matmul_shape_t *shape = &plan->shape;
    float *sums = plan->set->scratch,
          *to = operands->adds ? sums + shape->inputs : operands->beside;
    int status;

    if (choice->form < 2) {
        return gpt2_cuda_column_sum(stream, shape->type, operands->beside, operands->adds,
                                    operands->d, sums, shape->rows, shape->inputs);
    }
    status = gpt2_cuda_cast(stream, GPT2_CUDA_F32, to, shape->type, sums, shape->inputs);
    if (status != cudaSuccess || !operands->adds) return status;
    return gpt2_cuda_add_bias(stream, GPT2_CUDA_F32, operands->beside, to, 1, shape->inputs);
}

/* Does what the chosen form's epilogue did not. */
static int run_epilogue(const gpt2_matmul_t *plan, const gpt2_matmul_choice_t *choice,
                        gpt2_cuda_stream_t stream, const gpt2_matmul_operands_t *operands)
{
    const gpt2_matmul_shape_t *shape = &plan->shape;
    int status = cudaSuccess;

    switch (shape->kind) {
    case GPT2_MATMUL_FORWARD:
        if (choice->form > 0 || !shape->bias) return cudaSuccess;
        return gpt2_cuda_add_bias(stream, shape->type, operands->d, operands->beside, shape->rows,
                                  shape->outputs);
    case GPT2_MATMUL_FORWARD_GELU:
        if (choice->form > 0) return cudaSuccess;
        return gpt2_cuda_gelu_forward(stream, shape->type, operands->d, operands->before,
                                      shape->bias ? operands->beside : NULL, shape->rows,
                                      shape->outputs);
    case GPT2_MATMUL_INPUT_GELU:
        if (choice->form == 0) {
            status = gpt2_cuda_gelu_backward(stream, shape->type, operands->d, operands->d,
                                             operands->before, shape->rows * shape->inputs);
        }
        if (status != cudaSuccess || !shape->bias) return status;
        return finish_input_bias(plan, choice, stream, operands);
    case GPT2_MATMUL_INPUT:
    case GPT2_MATMUL_WEIGHT:
        break;
    }
    return cudaSuccess;
}

int gpt2_matmul_execute(const gpt2_matmul_t *plan, const gpt2_matmul_choice_t *choice,
                        gpt2_cuda_stream_t stream, const gpt2_matmul_operands_t *operands)
{
    const int is_before = plan->shape.kind == GPT2_MATMUL_FORWARD_GELU && choice->form == 0;
    const int status =
        product(plan, choice, stream, operands, is_before ? operands->before : operands->d);

    return status != cudaSuccess ? status : run_epilogue(plan, choice, stream, operands);
}

int gpt2_matmul_forward(const gpt2_matmul_t *plan, gpt2_cuda_stream_t stream, void *out,
                        void *before, const void *in, const void *weight, const void *bias,
                        const void *added)
{
    const gpt2_matmul_operands_t operands = {weight, in, added, out, (void *)(uintptr_t)bias,
                                             before, 0};

    if (plan->shape.kind != GPT2_MATMUL_FORWARD && plan->shape.kind != GPT2_MATMUL_FORWARD_GELU) {
        return cudaErrorInvalidValue;
    }
    if ((plan->shape.kind == GPT2_MATMUL_FORWARD_GELU) != (before != NULL) ||
        (plan->shape.bias != 0) != (bias != NULL) || plan->shape.adds != (added != NULL)) {
        return cudaErrorInvalidValue;
    }
    return gpt2_matmul_execute(plan, &plan->choice, stream, &operands);
}

int gpt2_matmul_input(const gpt2_matmul_t *plan, gpt2_cuda_stream_t stream, void *d_in,
                      const void *d_out, const void *weight, const void *before, float *dbias,
                      int accumulate)
{
    const gpt2_matmul_operands_t operands = {
        weight, d_out, NULL, d_in, dbias, (void *)(uintptr_t)before, accumulate != 0};

    if (plan->shape.kind != GPT2_MATMUL_INPUT && plan->shape.kind != GPT2_MATMUL_INPUT_GELU) {
        return cudaErrorInvalidValue;
    }
    if ((plan->shape.kind == GPT2_MATMUL_INPUT_GELU) != (before != NULL) ||
        (plan->shape.bias != 0) != (dbias != NULL)) {
        return cudaErrorInvalidValue;
    }
    return gpt2_matmul_execute(plan, &plan->choice, stream, &operands);
}

int gpt2_matmul_weight(const gpt2_matmul_t *plan, gpt2_cuda_stream_t stream, float *dweight,
                       int accumulate, const void *d_out, const void *in)
{
    const gpt2_matmul_operands_t operands = {
        in, d_out, accumulate ? dweight : NULL, dweight, NULL, NULL, 0};

    if (plan->shape.kind != GPT2_MATMUL_WEIGHT) return cudaErrorInvalidValue;
    return gpt2_matmul_execute(plan, &plan->choice, stream, &operands);
}
