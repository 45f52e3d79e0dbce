/*
 * vector.c - element-wise work and reductions, written so that the compiler vectorises each loop.
 *
 * Plain C with `omp simd`; compiled once per instruction set. It must not know about threads or
 * the model: callers hand in the rows that are theirs.
 */
#include "examples/gpt2/cpu/isa.h"

#include <math.h>
#include <string.h>

#define NORM_EPSILON 1e-5f

/* exp(x): x = n ln2 + r with |r| <= ln2/2, e^r by its series to r^6, 2^n through the exponent.
 * Saturates at e^-60 and e^60: products of what comes out stay normal numbers, and processors are
 * slow with others. A NaN stays one. */
static inline float fast_exp(float x)
{
    const float round_magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float clamped = x < -60.0f ? -60.0f : x;
    float shifted;
    float n;
    float r;
    float p;
    union {
        float value;
        uint32_t bits;
    } scale;

    clamped = clamped > 60.0f ? 60.0f : clamped;
    shifted = clamped * 1.44269504f + round_magic;
    n = shifted - round_magic;
    r = clamped - n * 0.693359375f; /* ln2 in two parts; the first has few bits, n * it is exact */
    r = r + n * 2.12194440e-4f;
    p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    scale.value = shifted;
    scale.bits = (scale.bits << 23) + 0x3f800000u;
    return p * scale.value;
}

static void add_norm(float *restrict out, float *restrict sum, float *restrict mean,
                     float *restrict rstd, const float *a, const float *restrict b,
                     const float *restrict bias, const float *restrict weight,
                     const float *restrict shift, size_t rows, size_t width)
{
    for (size_t row = 0; row < rows; row++) {
        const float *x = a + row * width;
        float *y = out + row * width;
        float total = 0.0f;
        float squares = 0.0f;
        float average;
        float inverse;

        if (b != NULL) {
            const float *x2 = b + row * width;
            float *target = sum + row * width;

#pragma omp simd reduction(+ : total)
            for (size_t i = 0; i < width; i++) {
                target[i] = x[i] + (x2[i] + bias[i]);
                total += target[i];
            }
            x = target;
        } else {
#pragma omp simd reduction(+ : total)
            for (size_t i = 0; i < width; i++)
                total += x[i];
        }
        average = total / (float)width;
#pragma omp simd reduction(+ : squares)
        for (size_t i = 0; i < width; i++)
            squares += (x[i] - average) * (x[i] - average);
        inverse = 1.0f / sqrtf(squares / (float)width + NORM_EPSILON);
#pragma omp simd
        for (size_t i = 0; i < width; i++) {
            y[i] = (x[i] - average) * inverse * weight[i] + shift[i];
        }
        mean[row] = average;
        rstd[row] = inverse;
    }
}

static void norm_backward(float *restrict dx, int fresh, float *restrict dweight,
                          float *restrict dshift, const float *restrict dout,
                          const float *restrict x, const float *restrict weight,
                          const float *restrict mean, const float *restrict rstd, size_t rows,
                          size_t width)
{
    for (size_t row = 0; row < rows; row++) {
        const float *d = dout + row * width;
        const float *in = x + row * width;
        float *to = dx + row * width;
        float average = mean[row];
        float inverse = rstd[row];
        float d_sum = 0.0f;
        float dn_sum = 0.0f;

#pragma omp simd reduction(+ : d_sum, dn_sum)
        for (size_t i = 0; i < width; i++) {
            float normed = (in[i] - average) * inverse;
            float dn = d[i] * weight[i];

            d_sum += dn;
            dn_sum += dn * normed;
            dweight[i] += d[i] * normed;
            dshift[i] += d[i];
        }
        d_sum /= (float)width;
        dn_sum /= (float)width;
        if (fresh) memset(to, 0, width * sizeof(*to));
#pragma omp simd
        for (size_t i = 0; i < width; i++) {
            float normed = (in[i] - average) * inverse;
            to[i] += (d[i] * weight[i] - d_sum - normed * dn_sum) * inverse;
        }
    }
}

static void add_bias(float *restrict x, const float *restrict bias, size_t rows, size_t width)
{
    for (size_t row = 0; row < rows; row++) {
        float *to = x + row * width;

#pragma omp simd
        for (size_t i = 0; i < width; i++)
            to[i] += bias[i];
    }
}

static void column_sums(float *restrict sums, int fresh, const float *restrict x, size_t rows,
                        size_t columns, size_t ld)
{
    if (fresh) memset(sums, 0, columns * sizeof(*sums));
    for (size_t row = 0; row < rows; row++) {
        const float *from = x + row * ld;

#pragma omp simd
        for (size_t i = 0; i < columns; i++)
            sums[i] += from[i];
    }
}

/* gelu(x) = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)): the tanh form without a tanh. */
#define GELU_A 1.5957691216f
#define GELU_B 0.0713548163f

static void gelu(float *restrict out, float *restrict x, const float *restrict bias, size_t rows,
                 size_t width)
{
    for (size_t row = 0; row < rows; row++) {
        float *in = x + row * width;
        float *to = out + row * width;

#pragma omp simd
        for (size_t i = 0; i < width; i++) {
            float value = in[i] + bias[i];

            in[i] = value;
            to[i] = value / (1.0f + fast_exp(-value * (GELU_A + GELU_B * value * value)));
        }
    }
}

