/*
 * matmul_checks.c - products of plans against plain fp64 loops, on whatever device there is.
 */
#include "tests/gpu/gpt2/matmul_checks.h"

#include <cuda_runtime_api.h>
#include <math.h>

#include "kernels/convert.h"
#include "tests/unit/cases.h"

const gpt2_matmul_t *matmul_plan(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape)
{
    const gpt2_matmul_t *plan;
    gpt2_error_t error;

    if (gpt2_matmuls_plan(set, shape, &plan, &error) != 0) fail_msg("%s", error.text);
    return plan;
}

/* ---- Tensors -------------------------------------------------------------------------------- */

static uint16_t half_of(gpt2_cuda_type_t type, float value)
{
    return type == GPT2_CUDA_F16 ? dp_convert_f32_to_f16(value) : dp_convert_f32_to_bf16(value);
}

static float of_half(gpt2_cuda_type_t type, uint16_t value)
{
    return type == GPT2_CUDA_F16 ? dp_convert_f16_to_f32(value) : dp_convert_bf16_to_f32(value);
}

matmul_tensor_t matmul_tensor(gpt2_cuda_type_t type, size_t count, unsigned seed)
{
    const size_t bytes = count * gpt2_cuda_type_bytes(type);
    matmul_tensor_t tensor = {type, count, NULL, test_calloc(count, sizeof(double))};
    void *copy = test_malloc(bytes);
    uint64_t random = seed + 1;

    for (size_t i = 0; i < count; i++) {
        float value;

        random = random * 6364136223846793005u + 1442695040888963407u;
        value = (float)(int32_t)(random >> 32) * 0x1p-31f;
        if (type == GPT2_CUDA_F32) {
            ((float *)copy)[i] = value;
        } else {
            ((uint16_t *)copy)[i] = half_of(type, value);
            value = of_half(type, ((uint16_t *)copy)[i]);
        }
        tensor.host[i] = (double)value;
    }
    assert_int_equal(cudaMalloc(&tensor.data, bytes), cudaSuccess);
    assert_int_equal(cudaMemcpy(tensor.data, copy, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    test_free(copy);
    return tensor;
}

void matmul_tensor_drop(matmul_tensor_t *tensor)
{
    assert_int_equal(cudaFree(tensor->data), cudaSuccess);
    test_free(tensor->host);
}

/* fp32: roundings of some sums; 16 bits: one rounding of the result, or two. */
static double limit_of(gpt2_cuda_type_t type)
{
    static const double limits[] = {1e-6, 6e-3, 8e-4};

    return limits[type];
}

/* Relative L2. */
static void check_within(const matmul_tensor_t *tensor, const double *expected, double limit,
                         const char *what)
{
    const size_t bytes = tensor->count * gpt2_cuda_type_bytes(tensor->type);
    void *copy = test_malloc(bytes);
    double off = 0.0, all = 0.0;

    assert_int_equal(cudaMemcpy(copy, tensor->data, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < tensor->count; i++) {
        const float got = tensor->type == GPT2_CUDA_F32
                              ? ((const float *)copy)[i]
                              : of_half(tensor->type, ((const uint16_t *)copy)[i]);
        const double by = (double)got - expected[i];

        off += by * by;
        all += expected[i] * expected[i];
    }
    test_free(copy);
    if (!(sqrt(off) <= limit * sqrt(all))) {
        fail_msg("%s: off by %g, allowed %g", what, sqrt(off / all), limit);
    }
}

static void check(const matmul_tensor_t *tensor, const double *expected, const char *what)
{
    check_within(tensor, expected, limit_of(tensor->type), what);
}

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    const double by = 1e-6;

    return (gelu(x + by) - gelu(x - by)) / (2.0 * by);
}

/* ---- Every kind against loops --------------------------------------------------------------- */

void matmul_check_forward(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape)
{
    const size_t rows = shape->rows, inputs = shape->inputs, outputs = shape->outputs;
    const int is_gelu = shape->kind == GPT2_MATMUL_FORWARD_GELU;
    const gpt2_matmul_t *plan = matmul_plan(set, shape);
    matmul_tensor_t in = matmul_tensor(shape->type, rows * inputs, 1),
                    weight = matmul_tensor(shape->type, outputs * inputs, 2);
    matmul_tensor_t bias = matmul_tensor(shape->type, outputs, 3),
                    out = matmul_tensor(shape->type, rows * outputs, 4);
    matmul_tensor_t before = matmul_tensor(shape->type, rows * outputs, 5),
                    added = matmul_tensor(shape->type, rows * outputs, 6);
    const int adds = shape->adds && !is_gelu;
    double *sums = test_calloc(rows * outputs, sizeof(double));
    double *after = test_calloc(rows * outputs, sizeof(double));

    for (size_t r = 0; r < rows; r++) {
        for (size_t o = 0; o < outputs; o++) {
            double sum = shape->bias ? bias.host[o] : 0.0;

            if (adds) sum += added.host[r * outputs + o];
            for (size_t i = 0; i < inputs; i++)
                sum += in.host[r * inputs + i] * weight.host[o * inputs + i];
            sums[r * outputs + o] = sum;
            after[r * outputs + o] = gelu(sum);
        }
    }
    assert_int_equal(gpt2_matmul_forward(plan, NULL, out.data, is_gelu ? before.data : NULL,
                                         in.data, weight.data, shape->bias ? bias.data : NULL,
                                         adds ? added.data : NULL),
                     cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    check(&out, is_gelu ? after : sums, "out");
    if (is_gelu) check(&before, sums, "before");
    matmul_tensor_drop(&in);
    matmul_tensor_drop(&weight);
    matmul_tensor_drop(&bias);
    matmul_tensor_drop(&out);
    matmul_tensor_drop(&before);
    matmul_tensor_drop(&added);
    test_free(sums);
    test_free(after);
}

void matmul_check_input(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape, int accumulate)
{
    const size_t rows = shape->rows, inputs = shape->inputs, outputs = shape->outputs;
    const int is_gelu = shape->kind == GPT2_MATMUL_INPUT_GELU;
    const gpt2_matmul_t *plan = matmul_plan(set, shape);
    matmul_tensor_t d_out = matmul_tensor(shape->type, rows * outputs, 1);
    matmul_tensor_t weight = matmul_tensor(shape->type, outputs * inputs, 2);
    matmul_tensor_t before = matmul_tensor(shape->type, rows * inputs, 3),
                    d_in = matmul_tensor(shape->type, rows * inputs, 4);
    matmul_tensor_t dbias = matmul_tensor(GPT2_CUDA_F32, inputs, 5);
    double *expected = test_calloc(rows * inputs, sizeof(double));
    double *to_bias = test_calloc(inputs, sizeof(double));
    const int has_bias = is_gelu && shape->bias;

    for (size_t i = 0; i < inputs && accumulate; i++)
        to_bias[i] = dbias.host[i];
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < inputs; i++) {
            double sum = 0.0;

            for (size_t o = 0; o < outputs; o++)
                sum += d_out.host[r * outputs + o] * weight.host[o * inputs + i];
            expected[r * inputs + i] =
                is_gelu ? sum * gelu_slope(before.host[r * inputs + i]) : sum;
            to_bias[i] += expected[r * inputs + i];
        }
    }
    assert_int_equal(gpt2_matmul_input(plan, NULL, d_in.data, d_out.data, weight.data,
                                       is_gelu ? before.data : NULL, has_bias ? dbias.data : NULL,
                                       accumulate),
                     cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    check(&d_in, expected, "d_in");
    if (has_bias) { /* of roundings of d_in that do not cancel as the sums do */
        check_within(&dbias, to_bias, 2.0 * limit_of(shape->type), "dbias of the layer below");
    }
    matmul_tensor_drop(&d_out);
    matmul_tensor_drop(&weight);
    matmul_tensor_drop(&before);
    matmul_tensor_drop(&d_in);
    matmul_tensor_drop(&dbias);
    test_free(expected);
    test_free(to_bias);
}

void matmul_check_weight(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape, int accumulate)
{
    const size_t rows = shape->rows, inputs = shape->inputs, outputs = shape->outputs;
    const gpt2_matmul_t *plan = matmul_plan(set, shape);
    matmul_tensor_t d_out = matmul_tensor(shape->type, rows * outputs, 1),
                    in = matmul_tensor(shape->type, rows * inputs, 2);
    matmul_tensor_t dweight = matmul_tensor(GPT2_CUDA_F32, outputs * inputs, 3);
    double *to = test_calloc(outputs * inputs, sizeof(double));

    for (size_t o = 0; o < outputs; o++) {
        for (size_t i = 0; i < inputs; i++) {
            double sum = accumulate ? dweight.host[o * inputs + i] : 0.0;

            for (size_t r = 0; r < rows; r++)
                sum += d_out.host[r * outputs + o] * in.host[r * inputs + i];
            to[o * inputs + i] = sum;
        }
    }
    assert_int_equal(gpt2_matmul_weight(plan, NULL, dweight.data, accumulate, d_out.data, in.data),
                     cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    check(&dweight, to, "dweight");
    matmul_tensor_drop(&d_out);
    matmul_tensor_drop(&in);
    matmul_tensor_drop(&dweight);
    test_free(to);
}

void matmul_check_all(gpt2_matmuls_t *set)
{
    /* rows, inputs, outputs: whole vectors, and such that cuBLASLt has no GELU for. */
    static const size_t sizes[][3] = {{7, 16, 24}, {5, 12, 20}, {1, 8, 8}, {70, 3, 1}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int type = GPT2_CUDA_F32; type <= GPT2_CUDA_F16; type++) {
            for (int kind = 0; kind < 5; kind++) {
                for (int bias = 0; bias < 2; bias++) {
                    const gpt2_matmul_shape_t shape = {(gpt2_matmul_kind_t)kind,
                                                       (gpt2_cuda_type_t)type,
                                                       sizes[i][0],
                                                       sizes[i][1],
                                                       sizes[i][2],
                                                       bias,
                                                       (int)(i % 2)};

                    if (kind == GPT2_MATMUL_FORWARD || kind == GPT2_MATMUL_FORWARD_GELU) {
                        matmul_check_forward(set, &shape);
                    } else if (kind != GPT2_MATMUL_WEIGHT) {
                        matmul_check_input(set, &shape, 0);
                        matmul_check_input(set, &shape, 1);
                    } else {
                        matmul_check_weight(set, &shape, 0);
                        matmul_check_weight(set, &shape, 1);
                    }
                }
            }
        }
    }
}
