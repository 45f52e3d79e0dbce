/*
 * sample.c - reads the prompt before the run, and writes the sample behind it. Main thread.
 */
#include "examples/gpt2/train/sample.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/model/generate.h"

int gpt2_tokenizer_open(gpt2_options_t *options, int is_text, gpt2_vocabulary_t **out,
                        gpt2_error_t *error)
{
    int64_t count;

    *out = NULL;
    if (options->tokenizer.count == 0) return 0;
    if (is_text) {
        return gpt2_fail(error,
                         "--tokenizer: the data are a text, whose bytes are the tokens; gpt2 "
                         "tokenize FILE -o FILE.bin makes a file of tokens");
    }
    if (gpt2_vocabulary_open(&options->tokenizer, out, error) != 0) return -1;
    count = (int64_t)gpt2_vocabulary_count(*out);
    if (options->vocab < 0) options->vocab = count;
    if (options->vocab >= count) return 0;
    return gpt2_fail(error, "--vocab %lld, but --tokenizer %s has %lld tokens",
                     (long long)options->vocab, options->tokenizer.list[0], (long long)count);
}

/* Numbers, separated by blanks or commas. */
static int read_numbers(const char *text, gpt2_tokens_t *prompt, gpt2_error_t *error)
{
    while (*text != '\0') {
        char *end;
        const long token = strtol(text, &end, 10);

        if (end == text || token < 0 || token > INT32_MAX) {
            return gpt2_fail(error,
                             "--sample \"%s\": expected token numbers, e.g. \"464 1\", or "
                             "words and --tokenizer",
                             text);
        }
        if (gpt2_tokens_append(prompt, (int32_t)token, error) != 0) return -1;
        text = end + strspn(end, ", ");
    }
    return 0;
}

static int encode_words(const gpt2_vocabulary_t *vocabulary, const char *text,
                        gpt2_tokens_t *prompt, gpt2_error_t *error)
{
    gpt2_encoder_t *encoder;
    size_t used;
    int code;

    if (gpt2_encoder_create(vocabulary, &encoder, error) != 0) return -1;
    code = gpt2_encode(encoder, text, strlen(text), 1, &used, prompt, error);
    gpt2_encoder_destroy(encoder);
    return code;
}

int gpt2_sample_read(const gpt2_trainer_t *trainer, gpt2_tokens_t *prompt, gpt2_error_t *error)
{
    const char *text = trainer->options->sample;
    const int vocab = trainer->replica->layout->shape.vocab;
    int code = 0;

    if (text == NULL) return 0;
    if (gpt2_data_is_text(trainer->corpus.data)) {
        for (const char *at = text; *at != '\0' && code == 0; at++)
            code = gpt2_tokens_append(prompt, (unsigned char)*at, error);
    } else if (trainer->vocabulary != NULL) {
        code = encode_words(trainer->vocabulary, text, prompt, error);
    } else {
        code = read_numbers(text, prompt, error);
    }
    if (code != 0) return -1;
    if (prompt->count == 0)
        return gpt2_fail(error, "--sample \"%s\": no token to go on from", text);
    for (size_t i = 0; i < prompt->count; i++) {
        if (prompt->list[i] < vocab) continue;
        return gpt2_fail(error, "--sample \"%s\": token %d is outside the vocabulary of %d", text,
                         (int)prompt->list[i], vocab);
    }
    return 0;
}

/* Control characters, which a terminal might obey, as \x1b. */
static void print_byte(unsigned char byte)
{
    if (isprint(byte) || byte == '\n' || byte == '\t' || byte >= 0x80) {
        (void)putchar(byte);
    } else {
        (void)printf("\\x%02x", (unsigned)byte);
    }
}

static void print_token(const gpt2_trainer_t *trainer, int32_t token)
{
    const gpt2_vocabulary_t *vocabulary = trainer->vocabulary;
    const unsigned char *piece;
    size_t bytes = 0;

    if (gpt2_data_is_text(trainer->corpus.data)) {
        print_byte((unsigned char)token);
    } else if (vocabulary == NULL || (size_t)token >= gpt2_vocabulary_count(vocabulary)) {
        (void)printf(" %d", (int)token);
    } else {
        piece = gpt2_vocabulary_bytes(vocabulary, token, &bytes);
        for (size_t i = 0; i < bytes; i++)
            print_byte(piece[i]);
    }
}

int gpt2_sample_print(const gpt2_trainer_t *trainer, const gpt2_model_t *model,
                      const gpt2_tokens_t *prompt, gpt2_error_t *error)
{
    const gpt2_options_t *options = trainer->options;
    const gpt2_sampling_t sampling = {options->temperature, (int)options->top_k,
                                      (uint64_t)options->seed};
    const int32_t end = trainer->vocabulary == NULL ? -1 : gpt2_vocabulary_end(trainer->vocabulary);
    gpt2_generator_t *generator;
    const float *logits = NULL;

    if (gpt2_generator_create(model, &generator, error) != 0) return -1;
    for (size_t i = 0; i < prompt->count; i++)
        logits = gpt2_generator_feed(generator, prompt->list[i]);
    (void)printf("sample  %s", options->sample);
    for (int64_t i = 0; i < options->sample_tokens; i++) {
        const int32_t token = gpt2_generator_pick(generator, logits, &sampling, (uint64_t)i);

        if (token == end) break;
        print_token(trainer, token);
        if (i + 1 < options->sample_tokens) logits = gpt2_generator_feed(generator, token);
    }
    (void)printf("\n");
    gpt2_generator_destroy(generator);
    return 0;
}
