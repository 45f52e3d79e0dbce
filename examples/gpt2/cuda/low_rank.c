/*
 * low_rank.c - low-rank gradients of a replica on a GPU: its scratch memory, and how the kernels of
 * powersgd.cu are queued.
 *
 * Called on the main thread by the trainer's train/powersgd.c, through the table. It must not know
 * of ranks.
 */
#include "examples/gpt2/cuda/replica.h"

#include "examples/gpt2/cuda/kernels.h"

static int prepare_low_rank(gpt2_replica_t *base, size_t rows, size_t columns, size_t rank,
                            gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const size_t bytes = gpt2_cuda_powersgd_scratch_bytes(rows, columns, rank);

    if (bytes <= self->low_rank_bytes) return 0;
    if (self->low_rank_scratch != NULL) (void)cudaFree(self->low_rank_scratch);
    self->low_rank_scratch = NULL;
    self->low_rank_bytes = 0;
    if (gpt2_cuda_check((int)cudaMalloc(&self->low_rank_scratch, bytes),
                        "scratch memory of --compress powersgd", error) != 0) {
        return -1;
    }
    self->low_rank_bytes = bytes;
    return 0;
}

static int multiply_rows(gpt2_replica_t *base, const gpt2_powersgd_matrix_t *matrix,
                         gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;

    return gpt2_cuda_check(gpt2_cuda_powersgd_rows(self->stream, matrix), "a product with Q",
                           error);
}

static int multiply_columns(gpt2_replica_t *base, const gpt2_powersgd_matrix_t *matrix,
                            gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;

    return gpt2_cuda_check(gpt2_cuda_powersgd_columns(self->stream, matrix, self->low_rank_scratch),
                           "a product with P", error);
}

static int make_orthonormal(gpt2_replica_t *base, float *x, size_t count, size_t rank,
                            gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;

    return gpt2_cuda_check(gpt2_cuda_powersgd_orthonormal(self->stream, x, count, rank),
                           "orthonormal columns", error);
}

static int finish_low_rank(gpt2_replica_t *base, const gpt2_powersgd_matrix_t *matrix,
                           double *squares, gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;

    if (gpt2_cuda_check(gpt2_cuda_powersgd_finish(self->stream, matrix, &self->words->squares,
                                                  self->low_rank_scratch),
                        "the product of P and Q", error) != 0) {
        return -1;
    }
    return gpt2_cuda_copy(base, squares, &self->words->squares, sizeof(*squares), error);
}

const gpt2_low_rank_ops_t gpt2_cuda_low_rank = {
    .prepare = prepare_low_rank,
    .rows = multiply_rows,
    .columns = multiply_columns,
    .orthonormal = make_orthonormal,
    .finish = finish_low_rank,
};