static void gelu_backward(float *restrict dout, const float *restrict x, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        float value = x[i];
        float square = value * value;
        float s = 1.0f / (1.0f + fast_exp(-value * (GELU_A + GELU_B * square)));

        dout[i] *= s + value * s * (1.0f - s) * (GELU_A + 3.0f * GELU_B * square);
    }
}

static void causal_softmax(float *s, float *restrict lse, float scale, size_t first, size_t rows,
                           size_t columns)
{
    for (size_t row = 0; row < rows; row++) {
        float *score = s + row * columns;
        size_t seen = first + row + 1;
        float highest = score[0];
        float total = 0.0f;
        float inverse;

#pragma omp simd reduction(max : highest)
        for (size_t i = 0; i < seen; i++)
            highest = score[i] > highest ? score[i] : highest;
#pragma omp simd reduction(+ : total)
        for (size_t i = 0; i < seen; i++) {
            score[i] = fast_exp((score[i] - highest) * scale);
            total += score[i];
        }
        inverse = 1.0f / total;
#pragma omp simd
        for (size_t i = 0; i < seen; i++)
            score[i] *= inverse;
        memset(score + seen, 0, (columns - seen) * sizeof(*score));
        lse[row] = highest * scale + logf(total);
    }
}

static void causal_probabilities(float *s, const float *restrict lse, float scale, size_t first,
                                 size_t rows, size_t columns)
{
    for (size_t row = 0; row < rows; row++) {
        float *score = s + row * columns;
        size_t seen = first + row + 1;
        float offset = lse[row];

#pragma omp simd
        for (size_t i = 0; i < seen; i++)
            score[i] = fast_exp(score[i] * scale - offset);
        memset(score + seen, 0, (columns - seen) * sizeof(*score));
    }
}

static void score_backward(float *restrict dp, const float *restrict p, const float *restrict dot,
                           float scale, size_t rows, size_t columns)
{
    for (size_t row = 0; row < rows; row++) {
        float *to = dp + row * columns;
        const float *from = p + row * columns;
        float less = dot[row];

#pragma omp simd
        for (size_t i = 0; i < columns; i++)
            to[i] = from[i] * (to[i] - less) * scale;
    }
}

static float dot(const float *restrict a, const float *restrict b, size_t count)
{
    float total = 0.0f;

#pragma omp simd reduction(+ : total)
    for (size_t i = 0; i < count; i++)
        total += a[i] * b[i];
    return total;
}

static float largest(const float *x, size_t count)
{
    float highest = x[0];

#pragma omp simd reduction(max : highest)
    for (size_t i = 0; i < count; i++)
        highest = x[i] > highest ? x[i] : highest;
    return highest;
}

static float exponentials(float *x, size_t count, float highest)
{
    float total = 0.0f;

#pragma omp simd reduction(+ : total)
    for (size_t i = 0; i < count; i++) {
        x[i] = fast_exp(x[i] - highest);
        total += x[i];
    }
    return total;
}

static void scale(float *x, float by, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        x[i] *= by;
}

static void add_vectors(float *out, const float *a, const float *b, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        out[i] = a[i] + b[i];
}

static void narrow(uint16_t *restrict out, const float *restrict in, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        union {
            float value;
            uint32_t bits;
        } from = {.value = in[i]};
        uint32_t rounded = from.bits + 0x7fffu + ((from.bits >> 16) & 1u);
        uint32_t quiet = from.bits | 0x400000u;

        out[i] = (uint16_t)((in[i] == in[i] ? rounded : quiet) >> 16);
    }
}

static double sum_squares(const float *restrict x, size_t count)
{
    double total = 0.0;

#pragma omp simd reduction(+ : total)
    for (size_t i = 0; i < count; i++)
        total += (double)x[i] * (double)x[i];
    return total;
}

static void matvec(float *restrict out, const float *restrict weight, const float *restrict x,
                   const float *restrict bias, size_t rows, size_t columns)
{
    for (size_t row = 0; row < rows; row++) {
        out[row] = dot(weight + row * columns, x, columns) + (bias != NULL ? bias[row] : 0.0f);
    }
}

const gpt2_kernels_t GPT2_ISA_NAME(gpt2_kernels) = {
    .isa = GPT2_ISA_TEXT(GPT2_ISA),
    .gemm = GPT2_ISA_NAME(gpt2_gemm_own),
    .add_norm = add_norm,
    .norm_backward = norm_backward,
    .add_bias = add_bias,
    .column_sums = column_sums,
    .gelu = gelu,
    .gelu_backward = gelu_backward,
    .causal_softmax = causal_softmax,
    .causal_probabilities = causal_probabilities,
    .score_backward = score_backward,
    .dot = dot,
    .largest = largest,
    .exponentials = exponentials,
    .scale = scale,
    .add = add_vectors,
    .narrow = narrow,
    .round_bf16 = GPT2_ISA_NAME(gpt2_round_bf16),
    .round_fp16 = GPT2_ISA_NAME(gpt2_round_fp16),
    .sum_squares = sum_squares,
    .matvec = matvec,
    .adamw = GPT2_ISA_NAME(gpt2_adamw_update),
    .lamb_direct = GPT2_ISA_NAME(gpt2_lamb_direct),
    .lamb_add = GPT2_ISA_NAME(gpt2_lamb_add),
    .lamb_apply = GPT2_ISA_NAME(gpt2_lamb_apply),
    .compress = &GPT2_ISA_NAME(gpt2_compress_kernels),
};
