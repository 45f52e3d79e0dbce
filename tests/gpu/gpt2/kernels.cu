/*
 * kernels.cu - the trainer's CUDA kernels against plain fp64 loops, two ways.
 *
 *   gpt2_cuda_kernels         on a GPU, also at large sizes, and how quick they are there; exits
 *                             with 77 where there is none; with an argument it measures nothing
 *                             (for a sanitizer)
 *   gpt2_cuda_kernels_simt N  by fibers on the CPU, in an order given by N
 *
 * Every case runs twice, simulated in two orders of the threads, and must give the same bits.
 * Tolerances are relative L2: 2e-6 for fp32 (some ten roundings of 6e-8 each, and exp), 4e-3 for
 * bf16 results (one rounding is up to 2^-8), both from the inputs as the kernel sees them. Losses
 * are fp32 in both, 1e-6; in bf16 the classifier's exponentials are off by some 2^-22 each, in
 * either direction.
 */
#include "tests/gpu/gpt2/low_rank.h"
#include "tests/gpu/gpt2/optimizers.h"
#include "tests/gpu/gpt2/sparse.h"

#include <limits.h>
#include <malloc.h>

static double tolerance(gpt2_cuda_type_t type)
{
    return type == F32 ? 2e-6 : 4e-3;
}

/* ---- Embeddings ----------------------------------------------------------------------------- */

static void check_embed_backward(gpt2_cuda_type_t type, const int32_t *tokens, size_t rows,
                                 size_t length, size_t context, size_t width, int vocab,
                                 size_t skew, int accumulate)
{
    const size_t bytes = gpt2_cuda_embed_plan_bytes(rows), table = (size_t)vocab * width;
    tensor_t d = tensor_make(type, rows * width, skew, 1.0);
    tensor_t dwte = tensor_make(F32, table, skew, 1.0);
    tensor_t dwpe = tensor_make(F32, context * width, skew, accumulate ? 1.0 : 0.0);
    tensor_t *outs[] = {&dwte, &dwpe};
    double *wte = doubles(table), *wpe = doubles(context * width);
    int32_t *counts = (int32_t *)malloc((size_t)vocab * sizeof(*counts));
    void *plan = malloc(bytes), *device_plan;
    float *scratch;
    gpt2_error_t error;

    EXPECT(gpt2_cuda_embed_plan_make(plan, tokens, rows, vocab, counts, &error) == 0, "%s",
           error.text);
    MUST(cudaMalloc(&device_plan, bytes));
    MUST(cudaMemcpy(device_plan, plan, bytes, cudaMemcpyHostToDevice));
    MUST(cudaMalloc((void **)&scratch, gpt2_cuda_embed_scratch_bytes(rows, width)));
    for (size_t i = 0; i < table; i++)
        wte[i] = dwte.host[i];
    for (size_t row = 0; row < rows && !accumulate; row++)
        memset(wte + (size_t)tokens[row] * width, 0, width * sizeof(*wte));
    for (size_t i = 0; i < context * width; i++)
        wpe[i] = accumulate ? dwpe.host[i] : 0.0;
    for (size_t i = 0; i < rows * width; i++) {
        wte[(size_t)tokens[i / width] * width + i % width] += d.host[i];
        wpe[i / width % length * width + i % width] += d.host[i];
    }
    run_twice(
        [&] {
            return gpt2_cuda_embed_backward(NULL, type, (float *)dwte.data, accumulate,
                                            (float *)dwpe.data, accumulate, d.data, device_plan,
                                            scratch, rows, length, context, width);
        },
        outs, 2, "embedding backward");
    tensor_check(&dwte, wte, 1e-6, "gradient of the tokens' embedding");
    tensor_check(&dwpe, wpe, 1e-6, "gradient of the positions' embedding");
    MUST(cudaFree(device_plan));
    MUST(cudaFree(scratch));
    for (tensor_t *tensor : {&d, &dwte, &dwpe})
        tensor_free(tensor);
    free(wte);
    free(wpe);
    free(counts);
    free(plan);
}

static void check_embed(gpt2_cuda_type_t type, size_t batch, size_t length, size_t width, int vocab,
                        size_t skew)
{
    const size_t rows = batch * length, context = length + 3;
    tensor_t wte = tensor_make(type, (size_t)vocab * width, skew, 1.0);
    tensor_t wpe = tensor_make(type, context * width, skew, 1.0);
    tensor_t out = tensor_make(type, rows * width, skew, 0.0);
    tensor_t *outs[] = {&out};
    int32_t *tokens = (int32_t *)malloc(rows * sizeof(*tokens)), *device_tokens;
    double *expected = doubles(rows * width);

    /* One token in two is the same, as in real text; the last one does not occur. */
    for (size_t row = 0; row < rows; row++)
        tokens[row] = random_bits() % 2 ? 0 : (int32_t)(random_bits() % (unsigned)(vocab - 1));
    check_embed_backward(type, tokens, rows, length, context, width, vocab, skew, 0);
    check_embed_backward(type, tokens, rows, length, context, width, vocab, skew, 1);
    tokens[rows / 2] = random_bits() % 2 ? vocab : -1;
    device_tokens = integers_put(tokens, rows);
    for (size_t i = 0; i < rows * width; i++) {
        const size_t row = i / width, column = i % width;

        expected[i] = row == rows / 2 ? (double)NAN
                                      : wte.host[(size_t)tokens[row] * width + column] +
                                            wpe.host[row % length * width + column];
    }
    run_twice(
        [&] {
            return gpt2_cuda_embed_forward(NULL, type, out.data, device_tokens, wte.data, wpe.data,
                                           rows, length, width, vocab);
        },
        outs, 1, "embedding");
    tensor_check(&out, expected, tolerance(type), "embedding");
    MUST(cudaFree(device_tokens));
    for (tensor_t *tensor : {&wte, &wpe, &out})
        tensor_free(tensor);
    free(tokens);
    free(expected);
}

