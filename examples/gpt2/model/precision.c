/*
 * precision.c - reads --precision, --amp and --loss-scale. Called once per rank, before anything is
 * allocated.
 */
#include "examples/gpt2/model/precision.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/nearest.h"

#define FP16_SCALE 65536.0 /* where Apex and torch.amp begin */

static const char *const NAMES[] = {"fp32", "bf16", "fp16", "auto"};
static const char *const LEVELS[] = {"O0", "O1", "O2", "auto"};
#define AUTO 3

/* *place = where the word stands in words [4]. */
static int find_word(const char *flag, const char *word, const char *const *words, int *place,
                     gpt2_error_t *error)
{
    for (*place = 0; *place <= AUTO; (*place)++) {
        if (strcmp(word, words[*place]) == 0) return 0;
    }
    return gpt2_fail(error, "%s %s: no such choice, did you mean %s?", flag, word,
                     gpt2_nearest(word, words, AUTO + 1));
}

/* *scale = where the loss scale begins; 0: there is none. */
static int read_scale(const char *word, gpt2_precision_t precision, double *scale,
                      gpt2_error_t *error)
{
    char *end;
    int exponent;

    *scale = 0.0;
    if (strcmp(word, "none") == 0) return 0;
    if (strcmp(word, "auto") == 0) {
        if (precision == GPT2_FP16) *scale = FP16_SCALE;
        return 0;
    }
    errno = 0;
    *scale = strtod(word, &end);
    if (end == word || *end != '\0' || errno != 0 ||
        !(*scale >= 1.0 && *scale <= GPT2_LOSS_SCALE_MAX) || frexp(*scale, &exponent) != 0.5) {
        return gpt2_fail(error,
                         "--loss-scale %s: neither auto, none nor a power of two from 1 to %.0f",
                         word, GPT2_LOSS_SCALE_MAX);
    }
    return 0;
}

const char *gpt2_precision_name(gpt2_precision_t precision)
{
    return NAMES[precision];
}

int gpt2_precision_choose(const gpt2_precision_words_t *words, const char *device,
                          gpt2_precision_plan_t *out, gpt2_error_t *error)
{
    const int on_gpu = strcmp(device, "cuda") == 0;
    int precision;
    int level;

    if (find_word("--precision", words->precision, NAMES, &precision, error) != 0) return -1;
    if (find_word("--amp", words->level, LEVELS, &level, error) != 0) return -1;
    if (precision == AUTO) {
        precision = level == 0 || (level == AUTO && !on_gpu) ? GPT2_FP32 : GPT2_BF16;
    }
    if (level == AUTO) level = precision == GPT2_FP32 ? 0 : 1;
    if ((precision == GPT2_FP32) != (level == 0)) {
        return gpt2_fail(error, "--amp %s computes in %s, but --precision is %s", LEVELS[level],
                         level == 0 ? "fp32" : "16 bits", NAMES[precision]);
    }
    *out = (gpt2_precision_plan_t){.precision = (gpt2_precision_t)precision, .level = level};
    out->scale.growth_interval = words->growth;
    out->scale.hysteresis = words->hysteresis;
    return read_scale(words->loss_scale, out->precision, &out->scale.initial, error);
}
