/*
 * fixture.h - reads what make_fixtures.py wrote, and the helpers that compare with it.
 */
#ifndef GPT2_TEST_FIXTURE_H
#define GPT2_TEST_FIXTURE_H

#include <stdint.h>

#include "examples/gpt2/model/model.h"

typedef struct fixture {
    gpt2_shape_t shape;
    int batch;
    int length;
    int steps;
    double learning_rate;
    double beta1;
    double beta2;
    double decay;
    double loss;
    double *losses;     /* [steps] */
    int32_t *x;         /* [batch][length] */
    int32_t *y;         /* [batch][length] */
    float *weights;     /* tensors behind each other, without gaps */
    float *logits;      /* [batch * length][vocab] */
    float *gradients;   /* as weights */
    float *weights_end; /* after the steps */
} fixture_t;

/* Reads a file whole; fails the test where it cannot. */
void fixture_read(fixture_t *fixture, const char *name);
void fixture_free(fixture_t *fixture);

/* Copies between gapless tensors and an arena. */
void fixture_to_arena(const gpt2_layout_t *layout, float *arena, const float *packed);

/* ||a - b|| / ||b||, in double; 0 for two zeros. */
double relative_l2(const float *a, const float *b, size_t count);
double relative_l2_double(const float *a, const double *b, size_t count);

#endif
