/*
 * checkpoint_manifest.c - writes and reads manifest.txt:
 *
 *     gpt2-checkpoint 1 little-endian fp32
 *     progress STEP SEQUENCES UPDATES SKIPPED SEED
 *     shape VOCAB VOCAB_PADDED CONTEXT LAYERS HEADS WIDTH
 *     order BATCH SEQ TOKENS FINGERPRINT                   not in those of version 0.2.0
 *     tensor NAME COUNT WEIGHTS_HASH M_HASH V_HASH         for each tensor, in the list's order
 *     extra NAME RANK RANKS BYTES HASH                     for each file of extra state
 *     end HASH                                             of all bytes before this line
 *
 * It is written last, so a folder with a valid manifest has all files.
 */
#include "examples/gpt2/data/checkpoint_manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt2/base/files.h"
#include "examples/gpt2/base/foreign.h"
#include "examples/gpt2/base/hash.h"

#define FORMAT_LINE "gpt2-checkpoint 1 little-endian fp32\n"
#define MANIFEST "manifest.txt"
#define MANIFEST_BYTES_MAX ((size_t)4 << 20)
#define RANKS_MAX (1 << 20)

int gpt2_manifest_create(const gpt2_shape_t *shape, gpt2_manifest_t **out, gpt2_error_t *error)
{
    gpt2_manifest_t *manifest = calloc(1, sizeof(*manifest));

    if (manifest == NULL) return gpt2_fail(error, "out of memory for a manifest");
    manifest->shape = *shape;
    if (gpt2_layout_create(shape, &manifest->layout, error) != 0) {
        gpt2_manifest_destroy(manifest);
        return -1;
    }
    manifest->hashes = calloc(GPT2_ARENAS * manifest->layout->count, sizeof(*manifest->hashes));
    if (manifest->hashes == NULL) {
        gpt2_manifest_destroy(manifest);
        return gpt2_fail(error, "out of memory for checksums");
    }
    *out = manifest;
    return 0;
}

void gpt2_manifest_destroy(gpt2_manifest_t *manifest)
{
    if (manifest == NULL) return;
    gpt2_layout_destroy(manifest->layout);
    free(manifest->hashes);
    free(manifest->extras);
    free(manifest);
}

int gpt2_manifest_append(gpt2_manifest_t *manifest, const gpt2_manifest_extra_t *extra,
                         gpt2_error_t *error)
{
    gpt2_manifest_extra_t *larger =
        realloc(manifest->extras, (manifest->extra_count + 1) * sizeof(*larger));

    if (larger == NULL) return gpt2_fail(error, "out of memory for a manifest");
    manifest->extras = larger;
    larger[manifest->extra_count++] = *extra;
    return 0;
}

const gpt2_manifest_extra_t *gpt2_manifest_find(const gpt2_manifest_t *manifest, const char *name,
                                                int rank)
{
    for (size_t i = 0; i < manifest->extra_count; i++) {
        const gpt2_manifest_extra_t *extra = &manifest->extras[i];

        if (extra->rank == rank && strcmp(extra->name, name) == 0) return extra;
    }
    return NULL;
}

/* ---- Saving --------------------------------------------------------------------------------- */

static void print_manifest(const gpt2_manifest_t *manifest, FILE *out)
{
    const gpt2_progress_t *progress = &manifest->progress;
    const gpt2_shape_t *shape = &manifest->shape;
    const gpt2_layout_t *layout = manifest->layout;
    const uint64_t *hashes = manifest->hashes;
    const size_t count = layout->count;

    (void)fprintf(out, FORMAT_LINE);
    (void)fprintf(out, "progress %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                  progress->step, progress->sequences, progress->updates, progress->skipped,
                  progress->seed);
    (void)fprintf(out, "shape %d %d %d %d %d %d\n", shape->vocab, shape->vocab_padded,
                  shape->context, shape->layers, shape->heads, shape->width);
    if (progress->order.batch > 0) {
        (void)fprintf(out, "order %" PRIu64 " %" PRIu64 " %" PRIu64 " %016" PRIx64 "\n",
                      progress->order.batch, progress->order.seq, progress->order.tokens,
                      progress->order.fingerprint);
    }
    for (size_t i = 0; i < count; i++) {
        (void)fprintf(out, "tensor %s %zu %016" PRIx64 " %016" PRIx64 " %016" PRIx64 "\n",
                      layout->tensors[i].name, layout->tensors[i].count, hashes[i],
                      hashes[count + i], hashes[2 * count + i]);
    }
    for (size_t i = 0; i < manifest->extra_count; i++) {
        const gpt2_manifest_extra_t *extra = &manifest->extras[i];

        (void)fprintf(out, "extra %s %d %d %zu %016" PRIx64 "\n", extra->name, extra->rank,
                      extra->ranks, extra->bytes, extra->hash);
    }
}

