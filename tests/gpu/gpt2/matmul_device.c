/*
 * matmul_device.c - plans of matrix products with the real cuBLASLt: right, and how fast.
 *
 * Exits with 77 where there is no GPU. The rates are those of GPT-2 124M with 8192 rows, fused and
 * not, as tuned.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "tests/gpu/gpt2/matmul_checks.h"
#include "tests/unit/cases.h"

static gpt2_matmuls_t *make_set(int tune, int fuse)
{
    gpt2_matmul_options_t options = GPT2_MATMUL_OPTIONS_INIT;
    gpt2_matmuls_t *set;
    gpt2_error_t error;

    options.tune = tune;
    options.fuse = fuse;
    if (gpt2_matmuls_create(&options, &set, &error) != 0) fail_msg("%s", error.text);
    return set;
}

static void products_equal_plain_loops(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        gpt2_matmuls_t *set = make_set(form / 2, form % 2);

        matmul_check_all(set);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        gpt2_matmuls_destroy(set);
    }
}

static void rates_of_gpt2(void **state)
{
    static const struct {
        gpt2_matmul_kind_t kind;
        unsigned inputs, outputs;
        int bias;
    } shapes[] = {{GPT2_MATMUL_FORWARD, 768, 2304, 1},      {GPT2_MATMUL_FORWARD, 768, 768, 0},
                  {GPT2_MATMUL_FORWARD_GELU, 768, 3072, 1}, {GPT2_MATMUL_FORWARD, 3072, 768, 0},
                  {GPT2_MATMUL_FORWARD, 768, 50304, 0},     {GPT2_MATMUL_INPUT, 768, 50304, 0},
                  {GPT2_MATMUL_WEIGHT, 768, 50304, 0},      {GPT2_MATMUL_INPUT_GELU, 3072, 768, 1},
                  {GPT2_MATMUL_WEIGHT, 3072, 768, 0},       {GPT2_MATMUL_INPUT, 768, 3072, 0},
                  {GPT2_MATMUL_WEIGHT, 768, 3072, 0},       {GPT2_MATMUL_INPUT, 768, 768, 0},
                  {GPT2_MATMUL_WEIGHT, 768, 768, 0},        {GPT2_MATMUL_INPUT, 768, 2304, 0},
                  {GPT2_MATMUL_WEIGHT, 768, 2304, 0}};

    (void)state;
    for (int fuse = 1; fuse >= 0; fuse--) {
        gpt2_matmuls_t *set = make_set(1, fuse);

        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            const gpt2_matmul_shape_t shape = {
                shapes[i].kind,    GPT2_CUDA_BF16, 8192, shapes[i].inputs,
                shapes[i].outputs, shapes[i].bias, 0};
            const double flops = 2.0 * 8192.0 * (double)shape.inputs * (double)shape.outputs;
            char text[GPT2_MATMUL_TEXT_MAX];
            double us = 0.0;
            const char *at;

            (void)gpt2_matmul_describe(matmul_plan(set, &shape), text);
            at = strrchr(text, ',');
            if (at == NULL || sscanf(at, ", %lf us", &us) != 1) fail_msg("not timed: %s", text);
            printf("%s, %.0f TFLOP/s\n", text, flops / (us * 1e6));
        }
        gpt2_matmuls_destroy(set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_equal_plain_loops),
                                       cmocka_unit_test(rates_of_gpt2)};
    int devices = 0;

    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
