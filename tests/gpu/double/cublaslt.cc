/*
 * cublaslt.cc - cuBLASLt's calls over host memory: column-major products with their epilogues.
 *
 * A product is taken apart into fp32 operands, summed in fp64 and rounded once; its epilogue works
 * on the unrounded sum, as the library's does. All kernels of an operation compute the same.
 */
#include "tests/gpu/double/cublaslt.h"

#include <cublasLt.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <mutex>
#include <set>
#include <vector>

#include "kernels/convert.h"
#include "tests/gpu/double/simt.h"

#define ALGO_MAGIC 0x61c88646u
#define KERNEL_WORKSPACE 256 /* bytes that kernel k needs, times k */
#define POINTER_ALIGNMENT 16

typedef struct layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
} layout_t;

typedef struct operation {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    void *bias, *before;
    int64_t before_ld;
} operation_t;

typedef struct preference {
    uint64_t workspace_bytes;
    uint32_t alignment[4];
} preference_t;

typedef struct state {
    std::mutex lock;
    size_t live, searches, products, additions;
    int fail_nth, last_kernel, last_epilogue;
    unsigned broken;
    std::set<uint32_t> refused;
} state_t;

static state_t &all = *new state_t();

typedef std::unique_lock<std::mutex> guard_t;

extern "C" void cublaslt_double_reset(void)
{
    guard_t guard(all.lock);

    all.searches = all.products = all.additions = 0;
    all.fail_nth = 0;
    all.broken = 0;
    all.last_kernel = all.last_epilogue = -1;
    all.refused.clear();
}

extern "C" void cublaslt_double_refuse(int epilogue)
{
    guard_t guard(all.lock);

    all.refused.insert((uint32_t)epilogue);
}

extern "C" void cublaslt_double_break(unsigned kernels)
{
    guard_t guard(all.lock);

    all.broken = kernels;
}

extern "C" void cublaslt_double_fail(int nth)
{
    guard_t guard(all.lock);

    all.fail_nth = nth;
}

extern "C" size_t cublaslt_double_live(void)
{
    guard_t guard(all.lock);

    return all.live;
}

extern "C" size_t cublaslt_double_searches(void)
{
    guard_t guard(all.lock);

    return all.searches;
}

extern "C" size_t cublaslt_double_additions(void)
{
    guard_t guard(all.lock);

    return all.additions;
}

extern "C" size_t cublaslt_double_products(void)
{
    guard_t guard(all.lock);

    return all.products;
}

extern "C" int cublaslt_double_last_kernel(void)
{
    guard_t guard(all.lock);

    return all.last_kernel;
}

extern "C" int cublaslt_double_last_epilogue(void)
{
    guard_t guard(all.lock);

    return all.last_epilogue;
}

static bool is_failing(void)
{
    return all.fail_nth > 0 && --all.fail_nth == 0;
}

/* ---- Objects --------------------------------------------------------------------------------- */

