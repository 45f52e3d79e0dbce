/*
 * test_gpt2_safetensors.c - HF's model files: what is written is read back, HF's own peculiarities
 * are understood, and files that lie are refused with the reason.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/gpt2/base/halves.h"
#include "examples/gpt2/data/hf_config.h"
#include "examples/gpt2/data/safetensors.h"
#include "tests/gpt2/scratch.h"
#include "tests/unit/cases.h"

static gpt2_error_t error;
static const gpt2_shape_t SHAPE = {300, 384, 24, 2, 2, 16}; /* heads of 8: not OpenAI's 64 */

static gpt2_model_t *make(gpt2_shape_t shape, uint64_t seed)
{
    const gpt2_model_options_t options = {
        .shape = shape, .batch = 1, .length = 1, .threads = 1, .weights_only = 1};
    gpt2_model_t *model;

    if (gpt2_model_create(&options, &model, &error) != 0) fail_msg("%s", error.text);
    gpt2_model_init_weights(model, seed);
    return model;
}

static void refused(const char *path, const char *why)
{
    gpt2_model_t *model = make(SHAPE, 2);
    gpt2_shape_t shape;

    error.text[0] = '\0';
    if (gpt2_safetensors_inspect(path, &shape, &error) == 0 &&
        gpt2_safetensors_load(path, model, &error) == 0) {
        fail_msg("accepted; expected \"%s\"", why);
    }
    if (strstr(error.text, why) == NULL) fail_msg("\"%s\" lacks \"%s\"", error.text, why);
    gpt2_model_destroy(model);
}

static void files_round_trip(void **state)
{
    gpt2_model_t *model = make(SHAPE, 1);
    gpt2_model_t *other = make(SHAPE, 2);
    const char *path = scratch_path("model.safetensors");
    gpt2_shape_t shape;

    (void)state;
    assert_true(gpt2_safetensors_is(path));
    assert_false(gpt2_safetensors_is("model.bin"));
    assert_int_equal(gpt2_safetensors_save(path, model, 0, &error), 0);
    if (gpt2_safetensors_inspect(path, &shape, &error) != 0) fail_msg("%s", error.text);
    assert_memory_equal(&shape, &SHAPE, sizeof(shape)); /* heads by config.json */
    assert_int_equal(unlink(scratch_path("config.json")), 0);
    assert_int_equal(gpt2_safetensors_inspect(path, &shape, &error), 0);
    assert_int_equal(shape.heads, SHAPE.heads); /* by our metadata */
    if (gpt2_safetensors_load(path, other, &error) != 0) fail_msg("%s", error.text);
    assert_memory_equal(model->weights, other->weights, model->layout->arena_count * sizeof(float));

    assert_int_equal(gpt2_safetensors_save(path, model, 1, &error), 0);
    if (gpt2_safetensors_load(path, other, &error) != 0) fail_msg("%s", error.text);
    for (size_t i = 0; i < model->layout->arena_count; i++) {
        assert_true(other->weights[i] == gpt2_from_bf16(gpt2_to_bf16(model->weights[i])));
        assert_true(fabsf(other->weights[i] - model->weights[i]) <=
                    fabsf(model->weights[i]) / 256.0f);
    }
    gpt2_model_destroy(model);
    gpt2_model_destroy(other);
}