static void check_tokens(void)
{
    int32_t tokens[700], counts[9];
    int32_t *device = integers_put(NULL, 700);
    uint32_t *bad, found;
    gpt2_error_t error;
    void *plan = malloc(gpt2_cuda_embed_plan_bytes(700));

    MUST(cudaMalloc((void **)&bad, sizeof(*bad)));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 700; i++)
            tokens[i] = i % 9;
        if (round == 1) tokens[3] = tokens[650] = 9;
        if (round == 2) tokens[0] = -1;
        MUST(cudaMemset(bad, 0, sizeof(*bad)));
        MUST(cudaMemcpy(device, tokens, sizeof(tokens), cudaMemcpyHostToDevice));
        MUST(gpt2_cuda_check_tokens(NULL, bad, device, 700, 9));
        MUST(cudaMemcpy(&found, bad, sizeof(found), cudaMemcpyDeviceToHost));
        EXPECT(found == (round == 0   ? 0u
                         : round == 1 ? 651u
                                      : 1u),
               "round %d: bad token %u", round, found);
        EXPECT((gpt2_cuda_embed_plan_make(plan, tokens, 700, 9, counts, &error) == 0) ==
                   (round == 0),
               "round %d: the plan's answer", round);
    }
    EXPECT(strcmp(error.text, "token 0 of the batch is -1, the vocabulary has 9") == 0, "said: %s",
           error.text);
    MUST(cudaFree(bad));
    MUST(cudaFree(device));
    free(plan);
}

/* ---- Norms ---------------------------------------------------------------------------------- */

static void check_norm_backward(gpt2_cuda_type_t type, const tensor_t *x, size_t rows, size_t width,
                                size_t skew, int fresh, int accumulate)
{
    tensor_t d = tensor_make(type, rows * width, skew, 1.0);
    tensor_t weight = tensor_make(F32, width, skew, 1.0);
    tensor_t mean = tensor_make(F32, rows, 0, 1.0), rstd = tensor_make(F32, rows, 0, 1.0);
    tensor_t dx = tensor_make(type, rows * width, skew, fresh ? 0.0 : 1.0);
    tensor_t dweight = tensor_make(F32, width, skew, accumulate ? 1.0 : 0.0);
    tensor_t dshift = tensor_make(F32, width, skew, accumulate ? 1.0 : 0.0);
    tensor_t sums = tensor_make(F32, width, skew, 1.0);
    tensor_t *outs[] = {&dx, &dweight, &dshift, &sums};
    double *to = doubles(rows * width), *to_weight = doubles(width), *to_shift = doubles(width);
    double *to_sums = doubles(width);
    float *scratch;

    for (size_t i = 0; i < width && accumulate; i++) {
        to_weight[i] = dweight.host[i];
        to_shift[i] = dshift.host[i];
    }
    for (size_t row = 0; row < rows; row++) {
        const double *from = d.host + row * width, *in = x->host + row * width;
        double total = 0.0, squares = 0.0, sum = 0.0, dot = 0.0;

        for (size_t i = 0; i < width; i++)
            total += in[i] / (double)width;
        for (size_t i = 0; i < width; i++)
            squares += (in[i] - total) * (in[i] - total) / (double)width;
        mean.host[row] = rounded(F32, total);
        rstd.host[row] = rounded(F32, 1.0 / sqrt(squares + 1e-5));
        for (size_t i = 0; i < width; i++) {
            const double normed = (in[i] - mean.host[row]) * rstd.host[row];

            sum += from[i] * weight.host[i] / (double)width;
            dot += from[i] * weight.host[i] * normed / (double)width;
            to_weight[i] += from[i] * normed;
            to_shift[i] += from[i];
        }
        for (size_t i = 0; i < width; i++) {
            const double normed = (in[i] - mean.host[row]) * rstd.host[row];

            to[row * width + i] = (fresh ? 0.0 : dx.host[row * width + i]) +
                                  (from[i] * weight.host[i] - sum - normed * dot) * rstd.host[row];
        }
    }
    tensor_put(&mean);
    tensor_put(&rstd);
    MUST(cudaMalloc((void **)&scratch, gpt2_cuda_norm_scratch_bytes(rows, width)));
    run_twice(
        [&] {
            return gpt2_cuda_norm_backward(
                NULL, type, dx.data, fresh, (float *)dweight.data, (float *)dshift.data, accumulate,
                (float *)sums.data, d.data, x->data, (const float *)weight.data,
                (const float *)mean.data, (const float *)rstd.data, scratch, rows, width);
        },
        outs, 4, "norm backward");
    /* In a row of one column the normed value is 0 but for rounding; compare absolutely there. */
    if (width > 1) tensor_check(&dx, to, 2.0 * tolerance(type), "gradient of a norm's input");
    if (width > 1) tensor_check(&dweight, to_weight, 2e-6, "gradient of a norm's weight");
    tensor_check(&dshift, to_shift, 1e-6, "gradient of a norm's shift");
    tensor_get(&dx, to); /* the sums are of what was stored */
    for (size_t i = 0; i < rows * width; i++)
        to_sums[i % width] += to[i];
    tensor_check(&sums, to_sums, 1e-5, "sums of the gradient's columns");
    MUST(cudaFree(scratch));
    for (tensor_t *tensor : {&d, &weight, &mean, &rstd, &dx, &dweight, &dshift, &sums})
        tensor_free(tensor);
    free(to);
    free(to_weight);
    free(to_shift);
    free(to_sums);
}

