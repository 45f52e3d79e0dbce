/*
 * oracle.c - naive GPT-2 in double: forward, loss, backward, one token at a time.
 */
#include "tests/gpt2/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct oracle {
    const gpt2_layout_t *layout;
    const double *weights;
    double *gradients;
    int rows;
    int length;
    int width;
    int heads;
} oracle_t;

/* The activations of one block. */
typedef struct memory {
    double *input, *ln1, *qkv, *p, *att, *middle, *ln2, *fc, *gelu, *output;
} memory_t;

static double *fresh(size_t count)
{
    double *values = calloc(count, sizeof(double));

    if (values == NULL) abort();
    return values;
}

static const double *weight_of(const oracle_t *o, size_t index)
{
    return o->weights + o->layout->tensors[index].offset;
}

static double *gradient_of(const oracle_t *o, size_t index)
{
    return o->gradients + o->layout->tensors[index].offset;
}

/* y = x W^T + b */
static void linear(double *y, const double *x, const double *w, const double *b, int rows, int in,
                   int out)
{
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < out; o++) {
            double sum = b == NULL ? 0.0 : b[o];
            for (int i = 0; i < in; i++)
                sum += x[r * in + i] * w[o * in + i];
            y[r * out + o] = sum;
        }
    }
}

static void linear_back(double *dx, double *dw, double *db, const double *dy, const double *x,
                        const double *w, int rows, int in, int out)
{
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < out; o++) {
            double d = dy[r * out + o];
            if (db != NULL) db[o] += d;
            for (int i = 0; i < in; i++) {
                dx[r * in + i] += d * w[o * in + i];
                dw[o * in + i] += d * x[r * in + i];
            }
        }
    }
}

static void moments(const double *x, int width, double *mean, double *rstd)
{
    double sum = 0.0;
    double squares = 0.0;

    for (int i = 0; i < width; i++)
        sum += x[i];
    *mean = sum / width;
    for (int i = 0; i < width; i++)
        squares += (x[i] - *mean) * (x[i] - *mean);
    *rstd = 1.0 / sqrt(squares / width + 1e-5);
}

static void norm(double *y, const double *x, const double *w, const double *b, int rows, int width)
{
    for (int r = 0; r < rows; r++) {
        double mean;
        double rstd;

        moments(x + (size_t)r * (size_t)width, width, &mean, &rstd);
        for (int i = 0; i < width; i++) {
            y[r * width + i] = (x[r * width + i] - mean) * rstd * w[i] + b[i];
        }
    }
}

static void norm_back(double *dx, double *dw, double *db, const double *dy, const double *x,
                      const double *w, int rows, int width)
{
    for (int r = 0; r < rows; r++) {
        double mean;
        double rstd;
        double mean_d = 0.0;
        double mean_dx = 0.0;

        moments(x + (size_t)r * (size_t)width, width, &mean, &rstd);
        for (int i = 0; i < width; i++) {
            double normed = (x[r * width + i] - mean) * rstd;
            double d = dy[r * width + i];

            dw[i] += d * normed;
            db[i] += d;
            mean_d += d * w[i] / width;
            mean_dx += d * w[i] * normed / width;
        }
        for (int i = 0; i < width; i++) {
            double normed = (x[r * width + i] - mean) * rstd;
            dx[r * width + i] += (dy[r * width + i] * w[i] - mean_d - normed * mean_dx) * rstd;
        }
    }
}

static void attention(const oracle_t *o, const memory_t *m)
{
    int width = o->width;
    int size = width / o->heads;

    for (int r = 0; r < o->rows; r++) {
        int base = r / o->length * o->length;
        for (int h = 0; h < o->heads; h++) {
            double *p = m->p + ((size_t)r * (size_t)o->heads + (size_t)h) * (size_t)o->length;
            double sum = 0.0;

            for (int t = 0; base + t <= r; t++) {
                double score = 0.0;
                for (int i = 0; i < size; i++) {
                    score += m->qkv[r * 3 * width + h * size + i] *
                             m->qkv[(base + t) * 3 * width + width + h * size + i];
                }
                p[t] = exp(score / sqrt(size));
                sum += p[t];
            }
            for (int t = 0; base + t <= r; t++) {
                p[t] /= sum;
                for (int i = 0; i < size; i++) {
                    m->att[r * width + h * size + i] +=
                        p[t] * m->qkv[(base + t) * 3 * width + 2 * width + h * size + i];
                }
            }
        }
    }
}

