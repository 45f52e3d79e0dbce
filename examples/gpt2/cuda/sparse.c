/*
 * sparse.c - threshold dropping of a replica on a GPU: its scratch memory, and how the kernels of
 * topk.cu are queued.
 *
 * Called on the main thread by the trainer's train/topk.c, through the table. It must not know of
 * ranks beyond the number of their messages.
 */
#include "examples/gpt2/cuda/replica.h"

#include "examples/gpt2/cuda/kernels.h"

void gpt2_cuda_sparse_free(gpt2_cuda_replica_t *self)
{
    if (self->sparse_scratch != NULL) (void)cudaFree(self->sparse_scratch);
    if (self->sparse_squares != NULL) (void)cudaFreeHost(self->sparse_squares);
    self->sparse_scratch = NULL;
    self->sparse_squares = NULL;
    self->sparse_count = 0;
}

static int prepare_sparse(gpt2_replica_t *base, size_t count, gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const size_t parts = gpt2_cuda_topk_parts(count);

    if (count <= self->sparse_count) return 0;
    gpt2_cuda_sparse_free(self);
    if (gpt2_cuda_check((int)cudaMalloc(&self->sparse_scratch, gpt2_cuda_topk_scratch_bytes(count)),
                        "scratch memory of --compress topk", error) != 0 ||
        gpt2_cuda_check((int)cudaMallocHost((void **)&self->sparse_squares,
                                            parts * sizeof(*self->sparse_squares)),
                        "sums of --compress topk", error) != 0) {
        return -1;
    }
    self->sparse_count = count;
    return 0;
}

static int choose_sparse(gpt2_replica_t *base, const gpt2_topk_values_t *values,
                         const gpt2_topk_quota_t *quota, const gpt2_topk_list_t *list,
                         uint32_t *head, gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;

    return gpt2_cuda_check(
        gpt2_cuda_topk_choose(self->stream, values, quota, list, head, self->sparse_scratch),
        "the choice of what is sent", error);
}

static int is_bad_sparse(gpt2_replica_t *base, const uint32_t *heads, size_t stride, int ranks,
                         int *bad, gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    uint32_t found;

    if (gpt2_cuda_check(
            gpt2_cuda_topk_bad(self->stream, self->sparse_scratch, heads, stride, ranks),
            "the heads of messages", error) != 0 ||
        gpt2_cuda_copy(base, &found, self->sparse_scratch, sizeof(found), error) != 0) {
        return -1;
    }
    *bad = found != 0;
    return 0;
}

/* The host adds the parts' squares up one after the other, as it does for a tensor of its own. */
static int finish_sparse(gpt2_replica_t *base, const gpt2_topk_values_t *values, float *gradient,
                         const gpt2_topk_messages_t *messages, float by, double *squares,
                         gpt2_error_t *error)
{
    gpt2_cuda_replica_t *self = (gpt2_cuda_replica_t *)base;
    const size_t parts = gpt2_cuda_topk_parts(values->count);

    *squares = 0.0;
    if (gpt2_cuda_check(gpt2_cuda_topk_finish(self->stream, values, gradient, messages, by,
                                              self->sparse_scratch),
                        "the sum of messages", error) != 0 ||
        gpt2_cuda_copy(base, self->sparse_squares, self->sparse_scratch,
                       parts * sizeof(*self->sparse_squares), error) != 0) {
        return -1;
    }
    for (size_t i = 0; i < parts; i++)
        *squares += self->sparse_squares[i];
    return 0;
}

const gpt2_sparse_ops_t gpt2_cuda_sparse = {
    .prepare = prepare_sparse,
    .choose = choose_sparse,
    .is_bad = is_bad_sparse,
    .finish = finish_sparse,
};
