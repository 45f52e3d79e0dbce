/*
 * matmul_checks.h - products of plans against plain fp64 loops; failures are cmocka's.
 */
#ifndef DP_TESTS_GPT2_MATMUL_CHECKS_H
#define DP_TESTS_GPT2_MATMUL_CHECKS_H

#include "examples/gpt2/cuda/matmul.h"

typedef struct matmul_tensor {
    gpt2_cuda_type_t type;
    size_t count;
    void *data;   /* device */
    double *host; /* what it began with */
} matmul_tensor_t;

/* Numbers in [-1, 1] as the type has them. */
matmul_tensor_t matmul_tensor(gpt2_cuda_type_t type, size_t count, unsigned seed);
void matmul_tensor_drop(matmul_tensor_t *tensor);

/* The plan, which must exist or be made. */
const gpt2_matmul_t *matmul_plan(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape);

/* Shapes of the kinds named. */
void matmul_check_forward(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape);
void matmul_check_input(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape, int accumulate);
void matmul_check_weight(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape, int accumulate);

/* Every kind in both types with and without a bias, at small sizes, odd ones among them. */
void matmul_check_all(gpt2_matmuls_t *set);

#endif
