/*
 * safetensors.c - converts between our arena and HF's files. What a file says about itself is
 * checked against its size before anything is read by it.
 */
#include "examples/gpt2/data/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "examples/gpt2/base/files.h"
#include "examples/gpt2/base/halves.h"
#include "examples/gpt2/data/json.h"

#define HEADER_MAX ((uint64_t)16 << 20) /* bytes; one of 1558M has some 80 kB */
#define NAME_MAX_HERE 128
#define CONFIG_MAX ((size_t)64 << 10)
#define HEAD_SIZE 64 /* of all of OpenAI's sizes */

/* Where a block's tensors lie in files. */
static const struct {
    const char *name;
    gpt2_block_tensor_t tensor;
    int transposed;
} BLOCK[] = {
    {"ln_1.weight", GPT2_LN1_W, 0},          {"ln_1.bias", GPT2_LN1_B, 0},
    {"attn.c_attn.weight", GPT2_QKV_W, 1},   {"attn.c_attn.bias", GPT2_QKV_B, 0},
    {"attn.c_proj.weight", GPT2_PROJ_W, 1},  {"attn.c_proj.bias", GPT2_PROJ_B, 0},
    {"ln_2.weight", GPT2_LN2_W, 0},          {"ln_2.bias", GPT2_LN2_B, 0},
    {"mlp.c_fc.weight", GPT2_FC_W, 1},       {"mlp.c_fc.bias", GPT2_FC_B, 0},
    {"mlp.c_proj.weight", GPT2_FCPROJ_W, 1}, {"mlp.c_proj.bias", GPT2_FCPROJ_B, 0},
};
#define BLOCK_COUNT (sizeof(BLOCK) / sizeof(BLOCK[0]))

/* An open file and its header. */
typedef struct source {
    FILE *file;
    const char *path;
    char *header;
    size_t header_bytes;
    uint64_t data_bytes; /* behind the header */
} source_t;

/* What the header says of one tensor. */
typedef struct header_entry {
    char name[NAME_MAX_HERE]; /* without "transformer." */
    char dtype[8];
    uint64_t shape[2]; /* of one dimension: {1, n} */
    int dimensions;
    uint64_t begin;
    uint64_t end;
} header_entry_t;

typedef int (*entry_fn)(void *user, const source_t *source, const header_entry_t *entry,
                        gpt2_error_t *error);

int gpt2_safetensors_is(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL && strcmp(dot, ".safetensors") == 0;
}

/* ---- The header ----------------------------------------------------------------------------- */

static int open_source(const char *path, source_t *source, gpt2_error_t *error)
{
    unsigned char length_bytes[8];
    uint64_t length = 0;
    struct stat status;

    memset(source, 0, sizeof(*source));
    source->path = path;
    source->file = fopen(path, "rbe");
    if (source->file == NULL) return gpt2_fail(error, "%s: %s", path, strerror(errno));
    if (fstat(fileno(source->file), &status) != 0) {
        return gpt2_fail(error, "%s: %s", path, strerror(errno));
    }
    if (gpt2_file_read(source->file, path, length_bytes, sizeof(length_bytes), error) != 0) {
        return -1;
    }
    for (int i = 7; i >= 0; i--)
        length = length << 8 | length_bytes[i];
    if (length > HEADER_MAX || length + 8 > (uint64_t)status.st_size) {
        return gpt2_fail(error, "%s: its header has %" PRIu64 " bytes, the file %" PRIu64, path,
                         length, (uint64_t)status.st_size);
    }
    source->header_bytes = (size_t)length;
    source->data_bytes = (uint64_t)status.st_size - 8 - length;
    source->header = malloc(source->header_bytes + 1);
    if (source->header == NULL) return gpt2_fail(error, "out of memory for the header of %s", path);
    return gpt2_file_read(source->file, path, source->header, source->header_bytes, error);
}

static void close_source(source_t *source)
{
    if (source->file != NULL) (void)fclose(source->file);
    free(source->header);
}

