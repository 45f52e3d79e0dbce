/*
 * compress_kernels.c - see compress_kernels.h. Compiled without contraction, so that a value has
 * the same bits each time it is computed, and a result the same bits for every instruction set.
 *
 * Called on the main thread, inside the backward pass when a tensor is complete and at its end. The
 * loops go over parts that stay in the first cache, so that a tensor comes from memory once.
 */
#include "examples/gpt2/cpu/compress_kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "examples/gpt2/cpu/isa.h"

#define PART GPT2_TOPK_PART /* elements of scratch: a divisor of GPT2_TOPK_BLOCK */
#define STRIDE 32           /* elements that are looked at together: most have none to be chosen */
#define LANES 32            /* of sums that have one order; see lamb.c */
#define DEPENDENT 1e-6      /* of a column's length: what is left of one that depends on others */

/* ---- Sums in one order ---------------------------------------------------------------------- */

static double lanes_squares(const float *x, size_t count)
{
    double lanes[LANES] = {0.0};

    for (size_t at = 0; at < count; at += LANES) {
        const size_t some = count - at < LANES ? count - at : LANES;

        for (size_t i = 0; i < some; i++)
            lanes[i] += (double)x[at + i] * (double)x[at + i];
    }
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

static double lanes_dot(const float *x, const float *y, size_t count)
{
    double lanes[LANES] = {0.0};

    for (size_t at = 0; at < count; at += LANES) {
        const size_t some = count - at < LANES ? count - at : LANES;

        for (size_t i = 0; i < some; i++)
            lanes[i] += (double)x[at + i] * (double)y[at + i];
    }
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

static double scale_squares(float *x, size_t count, float by)
{
    double total = 0.0;

    for (size_t at = 0; at < count; at += PART) {
        const size_t some = count - at < PART ? count - at : PART;

        for (size_t i = 0; i < some; i++)
            x[at + i] *= by;
        total += lanes_squares(x + at, some);
    }
    return total;
}

/* ---- Threshold dropping --------------------------------------------------------------------- */

/* out [some] = the values from `at` on. The one place where they are computed. */
static void make_values(const gpt2_topk_values_t *values, size_t at, size_t some,
                        float *restrict out)
{
    const float *restrict gradient = values->gradient + at;
    const float *restrict residual = values->residual + at;
    const float by = values->by;

    if (values->momentum == NULL) {
        for (size_t i = 0; i < some; i++)
            out[i] = residual[i] + by * gradient[i];
    } else {
        const float *restrict momentum = values->momentum + at;
        const float factor = values->factor;

        for (size_t i = 0; i < some; i++)
            out[i] = residual[i] + (factor * momentum[i] + by * gradient[i]);
    }
}

/* Appends those of the part that are chosen; offset: of the part's first element in its block. */
static size_t choose(const float *part, size_t some, size_t offset, float above, size_t *ties,
                     const gpt2_topk_list_t *list, size_t chosen)
{
    for (size_t from = 0; from < some; from += STRIDE) {
        const size_t end = some - from < STRIDE ? some : from + STRIDE;
        int hits = 0;

        for (size_t i = from; i < end; i++)
            hits |= fabsf(part[i]) >= above;
        if (!hits) continue;
        for (size_t i = from; i < end; i++) {
            const float size = fabsf(part[i]);

            if (size > above || (size == above && *ties > 0)) {
                if (size == above) (*ties)--;
                if (chosen < list->room) {
                    list->values[chosen] = part[i];
                    list->offsets[chosen] = (uint16_t)(offset + i);
                }
                chosen++;
            }
        }
    }
    return chosen;
}

static size_t topk_select(const gpt2_topk_values_t *values, float above, size_t ties,
                          const gpt2_topk_list_t *list, int *nonfinite)
{
    float part[PART];
    size_t chosen = 0;
    int bad = 0;

    for (size_t at = 0; at < values->count; at += PART) {
        const size_t some = values->count - at < PART ? values->count - at : PART;
        const size_t before = chosen;

        make_values(values, at, some, part);
        for (size_t i = 0; i < some; i++)
            bad |= !(fabsf(part[i]) <= FLT_MAX);
        chosen = choose(part, some, at % GPT2_TOPK_BLOCK, above, &ties, list, chosen);
        if (at % GPT2_TOPK_BLOCK == 0) list->block_counts[at / GPT2_TOPK_BLOCK] = 0;
        list->block_counts[at / GPT2_TOPK_BLOCK] += (uint32_t)(chosen - before);
    }
    *nonfinite = bad;
    return chosen;
}

static void topk_histogram(const gpt2_topk_values_t *values, int32_t upper, uint32_t *bins)
{
    float part[PART];

    for (size_t at = 0; at < values->count; at += PART) {
        const size_t some = values->count - at < PART ? values->count - at : PART;

        make_values(values, at, some, part);
        for (size_t i = 0; i < some; i++) {
            uint32_t bits;

            memcpy(&bits, &part[i], sizeof(bits));
            bits &= 0x7fffffffu;
            if (upper < 0) {
                bins[bits >> 15]++;
            } else if (bits >> 15 == (uint32_t)upper) {
                bins[bits & 0x7fffu]++;
            }
        }
    }
}

static void topk_keep(const gpt2_topk_values_t *values, const gpt2_topk_list_t *list)
{
    float part[PART];
    size_t next = 0;

    for (size_t at = 0; at < values->count; at += PART) {
        const size_t some = values->count - at < PART ? values->count - at : PART;

        make_values(values, at, some, part);
        memcpy(values->residual + at, part, some * sizeof(float));
        if (values->momentum == NULL) continue;
        for (size_t i = at; i < at + some; i++) {
            values->momentum[i] =
                values->factor * values->momentum[i] + values->by * values->gradient[i];
        }
    }
    for (size_t block = 0; block * GPT2_TOPK_BLOCK < values->count; block++) {
        const size_t first = block * GPT2_TOPK_BLOCK;

        for (uint32_t i = 0; i < list->block_counts[block]; i++, next++) {
            values->residual[first + list->offsets[next]] = 0.0f;
            if (values->momentum != NULL) values->momentum[first + list->offsets[next]] = 0.0f;
        }
    }
}

static void topk_add(float *out, size_t count, const gpt2_topk_list_t *list)
{
    size_t next = 0;

    for (size_t block = 0; block * GPT2_TOPK_BLOCK < count; block++) {
        float *to = out + block * GPT2_TOPK_BLOCK;

        for (uint32_t i = 0; i < list->block_counts[block]; i++, next++)
            to[list->offsets[next]] += list->values[next];
    }
}

/* ---- PowerSGD ------------------------------------------------------------------------------- */

/* out [some] = the matrix from element `at` on. */
static void make_part(const gpt2_powersgd_matrix_t *matrix, size_t at, size_t some,
                      float *restrict out)
{
    const float *restrict gradient = matrix->gradient + at;
    const float *restrict residual = matrix->residual + at;
    const float scale = matrix->scale;

    for (size_t i = 0; i < some; i++)
        out[i] = residual[i] + scale * gradient[i];
}

static float dot_part(const float *restrict a, const float *restrict b, size_t count)
{
    float total = 0.0f;

#pragma omp simd reduction(+ : total)
    for (size_t i = 0; i < count; i++)
        total += a[i] * b[i];
    return total;
}

static void powersgd_rows(const gpt2_powersgd_matrix_t *matrix)
{
    const size_t columns = matrix->columns;
    float part[PART];

    for (size_t row = 0; row < matrix->rows; row++) {
        for (size_t at = 0; at < columns; at += PART) {
            const size_t some = columns - at < PART ? columns - at : PART;

            make_part(matrix, row * columns + at, some, part);
            for (size_t k = 0; k < matrix->rank; k++) {
                const float sum = dot_part(part, matrix->q + k * columns + at, some);
                float *to = matrix->p + k * matrix->rows + row;

                *to = at == 0 ? sum : *to + sum;
            }
        }
    }
}

static void powersgd_columns(const gpt2_powersgd_matrix_t *matrix)
{
    const size_t columns = matrix->columns;
    float part[PART];

    memset(matrix->q, 0, matrix->rank * columns * sizeof(float));
    for (size_t row = 0; row < matrix->rows; row++) {
        for (size_t at = 0; at < columns; at += PART) {
            const size_t some = columns - at < PART ? columns - at : PART;

            make_part(matrix, row * columns + at, some, part);
            for (size_t k = 0; k < matrix->rank; k++) {
                const float by = matrix->p[k * matrix->rows + row];
                float *restrict to = matrix->q + k * columns + at;

                for (size_t i = 0; i < some; i++)
                    to[i] += by * part[i];
            }
        }
    }
}

static void powersgd_orthonormal(float *x, size_t count, size_t rank)
{
    for (size_t k = 0; k < rank; k++) {
        float *column = x + k * count;
        const double before = lanes_squares(column, count);
        double left;
        float by;

        for (size_t j = 0; j < k; j++) {
            const float *other = x + j * count;
            const float less = (float)lanes_dot(column, other, count);

            for (size_t i = 0; i < count; i++)
                column[i] -= less * other[i];
        }
        left = lanes_squares(column, count);
        by = left > DEPENDENT * DEPENDENT * before ? (float)(1.0 / sqrt(left)) : 0.0f;
        for (size_t i = 0; i < count; i++)
            column[i] *= by;
    }
}

static double powersgd_finish(const gpt2_powersgd_matrix_t *matrix)
{
    const size_t columns = matrix->columns;
    double total = 0.0;
    float part[PART];
    float product[PART];

    for (size_t row = 0; row < matrix->rows; row++) {
        for (size_t at = 0; at < columns; at += PART) {
            const size_t some = columns - at < PART ? columns - at : PART;
            const size_t place = row * columns + at;

            make_part(matrix, place, some, part);
            memset(product, 0, some * sizeof(float));
            for (size_t k = 0; k < matrix->rank; k++) {
                const float by = matrix->p[k * matrix->rows + row];
                const float *restrict from = matrix->q + k * columns + at;

                for (size_t i = 0; i < some; i++)
                    product[i] += by * from[i];
            }
            for (size_t i = 0; i < some; i++)
                matrix->residual[place + i] = part[i] - product[i];
            memcpy(matrix->gradient + place, product, some * sizeof(float));
            total += lanes_squares(product, some);
        }
    }
    return total;
}

const gpt2_compress_kernels_t GPT2_ISA_NAME(gpt2_compress_kernels) = {
    .topk_select = topk_select,
    .topk_histogram = topk_histogram,
    .topk_keep = topk_keep,
    .topk_add = topk_add,
    .scale_squares = scale_squares,
    .powersgd_rows = powersgd_rows,
    .powersgd_columns = powersgd_columns,
    .powersgd_orthonormal = powersgd_orthonormal,
    .powersgd_finish = powersgd_finish,
};