template <typename Handle, typename T> static cublasStatus_t hand_out(Handle *out, const T &value)
{
    guard_t guard(all.lock);

    if (is_failing()) return CUBLAS_STATUS_ALLOC_FAILED;
    all.live++;
    *out = (Handle)(void *)new T(value);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename T> static cublasStatus_t take_back(void *handle)
{
    guard_t guard(all.lock);

    if (handle == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    all.live--;
    delete (T *)handle;
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" {

size_t cublasLtGetVersion(void)
{
    return 130000;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return hand_out(handle, 0);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return take_back<int>(handle);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    if ((type != CUDA_R_16BF && type != CUDA_R_16F && type != CUDA_R_32F) || rows == 0 ||
        columns == 0 || ld < (int64_t)rows) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return hand_out(out, layout_t{type, rows, columns, ld});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return take_back<layout_t>(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    return hand_out(out, preference_t{0, {256, 256, 256, 256}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return take_back<preference_t>(preference);
}

static cublasStatus_t set_value(void *to, size_t room, const void *value, size_t bytes)
{
    if (value == NULL || bytes != room) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t bytes)
{
    preference_t *preference = (preference_t *)(void *)handle;
    guard_t guard(all.lock);

    if (is_failing()) return CUBLAS_STATUS_INVALID_VALUE;
    switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return set_value(&preference->workspace_bytes, 8, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return set_value(&preference->alignment[0], 4, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return set_value(&preference->alignment[1], 4, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return set_value(&preference->alignment[2], 4, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return set_value(&preference->alignment[3], 4, value, bytes);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    return hand_out(out, operation_t{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N,
                                     CUBLASLT_EPILOGUE_DEFAULT, NULL, NULL, 0});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation)
{
    return take_back<operation_t>(operation);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes)
{
    operation_t *operation = (operation_t *)(void *)handle;
    guard_t guard(all.lock);

    if (is_failing()) return CUBLAS_STATUS_INVALID_VALUE;
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set_value(&operation->transpose_a, 4, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set_value(&operation->transpose_b, 4, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set_value(&operation->epilogue, 4, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set_value(&operation->bias, sizeof(void *), value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set_value(&operation->before, sizeof(void *), value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set_value(&operation->before_ld, 8, value, bytes);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}
} /* extern "C" */

/* ---- Operations and their kernels ------------------------------------------------------------ */

typedef struct problem {
    operation_t operation;
    layout_t a, b, d;
    uint64_t m, n, k;
} problem_t;

static bool has_bias(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool has_slope(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_DGELU || epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
}

static bool has_gelu(uint32_t epilogue)
{
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

/* The problem, if it is one that this double knows. */
static cublasStatus_t understand(cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                 cublasLtMatrixLayout_t d, problem_t *out)
{
    const layout_t *c_layout = (const layout_t *)(void *)c;
    bool is_known;
    uint32_t what;

    out->operation = *(operation_t *)(void *)operation;
    out->a = *(layout_t *)(void *)a;
    out->b = *(layout_t *)(void *)b;
    out->d = *(layout_t *)(void *)d;
    what = out->operation.epilogue;
    out->m = out->operation.transpose_a == CUBLAS_OP_T ? out->a.columns : out->a.rows;
    out->k = out->operation.transpose_a == CUBLAS_OP_T ? out->a.rows : out->a.columns;
    out->n = out->operation.transpose_b == CUBLAS_OP_T ? out->b.rows : out->b.columns;
    if (out->k != (out->operation.transpose_b == CUBLAS_OP_T ? out->b.columns : out->b.rows) ||
        out->m != out->d.rows || out->n != out->d.columns || c_layout->type != out->d.type ||
        c_layout->rows != out->d.rows || c_layout->columns != out->d.columns ||
        c_layout->ld != out->d.ld) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    is_known =
        what == CUBLASLT_EPILOGUE_DEFAULT || has_slope(what) || has_bias(what) || has_gelu(what);
    if (!is_known || out->a.type != out->b.type ||
        (out->a.type == CUDA_R_32F && out->d.type != CUDA_R_32F)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (has_gelu(what) || has_slope(what)) {
        if (out->operation.before == NULL || out->operation.before_ld % 8 != 0 ||
            out->operation.before_ld < (int64_t)out->d.rows) {
            return CUBLAS_STATUS_INVALID_VALUE;
        }
    }
    if ((has_bias(what) || what == CUBLASLT_EPILOGUE_DGELU_BGRAD) && out->operation.bias == NULL) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static uint64_t fold(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 0x100000001b3u;
}

/* Of all that a kernel is chosen by. */
static uint64_t hash_problem(const problem_t *problem)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (const layout_t *layout : {&problem->a, &problem->b, &problem->d}) {
        hash = fold(hash, (uint64_t)layout->type);
        hash = fold(hash, layout->rows);
        hash = fold(hash, layout->columns);
        hash = fold(hash, (uint64_t)layout->ld);
    }
    hash = fold(hash, (uint64_t)problem->operation.transpose_a);
    hash = fold(hash, (uint64_t)problem->operation.transpose_b);
    return fold(hash, problem->operation.epilogue);
}

extern "C" cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t preference, int wanted,
                               cublasLtMatmulHeuristicResult_t results[], int *found)
{
    const preference_t *limits = (const preference_t *)(void *)preference;
    problem_t problem;
    cublasStatus_t status = understand(operation, a, b, c, d, &problem);
    guard_t guard(all.lock);

    *found = 0;
    all.searches++;
    if (is_failing()) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (all.refused.count(problem.operation.epilogue) != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (uint32_t alignment : limits->alignment) {
        if (alignment > POINTER_ALIGNMENT) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    for (int kernel = 0; kernel < CUBLASLT_DOUBLE_KERNELS && *found < wanted; kernel++) {
        cublasLtMatmulHeuristicResult_t *result = &results[*found];

        if ((uint64_t)kernel * KERNEL_WORKSPACE > limits->workspace_bytes) continue;
        memset(result, 0, sizeof(*result));
        result->algo.data[0] = ALGO_MAGIC;
        result->algo.data[1] = (uint64_t)kernel;
        result->algo.data[2] = hash_problem(&problem);
        result->workspaceSize = (size_t)kernel * KERNEL_WORKSPACE;
        result->state = CUBLAS_STATUS_SUCCESS;
        result->wavesCount = 1.0f;
        ++*found;
    }
    return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static cublasStatus_t check_algo(const problem_t *problem, const cublasLtMatmulAlgo_t *algo)
{
    if (algo == NULL || algo->data[0] != ALGO_MAGIC || algo->data[1] >= CUBLASLT_DOUBLE_KERNELS ||
        algo->data[2] != hash_problem(problem)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return all.refused.count(problem->operation.epilogue) != 0 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                               : CUBLAS_STATUS_SUCCESS;
}

extern "C" cublasStatus_t
cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                        cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                        cublasLtMatmulHeuristicResult_t *result)
{
    problem_t problem;
    cublasStatus_t status = understand(operation, a, b, c, d, &problem);
    guard_t guard(all.lock);

    if (status == CUBLAS_STATUS_SUCCESS) status = check_algo(&problem, algo);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    result->workspaceSize = (size_t)algo->data[1] * KERNEL_WORKSPACE;
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- Products -------------------------------------------------------------------------------- */

static float element(const void *from, cudaDataType_t type, size_t at)
{
    if (type == CUDA_R_32F) return ((const float *)from)[at];
    return type == CUDA_R_16F ? dp_convert_f16_to_f32(((const uint16_t *)from)[at])
                              : dp_convert_bf16_to_f32(((const uint16_t *)from)[at]);
}

static void set_element(void *to, cudaDataType_t type, size_t at, double value)
{
    if (type == CUDA_R_32F) {
        ((float *)to)[at] = (float)value;
    } else if (type == CUDA_R_16F) {
        ((uint16_t *)to)[at] = dp_convert_f32_to_f16((float)value);
    } else {
        ((uint16_t *)to)[at] = dp_convert_f32_to_bf16((float)value);
    }
}

/* op(matrix) as [columns][rows] in fp32, so that sums run along memory: rows are the k of a product
 * if is_k_rows. */
static std::vector<float> gather(const void *from, const layout_t *layout, bool is_transposed,
                                 bool is_k_rows)
{
    std::vector<float> to(layout->rows * layout->columns);
    const bool is_as_stored = is_transposed != is_k_rows;

    for (size_t column = 0; column < layout->columns; column++) {
        for (size_t row = 0; row < layout->rows; row++) {
            to[is_as_stored ? column * layout->rows + row : row * layout->columns + column] =
                element(from, layout->type, column * (size_t)layout->ld + row);
        }
    }
    return to;
}

#define GELU_BY 0.7978845608028654 /* sqrt(2 / pi) */

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(GELU_BY * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    const double t = tanh(GELU_BY * (x + 0.044715 * x * x * x));

    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * GELU_BY * (1.0 + 3.0 * 0.044715 * x * x);
}

static double finish(const problem_t *problem, size_t row, size_t column, double sum)
{
    const operation_t *operation = &problem->operation;
    const size_t at = column * (size_t)operation->before_ld + row;

    if (has_bias(operation->epilogue)) {
        sum += (double)element(operation->bias, problem->d.type, row);
    }
    if (has_gelu(operation->epilogue)) {
        set_element(operation->before, problem->d.type, at, sum);
        return gelu(sum);
    }
    if (has_slope(operation->epilogue)) {
        return sum * gelu_slope((double)element(operation->before, problem->d.type, at));
    }
    return sum;
}

static void multiply(const problem_t *problem, float alpha, const void *a, const void *b,
                     float beta, const void *c, void *d)
{
    const size_t m = problem->m, n = problem->n, k = problem->k;
    /* Both with k running fastest. */
    const std::vector<float> left =
        gather(a, &problem->a, problem->operation.transpose_a == CUBLAS_OP_T, false);
    const std::vector<float> right =
        gather(b, &problem->b, problem->operation.transpose_b == CUBLAS_OP_T, true);
    std::vector<double> row_sums(m);

    for (size_t column = 0; column < n; column++) {
        const float *y = &right[column * k];

        for (size_t row = 0; row < m; row++) {
            const float *x = &left[row * k];
            const size_t at = column * (size_t)problem->d.ld + row;
            double sum = 0.0;

            for (size_t i = 0; i < k; i++)
                sum += (double)x[i] * (double)y[i];
            sum *= (double)alpha;
            if (beta != 0.0f) sum += (double)beta * (double)element(c, problem->d.type, at);
            sum = finish(problem, row, column, sum);
            row_sums[row] += sum;
            set_element(d, problem->d.type, at, sum);
        }
    }
    for (size_t row = 0; row < m && problem->operation.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
         row++)
        set_element(problem->operation.bias, problem->d.type, row, row_sums[row]);
}

static bool is_unaligned(const void *pointer)
{
    return (uintptr_t)pointer % POINTER_ALIGNMENT != 0;
}

extern "C" cublasStatus_t
cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void *alpha, const void *a,
               cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
               const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
               cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
               size_t workspace_bytes, cudaStream_t stream)
{
    const float by = *(const float *)alpha, keep = *(const float *)beta;
    problem_t problem;
    cublasStatus_t status = understand(operation, a_layout, b_layout, c_layout, d_layout, &problem);
    guard_t guard(all.lock);

    if (is_failing()) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (status == CUBLAS_STATUS_SUCCESS) status = check_algo(&problem, algo);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (is_unaligned(a) || is_unaligned(b) || is_unaligned(c) || is_unaligned(d) ||
        is_unaligned(problem.operation.bias) || is_unaligned(problem.operation.before) ||
        workspace_bytes < algo->data[1] * KERNEL_WORKSPACE ||
        (workspace_bytes > 0 && workspace == NULL)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if ((all.broken >> algo->data[1] & 1u) != 0) return CUBLAS_STATUS_EXECUTION_FAILED;
    all.products++;
    all.additions += keep != 0.0f;
    all.last_kernel = (int)algo->data[1];
    all.last_epilogue = (int)problem.operation.epilogue;
    guard.unlock();
    if (simt_enqueue == NULL) {
        multiply(&problem, by, a, b, keep, c, d);
        return CUBLAS_STATUS_SUCCESS;
    }
    return simt_enqueue((void *)stream, [=] { multiply(&problem, by, a, b, keep, c, d); }) ==
                   cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
