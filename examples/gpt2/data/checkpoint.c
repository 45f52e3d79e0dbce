/*
 * checkpoint.c - writes and reads checkpoint folders.
 *
 * Called on the main thread: rank 0 saves, and rank 0 reads what a run resumes from. It must not
 * know about ranks or devices: where the numbers come from, and go to, is behind gpt2_content_t and
 * gpt2_sink_t.
 */
#include "examples/gpt2/data/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "examples/gpt2/base/foreign.h"
#include "examples/gpt2/base/hash.h"

static const char *const ARENA_FILES[GPT2_ARENAS] = {"weights.bin", "adam_m.bin", "adam_v.bin"};

/* ---- Saving --------------------------------------------------------------------------------- */

/* The target of a save; with folder NULL it writes no file. */
typedef struct saving {
    const char *folder;
    FILE *files[GPT2_ARENAS];
    char paths[GPT2_ARENAS][GPT2_PATH_MAX];
    gpt2_manifest_t *manifest;
} saving_t;

static int open_arenas(saving_t *saving, gpt2_error_t *error)
{
    for (int i = 0; i < GPT2_ARENAS; i++) {
        if (gpt2_path_join(saving->paths[i], saving->folder, ARENA_FILES[i], error) != 0) return -1;
        if (gpt2_file_create(saving->paths[i], &saving->files[i], error) != 0) return -1;
    }
    return 0;
}

/* Makes them durable; code not 0: only closes them. */
static int close_arenas(saving_t *saving, int code, gpt2_error_t *error)
{
    for (int i = 0; i < GPT2_ARENAS; i++) {
        FILE *file = saving->files[i];

        saving->files[i] = NULL;
        if (file == NULL) continue;
        if (code == 0) {
            code = gpt2_file_commit(file, saving->paths[i], error);
        } else {
            (void)fclose(file);
        }
    }
    return code;
}

/* Asks for every tensor. *written: 0, or -1 once a write has failed; then it goes on asking, since
 * other ranks take part. Returns -1 where a tensor cannot be had. */
static int save_tensors(saving_t *saving, const gpt2_layout_t *layout,
                        const gpt2_content_t *content, int *written, gpt2_error_t *error)
{
    for (size_t i = 0; i < layout->count; i++) {
        const size_t bytes = layout->tensors[i].count * sizeof(float);

        for (int arena = 0; arena < GPT2_ARENAS; arena++) {
            const float *data = content->tensor(content->user, (gpt2_arena_t)arena, i, error);

            if (data == NULL) return -1;
            if (saving == NULL || *written != 0) continue;
            saving->manifest->hashes[(size_t)arena * layout->count + i] = gpt2_hash(data, bytes);
            *written =
                gpt2_file_write(saving->files[arena], saving->paths[arena], data, bytes, error);
        }
    }
    return 0;
}

/* One file of extra state; otherwise as save_tensors(). */
static int save_extra(saving_t *saving, const gpt2_content_t *content, size_t number, int rank,
                      int *written, gpt2_error_t *error)
{
    const gpt2_extra_t *extra = &content->extras[number];
    gpt2_extra_file_t file = {.file = NULL};
    const int is_writing = saving != NULL && *written == 0;

    if (is_writing) {
        *written =
            gpt2_extra_create(&file, saving->folder, extra->name, rank, content->ranks, error);
    }
    for (size_t at = 0; at < extra->bytes; at += GPT2_EXTRA_PIECE) {
        const size_t left = extra->bytes - at;
        const size_t bytes = left < GPT2_EXTRA_PIECE ? left : GPT2_EXTRA_PIECE;
        const void *data = content->piece(content->user, number, rank, at, bytes, error);

        if (data == NULL) {
            gpt2_extra_close(&file);
            return -1;
        }
        if (!is_writing || *written != 0) continue;
        *written = gpt2_extra_write(&file, data, bytes, error);
    }
    if (is_writing && *written == 0) *written = gpt2_extra_commit(&file, error);
    if (is_writing && *written == 0) {
        *written = gpt2_manifest_append(saving->manifest, &file.entry, error);
    }
    gpt2_extra_close(&file);
    return 0;
}

static int save_extras(saving_t *saving, const gpt2_content_t *content, int *written,
                       gpt2_error_t *error)
{
    for (size_t i = 0; i < content->extra_count; i++) {
        const int is_each = content->extras[i].per_rank;

        for (int rank = is_each ? 0 : -1; rank < (is_each ? content->ranks : 0); rank++) {
            if (save_extra(saving, content, i, rank, written, error) != 0) return -1;
        }
    }
    return 0;
}

int gpt2_content_walk(const gpt2_layout_t *layout, const gpt2_content_t *content,
                      gpt2_error_t *error)
{
    int written = 0;

    if (save_tensors(NULL, layout, content, &written, error) != 0) return -1;
    return save_extras(NULL, content, &written, error);
}

