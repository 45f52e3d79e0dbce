/*
 * fuzz_model.c - any header, and any length, of an llm.c model file.
 *
 * The input is laid over the eight numbers of a good header; what follows are its weights. A shape
 * that is small enough to hold is also loaded, into a model of that shape.
 */
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

#include "examples/gpt2/data/data.h"
#include "examples/gpt2/data/llmc.h"
#include "tests/fuzz/scratch.h"

#define HEADER_BYTES ((size_t)GPT2_HEADER_INTS * 4)
#define HEADER_USED 32 /* eight numbers */
#define WEIGHTS_MAX ((size_t)4096)

static const int32_t good[HEADER_USED / 4] = {20240326, 3, 4, 8, 1, 2, 4, 8};

static void load(const char *path, const gpt2_shape_t *shape)
{
    gpt2_error_t error = {""};
    gpt2_model_options_t options = {
        .shape = *shape, .batch = 1, .length = 1, .threads = 1, .training = 0};
    gpt2_layout_t *layout = NULL;
    gpt2_model_t *model = NULL;

    if (gpt2_layout_create(shape, &layout, &error) != 0) abort();
    if (layout->parameter_count <= WEIGHTS_MAX &&
        gpt2_model_create(&options, &model, &error) == 0) {
        if (gpt2_llmc_load(path, model, &error) != 0 && error.text[0] == '\0') abort();
        gpt2_model_destroy(model);
    }
    gpt2_layout_destroy(layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_input_t input = {data, bytes};
    size_t size = fuzz_number(&input, 2) % (HEADER_BYTES + 4 * WEIGHTS_MAX);
    uint8_t *content = calloc(1, HEADER_BYTES + 4 * WEIGHTS_MAX);
    gpt2_error_t error = {""};
    gpt2_shape_t shape;
    const char *path;
    size_t got;
    const uint8_t *at;

    if (content == NULL) return 0;
    at = fuzz_take(&input, HEADER_USED, &got);
    memcpy(content, good, HEADER_USED);
    for (size_t i = 0; i < got; i++)
        content[i] ^= at[i];
    at = fuzz_take(&input, 4 * WEIGHTS_MAX, &got);
    if (got > 0) memcpy(content + HEADER_BYTES, at, got);
    path = scratch_write("model.bin", content, size);
    if (gpt2_llmc_inspect(path, &shape, &error) == 0) {
        load(path, &shape);
    } else if (error.text[0] == '\0') {
        abort();
    }
    free(content);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const uint16_t sizes[] = {0, 20, 1023, 1024, 2048, 2560, 17000};

    (void)room;
    if (which >= sizeof(sizes) / sizeof(sizes[0])) return 0;
    memset(data, 0, 2 + HEADER_USED + 16);
    data[0] = (uint8_t)sizes[which];
    data[1] = (uint8_t)(sizes[which] >> 8);
    return 2 + HEADER_USED + 16;
}
