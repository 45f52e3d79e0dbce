/*
 * llmc.c - converts between our layer-major arena and llm.c's file, whose tensors are stacked over
 * layers.
 */
#include "examples/gpt2/data/llmc.h"

#include <errno.h>
#include <string.h>

#include "examples/gpt2/data/data.h"
#include "examples/gpt2/base/files.h"
#include "examples/gpt2/base/foreign.h"
#include "examples/gpt2/base/halves.h"

#define MAGIC 20240326
#define VERSION_FP32 3
#define VERSION_BF16 5

/* The file's order, after the two embeddings and before the final norm. */
static const gpt2_block_tensor_t BLOCK_ORDER[GPT2_BLOCK_TENSORS] = {
    GPT2_LN1_W, GPT2_LN1_B, GPT2_QKV_W, GPT2_QKV_B, GPT2_PROJ_W,   GPT2_PROJ_B,
    GPT2_LN2_W, GPT2_LN2_B, GPT2_FC_W,  GPT2_FC_B,  GPT2_FCPROJ_W, GPT2_FCPROJ_B};

static int read_header(FILE *file, const char *path, gpt2_shape_t *shape, int *is_bf16,
                       gpt2_error_t *error)
{
    int32_t header[GPT2_HEADER_INTS];

    if (gpt2_foreign_refuse(file, path, error) != 0) return -1;
    if (gpt2_file_read(file, path, header, sizeof(header), error) != 0) return -1;
    if (header[0] != MAGIC) {
        return gpt2_fail(error, "%s: not an llm.c model: magic %d, expected %d", path,
                         (int)header[0], MAGIC);
    }
    if (header[1] != VERSION_FP32 && header[1] != VERSION_BF16) {
        return gpt2_fail(error, "%s: model version %d, this program reads %d (fp32) and %d (bf16)",
                         path, (int)header[1], VERSION_FP32, VERSION_BF16);
    }
    *is_bf16 = header[1] == VERSION_BF16;
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
    FILE *file;
    int is_bf16;
    int code;

    if (gpt2_file_open(path, &file, NULL, error) != 0) return -1;
    code = read_header(file, path, shape, &is_bf16, error);
    (void)fclose(file);
    return code;
}

/* One direction through one file. */
typedef struct transfer {
    FILE *file;
    const char *path;
    int is_bf16;
    int is_writing;
} transfer_t;

static int transfer_halves(const transfer_t *transfer, float *data, size_t count,
                           gpt2_error_t *error)
{
    uint16_t halves[4096];

    while (count > 0) {
        const size_t part = count < 4096 ? count : 4096;

        for (size_t i = 0; transfer->is_writing && i < part; i++)
            halves[i] = gpt2_to_bf16(data[i]);
        if ((transfer->is_writing
                 ? gpt2_file_write(transfer->file, transfer->path, halves, 2 * part, error)
                 : gpt2_file_read(transfer->file, transfer->path, halves, 2 * part, error)) != 0) {
            return -1;
        }
        for (size_t i = 0; !transfer->is_writing && i < part; i++)
            data[i] = gpt2_from_bf16(halves[i]);
        data += part;
        count -= part;
    }
    return 0;
}

static int transfer_tensor(const transfer_t *transfer, const gpt2_model_t *model, size_t index,
                           gpt2_error_t *error)
{
    const gpt2_tensor_t *tensor = &model->layout->tensors[index];
    float *data = model->weights + tensor->offset;
    const size_t bytes = tensor->count * sizeof(float);

    if (transfer->is_bf16) return transfer_halves(transfer, data, tensor->count, error);
    return transfer->is_writing
               ? gpt2_file_write(transfer->file, transfer->path, data, bytes, error)
               : gpt2_file_read(transfer->file, transfer->path, data, bytes, error);
}

/* Moves every tensor, in the file's order. */
static int transfer_all(const transfer_t *transfer, const gpt2_model_t *model, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = model->layout;
    const size_t ends[4] = {gpt2_layout_wte(layout), gpt2_layout_wpe(layout), 0, 1};

    for (int i = 0; i < 4; i++) {
        for (int t = 0; i == 2 && t < GPT2_BLOCK_TENSORS; t++) {
            for (int layer = 0; layer < layout->shape.layers; layer++) {
                const size_t index = gpt2_layout_block(layout, layer) + (size_t)BLOCK_ORDER[t];

                if (transfer_tensor(transfer, model, index, error) != 0) return -1;
            }
        }
        if (transfer_tensor(transfer, model, ends[i], error) != 0) return -1;
    }
    return 0;
}

int gpt2_llmc_load(const char *path, gpt2_model_t *model, gpt2_error_t *error)
{
    gpt2_shape_t shape;
    transfer_t transfer = {.path = path};
    FILE *file;
    int code;

    if (gpt2_file_open(path, &file, NULL, error) != 0) return -1;
    transfer.file = file;
    code = read_header(file, path, &shape, &transfer.is_bf16, error);
    if (code == 0 && memcmp(&shape, &model->layout->shape, sizeof(shape)) != 0) {
        code = gpt2_fail(error, "%s: its shape is not this run's", path);
    }
    if (code == 0) code = transfer_all(&transfer, model, error);
    if (code == 0 && fgetc(file) != EOF) {
        code = gpt2_fail(error, "%s: longer than its header says", path);
    }
    (void)fclose(file);
    return code;
}

int gpt2_llmc_save(const char *path, const gpt2_model_t *model, int as_bf16, gpt2_error_t *error)
{
    const gpt2_shape_t *shape = &model->layout->shape;
    int32_t header[GPT2_HEADER_INTS] = {MAGIC,          as_bf16 ? VERSION_BF16 : VERSION_FP32,
                                        shape->context, shape->vocab,
                                        shape->layers,  shape->heads,
                                        shape->width,   shape->vocab_padded};
    transfer_t transfer = {.path = path, .is_bf16 = as_bf16, .is_writing = 1};
    gpt2_output_t output;
    int code;

    if (gpt2_output_open(&output, path, error) != 0) return -1;
    transfer.file = output.file;
    code = gpt2_file_write(output.file, path, header, sizeof(header), error);
    if (code == 0) code = transfer_all(&transfer, model, error);
    return gpt2_output_close(&output, code, error);
}
