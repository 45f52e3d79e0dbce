/*
 * encode.c - merges neighbours in the order of their ranks, by a heap of the pairs there are.
 *
 * Most pieces are words that were there before: their tokens are kept in a table, in which a newer
 * word takes the place of an older one.
 */
#include "examples/gpt2/tokens/encode.h"

#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/hash.h"
#include "examples/gpt2/tokens/split.h"

#define PIECE_BYTES_MAX ((size_t)64 << 20)
#define KNOWN_COUNT ((size_t)1 << 15)
#define KNOWN_BYTES 24
#define KNOWN_TOKENS 8
#define NONE UINT32_MAX

/* A word and its tokens. */
typedef struct known {
    uint8_t bytes; /* 0: an empty place */
    uint8_t count;
    unsigned char text[KNOWN_BYTES];
    int32_t tokens[KNOWN_TOKENS];
} known_t;

/* A token of the piece that is being merged, at the place of its first byte. */
typedef struct symbol {
    int32_t token; /* -1: it has become a part of the one before */
    uint32_t before;
    uint32_t behind;
} symbol_t;

/* Two neighbours that can merge, as they were when they became neighbours. */
typedef struct pair {
    uint32_t rank;
    uint32_t at; /* of the left one */
    int32_t left;
    int32_t right;
    int32_t merged;
} pair_t;

struct gpt2_encoder {
    const gpt2_vocabulary_t *vocabulary;
    known_t *known;    /* [KNOWN_COUNT] */
    symbol_t *symbols; /* [room] */
    pair_t *heap;      /* [3 * room]: a pair for each border, and two for each merge */
    size_t heap_count;
    size_t room;
};

int gpt2_encoder_create(const gpt2_vocabulary_t *vocabulary, gpt2_encoder_t **out,
                        gpt2_error_t *error)
{
    gpt2_encoder_t *self = calloc(1, sizeof(*self));

    if (self != NULL) self->known = calloc(KNOWN_COUNT, sizeof(*self->known));
    if (self == NULL || self->known == NULL) {
        free(self);
        return gpt2_fail(error, "out of memory for an encoder");
    }
    self->vocabulary = vocabulary;
    *out = self;
    return 0;
}

void gpt2_encoder_destroy(gpt2_encoder_t *self)
{
    if (self == NULL) return;
    free(self->known);
    free(self->symbols);
    free(self->heap);
    free(self);
}

int gpt2_tokens_append(gpt2_tokens_t *tokens, int32_t token, gpt2_error_t *error)
{
    if (tokens->count == tokens->room) {
        const size_t room = tokens->room == 0 ? 4096 : 2 * tokens->room;
        int32_t *larger = realloc(tokens->list, room * sizeof(*larger));

        if (larger == NULL) return gpt2_fail(error, "out of memory for %zu tokens", room);
        tokens->list = larger;
        tokens->room = room;
    }
    tokens->list[tokens->count++] = token;
    return 0;
}

/* ---- The heap ------------------------------------------------------------------------------- */

