/*
 * fuzz_tokens.c - any bytes as a file to train on: a text, or 16-bit tokens behind a header.
 *
 * The first byte picks the file's name, whether the header's count is made right, whether tokens
 * need a header, and whether a second file follows; the second
 * the vocabulary, the third the length of a sequence.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "examples/gpt2/data/view.h"
#include "tests/fuzz/scratch.h"

#define HEADER_BYTES ((size_t)GPT2_HEADER_INTS * 4)
#define SEQUENCES 3

static void put_int(uint8_t *data, size_t index, uint32_t value)
{
    for (size_t i = 0; i < 4; i++)
        data[4 * index + i] = (uint8_t)(value >> (8 * i));
}

static void use(gpt2_data_t *data, int vocab, int length)
{
    gpt2_error_t error = {""};
    gpt2_view_t all = gpt2_view_all(data);
    gpt2_view_t parts[2];
    int32_t *tokens = calloc((size_t)2 * SEQUENCES * (size_t)length, sizeof(*tokens));
    int32_t *targets = tokens + (size_t)SEQUENCES * (size_t)length;
    double unigram;
    double bigram;

    if (tokens == NULL) return;
    if (gpt2_data_check(data, vocab, &error) != 0) {
        if (error.text[0] == '\0') abort();
        free(tokens);
        return;
    }
    gpt2_view_split(&all, 0.1, &parts[0], &parts[1]);
    if (parts[0].count + parts[1].count != all.count) abort();
    for (int i = 0; i < 2; i++) {
        if (gpt2_view_check(&parts[i], "this part", length, &error) != 0) continue;
        if (gpt2_view_training(&parts[i], 7, length, 5, SEQUENCES, tokens, targets, &error) != 0)
            abort();
        for (int k = 0; k < SEQUENCES * length; k++)
            if (tokens[k] < 0 || tokens[k] >= vocab || targets[k] >= vocab) abort();
        if (gpt2_view_validation(&parts[i], length, 4, 1, SEQUENCES, tokens, targets, &error) != 0)
            abort();
        for (int k = 0; k < SEQUENCES * length; k++)
            if (tokens[k] < 0 || tokens[k] >= vocab || targets[k] >= vocab) abort();
        if (gpt2_data_is_text(data) && gpt2_view_entropy(&parts[i], &unigram, &bigram, &error) != 0)
            abort();
    }
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    unsigned choice = (unsigned)fuzz_number(&input, 1);
    int vocab = 1 << fuzz_number(&input, 1) % 17;
    int length = 1 + (int)(fuzz_number(&input, 1) % 16);
    gpt2_data_t *file = NULL;
    gpt2_error_t error = {""};
    uint8_t *content = calloc(1, HEADER_BYTES + input.bytes + 2);
    size_t size = input.bytes;
    char *list[2];
    const gpt2_words_t words = {list, choice & 16 ? 2 : 1};

    if (content == NULL) return 0;
    if (choice & 2) {
        put_int(content, 0, GPT2_TOKENS_MAGIC);
        put_int(content, 1, GPT2_TOKENS_VERSION);
        put_int(content, 2, (uint32_t)(size / 2));
        if (size > 0) memcpy(content + HEADER_BYTES, input.data, size);
        size = HEADER_BYTES + (choice & 4 ? size : size & ~(size_t)1);
    } else if (size > 0) {
        memcpy(content, input.data, size);
    }
    list[0] = (char *)(uintptr_t)scratch_write(choice & 1 ? "data.bin" : "data.txt", content, size);
    list[1] = (char *)(uintptr_t)scratch_write("second", content, size);
    if (gpt2_data_open(&words, (choice & 8) != 0, &file, &error) == 0) {
        use(file, vocab, length);
        gpt2_data_close(file);
    } else if (error.text[0] == '\0') {
        abort();
    }
    free(content);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    size_t bytes = 0;

    (void)room;
    switch (which) {
    case 0: /* a text */
        memcpy(data, "\x00\x08\x03", 3);
        memset(data + 3, 'a', 200);
        return 203;
    case 1: /* tokens, all of them below 16 */
        memcpy(data, "\x03\x04\x04", 3);
        for (bytes = 3; bytes < 203; bytes += 2) {
            data[bytes] = (uint8_t)(bytes % 16);
            data[bytes + 1] = 0;
        }
        return bytes;
    case 2: /* a header of its own */
        memcpy(data, "\x01\x10\x02", 3);
        memset(data + 3, 0, HEADER_BYTES + 8);
        put_int(data + 3, 0, GPT2_TOKENS_MAGIC);
        put_int(data + 3, 1, GPT2_TOKENS_VERSION);
        put_int(data + 3, 2, 4);
        return 3 + HEADER_BYTES + 8;
    default:
        return 0;
    }
}