static void check_norm(gpt2_cuda_type_t type, size_t rows, size_t width, size_t skew)
{
    tensor_t x = tensor_make(type, rows * width, skew, 1.0);
    tensor_t weight = tensor_make(F32, width, skew, 1.0);
    tensor_t shift = tensor_make(F32, width, skew, 1.0);
    tensor_t out = tensor_make(type, rows * width, skew, 0.0);
    tensor_t mean = tensor_make(F32, rows, 0, 0.0), rstd = tensor_make(F32, rows, 0, 0.0);
    tensor_t *outs[] = {&out, &mean, &rstd};
    double *to = doubles(rows * width), *to_mean = doubles(rows), *to_rstd = doubles(rows);

    for (size_t row = 0; row < rows; row++) {
        const double *from = x.host + row * width;
        double squares = 0.0;

        for (size_t i = 0; i < width; i++)
            to_mean[row] += from[i] / (double)width;
        for (size_t i = 0; i < width; i++)
            squares += (from[i] - to_mean[row]) * (from[i] - to_mean[row]) / (double)width;
        to_rstd[row] = 1.0 / sqrt(squares + 1e-5);
        for (size_t i = 0; i < width; i++) {
            to[row * width + i] =
                (from[i] - to_mean[row]) * to_rstd[row] * weight.host[i] + shift.host[i];
        }
    }
    run_twice(
        [&] {
            return gpt2_cuda_norm_forward(NULL, type, out.data, (float *)mean.data,
                                          (float *)rstd.data, x.data, (const float *)weight.data,
                                          (const float *)shift.data, rows, width);
        },
        outs, 3, "norm");
    tensor_check(&out, to, width > 1 ? 2.0 * tolerance(type) : 1e-1, "norm");
    tensor_check(&mean, to_mean, type == F32 ? 1e-5 : 1e-3, "mean");
    tensor_check(&rstd, to_rstd, width > 1 && type == F32 ? 1e-5 : 1e-2, "rstd");
    check_norm_backward(type, &x, rows, width, skew, 1, 0);
    check_norm_backward(type, &x, rows, width, skew, 0, 1);
    for (tensor_t *tensor : {&x, &weight, &shift, &out, &mean, &rstd})
        tensor_free(tensor);
    free(to);
    free(to_mean);
    free(to_rstd);
}

/* ---- Bias, GELU, column sums ---------------------------------------------------------------- */

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));

    return 0.5 * (1.0 + t) +
           0.5 * x * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * x * x);
}

static void check_gelu(gpt2_cuda_type_t type, size_t rows, size_t width, size_t skew)
{
    const size_t count = rows * width;
    tensor_t x = tensor_make(type, count, skew, 6.0), bias = tensor_make(type, width, skew, 1.0);
    tensor_t out = tensor_make(type, count, skew, 0.0), d = tensor_make(type, count, skew, 1.0);
    tensor_t *outs[] = {&x, &out}, *backs[] = {&d};
    double *before = doubles(count), *after = doubles(count), *slope = doubles(count);

    for (size_t i = 0; i < count; i++) {
        before[i] = rounded(type, x.host[i] + bias.host[i % width]);
        after[i] = gelu(before[i]);
        slope[i] = d.host[i] * gelu_slope(x.host[i]);
    }
    run_twice(
        [&] {
            return gpt2_cuda_gelu_forward(NULL, type, out.data, x.data, bias.data, rows, width);
        },
        outs, 2, "bias and GELU");
    tensor_check(&x, before, tolerance(type), "what GELU takes");
    tensor_check(&out, after, tolerance(type), "GELU");
    run_twice([&] { return gpt2_cuda_add_bias(NULL, type, x.data, bias.data, rows, width); }, outs,
              1, "bias");
    tensor_check(&x, before, tolerance(type), "bias");
    tensor_put(&x);
    run_twice([&] { return gpt2_cuda_gelu_backward(NULL, type, d.data, d.data, x.data, count); },
              backs, 1, "GELU backward");
    tensor_check(&d, slope, tolerance(type), "GELU backward");
    for (size_t i = 0; i < count; i++)
        after[i] = gelu(x.host[i]);
    run_twice(
        [&] { return gpt2_cuda_gelu_forward(NULL, type, out.data, x.data, NULL, rows, width); },
        outs, 2, "GELU alone");
    tensor_check(&out, after, tolerance(type), "GELU alone");
    tensor_check(&x, x.host, 0.0, "what GELU only reads");
    for (tensor_t *tensor : {&x, &bias, &out, &d})
        tensor_free(tensor);
    free(before);
    free(after);
    free(slope);
}

