/*
 * checkpoint.c - writes and reads checkpoint folders.
 *
 * Called on the main thread: rank 0 saves, and rank 0 reads what a run resumes from. The other
 * ranks get the weights by broadcast. It must not know about ranks or devices: a replica on a GPU
 * lends it a copy on the host side.
 */
#include "examples/gpt2/data/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "examples/gpt2/base/hash.h"

#define FORMAT_LINE "gpt2-checkpoint 1 little-endian fp32\n"
#define MANIFEST "manifest.txt"
#define MANIFEST_BYTES_MAX ((size_t)4 << 20)
#define ARENAS 3

static const char *const ARENA_FILES[ARENAS] = {"weights.bin", "adam_m.bin", "adam_v.bin"};

/* ---- Saving --------------------------------------------------------------------------------- */

static int save_arena(const char *folder, const char *name, const gpt2_layout_t *layout,
                      const float *arena, uint64_t *hashes, gpt2_error_t *error)
{
    char path[GPT2_PATH_MAX];
    FILE *file;

    if (gpt2_path_join(path, folder, name, error) != 0) return -1;
    if (gpt2_file_create(path, &file, error) != 0) return -1;
    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];
        const float *data = arena + tensor->offset;
        size_t bytes = tensor->count * sizeof(float);

        hashes[i] = gpt2_hash(data, bytes);
        if (gpt2_file_write(file, path, data, bytes, error) != 0) {
            (void)fclose(file);
            return -1;
        }
    }
    return gpt2_file_commit(file, path, error);
}

/* The manifest, a text:
 *
 *     gpt2-checkpoint 1 little-endian fp32
 *     progress STEP SEQUENCES UPDATES SKIPPED SEED
 *     shape VOCAB VOCAB_PADDED CONTEXT LAYERS HEADS WIDTH
 *     tensor NAME COUNT WEIGHTS_HASH M_HASH V_HASH         for each tensor, in the arena's order
 *     end HASH                                             of all bytes before this line
 *
 * It is written last, so a folder with a valid manifest has all three arenas. */