/* HF keeps matrices [in][out]: element (output 3, input 5) of c_fc is at row 5, column 3. */
static void matrices_are_transposed(void **state)
{
    gpt2_model_t *model = make(SHAPE, 1);
    const char *path = scratch_path("model.safetensors");
    const size_t index = gpt2_layout_find(model->layout, "h.1.mlp.fc.weight");
    char *text = calloc(1, 1 << 18);
    unsigned long begin;
    const char *at;
    size_t header;
    FILE *file;
    float found;

    (void)state;
    assert_non_null(text);
    assert_int_equal(gpt2_safetensors_save(path, model, 0, &error), 0);
    file = fopen(path, "rbe");
    assert_non_null(file);
    assert_true(fread(text, 1, 1 << 18, file) > 0);
    (void)fclose(file);
    header = (size_t)(unsigned char)text[0] + 256 * (size_t)(unsigned char)text[1];
    assert_int_equal(header % 8, 0);
    at = strstr(text + 8, "\"h.1.mlp.c_fc.weight\":{\"dtype\":\"F32\",\"shape\":[16,64]");
    assert_non_null(at);
    at = strstr(at, "data_offsets\":[");
    assert_non_null(at);
    begin = strtoul(at + strlen("data_offsets\":["), NULL, 10);
    memcpy(&found, text + 8 + header + begin + sizeof(float) * ((size_t)5 * 64 + 3), sizeof(found));
    assert_true(found == model->weights[model->layout->tensors[index].offset + (size_t)3 * 16 + 5]);
    free(text);
    gpt2_model_destroy(model);
}

/* A file from its header's text and so many bytes of data. */
static const char *write_file(const char *header, size_t data_bytes)
{
    const size_t length = strlen(header);
    char *content = calloc(1, 8 + length + data_bytes + 1);
    const char *path;

    assert_non_null(content);
    content[0] = (char)(length & 255);
    content[1] = (char)(length >> 8);
    (void)snprintf(content + 8, length + 1, "%s", header);
    for (size_t i = 0; i < data_bytes; i++)
        content[8 + length + i] = (char)(i % 2 == 0 ? 0 : 0x3c); /* fp16: 1.0 */
    path = scratch_write("odd.safetensors", content, 8 + length + data_bytes);
    free(content);
    return path;
}

#define MATRIX(name, rows, columns, begin, end)                                                    \
    "\"transformer." name "\":{\"dtype\":\"F16\",\"shape\":[" rows "," columns                     \
    "],\"data_offsets\":[" begin "," end "]},"
#define VECTOR(name, count, begin, end)                                                            \
    "\"transformer." name "\":{\"data_offsets\":[" begin "," end "],\"shape\":[" count             \
    "],\"dtype\":\"F16\"},"

/* With HF's prefix, masks, the head a second time, half precision and white space. */
static void hf_peculiarities_are_understood(void **state)
{
    static const char header[] = "{ " MATRIX("wte.weight", "2", "2", "0", "8") MATRIX(
        "wpe.weight", "1", "2", "8", "12") VECTOR("ln_f.weight", "2", "12", "16")
        VECTOR("ln_f.bias", "2", "16", "20") VECTOR("h.0.ln_1.weight", "2", "20", "24") VECTOR(
            "h.0.ln_1.bias", "2", "24", "28") MATRIX("h.0.attn.c_attn.weight", "2", "6", "28", "52")
            VECTOR("h.0.attn.c_attn.bias", "6", "52", "64")
                MATRIX("h.0.attn.c_proj.weight", "2", "2", "64", "72")
                    VECTOR("h.0.attn.c_proj.bias", "2", "72", "76")
                        VECTOR("h.0.ln_2.weight", "2", "76", "80")
                            VECTOR("h.0.ln_2.bias", "2", "80", "84") MATRIX("h.0.mlp.c_fc.weight",
                                                                            "2", "8", "84", "116")
                                VECTOR("h.0.mlp.c_fc.bias", "8", "116", "132")
                                    MATRIX("h.0.mlp.c_proj.weight", "8", "2", "132", "164")
                                        VECTOR("h.0.mlp.c_proj.bias", "2", "164",
                                               "168") "\"transformer.h.0.attn.bias\":{\"dtype\":"
                                                      "\"U8\",\"shape\":[1,1,1,1],"
                                                      "\"data_offsets\":[176,177]},\n\"lm_head."
                                                      "weight\":{\"dtype\":\"F16\",\"shape\":[2,2],"
                                                      "\"data_offsets\":[168,176]}, "
                                                      "\"__metadata__\":{\"format\":\"pt\"}}    ";
    const char *path = write_file(header, 177);
    gpt2_shape_t shape;
    gpt2_model_t *model;

    (void)state;
    if (gpt2_safetensors_inspect(path, &shape, &error) != 0) fail_msg("%s", error.text);
    assert_memory_equal(&shape, (&(gpt2_shape_t){2, 2, 1, 1, 1, 2}), sizeof(shape));
    model = make(shape, 1);
    if (gpt2_safetensors_load(path, model, &error) != 0) fail_msg("%s", error.text);
    for (size_t i = 0; i < model->layout->count; i++) {
        for (size_t j = 0; j < model->layout->tensors[i].count; j++)
            assert_true(model->weights[model->layout->tensors[i].offset + j] == 1.0f);
    }
    gpt2_model_destroy(model);
}

