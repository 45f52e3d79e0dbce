/*
 * test_gpt2_cuda_halves.c - level 2 of mixed precision of a replica on a GPU, on the doubles: its
 * gradients are numbers of 16 bits, passes read weights that are, and the masters are not.
 */
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/halves.h"
#include "examples/gpt2/cuda/plugin.h"
#include "examples/gpt2/cuda/replica.h"
#include "tests/gpu/double/cuda_runtime.h"
#include "tests/unit/cases.h"

static const gpt2_shape_t SHAPE = {50, 56, 12, 2, 2, 32};
#define BATCH 3
#define LENGTH 8

static gpt2_replica_t *make_replica(const char *precision, int level)
{
    const gpt2_replica_options_t options = {
        .model = {.shape = SHAPE, .batch = BATCH, .length = LENGTH, .threads = 1, .training = 1},
        .optimizer = {1e-3, 1.0, 0, 100, 0.9, 0.95, 1e-8, 0.1},
        .precision = precision,
        .level = level,
        .recompute = "none"};
    gpt2_error_t error = {""};
    gpt2_replica_t *replica = NULL;
    gpt2_state_t state;

    if (gpt2_replica_cuda_create(&options, &replica, &error) != 0) fail_msg("%s", error.text);
    assert_int_equal(replica->ops->borrow(replica, 0, &state, &error), 0);
    gpt2_model_init_weights(state.model, 3);
    assert_int_equal(replica->ops->give_back(replica, 1, &error), 0);
    return replica;
}

static void run_step(gpt2_replica_t *replica)
{
    int32_t tokens[2 * BATCH * LENGTH];
    const gpt2_batch_t batch = {tokens, tokens + BATCH * LENGTH, BATCH, LENGTH};
    gpt2_error_t error = {""};
    gpt2_outcome_t outcome;
    gpt2_sync_t sync;
    int code;

    for (int i = 0; i < 2 * BATCH * LENGTH; i++)
        tokens[i] = i * 7 % SHAPE.vocab;
    code = replica->ops->train(replica, &batch, 0.03f, 0, NULL, &error);
    if (code == 0) code = replica->ops->norm(replica, 1.0, 1.0, &sync, &error);
    if (code == 0) code = replica->ops->update(replica, 1e-3, &sync, &error);
    if (code == 0) code = replica->ops->settle(replica, &outcome, &error);
    if (code != 0) fail_msg("%s", error.text);
}

/* x as the type has it. Device memory of the double is the host's. */
static float as_half(float x, int is_fp16)
{
    float value;

    gpt2_kernels_list()[0]->round_fp16(&value, &x, 1);
    return is_fp16 ? value : gpt2_from_bf16(gpt2_to_bf16(x));
}

/* How many of a tensor's numbers are not the type's. */
static size_t count_others(const float *x, size_t count, int is_fp16)
{
    size_t others = 0;

    for (size_t i = 0; i < count; i++)
        others += as_half(x[i], is_fp16) != x[i];
    return others;
}

static void check_level(const char *precision, int level)
{
    const int is_fp16 = strcmp(precision, "fp16") == 0;
    gpt2_replica_t *base = make_replica(precision, level);
    gpt2_cuda_replica_t *replica = (gpt2_cuda_replica_t *)base;
    size_t gradients = 0;
    size_t masters = 0;

    run_step(base);
    for (size_t i = 0; i < base->layout->count; i++) {
        const gpt2_tensor_t *tensor = &base->layout->tensors[i];
        const float *master = base->weights + tensor->offset;

        gradients += count_others(base->gradients + tensor->offset, tensor->count, is_fp16);
        masters += count_others(master, tensor->count, is_fp16);
        if (tensor->decay) continue;
        for (size_t j = 0; j < tensor->count; j++) { /* what norms and biases read */
            const float seen = gpt2_cuda_full_weight(replica, i)[j];

            assert_true(seen == (level == 2 ? as_half(master[j], is_fp16) : master[j]));
        }
    }
    assert_true(masters > 0);
    assert_true((gradients == 0) == (level == 2));
    base->ops->destroy(base);
    assert_int_equal(cuda_double_live(), 0);
}

static void level_2_rounds_weights_and_gradients(void **state)
{
    (void)state;
    check_level("bf16", 2);
    check_level("fp16", 2);
}

static void level_1_rounds_neither(void **state)
{
    (void)state;
    check_level("bf16", 1);
}

static int setup(void **state)
{
    (void)state;
    cuda_double_reset();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(level_2_rounds_weights_and_gradients, setup),
        cmocka_unit_test_setup(level_1_rounds_neither, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