/* [a, b] of numbers; *count: how many there were, at most `most`. */
static int read_numbers(gpt2_json_t *json, uint64_t *numbers, int most, int *count)
{
    *count = 0;
    if (!gpt2_json_open(json, '[')) return -1;
    while (gpt2_json_next(json, '[', *count == 0)) {
        uint64_t value;

        if (gpt2_json_number(json, &value) != 0) return -1;
        if (*count < most) numbers[*count] = value;
        ++*count;
    }
    return json->failed ? -1 : 0;
}

/* The object behind a tensor's name. */
static int read_header_entry(gpt2_json_t *json, header_entry_t *entry)
{
    uint64_t offsets[2] = {0, 0};
    uint64_t shape[2] = {1, 1};
    int offset_count = 0;
    int first = 1;

    if (!gpt2_json_open(json, '{')) return -1;
    for (; gpt2_json_next(json, '{', first); first = 0) {
        char key[16];

        if (gpt2_json_key(json, key, sizeof(key)) != 0) return -1;
        if (strcmp(key, "dtype") == 0) {
            if (gpt2_json_string(json, entry->dtype, sizeof(entry->dtype)) != 0) return -1;
        } else if (strcmp(key, "shape") == 0) {
            if (read_numbers(json, shape, 2, &entry->dimensions) != 0) return -1;
        } else if (strcmp(key, "data_offsets") == 0) {
            if (read_numbers(json, offsets, 2, &offset_count) != 0) return -1;
        } else if (gpt2_json_skip(json) != 0) {
            return -1;
        }
    }
    if (json->failed || offset_count != 2) return -1;
    entry->shape[0] = entry->dimensions == 1 ? 1 : shape[0];
    entry->shape[1] = entry->dimensions == 1 ? shape[0] : shape[1];
    entry->begin = offsets[0];
    entry->end = offsets[1];
    return 0;
}

static int is_passed_over(const char *name)
{
    const size_t length = strlen(name);

    if (strcmp(name, "lm_head.weight") == 0) return 1;
    if (length >= 10 && strcmp(name + length - 10, ".attn.bias") == 0) return 1;
    return length >= 17 && strcmp(name + length - 17, ".attn.masked_bias") == 0;
}

/* Calls visit for every tensor that the model has. Refuses a tensor whose bytes lie outside the
 * file. */
static int each_entry(const source_t *source, entry_fn visit, void *user, gpt2_error_t *error)
{
    static const char prefix[] = "transformer.";
    gpt2_json_t json = {source->header, source->header_bytes, 0, 0};
    uint64_t covered = 0;
    int first = 1;

    if (!gpt2_json_open(&json, '{')) goto refuse;
    for (; gpt2_json_next(&json, '{', first); first = 0) {
        char key[NAME_MAX_HERE];
        header_entry_t entry = {.name = ""};
        size_t skipped;

        if (gpt2_json_key(&json, key, sizeof(key)) != 0) goto refuse;
        if (strcmp(key, "__metadata__") == 0) {
            if (gpt2_json_skip(&json) != 0) goto refuse;
            continue;
        }
        if (read_header_entry(&json, &entry) != 0) goto refuse;
        if (entry.end < entry.begin || entry.end > source->data_bytes) {
            return gpt2_fail(
                error, "%s: %s lies at %" PRIu64 " to %" PRIu64 ", the data has %" PRIu64 " bytes",
                source->path, key, entry.begin, entry.end, source->data_bytes);
        }
        covered += entry.end - entry.begin;
        if (covered > source->data_bytes) {
            return gpt2_fail(error, "%s: its tensors overlap", source->path);
        }
        if (is_passed_over(key)) continue;
        skipped = strncmp(key, prefix, sizeof(prefix) - 1) == 0 ? sizeof(prefix) - 1 : 0;
        memcpy(entry.name, key + skipped, strlen(key + skipped) + 1);
        if (visit(user, source, &entry, error) != 0) return -1;
    }
    if (gpt2_json_end(&json) != 0) goto refuse;
    if (covered == source->data_bytes) return 0;
    return gpt2_fail(error, "%s: its tensors have %" PRIu64 " of the %" PRIu64 " bytes of data",
                     source->path, covered, source->data_bytes);
refuse:
    return gpt2_fail(error, "%s: not a safetensors header, at its byte %zu", source->path, json.at);
}