static void attention_back(const oracle_t *o, const memory_t *m, double *d_qkv, const double *d_att)
{
    int width = o->width;
    int size = width / o->heads;

    for (int r = 0; r < o->rows; r++) {
        int base = r / o->length * o->length;
        for (int h = 0; h < o->heads; h++) {
            const double *p = m->p + ((size_t)r * (size_t)o->heads + (size_t)h) * (size_t)o->length;
            const double *d = d_att + (size_t)(r * width + h * size);
            double *d_p = fresh((size_t)o->length);
            double sum = 0.0;

            for (int t = 0; base + t <= r; t++) {
                const double *v = m->qkv + (size_t)((base + t) * 3 * width + 2 * width + h * size);
                double *d_v = d_qkv + (size_t)((base + t) * 3 * width + 2 * width + h * size);
                for (int i = 0; i < size; i++) {
                    d_p[t] += d[i] * v[i];
                    d_v[i] += p[t] * d[i];
                }
                sum += p[t] * d_p[t];
            }
            for (int t = 0; base + t <= r; t++) {
                double d_s = p[t] * (d_p[t] - sum) / sqrt(size);
                for (int i = 0; i < size; i++) {
                    int q = r * 3 * width + h * size + i;
                    int k = (base + t) * 3 * width + width + h * size + i;
                    d_qkv[q] += d_s * m->qkv[k];
                    d_qkv[k] += d_s * m->qkv[q];
                }
            }
            free(d_p);
        }
    }
}

#define GELU_SCALE 0.7978845608028654