static void check_column_sum(gpt2_cuda_type_t type, size_t rows, size_t width, size_t skew,
                             int accumulate)
{
    tensor_t x = tensor_make(type, rows * width, skew, 1.0);
    tensor_t sums = tensor_make(F32, width, skew, accumulate ? 1.0 : 0.0);
    tensor_t *outs[] = {&sums};
    double *expected = doubles(width);
    float *scratch;

    MUST(cudaMalloc((void **)&scratch, gpt2_cuda_column_sum_scratch_bytes(rows, width) + 16));
    for (size_t i = 0; i < width; i++)
        expected[i] = accumulate ? sums.host[i] : 0.0;
    for (size_t i = 0; i < rows * width; i++)
        expected[i % width] += x.host[i];
    run_twice(
        [&] {
            return gpt2_cuda_column_sum(NULL, type, (float *)sums.data, accumulate, x.data, scratch,
                                        rows, width);
        },
        outs, 1, "column sums");
    tensor_check(&sums, expected, 2e-6, "column sums");
    MUST(cudaFree(scratch));
    tensor_free(&x);
    tensor_free(&sums);
    free(expected);
}

/* ---- The loss ------------------------------------------------------------------------------- */

static void check_classifier(gpt2_cuda_type_t type, size_t rows, int vocab, int padded, size_t skew,
                             int gradient)
{
    const float weight = 0.125f;
    tensor_t logits = tensor_make(type, rows * (size_t)padded, skew, 8.0);
    tensor_t losses = tensor_make(F32, rows, 0, 0.0);
    tensor_t *outs[] = {&logits, &losses};
    double *to = doubles(rows * (size_t)padded), *to_losses = doubles(rows);
    int32_t *targets = (int32_t *)malloc(rows * sizeof(*targets)), *device_targets;
    double squares = 0.0;

    for (size_t row = 0; row < rows; row++) {
        double *own = logits.host + row * (size_t)padded, most = -INFINITY, sum = 0.0;

        targets[row] = (int32_t)(random_bits() % (unsigned)vocab);
        for (int i = vocab; i < padded; i++)
            own[i] =
                i % 2 ? (double)NAN : rounded(type, type == F16 ? 6e4 : 1e30); /* must not matter */
        if (row == 1) own[0] = 60.0; /* nearly all of the probability */
        for (int i = 0; i < vocab; i++)
            most = own[i] > most ? own[i] : most;
        for (int i = 0; i < vocab; i++)
            sum += exp(own[i] - most);
        to_losses[row] = most + log(sum) - own[targets[row]];
        if (row != 2) squares += to_losses[row] * to_losses[row];
        for (int i = 0; i < padded; i++) {
            double *at = &to[row * (size_t)padded + (size_t)i];

            *at = i < vocab ? exp(own[i] - most) / sum - (i == targets[row] ? 1.0 : 0.0) : 0.0;
            *at *= (double)weight;
            if (!gradient) *at = own[i];
        }
    }
    if (rows > 2) { /* a target that does not exist */
        targets[2] = vocab;
        to_losses[2] = (double)NAN;
        for (int i = 0; i < vocab && gradient; i++)
            to[2 * (size_t)padded + (size_t)i] = (double)NAN;
    }
    device_targets = integers_put(targets, rows);
    run_twice(
        [&] {
            return gpt2_cuda_classifier(NULL, type, (float *)losses.data, logits.data,
                                        device_targets, weight, gradient, rows, vocab, padded);
        },
        outs, 2, "classifier");
    tensor_check(&logits, to, gradient ? tolerance(type) : 0.0,
                 gradient ? "gradient of logits" : "logits of a validation");
    /* A loss is a difference of numbers of up to 60, each rounded to fp32. */
    tensor_check(&losses, to_losses, fmax(1e-6, 6e-6 / sqrt(squares)), "loss");
    MUST(cudaFree(device_targets));
    tensor_free(&logits);
    tensor_free(&losses);
    free(to);
    free(to_losses);
    free(targets);
}

/* ---- Arenas --------------------------------------------------------------------------------- */