/* ---- The shape ------------------------------------------------------------------------------ */

/* Which block a name belongs to, and what follows "h.3."; -1: none. */
static int layer_of(const char *name, const char **rest)
{
    char *end;
    long layer;

    if (strncmp(name, "h.", 2) != 0 || name[2] < '0' || name[2] > '9') return -1;
    layer = strtol(name + 2, &end, 10);
    if (*end != '.' || layer > 1023) return -1;
    *rest = end + 1;
    return (int)layer;
}

static int fits_int(uint64_t value)
{
    return value > 0 && value < (uint64_t)1 << 24;
}

static int see_shape(void *user, const source_t *source, const header_entry_t *entry,
                     gpt2_error_t *error)
{
    gpt2_shape_t *shape = user;
    const char *rest;
    const int layer = layer_of(entry->name, &rest);
    const int is_wte = strcmp(entry->name, "wte.weight") == 0;

    if (layer >= shape->layers) shape->layers = layer + 1;
    if (!is_wte && strcmp(entry->name, "wpe.weight") != 0) return 0;
    if (entry->dimensions != 2 || !fits_int(entry->shape[0]) || !fits_int(entry->shape[1])) {
        return gpt2_fail(error, "%s: %s is no matrix of a usable size", source->path, entry->name);
    }
    if (is_wte) {
        shape->vocab = (int)entry->shape[0];
        shape->width = (int)entry->shape[1];
    } else {
        shape->context = (int)entry->shape[0];
    }
    return 0;
}

/* The value of a member of the top-level object, given as a number or as a string of digits; 0
 * where it is missing. */
static int find_number(gpt2_json_t *json, const char *name)
{
    uint64_t value = 0;
    int first = 1;

    if (!gpt2_json_open(json, '{')) return 0;
    for (; gpt2_json_next(json, '{', first); first = 0) {
        gpt2_json_t value_at;
        char key[32];
        char text[16];

        if (gpt2_json_key(json, key, sizeof(key)) != 0) return 0;
        value_at = *json;
        if (gpt2_json_skip(json) != 0) return 0;
        if (strcmp(key, name) != 0) continue;
        if (gpt2_json_number(&value_at, &value) == 0) return value < 1025 ? (int)value : 0;
        value_at.failed = 0;
        if (gpt2_json_string(&value_at, text, sizeof(text)) != 0) return 0;
        return (int)strtol(text, NULL, 10);
    }
    return 0;
}