static void files_that_lie_are_refused(void **state)
{
    gpt2_model_t *model = make(SHAPE, 1);
    const char *path = scratch_path("model.safetensors");

    (void)state;
    refused(write_file("{\"a\":", 0), "not a safetensors header, at its byte");
    refused(write_file("[1]", 0), "not a safetensors header, at its byte 0");
    refused(write_file("{} x", 0), "not a safetensors header");
    refused(write_file("{}", 0), "not a GPT-2");
    refused(write_file("{}", 3), "no tensor has the bytes 0 to 3 of its data");
    refused(write_file("{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],"
                       "\"data_offsets\":[4,9]}}",
                       8),
            "wte.weight lies at 4 to 9, the data has 8 bytes");
    refused(write_file("{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[1,1],"
                       "\"data_offsets\":[4,3]}}",
                       8),
            "lies at 4 to 3");
    refused(write_file("{\"a\":{\"data_offsets\":[0,8]},\"b\":{\"data_offsets\":[0,8]}}", 8),
            "overlap");
    /* A gap of the same size makes up for it. */
    refused(write_file("{\"a\":{\"data_offsets\":[0,4]},\"b\":{\"data_offsets\":[0,4]}}", 8),
            "overlap");
    refused(write_file("{\"a\":{\"data_offsets\":[4,8]},\"b\":{\"data_offsets\":[0,3]}}", 8),
            "no tensor has the bytes 3 to 4 of its data");
    refused(write_file("{\"wte.weight\":{\"shape\":[99999999999,1],\"data_offsets\":[0,8]}}", 8),
            "wte.weight is no matrix of a usable size");
    refused(write_file("{\"wte.weight\":{\"shape\":[99999999999999999999,1],"
                       "\"data_offsets\":[0,8]}}",
                       8),
            "not a safetensors header");
    refused(scratch_write("long.safetensors", "\377\377\377\377\0\0\0\0{}", 10),
            "its header has 4294967295 bytes, the file 10");
    refused(scratch_write("short.safetensors", "\1\0", 2), "truncated");
    refused(scratch_path("none.safetensors"), "No such file");

    /* A whole file of another shape, and one that ends early. */
    assert_int_equal(gpt2_safetensors_save(path, model, 0, &error), 0);
    gpt2_model_destroy(model);
    model = make((gpt2_shape_t){300, 384, 24, 1, 2, 16}, 1);
    assert_int_equal(gpt2_safetensors_load(path, model, &error), -1);
    assert_non_null(strstr(error.text, "its shape is not this run's"));
    gpt2_model_destroy(model);
    assert_int_equal(truncate(path, 20000), 0);
    refused(path, "the data has");
}