static void check_sums(size_t count, size_t skew)
{
    tensor_t x = tensor_make(F32, count, skew, 1.0), clip = tensor_make(F32, 2, 0, 0.0);
    double *out, *scratch, sum = 0.0, squares = 0.0, got[2], again[2], norm, to[2];
    uint32_t *skip, is_skipped;

    MUST(cudaMalloc((void **)&out, 2 * sizeof(*out)));
    MUST(cudaMalloc((void **)&skip, 2 * sizeof(*skip)));
    MUST(cudaMalloc((void **)&scratch, GPT2_CUDA_SUM_SCRATCH_BYTES));
    for (size_t i = 0; i < count; i++) {
        sum += x.host[i];
        squares += x.host[i] * x.host[i];
    }
    for (int pass = 0; pass < 2; pass++) {
        simt_order += (unsigned)pass;
        MUST(gpt2_cuda_sum(NULL, out, 0, (const float *)x.data, count, scratch));
        MUST(gpt2_cuda_sum(NULL, out, 1, (const float *)x.data, count, scratch));
        MUST(gpt2_cuda_sum_squares(NULL, out + 1, 0, (const float *)x.data, count, scratch));
        MUST(cudaMemcpy(pass ? again : got, out, sizeof(got), cudaMemcpyDeviceToHost));
    }
    EXPECT(memcmp(got, again, sizeof(got)) == 0, "sums of %zu differ from run to run", count);
    EXPECT(fabs(got[0] - 2.0 * sum) <= 1e-12 * (double)count, "twice the sum of %zu: %g, not %g",
           count, got[0], 2.0 * sum);
    EXPECT(fabs(got[1] - squares) <= 1e-12 * squares, "squares of %zu: %g, not %g", count, got[1],
           squares);

    norm = sqrt(squares);
    for (int form = 0; form < 4; form++) { /* far, clipped, unlimited, not finite */
        const double limits[] = {2.0 * norm, 0.25 * norm, 0.0, 1.0};

        if (form == 3) {
            const double infinite = (double)INFINITY;

            MUST(cudaMemcpy(out + 1, &infinite, sizeof(infinite), cudaMemcpyHostToDevice));
        }
        to[0] = form == 1 ? 0.5 : 1.0;
        to[1] = 0.5 * norm;
        MUST(gpt2_cuda_clip(NULL, skip, (float *)clip.data, (float *)clip.data + 1, out + 1, NULL,
                            0.5f, (float)limits[form]));
        MUST(cudaMemcpy(&is_skipped, skip, sizeof(is_skipped), cudaMemcpyDeviceToHost));
        EXPECT(is_skipped == (form == 3), "clip form %d: skip %u", form, is_skipped);
        if (form != 3) tensor_check(&clip, to, 1e-6, "clip and norm");
        for (uint32_t word = 0; word < 3; word++) { /* another that says to skip, or not */
            MUST(cudaMemcpy(skip + 1, &word, sizeof(word), cudaMemcpyHostToDevice));
            MUST(gpt2_cuda_clip(NULL, skip, (float *)clip.data, NULL, out + 1, skip + 1, 0.5f,
                                (float)limits[form]));
            MUST(cudaMemcpy(&is_skipped, skip, sizeof(is_skipped), cudaMemcpyDeviceToHost));
            EXPECT(is_skipped == (form == 3 || word != 0), "clip form %d after %u: skip %u", form,
                   word, is_skipped);
        }
    }
    MUST(cudaFree(out));
    MUST(cudaFree(skip));
    MUST(cudaFree(scratch));
    tensor_free(&x);
    tensor_free(&clip);
}

static void check_add_rows(size_t count, size_t width, size_t skew)
{
    tensor_t to = tensor_make(F32, 2 * count * width, skew, 1.0),
             rows = tensor_make(F32, count * width, skew, 1.0);
    double *sums = (double *)malloc(to.count * sizeof(*sums));
    int32_t *places = (int32_t *)malloc(count * sizeof(*places)), *device;

    EXPECT(sums != NULL && places != NULL, "out of memory");
    for (size_t i = 0; i < to.count; i++)
        sums[i] = to.host[i];
    for (size_t row = 0; row < count; row++) { /* the odd rows, the last one first */
        places[row] = (int32_t)(2 * (count - row) - 1);
        for (size_t i = 0; i < width; i++) {
            double *sum = sums + (size_t)places[row] * width + i;

            *sum = (double)((float)*sum + (float)rows.host[row * width + i]);
        }
    }
    MUST(cudaMalloc((void **)&device, count * sizeof(*device)));
    MUST(cudaMemcpy(device, places, count * sizeof(*device), cudaMemcpyHostToDevice));
    MUST(
        gpt2_cuda_add_rows(NULL, (float *)to.data, (const float *)rows.data, device, count, width));
    tensor_check(&to, sums, 0.0, "add_rows");
    MUST(cudaFree(device));
    free(places);
    free(sums);
    tensor_free(&to);
    tensor_free(&rows);
}

