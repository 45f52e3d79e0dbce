/*
 * test_matmul.c - plans of matrix products on the doubles of cuBLASLt and of the runtime: every
 * kind against plain loops, falling back, tuning, the cache, and every call that can fail.
 */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/cuda/matmul.h"
#include "tests/gpt2/scratch.h"
#include "tests/gpu/double/cublaslt.h"
#include "tests/gpu/double/cuda_runtime.h"
#include "tests/gpu/gpt2/matmul_checks.h"
#include "tests/unit/cases.h"
#include "tests/unit/fail_allocation.h"

static gpt2_error_t error;
static char notices[4096];

static void take_notice(void *user, const char *text)
{
    (void)user;
    (void)snprintf(notices + strlen(notices), sizeof(notices) - strlen(notices), "%s\n", text);
}

static int setup(void **state)
{
    (void)state;
    cuda_double_reset();
    cublaslt_double_reset();
    notices[0] = '\0';
    (void)scratch_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    assert_int_equal(cublaslt_double_live(), 0);
    assert_int_equal(cuda_double_live(), 0);
    return 0;
}

static gpt2_matmuls_t *make_set(int tune, int fuse, const char *cache)
{
    gpt2_matmul_options_t options = GPT2_MATMUL_OPTIONS_INIT;
    gpt2_matmuls_t *set;

    options.workspace_bytes = 2048;
    options.tune = tune;
    options.fuse = fuse;
    options.cache = cache;
    options.notice = take_notice;
    if (gpt2_matmuls_create(&options, &set, &error) != 0) fail_msg("%s", error.text);
    return set;
}

/* ---- Products ------------------------------------------------------------------------------- */

static void products_equal_plain_loops(void **state)
{
    gpt2_matmuls_t *set = make_set(0, 1, NULL);

    (void)state;
    matmul_check_all(set);
    gpt2_matmuls_destroy(set);
}

static void products_are_the_same_without_fusion(void **state)
{
    gpt2_matmuls_t *set = make_set(0, 0, NULL);

    (void)state;
    matmul_check_all(set);
    gpt2_matmuls_destroy(set);
}

static void products_are_the_same_where_epilogues_are_refused(void **state)
{
    static const cublasLtEpilogue_t epilogues[] = {
        CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD};
    gpt2_matmuls_t *set;

    (void)state;
    for (size_t i = 0; i < sizeof(epilogues) / sizeof(epilogues[0]); i++)
        cublaslt_double_refuse((int)epilogues[i]);
    set = make_set(0, 1, NULL);
    matmul_check_all(set);
    gpt2_matmuls_destroy(set);
}

static const gpt2_matmul_shape_t FC = {GPT2_MATMUL_FORWARD_GELU, GPT2_CUDA_BF16, 7, 16, 24, 1, 0};

