/*
 * tokenize.c - reads texts piece by piece and writes token files in llm.c's format. Main thread,
 * from main(), without ranks.
 *
 * Every document begins with the token <|endoftext|>, as in the files that llm.c makes.
 */
#include "examples/gpt2/tokens/tokenize.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "examples/gpt2/base/clock.h"
#include "examples/gpt2/base/files.h"
#include "examples/gpt2/data/data.h"
#include "examples/gpt2/tokens/encode.h"

#define EXIT_USAGE 2
#define BUFFER_BYTES ((size_t)1 << 20)
#define VOCABULARY_MAX 65536 /* what 16 bits hold */
#define PROGRESS_SECONDS 5.0

typedef struct settings {
    gpt2_words_t files;
    gpt2_words_t tokenizer;
    char *out;
    int64_t shard_tokens;
    int is_null;
    int help;
} settings_t;

#define AT(field) offsetof(settings_t, field)

/* clang-format off */
static const gpt2_flag_t ROWS[] = {
    {NULL, "Options", GPT2_FLAG_TEXT, 0, 0, 0, NULL, NULL},
    {"", "FILE ...", GPT2_FLAG_WORDS, AT(files), 0, 0, NULL, "texts, a document each; -: standard input"},
    {"--tokenizer", "DIR", GPT2_FLAG_WORDS, AT(tokenizer), 0, 0, NULL, "vocab.json and merges.txt, or encoder.json and vocab.bpe: their folder, or both"},
    {"-o", "FILE.bin", GPT2_FLAG_TEXT, AT(out), 0, 0, NULL, "the tokens"},
    {"--shard-tokens", "N", GPT2_FLAG_WHOLE, AT(shard_tokens), 1, INT32_MAX, NULL, "write FILE_000000.bin, FILE_000001.bin, ... of so many tokens [one file]"},
    {"--null", NULL, GPT2_FLAG_SWITCH, AT(is_null), 0, 0, NULL, "a zero byte ends a document, as documents.py writes them"},
    {"--help", NULL, GPT2_FLAG_SWITCH, AT(help), 0, 0, NULL, "this text"},
};
/* clang-format on */

static const gpt2_flags_t FLAGS = {
    .rows = ROWS,
    .count = sizeof(ROWS) / sizeof(ROWS[0]),
    .usage = "usage: gpt2 tokenize FILE ... --tokenizer DIR -o OUT.bin [options]\n"
             "Turns texts into GPT-2's tokens, in llm.c's format, for gpt2 --data OUT.bin.\n",
    .example = "example: gpt2 tokenize kjv.txt --tokenizer gpt2 -o kjv.bin\n",
    .stray = "all files come first",
};

/* The files that are written. */
typedef struct writer {
    const settings_t *settings;
    gpt2_output_t output;
    char path[GPT2_PATH_MAX]; /* of the open file */
    int is_open;
    uint64_t in_file; /* tokens */
    uint64_t total;
    unsigned files;
} writer_t;

typedef struct job {
    const settings_t *settings;
    gpt2_vocabulary_t *vocabulary;
    gpt2_encoder_t *encoder;
    gpt2_tokens_t tokens; /* not written yet */
    writer_t writer;
    unsigned char *buffer; /* [room] */
    size_t room;
    size_t held; /* bytes in it */
    int in_document;
    uint64_t documents;
    uint64_t bytes;     /* read */
    uint64_t bytes_all; /* of all files; 0: not known */
    double start;
    double shown; /* when progress was shown last */
} job_t;

/* ---- Writing -------------------------------------------------------------------------------- */

static int put_header(writer_t *self, gpt2_error_t *error)
{
    const int32_t header[GPT2_HEADER_INTS] = {GPT2_TOKENS_MAGIC, GPT2_TOKENS_VERSION,
                                              (int32_t)self->in_file};

    return gpt2_file_write(self->output.file, self->path, header, sizeof(header), error);
}

/* code: as of gpt2_output_close(). The count of tokens is known now. */
static int finish_file(writer_t *self, int code, gpt2_error_t *error)
{
    if (!self->is_open) return code;
    self->is_open = 0;
    if (code == 0 && fseek(self->output.file, 0, SEEK_SET) != 0) {
        code = gpt2_fail(error, "%s: its header is written last, but it cannot be rewound: %s",
                         self->path, strerror(errno));
    }
    if (code == 0) code = put_header(self, error);
    return gpt2_output_close(&self->output, code, error);
}

static int open_file(writer_t *self, gpt2_error_t *error)
{
    const char *out = self->settings->out;
    int length = (int)strlen(out);

    if (self->settings->shard_tokens > 0) {
        if (gpt2_path_ends(out, ".bin")) length -= 4;
        length =
            snprintf(self->path, sizeof(self->path), "%.*s_%06u.bin", length, out, self->files);
    } else {
        length = snprintf(self->path, sizeof(self->path), "%s", out);
    }
    if ((size_t)length >= sizeof(self->path))
        return gpt2_fail(error, "%.100s...: the path is too long", out);
    if (gpt2_output_open(&self->output, self->path, error) != 0) return -1;
    self->is_open = 1;
    self->files++;
    self->in_file = 0;
    return put_header(self, error);
}

