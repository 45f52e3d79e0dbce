/*
 * fuzz_checkpoint.c - any text as the manifest of a checkpoint, beside weights that may be damaged.
 *
 * The first byte says whether the text gets a right first and last line: without them nothing
 * behind the checksum would be reached. The second damages one of the three files.
 */
#include "tests/fuzz/fuzz.h"

#include <inttypes.h>
#include <stdlib.h>

#include "examples/gpt2/data/checkpoint.h"
#include "examples/gpt2/base/hash.h"
#include "tests/fuzz/scratch.h"

#define FIRST_LINE "gpt2-checkpoint 1 little-endian fp32\n"
#define STEP "7"

typedef struct fixture {
    gpt2_model_t *model;
    gpt2_optimizer_t *optimizer;
    char manifest[FUZZ_ROOM]; /* as it was saved */
    size_t bytes;
} fixture_t;

static gpt2_shape_t tiny(void)
{
    return (gpt2_shape_t){
        .vocab = 4, .vocab_padded = 4, .context = 2, .layers = 1, .heads = 1, .width = 2};
}

/* Saves a checkpoint, once, that inputs are laid over. */
static void make_fixture(fixture_t *fixture)
{
    const gpt2_progress_t progress = {7, 56, 7, 0, 1, {8, 16, 99, 5}};
    const gpt2_optimizer_settings_t settings = {.learning_rate = 1e-3,
                                                .final_rate = 0.1,
                                                .steps = 100,
                                                .beta1 = 0.9,
                                                .beta2 = 0.95,
                                                .epsilon = 1e-8,
                                                .decay = 0.1};
    gpt2_model_options_t options = {
        .shape = tiny(), .batch = 1, .length = 2, .threads = 1, .training = 1};
    gpt2_error_t error = {""};
    FILE *file;

    if (gpt2_model_create(&options, &fixture->model, &error) != 0 ||
        gpt2_optimizer_create(fixture->model, &settings, &fixture->optimizer, &error) != 0) {
        abort();
    }
    gpt2_model_init_weights(fixture->model, 1);
    if (gpt2_checkpoint_save(scratch_folder(), fixture->model, fixture->optimizer, &progress,
                             &error) != 0) {
        abort();
    }
    file = fopen(scratch_path(STEP "/manifest.txt"), "rbe");
    if (file == NULL) abort();
    fixture->bytes = fread(fixture->manifest, 1, sizeof(fixture->manifest), file);
    (void)fclose(file);
}

static const fixture_t *get_fixture(void)
{
    static fixture_t fixture;

    if (fixture.model == NULL) make_fixture(&fixture);
    return &fixture;
}

static void write_manifest(const uint8_t *data, size_t bytes, int is_framed)
{
    char *text = malloc(bytes + 128);
    size_t size = 0;

    if (text == NULL) abort();
    if (is_framed) size = (size_t)sprintf(text, FIRST_LINE);
    if (bytes > 0) memcpy(text + size, data, bytes);
    size += bytes;
    if (is_framed) {
        if (text[size - 1] != '\n') text[size++] = '\n';
        size += (size_t)sprintf(text + size, "end %016" PRIx64 "\n", gpt2_hash(text, size));
    }
    (void)scratch_write(STEP "/manifest.txt", text, size);
    free(text);
}

static void write_weights(const fixture_t *fixture, int damage)
{
    static const char *const names[] = {STEP "/weights.bin", STEP "/adam_m.bin",
                                        STEP "/adam_v.bin"};
    const float *const arenas[] = {fixture->model->weights, fixture->optimizer->m,
                                   fixture->optimizer->v};
    const gpt2_layout_t *layout = fixture->model->layout;
    float *content = calloc(layout->parameter_count + 1, sizeof(*content));
    size_t bytes = layout->parameter_count * sizeof(*content);
    size_t count;

    if (content == NULL) abort();
    for (int i = 0; i < 3; i++) {
        count = 0;
        for (size_t k = 0; k < layout->count; k++) {
            memcpy(content + count, arenas[i] + layout->tensors[k].offset,
                   layout->tensors[k].count * sizeof(*content));
            count += layout->tensors[k].count;
        }
        (void)scratch_write(names[i], content, i == damage % 8 ? bytes / 2 : bytes);
    }
    free(content);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const fixture_t *fixture = get_fixture();
    fuzz_input_t input = {data, bytes};
    int is_framed = (int)(fuzz_number(&input, 1) & 1);
    int damage = (int)fuzz_number(&input, 1);
    gpt2_model_options_t options = {
        .shape = tiny(), .batch = 1, .length = 2, .threads = 1, .training = 0};
    gpt2_error_t error = {""};
    gpt2_progress_t progress;
    gpt2_shape_t shape;
    gpt2_model_t *model = NULL;
    char latest[GPT2_PATH_MAX];
    int is_whole;

    write_manifest(input.data, input.bytes, is_framed);
    write_weights(fixture, damage);
    is_whole = gpt2_checkpoint_inspect(scratch_path(STEP), &shape, &progress, &error) == 0;
    if (!is_whole && error.text[0] == '\0') abort();
    if (is_whole && gpt2_shape_check(&shape, NULL) != 0) abort();
    error.text[0] = '\0';
    if (gpt2_checkpoint_latest(scratch_folder(), NULL, latest, &error) != 0) {
        if (error.text[0] == '\0' || latest[0] != '\0') abort();
    } else if (latest[0] == '\0' || !is_whole) {
        abort();
    }
    if (gpt2_model_create(&options, &model, &error) != 0) abort();
    error.text[0] = '\0';
    if (gpt2_checkpoint_load(scratch_path(STEP), model, NULL, &progress, &error) != 0) {
        if (error.text[0] == '\0') abort();
    } else if (!is_whole) {
        abort();
    }
    (void)gpt2_checkpoint_load(scratch_path(STEP), fixture->model, fixture->optimizer, &progress,
                               &error);
    gpt2_model_destroy(model);
    return 0;
}

size_t fuzz_seed(unsigned which, uint8_t *data, size_t room)
{
    const fixture_t *fixture = get_fixture();
    const size_t first = strlen(FIRST_LINE);
    const char *end = strstr(fixture->manifest, "\nend ");
    size_t bytes;

    if (which > 3 || end == NULL || fixture->bytes + 2 > room) return 0;
    data[0] = which != 1;
    data[1] = which == 2 ? 1 : 200;
    if (which == 1) { /* as it is in the file */
        memcpy(data + 2, fixture->manifest, fixture->bytes);
        return 2 + fixture->bytes;
    }
    bytes = (size_t)(end + 1 - fixture->manifest) - first;
    if (which == 3) bytes /= 2;
    memcpy(data + 2, fixture->manifest + first, bytes);
    return 2 + bytes;
}