/* All files; *written as in save_tensors(). */
static int save_content(saving_t *saving, const gpt2_layout_t *layout,
                        const gpt2_content_t *content, const gpt2_progress_t *progress,
                        int *written, gpt2_error_t *error)
{
    if (*written == 0) {
        *written = gpt2_manifest_create(&layout->shape, &saving->manifest, error);
    }
    if (*written == 0) *written = open_arenas(saving, error);
    if (save_tensors(saving, layout, content, written, error) != 0) return -1;
    *written = close_arenas(saving, *written, error);
    if (save_extras(saving, content, written, error) != 0) return -1;
    if (*written == 0) {
        saving->manifest->progress = *progress;
        *written = gpt2_manifest_save(saving->manifest, saving->folder, error);
    }
    if (*written == 0) *written = gpt2_folder_sync(saving->folder, error);
    return 0;
}

/* The folder of a new checkpoint; path [GPT2_PATH_MAX]. */
static int begin_folder(const char *folder, uint64_t step, char *path, gpt2_error_t *error)
{
    if (gpt2_make_folders(folder, error) != 0) return -1;
    /* Frees the space of a killed save before this one needs it, and the name .writing-N. */
    if (gpt2_folder_sweep(folder, NULL, error) != 0) return -1;
    return gpt2_folder_begin(folder, step, path, error);
}

int gpt2_checkpoint_write(const char *folder, const gpt2_layout_t *layout,
                          const gpt2_content_t *content, const gpt2_progress_t *progress,
                          int *is_saved, gpt2_error_t *error)
{
    char path[GPT2_PATH_MAX] = "";
    saving_t saving = {.folder = path};
    int written = begin_folder(folder, progress->step, path, error);
    const int is_begun = written == 0;
    int code = save_content(&saving, layout, content, progress, &written, error);

    (void)close_arenas(&saving, -1, NULL);
    gpt2_manifest_destroy(saving.manifest);
    *is_saved = code == 0 && written == 0;
    if (!*is_saved && is_begun) (void)gpt2_remove_folder(path, NULL);
    if (*is_saved) *is_saved = gpt2_folder_commit(folder, progress->step, error) == 0;
    if (*is_saved) gpt2_folder_prune(folder, GPT2_CHECKPOINTS_KEPT, progress->step);
    return code;
}

/* A model and an optimizer of this process. */
typedef struct local {
    const gpt2_layout_t *layout;
    float *arenas[GPT2_ARENAS]; /* NULL: not kept */
    float *spare;               /* [largest tensor] for those */
} local_t;

static const float *local_tensor(void *user, gpt2_arena_t arena, size_t index, gpt2_error_t *error)
{
    const local_t *local = user;

    (void)error;
    return local->arenas[arena] + local->layout->tensors[index].offset;
}

int gpt2_checkpoint_save(const char *folder, const gpt2_model_t *model,
                         const gpt2_optimizer_t *optimizer, const gpt2_progress_t *progress,
                         gpt2_error_t *error)
{
    local_t local = {.layout = model->layout,
                     .arenas = {model->weights, optimizer->m, optimizer->v}};
    const gpt2_content_t content = {.user = &local, .tensor = local_tensor, .ranks = 1};
    int is_saved;
    const int code =
        gpt2_checkpoint_write(folder, model->layout, &content, progress, &is_saved, error);

    return is_saved ? code : -1;
}

/* ---- Loading -------------------------------------------------------------------------------- */

int gpt2_checkpoint_inspect(const char *path, gpt2_shape_t *shape, gpt2_progress_t *progress,
                            gpt2_error_t *error)
{
    return gpt2_manifest_inspect(path, shape, progress, error);
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
    size_t bytes;

    arena->file = NULL;
    if (gpt2_path_join(arena->path, folder, ARENA_FILES[which], error) != 0) return -1;
    if (gpt2_file_open(arena->path, &arena->file, &bytes, error) != 0) return -1;
    if (bytes == wanted) return 0;
    if (gpt2_foreign_refuse(arena->file, arena->path, error) != 0) return -1;
    return gpt2_fail(error, "%s: %s: %zu bytes, its tensors have %zu", arena->path,
                     bytes < wanted ? "truncated" : "too long", bytes, wanted);
}