static double gelu(double x)
{
    return 0.5 * x * (1.0 + tanh(GELU_SCALE * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(GELU_SCALE * (x + 0.044715 * x * x * x));

    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * GELU_SCALE * (1.0 + 3.0 * 0.044715 * x * x);
}

static void block_forward(const oracle_t *o, memory_t *m, int layer)
{
    size_t at = gpt2_layout_block(o->layout, layer);
    int c = o->width;
    size_t n = (size_t)o->rows * (size_t)c;
    double *added = fresh(n);

    m->ln1 = fresh(n);
    m->qkv = fresh(3 * n);
    m->p = fresh((size_t)o->rows * (size_t)o->heads * (size_t)o->length);
    m->att = fresh(n);
    m->middle = fresh(n);
    m->ln2 = fresh(n);
    m->fc = fresh(4 * n);
    m->gelu = fresh(4 * n);
    m->output = fresh(n);
    norm(m->ln1, m->input, weight_of(o, at + GPT2_LN1_W), weight_of(o, at + GPT2_LN1_B), o->rows,
         c);
    linear(m->qkv, m->ln1, weight_of(o, at + GPT2_QKV_W), weight_of(o, at + GPT2_QKV_B), o->rows, c,
           3 * c);
    attention(o, m);
    linear(added, m->att, weight_of(o, at + GPT2_PROJ_W), weight_of(o, at + GPT2_PROJ_B), o->rows,
           c, c);
    for (size_t i = 0; i < n; i++)
        m->middle[i] = m->input[i] + added[i];
    norm(m->ln2, m->middle, weight_of(o, at + GPT2_LN2_W), weight_of(o, at + GPT2_LN2_B), o->rows,
         c);
    linear(m->fc, m->ln2, weight_of(o, at + GPT2_FC_W), weight_of(o, at + GPT2_FC_B), o->rows, c,
           4 * c);
    for (size_t i = 0; i < 4 * n; i++)
        m->gelu[i] = gelu(m->fc[i]);
    linear(added, m->gelu, weight_of(o, at + GPT2_FCPROJ_W), weight_of(o, at + GPT2_FCPROJ_B),
           o->rows, 4 * c, c);
    for (size_t i = 0; i < n; i++)
        m->output[i] = m->middle[i] + added[i];
    free(added);
}

static void block_back(const oracle_t *o, const memory_t *m, int layer, double *d)
{
    size_t at = gpt2_layout_block(o->layout, layer);
    int c = o->width;
    size_t n = (size_t)o->rows * (size_t)c;
    double *d_fc = fresh(4 * n);
    double *d_ln = fresh(n);
    double *d_att = fresh(n);
    double *d_qkv = fresh(3 * n);

    if (m->fc == NULL) abort(); /* forward was not run */
    linear_back(d_fc, gradient_of(o, at + GPT2_FCPROJ_W), gradient_of(o, at + GPT2_FCPROJ_B), d,
                m->gelu, weight_of(o, at + GPT2_FCPROJ_W), o->rows, 4 * c, c);
    for (size_t i = 0; i < 4 * n; i++)
        d_fc[i] *= gelu_slope(m->fc[i]);
    linear_back(d_ln, gradient_of(o, at + GPT2_FC_W), gradient_of(o, at + GPT2_FC_B), d_fc, m->ln2,
                weight_of(o, at + GPT2_FC_W), o->rows, c, 4 * c);
    norm_back(d, gradient_of(o, at + GPT2_LN2_W), gradient_of(o, at + GPT2_LN2_B), d_ln, m->middle,
              weight_of(o, at + GPT2_LN2_W), o->rows, c);
    linear_back(d_att, gradient_of(o, at + GPT2_PROJ_W), gradient_of(o, at + GPT2_PROJ_B), d,
                m->att, weight_of(o, at + GPT2_PROJ_W), o->rows, c, c);
    attention_back(o, m, d_qkv, d_att);
    memset(d_ln, 0, n * sizeof(double));
    linear_back(d_ln, gradient_of(o, at + GPT2_QKV_W), gradient_of(o, at + GPT2_QKV_B), d_qkv,
                m->ln1, weight_of(o, at + GPT2_QKV_W), o->rows, c, 3 * c);
    norm_back(d, gradient_of(o, at + GPT2_LN1_W), gradient_of(o, at + GPT2_LN1_B), d_ln, m->input,
              weight_of(o, at + GPT2_LN1_W), o->rows, c);
    free(d_fc);
    free(d_ln);
    free(d_att);
    free(d_qkv);
}

/* Softmax loss; logits become their gradient for the mean. */
static double cross_entropy(double *logits, const int32_t *y, int rows, int vocab)
{
    double loss = 0.0;

    for (int r = 0; r < rows; r++) {
        double *row = logits + (size_t)r * (size_t)vocab;
        double sum = 0.0;

        for (int v = 0; v < vocab; v++)
            sum += exp(row[v]);
        loss += (log(sum) - row[y[r]]) / rows;
        for (int v = 0; v < vocab; v++)
            row[v] = exp(row[v]) / sum / rows;
        row[y[r]] -= 1.0 / rows;
    }
    return loss;
}

static void memory_free(memory_t *m)
{
    free(m->ln1);
    free(m->qkv);
    free(m->p);
    free(m->att);
    free(m->middle);
    free(m->ln2);
    free(m->fc);
    free(m->gelu);
    free(m->output);
}

double oracle_loss(const gpt2_layout_t *layout, const double *weights, const int32_t *x,
                   const int32_t *y, int batch, int length, double *gradients)
{
    oracle_t o = {layout,
                  weights,
                  gradients,
                  batch * length,
                  length,
                  layout->shape.width,
                  layout->shape.heads};
    int layers = layout->shape.layers;
    int c = o.width;
    int vocab = layout->shape.vocab;
    size_t n = (size_t)o.rows * (size_t)c;
    const double *wte = weight_of(&o, gpt2_layout_wte(layout));
    const double *wpe = weight_of(&o, gpt2_layout_wpe(layout));
    double *embedded = fresh(n);
    double *normed = fresh(n);
    double *logits = fresh((size_t)o.rows * (size_t)vocab);
    memory_t *m = calloc((size_t)layers, sizeof(*m));
    double loss;
    double *last = embedded;

    if (m == NULL) abort();
    for (int r = 0; r < o.rows; r++) {
        for (int i = 0; i < c; i++)
            embedded[r * c + i] = wte[x[r] * c + i] + wpe[r % length * c + i];
    }
    for (int layer = 0; layer < layers; layer++) {
        m[layer].input = last;
        block_forward(&o, &m[layer], layer);
        last = m[layer].output;
    }
    norm(normed, last, weight_of(&o, 0), weight_of(&o, 1), o.rows, c);
    linear(logits, normed, wte, NULL, o.rows, c, vocab);
    loss = cross_entropy(logits, y, o.rows, vocab);
    if (gradients != NULL) {
        double *d_normed = fresh(n);
        double *d = fresh(n);
        double *d_wte = gradient_of(&o, gpt2_layout_wte(layout));
        double *d_wpe = gradient_of(&o, gpt2_layout_wpe(layout));

        memset(gradients, 0, layout->arena_count * sizeof(double));
        linear_back(d_normed, d_wte, NULL, logits, normed, wte, o.rows, c, vocab);
        norm_back(d, gradient_of(&o, 0), gradient_of(&o, 1), d_normed, last, weight_of(&o, 0),
                  o.rows, c);
        for (int layer = layers - 1; layer >= 0; layer--)
            block_back(&o, &m[layer], layer, d);
        for (int r = 0; r < o.rows; r++) {
            for (int i = 0; i < c; i++) {
                d_wte[x[r] * c + i] += d[r * c + i];
                d_wpe[r % length * c + i] += d[r * c + i];
            }
        }
        free(d_normed);
        free(d);
    }
    for (int layer = 0; layer < layers; layer++)
        memory_free(&m[layer]);
    free(m);
    free(embedded);
    free(normed);
    free(logits);
    return loss;
}
