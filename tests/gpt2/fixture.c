/*
 * fixture.c - reads the fixtures. GPT2_FIXTURES is their folder, from CMake.
 */
#include "tests/gpt2/fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void take(FILE *file, void *to, size_t bytes, const char *name)
{
    if (fread(to, 1, bytes, file) == bytes) return;
    fprintf(stderr, "%s: shorter than its header says\n", name);
    abort();
}

static void *take_new(FILE *file, size_t bytes, const char *name)
{
    void *to = malloc(bytes);

    if (to == NULL) abort();
    take(file, to, bytes, name);
    return to;
}

void fixture_read(fixture_t *fixture, const char *name)
{
    char path[1024];
    char magic[8];
    int32_t header[8];
    double settings[4];
    size_t rows;
    gpt2_layout_t *layout;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/%s.bin", GPT2_FIXTURES, name);
    file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s: cannot be opened\n", path);
        abort();
    }
    take(file, magic, sizeof(magic), path);
    if (memcmp(magic, "gpt2fix1", sizeof(magic)) != 0) abort();
    take(file, header, sizeof(header), path);
    take(file, settings, sizeof(settings), path);
    fixture->shape =
        (gpt2_shape_t){header[0], header[0], header[1], header[2], header[3], header[4]};
    fixture->batch = header[5];
    fixture->length = header[6];
    fixture->steps = header[7];
    fixture->learning_rate = settings[0];
    fixture->beta1 = settings[1];
    fixture->beta2 = settings[2];
    fixture->decay = settings[3];
    rows = (size_t)fixture->batch * (size_t)fixture->length;
    if (gpt2_layout_create(&fixture->shape, &layout, NULL) != 0) abort();
    take(file, &fixture->loss, sizeof(fixture->loss), path);
    fixture->losses = take_new(file, (size_t)fixture->steps * sizeof(double), path);
    fixture->x = take_new(file, rows * sizeof(int32_t), path);
    fixture->y = take_new(file, rows * sizeof(int32_t), path);
    fixture->weights = take_new(file, layout->parameter_count * sizeof(float), path);
    fixture->logits = take_new(file, rows * (size_t)header[0] * sizeof(float), path);
    fixture->gradients = take_new(file, layout->parameter_count * sizeof(float), path);
    fixture->weights_end = take_new(file, layout->parameter_count * sizeof(float), path);
    gpt2_layout_destroy(layout);
    (void)fclose(file);
}

void fixture_free(fixture_t *fixture)
{
    free(fixture->losses);
    free(fixture->x);
    free(fixture->y);
    free(fixture->weights);
    free(fixture->logits);
    free(fixture->gradients);
    free(fixture->weights_end);
}

void fixture_to_arena(const gpt2_layout_t *layout, float *arena, const float *packed)
{
    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];

        memcpy(arena + tensor->offset, packed, tensor->count * sizeof(float));
        packed += tensor->count;
    }
}

double relative_l2(const float *a, const float *b, size_t count)
{
    double difference = 0.0;
    double size = 0.0;

    for (size_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return difference == 0.0 ? 0.0 : sqrt(difference / (size > 0.0 ? size : 1e-300));
}

double relative_l2_double(const float *a, const double *b, size_t count)
{
    double difference = 0.0;
    double size = 0.0;

    for (size_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return difference == 0.0 ? 0.0 : sqrt(difference / (size > 0.0 ? size : 1e-300));
}