static void check_copies(size_t count, size_t skew)
{
    static const gpt2_cuda_type_t types[] = {F32, BF16, F16};

    for (gpt2_cuda_type_t from_type : types) {
        tensor_t from = tensor_make(from_type, count, skew, 3.0);

        for (gpt2_cuda_type_t to_type : types) {
            tensor_t to = tensor_make(to_type, count, skew, 0.0), *outs[] = {&to};
            double *expected = doubles(count), mean = 0.0;

            for (size_t i = 0; i < count; i++)
                expected[i] = rounded(to_type, from.host[i]);
            run_twice(
                [&] { return gpt2_cuda_cast(NULL, to_type, to.data, from_type, from.data, count); },
                outs, 1, "cast");
            tensor_check(&to, expected, 0.0, "cast");
            for (size_t i = 0; i < count; i++)
                expected[i] = 0.5;
            MUST(gpt2_cuda_fill(NULL, to_type, to.data, 0.5f, count));
            tensor_check(&to, expected, 0.0, "fill");
            run_twice([&] { return gpt2_cuda_fill_random(NULL, to_type, to.data, 5, count); }, outs,
                      1, "random numbers");
            tensor_get(&to, expected);
            tensor_check(&to, expected, 0.0, "random numbers");
            for (size_t i = 0; i < count; i++) {
                mean += expected[i] / (double)count;
                EXPECT(fabs(expected[i]) <= 1.0, "random number %g", expected[i]);
            }
            EXPECT(count < 1000 || fabs(mean) < 4.0 * 0.58 / sqrt((double)count), "mean %g", mean);
            tensor_free(&to);
            free(expected);
        }
        tensor_free(&from);
    }
}

static void check_rounding(size_t count, size_t skew)
{
    for (gpt2_cuda_type_t type : {BF16, F16}) {
        tensor_t x = tensor_make(F32, count, skew, 3.0), *outs[] = {&x};
        double *expected = doubles(count);

        for (size_t i = 0; i < count; i++)
            expected[i] = rounded(type, x.host[i]);
        MUST(gpt2_cuda_round(NULL, type, (float *)x.data, count));
        tensor_check(&x, expected, 0.0, "rounding");
        /* A rounded number stays as it is. */
        run_twice([&] { return gpt2_cuda_round(NULL, type, (float *)x.data, count); }, outs, 1,
                  "rounding");
        tensor_check(&x, expected, 0.0, "rounding again");
        tensor_free(&x);
        free(expected);
    }
}

static void check_grains(void)
{
    static const uint32_t grains[] = {3, 0, 4};
    const size_t grain = GPT2_CUDA_DECAY_GRAIN, wanted = 3;
    uint32_t *device;

    MUST(cudaMalloc((void **)&device, sizeof(grains)));
    MUST(cudaMemcpy(device, grains, sizeof(grains), cudaMemcpyHostToDevice));
    for (gpt2_cuda_type_t type : {BF16, F16}) {
        tensor_t from = tensor_make(type, 5 * grain, 0, 3.0);
        tensor_t to = tensor_make(F32, wanted * grain, 0, 0.0), *outs[] = {&to};
        double *expected = doubles(wanted * grain);

        for (size_t i = 0; i < wanted * grain; i++)
            expected[i] = from.host[grains[i / grain] * grain + i % grain];
        run_twice(
            [&] {
                return gpt2_cuda_cast_grains(NULL, (float *)to.data, type, from.data, device,
                                             wanted);
            },
            outs, 1, "grains");
        tensor_check(&to, expected, 0.0, "grains");
        EXPECT(gpt2_cuda_cast_grains(NULL, (float *)to.data, F32, from.data, device, wanted) != 0,
               "grains of fp32");
        tensor_free(&from);
        tensor_free(&to);
        free(expected);
    }
    MUST(cudaFree(device));
}

/* ---- Launches ------------------------------------------------------------------------------- */

/* A launch tells what became of itself, not what its thread left behind. */
static void check_older_error(void)
{
    cudaError_t left;
    float *to;

    MUST(cudaMalloc((void **)&to, 256));
    EXPECT(cudaSetDevice(-1) != cudaSuccess, "a device of number -1");
    left = cudaPeekAtLastError();
    EXPECT(left != cudaSuccess, "nothing was left behind");
    MUST(gpt2_cuda_fill(NULL, F32, to, 1.0f, 64));
    EXPECT(cudaGetLastError() == left, "the launch has taken the older error away");
    MUST(cudaFree(to));
}

/* ---- Speed ---------------------------------------------------------------------------------- */

#define REPEATS 10

/* bytes: what one run must at least read and write. */
template <typename F> static void measure(const char *name, double bytes, F launch)
{
    cudaEvent_t begin, end;
    float ms = 0.0f;

    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    MUST(launch());
    MUST(cudaEventRecord(begin, NULL));
    for (int i = 0; i < REPEATS; i++)
        MUST(launch());
    MUST(cudaEventRecord(end, NULL));
    MUST(cudaEventSynchronize(end));
    MUST(cudaEventElapsedTime(&ms, begin, end));
    if (!IS_SIMULATED) {
        printf("%-34s %8.1f us %6.0f GB/s\n", name, (double)ms * 1e3 / REPEATS,
               bytes * REPEATS / ((double)ms * 1e6));
    }
    MUST(cudaEventDestroy(begin));
    MUST(cudaEventDestroy(end));
}

