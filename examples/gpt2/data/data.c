/*
 * data.c - opens data files, checks them, and reads them as one stream of tokens.
 *
 * Main thread only, of every rank: all have the same files, so no data travels. Files are read, not
 * mapped: a file that is cut while the run goes on is an error in words instead of a SIGBUS, and a
 * random sequence costs its own pages, not the 128 KiB around them.
 */
#include "examples/gpt2/data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/gpt2/base/files.h"
#include "examples/gpt2/base/foreign.h"

/* A token file of llm.c: a header of 256 32-bit integers (magic, version, number of tokens, zeros),
 * then the tokens as 16-bit little-endian integers. */
#define HEADER_BYTES ((size_t)GPT2_HEADER_INTS * 4)
#define LLAMA_MAGIC 20240801               /* llm.c's files for Llama 3: 32 bits a token */
#define OPEN_MAX 64                        /* descriptors at a time, however many files there are */
#define CHUNK 4096                         /* tokens read at a time */
#define CHECKED_BYTES ((uint64_t)1 << 28)  /* of all files, before the first step */
#define CHECKED_TOKENS ((uint64_t)1 << 16) /* of each file at least */

typedef enum kind { TEXT, TOKENS, RAW } kind_t;

typedef struct shard {
    char *path;
    uint64_t first; /* its first token's number in the stream */
    uint64_t count; /* tokens */
    off_t bytes;    /* of the file, when the run began */
    dev_t device;
    ino_t inode;
    kind_t kind;
} shard_t;

struct gpt2_data {
    shard_t *shards;
    size_t shard_count;
    uint64_t count; /* tokens */
    int vocab;      /* tokens from here on are refused */
    struct {
        int fd; /* -1: none */
        size_t shard;
    } opened[OPEN_MAX]; /* a shard's place is its number modulo OPEN_MAX */
};

/* ---- Opening -------------------------------------------------------------------------------- */

static const char *kind_name(kind_t kind)
{
    return kind == TEXT ? "text" : kind == TOKENS ? "tokens" : "tokens without a header";
}

static size_t token_bytes(const shard_t *shard)
{
    return shard->kind == TEXT ? 1 : 2;
}

static int32_t header_int(const unsigned char *header, int index)
{
    int32_t value;

    memcpy(&value, header + 4 * (size_t)index, sizeof(value));
    return value;
}

/* A file that begins with llm.c's magic. */
static int examine_tokens(shard_t *shard, const unsigned char *header, size_t bytes,
                          gpt2_error_t *error)
{
    const long long there = (long long)shard->bytes - (long long)HEADER_BYTES;
    const long long count = header_int(header, 2);

    if (header_int(header, 1) != GPT2_TOKENS_VERSION) {
        return gpt2_fail(error, "%s: token file version %d, this program reads %d", shard->path,
                         (int)header_int(header, 1), GPT2_TOKENS_VERSION);
    }
    if (bytes < HEADER_BYTES) {
        return gpt2_fail(error, "%s: truncated header: %zu bytes of %zu", shard->path, bytes,
                         HEADER_BYTES);
    }
    if (there / 2 > INT32_MAX) {
        return gpt2_fail(error,
                         "%s: %lld tokens, but its header counts in 32 bits: cut it into files of "
                         "at most %d tokens",
                         shard->path, there / 2, INT32_MAX);
    }
    if (count < 0) return gpt2_fail(error, "%s: the header says %lld tokens", shard->path, count);
    if (there != 2 * count) {
        return gpt2_fail(error, "%s: %lld bytes long, but its header says %lld tokens = %lld bytes",
                         shard->path, (long long)shard->bytes, count,
                         (long long)HEADER_BYTES + 2 * count);
    }
    shard->kind = TOKENS;
    shard->count = (uint64_t)count;
    return 0;
}

/* Decides what the file is; a .bin must be tokens. */
static int examine(shard_t *shard, int is_raw, const unsigned char *begin, size_t bytes,
                   gpt2_error_t *error)
{
    const char *foreign = gpt2_foreign(begin, bytes);
    const int is_bin = gpt2_path_ends(shard->path, ".bin");

    if (bytes == 0) return gpt2_fail(error, "%s: the file is empty", shard->path);
    if (bytes >= 8 && header_int(begin, 0) == GPT2_TOKENS_MAGIC)
        return examine_tokens(shard, begin, bytes, error);
    if (bytes >= 8 && header_int(begin, 0) == LLAMA_MAGIC) {
        return gpt2_fail(error, "%s: tokens of Llama 3, of 32 bits; expected GPT-2's, of 16 bits",
                         shard->path);
    }
    if (is_raw && shard->bytes % 2 == 0) {
        shard->kind = RAW;
        shard->count = (uint64_t)shard->bytes / 2;
        return 0;
    }
    if (is_raw) {
        return gpt2_fail(error, "%s: %lld bytes are no whole number of 16-bit tokens", shard->path,
                         (long long)shard->bytes);
    }
    if (foreign != NULL) return gpt2_fail(error, "%s: %s", shard->path, foreign);
    if (is_bin) {
        return gpt2_fail(error,
                         "%s: not a token file: magic %ld, expected %d; if these are 16-bit tokens "
                         "without a header, as nanoGPT writes them: --raw-tokens",
                         shard->path, bytes < 4 ? -1L : (long)header_int(begin, 0),
                         GPT2_TOKENS_MAGIC);
    }
    shard->kind = TEXT;
    shard->count = (uint64_t)shard->bytes;
    return 0;
}

