/*
 * hold.c - how long a training step takes whose gradients come one by one over a backward pass, on
 * an emulated wire: the program of hold.sh. It uses nothing but dp.h.
 *
 *     hold [tensors=600] [bytes=16384] [backward_us=4000] [steps=120]
 *
 * Prints the median time of a step in ms, of the last third of the steps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dp.h"

#define TENSORS_MAX 4096

typedef struct options {
    size_t tensors, bytes, backward_us, steps;
} options_t;

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The accelerator computes: this core is free meanwhile. */
static void compute_until(double end_s)
{
    const double left_s = end_s - now_s();
    struct timespec pause;

    if (left_s <= 0.0) return;
    pause.tv_sec = (time_t)left_s;
    pause.tv_nsec = (long)((left_s - (double)pause.tv_sec) * 1e9);
    nanosleep(&pause, NULL);
}

static void must(dp_context_t *dp, dp_status_t status)
{
    if (status == DP_OK) return;
    fprintf(stderr, "hold: %s\n", dp == NULL ? dp_status_string(status) : dp_error_text(dp));
    exit(1);
}

static void step(dp_context_t *dp, const options_t *options, char *memory, dp_handle_t **handles)
{
    const double begin_s = now_s();
    const double backward_s = (double)options->backward_us * 1e-6;
    char name[32];

    for (size_t t = 0; t < options->tensors; t++) {
        float *tensor = (float *)(void *)(memory + t * options->bytes);

        compute_until(begin_s + backward_s * (double)t / (double)options->tensors);
        snprintf(name, sizeof(name), "gradient.%zu", t);
        must(dp, dp_allreduce(dp_world(dp), name, tensor, tensor, options->bytes / sizeof(float),
                              DP_F32, NULL, &handles[t]));
    }
    for (size_t t = 0; t < options->tensors; t++)
        must(dp, dp_wait(handles[t], -1.0, NULL));
}

static int ascending(const void *a, const void *b)
{
    double x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

static void parse(int count, char **words, options_t *options)
{
    const struct {
        const char *name;
        size_t *value;
    } known[] = {{"tensors=", &options->tensors},
                 {"bytes=", &options->bytes},
                 {"backward_us=", &options->backward_us},
                 {"steps=", &options->steps}};

    for (int i = 1; i < count; i++) {
        size_t k = 0;

        while (k < 4 && strncmp(words[i], known[k].name, strlen(known[k].name)) != 0)
            k++;
        if (k < 4) *known[k].value = strtoul(words[i] + strlen(known[k].name), NULL, 10);
        if (k == 4 || *known[k].value == 0) {
            fprintf(stderr, "hold: what is %s? see hold.c\n", words[i]);
            exit(2);
        }
    }
    if (options->tensors > TENSORS_MAX) options->tensors = TENSORS_MAX;
    if (options->steps < 3) options->steps = 3;
}

int main(int count, char **words)
{
    options_t options = {600, 16384, 4000, 120};
    static dp_handle_t *handles[TENSORS_MAX];
    dp_context_t *dp = NULL;
    void *memory;
    double *times;
    size_t last;

    parse(count, words, &options);
    last = options.steps / 3;
    times = calloc(options.steps, sizeof(*times));
    if (times == NULL) return 1;
    must(NULL, dp_init(NULL, &dp));
    must(dp, dp_alloc(dp, options.tensors * options.bytes, &memory));
    memset(memory, 0, options.tensors * options.bytes);
    for (size_t s = 0; s < options.steps; s++) {
        const double begin_s = now_s();

        dp_step_begin(dp, s);
        step(dp, &options, memory, handles);
        dp_step_end(dp);
        times[s] = now_s() - begin_s;
    }
    qsort(times + options.steps - last, last, sizeof(*times), ascending);
    printf("%.3f\n", times[options.steps - last + last / 2] * 1e3);
    must(dp, dp_finalize(dp));
    free(times);
    return 0;
}