static void *random_memory(gpt2_cuda_type_t type, size_t count)
{
    void *memory = NULL;

    MUST(cudaMalloc(&memory, count * gpt2_cuda_type_bytes(type)));
    MUST(gpt2_cuda_fill_random(NULL, type, memory, count, count));
    return memory;
}

/* Rows of 124M: 64 sequences of 1024 tokens, in bf16; beside a plain copy. */
static void measure_rows(size_t rows, size_t width)
{
    const size_t count = rows * width, wide = 4 * count;
    void *a = random_memory(BF16, wide), *b = random_memory(BF16, wide);
    void *c = random_memory(BF16, wide);
    float *scratch = (float *)random_memory(F32, (rows + 64) * width);
    float *vector = (float *)random_memory(F32, 4 * width),
          *sums = (float *)random_memory(F32, 8 * width);
    float *mean = (float *)random_memory(F32, rows), *rstd = (float *)random_memory(F32, rows);

    measure("copy", 4.0 * (double)wide,
            [&] { return cudaMemcpyAsync(b, a, 2 * wide, cudaMemcpyDeviceToDevice, NULL); });
    measure("norm", 4.0 * (double)count, [&] {
        return gpt2_cuda_norm_forward(NULL, BF16, c, mean, rstd, a, vector, vector, rows, width);
    });
    measure("norm backward", 8.0 * (double)count, [&] {
        return gpt2_cuda_norm_backward(NULL, BF16, c, 0, sums, sums + width, 0, sums + 2 * width, a,
                                       b, vector, mean, rstd, scratch, rows, width);
    });
    measure("GELU", 4.0 * (double)wide,
            [&] { return gpt2_cuda_gelu_forward(NULL, BF16, c, a, NULL, rows, 4 * width); });
    measure("GELU backward", 6.0 * (double)wide,
            [&] { return gpt2_cuda_gelu_backward(NULL, BF16, c, a, b, wide); });
    measure("column sum", 2.0 * (double)wide,
            [&] { return gpt2_cuda_column_sum(NULL, BF16, sums, 0, a, scratch, rows, 4 * width); });
    for (void *memory : {a, b, c})
        MUST(cudaFree(memory));
    for (float *memory : {scratch, vector, sums, mean, rstd})
        MUST(cudaFree(memory));
}

static void measure_classifier(size_t rows, int vocab, int padded)
{
    const double logits = (double)rows * padded;
    void *memory = random_memory(BF16, rows * (size_t)padded);
    float *losses = (float *)random_memory(F32, rows);
    int32_t *targets = (int32_t *)calloc(rows, sizeof(*targets)), *device_targets;

    for (size_t row = 0; row < rows; row++)
        targets[row] = (int32_t)(random_bits() % (unsigned)vocab);
    device_targets = integers_put(targets, rows);
    for (int gradient = 0; gradient < 2; gradient++) {
        measure(gradient ? "classifier and gradient" : "classifier",
                (gradient ? 4.0 : 2.0) * logits, [&] {
                    return gpt2_cuda_classifier(NULL, BF16, losses, memory, device_targets, 1e-5f,
                                                gradient, rows, vocab, padded);
                });
    }
    free(targets);
    MUST(cudaFree(device_targets));
    MUST(cudaFree(memory));
    MUST(cudaFree(losses));
}

static void measure_arena(size_t count)
{
    const gpt2_adamw_t adamw = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0.1f, 0.05f};
    float *weights = (float *)random_memory(F32, count), *m = (float *)random_memory(F32, count);
    float *v = (float *)random_memory(F32, count), *gradients = (float *)random_memory(F32, count);
    void *low = random_memory(BF16, count);
    double *sum;

    MUST(cudaMalloc((void **)&sum, sizeof(*sum) + GPT2_CUDA_SUM_SCRATCH_BYTES));
    MUST(cudaMemsetAsync(v, 0, count * sizeof(*v), NULL)); /* squares are not negative */
    measure("AdamW", 30.0 * (double)count, [&] {
        return gpt2_cuda_adamw(NULL, weights, gradients, m, v, BF16, low, NULL, count, &adamw, NULL,
                               NULL);
    });
    measure("weights to bf16", 6.0 * (double)count,
            [&] { return gpt2_cuda_cast(NULL, BF16, low, F32, weights, count); });
    measure("norm of gradients", 4.0 * (double)count,
            [&] { return gpt2_cuda_sum_squares(NULL, sum, 0, gradients, count, sum + 1); });
    for (float *memory : {weights, m, v, gradients})
        MUST(cudaFree(memory));
    MUST(cudaFree(low));
    MUST(cudaFree(sum));
}

static void measure_all(void)
{
    if (IS_SIMULATED) { /* that it runs */
        measure_rows(70, 64);
        measure_classifier(3, 250, 256);
        measure_arena(3000);
        return;
    }
    measure_rows((size_t)64 * 1024, 768);
    measure_classifier((size_t)16 * 1024, 50257, 50304);
    measure_arena(124475904);
}