/* Of equal ranks the first in the text merges first. */
static int is_before(const pair_t *a, const pair_t *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void push_pair(gpt2_encoder_t *self, uint32_t at)
{
    const uint32_t behind = self->symbols[at].behind;
    pair_t pair = {.at = at};
    size_t place = self->heap_count;

    if (behind == NONE) return;
    pair.left = self->symbols[at].token;
    pair.right = self->symbols[behind].token;
    if (!gpt2_vocabulary_merge(self->vocabulary, pair.left, pair.right, &pair.rank, &pair.merged))
        return;
    self->heap_count++;
    for (; place > 0 && is_before(&pair, &self->heap[(place - 1) / 2]); place = (place - 1) / 2)
        self->heap[place] = self->heap[(place - 1) / 2];
    self->heap[place] = pair;
}

static pair_t pop_pair(gpt2_encoder_t *self)
{
    const pair_t first = self->heap[0];
    const pair_t last = self->heap[--self->heap_count];
    size_t place = 0;

    for (;;) {
        size_t child = 2 * place + 1;

        if (child >= self->heap_count) break;
        if (child + 1 < self->heap_count && is_before(&self->heap[child + 1], &self->heap[child]))
            child++;
        if (!is_before(&self->heap[child], &last)) break;
        self->heap[place] = self->heap[child];
        place = child;
    }
    self->heap[place] = last;
    return first;
}

/* ---- Pieces --------------------------------------------------------------------------------- */

static int reserve_symbols(gpt2_encoder_t *self, size_t bytes, gpt2_error_t *error)
{
    const size_t room = bytes < 4096 ? 4096 : 2 * bytes;

    if (bytes <= self->room) return 0;
    if (bytes > PIECE_BYTES_MAX) {
        return gpt2_fail(error, "%zu bytes in a row that GPT-2 does not cut, expected at most %zu",
                         bytes, PIECE_BYTES_MAX);
    }
    free(self->symbols);
    free(self->heap);
    self->symbols = malloc(room * sizeof(*self->symbols));
    self->heap = malloc(3 * room * sizeof(*self->heap));
    self->room = self->symbols == NULL || self->heap == NULL ? 0 : room;
    return self->room > 0 ? 0 : gpt2_fail(error, "out of memory for a piece of %zu bytes", bytes);
}

/* Merges until no pair can; the symbols that are left are the piece's tokens. */
static void merge_pairs(gpt2_encoder_t *self, const unsigned char *piece, size_t bytes)
{
    symbol_t *symbols = self->symbols;

    for (size_t i = 0; i < bytes; i++) {
        symbols[i] =
            (symbol_t){gpt2_vocabulary_byte(self->vocabulary, piece[i]),
                       i == 0 ? NONE : (uint32_t)i - 1, i + 1 == bytes ? NONE : (uint32_t)i + 1};
    }
    self->heap_count = 0;
    for (size_t i = 0; i < bytes; i++)
        push_pair(self, (uint32_t)i);
    while (self->heap_count > 0) {
        const pair_t pair = pop_pair(self);
        symbol_t *left = &symbols[pair.at];
        const uint32_t behind = left->behind;

        /* One of the two may have merged with another meanwhile. */
        if (left->token != pair.left || behind == NONE || symbols[behind].token != pair.right)
            continue;
        left->token = pair.merged;
        left->behind = symbols[behind].behind;
        symbols[behind].token = -1;
        if (left->behind != NONE) symbols[left->behind].before = pair.at;
        if (left->before != NONE) push_pair(self, left->before);
        push_pair(self, pair.at);
    }
}

static int encode_piece(gpt2_encoder_t *self, const unsigned char *piece, size_t bytes,
                        gpt2_tokens_t *tokens, gpt2_error_t *error)
{
    known_t *known =
        bytes > KNOWN_BYTES ? NULL : &self->known[gpt2_hash(piece, bytes) & (KNOWN_COUNT - 1)];
    const size_t first = tokens->count;

    if (known != NULL && known->bytes == bytes && memcmp(known->text, piece, bytes) == 0) {
        for (size_t i = 0; i < known->count; i++)
            if (gpt2_tokens_append(tokens, known->tokens[i], error) != 0) return -1;
        return 0;
    }
    if (reserve_symbols(self, bytes, error) != 0) return -1;
    merge_pairs(self, piece, bytes);
    for (uint32_t at = 0; at != NONE; at = self->symbols[at].behind)
        if (gpt2_tokens_append(tokens, self->symbols[at].token, error) != 0) return -1;
    if (known == NULL || tokens->count - first > KNOWN_TOKENS) return 0;
    known->bytes = (uint8_t)bytes;
    known->count = (uint8_t)(tokens->count - first);
    memcpy(known->text, piece, bytes);
    memcpy(known->tokens, tokens->list + first, known->count * sizeof(*known->tokens));
    return 0;
}

int gpt2_encode(gpt2_encoder_t *self, const void *text, size_t bytes, int is_end, size_t *used,
                gpt2_tokens_t *tokens, gpt2_error_t *error)
{
    const unsigned char *at = text;
    size_t length;

    *used = 0;
    while ((length = gpt2_split(at + *used, bytes - *used, is_end)) > 0) {
        if (encode_piece(self, at + *used, length, tokens, error) != 0) return -1;
        *used += length;
    }
    return 0;
}