/* path's folder + "/config.json" */
static int config_path(char *out, const char *path, gpt2_error_t *error)
{
    char folder[GPT2_PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');

    if (slash != NULL) {
        const size_t length = slash == path ? 1 : (size_t)(slash - path);

        if (length >= sizeof(folder)) return gpt2_fail(error, "%s: path too long", path);
        memcpy(folder, path, length);
        folder[length] = '\0';
    }
    return gpt2_path_join(out, folder, "config.json", error);
}

/* Heads from config.json, or from our own metadata, or by the size of OpenAI's. */
static int find_heads(const source_t *source, int width)
{
    gpt2_json_t json = {source->header, source->header_bytes, 0, 0};
    char path[GPT2_PATH_MAX];
    char *text = malloc(CONFIG_MAX);
    FILE *file = NULL;
    int heads = 0;
    int first = 1;

    if (text != NULL && config_path(path, source->path, NULL) == 0) file = fopen(path, "rbe");
    if (file != NULL) {
        gpt2_json_t config = {text, fread(text, 1, CONFIG_MAX, file), 0, 0};

        heads = find_number(&config, "n_head");
        (void)fclose(file);
    }
    free(text);
    if (heads == 0 && gpt2_json_open(&json, '{')) {
        for (; heads == 0 && gpt2_json_next(&json, '{', first); first = 0) {
            char key[NAME_MAX_HERE];
            gpt2_json_t value;

            if (gpt2_json_key(&json, key, sizeof(key)) != 0) break;
            value = json;
            if (strcmp(key, "__metadata__") == 0) heads = find_number(&value, "n_head");
            if (gpt2_json_skip(&json) != 0) break;
        }
    }
    if (heads > 0) return heads;
    return width % HEAD_SIZE == 0 ? width / HEAD_SIZE : 1;
}

static int read_shape(const source_t *source, gpt2_shape_t *shape, gpt2_error_t *error)
{
    memset(shape, 0, sizeof(*shape));
    if (each_entry(source, see_shape, shape, error) != 0) return -1;
    if (shape->vocab == 0 || shape->context == 0) {
        return gpt2_fail(error, "%s: no wte.weight and wpe.weight: not a GPT-2", source->path);
    }
    shape->heads = find_heads(source, shape->width);
    /* As tokens are padded everywhere here; bytes are not. */
    shape->vocab_padded = shape->vocab <= 256 ? shape->vocab : (shape->vocab + 127) / 128 * 128;
    return gpt2_shape_check(shape, error);
}

int gpt2_safetensors_inspect(const char *path, gpt2_shape_t *shape, gpt2_error_t *error)
{
    source_t source;
    int code = open_source(path, &source, error);

    if (code == 0) code = read_shape(&source, shape, error);
    close_source(&source);
    return code;
}

/* ---- Reading -------------------------------------------------------------------------------- */

typedef struct weights_loader {
    gpt2_model_t *model;
    char *seen; /* [layout->count] */
} weights_loader_t;

/* The index of our tensor with this HF name, or the layout's count where there is none. */
static size_t find_tensor(const gpt2_layout_t *layout, const char *name, int *transposed)
{
    const char *rest;
    const int layer = layer_of(name, &rest);

    *transposed = 0;
    if (layer < 0) return gpt2_layout_find(layout, name);
    if (layer >= layout->shape.layers) return layout->count;
    for (size_t i = 0; i < BLOCK_COUNT; i++) {
        if (strcmp(BLOCK[i].name, rest) != 0) continue;
        *transposed = BLOCK[i].transposed;
        return gpt2_layout_block(layout, layer) + (size_t)BLOCK[i].tensor;
    }
    return layout->count;
}

static size_t dtype_bytes(const char *dtype)
{
    if (strcmp(dtype, "F32") == 0) return 4;
    return strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 ? 2 : 0;
}

static float element(const char *dtype, const char *data, size_t index)
{
    uint16_t half;
    float value;

    if (strcmp(dtype, "F32") == 0) {
        memcpy(&value, data + 4 * index, sizeof(value));
        return value;
    }
    memcpy(&half, data + 2 * index, sizeof(half));
    return strcmp(dtype, "BF16") == 0 ? gpt2_from_bf16(half) : gpt2_from_fp16(half);
}

/* Rows and columns of a tensor as files have it. */
static void file_shape(const gpt2_layout_t *layout, size_t index, int transposed, size_t *rows,
                       size_t *columns)
{
    const gpt2_tensor_t *tensor = &layout->tensors[index];

    *rows = (size_t)(transposed ? tensor->columns : tensor->rows);
    *columns = (size_t)(transposed ? tensor->rows : tensor->columns);
    if (index == gpt2_layout_wte(layout)) *rows = (size_t)layout->shape.vocab;
}

static int load_entry(void *user, const source_t *source, const header_entry_t *entry,
                      gpt2_error_t *error)
{
    weights_loader_t *loader = user;
    const gpt2_layout_t *layout = loader->model->layout;
    const size_t size = dtype_bytes(entry->dtype);
    int transposed;
    const size_t index = find_tensor(layout, entry->name, &transposed);
    size_t rows;
    size_t columns;
    float *weights;
    char *data;

    if (index == layout->count) {
        return gpt2_fail(error, "%s: %s belongs to no GPT-2", source->path, entry->name);
    }
    if (loader->seen[index]) return gpt2_fail(error, "%s: %s twice", source->path, entry->name);
    loader->seen[index] = 1;
    file_shape(layout, index, transposed, &rows, &columns);
    if (entry->shape[0] != rows || entry->shape[1] != columns || size == 0 ||
        entry->end - entry->begin != rows * columns * size) {
        return gpt2_fail(error,
                         "%s: %s is %" PRIu64 " x %" PRIu64 " of %s in %" PRIu64
                         " bytes, expected %zu x %zu of F32, F16 or BF16",
                         source->path, entry->name, entry->shape[0], entry->shape[1], entry->dtype,
                         entry->end - entry->begin, rows, columns);
    }
    data = malloc(rows * columns * size);
    if (data == NULL) return gpt2_fail(error, "out of memory for %s", entry->name);
    if (fseeko(source->file, (off_t)(8 + source->header_bytes + entry->begin), SEEK_SET) != 0 ||
        gpt2_file_read(source->file, source->path, data, rows * columns * size, error) != 0) {
        free(data);
        return -1;
    }
    weights = loader->model->weights + layout->tensors[index].offset;
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < columns; j++) {
            weights[transposed ? j * rows + i : i * columns + j] =
                element(entry->dtype, data, i * columns + j);
        }
    }
    free(data);
    return 0;
}