static int save_manifest(const char *folder, const gpt2_layout_t *layout,
                         const gpt2_progress_t *progress, uint64_t *const *hashes,
                         gpt2_error_t *error)
{
    char path[GPT2_PATH_MAX];
    char *text = NULL;
    size_t bytes = 0;
    const gpt2_shape_t *shape = &layout->shape;
    FILE *memory = open_memstream(&text, &bytes);
    FILE *file;
    int code;

    if (memory == NULL) return gpt2_fail(error, "out of memory for a manifest");
    (void)fprintf(memory, FORMAT_LINE);
    (void)fprintf(memory, "progress %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                  progress->step, progress->sequences, progress->updates, progress->skipped,
                  progress->seed);
    (void)fprintf(memory, "shape %d %d %d %d %d %d\n", shape->vocab, shape->vocab_padded,
                  shape->context, shape->layers, shape->heads, shape->width);
    for (size_t i = 0; i < layout->count; i++) {
        (void)fprintf(memory, "tensor %s %zu %016" PRIx64 " %016" PRIx64 " %016" PRIx64 "\n",
                      layout->tensors[i].name, layout->tensors[i].count, hashes[0][i], hashes[1][i],
                      hashes[2][i]);
    }
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

static int save_content(const char *folder, const gpt2_model_t *model,
                        const gpt2_optimizer_t *optimizer, const gpt2_progress_t *progress,
                        gpt2_error_t *error)
{
    const gpt2_layout_t *layout = model->layout;
    const float *const arenas[ARENAS] = {model->weights, optimizer->m, optimizer->v};
    uint64_t *hashes[ARENAS] = {NULL};
    uint64_t *all = calloc(ARENAS * layout->count, sizeof(*all));
    int code = 0;

    if (all == NULL) return gpt2_fail(error, "out of memory for checksums");
    for (int i = 0; i < ARENAS && code == 0; i++) {
        hashes[i] = all + (size_t)i * layout->count;
        code = save_arena(folder, ARENA_FILES[i], layout, arenas[i], hashes[i], error);
    }
    if (code == 0) code = save_manifest(folder, layout, progress, hashes, error);
    if (code == 0) code = gpt2_folder_sync(folder, error);
    free(all);
    return code;
}

int gpt2_checkpoint_save(const char *folder, const gpt2_model_t *model,
                         const gpt2_optimizer_t *optimizer, const gpt2_progress_t *progress,
                         gpt2_error_t *error)
{
    char path[GPT2_PATH_MAX];

    if (gpt2_make_folders(folder, error) != 0) return -1;
    /* Frees the space of a killed save before this one needs it, and the name .writing-N. */
    if (gpt2_folder_sweep(folder, NULL, error) != 0) return -1;
    if (gpt2_folder_begin(folder, progress->step, path, error) != 0) return -1;
    if (save_content(path, model, optimizer, progress, error) != 0) {
        (void)gpt2_remove_folder(path, NULL);
        return -1;
    }
    if (gpt2_folder_commit(folder, progress->step, error) != 0) return -1;
    gpt2_folder_prune(folder, GPT2_CHECKPOINTS_KEPT, progress->step);
    return 0;
}

/* ---- Loading -------------------------------------------------------------------------------- */

/* A manifest in memory and how far it has been read. */
typedef struct manifest {
    char path[GPT2_PATH_MAX];
    char *text;
    size_t bytes;
    char *next; /* the line to read */
} manifest_t;

/* Reads the file and checks its last line against the rest. */
static int manifest_open(const char *folder, manifest_t *manifest, gpt2_error_t *error)
{
    FILE *file;
    char *end;
    uint64_t stored;
    uint64_t computed;

    manifest->text = NULL;
    if (gpt2_path_join(manifest->path, folder, MANIFEST, error) != 0) return -1;
    file = fopen(manifest->path, "rbe");
    if (file == NULL) {
        return gpt2_fail(error, "%s: %s (is %s a checkpoint?)", manifest->path, strerror(errno),
                         folder);
    }
    manifest->text = malloc(MANIFEST_BYTES_MAX + 1);
    if (manifest->text == NULL) {
        (void)fclose(file);
        return gpt2_fail(error, "out of memory for %s", manifest->path);
    }
    manifest->bytes = fread(manifest->text, 1, MANIFEST_BYTES_MAX, file);
    manifest->text[manifest->bytes] = '\0';
    (void)fclose(file);
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
static char *manifest_line(manifest_t *manifest)
{
    char *line = manifest->next;
    size_t length = strcspn(line, "\n");

    if (*line == '\0') return NULL;
    manifest->next = line + length + (line[length] == '\n' ? 1 : 0);
    line[length] = '\0';
    return line;
}

static int manifest_head(manifest_t *manifest, gpt2_shape_t *shape, gpt2_progress_t *progress,
                         gpt2_error_t *error)
{
    const char *first = manifest_line(manifest);
    const char *second = first == NULL ? NULL : manifest_line(manifest);

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

int gpt2_checkpoint_inspect(const char *path, gpt2_shape_t *shape, gpt2_progress_t *progress,
                            gpt2_error_t *error)
{
    manifest_t manifest;
    int code = manifest_open(path, &manifest, error);

    if (code == 0) code = manifest_head(&manifest, shape, progress, error);
    free(manifest.text);
    return code;
}

/* One of the three files, open for reading from its first tensor on. */
typedef struct arena_file {
    char path[GPT2_PATH_MAX];
    FILE *file; /* NULL: not open */
} arena_file_t;

/* A file of another length than its tensors have is refused at once. */
static int arena_open(const char *folder, int which, const gpt2_layout_t *layout,
                      arena_file_t *arena, gpt2_error_t *error)
{
    const size_t wanted = layout->parameter_count * sizeof(float);
    struct stat status;

    arena->file = NULL;
    if (gpt2_path_join(arena->path, folder, ARENA_FILES[which], error) != 0) return -1;
    arena->file = fopen(arena->path, "rbe");
    if (arena->file == NULL || fstat(fileno(arena->file), &status) != 0)
        return gpt2_fail(error, "%s: %s", arena->path, strerror(errno));
    if ((size_t)status.st_size == wanted) return 0;
    return gpt2_fail(error, "%s: %s: %zu bytes, its tensors have %zu", arena->path,
                     (size_t)status.st_size < wanted ? "truncated" : "too long",
                     (size_t)status.st_size, wanted);
}

static void arena_close(arena_file_t *arena)
{
    if (arena->file != NULL) (void)fclose(arena->file);
}

/* Reads the next tensor, whose checksum the manifest knows. */
static int arena_read(arena_file_t *arena, const gpt2_tensor_t *tensor, uint64_t expected,
                      float *data, gpt2_error_t *error)
{
    const size_t bytes = tensor->count * sizeof(float);
    uint64_t hash;

    if (gpt2_file_read(arena->file, arena->path, data, bytes, error) != 0) return -1;
    hash = gpt2_hash(data, bytes);
    if (hash == expected) return 0;
    return gpt2_fail(error,
                     "%s: damaged: checksum of %s is %016" PRIx64 ", the manifest says %016" PRIx64,
                     arena->path, tensor->name, hash, expected);
}

static int load_arena(const char *folder, int which, const gpt2_layout_t *layout, float *arena,
                      const uint64_t *hashes, gpt2_error_t *error)
{
    arena_file_t file;
    int code = arena_open(folder, which, layout, &file, error);

    for (size_t i = 0; i < layout->count && code == 0; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];

        /* The file has the tensors back to back; the arena aligns each, so offsets differ. */
        code = arena_read(&file, tensor, hashes[i], arena + tensor->offset, error);
    }
    arena_close(&file);
    return code;
}

/* Reads the manifest's tensor lines; they must be the layout's, in order. */
static int load_hashes(manifest_t *manifest, const gpt2_layout_t *layout, uint64_t *hashes,
                       gpt2_error_t *error)
{
    for (size_t i = 0; i < layout->count; i++) {
        const gpt2_tensor_t *tensor = &layout->tensors[i];
        char name[GPT2_NAME_MAX];
        size_t count;
        const char *line = manifest_line(manifest);

        if (line == NULL ||
            sscanf(line, "tensor %47s %zu %" SCNx64 " %" SCNx64 " %" SCNx64, name, &count,
                   &hashes[i], &hashes[layout->count + i], &hashes[2 * layout->count + i]) != 5) {
            return gpt2_fail(error, "%s: tensor line %zu of %zu cannot be read", manifest->path, i,
                             layout->count);
        }
        if (strcmp(name, tensor->name) != 0 || count != tensor->count) {
            return gpt2_fail(error, "%s: tensor %zu is %s with %zu elements, expected %s with %zu",
                             manifest->path, i, name, count, tensor->name, tensor->count);
        }
    }
    return 0;
}

static int check_shape(const char *path, const gpt2_shape_t *stored, const gpt2_shape_t *wanted,
                       gpt2_error_t *error)
{
    if (memcmp(stored, wanted, sizeof(*stored)) == 0) return 0;
    return gpt2_fail(error,
                     "%s: vocabulary %d, context %d, layers %d, heads %d, width %d; this run has "
                     "%d, %d, %d, %d, %d",
                     path, stored->vocab, stored->context, stored->layers, stored->heads,
                     stored->width, wanted->vocab, wanted->context, wanted->layers, wanted->heads,
                     wanted->width);
}

int gpt2_checkpoint_load(const char *path, gpt2_model_t *model, gpt2_optimizer_t *optimizer,
                         gpt2_progress_t *progress, gpt2_error_t *error)
{
    manifest_t manifest;
    gpt2_shape_t shape = {0};
    const gpt2_layout_t *layout = model->layout;
    float *const arenas[ARENAS] = {model->weights, optimizer == NULL ? NULL : optimizer->m,
                                   optimizer == NULL ? NULL : optimizer->v};
    uint64_t *hashes = calloc(ARENAS * layout->count, sizeof(*hashes));
    int code;

    if (hashes == NULL) return gpt2_fail(error, "out of memory for checksums");
    code = manifest_open(path, &manifest, error);
    if (code == 0) code = manifest_head(&manifest, &shape, progress, error);
    if (code == 0) code = check_shape(manifest.path, &shape, &layout->shape, error);
    if (code == 0) code = load_hashes(&manifest, layout, hashes, error);
    for (int i = 0; i < ARENAS && code == 0; i++) {
        if (arenas[i] == NULL) continue;
        code = load_arena(path, i, layout, arenas[i], hashes + (size_t)i * layout->count, error);
    }
    if (code == 0 && optimizer != NULL) optimizer->updates = progress->updates;
    free(manifest.text);
    free(hashes);
    return code;
}

/* ---- The newest that can be relied on ------------------------------------------------------- */

/* Reads one file whose tensors are to have these checksums; buffer holds the largest of them. */
static int verify_arena(const char *folder, int which, const gpt2_layout_t *layout,
                        const uint64_t *hashes, float *buffer, gpt2_error_t *error)
{
    arena_file_t file;
    int code = arena_open(folder, which, layout, &file, error);

    for (size_t i = 0; i < layout->count && code == 0; i++)
        code = arena_read(&file, &layout->tensors[i], hashes[i], buffer, error);
    arena_close(&file);
    return code;
}

/* Reads everything a resume would, without a model: it decides whether the checkpoint is usable. */
static int verify_content(manifest_t *manifest, const char *path, const gpt2_layout_t *layout,
                          gpt2_error_t *error)
{
    uint64_t *hashes = calloc(ARENAS * layout->count, sizeof(*hashes));
    float *buffer = NULL;
    size_t largest = 0;
    int code;

    if (hashes == NULL) return gpt2_fail(error, "out of memory for checksums");
    code = load_hashes(manifest, layout, hashes, error);
    /* Sizes first: a short file costs no memory. */
    for (int i = 0; i < ARENAS && code == 0; i++) {
        arena_file_t file;

        code = arena_open(path, i, layout, &file, error);
        arena_close(&file);
    }
    for (size_t i = 0; i < layout->count; i++) {
        if (layout->tensors[i].count > largest) largest = layout->tensors[i].count;
    }
    if (code == 0) buffer = malloc(largest * sizeof(*buffer));
    if (code == 0 && buffer == NULL) {
        code = gpt2_fail(error, "%s: out of memory to check %zu numbers", path, largest);
    }
    for (int i = 0; i < ARENAS && code == 0; i++)
        code = verify_arena(path, i, layout, hashes + (size_t)i * layout->count, buffer, error);
    free(buffer);
    free(hashes);
    return code;
}

int gpt2_checkpoint_verify(const char *path, gpt2_error_t *error)
{
    gpt2_shape_t shape = {0};
    gpt2_progress_t progress;
    gpt2_layout_t *layout = NULL;
    manifest_t manifest;
    int code = manifest_open(path, &manifest, error);

    if (code == 0) code = manifest_head(&manifest, &shape, &progress, error);
    if (code == 0) code = gpt2_layout_create(&shape, &layout, error);
    if (code == 0) code = verify_content(&manifest, path, layout, error);
    gpt2_layout_destroy(layout);
    free(manifest.text);
    return code;
}

int gpt2_checkpoint_latest(const char *folder, const gpt2_notice_t *notice, char *path,
                           gpt2_error_t *error)
{
    gpt2_error_t first = {""};
    uint64_t *steps;
    size_t count;
    int is_found = 0;

    path[0] = '\0';
    if (gpt2_folder_steps(folder, &steps, &count, error) != 0) return -1;
    for (size_t i = 0; i < count && !is_found; i++) {
        char name[32];
        gpt2_error_t why = {""};

        (void)snprintf(name, sizeof(name), "%" PRIu64, steps[i]);
        is_found = gpt2_path_join(path, folder, name, &why) == 0 &&
                   gpt2_checkpoint_verify(path, &why) == 0;
        if (is_found) break;
        if (i == 0) first = why; /* why the newest fails is what the user asks first */
        gpt2_notice(notice, "checkpoint %s is passed over: %s", name, why.text);
    }
    free(steps);
    if (is_found || count == 0) return 0;
    path[0] = '\0';
    return gpt2_fail(error,
                     "none of the %zu checkpoints in %s can be used; the newest: %.700s; remove "
                     "them to start at step 0",
                     count, folder, first.text);
}
