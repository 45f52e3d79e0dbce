/*
 * llmc.c - converts between our layer-major arena and llm.c's file, whose tensors are stacked over
 * layers.
 */
#include "examples/gpt2/llmc.h"

#include <errno.h>
#include <string.h>

#include "examples/gpt2/data.h"
#include "examples/gpt2/files.h"

#define MAGIC 20240326
#define VERSION_FP32 3

/* The file's order, after the two embeddings and before the final norm. */
static const gpt2_block_tensor_t BLOCK_ORDER[GPT2_BLOCK_TENSORS] = {
    GPT2_LN1_W, GPT2_LN1_B, GPT2_QKV_W, GPT2_QKV_B, GPT2_PROJ_W,   GPT2_PROJ_B,
    GPT2_LN2_W, GPT2_LN2_B, GPT2_FC_W,  GPT2_FC_B,  GPT2_FCPROJ_W, GPT2_FCPROJ_B};

static int read_header(FILE *file, const char *path, gpt2_shape_t *shape, gpt2_error_t *error)
{
    int32_t header[GPT2_HEADER_INTS];

    if (gpt2_file_read(file, path, header, sizeof(header), error) != 0) return -1;
    if (header[0] != MAGIC) {
        return gpt2_fail(error, "%s: not an llm.c model: magic %d, expected %d", path,
                         (int)header[0], MAGIC);
    }
    if (header[1] != VERSION_FP32) {
        return gpt2_fail(error, "%s: model version %d, this program reads %d (fp32)", path,
                         (int)header[1], VERSION_FP32);
    }
    *shape = (gpt2_shape_t){.context = header[2],
                            .vocab = header[3],
                            .layers = header[4],
                            .heads = header[5],
                            .width = header[6],
                            .vocab_padded = header[7]};
    return gpt2_shape_check(shape, error);
}

int gpt2_llmc_inspect(const char *path, gpt2_shape_t *shape, gpt2_error_t *error)
{
    FILE *file = fopen(path, "rbe");
    int code;

    if (file == NULL) return gpt2_fail(error, "%s: %s", path, strerror(errno));
    code = read_header(file, path, shape, error);
    (void)fclose(file);
    return code;
}

typedef int (*transfer_fn)(FILE *file, const char *path, float *data, size_t bytes,
                           gpt2_error_t *error);

static int transfer_in(FILE *file, const char *path, float *data, size_t bytes, gpt2_error_t *error)
{
    return gpt2_file_read(file, path, data, bytes, error);
}

static int transfer_out(FILE *file, const char *path, float *data, size_t bytes,
                        gpt2_error_t *error)
{
    return gpt2_file_write(file, path, data, bytes, error);
}

/* Moves every tensor, in the file's order. */
static int transfer_all(FILE *file, const char *path, const gpt2_model_t *model,
                        transfer_fn transfer, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = model->layout;
    const size_t ends[4] = {gpt2_layout_wte(layout), gpt2_layout_wpe(layout), 0, 1};

    for (int i = 0; i < 4; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[ends[i]];

        for (int t = 0; i == 2 && t < GPT2_BLOCK_TENSORS; t++) {
            for (int layer = 0; layer < layout->shape.layers; layer++) {
                const gpt2_tensor_t *part =
                    &layout->tensors[gpt2_layout_block(layout, layer) + (size_t)BLOCK_ORDER[t]];
                if (transfer(file, path, model->weights + part->offset, part->count * sizeof(float),
                             error) != 0) {
                    return -1;
                }
            }
        }
        if (transfer(file, path, model->weights + tensor->offset, tensor->count * sizeof(float),
                     error) != 0) {
            return -1;
        }
    }
    return 0;
}

int gpt2_llmc_load(const char *path, gpt2_model_t *model, gpt2_error_t *error)
{
    gpt2_shape_t shape;
    FILE *file = fopen(path, "rbe");
    int code;

    if (file == NULL) return gpt2_fail(error, "%s: %s", path, strerror(errno));
    code = read_header(file, path, &shape, error);
    if (code == 0 && memcmp(&shape, &model->layout->shape, sizeof(shape)) != 0) {
        code = gpt2_fail(error, "%s: its shape is not this run's", path);
    }
    if (code == 0) code = transfer_all(file, path, model, transfer_in, error);
    if (code == 0 && fgetc(file) != EOF) {
        code = gpt2_fail(error, "%s: longer than its header says", path);
    }
    (void)fclose(file);
    return code;
}

int gpt2_llmc_save(const char *path, const gpt2_model_t *model, gpt2_error_t *error)
{
    const gpt2_shape_t *shape = &model->layout->shape;
    int32_t header[GPT2_HEADER_INTS] = {MAGIC,        VERSION_FP32,       shape->context,
                                        shape->vocab, shape->layers,      shape->heads,
                                        shape->width, shape->vocab_padded};
    FILE *file;

    if (gpt2_file_create(path, &file, error) != 0) return -1;
    if (gpt2_file_write(file, path, header, sizeof(header), error) != 0 ||
        transfer_all(file, path, model, transfer_out, error) != 0) {
        (void)fclose(file);
        return -1;
    }
    return gpt2_file_commit(file, path, error);
}