int gpt2_safetensors_load(const char *path, gpt2_model_t *model, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = model->layout;
    weights_loader_t loader = {model, calloc(layout->count, 1)};
    gpt2_shape_t shape;
    source_t source;
    int code;

    if (loader.seen == NULL) return gpt2_fail(error, "out of memory for %s", path);
    code = open_source(path, &source, error);
    if (code == 0) code = read_shape(&source, &shape, error);
    if (code == 0 && memcmp(&shape, &layout->shape, sizeof(shape)) != 0) {
        code = gpt2_fail(error, "%s: its shape is not this run's", path);
    }
    if (code == 0) memset(model->weights, 0, layout->arena_count * sizeof(float));
    if (code == 0) code = each_entry(&source, load_entry, &loader, error);
    for (size_t i = 0; code == 0 && i < layout->count; i++) {
        if (!loader.seen[i]) {
            code = gpt2_fail(error, "%s: %s is missing", path, layout->tensors[i].name);
        }
    }
    close_source(&source);
    free(loader.seen);
    return code;
}

/* ---- Writing -------------------------------------------------------------------------------- */

/* The tensors in the order of files: embeddings, blocks, final norm. name [GPT2_NAME_MAX]. */
static size_t nth_tensor(const gpt2_layout_t *layout, size_t n, char *name, int *transposed)
{
    static const char *const ends[4] = {"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"};
    const size_t blocks = BLOCK_COUNT * (size_t)layout->shape.layers;

    if (n < 2 || n >= 2 + blocks) {
        (void)snprintf(name, GPT2_NAME_MAX, "%s", ends[n < 2 ? n : n - blocks]);
    } else {
        (void)snprintf(name, GPT2_NAME_MAX, "h.%d.%s", (int)((n - 2) / BLOCK_COUNT),
                       BLOCK[(n - 2) % BLOCK_COUNT].name);
    }
    return find_tensor(layout, name, transposed);
}

static int write_tensor(FILE *file, const char *path, const gpt2_model_t *model, size_t index,
                        int transposed, int as_bf16, gpt2_error_t *error)
{
    const float *weights = model->weights + model->layout->tensors[index].offset;
    size_t rows;
    size_t columns;
    int code = 0;
    float *row;

    file_shape(model->layout, index, transposed, &rows, &columns);
    row = malloc(columns * sizeof(*row));
    if (row == NULL) return gpt2_fail(error, "out of memory for a row of %zu", columns);
    for (size_t i = 0; i < rows && code == 0; i++) {
        uint16_t *halves = (uint16_t *)(void *)row;

        /* In place: a half is written where floats have been read. */
        for (size_t j = 0; j < columns; j++) {
            const float value = weights[transposed ? j * rows + i : i * columns + j];

            if (as_bf16) {
                halves[j] = gpt2_to_bf16(value);
            } else {
                row[j] = value;
            }
        }
        code = gpt2_file_write(file, path, row, columns * (as_bf16 ? 2 : 4), error);
    }
    free(row);
    return code;
}

