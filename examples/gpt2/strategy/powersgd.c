/*
 * powersgd.c - low-rank gradients: of each matrix M the ranks average P = M Q and Q = M' P, with P
 * made orthonormal in between, and take P Q' for the average of M. Each rank keeps the difference
 * for the next step (Vogels, Karimireddy and Jaggi 2019, arXiv:1905.13727).
 *
 * compress.c calls it on the main thread. P and Q are averaged by dp_allreduce(), so the bytes do
 * not grow with the number of ranks. Each step begins with the Q of the one before; the first Q is
 * drawn, the same on all ranks. A column of Q that has become zero is drawn again: it would stay
 * zero for ever.
 */
#include "examples/gpt2/strategy/compress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/random.h"

#define STREAM 0x706f776572 /* of random numbers, which nothing else draws from */
#define LARGEST 1e30        /* element of Q: with more, P Q' might overflow */

typedef struct powersgd_tensor {
    float *p;      /* [rank][rows], in dp_alloc() memory */
    float *q;      /* [rank][columns], likewise */
    float *last_q; /* [rank][columns] of the last step that was not skipped, in host memory */
    int is_fresh;  /* 1: q is last_q */
    int bad;       /* 1: an average of this step had an Inf or a NaN */
} powersgd_tensor_t;

typedef struct powersgd {
    powersgd_tensor_t *tensors; /* [layout->count] */
    float *memory;              /* all p and q */
    float *last;                /* all last_q */
    size_t last_count;          /* floats */
} powersgd_t;

/* ---- Sizes ---------------------------------------------------------------------------------- */

static size_t floats_of(const gpt2_compress_settings_t *settings, const gpt2_tensor_t *tensor)
{
    return (size_t)settings->rank * (size_t)(tensor->rows + tensor->columns);
}

/* Where P and Q together are not half as large, the matrix travels as it is. */
static int powersgd_takes(const gpt2_compress_settings_t *settings, const gpt2_tensor_t *tensor)
{
    return tensor->rows > 1 && tensor->columns > 1 &&
           2 * floats_of(settings, tensor) <= tensor->count;
}

static double powersgd_bytes(const gpt2_compress_settings_t *settings, const gpt2_tensor_t *tensor,
                             int ranks)
{
    return 2.0 * (ranks - 1) / ranks * (double)(floats_of(settings, tensor) * sizeof(float));
}

/* ---- Life ----------------------------------------------------------------------------------- */

static void draw_column(float *column, size_t count, uint64_t seed, size_t tensor, size_t k)
{
    for (size_t i = 0; i < count; i++)
        column[i] = (float)gpt2_random_normal(seed, STREAM + tensor, k * count + i);
}

/* Hands out the tensors' places; with memory NULL only counts. */
static void place_tensors(gpt2_compress_t *self, powersgd_t *powersgd, size_t *count,
                          size_t *last_count)
{
    const gpt2_layout_t *layout = self->replica->layout;
    const size_t rank = (size_t)self->settings.compress.rank;

    *count = *last_count = 0;
    for (size_t i = 0; i < layout->count; i++) {
        powersgd_tensor_t *tensor = &powersgd->tensors[i];
        const size_t p = rank * (size_t)layout->tensors[i].rows;
        const size_t q = rank * (size_t)layout->tensors[i].columns;

        if (!self->takes[i]) continue;
        if (powersgd->memory != NULL) {
            tensor->p = powersgd->memory + *count;
            tensor->q = tensor->p + p;
            tensor->last_q = powersgd->last + *last_count;
        }
        *count += p + q;
        *last_count += q;
    }
}

static int prepare_device(gpt2_compress_t *self, const gpt2_tensor_t *tensor, gpt2_error_t *error)
{
    const gpt2_low_rank_ops_t *device = self->replica->ops->low_rank;

    if (device == NULL) return 0;
    return device->prepare(self->replica, (size_t)tensor->rows, (size_t)tensor->columns,
                           (size_t)self->settings.compress.rank, error);
}

