/*
 * matmul_cache.c - tuned choices in a file, so that the next start needs no tuning and runs with
 * the same kernels.
 *
 * A text file for each chip, cuBLAS version and driver: its name is a hash of these, its first
 * lines say them, its last line is a checksum of all before. It is written under another name and
 * moved into place. If anything in it is wrong, the program tunes again.
 */
#include "examples/gpt2/cuda/matmul_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/gpt2/base/files.h"
#include "examples/gpt2/base/hash.h"

#define FILE_MOST ((size_t)1 << 20)
#define ENTRIES_MOST 4096
#define CHECKSUM_BYTES 26 /* "checksum " and 16 digits and a line's end */

/* ---- Text ----------------------------------------------------------------------------------- */

static int write_matmul_entry(FILE *to, const gpt2_matmul_entry_t *entry)
{
    const gpt2_matmul_shape_t *shape = &entry->shape;
    const gpt2_matmul_choice_t *choice = &entry->choice;
    int status = fprintf(to, "%d %d %zu %zu %zu %d %d %zu %d %d %d %d %.3f %zu", (int)shape->kind,
                         (int)shape->type, shape->rows, shape->inputs, shape->outputs,
                         shape->bias != 0, shape->adds != 0, entry->workspace_bytes,
                         entry->fuse != 0, choice->form, choice->kernel, choice->candidates,
                         (double)choice->microseconds, choice->workspace_bytes);

    for (size_t i = 0; status >= 0 && i < 8; i++)
        status = fprintf(to, " %016" PRIx64, choice->algo.data[i]);
    return status >= 0 && fputc('\n', to) != EOF ? 0 : -1;
}

/* One line, which is a string; 0: it is an entry and nothing else. */
static int read_matmul_entry(const char *line, gpt2_matmul_entry_t *entry)
{
    gpt2_matmul_shape_t *shape = &entry->shape;
    gpt2_matmul_choice_t *choice = &entry->choice;
    int kind, type, length = -1;
    int fields;

    memset(entry, 0, sizeof(*entry));
    fields = sscanf(line,
                    "%d %d %zu %zu %zu %d %d %zu %d %d %d %d %f %zu %" SCNx64 " %" SCNx64
                    " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 "%n",
                    &kind, &type, &shape->rows, &shape->inputs, &shape->outputs, &shape->bias,
                    &shape->adds, &entry->workspace_bytes, &entry->fuse, &choice->form,
                    &choice->kernel, &choice->candidates, &choice->microseconds,
                    &choice->workspace_bytes, &choice->algo.data[0], &choice->algo.data[1],
                    &choice->algo.data[2], &choice->algo.data[3], &choice->algo.data[4],
                    &choice->algo.data[5], &choice->algo.data[6], &choice->algo.data[7], &length);
    if (fields != 22 || length < 0 || line[length] != '\0') return -1;
    if (kind < GPT2_MATMUL_FORWARD || kind > GPT2_MATMUL_WEIGHT) return -1;
    if (type < GPT2_CUDA_F32 || type > GPT2_CUDA_F16) return -1;
    if (choice->form < 0 || choice->form >= GPT2_MATMUL_FORMS) return -1;
    shape->kind = (gpt2_matmul_kind_t)kind;
    shape->type = (gpt2_cuda_type_t)type;
    return 0;
}

/* Entries of a file's text; NULL, or what is wrong with it. Cuts text [bytes + 1] into lines. */
static const char *parse_cache(gpt2_matmul_cache_t *cache, char *text, size_t bytes)
{
    const size_t header = strlen(cache->header);
    uint64_t checksum;
    char *at, *end;

    if (bytes < header + CHECKSUM_BYTES) return "it is cut short";
    end = text + bytes - CHECKSUM_BYTES;
    if (sscanf(end, "checksum %16" SCNx64, &checksum) != 1 || text[bytes - 1] != '\n' ||
        checksum != gpt2_hash(text, (size_t)(end - text))) {
        return "its checksum is wrong";
    }
    if (memcmp(text, cache->header, header) != 0) return "it is of another chip or version";
    for (at = text + header; at < end;) {
        char *next = memchr(at, '\n', (size_t)(end - at));

        if (next == NULL || cache->count == ENTRIES_MOST) return "it is not understood";
        *next = '\0';
        if (read_matmul_entry(at, &cache->entries[cache->count]) != 0)
            return "it is not understood";
        cache->count++;
        at = next + 1;
    }
    return NULL;
}

/* ---- Files ---------------------------------------------------------------------------------- */

/* The whole file as a string of *bytes; NULL: there is none, or *why says what is wrong. */
static char *read_file(const char *path, size_t *bytes, const char **why)
{
    FILE *file;
    char *text;

    *why = NULL;
    errno = 0;
    if (gpt2_file_open(path, &file, NULL, NULL) != 0) {
        if (errno != ENOENT) *why = errno == 0 ? "it is no regular file" : strerror(errno);
        return NULL;
    }
    text = malloc(FILE_MOST + 1);
    if (text == NULL) {
        *why = "out of memory";
    } else {
        *bytes = fread(text, 1, FILE_MOST + 1, file);
        if (ferror(file)) *why = strerror(errno);
        if (*bytes > FILE_MOST) *why = "it is too large";
    }
    (void)fclose(file);
    if (*why != NULL) {
        free(text);
        return NULL;
    }
    text[*bytes] = '\0';
    return text;
}