int gpt2_manifest_save(const gpt2_manifest_t *manifest, const char *folder, gpt2_error_t *error)
{
    char path[GPT2_PATH_MAX];
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    FILE *file;
    int code;

    if (memory == NULL) return gpt2_fail(error, "out of memory for a manifest");
    print_manifest(manifest, memory);
    code = fflush(memory);
    if (code == 0) (void)fprintf(memory, "end %016" PRIx64 "\n", gpt2_hash(text, bytes));
    if (fclose(memory) != 0 || code != 0) {
        free(text);
        return gpt2_fail(error, "out of memory for a manifest");
    }
    code = gpt2_path_join(path, folder, MANIFEST, error);
    if (code == 0) code = gpt2_file_create(path, &file, error);
    if (code == 0) {
        code = gpt2_file_write(file, path, text, bytes, error);
        if (code != 0) {
            (void)fclose(file);
        } else {
            code = gpt2_file_commit(file, path, error);
        }
    }
    free(text);
    return code;
}

/* ---- Loading -------------------------------------------------------------------------------- */

/* A manifest in memory and how far it has been read. */
typedef struct text {
    char path[GPT2_PATH_MAX];
    char *text;
    size_t bytes;
    char *next; /* the line to read */
} text_t;

/* Reads the file and checks its last line against the rest. */
static int open_text(const char *folder, text_t *manifest, gpt2_error_t *error)
{
    gpt2_error_t cause;
    FILE *file;
    char *end;
    uint64_t stored;
    uint64_t computed;

    manifest->text = NULL;
    if (gpt2_path_join(manifest->path, folder, MANIFEST, error) != 0) return -1;
    if (gpt2_file_open(manifest->path, &file, NULL, &cause) != 0)
        return gpt2_fail(error, "%.900s (is %.100s a checkpoint?)", cause.text, folder);
    manifest->text = malloc(MANIFEST_BYTES_MAX + 1);
    if (manifest->text == NULL) {
        (void)fclose(file);
        return gpt2_fail(error, "out of memory for %s", manifest->path);
    }
    manifest->bytes = fread(manifest->text, 1, MANIFEST_BYTES_MAX, file);
    manifest->text[manifest->bytes] = '\0';
    (void)fclose(file);
    if (gpt2_foreign(manifest->text, manifest->bytes) != NULL) {
        return gpt2_fail(error, "%s: %s", manifest->path,
                         gpt2_foreign(manifest->text, manifest->bytes));
    }
    if (strncmp(manifest->text, FORMAT_LINE, strlen(FORMAT_LINE)) != 0) {
        return gpt2_fail(
            error, "%s: starts with \"%.*s\", a checkpoint of this program with \"%.*s\"",
            manifest->path,
            (int)strcspn(manifest->text, "\n") < 60 ? (int)strcspn(manifest->text, "\n") : 60,
            manifest->text, (int)strlen(FORMAT_LINE) - 1, FORMAT_LINE);
    }
    end = strstr(manifest->text, "\nend ");
    if (end == NULL || sscanf(end, "\nend %" SCNx64, &stored) != 1) {
        return gpt2_fail(error, "%s: truncated after %zu bytes: no end line", manifest->path,
                         manifest->bytes);
    }
    computed = gpt2_hash(manifest->text, (size_t)(end + 1 - manifest->text));
    if (computed != stored) {
        return gpt2_fail(error,
                         "%s: damaged: checksum %016" PRIx64 ", its end line says %016" PRIx64,
                         manifest->path, computed, stored);
    }
    end[1] = '\0';
    manifest->next = manifest->text + strlen(FORMAT_LINE);
    return 0;
}

/* The next line, terminated; NULL at the end. */
static char *next_line(text_t *manifest)
{
    char *line = manifest->next;
    size_t length = strcspn(line, "\n");

    if (*line == '\0') return NULL;
    manifest->next = line + length + (line[length] == '\n' ? 1 : 0);
    line[length] = '\0';
    return line;
}

