/*
 * data.c - maps data files, checks them, and picks sequences.
 *
 * Every rank maps the same files and computes which sequences are its own, so no data travels. Main
 * thread only.
 */
#include "examples/gpt2/data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/gpt2/base/hash.h"
#include "examples/gpt2/base/random.h"

/* A token file of llm.c: a header of 256 32-bit integers (magic, version, number of tokens, zeros),
 * then the tokens as 16-bit little-endian integers. */
#define HEADER_BYTES ((size_t)GPT2_HEADER_INTS * 4)

struct gpt2_data {
    char *path;
    const unsigned char *map; /* NULL: empty file */
    size_t map_bytes;
    int is_text;
    uint64_t count; /* tokens */
};

static int32_t header_int(const gpt2_data_t *data, int index)
{
    int32_t value;

    memcpy(&value, data->map + 4 * (size_t)index, sizeof(value));
    return value;
}

static int has_suffix(const char *text, const char *suffix)
{
    size_t length = strlen(text);
    size_t tail = strlen(suffix);

    return length >= tail && strcmp(text + length - tail, suffix) == 0;
}

/* Decides what the file is; a .bin must be tokens. */
static int examine(gpt2_data_t *data, gpt2_error_t *error)
{
    uint64_t expected;

    if (data->map_bytes == 0) return gpt2_fail(error, "%s: the file is empty", data->path);
    if (data->map_bytes < 8 || header_int(data, 0) != GPT2_TOKENS_MAGIC) {
        if (has_suffix(data->path, ".bin")) {
            return gpt2_fail(error, "%s: not a token file: magic %ld, expected %d", data->path,
                             data->map_bytes < 4 ? -1L : (long)header_int(data, 0),
                             GPT2_TOKENS_MAGIC);
        }
        data->is_text = 1;
        data->count = data->map_bytes;
        return 0;
    }
    if (header_int(data, 1) != GPT2_TOKENS_VERSION) {
        return gpt2_fail(error, "%s: token file version %d, this program reads %d", data->path,
                         (int)header_int(data, 1), GPT2_TOKENS_VERSION);
    }
    if (data->map_bytes < HEADER_BYTES) {
        return gpt2_fail(error, "%s: truncated header: %zu bytes of %zu", data->path,
                         data->map_bytes, HEADER_BYTES);
    }
    if (header_int(data, 2) < 0) {
        return gpt2_fail(error, "%s: the header says %d tokens", data->path,
                         (int)header_int(data, 2));
    }
    data->count = (uint64_t)header_int(data, 2);
    expected = HEADER_BYTES + 2 * data->count;
    if (expected != data->map_bytes) {
        return gpt2_fail(error, "%s: %zu bytes long, but its header says %llu tokens = %llu bytes",
                         data->path, data->map_bytes, (unsigned long long)data->count,
                         (unsigned long long)expected);
    }
    return 0;
}

int gpt2_data_open(const char *path, gpt2_data_t **out, gpt2_error_t *error)
{
    struct stat status;
    void *map;
    gpt2_data_t *data = calloc(1, sizeof(*data));
    int fd = -1;

    if (data != NULL) data->path = strdup(path);
    if (data == NULL || data->path == NULL) {
        gpt2_fail(error, "out of memory for %s", path);
        goto fail;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        gpt2_fail(error, "%s: %s", path, strerror(errno));
        goto fail;
    }
    if (!S_ISREG(status.st_mode)) {
        gpt2_fail(error, "%s: not a regular file", path);
        goto fail;
    }
    data->map_bytes = (size_t)status.st_size;
    if (data->map_bytes > 0) {
        map = mmap(NULL, data->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            gpt2_fail(error, "%s: cannot be mapped: %s", path, strerror(errno));
            goto fail;
        }
        data->map = map;
    }
    if (examine(data, error) != 0) goto fail;
    (void)close(fd);
    *out = data;
    return 0;
fail:
    if (fd >= 0) (void)close(fd);
    gpt2_data_close(data);
    return -1;
}

void gpt2_data_close(gpt2_data_t *data)
{
    if (data == NULL) return;
    /* munmap() wants a pointer to non-const memory. */
    if (data->map != NULL) (void)munmap((void *)(uintptr_t)data->map, data->map_bytes);
    free(data->path);
    free(data);
}

