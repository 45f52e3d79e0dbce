/*
 * safetensors.c - converts between our arena and HF's files, of which safetensors_file.c knows the
 * format. Rank 0's main thread, at the start and the end of a run.
 */
#include "examples/gpt2/data/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/gpt2/base/files.h"
#include "examples/gpt2/base/halves.h"
#include "examples/gpt2/data/hf_config.h"
#include "examples/gpt2/data/safetensors_file.h"

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

int gpt2_safetensors_is(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL && strcmp(dot, ".safetensors") == 0;
}

/* Masks, which are no weights. */
static int is_passed_over(const char *name)
{
    const size_t length = strlen(name);

    if (length >= 10 && strcmp(name + length - 10, ".attn.bias") == 0) return 1;
    return length >= 17 && strcmp(name + length - 17, ".attn.masked_bias") == 0;
}

static int is_head(const char *name)
{
    return strcmp(name, "lm_head.weight") == 0;
}

/* A name without what HF's heads, torch.compile() and DistributedDataParallel put before it. */
static const char *without_prefixes(const char *name)
{
    static const char *const prefixes[] = {"transformer.", "_orig_mod.", "module."};
    size_t i = 0;

    while (i < sizeof(prefixes) / sizeof(prefixes[0])) {
        const size_t length = strlen(prefixes[i]);
        const int is_there = strncmp(name, prefixes[i], length) == 0;

        if (is_there) name += length;
        i = is_there ? 0 : i + 1;
    }
    return name;
}

/* A walk over the tensors that are weights, by their names without prefixes. */
typedef struct weights_walk {
    gpt2_safetensors_visit_t visit;
    void *user;
} weights_walk_t;

static int visit_weight(void *user, const gpt2_safetensors_file_t *source,
                        const gpt2_safetensors_entry_t *entry, gpt2_error_t *error)
{
    const weights_walk_t *walk = user;
    const char *name = without_prefixes(entry->name);
    gpt2_safetensors_entry_t weight = *entry;

    if (is_passed_over(name)) return 0;
    memcpy(weight.name, name, strlen(name) + 1);
    return walk->visit(walk->user, source, &weight, error);
}

