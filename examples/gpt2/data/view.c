/*
 * view.c - which sequences of the data a step trains on, and which it validates on.
 *
 * Every rank computes which sequences are its own. Main thread only. It must not know that the data
 * lie in files.
 */
#include "examples/gpt2/data/view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/hash.h"
#include "examples/gpt2/base/random.h"

#define CHUNK 4096 /* tokens read at a time */

gpt2_view_t gpt2_view_all(gpt2_data_t *data)
{
    return (gpt2_view_t){data, 0, gpt2_data_count(data)};
}

void gpt2_view_split(const gpt2_view_t *all, double part, gpt2_view_t *training,
                     gpt2_view_t *validation)
{
    uint64_t cut = (uint64_t)((double)all->count * part);

    *training = (gpt2_view_t){all->data, all->first, all->count - cut};
    *validation = (gpt2_view_t){all->data, all->first + training->count, cut};
}

int gpt2_view_check(const gpt2_view_t *view, const char *what, int length, gpt2_error_t *error)
{
    if (view->count > (uint64_t)length) return 0;
    return gpt2_fail(error, "%s: %s has %llu tokens, a sequence of %d needs %d",
                     gpt2_data_name(view->data), what, (unsigned long long)view->count, length,
                     length + 1);
}

uint64_t gpt2_view_sequences(const gpt2_view_t *view, int length)
{
    uint64_t fit = (view->count - 1) / (uint64_t)length;

    /* One less than fits leaves room for an offset that differs from epoch to epoch. */
    return fit > 1 ? fit - 1 : 1;
}

/* The target of each token is the one behind it, so a sequence takes length + 1 tokens. */
static int copy_sequence(gpt2_data_t *data, uint64_t at, int length, int32_t *inputs,
                         int32_t *targets, gpt2_error_t *error)
{
    const size_t count = (size_t)length + 1;
    int32_t tokens[CHUNK];

    for (size_t done = 0; done < count; done += CHUNK) {
        const size_t piece = count - done < CHUNK ? count - done : CHUNK;

        if (gpt2_data_read(data, at + done, piece, tokens, error) != 0) return -1;
        for (size_t i = 0; i < piece; i++) {
            if (done + i + 1 < count) inputs[done + i] = tokens[i];
            if (done + i > 0) targets[done + i - 1] = tokens[i];
        }
    }
    return 0;
}

/* All numbers follow from (seed, epoch, index): every rank computes its part of any step without
 * asking, and a resumed run goes on exactly where it was, on any number of ranks. */
uint64_t gpt2_view_position(const gpt2_view_t *view, uint64_t seed, int length, uint64_t index)
{
    const uint64_t sequences = gpt2_view_sequences(view, length);
    const uint64_t slack = view->count - 1 - sequences * (uint64_t)length;
    const uint64_t epoch = index / sequences;
    const uint64_t offset = gpt2_random_bits(~seed, epoch, 0) % (slack + 1);

    return view->first + offset +
           gpt2_random_permute(seed, epoch, index % sequences, sequences) * (uint64_t)length;
}

int gpt2_view_training(const gpt2_view_t *view, uint64_t seed, int length, uint64_t first,
                       int count, int32_t *inputs, int32_t *targets, gpt2_error_t *error)
{
    for (int i = 0; i < count; i++) {
        const size_t row = (size_t)i * (size_t)length;

        if (copy_sequence(view->data, gpt2_view_position(view, seed, length, first + (uint64_t)i),
                          length, inputs + row, targets + row, error) != 0) {
            return -1;
        }
    }
    return 0;
}

uint64_t gpt2_sequences_hash(const int32_t *tokens, int length, uint64_t first, int count)
{
    uint64_t sum = 0;

    for (int i = 0; i < count; i++) {
        sum += gpt2_random_bits(
            gpt2_hash(tokens + (size_t)i * (size_t)length, (size_t)length * sizeof(*tokens)),
            first + (uint64_t)i, 0);
    }
    return sum;
}

int gpt2_view_validation(const gpt2_view_t *view, int length, uint64_t total, uint64_t first,
                         int count, int32_t *inputs, int32_t *targets, gpt2_error_t *error)
{
    uint64_t last = view->count - 1 - (uint64_t)length; /* where the last sequence starts */

    for (int i = 0; i < count; i++) {
        const size_t row = (size_t)i * (size_t)length;
        uint64_t at =
            total <= 1
                ? 0
                : (uint64_t)((double)last * (double)(first + (uint64_t)i) / (double)(total - 1));

        if (copy_sequence(view->data, view->first + at, length, inputs + row, targets + row,
                          error) != 0) {
            return -1;
        }
    }
    return 0;
}

