/*
 * hf_config.h - whether a model that HF's config.json describes is the GPT-2 that this program
 * computes. safetensors.c asks it about config.json and about the metadata of its files.
 *
 * The table in hf_config.c says which values of which fields are accepted. It must not know tensors
 * or files.
 */
#ifndef GPT2_HF_CONFIG_H
#define GPT2_HF_CONFIG_H

#include "examples/gpt2/base/error.h"
#include "examples/gpt2/data/json.h"
#include "examples/gpt2/model/shape.h"

typedef struct gpt2_hf_facts {
    int heads;     /* 0: not said */
    int is_untied; /* 1: the head is said to have weights of its own */
} gpt2_hf_facts_t;

/* Reads an object of fields. Refuses a value with which the model would compute something else, and
 * sizes that are not the shape's; fields that the table has not may have any value. where: for the
 * text. shape: of the file's tensors; its heads are not looked at. */
int gpt2_hf_config_read(gpt2_json_t *json, const char *where, const gpt2_shape_t *shape,
                        gpt2_hf_facts_t *facts, gpt2_error_t *error);

#endif