static int powersgd_create(gpt2_compress_t *self, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = self->replica->layout;
    const gpt2_compress_settings_t *settings = &self->settings.compress;
    powersgd_t *powersgd = calloc(1, sizeof(*powersgd));
    size_t count;

    if (powersgd == NULL) return gpt2_fail(error, "out of memory for --compress powersgd");
    self->state = powersgd;
    powersgd->tensors = calloc(layout->count, sizeof(*powersgd->tensors));
    if (powersgd->tensors == NULL) {
        return gpt2_fail(error, "out of memory for --compress powersgd");
    }
    place_tensors(self, powersgd, &count, &powersgd->last_count);
    powersgd->last = calloc(powersgd->last_count + 1, sizeof(float));
    powersgd->memory = gpt2_dp_alloc(&self->dp->base, (count + 1) * sizeof(float));
    if (powersgd->last == NULL || powersgd->memory == NULL) {
        return gpt2_fail(error, "out of memory: %zu MiB of factors of --compress powersgd",
                         count * sizeof(float) >> 20);
    }
    place_tensors(self, powersgd, &count, &powersgd->last_count);
    for (size_t i = 0; i < layout->count; i++) {
        const size_t columns = (size_t)layout->tensors[i].columns;

        for (size_t k = 0; self->takes[i] && k < (size_t)settings->rank; k++) {
            draw_column(powersgd->tensors[i].last_q + k * columns, columns, settings->seed, i, k);
        }
        if (self->takes[i] && prepare_device(self, &layout->tensors[i], error) != 0) return -1;
    }
    return 0;
}

static void powersgd_destroy(gpt2_compress_t *self)
{
    powersgd_t *powersgd = self->state;

    if (powersgd == NULL) return;
    if (powersgd->memory != NULL) gpt2_dp_free(&self->dp->base, powersgd->memory);
    free(powersgd->tensors);
    free(powersgd->last);
    free(powersgd);
}

static size_t powersgd_extra(gpt2_compress_t *self, gpt2_extra_t *list, size_t room)
{
    powersgd_t *powersgd = self->state;

    if (room == 0) return 0;
    list[0] = (gpt2_extra_t){.name = "powersgd_q",
                             .data = powersgd->last,
                             .bytes = powersgd->last_count * sizeof(float),
                             .is_optional = 1};
    return 1;
}

/* ---- Steps ---------------------------------------------------------------------------------- */

/* The factors are of the average over ranks, so sums over passes, and the loss scale, are divided
 * here. */
static gpt2_powersgd_matrix_t matrix_of(const gpt2_compress_t *self, size_t index)
{
    const gpt2_tensor_t *tensor = &self->replica->layout->tensors[index];
    const powersgd_tensor_t *factors = &((const powersgd_t *)self->state)->tensors[index];

    return (gpt2_powersgd_matrix_t){
        .gradient = self->replica->gradients + tensor->offset,
        .residual = self->residual.at + tensor->offset,
        .scale = (float)(gpt2_compress_unscale(self) / self->settings.accumulate),
        .rows = (size_t)tensor->rows,
        .columns = (size_t)tensor->columns,
        .rank = (size_t)self->settings.compress.rank,
        .p = factors->p,
        .q = factors->q};
}

/* q still is last_q, but in the first step and in the one behind one that was skipped. */
static int powersgd_begin(gpt2_compress_t *self, size_t index, gpt2_error_t *error)
{
    powersgd_tensor_t *factors = &((powersgd_t *)self->state)->tensors[index];
    const gpt2_low_rank_ops_t *device = self->replica->ops->low_rank;
    const gpt2_powersgd_matrix_t matrix = matrix_of(self, index);

    if (!factors->is_fresh &&
        gpt2_compress_copy(self, factors->q, factors->last_q,
                           matrix.rank * matrix.columns * sizeof(float), error) != 0) {
        return -1;
    }
    if (device == NULL) {
        self->kernels->powersgd_rows(&matrix);
    } else if (device->rows(self->replica, &matrix, error) != 0) {
        return -1;
    }
    return gpt2_compress_average(self, index, ".p", matrix.p, matrix.rank * matrix.rows, 1.0,
                                 error);
}