/* Names the chip and libraries that the choices hold for. */
static int name_chip(gpt2_matmul_cache_t *cache, gpt2_error_t *error)
{
    struct cudaDeviceProp properties;
    int device, driver = 0;
    char header[512], name[64], path[GPT2_PATH_MAX];
    cudaError_t status = cudaGetDevice(&device);

    if (status == cudaSuccess) status = cudaGetDeviceProperties(&properties, device);
    if (status == cudaSuccess) status = cudaDriverGetVersion(&driver);
    if (status != cudaSuccess) {
        return gpt2_fail(error, "cannot ask the GPU what it is: %s", cudaGetErrorString(status));
    }
    (void)snprintf(header, sizeof(header),
                   "matrix products 2\nchip %.200s, %d.%d, %d multiprocessors\n"
                   "cublaslt %zu, driver %d\n",
                   properties.name, properties.major, properties.minor,
                   properties.multiProcessorCount, cublasLtGetVersion(), driver);
    (void)snprintf(name, sizeof(name), "matmul-%016" PRIx64 ".txt",
                   gpt2_hash(header, strlen(header)));
    if (gpt2_path_join(path, cache->folder, name, error) != 0) return -1;
    cache->header = strdup(header);
    cache->path = strdup(path);
    if (cache->header != NULL && cache->path != NULL) return 0;
    return gpt2_fail(error, "out of memory for the cache %s", path);
}

int gpt2_matmul_cache_open(gpt2_matmuls_t *set, gpt2_error_t *error)
{
    gpt2_matmul_cache_t *cache = &set->cache;
    const char *why;
    size_t bytes = 0;
    char *text;

    if (set->options.cache == NULL) return 0;
    cache->folder = strdup(set->options.cache);
    cache->entries = calloc(ENTRIES_MOST, sizeof(*cache->entries));
    if (cache->folder == NULL || cache->entries == NULL) {
        return gpt2_fail(error, "out of memory for the cache %s", set->options.cache);
    }
    if (name_chip(cache, error) != 0) return -1;
    text = read_file(cache->path, &bytes, &why);
    if (text != NULL) why = parse_cache(cache, text, bytes);
    free(text);
    if (why == NULL) return 0;
    cache->count = 0;
    gpt2_matmul_notice(set, "%s is ignored: %s", cache->path, why);
    return 0;
}

void gpt2_matmul_cache_close(gpt2_matmul_cache_t *cache)
{
    free(cache->folder);
    free(cache->path);
    free(cache->header);
    free(cache->entries);
    memset(cache, 0, sizeof(*cache));
}

/* The whole file, to be freed. */
static char *render(const gpt2_matmul_cache_t *cache, size_t *bytes)
{
    char *text = NULL;
    FILE *to = open_memstream(&text, bytes);
    int status;

    if (to == NULL) return NULL;
    status = fputs(cache->header, to) == EOF ? -1 : 0;
    for (size_t i = 0; status == 0 && i < cache->count; i++)
        status = write_matmul_entry(to, &cache->entries[i]);
    if (status == 0 && fflush(to) == 0) { /* from here text and bytes are what was written */
        status = fprintf(to, "checksum %016" PRIx64 "\n", gpt2_hash(text, *bytes)) < 0 ? -1 : 0;
    }
    if (fclose(to) != 0 || status != 0) {
        free(text);
        return NULL;
    }
    return text;
}

int gpt2_matmuls_save(gpt2_matmuls_t *set, gpt2_error_t *error)
{
    gpt2_matmul_cache_t *cache = &set->cache;
    gpt2_output_t output;
    size_t bytes = 0;
    char *text;
    int status;

    if (cache->folder == NULL || !cache->is_changed) return 0;
    text = render(cache, &bytes);
    if (text == NULL) return gpt2_fail(error, "out of memory for the cache %s", cache->path);
    status = gpt2_make_folders(cache->folder, error);
    if (status == 0) status = gpt2_output_open(&output, cache->path, error);
    if (status == 0) {
        status = gpt2_file_write(output.file, cache->path, text, bytes, error);
        status = gpt2_output_close(&output, status, error);
    }
    free(text);
    if (status == 0) cache->is_changed = 0;
    return status;
}

/* ---- Entries -------------------------------------------------------------------------------- */

static gpt2_matmul_entry_t *find_entry(const gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape)
{
    const gpt2_matmul_cache_t *cache = &set->cache;

    for (size_t i = 0; i < cache->count; i++) {
        gpt2_matmul_entry_t *entry = &cache->entries[i];

        if (!gpt2_matmul_shapes_equal(&entry->shape, shape)) continue;
        if (entry->workspace_bytes != set->options.workspace_bytes) continue;
        if ((entry->fuse != 0) == (set->options.fuse != 0)) return entry;
    }
    return NULL;
}

const gpt2_matmul_choice_t *gpt2_matmul_cache_find(const gpt2_matmuls_t *set,
                                                   const gpt2_matmul_shape_t *shape)
{
    const gpt2_matmul_entry_t *entry = find_entry(set, shape);

    return entry == NULL ? NULL : &entry->choice;
}

void gpt2_matmul_cache_add(gpt2_matmuls_t *set, const gpt2_matmul_shape_t *shape,
                           const gpt2_matmul_choice_t *choice)
{
    gpt2_matmul_cache_t *cache = &set->cache;
    gpt2_matmul_entry_t *entry;

    if (cache->folder == NULL) return;
    entry = find_entry(set, shape);
    if (entry == NULL) {
        /* So many shapes mean that nobody asks for the old ones any more. */
        if (cache->count == ENTRIES_MOST) cache->count = 0;
        entry = &cache->entries[cache->count++];
    }
    entry->shape = *shape;
    entry->workspace_bytes = set->options.workspace_bytes;
    entry->fuse = set->options.fuse;
    entry->choice = *choice;
    cache->is_changed = 1;
}
