/*
 * safetensors_file.h - the format of safetensors: a length, a JSON header that says where each
 * tensor lies, and the data. safetensors.c reads models through it.
 *
 * Each number of a header is checked against the file's size before it is used. It must not
 * know which tensors a model has.
 */
#ifndef GPT2_SAFETENSORS_FILE_H
#define GPT2_SAFETENSORS_FILE_H

#include <stdint.h>
#include <stdio.h>

#include "examples/gpt2/base/error.h"
#include "examples/gpt2/data/json.h"

#define GPT2_SAFETENSORS_NAME_MAX 128

typedef struct gpt2_safetensors_file {
    FILE *file;
    const char *path; /* borrowed */
    char *header;     /* owned */
    size_t header_bytes;
    uint64_t data_bytes; /* behind the header */
} gpt2_safetensors_file_t;

/* One tensor's entry in the header. */
typedef struct gpt2_safetensors_entry {
    char name[GPT2_SAFETENSORS_NAME_MAX];
    char dtype[8];
    uint64_t shape[2]; /* of one dimension: {1, n} */
    int dimensions;
    uint64_t begin;
    uint64_t end;
} gpt2_safetensors_entry_t;

typedef int (*gpt2_safetensors_visit_t)(void *user, const gpt2_safetensors_file_t *source,
                                        const gpt2_safetensors_entry_t *entry, gpt2_error_t *error);

/* Opens a file and reads its header. close() also after a failure. */
int gpt2_safetensors_open(const char *path, gpt2_safetensors_file_t *source, gpt2_error_t *error);
void gpt2_safetensors_close(gpt2_safetensors_file_t *source);

/* Calls visit for every tensor, in the header's order. Refuses tensors that do not fill the data
 * exactly. */
int gpt2_safetensors_each(const gpt2_safetensors_file_t *source, gpt2_safetensors_visit_t visit,
                          void *user, gpt2_error_t *error);

/* 1: json stands before the object of the file's metadata; 0: it has none. */
int gpt2_safetensors_metadata(const gpt2_safetensors_file_t *source, gpt2_json_t *json);

/* Reads bytes of the data from `at` on. */
int gpt2_safetensors_read(const gpt2_safetensors_file_t *source, uint64_t at, void *out,
                          size_t bytes, gpt2_error_t *error);

#endif