int gpt2_data_is_text(const gpt2_data_t *data)
{
    return data->is_text;
}

gpt2_view_t gpt2_data_all(const gpt2_data_t *data)
{
    return (gpt2_view_t){data, 0, data->count};
}

static inline int32_t token_at(const gpt2_data_t *data, uint64_t index)
{
    const unsigned char *at;

    if (data->is_text) return data->map[index];
    at = data->map + HEADER_BYTES + 2 * index;
    return (int32_t)(at[0] | (unsigned)at[1] << 8);
}

int gpt2_data_check(const gpt2_data_t *data, int vocab, gpt2_error_t *error)
{
    int32_t highest = 0;

    if (vocab >= (data->is_text ? 256 : 65536)) return 0; /* no token can be outside */
    /* First a loop that the compiler vectorises; the position is looked for only in a bad file. */
    for (uint64_t i = 0; i < data->count; i++) {
        int32_t token = token_at(data, i);
        highest = token > highest ? token : highest;
    }
    if (highest < vocab) return 0;
    for (uint64_t i = 0; i < data->count; i++) {
        int32_t token = token_at(data, i);

        if (token < vocab) continue;
        return gpt2_fail(error, "%s: %s %llu is %d, outside the vocabulary of %d", data->path,
                         data->is_text ? "byte" : "token", (unsigned long long)i, (int)token,
                         vocab);
    }
    return 0;
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
    return gpt2_fail(error, "%s: %s has %llu tokens, a sequence of %d needs %d", view->data->path,
                     what, (unsigned long long)view->count, length, length + 1);
}

uint64_t gpt2_view_sequences(const gpt2_view_t *view, int length)
{
    uint64_t fit = (view->count - 1) / (uint64_t)length;

    /* One less than fits leaves room for an offset that differs from epoch to epoch. */
    return fit > 1 ? fit - 1 : 1;
}

/* The target of each token is the one behind it, so a sequence takes length + 1 tokens. */
static void copy_sequence(const gpt2_data_t *data, uint64_t at, int length, int32_t *inputs,
                          int32_t *targets)
{
    for (int i = 0; i < length; i++) {
        inputs[i] = token_at(data, at + (uint64_t)i);
        targets[i] = token_at(data, at + (uint64_t)i + 1);
    }
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

void gpt2_view_training(const gpt2_view_t *view, uint64_t seed, int length, uint64_t first,
                        int count, int32_t *inputs, int32_t *targets)
{
    for (int i = 0; i < count; i++) {
        copy_sequence(view->data, gpt2_view_position(view, seed, length, first + (uint64_t)i),
                      length, inputs + (size_t)i * (size_t)length,
                      targets + (size_t)i * (size_t)length);
    }
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

void gpt2_view_validation(const gpt2_view_t *view, int length, uint64_t total, uint64_t first,
                          int count, int32_t *inputs, int32_t *targets)
{
    uint64_t last = view->count - 1 - (uint64_t)length; /* where the last sequence starts */

    for (int i = 0; i < count; i++) {
        uint64_t at =
            total <= 1
                ? 0
                : (uint64_t)((double)last * (double)(first + (uint64_t)i) / (double)(total - 1));
        copy_sequence(view->data, view->first + at, length, inputs + (size_t)i * (size_t)length,
                      targets + (size_t)i * (size_t)length);
    }
}

void gpt2_share(uint64_t count, uint64_t index, uint64_t parts, uint64_t *first, uint64_t *last)
{
    uint64_t each = count / parts;
    uint64_t more = count % parts; /* the first parts get one more */

    *first = index * each + (index < more ? index : more);
    *last = *first + each + (index < more ? 1 : 0);
}

void gpt2_view_entropy(const gpt2_view_t *view, double *unigram, double *bigram)
{
    uint64_t(*pairs)[256] = calloc(256, sizeof(*pairs));
    uint64_t singles[256] = {0};
    double total = (double)view->count;

    *unigram = 0.0;
    *bigram = 0.0;
    if (pairs == NULL || view->count < 2) {
        free(pairs);
        return;
    }
    for (uint64_t i = 0; i < view->count; i++) {
        int32_t now = token_at(view->data, view->first + i);

        singles[now]++;
        if (i > 0) pairs[token_at(view->data, view->first + i - 1)][now]++;
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
}