static int each_weight(const gpt2_safetensors_file_t *source, gpt2_safetensors_visit_t visit,
                       void *user, gpt2_error_t *error)
{
    weights_walk_t walk = {visit, user};

    return gpt2_safetensors_each(source, visit_weight, &walk, error);
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

/* The result of a walk over the header. */
typedef struct found {
    gpt2_shape_t shape;
    char first[GPT2_SAFETENSORS_NAME_MAX]; /* the name that the file has first */
    gpt2_safetensors_entry_t wte;
    gpt2_safetensors_entry_t head; /* name "": there is none */
} found_t;

static int see_shape(void *user, const gpt2_safetensors_file_t *source,
                     const gpt2_safetensors_entry_t *entry, gpt2_error_t *error)
{
    found_t *found = user;
    gpt2_shape_t *shape = &found->shape;
    const char *rest;
    const int layer = layer_of(entry->name, &rest);
    const int is_wte = strcmp(entry->name, "wte.weight") == 0;

    if (found->first[0] == '\0') memcpy(found->first, entry->name, sizeof(found->first));
    if (layer >= shape->layers) shape->layers = layer + 1;
    if (is_head(entry->name)) found->head = *entry;
    if (!is_wte && strcmp(entry->name, "wpe.weight") != 0) return 0;
    if (entry->dimensions != 2 || !fits_int(entry->shape[0]) || !fits_int(entry->shape[1])) {
        return gpt2_fail(error, "%s: %s is no matrix of a usable size", source->path, entry->name);
    }
    if (is_wte) {
        found->wte = *entry;
        shape->vocab = (int)entry->shape[0];
        shape->width = (int)entry->shape[1];
    } else {
        shape->context = (int)entry->shape[0];
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

/* Reads config.json, where the file has one beside it. */
static int read_config(const gpt2_safetensors_file_t *source, const gpt2_shape_t *shape,
                       gpt2_hf_facts_t *facts, gpt2_error_t *error)
{
    char path[GPT2_PATH_MAX];
    gpt2_json_t json = {NULL, 0, 0, 0};
    char *text;
    FILE *file;
    int code;

    if (config_path(path, source->path, error) != 0) return -1;
    if (access(path, F_OK) != 0 && errno == ENOENT) return 0;
    if (gpt2_file_open(path, &file, NULL, error) != 0) return -1;
    text = malloc(CONFIG_MAX);
    if (text == NULL) {
        code = gpt2_fail(error, "out of memory for %s", path);
    } else {
        json = (gpt2_json_t){text, fread(text, 1, CONFIG_MAX, file), 0, 0};
        code = gpt2_hf_config_read(&json, path, shape, facts, error);
    }
    free(text);
    (void)fclose(file);
    return code;
}

/* The same fields in the file's own metadata, where ours have the heads. */
static int read_metadata(const gpt2_safetensors_file_t *source, const gpt2_shape_t *shape,
                         gpt2_hf_facts_t *facts, gpt2_error_t *error)
{
    char where[GPT2_PATH_MAX + 16];
    gpt2_json_t json;

    if (!gpt2_safetensors_metadata(source, &json)) return 0;
    (void)snprintf(where, sizeof(where), "%s's metadata", source->path);
    return gpt2_hf_config_read(&json, where, shape, facts, error);
}

static int read_shape(const gpt2_safetensors_file_t *source, found_t *found, gpt2_hf_facts_t *facts,
                      gpt2_error_t *error)
{
    gpt2_shape_t *shape = &found->shape;

    memset(found, 0, sizeof(*found));
    memset(facts, 0, sizeof(*facts));
    if (each_weight(source, see_shape, found, error) != 0) return -1;
    if (shape->vocab == 0 || shape->context == 0) {
        const int is_adapter =
            strstr(found->first, "lora_") != NULL || strncmp(found->first, "base_model.", 11) == 0;

        return gpt2_fail(error,
                         "%s: no wte.weight and wpe.weight: not a GPT-2; its first tensor is "
                         "%s%s",
                         source->path, found->first,
                         is_adapter ? " (PEFT: merge_and_unload() makes a whole model)" : "");
    }
    if (read_config(source, shape, facts, error) != 0) return -1;
    if (read_metadata(source, shape, facts, error) != 0) return -1;
    shape->heads = facts->heads;
    /* By the size of OpenAI's, where nothing says it. */
    if (shape->heads == 0)
        shape->heads = shape->width % HEAD_SIZE == 0 ? shape->width / HEAD_SIZE : 1;
    /* As tokens are padded everywhere here; bytes are not. */
    shape->vocab_padded = shape->vocab <= 256 ? shape->vocab : (shape->vocab + 127) / 128 * 128;
    return gpt2_shape_check(shape, error);
}

/* The head is the token embedding here. A file that has it twice, as many do, is fine. */
static int check_tied(const gpt2_safetensors_file_t *source, const found_t *found,
                      const gpt2_hf_facts_t *facts, gpt2_error_t *error)
{
    const uint64_t bytes = found->wte.end - found->wte.begin;
    char parts[2][4096];
    int is_equal;

    if (found->head.name[0] == '\0') {
        if (!facts->is_untied) return 0;
        return gpt2_fail(error,
                         "%s: tie_word_embeddings is false, this program computes with a "
                         "tied head, and the file has no lm_head.weight",
                         source->path);
    }
    is_equal = strcmp(found->head.dtype, found->wte.dtype) == 0 &&
               found->head.end - found->head.begin == bytes;
    for (uint64_t at = 0; at < bytes && is_equal; at += sizeof(parts[0])) {
        const size_t piece =
            bytes - at < sizeof(parts[0]) ? (size_t)(bytes - at) : sizeof(parts[0]);

        if (gpt2_safetensors_read(source, found->wte.begin + at, parts[0], piece, error) != 0)
            return -1;
        if (gpt2_safetensors_read(source, found->head.begin + at, parts[1], piece, error) != 0)
            return -1;
        is_equal = memcmp(parts[0], parts[1], piece) == 0;
    }
    if (is_equal) return 0;
    return gpt2_fail(error,
                     "%s: lm_head.weight is not wte.weight: a model with a head of its own, "
                     "this program computes with a tied one",
                     source->path);
}

int gpt2_safetensors_inspect(const char *path, gpt2_shape_t *shape, gpt2_error_t *error)
{
    gpt2_hf_facts_t facts;
    gpt2_safetensors_file_t source;
    found_t found;
    int code = gpt2_safetensors_open(path, &source, error);

    if (code == 0) code = read_shape(&source, &found, &facts, error);
    if (code == 0) code = check_tied(&source, &found, &facts, error);
    if (code == 0) *shape = found.shape;
    gpt2_safetensors_close(&source);
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

static int load_entry(void *user, const gpt2_safetensors_file_t *source,
                      const gpt2_safetensors_entry_t *entry, gpt2_error_t *error)
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

    if (is_head(entry->name)) return 0; /* wte.weight again, see check_tied() */
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
    if (gpt2_safetensors_read(source, entry->begin, data, rows * columns * size, error) != 0) {
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

/* out [GPT2_NAME_MAX] = what files call our tensor. */
static void file_name(const gpt2_layout_t *layout, size_t index, char *out)
{
    const gpt2_tensor_t *tensor = &layout->tensors[index];

    (void)snprintf(out, GPT2_NAME_MAX, "%s", tensor->name);
    for (size_t i = 0; tensor->layer >= 0 && i < BLOCK_COUNT; i++) {
        if (gpt2_layout_block(layout, tensor->layer) + (size_t)BLOCK[i].tensor == index)
            (void)snprintf(out, GPT2_NAME_MAX, "h.%d.%s", tensor->layer, BLOCK[i].name);
    }
}

int gpt2_safetensors_load(const char *path, gpt2_model_t *model, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = model->layout;
    weights_loader_t loader = {model, calloc(layout->count, 1)};
    gpt2_hf_facts_t facts;
    gpt2_safetensors_file_t source;
    found_t found;
    int code;

    if (loader.seen == NULL) return gpt2_fail(error, "out of memory for %s", path);
    code = gpt2_safetensors_open(path, &source, error);
    if (code == 0) code = read_shape(&source, &found, &facts, error);
    if (code == 0 && memcmp(&found.shape, &layout->shape, sizeof(found.shape)) != 0) {
        code = gpt2_fail(error, "%s: its shape is not this run's", path);
    }
    if (code == 0) memset(model->weights, 0, layout->arena_count * sizeof(float));
    if (code == 0) code = each_weight(&source, load_entry, &loader, error);
    for (size_t i = 0; code == 0 && i < layout->count; i++) {
        char name[GPT2_NAME_MAX];

        if (loader.seen[i]) continue;
        file_name(layout, i, name);
        code = gpt2_fail(error, "%s: %s is missing", path, name);
    }
    gpt2_safetensors_close(&source);
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
    gpt2_output_t output;
    struct stat status;
    int length;
    int code;

    if (config_path(name, path, error) != 0) return -1;
    if (stat(name, &status) == 0) return 0;
    length = snprintf(
        text, sizeof(text),
        "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n"
        "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n"
        "  \"n_layer\": %d,\n  \"n_head\": %d,\n  \"n_embd\": %d,\n"
        "  \"n_positions\": %d,\n  \"n_ctx\": %d,\n  \"vocab_size\": %d\n}\n",
        shape->layers, shape->heads, shape->width, shape->context, shape->context, shape->vocab);
    if (gpt2_output_open(&output, name, error) != 0) return -1;
    code = gpt2_file_write(output.file, name, text, (size_t)length, error);
    return gpt2_output_close(&output, code, error);
}

int gpt2_safetensors_save(const char *path, const gpt2_model_t *model, int as_bf16,
                          gpt2_error_t *error)
{
    const gpt2_layout_t *layout = model->layout;
    size_t bytes = 0;
    char *header = make_header(layout, as_bf16, &bytes);
    unsigned char length[8];
    gpt2_output_t output;
    int code;

    if (header == NULL) return gpt2_fail(error, "out of memory for the header of %s", path);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)bytes >> (8 * i));
    if (gpt2_output_open(&output, path, error) != 0) {
        free(header);
        return -1;
    }
    code = gpt2_file_write(output.file, path, length, sizeof(length), error);
    if (code == 0) code = gpt2_file_write(output.file, path, header, bytes, error);
    free(header);
    for (size_t n = 0; n < layout->count && code == 0; n++) {
        char name[GPT2_NAME_MAX];
        int transposed;
        const size_t index = nth_tensor(layout, n, name, &transposed);

        code = write_tensor(output.file, path, model, index, transposed, as_bf16, error);
    }
    if (gpt2_output_close(&output, code, error) != 0) return -1;
    return write_config(path, &layout->shape, error);
}