/* Makes P orthonormal, and Q of it. */
static int find_columns(gpt2_compress_t *self, const gpt2_powersgd_matrix_t *matrix,
                        gpt2_error_t *error)
{
    const gpt2_low_rank_ops_t *device = self->replica->ops->low_rank;

    if (device != NULL) {
        return device->orthonormal(self->replica, matrix->p, matrix->rows, matrix->rank, error) == 0
                   ? device->columns(self->replica, matrix, error)
                   : -1;
    }
    self->kernels->powersgd_orthonormal(matrix->p, matrix->rows, matrix->rank);
    self->kernels->powersgd_columns(matrix);
    return 0;
}

/* P is the same on all ranks, and so is what is made of it. */
static int powersgd_middle(gpt2_compress_t *self, size_t index, gpt2_error_t *error)
{
    powersgd_tensor_t *factors = &((powersgd_t *)self->state)->tensors[index];
    const gpt2_powersgd_matrix_t matrix = matrix_of(self, index);
    dp_result_t result = DP_RESULT_INIT;

    if (gpt2_compress_wait(self, index, &result, error) != 0) return -1;
    factors->bad = result.nonfinite != 0;
    factors->is_fresh = 0;
    if (find_columns(self, &matrix, error) != 0) return -1;
    return gpt2_compress_average(self, index, ".q", matrix.q, matrix.rank * matrix.columns, 1.0,
                                 error);
}

static int powersgd_end(gpt2_compress_t *self, size_t index, int *bad, gpt2_error_t *error)
{
    const powersgd_tensor_t *factors = &((const powersgd_t *)self->state)->tensors[index];
    dp_result_t result = DP_RESULT_INIT;

    if (gpt2_compress_wait(self, index, &result, error) != 0) return -1;
    *bad = factors->bad || result.nonfinite != 0 || result.absmax > LARGEST;
    return 0;
}

static int powersgd_finish(gpt2_compress_t *self, size_t index, double *squares,
                           gpt2_error_t *error)
{
    powersgd_tensor_t *factors = &((powersgd_t *)self->state)->tensors[index];
    const gpt2_low_rank_ops_t *device = self->replica->ops->low_rank;
    const gpt2_powersgd_matrix_t matrix = matrix_of(self, index);

    if (device == NULL) {
        *squares = self->kernels->powersgd_finish(&matrix);
    } else if (device->finish(self->replica, &matrix, squares, error) != 0) {
        return -1;
    }
    if (gpt2_compress_copy(self, factors->last_q, matrix.q,
                           matrix.rank * matrix.columns * sizeof(float), error) != 0) {
        return -1;
    }
    factors->is_fresh = 1;
    for (size_t k = 0; k < matrix.rank; k++) {
        float *column = factors->last_q + k * matrix.columns;
        size_t i = 0;

        while (i < matrix.columns && column[i] == 0.0f)
            i++;
        if (i < matrix.columns) continue;
        draw_column(column, matrix.columns, self->settings.compress.seed, index, k);
        factors->is_fresh = 0;
    }
    return 0;
}

const gpt2_compress_method_t gpt2_compress_powersgd = {
    .name = "powersgd",
    .takes = powersgd_takes,
    .bytes = powersgd_bytes,
    .create = powersgd_create,
    .destroy = powersgd_destroy,
    .begin = powersgd_begin,
    .middle = powersgd_middle,
    .end = powersgd_end,
    .finish = powersgd_finish,
    .extra = powersgd_extra,
};
