/*
 * vocabulary.c - reads the two files, checks each against the other, and answers by hash tables.
 */
#include "examples/gpt2/tokens/vocabulary.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "examples/gpt2/base/files.h"
#include "examples/gpt2/base/hash.h"
#include "examples/gpt2/base/utf8.h"
#include "examples/gpt2/data/json.h"

#define FILE_BYTES_MAX ((size_t)1 << 28)
#define TOKEN_TEXT_MAX 4096 /* bytes of a token as the files write it */
#define END_OF_TEXT "<|endoftext|>"
#define ABSENT 0xFFFFFFFFu

typedef struct token {
    size_t at; /* in the vocabulary's bytes */
    size_t bytes;
} token_t;

typedef struct merge {
    int32_t left; /* -1: an empty place of the table */
    int32_t right;
    uint32_t rank;
    int32_t merged;
} merge_t;

struct gpt2_vocabulary {
    unsigned char *bytes; /* of all tokens */
    token_t *tokens;      /* [count] */
    size_t count;
    uint32_t *numbers; /* [number_room] by a token's bytes; ABSENT: an empty place */
    size_t number_room;
    merge_t *merges; /* [merge_room] by the pair */
    size_t merge_room;
    int32_t single[256];
    int32_t end;
};

/* ---- Bytes as characters -------------------------------------------------------------------- */

/* 1: OpenAI writes the byte as the character of that number. The others, which would be blank or
 * invisible, are the characters from 256 on, in order. */