/* ---- All of them ---------------------------------------------------------------------------- */

static void check_sizes(gpt2_cuda_type_t type)
{
    static const size_t rows[] = {1, 3, 17}, widths[] = {1, 7, 64, 264};

    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
            const size_t skew = (r + w) % 2;

            check_norm(type, rows[r], widths[w], skew);
            check_gelu(type, rows[r], widths[w], skew);
            check_column_sum(type, rows[r], widths[w], skew, (int)(r + w) % 2);
        }
    }
    check_norm(type, 35, 264, 0); /* several blocks backward, of several warps */
    check_norm(type, 2, 770, 0);  /* columns past a whole vector */
    /* Every count of columns in registers, and a row that is wider than they hold. */
    for (size_t width : {768, 1016, 1280, 1600, 2048, 2056})
        check_norm(type, 2, width, 0);
    check_column_sum(type, 70, 300, 0, 0);
    check_column_sum(type, 16500, 8, 0, 1); /* more shares than are folded at a time */
    check_embed(type, 1, 3, 5, 4, 1);
    check_embed(type, 3, 70, 264, 7, 0); /* half of 210 rows is more than one piece */
    for (int gradient = 0; gradient < 2; gradient++) {
        check_classifier(type, 3, 5, 5, 1, gradient);
        check_classifier(type, 3, 50, 64, 0, gradient);
        check_classifier(type, 2, 4100, 4104, 0, gradient); /* each thread goes round twice */
        check_classifier(type, 3, 8190, 8192, 0, gradient); /* bf16: and holds one vector */
    }
    check_classifier(type, 3, 16387, 16392, 0, 1); /* three, of which the last is one thread's */
    if (type != F32) check_classifier(type, 1, 57345, 57352, 0, 1); /* more than registers hold */
}

/*
 * Shapes that need a GPU. Where a launch or a scratch buffer has a limit, long and narrow tensors
 * go past it: the references are loops of one thread of the host, so their time is what bounds the
 * sizes. The widths of real models go with a few hundred rows.
 */
static void check_large(gpt2_cuda_type_t type)
{
    check_norm(type, 1024, 768, 0);
    check_norm(type, 50000, 8, 0); /* backward: 20 rows a block, as 16 would make too many */
    check_norm(type, 70, 1600, 0);
    check_norm(type, 70, GPT2_CUDA_WIDTH_MAX, 0); /* registers for so many threads */
    check_gelu(type, 512, 3072, 0);
    check_column_sum(type, 1024, 3072, 0, 1);
    check_column_sum(type, 70000, 8, 0, 0); /* 1024 shares of 69 rows: 64 would make too many */
    check_embed(type, 2, 512, 768, 3000, 0);
    check_classifier(type, 64, 50257, 50304, 0, 1);
    if (type != BF16) return;
    check_classifier(type, 300, 2000, 2048, 0, 1); /* rows for every multiprocessor */
    check_embed(type, 160, 1000, 8, 50257, 0);     /* more pieces than warps of the grid: 32768 */
    check_embed(type, 400, 1000, 2, 2500, 0);      /* and more folds: 2048 */
}

int main(int argc, char **argv)
{
    int devices = 0;

    if (argc > 2) {
        fprintf(stderr, "usage: %s [order of the simulated threads]\n", argv[0]);
        return 2;
    }
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device\n");
        return 77;
    }
    simt_order = argc == 2 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    /* Large arrays come and go: kept by malloc, the kernel need not clear their pages each time. */
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    MUST(gpt2_cuda_kernels_prepare());
    check_tokens();
    check_older_error();
    for (gpt2_cuda_type_t type : {F32, BF16, F16}) {
        check_sizes(type);
        if (!IS_SIMULATED) check_large(type);
    }
    check_sums(1, 0);
    check_sums(5000, 1);
    check_adamw(BF16, 1000, 0);
    check_adamw(F16, 77, 1);
    check_lamb(5000, 0);
    check_lamb(9000, 1);
    check_add_rows(70, 32, 0);
    check_add_rows(9, 13, 1);
    check_copies(3, 1);
    check_copies(3000, 0);
    check_rounding(3, 1);
    check_rounding(3000, 0);
    check_grains();
    check_low_rank(1, 1, 1);
    check_low_rank(37, 70, 2);
    check_low_rank(300, 261, 5); /* more than one chunk of rows, and two passes over the columns */
    check_dependent_columns();
    check_sparse_all();
    if (!IS_SIMULATED) {
        check_sums((size_t)5 << 20, 0);
        check_adamw(BF16, (size_t)1 << 20, 0);
        check_adamw(F16, (size_t)1 << 20, 0);
        check_lamb((size_t)1 << 20, 0);
        check_sparse(SPARSE_NOISE, (size_t)3 << 20, 0.01, 1);
    }
    if (IS_SIMULATED || argc == 1) measure_all();
    printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