/* Reads what is there of `bytes`, fewer only at the end. -1: errno. */
static ssize_t read_at(int fd, void *out, size_t bytes, off_t at)
{
    size_t done = 0;

    while (done < bytes) {
        const ssize_t got = pread(fd, (char *)out + done, bytes - done, at + (off_t)done);

        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

static int open_shard(shard_t *shard, int is_raw, gpt2_error_t *error)
{
    unsigned char begin[HEADER_BYTES] = {0};
    struct stat status;
    /* Not to wait for the other end of a FIFO. */
    const int fd = open(shard->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t bytes;
    int code;

    if (fd < 0 || fstat(fd, &status) != 0) {
        code = gpt2_fail(error, "%s: %s", shard->path, strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        code = gpt2_fail(error, "%s: not a regular file", shard->path);
    } else if ((bytes = read_at(fd, begin, sizeof(begin), 0)) < 0) {
        code = gpt2_fail(error, "%s: cannot be read: %s", shard->path, strerror(errno));
    } else {
        shard->bytes = status.st_size;
        shard->device = status.st_dev;
        shard->inode = status.st_ino;
        code = examine(shard, is_raw, begin, (size_t)bytes, error);
    }
    if (fd >= 0) (void)close(fd);
    return code;
}

static int check_kinds(const shard_t *shard, const shard_t *other, gpt2_error_t *error)
{
    if (shard->kind == other->kind) return 0;
    return gpt2_fail(error, "%s is %s, but %s is %s", shard->path, kind_name(shard->kind),
                     other->path, kind_name(other->kind));
}

int gpt2_data_check_kinds(const gpt2_data_t *data, const gpt2_data_t *other, gpt2_error_t *error)
{
    return check_kinds(&data->shards[0], &other->shards[0], error);
}

/* A file that is named twice would count twice. */
static int check_twice(const gpt2_data_t *data, const shard_t *shard, gpt2_error_t *error)
{
    for (const shard_t *other = data->shards; other < shard; other++) {
        if (other->device != shard->device || other->inode != shard->inode) continue;
        return gpt2_fail(error, "%s: the same file as %s", shard->path, other->path);
    }
    return 0;
}

int gpt2_data_open(const gpt2_words_t *paths, int is_raw, gpt2_data_t **out, gpt2_error_t *error)
{
    gpt2_data_t *data = calloc(1, sizeof(*data));

    if (data != NULL) data->shards = calloc(paths->count + 1, sizeof(*data->shards));
    if (data == NULL || data->shards == NULL) {
        free(data);
        return gpt2_fail(error, "out of memory for %zu data files", paths->count);
    }
    for (int i = 0; i < OPEN_MAX; i++)
        data->opened[i].fd = -1;
    data->vocab = INT32_MAX;
    for (size_t i = 0; i < paths->count; i++) {
        shard_t *shard = &data->shards[data->shard_count++];

        shard->path = strdup(paths->list[i]);
        if (shard->path == NULL) {
            (void)gpt2_fail(error, "out of memory for %s", paths->list[i]);
            goto fail;
        }
        if (open_shard(shard, is_raw, error) != 0) goto fail;
        if (check_kinds(&data->shards[0], shard, error) != 0) goto fail;
        if (check_twice(data, shard, error) != 0) goto fail;
        shard->first = data->count;
        data->count += shard->count;
    }
    *out = data;
    return 0;
fail:
    gpt2_data_close(data);
    return -1;
}

void gpt2_data_close(gpt2_data_t *data)
{
    if (data == NULL) return;
    for (int i = 0; i < OPEN_MAX; i++) {
        if (data->opened[i].fd >= 0) (void)close(data->opened[i].fd);
    }
    for (size_t i = 0; i < data->shard_count; i++)
        free(data->shards[i].path);
    free(data->shards);
    free(data);
}

int gpt2_data_is_text(const gpt2_data_t *data)
{
    return data->shards[0].kind == TEXT;
}

int gpt2_data_has(const gpt2_data_t *data, const char *path)
{
    struct stat status;

    if (stat(path, &status) != 0) return 0;
    for (size_t i = 0; i < data->shard_count; i++) {
        if (data->shards[i].device == status.st_dev && data->shards[i].inode == status.st_ino)
            return 1;
    }
    return 0;
}

const char *gpt2_data_name(const gpt2_data_t *data)
{
    return data->shards[0].path;
}

size_t gpt2_data_files(const gpt2_data_t *data)
{
    return data->shard_count;
}

uint64_t gpt2_data_count(const gpt2_data_t *data)
{
    return data->count;
}

/* ---- Reading -------------------------------------------------------------------------------- */

/* The shard's descriptor, which data keeps. Says where the file is not as it was. */
static int shard_fd(gpt2_data_t *data, const shard_t *shard, gpt2_error_t *error)
{
    const size_t number = (size_t)(shard - data->shards);
    int *fd = &data->opened[number % OPEN_MAX].fd;
    struct stat status;

    if (*fd >= 0 && data->opened[number % OPEN_MAX].shard != number) {
        (void)close(*fd);
        *fd = -1;
    }
    if (*fd < 0) {
        *fd = open(shard->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        data->opened[number % OPEN_MAX].shard = number;
    }
    if (*fd < 0 || fstat(*fd, &status) != 0) {
        return gpt2_fail(error, "%s: it was there when the run began, now: %s", shard->path,
                         strerror(errno));
    }
    if (status.st_ino != shard->inode || status.st_dev != shard->device || status.st_nlink == 0) {
        return gpt2_fail(error, "%s: removed or replaced while the run reads it", shard->path);
    }
    if (status.st_size != shard->bytes) {
        return gpt2_fail(error, "%s: %lld bytes long when the run began, %lld now", shard->path,
                         (long long)shard->bytes, (long long)status.st_size);
    }
    return *fd;
}

/* Tokens at .. at+count-1 of one file; count <= CHUNK. */
static int read_piece(gpt2_data_t *data, const shard_t *shard, uint64_t at, size_t count,
                      int32_t *tokens, gpt2_error_t *error)
{
    unsigned char raw[2 * CHUNK];
    const size_t each = token_bytes(shard);
    const off_t place = (off_t)((shard->kind == TOKENS ? HEADER_BYTES : 0) + each * at);
    const int fd = shard_fd(data, shard, error);
    int32_t highest = 0;
    ssize_t got;

    if (fd < 0) return -1;
    got = read_at(fd, raw, each * count, place);
    if (got != (ssize_t)(each * count)) {
        return gpt2_fail(error, "%s: cannot be read at byte %lld: %s", shard->path,
                         (long long)place, got < 0 ? strerror(errno) : "it ends there");
    }
    for (size_t i = 0; i < count && each == 1; i++)
        tokens[i] = raw[i];
    for (size_t i = 0; i < count && each == 2; i++)
        tokens[i] = (int32_t)(raw[2 * i] | (unsigned)raw[2 * i + 1] << 8);
    for (size_t i = 0; i < count; i++)
        highest = tokens[i] > highest ? tokens[i] : highest;
    if (highest < data->vocab) return 0;
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < data->vocab) continue;
        return gpt2_fail(error, "%s: %s %llu is %d, outside the vocabulary of %d", shard->path,
                         each == 1 ? "byte" : "token", (unsigned long long)at + i, (int)tokens[i],
                         data->vocab);
    }
    return 0;
}

/* The file that token `at` of the stream lies in. */
static const shard_t *find_shard(const gpt2_data_t *data, uint64_t at)
{
    size_t low = 0;
    size_t high = data->shard_count;

    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;

        if (data->shards[middle].first <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &data->shards[low];
}

int gpt2_data_read(gpt2_data_t *data, uint64_t at, size_t count, int32_t *tokens,
                   gpt2_error_t *error)
{
    const shard_t *shard = count == 0 ? NULL : find_shard(data, at);

    for (size_t done = 0; done < count;) {
        const uint64_t inside = at + done - shard->first;
        const uint64_t there = shard->count - inside;
        size_t piece = count - done < CHUNK ? count - done : CHUNK;

        if (there == 0) {
            shard++; /* the stream is longer */
            continue;
        }
        if (piece > there) piece = (size_t)there;
        if (read_piece(data, shard, inside, piece, tokens + done, error) != 0) return -1;
        done += piece;
    }
    return 0;
}

int gpt2_data_check(gpt2_data_t *data, int vocab, gpt2_error_t *error)
{
    const int is_text = gpt2_data_is_text(data);
    uint64_t most = CHECKED_BYTES / (is_text ? 1 : 2) / data->shard_count;
    int32_t tokens[CHUNK];

    if (vocab >= (is_text ? 256 : 65536)) return 0; /* no token can be outside */
    data->vocab = vocab;
    if (most < CHECKED_TOKENS) most = CHECKED_TOKENS;
    for (size_t i = 0; i < data->shard_count; i++) {
        const shard_t *shard = &data->shards[i];
        const uint64_t last = shard->count < most ? shard->count : most;

        for (uint64_t at = 0; at < last; at += CHUNK) {
            const size_t piece = last - at < CHUNK ? (size_t)(last - at) : CHUNK;

            if (read_piece(data, shard, at, piece, tokens, error) != 0) return -1;
        }
    }
    return 0;
}