/* Each field of config.json alone: which values are the arithmetic that is computed here. */
static void other_arithmetic_is_refused_by_its_field(void **state)
{
    static const struct {
        const char *field;
        const char *good; /* with '|' between them */
        const char *bad;
        const char *why;
    } cases[] = {
        {"model_type", "\"gpt2\"", "\"gptj\"|1", "this program computes gpt2"},
        {"activation_function", "\"gelu_new\"|\"gelu_pytorch_tanh\"|\"gelu_fast\"",
         "\"gelu\"|\"relu\"|\"gelu_ne\"|null", "this program computes gelu_new"},
        {"layer_norm_epsilon", "1e-5|1e-05|0.00001|\"1e-05\"", "1e-3|0|1e-5x|1e-6|\"\"",
         "this program computes 1e-5"},
        {"scale_attn_weights", "true|\"True\"", "false|\"False\"", "this program computes true"},
        {"scale_attn_by_inverse_layer_idx", "false|\"False\"", "true|1",
         "this program computes false"},
        {"reorder_and_upcast_attn", "true|false", NULL, NULL},
        {"attn_pdrop", "0.1|0", NULL, NULL},
        {"task_specific_params", "{\"n_head\":3}|null|[1,2]", NULL, NULL},
        {"add_cross_attention", "false", "true", "this program computes false"},
        {"n_layer", "2|\"2\"", "3|-2|2.0|\"two\"", "but the tensors have 2"},
        {"n_embd", "16", "32", "but the tensors have 16"},
        {"n_positions", "24", "23", "but the tensors have 24"},
        {"vocab_size", "300", "384", "but the tensors have 300"},
        {"n_inner", "null|64|\"None\"", "16|65", "but the tensors have 64"},
        {"n_head", "1|2|\"4\"", "\"-3\"|99999999999|0|3|32|2.5|\"\"|\"2x\"|[2]", "n_head is "},
        {"tie_word_embeddings", "true|false", "0|\"no\"", "this program computes true"},
    };

    (void)state;
    for (size_t i = 0; i < 2 * (sizeof(cases) / sizeof(cases[0])); i++) {
        const int is_good = i % 2 == 0;
        char values[128];

        if (!is_good && cases[i / 2].bad == NULL) continue;
        (void)snprintf(values, sizeof(values), "%s",
                       is_good ? cases[i / 2].good : cases[i / 2].bad);
        for (char *value = strtok(values, "|"); value != NULL; value = strtok(NULL, "|")) {
            gpt2_hf_facts_t facts = {0, 0};
            char text[256];
            gpt2_json_t json = {text, 0, 0, 0};
            int code;

            json.bytes = (size_t)snprintf(text, sizeof(text), "{\"a\": [1], \"%s\" : %s, \"b\":{}}",
                                          cases[i / 2].field, value);
            error.text[0] = '\0';
            code = gpt2_hf_config_read(&json, "c.json", &SHAPE, &facts, &error);
            if ((code == 0) != is_good) fail_msg("%s: %d %s", text, code, error.text);
            if (!is_good && strstr(error.text, cases[i / 2].why) == NULL)
                fail_msg("%s: \"%s\" lacks \"%s\"", text, error.text, cases[i / 2].why);
        }
    }
}

/* A file of one tensor more than the model's, with a config.json beside it. */
static void heads_of_their_own_and_foreign_names_are_told(void **state)
{
#define SMALL                                                                                      \
    MATRIX("wte.weight", "2", "2", "0", "8")                                                       \
    MATRIX("wpe.weight", "1", "2", "8", "12") VECTOR("h.0.ln_1.bias", "2", "12", "16")
    static const char tied[] = "{" SMALL "\"_orig_mod.lm_head.weight\":{\"dtype\":\"F16\","
                               "\"shape\":[2,2],\"data_offsets\":[16,24]}}";
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    const char *path = write_file(tied, 24);
    gpt2_shape_t shape;
    FILE *file;

    (void)state;
    if (gpt2_safetensors_inspect(path, &shape, &error) != 0) fail_msg("%s", error.text);
    file = fopen(path, "r+be");
    assert_non_null(file);
    assert_int_equal(fseek(file, -2, SEEK_END), 0);
    assert_int_equal(fputc(1, file), 1);
    (void)fclose(file);
    refused(path, "lm_head.weight is not wte.weight");
    (void)scratch_write("config.json", "{\"tie_word_embeddings\": false}", 30);
    refused(write_file("{" SMALL "\"h.0.attn.bias\":{\"dtype\":\"U8\",\"shape\":[1],"
                       "\"data_offsets\":[16,17]}}",
                       17),
            "has no lm_head.weight");
    (void)scratch_write("config.json", "{\"n_head\": 2", 12);
    refused(write_file(tied, 24), "config.json: not a JSON object, at its byte 12");
    assert_int_equal(unlink(scratch_path("config.json")), 0);
    refused(write_file("{\"module.base_model.model.h.0.lora_A\":{\"dtype\":\"F16\",\"shape\":[2],"
                       "\"data_offsets\":[0,4]}}",
                       4),
            "its first tensor is base_model.model.h.0.lora_A (PEFT: merge_and_unload()");
    refused(write_file("{\"__metadata__\":{\"n_head\":\"-3\"}," SMALL
                       "\"lm_head.weight\":{\"dtype\":\"F16\",\"shape\":[2,2],"
                       "\"data_offsets\":[16,24]}}",
                       24),
            "metadata: n_head is -3");
    refused(scratch_write("p.safetensors", pointer, sizeof(pointer) - 1), "run git lfs pull");
#undef SMALL
}

