/*
 * test_cuda_stage.c - tensors in plain host memory on a context that works on a GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "coordinator/api/operation/stage.h"
#include "coordinator/api/world/group.h"
#include "coordinator/api/context/context.h"
#include "coordinator/api/operation/submit.h"
#include "runtime/device/cuda.h"
#include "tests/gpu/double/cuda_runtime.h"
#include "tests/unit/cases.h"

/* As much of a context as a submission looks at before it has a request. */
typedef struct fixture {
    dp_context_t *context;
    dp_options_t options;
} fixture_t;

static void begin(fixture_t *f)
{
    const dp_device_options_t options = {.local_rank = 0, .local_size = 1};
    dp_error_t error = {DP_OK, ""};

    cuda_double_reset();
    cuda_double_set_devices(2);
    f->context = calloc(1, sizeof(*f->context));
    f->context->size = 1;
    f->context->texts.last = "";
    pthread_mutex_init(&f->context->lock, NULL);
    dp_group_init_world(f->context);
    f->options = (dp_options_t)DP_OPTIONS_INIT;
    assert_int_equal(dp_device_cuda_create(&options, NULL, &f->context->device, &error), DP_OK);
}

static void end(fixture_t *f)
{
    dp_stagings_free(f->context);
    dp_device_destroy(f->context->device);
    for (size_t i = 0; i < f->context->texts.count; i++)
        free(f->context->texts.kept[i]);
    pthread_mutex_destroy(&f->context->lock);
    free(f->context);
    assert_int_equal(cuda_double_live(), 0);
}

static dp_submit_t sum_of(fixture_t *f, const dp_tensor_t *tensors, size_t count)
{
    return (dp_submit_t){.collective = DP_COLLECTIVE_ALLREDUCE,
                         .name = "loss",
                         .tensors = tensors,
                         .count = count,
                         .options = &f->options};
}

static void host_memory_goes_through_pinned_memory_and_back(void **unused)
{
    float in[3] = {1, 2, 3}, out[3] = {7, 8, 9};
    const dp_tensor_t tensor = {.in = in, .out = out, .count = 3, .dtype = DP_F32};
    fixture_t f;

    (void)unused;
    begin(&f);
    for (int round = 0; round < 3; round++) { /* the last fails: nothing comes back */
        dp_submit_t what = sum_of(&f, &tensor, 1);
        dp_staging_t *stage = NULL;
        dp_tensor_t staged;

        assert_int_equal(dp_staging_begin(&f.context->world, &what, &staged, &stage), DP_OK);
        assert_non_null(stage);
        assert_ptr_equal(what.tensors, &staged);
        assert_int_equal(f.context->device->ops->kind(f.context->device, staged.in),
                         DP_MEMORY_DEVICE);
        assert_int_equal(f.context->device->ops->kind(f.context->device, staged.out),
                         DP_MEMORY_DEVICE);
        assert_memory_equal(staged.in, in, sizeof(in));
        assert_memory_equal(staged.out, out, sizeof(out));
        ((float *)staged.out)[1] = (float)round;
        dp_staging_end(f.context, stage, round < 2);
        assert_true(out[0] == 7 && out[1] == (round < 2 ? (float)round : 1.0f) && out[2] == 9);
    }
    end(&f);
}

static void memory_of_the_device_is_left_alone(void **unused)
{
    dp_tensor_t tensor = {.count = 2, .dtype = DP_F32}, staged;
    dp_staging_t *stage = NULL;
    dp_submit_t what;
    void *memory;
    fixture_t f;

    (void)unused;
    begin(&f);
    assert_int_equal(f.context->device->ops->alloc(f.context->device, 8, &memory), DP_OK);
    tensor.in = tensor.out = memory;
    what = sum_of(&f, &tensor, 1);
    assert_int_equal(dp_staging_begin(&f.context->world, &what, &staged, &stage), DP_OK);
    assert_null(stage);
    assert_ptr_equal(what.tensors, &tensor);
    f.context->device->ops->free(f.context->device, memory);
    end(&f);
}

static void data_that_cannot_be_staged_is_refused_with_a_text(void **unused)
{
    float host[4] = {0};
    dp_tensor_t tensors[2] = {{.in = host, .out = host, .count = 2, .dtype = DP_F32},
                              {.in = host + 2, .out = host + 2, .count = 2, .dtype = DP_F32}};
    dp_staging_t *stage = NULL;
    dp_tensor_t staged;
    dp_submit_t what;
    void *there;
    fixture_t f;

    (void)unused;
    begin(&f);
    what = sum_of(&f, tensors, 2);
    assert_int_equal(dp_staging_begin(&f.context->world, &what, &staged, &stage),
                     DP_ERR_UNSUPPORTED);
    assert_non_null(strstr(f.context->texts.last, "loss"));
    assert_non_null(strstr(f.context->texts.last, "plain host memory"));
    f.options.stream = &f;
    what = sum_of(&f, tensors, 1);
    assert_int_equal(dp_staging_begin(&f.context->world, &what, &staged, &stage),
                     DP_ERR_UNSUPPORTED);
    f.options.stream = NULL;
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaMalloc(&there, 16), cudaSuccess);
    tensors[0].in = tensors[0].out = there;
    what = sum_of(&f, tensors, 1);
    assert_int_equal(dp_staging_begin(&f.context->world, &what, &staged, &stage),
                     DP_ERR_UNSUPPORTED);
    assert_non_null(strstr(f.context->texts.last, "another GPU"));
    assert_null(stage);
    cudaFree(there);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory_goes_through_pinned_memory_and_back),
        cmocka_unit_test(memory_of_the_device_is_left_alone),
        cmocka_unit_test(data_that_cannot_be_staged_is_refused_with_a_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
