/*
 * fuzz_safetensors.c - any bytes as an HF model file; a shape that is small enough is also loaded.
 */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>

#include "examples/gpt2/data/safetensors.h"
#include "tests/fuzz/scratch.h"

#define WEIGHTS_MAX ((size_t)1 << 16)

static gpt2_model_t *make(const gpt2_shape_t *shape)
{
    const gpt2_model_options_t options = {
        .shape = *shape, .batch = 1, .length = 1, .threads = 1, .weights_only = 1};
    gpt2_model_t *model = NULL;

    return gpt2_model_create(&options, &model, NULL) == 0 ? model : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *path = scratch_write("model.safetensors", data, bytes);
    gpt2_layout_t *layout = NULL;
    gpt2_error_t error = {""};
    gpt2_shape_t shape;
    gpt2_model_t *model;

    if (gpt2_safetensors_inspect(path, &shape, &error) != 0) {
        if (error.text[0] == '\0') abort();
        return 0;
    }
    if (gpt2_layout_create(&shape, &layout, &error) != 0) abort();
    if (layout->parameter_count <= WEIGHTS_MAX && (model = make(&shape)) != NULL) {
        if (gpt2_safetensors_load(path, model, &error) != 0 && error.text[0] == '\0') abort();
        gpt2_model_destroy(model);
    }
    gpt2_layout_destroy(layout);
    return 0;
}

/* Two files as we write them, and two of odd shape. */
size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    static const char *const texts[] = {
        "{\"__metadata__\":{\"n_head\":\"1\",\"a\":[1,{\"b\":null}]},\"wte.weight\":{\"dtype\":"
        "\"F16\",\"shape\":[2,"
        "2],"
        "\"data_offsets\":[0,8]},\"transformer.wpe.weight\":{\"data_offsets\":[8,12],\"shape\":[1,"
        "2],"
        "\"dtype\":\"F16\"},\"h.0.attn.bias\":{\"shape\":[],\"dtype\":\"U8\",\"data_offsets\":[12,"
        "13]}}"
        "0123456789abc",
        "{\"h.7.ln_1.bias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}   0123"};
    static const gpt2_shape_t shape = {2, 2, 1, 1, 1, 2};
    size_t bytes = 0;

    if (which < 2) {
        const char *path = scratch_path("seed.safetensors");
        gpt2_model_t *model = make(&shape);
        FILE *file;

        if (model == NULL || gpt2_safetensors_save(path, model, which == 1, NULL) != 0) abort();
        gpt2_model_destroy(model);
        file = fopen(path, "rbe");
        if (file == NULL) abort();
        bytes = fread(data, 1, room, file);
        (void)fclose(file);
        return bytes;
    }
    which -= 2;
    if (which >= sizeof(texts) / sizeof(texts[0])) return 0;
    bytes = strlen(texts[which]);
    memset(data, 0, 8);
    data[0] = (uint8_t)(bytes - (which == 0 ? 13 : 4));
    data[1] = (uint8_t)((bytes - (which == 0 ? 13 : 4)) >> 8);
    memcpy(data + 8, texts[which], bytes);
    return 8 + bytes;
}