static int write_tokens(writer_t *self, const gpt2_tokens_t *tokens, gpt2_error_t *error)
{
    const int64_t asked = self->settings->shard_tokens;
    const uint64_t most = asked > 0 ? (uint64_t)asked : INT32_MAX;
    size_t done = 0;

    while (done < tokens->count) {
        unsigned char raw[2 * 4096];
        size_t piece = tokens->count - done < 4096 ? tokens->count - done : 4096;

        if (self->is_open && self->in_file == most) {
            if (asked <= 0) {
                return gpt2_fail(error,
                                 "%s: more than %d tokens, which its header cannot count; "
                                 "--shard-tokens 100000000 makes several files",
                                 self->path, INT32_MAX);
            }
            if (finish_file(self, 0, error) != 0) return -1;
        }
        if (!self->is_open && open_file(self, error) != 0) return -1;
        if (piece > most - self->in_file) piece = (size_t)(most - self->in_file);
        for (size_t i = 0; i < piece; i++) {
            raw[2 * i] = (unsigned char)tokens->list[done + i];
            raw[2 * i + 1] = (unsigned char)(tokens->list[done + i] >> 8);
        }
        if (gpt2_file_write(self->output.file, self->path, raw, 2 * piece, error) != 0) return -1;
        done += piece;
        self->in_file += piece;
        self->total += piece;
    }
    return 0;
}

/* ---- Reading -------------------------------------------------------------------------------- */

static void show_progress(job_t *self)
{
    const double now = gpt2_now();
    char all[32] = "";

    if (now - self->shown < PROGRESS_SECONDS) return;
    self->shown = now;
    if (self->bytes_all > 0)
        (void)snprintf(all, sizeof(all), " of %.1f", 1e-6 * (double)self->bytes_all);
    (void)fprintf(stderr, "gpt2: %.1f%s MB, %llu tokens, %.1f MB/s\n", 1e-6 * (double)self->bytes,
                  all, (unsigned long long)self->writer.total,
                  1e-6 * (double)self->bytes / (now - self->start));
}

/* Encodes bytes of one document. */
static int encode_part(job_t *self, const unsigned char *text, size_t bytes, int is_end,
                       size_t *used, gpt2_error_t *error)
{
    const int32_t end = gpt2_vocabulary_end(self->vocabulary);

    self->tokens.count = 0;
    *used = 0;
    if (bytes > 0 && !self->in_document) {
        self->in_document = 1;
        self->documents++;
        if (end >= 0 && gpt2_tokens_append(&self->tokens, end, error) != 0) return -1;
    }
    if (gpt2_encode(self->encoder, text, bytes, is_end, used, &self->tokens, error) != 0) return -1;
    if (is_end) self->in_document = 0;
    return write_tokens(&self->writer, &self->tokens, error);
}

/* Encodes what is in the buffer and keeps what may go on in the next part of the file. */
static int encode_buffer(job_t *self, int is_end, gpt2_error_t *error)
{
    const unsigned char *zero;
    size_t at = 0;

    do {
        const size_t left = self->held - at;
        size_t used;

        zero = self->settings->is_null ? memchr(self->buffer + at, 0, left) : NULL;
        if (encode_part(self, self->buffer + at,
                        zero == NULL ? left : (size_t)(zero - self->buffer) - at,
                        is_end || zero != NULL, &used, error) != 0) {
            return -1;
        }
        at += used + (zero == NULL ? 0 : 1);
    } while (zero != NULL);
    self->held -= at;
    memmove(self->buffer, self->buffer + at, self->held);
    return 0;
}

/* Twice the room, where a piece fills all of it. */
static int grow_buffer(job_t *self, gpt2_error_t *error)
{
    const size_t room = self->room == 0 ? BUFFER_BYTES : 2 * self->room;
    unsigned char *larger;

    if (self->held < self->room) return 0;
    larger = realloc(self->buffer, room);
    if (larger == NULL) return gpt2_fail(error, "out of memory for %zu bytes", room);
    self->buffer = larger;
    self->room = room;
    return 0;
}

static int encode_stream(job_t *self, FILE *file, gpt2_error_t *error)
{
    int is_end = 0;

    while (!is_end) {
        size_t got;

        if (grow_buffer(self, error) != 0) return -1;
        got = fread(self->buffer + self->held, 1, self->room - self->held, file);
        if (ferror(file)) return gpt2_fail(error, "cannot be read: %s", strerror(errno));
        self->bytes += got;
        self->held += got;
        is_end = got == 0;
        if (encode_buffer(self, is_end, error) != 0) return -1;
        show_progress(self);
    }
    return 0;
}