static void arena_close(arena_file_t *arena)
{
    if (arena->file != NULL) (void)fclose(arena->file);
    arena->file = NULL;
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

static int arenas_of(const gpt2_sink_t *sink)
{
    return sink->weights_only ? 1 : GPT2_ARENAS;
}

/* Every tensor of the files; they are walked side by side, so that a group is whole early. */
static int read_tensors(const char *path, const gpt2_manifest_t *manifest, arena_file_t *files,
                        const gpt2_sink_t *sink, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = manifest->layout;

    for (int arena = 0; arena < arenas_of(sink); arena++) {
        if (arena_open(path, arena, layout, &files[arena], error) != 0) return -1;
    }
    for (size_t i = 0; i < layout->count; i++) {
        for (int arena = 0; arena < arenas_of(sink); arena++) {
            float *data = sink->place(sink->user, (gpt2_arena_t)arena, i, error);

            if (data == NULL) return -1;
            if (arena_read(&files[arena], &layout->tensors[i],
                           manifest->hashes[(size_t)arena * layout->count + i], data, error) != 0) {
                return -1;
            }
            if (sink->placed != NULL &&
                sink->placed(sink->user, (gpt2_arena_t)arena, i, error) != 0) {
                return -1;
            }
        }
    }
    return 0;
}

int gpt2_checkpoint_read(const char *path, const gpt2_layout_t *layout, const gpt2_sink_t *sink,
                         gpt2_error_t *error)
{
    arena_file_t files[GPT2_ARENAS] = {{.file = NULL}};
    gpt2_manifest_t *manifest = NULL;
    int code = gpt2_manifest_load(path, &manifest, error);

    if (code == 0) code = check_shape(path, &manifest->shape, &layout->shape, error);
    if (code == 0) code = read_tensors(path, manifest, files, sink, error);
    for (int arena = 0; arena < GPT2_ARENAS; arena++)
        arena_close(&files[arena]);
    gpt2_manifest_destroy(manifest);
    return code;
}

int gpt2_sink_walk(const gpt2_layout_t *layout, const gpt2_sink_t *sink, gpt2_error_t *error)
{
    for (size_t i = 0; i < layout->count; i++) {
        for (int arena = 0; arena < arenas_of(sink); arena++) {
            if (sink->place(sink->user, (gpt2_arena_t)arena, i, error) == NULL) return -1;
            if (sink->placed != NULL &&
                sink->placed(sink->user, (gpt2_arena_t)arena, i, error) != 0) {
                return -1;
            }
        }
    }
    return 0;
}

static size_t largest_tensor(const gpt2_layout_t *layout)
{
    size_t largest = 0;

    for (size_t i = 0; i < layout->count; i++) {
        if (layout->tensors[i].count > largest) largest = layout->tensors[i].count;
    }
    return largest;
}

static float *local_place(void *user, gpt2_arena_t arena, size_t index, gpt2_error_t *error)
{
    const local_t *local = user;

    (void)error;
    if (local->arenas[arena] == NULL) return local->spare;
    return local->arenas[arena] + local->layout->tensors[index].offset;
}

int gpt2_checkpoint_load(const char *path, gpt2_model_t *model, gpt2_optimizer_t *optimizer,
                         gpt2_progress_t *progress, gpt2_error_t *error)
{
    const gpt2_layout_t *layout = model->layout;
    local_t local = {.layout = layout,
                     .arenas = {model->weights, optimizer == NULL ? NULL : optimizer->m,
                                optimizer == NULL ? NULL : optimizer->v}};
    const gpt2_sink_t sink = {
        .user = &local, .weights_only = optimizer == NULL, .place = local_place};
    gpt2_shape_t shape = {0};
    int code = gpt2_manifest_inspect(path, &shape, progress, error);

    if (code == 0) code = gpt2_checkpoint_read(path, layout, &sink, error);
    if (code == 0 && optimizer != NULL) optimizer->updates = progress->updates;
    return code;
}

/* ---- The newest that can be relied on ------------------------------------------------------- */

static int check_sizes(const char *path, const gpt2_layout_t *layout, gpt2_error_t *error)
{
    for (int i = 0; i < GPT2_ARENAS; i++) {
        arena_file_t file;
        const int code = arena_open(path, i, layout, &file, error);

        arena_close(&file);
        if (code != 0) return -1;
    }
    return 0;
}

int gpt2_checkpoint_verify(const char *path, gpt2_error_t *error)
{
    gpt2_manifest_t *manifest = NULL;
    local_t local = {.layout = NULL};
    const gpt2_sink_t sink = {.user = &local, .place = local_place};
    size_t bytes = 0;
    int code = gpt2_manifest_load(path, &manifest, error);

    /* Sizes first: a short file costs no memory. */
    if (code == 0) code = check_sizes(path, manifest->layout, error);
    if (code == 0) {
        bytes = largest_tensor(manifest->layout) * sizeof(float);
        if (bytes < GPT2_EXTRA_PIECE) bytes = GPT2_EXTRA_PIECE;
        local.spare = malloc(bytes);
        if (local.spare == NULL) {
            code = gpt2_fail(error, "%s: out of memory to check %zu bytes", path, bytes);
        }
    }
    if (code == 0) code = gpt2_checkpoint_read(path, manifest->layout, &sink, error);
    for (size_t i = 0; code == 0 && i < manifest->extra_count; i++)
        code = gpt2_extra_verify(path, &manifest->extras[i], local.spare, error);
    free(local.spare);
    gpt2_manifest_destroy(manifest);
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