static int is_printable(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* bytes [512]: the byte that a character stands for, or -1. */
static void make_alphabet(int16_t *bytes)
{
    int next = 256;

    for (int i = 0; i < 512; i++)
        bytes[i] = -1;
    for (int i = 0; i < 256; i++)
        bytes[is_printable(i) ? i : next++] = (int16_t)i;
}

/* out [bytes] = what a token's text stands for; returns how many, or -1 for a character that stands
 * for none. */
static long read_token(const int16_t *alphabet, const char *text, size_t bytes, unsigned char *out)
{
    long count = 0;

    for (size_t at = 0; at < bytes;) {
        uint32_t code;
        const size_t length = gpt2_utf8_get((const unsigned char *)text + at, bytes - at, &code);

        if (length == 0 || code >= 512 || alphabet[code] < 0) return -1;
        out[count++] = (unsigned char)alphabet[code];
        at += length;
    }
    return count;
}

/* ---- Tables --------------------------------------------------------------------------------- */

static size_t table_room(size_t count)
{
    size_t room = 16;

    while (room < 2 * count)
        room *= 2;
    return room;
}

/* The place of a token with these bytes, or the empty one where it would be. */
static uint32_t *find_number(const gpt2_vocabulary_t *self, const unsigned char *bytes,
                             size_t count)
{
    size_t at = gpt2_hash(bytes, count) & (self->number_room - 1);

    for (;; at = (at + 1) & (self->number_room - 1)) {
        uint32_t *number = &self->numbers[at];
        const token_t *token = *number == ABSENT ? NULL : &self->tokens[*number];

        if (token == NULL ||
            (token->bytes == count && memcmp(self->bytes + token->at, bytes, count) == 0)) {
            return number;
        }
    }
}

static merge_t *find_merge(const gpt2_vocabulary_t *self, int32_t left, int32_t right)
{
    const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t at = (size_t)(key * 0x9fb21c651e98df25u >> 32) & (self->merge_room - 1);

    for (;; at = (at + 1) & (self->merge_room - 1)) {
        merge_t *merge = &self->merges[at];

        if (merge->left < 0 || (merge->left == left && merge->right == right)) return merge;
    }
}

/* ---- vocab.json ----------------------------------------------------------------------------- */

static size_t count_members(const char *text, size_t bytes)
{
    gpt2_json_t json = {text, bytes, 0, 0};
    size_t count = 0;

    if (!gpt2_json_open(&json, '{')) return 0;
    while (gpt2_json_next(&json, '{', count == 0)) {
        if (gpt2_json_key(&json, NULL, 0) != 0 || gpt2_json_skip(&json) != 0) return 0;
        count++;
    }
    return gpt2_json_end(&json) == 0 ? count : 0;
}

/* One member of the object: a token and its number. *used: bytes of all tokens so far. */
static int read_member(gpt2_vocabulary_t *self, const int16_t *alphabet, gpt2_json_t *json,
                       const char *path, size_t *used, gpt2_error_t *error)
{
    char text[TOKEN_TEXT_MAX];
    uint64_t number;
    long bytes;

    if (gpt2_json_key(json, text, sizeof(text)) != 0 || gpt2_json_number(json, &number) != 0)
        return gpt2_fail(error, "%s: not a token and its number, at byte %zu", path, json->at);
    if (strlen(text) == sizeof(text) - 1)
        return gpt2_fail(error, "%s: \"%.40s...\" is too long for a token", path, text);
    if (number >= self->count) {
        return gpt2_fail(error, "%s: \"%s\" has number %llu, but there are %zu tokens", path, text,
                         (unsigned long long)number, self->count);
    }
    if (self->tokens[number].at != SIZE_MAX) {
        return gpt2_fail(error, "%s: two tokens have number %llu, \"%s\" is one", path,
                         (unsigned long long)number, text);
    }
    bytes = read_token(alphabet, text, strlen(text), self->bytes + *used);
    if (bytes < 1)
        return gpt2_fail(error, "%s: \"%s\" has a character that stands for no byte", path, text);
    self->tokens[number] = (token_t){*used, (size_t)bytes};
    *used += (size_t)bytes;
    return 0;
}

/* Enters every token into the table, and knows those of single bytes and the end of a text. */
static int index_tokens(gpt2_vocabulary_t *self, const char *path, gpt2_error_t *error)
{
    const unsigned char *end = (const unsigned char *)END_OF_TEXT;

    for (size_t i = 0; i < self->count; i++) {
        const token_t *token = &self->tokens[i];
        uint32_t *number = find_number(self, self->bytes + token->at, token->bytes);

        if (*number != ABSENT)
            return gpt2_fail(error, "%s: tokens %u and %zu are the same", path, *number, i);
        *number = (uint32_t)i;
    }
    for (int i = 0; i < 256; i++) {
        const unsigned char byte = (unsigned char)i;
        const uint32_t number = *find_number(self, &byte, 1);

        if (number == ABSENT) return gpt2_fail(error, "%s: no token for byte %d", path, i);
        self->single[i] = (int32_t)number;
    }
    self->end = (int32_t)*find_number(self, end, strlen(END_OF_TEXT));
    return 0;
}

static int read_tokens(gpt2_vocabulary_t *self, const int16_t *alphabet, const char *path,
                       gpt2_error_t *error)
{
    gpt2_json_t json = {.at = 0};
    char *text = NULL;
    size_t used = 0;
    int code = -1;

    if (gpt2_file_whole(path, FILE_BYTES_MAX, &text, &json.bytes, error) != 0) return -1;
    json.text = text;
    self->count = count_members(text, json.bytes);
    self->number_room = table_room(self->count);
    if (self->count == 0) {
        (void)gpt2_fail(error, "%s: not a JSON object of tokens and their numbers", path);
        goto end;
    }
    self->bytes = malloc(json.bytes);
    self->tokens = malloc(self->count * sizeof(*self->tokens));
    self->numbers = malloc(self->number_room * sizeof(*self->numbers));
    if (self->bytes == NULL || self->tokens == NULL || self->numbers == NULL) {
        (void)gpt2_fail(error, "%s: out of memory for %zu tokens", path, self->count);
        goto end;
    }
    for (size_t i = 0; i < self->count; i++)
        self->tokens[i] = (token_t){SIZE_MAX, 0};
    memset(self->numbers, 0xFF, self->number_room * sizeof(*self->numbers));
    (void)gpt2_json_open(&json, '{');
    for (int first = 1; gpt2_json_next(&json, '{', first); first = 0) {
        if (read_member(self, alphabet, &json, path, &used, error) != 0) goto end;
    }
    code = index_tokens(self, path, error);
end:
    free(text);
    return code;
}

/* ---- merges.txt ----------------------------------------------------------------------------- */

/* The token with this text, or -1. */
static int32_t find_text(const gpt2_vocabulary_t *self, const int16_t *alphabet, const char *text,
                         size_t length, unsigned char *bytes, long *count)
{
    *count = length < TOKEN_TEXT_MAX ? read_token(alphabet, text, length, bytes) : -1;
    return *count < 1 ? -1 : (int32_t)*find_number(self, bytes, (size_t)*count);
}

/* "left right" */
static int read_merge(gpt2_vocabulary_t *self, const int16_t *alphabet, const char *line,
                      size_t length, uint32_t rank)
{
    const char *blank = memchr(line, ' ', length);
    unsigned char bytes[2 * TOKEN_TEXT_MAX];
    long counts[2];
    int32_t left;
    int32_t right;
    int32_t merged;
    merge_t *merge;

    if (blank == NULL) return -1;
    left = find_text(self, alphabet, line, (size_t)(blank - line), bytes, &counts[0]);
    if (left < 0) return -1;
    right = find_text(self, alphabet, blank + 1, length - (size_t)(blank - line) - 1,
                      bytes + counts[0], &counts[1]);
    if (right < 0) return -1;
    merged = (int32_t)*find_number(self, bytes, (size_t)(counts[0] + counts[1]));
    if (merged < 0) return -1;
    merge = find_merge(self, left, right);
    if (merge->left < 0) *merge = (merge_t){left, right, rank, merged};
    return 0;
}

static int read_lines(gpt2_vocabulary_t *self, const int16_t *alphabet, const char *path,
                      const char *text, gpt2_error_t *error)
{
    size_t number = 1;
    uint32_t rank = 0;

    for (const char *line = text; *line != '\0'; number++) {
        size_t length = strcspn(line, "\n");
        const size_t step = length + (line[length] == '\n');

        if (length > 0 && line[length - 1] == '\r') length--;
        if (length > 0 && !(number == 1 && strncmp(line, "#version", 8) == 0) &&
            read_merge(self, alphabet, line, length, rank++) != 0) {
            return gpt2_fail(error, "%s: line %zu, \"%.*s\", does not join two tokens to a third",
                             path, number, length < 80 ? (int)length : 80, line);
        }
        line += step;
    }
    return 0;
}

static int read_merges(gpt2_vocabulary_t *self, const int16_t *alphabet, const char *path,
                       gpt2_error_t *error)
{
    char *text;
    size_t bytes;
    size_t lines = 1;
    int code;

    if (gpt2_file_whole(path, FILE_BYTES_MAX, &text, &bytes, error) != 0) return -1;
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    self->merge_room = table_room(lines);
    self->merges = malloc(self->merge_room * sizeof(*self->merges));
    if (self->merges == NULL) {
        code = gpt2_fail(error, "%s: out of memory for %zu merges", path, lines);
    } else {
        memset(self->merges, 0xFF, self->merge_room * sizeof(*self->merges));
        code = read_lines(self, alphabet, path, text, error);
    }
    free(text);
    return code;
}

/* ---- Both ----------------------------------------------------------------------------------- */

static int is_file(const char *path)
{
    struct stat status;

    return stat(path, &status) == 0 && !S_ISDIR(status.st_mode);
}

/* tokens and merges [GPT2_PATH_MAX] = the two files that the words mean. */
static int find_files(const gpt2_words_t *paths, char *tokens, char *merges, gpt2_error_t *error)
{
    static const char *const names[][2] = {{"vocab.json", "merges.txt"},
                                           {"encoder.json", "vocab.bpe"}};

    if (paths->count == 2) {
        const int first = gpt2_path_ends(paths->list[0], ".json") ? 0 : 1;

        if (!gpt2_path_ends(paths->list[first], ".json")) {
            return gpt2_fail(error, "%s, %s: one of the two must be a vocabulary (.json)",
                             paths->list[0], paths->list[1]);
        }
        (void)snprintf(tokens, GPT2_PATH_MAX, "%s", paths->list[first]);
        (void)snprintf(merges, GPT2_PATH_MAX, "%s", paths->list[1 - first]);
        return 0;
    }
    for (size_t i = 0; i < 2 && paths->count == 1; i++) {
        if (gpt2_path_join(tokens, paths->list[0], names[i][0], error) != 0) return -1;
        if (gpt2_path_join(merges, paths->list[0], names[i][1], error) != 0) return -1;
        if (is_file(tokens) && is_file(merges)) return 0;
    }
    return gpt2_fail(error,
                     "%s: expected a folder with vocab.json and merges.txt, or encoder.json and "
                     "vocab.bpe, or the two files",
                     paths->count == 0 ? "--tokenizer" : paths->list[0]);
}

int gpt2_vocabulary_open(const gpt2_words_t *paths, gpt2_vocabulary_t **out, gpt2_error_t *error)
{
    gpt2_vocabulary_t *self;
    int16_t alphabet[512];
    char tokens[GPT2_PATH_MAX];
    char merges[GPT2_PATH_MAX];

    if (find_files(paths, tokens, merges, error) != 0) return -1;
    self = calloc(1, sizeof(*self));
    if (self == NULL) return gpt2_fail(error, "out of memory for a vocabulary");
    make_alphabet(alphabet);
    if (read_tokens(self, alphabet, tokens, error) != 0 ||
        read_merges(self, alphabet, merges, error) != 0) {
        gpt2_vocabulary_close(self);
        return -1;
    }
    *out = self;
    return 0;
}

void gpt2_vocabulary_close(gpt2_vocabulary_t *self)
{
    if (self == NULL) return;
    free(self->bytes);
    free(self->tokens);
    free(self->numbers);
    free(self->merges);
    free(self);
}

size_t gpt2_vocabulary_count(const gpt2_vocabulary_t *self)
{
    return self->count;
}

int32_t gpt2_vocabulary_end(const gpt2_vocabulary_t *self)
{
    return self->end;
}

const unsigned char *gpt2_vocabulary_bytes(const gpt2_vocabulary_t *self, int32_t token,
                                           size_t *bytes)
{
    *bytes = self->tokens[token].bytes;
    return self->bytes + self->tokens[token].at;
}

int32_t gpt2_vocabulary_byte(const gpt2_vocabulary_t *self, unsigned char byte)
{
    return self->single[byte];
}

int gpt2_vocabulary_merge(const gpt2_vocabulary_t *self, int32_t left, int32_t right,
                          uint32_t *rank, int32_t *merged)
{
    const merge_t *merge = find_merge(self, left, right);

    if (merge->left < 0) return 0;
    *rank = merge->rank;
    *merged = merge->merged;
    return 1;
}
