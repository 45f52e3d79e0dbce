/*
 * attention.c - causal attention of one head, in blocks of rows.
 *
 * The scores of GPT2_SCORE_ROWS queries against the keys they may see are computed, used and
 * dropped; only the log of each row's sum of exponentials is kept, and backward computes the
 * probabilities again from it (Dao et al. 2022, arXiv:2205.14135).
 */
#include "examples/gpt2/model/activations.h"

#include <math.h>

void gpt2_head_attend(const gpt2_model_t *model, float *out, float *lse, const float *qkv, int head,
                      size_t length, float *scratch, float *gemm_scratch)
{
    size_t width = model->local.width;
    size_t size = width / model->local.heads;
    float scale = 1.0f / sqrtf((float)size);
    const float *q = qkv + (size_t)head * size;
    const float *k = q + width;
    const float *v = k + width;

    out += (size_t)head * size;
    for (size_t first = 0; first < length; first += GPT2_SCORE_ROWS) {
        size_t rows = length - first < GPT2_SCORE_ROWS ? length - first : GPT2_SCORE_ROWS;
        size_t keys = first + rows; /* later keys are hidden from every row here */

        model->gemm(0, 1, rows, keys, size, 1.0f, q + first * 3 * width, 3 * width, k, 3 * width,
                    0.0f, scratch, keys, gemm_scratch);
        model->kernels->causal_softmax(scratch, lse + first, scale, first, rows, keys);
        model->gemm(0, 0, rows, size, keys, 1.0f, scratch, keys, v, 3 * width, 0.0f,
                    out + first * width, width, gemm_scratch);
    }
}

void gpt2_head_attend_backward(const gpt2_model_t *model, float *d_qkv, const float *d_out,
                               const float *out, const float *lse, const float *qkv, int head,
                               size_t length, float *scratch, float *gemm_scratch)
{
    size_t width = model->local.width;
    size_t ld = 3 * width;
    size_t size = width / model->local.heads;
    float scale = 1.0f / sqrtf((float)size);
    const float *q = qkv + (size_t)head * size;
    const float *k = q + width;
    const float *v = k + width;
    float *d_q = d_qkv + (size_t)head * size;
    float *d_k = d_q + width;
    float *d_v = d_k + width;
    float *p = scratch;
    float *d_p = scratch + (size_t)GPT2_SCORE_ROWS * length;
    float *dots = d_p + (size_t)GPT2_SCORE_ROWS * length;
    size_t blocks = (length + GPT2_SCORE_ROWS - 1) / GPT2_SCORE_ROWS;

    out += (size_t)head * size;
    d_out += (size_t)head * size;
    /* From the last block to the first: the last one sees every key, so its products write the
     * gradients of keys and values and the others add to them. */
    for (size_t block = blocks; block-- > 0;) {
        size_t first = block * GPT2_SCORE_ROWS;
        size_t rows = length - first < GPT2_SCORE_ROWS ? length - first : GPT2_SCORE_ROWS;
        size_t keys = first + rows;
        float keep = block + 1 == blocks ? 0.0f : 1.0f;
        const float *q_rows = q + first * ld;
        const float *d_rows = d_out + first * width;

        model->gemm(0, 1, rows, keys, size, 1.0f, q_rows, ld, k, ld, 0.0f, p, keys, gemm_scratch);
        model->kernels->causal_probabilities(p, lse + first, scale, first, rows, keys);
        model->gemm(1, 0, keys, size, rows, 1.0f, p, keys, d_rows, width, keep, d_v, ld,
                    gemm_scratch);
        model->gemm(0, 1, rows, keys, size, 1.0f, d_rows, width, v, ld, 0.0f, d_p, keys,
                    gemm_scratch);
        for (size_t row = 0; row < rows; row++) {
            dots[row] =
                model->kernels->dot(d_rows + row * width, out + (first + row) * width, size);
        }
        model->kernels->score_backward(d_p, p, dots, scale, rows, keys);
        model->gemm(0, 0, rows, size, keys, 1.0f, d_p, keys, k, ld, 0.0f, d_q + first * ld, ld,
                    gemm_scratch);
        model->gemm(1, 0, keys, size, rows, 1.0f, d_p, keys, q_rows, ld, keep, d_k, ld,
                    gemm_scratch);
    }
}