/* By the name that files have, which is not ours. */
static void a_missing_tensor_is_named_as_in_files(void **state)
{
    gpt2_model_t *model = make(SHAPE, 1);
    const char *path = scratch_path("model.safetensors");
    char *text = calloc(1, 1 << 18);
    size_t bytes;
    FILE *file;

    (void)state;
    assert_non_null(text);
    assert_int_equal(gpt2_safetensors_save(path, model, 0, &error), 0);
    file = fopen(path, "rbe");
    assert_non_null(file);
    bytes = fread(text, 1, 1 << 18, file);
    (void)fclose(file);
    memcpy(strstr(text + 8, "h.1.mlp.c_proj.weight"), "hh1.mlp.pro.attn.bias", 21); /* a mask */
    refused(scratch_write("model.safetensors", text, bytes), "h.1.mlp.c_proj.weight is missing");
    free(text);
    gpt2_model_destroy(model);
}

static void json_is_read_to_its_end_and_not_beyond(void **state)
{
    static const struct {
        const char *text;
        int is_good;
    } cases[] = {{"{\"a\":[1,2,{\"b\":\"x\\\"y\"}],\"c\":-1.5e3}", 1},
                 {"[[[[]]]]", 1},
                 {"\"\\u00e4\"", 1},
                 {"true", 1},
                 {"", 0},
                 {"[1,]", 0},
                 {"[1 2]", 0},
                 {"{\"a\"}", 0},
                 {"{\"a\":}", 0},
                 {"{1:2}", 0},
                 {"\"abc", 0},
                 {"\"a\\", 0},
                 {"\"a\nb\"", 0},
                 {"[", 0},
                 {"]", 0},
                 {"{\"a\":1]", 0}};
    char deep[200];
    gpt2_json_t json = {deep, sizeof(deep), 0, 0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        /* Without a terminator, so that a read past the end is seen by the sanitizer. */
        const size_t bytes = strlen(cases[i].text);
        char *copy = malloc(bytes + (bytes == 0));
        gpt2_json_t one = {copy, bytes, 0, 0};
        int good;

        assert_non_null(copy);
        memcpy(copy, cases[i].text, bytes);
        good = gpt2_json_skip(&one) == 0 && gpt2_json_end(&one) == 0;
        if (good != cases[i].is_good) fail_msg("%s: %d", cases[i].text, good);
        free(copy);
    }
    memset(deep, '[', sizeof(deep));
    assert_int_equal(gpt2_json_skip(&json), -1);
}

static int setup(void **state)
{
    (void)state;
    (void)scratch_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove();
    return 0;
}

#define SCRATCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(files_round_trip),
        SCRATCH_TEST(matrices_are_transposed),
        SCRATCH_TEST(hf_peculiarities_are_understood),
        SCRATCH_TEST(files_that_lie_are_refused),
        cmocka_unit_test(other_arithmetic_is_refused_by_its_field),
        SCRATCH_TEST(heads_of_their_own_and_foreign_names_are_told),
        SCRATCH_TEST(a_missing_tensor_is_named_as_in_files),
        cmocka_unit_test(json_is_read_to_its_end_and_not_beyond),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
