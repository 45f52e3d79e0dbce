/*
 * low_rank.h - the kernels of low-rank gradients against those of the host.
 */
#ifndef DP_TESTS_GPT2_LOW_RANK_H
#define DP_TESTS_GPT2_LOW_RANK_H

#include "tests/gpu/gpt2/twice.h"

/* The tensors' numbers as the host's kernels take them. */
static float *low_rank_floats(const tensor_t *tensor)
{
    float *copy = (float *)malloc(tensor->count * sizeof(float) + 1);

    for (size_t i = 0; i < tensor->count; i++)
        copy[i] = (float)tensor->host[i];
    return copy;
}

/* The host's result becomes the expectation, and where `keep` the device's input as well, so
 * that each kernel starts from the host's numbers. */
static void low_rank_compare(tensor_t *tensor, const float *host, double tolerance, int keep,
                             const char *what)
{
    double *expected = doubles(tensor->count);

    for (size_t i = 0; i < tensor->count; i++)
        expected[i] = (double)host[i];
    tensor_check(tensor, expected, tolerance, what);
    for (size_t i = 0; i < tensor->count && keep; i++)
        tensor->host[i] = expected[i];
    tensor_put(tensor);
    free(expected);
}

/* Sums of up to `rows` or `columns` products in fp32, in another order. */
static void check_low_rank(size_t rows, size_t columns, size_t rank)
{
    const gpt2_compress_kernels_t *kernels = gpt2_kernels_list()[0]->compress;
    tensor_t gradient = tensor_make(F32, rows * columns, 0, 1e-2);
    tensor_t residual = tensor_make(F32, rows * columns, 0, 1e-2);
    tensor_t p = tensor_make(F32, rank * rows, 0, 0.0),
             q = tensor_make(F32, rank * columns, 0, 1.0);
    tensor_t *products[] = {&gradient, &residual};
    tensor_t *of_p[] = {&p}, *of_q[] = {&q};
    gpt2_powersgd_matrix_t matrix = {
        (float *)gradient.data, (float *)residual.data, 0.25f, rows, columns, rank,
        (float *)p.data,        (float *)q.data};
    gpt2_powersgd_matrix_t host = matrix;
    double *squares, found = 0.0, expected;
    void *scratch;

    MUST(cudaMalloc((void **)&squares, sizeof(*squares)));
    MUST(cudaMalloc(&scratch, gpt2_cuda_powersgd_scratch_bytes(rows, columns, rank)));
    host.gradient = low_rank_floats(&gradient);
    host.residual = low_rank_floats(&residual);
    host.p = low_rank_floats(&p);
    host.q = low_rank_floats(&q);
    run_twice([&] { return gpt2_cuda_powersgd_rows(NULL, &matrix); }, of_p, 1, "P = M Q");
    kernels->powersgd_rows(&host);
    low_rank_compare(&p, host.p, 1e-5, 1, "P = M Q");
    run_twice([&] { return gpt2_cuda_powersgd_orthonormal(NULL, (float *)p.data, rows, rank); },
              of_p, 1, "orthonormal P");
    kernels->powersgd_orthonormal(host.p, rows, rank);
    low_rank_compare(&p, host.p, 1e-4, 1, "orthonormal P");
    run_twice([&] { return gpt2_cuda_powersgd_columns(NULL, &matrix, scratch); }, of_q, 1,
              "Q = M' P");
    kernels->powersgd_columns(&host);
    low_rank_compare(&q, host.q, 1e-5, 1, "Q = M' P");
    run_twice([&] { return gpt2_cuda_powersgd_finish(NULL, &matrix, squares, scratch); }, products,
              2, "P Q'");
    expected = kernels->powersgd_finish(&host);
    low_rank_compare(&gradient, host.gradient, 1e-5, 0, "P Q'");
    low_rank_compare(&residual, host.residual, 1e-5, 0, "what P Q' leaves");
    MUST(cudaMemcpy(&found, squares, sizeof(found), cudaMemcpyDeviceToHost));
    EXPECT(fabs(found - expected) <= 1e-5 * expected, "squares %g, not %g", found, expected);
    for (tensor_t *tensor : {&gradient, &residual, &p, &q})
        tensor_free(tensor);
    for (float *at : {host.gradient, host.residual, host.p, host.q})
        free(at);
    MUST(cudaFree(squares));
    MUST(cudaFree(scratch));
}

/* A column that depends on those before it, and one of zeros, become zeros. */
static void check_dependent_columns(void)
{
    const size_t count = 700;
    tensor_t x = tensor_make(F32, 4 * count, 0, 1.0);
    double *got = doubles(4 * count), length = 0.0;

    for (size_t i = 0; i < count; i++) {
        x.host[count + i] = 2.0 * x.host[i];
        x.host[2 * count + i] = 0.0;
    }
    tensor_put(&x);
    MUST(gpt2_cuda_powersgd_orthonormal(NULL, (float *)x.data, count, 4));
    MUST(cudaDeviceSynchronize());
    tensor_get(&x, got);
    for (size_t i = 0; i < count; i++) {
        EXPECT(got[count + i] == 0.0 && got[2 * count + i] == 0.0, "%g, %g are not zeros",
               got[count + i], got[2 * count + i]);
        length += got[3 * count + i] * got[3 * count + i];
    }
    EXPECT(fabs(length - 1.0) < 1e-5, "a column of length %g", length);
    free(got);
    tensor_free(&x);
}

#endif