static int encode_file(job_t *self, const char *path, gpt2_error_t *error)
{
    gpt2_error_t cause = {""};
    FILE *file = stdin;
    int code;

    if (strcmp(path, "-") != 0 && gpt2_file_open(path, &file, NULL, error) != 0) return -1;
    code = encode_stream(self, file, &cause);
    if (file != stdin) (void)fclose(file);
    return code == 0 ? 0 : gpt2_fail(error, "%s: %s", path, cause.text);
}

/* ---- The command ---------------------------------------------------------------------------- */

static int check_settings(const settings_t *settings, gpt2_error_t *error)
{
    if (settings->files.count == 0)
        return gpt2_fail(error, "no text is named: gpt2 tokenize FILE ... -o OUT.bin");
    if (settings->out == NULL) return gpt2_fail(error, "-o is missing: where the tokens go");
    if (settings->tokenizer.count == 0) {
        return gpt2_fail(error, "--tokenizer is missing: the folder of GPT-2's vocab.json and "
                                "merges.txt");
    }
    for (size_t i = 0; i < settings->files.count; i++) {
        if (!gpt2_file_is_same(settings->files.list[i], settings->out)) continue;
        return gpt2_fail(error, "-o %s is a file that is read", settings->out);
    }
    return 0;
}

/* Bytes of all files, so that progress can be told; 0 where one is a stream. */
static uint64_t count_bytes(const gpt2_words_t *files)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < files->count; i++) {
        struct stat status;

        if (stat(files->list[i], &status) != 0 || !S_ISREG(status.st_mode)) return 0;
        sum += (uint64_t)status.st_size;
    }
    return sum;
}

static void print_end(const job_t *self)
{
    const settings_t *settings = self->settings;
    const writer_t *writer = &self->writer;
    const size_t count = gpt2_vocabulary_count(self->vocabulary);
    const double seconds = gpt2_now() - self->start;

    (void)printf(
        "%s%s: %llu tokens of %llu document%s, %.2f bytes per token, %.1f MB at %.1f MB/s\n",
        writer->path, writer->files > 1 ? " and those before it" : "",
        (unsigned long long)writer->total, (unsigned long long)self->documents,
        self->documents == 1 ? "" : "s", (double)self->bytes / (double)writer->total,
        1e-6 * (double)self->bytes, 1e-6 * (double)self->bytes / seconds);
    if (gpt2_vocabulary_end(self->vocabulary) < 0)
        (void)printf("the vocabulary has no <|endoftext|>: documents follow each other unmarked\n");
    if (count != 50257) {
        (void)printf("train with --tokenizer %s: it has %zu tokens, GPT-2 has 50257\n",
                     settings->tokenizer.list[0], count);
    }
}

static int run_job(job_t *self, gpt2_error_t *error)
{
    const settings_t *settings = self->settings;
    size_t count;
    int code = 0;

    if (gpt2_vocabulary_open(&settings->tokenizer, &self->vocabulary, error) != 0) return -1;
    count = gpt2_vocabulary_count(self->vocabulary);
    if (count > VOCABULARY_MAX) {
        return gpt2_fail(error, "%s: %zu tokens, but a token file's 16 bits hold %d",
                         settings->tokenizer.list[0], count, VOCABULARY_MAX);
    }
    if (gpt2_encoder_create(self->vocabulary, &self->encoder, error) != 0) return -1;
    for (size_t i = 0; i < settings->files.count && code == 0; i++)
        code = encode_file(self, settings->files.list[i], error);
    if (code == 0 && self->writer.total == 0) code = gpt2_fail(error, "the files have no text");
    code = finish_file(&self->writer, code, error);
    if (code == 0) print_end(self);
    return code;
}

int gpt2_tokenize(int argc, char **argv)
{
    gpt2_error_t error = {""};
    char repeated[GPT2_REPEATED_MAX];
    settings_t settings = {.out = NULL};
    job_t job = {.settings = &settings, .writer = {.settings = &settings}};
    int code;

    if (gpt2_flags_parse(&FLAGS, argc, argv, &settings, repeated, &error) != 0 ||
        (!settings.help && check_settings(&settings, &error) != 0)) {
        (void)fprintf(stderr, "gpt2 tokenize: %s\n", error.text);
        return EXIT_USAGE;
    }
    if (settings.help) {
        gpt2_flags_help(&FLAGS, stdout);
        return 0;
    }
    job.bytes_all = count_bytes(&settings.files);
    job.start = job.shown = gpt2_now();
    code = run_job(&job, &error);
    if (code != 0) (void)fprintf(stderr, "gpt2 tokenize: %s\n", error.text);
    gpt2_encoder_destroy(job.encoder);
    gpt2_vocabulary_close(job.vocabulary);
    free(job.tokens.list);
    free(job.buffer);
    return code == 0 ? 0 : 1;
}