int gpt2_view_fingerprint(const gpt2_view_t *view, uint64_t *out, gpt2_error_t *error)
{
    enum { PLACES = 256, AT_EACH = 16 };
    const size_t each = view->count < AT_EACH ? (size_t)view->count : AT_EACH;
    int32_t tokens[AT_EACH];
    uint64_t hash = gpt2_hash(&view->count, sizeof(view->count));

    for (uint64_t i = 0; i < PLACES && each > 0; i++) {
        const uint64_t at = (view->count - each) / (PLACES - 1) * i;

        if (gpt2_data_read(view->data, view->first + at, each, tokens, error) != 0) return -1;
        hash = gpt2_random_bits(hash, gpt2_hash(tokens, each * sizeof(*tokens)), i);
    }
    *out = hash;
    return 0;
}

void gpt2_share(uint64_t count, uint64_t index, uint64_t parts, uint64_t *first, uint64_t *last)
{
    uint64_t each = count / parts;
    uint64_t more = count % parts; /* the first parts get one more */

    *first = index * each + (index < more ? index : more);
    *last = *first + each + (index < more ? 1 : 0);
}

/* pairs[a][b]: how often b follows a. */
static int count_pairs(const gpt2_view_t *view, uint64_t (*pairs)[256], uint64_t *singles,
                       gpt2_error_t *error)
{
    int32_t tokens[CHUNK];
    int32_t before = -1;

    for (uint64_t at = 0; at < view->count; at += CHUNK) {
        const size_t piece = view->count - at < CHUNK ? (size_t)(view->count - at) : CHUNK;

        if (gpt2_data_read(view->data, view->first + at, piece, tokens, error) != 0) return -1;
        for (size_t i = 0; i < piece; i++) {
            singles[tokens[i]]++;
            if (before >= 0) pairs[before][tokens[i]]++;
            before = tokens[i];
        }
    }
    return 0;
}

int gpt2_view_entropy(const gpt2_view_t *view, double *unigram, double *bigram, gpt2_error_t *error)
{
    uint64_t(*pairs)[256] = calloc(256, sizeof(*pairs));
    uint64_t singles[256] = {0};
    double total = (double)view->count;

    *unigram = 0.0;
    *bigram = 0.0;
    if (pairs == NULL) return gpt2_fail(error, "out of memory to count a text's pairs");
    if (count_pairs(view, pairs, singles, error) != 0) {
        free(pairs);
        return -1;
    }
    for (int a = 0; a < 256; a++) {
        uint64_t row = 0;

        if (singles[a] > 0)
            *unigram -= (double)singles[a] / total * log((double)singles[a] / total);
        for (int b = 0; b < 256; b++)
            row += pairs[a][b];
        for (int b = 0; b < 256; b++) {
            if (pairs[a][b] == 0) continue;
            *bigram -= (double)pairs[a][b] / (total - 1.0) * log((double)pairs[a][b] / (double)row);
        }
    }
    free(pairs);
    return 0;
}

/* ---- What a run has ------------------------------------------------------------------------- */

static int open_words(const gpt2_words_t *words, int is_validation, int is_raw, gpt2_data_t **out,
                      gpt2_words_t *beside, gpt2_error_t *error)
{
    gpt2_words_t paths;
    int code;

    if (gpt2_paths_expand(words, is_validation, &paths, beside, error) != 0) return -1;
    code = gpt2_data_open(&paths, is_raw, out, error);
    gpt2_paths_free(&paths);
    return code;
}

int gpt2_corpus_open(const gpt2_words_t *data, const gpt2_words_t *val, int is_raw,
                     gpt2_corpus_t *out, gpt2_error_t *error)
{
    gpt2_words_t beside = {NULL, 0};
    int code;

    memset(out, 0, sizeof(*out));
    code = open_words(data, 0, is_raw, &out->data, &beside, error);
    if (code == 0 && val->count > 0) {
        code = open_words(val, 1, is_raw, &out->val_data, NULL, error);
    } else if (code == 0 && beside.count > 0) {
        code = gpt2_data_open(&beside, is_raw, &out->val_data, error);
    }
    gpt2_paths_free(&beside);
    if (code != 0) return -1;
    out->training = gpt2_view_all(out->data);
    if (out->val_data == NULL) {
        const gpt2_view_t all = out->training;

        gpt2_view_split(&all, GPT2_VALIDATION_PART, &out->training, &out->validation);
        return 0;
    }
    out->validation = gpt2_view_all(out->val_data);
    return gpt2_data_check_kinds(out->data, out->val_data, error);
}

void gpt2_corpus_close(gpt2_corpus_t *corpus)
{
    gpt2_data_close(corpus->data);
    gpt2_data_close(corpus->val_data);
    memset(corpus, 0, sizeof(*corpus));
}