/* The header as text, padded to a multiple of 8. */
static char *make_header(const gpt2_layout_t *layout, int as_bf16, size_t *bytes)
{
    uint64_t at = 0;
    char *text = NULL;
    FILE *memory = open_memstream(&text, bytes);

    if (memory == NULL) return NULL;
    (void)fprintf(memory, "{\"__metadata__\":{\"format\":\"pt\",\"n_head\":\"%d\"}",
                  layout->shape.heads);
    for (size_t n = 0; n < layout->count; n++) {
        char name[GPT2_NAME_MAX];
        int transposed;
        const size_t index = nth_tensor(layout, n, name, &transposed);
        size_t rows;
        size_t columns;
        uint64_t end;

        file_shape(layout, index, transposed, &rows, &columns);
        end = at + rows * columns * (as_bf16 ? 2 : 4);
        (void)fprintf(memory, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name,
                      as_bf16 ? "BF16" : "F32");
        if (strstr(name, ".bias") == NULL && strstr(name, "ln_") == NULL) {
            (void)fprintf(memory, "%zu,", rows);
        }
        (void)fprintf(memory, "%zu],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", columns, at, end);
        at = end;
    }
    (void)fputc('}', memory);
    if (fflush(memory) == 0) (void)fprintf(memory, "%*s", (int)(-*bytes & 7), "");
    if (fclose(memory) == 0) return text;
    free(text);
    return NULL;
}

static int write_config(const char *path, const gpt2_shape_t *shape, gpt2_error_t *error)
{
    char name[GPT2_PATH_MAX];
    char text[600];
    struct stat status;
    FILE *file;
    int length;

    if (config_path(name, path, error) != 0) return -1;
    if (stat(name, &status) == 0) return 0;
    length = snprintf(
        text, sizeof(text),
        "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
        "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
        "  \"n_layer\": %d,\n  \"n_head\": %d,\n  \"n_embd\": %d,\n"
        "  \"n_positions\": %d,\n  \"n_ctx\": %d,\n  \"vocab_size\": %d\n}\n",
        shape->layers, shape->heads, shape->width, shape->context, shape->context, shape->vocab);
    if (gpt2_file_create(name, &file, error) != 0) return -1;
    if (gpt2_file_write(file, name, text, (size_t)length, error) != 0) {
        (void)fclose(file);
        return -1;
    }
    return gpt2_file_commit(file, name, error);
}

int gpt2_safetensors_save(const char *path, const gpt2_model_t *model, int as_bf16,
                          gpt2_error_t *error)
{
    const gpt2_layout_t *layout = model->layout;
    size_t bytes = 0;
    char *header = make_header(layout, as_bf16, &bytes);
    unsigned char length[8];
    FILE *file;
    int code;

    if (header == NULL) return gpt2_fail(error, "out of memory for the header of %s", path);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)bytes >> (8 * i));
    if (gpt2_file_create(path, &file, error) != 0) {
        free(header);
        return -1;
    }
    code = gpt2_file_write(file, path, length, sizeof(length), error);
    if (code == 0) code = gpt2_file_write(file, path, header, bytes, error);
    free(header);
    for (size_t n = 0; n < layout->count && code == 0; n++) {
        char name[GPT2_NAME_MAX];
        int transposed;
        const size_t index = nth_tensor(layout, n, name, &transposed);

        code = write_tensor(file, path, model, index, transposed, as_bf16, error);
    }
    if (code != 0) {
        (void)fclose(file);
        return -1;
    }
    if (gpt2_file_commit(file, path, error) != 0) return -1;
    return write_config(path, &layout->shape, error);
}