static void fusion_is_used_where_there_is_one(void **state)
{
    static const struct {
        gpt2_matmul_kind_t kind;
        int bias;
        cublasLtEpilogue_t epilogue;
    } cases[] = {{GPT2_MATMUL_FORWARD, 1, CUBLASLT_EPILOGUE_BIAS},
                 {GPT2_MATMUL_FORWARD, 0, CUBLASLT_EPILOGUE_DEFAULT},
                 {GPT2_MATMUL_FORWARD_GELU, 1, CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
                 {GPT2_MATMUL_FORWARD_GELU, 0, CUBLASLT_EPILOGUE_GELU_AUX},
                 {GPT2_MATMUL_INPUT, 0, CUBLASLT_EPILOGUE_DEFAULT},
                 {GPT2_MATMUL_INPUT_GELU, 0, CUBLASLT_EPILOGUE_DGELU},
                 {GPT2_MATMUL_INPUT_GELU, 1, CUBLASLT_EPILOGUE_DGELU_BGRAD},
                 {GPT2_MATMUL_WEIGHT, 0, CUBLASLT_EPILOGUE_DEFAULT}};
    gpt2_matmuls_t *set = make_set(0, 1, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gpt2_matmul_shape_t shape = FC;

        shape.kind = cases[i].kind;
        shape.bias = cases[i].bias;
        if (shape.kind == GPT2_MATMUL_WEIGHT) {
            matmul_check_weight(set, &shape, 1);
        } else if (shape.kind == GPT2_MATMUL_INPUT || shape.kind == GPT2_MATMUL_INPUT_GELU) {
            matmul_check_input(set, &shape, i % 2);
        } else {
            matmul_check_forward(set, &shape);
        }
        assert_int_equal(cublaslt_double_last_epilogue(), cases[i].epilogue);
        assert_int_equal(gpt2_matmul_is_fused(matmul_plan(set, &shape)),
                         cases[i].epilogue != CUBLASLT_EPILOGUE_DEFAULT);
    }
    gpt2_matmuls_destroy(set);
}

/* An idle chip's clock is low: a set's first product runs often before anything is timed. */
static void tuning_begins_with_the_clock_up(void **state)
{
    gpt2_matmuls_t *set = make_set(1, 1, NULL);
    gpt2_matmul_shape_t shape = FC;
    size_t runs[2];

    (void)state;
    for (int i = 0; i < 2; i++, shape.rows++) {
        const size_t products = cublaslt_double_products();

        (void)matmul_plan(set, &shape);
        runs[i] = cublaslt_double_products() - products;
    }
    assert_true(runs[0] > 200);
    assert_true(runs[1] > 0 && runs[1] < 200);
    gpt2_matmuls_destroy(set);
}

/* As most of its runs go, so that the quickest of those is found. */
static void a_weight_that_adds_is_timed_adding(void **state)
{
    gpt2_matmul_shape_t shape = {GPT2_MATMUL_WEIGHT, GPT2_CUDA_BF16, 8, 8, 8, 0, 1};
    const char *folder = scratch_path("adding");
    gpt2_matmuls_t *set = make_set(1, 1, folder);
    const gpt2_matmul_t *plan = matmul_plan(set, &shape);
    const size_t products = cublaslt_double_products();
    size_t searches;

    (void)state;
    assert_true(products > 0);
    assert_int_equal(cublaslt_double_additions(), products);
    shape.adds = 0;
    assert_ptr_not_equal(plan, matmul_plan(set, &shape));
    assert_true(cublaslt_double_products() > products);
    assert_int_equal(cublaslt_double_additions(), products);
    assert_int_equal(gpt2_matmuls_save(set, &error), 0);
    gpt2_matmuls_destroy(set);

    searches = cublaslt_double_searches(); /* the cache tells them apart */
    set = make_set(1, 1, folder);
    for (shape.adds = 0; shape.adds < 2; shape.adds++) {
        matmul_check_weight(set, &shape, 0); /* each may do either */
        matmul_check_weight(set, &shape, 1);
    }
    assert_int_equal(cublaslt_double_searches(), searches);
    shape.kind = GPT2_MATMUL_INPUT; /* which never adds */
    plan = matmul_plan(set, &shape);
    shape.adds = 1;
    assert_ptr_equal(plan, matmul_plan(set, &shape));
    gpt2_matmuls_destroy(set);
}

/* ---- Plans ---------------------------------------------------------------------------------- */

static void equal_shapes_share_a_plan(void **state)
{
    gpt2_matmuls_t *set = make_set(0, 1, NULL);
    const gpt2_matmul_t *plan = matmul_plan(set, &FC);
    gpt2_matmul_shape_t other = FC, input = {GPT2_MATMUL_INPUT, GPT2_CUDA_F32, 2, 8, 8, 0, 0};
    char text[GPT2_MATMUL_TEXT_MAX];

    (void)state;
    assert_ptr_equal(plan, matmul_plan(set, &FC));
    other.bias = 2; /* as true as 1 */
    assert_ptr_equal(plan, matmul_plan(set, &other));
    other.rows++;
    assert_ptr_not_equal(plan, matmul_plan(set, &other));
    plan = matmul_plan(set, &input);
    input.bias = 1; /* which a gradient of inputs does not have */
    assert_ptr_equal(plan, matmul_plan(set, &input));
    assert_string_equal(gpt2_matmul_describe(matmul_plan(set, &FC), text),
                        "forward gelu 7x16x24 bias bf16: kernel 1 of 5, fused");
    assert_string_equal(gpt2_matmul_describe(plan, text), "input 2x8x8 fp32: kernel 1 of 5");
    gpt2_matmuls_destroy(set);
}

static void an_empty_product_is_refused(void **state)
{
    gpt2_matmuls_t *set = make_set(0, 1, NULL);
    gpt2_matmul_shape_t shape = FC;
    const gpt2_matmul_t *plan;

    (void)state;
    shape.rows = 0;
    assert_int_equal(gpt2_matmuls_plan(set, &shape, &plan, &error), -1);
    assert_string_equal(error.text, "no product to plan: forward gelu 0x16x24 bias bf16");
    gpt2_matmuls_destroy(set);
}

static void a_run_of_another_kind_is_refused(void **state)
{
    gpt2_matmuls_t *set = make_set(0, 1, NULL);
    const gpt2_matmul_t *plan = matmul_plan(set, &FC);
    float x[4] = {0.0f};

    (void)state;
    assert_int_equal(gpt2_matmul_input(plan, NULL, x, x, x, x, NULL, 0), cudaErrorInvalidValue);
    assert_int_equal(gpt2_matmul_weight(plan, NULL, x, 0, x, x), cudaErrorInvalidValue);
    assert_int_equal(gpt2_matmul_forward(plan, NULL, x, NULL, x, x, x, NULL),
                     cudaErrorInvalidValue);
    assert_int_equal(gpt2_matmul_forward(plan, NULL, x, x, x, x, NULL, NULL),
                     cudaErrorInvalidValue);
    assert_int_equal(gpt2_matmul_forward(plan, NULL, x, x, x, x, x, x), cudaErrorInvalidValue);
    gpt2_matmuls_destroy(set);
}

static void a_run_allocates_nothing_and_waits_for_nothing(void **state)
{
    gpt2_matmuls_t *set = make_set(0, 1, NULL);
    const gpt2_matmul_shape_t shape = {GPT2_MATMUL_INPUT_GELU, GPT2_CUDA_F32, 64, 8, 8, 1, 0};
    const gpt2_matmul_t *plan = matmul_plan(set, &shape);
    matmul_tensor_t d_out = matmul_tensor(GPT2_CUDA_F32, 512, 1),
                    before = matmul_tensor(GPT2_CUDA_F32, 512, 2),
                    d_in = matmul_tensor(GPT2_CUDA_F32, 512, 5);
    matmul_tensor_t weight = matmul_tensor(GPT2_CUDA_F32, 64, 3),
                    dbias = matmul_tensor(GPT2_CUDA_F32, 8, 4);
    const size_t live = cuda_double_live();
    const size_t calls = cuda_double_calls();

    (void)state;
    fail_allocation(1);
    assert_int_equal(gpt2_matmul_input(plan, NULL, d_in.data, d_out.data, weight.data, before.data,
                                       dbias.data, 1),
                     cudaSuccess);
    fail_allocation(0);
    assert_int_equal(cuda_double_live(), live);
    assert_true(cuda_double_calls() - calls <= 4); /* a product, GELU's, two of sums; no waits */
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    matmul_tensor_drop(&d_out);
    matmul_tensor_drop(&before);
    matmul_tensor_drop(&d_in);
    matmul_tensor_drop(&weight);
    matmul_tensor_drop(&dbias);
    gpt2_matmuls_destroy(set);
}

/* ---- Tuning --------------------------------------------------------------------------------- */

static void tuning_takes_a_kernel_that_works(void **state)
{
    gpt2_matmuls_t *set = make_set(1, 1, NULL);
    char text[GPT2_MATMUL_TEXT_MAX];

    (void)state;
    cublaslt_double_break(~(1u << 3));
    matmul_check_forward(set, &FC);
    assert_int_equal(cublaslt_double_last_kernel(), 3);
    assert_non_null(strstr(gpt2_matmul_describe(matmul_plan(set, &FC), text), "kernel 4 of 5, "));
    assert_non_null(strstr(text, " us"));
    gpt2_matmuls_destroy(set);
}

static void tuning_says_when_no_kernel_works(void **state)
{
    gpt2_matmuls_t *set = make_set(1, 1, NULL);
    const gpt2_matmul_t *plan;

    (void)state;
    cublaslt_double_break(~0u);
    assert_int_equal(gpt2_matmuls_plan(set, &FC, &plan, &error), -1);
    assert_string_equal(error.text,
                        "none of cuBLASLt's 10 kernels for a product of 7 x 16 x 24 runs");
    cublaslt_double_refuse(CUBLASLT_EPILOGUE_DEFAULT);
    cublaslt_double_refuse(CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    assert_int_equal(gpt2_matmuls_plan(set, &FC, &plan, &error), -1);
    assert_string_equal(error.text, "cuBLASLt has no kernel for a product of 7 x 16 x 24: "
                                    "CUBLAS_STATUS_NOT_SUPPORTED");
    gpt2_matmuls_destroy(set);
}

static void without_memory_to_tune_the_first_kernel_is_taken(void **state)
{
    gpt2_matmuls_t *set = make_set(1, 1, NULL);

    (void)state;
    cuda_double_fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
    (void)matmul_plan(set, &FC);
    assert_non_null(strstr(notices, "no memory to time kernels of 7 x 16 x 24"));
    matmul_check_forward(set, &FC);
    assert_int_equal(cublaslt_double_last_kernel(), 0);
    gpt2_matmuls_destroy(set);
}

static void kernels_that_need_more_workspace_are_left_out(void **state)
{
    gpt2_matmul_options_t options = GPT2_MATMUL_OPTIONS_INIT;
    gpt2_matmuls_t *set;
    char text[GPT2_MATMUL_TEXT_MAX];

    (void)state;
    options.workspace_bytes = 0;
    options.tune = 0;
    assert_int_equal(gpt2_matmuls_create(&options, &set, &error), 0);
    assert_non_null(strstr(gpt2_matmul_describe(matmul_plan(set, &FC), text), "kernel 1 of 1"));
    matmul_check_forward(set, &FC);
    assert_int_equal(gpt2_matmuls_bytes(set), 0);
    gpt2_matmuls_destroy(set);
}

/* ---- The cache ------------------------------------------------------------------------------ */

/* The only file in the cache; fails unless there is exactly one. */
static const char *only_file(const char *folder)
{
    static char path[1024];
    DIR *all = opendir(folder);
    const struct dirent *entry;
    int count = 0;

    assert_non_null(all);
    while ((entry = readdir(all)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        count++;
    }
    (void)closedir(all);
    assert_int_equal(count, 1);
    return path;
}

static void fill_cache(const char *folder)
{
    gpt2_matmuls_t *set = make_set(1, 1, folder);

    cublaslt_double_break(~(1u << 2));
    (void)matmul_plan(set, &FC);
    cublaslt_double_break(0);
    assert_int_equal(gpt2_matmuls_save(set, &error), 0);
    assert_int_equal(gpt2_matmuls_save(set, &error), 0);
    gpt2_matmuls_destroy(set);
}

static void a_cache_spares_tuning(void **state)
{
    const char *folder = scratch_path("deep/cache");
    gpt2_matmul_shape_t other = FC;
    gpt2_matmuls_t *set;
    size_t searches;

    (void)state;
    fill_cache(folder);
    (void)only_file(folder);
    searches = cublaslt_double_searches();
    set = make_set(1, 1, folder);
    matmul_check_forward(set, &FC);
    assert_int_equal(cublaslt_double_last_kernel(), 2);
    assert_int_equal(cublaslt_double_searches(), searches);
    other.rows = 9;
    (void)matmul_plan(set, &other);
    assert_int_equal(cublaslt_double_searches(), searches + 2);
    assert_int_equal(gpt2_matmuls_save(set, &error), 0);
    gpt2_matmuls_destroy(set);

    set = make_set(1, 1, folder); /* both are known now */
    (void)matmul_plan(set, &other);
    (void)matmul_plan(set, &FC);
    assert_int_equal(cublaslt_double_searches(), searches + 2);
    gpt2_matmuls_destroy(set);

    set = make_set(1, 0, folder); /* what holds with fusion holds only with fusion */
    (void)matmul_plan(set, &FC);
    assert_int_equal(cublaslt_double_searches(), searches + 3);
    gpt2_matmuls_destroy(set);
    assert_string_equal(notices, "");
}

static size_t read_all(const char *path, char *text, size_t room)
{
    FILE *file = fopen(path, "rb");
    size_t bytes;

    assert_non_null(file);
    bytes = fread(text, 1, room, file);
    (void)fclose(file);
    return bytes;
}

static void write_all(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void a_damaged_cache_is_ignored_with_a_notice(void **state)
{
    const char *folder = scratch_path("cache");
    char path[1024], good[4096], bad[4096];
    gpt2_matmuls_t *set;
    size_t bytes;

    (void)state;
    fill_cache(folder);
    (void)snprintf(path, sizeof(path), "%s", only_file(folder));
    bytes = read_all(path, good, sizeof(good));
    assert_in_range(bytes, 100, sizeof(good) - 1);
    for (size_t i = 0; i <= bytes; i++) { /* each byte changed; then cut short anywhere */
        memcpy(bad, good, bytes);
        if (i < bytes) bad[i] ^= 1;
        notices[0] = '\0';
        if (i < bytes) {
            write_all(path, bad, bytes);
            set = make_set(1, 1, folder);
            if (strstr(notices, "is ignored") == NULL) fail_msg("byte %zu changed", i);
            gpt2_matmuls_destroy(set);
        }
        notices[0] = '\0';
        write_all(path, good, i);
        set = make_set(1, 1, folder);
        if ((strstr(notices, "is ignored") != NULL) != (i < bytes)) fail_msg("%zu bytes", i);
        gpt2_matmuls_destroy(set);
    }
    write_all(path, bad, 10);
    set = make_set(1, 1, folder);
    matmul_check_forward(set, &FC);
    assert_int_equal(gpt2_matmuls_save(set, &error), 0); /* and it is whole again */
    gpt2_matmuls_destroy(set);
    notices[0] = '\0';
    set = make_set(1, 1, folder);
    assert_string_equal(notices, "");
    gpt2_matmuls_destroy(set);
}

static void a_remembered_kernel_that_is_gone_is_replaced(void **state)
{
    const char *folder = scratch_path("cache");
    gpt2_matmuls_t *set;

    (void)state;
    fill_cache(folder);
    cublaslt_double_refuse(CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    set = make_set(1, 1, folder);
    matmul_check_forward(set, &FC);
    assert_int_equal(gpt2_matmul_is_fused(matmul_plan(set, &FC)), 0);
    gpt2_matmuls_destroy(set);
}

static void a_cache_that_cannot_be_written_says_why(void **state)
{
    const char *file = scratch_write("file", "x", 1);
    gpt2_matmuls_t *set = make_set(1, 1, file);

    (void)state;
    (void)matmul_plan(set, &FC);
    assert_int_equal(gpt2_matmuls_save(set, &error), -1);
    assert_non_null(strstr(error.text, "exists and is not a folder"));
    gpt2_matmuls_destroy(set);
}

/* ---- Failures ------------------------------------------------------------------------------- */

/* A set with a tuned plan, saved; 0 or -1, and nothing is left either way. */
static int whole_life(const char *folder)
{
    gpt2_matmul_options_t options = GPT2_MATMUL_OPTIONS_INIT;
    const gpt2_matmul_shape_t weight = {GPT2_MATMUL_WEIGHT, GPT2_CUDA_BF16, 8, 8, 8, 0, 0};
    const gpt2_matmul_t *plan;
    gpt2_matmuls_t *set;
    int status;

    options.workspace_bytes = 256;
    options.cache = folder;
    error.text[0] = '\0';
    if (gpt2_matmuls_create(&options, &set, &error) != 0) return -1;
    status = gpt2_matmuls_plan(set, &FC, &plan, &error);
    if (status == 0) status = gpt2_matmuls_plan(set, &weight, &plan, &error);
    if (status == 0) status = gpt2_matmuls_save(set, &error);
    gpt2_matmuls_destroy(set);
    return status;
}

static void every_failing_call_is_told_and_leaves_nothing(void **state)
{
    const size_t before = cuda_double_calls();
    int calls;

    (void)state;
    assert_int_equal(whole_life(scratch_path("first")), 0);
    calls = (int)(cuda_double_calls() - before);
    for (int kind = 0; kind < 3; kind++) {
        int failed = 0, is_over = 0;

        /* The later ones are the same few calls of tuning over and over. */
        for (int nth = 1; !is_over; nth += nth < 60 ? 1 : 17) {
            char name[64];
            int status;

            (void)snprintf(name, sizeof(name), "cache-%d-%d", kind, nth);
            if (kind == 0) cublaslt_double_fail(nth);
            if (kind == 1) cuda_double_fail(NULL, nth, cudaErrorMemoryAllocation);
            if (kind == 2) fail_allocation(nth);
            status = whole_life(scratch_path(name));
            is_over = kind == 2 ? !fail_allocation_reached() : nth > calls;
            cublaslt_double_fail(0);
            cuda_double_fail(NULL, 0, 0);
            (void)cudaGetLastError();
            if (status != 0 && error.text[0] == '\0') {
                fail_msg("kind %d, call %d: no text", kind, nth);
            }
            if (cublaslt_double_live() != 0 || cuda_double_live() != 0) {
                fail_msg("kind %d, call %d: left %zu and %zu", kind, nth, cublaslt_double_live(),
                         cuda_double_live());
            }
            failed += status != 0;
        }
        assert_true(failed > 2);
        assert_int_equal(whole_life(scratch_path("last")), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(products_equal_plain_loops, setup, teardown),
        cmocka_unit_test_setup_teardown(products_are_the_same_without_fusion, setup, teardown),
        cmocka_unit_test_setup_teardown(products_are_the_same_where_epilogues_are_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(fusion_is_used_where_there_is_one, setup, teardown),
        cmocka_unit_test_setup_teardown(equal_shapes_share_a_plan, setup, teardown),
        cmocka_unit_test_setup_teardown(an_empty_product_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_of_another_kind_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_run_allocates_nothing_and_waits_for_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(tuning_takes_a_kernel_that_works, setup, teardown),
        cmocka_unit_test_setup_teardown(tuning_says_when_no_kernel_works, setup, teardown),
        cmocka_unit_test_setup_teardown(without_memory_to_tune_the_first_kernel_is_taken, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(tuning_begins_with_the_clock_up, setup, teardown),
        cmocka_unit_test_setup_teardown(a_weight_that_adds_is_timed_adding, setup, teardown),
        cmocka_unit_test_setup_teardown(kernels_that_need_more_workspace_are_left_out, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_cache_spares_tuning, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_cache_is_ignored_with_a_notice, setup, teardown),
        cmocka_unit_test_setup_teardown(a_remembered_kernel_that_is_gone_is_replaced, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_cache_that_cannot_be_written_says_why, setup, teardown),
        cmocka_unit_test_setup_teardown(every_failing_call_is_told_and_leaves_nothing, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
