/*
 * hf_config.c - the fields of HF's GPT2Config that decide what a model computes. Rank 0's main
 * thread, while a run starts.
 */
#include "examples/gpt2/data/hf_config.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define VALUE_MAX 64
#define HEADS_MAX 1024

typedef enum rule {
    WORD,    /* one of the words */
    NUMBER,  /* this number */
    LAYERS,  /* the sizes of the tensors */
    WIDTH,   /* ... */
    CONTEXT, /* ... */
    VOCAB,   /* ... */
    INNER,   /* null, or four times the width */
    HEADS,   /* taken */
    TIED     /* true; false: safetensors.c compares the two matrices */
} rule_t;

/* Not listed, as any value computes the same: reorder_and_upcast_attn (the same products in another
 * order), attn_pdrop, embd_pdrop, resid_pdrop (there is no dropout here), initializer_range,
 * use_cache, n_ctx (HF reads n_positions). */
static const struct {
    const char *name;
    rule_t rule;
    const char *accepted; /* words with '|' between them, the first for people */
} FIELDS[] = {
    {"model_type", WORD, "gpt2"},
    {"activation_function", WORD, "gelu_new|gelu_pytorch_tanh|gelu_fast"}, /* one formula */
    {"layer_norm_epsilon", NUMBER, "1e-5"},
    {"scale_attn_weights", WORD, "true"},
    {"scale_attn_by_inverse_layer_idx", WORD, "false"},
    {"add_cross_attention", WORD, "false"},
    {"n_layer", LAYERS, NULL},
    {"n_embd", WIDTH, NULL},
    {"n_positions", CONTEXT, NULL},
    {"vocab_size", VOCAB, NULL},
    {"n_inner", INNER, NULL},
    {"n_head", HEADS, NULL},
    {"tie_word_embeddings", TIED, NULL},
};

/* A value as text: the characters of a string, or a word or number as it stands. An object or array
 * gives "{..." */
static int read_value(gpt2_json_t *json, char *out)
{
    gpt2_json_t start = *json;
    size_t from;
    size_t bytes;

    if (gpt2_json_string(&start, out, VALUE_MAX) == 0) {
        *json = start;
        return 0;
    }
    from = json->at;
    if (gpt2_json_skip(json) != 0) return -1;
    while (from < json->at && strchr(" \t\r\n", json->text[from]) != NULL)
        from++;
    bytes = json->at - from < VALUE_MAX - 1 ? json->at - from : VALUE_MAX - 1;
    memcpy(out, json->text + from, bytes);
    out[bytes] = '\0';
    return 0;
}

/* True and False are Python's words, which metadata of strings has. */
static int is_one_of(const char *value, const char *words)
{
    const size_t length = strlen(value);

    for (const char *word = words; word != NULL; word = strchr(word, '|')) {
        if (*word == '|') word++;
        if (strcspn(word, "|") == length && strncasecmp(word, value, length) == 0) return 1;
    }
    return 0;
}

/* A whole number of digits alone; -1: none, or too large for a size. */
static long whole_number(const char *value)
{
    const size_t digits = strspn(value, "0123456789");

    return digits == 0 || digits > 9 || value[digits] != '\0' ? -1 : strtol(value, NULL, 10);
}

static int refuse_size(const char *where, const char *name, const char *value, int expected,
                       gpt2_error_t *error)
{
    if (whole_number(value) == expected) return 0;
    return gpt2_fail(error, "%s: %s is %s, but the tensors have %d", where, name, value, expected);
}

static int take_heads(const char *where, const char *value, const gpt2_shape_t *shape,
                      gpt2_hf_facts_t *facts, gpt2_error_t *error)
{
    const long heads = whole_number(value);

    if (heads < 1 || heads > HEADS_MAX || shape->width % heads != 0) {
        return gpt2_fail(error, "%s: n_head is %s, expected 1 to %d that divide the width of %d",
                         where, value, HEADS_MAX, shape->width);
    }
    if (facts->heads != 0 && facts->heads != heads) {
        return gpt2_fail(error, "%s: n_head is %ld, but config.json has %d", where, heads,
                         facts->heads);
    }
    facts->heads = (int)heads;
    return 0;
}

static int check_field(size_t field, const char *where, const char *value,
                       const gpt2_shape_t *shape, gpt2_hf_facts_t *facts, gpt2_error_t *error)
{
    const char *name = FIELDS[field].name;
    const char *accepted = FIELDS[field].accepted;
    char *end = NULL;

    switch (FIELDS[field].rule) {
    case WORD:
        if (is_one_of(value, accepted)) return 0;
        break;
    case NUMBER:
        if (strtod(value, &end) == strtod(accepted, NULL) && *end == '\0') return 0;
        break;
    case LAYERS:
        return refuse_size(where, name, value, shape->layers, error);
    case WIDTH:
        return refuse_size(where, name, value, shape->width, error);
    case CONTEXT:
        return refuse_size(where, name, value, shape->context, error);
    case VOCAB:
        return refuse_size(where, name, value, shape->vocab, error);
    case INNER:
        if (is_one_of(value, "null|none")) return 0;
        return refuse_size(where, name, value, 4 * shape->width, error);
    case HEADS:
        return take_heads(where, value, shape, facts, error);
    case TIED:
        if (is_one_of(value, "false")) facts->is_untied = 1;
        if (is_one_of(value, "false|true")) return 0;
        accepted = "true";
        break;
    }
    return gpt2_fail(error, "%s: %s is %s, this program computes %.*s", where, name, value,
                     (int)strcspn(accepted, "|"), accepted);
}

int gpt2_hf_config_read(gpt2_json_t *json, const char *where, const gpt2_shape_t *shape,
                        gpt2_hf_facts_t *facts, gpt2_error_t *error)
{
    int first = 1;

    if (!gpt2_json_open(json, '{')) goto refuse;
    for (; gpt2_json_next(json, '{', first); first = 0) {
        char key[48];
        char value[VALUE_MAX];

        if (gpt2_json_key(json, key, sizeof(key)) != 0 || read_value(json, value) != 0) goto refuse;
        for (size_t i = 0; i < sizeof(FIELDS) / sizeof(FIELDS[0]); i++) {
            if (strcmp(FIELDS[i].name, key) == 0 &&
                check_field(i, where, value, shape, facts, error) != 0) {
                return -1;
            }
        }
    }
    if (!json->failed) return 0;
refuse:
    return gpt2_fail(error, "%s: not a JSON object, at its byte %zu", where, json->at);
}