static int read_head(text_t *manifest, gpt2_shape_t *shape, gpt2_progress_t *progress,
                     gpt2_error_t *error)
{
    const char *first = next_line(manifest);
    const char *second = first == NULL ? NULL : next_line(manifest);
    const int has_order = second != NULL && strncmp(manifest->next, "order ", 6) == 0;
    gpt2_order_t *order = &progress->order;

    memset(order, 0, sizeof(*order));
    if (has_order &&
        sscanf(next_line(manifest), "order %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNx64,
               &order->batch, &order->seq, &order->tokens, &order->fingerprint) != 4) {
        return gpt2_fail(error, "%s: its order of data cannot be read", manifest->path);
    }
    if (second == NULL ||
        sscanf(first, "progress %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
               &progress->step, &progress->sequences, &progress->updates, &progress->skipped,
               &progress->seed) != 5 ||
        sscanf(second, "shape %d %d %d %d %d %d", &shape->vocab, &shape->vocab_padded,
               &shape->context, &shape->layers, &shape->heads, &shape->width) != 6) {
        return gpt2_fail(error, "%s: progress or shape cannot be read", manifest->path);
    }
    if (gpt2_shape_check(shape, error) == 0) return 0;
    return gpt2_fail(error, "%s: its shape cannot be one", manifest->path);
}

/* Reads the tensor lines; they must be the layout's, in order. */
static int read_hashes(text_t *text, gpt2_manifest_t *manifest, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = manifest->layout;
    uint64_t *hashes = manifest->hashes;

    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];
        char name[GPT2_NAME_MAX];
        size_t count;
        const char *line = next_line(text);

        if (line == NULL ||
            sscanf(line, "tensor %47s %zu %" SCNx64 " %" SCNx64 " %" SCNx64, name, &count,
                   &hashes[i], &hashes[layout->count + i], &hashes[2 * layout->count + i]) != 5) {
            return gpt2_fail(error, "%s: tensor line %zu of %zu cannot be read", text->path, i,
                             layout->count);
        }
        if (strcmp(name, tensor->name) != 0 || count != tensor->count) {
            return gpt2_fail(error, "%s: tensor %zu is %s with %zu elements, expected %s with %zu",
                             text->path, i, name, count, tensor->name, tensor->count);
        }
    }
    return 0;
}

/* Reads what is behind them. Names become parts of paths, so only plain ones are taken. */
static int read_extras(text_t *text, gpt2_manifest_t *manifest, gpt2_error_t *error)
{
    const char *line;

    while ((line = next_line(text)) != NULL) {
        gpt2_manifest_extra_t extra;

        _Static_assert(GPT2_EXTRA_NAME_MAX == 32, "the width below");
        if (sscanf(line, "extra %31s %d %d %zu %" SCNx64, extra.name, &extra.rank, &extra.ranks,
                   &extra.bytes, &extra.hash) != 5 ||
            strspn(extra.name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(extra.name) ||
            extra.ranks < 1 || extra.ranks > RANKS_MAX || extra.rank < -1 ||
            extra.rank >= extra.ranks) {
            return gpt2_fail(error, "%s: \"%.60s\" cannot be read", text->path, line);
        }
        if (gpt2_manifest_append(manifest, &extra, error) != 0) return -1;
    }
    return 0;
}

int gpt2_manifest_load(const char *folder, gpt2_manifest_t **out, gpt2_error_t *error)
{
    gpt2_manifest_t *manifest = NULL;
    gpt2_progress_t progress;
    gpt2_shape_t shape = {0};
    text_t text;
    int code = open_text(folder, &text, error);

    if (code == 0) code = read_head(&text, &shape, &progress, error);
    if (code == 0) code = gpt2_manifest_create(&shape, &manifest, error);
    if (code == 0 && manifest != NULL) {
        code = read_hashes(&text, manifest, error);
        if (code == 0) code = read_extras(&text, manifest, error);
    }
    free(text.text);
    if (code != 0 || manifest == NULL) {
        gpt2_manifest_destroy(manifest);
        return -1;
    }
    manifest->progress = progress;
    *out = manifest;
    return 0;
}

int gpt2_manifest_inspect(const char *folder, gpt2_shape_t *shape, gpt2_progress_t *progress,
                          gpt2_error_t *error)
{
    text_t text;
    int code = open_text(folder, &text, error);

    if (code == 0) code = read_head(&text, shape, progress, error);
    free(text.text);
    return code;
}
